"""Output files of long commands: checked before the work starts, and replaced atomically."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from saccade.errors import SaccadeError, not_written
from saccade.file_names import without_links
from saccade.folder import fsync


def check_writable(path: Path) -> None:
    """Raise an error if no file can be written at this path."""
    if path.is_dir():
        raise SaccadeError("is a directory", where=str(path), hint="name a file in it")
    if not path.absolute().parent.is_dir():
        raise SaccadeError("no such directory", where=str(path.parent), hint="create it first, or choose another path")
    try:
        if path.is_file():
            path.open("ab").close()  # fails if the file is write-protected
        if is_replaceable(path):
            temporary = temporary_path(without_links(path))
            temporary.touch()
            temporary.unlink()
    except OSError as error:
        raise not_written(path, error) from None


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` when the block ends; after an error, `path` is unchanged."""
    with errors_about(path):
        if not is_replaceable(path):
            yield path
            return
        target = without_links(path)  # keep a symbolic link and replace the file it points to
        temporary = temporary_path(target)
        try:
            yield temporary
            fsync(temporary)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def errors_about(path: Path) -> Iterator[None]:
    """Let errors of the block name the path that the user gave, not the temporary file, and say what to do."""
    try:
        yield
    except OSError as error:
        raise not_written(path, error) from None
    except SaccadeError as error:
        raise SaccadeError(error.what, where=str(path), hint=error.hint or "choose another path") from None


def write_text_atomically(path: Path, text: str) -> None:
    """Replace a text file, UTF-8 with line feeds."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def temporary_path(path: Path) -> Path:
    """Return the hidden path beside a file that is written first; it keeps the suffix, which may select the format."""
    return path.with_name(f".{path.stem}.partial{path.suffix}")


def is_replaceable(path: Path) -> bool:
    """Return whether the path can be replaced; devices and pipes, such as /dev/stdout, are written directly."""
    return path.is_file() or not path.exists()
