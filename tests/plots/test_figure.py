from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from saccade import messages
from saccade.errors import SaccadeError
from saccade.plots import figure as figures
from saccade.plots import fonts
from saccade.plots.attention_map import plot_attention
from saccade.plots.figure import MAX_PIXELS, new_figure, plot_format, resolution, save_figure
from saccade.plots.fonts import choose_fonts, package_of

MAGIC = {"png": b"\x89PNG\r\n\x1a\n", "svg": b"<?xml", "pdf": b"%PDF-"}
UNKNOWN = "\U00013000"  # an Egyptian hieroglyph; tests replace the installed fonts


def example(text: str = "text"):
    figure = new_figure(3, 2)
    axes = figure.add_subplot()
    axes.plot([1, 2], [3, 4])
    axes.set_title(text)
    return figure


@pytest.fixture
def only_base_font(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fonts, "installed_fonts", list)
    monkeypatch.setattr(fonts, "add_new_fonts", lambda: False)


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The warnings that are shown."""
    shown: list[str] = []
    monkeypatch.setattr(messages, "warn", shown.append)
    figures.warn_once.cache_clear()
    return shown


@pytest.mark.parametrize("kind", MAGIC)
def test_the_suffix_selects_the_format_and_equal_figures_give_equal_files(kind: str, tmp_path: Path) -> None:
    first, second = tmp_path / f"a.{kind}", tmp_path / f"b.{kind.upper()}"
    for path in (first, second):
        save_figure(example(), path)
    assert first.read_bytes().startswith(MAGIC[kind])
    assert first.read_bytes() == second.read_bytes()


def test_no_file_contains_a_date(tmp_path: Path) -> None:
    save_figure(example(), tmp_path / "a.svg")
    save_figure(example(), tmp_path / "a.pdf")
    assert b"dc:date" not in (tmp_path / "a.svg").read_bytes()
    assert b"CreationDate" not in (tmp_path / "a.pdf").read_bytes()


@pytest.mark.parametrize("name", ["a.gif", "a", "a.png.gz", ".png"])
def test_other_suffixes_are_errors(name: str, tmp_path: Path) -> None:
    with pytest.raises(SaccadeError) as raised:
        save_figure(example(), tmp_path / name)
    assert raised.value.hint is not None
    assert ".svg" in raised.value.hint
    assert not (tmp_path / name).exists()


def test_a_device_gets_png() -> None:
    assert plot_format("/dev/null") == "png"


def test_a_path_that_cannot_be_written_is_an_error_with_advice(tmp_path: Path) -> None:
    with pytest.raises(SaccadeError) as raised:
        save_figure(example(), tmp_path / "missing" / "a.svg")
    assert raised.value.hint
    assert "missing" in str(raised.value.where)


def test_a_large_figure_has_a_bounded_number_of_pixels(tmp_path: Path) -> None:
    assert resolution(10, 10) == 300
    assert 80 * 60 * resolution(80, 60) ** 2 == pytest.approx(MAX_PIXELS)
    save_figure(example(), tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.size == (900, 600)
        assert (np.asarray(picture.convert("RGBA"))[..., 3] == 255).all()


def test_several_threads_can_save_at_the_same_time(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.{kind}" for number in range(3) for kind in MAGIC]
    threads = [threading.Thread(target=lambda path=path: save_figure(example(), path)) for path in paths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for kind in MAGIC:
        assert len({path.read_bytes() for path in paths if path.suffix == f".{kind}"}) == 1


def test_a_character_without_a_font_is_one_warning_that_names_a_package(
    only_base_font: None, warnings: list[str], tmp_path: Path
) -> None:
    for number in range(2):
        save_figure(example("猫 and 🦊"), tmp_path / f"{number}.png")
    assert len(warnings) == 1
    assert all(name in warnings[0] for name in ("猫", "fonts-noto-cjk", "fonts-symbola"))
    plot_attention(["猫"], ["🦊"], np.ones((1, 1)), tmp_path / "a.png")
    assert len(warnings) == 1
    save_figure(example("犬"), tmp_path / "a.svg")  # its viewer has the fonts
    assert len(warnings) == 1
    assert "犬" in (tmp_path / "a.svg").read_text(encoding="utf-8")


def test_characters_of_the_base_font_need_no_other(warnings: list[str], tmp_path: Path) -> None:
    assert choose_fonts(["abc äß ελ жц שלום مرحبا → ▁ \u2068\u2069\u200d\ufe0f\n"]) == (["DejaVu Sans"], [])
    save_figure(example("שלום"), tmp_path / "a.png")
    assert warnings == []


def test_a_missing_character_selects_an_installed_font(monkeypatch: pytest.MonkeyPatch) -> None:
    class Font:
        def __init__(self, name: str) -> None:
            self.name = self.fname = name

    characters = {"first": frozenset("猫"), "second": frozenset("犬"), "third": frozenset("猫犬")}
    found = fonts.characters_of
    monkeypatch.setattr(fonts, "installed_fonts", lambda: [Font(name) for name in characters])
    monkeypatch.setattr(fonts, "add_new_fonts", lambda: False)
    monkeypatch.setattr(fonts, "characters_of", lambda path: characters.get(path) or found(path))
    assert choose_fonts(["a犬"]) == (["DejaVu Sans", "second"], [])
    assert choose_fonts(["猫", "犬"]) == (["DejaVu Sans", "first", "second"], [])
    assert choose_fonts([f"猫{UNKNOWN}"]) == (["DejaVu Sans", "first"], [UNKNOWN])


def test_an_installed_cjk_font_is_used(tmp_path: Path) -> None:
    choice = choose_fonts(["猫"])
    if choice.missing:
        pytest.skip("no CJK font is installed")
    with_font, without = tmp_path / "a.png", tmp_path / "b.png"
    save_figure(example("猫"), with_font)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fonts, "installed_fonts", list)
        patch.setattr(fonts, "add_new_fonts", lambda: False)
        save_figure(example("猫"), without)
    assert with_font.read_bytes() != without.read_bytes()


def test_packages_by_script() -> None:
    assert {package_of(character) for character in "猫ねこネコ고양이"} == {"fonts-noto-cjk"}
    assert package_of("🦊") == package_of("\U0001faff") == "fonts-symbola"  # the second one is not assigned
    assert package_of("न") == "fonts-noto-core"
