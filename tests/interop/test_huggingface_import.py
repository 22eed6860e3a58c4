"""Import of Hugging Face folders: exact round trips, also after transformers saved them again; invalid folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from exported import SOURCES, Subject, difference, padded, subject
from safetensors.torch import load_file, save_file
from test_huggingface_export import SUBJECTS, transformers

from saccade.errors import SaccadeError
from saccade.interop.huggingface_export import save_huggingface
from saccade.interop.huggingface_import import ImportedModel, load_huggingface


@torch.no_grad()
def logits(model: Any, made: Subject) -> torch.Tensor:
    source = padded(made.tokenizers.source.encode_batch(SOURCES))
    prefix = torch.randint(
        1, made.tokenizers.target.size, (len(SOURCES), 11), generator=torch.Generator().manual_seed(2)
    )
    outputs: torch.Tensor = model.logits(model.decode(prefix, model.encode(source)).outputs)
    return outputs


def as_subject(found: ImportedModel) -> Subject:
    return Subject(found.model, found.choice, found.tokenizers, found.decoding)


def export(folder: Path, **changes: Any) -> Subject:
    made = subject(**changes)
    folder.mkdir(exist_ok=True)
    save_huggingface(folder, made.model, made.choice.config, made.tokenizers, made.decoding)
    return made


@pytest.mark.parametrize("changes", SUBJECTS.values(), ids=SUBJECTS)
def test_round_trip_is_exact(changes: dict[str, Any], tmp_path: Path) -> None:
    made = export(tmp_path, **changes)
    found = load_huggingface(tmp_path)
    assert torch.equal(logits(found.model, made), logits(made.model, made))
    assert found.choice == made.choice
    assert [part.document() for part in found.tokenizers] == [part.document() for part in made.tokenizers]
    assert (found.tokenizers.source is found.tokenizers.target) == (made.tokenizers.source is made.tokenizers.target)
    assert found.decoding == made.decoding
    assert as_subject(found).translate(SOURCES) == made.translate(SOURCES)


@pytest.mark.parametrize("changes", SUBJECTS.values(), ids=SUBJECTS)
def test_import_after_transformers_saved_again(changes: dict[str, Any], tmp_path: Path) -> None:
    made = export(tmp_path / "first", **changes)
    again = tmp_path / "again"
    transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "first").save_pretrained(again)
    for part in ("", "target"):
        if (tmp_path / "first" / part).is_dir():
            transformers.AutoTokenizer.from_pretrained(tmp_path / "first" / part).save_pretrained(again / part)
    found = load_huggingface(again)
    print("largest difference of a logit:", difference(logits(found.model, made), logits(made.model, made)))
    torch.testing.assert_close(logits(found.model, made), logits(made.model, made), atol=1e-6, rtol=1e-6)
    assert as_subject(found).translate(SOURCES) == made.translate(SOURCES)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("kind", ["Marian", "Pegasus"])
@torch.no_grad()
def test_import_of_a_model_created_in_transformers(kind: str, scaled: bool, tied: bool, tmp_path: Path) -> None:
    made = export(tmp_path / "tokenizer")
    size = made.tokenizers.source.size
    settings = getattr(transformers, f"{kind}Config")(
        vocab_size=size,
        d_model=16,
        encoder_layers=2,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=24,
        decoder_ffn_dim=24,
        activation_function="relu",
        scale_embedding=scaled,
        tie_word_embeddings=tied,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        forced_eos_token_id=None,
    )
    torch.manual_seed(0)
    model = transformers.AutoModelForSeq2SeqLM.from_config(settings).eval()
    for name, parameter in model.named_parameters():
        if "embed_positions" not in name:
            parameter.add_(0.3 * torch.randn_like(parameter))
    model.save_pretrained(tmp_path / "model")
    transformers.AutoTokenizer.from_pretrained(tmp_path / "tokenizer").save_pretrained(tmp_path / "model")
    if tied and not scaled:
        with pytest.raises(SaccadeError, match="scale_embedding"):
            load_huggingface(tmp_path / "model")
        return
    found = load_huggingface(tmp_path / "model")
    source = padded(made.tokenizers.source.encode_batch(SOURCES))
    prefix = torch.randint(1, size, (len(SOURCES), 9), generator=torch.Generator().manual_seed(2))
    theirs = model(input_ids=source.values, attention_mask=source.mask.long(), decoder_input_ids=prefix).logits
    ours = found.model.logits(found.model.decode(prefix, found.model.encode(source)).outputs)
    print("largest difference of a logit:", difference(ours, theirs))
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "another architecture": ({"model_type": "bart"}, "'bart'"),
    "swish": ({"activation_function": "swish"}, "activation_function is 'swish'"),
    "heads differ": ({"decoder_attention_heads": 4}, "attention_heads is 2 and 4"),
    "other symbols": ({"decoder_start_token_id": 0}, "decoder_start_token_id is 0"),
    "more layers": ({"encoder_layers": 3}, "is missing"),
    "fewer layers": ({"encoder_layers": 1}, "is not part of the model"),
    "another width": ({"d_model": 32}, r"is \(16, 16\), not \(32, 32\)"),
    "huge width": ({"d_model": 2**40}, "weights would take|impossible size"),
    "no width": ({"d_model": None}, "width' cannot be None"),
    "text for a width": ({"d_model": "wide"}, "width' cannot be 'wide'"),
    "very many layers": ({"encoder_layers": 10**9}, "more layers than"),
}


@pytest.mark.parametrize(("values", "what"), CONFIGS.values(), ids=CONFIGS)
def test_unsupported_configs_are_errors(values: dict[str, Any], what: str, tmp_path: Path) -> None:
    export(tmp_path)
    change(tmp_path / "config.json", **values)
    with pytest.raises(SaccadeError, match=what) as caught:
        load_huggingface(tmp_path)
    assert caught.value.hint


def edit(folder: Path, name: str, tensor: torch.Tensor | None) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors.pop(name, None)
    save_file(tensors if tensor is None else {**tensors, name: tensor}, folder / "model.safetensors")


def test_invalid_weights_are_errors(tmp_path: Path) -> None:
    def expect_error(what: str) -> None:
        with pytest.raises(SaccadeError, match=what) as caught:
            load_huggingface(tmp_path)
        assert caught.value.hint

    size = export(tmp_path).tokenizers.source.size
    edit(tmp_path, "final_logits_bias", torch.ones(1, size))
    expect_error("final_logits_bias is not zero")
    edit(tmp_path, "final_logits_bias", None)
    load_huggingface(tmp_path)
    edit(tmp_path, "model.encoder.embed_positions.weight", torch.ones(1024, 16))
    expect_error("its positions are not sinusoidal")
    edit(tmp_path, "model.encoder.embed_positions.weight", None)
    edit(tmp_path, "model.shared.weight", torch.full((size, 16), torch.nan))
    expect_error("infinite or NaN")
    edit(tmp_path, "model.shared.weight", torch.ones(size, 16, 1))
    expect_error("'model.shared.weight' is")
    (tmp_path / "model.safetensors").write_bytes(b"no tensors")
    expect_error("model.safetensors")
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    expect_error("its weights are pickled")
    (tmp_path / "pytorch_model.bin").rename(tmp_path / "model.safetensors.index.json")
    expect_error("several files")
    (tmp_path / "config.json").unlink()
    expect_error("has no config.json")


def test_unsupported_tokenizers_are_errors(tmp_path: Path) -> None:
    def expect_error(what: str) -> None:
        with pytest.raises(SaccadeError, match=what) as caught:
            load_huggingface(tmp_path)
        assert caught.value.hint

    export(tmp_path)
    document = json.loads((tmp_path / "tokenizer.json").read_text())
    change(tmp_path / "tokenizer.json", pre_tokenizer={"type": "BertPreTokenizer"})
    expect_error("its pipeline is not")
    change(tmp_path / "tokenizer.json", **{**document, "normalizer": None})
    expect_error("its pipeline is not")
    pieces = {"<unk>": 0, "<pad>": 1, **{p: i for p, i in document["model"]["vocab"].items() if i > 1}}
    change(tmp_path / "tokenizer.json", **{**document, "model": {**document["model"], "vocab": pieces}})
    expect_error("no valid vocabulary")
    (tmp_path / "tokenizer.json").write_text("[]")
    expect_error("is not a tokenizer file")
    (tmp_path / "tokenizer.json").unlink()
    expect_error("has no tokenizer.json")
    (tmp_path / "source.spm").write_bytes(b"")
    expect_error("SentencePiece")


def test_decoding_defaults_from_generation_config(tmp_path: Path) -> None:
    export(tmp_path)
    change(tmp_path / "config.json", saccade=None)
    change(tmp_path / "generation_config.json", num_beams=3, length_penalty=0.7)
    assert load_huggingface(tmp_path).decoding == {"beam": 3, "length_penalty": "plain", "length_alpha": 0.7}
    (tmp_path / "generation_config.json").unlink()
    assert load_huggingface(tmp_path).decoding == {}
