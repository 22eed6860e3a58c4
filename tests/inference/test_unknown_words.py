from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from contracts.registered_models import build_model
from saccade.data.config import DataConfig
from saccade.data.lexicon.lexicon_file import Lexicon
from saccade.data.reading.pair_files import Pair
from saccade.data.tokenizers.tokenizer import Tokenizer
from saccade.data.tokenizers.tokenizer_pair import Tokenizers, train_tokenizers
from saccade.decoding.config import DecodingConfig
from saccade.decoding.ensemble import Ensemble
from saccade.errors import SaccadeError
from saccade.inference.batching import pad_source
from saccade.inference.translator import Translator
from saccade.inference.unknown_words import aligned_word, output_words
from saccade.inference.words import words_of
from saccade.interface import Attention, Decoded, Memory, Source, Step
from saccade.model_folder import vocabulary_sizes
from saccade.models.registry import FAMILIES
from saccade.symbols import Symbols

SYMBOLS = Symbols()
UNKNOWN = SYMBOLS.unknown
SOURCE = Tokenizer.train("word", ["the man sees a dog"], size=50)
TARGET = Tokenizer.train("word", ["der Mann sieht einen Hund"], size=50)
KINDS = ["word", "bpe", "unigram", "char", "byte"]


class State(NamedTuple):
    length: Tensor  # (N, 1) number of tokens so far


class Scripted:
    """A model with fixed outputs and a fixed alignment, whatever the source.

    Most of its attention is on the end of the source; its first layer attends to the position after the aligned one.
    """

    max_target_positions: int | None = None

    def __init__(self, output: Sequence[int], aligned: Sequence[int], *, attends: bool = True, stride: int = 1) -> None:
        self.output = [*output, SYMBOLS.end]
        self.aligned = aligned
        self.attends = attends
        self.stride = stride
        self.decoded: list[int] = []  # batch size of each call of decode

    def encode(self, source: Source, *, record: bool = False) -> Memory:
        return Memory(torch.zeros(*source.mask.shape, 1), source.mask)

    def decode(self, prefix: Tensor, memory: Memory, *, record: bool = False) -> Decoded:
        self.decoded.append(len(prefix))
        positions = torch.arange(prefix.size(1)).expand_as(prefix)
        return Decoded(positions[:, :, None].float(), self.attention(positions, memory) if record else ())

    def start(self, memory: Memory) -> State:
        return State(torch.zeros(len(memory.mask), 1, dtype=torch.long))

    def step(self, token: Tensor, state: State, memory: Memory, *, record: bool = False) -> Step:
        return Step(state.length.float(), State(state.length + 1))

    def output_projection(self, outputs: Tensor) -> None:
        """The logits are not a matrix product."""

    def logits(self, outputs: Tensor) -> Tensor:
        position = outputs.squeeze(-1).long().clamp(max=len(self.output) - 1)
        scores = torch.zeros(*position.shape, TARGET.size)
        return scores.scatter(-1, torch.tensor(self.output)[position][..., None], 5.0)

    def attention(self, positions: Tensor, memory: Memory) -> tuple[Attention, ...]:
        rows, length = positions.shape
        lengths = memory.mask.sum(1)
        aligned = torch.tensor([*self.aligned, *[0] * length])[:length]
        layers = []
        for layer, (shift, weight) in enumerate([(1, 0.2), (0, 0.3)]):
            weights = torch.zeros(rows, 1, length, memory.mask.size(1))
            for row in range(rows):
                end = int(lengths[row]) - 1
                weights[row, 0, :, end] = 1 - weight
                weights[row, 0, torch.arange(length), (aligned + shift).clamp(max=end)] += weight
            layers.append(Attention("cross", layer, weights[..., :: self.stride]))
        self_attention = Attention("decoder-self", 0, torch.eye(length).expand(rows, 1, length, length))
        return (self_attention, *layers) if self.attends else (self_attention,)

    def parameters(self, recurse: bool = True) -> Any:
        return iter(())

    def train(self, mode: bool = True) -> Any:
        return self

    def eval(self) -> Any:
        return self


def ids(text: str) -> list[int]:
    return TARGET.encode(text).ids


def scripted(output: str, aligned: Sequence[int], **options: Any) -> Translator:
    """A translator with one fixed output; its words outside of the vocabulary are unknown."""
    tokenizers = Tokenizers(SOURCE, TARGET)
    lexicon = Lexicon({"zebra": "Zebra", "quick": "schnell"})
    return Translator(Scripted(ids(output), aligned, **options), tokenizers, DecodingConfig(beam=1), lexicon=lexicon)


