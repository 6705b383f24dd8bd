"""The settings of every step: dataclasses only, so that the author's side can read them without the job's packages."""

from trainyard.foundation.configs.check_cluster import CheckCluster
from trainyard.foundation.configs.evaluate import Evaluate
from trainyard.foundation.configs.export_model import ExportModel
from trainyard.foundation.configs.prepare_chat import PrepareChat
from trainyard.foundation.configs.prepare_images import PrepareImages
from trainyard.foundation.configs.prepare_text import PrepareText
from trainyard.foundation.configs.train_lightning import TrainLightning
from trainyard.foundation.configs.training import TrainDDP, TrainDeepSpeed, TrainFSDP, TrainHorovod, TrainSingle

STEP_CONFIGS: dict[str, type] = {
    "prepare_images": PrepareImages,
    "prepare_text": PrepareText,
    "prepare_chat": PrepareChat,
    "train_ddp": TrainDDP,
    "train_fsdp": TrainFSDP,
    "train_deepspeed": TrainDeepSpeed,
    "train_horovod": TrainHorovod,
    "train_lightning": TrainLightning,
    "train_single": TrainSingle,
    "evaluate": Evaluate,
    "export_model": ExportModel,
    "check_cluster": CheckCluster,
}
"""Each step's module name under `trainyard.steps`, with the dataclass of its settings."""

__all__ = [
    "STEP_CONFIGS",
    "CheckCluster",
    "Evaluate",
    "ExportModel",
    "PrepareChat",
    "PrepareImages",
    "PrepareText",
    "TrainDDP",
    "TrainDeepSpeed",
    "TrainFSDP",
    "TrainHorovod",
    "TrainLightning",
    "TrainSingle",
]
