"""A pipeline job: from its YAML, and that of the components it names, to the model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from trainyard.settings.suggestions import did_you_mean
from trainyard.spec.bindings import check_job, cycle_at, find_cycle, texts_in
from trainyard.spec.components import read_command, read_component, read_distribution, read_resources
from trainyard.spec.diagnostic import Related, SpecError
from trainyard.spec.documents import Node, shorten
from trainyard.spec.expressions import bindings_of_value, job_bound_to, only_binding
from trainyard.spec.file_kinds import Kind, kind_of
from trainyard.spec.findings import Findings
from trainyard.spec.job_types import (
    check_arguments,
    check_files,
    check_search_space,
    read_parallel,
    read_spark,
    read_sweep,
    with_own_settings,
)
from trainyard.spec.model import (
    AnyComponent,
    Component,
    Job,
    OtherComponent,
    Pipeline,
    PipelineComponent,
    Port,
    Value,
    code_of,
)
from trainyard.spec.parsed import (
    ParsedPipeline,
    Reading,
    Scope,
    UsedJob,
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
from trainyard.spec.rules.documents import TOO_LARGE, UNKNOWN_KIND
from trainyard.spec.rules.keys import IGNORED_KEY, MISSING_KEY, NOT_RUN_LOCALLY
from trainyard.spec.rules.references import BAD_REFERENCE, COMPONENT_NOT_FOUND, NOT_SEEN_OFFLINE
from trainyard.spec.rules.values import MISSING_INPUT, UNKNOWN_INPUT
from trainyard.spec.shell_words import settings_port

JOB_TYPES = (
    "command",
    "pipeline",
    "parallel",
    "sweep",
    "spark",
    "automl",
    "import",
    "data_transfer",
    "do_while",
    "if_else",
    "parallel_for",
)
# `azureml:` before the path of a file.
_REMOTE_PATH = re.compile(r"azureml:(?:\.|[^/:]+/|[^:]*\.ya?ml$)")
# A component's own, when the job names one.
_IGNORED_BESIDE_COMPONENT = ("command", "code", "environment")

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
    kind = reading.findings.text(node, "type").lower() or ("pipeline" if node.get("jobs") is not None else "command")
    if kind == "command":
        return read_component(node, reading, name=name)
    if kind == "pipeline":
        return _read_pipeline_component(node, reading, cache, name)
    inputs = component_ports(node.get("inputs"), reading)
    outputs = component_ports(node.get("outputs"), reading)
    check_files(node, reading)
    check_arguments(node, inputs, outputs, reading)
    return OtherComponent(inputs, outputs, _code_of_kind(kind, node, inputs, outputs, reading, name))


def _code_of_kind(
    kind: str,
    node: Node,
    inputs: dict[str, Port],
    outputs: dict[str, Port],
    reading: Reading,
    name: str,
    own: Node | None = None,
) -> Component | None:
    """What a parallel or Spark job runs; `own` is the job itself where `node` is its component."""
    if kind == "parallel":
        return read_parallel(node, inputs, outputs, reading, name=name, own=own)
    if kind == "spark":
        return read_spark(node, inputs, outputs, reading, name=name, own=own)
    return None


def read_pipeline(node: Node, reading: Reading, cache: ComponentCache) -> Pipeline:
    """The pipeline of a file. What is wrong goes to the findings."""
    findings = reading.findings
    _check_type(node, findings)
    inputs, outputs = job_ports(node, reading)
    seen = _root_component(node, reading, cache) if node.get("component") is not None else None
    if seen is not None:
        inputs = _with_values(seen.model.inputs, inputs, node, reading)
        outputs = {**seen.model.outputs, **outputs}
        scope, jobs = Scope(inputs, outputs, seen.scope.jobs), seen.model.jobs
    elif node.get("component") is None:
        scope, jobs = _read_jobs(node, inputs, outputs, reading, cache)
    else:
        scope, jobs = Scope(inputs, outputs, {}), {}
    pipeline = Pipeline(
        name=findings.text(node, "name") or reading.file.stem,
        file=reading.file,
        span=node.span,
        inputs=inputs,
        outputs=outputs,
        jobs=jobs,
        default_compute=_default_compute(node, findings),
        display_name=findings.text(node, "display_name"),
        experiment_name=findings.text(node, "experiment_name"),
        description=findings.text(node, "description"),
        force_rerun=findings.boolean(node, "settings", "force_rerun", default=False),
        continue_on_step_failure=findings.boolean(node, "settings", "continue_on_step_failure", default=False),
        default_datastore=findings.text(node, "settings", "default_datastore"),
        on_init=findings.text(node, "settings", "on_init"),
        on_finalize=findings.text(node, "settings", "on_finalize"),
        reference=_kept_reference(node.get("component")),
    )
    body, body_reading = (seen.body, seen.reading) if seen is not None else (node, reading)
    reading.parsed.pipelines.append(ParsedPipeline(body, scope, pipeline, body_reading))
    return pipeline


def _read_pipeline_component(node: Node, reading: Reading, cache: ComponentCache, name: str) -> PipelineComponent:
    """A pipeline component with its jobs, checked as those of a pipeline are."""
    inputs = component_ports(node.get("inputs"), reading)
    outputs = component_ports(node.get("outputs"), reading)
    scope, jobs = _read_jobs(node, inputs, outputs, reading, cache)
    component = PipelineComponent(
        name=reading.findings.text(node, "name") or name,
        file=reading.file,
        span=node.span,
        inputs=inputs,
        outputs=outputs,
        jobs=jobs,
        default_compute=_default_compute(node, reading.findings),
    )
    reading.parsed.pipelines.append(ParsedPipeline(node, scope, component, reading))
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
        _read_settings_file(settings.path.data, reading)
    return component


def read_standalone_job(node: Node, reading: Reading, cache: ComponentCache) -> Pipeline:
    """A command, sweep or Spark job outside of pipelines, as a pipeline of this one job.

    The job's inputs and outputs are those of the pipeline, so that they are set and found as those of any other.
    """
    findings = reading.findings
    inputs, outputs = job_ports(node, reading)
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", reading.file.stem)
    used = _use(name, node, node, reading, cache)
    assert used is not None
    used.inputs = {name: _bound_to("inputs", port) for name, port in inputs.items()}
    used.outputs = {name: _bound_to("outputs", port) for name, port in outputs.items()}
    scope = Scope(inputs, outputs, {})
    _settle_own_ports(used, scope, reading)
    _read_settings_of_job(used, scope, reading)
    job, trial = _model_of(used, reading), node.get("trial")
    if trial is not None and trial.is_mapping:
        # Unlike a component's, which Azure ML drops, those of a sweep job's own trial are sent.
        job = replace(job, environment_variables=_environment_variables(trial, findings))
    return Pipeline(
        name=reading.file.stem,
        file=reading.file,
        span=node.span,
        inputs=inputs,
        outputs=outputs,
        jobs={name: job},
        display_name=findings.text(node, "display_name"),
        experiment_name=findings.text(node, "experiment_name"),
        description=findings.text(node, "description"),
    )


def _bound_to(kind: str, port: Port) -> Value:
    text = f"${{{{parent.{kind}.{port.name}}}}}"
    return Value(text, port.key_span, text)


def _read_jobs(
    body: Node, inputs: Mapping[str, Port], outputs: Mapping[str, Port], reading: Reading, cache: ComponentCache
) -> tuple[Scope, dict[str, Job]]:
    """The jobs of a pipeline, checked against each other: as the YAML and as the model have them."""
    findings = reading.findings
    entries = findings.entries(body.get("jobs"))
    findings.left_out = findings.left_out or not entries
    used: dict[str, UsedJob] = {}
    for name, entry in entries.items():
        job = _use(name, entry.key, entry.value, reading, cache)
        if job is not None:
            used[name] = job
    scope = Scope(inputs, outputs, used)
    for job in used.values():
        _settle_own_ports(job, scope, reading)
    for job in used.values():
        check_job(job, scope, reading)
        _read_settings_of_job(job, scope, reading)
    _check_cycles(used, reading)
    return scope, {name: _model_of(job, reading) for name, job in used.items()}


def _read_settings_of_job(job: UsedJob, scope: Scope, reading: Reading) -> None:
    """Read the settings file that a job names itself, or through an input of the pipeline."""
    port = settings_port(job.component)
    value = job.inputs.get(port) if port is not None else None
    if value is None:
        return
    text = value.data.get("path") if isinstance(value.data, dict) else value.data
    binding = only_binding(text) if isinstance(text, str) else None
    source = scope.inputs.get(".".join(binding.path[2:])) if binding is not None else None
    _read_settings_file(source.path.data if source is not None and source.path is not None else text, reading)


def _read_settings_file(path: object, reading: Reading) -> None:
    """Read a settings file, so that lint checks it too."""
    if not isinstance(path, str) or is_address(path):
        return
    file = reading.path(path)
    if is_there(file, folder=False):
        reading.store.touch(file)
        reading.parsed.settings_files.setdefault(file, set()).add(reading.file)


def _check_type(node: Node, findings: Findings) -> None:
    """Report a pipeline without a `type`: Azure ML's client reads a job without a type as a command job."""
    if node.get("type") is None and node.entries.keys() & {"jobs", "component"}:
        span = next(iter(node.entries.values())).key.span
        message = "'type' is missing: Azure ML takes this for a command job and refuses it"
        findings.add(span, MISSING_KEY, message, hint="Add `type: pipeline`.")


