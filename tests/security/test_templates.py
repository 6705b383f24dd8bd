"""A pull request can bring templates: they are rendered by `lint`, `render --check`, `render --diff` and an editor."""

from __future__ import annotations

import subprocess
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from jinja2 import Undefined

from trainyard.render.limited_rendering import render_limited
from trainyard.render.profiles import load_profile
from trainyard.render.project import Project
from trainyard.render.rendered_files import Header
from trainyard.render.rendering import context_of, render
from trainyard.render.templates import TemplateSet
from trainyard.spec.diagnostic import SpecError

CommandLine = Callable[..., Any]
ROOT = Path(__file__).resolve().parents[2]
PLAIN = (str, int, float, bool, type(None))


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """One profile, and no template but the attack's."""
    (tmp_path / "profiles").mkdir()
    (tmp_path / "templates" / "pipelines").mkdir(parents=True)
    (tmp_path / "profiles" / "mine.yaml").write_text(
        "description: mine\ncluster: gpu\nsku: Standard_NC64as_T4_v3\nnodes: 1\nprecision: fp32\nshm_size: 2g\n"
        "environment: azureml:env:1\n"
    )
    step = tmp_path / "src" / "own" / "clean.py"
    step.parent.mkdir(parents=True)
    step.write_text(
        "from dataclasses import dataclass\n"
        "from pathlib import Path\n"
        "from trainyard.settings.step_fields import input_folder\n"
        "from trainyard.steps.runtime.flags import run_step\n"
        "@dataclass(frozen=True)\n"
        "class Clean:\n"
        '    """Clean."""\n'
        "    data: Path = input_folder()\n"
        '    """The data."""\n'
        "def main():\n"
        "    return run_step(Clean, print)\n"
    )
    return Project(tmp_path)


def attack(project: Project, text: str) -> None:
    (project.templates / "pipelines" / "x.txt.j2").write_text(text.replace("MARK", str(project.root / "mark")))


ESCAPES = {
    "a path of the profile writes": "{% set x = profile.files[0].joinpath('MARK').write_text('x') %}",
    "a path of a step writes": "{% set x = steps.train_ddp.source.joinpath('MARK').write_text('x') %}",
    "a path of a field reads": "{{ steps.clean.fields[0].declared_at[0].read_text() }}",
    "the process's environment": "{{ profile.files[0].joinpath('/proc/self/environ').read_text() }}",
    "by the filter attr": "{{ profile | attr('files') | first | attr('read_text') }}",
    "by map": "{{ ([profile] | map(attribute='files') | first)[0].read_text() }}",
    "by a subscript": "{{ profile['files'][0].read_text() }}",
    "by a dotted attribute of sort": "{{ [profile] | sort(attribute='files.0.name') }}",
    "by groupby": "{{ ([profile] | groupby('files') | first)[0] }}",
    "by format": "{{ '{0.files[0].parent}'.format(profile) }}",
    "by format_map": "{{ '{p.files}'.format_map({'p': profile}) }}",
    "the class of a text": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "the globals of a function": "{{ path_to.__globals__ }}",
    "the globals of a method": "{{ steps.train_ddp.for_task.__globals__ }}",
    "the function within a method": "{{ steps.train_ddp.for_task.__func__ }}",
    "the code of a macro": "{% macro m() %}{% endmacro %}{{ m._func.__code__ }}",
    "the environment of a macro": "{% macro m() %}{% endmacro %}{{ m._environment }}",
    "the globals of cycler": "{{ cycler.__init__.__globals__ }}",
    "the globals of joiner": "{{ joiner.__init__.__globals__ }}",
    "the globals of namespace": "{{ namespace.__init__.__globals__ }}",
    "the template itself": "{{ self.__init__.__globals__ }}",
    "what wraps str.format": "{{ 'x'.format.__wrapped__ }}",
    "the buffer of a number": "{{ (5).to_bytes(8, 'big') }}",
    "bytes": "{{ 'x'.encode().decode() }}",
    "the place of a value": "{{ profile.cluster.origin.file.read_text() }}",
    "calling a class": "{{ dict.fromkeys([1]) }}",
}


