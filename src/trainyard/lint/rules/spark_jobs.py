"""Spark jobs: how their data is passed, and which machines and executors they take."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from itertools import chain

from trainyard.lint.checks import LintContext, LintedFile, check, known_words
from trainyard.lint.rules.code_folders import FILE_NOT_IN_CODE
from trainyard.lint.script_calls import script_steps
from trainyard.project_files import names_in
from trainyard.settings.regex import regex
from trainyard.settings.suggestions import close_match, only_close, slips
from trainyard.spec.diagnostic import Diagnostic, Related, Severity
from trainyard.spec.documents import Entry, Node, shorten
from trainyard.spec.job_types import python_files
from trainyard.spec.literals import whole_number
from trainyard.spec.model import AnyComponent
from trainyard.spec.parsed import ParsedPipeline
from trainyard.spec.rule import Rule
from trainyard.spec.rules import MISSING_KEY, UNKNOWN_KEY

# What Spark gives to its executors: paths within the code.
_FILE_KEYS = ("py_files", "jars", "files", "archives")
_PLAIN_PATH = regex(r"(?![/~]|\.\.)[\w./ -]+")
_LEAST, _MOST = "spark.dynamicAllocation.minExecutors", "spark.dynamicAllocation.maxExecutors"
_INSTANCES = "spark.executor.instances"
_DYNAMIC = "spark.dynamicAllocation.enabled"
_SETTINGS: list[str] = known_words("spark")
_MOST_SLIPS = 2
_VERSION = regex(r"\s*([0-9]+)\.([0-9]+)")
# https://learn.microsoft.com/azure/machine-learning/apache-spark-azure-ml-concepts
_FIRST_VERSION = (3, 2)
_CORES = ("spark.driver.cores", "spark.executor.cores")
_MEMORIES = ("spark.driver.memory", "spark.executor.memory")
_NEEDED = frozenset({*_CORES, *_MEMORIES, _INSTANCES})
_MEMORY = regex(r"([0-9]+)[a-z]*", re.IGNORECASE)
# Spark takes a number without a unit for megabytes, and no process of it starts with less.
_FEWEST_MEGABYTES = 256
# standard_e8s_v3 has 8 cores: https://learn.microsoft.com/azure/machine-learning/quickstart-spark-jobs
_MACHINE = regex(r"standard_e([0-9]+)s_v3", re.IGNORECASE)


SPARK_MODE = Rule("AML315", "spark-mode", "error").explained(
    summary="Spark reads and writes data only with `mode: direct`.",
    why="Executors on several machines open the addresses themselves; nothing is mounted or copied for them. Azure "
    "ML's client refuses any other mode, and one that is not set.",
)


@check("file")
def _spark_mode(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    if file.kind == "other_job" and file.root.word("type") == "spark":
        yield from _modes(file.root, None)
    if file.kind == "component" and file.root.word("type") == "spark":
        # No job of such a component can have another mode.
        for name, entry in (*file.root.entries_of("inputs").items(), *file.root.entries_of("outputs").items()):
            if entry.value.word("mode") not in ("", "direct"):
                yield _wrong_mode(name, entry.value, "warning")


@check("pipeline")
def _modes_in_pipeline(pipeline: ParsedPipeline, context: LintContext) -> Iterator[Diagnostic]:
    for job in pipeline.model.jobs.values():
        # Without its component, whose ports may be `direct` already, nothing can be said.
        if job.node.word("type") == "spark" and (job.component is not None or job.node.get("component") is None):
            yield from _modes(job.node, job.component)


def _modes(job: Node, component: AnyComponent | None) -> Iterator[Diagnostic]:
    for kind in ("inputs", "outputs"):
        declared = (getattr(component, kind, None) or {}) if component is not None else {}
        for name, entry in job.entries_of(kind).items():
            port = declared.get(name)
            if not _is_data(entry.value) or (port is not None and port.mode == "direct"):
                continue
            mode = entry.value.get("mode")
            if mode is None:
                message = f"the data of a Spark job needs `mode: direct`, and '{name}' has no mode"
                yield SPARK_MODE.at(entry.key.span, message, "Add `mode: direct`.")
            elif mode.text.lower() != "direct" and "${{" not in mode.text:
                yield _wrong_mode(name, entry.value, "error")


def _wrong_mode(name: str, port: Node, severity: Severity) -> Diagnostic:
    mode = port.entries["mode"].value
    message = f"Spark reads and writes data only directly, and '{name}' has the mode {mode.text}"
    return SPARK_MODE.at(mode.span, message, "Write `mode: direct`.", severity=severity)


def _is_data(port: Node) -> bool:
    """Whether a port is data of the job's own: keys such as path, not a literal nor a binding to other ports."""
    if not port.is_mapping or port.get("value") is not None:
        return False
    path = port.get("path")
    return path is None or "${{" not in path.text


