"""Small random models with tokenizers for the export tests."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.nn.utils.rnn import pad_sequence

from saccade.config import build
from saccade.data.config import DataConfig
from saccade.data.tokenizers.tokenizer_pair import Tokenizers, train_tokenizers
from saccade.decoding.config import DecodingConfig
from saccade.inference.translator import Translator
from saccade.interface import Source, VocabularySizes
from saccade.layers.masks import padding_mask
from saccade.models.registry import Choice, load_family
from saccade.symbols import Symbols

PAIRS = [
    ("A man sleeps on a green couch.", "Ein Mann schläft auf einem grünen Sofa."),
    ("Two dogs run across the street!", "Zwei Hunde rennen über die Straße!"),
    ("A girl reads <s> 17 books </s>", "Ein Mädchen liest <unk> 17 Bücher"),
    ("one ▁ two", "eins ▁ zwei"),
]
NOISE = 0.3
SOURCES = [pair[0] for pair in PAIRS]


class Subject(NamedTuple):
    model: Any
    choice: Choice
    tokenizers: Tokenizers
    decoding: dict[str, Any]

    def translate(self, texts: list[str]) -> list[str]:
        decoding = build(DecodingConfig, self.decoding, where="test")
        return Translator(self.model, self.tokenizers, decoding).translate(texts)


def subject(
    family: str = "transformer", *, joint: bool = True, kind: str = "bpe", noise: float = NOISE, **changes: Any
) -> Subject:
    """Make a small model of a family with changed settings and random nonzero parameters."""
    data = build(
        DataConfig,
        {
            "tokenizer": kind,
            "vocabulary": 60,
            "target_vocabulary": 60 if joint else 50,
            "joint": joint,
            "min_frequency": 1,
        },
        where="test",
    )
    tokenizers = train_tokenizers(PAIRS, data)
    loaded = load_family(family)
    choice = Choice(family, build(loaded.config, {**loaded.miniature.model_dump(), **changes}, where="test"))
    torch.manual_seed(3)
    sizes = VocabularySizes(tokenizers.source.size, tokenizers.target.size, tokenizers.source is tokenizers.target)
    model = choice.build(sizes).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(noise * torch.randn_like(parameter))
    return Subject(model, choice, tokenizers, DecodingConfig(beam=1, max_length=24).model_dump(mode="json"))


def padded(sequences: list[list[int]]) -> Source:
    """Append the end symbol to each sequence and pad."""
    rows = [torch.tensor([*ids, Symbols.end]) for ids in sequences]
    values = pad_sequence(rows, batch_first=True, padding_value=Symbols.pad)
    return Source(values, padding_mask(torch.tensor([len(row) for row in rows])))


def train(made: Subject, steps: int = 80) -> None:
    """Overfit the pairs, so that outputs are sentences that end."""
    optimizer = torch.optim.Adam(made.model.parameters(), lr=1e-2)
    texts = zip(*PAIRS, strict=True)
    source, target = (part.encode_batch(side) for part, side in zip(made.tokenizers, texts, strict=True))
    batch, expected = padded(source), padded(target)
    assert isinstance(expected.values, torch.Tensor)
    prefix = torch.cat([torch.full_like(expected.values[:, :1], Symbols.begin), expected.values[:, :-1]], 1)
    for _ in range(steps):
        logits = made.model.logits(made.model.decode(prefix, made.model.encode(batch)).outputs)
        loss = torch.nn.functional.cross_entropy(logits[expected.mask], expected.values[expected.mask])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).abs().max())
