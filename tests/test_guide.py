"""The example in the guide is a model like any other: it obeys the laws."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from laws import test_laws as laws
from laws.subjects import SIZES, build_model, make_batch
from saccade.models.registry import FAMILIES

GUIDE = Path(__file__).parent.parent / "docs" / "guide" / "adding-a-model.md"
SUBJECT = ("bag", {})


@pytest.fixture(scope="module", autouse=True)
def example(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guide")
    block = re.search(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    (folder / "bag_of_the_guide.py").write_text(block[1], encoding="utf-8")
    sys.path.insert(0, str(folder))
    FAMILIES["bag"] = "bag_of_the_guide"
    yield
    del FAMILIES["bag"]
    sys.path.remove(str(folder))


@pytest.mark.parametrize("law", laws.OF_THE_INTERFACE, ids=lambda law: law.__name__)
def test_laws_of_the_interface(law):
    arguments = [build_model(SUBJECT), make_batch([7, 4, 1, 5], [6, 3, 5, 1])]
    law(*arguments[: law.__code__.co_argcount])


def test_laws_of_learning(tmp_path):
    laws.test_5_every_parameter_gets_a_gradient_and_moves(SUBJECT, SIZES)
    laws.test_6_a_saved_model_is_the_same_model(SUBJECT, tmp_path)
    laws.test_9_it_overfits_a_copy_task(SUBJECT)
