"""`trainyard plan --against REF` and `trainyard render --diff`: what a change means, in real repositories."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from settings_project import write_project
from trainyard.resources import schema_file

ROOT = Path(__file__).parents[2]
Run = Callable[..., Any]
FSDP = "pipelines/fsdp.yaml"
SETTINGS = "settings/fsdp.yaml"


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.com", "-c", "init.defaultBranch=main")
    done = subprocess.run(["git", "-C", folder, *identity, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This project's YAML in a repository of its own, on the branch main."""
    folder = tmp_path / "project"
    for name in ("components", "pipelines", "environments", "compute", "settings"):
        shutil.copytree(ROOT / name, folder / name)
    (folder / "src" / "trainyard" / "steps").mkdir(parents=True)
    for name in ("__init__.py", "prepare_text_spark.py"):  # Spark starts a file, which has to be there.
        (folder / "src" / "trainyard" / "steps" / name).touch()
    git(folder.parent, "init", "--quiet", str(folder))
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "all")
    monkeypatch.chdir(folder)
    return folder


def replace(file: Path, *pairs: tuple[str, str]) -> None:
    text = file.read_text()
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    file.write_text(text)


def test_data_that_git_ignores_are_as_they_are_here_also_for_the_revision(trainyard: Run, repository: Path) -> None:
    replace(
        repository / FSDP,
        ("${{parent.jobs.prepare_text.outputs.prepared}}", "{type: uri_folder, path: ../data}"),
    )
    (repository / ".gitignore").write_text("/data/\n")
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "-m", "data")
    manifest = {
        "splits": {"train": {"samples": 800}},
        "arrays": {},
        "text": {"vocabulary_size": 2048},
        "source": {"sequence_length": 128},
    }
    (repository / "data").mkdir()
    (repository / "data" / "manifest.json").write_text(json.dumps(manifest))
    assert difference(trainyard)["figures"] == {}
    replace(repository / FSDP, ('overrides: "{}"', 'overrides: "{epochs: 2}"'))
    assert difference(trainyard)["figures"]["train_fsdp"]["steps"] == {"before": 4 * 100, "after": 2 * 100}


def difference(trainyard: Run, file: str = FSDP, ref: str = "main") -> dict[str, Any]:
    outcome = trainyard("plan", file, "--against", ref, "--format", "json")
    assert outcome.exit_code == 0, outcome.stderr
    document: dict[str, Any] = json.loads(outcome.stdout)
    jsonschema.validate(document, json.loads(schema_file("plan_difference").read_text()))
    return document


def settings_in(document: dict[str, Any]) -> dict[str, tuple[str | None, str | None]]:
    return {each["key"]: (each["before"], each["after"]) for each in document["settings"]}


def test_a_larger_batch_changes_batch_memory_and_one_setting(trainyard: Run, repository: Path) -> None:
    replace(repository / FSDP, ("micro_batch_size: 2\n", "micro_batch_size: 4\n"))
    replace(repository / FSDP, ("global_batch_size: 8\n", "global_batch_size: 16\n"))
    found = difference(trainyard)
    figures = found["figures"]["train_fsdp"]
    assert figures["global_batch_size"] == {"before": 8, "after": 16}
    assert figures["tokens_per_step"] == {"before": 1024, "after": 2048}
    assert figures["memory_bytes_per_gpu"]["after"] > figures["memory_bytes_per_gpu"]["before"]
    # Evaluation is bound to the same input: one change, with both jobs.
    assert settings_in(found) == {"inputs.micro_batch_size": ("2", "4"), "inputs.global_batch_size": ("8", "16")}
    assert found["settings"][0]["jobs"] == ["train_fsdp", "evaluate"]
    line = found["settings"][0]["line"]
    assert (repository / FSDP).read_text().splitlines()[line - 1].strip() == "micro_batch_size: 4"


