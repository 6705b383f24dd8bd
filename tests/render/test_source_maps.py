from __future__ import annotations

from pathlib import Path

import pytest

from trainyard.render.profiles import profile_names
from trainyard.render.project import Project
from trainyard.render.related_lines import SourceFinder
from trainyard.render.rendering import RenderedFile, render
from trainyard.render.source_maps import LineSource
from trainyard.render.writing import write
from trainyard.spec.diagnostic import Diagnostic, Span


def source_of(file: RenderedFile, text: str) -> tuple[LineSource, str]:
    """The source of the one line that holds a text, and the template's line itself."""
    lines = file.text.split("\n")
    (number,) = [number for number, line in enumerate(lines, 1) if text in line]
    source = file.source_map.source_of(number)
    assert source is not None
    assert source.template is not None
    return source, source.template.file.read_text().split("\n")[source.template.line - 1]


def written_lines(source: LineSource) -> list[str]:
    return [f"{span.file.name}: {span.file.read_text().splitlines()[span.line - 1].strip()}" for span in source.profile]


@pytest.mark.parametrize(
    ("file", "text", "template_name", "template_line", "profile_lines"),
    [
        (
            "components/train_ddp.yaml",
            "instance_count: 2",
            "_step.j2",
            "instance_count: {{ inst",
            ["nd96.yaml: nodes: 2"],
        ),
        (
            "components/train_ddp.yaml",
            "  process_count_per_instance: 8",
            "_step.j2",
            "process_count_per_instance: {{",
            ["nd96-h100.yaml: sku: Standard_ND96isr_H100_v5"],
        ),
        ("components/train_ddp.yaml", "  learning_rate:", "_step.j2", "{{ port.name }}:", []),
        ("components/train_ddp.yaml", "--max-steps", "_step.j2", "port.flag", []),
        ("components/train_ddp.yaml", "is_deterministic", "_step.j2", "is_deterministic: {{", []),
        ("compute/gpu_cluster.yaml", "tier: ", "gpu_cluster.yaml.j2", "tier: {{", ["t4.yaml: spot: false"]),
        (
            "pipelines/ddp.yaml",
            "default_compute",
            "_pipeline.j2",
            "default_compute",
            ["nd96-h100.yaml: cluster: gpu-nd96-h100"],
        ),
        (
            "pipelines/ddp.yaml",
            "  minimum_accuracy: 0",
            "_pipeline.j2",
            "{{ name }}:",
            ["t4.yaml: minimum_accuracy: 0.0"],
        ),
        (
            "pipelines/ddp.yaml",
            "  global_batch_size: 64",
            "_pipeline.j2",
            "global_batch",
            ["nd96.yaml: micro_batch_size: 4"],
        ),
        ("pipelines/ddp.yaml", "      image_size: ", "_pipeline.j2", "{{ name }}: ${{", []),
        (
            "pipelines/fsdp.yaml",
            "      settings: ",
            "_pipeline.j2",
            "settings: {type: uri_file",
            ["nd96.yaml: settings: settings/fsdp_125m.yaml"],
        ),
        ("pipelines/ddp.yaml", "      settings: ", "_pipeline.j2", "settings: {type: uri_file", []),
        (
            "pipelines/autotune.yaml",
            "  model_type: llama",
            "_pipeline.j2",
            "{{ name }}:",
            ["deepspeed_125m.yaml: model_type: llama"],
        ),
        (
            "pipelines/deepspeed.yaml",
            "    path: ../components/deepspeed/",
            "deepspeed.yaml.j2",
            "path:",
            ["nd96.yaml: config: zero3"],
        ),
        ("components/deepspeed/zero3.json", '    "stage": 3', "zero3.json.j2", '"stage": 3', []),
        ("components/deepspeed/zero3.json", '  "gradient_clipping"', "_zero.json.j2", '"gradient_clipping"', []),
        (
            "pipelines/ddp.yaml",
            "component: ../components/evaluate.yaml",
            "_image_classifier.j2",
            "components/evaluate.yaml",
            [],
        ),
    ],
)
def test_a_rendered_line_knows_its_template_and_profile_lines(
    repository: Project, file: str, text: str, template_name: str, template_line: str, profile_lines: list[str]
) -> None:
    source, line = source_of(render(repository, "nd96-h100").files[repository.root / file], text)
    assert source.template is not None
    assert source.template.file.name == template_name
    assert template_line in line
    assert written_lines(source) == profile_lines


def test_marks_never_change_what_is_rendered(repository: Project) -> None:
    for name in profile_names(repository):
        for file in render(repository, name).files.values():
            lines = file.text.count("\n")
            assert file.source_map.source_of(lines) is not None, file.path
            header = 2 if file.path.suffix == ".json" else 1
            assert file.source_map.source_of(header) is None, "it is from no template"
            assert file.source_map.source_of(lines + 2) is None


