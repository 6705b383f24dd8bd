"""The time of a step: what the parts do when one setting changes, and published trainings."""

from __future__ import annotations

import csv
import hashlib
import runpy
import statistics
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from published_trainings import (
    FIXED_MEMORY_ROUND,
    FIXED_TIME_ROUND,
    LAST_MEMORY_ROUND,
    LAST_TIME_ROUND,
    OWN_ROUND,
    UNSEEN_MEMORY_ROUND,
    UNSEEN_ROUND,
    held_out_trainings,
    median_time_error,
    published_trainings,
    timed_trainings,
)
from trainyard.catalogue.gpus import find_gpu
from trainyard.catalogue.skus import find_sku
from trainyard.errors import UsageError
from trainyard.plan.estimate import STACKS, compute
from trainyard.plan.estimate.architectures import find_architecture
from trainyard.plan.estimate.blocks import layer_traffic_bytes
from trainyard.plan.estimate.compute import compute_of, efficiency_curves
from trainyard.plan.estimate.config_file import find_model
from trainyard.plan.estimate.estimator import estimate, on_nodes, scaling_curve
from trainyard.plan.estimate.image_models import ImageModel, ModelBlock, Product
from trainyard.plan.estimate.intervals import KINDS, interval_of
from trainyard.plan.estimate.memory import FOREACH, memory_of, model_states
from trainyard.plan.estimate.step_time import (
    BASE_LATENCY,
    LINK_LATENCY,
    NETWORK_LATENCY,
    all_reduce_seconds,
    between_replicas_seconds,
    gather_seconds,
    hierarchical_seconds,
    ring_seconds,
)
from trainyard.plan.estimate.training import Adapters, Machines, TrainingShape, machines_of_gpu, machines_of_sku
from trainyard.steps.training.observing.flops import flops_of_transformer

DOCS = Path(__file__).parents[3] / "docs"
_FIRST = ("first_samples_per_second_per_gpu", "first_memory_gb")


def _training(**settings: object) -> TrainingShape:
    chosen = {"engine": "fsdp", "micro_batch_size": 2, "accumulation_steps": 1, "sequence_length": 4096, **settings}
    return TrainingShape(find_architecture("llama-2-7b"), _machines(2), **chosen)


def _machines(nodes: int, gpu: str = "A100-SXM-80GB") -> Machines:
    return machines_of_gpu(find_gpu(gpu), nodes)


def _seconds(training: TrainingShape) -> float:
    time = estimate(training).time
    assert time is not None
    return time.total


@pytest.mark.parametrize("name", ["Standard_NC48ads_A100_v4", "Standard_NC80adis_H100_v5", "Standard_NC96ads_A100_v4"])
def test_an_all_reduce_within_a_machine_is_as_fast_as_azures_health_check_expects(name: str) -> None:
    """The floors say whether two GPUs have a bridge, or four talk over PCIe; of a bridge four fifths are reached."""
    size = find_sku(name)
    floor = size.health_check_allreduce_gbyte_per_second
    assert floor is not None
    sent = 1e10
    ranks = size.gpu_count
    bus_rate = 2 * (ranks - 1) / ranks * sent / all_reduce_seconds(sent, machines_of_sku(size, 1)) / 1e9
    assert floor <= bus_rate <= 1.3 * floor


def test_no_curve_is_fitted_to_what_is_held_out() -> None:
    fitted = {row.source for row in published_trainings() if row.is_fitted}
    held_out = held_out_trainings()
    assert len(fitted) >= 5
    assert not fitted & {row.source for row in held_out}
    for kind in KINDS:
        assert len([row for row in held_out if row.kind == kind]) >= 10


def test_the_page_of_estimates_is_current() -> None:
    page = runpy.run_path(str(DOCS / "generate_estimates.py"))["page"]
    assert (DOCS / "estimates.md").read_text(encoding="utf-8") == page()


