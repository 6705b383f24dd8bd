"""A pipeline job: from its YAML, and that of the components it names, to the model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from trainyard.resources import word_tables
from trainyard.settings.regex import regex
from trainyard.settings.suggestions import is_surely
from trainyard.spec.bindings import check_job, cycle_at, find_cycle, texts_in
from trainyard.spec.components import read_command, read_component, read_distribution, read_resources
from trainyard.spec.diagnostic import Related, SpecError
from trainyard.spec.documents import Node, Value, shorten
from trainyard.spec.expressions import bindings_of_value, job_bound_to, name_bound, only_binding
from trainyard.spec.file_kinds import KIND_NAMES, Kind, kind_of
from trainyard.spec.findings import Findings
from trainyard.spec.job_types import (
    check_arguments,
    check_files,
    check_search_space,
    read_step,
    read_sweep,
    with_own_settings,
)
from trainyard.spec.literals import MISSING_INPUT, UNKNOWN_INPUT
from trainyard.spec.model import (
    AnyComponent,
    Component,
    Job,
    OtherComponent,
    Pipeline,
    PipelineComponent,
    Port,
    code_of,
)
from trainyard.spec.parsed import (
    BAD_REFERENCE,
    COMPONENT_NOT_FOUND,
    NOT_SEEN_OFFLINE,
    ParsedPipeline,
    Reading,
    is_address,
    is_remote,
    is_there,
    reference_text,
)
from trainyard.spec.ports import (
    DEFAULT_PORT_TYPE,
    component_ports,
    job_outputs,
    job_ports,
    literal_type,
    pipeline_inputs,
)
from trainyard.spec.rules import IGNORED_KEY, MISSING_KEY, NOT_RUN_LOCALLY, TOO_LARGE, UNKNOWN_KIND
from trainyard.spec.shell_words import settings_port

JOB_TYPES: list[str] = word_tables("spec")["job_types"]["words"]
# `azureml:` before the path of a file.
_REMOTE_PATH = regex(r"azureml:(?:\.|[^/:]+/|[^:]*\.ya?ml$)")
# A component's own, when the job names one.
_IGNORED_BESIDE_COMPONENT = ("command", "code", "environment")

# What a job may wait for others by.
_BOUND_KEYS = ("inputs", "environment_variables", "resources", "distribution")
_DEEPEST_PIPELINE = 20


class ComponentCache:
    """Components read once each, for all jobs and pipelines that name them."""

    def __init__(self) -> None:
        self._by_file: dict[Path, AnyComponent | None] = {}
        self._being_read: list[Path] = []

    def kind_of_read(self, file: Path) -> Kind | None:
        """The kind of a file that was read as a component, whatever it looks like; None for other files."""
        found = self._by_file.get(file)
        if found is None:
            return None
        return "pipeline_component" if isinstance(found, PipelineComponent) else "component"

    def read(self, file: Path, reading: Reading) -> AnyComponent | None:
        """The component in a file; None if it cannot be read. What is wrong is reported at the first reading."""
        if file not in self._by_file:
            self._by_file[file] = None
            self._being_read.append(file)
            found = reading.of_file(file)
            if found is not None and not _is_flow_run(found.document.root):
                self._by_file[file] = read_any_component(found.document.root, found, self)
            self._being_read.pop()
        return self._by_file[file]

    @property
    def depth(self) -> int:
        """How many components contain the one that is being read."""
        return len(self._being_read)

    def circle_to(self, file: Path) -> list[Path]:
        """The files that contain each other, from one that is being read down to itself; empty without a circle."""
        if file not in self._being_read:
            return []
        return [*self._being_read[self._being_read.index(file) :], file]


def read_any_component(node: Node, reading: Reading, cache: ComponentCache, *, name: str = "") -> AnyComponent:
    """A component of any type, of those not modelled the ports. `name`: as `read_component`."""
    identity = node.find_text("id")
    if identity is not None:
        message = (
            f"a job with this 'id' runs the component '{shorten(identity.text)}' of Azure ML, not what is written here"
        )
        reading.findings.add(IGNORED_KEY.at(identity.span, message, hint="Remove it."))
    kind = reading.findings.text(node, "type").lower() or ("pipeline" if node.get("jobs") is not None else "command")
    if kind == "command":
        return read_component(node, reading, name=name)
    if kind == "pipeline":
        return _read_pipeline_component(node, reading, cache, name)
    inputs = component_ports(node.get("inputs"), reading)
    outputs = component_ports(node.get("outputs"), reading)
    check_files(node, reading)
    check_arguments(node, inputs, outputs, reading)
    return OtherComponent(inputs, outputs, read_step(kind, node, inputs, outputs, reading, name))


def read_pipeline(node: Node, reading: Reading, cache: ComponentCache) -> Pipeline:
    """The pipeline of a file. What is wrong goes to the findings."""
    findings = reading.findings
    _check_type(node, findings)
    inputs, outputs = job_ports(node, reading)
    seen = _root_component(node, reading, cache) if node.get("component") is not None else None
    if seen is not None:
        inputs = _with_values(seen.model.inputs, inputs, node, reading)
        outputs = {**seen.model.outputs, **outputs}
    pipeline = Pipeline(
        name=findings.text(node, "name") or reading.file.stem,
        file=reading.file,
        span=node.span,
        inputs=inputs,
        outputs=outputs,
        jobs=seen.model.jobs if seen is not None else {},
        default_compute=_default_compute(node, findings),
        display_name=findings.text(node, "display_name"),
        experiment_name=findings.text(node, "experiment_name"),
        force_rerun=findings.boolean(node, "settings", "force_rerun", default=False),
        continue_on_step_failure=findings.boolean(node, "settings", "continue_on_step_failure", default=False),
        default_datastore=findings.text(node, "settings", "default_datastore"),
        on_init=findings.text(node, "settings", "on_init"),
        on_finalize=findings.text(node, "settings", "on_finalize"),
        reference=_kept_reference(node.get("component")),
    )
    if node.get("component") is None:
        _add_jobs(pipeline, node, reading, cache)
    body, body_reading = (seen.body, seen.reading) if seen is not None else (node, reading)
    reading.parsed.pipelines.append(ParsedPipeline(body, pipeline, body_reading))
    return pipeline


def _read_pipeline_component(node: Node, reading: Reading, cache: ComponentCache, name: str) -> PipelineComponent:
    """A pipeline component with its jobs, checked as those of a pipeline are."""
    component = PipelineComponent(
        name=reading.findings.text(node, "name") or name,
        file=reading.file,
        span=node.span,
        inputs=component_ports(node.get("inputs"), reading),
        outputs=component_ports(node.get("outputs"), reading),
        jobs={},
        default_compute=_default_compute(node, reading.findings),
    )
    _add_jobs(component, node, reading, cache)
    reading.parsed.pipelines.append(ParsedPipeline(node, component, reading))
    return component


def _default_compute(node: Node, findings: Findings) -> Value | None:
    """The compute of jobs that name none themselves."""
    return findings.scalar(node, "settings", "default_compute") or findings.scalar(node, "compute")


def read_command_job(node: Node, reading: Reading) -> Component:
    """A standalone command job as a component whose defaults are the values of the job's inputs."""
    inputs, outputs = job_ports(node, reading)
    component = read_command(node, inputs, outputs, reading, name=reading.file.stem)
    settings = inputs.get(settings_port(component) or "")
    if settings is not None and settings.path is not None:
        _read_settings_file(settings.path.text, reading)
    return component


