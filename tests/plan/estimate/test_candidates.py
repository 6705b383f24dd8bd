"""What autotuning measures: the memory model decides what fits, the estimated time what comes first."""

from __future__ import annotations

import pytest

from trainyard.catalogue.skus import find_sku
from trainyard.plan.estimate.architectures import find_architecture
from trainyard.plan.estimate.search import Proposal, propose
from trainyard.plan.estimate.training import TrainingShape, machines_of_sku
from trainyard.settings.written_settings import Candidate, read_candidate


def _proposed(model: str, sku: str, *, samples: int = 8, most: int = 100) -> Proposal:
    machines = machines_of_sku(find_sku(sku), nodes=1)
    return propose(samples, most, TrainingShape(find_architecture(model), machines, "zero0", samples, 1, 2048))


def test_what_does_not_fit_is_not_measured() -> None:
    # 7 billion parameters: 16 bytes each do not fit on a GPU of 40 GB, an eighth of them does.
    found = _proposed("llama-2-7b", "Standard_ND96asr_v4")
    configs = {each.candidate.config for each in found.chosen}
    assert "zero0" not in configs
    assert {"zero3", "zero3_offload"} <= configs
    assert 0 < found.fitting < found.considered
    assert all(each.memory_gib is not None and each.memory_gib <= 40 for each in found.chosen)


def test_the_fastest_by_the_estimate_come_first_and_needless_work_last() -> None:
    found = _proposed("gpt2", "Standard_ND96asr_v4").chosen
    in_gpus = [each for each in found if not each.candidate.config.endswith("_offload")]
    kept = [each for each in in_gpus if not each.candidate.activation_checkpointing]
    assert all(each.step_seconds is not None for each in found)
    assert [each.step_seconds for each in kept] == sorted(each.step_seconds or 0 for each in kept)
    assert list(found[: len(kept)]) == kept, "checkpointing gains nothing where the same fits without"
    assert found[-1].candidate.config.endswith("_offload")


def test_every_micro_batch_divides_the_samples_of_a_process() -> None:
    found = _proposed("gpt2", "Standard_ND96asr_v4", samples=6)
    assert {each.candidate.micro_batch_size for each in found.chosen} == {1, 2, 3, 6}
    assert len(_proposed("gpt2", "Standard_ND96asr_v4", most=3).chosen) == 3


@pytest.mark.parametrize(("has_gpu", "offloads"), [(True, True), (False, False)])
def test_without_an_estimate_nothing_is_ruled_out(has_gpu: bool, offloads: bool) -> None:
    found = propose(2, 100, None, "a reason", has_gpu=has_gpu)
    assert found.fitting == found.considered == len(found.chosen)
    assert any(each.candidate.config.endswith("_offload") for each in found.chosen) is offloads
    assert (found.chosen[0].candidate, found.reason) == (Candidate("zero0", 2, False), "a reason")


def test_a_candidate_is_read_as_it_is_written() -> None:
    candidate = Candidate("zero2", 4, True)
    assert read_candidate(str(candidate)) == candidate


@pytest.mark.parametrize(
    "text",
    [
        "",
        "zero2 4 true",
        "config=zero2 micro_batch_size=4",
        "config=zero2 micro_batch_size=0 activation_checkpointing=true",
        "config=zero2 micro_batch_size=4 activation_checkpointing=yes",
        "config=zero2 micro_batch_size=4 activation_checkpointing=true more=1",
        "config=zero2 config=zero2 micro_batch_size=4 activation_checkpointing=true",
    ],
)
def test_anything_else_is_not_a_candidate(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a candidate: .*; expected 'config=NAME micro_batch_size=N"):
        read_candidate(text)