def test_outputs_contain_unknown_only_if_allowed() -> None:
    translator = scripted("der ? sieht", [0, 1, 2])
    assert UNKNOWN not in next(translator.stream(["the Smith sees"])).candidates[0].tokens
    assert translator.translate("the Smith sees", allow_unknown=True) == "der <unk> sieht"


def test_an_unknown_word_is_replaced_by_the_aligned_source_word() -> None:
    translator = scripted("der ? sieht ?", [0, 3, 2, 1])
    assert translator.translate("the Smith sees Łódź!", replace_unknown="source") == "der Łódź! sieht Smith"


def test_a_replacement_is_spelled_as_in_the_source() -> None:
    translator = scripted("?", [1])
    assert translator.translate("the   man\u00a0 sees", replace_unknown="source") == "man"
    assert (
        translator.translate("the Cafe\u0301 sees", replace_unknown="source") == "Café"
    )  # normalized like every source
    assert translator.translate("the <unk> sees", replace_unknown="source") == "<unk>"  # the user's own word


def test_end_and_padding_are_not_aligned() -> None:
    """All attention is on the end symbol: all words tie, and the first one is aligned."""
    translator = scripted("? Hund", [9])
    texts = ["Smith", "Smith sees a dog", "", "Jones a"]
    assert translator.translate(texts, replace_unknown="source") == ["Smith Hund", "Smith Hund", "", "Jones Hund"]


def test_a_lexicon_entry_comes_first() -> None:
    translator = scripted("der ? ? ?", [0, 1, 2, 3])
    output = translator.translate("the zebra Quick Smith", replace_unknown="lexicon")
    assert output == "der Zebra Schnell Smith"
    assert translator.translate("the zebra Quick Smith", replace_unknown="source") == "der zebra Quick Smith"


def test_an_explanation_shows_the_replacements() -> None:
    translator = scripted("der ? sieht ?", [0, 3, 2, 1])
    found = translator.explain("the Smith sees zebra", replace_unknown="source")
    assert found.target == translator.translate("the Smith sees zebra", replace_unknown="source")
    assert found.target_pieces == ("der", "zebra", "sieht", "Smith", "</s>")
    assert found.merge_words().target_pieces == found.target_pieces
    assert translator.explain("the Smith sees zebra", replace_unknown="lexicon").target_pieces[1] == "Zebra"
    assert translator.explain("the Smith sees zebra", allow_unknown=True).target == "der <unk> sieht <unk>"
    assert found.source_pieces == ("the", "Smith", "sees", "zebra", "</s>")
    translator.lexicon = None
    with pytest.raises(SaccadeError):
        translator.explain("the Smith sees zebra", replace_unknown="lexicon")


def test_tokens_and_scores_do_not_change() -> None:
    translator = scripted("der ?", [0, 1])
    plain = next(translator.stream(["the Smith"], translator.settings({"allow_unknown": True}))).candidates[0]
    replaced = next(translator.stream(["the Smith"], translator.settings({"replace_unknown": "source"}))).candidates[0]
    assert (plain.text, replaced.text) == ("der <unk>", "der Smith")
    assert replaced.tokens == plain.tokens == tuple(ids("der ?"))
    assert replaced.pieces == ("der", "<unk>")
    assert (replaced.score, replaced.token_log_probabilities) == (plain.score, plain.token_log_probabilities)


def test_every_candidate_is_replaced() -> None:
    aligned = [2, 0, 1, 2]
    translator = scripted("der ? sieht", aligned)
    settings = translator.settings({"replace_unknown": "source", "beam": 12, "nbest": 12, "max_length": 4})
    source = ["Smith", "sees", "Jones"]
    candidates = next(translator.stream([" ".join(source)], settings)).candidates
    assert sum(UNKNOWN in candidate.tokens for candidate in candidates) > 3
    for candidate in candidates:
        words = [
            source[aligned[position]] if token == UNKNOWN else TARGET.piece(token)
            for position, token in enumerate(candidate.tokens)
        ]
        assert candidate.text == " ".join(words)


def test_outputs_without_unknown_words_are_not_decoded_again() -> None:
    translator = scripted("der Mann", [0, 1])
    assert translator.translate(["the man", "a dog"], replace_unknown="source") == ["der Mann", "der Mann"]
    assert translator.model.decoded == [1]  # type: ignore[attr-defined]  # by the check before the search
    assert scripted("der ?", [0, 1]).translate(["the Smith"] * 3, replace_unknown="source") == ["der Smith"] * 3


def test_a_forced_word_is_spelled_as_in_the_prefix() -> None:
    translator = scripted("der ? ?", [0, 1, 2])
    settings = translator.settings({"replace_unknown": "source"})
    translations = translator.stream(["the Smith sees", "the Smith Jones"], settings, ["der Schmidt", ""])
    assert [translation.text for translation in translations] == ["der Schmidt sees", "der Smith Jones"]


