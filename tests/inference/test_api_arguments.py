"""Wrong arguments of the Python API are errors with advice; every input has one result."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import saccade
from inference.small_models import save_model
from saccade.data.lexicon.lexicon_file import Lexicon, read_lexicon
from saccade.data.reading.pair_files import read_pairs
from saccade.errors import SaccadeError
from saccade.evaluation.bootstrap import paired_bootstrap
from saccade.evaluation.metrics import score
from saccade.inference.translator import Translator
from saccade.training.run import resume


@dataclass(frozen=True)
class PathObject:
    """An `os.PathLike` that is not a `pathlib.Path`."""

    path: Any

    def __fspath__(self) -> Any:
        return self.path


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model") / "model")


@pytest.fixture(scope="module")
def translator(path: Path) -> Translator:
    return saccade.load(path, "cpu")


def call(*positional: Any, **named: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return positional, named


ITEMS: list[Any] = [["ab", None], [5], [b"ab"], ["ab", ["cd"]], np.array([1, 2])]
NO_TEXTS: list[Any] = [5, None, b"ab", {"ab": 1}, {"ab"}, *ITEMS]

WRONG = {
    "load": [
        *(
            call(value)
            for value in (5, None, b"x", [], [5], ["x", None], {}, 1.5, object(), PathObject(b"x"), "nowhere")
        ),
        *(call("{path}", value) for value in (5, None, "gpu", "cpu:x", ["cpu"])),
        *(call("{path}", engine=value) for value in (5, ["torch"], None, "pytorch")),
        *(call("{path}", precision=value) for value in (5, "fp8", None)),
        *(call("{path}", mean=value) for value in (5, "harmonic", None)),
        *(call("{path}", weights=value) for value in (5, "a", ["a"], {1: 1}, [None], [True], [1, 2], [-1])),
        *(call("{path}", lexicon=value) for value in (5, b"x", {}, "nowhere")),
        *(call("{path}", shortlist=value) for value in (5, b"x", [], "nowhere")),
        *(call(), call("{path}", devic="cpu"), call("{path}", "cpu", "torch")),
    ],
    "train": [
        *(call(value) for value in (5, None, b"x", [], {}, {5: 5}, object(), saccade.RunConfig, "nowhere.yaml", "")),
        *(call({key: 5}) for key in ("model", "data", "training", "decoding", "output")),
        *(call(), call("x", "y"), call({}, output="runs/x"), call({"traning": {}})),
    ],
    "RunConfig": [call(5), call({}), call(data=5), call(training={"metrics": 5}), call(daat={})],
    "Translator": [call("runs/x"), call("runs/x", 1, 2), call(), call(model=5)],
    "translate": [
        *map(call, NO_TEXTS),
        *(call("ab", **{name: value}) for name, value in (("beams", 3), ("beam", "x"), ("beam", None), ("nbest", 9))),
        *(call(), call("ab", "cd")),
    ],
    "stream": [
        *map(call, ["ab", *NO_TEXTS]),
        *(call(["ab"], value) for value in (5, {"beam": 1}, "x")),
        *(call(["ab"], None, value) for value in ["x", [], ["A", "B"], *NO_TEXTS] if value is not None),
        *(call(), call(["ab"], prefix=["A"])),
    ],
    "score": [
        *(call("two", "abc"), call(["ab"], "a"), call("a", ["ab"]), call(["ab"], []), call(["ab"])),
        *(call(value, ["ab"]) for value in NO_TEXTS),
        *(call(["ab"], value) for value in NO_TEXTS),
    ],
    "explain": [
        *(call(value) for value in [["ab"], "", *NO_TEXTS]),
        *(call("ab", value) for value in (5, b"x", [5000], [-1], ["x"], [1.5], [True], [None], 1.5)),
        *(call("ab", beams=1), call()),
    ],
    "settings": [*map(call, (5, None, "ab", [], {5: 5}, {"beam": "x"}, {"beams": 1})), call()],
    "translate_window": [call("ab", None), call([None], None)],
}


def cases() -> Iterator[Any]:
    for name, calls in WRONG.items():
        for number, (positional, named) in enumerate(calls):
            yield pytest.param(name, positional, named, id=f"{name}-{number}")


def run(found: Any) -> None:
    if isinstance(found, Iterator):
        list(found)


@pytest.mark.parametrize(("name", "positional", "named"), list(cases()))
def test_a_wrong_argument_is_an_error_with_advice(
    name: str, positional: tuple[Any, ...], named: dict[str, Any], path: Path, translator: Translator
) -> None:
    positional = tuple(str(path) if isinstance(value, str) and value == "{path}" else value for value in positional)
    function = getattr(saccade if name in saccade.__all__ else translator, name)
    with pytest.raises(SaccadeError) as caught:
        run(function(*positional, **named))
    assert caught.value.hint


def test_every_public_callable_is_in_the_table() -> None:
    functions = {name for name in saccade.__all__ if callable(getattr(saccade, name))} - {"SaccadeError"}
    methods = {"translate", "stream", "score", "explain", "settings"}
    assert functions | methods <= WRONG.keys()
    described = {name for name, member in vars(Translator).items() if hasattr(member, "__wrapped__")}
    assert described - {"__init__"} <= WRONG.keys()


@pytest.mark.parametrize("index", [0, 1, 2])
@pytest.mark.parametrize("form", [list, tuple, iter, lambda texts: (text for text in texts)])
def test_an_item_that_is_no_text_is_named_by_its_index(index: int, form: Any, translator: Translator) -> None:
    texts: list[Any] = ["ab", "cd", "ef"]
    texts[index] = None
    for function in (translator.translate, translator.stream, lambda items: translator.score(items, ["A"] * 3)):
        with pytest.raises(SaccadeError) as caught:
            run(function(form(texts)))
        assert f"[{index}]" in caught.value.what


@pytest.mark.parametrize("form", [list, tuple, iter, np.array, lambda texts: (text for text in texts)])
def test_every_text_has_one_result(form: Any, translator: Translator) -> None:
    texts = ["ab", "", "cd", "  ", "ef gh"]
    expected = [translator.translate(text) for text in texts]
    assert translator.translate(form(texts)) == expected
    assert translator.translate(form(texts), nbest=1) == [[output] for output in expected]
    assert len(list(translator.stream(iter(texts)))) == len(texts)
    assert len(translator.score(iter(texts), iter(texts))) == len(texts)
    assert translator.translate([]) == []
    assert translator.translate(iter([])) == []


def test_nbest_gives_a_list_for_each_text(translator: Translator) -> None:
    for text in ("ab", "", "cd ef"):
        outputs = translator.translate(text, nbest=2)
        assert outputs[0] == translator.translate(text)
        assert translator.translate([text, text], nbest=2) == [outputs, outputs]
        assert translator.translate(text, nbest=1) == outputs[:1]
    assert len(translator.translate("ab", nbest=2)) == 2


def test_paths_are_strings_or_path_objects(path: Path) -> None:
    expected = saccade.load(path, "cpu").translate("ab")
    for same in (str(path), np.str_(path), PathObject(str(path)), [str(path)], (path,)):
        assert saccade.load(same, "cpu").translate("ab") == expected


def test_texts_may_be_numpy_strings(translator: Translator) -> None:
    assert translator.translate(np.str_("ab")) == translator.translate("ab")
    assert translator.explain("ab", np.array([5, 6])).target == translator.explain("ab", [5, 6]).target


@pytest.mark.parametrize("entries", [5, "ab", [("a", "b")], {"a": None}, {None: "a"}, {5: "b"}, {"a": b"b"}])
def test_entries_of_a_lexicon_are_strings(entries: Any) -> None:
    with pytest.raises(SaccadeError) as caught:
        Lexicon(entries)
    assert caught.value.hint


def test_checked_methods_keep_their_signatures() -> None:
    assert "nbest" not in inspect.signature(Translator.stream).parameters
    assert list(inspect.signature(Translator.score).parameters) == ["self", "sources", "targets"]
    assert Translator.score.__doc__


GUIDE: list[tuple[Any, list[Any]]] = [
    (score, [call("bleu", ["a"], ["b"]), call("bleu", "abc", "abc"), call("chrf", ["a"], [None])]),
    (
        score,
        [call("bleu", [None], [["a"]]), call("bleu", ["a"], [[None]]), call(5, ["a"], [["a"]]), call("bleu", 5, 5)],
    ),
    (paired_bootstrap, [call("chrf", ["a"], [None], [["a"]]), call("blue", ["a"], ["a"], [["a"]])]),
    (resume, [call(5), call(None), call(b"x"), call("nowhere"), call("nowhere", 5), call("nowhere", {5: 5}), call()]),
    (read_lexicon, [call(5), call(None), call(b"x"), call("nowhere")]),
    (read_pairs, [call(5), call(5, 5), call("nowhere", 5), call(b"x")]),
]


@pytest.mark.parametrize(
    ("function", "positional", "named"),
    [(function, *arguments) for function, calls in GUIDE for arguments in calls],
)
def test_other_functions_of_the_guide_refuse_wrong_arguments(
    function: Any, positional: tuple[Any, ...], named: dict[str, Any]
) -> None:
    with pytest.raises(SaccadeError) as caught:
        run(function(*positional, **named))
    assert caught.value.hint or caught.value.where
