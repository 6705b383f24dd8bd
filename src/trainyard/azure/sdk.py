"""The packages of Azure ML's client, imported where they are needed and without their remarks on themselves."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from typing import Any

from trainyard.azure.workspace import Workspace
from trainyard.errors import UserError


def azure_ml() -> Any:
    """Return the module azure.ai.ml; raise UserError where it is not installed."""
    if not sys.stderr.isatty():
        # Progress bars are for terminals; tqdm reads this as it is imported.
        os.environ.setdefault("TQDM_DISABLE", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # It warns of its own dealings with marshmallow.
        try:
            import azure.ai.ml
            import azure.identity
        except ImportError as error:
            raise UserError(
                f"{error.name} is not installed; a submission needs it: pip install 'trainyard-azureml[azure]'"
            ) from error
    # It warns of every experimental class that it reads a file with, whether or not the file uses it.
    for name in ("azure.ai.ml", "azure.identity"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return azure.ai.ml


def connect(workspace: Workspace) -> Any:
    """Return the client of a workspace, with azure-identity's default credential; nothing is sent yet.

    Raise UserError without azure-ai-ml.
    """
    sdk = azure_ml()
    from azure.identity import DefaultAzureCredential

    return sdk.MLClient(
        DefaultAzureCredential(),
        workspace.subscription,
        workspace.resource_group,
        workspace.name,
        enable_telemetry=False,
        # Without it, version 1.35.2 of the client waits forever when the upload of one file fails.
        show_progress=True,
    )
