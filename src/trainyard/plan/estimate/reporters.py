"""An estimate as text for a terminal and as JSON of the format trainyard.plan/2."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from trainyard import printing
from trainyard.catalogue.prices import Price
from trainyard.catalogue.skus import retirement_of
from trainyard.plan import markdown
from trainyard.plan.estimate import STACK_YEAR
from trainyard.plan.estimate.estimator import Estimate, main_memory_reason, scaling_curve
from trainyard.plan.estimate.image_models import ImageModel
from trainyard.plan.estimate.intervals import interval_of
from trainyard.plan.estimate.money import WholeTraining
from trainyard.plan.estimate.search import (
    Found,
    memory_by_engine,
    other_trainings_that_fit,
    price_of_samples,
    settings_that_fit,
    slowness,
    why_behind,
)
from trainyard.plan.estimate.training import TrainingShape, engines_that_train
from trainyard.settings.quantities import count, counted, duration, percentage

PLAN_FORMAT = "trainyard.plan/2"

_SAME_IN_JSON = (
    *("engine", "precision", "activation_checkpointing", "micro_batch_size", "accumulation_steps"),
    *("global_batch_size", "loss_chunk_tokens", "stack", "stack_year"),
)
_NO_STEPS = "the number of steps is not known; see the prices an hour and a billion tokens"
_NO_SIZE = "no Azure size is named, so there is no price; use --sku"
_NO_SPOT = "the catalogue has no spot price of this size"


def as_text(found: Estimate, samples: float | None = None) -> str:
    """Return an estimate on one screen; with a whole training of so many rows or images where they are known."""
    training = found.training
    facts = [
        ("model", model_text(training)),
        ("machines", machines_text(training)),
        ("settings", settings_text(training)),
        ("batch", _batch_text(training)),
        *estimate_facts(found),
        *_whole_training_facts(found, samples),
    ]
    possible = engines_that_train(training.adapters)
    if training.engine not in possible:
        note = f"other software can, but Trainyard trains these adapters with {' or '.join(possible)} only"
        facts.insert(0, ("note", note))
    if training.machines.sku and (retirement := retirement_of(training.machines.sku)):
        facts.insert(0, ("note", retirement))
    return "\n".join(printing.facts(facts, 12, indent=0))


def estimate_facts(found: Estimate) -> list[tuple[str, str]]:
    """Return memory, time, scaling and money of an estimate, as labels and lines."""
    facts = [*_memory_facts(found), *_time_facts(found)]
    if curve := scaling_curve(found.training):
        shown = [f"{nodes}: {percentage(share)}" for nodes, share in curve[::2]]
        facts.append(("scaling", f"per GPU, by nodes: {', '.join(shown)}"))
    elif not found.training.machines.network_gbyte_per_second:
        gpu = found.training.machines.gpu.name
        facts.append(("scaling", f"not known: no usual network of {gpu}; give it with --network-gbit"))
    return [*facts, *_money_facts(found)]


def model_text(training: TrainingShape) -> str:
    """Return the model's name and size, and how much of it is trained."""
    model = training.architecture
    text = f"{model.name}, {count(model.parameters)} parameters"
    if training.adapters is not None:
        text += f" and {count(training.trained_parameters)} in adapters, which are trained"
    return f"{text}; {model.assumed}" if isinstance(model, ImageModel) and model.assumed else text


def machines_text(training: TrainingShape) -> str:
    """Return `2 × Standard_ND96isr_H100_v5, 16 × H100-SXM`, with a word where images for x86 do not run."""
    machines = training.machines
    nodes = f"{machines.nodes} × {machines.sku.name}" if machines.sku else counted(machines.nodes, "node")
    arm = " (ARM)" if machines.sku is not None and machines.sku.cpu_architecture == "arm64" else ""
    return f"{nodes}{arm}, {machines.world_size} × {machines.gpu.name}"


