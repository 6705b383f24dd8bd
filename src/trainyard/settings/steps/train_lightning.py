"""The settings of the step that trains with Lightning."""

from __future__ import annotations

from dataclasses import dataclass

from trainyard.settings.step_fields import parameter
from trainyard.settings.steps.training import Training


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

    data_module_arguments: str | None = parameter(None, is_mapping=True)
    """The arguments of the LightningDataModule as a JSON object, such as {"augment": true}."""

    strategy: str = parameter("ddp", choices=("ddp", "fsdp2"), port=True)
    """How ranks share the model: ddp, each has all of it; fsdp2, each has its rows of what the configure_model of a
    LightningModule of your own shards with fully_shard."""

    module_arguments: str | None = parameter(None, is_mapping=True)
    """The arguments of the LightningModule as a JSON object, such as {"hidden_size": 64}."""
