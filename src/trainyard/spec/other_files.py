"""Azure ML files that are neither pipelines nor command jobs: what in them names files and ports is checked."""

from __future__ import annotations

from trainyard.spec.components import read_command
from trainyard.spec.documents import Node
from trainyard.spec.parsed import Reading
from trainyard.spec.pipelines import ComponentCache
from trainyard.spec.ports import check_input_path, job_ports
from trainyard.spec.reading import is_address, is_remote
from trainyard.spec.rules.references import COMPONENT_NOT_FOUND, DATA_NOT_FOUND
from trainyard.spec.script_steps import check_arguments, check_files, check_search_space

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