def read_standalone_job(node: Node, reading: Reading, cache: ComponentCache) -> Pipeline:
    """A command, sweep or Spark job outside of pipelines, as a pipeline of this one job.

    The job's inputs and outputs are those of the pipeline, so that they are set and found as those of any other.
    """
    findings = reading.findings
    inputs, outputs = job_ports(node, reading)
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", reading.file.stem)
    job = _read_job(name, node, node, reading, cache)
    assert job is not None
    trial = node.get("trial")
    if trial is not None and trial.is_mapping:
        # Unlike a component's, which Azure ML drops, those of a sweep job's own trial are sent.
        job = job._replace(environment_variables=_environment_variables(trial, findings))
    job = job._replace(
        inputs={name: port.bound_to_pipeline("inputs") for name, port in inputs.items()},
        outputs={name: port.bound_to_pipeline("outputs") for name, port in outputs.items()},
    )
    pipeline = Pipeline(
        name=reading.file.stem,
        file=reading.file,
        span=node.span,
        inputs=inputs,
        outputs=outputs,
        jobs={name: job},
        display_name=findings.text(node, "display_name"),
        experiment_name=findings.text(node, "experiment_name"),
    )
    _settle_own_ports(job, pipeline)
    _read_settings_of_job(job, pipeline, reading)
    return pipeline