def _root_component(node: Node, reading: Reading, cache: ComponentCache) -> ParsedPipeline | None:
    """What a pipeline with a root `component:` consists of: a pipeline component, in a file or inline."""
    written = node.get("component")
    assert written is not None
    if written.is_mapping:
        component: AnyComponent | None = _read_pipeline_component(written, reading, cache, reading.file.stem)
    else:
        reference = reference_text(written, reading)
        if not reference or _note_remote(written, reference, "component", reading):
            return None
        file = reading.existing(written, COMPONENT_NOT_FOUND, "the component", folder=False)
        component = cache.read(file, reading) if file is not None else None
    return next((seen for seen in reading.parsed.pipelines if seen.model is component), None)


def _with_values(declared: dict[str, Port], given: dict[str, Port], node: Node, reading: Reading) -> dict[str, Port]:
    """The inputs of a pipeline component, set to what the pipeline job gives them."""
    for name, port in given.items():
        if name not in declared:
            message = f"the pipeline sets the input '{shorten(name)}', which its component does not have"
            free = [other for other in declared if other not in given]
            hint = did_you_mean(name, free, "The component has no other inputs." if declared else "It has no inputs.")
            reading.findings.add(port.key_span, UNKNOWN_INPUT, message, hint=hint)
    settled = {}
    for name, port in declared.items():
        value = given.get(name)
        if value is None:
            if port.default is None and not port.optional:
                message = f"the pipeline does not set its component's required input '{name}'"
                related = (Related(port.key_span, f"'{name}' is declared here, without a default"),)
                span = node.key_span("component")
                reading.findings.add(span, MISSING_INPUT, message, related=related)
            settled[name] = port
        else:
            if value.default is not None:
                reading.findings.check_literal(value.default, port)
            settled[name] = port._replace(default=value.default or port.default, path=value.path or port.path)
    return settled


