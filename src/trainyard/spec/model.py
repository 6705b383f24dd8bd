"""The typed model of a pipeline: what lint checks, plan prices, run executes and the report draws.

Every value that a person wrote is a `Value`: its plain Python form together with the span it was written at. Bindings
are in it as they were written; `spec.resolution` follows them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, Literal, NamedTuple

from trainyard.spec.diagnostic import Related, Span
from trainyard.spec.documents import Node, Value

PARAMETER_TYPES = ("string", "integer", "number", "boolean")
PORT_TYPES = ("uri_file", "uri_folder", "mltable", "mlflow_model", "custom_model", "triton_model")

DistributionType = Literal["pytorch", "mpi", "tensorflow", "ray"]


class Port(NamedTuple):
    """A declared input or output, of a component or of a pipeline.

    `default` is None where there is none; `path` and `mode` belong to ports that carry data; `value` is what a
    pipeline's own input is set to. `key_span` is the name, `span` the value.
    """

    name: str
    type: str
    key_span: Span
    span: Span
    default: Value | None = None
    optional: bool = False
    minimum: Value | None = None
    maximum: Value | None = None
    choices: tuple[Value, ...] | None = None
    description: str = ""
    mode: str | None = None
    path: Value | None = None

    @property
    def is_parameter(self) -> bool:
        """Whether this carries a literal rather than files."""
        return self.type in PARAMETER_TYPES

    @property
    def declared(self) -> Related:
        """Where this is declared, for findings about its values."""
        return Related(self.key_span, f"'{self.name}' is declared here")

    def bound_to_pipeline(self, kind: Literal["inputs", "outputs"]) -> Value:
        """Return what binds a job's port to that of the same name of its pipeline."""
        text = f"${{{{parent.{kind}.{self.name}}}}}"
        return Value(text, self.key_span, text)


class Environment(NamedTuple):
    """The software a job runs in: a reference (`azureml:…`), or an image or build context and perhaps a conda file."""

    span: Span
    reference: str | None = None
    image: str | None = None
    build_path: Path | None = None
    dockerfile: str | None = None
    conda_file: Path | None = None
    conda: Node | None = None
    """Conda's keys in place of a conda file."""

    @property
    def package_source(self) -> tuple[Path, int] | None:
        """The file or build context that says which packages it has, and the line there where this begins."""
        if self.conda is not None:
            return self.conda.span.file, self.conda.span.line
        place = self.conda_file or self.build_path
        return (place, 1) if place is not None else None


class ProcessCounts(NamedTuple):
    """`world_size` counts all processes; parameter servers (TensorFlow's) are among them and train on no samples."""

    nodes: int
    processes_per_node: int
    world_size: int
    parameter_servers: int = 0

    @property
    def training_processes(self) -> int:
        """The processes that share each batch."""
        return self.world_size - self.parameter_servers

    def __str__(self) -> str:
        if self.world_size == 1:
            return "1 process on 1 node"
        nodes = "1 node" if self.nodes == 1 else f"{self.nodes} nodes"
        if self.world_size == self.nodes * self.processes_per_node:
            return f"{nodes} × {self.processes_per_node} per node = {self.world_size} processes"
        return f"{self.world_size} processes on {nodes}, at most {self.processes_per_node} on each"


