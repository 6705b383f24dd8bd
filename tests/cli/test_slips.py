"""What people mistype and mix up: each slip ends with one message, with the value and the fix, and no traceback."""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

Run = Callable[..., Any]

DDP = "pipelines/ddp.yaml"
LOCAL = ("run", DDP, "--profile", "local")
ND96 = ("render", "nd96", "--set")
LLAMA = ("estimate", "--model", "llama-3.1-8b", "--sku", "Standard_ND96isr_H100_v5")


@pytest.fixture(scope="module")
def copied_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's own sources in another folder, beside files that are easily mistaken for pipelines."""
    folder = tmp_path_factory.mktemp("project")
    for name in ("profiles", "settings", "templates", "src", "components", "pipelines", "environments", "compute"):
        shutil.copytree(name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "folder").mkdir()
    (folder / "notes.txt").write_text("hello")
    (folder / "empty.yaml").write_text("")
    (folder / "list.yaml").write_text("- 1\n")
    (folder / "latin.yaml").write_bytes("# café\ntype: pipeline\n".encode("latin-1"))
    (folder / "tabs.yaml").write_text("type: pipeline\njobs:\n\ta: 1\n")
    (folder / "open.yaml").write_text("type: pipeline\njobs: {a: [\n")
    deployment = "$schema: https://azuremlschemas.azureedge.net/latest/batchDeployment.schema.json\nname: batch\n"
    (folder / "deployment.yaml").write_text(deployment)
    (folder / "broken.json").write_text("{")
    with_component = "type: pipeline\njobs:\n  evaluate:\n    component: "
    (folder / "pipelines/from_above.yaml").write_text(f"{with_component}components/evaluate.yaml\n")
    (folder / "pipelines/windows.yaml").write_text(f"{with_component}..\\components\\evaluate.yaml\n")
    return folder


