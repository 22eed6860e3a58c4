from __future__ import annotations

from typing import Annotated, Literal

import pytest
from pydantic import Field

from saccade.config import Config
from saccade.config_help import HelpGroup, HelpType, SettingHelp, describe, range_of, type_name

RARE = HelpGroup("Rare settings")
Share = Annotated[float, Field(ge=0, lt=1)]


class Inner(Config):
    learning_rate: float = Field(0.1, gt=0)
    """How fast."""
    betas: tuple[Share, Share] = (0.9, 0.98)
    """Two shares."""
    names: tuple[str, ...] = ()


class Outer(Config):
    training: Inner = Inner()
    rare: Annotated[Inner, RARE] = Inner()
    kind: Annotated[Literal["a", "b"], RARE] = "a"
    size: int | None = Field(None, ge=1, le=9)
    """How big,
    in meters."""
    flag: bool | None = None
    needed: str
    path: Annotated[str, HelpType("a|FILE")] | None = None


def test_every_setting_has_name_type_text_default_range_and_group() -> None:
    by_name = {setting.name: setting for setting in describe(Outer)}
    assert by_name["training.learning-rate"] == SettingHelp(
        "training.learning-rate", "float", "How fast.", "0.1", "x>0"
    )
    assert by_name["training.betas"][1:5] == ("float,float", "Two shares.", "0.9,0.98", "0<=x<1")
    assert by_name["training.names"][1:5] == ("str,…", "", "", "")
    assert by_name["size"] == SettingHelp("size", "int", "How big, in meters.", "", "1<=x<=9")
    assert by_name["flag"].type == "true|false"
    assert by_name["needed"].default == ""
    assert by_name["path"].type == "a|FILE"
    assert {name for name, setting in by_name.items() if setting.group == RARE.title} == {
        *("rare.learning-rate", "rare.betas", "rare.names", "kind"),
    }


def test_given_values_are_shown_as_defaults() -> None:
    found = {
        setting.name: setting.default for setting in describe(Outer, {"training": {"betas": [0.5, 0.6]}, "size": 3})
    }
    assert (found["training.betas"], found["size"], found["training.learning-rate"]) == ("0.5,0.6", "3", "0.1")


@pytest.mark.parametrize(
    ("annotation", "shown"),
    [
        (int, "int"),
        (float | None, "float"),
        (bool, "true|false"),
        (Literal["a", "b"], "a|b"),
        (Literal["a", "b"] | None, "a|b"),
        (tuple[Literal["a", "b"], ...], "a|b,…"),
        (tuple[Annotated[float, Field(gt=0)], int], "float,int"),
        (dict[str, int], "str"),
    ],
)
def test_type_names(annotation: object, shown: str) -> None:
    assert type_name(annotation) == shown


def test_ranges() -> None:
    shown = [
        range_of(Field(**limits).metadata)
        for limits in ({}, {"ge": 1}, {"gt": 0}, {"le": 5}, {"lt": 5}, {"gt": 0, "le": 1}, {"ge": 0, "lt": 1})
    ]
    assert shown == ["", "x>=1", "x>0", "x<=5", "x<5", "0<x<=1", "0<=x<1"]
