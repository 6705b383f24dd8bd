"""A new project, its copies of Trainyard's own files, and the components and pipelines that are added to it."""

from __future__ import annotations

import functools
import hashlib
import json
import operator
import re
import subprocess
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from trainyard import __version__
from trainyard.errors import UsageError
from trainyard.lint.scripts.flag_readers import read_flags
from trainyard.render import copies
from trainyard.render.copies import archive_of_steps, stale_copies
from trainyard.render.drift import find_drift
from trainyard.render.installed_from import InstalledFrom
from trainyard.render.limited_rendering import render_limited
from trainyard.render.project import LOCK_FILE, Project, find_project
from trainyard.render.rendering import render
from trainyard.render.scaffolding import (
    RECIPES,
    copies_of_project,
    existing_repository,
    new_component,
    new_pipeline,
    new_project,
)
from trainyard.render.steps import own_steps
from trainyard.render.writing import write
from trainyard.resources import STEP_ARCHIVE
from trainyard.spec.diagnostic import SpecError

FROM_GIT = InstalledFrom("git+https://example.com/trainyard@0123abcd")


def written(root: Path, texts: Mapping[str, str | bytes]) -> Project:
    for path, content in texts.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content.encode() if isinstance(content, str) else content)
    return find_project(root)


@pytest.fixture
def started(tmp_path: Path) -> Callable[..., Project]:
    """A project that was just started and rendered."""

    def start(recipe: str = "blank") -> Project:
        files = {**new_project("demo", recipe, FROM_GIT), **copies_of_project(recipe, FROM_GIT)}
        project = written(tmp_path / "demo", files)
        write(project, render(project, "local"))
        return project

    return start


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_new_project_is_rendered_and_every_profile_of_it_renders(
    started: Callable[..., Project], recipe: str
) -> None:
    project = started(recipe)
    assert find_drift(render_limited(project)) == []
    for profile in ("t4", "nd96"):
        names = {path.name for path in render(project, profile).files}
        assert ("train.yaml" in names) == (recipe != "blank")


@pytest.mark.parametrize("recipe", RECIPES)
def test_templates_of_a_new_project_are_those_of_this_repository(repository: Project, recipe: str) -> None:
    for path, text in new_project("demo", recipe, FROM_GIT).items():
        if path.startswith("templates/"):
            ours = (repository.root / path.replace("/train.yaml.j2", f"/{recipe}.yaml.j2")).read_text()
            names_the_task = re.compile(r"(?m)\"demo.task:\w+\"(?=\))|^\{% set accepted_settings = \[\"demo.*\n")
            without_exports = ours.replace("{% set exports = true %}\n", "")
            assert names_the_task.sub("", text.replace('"train"', f'"{recipe}"')) == without_exports


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_first_commit_of_a_project_can_be_reviewed(started: Callable[..., Project], recipe: str) -> None:
    project = started(recipe)
    files, lines = first_commit(project.root)
    # A wheel may come on top; DeepSpeed's has its configurations, and an image of its own.
    assert len(files) <= (60 if recipe == "deepspeed" else 40)
    assert lines <= 2500
    assert sum(file.endswith(".schema.json") for file in files) <= 4


