from __future__ import annotations

import pytest

from saccade.errors import UsageError
from saccade.file_names import MAX_NAME_LENGTH, check_file_name


@pytest.mark.parametrize("name", ["test", "test.en", "flickr-2016_b", "Prüfung 1", "x" * MAX_NAME_LENGTH])
def test_plain_names_are_valid(name: str) -> None:
    assert check_file_name(name, "--name") == name


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "a/b", "/a", "a\\b", "c:d", ".a", "-a", "a\nb", "a\0", " a", "\udcff", "x" * (MAX_NAME_LENGTH + 1)],
)
def test_paths_and_unprintable_names_are_usage_errors(name: str) -> None:
    with pytest.raises(UsageError):
        check_file_name(name, "--name")
