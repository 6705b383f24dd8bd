"""Azure ML files that are neither pipelines nor command jobs: what in them names files and ports is checked."""

from __future__ import annotations

import os
from pathlib import Path

from trainyard.spec.components import read_command, read_environment
from trainyard.spec.documents import Node
from trainyard.spec.job_types import check_arguments, check_files, check_script, check_search_space
from trainyard.spec.parsed import (
    CODE_NOT_FOUND,
    COMPONENT_NOT_FOUND,
    DATA_NOT_FOUND,
    Reading,
    is_address,
    is_code_of_this_machine,
    is_remote,
)
from trainyard.spec.pipelines import ComponentCache
from trainyard.spec.ports import check_input_path, job_ports

# Where an AutoML job names its data.
_AUTOML_DATA = ("training_data", "validation_data", "test_data")


def read_sweep_job(node: Node, reading: Reading, cache: ComponentCache) -> None:
    """A standalone sweep: its trial is an inline command, or a component's file."""
    inputs, outputs = job_ports(node, reading)
    trial = node.get("trial")
    if trial is None:
        return
    if trial.is_mapping:
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
    job = node.find_text("create_job") or node.find_text("create_job", "job")
    if job is not None and not is_remote(job.text):
        _read_also(job, "the job", reading)


def _read_also(reference: Node, what: str, reading: Reading) -> None:
    """Read a file that is named, so that it is checked as what it is."""
    file = reading.existing(reference, COMPONENT_NOT_FOUND, what, folder=False)
    if file is not None:
        reading.store.touch(file)


def read_asset(node: Node, reading: Reading) -> None:
    """Data or a model to be registered: a local path is there."""
    check_input_path(node, reading, "the asset")


_PLACEHOLDERS = ("$", "{", "<")
_FILES_OF_ENVIRONMENTS = (("conda_file",), ("build", "path"))


def read_deployment(node: Node, reading: Reading) -> None:
    """Report files of a deployment that are missing; the pipeline component that it runs is read too."""
    environment = node.get("environment")
    parts = [environment, *(node.find("environment", *path) for path in _FILES_OF_ENVIRONMENTS)]
    if environment is not None and not any(part is not None and _is_to_be_filled(part) for part in parts):
        read_environment(environment, reading)
    folder, script = scoring_code(node), _known_text(node, "code_configuration", "scoring_script")
    code = _known_text(node, "code_configuration", "code")
    if code is not None and is_code_of_this_machine(code, reading):
        reading.existing(code, CODE_NOT_FOUND, "the code")
    if folder is not None and script is not None:
        check_script(script, folder, reading)
    model = _known_text(node, "model", "path")
    if model is not None and not is_address(model.text):
        reading.existing(model, DATA_NOT_FOUND, "the model")
    component = _known_text(node, "component")
    if component is not None and not is_remote(component.text):
        # The file of a pipeline job serves as well.
        _read_also(component, "the component", reading)


def scoring_code(deployment: Node) -> Path | None:
    """The folder of a deployment's scoring code; None if it is not on this machine."""
    code = _known_text(deployment, "code_configuration", "code")
    if code is None or ":" in code.text:
        return None
    folder = deployment.span.file.parent / code.text
    return folder if os.path.isdir(folder) else None


def _known_text(node: Node, *keys: str) -> Node | None:
    """The string at a path of keys; None without one, and for one that another program fills in."""
    found = node.find_text(*keys)
    return None if found is None or _is_to_be_filled(found) else found


def _is_to_be_filled(node: Node) -> bool:
    """Whether a string has a place for another program to fill in: `$MODEL`, `{{ model }}`, `<model>`."""
    return any(mark in node.text for mark in _PLACEHOLDERS)
