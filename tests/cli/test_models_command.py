from __future__ import annotations

import json

from command_line import Saccade

from saccade.models.registry import presets


def test_every_preset_is_listed(saccade: Saccade) -> None:
    result = saccade("models")
    assert result.code == 0
    rows = {line.split()[0]: line for line in result.out.splitlines() if line}
    assert set(presets()) <= set(rows)
    assert "4+4" in rows["transformer-tiny"]
    assert "joint vocabulary of 37,000" in result.out


def test_parameters_follow_the_vocabulary(saccade: Saccade) -> None:
    small, large = (json.loads(saccade("models", "--json", "--vocabulary", size).out) for size in (1000, 2000))
    for before, after in zip(small["presets"], large["presets"], strict=True):
        grown = after["parameters"] - before["parameters"]
        assert grown > 0
        assert grown % 1000 == 0
        if before["family"] == "transformer":  # it has one shared embedding table
            assert grown == 1000 * before["width"]
