"""The settings of the training steps: what every engine shares, and what each adds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trainyard.foundation.step_fields import input_file, input_folder, output_folder, parameter


@dataclass(frozen=True)
class Training:
    """Train a model."""

    data: Path = input_folder()
    """The dataset that a prepare step wrote."""

    model: Path = output_folder()
    """Where the trained model is written: config.json and model.safetensors, as `from_pretrained` reads them."""

    checkpoints: Path = output_folder()
    """Where checkpoints are committed, and where a restarted step finds the newest one."""

    metrics: Path = output_folder()
    """Where metrics.jsonl and the run's settings are written."""

    task: str = parameter("image_classification")
    """What is trained: image_classification, language_modeling, or a task of your own as `package.module:Class`. Each
    has settings of its own beside those of this step."""

    epochs: int = parameter(16, minimum=1)
    """How many times every training sample is seen."""

    max_steps: int | None = parameter(None, minimum=1)
    """Stop after this many optimizer steps, also in the middle of an epoch."""

    global_batch_size: int = parameter(64, minimum=1)
    """Samples per optimizer step, over all ranks: micro_batch_size x accumulation_steps x world size."""

    micro_batch_size: int = parameter(32, minimum=1)
    """Samples that one rank takes through the model at once; accumulation_steps follows from it."""

    learning_rate: float = parameter(0.003, minimum=0.0)
    """The highest learning rate of the schedule."""

    warmup_fraction: float = parameter(0.1, minimum=0.0, maximum=1.0)
    """The share of all steps in which the learning rate rises from zero; it then falls along a cosine."""

    weight_decay: float = parameter(0.3, minimum=0.0)
    """AdamW's decoupled weight decay, on matrices and convolutions only."""

    gradient_clip_norm: float = parameter(1.0, minimum=0.0)
    """The largest global norm of the gradient; 0 leaves gradients as they are."""

    precision: str = parameter("fp32", choices=("fp32", "bf16", "fp16"))
    """What the forward pass computes in; parameters and optimizer state stay in fp32. fp16 needs a GPU."""

    activation_checkpointing: bool = parameter(False)
    """Compute each layer's activations again in the backward pass instead of keeping them: less memory, a third more
    work."""

    compile: bool = parameter(False)
    """Compile the model with torch.compile: faster steps on a GPU after a slow first one."""

    fused_optimizer: bool = parameter(True)
    """Update all parameters in one kernel. false takes the plain implementation, to compare."""

    deterministic: bool = parameter(True)
    """Ask torch for algorithms that give the same bits each time. A backward pass that has none for this device ends
    the training with its name; false trains without."""

    seed: int = parameter(0, minimum=0, maximum=2**31 - 1)
    """Decides the initial weights, the order of the samples and all other randomness."""

    checkpoint_every_steps: int = parameter(100, minimum=0)
    """Steps between checkpoints; 0 writes one only when stopping and at the end."""

    keep_checkpoints: int = parameter(2, minimum=1)
    """How many of the newest committed checkpoints stay on disk."""

    keep_best_checkpoint: bool = parameter(False)
    """Also write a checkpoint at each evaluation whose validation loss is the lowest so far, and keep that one."""

    asynchronous_checkpoints: bool = parameter(True)
    """Write checkpoints while the training goes on, one at a time. One before stopping is always waited for."""

    resume: str = parameter("auto")
    """auto continues from the newest committed checkpoint in `checkpoints`; never sets aside what is there and starts
    anew; the folder of a checkpoint, or of several, begins from the (newest) one there; in `checkpoints` itself, that
    is to go back. Started again, the step continues from the newest checkpoint that came of it."""

    stop_file: str | None = parameter(None)
    """A file whose appearance, on any node, stops the training like SIGTERM: a checkpoint is committed and the step
    exits with code 75."""

    time_limit_seconds: int | None = parameter(None, minimum=1)
    """Stop like SIGTERM this long after the step's start, with a checkpoint committed."""

    scheduled_events_url: str | None = parameter(None)
    """Where to ask for Azure's scheduled events, which announce that a machine is taken away. Not given, it is asked
    for at Azure's own address when the job runs on Azure; `off` never asks."""

    nonfinite_steps_limit: int = parameter(20, minimum=1)
    """Steps with a loss or gradient that is not finite are skipped; the training fails after this many in a row."""

    loss_spike_factor: float = parameter(3.0, minimum=0.0)
    """Warn when a step's loss is more than this many times the mean of the last steps'; 0 never warns."""

    log_every_steps: int = parameter(10, minimum=1)
    """Steps between lines of metrics.jsonl."""

    evaluate_every_epochs: int = parameter(1, minimum=0)
    """Epochs between evaluations on the validation split; 0 evaluates only at the end."""

    process_group_timeout_seconds: int = parameter(600, minimum=1)
    """How long a rank waits for the others before it reports a hang and ends."""

    verify_data: str = parameter("sizes", choices=("sizes", "digests"))
    """What of the dataset's files is checked before training starts: their sizes, or also every byte. The bytes are
    shared out among all ranks, so every node must read the same files, as from a mounted store."""

    profile_steps: str | None = parameter(None)
    """Steps A:B to trace with torch's profiler, one trace per rank in the folder profile/ of `metrics`."""

    record_samples: str | None = parameter(None)
    """A folder to write which samples each rank took at each step into, to debug data: one file per rank."""


@dataclass(frozen=True)
class TrainDDP(Training):
    """Train a model with DistributedDataParallel: every rank holds the whole model and sees its share of each batch."""


@dataclass(frozen=True)
class TrainFSDP(Training):
    """Train a model with FSDP2 (`fully_shard`): parameters, gradients and optimizer state are spread over the ranks."""

    task: str = parameter("language_modeling")

    reshard_after_forward: bool = parameter(True)
    """Give a layer's gathered parameters up after its forward pass, and gather them again for its backward pass: less
    memory, half as much communication again."""

    reduce_precision: str = parameter("fp32", choices=("fp32", "bf16"))
    """What gradients are summed over ranks in."""

    cpu_offload: bool = parameter(False)
    """Keep parameters and optimizer state in main memory, and bring them to the GPU layer by layer."""


@dataclass(frozen=True, kw_only=True)
class TrainDeepSpeed(Training):
    """Train a model with DeepSpeed: ZeRO 0 to 3, with offload to main memory, as its configuration file says."""

    deepspeed_config: Path = input_file()
    """DeepSpeed's configuration as JSON. Where it says "auto", the value comes from this step's settings."""

    task: str = parameter("language_modeling")
