"""The settings of the training steps: what every engine shares, and what each adds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trainyard.settings.step_fields import input_file, input_folder, output_folder, parameter

LEAST_NORM = 1e-6
"""Added to a gradient's norm where `gradient_clip_norm` divides by it, as torch.nn.utils.clip_grad_norm_ does."""


@dataclass(frozen=True)
class Training:
    """Train a model."""

    data: Path = input_folder()
    """The dataset that a prepare step wrote."""

    model: Path = output_folder()
    """Where the trained model is written: config.json and model.safetensors, as `from_pretrained` reads them. Only
    adapters, as peft reads them, where only those are trained and not merged."""

    checkpoints: Path = output_folder()
    """Where checkpoints are committed, and where a restarted step finds the newest one."""

    metrics: Path = output_folder()
    """Where metrics.jsonl and the run's settings are written."""

    data_2: Path | None = input_folder(optional=True)
    """A dataset to mix with `data`, of the same kind, vocabulary and length. Validation is on `data` alone."""

    data_3: Path | None = input_folder(optional=True)
    """Another dataset to mix with `data`."""

    data_4: Path | None = input_folder(optional=True)
    """Another dataset to mix with `data`."""

    cluster_check: Path | None = input_folder(optional=True)
    """The report of check_cluster, for a training that starts after it. Nothing is read from it."""

    base_model: Path | None = input_folder(optional=True, type="custom_model")
    """A model to start from instead of the task's model_type: a folder or a registered model with config.json and
    model.safetensors, or an MLflow model that has them within. Its code is never run."""

    settings: Path | None = input_file(optional=True)
    """A YAML file that says what is trained: the settings of this step and of its task, under their names."""

    overrides: str | None = parameter(None, port=True, on_resume="attempt")
    """Settings of one run, over those of the file and the flags: a YAML mapping such as {weight_decay: 0.1}."""

    data_weights: str | None = parameter(None, on_resume="identity")
    """How many samples come from each of the datasets that are mixed: their weights, such as 3,1, in the order of data,
    data_2 and so on. An epoch has as many samples as they have together; a small dataset is used several times.
    Not given, each sample comes once."""

    task: str = parameter("image_classification", port=True, on_resume="identity")
    """image_classification, language_modeling, preferences, or your own as `package.module:Class`. Each task has
    settings of its own beside those of this step."""

    tuning: str = parameter("full", choices=("full", "lora", "qlora"), on_resume="identity")
    """What is trained: full, every weight; lora, low-rank adapters beside the frozen weights of a base model, with a
    fraction of the memory; qlora, the same beside weights rounded to 4 bits, on a GPU with train_ddp."""

    lora_rank: int = parameter(16, minimum=1, maximum=1024, on_resume="identity")
    """The rank of the adapters' matrices."""

    lora_alpha: float = parameter(32.0, minimum=0.0, on_resume="identity")
    """What the adapters compute is multiplied by this and divided by the rank."""

    lora_dropout: float = parameter(0.0, minimum=0.0, maximum=0.9, on_resume="numbers")
    """The share of the adapters' inputs that is set to zero while training."""

    lora_targets: str = parameter("all-linear", on_resume="identity")
    """The layers with adapters: all-linear, which leaves out the output layer, or the ends of their names, such as
    q_proj,v_proj."""

    merge_adapters: bool = parameter(False, on_resume="nothing")
    """Write the base model with the adapters added to its weights, for whoever loads whole models, and the adapters
    themselves into the folder adapters/ of `model`. false writes only the adapters, as peft reads them."""

    save_dtype: str = parameter("fp32", choices=("fp32", "bf16", "fp16"), on_resume="nothing")
    """The floating-point type in which the model, or its adapters, are written: fp32 is as trained, the others are
    rounded and take half the space. Checkpoints stay exact."""

    save_shard_mb: int = parameter(5000, minimum=1, on_resume="nothing")
    """The most megabytes (10^6 bytes) of weights in one file of a model of transformers; a larger model becomes several
    files and model.safetensors.index.json, which names the file of each tensor."""

    epochs: int = parameter(16, minimum=1, port=True, on_resume="numbers")
    """Passes over the training samples."""

    max_steps: int | None = parameter(None, minimum=1, port=True, on_resume="numbers")
    """Stop after this many optimizer steps, even in the middle of an epoch."""

    max_tokens: int | None = parameter(None, minimum=1, on_resume="numbers")
    """Stop after the optimizer step in which the model has read this many tokens, over all ranks, without padding. For
    tasks whose samples consist of tokens."""

    global_batch_size: int = parameter(64, minimum=1, port=True, on_resume="identity")
    """Samples per optimizer step, over all ranks: micro_batch_size x accumulation_steps x world size."""

    micro_batch_size: int = parameter(32, minimum=1, port=True, on_resume="nothing")
    """Samples per forward pass of one rank; accumulation_steps follows from it."""

    learning_rate: float = parameter(0.003, minimum=0.0, port=True, on_resume="numbers")
    """The highest learning rate of the schedule."""

    warmup_fraction: float = parameter(0.1, minimum=0.0, maximum=1.0, on_resume="numbers")
    """The share of all steps over which the learning rate rises from zero."""

    warmup_steps: int | None = parameter(None, minimum=0, on_resume="numbers")
    """Over how many steps the learning rate rises from zero, in place of `warmup_fraction`."""

    learning_rate_schedule: str = parameter(
        "cosine", choices=("cosine", "linear", "constant", "warmup_stable_decay"), on_resume="numbers"
    )
    """How the learning rate goes on after the warmup: it falls along half a cosine or a line, stays, or stays until it
    falls along a line over the last steps (`decay_fraction`)."""

    minimum_learning_rate_fraction: float = parameter(0.0, minimum=0.0, maximum=1.0, on_resume="numbers")
    """Where the learning rate ends, as a share of the highest."""

    decay_fraction: float = parameter(0.1, minimum=0.0, maximum=1.0, on_resume="numbers")
    """The share of all steps over which warmup_stable_decay lets the learning rate fall."""

    decay_steps: int | None = parameter(None, minimum=0, on_resume="numbers")
    """Over how many of the last steps warmup_stable_decay lets the learning rate fall, in place of `decay_fraction`."""

    optimizer: str = parameter("adamw", choices=("adamw", "adafactor", "adamw8bit"), on_resume="identity")
    """What takes the steps. adafactor keeps a row and a column for each matrix instead of two moments for each weight
    (Shazeer and Stern, arXiv 1804.04235); its steps are relative to the size of the weights, so learning rates are
    higher, 0.01 for example. adamw8bit is AdamW with moments of 8 bits, by torchao. Both work with the steps that
    keep the whole model on each rank: train_ddp, train_single and train_horovod."""

    weight_decay: float = parameter(0.3, minimum=0.0, on_resume="numbers")
    """The optimizer's decoupled weight decay, on matrices and convolutions only."""

    gradient_clip_norm: float = parameter(1.0, minimum=0.0, on_resume="numbers")
    """Clip the gradient to this global norm; 0 does not clip."""

    ema_decay: float = parameter(0.0, minimum=0.0, maximum=0.999999, on_resume="numbers")
    """Keep an exponential moving average of the trained weights: after each step, average = decay x average + (1 -
    decay) x weights, with a smaller decay in the first steps. The average is evaluated, and saved as the model;
    checkpoints hold it beside the weights. 0 keeps none."""

    precision: str = parameter("fp32", choices=("fp32", "bf16", "fp16"), port=True, on_resume="numbers")
    """The floating-point type of the forward pass; parameters and optimizer state stay in fp32. fp16 needs a GPU."""

    float8: bool = parameter(False, on_resume="numbers")
    """Multiply the matrices of the model's layers in float8 (torchao), on GPUs from H100 on, with precision bf16. Gains
    with compile; the last digits of bf16 are lost too."""

    matmul_precision: str = parameter("highest", choices=("highest", "high"), on_resume="numbers")
    """How exactly matrices of fp32 are multiplied. high uses TF32 on NVIDIA GPUs from A100 on: up to eight times as
    fast, with 10 bits of each factor's fraction instead of 23, so that the trained weights have other bits. What is
    chosen holds for convolutions too."""

    activation_checkpointing: bool = parameter(False, port=True, on_resume="nothing")
    """Recompute each layer's activations in the backward pass instead of keeping them: less memory, a third more
    work."""

    checkpointed_operators: str = parameter("all", choices=("all", "cheap"), on_resume="nothing")
    """What `activation_checkpointing` computes again: all of a layer, or only what is cheap, which keeps the outputs of
    attention and of every second matrix product: more memory, less work."""

    activation_offload: bool = parameter(False, on_resume="nothing")
    """Keep in main memory what layers save for the backward pass; with `activation_checkpointing`, their inputs. Takes
    two copies over the GPU's bus for each."""

    compile: bool = parameter(False, on_resume="nothing")
    """Compile the model with torch.compile: faster steps on a GPU after a slow first one."""

    fused_optimizer: bool = parameter(True, on_resume="nothing")
    """Update all parameters in one kernel. false uses the plain implementation, for comparison."""

    deterministic: bool = parameter(True, on_resume="nothing")
    """Use only algorithms that compute the same bits each time. If a backward pass has none for this device, the
    training fails and names it; false allows others."""

    seed: int = parameter(0, minimum=0, maximum=2_147_483_647, port=True, on_resume="identity")
    """The seed of the initial weights, the order of the samples and all other randomness."""

    checkpoint_every_steps: int = parameter(100, minimum=0, on_resume="nothing")
    """Steps between checkpoints; 0 writes them only when stopping and at the end."""

    keep_checkpoints: int = parameter(2, minimum=1, on_resume="nothing")
    """How many of the newest committed checkpoints to keep."""

    keep_best_checkpoint: bool = parameter(False, on_resume="nothing")
    """Also write a checkpoint at each evaluation with the best figure so far (`best_metric`), and keep it."""

    asynchronous_checkpoints: bool = parameter(True, on_resume="nothing")
    """Write checkpoints while training continues, one at a time. The one before stopping is always waited for."""

    failed_saves_limit: int = parameter(5, minimum=1, on_resume="nothing")
    """The training continues after a checkpoint that cannot be written; it fails after this many in a row."""

    resume: str = parameter("auto", on_resume="attempt")
    """auto continues from the newest committed checkpoint in `checkpoints`. never sets existing checkpoints aside and
    starts over. The folder of a checkpoint, or of several, starts from the (newest) one there; if it is in
    `checkpoints`, the training goes back to it. A restarted step continues from the newest checkpoint since."""

    restarts: int = parameter(0, minimum=0, on_resume="nothing")
    """How many times all ranks are started again inside the job, and continue from the newest checkpoint, when one of
    their processes dies. Above 0 each process of the job watches another one that trains."""

    stop_file: str | None = parameter(None, on_resume="attempt")
    """Stop like SIGTERM when this file appears on any node: commit a checkpoint and exit with code 75."""

    time_limit_seconds: int | None = parameter(None, minimum=1, on_resume="nothing")
    """Stop like SIGTERM this long after the step started, with a checkpoint committed."""

    scheduled_events_url: str | None = parameter(None, on_resume="attempt")
    """The address of Azure's scheduled events, which announce that a machine will be taken away. Not given, it is
    Azure's own address for jobs on Azure; `off` never asks."""

    nonfinite_steps_limit: int = parameter(20, minimum=1, on_resume="nothing")
    """Steps whose loss or gradient is not finite are skipped; the training fails after this many in a row."""

    loss_spike_factor: float = parameter(3.0, minimum=0.0, on_resume="nothing")
    """Warn if a step's loss is more than this many times the mean of recent steps; 0 never warns."""

    log_every_steps: int = parameter(10, minimum=1, on_resume="nothing")
    """Steps between lines of metrics.jsonl."""

    evaluate_every_epochs: int = parameter(1, minimum=0, on_resume="nothing")
    """Epochs between evaluations on the validation split; 0 evaluates only at the end, and every so many steps if
    `evaluate_every_steps` says so."""

    evaluate_every_steps: int = parameter(0, minimum=0, on_resume="nothing")
    """Steps between evaluations, besides those at the ends of epochs; 0 evaluates only then."""

    evaluation_batches: int = parameter(0, minimum=0, on_resume="numbers")
    """Evaluate on so many batches of global_batch_size samples, taken evenly from the whole validation split and the
    same each time; 0 takes every sample."""

    best_metric: str = parameter("loss", on_resume="numbers")
    """The figure of an evaluation that says which checkpoint is the best, and when to stop early: loss; accuracy of
    image_classification, perplexity or bits_per_byte of language_modeling, reward_accuracy or reward_margin of
    preferences; a task of your own names its own."""

    early_stop_patience: int = parameter(0, minimum=0, on_resume="nothing")
    """End the training, as if it were complete, after so many evaluations in a row in which `best_metric` has not
    improved; 0 never does."""

    early_stop_minimum_change: float = parameter(0.0, minimum=0.0, on_resume="nothing")
    """How much better than before `best_metric` must be to count as improved."""

    process_group_timeout_seconds: int = parameter(600, minimum=1, on_resume="nothing")
    """How long a rank waits for the others before it reports a hang and fails."""

    verify_data: str = parameter("auto", choices=("auto", "sizes", "digests"), on_resume="nothing")
    """What to check of the dataset's files before training: their sizes, or also every byte by its digest; `auto`
    checks digests if that takes less than a second per GB, or less than a second in all. The bytes are divided among
    all ranks, so every node must read the same files, as from a mounted store."""

    read_threads: int = parameter(1, minimum=1, maximum=64, on_resume="attempt")
    """How many threads of each rank read training samples ahead. From 2 on each sample is a request of its own instead
    of a touch of a memory map: for data on a mounted store, which answers slowly but many at once."""

    data_cache_mb: int = parameter(0, minimum=0, on_resume="attempt")
    """Copy the training samples' files to the node's own disk (TMPDIR) while training, up to so many megabytes (10^6
    bytes) there; what does not fit is read where it is. 0 copies nothing."""

    profile_steps: str | None = parameter(None, on_resume="attempt")
    """Steps A:B to trace with torch's profiler, one trace per rank in the folder profile/ of `metrics`."""

    record_samples: str | None = parameter(None, on_resume="attempt")
    """A folder for a record of the samples that each rank took at each step, to debug data: one file per rank."""