def test_comments_order_spelling_and_where_a_value_is_written_are_no_change(trainyard: Run, repository: Path) -> None:
    replace(
        repository / FSDP,
        ("type: pipeline\n", "# a comment\ntype: pipeline\n"),
        ("vocabulary_size: 2048\n", "vocabulary_size: 0x800\n"),
        ("reshard_after_forward: ${{parent.inputs.reshard_after_forward}}", "reshard_after_forward: false  # here"),
    )
    replace(
        repository / SETTINGS,
        ("  num_hidden_layers: 3\n  hidden_size: 128\n", "  hidden_size: 128\n  num_hidden_layers: 3  # few\n"),
        ("learning_rate: 0.005\n", "learning_rate: 5e-3\n"),
    )
    found = difference(trainyard)
    assert (found["figures"], found["settings"]) == ({}, [])
    outcome = trainyard("plan", FSDP, "--against", "main")
    assert "no figure and no setting changes" in outcome.stdout


def test_more_machines_change_price_and_quota(trainyard: Run, repository: Path) -> None:
    replace(repository / "components/train_fsdp.yaml", ("instance_count: 1\n", "instance_count: 2\n"))
    replace(repository / FSDP, ("global_batch_size: 8\n", "global_batch_size: 16\n"))
    found = difference(trainyard)
    prices = found["figures"]["train_fsdp"]["on_demand_usd_per_hour"]
    assert prices["after"] == pytest.approx(2 * prices["before"])
    assert found["at_one_time"]["vcpus"]["after"]["Standard_NC64as_T4_v3"] == 128
    assert settings_in(found)["resources.instance_count"] == ("1", "2")


def test_jobs_that_come_and_go(trainyard: Run, repository: Path) -> None:
    text = (repository / FSDP).read_text()
    before_evaluate, _, evaluate = text.partition("\n  evaluate:\n")
    (repository / FSDP).write_text(f"{before_evaluate}\n  measure:\n{evaluate}")
    found = difference(trainyard)
    assert (found["jobs_added"], found["jobs_removed"]) == (["measure"], ["evaluate"])
    assert found["settings"] == []


def test_a_changed_configuration_is_told_by_its_keys(trainyard: Run, repository: Path) -> None:
    replace(repository / "pipelines/deepspeed.yaml", ("deepspeed/zero2.json", "deepspeed/zero3.json"))
    found = difference(trainyard, "pipelines/deepspeed.yaml")
    assert settings_in(found)["inputs.deepspeed_config.zero_optimization.stage"] == ("2", "3")


def test_a_key_that_the_plan_does_not_know_is_told_too(trainyard: Run, repository: Path) -> None:
    replace(repository / FSDP, ("\njobs:\n", "\nidentity:\n  type: user_identity\njobs:\n"))
    assert settings_in(difference(trainyard)) == {"identity.type": (None, "user_identity")}


def test_new_findings_are_told(trainyard: Run, repository: Path) -> None:
    replace(repository / "components/evaluate.yaml", ("process_count_per_instance: 4", "process_count_per_instance: 2"))
    found = difference(trainyard)
    assert [each["job"] for each in found["findings"]["new"]] == ["evaluate"]
    assert "no process" in found["findings"]["new"][0]["message"]


def test_markdown_for_a_pull_request_and_a_page(trainyard: Run, repository: Path) -> None:
    replace(repository / SETTINGS, ("learning_rate: 0.005\n", "learning_rate: 0.01\n"))
    markdown = trainyard("plan", FSDP, "--against", "HEAD", "--format", "markdown").stdout
    assert markdown.startswith(f"### What changes in `{FSDP}`, against HEAD (")
    row = next(line for line in markdown.splitlines() if "learning_rate" in line)
    assert row.startswith("| `inputs.learning_rate (train_fsdp)` | `0.005` | `0.01` | `settings/fsdp.yaml:")
    page = trainyard("plan", FSDP, "--against", "HEAD", "--format", "html").stdout
    assert "<td>0.005</td><td>0.01</td>" in page
    assert not re.findall(r"(?:href|src|url)[=(]\W?(?!#|data:)\w", page), "it needs no network"


def test_the_repository_is_left_as_it_was(trainyard: Run, repository: Path) -> None:
    replace(repository / SETTINGS, ("learning_rate: 0.005\n", "learning_rate: 0.01\n"))
    before = (git(repository, "status", "--porcelain"), git(repository, "worktree", "list"))
    difference(trainyard)
    assert (git(repository, "status", "--porcelain"), git(repository, "worktree", "list")) == before