def _use(name: str, key: Node, node: Node, reading: Reading, cache: ComponentCache) -> UsedJob | None:
    findings = reading.findings
    mapping = findings.mapping(node)
    if mapping is None:
        findings.left_out = True
        return None
    used = UsedJob(name, key.span, mapping)
    kind_text = findings.text(mapping, "type").lower() or "command"
    if kind_text not in JOB_TYPES:
        findings.left_out = True
        return used
    _read_bound_ports(used, reading)
    if kind_text != "command":
        _see_ports_of_other_kinds(used, kind_text, reading, cache)
        reference = mapping.get("trial" if kind_text == "sweep" else "component")
        if reference is not None and reference.is_text and is_remote(reference.text):
            _note_remote(reference, reference.text, "trial" if kind_text == "sweep" else "component", reading)
        elif not isinstance(used.component, PipelineComponent) and code_of(used.component) is None:
            message = f"the job '{name}' is of type {kind_text}, which is not run locally"
            hint = "A local run takes jobs of type command, sweep, parallel and spark with local parts."
            findings.add(key.span, NOT_RUN_LOCALLY, message, hint=hint)
        return used
    component = mapping.get("component")
    if component is not None:
        _use_component(used, component, reading, cache)
    elif mapping.get("command") is not None:
        _use_own_command(used, reading)
    else:
        findings.left_out = True
    return used


