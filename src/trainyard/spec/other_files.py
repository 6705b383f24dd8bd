"""Azure ML files that are neither pipelines nor command jobs: what in them names files and ports is checked."""

from __future__ import annotations

import os
from pathlib import Path

from trainyard.settings.suggestions import close_match
from trainyard.spec.components import read_command, read_environment
from trainyard.spec.documents import Node
from trainyard.spec.job_types import check_arguments, check_files, check_search_space, python_files
from trainyard.spec.parsed import Reading, is_address, is_code_of_this_machine, is_remote
from trainyard.spec.pipelines import ComponentCache
from trainyard.spec.ports import check_input_path, job_ports
from trainyard.spec.rules.references import (
    CODE_NOT_FOUND,
    COMPONENT_NOT_FOUND,
    DATA_NOT_FOUND,
    SCRIPT_NOT_FOUND,
)

# Where an AutoML job names its data.
_AUTOML_DATA = ("training_data", "validation_data", "test_data")


def read_sweep_job(node: Node, reading: Reading, cache: ComponentCache) -> None:
    """A standalone sweep: its trial is an inline command, or a component's file."""
    inputs, outputs = job_ports(node, reading)
    trial = node.get("trial")
    if trial is None or trial.data is None:
        reading.findings.left_out = True
    elif trial.is_mapping:
        check_search_space(trial, node, reading)
        read_command(trial, inputs, outputs, reading, name=reading.file.stem)
    elif trial.is_text and not is_remote(trial.text):
        file = reading.existing(trial, COMPONENT_NOT_FOUND, "the trial's component", folder=False)
        if file is not None:
            cache.read(file, reading)


def read_other_job(node: Node, reading: Reading) -> None:
    """A parallel, Spark or AutoML job: its data, its code, and the arguments of its script."""
    inputs, outputs = job_ports(node, reading)
    for key in _AUTOML_DATA:
        data = node.get(key)
        if data is not None:
            check_input_path(data, reading)
    check_files(node, reading)
    check_arguments(node, inputs, outputs, reading)


def read_schedule(node: Node, reading: Reading) -> None:
    """A schedule: the job that it starts is a file, or names one beneath `job`. That file is read too."""
    job = node.get("create_job")
    if job is not None and job.is_mapping:
        job = job.get("job")
    if job is None or not job.is_text or is_remote(job.text):
        return
    file = reading.existing(job, COMPONENT_NOT_FOUND, "the job", folder=False)
    if file is not None:
        reading.store.touch(file)


def read_asset(node: Node, reading: Reading) -> None:
    """Data or a model to be registered: a local path is there."""
    path = node.get("path")
    if path is not None and path.is_text and path.text and not is_address(path.text):
        reading.existing(path, DATA_NOT_FOUND, "the asset")


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
