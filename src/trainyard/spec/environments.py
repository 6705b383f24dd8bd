"""The software a job runs in, as its YAML says it."""

from __future__ import annotations

import os
from pathlib import Path

from trainyard.spec.diagnostic import Severity
from trainyard.spec.documents import Node
from trainyard.spec.model import Environment
from trainyard.spec.parsed import Reading, is_remote
from trainyard.spec.rules.keys import IGNORED_KEY, MISSING_KEY
from trainyard.spec.rules.references import BAD_REFERENCE, ENVIRONMENT_FILE_NOT_FOUND


def read_environment(node: Node | None, reading: Reading) -> Environment | None:
    """An `environment:`: an `azureml:` reference, `file:./env.yaml`, or keys of its own."""
    if node is None or node.data is None:
        return None
    if node.is_mapping:
        return environment_of(node, reading)
    if not node.is_text:
        reading.findings.left_out = True
        return None
    if is_remote(node.text) or "${{" in node.text:
        return Environment(node.span, reference=node.text)
    if node.text.startswith("file:"):
        return _from_file(node, reading)
    message = f"unknown environment '{node.text}': neither a file nor a reference that Azure ML would find"
    hint = f"A file is 'file:{node.text}'; a registered one 'azureml:NAME:VERSION'."
    reading.findings.add(node.span, BAD_REFERENCE, message, hint=hint)
    return None


def environment_of(node: Node, reading: Reading) -> Environment | None:
    """The keys of an environment: `image` or `build`, and `conda_file`, with the files they name looked up."""
    findings = reading.findings
    build = findings.mapping(node.get("build"))
    image = findings.text(node, "image") or None
    conda = node.get("conda_file")
    build_path: Path | None = None
    dockerfile: str | None = None
    if build is not None:
        path_node = build.get("path")
        if path_node is not None and path_node.is_text and "://" not in path_node.text:
            build_path = reading.existing(path_node, ENVIRONMENT_FILE_NOT_FOUND, "the build context", folder=True)
        dockerfile_node = build.get("dockerfile_path")
        dockerfile = findings.text(build, "dockerfile_path") or "Dockerfile"
        if build_path is not None and not os.path.isfile(build_path / dockerfile):
            span = dockerfile_node.span if dockerfile_node is not None else build.key_span("path")
            message = f"the build context '{build_path.name}' contains no '{dockerfile}'"
            findings.add(span, ENVIRONMENT_FILE_NOT_FOUND, message)
    if image is None and build is None and node.get("image") is None and node.get("build") is None:
        message = "an environment has an 'image' or a 'build', and this has neither"
        # What has a name may be created with `az ml environment create --image` or `--build-context`.
        severity: Severity | None = "warning" if node.get("name") is not None else None
        findings.diagnostics.append(MISSING_KEY.at(node.span, message, "Write `image: …`.", severity=severity))
    elif image is not None and build is not None:
        message = "an environment has an 'image' or a 'build', not both"
        findings.add(node.key_span("build"), IGNORED_KEY, message, hint="Remove one of them.")
    return Environment(
        node.span,
        image=image,
        build_path=build_path,
        dockerfile=dockerfile,
        conda_file=_conda_file(node, reading),
        conda=conda.value if conda is not None and conda.is_mapping else None,
    )


def _conda_file(node: Node, reading: Reading) -> Path | None:
    """The file of `conda_file:`; inline packages have none."""
    conda = node.get("conda_file")
    if conda is None or conda.data is None or conda.is_mapping:
        return None
    if not conda.is_text:
        reading.findings.left_out = True
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
