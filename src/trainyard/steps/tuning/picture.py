"""The measurements as one picture: the speed of each candidate, and its memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trainyard.steps.tuning.measurement import MeasuredCandidate, Study

_INK, _SOFT, _LINE = "#1b2430", "#47525f", "#c7d0da"
_FASTEST, _OTHERS = "#1a559e", "#9db7d5"
_GIB = 2**30


def draw_measurements(study: Study, measurements: Sequence[MeasuredCandidate], file: Path) -> None:
    """Write an SVG; the first measurement is the fastest, and equal measurements give equal bytes."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 1.4 + 0.34 * len(measurements)), layout="constrained")
    FigureCanvasSVG(figure)
    batch, ranks = study.global_batch_size, study.world_size
    title = f"DeepSpeed on {ranks} x {study.device}, {batch} samples a step"
    figure.suptitle(title, x=0.01, ha="left", fontsize=11.5, color=_INK)
    axes = figure.subplots()
    rows = range(len(measurements))
    rates = [each.samples_per_second for each in measurements]
    axes.barh(rows, rates, color=[_FASTEST, *[_OTHERS] * (len(rates) - 1)], height=0.66)
    for row, each in zip(rows, measurements, strict=True):
        axes.text(each.samples_per_second, row, f"  {_label(each)}", va="center", fontsize=8.5, color=_SOFT)
    axes.set_yticks(rows, [_name(each) for each in measurements], fontsize=9, color=_INK)
    axes.invert_yaxis()
    axes.set_xlim(0, max(rates) * 1.3)
    axes.set_xlabel("samples a second", color=_SOFT)
    axes.tick_params(length=0, colors=_SOFT)
    for spine in axes.spines.values():
        spine.set_color(_LINE)
    with matplotlib.rc_context({"svg.hashsalt": "autotune", "svg.fonttype": "none"}):
        figure.savefig(file, format="svg", facecolor="white", metadata={"Date": None})


def _name(measurement: MeasuredCandidate) -> str:
    candidate = measurement.candidate
    checkpointing = ", checkpointing" if candidate.activation_checkpointing else ""
    return f"{candidate.config}, micro-batch {candidate.micro_batch_size}{checkpointing}"


def _label(measurement: MeasuredCandidate) -> str:
    if not measurement.fits:
        return "out of memory"
    memory = measurement.peak_memory_bytes
    return f"{measurement.samples_per_second:.4g}" + ("" if memory is None else f", {memory / _GIB:.2f} GiB")
