from __future__ import annotations

import math
import re
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from saccade.data.cache.corpus import build_corpus
from saccade.data.config import DataConfig
from saccade.data.reading.pair_files import Pair
from saccade.data.tokenizers.tokenizer_pair import save_tokenizers, tokenizers_digest, train_tokenizers
from saccade.decoding.config import DecodingConfig
from saccade.distributed.group import Group
from saccade.errors import SaccadeError
from saccade.training.runs.data import (
    MIN_SOURCE_LIMIT,
    RunData,
    check_lengths,
    fit_length_limit,
    fit_source_limit,
    load_data,
)

PAIRS = [
    Pair(f"one {number % 7} and {number}", " ".join([f"eins {number % 7} und {number}"] * (1 + number % 3)))
    for number in range(90)
]


class Listener:
    """Records messages and progress."""

    def __init__(self) -> None:
        self.logged: list[str] = []
        self.tasks: dict[str, tuple[int, int | None]] = {}

    def log(self, message: str) -> None:
        self.logged.append(message)

    def progress(self, what: str, done: int, total: int | None) -> None:
        self.tasks[what] = done, total


@pytest.fixture
def config(tmp_path: Path) -> DataConfig:
    for name, pairs in (("a.tsv", PAIRS[:60]), ("b.tsv", PAIRS[60:])):
        (tmp_path / name).write_text("".join(f"{pair.source}\t{pair.target}\n" for pair in pairs))
    return DataConfig(source=str(tmp_path / "a.tsv"), vocabulary=60, max_length=60, cache=str(tmp_path / "cache"))


def with_settings(config: DataConfig, **settings: object) -> DataConfig:
    return DataConfig(**{**config.model_dump(), **settings})


def test_data_statistics_are_logged(config: DataConfig) -> None:
    first, second = Listener(), Listener()
    data = load_data(config, first)
    assert data.valid is None
    assert len(data.train) == 60
    entry = next(path for path in Path(config.cache or "").iterdir() if path.is_dir())
    assert re.fullmatch(rf"token cache: {re.escape(str(entry))}, built in \d+ s", first.logged[0])
    assert first.logged[1:] == [
        "training data: 60 pairs, dropped none of 60 pairs",
        f"vocabulary: {data.tokenizers.source.size} bpe tokens for both sides",
        "no validation data: the last model counts as the best (give --valid-source or --data.hold-out)",
    ]
    assert all(done == total for done, total in first.tasks.values())  # every task has ended
    again = load_data(config, second)
    assert second.logged == [f"token cache: {entry}, reused", *first.logged[1:]]
    assert second.tasks == {}
    assert again.digest == data.digest
    assert again.report == data.report


def test_held_out_pairs_keep_their_texts_and_are_not_filtered(config: DataConfig) -> None:
    settings = with_settings(config, hold_out=12, max_length=10)
    for _ in range(2):
        data = load_data(settings, Listener())
        assert data.valid is not None
        assert data.valid.pairs is not None
        assert len(data.valid) == len(data.valid.pairs) == 12
        assert set(data.valid.pairs) < set(PAIRS[:60])
        assert data.valid.statistics.longest_target > 11 >= data.train.statistics.longest_target
        assert data.train.dropped.too_long > 0
        assert data.train.dropped.seen == 48


def test_shares_of_several_corpora_are_logged(config: DataConfig, tmp_path: Path) -> None:
    files = (str(tmp_path / "a.tsv"), str(tmp_path / "b.tsv"))
    listener = Listener()
    data = load_data(with_settings(config, source=files, weights=(1, 4)), listener)
    assert data.train.parts == (60, 30)
    assert f"  {files[0]}: 60 pairs, 20.0% of the examples" in listener.logged
    assert f"  {files[1]}: 30 pairs, 80.0% of the examples" in listener.logged