@pytest.mark.parametrize("ref", ["nosuch", "main~9", "--all", ""])
def test_an_unknown_revision(trainyard: Run, repository: Path, ref: str) -> None:
    outcome = trainyard("plan", FSDP, f"--against={ref}")
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert f"unknown git revision {ref!r}; expected a branch" in outcome.stderr


def test_a_shallow_clone_says_how_to_get_the_history(
    trainyard: Run, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(repository, "commit", "--quiet", "--allow-empty", "-m", "second")
    clone = repository.parent / "clone"
    git(repository.parent, "clone", "--quiet", "--depth=1", repository.as_uri(), str(clone))
    monkeypatch.chdir(clone)
    outcome = trainyard("plan", FSDP, "--against", "HEAD~1")
    assert outcome.exit_code == 2
    assert "fetch-depth: 0" in outcome.stderr


def test_a_pipeline_that_is_new(trainyard: Run, repository: Path) -> None:
    shutil.copy(FSDP, "pipelines/new.yaml")
    outcome = trainyard("plan", "pipelines/new.yaml", "--against", "main")
    assert outcome.exit_code == 2
    assert "pipelines/new.yaml does not exist at main (" in outcome.stderr


def test_without_a_file_every_pipeline_that_changed(trainyard: Run, repository: Path) -> None:
    replace(repository / "components/evaluate.yaml", ("shm_size: 16g", "shm_size: 32g"))
    shutil.move("pipelines/fsdp.yaml", "pipelines/new.yaml")
    (repository / "notes.yaml").write_text("a: [")
    outcome = trainyard("plan", "--against", "main", "--format", "json")
    assert outcome.exit_code == 0, outcome.stderr
    found = {each["file"]: each for each in json.loads(outcome.stdout)}
    evaluating = {str(file) for file in Path("pipelines").iterdir() if "components/evaluate.yaml" in file.read_text()}
    assert found.keys() == {*evaluating, "pipelines/fsdp.yaml"}
    assert settings_in(found["pipelines/ddp.yaml"]) == {"resources.shm_size": ("16g", "32g")}
    jobs = ["prepare_text", "train_fsdp", "evaluate"]
    assert (found["pipelines/fsdp.yaml"]["jobs_removed"], found["pipelines/new.yaml"]["jobs_added"]) == (jobs, jobs)


def test_pipelines_that_could_not_be_planned_before_leave_the_others_compared(trainyard: Run, repository: Path) -> None:
    for name in ("fixed", "broken"):
        shutil.copy(FSDP, f"pipelines/{name}.yaml")
        replace(repository / f"pipelines/{name}.yaml", ("global_batch_size: 8\n", "global_batch_size: 9\n"))
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "-m", "two that cannot be planned")
    replace(repository / "pipelines/fixed.yaml", ("global_batch_size: 9\n", "global_batch_size: 8\n"))
    replace(repository / SETTINGS, ("epochs: 4\n", "epochs: 5\n"))
    outcome = trainyard("plan", "--against", "HEAD", "--format", "json")
    assert outcome.exit_code == 0, outcome.stderr
    assert [each["file"] for each in json.loads(outcome.stdout)] == [FSDP]
    notes = outcome.stderr.splitlines()
    assert [note.partition(".yaml")[0] for note in notes] == [
        "note: not compared: pipelines/broken",
        "note: not compared: cannot plan pipelines/fixed",
    ]


def test_a_pipeline_that_can_no_longer_be_planned_is_a_line_beside_the_others(trainyard: Run, repository: Path) -> None:
    replace(repository / FSDP, ("global_batch_size: 8\n", "global_batch_size: 9\n"))
    replace(repository / "settings/ddp.yaml", ("epochs: ", "epochs: 1"))
    for output_format, beginning in (("text", ""), ("markdown", "- ")):
        outcome = trainyard("plan", "--against", "HEAD", "--format", output_format)
        assert outcome.exit_code == 1
        assert outcome.stderr.startswith("error: pipelines/fsdp.yaml:")
        first, *rest = outcome.stdout.splitlines()
        assert first.startswith(f"{beginning}can no longer be planned: pipelines/fsdp.yaml:")
        assert any("pipelines/ddp.yaml" in line for line in rest), "the others are compared"
        assert not any("pipelines/fsdp.yaml" in line for line in rest)


