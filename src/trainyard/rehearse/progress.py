"""How far a job is and how long it will take, read from what its steps print."""

from __future__ import annotations

import re

from trainyard.settings.quantities import duration

# `step 60/240`, and `wrote 1,200 of 4,000 train images`.
_COUNTS = re.compile(r"\bstep (?P<step>\d+)/(?P<steps>\d+)\b|\b(?P<done>\d[\d,]*) of (?P<all>\d[\d,]*)\b")


def share_done(line: str) -> float | None:
    """Return the share 0…1 that a line of a log states, or None."""
    found = _COUNTS.search(line)
    if found is None:
        return None
    done, total = (int(text.replace(",", "")) for text in found.groups() if text is not None)
    return done / total if 0 <= done <= total and total > 0 else None


class TimeLeft:
    """Estimates the seconds left from how a job's share grew since it was first seen: a resumed one starts late."""

    def __init__(self) -> None:
        self._first: dict[str, tuple[float, float]] = {}

    def estimate(self, job: str, share: float, elapsed_s: float) -> float | None:
        """Return the seconds left, or None before there is a second share to compare with."""
        first_share, first_elapsed_s = self._first.setdefault(job, (share, elapsed_s))
        if share < first_share:  # a new attempt, or the next phase
            self._first[job] = (share, elapsed_s)
            return None
        if share == first_share or elapsed_s <= first_elapsed_s:
            return None
        return (1 - share) * (elapsed_s - first_elapsed_s) / (share - first_share)


def in_words(share: float, seconds_left: float | None) -> str:
    """Return `25 %, 1 min 05 s left`, short enough for a column."""
    done = f"{int(share * 100)} %"
    return done if seconds_left is None else f"{done}, {duration(max(1.0, round(seconds_left)))} left"
