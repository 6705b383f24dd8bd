"""Deployments: the scoring code, environment, model and component that they name."""

from __future__ import annotations

import os
from pathlib import Path

from trainyard.settings.suggestions import close_match
from trainyard.spec.documents import Node
from trainyard.spec.environments import read_environment
from trainyard.spec.parsed import Reading
from trainyard.spec.reading import is_address, is_code_of_this_machine, is_remote
from trainyard.spec.rules.references import (
    CODE_NOT_FOUND,
    COMPONENT_NOT_FOUND,
    DATA_NOT_FOUND,
    SCRIPT_NOT_FOUND,
)
from trainyard.spec.script_steps import python_files

_PLACEHOLDERS = ("$", "{", "<")
_FILES_OF_ENVIRONMENTS = (("conda_file",), ("build", "path"))


def read_deployment(node: Node, reading: Reading) -> None:
    """Report files of a deployment that are missing; the pipeline component that it runs is read too."""
    environment = node.get("environment")
    parts = [environment, *(node.find("environment", *path) for path in _FILES_OF_ENVIRONMENTS)]
    if environment is not None and not any(part is not None and _is_to_be_filled(part) for part in parts):
        read_environment(environment, reading)
    folder, script = scoring_code(node), node.find("code_configuration", "scoring_script")
    code = node.find("code_configuration", "code")
    if code is not None and code.is_text and not _is_to_be_filled(code) and is_code_of_this_machine(code, reading):
        reading.existing(code, CODE_NOT_FOUND, "the code")
    if folder is not None and script is not None and script.is_text and not _is_to_be_filled(script):
        names = python_files(folder)
        if names and not os.path.isfile(folder / script.text):
            message = f"the code '{folder.name}' contains no '{script.text}'"
            reading.findings.add(script.span, SCRIPT_NOT_FOUND, message, close_match(script.text, names))
    model = node.find("model", "path")
    if model is not None and model.is_text and not _is_to_be_filled(model) and not is_address(model.text):
        reading.existing(model, DATA_NOT_FOUND, "the model")
    component = node.get("component")
    if component is None or not component.is_text or _is_to_be_filled(component) or is_remote(component.text):
        return
    file = reading.existing(component, COMPONENT_NOT_FOUND, "the component", folder=False)
    if file is not None:
        # The file of a pipeline job serves as well, so it is checked as what it is.
        reading.store.touch(file)


def scoring_code(deployment: Node) -> Path | None:
    """The folder of a deployment's scoring code; None if it is not on this machine."""
    code = deployment.find("code_configuration", "code")
    if code is None or not code.is_text or _is_to_be_filled(code) or ":" in code.text:
        return None
    folder = deployment.span.file.parent / code.text
    return folder if os.path.isdir(folder) else None


def _is_to_be_filled(node: Node) -> bool:
    """Whether a text has a place for another program to fill in: `$MODEL`, `{{ model }}`, `<model>`."""
    return any(mark in node.text for mark in _PLACEHOLDERS)
