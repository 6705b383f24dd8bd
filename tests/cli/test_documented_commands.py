"""Every command that README.md, CONTRIBUTING.md and docs/*.md show runs as written, in the state of a fresh clone.

The commands of a page run in one shell, in their order. Output that a page shows must be printed, apart from numbers.
What is submitted goes to a stand-in for Azure on this machine, by `az` too. Jobs of `trainyard run` are forked, which
spares them their imports.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "azure_client" / "helpers"))

from loopback_azure import LoopbackAzure

ROOT = Path(__file__).parents[2]
AZ = ROOT / "tests" / "azure_client" / "helpers" / "az_extension.py"
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "guides").glob("*.md")),
]

# Commands that begin like this are not run, and why.
SKIPPED = {
    ".venv/bin/python docs/generate_pictures.py": "RUN stands for the name of a run",
    "az login": "signs in, which the stand-in for Azure needs no account for",
    "az account": "chooses among the subscriptions of an account",
    "az ml compute list-usage": "asks for a quota, which the stand-in for Azure does not have",
    "az configure": "needs the Azure CLI, which is on no package index",
    "git clone": "the test starts in the state of a clone",
    "make test": "would run this test",
    "python -m venv": "the test has an environment",
    "make setup-": "needs a package index",
    "make run FILE=pipelines/horovod.yaml": "needs Horovod, which the command before it builds",
    "make run FILE=pipelines/tensorflow": "needs TensorFlow, which the command before it installs",
    "make run FILE=pipelines/prepare_at_scale.yaml": "needs pyspark, which the command before it installs, and Java",
    "python -m trainyard.steps.prepare_text_spark": "needs them too",
    "trainyard import job.py": "needs a script; tests/azure_client/test_import.py imports some",
    "trainyard model fetch": "needs the Hugging Face Hub; tests/cli/test_model_fetch.py has a stand-in",
    "az ml model create": "needs the model of the command before it",
    "trainyard run pipelines/ddp.yaml --profile local --name killed": "fails on purpose, as tests of the rehearsal do",
    "make extension": "needs npm's package index",
    "make site": "tests/architecture/test_site.py builds the site",
    "pip install": "needs a package index; tests/cli/test_new_project.py installs a wheel",
    "make check": "continuous integration runs it beside the tests (.ci/run)",
    "make soak": "takes hours",
    "make gpu-check": "needs a GPU; tests/steps/training/test_gpu_benchmark.py runs a part without one",
    "make bench": "takes most of an hour and measures nothing while tests run",
    "trainyard plan pipelines/fsdp.yaml --against": "needs a git history; tests/cli/test_plan_against.py makes one",
    "trainyard runs serve": "serves until Ctrl-C; tests/report/test_live.py ends it like this",
    "trainyard run pipelines/ddp.yaml --profile local --watch": "tests/cli/test_runs.py watches a smaller run",
    "trainyard init --existing": "refuses in a project; tests/cli/test_foreign_repository.py runs it in others",
    "trainyard runs compare": "needs the names of two runs; tests/cli/test_runs.py compares some",
    "trainyard runs resume": "needs a failed run; tests/cli/test_running.py resumes one",
}
# Commands that `make soak` runs and `make test` does not, and why.
SLOW = {
    "make run": "tests/cli/test_running.py makes the same run",
    "trainyard run pipelines/ddp.yaml --profile local --set inputs.format=folder": "trains for 16 epochs",
    "trainyard run pipelines/ddp.yaml --profile local --set inputs.format=table": "test_own_data.py makes such a run",
    "trainyard run pipelines/ddp.yaml --profile local --preempt": "test_preemption.py preempts a smaller training",
    "trainyard run pipelines/ddp.yaml --profile local --set inputs.epochs=2": "test_running.py makes such runs",
    "trainyard run pipelines/fsdp.yaml": "trains a language model",
    "trainyard run pipelines/autotune.yaml": "starts a training for each candidate",
    "trainyard render local --apply": "takes what that finds; tests/cli/test_commands.py applies a file",
    "make run FILE=pipelines/lightning.yaml": "tests/steps/training/test_lightning.py trains the same, on two ranks",
    "trainyard run pipelines/finetune.yaml": "starts from what the command before it trains",
    "trainyard run pipelines/preferences.yaml": "starts from what an earlier command trains",
    "az ml compute create -f compute/gpu_cluster.yaml": "docs/submit.md creates the other cluster in the same way",
    "az ml job create -f pipelines/check_cluster.yaml": "docs/commands.md sends another file in the same way",
    "az ml job create -f pipelines/ddp.yaml --set": "docs/commands.md sends it; test_set_keys.py sets keys of files",
    "trainyard submit pipelines/ddp.yaml --set": "docs/commands.md submits it without; test_submit.py does with --set",
    "trainyard submit pipelines/ddp.yaml --name my-first": "docs/commands.md submits it; test_submit.py names jobs",
    "trainyard submit pipelines/ddp.yaml --stream": "tests/azure_client/test_submit.py streams a job",
    "trainyard render nd96-h100 --diff": "docs/commands.md shows another profile's",
    "trainyard run pipelines/train.yaml": "tests/cli/test_new_project.py makes such a run",
    "python -m trainyard.steps": "tests/steps/training/test_own_task.py trains the same task, on two ranks",
    "trainyard run job.yml --name two_nodes": "README.md makes the same run",
    ".venv/bin/python tests/golden/regenerate.py": "test_golden.py and test_sent_bodies.py make what it writes",
    ".venv/bin/python docs/generate_model_types.py": "tests/lint/test_training_settings.py makes the same table",
    ".venv/bin/python docs/generate_families.py": "tests/plan/estimate/test_memory.py makes the same table",
}
# Commands that `make test` runs on the first page that shows them: what stands before them on others changes nothing.
ONCE = (
    "trainyard lint",
    "trainyard plan pipelines/ddp.yaml",
    "trainyard run pipelines/check_cluster.yaml --profile local",
    "trainyard submit pipelines/ddp.yaml --dry-run",
)
# What a reader puts in place of a placeholder.
PLACEHOLDERS = {"prepare_images.inputs.source=PATH": "my-images", "prepare_text.inputs.source=PATH": "docs"}
TIMEOUT_SECONDS = 1500
SOAK_TIMEOUT_SECONDS = 3600


@dataclass
class Command:
    """One command of a page, with the output the page shows for it."""

    place: str
    text: str
    shown: list[str] = field(default_factory=list)

    @property
    def as_run(self) -> str:
        """The command with the placeholders of its page replaced."""
        text = self.text
        for placeholder, value in PLACEHOLDERS.items():
            text = text.replace(placeholder, placeholder.replace("PATH", value))
        return text

    @property
    def expected_exit_code(self) -> int:
        """1 where the page shows an error, else 0."""
        return int(any("error" in line for line in self.shown))


@functools.cache
def commands_of(page: Path) -> list[Command]:
    """The commands of a page's console blocks, then those in the first code spans of its tables."""
    text = page.read_text(encoding="utf-8")
    found: list[Command] = []
    for block in re.finditer(r"^```(?:console|bash|sh)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        has_prompt = re.search(r"^\$ ", block[1], re.MULTILINE) is not None
        first_line = text.count("\n", 0, block.start(1)) + 1
        for number, line in enumerate(block[1].replace("\\\n", "\\\v").split("\n"), first_line):
            if line.startswith("$ ") or (line and not has_prompt):
                command = re.sub(r"\s+#.*", "", line.removeprefix("$ ").replace("\\\v", " "))
                found.append(Command(f"{page.name}:{number}", command))
            elif line:
                found[-1].shown.append(line)
    for row in re.finditer(r"^\|.*\|$", text, re.MULTILINE):
        for span in re.findall(r"`((?:make|trainyard|az) [^`]+)`", row[0]):
            found.append(Command(f"{page.name}:{text.count(chr(10), 0, row.start()) + 1}", span))
    return found


def is_listed(command: Command, table: dict[str, str]) -> bool:
    return any(command.text.startswith(beginning) for beginning in table)


def run_commands_of(page: Path) -> list[Command]:
    return [each for each in commands_of(page) if not is_listed(each, SKIPPED)]


def quick_commands_of(page: Path) -> list[Command]:
    run_before = {each.text for earlier in PAGES[: PAGES.index(page)] for each in run_commands_of(earlier)}
    commands = [
        each
        for each in run_commands_of(page)
        if not is_listed(each, SLOW) and not (each.text in ONCE and each.text in run_before)
    ]
    # What several rows of a table tell to do, one after the other, runs once.
    return [each for number, each in enumerate(commands) if not number or each.text != commands[number - 1].text]


def fresh_clone(folder: Path) -> Path:
    """The tracked files alone, with this environment as `.venv`, set up as `make setup` and `make test` leave it."""
    clone = folder / "trainyard"
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, tracked.split("\0")):
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, clone / name)
    virtual_environment = clone / ".venv"
    virtual_environment.mkdir()
    for entry in Path(sys.prefix).iterdir():
        if not entry.name.startswith(".ready"):
            (virtual_environment / entry.name).symlink_to(entry)
    for stamp in ("run", "test", "bench"):
        (virtual_environment / f".ready-to-{stamp}").touch()
    draw_images(clone / "my-images")
    draw_images(clone / "my-table")
    listed = [f"{file.relative_to(clone / 'my-table')},{file.parent.name}" for file in clone.glob("my-table/*/*.png")]
    (clone / "my-table" / "labels.csv").write_text("\n".join(["path,label", *listed]))
    return clone


