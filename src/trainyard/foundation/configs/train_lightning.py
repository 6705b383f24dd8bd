"""The settings of the step that trains with Lightning."""

from __future__ import annotations

from dataclasses import dataclass

from trainyard.foundation.configs.training import Training
from trainyard.foundation.step_fields import parameter

_ZERO_STAGES = {"deepspeed_stage_1": 1, "deepspeed_stage_2": 2, "deepspeed_stage_3": 3}
"""By Lightning's names."""


@dataclass(frozen=True)
class TrainLightning(Training):
    """Train with Lightning's Trainer, data-parallel: a task, or a LightningModule of your own, on the same samples in
    the same order as the other train steps, with the same checkpoints, metrics and stopping."""

    module: str | None = parameter(None)
    """A LightningModule of your own as `package.module:Class`, trained instead of the task's model. Its training_step
    gets a dictionary of tensors, one per array of the dataset. Optimizer and learning rate are its own."""

    data_module: str | None = parameter(None)
    """A LightningDataModule of your own as `package.module:Class`, which a LightningModule of your own is trained on in
    place of a prepared dataset. If it takes `data_dir`, that is the folder of `data`. Its samples come in the order of
    the other train steps, batch sizes are those given here, and its datasets must be map-style."""

    data_module_arguments: str | None = parameter(None)
    """The arguments of the LightningDataModule as a JSON object, such as {"augment": true}."""

    strategy: str = parameter("ddp", choices=("ddp", "fsdp2", *_ZERO_STAGES))
    """How ranks share the model: ddp, each has all of it; fsdp2, each has its rows of what the configure_model of a
    LightningModule of your own shards with fully_shard; deepspeed_stage_1 to 3, each has its part of the optimizer's
    state of a LightningModule of your own, from 2 on also of gradients, with 3 also of parameters."""

    module_arguments: str | None = parameter(None)
    """The arguments of the LightningModule as a JSON object, such as {"hidden_size": 64}."""

    @property
    def zero_stage(self) -> int | None:
        """The stage of DeepSpeed's ZeRO, if that is the strategy."""
        return _ZERO_STAGES.get(self.strategy)