@pytest.mark.parametrize("text", ESCAPES.values(), ids=ESCAPES)
def test_a_template_reads_and_calls_only_what_is_listed(project: Project, text: str) -> None:
    attack(project, text)
    with pytest.raises(SpecError) as caught:
        render(project, "mine")
    assert caught.value.diagnostics[0].span.file == project.templates / "pipelines" / "x.txt.j2"
    assert not (project.root / "mark").exists()


def test_nothing_but_plain_data_can_be_reached() -> None:
    """Walk over everything that a template can read or subscript, from its context and from Jinja's globals."""
    project = Project(ROOT)
    environment = TemplateSet(project)
    context = context_of(project, load_profile(project, "nd96"), ROOT, "pipelines/ddp.yaml.j2")
    seen: set[int] = set()
    kept: list[object] = []

    def walk(value: Any, place: str) -> Iterator[str]:
        if type(value) in PLAIN or id(value) in seen:
            return
        seen.add(id(value))
        kept.append(value)  # or another object could get its id
        if isinstance(value, (type, types.ModuleType, Path)):
            yield f"{place}: {value!r}"
            return
        for name in dir(value):
            found = environment.getattr(value, name)
            if not isinstance(found, Undefined):
                yield from walk(found, f"{place}.{name}")
        if isinstance(value, Mapping):
            for key, each in value.items():
                yield from walk(each, f"{place}[{key!r}]")
        elif isinstance(value, (list, tuple, set, frozenset)):
            for number, each in enumerate(value):
                yield from walk(each, f"{place}[{number}]")

    assert list(walk(context, "context")) == []
    assert len(seen) > 1000, "the walk has gone somewhere"
    # Of Jinja's globals, which are functions and classes, nothing can be read.
    assert set(environment.globals) == {"cycler", "dict", "joiner", "namespace", "range"}
    for name, each in environment.globals.items():
        assert not [attribute for attribute in dir(each) if environment.is_safe_attribute(each, attribute, None)], name
        assert environment.is_safe_callable(each)


@pytest.mark.parametrize(
    "name", ["../../secret.txt", "/etc/passwd", "pipelines/../../secret.txt", "link.txt", "pipelines/out/secret.txt"]
)
@pytest.mark.parametrize("tag", ["include", "import", "extends"])
def test_a_template_names_only_templates(project: Project, name: str, tag: str) -> None:
    (project.root / "secret.txt").write_text("the secret")
    (project.templates / "link.txt").symlink_to(project.root / "secret.txt")
    (project.templates / "pipelines" / "out").symlink_to(project.root)
    attack(project, f"{{% {tag} '{name}' {'as x ' if tag == 'import' else ''}%}}")
    with pytest.raises(SpecError, match="unknown template") as caught:
        render(project, "mine")
    assert "the secret" not in str(caught.value)


# Without limits of the machine, these would take hours, or all memory.
EXCESSES = {
    "a long text": ("{{ '%10000000000s' % 1 }}", "GiB of memory"),
    "a repeated text": ("{{ 'x' * 10 ** 10 }}", "GiB of memory"),
    "much output": ("{% for i in range(80) %}{{ '%1000000s' % 1 }}{% endfor %}", "MiB of text"),
    "nested loops": (
        "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% endfor %}{% endfor %}"
        "{% endfor %}",
        "seconds of processor time",
    ),
}


@pytest.mark.parametrize(("text", "limit"), EXCESSES.values(), ids=EXCESSES)
def test_what_a_rendering_may_take_is_limited(project: Project, text: str, limit: str) -> None:
    attack(project, text)
    with pytest.raises(SpecError, match=limit) as caught:
        render_limited(project, "mine")
    assert caught.value.diagnostics[0].span.file == project.templates / "pipelines" / "x.txt.j2"


