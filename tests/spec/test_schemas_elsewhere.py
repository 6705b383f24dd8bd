"""The schemas work in programs that know nothing of us: plain `jsonschema`, and `check-jsonschema` in CI and hooks."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from trainyard.render.installed_from import InstalledFrom
from trainyard.render.scaffolding import copies_of_project, new_project
from trainyard.resources import schema_file, schema_names

ROOT = Path(__file__).parents[2]
FROM_GIT = InstalledFrom("trainyard-azureml @ git+https://example.org/trainyard")
CHECK = Path(sys.executable).with_name("check-jsonschema")


def check(schema: Path, files: Sequence[Path], folder: Path = ROOT) -> int:
    """The exit code of check-jsonschema, which has no network."""
    without_network = {"HTTPS_PROXY": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9"}
    return subprocess.run(
        [CHECK, "--schemafile", schema, *files], cwd=folder, env=without_network, capture_output=True
    ).returncode


@pytest.mark.parametrize("name", schema_names())
def test_each_schema_is_one_file(name: str) -> None:
    text = schema_file(name).read_text()
    schema = json.loads(text)
    Draft202012Validator.check_schema(schema)
    assert name in schema["$id"]
    assert all(address.startswith("#/") for address in re.findall(r'"\$ref": "([^"]*)"', text))


def test_plain_jsonschema_reads_them_by_file_and_by_id(tmp_path: Path) -> None:
    schema = json.loads(schema_file("pipeline").read_text())
    text = (ROOT / "pipelines" / "ddp.yaml").read_text()
    registry = Registry().with_resource(schema["$id"], Resource.from_contents(schema))
    for validator in (
        Draft202012Validator(schema),
        Draft202012Validator({"$ref": "trainyard/pipeline"}, registry=registry),
    ):
        assert list(validator.iter_errors(yaml.safe_load(text))) == []
        assert list(validator.iter_errors(yaml.safe_load(text.replace("component:", "componnt:")))) != []


@pytest.mark.parametrize("kind", ["component", "pipeline", "profile"])
def test_check_jsonschema_finds_a_mistake_in_a_checkout(kind: str, tmp_path: Path) -> None:
    files = sorted((ROOT / f"{kind}s").glob("*.yaml"))
    assert check(schema_file(kind), files) == 0
    wrong = tmp_path / "wrong.yaml"
    text = files[0].read_text()
    key = {"component": "type: command", "pipeline": "type: pipeline", "profile": "description:"}[kind]
    assert key in text
    wrong.write_text(text.replace(key, {"profile": "descripton:"}.get(kind, "type: comand"), 1))
    assert check(schema_file(kind), [wrong]) == 1


@pytest.mark.parametrize("recipe", ["ddp", "blank"])
def test_hooks_and_workflow_of_a_new_project_need_only_check_jsonschema(recipe: str, tmp_path: Path) -> None:
    texts = {path: text.encode() for path, text in new_project("demo", recipe, FROM_GIT).items()}
    for path, content in {**texts, **copies_of_project(recipe, FROM_GIT)}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content)
    config = yaml.safe_load((tmp_path / ".pre-commit-config.yaml").read_text())
    hooks = [hook for each in config["repos"] if each["repo"] != "local" for hook in each["hooks"]]
    paths = [path for path in texts if path.endswith(".yaml")]
    matched = {hook["name"]: [Path(path) for path in paths if re.search(hook["files"], path)] for hook in hooks}
    assert bool(matched["schema of profiles"])
    for hook in hooks:
        flag, schema = hook["args"]
        assert flag == "--schemafile"
        assert (tmp_path / schema).is_file()
        if matched[hook["name"]]:
            assert check(Path(schema), matched[hook["name"]], tmp_path) == 0, hook["name"]
    workflow = yaml.safe_load((tmp_path / ".github/workflows/ci.yml").read_text())
    script = workflow["jobs"]["schemas"]["steps"][-1]["run"]
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    run = ["env", f"PATH={CHECK.parent}:/usr/bin:/bin", "bash", "-euo", "pipefail", "-c", script]
    assert subprocess.run(run, cwd=tmp_path, capture_output=True).returncode == 0
    profile = tmp_path / "profiles" / "t4.yaml"
    profile.write_text(profile.read_text().replace("description:", "descripton:"))
    assert subprocess.run(run, cwd=tmp_path, capture_output=True).returncode == 1