@dataclass(frozen=True)
class Distribution:
    """What a job's `distribution:` says. A count may be a binding, and holds the binding's text then.

    Its subclasses, in `spec.distributions`, say what Azure ML makes of it. A count that its type does not have is None.
    """

    type: ClassVar[DistributionType]
    counts: ClassVar[Mapping[str, int]] = {"process_count_per_instance": 1}
    """The keys that say how many processes there are, each with the least it may be."""
    has_process_per_gpu: ClassVar[bool] = True
    """Whether each process takes one GPU, rather than all of its node."""
    rank_variables: ClassVar[frozenset[str]] = frozenset()
    """What Azure ML sets for each process, so that a job must not set it for all of them."""
    program: ClassVar[str | None] = None
    """The program without which the processes cannot be started."""
    first_port: ClassVar[int] = 6105
    """Where the processes meet on Azure ML, as far as it is documented or was seen."""

    span: Span
    process_count_per_instance: Value | None = None
    worker_count: Value | None = None
    parameter_server_count: Value | None = None

    def process_counts(self, nodes: int, counts: Mapping[str, int]) -> ProcessCounts:
        """Return how many processes there are on so many nodes; `counts` are the values of the keys that are given."""
        per_node = counts.get("process_count_per_instance", 1)
        return ProcessCounts(nodes, per_node, nodes * per_node)

    def gpus_used(self, gpus: int, processes: ProcessCounts) -> int:
        """Return how many of a node's GPUs its processes use."""
        return min(gpus, processes.processes_per_node)

    def helpers(self, processes: ProcessCounts) -> range:
        """Return the ranks that only serve the others: they need not end by themselves."""
        return range(processes.world_size, processes.world_size)

    def ports(self, processes: ProcessCounts) -> int:
        """Return at how many ports the processes meet."""
        return 1


class Resources(NamedTuple):
    """What a job asks for: nodes (`instance_count`), the machine's size, shared memory, arguments for `docker run`."""

    span: Span
    instance_count: Value | None = None
    instance_type: Value | None = None
    shm_size: Value | None = None
    docker_args: Value | None = None


class Sweep(NamedTuple):
    """How a sweep searches: what it draws for each input, in which way, for which metric, and when it ends.

    The values of `search_space` are mappings as written (`{type: choice, values: […]}`). `trial` is what each trial
    runs; unlike the component that holds this, it has the searched inputs.
    """

    trial: "Component"
    search_space: dict[str, Value]
    sampling: str
    seed: int | None
    goal: str
    primary_metric: str
    max_total_trials: int
    max_concurrent_trials: int
    timeout_seconds: int | None = None
    trial_timeout_seconds: int | None = None


class Parallel(NamedTuple):
    """How a parallel job divides its input into mini-batches, and when it gives up.

    The component's `command` is what the script is called with. Of the thresholds, -1 allows any number of failures.
    """

    entry_script: str
    input_data: Value
    mini_batch_size: Value | None
    partition_keys: tuple[str, ...]
    append_row_to: Value | None
    error_threshold: int
    mini_batch_error_threshold: int
    max_retries: int
    timeout_seconds: int
    max_concurrency_per_instance: Value | None


class Spark(NamedTuple):
    """What a Spark job submits. The component's `command` is what the script is called with."""

    entry_file: str
    conf: dict[str, str]
    py_files: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    jars: tuple[str, ...] = ()
    archives: tuple[str, ...] = ()


Task = Sweep | Parallel | Spark


class Component(NamedTuple):
    """A command component: a reusable step with typed ports.

    `code` is the folder of the snapshot, absolute, or None. `file` is where the component is written; for a job
    with an inline command that is the pipeline's own file. `environment_variables` come from inline jobs and from
    nodes (Azure ML drops a component's own). `task` says what is run where that is not the command alone.
    """

    name: str
    file: Path
    span: Span
    command: Value
    inputs: dict[str, Port]
    outputs: dict[str, Port]
    code: Path | None = None
    environment: Environment | None = None
    distribution: Distribution | None = None
    resources: Resources | None = None
    is_deterministic: bool = True
    display_name: str = ""
    additional_includes: tuple[Path, ...] = ()
    task: Task | None = None


@dataclass(frozen=True, eq=False)
class PipelineComponent:
    """A component that is a pipeline itself: its jobs are bound to its inputs and outputs."""

    name: str
    file: Path
    span: Span
    inputs: dict[str, Port]
    outputs: dict[str, Port]
    jobs: dict[str, "Job"]
    default_compute: Value | None = None


