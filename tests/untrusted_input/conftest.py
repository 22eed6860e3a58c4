from __future__ import annotations

from pathlib import Path

import pytest

from untrusted_input.pristine import KINDS, make_checkpoint, make_model_folder


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A valid model folder for each kind of vocabulary."""
    folders = {kind: tmp_path_factory.mktemp(kind) / "model" for kind in KINDS}
    for kind, path in folders.items():
        make_model_folder(path, kind)
    return folders


@pytest.fixture(scope="session")
def pristine_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A valid checkpoint."""
    return make_checkpoint(tmp_path_factory.mktemp("checkpoints"))
