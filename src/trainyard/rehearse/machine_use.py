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
from pathlib import Path
from typing import Any

from trainyard.settings.run_record import MACHINE_USE_FILE, MACHINE_USE_FORMAT
from trainyard.settings.this_machine import available_processors

_LEAST_INTERVAL_SECONDS = 1.0
_GPU_SECONDS = 5
"""How long nvidia-smi may take to answer; on a machine with a broken GPU it never does."""
_SAMPLES_PER_TIME_SPENT = 1000
"""An attempt of t seconds waits t/1000 s for its next sample: a week's has about 7,500 lines."""


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
        arguments = (file, attempt, lambda: sessions_of(started), gpus, is_over)
        threads.append(threading.Thread(target=_sample, args=arguments, name="machine use", daemon=True))
        threads[-1].start()

    try:
        yield start
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def _sample(
    file: Path, attempt: int, sessions: Callable[[], Collection[int]], gpus: Sequence[str], is_over: threading.Event
) -> None:
    """Write samples until the attempt is over. A disk that is full ends the sampling, not the job."""
    started = before = time.monotonic()
    used_seconds = 0.0  # they have just been started
    header: list[dict[str, Any]] = [
        {"format": MACHINE_USE_FORMAT, "attempt": attempt, "processors": available_processors()}
    ]
    with suppress(OSError):
        while not is_over.wait(max(_LEAST_INTERVAL_SECONDS, (before - started) / _SAMPLES_PER_TIME_SPENT)):
            now = time.monotonic()
            processor_seconds, memory_bytes = _use_of(sessions())
            if memory_bytes == 0:
                continue  # they have ended
            busy = max(0.0, processor_seconds - used_seconds) / (now - before)
            line: dict[str, Any] = {
                "seconds": round(now - started, 2),
                "processors_busy": round(busy, 3),
                "memory_bytes": memory_bytes,
            }
            if using_gpus := _use_of_gpus(gpus):
                line["gpus"] = using_gpus
            with file.open("a", encoding="utf-8") as stream:
                stream.writelines(f"{json.dumps(sample)}\n" for sample in [*header, line])
            header.clear()
            before, used_seconds = now, processor_seconds


def _use_of(leaders: Collection[int]) -> tuple[float, int]:
    """The processor seconds of these sessions, with those of children that have ended, and their resident bytes."""
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
    return seconds, memory_bytes


def _use_of_gpus(wanted: Collection[str]) -> dict[str, dict[str, float]]:
    """Return `busy` (a share of the time) and `memory_bytes` by GPU; empty where nvidia-smi does not say."""
    program = shutil.which("nvidia-smi") if wanted else None
    if program is None:
        return {}
    query = [program, "--query-gpu=index,uuid,utilization.gpu,memory.used", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(query, capture_output=True, text=True, check=False, timeout=_GPU_SECONDS).stdout
    except (OSError, subprocess.TimeoutExpired):
        return {}  # the job does not need it
    found: dict[str, dict[str, float]] = {}
    for line in said.splitlines():
        with suppress(ValueError):  # a message, or "[N/A]": this kind of GPU does not say
            index, identifier, busy_percent, used_mib = (text.strip() for text in line.split(","))
            if index in wanted or identifier in wanted:
                found[index] = {"busy": int(busy_percent) / 100, "memory_bytes": int(used_mib) << 20}
    return found
