"""Write docs/estimates.md, predicted against published for every row: `python docs/generate_estimates.py [--check]`.

Also the intervals that the command prints: src/trainyard/plan/estimate/intervals.csv, from the rows held out.
"""

from __future__ import annotations

import csv
import statistics
import sys
from pathlib import Path

from published_trainings import (
    Published,
    held_out_trainings,
    median_time_error,
    published_trainings,
    rows_of,
    timed_trainings,
)
from trainyard.plan.estimate.compute import efficiency_curves
from trainyard.plan.estimate.intervals import INTERVALS_FILE, KINDS, Interval, kind_of
from trainyard.plan.estimate.training import TrainingShape, machines_of_gpu

PAGE = Path(__file__).parent / "estimates.md"
# What comparisons with the model of their day said; the model of today cannot repeat them.
_FEWEST = 9
"""Rows that an interval of memory needs."""
EARLIER = Path(__file__).parent / "earlier_estimates.csv"

_INTRODUCTION = """# Predicted against published

Made by `python docs/generate_estimates.py`: do not edit.

What [`trainyard estimate`](plan.md) says of trainings that others published, misses included. The rows are
[`published_trainings.csv`](published_trainings.csv); each has its source. One curve for each GPU
generation is fitted (the share of its peak that a matrix product reaches), to the rows marked *fit*, by
`python benchmarks/efficiency_curves.py`; the rest of the model is formulas and data sheets. An error is
predicted / published - 1: a negative one is too optimistic. The network is that of the machines a GPU is usually in,
unless the row says otherwise.
"""

_UNSEEN = """## Predicted before they were known

The rows of [`held_out_trainings.csv`](held_out_trainings.csv) were described from their sources and predicted before
anything was compared. What was predicted then stays in the table, and nothing is ever fitted to them. *Today* is the
median error of the estimate as it is now, which has seen them.
"""

_UNSEEN_NOTES = """
Images are of RTX 3090 (PyTorch 1.12 with AMP), and ResNet-50 of A100 and V100 in NVIDIA's own container; decoders and
adapters of A100. The other language model is BERT-large on V100 in 2019, eager and with dropout: it took twice as long
as was predicted, and since then its scores are counted as often as each of its operations reads and writes them. With
fewer than 2,048 tokens a micro-batch Python, and not the GPU, sets the pace. The estimate had a round 10 µs for an
operation; now it has what [was measured](../benchmarks/results/launch_overhead.json) by
`python benchmarks/launch_overhead.py` on a GPU that no row is of: 26 µs, and how many operations a layer
has. Neither is fitted to a row. Memory is as these sources report it, with what the allocator keeps beyond its tensors,
which is not counted.

An independent comparison in November 2026 with 135 other published trainings found a median error of 24 %, and 52 %
within 25 %: of decoders with stated checkpointing 12 % and 73 %, of BERT 32 %, of images 31 % (too fast), of LoRA 20 %.
Memory was within 15 % for 38 % of 34 rows, mostly too low.

The interval that `estimate` prints has what eight of ten trainings took, as multiples of what is predicted today. It is
taken from these rows, and from those marked *held out* below, as far as they are of the kind.
"""

_SEEN = """## Trainings that the estimate was made with

The rows marked *fit* set one curve for each GPU generation; most others were seen while formulas were chosen.
"""