def _read_bound_ports(used: UsedJob, reading: Reading) -> None:
    for kind, values in (("inputs", used.inputs), ("outputs", used.outputs)):
        for name, entry in reading.findings.entries(used.node.get(kind)).items():
            if isinstance(entry.value.data, list):
                reading.findings.left_out = True
            elif kind == "outputs" or entry.value.data is not None:
                values[name] = _given(entry.value)


def _given(node: Node) -> Value:
    """The value an input is set to: `{value: 3}` is 3; a mapping with a path stays a mapping."""
    return (node.get("value") or node).value


def _see_ports_of_other_kinds(used: UsedJob, kind: str, reading: Reading, cache: ComponentCache) -> None:
    """Read the ports of a job of a type other than command, if it names a component's file."""
    reference = used.node.get("trial" if kind == "sweep" else "component")
    if reference is None and kind in ("parallel", "spark"):
        _check_own_script(used, kind, reading)
    if reference is None and kind == "automl" and used.node.get("outputs") is not None:
        used.component = OtherComponent(None, _own_ports(used.node, reading)[1])
    if reference is not None and reference.is_mapping:
        _read_inline(used, reference, kind, reading, cache)
    if reference is None or not reference.is_text or is_remote(reference.text):
        return
    file = reading.existing(reference, COMPONENT_NOT_FOUND, "the component", folder=False)
    if file is None or _is_flow(file) or _is_endless(file, reference, reading, cache):
        return
    found = cache.read(file, reading)
    if found is None:
        return
    if kind == "sweep":
        _see_ports_of_trial(used, found, reading)
        return
    used.component = found
    if kind in ("parallel", "spark") and isinstance(found, OtherComponent) and found.runs is not None:
        used.component = _with_settings_of_job(used, kind, file, found, found.runs, reading)
    if isinstance(found, Component) and kind in ("parallel", "spark", "pipeline"):
        _note_other_kind(used, reference, "a command component", reading)


def _with_settings_of_job(
    used: UsedJob, kind: str, file: Path, found: OtherComponent, runs: Component, reading: Reading
) -> OtherComponent:
    """A parallel or Spark component as one job uses it: with the job's own settings in place of the component's."""
    document = reading.store.read_mapping(file)
    code = _code_of_kind(kind, document.root, runs.inputs, runs.outputs, reading.of(document), runs.name, used.node)
    return found._replace(runs=code)


def _is_endless(file: Path, reference: Node, reading: Reading, cache: ComponentCache) -> bool:
    """Whether a component contains the file that names it, or is too deep in others; it is then reported."""
    if cache.depth >= _DEEPEST_PIPELINE:
        reading.findings.add(reference.span, TOO_LARGE, f"pipelines are nested more than {_DEEPEST_PIPELINE} deep here")
        return True
    circle = [file, file] if file == reading.file else cache.circle_to(file)
    if len(circle) == 2:
        reading.findings.add(reference.span, BAD_REFERENCE, "the component is this file itself")
    elif circle:
        names = " → ".join(each.name for each in circle)
        message = f"these components contain each other: {names}"
        reading.findings.add(reference.span, BAD_REFERENCE, message, "Remove one of the references.")
    return bool(circle)