def settings_text(training: TrainingShape) -> str:
    """Return the settings that memory and time depend on, in a line."""
    adapters = training.adapters
    parts = {
        training.engine: True,
        training.precision: True,
        f"checkpointing {training.activation_checkpointing}": True,
        "compiled": training.compiled,
        "not deterministic": not training.is_deterministic,
        f"{training.stack} software": training.stack != "sdpa",
        f"of {training.stack_year}": training.stack_year != STACK_YEAR,
        str(adapters): adapters is not None,
        training.optimizer: training.optimizer != "adamw",
        f"replicas of {training.shard_size} GPUs": training.shards_within_replicas,
        "moving average of the weights": training.has_moving_average,
        f"loss by {count(training.loss_chunk_tokens)} tokens": training.loss_chunk_tokens > 0,
        "activations in main memory": training.offload_activations,
        "offloaded to main memory": training.offload_optimizer,
    }
    return ", ".join(part for part, applies in parts.items() if applies)


def _batch_text(training: TrainingShape) -> str:
    samples = (
        f"{training.micro_batch_size} micro × {training.accumulation_steps} accumulation × "
        f"{counted(training.machines.world_size, 'GPU')} = {counted(training.global_batch_size, 'sample')}"
    )
    if training.is_of_images:
        return samples
    tokens = count(training.global_batch_size * training.sequence_length)
    return f"{samples} × {count(training.sequence_length)} = {tokens} tokens"


def rate_text(found: Estimate) -> str:
    """Return what all GPUs do in a second, in tokens or images; 0 where the time is not known."""
    return count(_rate(found))


def _rate(found: Estimate) -> float:
    return (found.samples_per_second if found.training.is_of_images else found.tokens_per_second) or 0.0


def price_text(found: Estimate) -> str:
    """Return the price of a billion tokens, or of a million images; `-` where it is not known."""
    of_images, of_tokens = found.usd_per_billion_samples, found.usd_per_billion_tokens
    price = of_images / 1000 if found.training.is_of_images and of_images is not None else of_tokens
    return "-" if price is None else f"{price:,.2f}"


def units_of(training: TrainingShape) -> tuple[str, str]:
    """Return what a rate and a price are of."""
    if isinstance(model := training.architecture, ImageModel):
        return model.samples, f"million {model.samples}"
    return "tokens", "billion tokens"


def search_as(output_format: str, found: Found, samples: float | None = None) -> str:
    """Return the fastest and the cheapest settings, each with how far it is behind the one before.

    As two tables of text, or as JSON: two lists of jobs as in a plan.
    """
    ranked = {}
    for (name, some), order in zip(vars(found).items(), (slowness, price_of_samples), strict=True):
        behind = ["", *(why_behind(each, ahead, order) for ahead, each in pairwise(some))]
        ranked[name] = list(zip(some, behind, strict=False))
    if output_format == "json":
        jobs = {
            name: [{**job_as_json(each, samples), "behind": behind or None} for each, behind in some]
            for name, some in ranked.items()
        }
        return printing.json_text({"format": PLAN_FORMAT, **jobs})
    if not found.fastest:
        return "nothing fits: use more nodes, or a shorter --sequence-length"
    blocks = []
    for title, some in ranked.items():
        table = table_of([each for each, _ in some], samples)
        rows = zip(table, ["compared with the row above", *(behind for _, behind in some)], strict=False)
        blocks.append("\n".join([title, *printing.table([[*row, behind] for row, behind in rows], indent=2)]))
    return "\n\n".join(blocks)


def what_if_as(output_format: str, found: Sequence[Estimate], samples: float | None) -> str:
    """Return machines and engines, with how long a training of so many rows or images takes on each.

    As a table of text or Markdown, or as JSON: a list of jobs as in a plan.
    """
    if output_format == "json":
        return printing.json_text({"format": PLAN_FORMAT, "what_if": [job_as_json(each, samples) for each in found]})
    header, *rows = table_of(found, samples)
    return "\n".join(markdown.table(header, rows) if output_format == "markdown" else printing.table([header, *rows]))