def test_the_price_and_the_time_of_a_whole_run_before_and_after(trainyard: Run, repository: Path) -> None:
    """Both are known where the settings say how many steps there are."""
    replace(repository / SETTINGS, ("epochs: 4\n", "max_steps: 1000000\n"))
    git(repository, "commit", "--quiet", "-am", "a million steps")
    replace(repository / SETTINGS, ("max_steps: 1000000\n", "max_steps: 3000000\n"))
    run = difference(trainyard)["whole_run"]
    seconds = run["training_seconds"]
    assert seconds["after"] - 600 == pytest.approx(3 * (seconds["before"] - 600)), "ten minutes to start, in any case"
    ratios = [run[figure]["after"] / run[figure]["before"] for figure in ("on_demand_usd", "training_seconds")]
    assert ratios[0] == pytest.approx(ratios[1])
    assert "a whole run" in trainyard("plan", FSDP, "--against", "main").stdout
    too_dear = trainyard("plan", "--against", "main", "--max-usd", "0.01")
    assert too_dear.exit_code == 1
    assert "pipelines/fsdp.yaml: its trainings cost $" in too_dear.stderr
    assert trainyard("plan", FSDP, "--max-usd", "0.01").exit_code == 1
    assert trainyard("plan", FSDP, "--max-usd", "1000000").exit_code == 0
    unknown = trainyard("plan", "pipelines/ddp.yaml", "--max-usd", "0.01")
    assert unknown.exit_code == 1
    assert "pipelines/ddp.yaml: the price of its trainings is not known, and --max-usd is 0.01" in unknown.stderr


def test_limits_for_ci(trainyard: Run, repository: Path) -> None:
    assert trainyard("plan", "pipelines/fsdp.yaml", "--must-fit").exit_code == 0
    replace(repository / FSDP, ("micro_batch_size: 2\n", "micro_batch_size: 262144\n"))
    replace(repository / FSDP, ("global_batch_size: 8\n", "global_batch_size: 1048576\n"))
    for arguments in ((FSDP,), (FSDP, "--against", "main"), ("--against", "main")):
        outcome = trainyard("plan", *arguments, "--must-fit")
        assert outcome.exit_code == 1
        assert "pipelines/fsdp.yaml: train_fsdp needs about" in outcome.stderr
        assert trainyard("plan", *arguments).exit_code == 0


def test_a_job_that_only_azure_ml_knows_is_within_no_limit(trainyard: Run, repository: Path) -> None:
    (repository / "job.yaml").write_text("type: pipeline\njobs: {fit: {type: command, component: azureml:fit:3}}\n")
    for limit in (("--must-fit",), ("--max-usd", "1234567")):
        outcome = trainyard("plan", "job.yaml", *limit)
        assert outcome.exit_code == 1
        assert "job.yaml: what fit takes is not known: " in outcome.stderr


@pytest.mark.parametrize(
    ("command", "distribution", "exit_code"),
    [
        ("python fit.py", "distribution: {type: pytorch, process_count_per_instance: 4}", 1),
        ("python fit.py --name trainyard-test", "distribution: {type: pytorch, process_count_per_instance: 4}", 1),
        ("python -m evaluate", "distribution: {type: pytorch}", 0),
        ("python fit.py", "", 0),
        ("python -m trainyard.steps.prepare_images", "distribution: {type: pytorch, process_count_per_instance: 4}", 0),
    ],
)
def test_a_program_of_ones_own_in_several_processes_is_within_no_limit(
    trainyard: Run, repository: Path, command: str, distribution: str, exit_code: int
) -> None:
    """It may be a training, of which nothing is known; one process alone prepares, or evaluates."""
    (repository / "job.yaml").write_text(
        f"type: command\ncommand: {command}\nenvironment: azureml:torch:1\ncompute: azureml:gpus\n{distribution}\n"
    )
    for limit in (("--must-fit",), ("--max-usd", "1234567")):
        outcome = trainyard("plan", "job.yaml", *limit)
        assert outcome.exit_code == exit_code
        is_named = (
            "job.yaml: what job takes is not known: only Trainyard's training steps are estimated" in outcome.stderr
        )
        assert is_named == bool(exit_code)