@pytest.fixture
def in_a_project(copied_project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(copied_project)
    return copied_project


def shown(value: str | Sequence[str]) -> str:
    """A parameter in a test's name."""
    return value if isinstance(value, str) else " ".join(value)[:60]


def assert_one_error(outcome: Any, exit_code: int, words: tuple[str, ...]) -> None:
    assert outcome.exit_code == exit_code, outcome
    assert outcome.stdout == ""
    assert outcome.stderr.count("error: ") + outcome.stderr.count("error[") == 1, outcome.stderr
    for word in words:
        assert word in outcome.stderr, outcome.stderr


# Arguments, and what the message holds: the value, and what to do.
WRONG_USAGE: list[tuple[tuple[str, ...], tuple[str, ...]]] = [
    # verbs and options
    (("rnu", DDP), ("unknown command 'rnu'", "'run'")),
    (("Run", DDP), ("unknown command 'Run'", "'run'")),
    (("runs", "lst"), ("unknown command 'lst'", "'list'", "trainyard runs --help")),
    (("new", "step", "x"), ("unknown command 'step'", "'component'", "'pipeline'")),
    (("--versoin",), ("unknown option --versoin", "'--version'")),
    (("render", "nd96", "--chek"), ("unknown option --chek", "'--check'", "trainyard render --help")),
    (
        ("plan", DDP, "--preempt", "train_ddp@step:5"),
        ("unknown option --preempt", "an option of `trainyard run`"),
    ),
    (("lint", "--format", "jsn"), ("--format: expected one of text, json", "'jsn'", "Did you mean 'json'")),
    (("run", DDP, "again"), ("unexpected argument 'again'", "quote")),
    (("run", DDP, "inputs.epochs=3"), ("unexpected argument 'inputs.epochs=3'", "write --set inputs.epochs=3")),
    (("plan", DDP, "pipelines/fsdp.yaml"), ("unexpected argument 'pipelines/fsdp.yaml'", "one file at a time")),
    (("run", DDP, "--epochs", "3"), ("unknown option --epochs", "Did you mean --set inputs.epochs=3?")),
    (("run", DDP, "--epochs"), ("unknown option --epochs", "Did you mean --set inputs.epochs=VALUE?")),
    (("run", DDP, "--batch-size=3"), ("unknown option --batch-size", "--set inputs.batch_size=3?")),
    ((*LOCAL, "--nodes", "2"), ("unknown option --nodes", "Did you mean --set nodes=2?")),
    (("run", DDP, "--nodes", "2"), ("unknown option --nodes", "Did you mean --profile NAME --set nodes=2?")),
    (("render", "nd96", "--nodes", "2"), ("unknown option --nodes", "Did you mean --set nodes=2?")),
    (("run", DDP, "-profile", "local"), ("unknown option -p", "'--profile'")),
    (("render", "--profile", "nd96"), ("unknown option --profile", "Write its value without --profile")),
    ((*LLAMA, "--nodes", "two"), ("--nodes: expected a whole number of at least 1, got 'two'",)),
    ((*LLAMA, "--nodes", "0"), ("--nodes: expected a whole number of at least 1, got '0'",)),
    ((*LLAMA, "--ema-decay", "2"), ("--ema-decay: expected a number in the range 0<=x<=1, got '2.0'",)),
    ((*LLAMA, "--ema-decay", "high"), ("--ema-decay: expected a number, got 'high'",)),
    (("run", DDP, "--profile"), ("--profile: expected a value after it",)),
    (("new", "component"), ("missing NAME", "trainyard new component --help")),
    (("init", "--from", "resnet"), ("--from: expected one of ddp, fsdp", "'resnet'")),
    # files
    (("run",), ("missing FILE", "pipelines/ddp.yaml")),
    (("run", "ddp"), ("ddp: no such file", "'pipelines/ddp.yaml'")),
    (("run", "pipeline/ddp.yaml"), ("pipeline/ddp.yaml: no such file", "'pipelines/ddp.yaml'")),
    (("run", "pipelines/ddp.yml"), ("pipelines/ddp.yml: no such file", "'pipelines/ddp.yaml'")),
    (("plan", "pipelines"), ("pipelines is a folder", "such as pipelines/ddp.yaml")),
    (("graph", "folder"), ("folder is a folder; expected a file",)),
    (("run", "https://example.com/ddp.yaml"), ("https://example.com/ddp.yaml is an address", "on this machine")),
    (("render", "nd96", "--apply", "none.yaml"), ("--apply none.yaml: no such file",)),
    (("run", DDP, "-f", DDP), ("FILE is given twice",)),
    (("run", "notes.txt"), ("notes.txt is not a YAML file", ".yaml")),
    (("lint", "componets"), ("no such file or folder: 'componets'",)),
    (("lint", "folder"), ("no YAML files in folder",)),
    (("lint", "--baseline", "folder"), ("--baseline: folder is a folder; expected a file",)),
    (("lint", "--baseline", "none.json"), ("none.json: no such file", "--write-baseline")),
    (("lint", "--baseline", "broken.json"), ("broken.json: not valid JSON", "--write-baseline")),
    (("explain", "none.yaml"), ("none.yaml: no such file",)),
    (("explain", "pipelines/ddp.yml"), ("pipelines/ddp.yml: no such file", "'pipelines/ddp.yaml'")),
    (("init", "notes.txt"), ("notes.txt is a file; expected a folder",)),
    (("render", "nd96", "--out", "notes.txt"), ("--out: notes.txt is a file; expected a folder",)),
    # names
    (("render", "nd69"), ("unknown profile 'nd69'", "'nd96'")),
    (("render", "profiles/nd96.yaml"), ("unknown profile 'profiles/nd96.yaml'", "Did you mean 'nd96'")),
    (("run", DDP, "--profile", "Local"), ("unknown profile 'Local'", "Did you mean 'local'")),
    (("run", DDP, "--profile", ""), ("unknown profile ''", "Known: local")),
    (("explain", "unknown-comand-port"), ("unknown rule", "'unknown-command-port'")),
    (("explain", "AML999"), ("unknown rule 'AML999'", "lists all rules")),
    (("skus", "A100"), ("unknown VM size 'A100'", "Standard_ND96asr_v4")),
    (("skus", "Standard_ND96asr_v5"), ("'Standard_ND96asr_v5'", "Standard_ND96asr_v4")),
    (("schemas", "pipline.json"), ("unknown schema 'pipline.json'", "Did you mean 'pipeline'")),
    (("new", "component", "My-Step"), ("'My-Step'", "lower-case letters", "clean_text")),
    (("new", "component", "train_ddp"), ("'train_ddp' already", "another name")),
    (("new", "pipeline", "ddp"), ("'ddp' already", "another name")),
    # --set of render
    ((*ND96, "nodes"), ("--set nodes: expected KEY=VALUE", "nodes=4")),
    ((*ND96, "nodes=four"), ("--set nodes=four", "a whole number", "'four'")),
    ((*ND96, "nodes=0"), ("--set nodes=0", "minimum is 1")),
    ((*ND96, "pipelines.fsdp.weight_decay=0.2"), ("'weight_decay' is a setting", "settings/fsdp_125m.yaml")),
    ((*ND96, "node=4"), ("unknown key 'node'", "'nodes'")),
    ((*ND96, "spot=maybe"), ("true or false", "'maybe'")),
    ((*ND96, "precision=fp8"), ("expected one of fp32, bf16, fp16", "'fp8'")),
    ((*ND96, "cluster=My Cluster"), ("expected 3 to 24 letters", "'My Cluster'")),
    ((*ND96, "sku=Standard_NC24"), ("--set sku=Standard_NC24", "retired", "Closest")),
    ((*ND96, "pipelines.ddp.epoch=3"), ("'epochs' is a setting of the training", "settings/ddp.yaml")),
    ((*ND96, "pipelines.dpp.epochs=3"), ("unknown pipeline 'dpp'", "'ddp'")),
    ((*ND96, "learning_rate=0.1"), ("unknown key 'learning_rate'", "a settings file, such as settings/ddp.yaml")),
    ((*ND96, "inputs.epochs=3"), ("unknown key 'inputs'", "`trainyard run --set inputs.…`")),
    # --set of run
    ((*LOCAL, "--set", "inputs.epochs=3,inputs.seed=1"), ("expected a whole number", "--set inputs.seed=1")),
    ((*LOCAL, "--set", "inputs.epochs=3 inputs.seed=1"), ("expected a whole number", "--set inputs.seed=1")),
    ((*LOCAL, "--set", "epochs=3"), ("unknown key 'epochs' in the profile", "--set inputs.epochs=VALUE")),
    ((*LOCAL, "--set", "nodess=4"), ("unknown key 'nodess' in the profile. Did you mean 'nodes'?",)),
    ((*LOCAL, "--set", "inputs.epochs 3"), ("--set inputs.epochs 3: expected KEY=VALUE", "inputs.epochs=3")),
    ((*LOCAL, "--set", "inputs.epcohs=3"), ("no input 'epcohs'", "'epochs'")),
    (("run", DDP, "--set", "nodes=4"), ("--set nodes: names no input", "inputs.precision", "trainyard render --set")),
    ((*LOCAL, "--set", "inputs.epochs=three"), ("expected a whole number, got 'three'",)),
    ((*LOCAL, "--set", "inputs.epochs=0"), ("0 is below the minimum of 1",)),
    ((*LOCAL, "--set", "inputs.learning_rate=0,003"), ("expected a number, got '0,003'",)),
    ((*LOCAL, "--set", "inputs.format=jpg"), ("'jpg'; expected one of digits", "folder")),
    ((*LOCAL, "--set", "jobs.train.inputs.epochs=3"), ("unknown job 'train'", "'train_ddp'")),
    ((*LOCAL, "--set", "jobs.train_ddp.inputs.epoch=3"), ("no input 'epoch'", "'epochs'")),
    ((*LOCAL, "--set", "inputs.weight_decai=0.1"), ("no input 'weight_decai'", "'weight_decay'")),
    ((*LOCAL, "--set", "inputs.source=photos"), ("no input 'source'", "'jobs.prepare_images.inputs.source'")),
    ((*LOCAL, "--set", "inputs.source.path=photos"), ("no input 'source'", "'jobs.prepare_images.inputs.source'")),
    ((*LOCAL, "--set", "source=photos"), ("unknown key 'source' in the profile", "--set inputs.source=VALUE")),
    ((*LOCAL, "--set", "source=photos"), ("the key pipelines.NAME.source", "--set jobs.J.inputs.source=VALUE")),
    # other options of run
    ((*LOCAL, "--only", "train"), ("--only train: unknown job", "'train_ddp'")),
    ((*LOCAL, "--from", "evalute"), ("--from evalute: unknown job", "'evaluate'")),
    ((*LOCAL, "--only", "train_ddp", "--from", "evaluate"), ("--only and --from cannot be used together",)),
    ((*LOCAL, "--only", "evaluate"), ("no earlier run", "run the whole pipeline first")),
    ((*LOCAL, "--max-processes", "two"), ("--max-processes: expected a whole number of at least 1, got 'two'",)),
    ((*LOCAL, "--name", "my run"), ("--name 'my run'", "letters, digits")),
    ((*LOCAL, "--run-dir", "notes.txt"), ("--run-dir: notes.txt is a file; expected a folder",)),
    # past runs
    (("runs", "show"), ("no runs yet", "trainyard run FILE")),
    (("runs", "logs", "bold-otter-7"), ("unknown run 'bold-otter-7'", "no runs yet")),
    (("runs", "logs", "--rank", "-1"), ("--rank: expected a whole number of at least 0, got '-1'",)),
    (("runs", "clean", "--older-than", "week"), ("--older-than: expected a number of at least 0, got 'week'",)),
]


@pytest.mark.parametrize(("arguments", "words"), WRONG_USAGE, ids=shown)
def test_wrong_usage_exits_with_2(
    trainyard: Run, in_a_project: Path, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    assert_one_error(trainyard(*arguments), 2, words)


# Arguments, the place, and what the message holds.
WRONG_FILES = [
    (("run", "empty.yaml"), ("empty.yaml:1:1:", "Write YAML into it")),
    (("run", "list.yaml"), ("list.yaml:1:1:", "expected a mapping")),
    (("run", "latin.yaml"), ("latin.yaml:1:", "UTF-8", "Save it as UTF-8")),
    (("run", "tabs.yaml"), ("tabs.yaml:3:1:", "a tab", "Indent with spaces")),
    (("run", "open.yaml"), ("open.yaml:3:1:", "is not closed")),
    (("plan", "components/train_ddp.yaml"), ("components/train_ddp.yaml:4:7:", "a component, not a pipeline")),
    (("run", "components/train_ddp.yaml"), ("components/train_ddp.yaml:4:7:", "a component, not a pipeline")),
    (("run", "pipelines/from_above.yaml"), ("pipelines/from_above.yaml:4:16:", "Write ../components/evaluate.yaml")),
    (("run", "pipelines/windows.yaml"), ("pipelines/windows.yaml:4:16:", "Write ../components/evaluate.yaml")),
    (("run", "profiles/t4.yaml"), ("profiles/t4.yaml:", "a profile, not a pipeline")),
    (("run", "compute/gpu_cluster.yaml"), ("compute/gpu_cluster.yaml:5:7:", "a compute target, not a pipeline")),
    (("run", "deployment.yaml"), ("deployment.yaml:1:1:", "a batch deployment, not a pipeline")),
    (("submit", "components/train_ddp.yaml", "--dry-run"), ("components/train_ddp.yaml:4:7:", "a component, not a")),
    (("submit", "environments/trainyard.yaml", "--dry-run"), ("environments/trainyard.yaml:", "an environment")),
    (("submit", "deployment.yaml", "--dry-run"), ("deployment.yaml:1:1:", "a batch deployment")),
    (("init", "."), ("files would be overwritten", "choose another folder", "--force")),
]


@pytest.mark.parametrize(("arguments", "words"), WRONG_FILES, ids=shown)
def test_a_wrong_file_exits_with_1(
    trainyard: Run, in_a_project: Path, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    assert_one_error(trainyard(*arguments), 1, words)


SLEEPER = """\
type: pipeline
jobs:
  sleeper:
    type: command
    command: echo asleep && sleep 600
    environment: azureml:any:1
"""


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_exits_with_128_and_the_signal(tmp_path: Path, number: int, exit_code: int) -> None:
    (tmp_path / "sleeper.yaml").write_text(SLEEPER)
    command = [sys.executable, "-m", "trainyard", "run", "sleeper.yaml", "--name", "nap"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        assert run.stderr is not None
        try:
            next(line for line in run.stderr if "running" in line)
            run.send_signal(number)
            output, errors = run.communicate(timeout=120)
        finally:
            run.kill()
    assert run.returncode == exit_code, errors
    assert "Traceback" not in errors
    assert "nap: canceled" in output


# Data of your own ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders and tables as people have them, each with its own mistake."""
    folder = tmp_path_factory.mktemp("data")
    white = Image.new("L", (8, 8), 255)
    for name in ("good/cat/1.png", "good/dog/2.png", "loose/1.png", "loose/2.png", "broken/dog/2.png"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        white.save(folder / name)
    texts = {
        "broken/cat/1.png": "no image",
        "texts/cat/1.txt": "no image",
        "wrong_columns/table.csv": "file,class\n1.png,cat\n",
        "missing_image/table.csv": "path,label\n1.png,cat\n",
        "missing_label/table.csv": "path,label\n1.png\n",
        "semicolons/table.csv": "path;label\n1.png;cat\n",
        "other_names/table.csv": "file;class\n1.png;cat\n",
        "absolute/table.csv": "path,label\n/data/1.png,cat\n",
        "windows/table.csv": "path,label\nC:\\data\\1.png,cat\n",
        "leaving/table.csv": "path,label\nx/../../good/cat/1.png,cat\n",
        "only_header/table.csv": "path,label\n",
        "two_tables/a.csv": "path,label\n",
        "two_tables/b.csv": "path,label\n",
        "wrong_field/a.jsonl": '{"txt": "no text"}\n',
        "no_json/a.jsonl": "text\n",
        "no_parquet/a.parquet": "text\n",
        "words/a.docx": "text\n",
    }
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "latin").mkdir()
    for number in range(3):
        (folder / f"latin/{number}.txt").write_bytes("café".encode("latin-1"))
    (folder / "empty").mkdir()
    white.save(folder / "missing_label/1.png")
    return folder


WRONG_DATA = [
    ("prepare_images", ["--format", "folder"], ("--format folder needs --source",)),
    ("prepare_images", ["--source", "good"], ("--format digits reads no --source", "good", "folder")),
    ("prepare_images", ["--format", "folder", "--source", "none"], ("--source none: no such folder",)),
    (
        "prepare_images",
        ["--format", "folder", "--source", "good/cat/1.png"],
        ("is a file; give the folder that holds it: good/cat",),
    ),
    ("prepare_images", ["--format", "folder", "--source", "empty"], ("empty holds no images", "per class")),
    ("prepare_images", ["--format", "folder", "--source", "loose"], ("loose holds 2 images without a folder",)),
    (
        "prepare_images",
        ["--format", "folder", "--source", "texts"],
        ("texts holds no images in its folders cat", ".webp"),
    ),
    ("prepare_images", ["--format", "folder", "--source", "broken"], ("broken/cat/1.png", "--skip-undecodable")),
    ("prepare_images", ["--format", "table", "--source", "good"], ("good: expected one .csv or .parquet", "none")),
    ("prepare_images", ["--format", "table", "--source", "two_tables"], ("expected one", "a.csv, b.csv")),
    ("prepare_images", ["--format", "table", "--source", "wrong_columns"], ("no column 'path'", "--path-column")),
    ("prepare_images", ["--format", "table", "--source", "missing_image"], ("table.csv:2:", "no file 1.png")),
    ("prepare_images", ["--format", "table", "--source", "missing_label"], ("table.csv:2:", "label is empty")),
    ("prepare_images", ["--format", "table", "--source", "semicolons"], ("table.csv has ';' between its columns",)),
    ("prepare_images", ["--format", "table", "--source", "other_names"], ("table.csv has ';' between its columns",)),
    ("prepare_images", ["--format", "table", "--source", "absolute"], ("table.csv:2: /data/1.png", "only the source")),
    ("prepare_images", ["--format", "table", "--source", "windows"], ("is absolute or leaves windows",)),
    ("prepare_images", ["--format", "table", "--source", "leaving"], ("is absolute or leaves leaving",)),
    ("prepare_images", ["--format", "table", "--source", "only_header"], ("lists no image for training",)),
    ("prepare_text", ["--source", "none"], ("--source none: no such folder",)),
    ("prepare_text", ["--source", "empty"], ("holds no text", ".txt", "the folder is empty")),
    ("prepare_text", ["--source", "words"], ("holds no text", "a.docx")),
    ("prepare_text", ["--source", "wrong_field"], ("a.jsonl:1", "txt", "--text-field")),
    ("prepare_text", ["--source", "no_json"], ("a.jsonl:1", "JSON")),
    ("prepare_text", ["--source", "no_parquet"], ("a.parquet", "not a valid parquet file")),
    ("prepare_text", ["--source", "latin"], ("latin/0.txt", "UTF-8", "--replace-undecodable")),
]


@pytest.mark.parametrize(("step", "flags", "words"), WRONG_DATA, ids=shown)
def test_data_that_cannot_be_read_exits_with_1(
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    step: str,
    flags: list[str],
    words: tuple[str, ...],
) -> None:
    monkeypatch.chdir(data)
    main = importlib.import_module(f"trainyard.steps.{step}").main

    assert main(["--prepared", "prepared", *flags]) == 1

    message = capsys.readouterr().err
    assert message.count("error: ") == 1
    assert "Traceback" not in message
    for word in words:
        assert word in message


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes into read-only folders")
def test_a_read_only_folder_is_named(trainyard: Run, in_a_project: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert_one_error(trainyard(*LOCAL, "--run-dir", str(tmp_path / "run")), 1, ("cannot be written", "--run-dir"))


def test_a_report_that_cannot_be_written_hides_no_result(
    trainyard: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk; here a folder is in the way."""
    (tmp_path / "job.yaml").write_text(SLEEPER.replace("echo asleep && sleep 600", "mkdir ../../../../report.html"))
    monkeypatch.chdir(tmp_path)
    outcome = trainyard("run", "job.yaml", "--name", "blocked")
    assert outcome.exit_code == 0, outcome
    assert f"warning: no report: {tmp_path}/.trainyard/runs/blocked/report.html: " in outcome.stderr
    assert "blocked: completed" in outcome.stdout


def test_a_folder_that_cannot_be_made_is_named(trainyard: Run, in_a_project: Path) -> None:
    below_a_file = "notes.txt/run"
    assert_one_error(trainyard(*LOCAL, "--run-dir", below_a_file), 1, (below_a_file, "cannot be written", "--run-dir"))


@pytest.mark.parametrize("arguments", [(), ("runs",), ("new",)])
def test_without_a_verb_help_is_shown(trainyard: Run, arguments: tuple[str, ...]) -> None:
    outcome = trainyard(*arguments)
    assert outcome.exit_code == 2
    assert outcome.stderr.startswith("Usage: ")
    assert "Commands:" in outcome.stderr


def test_blanks_around_a_key_do_no_harm(trainyard: Run, in_a_project: Path) -> None:
    outcome = trainyard(*LOCAL, "--only", "evaluate", "--set", "inputs.epochs = 3")
    assert "no earlier run" in outcome.stderr


@pytest.mark.parametrize("verb", ["render", "doctor", "lint"])
def test_outside_a_project(trainyard: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = trainyard(verb)
    if verb == "render":
        assert_one_error(outcome, 2, ("templates/", "trainyard init"))
    elif verb == "lint":
        assert_one_error(outcome, 2, ("no YAML files",))
    else:
        assert outcome.exit_code in (0, 1)