def _add_jobs(pipeline: PipelineComponent, body: Node, reading: Reading, cache: ComponentCache) -> None:
    """Add the jobs in the body of a pipeline to it, and check them against each other."""
    findings, jobs = reading.findings, pipeline.jobs
    entries = findings.entries(body.get("jobs"))
    findings.left_out = findings.left_out or not entries
    for name, entry in entries.items():
        job = _read_job(name, entry.key, entry.value, reading, cache)
        if job is not None:
            jobs[name] = job
    for job in jobs.values():
        _settle_own_ports(job, pipeline)
    for job in jobs.values():
        check_job(job, pipeline, reading)
        _read_settings_of_job(job, pipeline, reading)
    _check_cycles(jobs, reading)


def _read_settings_of_job(job: Job, pipeline: PipelineComponent, reading: Reading) -> None:
    """Read the settings file that a job names itself, or through an input of the pipeline."""
    port = settings_port(job.component)
    value = job.inputs.get(port) if port is not None else None
    if value is None:
        return
    text = value.text_or_path or ""
    source = pipeline.inputs.get(name_bound(text, "parent.inputs") or "")
    _read_settings_file(source.path.text if source is not None and source.path is not None else text, reading)


def _read_settings_file(path: str, reading: Reading) -> None:
    """Read a settings file, so that lint checks it too."""
    file = reading.path(path)
    if not is_address(path) and is_there(file, folder=False):
        reading.store.touch(file)
        reading.parsed.settings_files.setdefault(file, set()).add(reading.file)


def _check_type(node: Node, findings: Findings) -> None:
    """Report a pipeline without a `type`: Azure ML's client reads a job without a type as a command job."""
    is_misspelt = any(is_surely(key, "type") for key in node.entries)
    if node.get("type") is None and not is_misspelt and node.entries.keys() & {"jobs", "component"}:
        span = next(iter(node.entries.values())).key.span
        message = "'type' is missing: Azure ML takes this for a command job and refuses it"
        findings.add(MISSING_KEY.at(span, message, hint="Add `type: pipeline`."))


def _root_component(node: Node, reading: Reading, cache: ComponentCache) -> ParsedPipeline | None:
    """What a pipeline with a root `component:` consists of: a pipeline component's file."""
    written = node.get("component")
    assert written is not None
    reference = reference_text(written, reading)
    if not reference or _note_remote(written, reference, "component", reading):
        return None
    file = reading.existing(written, COMPONENT_NOT_FOUND, "the component", folder=False)
    component = cache.read(file, reading) if file is not None else None
    return next((seen for seen in reading.parsed.pipelines if seen.model is component), None)


