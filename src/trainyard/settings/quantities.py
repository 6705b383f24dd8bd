"""Quantities as text for people: durations, counts, shares, moments, sizes; and strings cut to a length."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal
from typing import Any

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def duration(seconds: float | None) -> str:
    """Return `6.2 ms`, `41.3 s`, `2 min 05 s`, `3 h 20 min`, `12.5 days`; a dash for None and what is not finite."""
    if seconds is None or not math.isfinite(seconds * 1000):
        return "–"
    milliseconds = seconds * 1000
    if 0 < milliseconds < 9.95:
        return f"{milliseconds:.2g} ms"
    if round(milliseconds) < 1000:
        return f"{milliseconds:.0f} ms" if milliseconds else "0 s"
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    hours, minutes = divmod(minutes, 60)
    if hours >= 72:
        return f"{seconds / 86400:,.1f} days"
    return f"{hours} h {minutes:02} min"


def moment(when: datetime | None) -> str:
    """Return `20 Nov 2026, 22:17:05 UTC` in any locale; a dash for None."""
    if when is None:
        return "–"
    return f"{when.day} {_MONTHS[when.month - 1]} {when.year}, {when:%H:%M:%S} UTC"


def cut(text: str, width: int) -> str:
    """Return a string of at most a number of characters, with `…` in place of what is too much."""
    return text if len(text) <= width else text[: width - 1] + "…"


def count(number: float) -> str:
    """Return a whole number with its thousands separated: `12,345`."""
    return f"{number:,.0f}"


def counted(number: int, thing: str) -> str:
    """Return `1 process`, `2 processes`, `3 jobs`."""
    plural = thing + ("es" if thing.endswith("s") else "s")
    return f"{count(number)} {thing if number == 1 else plural}"


def first_names(names: Iterable[str], most: int = 5) -> str:
    """Return the first few names as a list in words, and how many more there are."""
    listed = list(names)
    more = f" and {count(len(listed) - most)} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more


def percentage(share: float | None) -> str:
    """Return `98.6 %`, `> 99.99 %`; never rounded up to 100 or down to 0. A dash for None."""
    if share is None or not math.isfinite(share):
        return "–"
    if 0 < share < 0.00005 or 0.99995 <= share < 1:
        return "< 0.01 %" if share < 0.5 else "> 99.99 %"
    decimals = 1 if share in (0, 1) or 0.0005 <= share < 0.9995 else 2
    return f"{share * 100:.{decimals}f} %"


def number(value: float | None) -> str:
    """Return `0.00003`, `4.216`, `11,527`: four significant digits or a whole number; a dash for None."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        return "not finite"
    if not 1e-6 < abs(value) < 1e15:
        return f"{value:.4g}"
    return count(value) if abs(value) >= 1e4 else f"{Decimal(f'{value:.4g}'):f}"


EVALUATION_FORMAT = "trainyard.evaluation/1"

EVALUATION_COUNTS = ("samples", "tokens", "pairs")
"""The numbers of an evaluation that say how much was evaluated, not how well."""


def figure(name: str, value: float) -> str:
    """Return a figure that a task measured: an accuracy as a percentage, anything else in four significant digits."""
    return percentage(value) if name.endswith("accuracy") else number(value)


def memory(size_bytes: float) -> str:
    """Return `64 KiB`, `512 MiB`, `31.2 GiB`."""
    if size_bytes >= 2**30:
        return f"{size_bytes / 2**30:.1f} GiB"
    return f"{size_bytes / 2**20:.0f} MiB" if size_bytes >= 2**20 else f"{size_bytes / 2**10:.0f} KiB"


def as_text(value: Any) -> str:
    """Return a setting's value as in YAML or JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
