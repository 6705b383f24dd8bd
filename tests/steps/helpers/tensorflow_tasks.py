"""The tasks of TensorFlow's cluster as real processes, each with its TF_CONFIG, and whether TensorFlow is here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from rank_processes import SOURCE, TESTS, Ranks, free_port

HAS_TENSORFLOW = find_spec("tensorflow") is not None
needs_tensorflow = pytest.mark.skipif(not HAS_TENSORFLOW, reason="no TensorFlow: make setup-tensorflow")


def tf_config(cluster: dict[str, list[str]], kind: str, index: int) -> str:
    """The variable as Azure ML sets it."""
    return json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}, "environment": "cloud"})


def arguments_for(data: Path, out: Path, *flags: object) -> list[str]:
    """The step's arguments, with all outputs below one folder."""
    folders = [f"--{name}={out / name}" for name in ("model", "checkpoints", "metrics", "evaluation")]
    return [f"--data={data}", *folders, *map(str, flags)]


def start_tasks(data: Path, out: Path, *flags: object, workers: int = 2, servers: int = 0) -> Ranks:
    """Start the step once for each task: workers first, then parameter servers."""
    counts = {"worker": workers, "ps": servers}
    cluster = {kind: [f"127.0.0.1:{free_port()}" for _ in range(count)] for kind, count in counts.items() if count}
    command = [sys.executable, "-m", "trainyard.steps.train_tensorflow", *arguments_for(data, out, *flags)]
    ranks = Ranks()
    for kind, addresses in cluster.items():
        for index in range(len(addresses)):
            environment = {
                **{name: value for name, value in os.environ.items() if not name.startswith("MLFLOW")},
                "TF_CONFIG": tf_config(cluster, kind, index),
                "PYTHONPATH": os.pathsep.join([str(SOURCE), str(TESTS)]),
            }
            ranks.processes.append(
                subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            )
    return ranks
