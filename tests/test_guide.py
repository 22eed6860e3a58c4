"""The example model of the guide passes the contract tests."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from contracts import test_model_contracts as contracts
from contracts.registered_models import SIZES, build_model, make_batch
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


@pytest.mark.parametrize("contract", contracts.INTERFACE_CONTRACTS, ids=lambda contract: contract.__name__)
def test_interface_contracts(contract):
    arguments = [build_model(SUBJECT), make_batch([7, 4, 1, 5], [6, 3, 5, 1])]
    contract(*arguments[: contract.__code__.co_argcount])


def test_training_contracts(tmp_path):
    contracts.test_every_parameter_has_a_gradient_and_is_updated(SUBJECT, SIZES)
    contracts.test_saved_model_equals_loaded_model(SUBJECT, tmp_path)
    contracts.test_model_overfits_a_copy_task(SUBJECT)