def test_where_marks_would_change_the_text_there_is_no_map(small_project: Project) -> None:
    template = small_project.templates / "notes" / "a.txt.j2"
    template.write_text("{% macro m() %}abc{% endmacro %}\n{{ m() | length }}\n")
    (file,) = render(small_project, "base").files.values()
    assert file.text.endswith("\n3\n")
    assert file.source_map.source_of(2) is None


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("a\n{# one\ntwo #}\nb\n", ["a:1", "b:4"]),
        ("{% if true %}\n  a\n{% endif %}\nb\n", ["  a:2", "b:4"]),
        ("{% for i in range(2) %}\n- {{ i }}\n{% endfor %}\nb\n", ["- 0:2", "- 1:2", "b:4"]),
        ("a\n\n{%- if true %}\nb{% endif %}\n\nc\n", ["ab:1", "c:6"]),
        ("{{ 'x' }}\n{{ 'y' -}}\n\nz\n", ["x:1", "yz:2"]),
        ("{{ 'two\nlines' }}\nend\n", ["two:1", "lines:2", "end:3"]),
        ("{% raw %}\n{{ a }}\n{% endraw %}\nb\n", [":1", "{{ a }}:2", "b:4"]),
        ("{% set x %}\nin\n{% endset %}\nbefore\n{{ x }}end\n", ["before:4", "in:2", "end:5"]),
    ],
)
def test_lines_are_found_through_every_kind_of_tag(small_project: Project, template: str, expected: list[str]) -> None:
    (small_project.templates / "notes" / "a.txt.j2").write_text(template)
    (file,) = render(small_project, "base").files.values()
    lines = file.text.split("\n")[1:-1]
    sources = [file.source_map.source_of(number) for number in range(2, 2 + len(lines))]
    found = [
        f"{line}:{source.template.line if source and source.template else None}"
        for line, source in zip(lines, sources, strict=True)
    ]
    assert found == expected


def finding(file: Path, line: int) -> Diagnostic:
    return Diagnostic(Span(file, line, 1, line, 2), "AML000", "something")


def test_findings_in_rendered_files_name_template_and_profile_lines(project: Project) -> None:
    write(project, render(project, "nd96", {"nodes": 3}))
    file = project.root / "components" / "train_ddp.yaml"
    line = file.read_text().split("\n").index("  shm_size: 128g") + 1
    (related,) = SourceFinder(project).relate([finding(file, line)])
    assert [(each.span.file.name, each.message) for each in related.related] == [
        ("_step.j2", "rendered from this line"),
        ("nd96.yaml", "the value comes from the profile"),
    ]


def test_a_value_is_changed_in_the_profile_that_sets_it_else_where_it_is_written(project: Project) -> None:
    write(project, render(project, "nd96", {"nodes": 3}))
    file = project.root / "components" / "train_ddp.yaml"
    lines = file.read_text().split("\n")

    def place(text: str) -> str | None:
        written = finder.written_at(Span(file, lines.index(text) + 1, 1, 1, 2))
        return written.file.name if written is not None else None

    finder = SourceFinder(project)
    assert place("  shm_size: 128g") == "nd96.yaml"
    assert place("type: command") is None, "nobody wrote it but the template"
    by_hand = project.root / "by_hand.yaml"
    by_hand.write_text("type: pipeline\n")
    span = Span(by_hand, 1, 1, 1, 2)
    assert finder.written_at(span) == span


def test_findings_in_a_rendering_elsewhere_are_related_too(project: Project, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write(project, render(project, "local", None, out))
    file = out / "environments" / "trainyard" / "Dockerfile"
    (related,) = SourceFinder(project).relate([finding(file, 5)])
    assert [each.span.file.name for each in related.related] == ["Dockerfile.j2"]


def test_in_a_file_edited_by_hand_other_lines_are_still_related(project: Project) -> None:
    write(project, render(project, "t4"))
    file = project.root / "compute" / "gpu_cluster.yaml"
    lines = file.read_text().split("\n")
    edited = lines.index("min_instances: 0")
    lines[edited : edited + 1] = ["min_instances: 1", "# my remark"]
    file.write_text("\n".join(lines))
    by_hand, after = SourceFinder(project).relate([finding(file, edited + 1), finding(file, edited + 3)])
    assert by_hand.related == ()
    assert (
        after.related[0].span.file.read_text().split("\n")[after.related[0].span.line - 1].startswith("max_instances")
    )


def test_findings_elsewhere_stay_as_they_are(project: Project) -> None:
    findings = [finding(project.profiles / "t4.yaml", 3), finding(project.root / "no_such_file.yaml", 1)]
    assert SourceFinder(project).relate(findings) == findings


def test_when_nothing_renders_any_more_findings_stay_as_they_are(project: Project) -> None:
    write(project, render(project, "t4"))
    file = project.root / "compute" / "gpu_cluster.yaml"
    (project.templates / "compute" / "gpu_cluster.yaml.j2").unlink()
    assert SourceFinder(project).relate([finding(file, 5)]) == [finding(file, 5)]
    (project.profiles / "t4.yaml").unlink()
    assert SourceFinder(project).relate([finding(file, 5)]) == [finding(file, 5)]
