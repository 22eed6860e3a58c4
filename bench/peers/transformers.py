"""transformers: MarianMTModel in a plain loop and in Seq2SeqTrainer, and `generate`; runs in its own environment."""

from __future__ import annotations

import json
import math
import random
import statistics
import time
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from torch.nn.utils.rnn import pad_sequence

from bench.peers.job import EnoughUpdatesError, UpdateTimer, print_result, read_ids, read_job, read_lines, write_lines

UNKNOWN, PAD, BEGIN, END = 0, 1, 2, 3  # ids of the SentencePiece model
IGNORED = -100


def main() -> None:
    job = read_job()
    torch.manual_seed(1)
    result = {"training": plain_loop, "trainer": seq2seq_trainer, "decoding": generate}[job["task"]](job)
    print_result({"version": transformers.__version__, "threads": torch.get_num_threads(), **result})


def make_model(job: dict[str, Any]) -> transformers.MarianMTModel:
    """A new model of the size of the job."""
    size = job["size"]
    both = {}
    for side in ("encoder", "decoder"):
        both[f"{side}_layers"] = size["layers"]
        both[f"{side}_attention_heads"] = size["heads"]
        both[f"{side}_ffn_dim"] = size["feed_forward"]
    config = transformers.MarianConfig(
        vocab_size=size["pieces"],
        d_model=size["width"],
        dropout=job["dropout"],
        attention_dropout=0.0,
        activation_dropout=0.0,
        activation_function="relu",
        scale_embedding=True,
        share_encoder_decoder_embeddings=True,
        tie_word_embeddings=True,
        max_position_embeddings=512,
        pad_token_id=PAD,
        bos_token_id=BEGIN,
        eos_token_id=END,
        decoder_start_token_id=BEGIN,
        forced_eos_token_id=None,
        **both,
    )
    return transformers.MarianMTModel(config).train()


def tensors_of(pairs: list[tuple[list[int], list[int]]]) -> dict[str, torch.Tensor]:
    """A padded batch; decoder inputs are the targets shifted by one."""
    sources = [torch.tensor(source) for source, _ in pairs]
    targets = [torch.tensor(target) for _, target in pairs]
    shifted = [torch.tensor([BEGIN, *target[:-1]]) for _, target in pairs]
    source = pad_sequence(sources, batch_first=True, padding_value=PAD)
    return {
        "input_ids": source,
        "attention_mask": (source != PAD).long(),
        "decoder_input_ids": pad_sequence(shifted, batch_first=True, padding_value=PAD),
        "labels": pad_sequence(targets, batch_first=True, padding_value=IGNORED),
    }


def read_pairs(job: dict[str, Any]) -> list[tuple[list[int], list[int]]]:
    work = Path(job["work"])
    return list(zip(read_ids(work / "train.source.ids"), read_ids(work / "train.target.ids"), strict=True))


def plain_loop(job: dict[str, Any]) -> dict[str, Any]:
    """A plain training loop over the same batches as Saccade."""
    pairs, plan = read_pairs(job), json.loads((Path(job["work"]) / "plan.json").read_text())
    model = make_model(job)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, weight_decay=0, fused=True)
    updates, done = UpdateTimer(job["warmup"], job["updates"]), False
    while not done:
        for rows in plan:
            batch = tensors_of([pairs[row] for row in rows])
            labels = batch.pop("labels")
            logits = model(**batch).logits
            loss = torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, label_smoothing=job["label_smoothing"]
            )
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            if done := updates.record(int((labels != IGNORED).sum())):
                break
    return updates.result()


class StopAfterUpdates(transformers.TrainerCallback):
    """Ends training when enough updates are measured."""

    def __init__(self, updates: UpdateTimer) -> None:
        self.updates = updates
        self.tokens: list[int] = []

    def on_step_end(self, *arguments: Any, **rest: Any) -> None:
        # Right even if the trainer fetched batches ahead: they are used in the order of collation.
        if self.updates.record(self.tokens.pop(0)):
            raise EnoughUpdatesError