def _with_values(declared: dict[str, Port], given: dict[str, Port], node: Node, reading: Reading) -> dict[str, Port]:
    """The inputs of a pipeline component, set to what the pipeline job gives them."""
    findings = reading.findings
    for name, entry in node.entries_of("inputs").items():
        if name not in declared:
            message = f"the pipeline sets the input '{shorten(name)}', which its component does not have"
            findings.add_undeclared(entry.key, UNKNOWN_INPUT, message, declared, given, "input")
    settled = dict(declared)
    for name, port in declared.items():
        value = given.get(name)
        if value is not None:
            settled[name] = port._replace(default=value.default or port.default, path=value.path or port.path)
        elif port.default is None and not port.optional:
            message = f"the pipeline does not set its component's required input '{name}'"
            related = (Related(port.key_span, f"'{name}' is declared here, without a default"),)
            findings.add(MISSING_INPUT.at(node.key_span("component"), message, related=related))
        if value is not None and value.default is not None:
            findings.check_literal(value.default, port)
    return settled


def _read_job(name: str, key: Node, node: Node, reading: Reading, cache: ComponentCache) -> Job | None:
    findings = reading.findings
    if findings.mapping(node) is None:
        findings.left_out = True
        return None
    job = Job(
        name=name,
        key_span=key.span,
        node=node,
        component=_component_of_job(name, key, node, reading, cache),
        inputs=_bound_ports(node, "inputs", findings),
        outputs=_bound_ports(node, "outputs", findings),
        environment_variables=_environment_variables(node, findings),
        compute=_default_compute(node, findings),
        display_name=findings.text(node, "display_name"),
        reference=_kept_reference(node.get("component") or node.get("trial")),
    )
    code = code_of(job.component)
    # The timeout of a sweep bounds all of its trials, and is in the sweep.
    if code is None or code.task is None:
        job = job._replace(timeout_seconds=findings.whole_number(node, "limits", "timeout", least=1))
    # What is written in a job has its distribution and resources there.
    if code is not None and not job.has_own_code:
        job = job._replace(distribution=read_distribution(node, reading), resources=read_resources(node, reading))
    return job


def _component_of_job(name: str, key: Node, node: Node, reading: Reading, cache: ComponentCache) -> AnyComponent | None:
    """What a job runs; None if it is not readable offline."""
    kind = reading.findings.text(node, "type").lower() or "command"
    component = node.get("trial" if kind == "sweep" else "component")
    if kind not in JOB_TYPES or (kind == "command" and component is None and node.get("command") is None):
        reading.findings.left_out = True
        return None
    if kind == "command" and component is None:
        inputs, outputs = _own_ports(node, reading)
        return read_command(node, _without_values(inputs), outputs, reading, name=name)
    if kind == "command" and component is not None:
        return _component_of_command_job(name, node, component, reading, cache)
    found = _component_of_other_kind(name, node, kind, component, reading, cache)
    if component is not None and isinstance(found, Component) and kind in ("parallel", "spark", "pipeline"):
        _note_other_kind(name, node, component, "a command component", reading)
    if component is not None and component.is_text and is_remote(component.text):
        _note_remote(component, component.text, "trial" if kind == "sweep" else "component", reading)
    elif not isinstance(found, PipelineComponent) and code_of(found) is None:
        message = f"the job '{name}' is of type {kind}, which is not run locally"
        hint = "A local run takes jobs of type command, sweep, parallel and spark with local parts."
        reading.findings.add(NOT_RUN_LOCALLY.at(key.span, message, hint=hint))
    return found


def _bound_ports(node: Node, kind: str, findings: Findings) -> dict[str, Value]:
    values = {}
    for name, entry in findings.entries(node.get(kind)).items():
        if isinstance(entry.value.data, list):
            findings.left_out = True
        elif kind == "outputs" or entry.value.data is not None:
            # `{value: 3}` is 3; a mapping with a path stays a mapping.
            values[name] = (entry.value.get("value") or entry.value).value
    return values


