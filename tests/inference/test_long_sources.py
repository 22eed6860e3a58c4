"""Long inputs are split into parts that fit, or truncated, and their outputs are joined."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inference.small_models import PAIRS, save_model
from saccade import messages
from saccade.data.config import DataConfig
from saccade.data.tokenizers.tokenizer import Tokenizer
from saccade.data.tokenizers.tokenizer_pair import train_tokenizers
from saccade.decoding.config import DecodingConfig
from saccade.inference import long_sources, pipeline
from saccade.inference.loading import load
from saccade.inference.long_sources import SplitText, best_combinations, join_parts, separator, split_text, token_ends
from saccade.inference.translation import Candidate, Translation
from saccade.inference.translator import Translator

LONG = "ab cd. ef gh? ij kl mn op ab cd ef! gh ab (ef gh.) cd " * 4
TEXTS = ["ab cd", LONG, "", "gh ab", "ab" * 60]


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Translator:
    return load(save_model(tmp_path_factory.mktemp("model") / "model"), "cpu")


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(messages, "write", found.append)
    return found


def trained(kind: str) -> Tokenizer:
    texts = ["ab cd ef gh. The dogs play? 我们在雪里玩。 ünïcödé!", "gh ab ij kl mn op"] * 5
    return Tokenizer.train(kind, texts, size=300)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char", "byte", "word"])
@pytest.mark.parametrize("limit", [1, 2, 7, 40])
def test_parts_fit_and_lose_nothing(kind: str, limit: int) -> None:
    tokenizer = trained(kind)
    for text in (LONG, "我们在雪里玩。" * 9, "ünïcödé " * 9, "x" * 99, "a. b. c.", "ab", "The dogs play? ab" * 5):
        found = split_text(text, [tokenizer], limit)
        assert "".join(found.parts).replace(" ", "") == text.replace(" ", "")
        for part in found.parts:
            assert part == part.strip() != ""
            # A character may have several tokens, and a part has at least one character.
            assert len(tokenizer.encode(part).ids) <= limit + 1 or len(part) == 1
        assert found.tokens == len(tokenizer.encode(text).ids)


def test_parts_end_at_sentence_ends_then_words() -> None:
    tokenizer = trained("char")

    def parts(text: str, limit: int, **options: Any) -> list[str]:
        return split_text(text, [tokenizer], limit, **options).parts

    assert parts("ab cd. ef gh? ij", 8) == ["ab cd.", "ef gh?", "ij"]
    assert parts("ab cd. ef gh? ij", 13) == ["ab cd. ef gh?", "ij"]
    assert parts('ab "cd." ef gh', 9) == ['ab "cd."', "ef gh"]
    assert parts("ab cd ef gh ij", 6) == ["ab cd", "ef gh", "ij"]
    assert parts("ab cd. ef gh ij", 12, at_sentences=False) == ["ab cd. ef gh", "ij"]
    assert parts("ab cd. ef gh ij", 12) == ["ab cd.", "ef gh ij"]
    assert parts("abcdefgh", 3) == ["abc", "def", "gh"]
    assert parts("我们玩。我们在。玩", 4) == ["我们玩。", "我们在。", "玩"]


def test_several_tokenizers_must_fit() -> None:
    tokenizers = [trained("word"), trained("char")]
    found = split_text(LONG, tokenizers, 9)
    assert all(len(tokenizer.encode(part).ids) <= 9 for tokenizer in tokenizers for part in found.parts)


@pytest.mark.parametrize("kind", ["bpe", "char", "word", "byte"])
def test_tokens_of_a_long_text_are_counted_in_pieces(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = trained(kind)
    expected = [end for _, end in tokenizer.encode(LONG.strip()).offsets]
    monkeypatch.setattr(long_sources, "TOKENIZED_AT_ONCE", 20)
    found = token_ends(tokenizer, LONG.strip())
    assert len(found) == len(expected)
    assert all(abs(one - other) <= 1 for one, other in zip(found, expected, strict=True))  # of a space as a token


@pytest.mark.parametrize("changes", [{}, {"beam": 1}, {"nbest": 3}, {"sample": True, "nbest": 2}, {"batch_tokens": 20}])
def test_a_long_text_is_translated_part_by_part(changes: dict[str, Any], translator: Translator) -> None:
    limit = 20
    settings = translator.settings({"max_source": limit, **changes})
    found = list(translator.stream(TEXTS, settings))
    assert [translation.source for translation in found] == TEXTS
    plain = list(translator.stream(TEXTS, translator.settings(changes)))
    for index in (0, 2, 3):
        assert [one.tokens for one in found[index].candidates] == [one.tokens for one in plain[index].candidates]
    split = split_text(LONG, [translator.tokenizers.source], limit)
    assert len(split.parts) > 3
    candidate = found[1].candidates[0]
    assert [part.source for part in candidate.parts] == split.parts
    assert all(len(part.candidate.tokens) <= 1.5 * (limit + 1) + 4 for part in candidate.parts)
    assert candidate.tokens == tuple(token for part in candidate.parts for token in part.candidate.tokens)
    assert math.isclose(
        candidate.log_probability, sum(part.candidate.log_probability for part in candidate.parts), rel_tol=1e-6
    )
    if not settings.sample:
        alone = list(translator.stream(split.parts, translator.settings(changes)))
        assert [part.candidate.text for part in candidate.parts] == [translation.text for translation in alone]
        texts = {candidate.text for candidate in found[1].candidates}
        assert (settings.nbest > 1) < len(texts) == len(found[1].candidates) <= settings.nbest


def test_samples_of_parts_differ_and_depend_on_the_seed_only(translator: Translator) -> None:
    def sample(seed: int, texts: list[str]) -> str:
        settings = {"sample": True, "seed": seed, "max_source": 5, "min_length": 6, "max_length": 12}
        return translator.translate(texts, **settings)[0]

    text = "ab ab " * 5
    assert sample(1, [text]) == sample(1, [text, LONG])
    assert sample(1, [text]) != sample(2, [text])
    found = next(translator.stream([text], translator.settings({"sample": True, "max_source": 5, "min_length": 9})))
    assert len({part.candidate.tokens for part in found.candidates[0].parts}) > 1


def test_truncation_translates_the_beginning(translator: Translator, warnings: list[str]) -> None:
    settings = translator.settings({"max_source": 12, "long_source": "truncate"})
    [found] = translator.stream(["ab cd. ef gh ij kl mn op"], settings)
    assert found.candidates[0].parts[0].source == "ab cd. ef gh"
    assert len(found.candidates[0].parts) == 1
    assert found.text == translator.translate("ab cd. ef gh")
    assert len(warnings) == 1


def test_one_warning_names_the_line(translator: Translator, warnings: list[str]) -> None:
    translator.translate(["ab", "cd", "ab " * 30, "ef"], max_source=9)
    assert len(warnings) == 1
    assert "line 3" in warnings[0]
    warnings.clear()
    translator.translate(["ab", *["ab " * 30] * 20], max_source=9)
    assert len(warnings) == 2  # the first, and the number of others
    warnings.clear()
    translator.translate(TEXTS, max_source=0)
    translator.translate(TEXTS[:1], max_source=9)
    assert warnings == []


def test_a_prefix_belongs_to_the_first_part(translator: Translator) -> None:
    settings = translator.settings({"max_source": 9})
    found = list(translator.stream(["ab", "cd ef gh ij kl mn", ""], settings, ["GH", "AB", ""]))
    first, *others = found[1].candidates[0].parts
    assert first.candidate.text.startswith("AB")
    assert others
    assert found[0].text.startswith("GH")


def test_lines_before_a_long_one_are_not_held_back(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    submit = pipeline.Pipeline.submit

    def recorded(self: Any, given: pipeline.Texts, limit: int | None) -> pipeline.Results:
        events.append("window" if limit else "parts")
        return submit(self, given, limit)

    monkeypatch.setattr(pipeline.Pipeline, "submit", recorded)
    stream = translator.stream(["ab", "cd", LONG, "ef"], translator.settings({"max_source": 20}))
    events.extend(translation.source[:2] for translation in stream)
    assert events == ["window", "ab", "cd", "parts", "ab", "ef"]


def test_a_very_long_text_is_never_tokenized_in_one_call(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: list[int] = []
    tokenizer = translator.tokenizers.source
    encode, encode_batch = tokenizer.encode, tokenizer.encode_batch
    monkeypatch.setattr(tokenizer, "encode", lambda text: (lengths.append(len(text)), encode(text))[1])
    monkeypatch.setattr(
        tokenizer, "encode_batch", lambda texts: (lengths.extend(map(len, texts)), encode_batch(texts))[1]
    )
    for text in ("ab cd ef. " * 5000, "a" * 50_000):
        assert len(translator.translate([text], max_source=50, beam=1, max_length=1)) == 1
    assert max(lengths) <= long_sources.TOKENIZED_AT_ONCE


def test_a_model_with_learned_positions_splits_what_exceeds_them(tmp_path: Path, warnings: list[str]) -> None:
    changes = {"positions": "learned", "max_positions": 30}
    translator = load(save_model(tmp_path / "model", changes), "cpu")
    assert len(translator.translate([LONG, "ab"])) == 2
    assert len(warnings) == 1


def test_the_best_combinations_are_those_of_all() -> None:
    generator = random.Random(0)

    def candidates(count: int) -> list[Candidate]:
        scores = sorted((generator.uniform(-5, 0) for _ in range(count)), reverse=True)
        return [Candidate(f"{score}", (), score, score, (), ()) for score in scores]

    for count, sizes in ((1, (3, 3)), (4, (4, 4, 4)), (5, (5, 2, 5)), (7, (1, 7, 3, 7))):
        lists = [candidates(size) for size in sizes]
        best: list[list[Candidate]] = [[]]
        for each in lists:
            best = best_combinations(best, each, count)
        every = sorted((sum(one.score for one in row) for row in itertools.product(*lists)), reverse=True)
        assert [sum(one.score for one in row) for row in best] == pytest.approx(every[:count])


@pytest.mark.parametrize(
    ("before", "after", "in_word", "expected"),
    [
        *(("ab.", "cd", False, " "), ("ab", "cd", True, ""), ("", "ab", False, ""), ("ab", "", False, "")),
        *(("我们。", "玩", False, ""), ("안녕.", "한국", False, " ")),
    ],
)
def test_outputs_are_joined_as_their_script_is_written(before: str, after: str, in_word: bool, expected: str) -> None:
    assert separator(before, after, in_word) == expected


def test_an_unfinished_part_makes_an_unfinished_output() -> None:
    split = SplitText(["a", "b"], [False, False], 2)
    done = Candidate("A", (4,), -1.0, -1.0, ("A",), (-0.5, -0.5))
    cut = replace(done, text="B", finished=False)
    parts = [Translation("a", (done,)), Translation("b", (cut,))]
    [joined] = join_parts("a b", split, parts, DecodingConfig(), 0).candidates
    assert (joined.text, joined.finished, joined.tokens, joined.score) == ("A B", False, (4, 4), -1.0)


def test_tokenizers_of_the_pairs_cover_the_texts() -> None:
    tokenizers = train_tokenizers(PAIRS, DataConfig(tokenizer="char"))
    assert tokenizers.source.symbols.unknown not in tokenizers.source.encode("ab cd ef gh").ids