def test_without_a_file_and_without_a_change(trainyard: Run, repository: Path) -> None:
    outcome = trainyard("plan", "--against", "main")
    assert outcome.exit_code == 0
    assert outcome.stdout.endswith("): no figure and no setting changes in any pipeline\n")
    assert trainyard("plan", "--against", "main", "--format", "html").exit_code == 2


def test_outside_a_repository(trainyard: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(ROOT / FSDP, tmp_path / "train.yaml")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    outcome = trainyard("plan", "train.yaml", "--against", "main")
    assert outcome.exit_code == 2
    assert "is not in a git repository; --against compares" in outcome.stderr


def test_a_version_that_cannot_be_planned_is_named_with_its_line(trainyard: Run, repository: Path) -> None:
    replace(repository / FSDP, ("global_batch_size: 8\n", "global_batch_size: 9\n"))
    git(repository, "commit", "--quiet", "-am", "broken")
    replace(repository / FSDP, ("global_batch_size: 9\n", "global_batch_size: 8\n"))
    outcome = trainyard("plan", FSDP, "--against", "HEAD")
    assert outcome.exit_code == 1
    assert "cannot plan pipelines/fsdp.yaml as it is at HEAD (" in outcome.stderr
    assert "): pipelines/fsdp.yaml:" in outcome.stderr


def test_against_and_from_run_exclude_each_other(trainyard: Run) -> None:
    outcome = trainyard("plan", FSDP, "--against", "HEAD", "--from-run", "metrics.jsonl")
    assert outcome.exit_code == 2
    assert "cannot be combined" in outcome.stderr


def test_render_diff_is_a_screen_by_importance(trainyard: Run) -> None:
    """What changes alike is one line: machines, processes, batch, precision and sharding first, and what it costs."""
    outcome = trainyard("render", "nd96", "--diff")
    lines = outcome.stdout.splitlines()
    assert 20 <= len(lines) <= 40
    assert max(map(len, lines)) <= 140
    assert lines[0] == "nd96, against the files on disk:"
    assert " files changed: " in lines[1]
    labels = [line.split("  ")[1] for line in lines if " → " in line]
    kinds = ["machine", "resources.instance_count", "processes", "micro_batch_size", "precision", "deepspeed_config"]
    kinds += ["settings", "compute", "on demand, an hour"]
    assert [label for label in dict.fromkeys(labels) if label in kinds] == kinds
    [machine] = [line for line in lines if line.startswith("  machine ")]
    assert "Standard_NC64as_T4_v3 → Standard_ND96asr_v4" in machine
    assert machine.endswith(" more")
    assert "global_batch_size" in outcome.stdout
    assert "$4.35 → $54.39   × 12.5" in outcome.stdout
    assert "more values: -v shows every value" in lines[-1]


def test_render_diff_counts_the_files_that_rendering_changes(trainyard: Run, tmp_path: Path) -> None:
    assert trainyard("render", "t4", "--out", str(tmp_path)).exit_code == 0
    lines = trainyard("render", "nd96", "--diff", "--out", str(tmp_path)).stdout.splitlines()
    counts = [re.search(r"(\d+) (other )?files?\b", line) for line in lines[1:3]]
    changed, headers = (int(found[1]) for found in counts if found)
    assert lines[2] == f"and the header line of {headers} other files"
    written = trainyard("render", "nd96", "--out", str(tmp_path)).stderr
    assert f"{changed + headers} files, {changed + headers} changed, 0 removed" in written


def test_render_diff_names_files_that_somebody_wrote(trainyard: Run, tmp_path: Path) -> None:
    assert trainyard("render", "t4", "--out", str(tmp_path)).exit_code == 0
    replace(tmp_path / "pipelines" / "ddp.yaml", ("type: pipeline\n", "type: pipeline\n# mine\n"))
    (tmp_path / "compute" / "cpu_cluster.yaml").write_text("name: mine\n")
    (tmp_path / "pipelines" / "sweep.yaml").unlink()
    lines = trainyard("render", "--diff", "--out", str(tmp_path)).stdout.splitlines()
    assert f"2 files changed: {tmp_path}/compute/cpu_cluster.yaml, {tmp_path}/pipelines/ddp.yaml" in lines
    assert f"1 file added: {tmp_path}/pipelines/sweep.yaml" in lines
    assert "pipelines/sweep.yaml is new" in lines
    assert f"! {tmp_path}/compute/cpu_cluster.yaml was not rendered by Trainyard" in lines
    assert any(line.startswith(f"! {tmp_path}/pipelines/ddp.yaml was edited by hand") for line in lines)


def test_render_diff_has_one_line_for_one_value(trainyard: Run, tmp_path: Path) -> None:
    folder = str(tmp_path)
    assert trainyard("render", "t4", "--out", folder).exit_code == 0
    outcome = trainyard("render", "t4", "--set", "pipelines.ddp.micro_batch_size=32", "--diff", "--out", folder)
    assert outcome.stdout.splitlines() == [
        "t4 --set pipelines.ddp.micro_batch_size=32, against the files on disk:",
        f"1 file changed: {tmp_path}/pipelines/ddp.yaml",
        f"and the header line of {sum(each.is_file() for each in tmp_path.rglob('*')) - 1} other files",
        "",
        "values",
        "  micro_batch_size   16 → 32   ddp",
        "  global_batch_size  64 → 128  ddp",
        "",
        "-v shows every value of each pipeline, and the lines that change",
    ]


def test_the_whole_difference_begins_with_what_it_means(trainyard: Run) -> None:
    """Batch, machines and price first; then the lines, without those that only say what a file was rendered from."""
    outcome = trainyard("render", "nd96", "--diff", "-v")
    meaning, _, lines = outcome.stdout.partition("--- a/")
    assert "size           Standard_NC64as_T4_v3 → Standard_ND96asr_v4" in meaning
    assert "effective batch     8 → 16   × 2" in meaning
    assert "on demand, an hour  $4.35 → $54.39   × 12.5" in meaning
    assert "\n-  process_count_per_instance: 4\n" in lines
    assert "\n+  process_count_per_instance: 8\n" in lines
    assert "Rendered from" not in outcome.stdout


def test_render_diff_of_what_is_on_disk_is_empty(trainyard: Run) -> None:
    outcome = trainyard("render", "--diff")
    assert (outcome.exit_code, outcome.stdout) == (0, "")
    assert "nothing changes" in outcome.stderr
    assert trainyard("render", "-v").exit_code == 2


def test_a_changed_setting_is_one_line_with_its_place_in_the_settings_file(
    trainyard: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "mine"
    write_project(folder)
    git(tmp_path, "init", "--quiet", str(folder))
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "all")
    monkeypatch.chdir(folder)
    replace(folder / "settings" / "ddp.yaml", ("epochs: 16", "epochs: 8"), ("[2, 2]", "[2, 3]"))
    found = difference(trainyard, "pipelines/ddp.yaml")
    assert settings_in(found) == {
        "inputs.epochs": ("16", "8"),
        "inputs.model_overrides.depths": ("[2, 2]", "[2, 3]"),
    }
    places = {each["key"]: (each["file"], each["line"]) for each in found["settings"]}
    assert places["inputs.epochs"] == ("settings/ddp.yaml", 6)
    replace(folder / "pipelines" / "ddp.yaml", ('overrides: ""', 'overrides: "{epochs: 4, weight_decay: 0.1}"'))
    assert settings_in(difference(trainyard, "pipelines/ddp.yaml")) == {
        "inputs.epochs": ("16", "4"),
        "inputs.weight_decay": ("0.3", "0.1"),
        "inputs.model_overrides.depths": ("[2, 2]", "[2, 3]"),
    }
