"""A training that ends by tokens: those of its samples without padding, at the same step in every attempt."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from base_models import make_llama
from forked_ranks import RankServer
from rank_processes import training_arguments

from trainyard.steps import prepare_chat
from trainyard.steps.data.dataset.manifest import read_manifest
from trainyard.steps.data.dataset.reader import SplitReader
from trainyard.steps.data.mixture import Mixture
from trainyard.steps.training.samples import training_data
from trainyard.steps.training.samples.training_data import samples_with_tokens

GLOBAL_BATCH, SEED, ANSWERS, LENGTH = 8, 5, 60, 64


@pytest.fixture(scope="module")
def base(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("base"), text)


def prepare(base: Path, folder: Path, packing: str) -> Path:
    source, prepared = folder / "source", folder / "chats"
    source.mkdir(parents=True)
    lines = [{"prompt": f"Say so {n}", "completion": " so" * (1 + n * n % 23)} for n in range(ANSWERS)]
    (source / "chats.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    flags = ("--base-model", base, "--source", source, "--prepared", prepared, "--packing", packing)
    more = ("--sequence-length", LENGTH, "--validation-fraction", 0, "--test-fraction", 0)
    assert prepare_chat.main([str(flag) for flag in (*flags, *more)]) == 0
    return prepared


def steps_by_hand(data: Path, tokens: int) -> int:
    """In which step a training has read so many tokens, counted row by row in its order."""
    manifest = read_manifest(data)
    split = SplitReader(data, manifest, "train")
    rows = split.gather(np.arange(split.samples))
    assert manifest.text is not None
    counts, step, read = (rows["tokens"] != manifest.text.padding).sum(axis=1), 0, 0
    for epoch in range(1, 100):
        sample_ids = split.order(SEED, epoch).sample_ids(0, split.samples)
        for start in range(0, split.samples, GLOBAL_BATCH):
            step, read = step + 1, read + int(counts[sample_ids[start : start + GLOBAL_BATCH]].sum())
            if read >= tokens:
                return step
    raise AssertionError("too many tokens")


@pytest.mark.parametrize(("packing", "ranks"), [("true", 1), ("false", 2)])
def test_padding_is_not_counted_by_any_number_of_ranks_or_after_a_resume(
    base: Path, tmp_path: Path, server: RankServer, packing: str, ranks: int
) -> None:
    data, tokens, log = prepare(base, tmp_path, packing), 2_600, tmp_path / "log"
    expected = steps_by_hand(data, tokens)
    if packing == "false":
        assert expected > -(-tokens // (GLOBAL_BATCH * LENGTH)), "with padding it would have ended earlier"
    batch = ("--global-batch-size", GLOBAL_BATCH, "--micro-batch-size", GLOBAL_BATCH // ranks, "--seed", SEED)
    flags = ("--base-model", base, *batch, "--log-every-steps", 1, "--epochs", 9, "--max-tokens", tokens)
    # The first attempt ends earlier, and the second continues from its checkpoint.
    for more in (("--max-steps", 3), ()):
        arguments = training_arguments(data, tmp_path, "language_modeling", *flags, *more)
        server.start("train_ddp", arguments, ranks, log)
        assert server.wait() == [0] * ranks, log.read_text()
    assert "continuing from" in log.read_text()
    lines = (tmp_path / "metrics" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["step"] == expected


def test_the_limit_is_the_sample_with_the_last_token(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_data, "_IDS_AT_ONCE", 7)
    data = prepare(base, tmp_path, "false")
    split = SplitReader(data, read_manifest(data), "train")
    counts = np.arange(split.samples, dtype=np.int32) % 5
    mixture = Mixture([split, split], [Fraction(3), Fraction(1)])
    for mixed, of_samples in ((split, counts), (mixture, np.concatenate([counts, counts]))):
        orders = [mixed.order(SEED, epoch).sample_ids_at(np.arange(mixed.samples)) for epoch in (1, 2)]
        read = of_samples[np.concatenate(orders) % mixed.stored_samples].cumsum()
        for tokens in (1, 2, 17, int(read[mixed.samples]), int(read[-1])):
            expected = int(np.flatnonzero(read >= tokens)[0]) + 1
            assert samples_with_tokens(mixed, of_samples, SEED, 2, tokens) == expected
        assert samples_with_tokens(mixed, of_samples, SEED, 2, int(read[-1]) + 1) == 2 * mixed.samples
    assert samples_with_tokens(split, 32, SEED, 2, 65) == 3
