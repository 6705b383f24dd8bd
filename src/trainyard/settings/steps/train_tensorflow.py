"""The settings of the step that trains with TensorFlow."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trainyard.settings.step_fields import output_folder, parameter, same_field
from trainyard.settings.steps.models import Evaluate
from trainyard.settings.steps.tasks import ImageClassificationSettings
from trainyard.settings.steps.training import Training


@dataclass(frozen=True)
class TrainTensorFlow:
    """Train a Keras model with TensorFlow on the samples of the other train steps, in their order: with
    MultiWorkerMirroredStrategy or ParameterServerStrategy. It evaluates the model too, and writes a SavedModel."""

    data: Path = same_field(Training, "data")

    model: Path = output_folder()
    """Where the trained model is written, as a SavedModel: what tf.saved_model.load and TensorFlow Serving read."""

    checkpoints: Path = same_field(Training, "checkpoints")
    metrics: Path = same_field(Training, "metrics")

    evaluation: Path = output_folder()
    """Where evaluation.json is written, the figures on `evaluate_split`; a classifier's confusion matrix too."""

    settings: Path | None = same_field(Training, "settings")
    overrides: str | None = same_field(Training, "overrides")

    strategy: str = parameter(
        "multi_worker_mirrored", choices=("multi_worker_mirrored", "parameter_server"), port=True, on_resume="identity"
    )
    """How workers train together: each with the whole model, gradients summed at every step; or each at its own pace,
    with weights on parameter servers (`parameter_server_count` of the distribution)."""

    keras_model: str | None = parameter(None, on_resume="identity")
    """A function of your own as `package.module:function` that returns a keras.Model. Not given, images are classified
    by a small convolutional network. A compiled model trains with its own optimizer, loss and learning rate."""

    keras_model_arguments: str | None = parameter(None, is_mapping=True, on_resume="identity")
    """The function's arguments as a JSON object, such as {"hidden_size": 64}."""

    epochs: int = same_field(Training, "epochs")
    max_steps: int | None = same_field(Training, "max_steps")

    global_batch_size: int = parameter(64, minimum=1, port=True, on_resume="identity")
    """Samples per step, over all workers: micro_batch_size x accumulation_steps x workers."""

    micro_batch_size: int = parameter(32, minimum=1, port=True, on_resume="numbers")
    """Samples per forward pass of one worker, divided among its GPUs; accumulation_steps follows from it. With
    parameter servers each micro-batch updates the weights by itself."""

    learning_rate: float = same_field(Training, "learning_rate")
    warmup_fraction: float = same_field(Training, "warmup_fraction")
    warmup_steps: int | None = same_field(Training, "warmup_steps")
    learning_rate_schedule: str = same_field(Training, "learning_rate_schedule")
    minimum_learning_rate_fraction: float = same_field(Training, "minimum_learning_rate_fraction")
    decay_fraction: float = same_field(Training, "decay_fraction")
    decay_steps: int | None = same_field(Training, "decay_steps")
    weight_decay: float = same_field(Training, "weight_decay")
    gradient_clip_norm: float = same_field(Training, "gradient_clip_norm")
    label_smoothing: float = same_field(ImageClassificationSettings, "label_smoothing")

    precision: str = parameter("fp32", choices=("fp32", "bf16"), port=True, on_resume="numbers")
    """The floating-point type of the forward pass; variables and optimizer state stay in fp32."""

    deterministic: bool = parameter(True, on_resume="nothing")
    """Use only algorithms that compute the same bits each time; false allows others. With parameter servers, results
    differ in any case: which update comes first depends on timing."""

    seed: int = same_field(Training, "seed")
    checkpoint_every_steps: int = same_field(Training, "checkpoint_every_steps")
    keep_checkpoints: int = same_field(Training, "keep_checkpoints")
    failed_saves_limit: int = same_field(Training, "failed_saves_limit")
    resume: str = same_field(Training, "resume")
    stop_file: str | None = same_field(Training, "stop_file")
    time_limit_seconds: int | None = same_field(Training, "time_limit_seconds")
    scheduled_events_url: str | None = same_field(Training, "scheduled_events_url")
    nonfinite_steps_limit: int = same_field(Training, "nonfinite_steps_limit")
    loss_spike_factor: float = same_field(Training, "loss_spike_factor")
    log_every_steps: int = same_field(Training, "log_every_steps")

    evaluate_every_epochs: int = parameter(1, minimum=0, on_resume="nothing")
    """Epochs between evaluations on the validation split; 0 evaluates only at the end."""

    process_group_timeout_seconds: int = parameter(600, minimum=1, on_resume="nothing")
    """How long tasks wait for each other at the start, and workers for each other's gradients."""

    verify_data: str = same_field(Training, "verify_data")
    record_samples: str | None = same_field(Training, "record_samples")

    evaluate_split: str = parameter("test", on_resume="nothing")
    """Which split of the dataset to evaluate the trained model on."""

    minimum_accuracy: float = same_field(Evaluate, "minimum_accuracy")