@pytest.mark.parametrize(
    "text",
    [
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% include 'pipelines/x.txt.j2' %}",
        "{{ range(10 ** 9) | list }}",
        "{{ 'x' | center(10 ** 12) }}",
    ],
)
def test_a_rendering_without_end_is_one_finding(project: Project, text: str) -> None:
    attack(project, text)
    with pytest.raises(SpecError) as caught:
        render_limited(project, "mine")
    assert len(caught.value.diagnostics) == 1


@pytest.fixture
def hostile(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A rendered pipeline with a mistake and a forged header, whose template writes a file once it is rendered."""
    attack(project, "{% set x = profile.files[0].joinpath('MARK').write_text('x') %}\nnothing: 1\n")
    (project.templates / "pipelines" / "x.txt.j2").rename(project.templates / "pipelines" / "x.yaml.j2")
    (project.root / "pipelines").mkdir()
    header = Header("pipelines/x.yaml.j2", "mine", {})
    rendered = project.root / "pipelines" / "x.yaml"
    rendered.write_text(header.joined_with(rendered, "type: pipeline\n"))
    monkeypatch.chdir(project.root)
    return project


@pytest.mark.parametrize(
    "arguments",
    [["lint"], ["lint", "--no-templates"], ["render", "--check"], ["render", "mine", "--diff"], ["lint", "--fix"]],
    ids=" ".join,
)
def test_no_command_that_checks_runs_what_a_template_says(
    trainyard: CommandLine, hostile: Project, arguments: list[str]
) -> None:
    assert trainyard(*arguments).exit_code == 1
    assert not (hostile.root / "mark").exists()


@pytest.mark.parametrize(
    ("written", "forged"),
    [
        ("pipelines/x.yaml.j2", "../../../../../x"),
        ("pipelines/x.yaml.j2", "/etc/passwd"),
        ("mine", "../../secret"),
        ("render mine", "render mine --set nodes.nodes.nodes={}"),
        ("render mine", "render mine --set nodes"),
        ("render mine", "render mine --apply /etc/passwd"),
        ("render mine", "render 'mine"),
    ],
)
def test_a_forged_header_is_not_ours(trainyard: CommandLine, hostile: Project, written: str, forged: str) -> None:
    rendered = hostile.root / "pipelines" / "x.yaml"
    text = rendered.read_text()
    assert written in text
    rendered.write_text(text.replace(written, forged))
    assert trainyard("lint", "pipelines/x.yaml").exit_code == 1
    trainyard("render", "--check")
    assert not (hostile.root / "mark").exists()


def test_a_linked_folder_of_templates_is_not_read(trainyard: CommandLine, project: Project, tmp_path: Path) -> None:
    elsewhere = tmp_path.parent / "elsewhere"
    project.templates.rename(elsewhere)
    (elsewhere / "pipelines" / "x.txt.j2").write_text("the secret\n")
    project.templates.symlink_to(elsewhere)
    (project.root / ".git").mkdir()
    with pytest.raises(SpecError) as caught:
        render_limited(project, "mine")
    assert "the secret" not in str(caught.value)


def test_the_process_that_renders_imports_nothing_from_the_project(trainyard: CommandLine, hostile: Project) -> None:
    for name in ("json.py", "trainyard.py", "jinja2.py"):
        (hostile.root / name).write_text(f"open({str(hostile.root / 'mark')!r}, 'w')")
    trainyard("render", "--check")
    assert not (hostile.root / "mark").exists()


def test_lint_without_templates_renders_nothing(
    trainyard: CommandLine, hostile: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a process is started")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    assert trainyard("lint", "--no-templates", "pipelines/x.yaml").exit_code == 1
    with pytest.raises(AssertionError, match="a process is started"):
        trainyard("lint", "pipelines/x.yaml")
