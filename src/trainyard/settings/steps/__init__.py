"""The settings of every step: dataclasses only, so that the author's side can read them without the job's packages."""

from trainyard.settings.steps.measurements import CheckCluster, CompareConfigs, MeasureConfig
from trainyard.settings.steps.models import ComputeReference, Evaluate, ExportModel
from trainyard.settings.steps.preparation import PrepareChat, PrepareImages, PrepareText, PrepareTextSpark
from trainyard.settings.steps.train_tensorflow import TrainTensorFlow
from trainyard.settings.steps.training import (
    TrainDDP,
    TrainDeepSpeed,
    TrainFSDP,
    TrainHorovod,
    TrainLightning,
    TrainSingle,
)

STEP_CONFIGS: dict[str, type] = {
    "prepare_images": PrepareImages,
    "prepare_text": PrepareText,
    "prepare_text_spark": PrepareTextSpark,
    "prepare_chat": PrepareChat,
    "compute_reference": ComputeReference,
    "train_ddp": TrainDDP,
    "train_fsdp": TrainFSDP,
    "train_deepspeed": TrainDeepSpeed,
    "train_horovod": TrainHorovod,
    "train_lightning": TrainLightning,
    "train_single": TrainSingle,
    "train_tensorflow": TrainTensorFlow,
    "evaluate": Evaluate,
    "export_model": ExportModel,
    "check_cluster": CheckCluster,
    "measure_config": MeasureConfig,
    "compare_configs": CompareConfigs,
}
"""Each step's module name under `trainyard.steps`, with the dataclass of its settings."""