def first_commit(root: Path) -> tuple[list[str], int]:
    """The files that git would commit, and their lines as it counts them."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=root, check=True, capture_output=True, text=True).stdout

    git("init", "--quiet")
    git("add", ".")
    counted = [line.split("\t") for line in git("diff", "--cached", "--numstat").splitlines()]
    return [name for _, _, name in counted], sum(int(added) for added, _, _ in counted if added != "-")


def test_schemas_of_a_project_need_no_other_file(started: Callable[..., Project]) -> None:
    for file in (started("ddp").root / "schemas").rglob("*.json"):
        schema = json.loads(file.read_text())
        Draft202012Validator.check_schema(schema)
        for address in re.findall(r'"\$ref": "([^"]*)"', file.read_text()):
            root, *keys = address.split("/")
            assert root == "#"
            assert functools.reduce(operator.getitem, keys, schema) is not None


def test_schemas_of_a_project_say_what_those_of_this_repository_say(started: Callable[..., Project]) -> None:
    root = started("ddp").root
    schema = json.loads((root / "schemas/component.schema.json").read_text())
    component = yaml.safe_load((root / "components/train_ddp.yaml").read_text())
    validator = Draft202012Validator(schema)
    assert list(validator.iter_errors(component)) == []
    component["inputs"]["data"]["mode"] = "ro_mout"
    component["outputs"] = {"model": {"type": "uri_folder", "mod": "rw_mount"}}
    assert len(list(validator.iter_errors(component))) >= 1


@pytest.mark.parametrize(
    ("name", "message"),
    [("class", "does not make a Python package"), ("1st", "does not make"), ("json", "would hide"), ("torch", "would")],
)
def test_a_name_that_makes_no_package_is_refused(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        new_project(name, "ddp", FROM_GIT)


def test_copies_are_brought_to_the_installed_version(started: Callable[..., Project]) -> None:
    project = started()
    lock_file, archive = project.root / LOCK_FILE, project.source / STEP_ARCHIVE
    lock = json.loads(lock_file.read_text())
    lock["trainyard"] = "0.0.1"
    lock["files"]["schemas/gone.schema.json"] = "sha256:0"
    lock_file.write_text(json.dumps(lock))
    (project.root / "schemas" / "gone.schema.json").write_text("{}")
    (project.root / "schemas" / "profile.schema.json").unlink()
    archive.write_bytes(b"edited")

    reasons = {drift.path.name: drift.reason for drift in find_drift(render_limited(project))}
    assert reasons["profile.schema.json"] == "is missing"
    assert reasons[STEP_ARCHIVE].startswith("is not what trainyard.lock says; to keep a version of your own, delete")
    assert reasons[LOCK_FILE] == f"is from Trainyard 0.0.1; {__version__} is installed"

    report = write(project, render(project, "local"))
    assert stale_copies(project) == []
    assert report.saved[archive].read_bytes() == b"edited"
    assert archive.read_bytes() == archive_of_steps()
    assert not (project.root / "schemas" / "gone.schema.json").exists()

    lock_file.unlink()
    archive.write_bytes(b"edited")
    assert stale_copies(project) == [], "without a lock file the copies are the project's own"


def test_an_archive_and_a_lock_file_that_were_changed_together_are_found(started: Callable[..., Project]) -> None:
    """As a pull request could do, to run other code in a job."""
    project = started()
    changed = archive_of_steps().replace(b"Train a model", b"Steal a model")
    (project.source / STEP_ARCHIVE).write_bytes(changed)
    lock_file = project.root / LOCK_FILE
    lock = json.loads(lock_file.read_text())
    lock["files"][f"src/{STEP_ARCHIVE}"] = f"sha256:{hashlib.sha256(changed).hexdigest()}"
    lock_file.write_text(json.dumps(lock, indent=1) + "\n")
    drifts = {drift.path.name: drift for drift in find_drift(render_limited(project))}
    assert drifts[STEP_ARCHIVE].reason == f"is not that of the installed Trainyard {__version__}"
    assert "+trainyard/steps/" in drifts[STEP_ARCHIVE].diff
    lock["files"] = {}
    lock_file.write_text(json.dumps(lock))
    assert STEP_ARCHIVE in {drift.path.name for drift in find_drift(render_limited(project))}


def test_a_lock_file_does_not_have_files_of_the_project_removed(started: Callable[..., Project]) -> None:
    project = started()
    lock_file = project.root / LOCK_FILE
    lock = json.loads(lock_file.read_text())
    lock["files"]["README.md"] = "sha256:0"
    lock_file.write_text(json.dumps(lock))
    write(project, render(project, "local"))
    assert (project.root / "README.md").is_file()
    assert "README.md" not in lock_file.read_text()


def test_steps_that_are_unpacked_are_the_projects_own(started: Callable[..., Project]) -> None:
    project = started("ddp")
    archive = project.source / STEP_ARCHIVE
    with zipfile.ZipFile(archive) as steps:
        steps.extractall(project.source)
    archive.unlink()
    (project.root / LOCK_FILE).unlink()
    component = render(project, "local").files[project.root / "components/train_ddp.yaml"].text
    assert "\n  python -m trainyard.steps.train_ddp\n" in component
    assert "PYTHONPATH" not in component


def test_an_upgrade_changes_two_files(started: Callable[..., Project], monkeypatch: pytest.MonkeyPatch) -> None:
    project = started("ddp")
    monkeypatch.setattr(copies, "__version__", "0.2.0")
    monkeypatch.setattr(copies, "archive_of_steps", lambda: archive_of_steps() + b"newer")
    assert {drift.path.name for drift in find_drift(render_limited(project))} == {STEP_ARCHIVE, LOCK_FILE}


def test_a_lock_file_of_another_format_is_not_guessed_at(started: Callable[..., Project]) -> None:
    project = started()
    (project.root / LOCK_FILE).write_text('{"format": "trainyard.lock/9"}')
    with pytest.raises(SpecError, match=r"expected the format trainyard.lock/2"):
        stale_copies(project)


def test_a_component_and_a_pipeline_are_made_from_the_steps_settings(started: Callable[..., Project]) -> None:
    project = started()
    written(project.root, new_component(project, "clean_text"))
    written(project.root, new_pipeline(project, "nightly", None))
    rendering = render(project, "local", {"pipelines.nightly.clean_text.pattern": "*.md"})
    component = yaml.safe_load(rendering.files[project.root / "components/clean_text.yaml"].text)
    assert component["inputs"]["pattern"]["default"] == "**/*.py"
    assert component["inputs"]["source"]["optional"] is True
    start = 'PYTHONPATH="trainyard.zip:$PYTHONPATH" python -m demo.clean_text'
    assert component["command"].startswith(f"{start} --result '${{{{outputs.result}}}}'")
    pipeline = yaml.safe_load(rendering.files[project.root / "pipelines/nightly.yaml"].text)
    assert pipeline["inputs"] == {"pattern": "*.md"}
    assert pipeline["jobs"]["clean_text"]["inputs"] == {"pattern": "${{parent.inputs.pattern}}"}
    with pytest.raises(UsageError, match=r"unknown key 'patern' in 'pipelines.nightly.clean_text'.*'pattern'"):
        render(project, "local", {"pipelines.nightly.clean_text.patern": "*.md"})


@pytest.mark.parametrize(
    ("name", "message"),
    [("Clean", "invalid component name 'Clean'"), ("evaluate", "there is a component 'evaluate' already")],
)
def test_a_component_needs_a_new_and_valid_name(started: Callable[..., Project], name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        new_component(started(), name)


def test_a_pipeline_needs_a_component_to_run(started: Callable[..., Project]) -> None:
    project = started()
    with pytest.raises(UsageError, match="this project has no step of its own yet"):
        new_pipeline(project, "nightly", None)
    with pytest.raises(UsageError, match=r"unknown component 'evalute'. Did you mean 'evaluate'"):
        new_pipeline(project, "nightly", "evalute")
    written(project.root, new_pipeline(project, "check", "evaluate"))
    files = render(project, "local").files
    assert project.root / "components/evaluate.yaml" in files, "the project had no template of it"
    pipeline = yaml.safe_load(files[project.root / "pipelines/check.yaml"].text)
    assert pipeline["inputs"]["model"]["path"] == "../data/model"


def test_the_pipeline_of_a_spark_component_has_a_spark_job(started: Callable[..., Project]) -> None:
    project = started()
    written(project.root, new_pipeline(project, "at_scale", "prepare_text_spark"))
    pipeline = yaml.safe_load(render(project, "local").files[project.root / "pipelines/at_scale.yaml"].text)
    job = pipeline["jobs"]["prepare_text_spark"]
    assert (job["type"], job["resources"]["instance_type"]) == ("spark", "standard_e8s_v3")


STEP = """
from dataclasses import dataclass
from pathlib import Path
import company_library_that_is_not_installed
from trainyard.settings.step_fields import output_folder, parameter
from trainyard.steps.runtime.entrypoint import run_step