def test_a_model_without_an_alignment_is_an_error_before_the_search() -> None:
    translator = scripted("der ?", [0, 1], attends=False)
    with pytest.raises(SaccadeError):
        translator.translate("the Smith", replace_unknown="source")
    assert translator.model.decoded == [1]  # type: ignore[attr-defined]
    assert translator.translate("the Smith", allow_unknown=True) == "der <unk>"
    with pytest.raises(SaccadeError):
        scripted("der ?", [0, 1], stride=2).translate("the Smith", replace_unknown="source")


def test_replacement_by_a_lexicon_needs_a_lexicon() -> None:
    translator = scripted("der ?", [0, 1])
    translator.lexicon = None
    with pytest.raises(SaccadeError):
        translator.translate("the Smith", replace_unknown="lexicon")


def test_the_alignment_of_an_ensemble_is_the_mean_of_its_members() -> None:
    tokenizers = Tokenizers(SOURCE, TARGET)
    example = pad_source([[4]], SYMBOLS, torch.device("cpu"))
    members = [Scripted(ids("der ?"), aligned) for aligned in ([0, 1], [0, 2], [0, 2])]
    ensemble = Ensemble(members, example)
    translator = Translator(ensemble, tokenizers, DecodingConfig(beam=2))
    assert translator.translate("the Smith Jones", replace_unknown="source") == "der Jones"
    different = Translator(ensemble, tokenizers, DecodingConfig(), source_tokenizers=[SOURCE] * 3)
    with pytest.raises(SaccadeError):
        different.translate("the Smith", replace_unknown="source")