@dataclass(frozen=True)
class TrainDDP(Training):
    """Train a model with DistributedDataParallel: every rank holds the whole model and sees its share of each batch."""

    reduce_precision: str = parameter("fp32", choices=("fp32", "bf16"), on_resume="numbers")
    """The floating-point type in which gradients are summed over ranks: bf16 halves what crosses the network, and keeps
    7 bits of each number's fraction."""


@dataclass(frozen=True)
class TrainSingle(Training):
    """Train a model in one process, undistributed: on one GPU, or, if asked for, on all of one machine."""

    data_parallel: bool = parameter(False, on_resume="nothing")
    """Divide each micro-batch among all GPUs of the machine with torch.nn.DataParallel. train_ddp does that faster,
    with a process for each GPU."""


@dataclass(frozen=True)
class TrainHorovod(Training):
    """Train a model with Horovod: every rank holds the whole model, and Horovod sums the gradients over MPI, gloo or
    NCCL."""


@dataclass(frozen=True)
class TrainFSDP(Training):
    """Train a model with FSDP2 (`fully_shard`): parameters, gradients and optimizer state are spread over the ranks."""

    task: str = parameter("language_modeling", port=True, on_resume="identity")

    reshard_after_forward: bool = parameter(True, port=True, on_resume="nothing")
    """Free a layer's gathered parameters after its forward pass: less memory, 50 % more communication, since they are
    gathered again for its backward pass."""

    reduce_precision: str = parameter("fp32", choices=("fp32", "bf16"), on_resume="numbers")
    """The floating-point type in which gradients are summed over ranks."""

    gradient_sync: str = parameter("auto", choices=("auto", "last", "every"), on_resume="numbers")
    """With gradient accumulation, when ranks sum their gradients: after the `last` micro-batch, so that until then each
    GPU keeps the whole gradient of the model, in the precision that it is summed in, or after `every` one, which moves
    more bytes and keeps only a rank's rows. Sums in another order differ in their last bits. auto: every, where the
    whole gradient would take more than a quarter of a GPU's memory."""

    shard_size: int = parameter(0, minimum=0, port=True, on_resume="nothing")
    """How many ranks share one replica of the model, such as the GPUs of a machine: layers are then gathered within it,
    and only gradients cross the network, for as much more memory as there are replicas. 0 shards over all ranks."""

    cpu_offload: bool = parameter(False, port=True, on_resume="nothing")
    """Keep parameters and optimizer state in main memory, and copy them to the GPU layer by layer."""