@dataclass(frozen=True)
class Base:
    result: Path = output_folder()
    '''Where it goes.'''

@dataclass(frozen=True)
class Settings(Base):
    '''Do it.'''
    {field}

run_step(Settings, "demo.mine", print)
"""


def test_a_step_is_described_without_being_imported(started: Callable[..., Project]) -> None:
    project = started()
    field = "share: float | None = parameter(None, minimum=0.5)\n    '''How much.'''"
    (project.source / "demo" / "mine.py").write_text(STEP.format(field=field))
    step = own_steps(project)["mine"]
    assert (step.module, step.description, [field.name for field in step.fields]) == (
        "demo.mine", "Do it.", ["result", "share"],
    )  # fmt: skip
    assert (step.field["share"].type, step.field["share"].optional, step.field["share"].minimum) == (
        "number", True, 0.5,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("size: int = parameter(3)", "the setting size has no documentation"),
        ("size: int = 3\n    '''x'''", "declare size with one of parameter, input_folder"),
        (
            "size: list = parameter(3)\n    '''x'''",
            "expected one of the types str, .* found list",
        ),
        ("size: int = parameter(len(sys.argv))\n    '''x'''", "defaults and limits of settings are literals"),
        ("size: int = (", "not valid Python"),
    ],
)
def test_settings_that_cannot_be_read_are_shown_at_their_line(
    started: Callable[..., Project], field: str, message: str
) -> None:
    project = started()
    (project.source / "demo" / "mine.py").write_text(STEP.format(field=field))
    with pytest.raises(SpecError, match=message) as caught:
        own_steps(project)
    (problem,) = caught.value.diagnostics
    assert (problem.rule, problem.span.file.name) == ("TY107", "mine.py")
    assert problem.span.line in (16, 18)


def test_lint_knows_the_flags_of_a_step_of_your_own(started: Callable[..., Project]) -> None:
    project = started()
    written(project.root, new_component(project, "clean_text"))
    flags = read_flags(project.source / "demo" / "clean_text.py", project.source)
    assert flags is not None
    assert set(flags.flags) == {"-h", "--help", "--result", "--source", "--pattern"}
    assert flags.flags["--result"].is_required


def test_an_existing_repository_gets_lint_and_nothing_else() -> None:
    assert set(existing_repository("ours", FROM_GIT)) == {
        ".trainyard.toml", ".pre-commit-config.yaml", ".github/workflows/azureml-lint.yml", ".vscode/settings.json",
        ".vscode/extensions.json",
    }  # fmt: skip


def test_the_hook_of_an_existing_repository_runs_for_all_that_lint_reads(repository: Project) -> None:
    config = yaml.safe_load(existing_repository("ours", FROM_GIT)[".pre-commit-config.yaml"])
    (published,) = yaml.safe_load((repository.root / ".pre-commit-hooks.yaml").read_text())
    assert config["repos"][0]["hooks"][0]["types_or"] == published["types_or"]


def test_editors_are_recommended_the_extension_that_is_released(repository: Project) -> None:
    package = json.loads((repository.root / "editors/vscode/package.json").read_text())
    for texts in (new_project("demo", "blank", FROM_GIT), existing_repository("demo", FROM_GIT)):
        recommended = json.loads(re.sub(r"(?m)^ *//.*", "", texts[".vscode/extensions.json"]))["recommendations"]
        assert f"{package['publisher']}.{package['name']}" in recommended
    workflow = (repository.root / ".github/workflows/release.yml").read_text()
    assert "editors/vscode/trainyard.vsix" in workflow
