"""Files that a command writes after long work: refused before it if they cannot be, and put in their place whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from saccade.errors import SaccadeError
from saccade.folder import flush, partial


def check_output(path: Path) -> None:
    """Refuse a place where no file can be written."""
    if path.is_dir():
        raise SaccadeError("is a directory", where=str(path), do="name a file in it")
    if not path.absolute().parent.is_dir():
        raise SaccadeError("there is no such directory", where=str(path.parent), do="make it first, or write elsewhere")
    try:
        if path.is_file():
            path.open("ab").close()  # one that is protected is not replaced
        if is_replaceable(path):
            place = partial(path.resolve())
            place.touch()
            place.unlink()
    except OSError as error:
        raise SaccadeError(
            f"cannot be written: {error.strerror}", where=str(path), do="check the permissions, or write elsewhere"
        ) from None


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Where to write a file: it takes the place of an older one when the block ends, and no place if it fails."""
    if not is_replaceable(path):
        yield path
        return
    target = path.resolve()  # a link stays one
    place = partial(target)
    advice = "free some space, or write elsewhere; an older file is as it was"
    try:
        yield place
        flush(place)
        place.replace(target)
    except OSError as error:
        raise SaccadeError(f"cannot be written: {error.strerror}", where=str(path), do=advice) from None
    except SaccadeError as error:  # it names a file that is gone
        raise SaccadeError(error.what, where=str(path), do=advice) from None
    finally:
        place.unlink(missing_ok=True)


def is_replaceable(path: Path) -> bool:
    """Whether another file may take this place: a device or a pipe, such as /dev/stdout, is written as it is."""
    return path.is_file() or not path.exists()