def cells_of(found: Estimate) -> dict[str, str]:
    """Return what a row of a table may say of an estimate, by the header of its column."""
    unit, many = units_of(found.training)
    price = found.money.on_demand
    return {
        "machines": machines_text(found.training),
        "settings": settings_text(found.training),
        "micro-batch": str(found.training.micro_batch_size),
        "a GPU": gigabytes(found.memory.total),
        "a step": duration(found.time.total) if found.time else "not known",
        f"{unit}/s": rate_text(found) if found.time else "-",
        "MFU": percentage(found.mfu),
        "$/h": f"{price.usd_per_hour:,.2f}" if price else "-",
        "price of": price.seen if price else "-",
        f"$/{many}": price_text(found),
    }


def table_of(found: Sequence[Estimate], samples: float | None) -> list[list[str]]:
    """Return a header and a row for each estimate; with a whole training's time and price where its length is known."""
    header, rows = ["machines"], []
    for each in found:
        cells = {name: text for name, text in cells_of(each).items() if name not in ("a step", "price of")}
        if samples is not None and (whole := each.whole_training(samples)):
            cells |= {"takes": duration(whole.seconds), "$": _usd(whole.on_demand_usd)}
            cells |= {"spot takes": duration(whole.spot_seconds), "spot $": _usd(whole.spot_usd)}
        header = list(cells)
        rows.append(list(cells.values()))
    return [header, *rows]


def _usd(usd: float | None) -> str:
    return "–" if usd is None else f"{usd:,.0f}"


def as_json(found: Estimate, samples: float | None = None) -> str:
    """Return an estimate as the plan of one job called `train`."""
    return printing.json_text({"format": PLAN_FORMAT, "jobs": {"train": job_as_json(found, samples)}})


def job_as_json(found: Estimate, samples: float | None = None) -> dict[str, Any]:
    """Return one job of a plan as JSON: bytes, seconds and US dollars; null with a `reason` for what is unknown."""
    training = found.training
    machines = training.machines
    whole, time = found.whole_training(samples) if samples is not None else None, time_as_json(found)
    if whole is not None:
        time |= {"steps": whole.steps, "training_seconds": whole.seconds, "spot_training_seconds": whole.spot_seconds}
    return {
        "model": training.architecture.name,
        "parameters": training.architecture.parameters,
        "trained_parameters": training.trained_parameters,
        "sku": machines.sku.name if machines.sku else None,
        "gpu": machines.gpu.name,
        "nodes": machines.nodes,
        "processes_per_node": machines.gpus_per_node,
        **{name: getattr(training, name) for name in _SAME_IN_JSON},
        "compile": training.compiled,
        "sequence_length": None if training.is_of_images else training.sequence_length,
        "memory": memory_as_json(found),
        "time": time,
        "money": _money_as_json(found, whole),
    }


def memory_as_json(found: Estimate | None, reason: str = "") -> dict[str, Any]:
    """Return the memory of a GPU; nulls and a reason where nothing is estimated."""
    if found is None:
        names = ("total_bytes_per_gpu", "parts", "available_bytes_per_gpu", "fits", "verdict")
        return {**dict.fromkeys(names), "reason": reason}
    low, high = interval_of(found.training).memory(found.memory.reserved)
    document = {
        "total_bytes_per_gpu": round(found.memory.total),
        "reserved_bytes_per_gpu": round(found.memory.reserved),
        "total_bytes_per_gpu_p10": low,
        "total_bytes_per_gpu_p90": high,
        "parts": {name: round(size) for name, size in found.memory.parts().items()},
        "available_bytes_per_gpu": round(found.available_bytes),
        "fits": found.fits,
        "verdict": found.verdict,
    }
    return with_reasons(document, main_memory_reason(found.training))


