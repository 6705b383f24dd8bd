"""A command component: from its YAML to the model, with its environment, and its command checked against its ports."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from trainyard.spec.bindings import check_command
from trainyard.spec.diagnostic import Severity
from trainyard.spec.distributions import DISTRIBUTIONS, Ray
from trainyard.spec.documents import Node, Value
from trainyard.spec.literals import whole_number
from trainyard.spec.model import Component, Distribution, Environment, Port, Resources
from trainyard.spec.parsed import (
    BAD_REFERENCE,
    CODE_NOT_FOUND,
    ENVIRONMENT_FILE_NOT_FOUND,
    NOT_SEEN_OFFLINE,
    ParsedCommand,
    Reading,
    is_code_of_this_machine,
    is_remote,
)
from trainyard.spec.ports import check_output_names, component_ports
from trainyard.spec.rules import IGNORED_KEY, MISSING_KEY


def read_component(node: Node, reading: Reading, *, name: str = "") -> Component:
    """A command component, in its own file or inline. What is wrong goes to the findings.

    `name` is what it is called when it does not say.
    """
    inputs = component_ports(node.get("inputs"), reading)
    outputs = component_ports(node.get("outputs"), reading)
    variables = node.get("environment_variables")
    if variables is not None:
        message = "Azure ML drops 'environment_variables' of a component"
        hint = "Set them on the jobs that use it."
        span = node.key_span("environment_variables")
        reading.findings.add(IGNORED_KEY.at(span, message, hint=hint))
    return read_command(node, inputs, outputs, reading, name=name, is_component=True)


def read_command(
    node: Node,
    inputs: dict[str, Port],
    outputs: dict[str, Port],
    reading: Reading,
    *,
    name: str = "",
    is_component: bool = False,
) -> Component:
    """What a component and a job with its own command have in common: all but how ports are declared."""
    findings = reading.findings
    check_output_names(outputs, reading)
    command = _command(node, reading)
    component = Component(
        name=findings.text(node, "name") or name,
        file=reading.file,
        span=node.span,
        command=command,
        inputs=inputs,
        outputs=outputs,
        code=_code(node, reading),
        environment=read_environment(node.get("environment"), reading),
        distribution=read_distribution(node, reading),
        resources=read_resources(node, reading),
        is_deterministic=findings.boolean(node, "is_deterministic", default=True),
        display_name=findings.text(node, "display_name"),
        additional_includes=tuple(_additional_includes(node, reading)),
    )
    command_node = node.find_text("command")
    if command_node is not None:
        check_command(command_node, inputs, outputs, reading)
    reading.parsed.commands.append(ParsedCommand(node, component, reading, is_component))
    return component


def read_distribution(node: Node, reading: Reading) -> Distribution | None:
    """The `distribution:` of a component or job, with its type in lower case, since Azure ML ignores case."""
    findings = reading.findings
    mapping = findings.mapping(node.get("distribution"))
    if mapping is None:
        return None
    distribution = DISTRIBUTIONS.get(findings.text(mapping, "type").lower())
    if distribution is None:
        findings.left_out = True
        return None
    counts = {key: findings.whole_number(mapping, key, least=least) for key, least in distribution.counts.items()}
    if distribution is not Ray:
        return distribution(mapping.span, **counts)
    return Ray(
        mapping.span,
        **counts,
        include_dashboard=findings.text(mapping, "include_dashboard").lower() == "true",
        head_arguments=findings.text(mapping, "head_node_additional_args"),
        worker_arguments=findings.text(mapping, "worker_node_additional_args"),
    )


def read_resources(node: Node, reading: Reading, *, may_take_all: bool = False) -> Resources | None:
    """The `resources:` of a component or job. `may_take_all`: -1 stands for all of a cluster, and is unknown then."""
    findings = reading.findings
    mapping = findings.mapping(node.get("resources"))
    if mapping is None:
        return None
    count, docker_args = mapping.get("instance_count"), mapping.get("docker_args")
    takes_all = may_take_all and count is not None and whole_number(count.data) == -1
    return Resources(
        span=mapping.span,
        instance_count=None if takes_all else findings.whole_number(mapping, "instance_count", least=1),
        instance_type=findings.scalar(mapping, "instance_type"),
        shm_size=findings.scalar(mapping, "shm_size"),
        docker_args=docker_args.value if docker_args is not None and docker_args.data else None,
    )


def _command(node: Node, reading: Reading) -> Value:
    command = node.find_text("command")
    if command is not None and command.text.strip():
        return command.value
    reading.findings.left_out = True
    return Value("", node.span)


def _code(node: Node, reading: Reading) -> Path | None:
    """The snapshot's folder. `azureml:` and `git+` references are not readable offline."""
    code = reading.findings.string(node.get("code"))
    if code is None:
        return None
    if not is_code_of_this_machine(code, reading):
        message = f"the code '{code.text}' is remote and not readable offline"
        reading.findings.add(NOT_SEEN_OFFLINE.at(code.span, message, hint="Name a local folder."))
        return None
    found = reading.existing(code, CODE_NOT_FOUND, "the code")
    return Path(os.path.abspath(found)) if found is not None else None


