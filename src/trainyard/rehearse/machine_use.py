"""What the processes of an attempt use of this machine while they run: processors, memory and GPUs.

The samples are in `machine_use.jsonl` beside the job's other logs of the system, whose format docs/report.md describes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainyard.rehearse.guardian import as_part_of
from trainyard.rehearse.machine import available_processors
from trainyard.settings.run_record import MACHINE_USE_FILE, MACHINE_USE_FORMAT

_LEAST_INTERVAL_SECONDS = 1.0
_SAMPLES_PER_TIME_SPENT = 1000
"""An attempt of t seconds waits t/1000 s for its next sample: a week's has about 7,500 lines."""


@dataclass(frozen=True)
class _Use:
    """Processor time so far, with that of children that have ended, and resident memory."""

    processor_seconds: float
    memory_bytes: int


Sessions = Callable[[Sequence[int]], Collection[int]]
"""From the processes that the runner started to the sessions that do the work, as their leaders' process ids."""


@contextmanager
def machine_use_sampled(
    job_folder: Path, attempt: int, gpus: Sequence[str], sessions_of: Sessions = lambda started: started
) -> Iterator[Callable[[list[int]], None]]:
    """Yield what starts the sampling of these processes' sessions, until the block ends."""
    is_over = threading.Event()
    threads: list[threading.Thread] = []

    def start(started: list[int]) -> None:
        file = job_folder / "system_logs" / MACHINE_USE_FILE
        arguments = (file, attempt, lambda: sessions_of(started), _Gpus(gpus, job_folder), is_over)
        threads.append(threading.Thread(target=_sample, args=arguments, name="machine use", daemon=True))
        threads[-1].start()

    try:
        yield start
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def _sample(
    file: Path, attempt: int, sessions: Callable[[], Collection[int]], gpus: _Gpus, is_over: threading.Event
) -> None:
    """Write samples until the attempt is over. A disk that is full ends the sampling, not the job."""
    started = before = time.monotonic()
    used = _Use(0.0, 0)  # they have just been started
    header: list[dict[str, Any]] = [
        {"format": MACHINE_USE_FORMAT, "attempt": attempt, "processors": available_processors()}
    ]
    with gpus, suppress(OSError):
        while not is_over.wait(max(_LEAST_INTERVAL_SECONDS, (before - started) / _SAMPLES_PER_TIME_SPENT)):
            now, using = time.monotonic(), _use_of(sessions())
            if using.memory_bytes == 0:
                continue  # they have ended
            busy = max(0.0, using.processor_seconds - used.processor_seconds) / (now - before)
            line: dict[str, Any] = {
                "seconds": round(now - started, 2),
                "processors_busy": round(busy, 3),
                "memory_bytes": using.memory_bytes,
            }
            if latest := gpus.latest():
                line["gpus"] = latest
            with file.open("a", encoding="utf-8") as stream:
                stream.writelines(f"{json.dumps(sample)}\n" for sample in [*header, line])
            header.clear()
            before, used = now, using


def _use_of(leaders: Collection[int]) -> _Use:
    """Add up the processes of these sessions."""
    import psutil  # takes 30 ms, and a run whose jobs are reused or short needs none

    seconds, memory_bytes = 0.0, 0
    for pid in psutil.pids():
        try:
            if os.getsid(pid) in leaders:
                process = psutil.Process(pid)
                times = process.cpu_times()
                seconds += times.user + times.system + times.children_user + times.children_system
                memory_bytes += process.memory_info().rss
        except (psutil.Error, OSError):
            continue  # it has ended
    return _Use(seconds, memory_bytes)


class _Gpus:
    """The latest use of each GPU, as one nvidia-smi for the whole attempt prints it; nothing where there is none."""

    def __init__(self, gpus: Sequence[str], job_folder: Path) -> None:
        self._wanted = set(gpus)
        self._job_folder = job_folder
        self._process: subprocess.Popen[str] | None = None
        self._latest: dict[str, dict[str, float]] = {}

    def __enter__(self) -> _Gpus:
        program = shutil.which("nvidia-smi")
        if program and self._wanted:
            query = "--query-gpu=index,uuid,utilization.gpu,memory.used"
            interval = f"--loop-ms={int(_LEAST_INTERVAL_SECONDS * 1000)}"
            with suppress(OSError):  # the job does not need it
                self._process = subprocess.Popen(
                    [program, query, "--format=csv,noheader,nounits", interval],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                    env=as_part_of(self._job_folder, os.environ),
                    start_new_session=True,
                )
                threading.Thread(target=self._read, name="nvidia-smi", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def latest(self) -> dict[str, dict[str, float]]:
        """Return `busy` (a share of the time) and `memory_bytes` by GPU."""
        return dict(self._latest)

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            index, identifier, busy_percent, used_mib = (text.strip() for text in line.split(","))
            if {index, identifier} & self._wanted:
                with suppress(ValueError):  # "[N/A]": this kind of GPU does not say
                    self._latest[index] = {"busy": int(busy_percent) / 100, "memory_bytes": int(used_mib) << 20}