def _component_of_other_kind(
    name: str, node: Node, kind: str, component: Node | None, reading: Reading, cache: ComponentCache
) -> AnyComponent | None:
    """What a job of a type other than command runs, or its ports: from a component's file, or written in the job."""
    if component is None:
        return _own_script(name, node, kind, reading)
    if component.is_mapping and kind == "sweep":
        return _own_trial(name, node, component, reading)
    if component.is_mapping:
        return read_any_component(component, reading, cache, name=name)
    if not component.is_text or is_remote(component.text):
        return None
    file = reading.existing(component, COMPONENT_NOT_FOUND, "the component", folder=False)
    if file is None or _is_flow(file) or _is_endless(file, component, reading, cache):
        return None
    found = cache.read(file, reading)
    if found is not None and kind == "sweep":
        return _sweep_of(node, found, reading)
    if kind in ("parallel", "spark") and isinstance(found, OtherComponent) and found.runs is not None:
        # The job's own settings are in place of the component's.
        its_reading, runs = reading._replace(document=reading.store.read_mapping(file)), found.runs
        body = its_reading.document.root
        return found._replace(runs=read_step(kind, body, runs.inputs, runs.outputs, its_reading, runs.name, node))
    return found


def _is_endless(file: Path, reference: Node, reading: Reading, cache: ComponentCache) -> bool:
    """Whether a component contains the file that names it, or is too deep in others; it is then reported."""
    if cache.depth >= _DEEPEST_PIPELINE:
        message = f"pipelines are nested more than {_DEEPEST_PIPELINE} deep here"
        reading.findings.add(TOO_LARGE.at(reference.span, message))
        return True
    circle = [file, file] if file == reading.file else cache.circle_to(file)
    if len(circle) == 2:
        reading.findings.add(BAD_REFERENCE.at(reference.span, "the component is this file itself"))
    elif circle:
        names = " → ".join(each.name for each in circle)
        message = f"these components contain each other: {names}"
        reading.findings.add(BAD_REFERENCE.at(reference.span, message, "Remove one of the references."))
    return bool(circle)


def _sweep_of(sweep: Node, trial: AnyComponent, reading: Reading) -> OtherComponent:
    """The ports of a sweep: its trial's, of which it need not set those that the search space sets."""
    declared = trial.inputs or {}
    names = sweep.entries_of("search_space")
    for name, entry in names.items():
        if name not in declared:
            message = f"the search space sets '{shorten(name)}', which the trial does not have"
            reading.findings.add_undeclared(entry.key, UNKNOWN_INPUT, message, declared, names, "input")
        else:
            for value in _drawn(entry.value):
                reading.findings.check_literal(value, declared[name])
    runs = read_sweep(sweep, with_own_settings(trial, sweep, reading)) if isinstance(trial, Component) else None
    ports = {name: port._replace(optional=port.optional or name in names) for name, port in declared.items()}
    return OtherComponent(ports, trial.outputs, runs)


def _drawn(space: Node) -> list[Value]:
    """The values that a search space certainly draws: a choice's, and the ends of a uniform distribution."""
    kind = space.text_of("type").lower()
    if kind == "choice":
        return [item.value for item in space.items_of("values")]
    if kind not in ("uniform", "quniform"):
        return []
    ends = (space.get("min_value"), space.get("max_value"))
    return [end.value for end in ends if end is not None and type(end.data) in (int, float)]


def _own_script(name: str, node: Node, kind: str, reading: Reading) -> OtherComponent | None:
    """An inline parallel or Spark job: its code and arguments, checked against its own ports; of AutoML its outputs."""
    inputs, outputs = _own_ports(node, reading)
    if kind in ("parallel", "spark"):
        check_files(node, reading)
        check_arguments(node, inputs, outputs, reading)
        return OtherComponent(None, outputs, read_step(kind, node, _without_values(inputs), outputs, reading, name))
    return OtherComponent(None, outputs) if kind == "automl" and node.get("outputs") is not None else None


def _without_values(inputs: dict[str, Port]) -> dict[str, Port]:
    """The inputs of a job's own code: the values written beside it are what the job sets them to."""
    return {name: port._replace(default=None, path=None) for name, port in inputs.items()}


