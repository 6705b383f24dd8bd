"""With --record-samples, the files of all ranks show which samples were taken when, also after a resume."""

from __future__ import annotations

import json
import os
import resource
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from trainyard.settings.batch_arithmetic import divide_batch
from trainyard.steps.data.dataset.manifest import read_manifest
from trainyard.steps.data.dataset.reader import SplitReader
from trainyard.steps.data.sample_order import SampleOrder
from trainyard.steps.training.observing.recorder import SampleRecord
from trainyard.steps.training.samples.batches import MicroBatch, TrainingBatches
from trainyard.steps.training.samples.plan import Step, TrainingPlan

SEED, GLOBAL_BATCH = 11, 64


@pytest.fixture(scope="module")
def split(digits: Path) -> SplitReader:
    return SplitReader(digits, read_manifest(digits), "train")


def plan_of(split: SplitReader, world_size: int, micro: int) -> TrainingPlan:
    return TrainingPlan(split.samples, divide_batch(GLOBAL_BATCH, micro, world_size), epochs=2)


def train(
    folder: Path, split: SplitReader, *, world_size: int, micro: int = 8, steps_done: int = 0, until: int | None = None
) -> None:
    """What the ranks of a training record, from after `steps_done` to its end or to step `until`."""
    plan = plan_of(split, world_size, micro)
    for rank in range(world_size):
        record = SampleRecord(folder, rank, world_size, steps_done)
        batches = TrainingBatches(split, plan, SEED, rank, steps_done, torch.device("cpu"))
        for step, micro_batches in batches:
            if until is not None and step.number > until:
                break
            record.write(step, micro_batches)
        batches.close()
        record.close()


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in sorted(folder.iterdir()) for line in file.read_text().splitlines()]


def assert_complete(folder: Path, split: SplitReader) -> None:
    """Each step has just the samples of its place in the order, so each epoch has every sample once."""
    lines = lines_of(folder)
    plan = plan_of(split, 1, GLOBAL_BATCH)
    taken: dict[int, list[int]] = {number: [] for number in range(1, plan.total_steps + 1)}
    for line in lines:
        taken[line["step"]] += line["sample_ids"]
    for step in map(plan.step, range(1, plan.total_steps + 1)):
        expected = SampleOrder(split.samples, SEED, step.epoch).sample_ids(step.start, step.stop)
        assert sorted(taken[step.number]) == sorted(expected.tolist()), f"step {step.number}"
    for epoch in (1, 2):
        of_epoch = Counter(sample for line in lines if line["epoch"] == epoch for sample in line["sample_ids"])
        assert of_epoch == Counter(range(split.samples))


def test_each_epoch_has_every_sample_once(tmp_path: Path, split: SplitReader) -> None:
    train(tmp_path / "samples", split, world_size=2)
    assert sorted(os.listdir(tmp_path / "samples")) == ["rank-00000.jsonl", "rank-00001.jsonl"]
    assert_complete(tmp_path / "samples", split)


@pytest.mark.parametrize(("before", "after"), [(4, 1), (4, 2), (2, 4), (2, 2)])
def test_each_epoch_is_complete_after_a_resume(tmp_path: Path, split: SplitReader, before: int, after: int) -> None:
    """The first attempt came to step 9, or 8 on some ranks; its last checkpoint was of step 6."""
    train(tmp_path, split, world_size=before, until=9)
    train(tmp_path, split, world_size=after, micro=16, steps_done=6)
    assert_complete(tmp_path, split)


def test_a_half_written_line_is_dropped(tmp_path: Path, split: SplitReader) -> None:
    train(tmp_path, split, world_size=1, until=5)
    file = tmp_path / "rank-00000.jsonl"
    file.write_bytes(file.read_bytes()[:-3])
    train(tmp_path, split, world_size=1, steps_done=4)
    assert_complete(tmp_path, split)


def test_a_new_training_starts_a_new_record(tmp_path: Path, split: SplitReader) -> None:
    train(tmp_path, split, world_size=4, until=3)
    (tmp_path / "notes.txt").write_text("mine")
    train(tmp_path, split, world_size=1)
    (tmp_path / "notes.txt").unlink()
    assert_complete(tmp_path, split)


STEP = Step(number=1, epoch=1, start=0, stop=1, samples_consumed=1, ends_epoch=True, is_last=True)


def batch(*sample_ids: int, is_stand_in: bool = False) -> MicroBatch:
    return MicroBatch({}, np.array(sample_ids), is_stand_in, is_last=True)


def test_a_line_leaves_out_stand_ins(tmp_path: Path) -> None:
    record = SampleRecord(tmp_path, rank=3, world_size=4, steps_done=0)
    record.write(STEP, [batch(5, 9), batch(7), batch(2, is_stand_in=True)])
    assert (tmp_path / "rank-00003.jsonl").read_text() == '{"step": 1, "epoch": 1, "sample_ids": [5, 9, 7]}\n'
    record.close()


def test_a_step_that_cannot_be_written_is_left_out_and_the_training_continues(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = SampleRecord(tmp_path, rank=0, world_size=1, steps_done=0)
    record.write(STEP, [batch(1)])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, hard))
    try:
        record.write(STEP, [batch(2)])
        record.write(STEP, [batch(3)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    record.write(STEP, [batch(4)])
    record.close()
    assert capsys.readouterr().out.count("rank-00000.jsonl, and the training continues without: file too large") == 1
    assert [line["sample_ids"] for line in lines_of(tmp_path)] == [[1], [2], [4]]
