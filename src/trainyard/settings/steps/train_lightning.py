"""The settings of the step that trains with Lightning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trainyard.settings.step_fields import parameter
from trainyard.settings.steps.training import Training


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


_ITS_OPTIMIZER = "its configure_optimizers decides that"
_ITS_CODE = "its own code decides that"
_AT_EPOCHS = "Lightning validates it at the ends of epochs"
IGNORED_WITH_MODULE: Mapping[str, str] = {
    "task": "it is trained in place of a task",
    "learning_rate": _ITS_OPTIMIZER,
    "warmup_fraction": _ITS_OPTIMIZER,
    "warmup_steps": _ITS_OPTIMIZER,
    "learning_rate_schedule": _ITS_OPTIMIZER,
    "minimum_learning_rate_fraction": _ITS_OPTIMIZER,
    "decay_fraction": _ITS_OPTIMIZER,
    "decay_steps": _ITS_OPTIMIZER,
    "weight_decay": _ITS_OPTIMIZER,
    "fused_optimizer": _ITS_OPTIMIZER,
    "activation_checkpointing": _ITS_CODE,
    "compile": _ITS_CODE,
    "evaluate_every_steps": _AT_EPOCHS,
    "evaluation_batches": _AT_EPOCHS,
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
