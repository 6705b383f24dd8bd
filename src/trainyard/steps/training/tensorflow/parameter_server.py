"""ParameterServerStrategy: weights on parameter servers, and workers that take micro-batches as fast as each can.

TF_CONFIG on Azure ML has workers and parameter servers, but no coordinator, which TensorFlow wants too. Here worker 0's
process coordinates, and a child of it is TensorFlow's worker 0, so that no machine is without work. Servers never end
by themselves: each ends when worker 0 says so over the connections of `meeting`, or when it is lost.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from trainyard.settings.steps.train_tensorflow import TrainTensorFlow
from trainyard.steps.training.tensorflow.cluster import ClusterPlace, Tasks, end_at_once
from trainyard.steps.training.tensorflow.keras_models import ModelBuilder
from trainyard.steps.training.tensorflow.keras_samples import KerasBatch, KerasSamples
from trainyard.steps.training.tensorflow.trainer import SplitSums, StepFigures, Trainer

_MOST_IN_FLIGHT = 64
"""Evaluated batches whose results are not fetched yet."""
_LOOK_EVERY_SECONDS = 0.5
_ASK_TO_STOP = (signal.SIGTERM, signal.SIGINT)


def serve(place: ClusterPlace, tasks: Tasks, stop_reason: Callable[[], str | None]) -> int:
    """Be a server of the cluster until worker 0 ends the training, which it does soon if there is a reason to stop.

    Return worker 0's exit code.
    """
    _start_server(_servers(place), "ps" if place.is_parameter_server else "worker", place.index)
    return tasks.wait_for_main(stop_reason)


class OwnWorker:
    """TensorFlow's worker 0, as a child process that ends with this one, and this one with it."""

    def __init__(self, place: ClusterPlace) -> None:
        command = [sys.executable, "-m", __name__, json.dumps(_servers(place))]
        # What asks a training to stop often goes to all of its processes. Blocked signals stay blocked in the child,
        # which is needed until the last checkpoint. It reads from this process until that is gone, however it ended.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _ASK_TO_STOP)
        try:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._closing = threading.Event()
        threading.Thread(target=self._watch, name="own-worker", daemon=True).start()

    def close(self) -> None:
        """End it."""
        self._closing.set()
        self._process.kill()
        self._process.wait()

    def _watch(self) -> None:
        """Without it, the coordinator would wait for its worker forever."""
        while not self._closing.wait(_LOOK_EVERY_SECONDS):
            exit_code = self._process.poll()
            if exit_code is not None and not self._closing.is_set():
                ended = signal.Signals(-exit_code).name if exit_code < 0 else f"exit code {exit_code}"
                end_at_once(
                    f"the process of TensorFlow's worker 0, a child of this one, ended with {ended} before the "
                    "training did; what it printed last says why, unless the machine was out of memory"
                )


def coordinating_strategy(place: ClusterPlace) -> Any:
    """Return the strategy of the process that gives work to all workers, once all servers are there."""
    tf.config.set_visible_devices([], "GPU")  # they are its own worker's
    host = place.workers[0].rpartition(":")[0]
    cluster = tf.train.ClusterSpec({"chief": [f"{host}:{_free_port()}"], **_servers(place)})
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        cluster, task_type="chief", task_id=0, rpc_layer="grpc"
    )
    return tf.distribute.ParameterServerStrategy(resolver)


class ParameterServerTrainer(Trainer):
    """Gives each micro-batch to the next free worker, which updates the weights with it at once.

    A step is the micro-batches of a global batch, in the order of the other train steps; what they come to is known
    when all are done.
    """

    def __init__(self, settings: TrainTensorFlow, strategy: Any, builder: ModelBuilder) -> None:
        super().__init__(settings, strategy, builder)
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        self._update = tf.function(self._update_on_worker)
        self._predict = tf.function(self.predict)

    def take_step(self, batches: Sequence[KerasBatch], learning_rate: float, *, stop: bool) -> StepFigures:
        """Take every micro-batch. The norm is the mean of their gradients' norms; one not finite is not applied."""
        rate = tf.constant(learning_rate)
        taken = [
            self._coordinator.schedule(self._update, args=(*batch[:3], rate))
            for batch in batches
            if not batch.is_stand_in
        ]
        self._coordinator.join()
        figures = np.array([result.fetch() for result in taken], dtype=np.float64)
        loss_sum, terms, norms = figures.sum(axis=0)
        return StepFigures(loss_sum / max(1.0, terms), norms / len(taken), stop)

    def evaluate(self, samples: KerasSamples, sums: SplitSums) -> SplitSums:
        """Every batch once, on whichever worker is free."""
        waiting: list[tuple[KerasBatch, Any]] = []
        for batch in samples.whole_split(0, 1):
            waiting.append((batch, self._coordinator.schedule(self._predict, args=batch[:3])))
            if len(waiting) == _MOST_IN_FLIGHT:
                self._count(waiting, sums)
        self._count(waiting, sums)
        return sums

    def align(self) -> None:
        """Copy nothing: the parameter servers hold the only copy."""

    def _count(self, waiting: list[tuple[KerasBatch, Any]], sums: SplitSums) -> None:
        self._coordinator.join()
        for batch, result in waiting:
            sums.add(batch, *result.fetch())
        waiting.clear()

    def _update_on_worker(self, inputs: Any, targets: Any, weights: Any, learning_rate: Any) -> Any:
        def in_replica(inputs: Any, targets: Any, weights: Any) -> Any:
            terms = tf.reduce_sum(weights)
            with tf.GradientTape() as tape:
                outputs = self.model(inputs, training=True)
                loss = tf.reduce_sum(self.loss.weighted(targets, outputs, weights, training=True))
                extra = tf.add_n(self.model.losses) if self.model.losses else 0.0
                mean = loss / tf.maximum(1.0, terms) + extra
            gradients = tape.gradient(mean, self.model.trainable_variables, unconnected_gradients="zero")
            clipped, norm = self.clip([tf.convert_to_tensor(gradient) for gradient in gradients])
            return clipped, tf.stack([loss, terms, norm + loss * 0.0])

        gradients, figures = self.strategy.run(in_replica, args=(inputs, targets, weights))
        # Outside of the replica: inside, TensorFlow allows no condition around an optimizer.
        if tf.math.is_finite(figures[2]):
            self.strategy.run(self.apply, args=(gradients, learning_rate))
        return figures


def _servers(place: ClusterPlace) -> dict[str, list[str]]:
    return {"worker": list(place.workers), "ps": list(place.parameter_servers)}


def _start_server(servers: dict[str, list[str]], kind: str, index: int) -> Any:
    if kind == "ps":
        tf.config.set_visible_devices([], "GPU")
    return tf.distribute.Server(tf.train.ClusterSpec(servers), job_name=kind, task_index=index, protocol="grpc")


def _free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    own_worker = _start_server(json.loads(sys.argv[1]), "worker", 0)
    sys.stdin.buffer.read()
    os._exit(0)
