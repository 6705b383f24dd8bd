"""A Spark job as one command: `spark-submit` on this machine, with the job's configuration."""

from __future__ import annotations

import shlex

from trainyard.local.machine import available_processors
from trainyard.spec.model import Spark

# What sizes or places executors on a cluster; a local master runs in one process.
_OF_CLUSTERS = ("spark.executor.", "spark.dynamicAllocation.", "spark.yarn.", "spark.driver.cores")


def spark_command(task: Spark, arguments: str) -> str:
    """Return the shell line that submits a Spark job to a master in the job's own process."""
    conf = {key: value for key, value in task.conf.items() if not key.startswith(_OF_CLUSTERS)}
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
