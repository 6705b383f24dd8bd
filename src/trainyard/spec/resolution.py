"""The resolved value of everything in a pipeline, through any depth of nested pipelines.

Each value is `Known`, `Unknown` with the reason, or `Wrong` with a diagnostic. Jobs of pipelines within a pipeline have
dotted names: the job `train` of the pipeline component that the job `fit` uses is `fit.train`. Lint, plan and run read
values here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import chain, islice
from types import MappingProxyType
from typing import TYPE_CHECKING

from trainyard.spec.bindings import MACROS, cycle_at, find_cycle
from trainyard.spec.diagnostic import Span, SpecError
from trainyard.spec.distributions import TensorFlow
from trainyard.spec.documents import Node, Value, describe
from trainyard.spec.expressions import (
    CYCLE,
    MALFORMED_EXPRESSION,
    UNKNOWN_JOB_PORT,
    UNKNOWN_PIPELINE_PORT,
    UNKNOWN_SCOPE,
    Binding,
    ExpressionError,
    Literal,
    bindings_of_value,
    name_bound,
    only_binding,
    parse_expressions,
)
from trainyard.spec.findings import DocumentStore
from trainyard.spec.literals import MISSING_INPUT, whole_number
from trainyard.spec.model import Component, Job, Pipeline, PipelineComponent, Port, ProcessCounts, code_of
from trainyard.spec.resolved import (
    DataPath,
    JobOutput,
    Known,
    PipelineOutput,
    Resolved,
    Unknown,
    Wrong,
    is_literal,
    settled,
    value_of_port,
    wrong_value,
)
from trainyard.spec.rules import OUT_OF_BOUNDS, TOO_LARGE, WRONG_TYPE
from trainyard.spec.shell_words import step_call

if TYPE_CHECKING:
    from trainyard.spec.step_settings import StepSettings

# Pipelines that use each other twice at every level have millions of jobs after twenty levels.
_MOST_JOBS = 10_000
# Bindings to bindings; nobody chains more, and each costs some of Python's stack.
_LONGEST_CHAIN = 100


class Resolution:
    """A pipeline with every binding followed.

    `settings` are values in place of those written, by key: `inputs.epochs`, `jobs.fit.train.inputs.epochs`. A
    pipeline component can be resolved by itself; what its users set is unknown then. Settings files are read through
    `store`. With `takes_any_literal`, literals that do not suit their inputs are passed on as they were written, as
    Azure ML does.
    """

    def __init__(
        self,
        pipeline: PipelineComponent,
        settings: Mapping[str, Value] = MappingProxyType({}),
        *,
        store: DocumentStore | None = None,
        takes_any_literal: bool = False,
    ) -> None:
        self.pipeline = pipeline
        self.settings = settings
        self.store = store or DocumentStore()
        self.takes_any_literal = takes_any_literal
        self.depth = 0
        self._body = _Body(self, pipeline, None)

    @cached_property
    def uses(self) -> dict[str, JobUse]:
        """Every job at every depth, by its dotted name, as written."""
        found = {use.name: use for use in islice(self._body.all_uses(), _MOST_JOBS + 1)}
        if len(found) > _MOST_JOBS:
            message = f"nested pipelines make more than {_MOST_JOBS:,} jobs of this one"
            raise SpecError(TOO_LARGE.at(self.pipeline.span, message))
        return found

    @cached_property
    def jobs(self) -> dict[str, JobUse]:
        """The jobs at every depth that run code of their own, by their dotted names, as written."""
        return {name: use for name, use in self.uses.items() if code_of(use.job.component) is not None}

    @cached_property
    def leaves(self) -> dict[str, JobUse]:
        """The jobs at every depth that hold no others: `jobs`, and those of which no code is seen here."""
        return {name: use for name, use in self.uses.items() if use.within is None}

    @cached_property
    def inputs(self) -> dict[str, Resolved]:
        """The pipeline's own inputs."""
        return {name: self._body.input(name, port.key_span) for name, port in self.pipeline.inputs.items()}

    @cached_property
    def outputs(self) -> dict[str, JobOutput]:
        """The job that writes each of the pipeline's outputs; those that no job is bound to are left out."""
        found = {name: self._body.writer_of(name) for name in self.pipeline.outputs}
        return {name: output for name, output in found.items() if output is not None}

    @cached_property
    def waits_for(self) -> dict[str, frozenset[str]]:
        """For each of these jobs, those whose outputs it reads."""
        return {name: use.reads_from & self.jobs.keys() for name, use in self.jobs.items()}

    @cached_property
    def starts_after(self) -> dict[str, frozenset[str]]:
        """For each job, those that have to end before it starts, whatever becomes of them: `on_init`, `on_finalize`."""
        pipeline = self.pipeline
        first, last = (pipeline.on_init, pipeline.on_finalize) if isinstance(pipeline, Pipeline) else ("", "")
        firsts, lasts = self._jobs_of(first), self._jobs_of(last)
        after: dict[str, frozenset[str]] = {}
        for name in self.jobs:
            if name in lasts:
                after[name] = frozenset(self.jobs) - lasts
            elif name in firsts:
                after[name] = frozenset()
            else:
                after[name] = firsts
        return after

    def _jobs_of(self, job: str) -> frozenset[str]:
        """A job of the pipeline, or those nested in it; none for an empty name."""
        return frozenset(name for name in self.jobs if job and name.split(".")[0] == job)

    def order(self, of: Mapping[str, JobUse] | None = None) -> list[str]:
        """The jobs that run code (or those given), each after those it waits for; otherwise as written.

        Raises SpecError, naming the whole cycle, when jobs wait for each other.
        """
        jobs = self.jobs if of is None else of
        remaining = {name: use.reads_from & jobs.keys() for name, use in jobs.items()}
        cycle = find_cycle(remaining)
        if cycle:
            raise SpecError(cycle_at(jobs[cycle[0]].job.key_span, cycle))
        order: list[str] = []
        while remaining:
            ready = next(name for name, needed in remaining.items() if not needed & remaining.keys())
            order.append(ready)
            del remaining[ready]
        return order