class OtherComponent(NamedTuple):
    """The ports of a component of another type (parallel, Spark, sweep, AutoML); None if unknown.

    `runs` is what such a job runs, if that is code of its own: of sweeps, parallel and Spark jobs.
    """

    inputs: dict[str, Port] | None
    outputs: dict[str, Port] | None
    runs: Component | None = None


AnyComponent = Component | PipelineComponent | OtherComponent

KEPT_IN_AZURE_ML = "kept in Azure ML"


def code_of(component: AnyComponent | None) -> Component | None:
    """The component with the code that a job runs itself; None for pipelines, and for what Azure ML alone runs."""
    if isinstance(component, OtherComponent):
        return component.runs
    return component if isinstance(component, Component) else None


class Job(NamedTuple):
    """A node of a pipeline: one use of a component, with what its ports are bound to. `node` is its YAML.

    `component` is None if it is not readable offline; `reference` names it where it is kept in Azure ML. `inputs` hold
    literals or strings with bindings; a data input may be a mapping with `path`. `distribution` and `resources` are the
    node's own where it has them, for they replace the component's whole object; use `effective_distribution` and
    `effective_resources`.
    """

    name: str
    key_span: Span
    node: Node
    component: AnyComponent | None
    inputs: Mapping[str, Value] = MappingProxyType({})
    outputs: Mapping[str, Value] = MappingProxyType({})
    distribution: Distribution | None = None
    resources: Resources | None = None
    environment_variables: Mapping[str, Value] = MappingProxyType({})
    compute: Value | None = None
    display_name: str = ""
    timeout_seconds: Value | None = None
    reference: str = ""

    @property
    def span(self) -> Span:
        """Where the job is written."""
        return self.node.span

    @property
    def declared_inputs(self) -> Mapping[str, Port] | None:
        """The inputs of its component, or None if they are unknown."""
        return self.component.inputs if self.component is not None else None

    @property
    def declared_outputs(self) -> Mapping[str, Port] | None:
        """The outputs of its component, or None if they are unknown."""
        return self.component.outputs if self.component is not None else None

    @property
    def has_own_command(self) -> bool:
        """Whether this is a command job whose command is written in it, rather than in a component."""
        node = self.node
        is_command = node.text_of("type").lower() in ("", "command")
        return is_command and node.get("command") is not None and node.get("component") is None

    @property
    def has_own_code(self) -> bool:
        """Whether what runs is written in the job, so that its inputs and outputs are declared where they are set."""
        is_inline = isinstance(self.component, OtherComponent) and self.component.inputs is None
        return is_inline or self.has_own_command

    @property
    def elsewhere(self) -> str:
        """Why what this job runs is not known here; empty for a pipeline and for code of its own."""
        if self.reference:
            return KEPT_IN_AZURE_ML
        is_here = isinstance(self.component, PipelineComponent) or code_of(self.component) is not None
        return "" if is_here else "runs on Azure ML only"

    @property
    def effective_distribution(self) -> Distribution | None:
        """The node's distribution where it has one, else the component's."""
        code = code_of(self.component)
        return self.distribution or (code.distribution if code is not None else None)

    @property
    def effective_resources(self) -> Resources | None:
        """The node's resources where it has them, else the component's."""
        code = code_of(self.component)
        return self.resources or (code.resources if code is not None else None)


@dataclass(frozen=True, eq=False)
class Pipeline(PipelineComponent):
    """A pipeline job: a pipeline whose inputs are set, with what Azure ML shows and does with it.

    The job `on_init` runs before all others, and `on_finalize` after them.
    `reference` names the component that it consists of, if that is kept in Azure ML: there are no `jobs` then.
    """

    display_name: str = ""
    experiment_name: str = ""
    force_rerun: bool = False
    continue_on_step_failure: bool = False
    default_datastore: str = ""
    on_init: str = ""
    on_finalize: str = ""
    reference: str = ""