_KNOWN_GAPS = """## What the misses have in common

- Micro-batches of few tokens (13B with 512 or 1,024 tokens on A100): less of the exchange is hidden than assumed.
- nanoGPT's 250 and 135 ms are from December 2022, before its attention was fused; GPT-2 large on V100 is transformers
  4.12, most of all with a micro-batch of 1.
- Transformer Engine's fp8 on MI300X was new in October 2024 (GPT-2 XL); AMD's trainings of 2025 are predicted
  within 12 %.
- MI325X has the peaks of MI300X and takes a third more power: it is up to 24 % faster than predicted.
- H200 has a curve of its own beside H100's: the published H200 trainings are of 2025 and 2026, most of H100's of 2023.
- DeepSpeed 0.14 with transformers on A800: a third slower than predicted at every stage, with and without recomputing.
- LoRA and QLoRA of a 3B model with FSDP on two GPUs: a micro-batch of 2 takes longer than its exchange explains.
- ZeRO 1 over all of 512 and 1,024 GPUs with 400 Gbit/s a node (InternLM): collectives over many nodes are slower than
  their links; sharded within a node, the same training is predicted within 18 %.
- Memory: H200's float8 trainings of June 2025 keep less for the loss than torch's cross entropy; DLPerf's is fused.
  PowerLM 3B with FSDP holds 8 bytes a parameter on each of two GPUs, as of weights in fp32; Mistral 7B on one GPU has a
  copy of all parameters while AdamW steps, which is not fused there.
- A small trainer for transformers' models (the 8B and 3.8B models on one GPU) takes up to twice as long as predicted.
- DeepSpeed 0.3 over several machines with V100: gradients are exchanged more slowly than their links allow.
- transformers of 2022 (GPT-2 XL on A100): attention in many operations, though the GPU could do it in one.
- TinyLlama has fused norms and rotary positions without torch.compile: predicted too slow.
- torchtitan of March 2024 keeps more, and PyTorch has reserved more, than is counted; torchtune too.
- Of models beyond 70B only trainings with tensor parallelism were found, which is not estimated.
"""

_LEFT_OUT = """## What was left out, and what was seen before

Six published rows are not in the table, because their source does not say what the estimate has to know: which layers
have adapters (NeMo's LoRA), or whether layers are recomputed (torchtune). With a guess, their time was off by +74 %,
+72 %, +143 %, +47 %, +19 % and -4 %. Five of Llama 3 8B on MI300X and H200 (ROCm/TransformerEngine, issue 79) do not
say how long a sample is.

The memory of eight rows (Llama 2 7B, DLRover) is left out: 32 to 42 GB, where 12 to 27 GB are predicted. Their FSDP
has no policy for mixed precision, so under autocast it gathers weights in fp32, and what goes from layer to layer is
fp32 too; the estimate's FSDP gathers and computes in 16 bits.
"""

_HELD_OUT = """\
The rows marked *held out* were found later, in sources that the table did not have, and compared before anything was
changed. Eager models with RMSNorm were then found to be predicted too fast throughout: RMSNorm and rotary positions
are not one kernel each in transformers, as had been assumed, and are now counted operation by operation.
"""

_FRESH = """\
Another 23 rows were found on 23 November 2026 (AMD's trainings on MI300X and MI325X, DLRover's on A100, one of
Megatron-Bridge), predicted before anything was changed, and marked *held out* too. Trainings in fp8 were predicted
too slow among them: the layers of Transformer Engine have one kernel for RMSNorm, and one for rotary positions, which
is now counted so. The last column has the eight rows whose memory is left out.
"""

_SEEN_TOGETHER = """\
GPT-2's GELU is eight operations in transformers, not one kernel, and so was its attention in the time of V100. Its
memory had been counted so, but its time only since 23 November 2026 (Megatron-LM and OneFlow, which fuse both, are a
family of their own). The median error on Volta fell from 21.0 % to 17.8 %, with the same curve; all of these rows had
been seen, so they do not prove this change.
"""

_ADDED = """\
Not used in the fit does not mean not seen. Of the 64 rows that were added on 22 November 2026 some had been compared
before the memory model and the overhead of adapters were changed, so they do not prove these changes:
"""