def resolve_component(component: Component, node: Node, store: DocumentStore | None = None) -> JobUse:
    """A command component by itself, or a standalone command job, from its YAML; what its users set is unknown."""
    bound = {name: port.bound_to_pipeline("inputs") for name, port in component.inputs.items()}
    compute, variables = node.get("compute"), node.entries_of("environment_variables")
    job = Job(
        component.name,
        component.span,
        node,
        component,
        inputs=bound,
        environment_variables={name: entry.value.value for name, entry in variables.items()},
        compute=compute.value if compute is not None and compute.data is not None else None,
    )
    alone = PipelineComponent(component.name, component.file, component.span, component.inputs, {}, {job.name: job})
    return Resolution(alone, store=store).jobs[job.name]


class JobUse:
    """One use of a job: the job in the pipeline component that holds it, as a job of the outer pipeline uses that."""

    def __init__(self, body: _Body, job: Job) -> None:
        self.job = job
        self.name = f"{body.prefix}{job.name}"
        self._body = body
        self._inputs: dict[str, Resolved] = {}

    @property
    def component(self) -> Component:
        """What a job runs, if it runs code of its own."""
        component = code_of(self.job.component)
        assert component is not None
        return component

    @cached_property
    def within(self) -> _Body | None:
        """The jobs nested in a pipeline component; None for other jobs."""
        component = self.job.component
        return _Body(self._body.resolution, component, self) if isinstance(component, PipelineComponent) else None

    @property
    def inputs(self) -> dict[str, Resolved]:
        """Every input that the component declares, or that the job sets if the component is unknown."""
        declared = self.declared
        return {name: self.input(name) for name in (self.job.inputs if declared is None else declared)}

    @property
    def declared(self) -> Mapping[str, Port] | None:
        """The inputs that are declared, None if they are unknown."""
        component = code_of(self.job.component) or self.job.component
        return component.inputs if component is not None else None

    def input(self, name: str) -> Resolved:
        """The value of an input: what the job sets, else its component's default."""
        if name not in self._inputs:
            self._inputs[name] = self._chained(name, "to itself")
            resolution = self._body.resolution
            resolution.depth += 1
            too_long = resolution.depth > _LONGEST_CHAIN
            self._inputs[name] = self._chained(name, "through too many others") if too_long else self._input(name)
            resolution.depth -= 1
        return self._inputs[name]

    def _chained(self, name: str, to: str) -> Wrong:
        span = self.job.inputs[name].span if name in self.job.inputs else self.job.key_span
        message = f"the input '{name}' of the job '{self.name}' is bound {to}"
        return Wrong(CYCLE.at(span, message, hint="Bind it to something else."))

    def _input(self, name: str) -> Resolved:
        key, declared = f"jobs.{self.name}.inputs.{name}", self.declared
        port = declared.get(name) if declared is not None else None
        value = self._body.resolution.settings.get(key) or self.job.inputs.get(name)
        if declared is not None and port is None:
            message = f"the job '{self.name}' has no input '{name}'"
            return Wrong(UNKNOWN_JOB_PORT.at(self.job.key_span, message))
        if value is None and port is not None:
            value = port.default
        if value is None or value.data is None:
            if port is None:
                return Unknown(f"the component of the job '{self.name}' is not readable offline", self.job.key_span)
            if port.optional:
                return Known(None, Value(None, port.key_span), key)
            message = f"the job '{self.name}' does not set the required input '{name}'"
            return Wrong(MISSING_INPUT.at(self.job.key_span, message))
        resolved = self._body.resolve(value, key)
        resolved = resolved if port is None else self._body.typed(resolved, port, value)
        own_type = _type_of(self.job.inputs.get(name))
        if own_type and isinstance(resolved, Known) and isinstance(resolved.value, DataPath):
            return resolved._replace(value=resolved.value._replace(type=own_type))
        return resolved

    def input_mode(self, name: str) -> str:
        """How data come to the job: as it says itself, else its component, else the pipeline's input. By a mount."""
        declared, written = (self.declared or {}).get(name), self.job.inputs.get(name)
        data = written.data if written is not None else None
        own = data.get("mode") if isinstance(data, dict) else None
        bound = name_bound(data, "parent.inputs") if isinstance(data, str) else None
        of_pipeline = self._body.pipeline.inputs.get(bound or "")
        ports = [port.mode for port in (declared, of_pipeline) if port is not None]
        return next((str(mode) for mode in (own, *ports) if mode), "ro_mount")

    def resolve(self, value: Value) -> Resolved:
        """Resolve a value that is written in this job, or in its component."""
        return self._body.resolve(value, own=self)

    @cached_property
    def step_settings(self) -> StepSettings | None:
        """The settings of the step of Trainyard's that this job runs; None if it runs something else."""
        component = code_of(self.job.component)
        command = component.command.data if component is not None else None
        call = step_call(command) if isinstance(command, str) else None
        if component is None or call is None:
            return None
        from trainyard.spec.step_settings import StepSettings  # 10 ms to import, for jobs that run a step

        return StepSettings(
            self.name,
            component,
            call,
            self._body.resolution.store,
            input_of=self.input,
            resolve=self.resolve,
        )

    @property
    def settings(self) -> dict[str, Resolved]:
        """Every setting and input of a job that runs a step of Trainyard's; of other jobs their inputs."""
        return self.step_settings.values if self.step_settings is not None else self.inputs

    def setting(self, name: str) -> Resolved:
        """A setting of the step that this job runs, or an input; None as its value where the job has neither."""
        found = self.step_settings.value(name) if self.step_settings is not None else None
        if found is not None:
            return found
        if name in (self.declared or {}):
            return self.input(name)
        return Known(None, Value(None, self.job.key_span))

    @property
    def instance_count(self) -> Resolved:
        """The nodes of a command job."""
        resources = self.job.effective_resources
        given = resources.instance_count if resources is not None else None
        return self._count(given, "instance_count") if given is not None else self._by_default(1)

    @property
    def worker_count(self) -> Resolved:
        """TensorFlow's workers; by default one on each node."""
        return self._given_count("worker_count") or self.instance_count

    @property
    def parameter_server_count(self) -> Resolved:
        """TensorFlow's parameter servers, which train on no samples."""
        return self._given_count("parameter_server_count") or self._by_default(0)

    @property
    def processes_per_node(self) -> Resolved:
        """The most processes on one node: `process_count_per_instance`, else 1; for TensorFlow what its counts make."""
        if not isinstance(self.job.effective_distribution, TensorFlow):
            return self._given_count("process_count_per_instance") or self._by_default(1)
        workers = self.worker_count
        for needed in (self.instance_count, workers, self.parameter_server_count):
            if not isinstance(needed, Known):
                return needed
        assert isinstance(workers, Known)
        return workers._replace(value=self.processes().processes_per_node)

    @property
    def sharing_each_batch(self) -> tuple[Resolved, ...]:
        """The factors of the processes that share each batch: nodes × processes, for TensorFlow its workers alone."""
        if isinstance(self.job.effective_distribution, TensorFlow):
            return (self.worker_count,)
        return self.instance_count, self.processes_per_node

    def processes(self) -> ProcessCounts:
        """The processes that Azure ML starts for a command job. Raises as `settled` does."""
        nodes, distribution = _whole(self.instance_count), self.job.effective_distribution
        if distribution is None:
            return ProcessCounts(nodes, 1, nodes)
        counts = {key: self._given_count(key) for key in distribution.counts}
        return distribution.process_counts(
            nodes, {key: _whole(count) for key, count in counts.items() if count is not None}
        )

    def _given_count(self, key: str) -> Resolved | None:
        """A count of the job's distribution; None if it is not given."""
        distribution = self.job.effective_distribution
        value: Value | None = getattr(distribution, key, None)
        if distribution is None or value is None:
            return None
        return self._count(value, key, distribution.counts[key])

    def _by_default(self, count: int) -> Known:
        return Known(count, Value(count, self.job.key_span))

    def _count(self, value: Value, what: str, least: int = 1) -> Resolved:
        resolved = self._body.resolve(value, own=self)
        if not isinstance(resolved, Known):
            return resolved
        number = whole_number(resolved.value)
        if number is not None and number >= least:
            return resolved._replace(value=number)
        found = describe(resolved.value) if isinstance(resolved.value, (str, int, float)) else "not a literal"
        message = f"'{what}' of the job '{self.name}' is {found}; expected a whole number of at least {least}"
        return wrong_value(value, OUT_OF_BOUNDS, message, resolved)

    @property
    def instance_type(self) -> Resolved | None:
        """The VM size that a command job asks for itself; None if it does not."""
        resources = self.job.effective_resources
        value = resources.instance_type if resources else None
        return self._body.resolve(value, own=self) if value is not None else None

    @property
    def compute(self) -> Resolved | None:
        """Where a job runs: its own compute, else that of the nearest pipeline around it that has one."""
        if self.job.compute is not None:
            return self._body.resolve(self.job.compute)
        return self._body.compute

    @property
    def environment_variables(self) -> dict[str, Resolved]:
        """The variables that the job sets, as text."""
        return {name: self._variable(value) for name, value in self.job.environment_variables.items()}

    def _variable(self, value: Value) -> Resolved:
        resolved = self._body.resolve(value)
        if not isinstance(resolved, Known):
            return resolved
        binding = only_binding(value.data) if isinstance(value.data, str) else None
        if binding is not None and resolved.value is None:
            return _not_given(binding, value)
        if binding is not None and isinstance(resolved.value, (DataPath, JobOutput)):
            return Unknown(f"{binding.text} is not a literal, and cannot be filled into a string", value.span)
        return resolved._replace(value=str(resolved.value))

    @property
    def timeout_seconds(self) -> Resolved | None:
        """The limit of a job's time; None if it has none."""
        value = self.job.timeout_seconds
        return None if value is None else self._count(value, "limits.timeout")

    @property
    def outputs(self) -> dict[str, Resolved]:
        """Where each output goes: an output of the pipeline, a path, or (None) wherever Azure ML puts it."""
        code = code_of(self.job.component) or self.job.component
        declared = (code.outputs if code is not None else None) or {}
        return {name: self._output(name) for name in {**declared, **self.job.outputs}}

    def _output(self, name: str) -> Resolved:
        value = self.job.outputs.get(name)
        if value is None:
            return Known(None, Value(None, self.job.key_span))
        text = value.text_or_path
        if text is None:
            return Known(None, value)
        bound = name_bound(text, "parent.outputs")
        if bound is None:
            return self._body.resolve(Value(text, value.span, text))
        return self._body.output(bound, value)

    @cached_property
    def reads_from(self) -> frozenset[str]:
        """The jobs, at any depth, whose outputs this one is bound to."""
        resources, distribution = self.job.resources, self.job.distribution
        counts = (
            resources.instance_count if resources else None,
            distribution.process_count_per_instance if distribution else None,
        )
        others = (value for value in (*self.job.environment_variables.values(), *counts) if value is not None)
        outputs = [output for value in others for output in self._body.outputs_in(value)]
        return frozenset(output.job for output in (*outputs, *chain.from_iterable(self.outputs_read.values())))

    @cached_property
    def outputs_read(self) -> dict[str, tuple[JobOutput, ...]]:
        """By input: the outputs of jobs, at any depth, that it is bound to."""
        return {name: tuple(dict.fromkeys(self._body.outputs_in(value))) for name, value in self.job.inputs.items()}

    def outputs_given(self, name: str, followed: frozenset[tuple[str, str]]) -> Iterator[JobOutput]:
        """The outputs of jobs that one input is bound to; `followed` are the inputs that led here."""
        value = self.job.inputs.get(name)
        if value is not None and (self.name, name) not in followed:
            yield from self._body.outputs_in(value, followed | {(self.name, name)})


