from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from command_line import Saccade

import saccade as package
from contracts.registered_models import build_model, choice_of
from saccade.data.lexicon.lexicon_file import read_lexicon
from saccade.data.tokenizers.tokenizer import Tokenizer
from saccade.data.tokenizers.tokenizer_pair import Tokenizers
from saccade.decoding.config import DecodingConfig
from saccade.model_folder import ModelFolder, save_model_folder, vocabulary_sizes

ENGLISH = ["the house", "the book", "a book", "a house", "the garden"]
GERMAN = ["das Haus", "das Buch", "ein Buch", "ein Haus", "das Gärtlein"]
MEANING = {"the": "das", "house": "Haus", "book": "Buch", "a": "ein", "garden": "Gärtlein"}


@pytest.fixture
def texts(tmp_path: Path) -> tuple[Path, Path]:
    (tmp_path / "a.en").write_text("".join(f"{line}\n" for line in ENGLISH), encoding="utf-8")
    (tmp_path / "a.de").write_text("".join(f"{line}\n" for line in GERMAN), encoding="utf-8")
    return tmp_path / "a.en", tmp_path / "a.de"


@pytest.fixture(scope="session")
def word_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained model with three target words, which often outputs the unknown symbol."""
    path = tmp_path_factory.mktemp("word-model") / "model"
    tokenizers = Tokenizers(
        Tokenizer.train("word", ENGLISH, size=50), Tokenizer.train("word", ["rot grün blau"], size=50)
    )
    subject: tuple[str, dict[str, object]] = ("transformer", {})
    model = build_model(subject, vocabulary_sizes(tokenizers))
    settings = DecodingConfig(sample=True, min_length=4, max_length=8).model_dump()
    save_model_folder(path, ModelFolder(model, choice_of(subject), tokenizers, settings))
    return path


def test_lexicon_from_two_files(texts: tuple[Path, Path], tmp_path: Path, saccade: Saccade) -> None:
    output = tmp_path / "lexicon.tsv"
    answer = saccade("lexicon", "--source", texts[0], "--target", texts[1], "--output", output, "--iterations", 20)
    assert (answer.code, answer.out) == (0, "")
    assert read_lexicon(output).entries == MEANING
    lines = answer.err.splitlines()
    assert [line.split(":")[0] for line in lines[:-1]] == [f"iteration {number}" for number in range(1, 21)]
    assert "5 of 5 source words" in lines[-1]
    assert lines[-1].endswith(str(output))
    assert [line.split("\t")[0] for line in output.read_text(encoding="utf-8").splitlines()] == sorted(MEANING)


def test_several_files_compressed_files_and_pairs(texts: tuple[Path, Path], tmp_path: Path, saccade: Saccade) -> None:
    def learn(*options: object) -> str:
        output = tmp_path / "out.tsv"
        answer = saccade("lexicon", "--output", output, "--overwrite", *options)
        assert answer.code == 0, answer.err
        return output.read_text(encoding="utf-8")

    parts: list[object] = []
    for number, rows in enumerate([slice(0, 2), slice(2, 5)]):
        for option, lines in (("--source", ENGLISH), ("--target", GERMAN)):
            path = tmp_path / f"part{number}{option}.txt.gz"
            with gzip.open(path, "wt", encoding="utf-8") as file:
                file.write("".join(f"{line}\n" for line in lines[rows]))
            parts += [option, path]
    pairs = zip(ENGLISH, GERMAN, strict=True)
    (tmp_path / "pairs.tsv").write_text("".join(f"{de}\t{en}\n" for en, de in pairs), encoding="utf-8")
    unsplit = learn("--source", texts[0], "--target", texts[1])
    assert learn(*parts) == unsplit
    assert learn("--source", tmp_path / "pairs.tsv", "--source-column", 2, "--target-column", 1) == unsplit


def test_number_of_entries(texts: tuple[Path, Path], tmp_path: Path, saccade: Saccade) -> None:
    def count(*options: object) -> int:
        output = tmp_path / "out.tsv"
        files = ["--source", texts[0], "--target", texts[1], "--output", output]
        assert saccade("lexicon", *files, "--overwrite", "--iterations", 1, *options).code == 0
        return len(output.read_text(encoding="utf-8").splitlines())

    assert count() == 5
    assert 5 < count("--best", 2) <= 10
    assert count("--best", 9, "--min-probability", 0) == 15  # all words that occur in one sentence pair
    assert 5 <= count("--best", 9, "--min-probability", 0.3) < 15


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--source", "a.en", "--output", "x.tsv"], 2, "target"),
        (["--source", "none.en", "--target", "a.de", "--output", "x.tsv"], 1, "none.en: "),
        (["--source", "a.en", "--source", "a.en", "--target", "a.de", "--output", "x.tsv"], 2, "source"),
        (["--source", "a.en", "--target", "a.de", "--output", "x.tsv.gz"], 2, "plain text"),
        (["--source", "a.en", "--target", "a.de", "--output", "no/x.tsv"], 1, "no such directory"),
        (["--source", "a.en", "--target", "a.de", "--output", "x.tsv", "--min-probability", "1"], 1, "lower"),
        (["--source", "a.en", "--target", "a.de", "--output", "x.tsv", "--best", "0"], 2, "--best"),
        (["--source", "a.en", "--target", "a.de"], 2, "--output"),
        (["--source", "a.en", "--target", "a.de", "--output", "."], 1, "is a directory"),
        (["--source", "a.en", "--target", "a.de", "--output", "/proc/x.tsv"], 1, "cannot be written"),
        (["--source", "a.en", "--target", "a.de", "--output", "/dev/null", "--overwrite"], 1, "not a regular file"),
    ],
)
def test_invalid_arguments(
    options: list[str],
    code: int,
    message: str,
    texts: tuple[Path, Path],
    saccade: Saccade,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(texts[0].parent)
    answer = saccade("lexicon", *options)
    assert answer.code == code
    assert message in answer.err
    assert not Path("x.tsv").exists()


def test_existing_output_is_replaced_only_with_overwrite(
    texts: tuple[Path, Path], tmp_path: Path, saccade: Saccade, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "mine.tsv"
    output.write_text("by\thand\n")
    files = ["--source", texts[0], "--target", texts[1], "--output", output]
    with monkeypatch.context() as patch:
        patch.setattr(
            "saccade.data.lexicon.ibm_model_1.learn_translations",
            lambda *_, **__: pytest.fail("the lexicon was learned"),
        )
        answer = saccade("lexicon", *files)
    assert answer.code == 1
    assert "mine.tsv: already exists" in answer.err
    assert "--overwrite" in answer.err
    assert output.read_text() == "by\thand\n"
    assert saccade("lexicon", *files, "--overwrite", "--iterations", 20).code == 0
    assert read_lexicon(output).entries == MEANING


@pytest.mark.parametrize("name", ["a.en", "a.de", "./a.de", "link.tsv"])
def test_input_as_output_is_an_error(
    name: str, texts: tuple[Path, Path], saccade: Saccade, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(texts[0].parent)
    Path("link.tsv").symlink_to("a.en")
    before = [path.read_bytes() for path in texts]
    answer = saccade("lexicon", "--source", "a.en", "--target", texts[1], "--output", name, "--overwrite")
    assert answer.code == 2
    assert [path.read_bytes() for path in texts] == before


def test_translate_replaces_unknown_words(word_model: Path, tmp_path: Path, saccade: Saccade) -> None:
    (tmp_path / "lexicon.tsv").write_text("zebra\tWappentier\t0.5\n")
    stdin = "zebra zebra\n\nZebra\nSmith\n"

    def words(*options: object) -> list[list[str]]:
        answer = saccade("translate", word_model, *options, stdin=stdin)
        assert (answer.code, answer.err) == (0, "")
        return [line.split(" ") for line in answer.out.splitlines()]

    plain = words("--decoding.allow-unknown", "true")
    source = words("--decoding.replace-unknown", "source")
    entry = words("--decoding.replace-unknown", "lexicon", "--lexicon", tmp_path / "lexicon.tsv")
    copies = ["zebra", "", "Zebra", "Smith"]
    entries = ["Wappentier", "", "Wappentier", "Smith"]
    assert source == [
        [copy if word == "<unk>" else word for word in line] for line, copy in zip(plain, copies, strict=True)
    ]
    assert entry == [
        [own if word == "<unk>" else word for word in line] for line, own in zip(plain, entries, strict=True)
    ]
    assert all("<unk>" in plain[row] for row in (0, 2, 3))
    found = package.load(word_model, "cpu", lexicon=tmp_path / "lexicon.tsv")
    assert found.translate(stdin.splitlines(), replace_unknown="lexicon") == [" ".join(line) for line in entry]


def test_evaluate_replaces_unknown_words(word_model: Path, tmp_path: Path, saccade: Saccade) -> None:
    (tmp_path / "lexicon.tsv").write_text("zebra\tWappentier\n")
    (tmp_path / "t.en").write_text("zebra zebra\nzebra\n")
    (tmp_path / "t.de").write_text("Wappentier\nWappentier\n")
    files = ["--source", tmp_path / "t.en", "--reference", tmp_path / "t.de", "--output", tmp_path / "out"]
    lexicon = ["--decoding.replace-unknown", "lexicon", "--lexicon", tmp_path / "lexicon.tsv"]
    answer = saccade("evaluate", word_model, *files, *lexicon, "--baseline", word_model, "--json")
    assert answer.code == 0, answer.err
    assert "Wappentier" in (tmp_path / "out").read_text()
    values = json.loads(answer.out)
    assert values["lexicon"] == str(tmp_path / "lexicon.tsv")
    assert values["decoding"]["replace_unknown"] == "lexicon"


@pytest.mark.parametrize("command", ["translate", "evaluate"])
def test_lexicon_option_and_setting_must_agree(
    command: str, word_model: Path, tmp_path: Path, saccade: Saccade
) -> None:
    for name, text in (("lexicon.tsv", "zebra\tWappentier\n"), ("bad.tsv", "a\tb\nzebra\n"), ("t", "zebra\n")):
        (tmp_path / name).write_text(text)
    files = ["--source", tmp_path / "t", "--reference", tmp_path / "t"] if command == "evaluate" else []

    def answer(*options: object) -> tuple[int, str]:
        found = saccade(command, word_model, *files, *options, stdin="zebra\n")
        assert found.out == ""
        return found.code, found.err

    for options in ([], ["--decoding.replace-unknown", "source"]):
        code, message = answer(*options, "--lexicon", tmp_path / "lexicon.tsv")
        assert code == 2
        assert "add --decoding.replace-unknown lexicon" in message
    code, message = answer("--decoding.replace-unknown", "lexicon")
    assert code == 2
    assert "give --lexicon FILE" in message
    code, message = answer("--decoding.replace-unknown", "lexicon", "--lexicon", tmp_path / "bad.tsv")
    assert code == 1
    assert "bad.tsv, line 2: " in message
    code, message = answer("--decoding.replace-unknown", "sauce")
    assert code == 2
    assert "source" in message


def test_lexicon_cannot_be_used_with_hypotheses(tmp_path: Path, saccade: Saccade) -> None:
    (tmp_path / "out").write_text("x\n")
    files = ["--hypotheses", tmp_path / "out", "--reference", tmp_path / "out"]
    answer = saccade("evaluate", *files, "--lexicon", tmp_path / "out")
    assert answer.code == 2
    assert "--lexicon needs a model" in answer.err


@pytest.fixture(scope="session")
def piece_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained model with a joint subword vocabulary."""
    path = tmp_path_factory.mktemp("piece-model") / "model"
    joint = Tokenizer.train("bpe", [*ENGLISH, *GERMAN], size=60)
    subject: tuple[str, dict[str, object]] = ("transformer", {})
    model = build_model(subject, vocabulary_sizes(Tokenizers(joint, joint)))
    settings = DecodingConfig(beam=2, max_length=6).model_dump()
    save_model_folder(path, ModelFolder(model, choice_of(subject), Tokenizers(joint, joint), settings))
    return path


