from __future__ import annotations

import pytest

from saccade.errors import SaccadeError
from saccade.folder import atomic_folder, partial_path, previous_path, recover, verify


def write(path, text):
    with atomic_folder(path) as folder:
        (folder / "file").write_text(text, encoding="utf-8")


def content(path):
    verify(path)
    return (path / "file").read_text(encoding="utf-8")


@pytest.fixture
def path(tmp_path):
    write(tmp_path / "folder", "old")
    return tmp_path / "folder"


def test_a_kill_while_writing_leaves_the_old_folder(path):
    partial_path(path).mkdir()
    (partial_path(path) / "file").write_text("torn", encoding="utf-8")
    recover(path)
    assert content(path) == "old"
    assert [entry.name for entry in path.parent.iterdir()] == ["folder"]


def test_a_kill_between_the_two_renames_restores_the_old_folder(path):
    path.rename(previous_path(path))
    recover(path)
    assert content(path) == "old"


def test_a_kill_after_the_renames_keeps_the_new_folder(path):
    path.rename(previous_path(path))
    write(path, "new")  # recovers, then replaces
    assert content(path) == "new"
    assert [entry.name for entry in path.parent.iterdir()] == ["folder"]


def test_leftovers_of_a_killed_writer_do_not_prevent_the_next_write(path):
    partial_path(path).mkdir()
    previous_path(path).mkdir()
    write(path, "new")
    assert content(path) == "new"
    assert [entry.name for entry in path.parent.iterdir()] == ["folder"]


def test_an_unwritable_folder_is_an_error(tmp_path):
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(SaccadeError, match="cannot be written"):
        write(tmp_path / "file" / "folder", "new")