SPARK_MACHINES = Rule("AML316", "spark-machines", "error").explained(
    summary="A Spark job takes either a compute or `resources`, and its executors lie within their bounds.",
    why="`resources` are serverless machines, `compute` an attached Synapse pool. Azure ML's client refuses both, "
    "neither, and with dynamic allocation a number of executors outside of minExecutors and maxExecutors. Spark itself "
    "takes memory without a unit for megabytes, and starts no executor with more cores than a machine has.",
)


@check("file")
def _spark_machines(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    for job in file.jobs_of("spark"):
        is_component = file.kind == "component"
        if not is_component:
            yield from _compute_or_resources(job)
        yield from chain(_executors(job), _sizes(job), _types(job), _misspelt(job, is_component))
    for job in file.jobs:
        yield from _runtime(job)


def _compute_or_resources(job: Node) -> Iterator[Diagnostic]:
    compute, resources = _entry(job, "compute"), _entry(job, "resources")
    if compute is None and resources is None:
        message = "a Spark job has a 'compute' or 'resources', and this has neither"
        hint = "Write `resources: {instance_type: standard_e4s_v3, runtime_version: '3.4'}`."
        yield MISSING_KEY.at(job.key_span("type"), message, hint)
    if compute is not None and resources is not None:
        message = "a Spark job takes either a compute or resources, not both"
        related = [Related(resources.key.span, "'resources' are set here")]
        yield SPARK_MACHINES.at(compute.key.span, message, "Remove one of them.", related)


def _executors(job: Node) -> Iterator[Diagnostic]:
    conf, entries = job.get("conf"), job.entries_of("conf")
    switch = conf.get(_DYNAMIC) if conf is not None else None
    if conf is None or switch is None or str(switch.data).lower() != "true":
        return
    least, most, instances = (
        whole_number(entries[key].value.data) if key in entries else None for key in (_LEAST, _MOST, _INSTANCES)
    )
    if least is None or most is None:
        return
    if not 0 < least <= most:
        message = f"expected executors from {least} to {most}: at least 1, and not more than maxExecutors"
        yield SPARK_MACHINES.at(entries[_LEAST].value.span, message, f"Write a number from 1 to {max(most, 1)}.")
    elif instances and not least <= instances <= most:
        message = f"{instances} executors are not between minExecutors ({least}) and maxExecutors ({most})"
        hint = f"Write a number from {least} to {most}, or leave it out."
        yield SPARK_MACHINES.at(entries[_INSTANCES].value.span, message, hint)


def _written(job: Node, keys: Iterable[str]) -> Iterator[tuple[str, Node]]:
    """The settings of these names that have a value of their own, not that of a binding."""
    for key, entry in job.entries_of("conf").items():
        if key in keys and entry.value.data is not None and "${{" not in entry.value.text:
            yield key, entry.value


def _sizes(job: Node) -> Iterator[Diagnostic]:
    """Memory and cores of the driver and the executors."""
    for _, memory in _written(job, _MEMORIES):
        form = _MEMORY.fullmatch(memory.text.strip())
        if form is None:
            message = f"Spark does not read '{memory.text}' as memory"
            yield SPARK_MACHINES.at(memory.span, message, "Write a whole number and a unit, such as 2g.")
        elif form[0].isdecimal() and int(form[0]) < _FEWEST_MEGABYTES:
            message = f"without a unit, {form[0]} is megabytes, with which Spark does not start"
            yield SPARK_MACHINES.at(memory.span, message, f"Write {form[0]}g.")
    machine = job.find("resources", "instance_type")
    size = _MACHINE.fullmatch(machine.text) if machine is not None else None
    for key, cores in _written(job, _CORES):
        count = whole_number(cores.data)
        if count is None or count < 1:
            yield SPARK_MACHINES.at(cores.span, f"'{key}' is a whole number from 1 on, not '{cores.text}'")
        elif machine is not None and size is not None and count > int(size[1]):
            message = f"{count} cores for one process, and a {machine.text} has {size[1]}"
            related = [Related(machine.span, "the machine is named here")]
            yield SPARK_MACHINES.at(cores.span, message, f"Write {size[1]} or less.", related)


def _types(job: Node) -> Iterator[Diagnostic]:
    """Settings that are whole numbers, or true or false, and have another value."""
    for key, node in _written(job, (_INSTANCES, _LEAST, _MOST)):
        if whole_number(node.data) is None:
            yield SPARK_MACHINES.at(node.span, f"'{key}' is a whole number, not '{node.text}'")
    for key, node in _written(job, (_DYNAMIC,)):
        if str(node.data).lower() not in ("true", "false"):
            yield SPARK_MACHINES.at(node.span, f"'{key}' is true or false, not '{shorten(node.text)}'")


def _misspelt(job: Node, is_component: bool) -> Iterator[Diagnostic]:
    """Settings of Spark that differ by a typo from a known one."""
    entries = job.entries_of("conf")
    for key, entry in entries.items():
        meant = next((known for known in _SETTINGS if _is_slip(key, known)), None) if key not in _SETTINGS else None
        # Jobs need the first of them, and a misspelt one is reported as what is missing.
        if meant is not None and meant not in entries and (is_component or meant not in _NEEDED):
            message = f"unknown setting '{shorten(key)}'; Spark ignores it"
            hint = f"Did you mean '{meant}'?"
            yield UNKNOWN_KEY.at(entry.key.span, message, hint, replacement=meant, severity="warning")


def _is_slip(key: str, known: str) -> bool:
    """Whether a key is a known one without `spark.`, or with one or two letters wrong."""
    if f"spark.{key}" == known or key.lower() == known.lower():
        return True
    return abs(len(key) - len(known)) <= _MOST_SLIPS and slips(key, known) <= _MOST_SLIPS


def _runtime(job: Node) -> Iterator[Diagnostic]:
    """A version of Spark before the first that Azure ML has had."""
    version = job.find("resources", "runtime_version")
    form = _VERSION.match(version.text) if version is not None else None
    if version is not None and form is not None and (int(form[1]), int(form[2])) < _FIRST_VERSION:
        message = f"Azure ML has no Spark {version.text}: its first version was 3.2"
        yield SPARK_MACHINES.at(version.span, message, 'Write `runtime_version: "3.4"`.', severity="warning")


@check("file")
def _files_of_spark(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    """Modules and archives that a Spark step names and its code does not have; archives may be built later."""
    for step in script_steps(file):
        code = step.code if step.is_spark else None
        names = [] if code is None else list(python_files(code))
        for item in (item for key in _FILE_KEYS for item in step.node.items_of(key)):
            if code is None or not names or not item.is_text or not _PLAIN_PATH.fullmatch(item.text):
                continue
            siblings = names_in(code)
            meant = only_close(item.text, siblings)
            if not os.path.lexists(code / item.text) and (meant is not None or item.text.endswith(".py")):
                message = f"the code '{code.name}' contains no '{shorten(item.text)}'"
                yield FILE_NOT_IN_CODE.at(item.span, message, close_match(item.text, [*siblings, *names]))


def _entry(job: Node, key: str) -> Entry | None:
    """A key and its value, unless that is empty."""
    entry = job.entries.get(key)
    return entry if entry is not None and entry.value.data else None
