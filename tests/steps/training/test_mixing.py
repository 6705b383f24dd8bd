"""Datasets mixed by weight: their shares, an order that no world size and no resume changes, and what is refused."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from base_models import make_small_text
from hypothesis import given, settings
from hypothesis import strategies as st
from rank_processes import training_arguments

from trainyard.settings.batch_arithmetic import divide_batch
from trainyard.steps import prepare_text, train_ddp
from trainyard.steps.data.dataset.manifest import ArrayType, read_manifest
from trainyard.steps.data.dataset.reader import SplitReader
from trainyard.steps.data.dataset.writer import DatasetWriter
from trainyard.steps.data.mixture import MixedOrder, Mixture, contributions_of
from trainyard.steps.training.checkpoints.checkpoint_to_resume import checkpoint_folders
from trainyard.steps.training.checkpoints.commit import COMMIT_FILE
from trainyard.steps.training.samples.batches import TrainingBatches
from trainyard.steps.training.samples.plan import TrainingPlan

SIZES, WEIGHTS = (300, 170, 30), (Fraction(5), Fraction(3), Fraction(2))
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Mixture:
    """Three datasets whose samples are their own numbers in the mixture."""
    readers, first = [], 0
    for size in SIZES:
        folder = tmp_path_factory.mktemp("numbers")
        with DatasetWriter(folder, {"number": ArrayType("int64", ())}, 64) as dataset:
            with dataset.split("train") as split:
                split.add({"number": np.arange(first, first + size)})
            dataset.finish("numbers", (), {})
        readers.append(SplitReader(folder, read_manifest(folder), "train"))
        first += size
    return Mixture(readers, WEIGHTS)


def taken(mixture: Mixture, world_size: int, steps_done: int = 0, epochs: int = 3) -> dict[int, list[int]]:
    """The samples of each step, in the order of the ranks."""
    plan = TrainingPlan(mixture.samples, divide_batch(60, 5, world_size), epochs)
    steps: dict[int, list[int]] = {}
    for rank in range(world_size):
        batches = TrainingBatches(mixture, plan, 7, rank, steps_done, CPU)
        for step, micro_batches in batches:
            for batch in micro_batches:
                assert batch.tensors["number"].tolist() == batch.sample_ids.tolist()
                if not batch.is_stand_in:
                    steps.setdefault(step.number, []).extend(batch.sample_ids.tolist())
        batches.close()
    return steps


def test_the_order_is_the_same_for_every_world_size_and_after_every_resume(mixture: Mixture) -> None:
    whole = taken(mixture, 1)
    assert len(whole) == 3 * 9
    for world_size in (2, 3, 4):
        assert {step: Counter(of) for step, of in taken(mixture, world_size).items()} == {
            step: Counter(of) for step, of in whole.items()
        }
    for steps_done in (1, 8, 9, 10, 26):
        assert taken(mixture, 1, steps_done) == {step: of for step, of in whole.items() if step > steps_done}


def test_each_epoch_has_the_shares_of_the_weights_and_every_sample_is_taken_equally_often(mixture: Mixture) -> None:
    assert mixture.contributions == [250, 150, 100]
    firsts = np.cumsum([0, *SIZES])
    times: Counter[int] = Counter()
    for epoch in range(1, 8):
        occurrences = mixture.order(7, epoch).sample_ids_at(np.arange(mixture.samples))
        assert len(set(occurrences.tolist())) == mixture.samples  # a sample's second pass has a number of its own
        sample_ids = occurrences % mixture.stored_samples
        assert np.histogram(sample_ids, firsts)[0].tolist() == mixture.contributions
        times.update(sample_ids.tolist())
        for start, stop in pairwise(firsts.tolist()):
            of_dataset = [times[number] for number in range(start, stop)]
            assert max(of_dataset) - min(of_dataset) <= 1


def test_batches_are_mixed_as_by_chance(mixture: Mixture) -> None:
    """Pearson's chi-square over batches of 50 of many epochs; an epoch's shares are exact, so batches vary less."""
    from scipy.stats import chi2  # seconds, which every process that collects tests would take

    batch, shares = 50, np.array([250, 150, 100]) / 500
    statistics = []
    for epoch in range(1, 201):
        sample_ids = mixture.order(11, epoch).sample_ids_at(np.arange(mixture.samples)) % mixture.stored_samples
        owners = np.searchsorted(np.cumsum(SIZES), sample_ids, side="right")
        counts = np.stack([(owners.reshape(-1, batch) == number).sum(axis=1) for number in range(3)], axis=1)
        statistics.append((((counts - batch * shares) ** 2) / (batch * shares)).sum())
    # Ten batches drawn without replacement from one epoch: 9 x 2 degrees of freedom, as of a table with fixed margins;
    # (N - 1) / N corrects the variance of a draw without replacement.
    statistic = sum(statistics) * (mixture.samples - 1) / mixture.samples
    degrees = 200 * 9 * 2
    assert 1e-4 < chi2.sf(statistic, degrees) < 1 - 1e-4


@given(
    weights=st.lists(st.fractions(Fraction(1, 1000), 1000), min_size=1, max_size=4),
    samples=st.integers(1, 10_000),
)
@settings(deadline=None)
def test_shares_add_up_and_are_exact_to_one_sample(weights: list[Fraction], samples: int) -> None:
    counts = contributions_of(weights, samples)
    assert sum(counts) == samples
    for count, weight in zip(counts, weights, strict=True):
        assert abs(count - weight * samples / sum(weights)) < 1


@given(seed=st.integers(0, 2**40), epoch=st.integers(1, 10**6), data=st.data())
@settings(deadline=None, max_examples=40)
def test_a_position_does_not_depend_on_how_it_is_reached(seed: int, epoch: int, data: st.DataObject) -> None:
    order = MixedOrder(SIZES, [250, 150, 100], seed, epoch)
    positions = np.array(data.draw(st.lists(st.integers(0, 499), min_size=1, max_size=20)))
    assert order.sample_ids_at(positions).tolist() == order.sample_ids_at(np.arange(500))[positions].tolist()


@pytest.fixture(scope="module")
def other_text(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_small_text(text, tmp_path_factory.mktemp("other"))


def arguments(data: Path, out: Path, *more: object) -> list[str]:
    sizes = '{"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}'
    flags = ("--model-type", "llama", "--model-overrides", sizes, "--global-batch-size", 8, "--micro-batch-size", 8)
    steps = ("--max-steps", 6, "--checkpoint-every-steps", 2, "--keep-checkpoints", 9)
    return [str(flag) for flag in training_arguments(data, out, "language_modeling", *flags, *steps, *more)]


def test_a_mixed_training_resumes_with_the_same_bits_and_only_with_the_same_mixture(
    text: Path, other_text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mixed = ("--data-2", other_text, "--data-weights", "3,1")
    assert train_ddp.main(arguments(text, tmp_path / "whole", *mixed)) == 0
    said = capsys.readouterr().out
    total = sum(read_manifest(folder).splits["train"].samples for folder in (text, other_text))
    quarter = contributions_of((Fraction(3), Fraction(1)), total)[1]
    assert (
        f"{quarter} samples from {other_text} (which has {read_manifest(other_text).splits['train'].samples})" in said
    )

    fourth = checkpoint_folders(tmp_path / "whole" / "checkpoints")[1]
    assert train_ddp.main(arguments(text, tmp_path / "resumed", *mixed, "--resume", fourth)) == 0
    ends = [checkpoint_folders(tmp_path / name / "checkpoints")[0] / COMMIT_FILE for name in ("whole", "resumed")]
    assert ends[0].read_text() == ends[1].read_text()

    capsys.readouterr()
    other = ("--data-2", other_text, "--data-weights", "1,1")
    assert train_ddp.main(arguments(text, tmp_path / "other", *other, "--resume", fourth)) == 1
    assert "dataset" in capsys.readouterr().err


def test_datasets_that_do_not_fit_and_wrong_weights_are_refused(
    digits: Path, text: Path, other_text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    foreign, longer = tmp_path / "foreign", tmp_path / "longer"
    shared = ("--source", other_text.parent / "source", "--validation-fraction", 0, "--test-fraction", 0)
    of_own = ("--prepared", foreign, "--vocabulary-size", 300, "--sequence-length", 32)
    of_other_length = ("--prepared", longer, "--tokenizer", text, "--sequence-length", 64)
    for flags in (of_own, of_other_length):
        assert prepare_text.main([str(flag) for flag in (*shared, *flags)]) == 0
    two = ("--data-2", other_text)
    wrong = [
        (("--data-2", foreign), f"{foreign} cannot be mixed with {text}: it has another vocabulary; prepare it with"),
        (("--data-2", digits), "it holds labelled_images, the other tokens; mix datasets of one kind"),
        (("--data-2", longer), "its array tokens is uint16 [65], the other's uint16 [33]; prepare both with the same"),
        (("--data-weights", "3"), "--data-weights 3: there is only one dataset; name others as data_2 to data_4"),
        ((*two, "--data-weights", "3"), "--data-weights 3: 1 weights for 2 datasets"),
        ((*two, "--data-weights", "3,0"), "--data-weights '3,0': expected a positive number for each dataset"),
        ((*two, "--data-weights", "much,little"), "expected a positive number for each dataset, such as 3,1"),
        ((*two, "--data-weights", "1,1e-9"), f"not one sample of an epoch would come from {other_text}; raise its"),
    ]
    for more, message in wrong:
        assert train_ddp.main(arguments(text, tmp_path / "out", *more)) == 1
        assert message in capsys.readouterr().err
