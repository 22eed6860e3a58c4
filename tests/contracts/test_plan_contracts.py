"""Contract tests of the interface for plans: a plan has the methods of its model, and what the model guarantees."""

from __future__ import annotations

import pytest

from contracts import test_model_contracts as contracts
from contracts.registered_models import build_model, make_batch, registered_models
from saccade.plans.plan_selection import PLANS, plan_for

PLANNED = [subject for subject in registered_models() if type(build_model(subject.values[0])) in PLANS]

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.usefixtures("grad_mode")
@pytest.mark.parametrize("subject", PLANNED)
@pytest.mark.parametrize("contract", contracts.INTERFACE_CONTRACTS, ids=lambda contract: contract.__name__)
def test_interface_contracts(contract, subject):
    arguments = [plan_for(build_model(subject)), make_batch([7, 4, 1, 5], [6, 3, 5, 1])]
    contract(*arguments[: contract.__code__.co_argcount])