def _additional_includes(node: Node, reading: Reading) -> Iterator[Path]:
    for item in reading.findings.items(node.get("additional_includes")):
        if not item.is_text:
            continue
        # Azure ML's client zips a folder for `NAME.zip`.
        folder = reading.path(item.text.removesuffix(".zip"))
        is_zipped = item.text.endswith(".zip") and os.path.isdir(folder)
        found = folder if is_zipped else reading.existing(item, CODE_NOT_FOUND, "an additional include")
        if found is not None:
            yield found


def read_environment(node: Node | None, reading: Reading, *, needs_image: bool = True) -> Environment | None:
    """An `environment:`: an `azureml:` reference, `file:./env.yaml`, or keys of its own."""
    if node is not None and node.is_mapping:
        return environment_of(node, reading, needs_image=needs_image)
    node = reading.findings.string(node)
    if node is None:
        return None
    if is_remote(node.text) or "${{" in node.text:
        return Environment(node.span, reference=node.text)
    if node.text.startswith("file:"):
        return _from_file(node, reading)
    message = f"unknown environment '{node.text}': neither a file nor a reference that Azure ML would find"
    hint = f"A file is 'file:{node.text}'; a registered one 'azureml:NAME:VERSION'."
    reading.findings.add(BAD_REFERENCE.at(node.span, message, hint=hint))
    return None


def environment_of(node: Node, reading: Reading, *, needs_image: bool = True) -> Environment | None:
    """The keys of an environment: `image` or `build`, and `conda_file`, with the files they name looked up."""
    findings = reading.findings
    build = findings.mapping(node.get("build"))
    image = findings.text(node, "image") or None
    conda = node.get("conda_file")
    build_path: Path | None = None
    dockerfile: str | None = None
    if build is not None:
        path_node = build.find_text("path")
        if path_node is not None and "://" not in path_node.text:
            build_path = reading.existing(path_node, ENVIRONMENT_FILE_NOT_FOUND, "the build context", folder=True)
        dockerfile_node = build.get("dockerfile_path")
        dockerfile = findings.text(build, "dockerfile_path") or "Dockerfile"
        if build_path is not None and not os.path.isfile(build_path / dockerfile):
            span = dockerfile_node.span if dockerfile_node is not None else build.key_span("path")
            message = f"the build context '{build_path.name}' contains no '{dockerfile}'"
            findings.add(ENVIRONMENT_FILE_NOT_FOUND.at(span, message))
    if needs_image and node.get("image") is None and node.get("build") is None:
        message = "an environment has an 'image' or a 'build', and this has neither"
        # What has a name may be created with `az ml environment create --image` or `--build-context`.
        severity: Severity | None = "warning" if node.get("name") is not None else None
        findings.add(MISSING_KEY.at(node.span, message, "Write `image: …`.", severity=severity))
    elif image is not None and build is not None:
        message = "an environment has an 'image' or a 'build', not both"
        findings.add(IGNORED_KEY.at(node.key_span("build"), message, hint="Remove one of them."))
    return Environment(
        node.span,
        image=image,
        build_path=build_path,
        dockerfile=dockerfile,
        conda_file=_conda_file(node, reading),
        conda=conda if conda is not None and conda.is_mapping else None,
    )


def _conda_file(node: Node, reading: Reading) -> Path | None:
    """The file of `conda_file:`; inline packages have none."""
    conda = node.get("conda_file")
    conda = None if conda is not None and conda.is_mapping else reading.findings.string(conda)
    if conda is None:
        return None
    file = reading.existing(conda, ENVIRONMENT_FILE_NOT_FOUND, "the conda file", folder=False)
    if file is not None:
        reading.store.touch(file)
    return file


def _from_file(node: Node, reading: Reading) -> Environment | None:
    file = reading.existing(node, ENVIRONMENT_FILE_NOT_FOUND, "the environment", folder=False)
    if file is None:
        return None
    its_reading = reading.of_file(file)
    return None if its_reading is None else environment_of(its_reading.document.root, its_reading)
