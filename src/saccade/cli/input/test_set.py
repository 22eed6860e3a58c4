"""The test set that `saccade evaluate` names: two files, or one file of pairs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from saccade.errors import UsageError

if TYPE_CHECKING:
    from saccade.evaluation.reference_files import SourcesAndReferences


def read_file(path: Path) -> list[str]:
    """Return all lines of a file."""
    from saccade.data.reading.pair_files import read_lines

    return list(read_lines(path))


def read_test_set(
    source: Path | None, references: Sequence[Path], *, columns: tuple[str, str], keyed: bool, sources_needed: bool
) -> SourcesAndReferences:
    """Return the sentences and their references, in separate files or in one file of pairs."""
    from saccade.data.reading.text_lines import FileError
    from saccade.evaluation.reference_files import read_aligned_references, read_keyed_references, read_pairs_to_score

    if source is None and (sources_needed or keyed):
        raise UsageError("no test set is named", hint="give --source FILE and --reference FILE")
    if references:
        sources = [] if source is None else read_file(source)
        return (read_keyed_references if keyed else read_aligned_references)(sources, references)
    advice = "give --reference FILE, several times for several references; or one file of pairs as --source FILE"
    if source is None or keyed:
        raise UsageError("no references are named", hint=advice)
    try:
        return read_pairs_to_score(source, source_column=columns[0], target_column=columns[1])
    except FileError as error:
        if error.kind != "no-target":
            raise
        raise UsageError(f"no references are named, and {source} holds one text per line", hint=advice) from None
