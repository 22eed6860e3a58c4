"""Train a SentencePiece model and tokenize texts: all toolkits use the same tokens and ids."""

from __future__ import annotations

from pathlib import Path

import sentencepiece

from bench.peers.job import print_result, read_job, read_lines

UNKNOWN, PAD, BEGIN, END = 0, 1, 2, 3  # ids used by all toolkits


def main() -> None:
    job = read_job()
    folder = Path(job["folder"])
    prefix = str(folder / "pieces")
    sentencepiece.SentencePieceTrainer.train(
        input=job["texts"],
        model_prefix=prefix,
        model_type="bpe",
        vocab_size=job["pieces"],
        character_coverage=1.0,
        unk_id=UNKNOWN,
        pad_id=PAD,
        bos_id=BEGIN,
        eos_id=END,
        minloglevel=1,
    )
    model = sentencepiece.SentencePieceProcessor(model_file=f"{prefix}.model")
    pieces = [model.id_to_piece(number) for number in range(model.get_piece_size())]
    (folder / "pieces.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    for text in job["texts_to_tokenize"]:
        with Path(f"{text}.ids").open("w", encoding="ascii") as file:
            for line in read_lines(text):
                file.write(" ".join(map(str, [*model.encode(line), END])) + "\n")
    print_result({"pieces": len(pieces)})


if __name__ == "__main__":
    main()
