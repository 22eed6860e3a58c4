from __future__ import annotations

from pathlib import Path

import pytest

from saccade.cli.output.record_writer import RecordWriter, open_output


class Interrupted:
    """A file whose second write is interrupted, before or after its text is written."""

    def __init__(self, file, *, after: bool) -> None:
        self.file, self.after, self.calls = file, after, 0
        self.flush, self.fileno = file.flush, file.fileno

    def write(self, text: str) -> None:
        self.calls += 1
        if self.calls < 2 or self.after:
            self.file.write(text)
        if self.calls == 2:
            raise KeyboardInterrupt


@pytest.mark.parametrize(("after", "expected"), [(False, 1), (True, 2)])
def test_complete_records_after_an_interruption(after: bool, expected: int, tmp_path: Path) -> None:
    with open_output(tmp_path / "out") as file:
        writer = RecordWriter(Interrupted(file, after=after))
        writer.write("é\n0\n")
        with pytest.raises(KeyboardInterrupt):
            writer.write("b\n1\n")
        assert writer.complete() == expected
    assert (tmp_path / "out").read_text(encoding="utf-8") == "é\n0\nb\n1\n"[: 4 * expected]