def time_as_json(found: Estimate | None, reason: str = "") -> dict[str, Any]:
    """Return the time of a step; nulls and a reason where it is not known."""
    if found is None or found.time is None:
        names = ("step_seconds", "tokens_per_second_per_gpu", "samples_per_second_per_gpu", "parts", "scaling")
        return {**dict.fromkeys(names), "reason": found.time_reason if found else reason}
    time = found.time
    low, high = interval_of(found.training).time(time.total)
    document: dict[str, Any] = {
        "step_seconds": time.total,
        "step_seconds_p10": low,
        "step_seconds_p90": high,
        "tokens_per_second_per_gpu": found.tokens_per_second_per_gpu,
        "samples_per_second_per_gpu": found.samples_per_second_per_gpu,
        "mfu": found.mfu,
        "parts": time.parts(),
        "communication_seconds": time.communication,
        "scaling": {str(nodes): share for nodes, share in scaling_curve(found.training)},
    }
    if found.time_reason:
        document["remark"] = found.time_reason
    return document


def _money_as_json(found: Estimate, whole: WholeTraining | None) -> dict[str, Any]:
    on_demand, spot = found.money.on_demand, found.money.spot
    has_price = on_demand is not None or spot is not None
    reasons = {
        _NO_SIZE: found.training.machines.sku is None,
        _NO_STEPS: has_price and whole is None,
        _NO_SPOT: has_price and spot is None,
    }
    fields = money_fields(on_demand, spot, found)
    if whole is not None:
        fields |= {"on_demand_usd": whole.on_demand_usd, "spot_usd": whole.spot_usd}
    return with_reasons(fields, *(reason for reason in reasons if reasons[reason]))


def with_reasons(document: dict[str, Any], *reasons: str) -> dict[str, Any]:
    """Return a document with why some of its values are unknown; as it is without reasons."""
    return {**document, "reason": "; ".join(reasons)} if any(reasons) else document


def money_fields(on_demand: Price | None, spot: Price | None, found: Estimate | None) -> dict[str, Any]:
    """Return prices an hour and what they mean for an estimate, as far as each is known."""
    source = on_demand or spot
    preemptions = found.money.preemptions if found else None
    return {
        "on_demand_usd": None,
        "spot_usd": None,
        "region": source.region if source else None,
        "date": source.date or None if source else None,
        "on_demand_usd_per_hour": round(on_demand.usd_per_hour, 6) if on_demand else None,
        "spot_usd_per_hour": round(spot.usd_per_hour, 6) if spot else None,
        "spot_date": spot.date or None if spot else None,
        "usd_per_billion_tokens": found.usd_per_billion_tokens if found else None,
        "spot_lost_share": preemptions.lost_share if preemptions else None,
        "checkpoint_interval_seconds": preemptions.checkpoint_interval_seconds if preemptions else None,
    }


def gigabytes(size: float) -> str:
    """Return bytes as vendors count them: `31.4 GB`, `26.8 MB`, `3.2 kB`."""
    unit, of_unit = next((each for each in (("GB", 1e9), ("MB", 1e6)) if size >= each[1] / 10), ("kB", 1e3))
    return f"{size / of_unit:.1f} {unit}"


_REMARKS = {"fits": "", "may not fit": " (may not fit)", "does not fit": " (too much)"}
"""What follows the memory of an engine, for each verdict."""


def _memory_facts(found: Estimate) -> list[tuple[str, str]]:
    available, reason = found.available_bytes, main_memory_reason(found.training)
    of_gpu = "fits" if reason and found.memory.total <= available else found.verdict
    shown = {name: size for name, size in found.memory.parts().items() if size >= found.memory.total / 200}
    parts = ", ".join(f"{name} {gigabytes(size)}" for name, size in shown.items())
    low, high = interval_of(found.training).memory(found.memory.reserved)
    spread = f" ({gigabytes(low)} to {gigabytes(high)} in 8 of 10 published)" if low and high else ""
    facts = [
        ("memory", f"{gigabytes(found.memory.total)} of {gigabytes(available)} a GPU: {of_gpu}"),
        ("", f"the allocator reserves {gigabytes(found.memory.reserved)}{spread}"),
        ("", parts),
    ]
    if reason:
        facts.append(("main memory", f"{reason}: does not fit"))
    if by_engine := memory_by_engine(found.training):
        texts = (f"{name} {gigabytes(each.total)}{_REMARKS[verdict]}" for name, (each, verdict) in by_engine.items())
        facts.append(("by engine", ", ".join(texts)))
    if found.verdict != "fits":
        fitting = settings_that_fit(found.training) or other_trainings_that_fit(found.training)
        lines = [_alternative(each, found.training) for each in fitting]
        lines = lines or ["nothing on these machines: use more, or larger ones"]
        facts += list(zip(("what fits", *[""] * len(lines)), lines, strict=False))
    if found.verdict == "does not fit":
        facts.append(("note", "it does not fit: time and price are what it would take if it did"))
    return facts


