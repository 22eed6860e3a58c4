from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from small_comparison import write_corpus

from saccade.studies.comparison import report
from saccade.training.runs import log_files, tracking


@pytest.fixture(scope="module")
def quick() -> Iterator[None]:
    """Use one thread and draw no curves, which is faster for models of this size."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_files, "plot_curves", lambda rows, path: None)
        patch.setattr(tracking.RunTracker, "begin", lambda self, settings: None)  # TensorBoard is slow to import
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("words")
    write_corpus(folder)
    return folder


@pytest.fixture
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip plots, which take most of the time."""
    monkeypatch.setattr(report, "draw_plots", lambda scores, output: [])
