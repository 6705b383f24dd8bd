"""metrics.jsonl: one line per logged step, cut back to the checkpoint when a training resumes."""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainyard.settings.files import os_error_reason

METRICS_FILE = "metrics.jsonl"


class MetricsFile:
    """Appends to metrics.jsonl, on rank 0; each line is with the operating system when `write` returns."""

    def __init__(self, folder: Path, steps_done: int) -> None:
        file = folder / METRICS_FILE
        kept = _lines_up_to(file, steps_done)
        self.earlier_lines: list[dict[str, Any]] = [json.loads(line) for line in kept]
        """What is kept from an earlier attempt, as it was written."""
        self._last_line_starts = sum(len(line.encode()) for line in kept[:-1])
        self._has_reported = False
        if kept:
            # Whatever ends this process now, the earlier lines are in one of the two files.
            beside = file.with_name(f"{METRICS_FILE}.new")
            beside.write_text("".join(kept), encoding="utf-8")
            os.replace(beside, file)
        self._stream = file.open("a" if kept else "w", encoding="utf-8")

    def write(self, metrics: Mapping[str, float | int | None]) -> None:
        """Write one line. A number that is not finite becomes null, since JSON cannot express it."""
        finite = {
            name: value if value is not None and math.isfinite(value) else None for name, value in metrics.items()
        }
        try:
            self._stream.write(json.dumps(finite) + "\n")
            self._stream.flush()
        except OSError as failure:
            self._report(failure)

    def take_back_last_line(self) -> dict[str, Any]:
        """Remove and return the newest line kept from an earlier attempt. Only before anything is written."""
        try:
            self._stream.seek(self._last_line_starts)
            self._stream.truncate()
        except OSError as failure:
            self._report(failure)
        return self.last_line

    @property
    def last_line(self) -> dict[str, Any]:
        """The newest line kept from an earlier attempt; empty if there is none."""
        return self.earlier_lines[-1] if self.earlier_lines else {}

    def close(self) -> None:
        """Close the file."""
        try:
            self._stream.close()
        except OSError as failure:
            self._report(failure)

    def _report(self, failure: OSError) -> None:
        """Report a failure once, and continue: a training is worth more than its log."""
        if not self._has_reported:
            print(
                f"warning: cannot write {self._stream.name}, and the training continues without: "
                f"{os_error_reason(failure)}",
                flush=True,
            )
        self._has_reported = True


def set_metrics_aside(folder: Path) -> None:
    """Rename the metrics of a training that is not continued."""
    file = folder / METRICS_FILE
    if file.is_file() and file.stat().st_size:
        names = (folder / f"metrics-set-aside-{number}.jsonl" for number in itertools.count(1))
        aside = next(name for name in names if not name.exists())
        file.rename(aside)
        print(f"--resume never: moved the existing metrics to {aside}", flush=True)


def _lines_up_to(file: Path, steps_done: int) -> list[str]:
    """Return the lines of steps that the resumed training will not repeat. A half-written last line is dropped."""
    if steps_done == 0 or not file.is_file():
        return []
    kept = []
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            step = json.loads(line)["step"]
        except (ValueError, RecursionError, KeyError, TypeError):
            continue
        if isinstance(step, int) and step <= steps_done:
            kept.append(line + "\n")
    return kept