def draw_images(folder: Path) -> None:
    """Twenty images of each of two classes, of several sizes."""
    from PIL import Image

    for number, (name, colour) in enumerate((("cat", (200, 80, 40)), ("dog", (40, 80, 200)))):
        (folder / name).mkdir(parents=True)
        for index in range(20):
            shade = tuple(min(255, part + index) for part in colour)
            Image.new("RGB", (24 + index, 32 + number), shade).save(folder / name / f"{index}.png")


def folder_of_programs(folder: Path, python_of_jobs: Path) -> Path:
    """A folder for PATH with the stand-in's `az`, another `python` and a `trainyard` whose jobs run with it."""
    (folder / "bin").mkdir()
    (folder / "bin" / "az").symlink_to(AZ)
    trainyard, python = folder / "bin" / "trainyard", folder / "bin" / "python"
    trainyard.write_text(
        f"#!{sys.executable}\n"
        f"import sys\n\nsys.executable = {str(python_of_jobs)!r}\nfrom trainyard.cli import main\n\nsys.exit(main())\n"
    )
    python.write_text(f'#!/bin/sh\nexec {python_of_jobs} "$@"\n')
    for program in (trainyard, python):
        program.chmod(0o755)
    return folder / "bin"


def run_in_one_shell(
    commands: list[Command], clone: Path, timeout_seconds: int, python_of_jobs: Path
) -> list[tuple[int, str]]:
    """Run commands one after the other; return exit code and output of each."""
    script = "".join(
        f"{{ {command.as_run}\n}} > {clone.parent}/{number}.out 2>&1 < /dev/null; echo $? >> {clone.parent}/codes\n"
        for number, command in enumerate(commands)
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    programs = folder_of_programs(clone.parent, python_of_jobs)
    folders = [programs, Path(sys.executable).parent, environment["PATH"]]
    environment |= {"PATH": ":".join(map(str, folders)), "NO_COLOR": "1"}
    with LoopbackAzure(clone.parent) as azure:
        environment |= azure.variables
        shell = subprocess.Popen(["bash", "-c", script], cwd=clone, env=environment, start_new_session=True)
        try:
            shell.wait(timeout_seconds)
        finally:
            if shell.poll() is None:
                os.killpg(shell.pid, signal.SIGKILL)
                shell.wait()
    codes = (clone.parent / "codes").read_text().split()
    assert len(codes) == len(commands), f"the shell ended at: {commands[len(codes)].text}"
    return [(int(code), (clone.parent / f"{number}.out").read_text()) for number, code in enumerate(codes)]


def without_numbers(text: str) -> str:
    """The text with numbers and blanks made alike: positions move when files change."""
    return " ".join(re.sub(r"\d+(\.\d+)?", "0", text).split())


def check_commands(commands: list[Command], clone: Path, timeout_seconds: int, python_of_jobs: Path) -> None:
    results = run_in_one_shell(commands, clone, timeout_seconds, python_of_jobs)
    for command, (code, output) in zip(commands, results, strict=True):
        assert code == command.expected_exit_code, f"{command.place}: `{command.as_run}` exits with {code}:\n{output}"
        for line in command.shown:
            assert without_numbers(line) in without_numbers(output), f"{command.place}: {command.as_run}\n{output}"


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_SECONDS + 20)
@pytest.mark.parametrize("page", [page for page in PAGES if quick_commands_of(page)], ids=lambda page: page.name)
def test_the_commands_of_a_page_run_as_written(page: Path, tmp_path: Path, forked_python: Path) -> None:
    check_commands(quick_commands_of(page), fresh_clone(tmp_path), TIMEOUT_SECONDS, forked_python)


@pytest.mark.soak
@pytest.mark.parametrize("page", [page for page in PAGES if run_commands_of(page)], ids=lambda page: page.name)
def test_all_commands_of_a_page_run_as_written(page: Path, tmp_path: Path) -> None:
    check_commands(run_commands_of(page), fresh_clone(tmp_path), SOAK_TIMEOUT_SECONDS, Path(sys.executable))


@pytest.mark.parametrize("beginning", [*SKIPPED, *SLOW])
def test_every_exception_is_of_a_command_that_is_shown(beginning: str) -> None:
    assert any(command.text.startswith(beginning) for page in PAGES for command in commands_of(page))


def test_commands_are_read_from_blocks_with_and_without_prompts(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```console\n$ one \\\n    more  # why\nshown\n```\n```console\ntwo\nthree  # why\n```\n"
        "| see | `trainyard skus`, `--flag` |\n"
    )
    assert [(command.place, command.text, command.shown) for command in commands_of(page)] == [
        ("page.md:2", "one      more", ["shown"]),
        ("page.md:7", "two", []),
        ("page.md:8", "three", []),
        ("page.md:10", "trainyard skus", []),
    ]
