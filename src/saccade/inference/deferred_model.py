"""A model that is loaded when it is first used."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar

from saccade.interface import EncoderDecoder

Model = TypeVar("Model", bound=EncoderDecoder)


class DeferredModel(Generic[Model]):
    """A model that is loaded at the first call and then kept: CTranslate2 with a cached export never loads it."""

    def __init__(self, load: Callable[[], Model]) -> None:
        self.load = load
        self.lock = Lock()
        self.model: Model | None = None

    def __call__(self) -> Model:
        """Return the model; concurrent callers wait until it is loaded."""
        with self.lock:
            if self.model is None:
                self.model = self.load()
            return self.model