def _alternative(found: Estimate, wanted: TrainingShape) -> str:
    training = found.training
    batch = f"micro-batch {training.micro_batch_size}, accumulation {training.accumulation_steps}"
    if training.sequence_length != wanted.sequence_length:
        batch += f", samples of {count(training.sequence_length)} tokens"
    time = f", {duration(found.time.total)} a step" if found.time else ""
    return f"{settings_text(training)}, {batch}: {gigabytes(found.memory.total)}{time}"


def _time_facts(found: Estimate) -> list[tuple[str, str]]:
    if found.time is None:
        return [("time", f"not known: {found.time_reason}")]
    time = found.time
    unit, _ = units_of(found.training)
    rate = _rate(found) / found.training.machines.world_size
    parts = (
        f"forward {duration(time.forward)}, backward {duration(time.backward)}, optimizer {duration(time.optimizer)}, "
        f"exchange {duration(time.communication)} of which {duration(time.exposed_communication)} is not hidden, "
        f"between steps {duration(time.between_steps)}"
    )
    if time.copies:
        parts += f", copies to and from main memory {duration(time.copies)} beside what is hidden"
    mfu = f", MFU {percentage(found.mfu)}" if found.mfu is not None else ""
    interval = interval_of(found.training)
    low, high = map(duration, interval.time(time.total))
    facts = [("time", f"{duration(time.total)} a step, {count(rate)} {unit} a second and GPU{mfu}")]
    if interval.rows:
        rows = f"{interval.rows} compared, {interval.unseen_rows} of them predicted in advance"
        facts.append(("", f"{low} to {high} a step in 8 of 10 published trainings of {interval.kind} ({rows})"))
    if interval.time_low >= 1:
        facts.append(("", "nearly all of them took longer than predicted: take time and price as lower limits"))
    facts.append(("", parts))
    return [*facts, ("", found.time_reason)] if found.time_reason else facts


def _money_facts(found: Estimate) -> list[tuple[str, str]]:
    money = found.money
    if found.training.machines.sku is None:
        return [("money", f"not known: {_NO_SIZE}")]
    if money.on_demand is None:
        return [("money", "not known: the catalogue has no price of this size")]
    of_work = f", ${price_text(found)} a {units_of(found.training)[1]}" if found.time else ""
    facts = [("money", f"{_price(money.on_demand)} on demand{of_work}")]
    if money.spot is None:
        return [*facts, ("spot", _NO_SPOT)]
    lost, between = money.preemptions.lost_share, money.preemptions.seconds_between
    return [
        *facts,
        (
            "spot",
            f"{_price(money.spot)}, {percentage(lost)} of the time lost to preemptions, one every {duration(between)}",
        ),
        ("", f"best interval between checkpoints: {duration(money.preemptions.checkpoint_interval_seconds)}"),
    ]


def _whole_training_facts(found: Estimate, samples: float | None) -> list[tuple[str, str]]:
    whole = found.whole_training(samples) if samples is not None else None
    if whole is None:
        return []
    texts = [f"{counted(whole.steps, 'step')} in {duration(whole.seconds)}{_dollars(whole.on_demand_usd)}"]
    if whole.spot_seconds is not None:
        texts.append(f"on spot {duration(whole.spot_seconds)} with preemptions{_dollars(whole.spot_usd)}")
    return list(zip(("training", ""), texts, strict=False))


def _dollars(usd: float | None) -> str:
    return f", ${usd:,.2f}" if usd is not None else ""


def _price(price: Price) -> str:
    return f"${price.usd_per_hour:,.2f} an hour ({price.seen})"
