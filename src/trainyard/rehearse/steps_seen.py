"""Which steps an attempt of a job has taken, as it reports them: in its log, in MLflow, or in a metrics.jsonl."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

# `step 60/240`, `Step: 60`, `global_step=60`, `{"step": 60}`.
_STEP = re.compile(r"\b(?:global_)?steps?\b[\"']?\s*[:=]?\s*(?P<step>\d+)\b(?:\s*/\s*(?P<of>\d+))?", re.IGNORECASE)
# `continuing from checkpoints/step-00000032: step 32`: what an earlier attempt did.
_RESUMED = re.compile(r"\b(?:resum|continu|restor|load)", re.IGNORECASE)
_METRICS = "*/metrics.jsonl"


class StepsSeen:
    """The steps of one attempt since it was made: the first and the last, and how many there will be.

    What earlier attempts reported in the same files does not count. `log` is that of rank 0, `tracked` the folder of
    the job's MLflow run, `outputs` that of its outputs.
    """

    def __init__(self, log: Path, tracked: Path, outputs: Path) -> None:
        self.first: int | None = None
        self.last: int | None = None
        self.resumed_at: int | None = None
        """The step that the attempt reports to continue from."""
        self.total: int | None = None
        self._interval = 1
        self._log, self._tracked, self._outputs = log, tracked, outputs
        self._log_position = log.stat().st_size if log.exists() else 0
        self._start_milliseconds = int(time.time() * 1000)
        # A resumed training cuts its metrics back to its checkpoint, so lines are compared rather than counted.
        self._old_lines = {file: frozenset(_lines(file)) for file in outputs.glob(_METRICS)}
        self._sizes: dict[Path, tuple[int, int]] = {}

    @property
    def done_before(self) -> int | None:
        """The steps that were done when the attempt began, as reported, or before the first that it reported."""
        if self.resumed_at is not None or self.first is None:
            return self.resumed_at
        return max(0, self.first - self._interval)

    @property
    def share(self) -> float | None:
        """The share 0…1 of its steps that the attempt has reached; None while unknown."""
        return min(1.0, self.last / self.total) if self.last is not None and self.total else None

    def look(self) -> None:
        """Read what has been reported since the last look."""
        for step in sorted({*self._in_log(), *self._in_metrics(), *self._in_mlflow()}):
            if self.first is None:
                self.first = step
            elif self.last == self.first < step:
                self._interval = step - self.first
            self.last = step if self.last is None else max(step, self.last)

    def _in_log(self) -> Iterator[int]:
        if not self._log.exists():
            return
        with self._log.open("rb") as stream:
            stream.seek(self._log_position)
            text = stream.read()
        complete = text[: max(text.rfind(b"\n"), text.rfind(b"\r")) + 1]
        self._log_position += len(complete)
        for line in re.split(r"[\r\n]", complete.decode("utf-8", errors="replace")):
            found = _STEP.search(line)
            if found is None:
                continue
            if found["of"] is not None:
                self.total = int(found["of"])
            if self.first is None and _RESUMED.search(line):
                self.resumed_at = int(found["step"])
            else:
                yield int(found["step"])

    def _in_metrics(self) -> Iterator[int]:
        for file in self._outputs.glob(_METRICS):
            if self._has_changed(file):
                for line in _lines(file):
                    step = _step_of(line) if line not in self._old_lines.get(file, ()) else None
                    if step is not None and step > (self.last or -1):
                        yield step

    def _in_mlflow(self) -> Iterator[int]:
        """The file store has a file for each metric, with lines of `milliseconds value step`."""
        for file in (self._tracked / "metrics").rglob("*"):
            if not file.is_file() or not self._has_changed(file):
                continue
            for line in _lines(file):
                fields = line.split()
                if len(fields) == 3 and int(fields[0]) >= self._start_milliseconds and int(fields[2]) > 0:
                    yield int(fields[2])

    def _has_changed(self, file: Path) -> bool:
        try:
            status = file.stat()
        except OSError:
            return False  # it is being replaced
        size = (status.st_mtime_ns, status.st_size)
        has_changed = self._sizes.get(file) != size
        self._sizes[file] = size
        return has_changed


def _lines(file: Path) -> list[str]:
    """The complete lines of a file; none of one that is being replaced."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text[: text.rfind("\n") + 1].splitlines()


def _step_of(line: str) -> int | None:
    try:
        step = json.loads(line)["step"]
    except (ValueError, KeyError, TypeError):
        return None
    return step if isinstance(step, int) else None
