"""Quantities as people read them: durations, counts, shares, moments."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True)
class Figure:
    """A quantity as it is shown, with what it is called."""

    label: str
    value: str


_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def duration(seconds: float | None) -> str:
    """`0.42 s`, `41.3 s`, `2 min 05 s`, `3 h 20 min`; a dash where nothing is known."""
    if seconds is None:
        return "–"
    if seconds < 1:
        return f"{seconds:.2f} s"
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min"


def moment(when: datetime | None) -> str:
    """`20 Nov 2026, 22:17:05 UTC`, whatever the locale."""
    if when is None:
        return "–"
    return f"{when.day} {_MONTHS[when.month - 1]} {when.year}, {when:%H:%M:%S} UTC"


def count(number: float) -> str:
    """A whole number with its thousands apart: `12,345`."""
    return f"{number:,.0f}"


def counted(number: int, thing: str) -> str:
    """`1 process`, `2 processes`, `3 jobs`."""
    plural = thing + ("es" if thing.endswith("s") else "s")
    return f"{count(number)} {thing if number == 1 else plural}"


def percentage(share: float | None) -> str:
    """`98.6 %`; never rounded up to 100 nor down to 0 where it is not."""
    if share is None or not math.isfinite(share):
        return "–"
    for decimals in range(1, 10):
        rounded = f"{share * 100:.{decimals}f}"
        if float(rounded) not in (0.0, 100.0):
            break
    else:
        rounded = f"{share * 100:.1f}"
    return f"{rounded} %"


def number(value: float | None) -> str:
    """Four significant digits; a dash where there is none."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        return "not finite"
    return f"{value:.4g}"


def memory(size_bytes: float) -> str:
    """`512 MiB`, `31.2 GiB`."""
    return f"{size_bytes / 2**30:.1f} GiB" if size_bytes >= 2**30 else f"{size_bytes / 2**20:.0f} MiB"


def as_text(value: Any) -> str:
    """A setting's value as it would be written in YAML or JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