def _see_ports_of_trial(used: UsedJob, trial: AnyComponent, reading: Reading) -> None:
    """The ports of a sweep: its trial's, of which it need not set those that the search space sets."""
    declared = trial.inputs or {}
    names = used.node.entries_of("search_space")
    for name, entry in names.items():
        if name not in declared:
            message = f"the search space sets '{shorten(name)}', which the trial does not have"
            free = [other for other in declared if other not in names]
            hint = did_you_mean(name, free, "The trial has no other inputs." if declared else "It has no inputs.")
            reading.findings.add(entry.key.span, UNKNOWN_INPUT, message, hint=hint)
        else:
            for value in _drawn(entry.value):
                reading.findings.check_literal(value, declared[name])
    runs = read_sweep(used.node, with_own_settings(trial, used.node, reading)) if isinstance(trial, Component) else None
    ports = {name: port._replace(optional=True) if name in names else port for name, port in declared.items()}
    used.component = OtherComponent(ports, trial.outputs, runs)


def _drawn(space: Node) -> list[Value]:
    """The values that a search space certainly draws: a choice's, and the ends of a uniform distribution."""
    kind = space.text_of("type").lower()
    if kind == "choice":
        values = space.get("values")
        return [item.value for item in values.items] if values is not None else []
    if kind not in ("uniform", "quniform"):
        return []
    ends = (space.get("min_value"), space.get("max_value"))
    return [end.value for end in ends if end is not None and type(end.data) in (int, float)]


def _check_own_script(used: UsedJob, kind: str, reading: Reading) -> None:
    """An inline parallel or Spark job: its code and arguments, checked against its own ports."""
    inputs, outputs = _own_ports(used.node, reading)
    check_files(used.node, reading)
    check_arguments(used.node, inputs, outputs, reading)
    runs = _code_of_kind(kind, used.node, _without_values(inputs), outputs, reading, used.name)
    used.component = OtherComponent(None, outputs, runs)


def _without_values(inputs: dict[str, Port]) -> dict[str, Port]:
    """The inputs of a job's own code: the values written beside it are what the job sets them to."""
    return {name: port._replace(default=None, path=None) for name, port in inputs.items()}


def _read_inline(used: UsedJob, node: Node, kind: str, reading: Reading, cache: ComponentCache) -> None:
    """An inline component, or a sweep's inline trial."""
    if kind != "sweep":
        used.component = read_any_component(node, reading, cache, name=used.name)
        return
    check_search_space(node, used.node, reading)
    own = node if node.get("inputs") is not None or node.get("outputs") is not None else used.node
    inputs, outputs = _own_ports(own, reading)
    bare = inputs if own is node else _without_values(inputs)
    trial = read_command(node, bare, outputs, reading, name=used.name)
    used.component = OtherComponent(None, outputs, read_sweep(used.node, with_own_settings(trial, used.node, reading)))


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
        word = "an" if kind[0] in "ae" else "a"
        message = f"'{file.name}' is {word} {kind.replace('_', ' ')}, not a component"
        reading.findings.add(component.span, UNKNOWN_KIND, message)
        return kind != "pipeline"
    return False


def _is_flow_run(node: Node) -> bool:
    """Whether a file is the run of a prompt flow, which is used like a component and has no ports of its own."""
    schema = node.get("$schema")
    return node.get("flow") is not None or (schema is not None and "promptflow" in schema.text)