@dataclass(frozen=True, kw_only=True)
class TrainDeepSpeed(Training):
    """Train a model with DeepSpeed: ZeRO 0 to 3, with offload to main memory, as its configuration file says."""

    deepspeed_config: Path = input_file()
    """DeepSpeed's configuration as JSON. Where it says "auto", the value comes from this step's settings; what else it
    says of optimizer, schedule, precision and batch is taken where this step is not given another."""

    task: str = parameter("language_modeling", port=True, on_resume="identity")


@dataclass(frozen=True)
class TrainLightning(Training):
    """Train with Lightning's Trainer, data-parallel: a task, or a LightningModule of your own, on the same samples in
    the same order as the other train steps, with the same checkpoints, metrics and stopping."""

    module: str | None = parameter(None, on_resume="identity")
    """A LightningModule of your own as `package.module:Class`, trained instead of the task's model. Its training_step
    gets a dictionary of tensors, one per array of the dataset. Optimizer and learning rate are its own."""

    data_module: str | None = parameter(None, on_resume="identity")
    """A LightningDataModule of your own as `package.module:Class`, which a LightningModule of your own is trained on in
    place of a prepared dataset. If it takes `data_dir`, that is the folder of `data`. Its samples come in the order of
    the other train steps, batch sizes are those given here, and its datasets must be map-style."""

    data_module_arguments: str | None = parameter(None, is_mapping=True, on_resume="identity")
    """The arguments of the LightningDataModule as a JSON object, such as {"augment": true}."""

    strategy: str = parameter("ddp", choices=("ddp", "fsdp2"), port=True, on_resume="identity")
    """How ranks share the model: ddp, each has all of it; fsdp2, each has its rows of what the configure_model of a
    LightningModule of your own shards with fully_shard."""

    module_arguments: str | None = parameter(None, is_mapping=True, on_resume="identity")
    """The arguments of the LightningModule as a JSON object, such as {"hidden_size": 64}."""


IGNORED_WITH_MODULE: Mapping[str, str] = {
    "task": "it is trained in place of a task",
    **dict.fromkeys(
        (
            *("learning_rate", "warmup_fraction", "warmup_steps", "learning_rate_schedule"),
            *("minimum_learning_rate_fraction", "decay_fraction", "decay_steps", "weight_decay", "fused_optimizer"),
        ),
        "its configure_optimizers decides that",
    ),
    **dict.fromkeys(("activation_checkpointing", "compile"), "its own code decides that"),
    **dict.fromkeys(("evaluate_every_steps", "evaluation_batches"), "Lightning validates it at the ends of epochs"),
}
"""Settings without effect on a LightningModule of your own, and why."""
IGNORED_WITH_DATA_MODULE = (
    "data_2",
    "data_3",
    "data_4",
    "data_weights",
    "verify_data",
    "read_threads",
    "data_cache_mb",
)
"""Settings without effect on a LightningDataModule of your own: they are for datasets that prepare steps wrote."""
