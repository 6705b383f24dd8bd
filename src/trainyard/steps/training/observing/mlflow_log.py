"""MLflow, from rank 0 and in a thread: a slow or broken tracking server neither delays nor ends a training.

Logs only if MLFLOW_TRACKING_URI is set: Azure ML sets it in every job, and so does `trainyard run`.
"""

from __future__ import annotations

import math
import os
import queue
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainyard.steps.runtime.errors import first_line

_CLOSE_SECONDS = 30.0
_BATCH_ENTRIES = 200
"""Azure ML accepts at most 250 rows in a batch."""
_MOST_FAILURES = 3
"""In a row: a server may be away for a while, but each failure takes minutes of trying again."""
_PARAMETER_CHARACTERS = 500
"""The longest value that every MLflow store accepts."""


class MlflowLog:
    """Queues parameters and metrics for one MLflow run. Nothing here raises."""

    def __init__(self) -> None:
        self._queue: queue.Queue[tuple[str, Any] | None] = queue.Queue()
        self._thread: threading.Thread | None = None
        if os.environ.get("MLFLOW_TRACKING_URI"):
            self._thread = threading.Thread(target=self._run, name="mlflow", daemon=True)
            self._thread.start()

    def parameters(self, values: Mapping[str, object]) -> None:
        """Log settings."""
        self._put("parameters", dict(values))

    def metrics(self, values: Mapping[str, object], step: int) -> None:
        """Log the figures of a step, without what is no finite number, and those that the run already has."""
        self._put("metrics", (values, step, int(time.time() * 1000)))

    def artifact(self, file: Path) -> None:
        """Log a file."""
        self._put("artifact", file)

    def close(self, *, failed: bool = False) -> None:
        """Wait until everything is logged, but at most half a minute."""
        if self._thread is None:
            return
        self._put("finish", "FAILED" if failed else "FINISHED")
        self._queue.put(None)
        self._thread.join(_CLOSE_SECONDS)
        if self._thread.is_alive():
            print(f"MLflow: gave up on the tracking server after {_CLOSE_SECONDS:.0f} seconds", flush=True)

    def _put(self, kind: str, value: object) -> None:
        # Once the thread has ended, entries would only pile up.
        if self._thread is not None and self._thread.is_alive():
            self._queue.put((kind, value))

    def _run(self) -> None:
        failed_in_a_row = 0
        try:
            run = _MlflowRun()
            while (entry := self._queue.get()) is not None:
                kind, value = entry
                try:
                    getattr(run, kind)(value)
                    failed_in_a_row = 0
                except Exception as failure:
                    failed_in_a_row += 1
                    if failed_in_a_row == _MOST_FAILURES:
                        raise
                    print(f"MLflow: cannot log {kind}: {type(failure).__name__}: {first_line(failure)}", flush=True)
        except Exception as failure:  # whatever goes wrong with a tracking server, the training continues
            print(f"MLflow: no more logging: {type(failure).__name__}: {first_line(failure)}", flush=True)


def open_client() -> tuple[Any, Any]:
    """Return a client of the tracking server that the environment names, and the module of MLflow's entities."""
    uri = os.environ["MLFLOW_TRACKING_URI"]
    if uri.startswith("file:") or "://" not in uri:
        # MLflow 3 asks for consent to its file store, the only one that mlflow-skinny fully supports.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    os.environ.setdefault("MLFLOW_ENABLE_ASYNC_LOGGING", "false")
    import mlflow.entities
    from mlflow.tracking import MlflowClient

    return MlflowClient(), mlflow.entities


def experiment_id(client: Any) -> str:
    """Return the experiment that the environment names; it is created if it does not exist."""
    if identifier := os.environ.get("MLFLOW_EXPERIMENT_ID"):
        return identifier
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "Default")
    experiment = client.get_experiment_by_name(name)
    return str(experiment.experiment_id if experiment else client.create_experiment(name))


class _MlflowRun:
    """The run named by the environment, or a new one.

    An earlier attempt may have logged to it: nothing is logged twice, so that its curves have each step once.
    """

    def __init__(self) -> None:
        self._client, self._entities = open_client()
        self._id = os.environ.get("MLFLOW_RUN_ID") or ""
        self._is_own = not self._id
        if self._is_own:
            self._id = self._client.create_run(experiment_id(self._client)).info.run_id
        self._names_of_earlier_metrics = frozenset(self._client.get_run(self._id).data.metrics)
        self._earlier_steps: dict[str, frozenset[int]] = {}
        """The steps that earlier attempts logged, by metric."""
        self._last_step: dict[str, int] = {}
        """The last step that this attempt logged, by metric."""

    def parameters(self, values: Mapping[str, object]) -> None:
        """Log what the run does not have yet. It refuses a parameter with another value, which is only said."""
        texts = {name: str(value)[:_PARAMETER_CHARACTERS] for name, value in values.items()}
        earlier = self._client.get_run(self._id).data.params
        entries = [self._entities.Param(name, text) for name, text in texts.items() if name not in earlier]
        self._client.log_batch(self._id, params=entries)
        changed = [name for name, text in texts.items() if earlier.get(name, text) != text]
        if changed:
            kept = ", ".join(f"{name}={earlier[name]} (now {texts[name]})" for name in changed)
            print(f"MLflow: the run keeps the parameters of an earlier attempt: {kept}", flush=True)

    def metrics(self, value: tuple[Mapping[str, object], int, int]) -> None:
        figures, step, timestamp = value
        entries = [
            self._entities.Metric(name, float(figure), timestamp, step)
            for name, figure in figures.items()
            if isinstance(figure, int | float) and math.isfinite(figure) and not self._has(name, step)
        ]
        self._last_step |= {entry.key: step for entry in entries}
        for start in range(0, len(entries), _BATCH_ENTRIES):
            self._client.log_batch(self._id, metrics=entries[start : start + _BATCH_ENTRIES])

    def _has(self, name: str, step: int) -> bool:
        if name in self._names_of_earlier_metrics and name not in self._earlier_steps:
            history = self._client.get_metric_history(self._id, name)
            self._earlier_steps[name] = frozenset(metric.step for metric in history)
        return step <= self._last_step.get(name, -1) or step in self._earlier_steps.get(name, ())

    def artifact(self, file: Path) -> None:
        self._client.log_artifact(self._id, str(file))

    def finish(self, status: str) -> None:
        """End the run if it was created here: that of an Azure ML job ends with the job."""
        if self._is_own:
            self._client.set_terminated(self._id, status)
