"""Write docs/estimates.md, predicted against published for every row: `python docs/generate_estimates.py [--check]`."""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

from trainyard.estimate.compute import efficiency_curves
from trainyard.estimate.published import Published, median_time_error, published_trainings, rows_of

PAGE = Path(__file__).parent / "estimates.md"

_INTRODUCTION = """# Predicted against published

Made by `python docs/generate_estimates.py`: do not edit.

What [`trainyard estimate`](plan.md) says of trainings that others published, misses included. The rows are
[`published.csv`](../src/trainyard/estimate/published.csv); each has its source. One curve for each GPU generation is
fitted (the share of its peak that a matrix product reaches), to the rows marked *fit*, by
`python benchmarks/efficiency_curves.py`; the rest of the model is formulas and data sheets. An error is
predicted / published - 1: a negative one is too optimistic. The network is that of the machines a GPU is usually in.
"""

_KNOWN_GAPS = """## What the misses have in common

- Micro-batches of few tokens (13B with 512 or 1,024 tokens on A100): less of the exchange is hidden than assumed.
- nanoGPT's 250 and 135 ms are from December 2022, before its attention was fused; GPT-2 large on V100 is transformers
  4.12.
- Transformer Engine's fp8 on MI300X was new in October 2024; no bf16 training on MI300X with full settings was found.
- H200 has a curve of its own beside H100's: the published H200 trainings are of 2025 and 2026, most of H100's of 2023.
- Memory: H200's float8 trainings of June 2025 keep less for the loss than torch's cross entropy; DLPerf's is fused.
- Of models beyond 70B only trainings with tensor parallelism were found, which is not estimated.
"""


def page() -> str:
    """Return the text of docs/estimates.md."""
    rows = published_trainings()
    with_memory = [row for row in rows if row.memory_error is not None]
    header = "| | rows | median error of a step's time | within 25 % |"
    lines = [_INTRODUCTION, "## In short", "", header, "|---|--:|--:|--:|"]
    unseen = [row for row in rows if not row.is_fitted]
    lines.append(_summary("all", rows))
    lines.append(_summary("not used in the fit", unseen))
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
    lines += ["", _KNOWN_GAPS, "## Every row", ""]
    for number, source in enumerate(dict.fromkeys(row.source for row in rows), start=1):
        table = _table([row for row in rows if row.source == source])
        lines += [f"### {number}. {_title(source)}", "", f"<{source}>", "", *table, ""]
    return "\n".join(lines).rstrip() + "\n"


def _summary(name: str, rows: tuple[Published, ...] | list[Published]) -> str:
    within = statistics.fmean(abs(row.time_error()) <= 0.25 for row in rows)
    return f"| {name} | {len(rows)} | {median_time_error(rows):.1%} | {within:.0%} |"


def _title(source: str) -> str:
    parts = source.split("/")
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
            training.architecture.name,
            gpus,
            training.engine,
            f"{training.micro_batch_size} × {training.accumulation_steps} × {training.sequence_length}",
            training.precision,
            training.activation_checkpointing,
            "yes" if training.compiled else "",
            f"{row.tokens_per_second_per_gpu:,.0f}",
            f"{row.predicted_rate():,.0f}",
            f"{row.time_error():+.0%}",
            *memory,
            "; ".join(filter(None, ("fit" if row.is_fitted else "", row.note))),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    text = page()
    if "--check" in sys.argv[1:]:
        if PAGE.read_text(encoding="utf-8") != text:
            sys.exit("docs/estimates.md differs from the estimates: run `python docs/generate_estimates.py`")
    else:
        PAGE.write_text(text, encoding="utf-8")
