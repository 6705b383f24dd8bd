from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.render.drift import difference, find_drift
from trainyard.render.limited_rendering import render_limited
from trainyard.render.project import Project
from trainyard.render.rendered_files import Header, content_of, read_header
from trainyard.render.rendering import Rendering, render
from trainyard.render.writing import WriteReport, write
from trainyard.spec.diagnostic import SpecError


def written(project: Project, profile: str, settings: dict[str, object] | None = None) -> WriteReport:
    return write(project, render(project, profile, settings))


def everything_below(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_a_rendering_is_written_and_then_unchanged(project: Project) -> None:
    rendering = render(project, "t4")
    first = write(project, rendering)
    assert set(first.written) == set(rendering.files)
    second = write(project, rendering)
    assert (second.written, second.removed, set(second.unchanged)) == ([], [], set(rendering.files))
    assert second.lines() == [f"t4: {len(rendering.files)} files, 0 changed, 0 removed"]


def test_another_profile_replaces_and_removes_what_the_first_made(rendered: Project) -> None:
    report = written(rendered, "local")
    clusters = [rendered.root / "compute" / f"{name}_cluster.yaml" for name in ("cpu", "gpu")]
    assert report.removed == clusters
    assert not (rendered.root / "compute").exists(), "no folder is left empty"
    assert "removed compute/gpu_cluster.yaml: profile local does not render this file" in report.lines()
    assert report.saved == {}


def test_the_text_of_a_hand_edited_file_is_kept(rendered: Project) -> None:
    component, cluster = rendered.root / "components/evaluate.yaml", rendered.root / "compute/gpu_cluster.yaml"
    for file in (component, cluster):
        file.write_text(file.read_text() + "# mine\n")
    report = written(rendered, "local")
    assert report.saved == {
        component: rendered.replaced / "1" / "components/evaluate.yaml",
        cluster: rendered.replaced / "1" / "compute/gpu_cluster.yaml",
    }
    assert all(copy.read_text().endswith("# mine\n") for copy in report.saved.values())
    assert "# mine" not in component.read_text()
    assert report.lines()[0] == (
        "components/evaluate.yaml was edited by hand; its text is kept in"
        " .trainyard/replaced/1/components/evaluate.yaml"
    )
    component.write_text(component.read_text() + "# again\n")
    assert list(written(rendered, "local").saved.values()) == [rendered.replaced / "2" / "components/evaluate.yaml"]


def test_hand_edited_json_is_kept_even_if_an_editor_reformatted_it(rendered: Project) -> None:
    folder = rendered.root / "components" / "deepspeed"
    edited, laid_out = folder / "zero2.json", folder / "zero3.json"
    edited.write_text(edited.read_text().replace('"stage": 2', '"stage": 1'))
    laid_out.write_text(json.dumps(json.loads(laid_out.read_text()), indent=4))
    assert drifts(rendered) == {
        f"components/deepspeed/{name}.json": f"was edited by hand; edit templates/components/deepspeed/{name}.json.j2"
        " or profiles/t4.yaml instead"
        for name in ("zero2", "zero3")
    }
    report = written(rendered, "t4")
    assert list(report.saved) == report.written == [edited, laid_out]
    assert '"stage": 1' in report.saved[edited].read_text()
    assert find_drift(render_limited(rendered)) == []


@pytest.mark.parametrize("name", ["components/evaluate.yaml", "components/deepspeed/zero2.json"])
def test_a_copy_under_another_name_is_not_touched(rendered: Project, name: str) -> None:
    original = rendered.root / name
    copy = original.with_stem("mine")
    copy.write_text(original.read_text())
    assert find_drift(render_limited(rendered)) == []
    assert written(rendered, "nd96").removed == []
    assert copy.exists()


def test_what_trainyard_did_not_render_stops_everything(project: Project) -> None:
    foreign = project.root / "components" / "evaluate.yaml"
    foreign.parent.mkdir()
    foreign.write_text("name: mine\n")
    before = everything_below(project.root)
    with pytest.raises(SpecError, match=r"components/evaluate.yaml.*not rendered by Trainyard") as caught:
        written(project, "t4")
    assert "nothing was written" in caught.value.diagnostics[0].hint
    assert everything_below(project.root) == before


def test_files_beside_the_rendered_ones_stay(project: Project) -> None:
    mine = project.root / "components" / "my_step.yaml"
    mine.parent.mkdir()
    mine.write_text("name: my_step\n# trainyard: not a header\n")
    (project.root / "components" / "picture.png").write_bytes(b"\x89PNG\n# trainyard: \xff")
    written(project, "t4")
    written(project, "local")
    assert mine.read_text().startswith("name: my_step\n")
    assert (project.root / "components" / "picture.png").exists()


def test_a_file_whose_header_cannot_be_understood_is_not_touched(rendered: Project) -> None:
    file = rendered.root / "components" / "evaluate.yaml"
    text = file.read_text().replace("edit those", "edit these")
    file.write_text(text)
    with pytest.raises(SpecError, match=r"components/evaluate.yaml.*not rendered by Trainyard"):
        written(rendered, "t4")
    assert file.read_text() == text


@pytest.mark.parametrize(
    "text",
    ["", "{", "{}", "[]", '{"_rendered": 1}', '{"_rendered": "x"}', '{"_rendered": "\\x"}', "one line", "# Rendered"],
)
def test_a_text_without_a_header_is_not_ours(text: str) -> None:
    assert read_header(text) is None


SENTENCE = "Rendered from templates/a.yaml.j2 and profiles/t4.yaml: edit those, then run `trainyard render t4{}`."


@pytest.mark.parametrize(
    "arguments", [" --set", " nodes=4", " --set nodes", " --set nodes=[4", " --sett nodes=4", " --set 'nodes=4", "2"]
)
def test_a_file_with_a_damaged_header_is_not_ours(arguments: str) -> None:
    assert read_header(f"# {SENTENCE.format(' --set nodes=4')}\nrest\n") == ("a.yaml.j2", "t4", {"nodes": 4})
    assert read_header(f"# {SENTENCE.format(arguments)}\nrest\n") is None


SETTINGS = st.dictionaries(
    st.sampled_from(["nodes", "description", "pipelines.ddp.epochs"]),
    st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"])) | st.integers() | st.booleans() | st.none(),
)


@given(st.text("ab/_-. '`é", min_size=1), st.text("ab-. '`é", min_size=1), SETTINGS)
@pytest.mark.parametrize("name", ["a.yaml", "a.json"])
def test_a_header_reads_as_it_was_written(name: str, template: str, profile: str, settings: dict[str, object]) -> None:
    header = Header(template, profile, settings)
    content = '{\n  "a": 1\n}\n' if name.endswith(".json") else "a: 1\n"
    text = header.joined_with(Path(name), content)
    assert read_header(text) == header
    assert content_of(text) == content


CONFLICT = "<<<<<<< HEAD\n{}\n=======\n{}\n>>>>>>> other\n"


@pytest.mark.parametrize(
    "text",
    [
        CONFLICT.format(f"# {SENTENCE.format('')}", f"# {SENTENCE.format(' --set nodes=2')}"),
        "{\n" + CONFLICT.format(f'  "_rendered": "{SENTENCE.format("")}",', '  "_rendered": "…",') + '  "a": 1\n}\n',
        CONFLICT.format(f'{{\n  "_rendered": "{SENTENCE.format("")}"\n}}', "{}"),
    ],
)
def test_a_header_is_read_between_the_marks_of_a_merge(text: str) -> None:
    assert read_header(text) == ("a.yaml.j2", "t4", {})


def test_a_full_disk_leaves_no_half_written_file(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    rendering = render(project, "t4")

    def no_room(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", no_room)
    with pytest.raises(SpecError, match="cannot be written: no space left on device"):
        write(project, rendering)
    assert not [path for path in rendering.files if path.exists()]
    assert not [path for path in (project.root / "components").rglob("*") if path.is_file()]


def test_a_folder_that_cannot_be_created_is_named(project: Project) -> None:
    (project.root / "components").write_text("a file, not a folder")
    with pytest.raises(SpecError, match=r"components/.*cannot be written: components is a file, not a folder"):
        written(project, "t4")


def test_a_file_that_cannot_be_removed_is_named(rendered: Project, monkeypatch: pytest.MonkeyPatch) -> None:

    def refuse(self: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(SpecError, match=r"cpu_cluster.yaml.*cannot be removed: permission denied"):
        written(rendered, "local")


def test_permissions_of_replaced_files_stay(rendered: Project) -> None:
    file = rendered.root / "compute" / "gpu_cluster.yaml"
    assert file.stat().st_mode & 0o600 == 0o600
    file.chmod(0o664)
    written(rendered, "nd96")
    assert file.stat().st_mode & 0o777 == 0o664


# Drift ----------------------------------------------------------------------------------------------------------------


def drifts(project: Project, profile: str | None = None, settings: dict[str, object] | None = None) -> dict[str, str]:
    return {project.shown(drift.path): drift.reason for drift in find_drift(render_limited(project, profile, settings))}


def test_what_was_just_rendered_has_not_drifted(project: Project) -> None:
    written(project, "nd96", {"nodes": 4})
    assert find_drift(render_limited(project)) == [], "profile and settings come from the files themselves"


def test_settings_are_laid_over_those_on_disk(project: Project) -> None:
    written(project, "nd96", {"nodes": 4})
    assert set(drifts(project, None, {"spot": True})) == {project.shown(path) for path in render(project, "nd96").files}
    assert render(project, None, {"spot": True}).profile.settings == {"nodes": 4, "spot": True}


def test_every_reason_for_drift_is_reported(rendered: Project) -> None:
    (rendered.root / "pipelines" / "ddp.yaml").unlink()
    edited = rendered.root / "components" / "evaluate.yaml"
    edited.write_text(edited.read_text().replace("instance_count: 1", "instance_count: 2"))
    template = rendered.templates / "environments" / "trainyard.yaml.j2"
    template.write_text(template.read_text() + "# more\n")
    (rendered.templates / "environments" / "trainyard" / "requirements.txt.j2").unlink()
    assert drifts(rendered) == {
        "components/evaluate.yaml": "was edited by hand; edit templates/components/evaluate.yaml.j2 or"
        " profiles/t4.yaml instead",
        "environments/trainyard.yaml": "is not what templates/environments/trainyard.yaml.j2 and profile t4 render now",
        "environments/trainyard/requirements.txt": "profile t4 does not render this file",
        "pipelines/ddp.yaml": "is missing",
    }
    (drift,) = [drift for drift in find_drift(render_limited(rendered)) if drift.path == edited]
    assert "-  instance_count: 2\n+  instance_count: 1\n" in drift.diff


def test_a_changed_profile_drifts_what_holds_its_values(rendered: Project) -> None:
    profile = rendered.profiles / "t4.yaml"
    profile.write_text(profile.read_text() + "# a remark\n")
    assert drifts(rendered) == {}
    profile.write_text(profile.read_text().replace("shm_size: 16g", "shm_size: 32g"))
    assert drifts(rendered)["components/train_ddp.yaml"] == (
        "is not what templates/components/train_ddp.yaml.j2 and profile t4 render now"
    )
    assert "pipelines/ddp.yaml" not in drifts(rendered)


def test_another_profile_drifts_and_names_what_the_files_are_for(project: Project) -> None:
    written(project, "nd96", {"nodes": 4})
    assert set(drifts(project, "nd96").values()) == {"was rendered for profile nd96 --set nodes=4"}
    written(project, "nd96", {"spot": True, "description": "my own machines"})
    reason = "was rendered for profile nd96 --set spot=true --set 'description=my own machines'"
    assert set(drifts(project, "nd96").values()) == {reason}


def test_a_file_that_is_in_the_way_is_drift(rendered: Project) -> None:
    (rendered.root / "compute" / "gpu_cluster.yaml").write_text("name: mine")
    assert drifts(rendered) == {"compute/gpu_cluster.yaml": "was not rendered by Trainyard"}
    (drift,) = difference(render(rendered, "t4"))
    assert "\\ No newline at end of file" in drift.diff


def test_the_difference_of_a_profile_is_what_writing_it_changes(rendered: Project) -> None:
    rendering: Rendering = render(rendered, "nd96")
    diff = "".join(drift.diff for drift in difference(rendering))
    assert "-size: Standard_NC64as_T4_v3\n" in diff
    assert "+size: Standard_ND96asr_v4\n" in diff
    write(rendered, rendering)
    assert difference(rendering) == []