def seq2seq_trainer(job: dict[str, Any]) -> dict[str, Any]:
    """Seq2SeqTrainer as in its examples: grouped by length, with as many pairs per batch as Saccade has on average."""
    pairs, plan = read_pairs(job), json.loads((Path(job["work"]) / "plan.json").read_text())
    watch = StopAfterUpdates(UpdateTimer(job["warmup"], job["updates"]))
    examples = [{"input_ids": source, "labels": target} for source, target in pairs]
    random.Random(1).shuffle(examples)

    def collate(rows: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        batch = tensors_of([(row["input_ids"], row["labels"]) for row in rows])
        watch.tokens.append(int((batch["labels"] != IGNORED).sum()))
        return batch

    arguments = transformers.Seq2SeqTrainingArguments(
        output_dir=job["folder"],
        per_device_train_batch_size=round(statistics.mean(len(rows) for rows in plan)),
        learning_rate=1e-4,
        adam_beta2=0.98,
        max_grad_norm=1.0,
        label_smoothing_factor=job["label_smoothing"],
        train_sampling_strategy="group_by_length",
        max_steps=1_000_000,
        save_strategy="no",
        logging_steps=1_000,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    trainer = transformers.Seq2SeqTrainer(
        model=make_model(job), args=arguments, data_collator=collate, train_dataset=examples, callbacks=[watch]
    )
    try:
        trainer.train()
    except EnoughUpdatesError:
        return watch.updates.result()
    raise SystemExit("training ended early")


def generate(job: dict[str, Any]) -> dict[str, Any]:
    """Translate with Saccade's weights in batches of similar length; loading is not counted."""
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(job["export"]).eval()
    document = json.loads(Path(job["tokenizer"]).read_text(encoding="utf-8"))
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(document["tokenizer"]))
    lines, pad, end = read_lines(job["source"]), model.config.pad_token_id, model.config.eos_token_id
    found = []
    for beam in job["beams"]:
        translate(model, tokenizer, lines[:20], beam, 20, job["size"]["length"], pad, end)  # warmup
        for rows in job["batch_sizes"]:
            began = time.perf_counter()
            outputs = translate(model, tokenizer, lines, beam, rows, job["size"]["length"], pad, end)
            seconds = time.perf_counter() - began
            output = f"{job['output']}.beam{beam}.{rows}"
            write_lines(output, outputs)
            found.append({"beam": beam, "seconds": seconds, "output": output, "setting": f"{rows} sentences per batch"})
    return {"decoded": found}


def translate(
    model: Any, tokenizer: Any, lines: list[str], beam: int, rows: int, length: int | None, pad: int, end: int
) -> list[str]:
    """Translate all lines, the longest first."""
    sources = [[*encoding.ids, end] for encoding in tokenizer.encode_batch(lines, add_special_tokens=False)]
    order = sorted(range(len(lines)), key=lambda index: -len(sources[index]))
    outputs = [""] * len(lines)
    for first in range(0, len(order), rows):
        chosen = order[first : first + rows]
        batch = pad_sequence([torch.tensor(sources[index]) for index in chosen], batch_first=True, padding_value=pad)
        longest = batch.shape[1]
        limits = {"min_new_tokens": length, "max_new_tokens": length} if length else {}
        limits = limits or {"max_new_tokens": math.ceil(1.5 * longest) + 10}
        with torch.inference_mode():
            ids = model.generate(
                input_ids=batch,
                attention_mask=(batch != pad).long(),
                num_beams=beam,
                do_sample=False,
                length_penalty=1.0,
                early_stopping=False,
                **limits,
            )
        special = {pad, end, model.config.decoder_start_token_id}
        texts = tokenizer.decode_batch([[token for token in row if token not in special] for row in ids.tolist()])
        for index, text in zip(chosen, texts, strict=True):
            outputs[index] = text
    return outputs


if __name__ == "__main__":
    main()