def test_lexicon_of_tokens_as_a_shortlist(
    texts: tuple[Path, Path], piece_model: Path, tmp_path: Path, saccade: Saccade
) -> None:
    output, lines = tmp_path / "shortlist.tsv", tmp_path / "in.en"
    lines.write_text("the house\n\na book\n", encoding="utf-8")
    learn = ("lexicon", "--pieces", piece_model, "--source", texts[0], "--target", texts[1], "--output", output)
    answer = saccade(*learn)
    assert (answer.code, answer.out) == (0, "")
    assert answer.err.splitlines()[-1].endswith(str(output))
    entries = [line.split("\t") for line in output.read_text(encoding="utf-8").splitlines()]
    tokenizer = package.load(piece_model).tokenizers.source
    pieces = {tokenizer.piece(token) for token in range(tokenizer.size)}
    assert {piece for entry in entries for piece in entry[:2]} <= pieces
    assert len(entries) > len({entry[0] for entry in entries})  # several translations per token
    answer = saccade("translate", piece_model, "--input", lines, "--vocabulary-shortlist", output)
    assert answer.code == 0
    assert len(answer.out.splitlines()) == 3
    reference = ("--source", texts[0], "--reference", texts[1], "--metric", "bleu")
    answer = saccade("evaluate", piece_model, *reference, "--vocabulary-shortlist", output, "--json")
    result = json.loads(answer.out)
    assert (result["shortlist"], result["engine"]) == (str(output), "torch")


def test_invalid_shortlists(
    texts: tuple[Path, Path], piece_model: Path, word_model: Path, tmp_path: Path, saccade: Saccade
) -> None:
    words = tmp_path / "words.tsv"
    assert saccade("lexicon", "--source", texts[0], "--target", texts[1], "--output", words).code == 0
    answer = saccade("translate", piece_model, "--input", texts[0], "--vocabulary-shortlist", words)
    assert answer.code == 1
    assert "saccade lexicon --pieces RUN" in answer.err
    answer = saccade("translate", piece_model, "--input", texts[0], "--vocabulary-shortlist", tmp_path / "none.tsv")
    assert answer.code == 1
    assert "none.tsv" in answer.err
    scored = ("--hypotheses", texts[1], "--reference", texts[1])
    answer = saccade("evaluate", *scored, "--vocabulary-shortlist", words)
    assert answer.code == 2
    assert "--vocabulary-shortlist needs a RUN" in answer.err