def _use_component(used: UsedJob, component: Node, reading: Reading, cache: ComponentCache) -> None:
    if component.is_mapping:
        used.component = read_any_component(component, reading, cache, name=used.name)
    else:
        used.component = _component_in_file(used, component, reading, cache)
    _note_ignored(used, reading)
    kind = used.node.get("type")
    is_typed = kind is not None and kind.is_text
    if (isinstance(used.component, OtherComponent) and (is_typed or used.component.runs is None)) or (
        isinstance(used.component, PipelineComponent) and is_typed
    ):
        _note_other_kind(used, component, "not a command component", reading)


def _component_in_file(used: UsedJob, component: Node, reading: Reading, cache: ComponentCache) -> AnyComponent | None:
    """The component that a job names by its file; None if it is not readable offline, or not a component."""
    reference = reference_text(component, reading)
    if not reference:
        reading.findings.left_out = True
        return None
    if _note_remote(component, reference, "component", reading):
        return None
    file = reading.existing(component, COMPONENT_NOT_FOUND, "the component", folder=False)
    if file is None or _is_flow(file) or _is_endless(file, component, reading, cache):
        return None
    return None if _is_something_else(file, component, reading) else cache.read(file, reading)


def _note_ignored(used: UsedJob, reading: Reading) -> None:
    """Report keys beside `component` that have no effect; repeating its environment does no harm."""
    own = used.component.environment if isinstance(used.component, Component) else None
    for key in _IGNORED_BESIDE_COMPONENT:
        node = used.node.get(key)
        if node is None or (key == "environment" and own is not None and node.is_text and node.text == own.reference):
            continue
        message = f"'{key}' beside 'component' is ignored: the component's own is used"
        hint = f"Remove '{key}', or change it in the component."
        reading.findings.add(used.node.key_span(key), IGNORED_KEY, message, hint=hint)


def _note_other_kind(used: UsedJob, component: Node, found: str, reading: Reading) -> None:
    """Report a job whose type is not its component's."""
    kind = used.node.get("type")
    message = f"the component of the job '{used.name}' is {found}"
    hint = "Give the job the component's type, or name a component of this one."
    # Without a type, Azure ML's client takes any component; a local run takes those with code of their own.
    rule = BAD_REFERENCE if kind is not None and kind.is_text else NOT_RUN_LOCALLY
    reading.findings.add((kind or component).span, rule, message, hint=hint)


def _note_remote(node: Node, reference: str, what: str, reading: Reading) -> bool:
    if not is_remote(reference):
        return False
    if _REMOTE_PATH.match(reference):
        message = f"'{shorten(reference)}' is neither a file nor an asset"
        hint = f"A file is '{reference.removeprefix('azureml:')}', an asset azureml:NAME:VERSION."
        reading.findings.add(node.span, BAD_REFERENCE, message, hint)
        return True
    message = f"the {what} '{shorten(reference)}' is kept in Azure ML and not readable offline"
    hint = "Name a local file to run or check it here."
    reading.findings.add(node.span, NOT_SEEN_OFFLINE, message, hint=hint)
    return True


def _own_ports(node: Node, reading: Reading) -> tuple[dict[str, Port], dict[str, Port]]:
    """The inputs and outputs of an inline job; anything but a mapping has been reported already."""
    return pipeline_inputs(node.get("inputs"), reading), job_outputs(node.get("outputs"), reading)


def _use_own_command(used: UsedJob, reading: Reading) -> None:
    """A job with its own command, as a component. The types of bound ports are settled later."""
    inputs, outputs = _own_ports(used.node, reading)
    used.component = read_command(used.node, _without_values(inputs), outputs, reading, name=used.name)
    used.has_own_command = True


