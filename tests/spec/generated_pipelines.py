"""Random pipelines within pipelines, with the answer to every value worked out while they are written.

An answer is a function of what the pipeline around it is given, so that one component may be used many times. Nothing
here follows a binding: what a binding comes to is known because this is what wrote it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import yaml

DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

UNKNOWN = "<unknown>"
WRONG = "<wrong>"

Given = dict[str, Any]
Answer = Callable[[Given], Any]


@dataclass
class JobAnswers:
    """What one command job comes to."""

    inputs: dict[str, Any]
    nodes: Any
    processes_per_node: Any
    compute: Any
    variables: dict[str, Any]
    outputs: dict[str, Any]


@dataclass
class Body:
    """The jobs of a pipeline as YAML, and how to answer for each of them, and for its outputs."""

    jobs: dict[str, Any] = field(default_factory=dict)
    leaves: list[Callable[[Given, str], dict[str, JobAnswers]]] = field(default_factory=list)
    inputs_of: dict[str, dict[str, tuple[str, Answer]]] = field(default_factory=dict)
    outputs_of: dict[str, Callable[[str], str]] = field(default_factory=dict)
    output: Callable[[str], str] | None = None

    def answers(self, given: Given, prefix: str = "") -> dict[str, JobAnswers]:
        """Answer for all command jobs, by their dotted names."""
        return {name: answer for leaf in self.leaves for name, answer in leaf(given, prefix).items()}


TYPES = ("integer", "number", "string", "boolean")
# A value of one type that may be given to a parameter of another, read as that.
READ_AS: dict[tuple[str, str], Callable[[Any], Any]] = {
    ("integer", "number"): lambda value: value,
    ("integer", "string"): str,
    ("number", "string"): str,
    ("boolean", "string"): str,
}


class Generator:
    """Writes one pipeline and all it uses into a folder."""

    def __init__(self, folder: Path, random: Random) -> None:
        self.folder = folder
        self.random = random
        self.files = 0
        self.trouble = random.choice([None, None, None, UNKNOWN, WRONG])
        """What is put into one of the pipeline's own inputs, if anything."""

    def pipeline(self) -> tuple[Path, dict[str, JobAnswers]]:
        """Write a pipeline; return its file and the answers for all its command jobs."""
        ports, given = self._own_inputs()
        types = {name: port_type for name, (port_type, _, _) in ports.items()}
        body = self._body(types, depth=self.random.randint(0, 3), is_root=True)
        settings = {}
        given["<compute>"] = None
        if self.random.random() < 0.8:
            settings["default_compute"], given["<compute>"] = self._compute(given)
        document = {
            "type": "pipeline",
            "inputs": {name: written for name, (_, written, _) in ports.items()},
            "outputs": {"out": {"type": "uri_folder"}},
            "settings": settings,
            "jobs": body.jobs,
        }
        return self._write(document), body.answers(given)

    def _own_inputs(self) -> tuple[dict[str, tuple[str, Any, Any]], Given]:
        """The pipeline's inputs: type, how it is written, what it is."""
        ports: dict[str, tuple[str, Any, Any]] = {}
        for number in range(self.random.randint(2, 5)):
            port_type = self.random.choice(TYPES)
            written, value = self._literal(port_type)
            # Without a type, `"true"` is a text: what it is, what it is given to decides.
            if self.random.random() < 0.5 or (port_type == "boolean" and isinstance(written, str)):
                written = {"type": port_type, "default": written}
            ports[f"p{number}"] = (port_type, written, value)
        ports["count"] = ("integer", *self._count())
        ports["data"] = ("uri_folder", {"type": "uri_folder", "path": "./data"}, "./data")
        if self.trouble is not None:
            name = self.random.choice([name for name, port in ports.items() if port[0] in ("integer", "number")])
            port_type = ports[name][0]
            written = {"type": port_type} if self.trouble == UNKNOWN else {"type": port_type, "default": "seven"}
            ports[name] = (port_type, written, self.trouble)
        return ports, {name: value for name, (_, _, value) in ports.items()}

    def _body(self, types: dict[str, str], depth: int, *, is_root: bool = False) -> Body:
        body = Body()
        for number in range(self.random.randint(1, 3)):
            name = f"j{number}"
            if depth and (number == 0 or self.random.random() < 0.4):
                self._nested_job(body, name, types, depth)
            else:
                self._command_job(body, name, types)
        last = list(body.jobs)[-1]
        body.jobs[last]["outputs"] = {"out": "${{parent.outputs.out}}"}
        writer = body.outputs_of[last]
        body.output = writer
        return body

    def _command_job(self, body: Body, name: str, types: dict[str, str]) -> None:
        random = self.random
        declared = self._declared_inputs()
        component: dict[str, Any] = {
            "type": "command",
            "name": "step",
            "command": "true",
            "environment": "azureml:e:1",
            "inputs": {port: declaration for port, (_, declaration, _) in declared.items()},
            "outputs": {"out": {"type": "uri_folder"}},
        }
        written, answers = self._job_inputs(body, declared, types)
        job: dict[str, Any] = {"inputs": written}
        own = [port for port, (port_type, _, _) in declared.items() if port == "count"]
        nodes = self._counted(component, "resources", "instance_count", own, answers)
        processes = self._counted(component, "distribution", "process_count_per_instance", own, answers)
        if random.random() < 0.5:
            nodes = self._counted(job, "resources", "instance_count", [], answers, types)
        if random.random() < 0.5:
            processes = self._counted(job, "distribution", "process_count_per_instance", [], answers, types)
        compute: Answer = lambda given: given["<compute>"]  # noqa: E731
        if random.random() < 0.3:
            job["compute"], cluster = self._compute({})
            compute = lambda given: cluster  # noqa: E731
        variable, variable_answer = self._value("string", body, types, WRONG)
        job["environment_variables"] = {"V": variable}
        if random.random() < 0.5:
            job["component"] = f"./{self._write(component).name}"
        else:
            job["component"] = component
        body.jobs[name] = job
        body.inputs_of[name] = {port: (declared[port][0], answer) for port, answer in answers.items()}

        def leaf(given: Given, prefix: str) -> dict[str, JobAnswers]:
            here = {**given, "<prefix>": prefix}
            inputs = {port: answer(here) for port, answer in answers.items()}
            variables = {"V": variable_answer(here)}
            outputs = {"out": given.get("<out>", "out") if "outputs" in job else None}
            return {prefix + name: JobAnswers(inputs, nodes(here), processes(here), compute(given), variables, outputs)}

        body.leaves.append(leaf)
        body.outputs_of[name] = lambda prefix: f"{prefix}{name}:out"

    def _nested_job(self, body: Body, name: str, types: dict[str, str], depth: int) -> None:
        declared = self._declared_inputs()
        inner_types = {port: port_type for port, (port_type, _, _) in declared.items()}
        inner = self._body(inner_types, depth - 1)
        component = {
            "type": "pipeline",
            "name": "part",
            "inputs": {port: declaration for port, (_, declaration, _) in declared.items()},
            "outputs": {"out": {"type": "uri_folder"}},
            "jobs": inner.jobs,
        }
        file = self._write(component)
        for use in (name, f"{name}_again") if self.random.random() < 0.3 else (name,):
            self._use_of(body, use, file, inner, declared, types)

    def _use_of(
        self, body: Body, name: str, file: Path, inner: Body, declared: dict[str, Any], types: dict[str, str]
    ) -> None:
        written, answers = self._job_inputs(body, declared, types)
        job: dict[str, Any] = {"type": "pipeline", "component": f"./{file.name}", "inputs": written}
        body.inputs_of[name] = {port: (declared[port][0], answer) for port, answer in answers.items()}
        cluster = None
        if self.random.random() < 0.3:
            job["compute"], cluster = self._compute({})
        body.jobs[name] = job

        def leaf(given: Given, prefix: str) -> dict[str, JobAnswers]:
            here = {**given, "<prefix>": prefix}
            inner_given = {port: answer(here) for port, answer in answers.items()}
            inner_given["<compute>"] = cluster or given["<compute>"]
            inner_given["<out>"] = given.get("<out>", "out") if "outputs" in job else None
            return inner.answers(inner_given, f"{prefix}{name}.")

        def writer(prefix: str) -> str:
            assert inner.output is not None
            return inner.output(f"{prefix}{name}.")

        body.leaves.append(leaf)
        body.outputs_of[name] = writer

    def _declared_inputs(self) -> dict[str, tuple[str, Any, Any]]:
        """The inputs of a component: type, declaration, and what it is when it is not given."""
        random = self.random
        declared: dict[str, tuple[str, Any, Any]] = {}
        for number in range(random.randint(1, 4)):
            port_type = random.choice(TYPES)
            declaration: dict[str, Any] = {"type": port_type}
            default = None
            if random.random() < 0.4:
                declaration["default"], default = self._literal(port_type)
            elif random.random() < 0.3:
                declaration["optional"] = True
            declared[f"i{number}"] = (port_type, declaration, default)
        written, value = self._count()
        declared["count"] = ("integer", {"type": "integer", "default": written, "min": 1}, value)
        declared["data"] = ("uri_folder", {"type": "uri_folder"}, None)
        return declared

    def _job_inputs(
        self, body: Body, declared: dict[str, tuple[str, Any, Any]], types: dict[str, str]
    ) -> tuple[dict[str, Any], dict[str, Answer]]:
        written: dict[str, Any] = {}
        answers: dict[str, Answer] = {}
        for port, (port_type, declaration, default) in declared.items():
            may_leave_out = "default" in declaration or declaration.get("optional")
            if may_leave_out and self.random.random() < 0.4:
                answers[port] = lambda given, default=default: default
            elif port_type == "uri_folder":
                written[port], answers[port] = self._data(body)
            elif port == "count":
                written[port], answers[port] = self._count_for(types)
            else:
                absent = None if declaration.get("optional") else WRONG
                written[port], answers[port] = self._value(port_type, body, types, absent)
        return written, answers

    def _value(self, port_type: str, body: Body, types: dict[str, str], absent: Any) -> tuple[Any, Answer]:
        """Something of a type: how it is written in a job, and what it comes to.

        `absent` is what it is when it is bound to an optional input that is not given.
        """
        random = self.random
        sources = [
            (f"${{{{parent.inputs.{name}}}}}", source_type, lambda given, name=name: given[name])
            for name, source_type in types.items()
        ]
        sources += [
            (f"${{{{parent.jobs.{job}.inputs.{name}}}}}", source_type, answer)
            for job, inputs in body.inputs_of.items()
            for name, (source_type, answer) in inputs.items()
        ]
        fitting = [each for each in sources if each[1] == port_type or (each[1], port_type) in READ_AS]
        if not fitting or random.random() < 0.35:
            written, value = self._literal(port_type)
            return written, lambda given: value
        text, source_type, answer = random.choice(fitting)
        read_as = READ_AS.get((source_type, port_type), lambda value: value)
        if port_type == "string" and random.random() < 0.4:
            return f"a-{text} b", lambda given: _map(answer(given), lambda value: f"a-{value} b", absent=WRONG)
        return text, lambda given: _map(answer(given), read_as, absent=absent)

    def _data(self, body: Body) -> tuple[Any, Answer]:
        outputs = list(body.outputs_of.items())
        if outputs and self.random.random() < 0.6:
            job, writer = self.random.choice(outputs)
            return f"${{{{parent.jobs.{job}.outputs.out}}}}", lambda given: writer(given["<prefix>"])
        if self.random.random() < 0.5:
            return "${{parent.inputs.data}}", lambda given: given["data"]
        return {"type": "uri_folder", "path": "./data"}, lambda given: "./data"

    def _count_for(self, types: dict[str, str]) -> tuple[Any, Answer]:
        if "count" in types and self.random.random() < 0.6:
            return "${{parent.inputs.count}}", lambda given: given["count"]
        written, value = self._count()
        return written, lambda given: value

    def _counted(
        self,
        holder: dict[str, Any],
        key: str,
        count: str,
        own: list[str],
        answers: dict[str, Answer],
        types: dict[str, str] | None = None,
    ) -> Answer:
        """Give a job or a component its nodes, or its processes per node."""
        answer: Answer
        if own and self.random.random() < 0.5:
            written: Any = f"${{{{inputs.{own[0]}}}}}"
            answer = answers[own[0]]
        else:
            written, answer = self._count_for(types or {})
        holder[key] = {"type": "pytorch", count: written} if key == "distribution" else {count: written}
        return answer

    def _count(self) -> tuple[Any, int]:
        value = self.random.randint(1, 9)
        return (str(value) if self.random.random() < 0.2 else value), value

    def _compute(self, given: Given) -> tuple[str, str]:
        texts = [name for name, value in given.items() if name.startswith("p") and isinstance(value, int)]
        numbers = [name for name in texts if not isinstance(given[name], bool)]
        if numbers and self.random.random() < 0.3:
            name = self.random.choice(numbers)
            return f"azureml:c${{{{parent.inputs.{name}}}}}", f"azureml:c{given[name]}"
        name = self.random.choice(["azureml:gpus", "azureml:cpus"])
        return name, name

    def _literal(self, port_type: str) -> tuple[Any, Any]:
        """A literal: how it is written, and what it is."""
        random = self.random
        if port_type == "integer":
            value: Any = random.randint(-3, 99)
            return (str(value) if random.random() < 0.3 else value), value
        if port_type == "number":
            value = random.choice([3, 0.5, -2.25, 1e-05, 40])
            return (str(value) if random.random() < 0.3 else value), value
        if port_type == "boolean":
            value = random.random() < 0.5
            return (str(value).lower() if random.random() < 0.3 else value), value
        value = random.choice(["two words", "x", "007", "1e-3", "true", ""])
        return value, value

    def _write(self, document: dict[str, Any]) -> Path:
        file = self.folder / f"f{self.files}.yaml"
        self.files += 1
        file.write_text(yaml.dump(document, Dumper=DUMPER, sort_keys=False), encoding="utf-8")
        return file


def _map(value: Any, change: Callable[[Any], Any], *, absent: Any) -> Any:
    """Change a value that is known."""
    if value in (UNKNOWN, WRONG):
        return value
    return absent if value is None else change(value)