def _own_trial(name: str, sweep: Node, trial: Node, reading: Reading) -> OtherComponent:
    """A sweep's inline trial."""
    check_search_space(trial, sweep, reading)
    own = trial if trial.get("inputs") is not None or trial.get("outputs") is not None else sweep
    inputs, outputs = _own_ports(own, reading)
    bare = inputs if own is trial else _without_values(inputs)
    runs = read_command(trial, bare, outputs, reading, name=name)
    return OtherComponent(None, outputs, read_sweep(sweep, with_own_settings(runs, sweep, reading)))


def _is_flow(file: Path) -> bool:
    """Whether a file is a prompt flow, whose ports Azure ML generates."""
    return file.name.startswith("flow.") or file.name.startswith("flow_")


def _is_something_else(file: Path, component: Node, reading: Reading) -> bool:
    """Whether a file is certainly not a component; it is then reported where it is named as one."""
    try:
        kind = kind_of(reading.store.read_mapping(file))
    except SpecError:
        return False
    if kind in ("environment", "compute", "schedule", "asset", "pipeline", "sweep_job"):
        message = f"'{file.name}' is {KIND_NAMES[kind]}, not a component"
        reading.findings.add(UNKNOWN_KIND.at(component.span, message))
        return kind != "pipeline"
    return False


def _is_flow_run(node: Node) -> bool:
    """Whether a file is the run of a prompt flow, which is used like a component and has no ports of its own."""
    schema = node.get("$schema")
    return node.get("flow") is not None or (schema is not None and "promptflow" in schema.text)


def _component_of_command_job(
    name: str, node: Node, component: Node, reading: Reading, cache: ComponentCache
) -> AnyComponent | None:
    if component.is_mapping:
        found: AnyComponent | None = read_any_component(component, reading, cache, name=name)
    else:
        found = _component_in_file(component, reading, cache)
    _note_ignored(node, found, reading)
    is_typed = node.find_text("type") is not None
    is_pipeline = isinstance(found, PipelineComponent)
    is_other = isinstance(found, OtherComponent)
    if (is_typed and (is_pipeline or is_other)) or (is_other and code_of(found) is None):
        _note_other_kind(name, node, component, "not a command component", reading)
    return found


def _component_in_file(component: Node, reading: Reading, cache: ComponentCache) -> AnyComponent | None:
    """The component that a job names by its file; None if it is not readable offline, or not a component."""
    reference = reference_text(component, reading)
    if not reference or _note_remote(component, reference, "component", reading):
        return None
    file = reading.existing(component, COMPONENT_NOT_FOUND, "the component", folder=False)
    if file is None or _is_flow(file) or _is_endless(file, component, reading, cache):
        return None
    return None if _is_something_else(file, component, reading) else cache.read(file, reading)


def _note_ignored(job: Node, component: AnyComponent | None, reading: Reading) -> None:
    """Report keys beside `component` that have no effect; repeating its own does no harm."""
    own = component.environment if isinstance(component, Component) else None
    for key in _IGNORED_BESIDE_COMPONENT:
        node, repeated = job.get(key), job.find("component", key)
        if node is None or (repeated is not None and repeated.data == node.data):
            continue  # as the client writes a job out
        if key == "environment" and own is not None and node.is_text and node.text == own.reference:
            continue
        message = f"'{key}' beside 'component' is ignored: the component's own is used"
        hint = f"Remove '{key}', or change it in the component."
        reading.findings.add(IGNORED_KEY.at(job.key_span(key), message, hint=hint))


def _note_other_kind(name: str, job: Node, component: Node, found: str, reading: Reading) -> None:
    """Report a job whose type is not its component's."""
    kind = job.find_text("type")
    message = f"the component of the job '{name}' is {found}"
    hint = "Give the job the component's type, or name a component of this one."
    # Without a type, Azure ML's client takes any component; a local run takes those with code of their own.
    rule = BAD_REFERENCE if kind is not None else NOT_RUN_LOCALLY
    reading.findings.add(rule.at((kind or component).span, message, hint=hint))