def _settle_own_ports(job: UsedJob, scope: Scope, reading: Reading) -> None:
    """Give the ports of a job's own command the types of what they are bound to."""
    has_own_ports = job.has_own_command or (isinstance(job.component, OtherComponent) and job.component.inputs is None)
    code = code_of(job.component)
    if not has_own_ports or code is None:
        return
    inputs, outputs = code.inputs, code.outputs
    for name, port in inputs.items():
        value = job.inputs.get(name)
        if value is not None and isinstance(value.data, str) and "${{" in value.data:
            inputs[name] = port._replace(type=_type_of_bound(value.data, scope))
    for name, port in outputs.items():
        value = job.outputs.get(name)
        binding = only_binding(value.data) if value is not None and isinstance(value.data, str) else None
        if binding is not None and binding.path[:2] == ("parent", "outputs"):
            target = scope.outputs.get(".".join(binding.path[2:]))
            outputs[name] = port._replace(type=target.type if target is not None else DEFAULT_PORT_TYPE)


def _type_of_bound(text: str, scope: Scope) -> str:
    """The type of what a whole text is bound to; a text with more than one binding in it is a string."""
    binding = only_binding(text)
    if binding is None:
        return literal_type(text)
    path = binding.path
    if path[:2] == ("parent", "inputs"):
        source = scope.inputs.get(".".join(path[2:]))
        return source.type if source is not None else "string"
    job = scope.jobs.get(job_bound_to(binding))
    if job is None or len(path) < 5:
        return "string"
    ports = job.declared_outputs if path[3] == "outputs" else job.declared_inputs
    port = (ports or {}).get(".".join(path[4:]))
    return port.type if port is not None else DEFAULT_PORT_TYPE


def _check_cycles(used: Mapping[str, UsedJob], reading: Reading) -> None:
    waits_for = {
        name: frozenset(job_bound_to(binding) for binding in bindings_of_value(_bound_data(job))) & used.keys()
        for name, job in used.items()
    }
    cycle = find_cycle(waits_for)
    if not cycle:
        return
    job = used[cycle[0]]
    for node in texts_in(job.node):
        for binding in bindings_of_value(node.text):
            if job_bound_to(binding) == cycle[1]:
                span = reading.document.span_within(node, binding.start, binding.end)
                related = [Related(used[name].key_span, f"the job '{name}' is here") for name in cycle[1:-1]]
                reading.findings.diagnostics.append(cycle_at(span, cycle, related))
                return


def _bound_data(job: UsedJob) -> list[object]:
    keys = ("inputs", "environment_variables", "resources", "distribution")
    return [job.node.data.get(key) for key in keys]


def _model_of(used: UsedJob, reading: Reading) -> Job:
    node, findings = used.node, reading.findings
    # A job's own command has its distribution and resources in that component.
    is_inline = isinstance(used.component, OtherComponent) and used.component.inputs is None
    replaces = code_of(used.component) is not None and not used.has_own_command and not is_inline
    return Job(
        name=used.name,
        key_span=used.key_span,
        span=node.span,
        component=used.component,
        inputs=used.inputs,
        outputs=used.outputs,
        distribution=read_distribution(node, reading) if replaces else None,
        resources=read_resources(node, reading) if replaces else None,
        environment_variables=_environment_variables(node, findings),
        compute=_default_compute(node, findings),
        display_name=findings.text(node, "display_name"),
        timeout_seconds=_time_limit(used, findings),
        reference=_kept_reference(node.get("component") or node.get("trial")),
    )


def _environment_variables(node: Node, findings: Findings) -> dict[str, Value]:
    return {name: entry.value.value for name, entry in findings.entries(node.get("environment_variables")).items()}


def _kept_reference(component: Node | None) -> str:
    """The name of a component that is kept in Azure ML; empty for files and for components written in place."""
    return component.text if component is not None and component.is_text and is_remote(component.text) else ""


def _time_limit(used: UsedJob, findings: Findings) -> Value | None:
    """The `limits.timeout` of a job; a sweep's bounds all of its trials, and is in the sweep."""
    code = code_of(used.component)
    has_own_limits = code is not None and code.task is not None
    return None if has_own_limits else findings.whole_number(used.node, "limits", "timeout", least=1)
