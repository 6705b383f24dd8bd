"""A Spark job as one command: `spark-submit` on this machine, with the job's configuration."""

from __future__ import annotations

import os
import re
import shlex

from trainyard.rehearse.machine import available_processors
from trainyard.spec.model import Spark

# What sizes or places executors on a cluster; a local master runs in one process.
_OF_CLUSTERS = (
    "spark.executor.", "spark.dynamicAllocation.", "spark.yarn.", "spark.driver.cores", "spark.driver.memoryOverhead"
)  # fmt: skip

_DRIVER_MEMORY = "spark.driver.memory"
_SIZE = re.compile(r"(\d+)([kmgt])b?", re.IGNORECASE)
_GIB_PER_UNIT = {"k": 2**-20, "m": 2**-10, "g": 1, "t": 2**10}


def spark_command(task: Spark, arguments: str) -> str:
    """Return the shell line that submits a Spark job to a master in the job's own process."""
    conf = {key: value for key, value in task.conf.items() if not key.startswith(_OF_CLUSTERS)}
    if _DRIVER_MEMORY in conf:
        conf[_DRIVER_MEMORY] = _within_half(conf[_DRIVER_MEMORY])
    options = ["--master", f"local[{available_processors()}]"]
    for key, value in {"spark.ui.enabled": "false", **conf}.items():
        options += ["--conf", f"{key}={value}"]
    for flag, files in (
        ("--py-files", task.py_files),
        ("--files", task.files),
        ("--jars", task.jars),
        ("--archives", task.archives),
    ):
        if files:
            options += [flag, ",".join(files)]
    return f"spark-submit {shlex.join(options)} {shlex.quote(task.entry_file)} {arguments}".rstrip()


def _within_half(memory: str) -> str:
    """Return a cluster's amount of memory, or half of this machine's where it has no more."""
    half_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 31
    found = _SIZE.fullmatch(memory)
    if found is None or int(found[1]) * _GIB_PER_UNIT[found[2].lower()] <= half_gib:
        return memory
    return f"{max(1, half_gib)}g"