def test_what_was_predicted_first_stays_as_it_was() -> None:
    """Rows are added to the end, with what was predicted before they were compared; none is taken out or changed."""
    with (DOCS / "held_out_trainings.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert Counter(row["round"] for row in rows[:351]) == {"1": 85, "2": 169, "3": 97}
    names = ("source", "gpu", "samples_per_second_per_gpu", "memory_gb", "round", "predicted_on")
    for some, expected in (
        (rows[:351], "e75240214556bd420851d6a88903019839088887cbaf124cafa24a074c48e566"),
        (rows[351:732], "d241090bf4105bd766bcafbe3a9338b5c93aa79a71051cb1886dda62bb7d1dfe"),
        (rows[732:874], "b8e45f0c84f9905215091129ca15c1569f5bede42c17a51302c5e934d0c6ce81"),
        (rows[874:1001], "8ef5b2b26df85758d331e4215161b75997904ed1320cbd95ddd6a90d506cc341"),
    ):
        text = "\n".join(",".join(row[name] for name in (*names, *_FIRST)) for row in some)
        assert hashlib.sha256(text.encode()).hexdigest() == expected
    for row in rows:
        assert row["predicted_on"] >= "2026-11-25"
        if int(row["round"]) == FIXED_TIME_ROUND and not (row["samples_per_second_per_gpu"] or row["memory_gb"]):
            continue  # predicted, and not compared yet
        assert bool(row["samples_per_second_per_gpu"]) == bool(row[_FIRST[0]])
        assert row["samples_per_second_per_gpu"] or row["memory_gb"]


def test_the_last_rounds_were_predicted_by_the_formulas_of_today() -> None:
    """Or docs/estimates.md, and the intervals, would name errors that the formulas have seen as those of first sight.
    A change of the formulas of time or memory sets its constant to the number of a round that is still to come."""
    rows = held_out_trainings()
    for row in (row for row in rows if row.round >= FIXED_TIME_ROUND and row.rate is not None):
        first, today = (row.time_error(first=which) for which in (True, False))
        assert first == pytest.approx(today, abs=1e-4)
    for row in (row for row in rows if row.round >= FIXED_MEMORY_ROUND and row.memory_bytes is not None):
        assert row.memory_error(first=True) == pytest.approx(row.memory_error(first=False), abs=1e-3)
    last = [row for row in rows if row.round == OWN_ROUND]
    changed = [abs(row.time_error(first=True) - row.time_error(first=False)) > 1e-3 for row in last]
    assert (FIXED_TIME_ROUND <= OWN_ROUND) == (not any(changed))
    changed = [row.memory_error(first=True) != pytest.approx(row.memory_error(first=False), abs=1e-3) for row in last]
    assert (FIXED_MEMORY_ROUND <= OWN_ROUND) == (not any(changed))
    page = " ".join((DOCS / "estimates.md").read_text(encoding="utf-8").split())
    assert max(row.round for row in rows if row.rate) == LAST_TIME_ROUND
    assert max(row.round for row in rows if row.memory_bytes) == LAST_MEMORY_ROUND
    assert ("no round has been predicted by them yet" in page) == (LAST_TIME_ROUND < FIXED_TIME_ROUND)
    assert f"## First predictions: round {LAST_TIME_ROUND}" in page


def test_the_page_on_plans_says_how_many_trainings_are_compared() -> None:
    """With those that were predicted before they were compared, which each round adds to."""
    text = (DOCS / "plan.md").read_text(encoding="utf-8")
    compared = [row for row in held_out_trainings() if row.rate or row.memory_bytes]
    published = f"compares the estimate with {len(published_trainings())} published trainings"
    assert f"{published}, and with {len(compared)} that were predicted before they were compared" in text


def test_the_page_leads_with_first_predictions_and_says_which_bars_they_miss() -> None:
    """Of the round that the formulas of today had not seen, in a table, and of the two before in a paragraph.

    What they missed stays missed, until a later round is met. Rows are as they were predicted, those too whose
    description turned out to be of another model.
    """
    page = (DOCS / "estimates.md").read_text(encoding="utf-8")
    assert next(line for line in page.splitlines() if line.startswith("## ")) == "## First predictions: round 11"
    text = " ".join(page.split())
    found = {}
    for number, counts in ((8, (61, 30)), (9, (91, 28)), (10, (107, 64)), (11, (127, 37))):
        rows = [row for row in held_out_trainings() if row.round == number]
        assert len({row.source for row in rows}) >= 15
        earlier = {row.source for row in held_out_trainings() if row.round < number}
        assert not {row.source for row in rows} & (earlier | {row.source for row in published_trainings()})
        errors = [abs(row.time_error(first=True)) for row in rows if row.rate is not None]
        memory = [abs(error) for row in rows if (error := row.memory_error(first=True)) is not None]
        assert (len(errors), len(memory)) == counts
        found[number] = [
            each
            for some, bound in ((errors, 0.25), (memory, 0.15))
            for each in (statistics.median(some), statistics.fmean(error <= bound for error in some))
        ]
        for kind in KINDS:
            some = [abs(row.time_error(first=True)) for row in rows if row.rate is not None and row.kind == kind]
            is_above = len(some) >= 15 and statistics.median(some) > 0.25
            assert is_above == ((number, kind) == (11, "adapters")), kind
    said = {
        number: f"{time:.1%} and {within:.0%} for time and {memory_error:.1%} and {memory_within:.0%} for memory"
        for number, (time, within, memory_error, memory_within) in found.items()
    }
    assert f"Round 8, by those before these, missed every bar but that of kinds: {said[8]}" in text
    assert f"Round 9, by the formulas before, met the bars of time's median and kinds: {said[9]}" in text
    assert found[8][0] > 0.15 >= found[9][0]
    for number in (8, 9):
        assert found[number][1] < 0.75
        assert found[number][2] > 0.1
        assert found[number][3] < 0.7
    time, within, memory_error, memory_within = found[10]
    assert time > 0.15
    assert within < 0.75
    assert memory_error <= 0.1
    assert memory_within >= 0.7
    eleventh, eleventh_within, eleventh_memory, eleventh_memory_within = found[11]
    assert eleventh <= 0.15
    assert eleventh_within >= 0.75
    assert eleventh_memory <= 0.1
    assert eleventh_memory_within >= 0.7
    assert page.count("**missed** |") == 3
    for line in (
        f"| time | median of at most 15 % | {eleventh:.1%} | met |",
        f"| time | at least 75 % within 25 % | {eleventh_within:.0%} | met |",
        "| time | no kind of 15 rows with a median above 25 % | 27.8% (adapters) | **missed** |",
        f"| memory | median of at most 10 % | {eleventh_memory:.1%} | met |",
        f"| memory | at least 70 % within 15 % | {eleventh_memory_within:.0%} | met |",
        f"| time | median of at most 15 % | {time:.1%} | **missed** |",
        f"| time | at least 75 % within 25 % | {within:.0%} | **missed** |",
        "| time | no kind of 15 rows with a median above 25 % | 22.9% (images) | met |",
        f"| memory | median of at most 10 % | {memory_error:.1%} | met |",
        f"| memory | at least 70 % within 15 % | {memory_within:.0%} | met |",
    ):
        assert line in page.splitlines()


def test_trainings_held_out_are_predicted() -> None:
    """The bars: half within 15 %, three quarters within 25 %, and no kind of 15 rows with a median above 25 %.

    Rounds 1 to 11 meet the first two as they are predicted today, by formulas that have seen them. First predictions of
    rounds 3 to 7 miss both because of our own loop, and those of other people's rows the second by a hair. No
    kind misses the last.
    """
    page = " ".join((DOCS / "estimates.md").read_text(encoding="utf-8").split())
    timed = [row for row in held_out_trainings() if row.rate is not None]
    errors = {kind: [abs(row.time_error(first=False)) for row in timed if row.kind == kind] for kind in KINDS}
    missed = [kind for kind, some in errors.items() if len(some) >= 15 and statistics.median(some) > 0.25]
    assert not missed
    assert "Every kind has a median of at most 25 %" in page
    unseen = [row for row in timed if OWN_ROUND >= row.round >= UNSEEN_ROUND]
    first = [abs(row.time_error(first=True)) for row in unseen]
    assert len(first) >= 90
    published = [abs(row.time_error(first=True)) for row in unseen if row.round != OWN_ROUND]
    late = [abs(row.time_error(first=False)) for row in timed if FIXED_TIME_ROUND > row.round >= UNSEEN_ROUND]
    every = [abs(row.time_error(first=False)) for row in timed if row.round < FIXED_TIME_ROUND]
    assert statistics.median(every) <= 0.1
    assert statistics.fmean(error <= 0.25 for error in every) >= 0.8
    assert statistics.median(late) <= 0.13
    assert statistics.fmean(error <= 0.25 for error in late) >= 0.78
    assert statistics.median(published) <= 0.15
    assert 0.74 <= statistics.fmean(error <= 0.25 for error in published) < 0.75
    assert statistics.median(first) > 0.15
    share = statistics.fmean(error <= 0.25 for error in every)
    assert f"rounds 1 to 11 have {statistics.median(every):.1%} and {share:.1%} and rounds 3" in page
    assert "First predictions of rounds 3 to 11 miss both, 16.1% and 68%" in page
    assert "missed both, 17.2% and 68%: trainings that others published, rounds 3 to 6, have 14.1% and 74%" in page
    own = [row for row in timed if row.round == OWN_ROUND]
    assert statistics.median(abs(row.time_error(first=False)) for row in own) > 0.15
    decoders = [abs(row.time_error(first=False)) for row in own if row.kind == "decoders"]
    assert statistics.median(decoders) <= 0.15
    assert "that both meet the bars proves nothing" in page


def test_the_page_says_which_kinds_miss_the_bars_of_memory() -> None:
    """The bars of first predictions: a median of 10 %, and seven of ten within 15 %."""
    missed = []
    for last in (OWN_ROUND, 8, 9, 10, 11):
        errors: dict[str, list[float]] = {"all": []}
        for row in held_out_trainings():
            error = row.memory_error(first=True) if last >= row.round >= UNSEEN_MEMORY_ROUND else None
            if error is not None:
                errors["all"].append(abs(error))
                errors.setdefault(row.kind, []).append(abs(error))
        missed.append(
            [
                name
                for name, some in errors.items()
                if statistics.median(some) > 0.1 or statistics.fmean(each <= 0.15 for each in some) < 0.7
            ]
        )
    assert missed[0] == ["all", "small micro-batches", "other language models", "adapters"]
    assert missed[3] == ["all", "decoders", "other language models", "images"]
    assert missed[1] == missed[2] == ["all", "small micro-batches", "decoders", "other language models", "images"]
    page = " ".join((DOCS / "estimates.md").read_text(encoding="utf-8").split())
    assert "The bars are a median of 10 % and 70 % within 15 %" in page
    assert "Rounds 6 and 7 just missed them, 10.6% and 66%" in page
    assert "Its encoders, RoBERTa of 2020, do not" in page
    assert "Rounds 10 and 11, by today's formulas, meet both, 6.8% and 81% and 9.1% and 84%. Round 9, by" in page
    assert "Rounds 6 to 11 together have 9.9% and 70%" in page


def test_eight_of_ten_trainings_held_out_are_within_the_interval_of_their_kind() -> None:
    """At least of all of them, and of first predictions of the rounds that count as unseen, of which not many more. Of
    kinds whose rows the formulas of today know better than they were predicted first, the page says so.
    """
    too_wide = {}
    for kind in KINDS:
        rows = [row for row in held_out_trainings() if row.kind == kind and row.rate is not None]
        interval = interval_of(rows[0].training)
        sets = ((rows, False), ([row for row in rows if row.round >= UNSEEN_ROUND], True))
        every, unseen = (
            [interval.time_low <= 1 / (1 + row.time_error(first=first)) <= interval.time_high for row in some]
            for some, first in sets
        )
        assert interval.unseen_rows == len(unseen)
        assert statistics.fmean(every) >= 0.75, kind
        assert not unseen or 0.75 <= statistics.fmean(unseen) <= 0.9, kind
        if statistics.fmean(every) > 0.9:
            too_wide[kind] = f"{statistics.fmean(every):.0%}"
    assert too_wide == {"adapters": "92%"}
    page = " ".join((DOCS / "estimates.md").read_text(encoding="utf-8").split())
    assert "Those of adapters (92%) hold more than nine of ten of their rows today" in page


@pytest.mark.parametrize("is_adapted", [False, True])
def test_mfu_counts_what_a_run_of_the_training_counts(is_adapted: bool) -> None:
    """A run leaves out embeddings and counts norms and biases, which are less than a thousandth of GPT-2."""
    model = find_architecture("gpt2")
    with torch.device("meta"):
        run = AutoModelForCausalLM.from_config(AutoConfig.for_model("gpt2"))
    if is_adapted:
        from peft import LoraConfig, get_peft_model  # seconds, which every process that collects tests would take

        run = get_peft_model(run, LoraConfig(r=8, target_modules="all-linear"))
    of_run = flops_of_transformer(run)
    assert of_run is not None
    adapters = Adapters(8) if is_adapted else None
    training = TrainingShape(model, _machines(1), "ddp", 4, 2, 1024, adapters=adapters)
    found = estimate(training)
    assert found.time is not None
    flops_of_step = 8 * (of_run.per_token * 1024 + of_run.per_pair * 1024**2)
    assert found.mfu == pytest.approx(flops_of_step / found.time.total / 312e12, rel=2e-3)


@pytest.mark.parametrize("model", ["gpt2-xl", "llama-2-7b"])
def test_software_with_more_in_one_kernel_is_faster_and_takes_no_more(model: str) -> None:
    found = [replace(_training(engine="ddp"), architecture=find_architecture(model), stack=each) for each in STACKS]
    eager, sdpa, fused = (_seconds(each) for each in found)
    assert eager > 1.1 * sdpa
    assert sdpa > 1.02 * fused
    memory = [memory_of(each).total for each in found]
    assert memory[0] > memory[1] >= memory[2]


def test_h100_and_h200_differ_by_their_memory_alone_and_newer_software_is_faster() -> None:
    """On A100 software has long been what it is."""
    training = _training()
    h100, h200, a100 = (replace(training, machines=_machines(1, gpu)) for gpu in ("H100-SXM", "H200", "A100-SXM-80GB"))
    assert 0.85 * _seconds(h100) < _seconds(h200) < _seconds(h100)
    years = [_seconds(replace(h100, stack_year=year)) for year in (2020, 2024, 2025, 2026, 2030)]
    assert years[0] == years[1] > years[2] > years[3] == years[4]
    assert _seconds(replace(a100, stack_year=2020)) == _seconds(a100)


@pytest.mark.parametrize("gpu", ["H100-SXM", "H200"])
def test_deterministic_attention_is_slower_on_hopper(gpu: str) -> None:
    """FlashAttention-2 reaches 0.35 of the peak in attention, and so in most of a step with long enough samples; the
    kernels that software chooses otherwise, 0.55."""
    training = _training(engine="ddp", micro_batch_size=1, sequence_length=131072, is_deterministic=True)
    on_gpu, on_a100 = (replace(training, machines=_machines(1, each)) for each in (gpu, "A100-SXM-80GB"))
    free = replace(on_gpu, is_deterministic=False)
    assert 1.45 * _seconds(free) < _seconds(on_gpu) < 0.55 / 0.35 * _seconds(free)
    assert _seconds(replace(free, sequence_length=512)) > 0.95 * _seconds(replace(on_gpu, sequence_length=512))
    assert _seconds(on_a100) == _seconds(replace(on_a100, is_deterministic=False))
    for setting in ({"stack": "eager"}, {"precision": "fp32"}):
        assert _seconds(replace(on_gpu, **setting)) == _seconds(replace(free, **setting))


def test_attention_on_hopper_and_blackwell_is_fast_with_transformer_engine_alone() -> None:
    """Other software has kernels that use little of what is new in these GPUs, on Blackwell the same ones whether they
    have to be deterministic or not."""
    training = _training(engine="ddp", micro_batch_size=1, sequence_length=131072)
    for gpu, times in (("H100-SXM", 1.25), ("B200", 2.5), ("A100-SXM-80GB", 1.0)):
        torch_has = replace(training, machines=_machines(1, gpu), stack="sdpa")
        assert _seconds(torch_has) >= times * _seconds(replace(torch_has, stack="fused"))
    on_b200 = replace(training, machines=_machines(1, "B200"))
    assert _seconds(on_b200) == _seconds(replace(on_b200, is_deterministic=True))


def test_autocast_casts_weights_and_gradients_but_not_those_of_four_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """In bytes a parameter: what two micro-batches take twice, and one of both does not, but for starts of kernels."""
    monkeypatch.setattr(compute, "KERNEL_SECONDS", 0.0)
    monkeypatch.setattr(compute, "HALF_WAVE", 0)
    once = _training(engine="ddp", micro_batch_size=16)
    once = replace(once, machines=replace(once.machines, nodes=1, gpus_per_node=1))
    parameters, rate = once.architecture.parameters, 2039e9 * 0.7

    def casts(**settings: object) -> float:
        times = [estimate(replace(once, micro_batch_size=samples, **settings)).time for samples in (8, 16)]
        half, whole = (time.forward + time.backward for time in times if time is not None)
        return (2 * half - whole) * rate / parameters

    assert casts() == pytest.approx(12)
    assert casts(activation_checkpointing="full") == pytest.approx(18)
    assert casts(adapters=Adapters(8)) == pytest.approx(6)
    assert casts(adapters=Adapters(8), activation_checkpointing="full") == pytest.approx(12)
    assert casts(engine="zero0") == pytest.approx(0, abs=1e-6)
    quantized = Adapters(8, is_quantized=True).quantized_parameters(once.architecture) / parameters
    assert casts(adapters=Adapters(8, is_quantized=True)) == pytest.approx(6 * (1 - quantized) + 2 * 2.5 * quantized)


def test_the_update_reads_the_gradient_once_more_for_its_norm() -> None:
    """AdamW moves 28 bytes a parameter, of many operations three times as much; the norm reads 4. In bf16 half, but for
    DeepSpeed, whose weights are fp32 too."""
    training = _training(engine="ddp")
    training = replace(training, machines=replace(training.machines, nodes=1, gpus_per_node=1))
    cases: list[tuple[dict[str, str], int]] = [
        ({"stack": "sdpa"}, 28 + 4),
        ({"stack": "eager"}, 3 * 28 + 4),
        ({"optimizer": FOREACH}, 3 * 28 + 4),
        ({"precision": "bf16-true"}, 14 + 2),
        ({"precision": "bf16-true", "engine": "zero2"}, 28 + 4),
    ]
    for settings, moved in cases:
        time = estimate(replace(training, **settings)).time
        assert time is not None
        assert time.optimizer == pytest.approx(moved * training.architecture.parameters / (2039e9 * 0.7))


def test_images_whose_channels_come_last_need_no_copies_for_tensor_cores() -> None:
    first = TrainingShape(find_model("resnet"), _machines(1), "ddp", 64, 1, 1, precision="fp16")
    assert _seconds(replace(first, channels_last=True)) < 0.9 * _seconds(first)
    whole = replace(first, precision="fp32")
    assert _seconds(replace(whole, channels_last=True)) == _seconds(whole)


@pytest.mark.parametrize("gpu", ["A100-SXM-80GB", "V100-SXM-32GB"])
def test_an_eager_gpt_2_of_transformers_takes_longer_than_one_with_fused_operations(gpu: str) -> None:
    shape = find_architecture("gpt2-xl")
    settings = {"micro_batch_size": 4, "accumulation_steps": 1, "sequence_length": 1024, "precision": "fp16"}
    eager = TrainingShape(shape, _machines(1, gpu), engine="zero2", **settings)
    fused = replace(eager, architecture=replace(shape, family="megatron"))
    assert _seconds(fused) < _seconds(eager) < _seconds(replace(eager, engine="ddp"))
    compiled = [_seconds(replace(each, compiled=True)) for each in (fused, eager)]
    assert compiled[0] == compiled[1] < _seconds(eager)


def test_a_ring_sends_all_but_one_share_over_the_slowest_link() -> None:
    size, machines = 1e9, _machines(1)
    expected = BASE_LATENCY + 7 * LINK_LATENCY + 7 / 8 * size / (300e9 * 0.8)
    assert ring_seconds(size, machines) == pytest.approx(expected)


@pytest.mark.parametrize(("gpus", "rate"), [(2, 50), (4, 100), (8, 150)])
def test_gpus_without_a_switch_share_some_of_their_links(gpus: int, rate: int) -> None:
    """A V100 has six links of 25 GB/s: two of them to one other GPU, four to three others."""
    assert machines_of_gpu(find_gpu("V100-SXM-32GB"), 1, gpus).link_gbyte_per_second == rate
    assert machines_of_gpu(find_gpu("A100-SXM-40GB"), 1, gpus).link_gbyte_per_second == 300


@pytest.mark.parametrize("gpus", [2, 4, 8, 64])
def test_several_gpus_wait_for_the_slowest_of_them(gpus: int) -> None:
    """Which of more GPUs is slower: as Blom's quantile of times that differ by 7 %."""
    one, more = (
        replace(_training(engine="ddp"), machines=machines_of_gpu(find_gpu("A100"), max(1, each // 8), min(each, 8)))
        for each in (1, gpus)
    )
    times = [estimate(each).time for each in (one, more)]
    assert times[0] is not None
    assert times[1] is not None
    above = statistics.NormalDist().inv_cdf((gpus - 0.375) / (gpus + 0.25))
    assert times[1].forward == pytest.approx((1 + 0.07 * above) * times[0].forward, rel=1e-4)


def test_a_t4_is_slowed_by_its_limit_in_fp32() -> None:
    vit = TrainingShape(find_model("vit"), _machines(1, "V100-SXM-16GB"), "ddp", 64, 1, 1, precision="fp32")
    of_peaks = 15.7 / 8.1
    assert _seconds(replace(vit, machines=_machines(1, "T4"))) / _seconds(vit) > 1.3 * of_peaks


def _forward_of(product: Product, precision: str = "fp32") -> float:
    """Return the seconds of a forward pass of nothing but one product."""
    model = ImageModel("one product", (ModelBlock(products=[product]),), ModelBlock())
    training = TrainingShape(model, _machines(1, "V100-SXM-16GB"), "ddp", 8, 1, 1, precision)
    return compute_of(training, efficiency_curves()["Volta"]).forward


def test_convolutions_of_3_by_3_multiply_less_in_fp32_and_write_as_much() -> None:
    of_1, of_3 = (Product(1e12, 10**6, is_3_by_3=is_3_by_3) for is_3_by_3 in (False, True))
    assert _forward_of(of_3) / _forward_of(of_1) == pytest.approx(0.7, abs=0.01)
    assert _forward_of(of_3, "fp16") == _forward_of(of_1, "fp16")
    writing, of_few = (replace(of_3, inner=inner) for inner in (1, 2))
    assert _forward_of(writing) == pytest.approx(2 * _forward_of(of_few), rel=0.05)
    assert _forward_of(writing) == pytest.approx(_forward_of(replace(of_1, inner=1)), rel=0.05)


def test_depthwise_convolutions_reach_a_tenth_of_other_products_in_fp32() -> None:
    of_all, depthwise = (Product(1e12, 9, is_depthwise=is_depthwise) for is_depthwise in (False, True))
    assert _forward_of(depthwise) / _forward_of(of_all) == pytest.approx(10)


def test_python_takes_no_longer_to_start_operations_on_more_gpus() -> None:
    """A row of 64 tokens, whose pace Python sets, on one GPU and on eight."""
    one, eight = (
        TrainingShape(find_architecture("gpt2"), machines_of_gpu(find_gpu("A100"), 1, gpus), "ddp", 1, 1, 64)
        for gpus in (1, 8)
    )
    curve = efficiency_curves()["Ampere"]
    assert compute_of(one, curve).backward == compute_of(eight, curve).backward


def test_compiled_attention_reads_scores_once_whatever_the_family() -> None:
    """Without flash attention, on V100: in 16 bits, read once and written once between both products."""
    eager = TrainingShape(find_architecture("gpt2"), _machines(1, "V100-SXM-16GB"), "ddp", 8, 1, 1024, "fp16")
    compiled, fused = (
        replace(eager, compiled=True, architecture=replace(find_architecture("gpt2"), family=family))
        for family in ("gpt2", "megatron")
    )
    assert layer_traffic_bytes(compiled) == layer_traffic_bytes(fused)
    assert layer_traffic_bytes(eager) > 4 * layer_traffic_bytes(compiled)


def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather() -> None:
    assert all_reduce_seconds(1e9, _machines(4)) == 2 * gather_seconds(1e9, _machines(4))


def test_a_hierarchy_wins_where_there_are_many_machines_and_little_to_send() -> None:
    many = _machines(256)
    assert hierarchical_seconds(1e6, many) < ring_seconds(1e6, many)


def test_replicas_within_machines_gather_nothing_over_the_network() -> None:
    """Over a slow network, with several micro-batches per step, that saves time; each GPU's share of the state is as of
    one machine alone."""
    many = Machines(find_gpu("A100-SXM-80GB"), 8, 8, 10.0, has_rdma=False)
    sharded = replace(_training(accumulation_steps=8), machines=many)
    replicas = replace(sharded, shard_size=8)
    assert _seconds(replicas) < 0.7 * _seconds(sharded)
    alone = replace(sharded, machines=replace(many, nodes=1))
    states = [sum(model_states(each)) for each in (replicas, alone, sharded)]
    assert states[0] == states[1] == 8 * states[2]
    assert memory_of(replace(replicas, has_moving_average=True)).total > memory_of(replicas).total
    assert _seconds(replace(sharded, shard_size=64)) == _seconds(sharded)


def test_replicas_wait_for_a_ring_where_they_are_few_and_for_a_tree_where_they_are_many() -> None:
    """Each machine is a replica, so each of its eight GPUs has an eighth of a network of 200 GB/s."""
    sent = 2 * 1e6 / (25e9 * 0.8)
    few, many = (between_replicas_seconds(1e6, _machines(1), _machines(nodes)) for nodes in (2, 1024))
    assert few == pytest.approx(BASE_LATENCY + NETWORK_LATENCY + sent / 2)
    assert many == pytest.approx(BASE_LATENCY + 2 * 10 * NETWORK_LATENCY + sent)


def test_gradients_in_16_bits_are_exchanged_twice_as_fast() -> None:
    for engine in ("ddp", "fsdp"):
        wide, narrow = (
            estimate(_training(engine=engine, reshard_after_forward=False, precision=precision)).time
            for precision in ("bf16", "bf16-true")
        )
        assert wide is not None
        assert narrow is not None
        assert narrow.communication < 0.8 * wide.communication


def test_small_products_and_short_steps_reach_less_than_large_ones() -> None:
    """A product's last round of tiles, the start of each kernel, and what Python does between steps count for less."""
    rates = []
    for samples in (1, 4, 16, 64):
        training = _training(engine="ddp", sequence_length=512, micro_batch_size=samples)
        rates.append(samples / _seconds(training))
    assert rates[0] < 0.6 * rates[1]
    assert rates[1] < 0.9 * rates[2]
    assert 0.8 < rates[2] / rates[3] < 1
    between = [estimate(replace(_training(), **settings)).time for settings in ({}, {"compiled": True})]
    assert [time.between_steps for time in between if time is not None] == pytest.approx([0.025, 0.0025])


def test_layers_that_are_computed_again_are_started_again() -> None:
    """By Python, which sets the pace of one short sample."""
    short = replace(
        _training(engine="ddp", micro_batch_size=1, sequence_length=16), architecture=find_architecture("gpt2")
    )
    once, again = (estimate(replace(short, activation_checkpointing=mode)).time for mode in ("none", "full"))
    assert once is not None
    assert again is not None
    assert again.backward == pytest.approx(1.5 * once.backward)


def test_one_gpu_exchanges_nothing() -> None:
    alone = machines_of_gpu(find_gpu("H100-SXM"), 1, 1)
    assert gather_seconds(1e9, alone) == 0
    assert all_reduce_seconds(1e9, alone) == 0


def test_recomputing_takes_longer_and_compiling_less() -> None:
    plain = _training()
    assert _seconds(replace(plain, activation_checkpointing="selective")) > _seconds(plain)
    full, selective = (replace(plain, activation_checkpointing=mode) for mode in ("full", "selective"))
    assert _seconds(full) > _seconds(selective)
    assert _seconds(replace(plain, compiled=True)) < _seconds(plain)


def test_accumulating_four_micro_batches_takes_almost_four_times_as_long() -> None:
    once, four_times = _seconds(_training()), _seconds(_training(accumulation_steps=4))
    assert 3.5 * once < four_times < 4 * once


def test_efficiency_falls_as_nodes_are_added() -> None:
    shares = [share for _, share in scaling_curve(_training())]
    assert [nodes for nodes, _ in scaling_curve(_training())][-1] == 1024
    assert shares[0] == 1.0
    assert shares[-1] < shares[1] < 1.0


def test_without_infiniband_a_second_machine_mostly_waits() -> None:
    training = replace(_training(), machines=machines_of_gpu(find_gpu("A100-PCIe-80GB"), 1))
    one, two = estimate(training), estimate(on_nodes(training, 2))
    assert one.tokens_per_second_per_gpu is not None
    assert two.tokens_per_second_per_gpu is not None
    assert two.tokens_per_second_per_gpu < one.tokens_per_second_per_gpu


@pytest.mark.parametrize("gpu", ["RTX 4090", "NVIDIA L40S", "A10G", "GH200", "B200", "AMD Instinct MI250X", "MI325X"])
def test_a_gpu_that_azure_does_not_have_is_estimated(gpu: str) -> None:
    found = estimate(replace(_training(), machines=machines_of_gpu(find_gpu(gpu), 1)))
    assert found.time is not None
    assert found.training.machines.sku is None


def test_several_nodes_need_a_network_that_is_known() -> None:
    alone = machines_of_gpu(find_gpu("RTX 4090"), 1)
    assert scaling_curve(replace(_training(), machines=alone)) == []
    with pytest.raises(UsageError, match="RTX-4090 is not known; give it with --network-gbit"):
        machines_of_gpu(find_gpu("RTX 4090"), 2)
    assert scaling_curve(replace(_training(), machines=machines_of_gpu(find_gpu("RTX 4090"), 2, 4, 25.0)))


def test_the_network_of_a_node_can_be_told() -> None:
    usual, slow = (machines_of_gpu(find_gpu("A100"), 4, 8, gbit) for gbit in (None, 100.0))
    assert slow.network_gbyte_per_second == 12.5
    assert machines_of_gpu(find_gpu("H100-SXM"), 2, network_gbit_per_second=1).network_gbyte_per_second == 0.125
    assert _seconds(replace(_training(), machines=slow)) > _seconds(replace(_training(), machines=usual))


def test_time_rests_on_another_generation_where_no_training_was_published() -> None:
    """T4 has a share of its own, which was measured."""
    on_p100, on_t4, on_v100 = (
        estimate(replace(_training(), machines=_machines(1, name), precision="fp16")) for name in ("P100", "T4", "V100")
    )
    assert on_p100.time_reason == (
        "no published training on Pascal GPUs to take their efficiency from; taken from Volta"
    )
    assert on_t4.time_reason == on_v100.time_reason == ""
    assert on_v100.time is not None
    for slower in (on_p100.time, on_t4.time):
        assert slower is not None
        assert slower.total > on_v100.time.total


def test_published_trainings_are_predicted() -> None:
    """The bars: at least 100 rows of 8 sources, half within 15 %, four fifths within 25 %; the same of unseen rows."""
    rows = [row for row in timed_trainings() if not row.is_held_out]
    unseen = [row for row in rows if not row.is_fitted]
    assert len(unseen) >= 100
    assert len({row.source for row in unseen}) >= 8
    for some, share in ((rows, 0.93), (unseen, 0.92)):
        assert median_time_error(some) <= 0.09
        assert statistics.fmean(abs(row.time_error()) <= 0.25 for row in some) >= share


def test_published_trainings_that_were_held_out_are_predicted() -> None:
    """Half of them within 15 %; and the bars hold for all rows, these included."""
    held_out = [row for row in timed_trainings() if row.is_held_out]
    assert len(held_out) >= 30
    assert median_time_error(held_out) <= 0.15
    assert statistics.fmean(abs(row.time_error()) <= 0.25 for row in timed_trainings()) >= 0.8


def test_published_memory_is_predicted() -> None:
    errors = [abs(row.memory_error) for row in published_trainings() if row.memory_error is not None]
    assert len(errors) >= 20
    assert statistics.fmean(error <= 0.15 for error in errors) >= 0.75


def test_every_published_row_names_an_address() -> None:
    assert all(row.source.startswith("https://") for row in published_trainings())
