"""The settings of the step that computes a reference model's log-probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trainyard.settings.step_fields import input_folder, output_folder, parameter


@dataclass(frozen=True)
class ComputeReference:
    """Add a reference model's log-probabilities of all answers to a dataset of preferences, once for all trainings
    that start from this model."""

    data: Path = input_folder()
    """The dataset that prepare_chat wrote with `preferences`."""

    base_model: Path = input_folder(type="custom_model")
    """The reference model: the one that training will start from."""

    prepared: Path = output_folder()
    """Where the dataset is written again, with the log-probabilities and the reference model's SHA-256."""

    micro_batch_size: int = parameter(4, minimum=1)
    """Rows per forward pass of one rank."""

    precision: str = parameter("fp32", choices=("fp32", "bf16", "fp16"))
    """The floating-point type of the forward pass; best the one that training uses."""

    loss_chunk_tokens: int = parameter(0, minimum=0)
    """Compute logits for this many tokens at a time, so that those of a micro-batch never exist as a whole; 0: all at
    once."""

    verify_data: str = parameter("auto", choices=("auto", "sizes", "digests"))
    """What to check of the dataset's files first: their sizes, or also every byte by its digest; `auto` checks digests
    if that takes less than a second per GB, or less than a second in all."""

    process_group_timeout_seconds: int = parameter(600, minimum=1)
    """How long a rank waits for the others before it reports a hang and fails."""