def _note_remote(node: Node, reference: str, what: str, reading: Reading) -> bool:
    if not is_remote(reference):
        return False
    if _REMOTE_PATH.match(reference):
        message = f"'{shorten(reference)}' is neither a file nor an asset"
        hint = f"A file is '{reference.removeprefix('azureml:')}', an asset azureml:NAME:VERSION."
        reading.findings.add(BAD_REFERENCE.at(node.span, message, hint))
        return True
    message = f"the {what} '{shorten(reference)}' is kept in Azure ML and not readable offline"
    hint = "Name a local file to run or check it here; `trainyard run` takes one with --set jobs.JOB.component=FILE."
    reading.findings.add(NOT_SEEN_OFFLINE.at(node.span, message, hint=hint))
    return True


def _own_ports(node: Node, reading: Reading) -> tuple[dict[str, Port], dict[str, Port]]:
    """The inputs and outputs of an inline job; anything but a mapping has been reported already."""
    return pipeline_inputs(node.get("inputs"), reading), job_outputs(node.get("outputs"), reading)


def _settle_own_ports(job: Job, pipeline: PipelineComponent) -> None:
    """Give the ports of a job's own command the types of what they are bound to."""
    code = code_of(job.component)
    if not job.has_own_code or code is None:
        return
    inputs, outputs = code.inputs, code.outputs
    for name, port in inputs.items():
        value = job.inputs.get(name)
        if value is not None and isinstance(value.data, str) and "${{" in value.data:
            inputs[name] = port._replace(type=_type_of_bound(value.data, pipeline))
    for name, port in outputs.items():
        value = job.outputs.get(name)
        bound = name_bound(value.data, "parent.outputs") if value is not None and isinstance(value.data, str) else None
        if bound is not None:
            target = pipeline.outputs.get(bound)
            outputs[name] = port._replace(type=target.type if target is not None else DEFAULT_PORT_TYPE)


def _type_of_bound(text: str, pipeline: PipelineComponent) -> str:
    """The type of what a whole string is bound to; one with more than one binding in it is a string."""
    binding = only_binding(text)
    if binding is None:
        return literal_type(text)
    path, name = binding.path, binding.name_in("parent.inputs")
    if name is not None:
        return pipeline.inputs[name].type if name in pipeline.inputs else "string"
    job = pipeline.jobs.get(job_bound_to(binding))
    if job is None or len(path) < 5:
        return "string"
    ports = job.declared_outputs if path[3] == "outputs" else job.declared_inputs
    port = (ports or {}).get(".".join(path[4:]))
    return port.type if port is not None else DEFAULT_PORT_TYPE


def _check_cycles(jobs: Mapping[str, Job], reading: Reading) -> None:
    waits_for = {
        name: frozenset(map(job_bound_to, bindings_of_value([job.node.data.get(key) for key in _BOUND_KEYS])))
        & jobs.keys()
        for name, job in jobs.items()
    }
    cycle = find_cycle(waits_for)
    if not cycle:
        return
    job = jobs[cycle[0]]
    for node in texts_in(job.node):
        for binding in bindings_of_value(node.text):
            if job_bound_to(binding) == cycle[1]:
                span = reading.document.span_within(node, binding.start, binding.end)
                related = [Related(jobs[name].key_span, f"the job '{name}' is here") for name in cycle[1:-1]]
                reading.findings.add(cycle_at(span, cycle, related))
                return


def _environment_variables(node: Node, findings: Findings) -> dict[str, Value]:
    return {name: entry.value.value for name, entry in findings.entries(node.get("environment_variables")).items()}


def _kept_reference(component: Node | None) -> str:
    """The name of a component that is kept in Azure ML; empty for files and for components written in place."""
    return component.text if component is not None and component.is_text and is_remote(component.text) else ""