def page() -> str:
    """Return the text of docs/estimates.md."""
    rows = published_trainings()
    with_memory = [row for row in rows if row.memory_error is not None]
    header = "| | rows | median error of a step's time | within 25 % |"
    lines = [_INTRODUCTION, _UNSEEN, *_unseen(), _UNSEEN_NOTES, _SEEN, header, "|---|--:|--:|--:|"]
    timed = timed_trainings()
    lines.append(_summary("all that say how fast", timed))
    lines.append(_summary("not used in the fit", [row for row in timed if not row.is_fitted]))
    lines.append(_summary("held out", [row for row in timed if row.is_held_out]))
    lines += [_summary(name, rows_of(name)) for name in efficiency_curves()]
    within = sum(abs(row.memory_error or 0) <= 0.15 for row in with_memory) / len(with_memory)
    sources = len({row.source for row in rows})
    lines += [
        "",
        f"{len(rows)} rows from {sources} documents. {len(with_memory)} state memory: {within:.0%} are within 15 %.",
        "",
        "| GPU generation | highest share of peak | half at | from |",
        "|---|--:|--:|---|",
    ]
    for curve in efficiency_curves().values():
        lines.append(f"| {curve.generation} | {curve.highest:g} | {curve.half_at:g} | {curve.source} |")
    lines += ["", _KNOWN_GAPS, _LEFT_OUT]
    lines += [
        _HELD_OUT,
        *_earlier("held out"),
        "",
        _FRESH,
        *_earlier("fresh"),
        "",
        _SEEN_TOGETHER,
        _ADDED,
        *_earlier("added"),
        "",
        "## Every row",
        "",
    ]
    for number, source in enumerate(dict.fromkeys(row.source for row in rows), start=1):
        table = _table([row for row in rows if row.source == source])
        lines += [f"### {number}. {_title(source)}", "", f"<{source}>", "", *table, ""]
    return "\n".join(lines).rstrip() + "\n"


def _unseen() -> list[str]:
    lines = [
        "| trainings | rows | median error of a step's time | within 25 % | today | memory: rows | within 15 % "
        "| interval |",
        "|---|--:|--:|--:|--:|--:|--:|---|",
    ]
    for interval in _intervals():
        rows = [row for row in held_out_trainings() if row.kind == interval.kind]
        first, today = ([abs(row.time_error(first=which)) for row in rows] for which in (True, False))
        memory = [abs(error) for row in rows if (error := row.memory_error(first=True)) is not None]
        cells = (
            interval.kind,
            str(len(rows)),
            f"{statistics.median(first):.1%}",
            f"{statistics.fmean(error <= 0.25 for error in first):.0%}",
            f"{statistics.median(today):.1%}",
            str(len(memory)) if memory else "",
            f"{statistics.fmean(error <= 0.15 for error in memory):.0%}" if memory else "",
            f"{interval.time_low:.2f} to {interval.time_high:.2f} × of {interval.rows} rows",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _intervals() -> list[Interval]:
    """Return what lies between the tenth and the ninetieth of a hundred rows, by kind."""
    found = []
    for kind in KINDS:
        first = [row for row in held_out_trainings() if row.kind == kind]
        seen = [row for row in published_trainings() if row.is_held_out and kind_of(row.training) == kind]
        times = [row.time_error(first=False) for row in first]
        times += [row.time_error() for row in seen if row.tokens_per_second_per_gpu is not None]
        memory = [row.memory_error(first=False) for row in first] + [row.memory_error for row in seen]
        known = [error for error in memory if error is not None]
        low, high = _tenth_and_ninetieth(times)
        of_memory = _tenth_and_ninetieth(known) if len(known) >= _FEWEST else (None, None)
        found.append(Interval(kind, len(times), low, high, len(known), *of_memory))
    return found


def _tenth_and_ninetieth(errors: list[float]) -> tuple[float, float]:
    """Return what trainings took, as multiples of what was predicted."""
    tenths = statistics.quantiles([1 / (1 + error) for error in errors], n=10, method="inclusive")
    return round(tenths[0], 3), round(tenths[-1], 3)


def intervals_csv() -> str:
    """Return the text of the table of intervals."""
    names = list(Interval.__dataclass_fields__)
    rows = ([("" if value is None else value) for value in vars(each).values()] for each in _intervals())
    return "".join(f"{','.join(map(str, row))}\n" for row in (names, *rows))


def _earlier(about: str) -> list[str]:
    with EARLIER.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["about"] == about]
    heading = about if about == "held out" else ""
    lines = [
        f"| {heading} | rows | median error of a step's time | within 25 % | memory within 15 % |",
        "|---|--:|--:|--:|--:|",
    ]
    for row in rows:
        time_error, times, memory = (
            float(row[name]) for name in ("median_time_error", "times_within_25_percent", "memory_within_15_percent")
        )
        of_memory = f"{memory:.0%} of {row['rows_with_memory']}"
        lines.append(f"| {row['compared']} | {row['rows']} | {time_error:.1%} | {times:.0%} | {of_memory} |")
    return lines


