"""Azure ML's own client: submitting a job, and files as objects of its Python SDK. Nothing else imports azure.ai.ml."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from trainyard.azure.workspace import azure_ml
from trainyard.spec.loading import load_component, load_job


def as_job(file: str | os.PathLike[str]) -> Any:
    """Return a pipeline file as an `azure.ai.ml.entities.PipelineJob`, to change and submit in Python.

    Its inputs and jobs are attributes: `job.inputs.epochs = 3`, `job.jobs["train_ddp"].resources.instance_count = 2`.
    Raise SpecError, with every place, for what Trainyard finds wrong in the file, and UserError without azure-ai-ml.
    """
    load_job(Path(file), strict=True, on_azure=True)
    return azure_ml().load_job(os.fspath(file))


def as_component(file: str | os.PathLike[str]) -> Any:
    """Return a component file as an `azure.ai.ml` component, to call in a function under `@azure.ai.ml.dsl.pipeline`.

    Raise SpecError, with every place, for what Trainyard finds wrong in the file, and UserError without azure-ai-ml.
    """
    load_component(Path(file))
    return azure_ml().load_component(os.fspath(file))
