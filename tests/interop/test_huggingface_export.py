"""An exported folder gives the same logits and texts in transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from exported import PAIRS, SOURCES, Subject, difference, padded, subject, train
from torch.nn.utils.rnn import pad_sequence

from saccade.errors import SaccadeError
from saccade.interop.huggingface_export import save_huggingface
from saccade.symbols import Symbols

transformers = pytest.importorskip("transformers", reason="transformers is not installed: nothing to compare with")

SUBJECTS: dict[str, dict[str, Any]] = {
    "post": {},
    "pre": {"norm": "pre"},
    "post, output of its own": {"tie_output": False},
    "pre, output of its own": {"norm": "pre", "tie_output": False},
    "post, separate vocabularies": {"joint": False},
    "post, separate vocabularies, output of its own": {"joint": False, "tie_output": False},
    "post, separate tables": {"embeddings": "separate"},
    "pre, learned positions": {"norm": "pre", "positions": "learned", "max_positions": 64},
    "pre, no positions": {"norm": "pre", "positions": "none"},
    "post, odd width": {"width": 15, "heads": 3},
    "pre, layers differ": {"norm": "pre", "encoder_layers": 3, "decoder_layers": 1},
    "post, unigram": {"kind": "unigram"},
    "post, characters": {"kind": "char", "joint": False},
    "pre, bytes": {"kind": "byte", "norm": "pre"},
    "post, words": {"kind": "word", "joint": False},
}


@pytest.fixture(params=SUBJECTS.values(), ids=SUBJECTS)
def exported(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Subject, Path]:
    made = subject(**request.param)
    save_huggingface(tmp_path, made.model, made.choice.config, made.tokenizers, made.decoding)
    return made, tmp_path


def opened(folder: Path) -> Any:
    model, report = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, output_loading_info=True)
    assert not report["unexpected_keys"], report
    assert not report["missing_keys"], report
    assert not report["mismatched_keys"], report
    return model.eval()


def tokenizers_of(folder: Path) -> tuple[Any, Any]:
    source = transformers.AutoTokenizer.from_pretrained(folder)
    if not (folder / "target").is_dir():
        return source, source
    return source, transformers.AutoTokenizer.from_pretrained(folder / "target")


@torch.no_grad()
def test_logits_and_texts_are_equal(exported: tuple[Subject, Path]) -> None:
    made, folder = exported
    model, (source, target) = opened(folder), tokenizers_of(folder)
    batch = source(SOURCES, return_tensors="pt", padding=True)
    ours = padded(made.tokenizers.source.encode_batch(SOURCES))
    assert torch.equal(batch["input_ids"], ours.values)
    assert torch.equal(batch["attention_mask"].bool(), ours.mask)

    generator = torch.Generator().manual_seed(5)
    rows = [torch.randint(4, made.tokenizers.target.size, (length,), generator=generator) for length in (9, 3, 12, 1)]
    prefix = pad_sequence([torch.cat([torch.tensor([1]), row]) for row in rows], batch_first=True)
    memory = made.model.encode(ours)
    expected = made.model.logits(made.model.decode(prefix, memory).outputs)
    found = model(**batch, decoder_input_ids=prefix).logits
    real = prefix != Symbols.pad  # logits at padding positions are undefined
    found, expected = found[real], expected[real]
    print("largest difference of a logit:", difference(found, expected))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert torch.equal(found.argmax(-1), expected.argmax(-1))

    generated = model.generate(**batch)
    texts = target.batch_decode(generated, skip_special_tokens=True)
    assert [" ".join(text.split()) for text in texts] == made.translate(SOURCES)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_trained_model_gives_equal_sentences(norm: str, tmp_path: Path) -> None:
    made = subject(norm=norm, width=32, max_positions=64, noise=0.0)
    train(made)
    made = made._replace(decoding={**made.decoding, "max_length": 0, "allow_unknown": True})
    save_huggingface(tmp_path, made.model, made.choice.config, made.tokenizers, made.decoding)
    model, (tokenizer, _) = opened(tmp_path), tokenizers_of(tmp_path)
    generated = model.generate(**tokenizer(SOURCES, return_tensors="pt", padding=True))
    texts = tokenizer.batch_decode(generated, skip_special_tokens=True)
    assert texts == made.translate(SOURCES) == [pair[1] for pair in PAIRS]


def test_tokenizers_are_equal(exported: tuple[Subject, Path]) -> None:
    made, folder = exported
    texts = [
        *SOURCES,
        "  Two\u00a0dogs\t\u2028 \x07re\u0301sume\u0301 \ufdd0 \U0001fffe ﬁ ▁▁ <pad></s>",
        "日本 <s>",
        "\x1c x \x85 ",
    ]
    for ours, theirs in zip(made.tokenizers, tokenizers_of(folder), strict=True):
        for text in texts:
            assert theirs(text)["input_ids"] == [*ours.encode(text).ids, Symbols.end]
            assert theirs(text_target=text)["input_ids"] == [*ours.encode(text).ids, Symbols.end]
            assert theirs.decode(ours.encode(text).ids) == ours.decode(ours.encode(text).ids)


def test_whitespace_matches_python() -> None:
    import re

    from saccade.interop.huggingface_tokenizer import WHITESPACE

    characters = [chr(code) for code in range(0x110000)]
    assert [c for c in characters if re.fullmatch(WHITESPACE, c)] == [c for c in characters if c.isspace()]


def test_generation_config(tmp_path: Path) -> None:
    made = subject()
    decoding = {**made.decoding, "beam": 4, "length_penalty": "plain", "length_alpha": 0.6, "min_length": 3}
    save_huggingface(tmp_path, made.model, made.choice.config, made.tokenizers, decoding)
    written = json.loads((tmp_path / "generation_config.json").read_text())
    assert (written["num_beams"], written["length_penalty"], written["min_new_tokens"]) == (4, 0.6, 3)
    assert written["max_length"] == 25
    assert opened(tmp_path).generation_config.suppress_tokens == [0, 1, 3]


UNSUPPORTED: dict[str, tuple[dict[str, Any], str]] = {
    "radius": ({"radius": 2}, "radius is 2"),
    "experts": ({"experts": 4}, "experts is 4"),
    "concatenated positions": ({"position_use": "concatenate", "position_width": 4}, "position-use is concatenate"),
    "pre with two tables": ({"norm": "pre", "embeddings": "separate"}, "norm is pre with separate embedding tables"),
    "post with learned positions": ({"positions": "learned"}, "norm is post with positions learned"),
    "another family": ({"family": "bahdanau"}, "Transformer"),
}


@pytest.mark.parametrize(("changes", "what"), UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_unsupported_settings_are_errors(changes: dict[str, Any], what: str, tmp_path: Path) -> None:
    made = subject(**changes)
    with pytest.raises(SaccadeError, match=what) as caught:
        save_huggingface(tmp_path, made.model, made.choice.config, made.tokenizers, made.decoding)
    assert caught.value.hint
    assert not list(tmp_path.iterdir())
