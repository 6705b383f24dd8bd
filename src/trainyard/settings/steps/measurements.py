"""The settings of the steps that measure before a training: a cluster, and choices of DeepSpeed's settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trainyard.settings.step_fields import input_folder, output_folder, parameter, same_field
from trainyard.settings.steps.training import Training


@dataclass(frozen=True)
class CheckCluster:
    """Measure the machines of a training before it starts: their GPUs and disks, and the bandwidth between them."""

    report: Path = output_folder()
    """Where cluster.json and cluster.png are written."""

    data: Path | None = input_folder(optional=True)
    """A folder whose files are read to measure its mount. Not given, only each node's own disk is measured."""

    smallest_message_kib: int = parameter(64, minimum=1, maximum=1_048_576)
    """The smallest message of the collectives; each further one is four times as large."""

    largest_message_mib: int = parameter(4096, minimum=1, maximum=65_536)
    """The largest message. Needs twice this in a GPU's memory, and may be lower than asked for where that is short."""

    repetitions: int = parameter(5, minimum=1, maximum=1000)
    """How often each operation is measured; the median counts. Less often where that takes more than 5 seconds."""

    disk_mib: int = parameter(256, minimum=1)
    """How much is written to and read from each node's disk, and read from the mount."""

    minimum_node_bus_gb_per_second: float = parameter(0.0, minimum=0.0)
    """The least bus bandwidth of the all-reduce within a node, in GB/s (10^9 bytes): the step fails if the largest
    message is slower. 0 never fails."""

    minimum_network_gb_per_second: float = parameter(0.0, minimum=0.0)
    """The least bus bandwidth of a collective between nodes, in GB/s (10^9 bytes): the step fails if the largest
    message is slower between two nodes, or over all nodes slower than this or the floor within a node. 0 never
    fails."""

    slow_percent: float = parameter(25.0, minimum=1.0, maximum=99.0)
    """A node or rank is reported as slow if it is this far below the median of all."""

    fail_if_slow: bool = parameter(False)
    """Fail if a node or rank is slow, instead of only reporting it."""

    process_group_timeout_seconds: int = parameter(600, minimum=1)
    """How long a rank waits for the others before it reports a hang and fails."""


@dataclass(frozen=True, kw_only=True)
class MeasureConfig:
    """Train a few steps with one choice of DeepSpeed's settings, and measure their speed and memory. A choice that runs
    out of memory is a result too."""

    data: Path = same_field(Training, "data")

    deepspeed_configs: Path = input_folder()
    """The folder of DeepSpeed's configurations, NAME.json."""

    measurement: Path = output_folder()
    """Where measurement.json and the configuration, deepspeed.json, are written."""

    candidate: str = parameter()
    """What is measured: `config=NAME micro_batch_size=N activation_checkpointing=true|false`."""

    task: str = parameter("language_modeling")
    """image_classification, language_modeling, or a task of your own as `package.module:Class`."""

    global_batch_size: int = parameter(64, minimum=1)
    """Samples per optimizer step, over all ranks, the same for all candidates."""

    precision: str = parameter("fp32", choices=("fp32", "bf16", "fp16"))
    """The floating-point type of the forward pass. fp16 needs a GPU."""

    matmul_precision: str = same_field(Training, "matmul_precision")
    compile: bool = same_field(Training, "compile")
    fused_optimizer: bool = same_field(Training, "fused_optimizer")
    deterministic: bool = same_field(Training, "deterministic")

    steps: int = parameter(20, minimum=1)
    """Optimizer steps that are measured; the median counts."""

    warmup_steps: int = parameter(5, minimum=0)
    """Steps before those, which are slower and do not count."""

    seed: int = parameter(0, minimum=0, maximum=2_147_483_647)
    """The seed of the weights and of the order of the samples."""

    process_group_timeout_seconds: int = same_field(CheckCluster, "process_group_timeout_seconds")


@dataclass(frozen=True, kw_only=True)
class CompareConfigs:
    """Compare what was measured, and write the fastest configuration for `trainyard render --apply`."""

    fastest: Path = input_folder()
    """The measurement of the fastest trial: the sweep's output. The others are found in MLflow."""

    pipeline: str = parameter("deepspeed")
    """The pipeline of the profile that the settings are for."""

    winner: Path = output_folder()
    """Where profile.yaml, deepspeed.json, autotune.json and autotune.svg are written."""