class _Body:
    """The jobs of a pipeline, or of one use of a pipeline component, and what `${{parent.…}}` means to them."""

    def __init__(self, resolution: Resolution, pipeline: PipelineComponent, user: JobUse | None) -> None:
        self.resolution = resolution
        self.pipeline = pipeline
        self.user = user
        self.prefix: str = f"{user.name}." if user is not None else ""
        self.uses = {name: JobUse(self, job) for name, job in pipeline.jobs.items()}
        self._inputs: dict[str, Resolved] = {}

    def all_uses(self) -> Iterator[JobUse]:
        """Each job, followed by those nested in it."""
        for use in self.uses.values():
            yield use
            if use.within is not None:
                yield from use.within.all_uses()

    @property
    def compute(self) -> Resolved | None:
        """The compute of jobs that name none themselves."""
        user = self.user
        if user is not None and user.job.compute is not None:
            return user.compute
        default = self.pipeline.default_compute
        if default is not None:
            return self.resolve(default)
        return user.compute if user is not None else None

    def input(self, name: str, span: Span) -> Resolved:
        """The value of `${{parent.inputs.NAME}}`; `span` is where it is used."""
        if name not in self.pipeline.inputs:
            message = f"the pipeline has no input '{name}'"
            return Wrong(UNKNOWN_PIPELINE_PORT.at(span, message))
        if self.user is not None:
            return self.user.input(name)
        if name not in self._inputs:
            self._inputs[name] = self._own_input(self.pipeline.inputs[name])
        return self._inputs[name]

    def _own_input(self, port: Port) -> Resolved:
        key = f"inputs.{port.name}"
        value = self.resolution.settings.get(key) or port.path or port.default
        if value is None:
            if port.optional:
                return Known(None, Value(None, port.key_span), key)
            if isinstance(self.pipeline, Pipeline):
                hint = (
                    f"Give one with --set {key}=VALUE."
                    if port.is_parameter
                    else f"Give data with --set {key}.path=./data."
                )
                return Unknown(f"the pipeline's input '{port.name}' has no value", port.key_span, hint)
            return Unknown(f"the input '{port.name}' is set by the users of this component", port.key_span)
        if isinstance(value.data, dict):
            return self.resolve(value, key)
        known = Known(value.data if is_literal(value.data) else None, value, key)
        # `name: 1` declares no type: the value has to suit only what it is bound to.
        is_bare = port.default is not None and port.default.span == port.span
        return known if is_bare else self.typed(known, port, value)

    def resolve(self, value: Value, key: str = "", own: JobUse | None = None) -> Resolved:
        """Resolve a value that is written in a job here; `own` is the job that `${{inputs.x}}` refers to."""
        data = value.data
        if isinstance(data, dict):
            path = data.get("path")
            if not isinstance(path, str):
                return wrong_value(value, WRONG_TYPE, "expected a 'path' or a 'value'")
            resolved = self.resolve(Value(path, value.span, path), key and f"{key}.path", own)
            if isinstance(resolved, Known) and isinstance(resolved.value, str):
                given = DataPath(resolved.value, _type_of(value))
                return resolved._replace(value=given, key=resolved.key.removesuffix(".path"))
            return resolved
        if not isinstance(data, str) or "${{" not in data:
            return Known(data if is_literal(data) else None, value, key)
        binding = only_binding(data)
        resolved = self._filled(value, key, own) if binding is None else self._follow(binding, value, own)
        if isinstance(resolved, Unknown) and key and not resolved.hint and resolved.output is None:
            what = "./data" if key.endswith(".path") else "VALUE"
            return resolved._replace(hint=f"Give another in its place with --set {key}={what}.")
        return resolved

    def _filled(self, value: Value, key: str, own: JobUse | None) -> Resolved:
        """A string with bindings in it, each of which stands for a literal."""
        try:
            segments = parse_expressions(value.data)
        except ExpressionError as error:
            return wrong_value(value, MALFORMED_EXPRESSION, str(error))
        text = ""
        for segment in segments:
            if isinstance(segment, Literal):
                text += segment.text
                continue
            if not isinstance(segment, Binding):
                return wrong_value(value, MALFORMED_EXPRESSION, "'$[[ … ]]' is for commands only")
            resolved = self._follow(segment, value, own)
            if not isinstance(resolved, Known):
                return resolved
            if resolved.value is None:
                return _not_given(segment, value)
            if not is_literal(resolved.value):
                return Unknown(f"{segment.text} is not a literal, and cannot be filled into a string", value.span)
            text += str(resolved.value)
        return Known(text, value._replace(data=text, text=text), key)

    def _follow(self, binding: Binding, value: Value, own: JobUse | None) -> Resolved:
        path = binding.path
        name = ".".join(path[4:])
        of_pipeline, of_job = binding.name_in("parent.inputs"), binding.name_in("inputs")
        if of_pipeline is not None:
            return self.input(of_pipeline, value.span)
        if path[:2] == ("parent", "jobs") and len(path) > 4 and path[2] in self.uses:
            use = self.uses[path[2]]
            if path[3] == "inputs":
                return use.input(name)
            if path[3] == "outputs":
                return _output_of(use, name, value)
        if own is not None and of_job in own.component.inputs:
            return own.input(of_job)
        if path == ("parent", "name") or (len(path) == 1 and path[0] in MACROS):
            return Unknown(f"{binding.text} is known to Azure ML alone, which fills it in", value.span)
        return wrong_value(value, UNKNOWN_SCOPE, f"{binding.text} names nothing in this pipeline")

    def typed(self, resolved: Resolved, port: Port, value: Value) -> Resolved:
        """A value as a port takes it; `value` is what was written there, perhaps a binding."""
        if not isinstance(resolved, Known) or not port.type:
            return resolved
        if isinstance(resolved.value, JobOutput) and port.is_parameter and self._is_parameter(resolved.value):
            reason = f"the job '{resolved.value.job}' writes it when it runs"
            return Unknown(reason, value.span, output=resolved.value)
        return value_of_port(resolved, port, value, takes_any_literal=self.resolution.takes_any_literal)

    def _is_parameter(self, output: JobOutput) -> bool:
        """Whether an output is, or may be, a literal that a job writes."""
        component = self.resolution.uses[output.job].job.component
        component = code_of(component) or component
        port = component.outputs.get(output.port) if component is not None and component.outputs is not None else None
        return port is None or port.is_parameter

    def output(self, name: str, value: Value) -> Resolved:
        """Where an output goes that is bound to an output of this pipeline."""
        if name not in self.pipeline.outputs:
            return wrong_value(value, UNKNOWN_PIPELINE_PORT, f"the pipeline has no output '{name}'")
        if self.user is None:
            return Known(PipelineOutput(name), value)
        return self.user._output(name)

    def writer_of(self, name: str) -> JobOutput | None:
        """The job that writes an output of this pipeline."""
        for use in self.uses.values():
            for port, value in use.job.outputs.items():
                if name_bound(value.text_or_path or "", "parent.outputs") == name:
                    return use.within.writer_of(port) if use.within is not None else JobOutput(use.name, port)
        return None

    def outputs_in(self, value: Value, followed: frozenset[tuple[str, str]] = frozenset()) -> Iterator[JobOutput]:
        """The outputs of jobs that a value is bound to, directly or through inputs."""
        for binding in bindings_of_value(value.data):
            path, name_of_input = binding.path, binding.name_in("parent.inputs")
            if name_of_input is not None and self.user is not None:
                yield from self.user.outputs_given(name_of_input, followed)
            elif path[:2] == ("parent", "jobs") and len(path) > 4 and path[2] in self.uses:
                use, name = self.uses[path[2]], ".".join(path[4:])
                if path[3] == "inputs":
                    yield from use.outputs_given(name, followed)
                elif use.within is None:
                    yield JobOutput(use.name, name)
                elif (writer := use.within.writer_of(name)) is not None:
                    yield writer


def _output_of(use: JobUse, name: str, value: Value) -> Resolved:
    declared = use.job.component.outputs if use.job.component is not None else None
    if declared is not None and name not in declared:
        return wrong_value(value, UNKNOWN_JOB_PORT, f"the job '{use.name}' has no output '{name}'")
    if use.within is None:
        return Known(JobOutput(use.name, name), value)
    writer = use.within.writer_of(name)
    if writer is None:
        return Unknown(f"no job in '{use.name}' writes its output '{name}'", value.span)
    return Known(writer, value)


def _not_given(binding: Binding, value: Value) -> Wrong:
    return wrong_value(value, MISSING_INPUT, f"{binding.text} is an optional input that is not given")


def _whole(count: Resolved) -> int:
    number = settled(count)
    assert isinstance(number, int)
    return number


def _type_of(written: Value | None) -> str:
    """The type that an input written as a mapping declares, or nothing."""
    declared = written.data.get("type") if written is not None and isinstance(written.data, dict) else None
    return declared if isinstance(declared, str) else ""
