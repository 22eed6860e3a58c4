from __future__ import annotations

import re
from pathlib import Path

import saccade

TABLE = Path(__file__).parent.parent / "docs" / "tree-questions.md"
PACKAGE = Path(saccade.__file__).parent


def test_every_file_in_the_answers_exists() -> None:
    rows = re.findall(r"^\| \d+ \| .* \| (.*) \|$", TABLE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) == 20
    for row in rows:
        first, *others = (Path(name) for name in re.findall(r"`([^` ]+)`", row))
        assert (PACKAGE / first).is_file(), first
        for other in others:
            folder = PACKAGE if len(other.parts) > 1 else PACKAGE / first.parent
            assert (folder / other).exists(), other