def test_resumed_run_keeps_its_tokenizers(config: DataConfig, tmp_path: Path) -> None:
    own = train_tokenizers(PAIRS[:20], config)
    folder = tmp_path / "tokenizers"
    folder.mkdir()
    save_tokenizers(folder, own)
    started = load_data(config, Listener())
    resumed = load_data(config, Listener(), tokenizers_folder=folder)
    assert tokenizers_digest(resumed.tokenizers) == tokenizers_digest(own) != tokenizers_digest(started.tokenizers)
    assert resumed.train.source_ids.tolist() == build_corpus(PAIRS[:60], own, config).source_ids.tolist()
    assert resumed.digest == started.digest
    assert load_data(config, Listener(), tokenizers_folder=tmp_path / "none").digest == started.digest


def test_rank_zero_builds_the_cache_while_other_ranks_wait(config: DataConfig) -> None:
    meeting = threading.Barrier(3, timeout=20)
    met: list[int] = []

    class Together(Group):
        def all_reduce_numbers(self, numbers: list[float]) -> list[float]:  # type: ignore[override]
            met.append(self.rank)
            meeting.wait()
            return numbers

    listeners = [Listener() for _ in range(3)]
    found: list[RunData | None] = [None] * 3

    def load(rank: int) -> None:
        found[rank] = load_data(config, listeners[rank], group=Together(rank, 3))

    threads = [threading.Thread(target=load, args=(rank,)) for rank in (2, 1, 0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(met) == [0, 1, 2]
    lines = [line for listener in listeners for line in listener.logged if line.startswith("token cache: /")]
    assert ["built in" in line for line in lines] == [True, False, False]
    assert len({one.digest for one in found if one is not None}) == 1
    assert None not in found


class TestLimits:
    def test_longest_example_must_fit_the_positions(self, config: DataConfig) -> None:
        data = load_data(with_settings(config, hold_out=12, max_length=10), Listener())
        assert data.valid is not None
        longest = max(data.valid.statistics.longest_target, data.train.statistics.longest_target)
        model = SimpleNamespace(max_target_positions=longest)
        check_lengths(model, data)  # type: ignore[arg-type]
        check_lengths(SimpleNamespace(max_target_positions=None), data)  # type: ignore[arg-type]
        model.max_target_positions -= 1
        with pytest.raises(SaccadeError, match=rf"(?s){longest} .*{longest - 1} .*max-positions"):
            check_lengths(model, data)  # type: ignore[arg-type]

    def test_length_limit_is_a_tenth_above_nearly_all_examples(self, config: DataConfig) -> None:
        corpus = load_data(config, Listener()).train
        rows = np.arange(len(corpus))
        growths = (corpus.target_lengths(rows) - 10) / corpus.source_lengths(rows)
        growth = np.quantile(growths, 0.999, method="inverted_cdf")
        factor = fit_length_limit(DecodingConfig(), corpus).max_length_factor
        assert factor == max(1.0, math.ceil(11 * growth) / 10)
        assert fit_length_limit(DecodingConfig(max_length_factor=99.0), corpus).max_length_factor == 99

    def test_source_limit_is_the_longest_training_source(self, config: DataConfig) -> None:
        corpus = load_data(config, Listener()).train
        longest = int(corpus.source_lengths(np.arange(len(corpus))).max()) - 1
        assert fit_source_limit(DecodingConfig(), corpus).max_source == max(MIN_SOURCE_LIMIT, longest)
        for given in (0, 7):
            assert fit_source_limit(DecodingConfig(max_source=given), corpus).max_source == given
        long = SimpleNamespace(statistics=SimpleNamespace(longest_source=1001))
        assert fit_source_limit(DecodingConfig(), long).max_source == 1000  # type: ignore[arg-type]


def test_token_cache_is_not_copied_into_memory(config: DataConfig) -> None:
    train = load_data(config, Listener()).train
    assert len(train.maps) == 4
    assert not train.source_ids.flags.owndata
