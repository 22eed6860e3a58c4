from __future__ import annotations

import pytest

from saccade.errors import SaccadeError
from saccade.evaluation.references import keyed_references, reference_streams


def test_references_are_grouped_by_source() -> None:
    rows = [("read", "R IY D"), ("cat", "K AE T"), ("read", "R EH D"), ("read", "R IY D")]
    assert keyed_references(["cat", "read", "cat"], iter(rows)) == [["K AE T"], ["R IY D", "R EH D"], ["K AE T"]]


def test_equal_sources_do_not_share_one_list() -> None:
    first, second = keyed_references(["a", "a"], [("a", "b")])
    first.append("c")
    assert second == ["b"]


def test_a_source_without_reference_is_an_error_with_its_line() -> None:
    with pytest.raises(SaccadeError, match=r"line 2: .*'dog'"):
        keyed_references(["cat", "dog"], [("cat", "K AE T")])


def test_missing_references_are_none_in_streams() -> None:
    assert reference_streams([["a"], ["b", "c"], ["d", "e", "f"]]) == [
        ["a", "b", "d"],
        [None, "c", "e"],
        [None, None, "f"],
    ]