def _model(training: TrainingShape) -> str:
    adapters = training.adapters
    if adapters is None:
        return training.architecture.name
    return f"{training.architecture.name}, {'QLoRA' if adapters.is_quantized else 'LoRA'} {adapters.rank}"


def _network(row: Published) -> str:
    """Return the network of a node, where it is not the usual one."""
    machines = row.training.machines
    usual = machines_of_gpu(machines.gpu, machines.nodes, machines.gpus_per_node).network_gbyte_per_second
    given = machines.network_gbyte_per_second
    return f"{given * 8:g} Gbit/s a node" if given != usual else ""


def _time(row: Published) -> tuple[str, str, str]:
    """Return the published rate, the predicted one, and how far a step's time is off; empty where none is known."""
    if row.tokens_per_second_per_gpu is None:
        return ("", "", "")
    return (f"{row.tokens_per_second_per_gpu:,.0f}", f"{row.predicted_rate():,.0f}", f"{row.time_error():+.0%}")


def _use(row: Published) -> str:
    return "fit" if row.is_fitted else "held out" if row.is_held_out else ""


def _summary(name: str, rows: list[Published]) -> str:
    within = statistics.fmean(abs(row.time_error()) <= 0.25 for row in rows)
    return f"| {name} | {len(rows)} | {median_time_error(rows):.1%} | {within:.0%} |"


def _title(source: str) -> str:
    parts = source.split("/")
    if "gist.github.com" in source:
        return f"{parts[3]} (gist)"
    return "/".join(parts[3:5]) if "github.com" in source else parts[2]


def _table(rows: list[Published]) -> list[str]:
    lines = [
        "| model | GPUs | engine | micro × accumulation × length | precision | checkpointing | compiled | tokens/s/GPU "
        "| predicted | error | GB | predicted | error | |",
        "|---|---|---|---|---|---|---|--:|--:|--:|--:|--:|--:|---|",
    ]
    for row in rows:
        training, machines = row.training, row.training.machines
        gpus = f"{machines.nodes} × {machines.gpus_per_node} {machines.gpu.name}"
        memory = ("", "", "")
        if row.memory_bytes is not None and row.memory_error is not None:
            memory = (
                f"{row.memory_bytes / 1e9:.1f}",
                f"{row.predicted_memory_bytes / 1e9:.1f}",
                f"{row.memory_error:+.0%}",
            )
        cells = (
            _model(training),
            gpus,
            training.engine,
            f"{training.micro_batch_size} × {training.accumulation_steps} × {training.sequence_length}",
            training.precision,
            training.activation_checkpointing,
            "yes" if training.compiled else "",
            *_time(row),
            *memory,
            "; ".join(filter(None, (_use(row), _network(row), row.note))),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    for file, text in ((PAGE, page()), (INTERVALS_FILE, intervals_csv())):
        if "--check" not in sys.argv[1:]:
            file.write_text(text, encoding="utf-8")
        elif file.read_text(encoding="utf-8") != text:
            sys.exit(f"{file.name} differs from the estimates: run `python docs/generate_estimates.py`")