TEXTS = ["Zwei Hunde spielen, im Schnee.", "Hunde laufen <unk> weg"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_piece_belongs_to_its_word(kind: Any) -> None:
    tokenizer = Tokenizer.train(kind, TEXTS * 3, size=260 if kind == "byte" else 50)
    text = "Zwei  Hünde <unk>, ☃Schnee☃ laufen"
    words = words_of(tokenizer, text)
    assert words.words == ("Zwei", "Hünde", "<unk>,", "☃Schnee☃", "laufen")
    encoding = tokenizer.encode(text)
    assert len(words.word_of_piece) == len(encoding.ids)
    normalized = " ".join(words.words)
    for number, word in enumerate(words.words):
        covered = [offset for offset, own in zip(encoding.offsets, words.word_of_piece, strict=True) if own == number]
        start, end = min(covered)[0], max(end for _, end in covered)
        assert normalized[start:end].strip(" ") == word


@pytest.mark.parametrize("kind", KINDS)
def test_the_words_of_an_output_are_those_of_its_text(kind: Any) -> None:
    """Without an unknown symbol they are the decoded text; with one, the word that contains it is unknown."""
    tokenizer = Tokenizer.train(kind, TEXTS * 3, size=260 if kind == "byte" else 50)
    tokens = tokenizer.encode("Hunde laufen <unk> weg").ids
    assert [word.text for word in output_words(tokenizer, tokens)] == ["Hunde", "laufen", "<unk>", "weg"]
    for positions in ([0], [len(tokens) - 1], [1, 2], [0, 1, 2], list(range(len(tokens)))):
        masked = [UNKNOWN if position in positions else token for position, token in enumerate(tokens)]
        words = output_words(tokenizer, masked)
        assert sorted(position for word in words for position in word.unknown) == positions
        decoded = tokenizer.decode(masked).split()
        assert len(words) == len(decoded)
        for word, expected in zip(words, decoded, strict=True):
            assert word.text == expected if not word.unknown else "<unk>" in expected
    assert output_words(tokenizer, []) == []


def test_the_weights_of_a_word_are_added_up() -> None:
    tokenizer = Tokenizer.train("char", ["ab cde"], size=50)
    words = words_of(tokenizer, "ab cde")  # a b _ c d e, and the end symbol
    assert aligned_word(torch.tensor([0.2, 0.0, 0.3, 0.1, 0.1, 0.1, 0.2]), words) == "cde"
    assert aligned_word(torch.tensor([0.2, 0.1, 0.3, 0.1, 0.0, 0.1, 0.2]), words) == "ab"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch_tokens", [1, 4096])
def test_every_kind_of_tokenizer_and_any_batch(kind: Any, batch_tokens: int) -> None:
    """With a Transformer: no unknown symbol is left, other words are unchanged, and the batch does not matter."""
    pairs = [Pair("ab cd ef gh", "AB CD EF GH"), Pair("gh ab", "GH AB")] * 3
    tokenizers = train_tokenizers(pairs, DataConfig(tokenizer=kind, joint=False, vocabulary=20))
    model = build_model(("transformer", {}), vocabulary_sizes(tokenizers))
    wide = tokenizers.target.size > 100  # among all bytes an untrained model rarely outputs the symbol
    decoding = DecodingConfig(sample=True, nbest=60 if wide else 4, min_length=3, max_length=12)
    translator = Translator(model, tokenizers, decoding)
    texts = ["xy ab", "", "uvw cd ab ab gh", "qrs"]
    plain = list(translator.stream(texts, translator.settings({"allow_unknown": True})))
    changes = {"replace_unknown": "source", "batch_tokens": batch_tokens}
    replaced = list(translator.stream(texts, translator.settings(changes)))
    unknown = 0
    for before, after in zip(plain, replaced, strict=True):
        for old, new in zip(before.candidates, after.candidates, strict=True):
            assert old.tokens == new.tokens
            unknown += UNKNOWN in old.tokens
            assert len(old.text.split()) == len(new.text.split())
            for word, other in zip(old.text.split(), new.text.split(), strict=True):
                assert other in before.source.split() if "<unk>" in word else other == word
    assert unknown > 0


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_replaces_unknown_words_or_is_an_error(family: str) -> None:
    """A model with cross-attention replaces all unknown symbols; any other is an error, as in `explain`."""
    model = build_model((family, {}), vocabulary_sizes(Tokenizers(SOURCE, TARGET)))
    decoding = DecodingConfig(sample=True, nbest=8, min_length=3, max_length=8)
    translator = Translator(model, Tokenizers(SOURCE, TARGET), decoding)
    text = "the Smith sees Jones"
    try:
        attends = bool(translator.explain(text).alignment.numel())
    except SaccadeError:
        attends = False
    if not attends:
        with pytest.raises(SaccadeError):
            translator.translate(text, replace_unknown="source")
        return
    candidates = next(translator.stream([text], translator.settings({"replace_unknown": "source"}))).candidates
    assert any(UNKNOWN in candidate.tokens for candidate in candidates)
    for candidate in candidates:
        for token, word in zip(candidate.tokens, candidate.text.split(), strict=True):
            assert word in text.split() if token == UNKNOWN else word == TARGET.piece(token)


@pytest.fixture(scope="module")
def names() -> Translator:
    """A small model that has learnt to capitalize words and to translate names to the unknown symbol."""
    generator = torch.Generator().manual_seed(0)
    words = [letter * 2 for letter in "abcdefghijkl"]
    sentences = []
    for number in range(600):
        chosen = [words[int(index)] for index in torch.randint(12, (5,), generator=generator)]
        chosen[int(torch.randint(5, (1,), generator=generator))] = f"Name{number}"
        sentences.append(chosen)
    pairs = [Pair(" ".join(s), " ".join(w if w.startswith("Name") else w.upper() for w in s)) for s in sentences]
    tokenizers = train_tokenizers(pairs, DataConfig(tokenizer="word", min_frequency=2))
    model = build_model(("transformer", {"encoder_layers": 1, "decoder_layers": 1}), vocabulary_sizes(tokenizers))
    source = torch.tensor([[*ids, SYMBOLS.end] for ids in tokenizers.source.encode_batch([p.source for p in pairs])])
    target = torch.tensor([[*ids, SYMBOLS.end] for ids in tokenizers.target.encode_batch([p.target for p in pairs])])
    prefix = torch.cat([torch.full_like(target[:, :1], SYMBOLS.begin), target[:, :-1]], dim=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(200):
        rows = torch.randint(len(pairs), (64,), generator=generator)
        memory = model.encode(Source(source[rows], torch.ones_like(source[rows], dtype=torch.bool)))
        logits = model.logits(model.decode(prefix[rows], memory).outputs)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), target[rows].flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return Translator(model.eval(), tokenizers, DecodingConfig(beam=2))


def test_a_trained_model_copies_unseen_names(names: Translator) -> None:
    generator = torch.Generator().manual_seed(1)
    sources, expected = [], []
    for number in range(100):
        words = [chr(97 + int(letter)) * 2 for letter in torch.randint(12, (5,), generator=generator)]
        position = int(torch.randint(5, (1,), generator=generator))
        sources.append(" ".join([*words[:position], f"Łukasz{number}", *words[position + 1 :]]))
        expected.append(
            " ".join([*map(str.upper, words[:position]), f"Łukasz{number}", *map(str.upper, words[position + 1 :])])
        )

    def right(**settings: Any) -> int:
        return sum(map(str.__eq__, names.translate(sources, **settings), expected))

    assert right() == right(allow_unknown=True) == 0
    assert right(replace_unknown="source") >= 90
