"""Settings that are almost right: a typed config, or an error that names the setting."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from saccade.config import Config, build, config_type
from saccade.decoding.config import DecodingConfig
from saccade.errors import SaccadeError
from saccade.inference.loading import load
from saccade.inference.translator import Translator
from saccade.models.registry import FAMILIES, choose, load_family, presets
from saccade.training.config import RunConfig
from saccade.training.config_resolution import resolve_config
from untrusted_input.guard import guarded
from untrusted_input.mutator import SPECIAL_VALUES

PLAIN = st.one_of(
    st.sampled_from(SPECIAL_VALUES),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.lists(st.integers(), max_size=3),
)
MANY = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])


def near_valid(kind: type[Config]) -> st.SearchStrategy[dict[str, Any]]:
    """Generate mappings with some settings of a config, with valid or invalid values, and sometimes an unknown key."""
    fields: dict[str, st.SearchStrategy[Any]] = {}
    for name, info in kind.model_fields.items():
        group = config_type(info.annotation)
        default = info.get_default(call_default_factory=True)
        fields[name] = near_valid(group) | PLAIN if group else st.just(default) | PLAIN
    strange = st.dictionaries(st.text(max_size=6) | st.sampled_from([*fields, "x-y"]), PLAIN, max_size=1)
    known = st.fixed_dictionaries({}, optional=fields)
    few = known.map(lambda values: dict(list(values.items())[:3]))
    return st.builds(lambda first, second: {**first, **second}, few, st.just({}) | st.just({}) | strange)


def model_settings() -> st.SearchStrategy[dict[str, Any]]:
    """Generate a family or a preset, valid or not, with settings of a family."""
    family = st.fixed_dictionaries({"family": st.sampled_from([*FAMILIES, "os.system", "", None, 7, []])})
    preset = st.fixed_dictionaries({"preset": st.sampled_from([*presets(), "x", None, {}])})
    others = st.sampled_from(sorted(FAMILIES)).flatmap(lambda name: near_valid(load_family(name).config))
    return st.builds(lambda first, second: {**second, **first}, family | preset | st.just({}), others)


def build_or_reject(make: Callable[[], Config]) -> Config | None:
    """Return the config, or None after a SaccadeError."""
    try:
        return make()
    except SaccadeError as error:
        assert str(error).isprintable() or "\n  " in str(error)  # noqa: PT017 (both outcomes are fine)
        assert len(str(error)) < 5000  # noqa: PT017
        return None


def check_typed(found: Config, values: Mapping[str, Any]) -> None:
    """Check that an accepted config is rebuilt from its own values."""
    again = build(type(found), found.model_dump(), where="again")
    assert again == found
    assert set(found.model_fields_set) <= {str(name).replace("-", "_") for name in values}


@MANY
@given(values=near_valid(DecodingConfig))
def test_settings_of_a_search(tmp_path_factory: pytest.TempPathFactory, values: dict[str, Any]) -> None:
    with guarded(tmp_path_factory.getbasetemp()):
        found = build_or_reject(lambda: build(DecodingConfig, values, where="generation.json"))
    if found is not None:
        check_typed(found, values)


@MANY
@given(values=model_settings())
def test_settings_of_a_model(tmp_path_factory: pytest.TempPathFactory, values: dict[str, Any]) -> None:
    with guarded(tmp_path_factory.getbasetemp()):
        found = build_or_reject(lambda: choose(values).config)
    if found is not None:
        assert choose({"family": choose(values).family, **found.model_dump()}).config == found


@MANY
@given(values=near_valid(RunConfig), model=model_settings())
def test_settings_of_a_run(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, Any], model: dict[str, Any]
) -> None:
    with guarded(tmp_path_factory.getbasetemp()):
        found = build_or_reject(lambda: resolve_config({**values, "model": model}, where="recipe.yaml"))
    if found is not None:
        assert resolve_config(found.model_dump(), where="again") == found


SEARCHES = st.fixed_dictionaries(
    {},
    optional={
        "beam": st.integers(1, 30),
        "nbest": st.integers(1, 5),
        "length_penalty": st.sampled_from(["gnmt", "plain", "none"]),
        "length_alpha": st.floats(0, 1e308) | st.sampled_from([0.0, 1e308, 5e-324]),
        "coverage_beta": st.floats(0, 1e308),
        "sample": st.booleans(),
        "temperature": st.floats(5e-324, 1e308),
        "top_k": st.integers(0, 2**62),
        "top_p": st.floats(5e-324, 1),
        "seed": st.integers(0, 2**63 - 1),
        "max_source": st.none() | st.integers(0, 1_000_000) | st.integers(1, 9),
        "long_source": st.sampled_from(["split", "truncate"]),
        "keep_duplicates": st.booleans(),
        "min_length": st.integers(0, 20),
        "max_length": st.integers(0, 20),
        "max_length_factor": st.floats(0, 3),
        "max_length_offset": st.integers(1, 5),
        "allow_unknown": st.booleans(),
        "batch_tokens": st.integers(0, 2**62),
    },
)


@pytest.fixture(scope="module")
def translator(pristine: dict[str, Path]) -> Translator:
    """A small model."""
    return load(pristine["separate"], "cpu")


@settings(deadline=None, max_examples=25)
@given(values=SEARCHES)
@example(values={"length_alpha": 53.0, "coverage_beta": 1.0})  # the penalty of a long output is beyond float32
def test_any_valid_search_terminates(
    tmp_path_factory: pytest.TempPathFactory, translator: Translator, values: dict[str, Any]
) -> None:
    try:
        decoding = build(DecodingConfig, values, where="generation.json")
    except SaccadeError:
        return
    with guarded(tmp_path_factory.getbasetemp()):
        found = list(translator.stream(["ein Hund", "", "xyz"], decoding))
    assert len(found) == 3
    assert found[1].text == ""
