"""What a task of your own is written with: the names here stay, whatever moves beneath them.

from trainyard.tasks import Task, TaskSettings, Tensors, parameter
"""

from trainyard.settings.step_fields import parameter
from trainyard.settings.steps.tasks import ImageClassificationSettings, LanguageModelingSettings, TaskSettings
from trainyard.steps.data.dataset.manifest import ArrayType, Manifest, read_manifest
from trainyard.steps.data.dataset.writer import DatasetWriter
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.training.samples.batches import SAMPLE_DRAWS, Tensors
from trainyard.steps.training.tasks.image_classification import ImageClassification
from trainyard.steps.training.tasks.language_modeling import LanguageModeling
from trainyard.steps.training.tasks.task import Sample, SampleRequest, Task

__all__ = [
    "SAMPLE_DRAWS",
    "ArrayType",
    "DatasetWriter",
    "ImageClassification",
    "ImageClassificationSettings",
    "LanguageModeling",
    "LanguageModelingSettings",
    "Manifest",
    "Sample",
    "SampleRequest",
    "StepError",
    "Task",
    "TaskSettings",
    "Tensors",
    "parameter",
    "read_manifest",
]
