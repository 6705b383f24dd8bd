"""Edits of rendered files: where each belongs, carried back into the profile or the template, or kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainyard.errors import UsageError
from trainyard.project_files import write_text
from trainyard.render import edits
from trainyard.render.drift import find_drift
from trainyard.render.edits import adopt, describe_edits, edits_of, release
from trainyard.render.limited_rendering import render_limited
from trainyard.render.project import Project
from trainyard.render.rendering import render
from trainyard.render.writing import write


def edit(project: Project, file: str, old: str, new: str) -> Path:
    path = project.root / file
    text = path.read_text()
    assert text.count(old) == 1, old
    path.write_text(text.replace(old, new))
    return path


def line_of(file: Path, text: str) -> int:
    (number,) = [number for number, line in enumerate(file.read_text().splitlines(), 1) if text in line]
    return number


def test_an_edit_names_the_line_of_the_profile_that_makes_it(rendered: Project) -> None:
    file = edit(rendered, "compute/gpu_cluster.yaml", "tier: dedicated", "tier: low_priority")
    (line,) = describe_edits(rendered, edits_of(rendered, file))
    spot = line_of(rendered.profiles / "t4.yaml", "spot: false")
    tier = line_of(rendered.templates / "compute/gpu_cluster.yaml.j2", "tier:")
    assert line == (
        f"line {line_of(file, 'tier:')}: change profiles/t4.yaml:{spot} "
        f"(through templates/compute/gpu_cluster.yaml.j2:{tier})"
    )


def test_a_value_of_the_profile_is_adopted(rendered: Project) -> None:
    file = edit(rendered, "pipelines/ddp.yaml", "azureml:gpu-t4\n", "azureml:gpu-ours\n")
    (line,) = adopt(rendered, file)
    assert line.startswith("profiles/t4.yaml:")
    assert "cluster: gpu-ours" in (rendered.profiles / "t4.yaml").read_text()
    write(rendered, render(rendered))
    assert find_drift(render_limited(rendered)) == []
    assert "gpu-ours" in file.read_text()


def test_a_value_that_the_files_own_template_holds_is_adopted(rendered: Project) -> None:
    file = edit(rendered, "environments/trainyard.yaml", 'version: "1"', 'version: "2"')
    template = rendered.templates / "environments/trainyard.yaml.j2"
    number = line_of(template, 'version: "1"')
    assert adopt(rendered, file) == [f'templates/environments/trainyard.yaml.j2:{number}: version: "2"']
    assert line_of(template, 'version: "2"') == number
    assert find_drift(render_limited(rendered)) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("compute/gpu_cluster.yaml", "tier: dedicated", "tier: low_priority", "'tier' cannot be written back"),
        ("compute/gpu_cluster.yaml", "tier: dedicated", "tier: dedicated\ntags: {a: b}", "only the value of a key"),
    ],
)
def test_what_cannot_be_adopted_leaves_everything_as_it_was(
    rendered: Project, file: str, old: str, new: str, message: str
) -> None:
    edited = edit(rendered, file, old, new)
    before = {path: path.read_text() for path in rendered.root.rglob("*") if path.is_file()}
    with pytest.raises(UsageError, match=message):
        adopt(rendered, edited)
    assert {path: path.read_text() for path in rendered.root.rglob("*") if path.is_file()} == before


def test_what_is_interrupted_leaves_everything_as_it_was(rendered: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    edit(rendered, "components/train_ddp.yaml", "instance_count: 1\n", "instance_count: 2\n")
    file = edit(rendered, "components/train_ddp.yaml", "shm_size: 16g", "shm_size: 32g")
    before = {path: path.read_text() for path in rendered.root.rglob("*") if path.is_file()}
    written: list[Path] = []

    def write_once(path: Path, text: str, root: Path) -> None:
        written.append(path)
        if len(written) == 2:
            raise KeyboardInterrupt
        write_text(path, text, root)

    monkeypatch.setattr(edits, "write_text", write_once)
    with pytest.raises(KeyboardInterrupt):
        adopt(rendered, file)
    assert len(written) > 2, "one was written before, and restored"
    assert {path: path.read_text() for path in rendered.root.rglob("*") if path.is_file()} == before


def test_line_ends_of_another_system_are_no_edit(rendered: Project) -> None:
    file = edit(rendered, "pipelines/ddp.yaml", "azureml:gpu-t4\n", "azureml:gpu-ours\n")
    file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    (line,) = adopt(rendered, file)
    assert line.startswith("profiles/t4.yaml:")


def test_a_file_rendered_elsewhere_is_not_released(rendered: Project) -> None:
    elsewhere = rendered.root / "elsewhere"
    write(rendered, render(rendered, "local", out=elsewhere))
    with pytest.raises(UsageError, match=r"profile local does not render elsewhere/pipelines/ddp\.yaml"):
        release(rendered, elsewhere / "pipelines" / "ddp.yaml")
    assert not rendered.released.exists()


def test_a_released_file_is_rendered_no_longer(rendered: Project) -> None:
    file = edit(rendered, "compute/gpu_cluster.yaml", "tier: dedicated", "tier: dedicated\ntags: {a: b}")
    release(rendered, file)
    text = file.read_text()
    assert not text.startswith("# Rendered")
    assert "tags: {a: b}" in text
    write(rendered, render(rendered))
    assert find_drift(render_limited(rendered)) == []
    assert file.read_text() == text


def test_a_file_that_was_not_rendered_is_refused(rendered: Project) -> None:
    with pytest.raises(UsageError, match="was not rendered by Trainyard"):
        adopt(rendered, rendered.profiles / "t4.yaml")
    with pytest.raises(UsageError, match="was not rendered by Trainyard"):
        release(rendered, rendered.profiles / "t4.yaml")
