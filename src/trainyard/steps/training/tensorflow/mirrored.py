"""MultiWorkerMirroredStrategy: every worker holds the whole model, and gradients are summed over all at each step."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from trainyard.settings.steps.train_tensorflow import TrainTensorFlow
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.training.tensorflow.cluster import ClusterPlace, Tasks
from trainyard.steps.training.tensorflow.keras_models import ModelBuilder
from trainyard.steps.training.tensorflow.keras_samples import KerasBatch, KerasSamples
from trainyard.steps.training.tensorflow.trainer import SplitSums, StepFigures, Trainer


def mirrored_strategy(place: ClusterPlace, timeout_seconds: int) -> Any:
    """Return the strategy. On a worker's own GPUs it mirrors as MirroredStrategy does."""
    options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=float(timeout_seconds))
    if len(place.workers) == 1:
        return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": list(place.workers)}), task_type="worker", task_id=place.index, rpc_layer="grpc"
    )
    return tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver, communication_options=options)


class MirroredTrainer(Trainer):
    """Sums of gradients, losses and numbers of terms over all micro-batches and replicas, and then one division."""

    def __init__(self, settings: TrainTensorFlow, strategy: Any, builder: ModelBuilder, tasks: Tasks) -> None:
        super().__init__(settings, strategy, builder)
        self._tasks = tasks
        self._replicas = strategy.num_replicas_in_sync // tasks.size
        if settings.micro_batch_size % self._replicas:
            raise StepError(
                f"--micro-batch-size {settings.micro_batch_size} does not divide among the {self._replicas} GPUs of a "
                f"worker; try {settings.micro_batch_size // self._replicas * self._replicas or self._replicas}"
            )
        with strategy.scope():
            self._sums = [_own_sum(variable.shape) for variable in self.model.trainable_variables]
            self._loss_and_terms = _own_sum((2,))
        # The gradients that it is given are sums over all replicas already.
        self.optimizer._all_reduce_sum_gradients = lambda gradients: gradients
        self._accumulate = tf.function(self._accumulate_everywhere)
        self._sum_up = tf.function(self._sum_up_everywhere)
        self._update = tf.function(self._update_everywhere)
        self._predict = tf.function(self.predict)
        self._local = strategy.experimental_local_results

    def take_step(self, batches: Sequence[KerasBatch], learning_rate: float, *, stop: bool) -> StepFigures:
        """Take the step, unless its gradient is not finite."""
        for number, batch in enumerate(batches):
            self._accumulate(*self._divide(batch), tf.constant(number == 0))
        stops = self.strategy.experimental_distribute_values_from_function(lambda _: tf.constant(float(stop)))
        loss_sum, terms, norm, stopping = self._local(self._sum_up(stops))[0].numpy().tolist()
        if math.isfinite(norm):
            self._update(tf.constant(learning_rate))
        return StepFigures(loss_sum / max(1.0, terms), norm, stopping > 0)

    def evaluate(self, samples: KerasSamples, sums: SplitSums) -> SplitSums:
        """Each worker takes its part; nobody waits for another one before the end."""
        own = SplitSums(confusion=None if sums.confusion is None else np.zeros_like(sums.confusion))
        for batch in samples.whole_split(self._tasks.rank, self._tasks.size):
            losses, predictions = self._predict(*self._divide(batch))
            own.add(batch, *(np.concatenate([each.numpy() for each in self._local(v)]) for v in (losses, predictions)))
        for document in self._tasks.gather(own.document()):
            sums.merge(document)
        return sums

    def align(self) -> None:
        """Set them to worker 0's values."""
        variables = [v for v in self.model.non_trainable_variables if "float" in str(v.dtype)]
        if not variables or self._tasks.size == 1:
            return
        own = [base64.b64encode(np.asarray(v.numpy(), dtype=np.float32).tobytes()).decode() for v in variables]
        for variable, text in zip(variables, self._tasks.broadcast(own), strict=True):
            variable.assign(np.frombuffer(base64.b64decode(text), dtype=np.float32).reshape(variable.shape))

    def _divide(self, batch: KerasBatch) -> list[Any]:
        """Return the batch's arrays, a part for each GPU of this worker."""
        size = self.settings.micro_batch_size // self._replicas

        def part(array: Any) -> Any:
            def of_replica(context: Any) -> Any:
                first = context.replica_id_in_sync_group % self._replicas * size
                return array[first : first + size]

            return self.strategy.experimental_distribute_values_from_function(of_replica)

        return [part(array) for array in batch[:3]]

    def _accumulate_everywhere(self, inputs: Any, targets: Any, weights: Any, is_first: Any) -> None:
        def in_replica(inputs: Any, targets: Any, weights: Any) -> None:
            with tf.GradientTape() as tape:
                outputs = self.model(inputs, training=True)
                loss = tf.reduce_sum(self.loss.weighted(targets, outputs, weights, training=True))
                extra = tf.add_n(self.model.losses) * tf.reduce_sum(weights) if self.model.losses else 0.0
                total = loss + extra
            gradients = tape.gradient(total, self.model.trainable_variables, unconnected_gradients="zero")
            keep = 1.0 - tf.cast(is_first, tf.float32)
            found = [*map(tf.convert_to_tensor, gradients), tf.stack([loss, tf.reduce_sum(weights)])]
            for sum_, value in zip([*self._sums, self._loss_and_terms], found, strict=True):
                # Not times zero, which would keep what is not finite.
                sum_.assign(tf.where(keep > 0, sum_ + value, value))

        self.strategy.run(in_replica, args=(inputs, targets, weights))

    def _sum_up_everywhere(self, stops: Any) -> Any:
        def in_replica(stop: Any) -> Any:
            context = tf.distribute.get_replica_context()
            own = [tf.identity(each) for each in (*self._sums, self._loss_and_terms, stop)]
            *sums, loss_and_terms, stopping = context.all_reduce(tf.distribute.ReduceOp.SUM, own)
            mean, norm = self.clip([each / tf.maximum(1.0, loss_and_terms[1]) for each in sums])
            for sum_, value in zip(self._sums, mean, strict=True):
                sum_.assign(value)
            # A loss that is not finite makes the step one to skip, whatever its gradient is.
            norm += loss_and_terms[0] * 0.0
            return tf.stack([loss_and_terms[0], loss_and_terms[1], norm, stopping])

        return self.strategy.run(in_replica, args=(stops,))

    def _update_everywhere(self, learning_rate: Any) -> None:
        def in_replica() -> None:
            self.apply([tf.identity(sum_) for sum_ in self._sums], learning_rate)

        self.strategy.run(in_replica)


def _own_sum(shape: Any) -> Any:
    """Return a variable of which each replica has its own."""
    return tf.Variable(
        tf.zeros(shape),
        trainable=False,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.SUM,
    )
