"""Export and import of our tokenizers as files for `AutoTokenizer` of Hugging Face.

Both use the tokenizers library, so the pipeline is the same. The exported pipeline also does what Saccade does outside
of it: remove control characters, normalize Unicode, collapse whitespace, and append the end symbol.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any, get_args

from tokenizers import Regex, normalizers, processors

from saccade.data.config import SENTENCEPIECE, Normalization, TokenizerKind
from saccade.data.reading.normalization import REMOVED
from saccade.data.tokenizers.tokenizer import FORMAT, MAX_FILE_SIZE, SYMBOL_PIECES, VERSION, Tokenizer
from saccade.data.tokenizers.tokenizer_pair import Tokenizers
from saccade.errors import SaccadeError
from saccade.folder import damaged, write_json
from saccade.symbols import Symbols
from saccade.untrusted_files import parse_json, read_text, shown

TARGET = "target"  # subfolder of the target tokenizer, if it differs from the source tokenizer
TOKENIZER, TOKENIZER_CONFIG, SPECIAL_TOKENS = "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"
NAMES = ("pad_token", "bos_token", "eos_token", "unk_token")  # the Hugging Face names of ids 0, 1, 2, 3
COMPARED = ("normalizer", "pre_tokenizer", "decoder")
# Python's whitespace, listed explicitly: \s differs between regex libraries.
WHITESPACE = "[\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+"


def save_tokenizers(folder: Path, tokenizers: Tokenizers, max_length: int) -> None:
    """Write the source tokenizer and, if it differs, the target tokenizer into a subfolder."""
    save_tokenizer(folder, tokenizers.source, max_length)
    if tokenizers.source is not tokenizers.target:
        (folder / TARGET).mkdir()
        save_tokenizer(folder / TARGET, tokenizers.target, max_length)


def save_tokenizer(folder: Path, tokenizer: Tokenizer, max_length: int) -> None:
    """Write the three files of a tokenizer; a SentencePiece model has no pipeline of the tokenizers library."""
    if tokenizer.kind == SENTENCEPIECE:
        raise SaccadeError(
            "this model has a SentencePiece tokenizer, which AutoTokenizer would not reproduce exactly",
            hint="use --format onnx or ctranslate2, whose folders contain the SentencePiece model",
        )
    write_json(folder / TOKENIZER, tokenizer_document(tokenizer))
    special = dict(zip(NAMES, SYMBOL_PIECES, strict=True))
    write_json(folder / SPECIAL_TOKENS, special)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **special,
        "model_max_length": max_length,
        "model_input_names": ["input_ids", "attention_mask"],
        "padding_side": "right",
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,  # "</s>" in a text is plain text, not a special token
    }
    write_json(folder / TOKENIZER_CONFIG, settings)


def tokenizer_document(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the content of tokenizer.json: our pipeline with normalization and the end symbol."""
    document: dict[str, Any] = json.loads(tokenizer.document())["tokenizer"]
    document["normalizer"] = normalizer_document(tokenizer.normalization, document["normalizer"])
    document["added_tokens"] = [
        {
            "id": token,
            "content": piece,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for token, piece in enumerate(SYMBOL_PIECES)
    ]
    end = SYMBOL_PIECES[Symbols.end]
    template = processors.TemplateProcessing(f"$A {end}", f"$A {end} $B {end}", [(end, Symbols.end)])
    document["post_processor"] = json.loads(template.__getstate__())
    return document


def normalizer_document(form: Normalization, pipeline: dict[str, Any] | None) -> dict[str, Any]:
    """Return a normalizer that is equivalent to data/reading/normalization.py, then the normalizer of the pipeline."""
    # Rust strings cannot contain unpaired surrogates.
    removed = REMOVED.pattern.replace("\ud800-\udfff", "")
    parts: list[Any] = [normalizers.Replace(Regex(removed), "")]
    if form != "none":
        parts.append(normalizers.NFC() if form == "nfc" else normalizers.NFKC())
    parts += [normalizers.Replace(Regex(WHITESPACE), " "), normalizers.Strip()]
    document: dict[str, Any] = json.loads(normalizers.Sequence(parts).__getstate__())
    document["normalizers"] += [] if pipeline is None else [pipeline]
    return document


def load_tokenizer(folder: Path) -> Tokenizer:
    """Load the tokenizer of a folder; its pipeline must be one of ours, and its vocabulary is validated."""
    path = folder / TOKENIZER
    if not path.is_file():
        raise no_tokenizer(folder)
    try:
        document = parse_json(read_text(path, MAX_FILE_SIZE))
        model = document["model"]
        kind = kind_of(model, document["pre_tokenizer"])
    except (ValueError, RecursionError, LookupError, TypeError) as error:
        what = str(error) if isinstance(error, ValueError) else "unexpected structure"
        raise damaged(path, f"is not a tokenizer file ({what})") from None
    if kind is not None:
        for form in get_args(Normalization):
            tokenizer = rebuild_tokenizer(kind, form, model, path)
            ours = tokenizer_document(tokenizer)
            if all(document.get(part) == ours[part] for part in COMPARED):
                return tokenizer
    raise SaccadeError(
        "its pipeline is not that of a bpe, unigram, char, byte or word tokenizer of Saccade",
        where=str(path),
        hint="only folders whose tokenizer was exported by Saccade can be imported",
    )


def no_tokenizer(folder: Path) -> SaccadeError:
    """Return the error for a folder without tokenizer.json."""
    if any((folder / name).exists() for name in ("source.spm", "spiece.model", "sentencepiece.bpe.model")):
        return SaccadeError(
            "it has a SentencePiece tokenizer, which cannot be imported",
            where=str(folder),
            hint="run it with transformers or CTranslate2, or train your own model: saccade train --help",
        )
    return SaccadeError(f"has no {TOKENIZER}", where=str(folder), hint="save the tokenizer into the same folder")


def kind_of(model: Any, pre_tokenizer: Any) -> TokenizerKind | None:
    """Return the tokenizer kind that fits a model and a pre-tokenizer; the complete pipeline is compared later."""
    kind, splitter = model["type"], pre_tokenizer["type"]
    if kind == "BPE":
        return "byte" if model.get("byte_fallback") else "bpe"
    if kind == "WordLevel":
        return "word" if splitter == "WhitespaceSplit" else "char"
    return "unigram" if kind == "Unigram" else None


def rebuild_tokenizer(kind: TokenizerKind, form: Normalization, model: Any, path: Path) -> Tokenizer:
    """Build our tokenizer from the model part of the file; it is validated by our reader of tokenizer files."""
    document = {
        "format": FORMAT,
        "version": VERSION,
        "kind": kind,
        "normalization": form,
        "tokenizer": {"model": model},
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / TOKENIZER
        file.write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
        try:
            return Tokenizer.load(file)
        except SaccadeError as error:
            what = f"has no valid vocabulary: {error.what}"
            hint = "import a folder whose tokenizer was exported by Saccade"
            raise SaccadeError(what, where=str(path), hint=hint) from None


def check_ids(settings: dict[str, Any], path: Path) -> None:
    """Raise an error if the special symbols have other ids than ours."""
    symbols = Symbols()
    wanted = {
        "pad_token_id": symbols.pad,
        "eos_token_id": symbols.end,
        "decoder_start_token_id": symbols.begin,
    }
    for name, token in wanted.items():
        if settings.get(name) != token:
            raise SaccadeError(
                f"{name} is {shown(settings.get(name))}, and Saccade has {token}",
                where=str(path),
                hint="only models with the special symbols of Saccade can be imported",
            )
