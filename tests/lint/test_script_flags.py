"""The flags of a script, read from its source; None for what cannot be told without running it."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainyard.lint.linter import lint
from trainyard.lint.scripts.flag_readers import read_flags, with_task_flags
from trainyard.lint.scripts.flags import ScriptFlags

ARGPARSE = "import argparse\nparser = argparse.ArgumentParser()\n"
CLICK = "import click\n"
TYPER = "import typer\n"


def flags_of(tmp_path: Path, source: str) -> ScriptFlags | None:
    script = tmp_path / "script.py"
    script.write_text(source)
    return read_flags(script, tmp_path)


def test_argparse_names_requirements_and_choices(tmp_path: Path) -> None:
    flags = flags_of(
        tmp_path,
        "from argparse import ArgumentParser as Parser\nMODES = ['a', 'b']\np = Parser(add_help=False)\n"
        "g = p.add_argument_group('g')\ng.add_argument('--mode', '-m', choices=MODES, required=True)\n"
        "p.add_argument('--amp', action=__import__('argparse').BooleanOptionalAction)\np.add_argument('data')\n"
        "p.add_argument('--level', type=int, choices=range(3))\n"
        "p.add_argument('--case', type=str.lower, choices=['a'])\np.parse_args()\n",
    )
    assert flags is not None
    mode = flags.find("-m")
    assert mode is not None
    assert mode.names == ("--mode", "-m")
    assert mode.is_required
    assert mode.choices == ("a", "b")
    assert flags.find("--help") is None
    level = flags.find("--level")
    assert level is not None
    assert level.choices is None
    assert flags.flags["--case"].choices is None


def test_argparse_takes_abbreviations_unless_told_not_to(tmp_path: Path) -> None:
    adds = "parser.add_argument('--epochs')\nparser.add_argument('--epsilon')\n"
    flags = flags_of(tmp_path, ARGPARSE + adds)
    assert flags is not None
    assert flags.find("--epo") is flags.find("--epochs")
    assert flags.find("--ep") is None
    strict = flags_of(tmp_path, ARGPARSE.replace("()", "(allow_abbrev=False)") + adds)
    assert strict is not None
    assert strict.find("--epo") is None


def test_a_parser_may_be_filled_by_functions_of_the_same_file(tmp_path: Path) -> None:
    source = "import argparse\ndef add(p):\n    p.add_argument('--a')\nq = argparse.ArgumentParser()\nadd(q)\n"
    flags = flags_of(tmp_path, source)
    assert flags is not None
    assert flags.find("--a") is not None


def test_unknown_flags_may_be_left_to_others(tmp_path: Path) -> None:
    flags = flags_of(tmp_path, ARGPARSE + "a, rest = parser.parse_known_args()\n")
    assert flags is not None
    assert flags.takes_others


@pytest.mark.parametrize(
    "source",
    [
        "print(1)\n",
        "def (\n",
        "import argparse\nimport other\np = argparse.ArgumentParser(parents=[other.p])\n",
        "import argparse\nimport deepspeed\np = argparse.ArgumentParser()\ndeepspeed.add_config_arguments(p)\n",
        ARGPARSE + "other = argparse.ArgumentParser()\n",
        ARGPARSE + "for name in names:\n    parser.add_argument(name)\n",
        ARGPARSE + "for name in names:\n    parser.add_argument('--a')\n",
        ARGPARSE + "parser.add_argument('--a', **kwargs)\n",
        ARGPARSE + "parser.add_subparsers()\n",
        "import argparse\np = argparse.ArgumentParser(prefix_chars='+')\n",
        "from transformers import HfArgumentParser\nimport argparse\nparser = HfArgumentParser(X)\n",
        CLICK + "@click.group()\ndef main(): ...\n",
        CLICK + "@click.command()\n@click.option(*names)\ndef main(): ...\n",
        CLICK + "@click.command()\n@shared_options\ndef main(): ...\n",
        CLICK + "@click.command()\ndef a(): ...\n@click.command()\ndef b(): ...\n",
        TYPER + "app = typer.Typer()\n@app.command()\ndef a(): ...\n@app.command()\ndef b(): ...\n",
        TYPER + "def main(a: int = other()): ...\ntyper.run(main)\n",
        "from steps import run_step\nfrom configs import Config\nrun_step(Config, 'x')\n",
    ],
)
def test_what_cannot_be_told_is_left_alone(tmp_path: Path, source: str) -> None:
    assert flags_of(tmp_path, source) is None


def test_a_script_that_is_not_there_or_is_too_large_has_no_flags(tmp_path: Path) -> None:
    assert read_flags(tmp_path / "none.py", tmp_path) is None
    assert flags_of(tmp_path, "#" * 1_000_001) is None


def test_click_options(tmp_path: Path) -> None:
    flags = flags_of(
        tmp_path,
        "import click\n@click.command(context_settings={'ignore_unknown_options': True})\n@click.argument('data')\n"
        "@click.option('--mode', type=click.Choice(['a', 'b']), required=True)\n@click.option('--amp/--no-amp')\n"
        "@click.option('--any', type=click.Choice(['x'], case_sensitive=False))\n"
        "@click.option('--key', required=True, envvar='KEY')\n@click.pass_context\ndef main(**options): ...\n",
    )
    assert flags is not None
    assert flags.takes_others
    assert {name for name, flag in flags.flags.items() if flag.is_required} == {"--mode"}
    assert flags.flags["--mode"].choices == ("a", "b")
    assert flags.flags["--any"].choices is None
    assert flags.find("--no-amp") is not None


def test_typer_parameters(tmp_path: Path) -> None:
    flags = flags_of(
        tmp_path,
        "from typing import Annotated\nimport typer\napp = typer.Typer()\n@app.command()\n"
        "def main(data: str, epochs: int = 3, verbose: bool = False, rate: float = typer.Option(..., '--lr'),\n"
        "         seed: Annotated[int, typer.Option()] = 0, out: str = typer.Argument('x')): ...\napp()\n",
    )
    assert flags is not None
    assert set(flags.flags) == {"--help", "--epochs", "--verbose", "--no-verbose", "--lr", "--seed"}
    assert flags.flags["--lr"].is_required
    assert flags_of(tmp_path, TYPER + "def main(a: Annotated[int, 3] = 1): ...\ntyper.run(main)\n") is None


def test_dataclasses_of_steps_with_their_bases(tmp_path: Path) -> None:
    (tmp_path / "base.py").write_text(
        "class Base:\n    data: Path = input_folder()\n    'Data.'\n    rate: float = parameter(0.1)\n    'Rate.'\n"
    )
    (tmp_path / "config.py").write_text(
        "from base import Base\nclass Config(Base):\n    mode: str = parameter('a', choices=('a', 'b'))\n    'Mode.'\n"
        "    extra_data: Path | None = input_folder(optional=True)\n    'More.'\n"
    )
    flags = flags_of(tmp_path, "from config import Config\nrun_step(Config, 'x')\n")
    assert flags is not None
    assert set(flags.flags) == {"-h", "--help", "--data", "--rate", "--mode", "--extra-data"}
    assert {name for name, flag in flags.flags.items() if flag.is_required} == {"--data"}
    assert flags.flags["--mode"].choices == ("a", "b")


def test_a_step_whose_settings_are_not_declared_as_such_has_no_known_flags(tmp_path: Path) -> None:
    (tmp_path / "config.py").write_text(
        "class Config:\n    rate: float = parameter(0.1)\n    'Rate.'\n    x: int = 3\n"
    )
    assert flags_of(tmp_path, "from config import Config\nrun_step(Config, 'x')\n") is None


def test_a_tasks_settings_are_flags_of_its_step(tmp_path: Path) -> None:
    (tmp_path / "config.py").write_text(
        "class Config:\n    task: str = parameter('image_classification')\n    'Task.'\n"
    )
    (tmp_path / "mine.py").write_text(
        "from trainyard.tasks import Task, TaskSettings, parameter\nclass Mine(Task):\n"
        "    class Settings(TaskSettings):\n        depth: int = parameter()\n        'How deep.'\n"
    )
    step = flags_of(tmp_path, "from config import Config\nrun_task_step(Config, 'x')\n")
    assert step is not None
    assert step.flags["--task"].default == "image_classification"
    assert {"--task", "--model-type", "--label-smoothing"} < set(with_task_flags(step, "image_classification").flags)
    assert "--label-smoothing" not in with_task_flags(step, "language_modeling").flags
    depth = with_task_flags(step, "mine:Mine").flags["--depth"]
    assert (depth.is_required, depth.file, depth.line) == (True, tmp_path / "mine.py", 4)
    assert with_task_flags(step, None).takes_others
    assert with_task_flags(step, "nowhere:Mine").takes_others


def test_sub_commands_of_argparse(tmp_path: Path) -> None:
    flags = flags_of(
        tmp_path,
        ARGPARSE
        + """
verbs = parser.add_subparsers(dest="verb", required=True)
build = verbs.add_parser("build")
build.add_argument("--size", type=int, required=True)
group = build.add_argument_group("output")
group.add_argument("--out")
show = verbs.add_parser("show")
show.add_argument("--all", action="store_true")
""",
    )
    assert flags is not None
    assert flags.needs_command
    assert {name: sorted(command.flags) for name, command in flags.commands.items()} == {
        "build": ["--help", "--out", "--size", "-h"],
        "show": ["--all", "--help", "-h"],
    }
    size, everything = flags.commands["build"].flags["--size"], flags.commands["show"].flags["--all"]
    assert (size.is_required, size.takes_value, size.number) == (True, True, "int")
    assert everything.takes_value is False


@pytest.mark.parametrize(
    "rest",
    [
        "verbs.add_parser('a')\n",
        "a = verbs.add_parser('a', parents=[common])\n",
        "a = verbs.add_parser(name)\n",
        "a = verbs.add_parser('a')\nmore = a.add_subparsers()\nb = more.add_parser('b')\n",
        "a = verbs.add_parser('a')\na = verbs.add_parser('b')\n",
        "a = verbs.add_parser('a')\nown.add_argument('--b')\n",
        "a = verbs.add_parser('a')\ngroup = own.add_argument_group('b')\n",
    ],
)
def test_sub_commands_that_cannot_be_told_are_left_alone(tmp_path: Path, rest: str) -> None:
    assert flags_of(tmp_path, ARGPARSE + "verbs = parser.add_subparsers()\n" + rest) is None


HUGGING_FACE = """
from dataclasses import dataclass, field
from transformers import HfArgumentParser

@dataclass
class Settings:
    data_folder: str
    rate: float = 0.1
    layers: list = field(default_factory=list)
    fast: bool = True
    made: int = field(init=False)
"""


def test_dataclasses_of_hf_argument_parser(tmp_path: Path) -> None:
    flags = flags_of(
        tmp_path, HUGGING_FACE + "settings, = HfArgumentParser((Settings,)).parse_args_into_dataclasses()\n"
    )
    assert flags is not None
    assert {name for name, flag in flags.flags.items() if flag.is_required} == {"--data_folder", "--data-folder"}
    assert {"--rate", "--layers", "--fast", "--no_fast", "--no-fast", "--help"} <= flags.flags.keys()
    assert "--made" not in flags.flags
    assert not flags.takes_others


@pytest.mark.parametrize(
    "rest",
    [
        "from transformers import TrainingArguments\nHfArgumentParser((Settings, TrainingArguments))\n",
        "import transformers\n@dataclass\nclass Arguments(transformers.TrainingArguments):\n    cache: str = ''\n"
        "HfArgumentParser((Settings, Arguments))\n",
    ],
)
def test_training_arguments_are_known_besides(tmp_path: Path, rest: str) -> None:
    flags = flags_of(tmp_path, HUGGING_FACE + rest)
    assert flags is not None
    assert flags.for_trainer
    assert "--data_folder" in flags.flags
    assert ("--cache" in flags.flags) == ("cache" in rest)


@pytest.mark.parametrize(
    "flags", ["--num_train_epochs 3", "--num-train-epochs 3", "--num_train_ep 3", "--no_save_safetensors", "--no_cuda"]
)
def test_flags_of_training_arguments_are_silent(tmp_path: Path, flags: str) -> None:
    script = (
        HUGGING_FACE + "from transformers import TrainingArguments\nHfArgumentParser((Settings, TrainingArguments))\n"
    )
    (tmp_path / "train.py").write_text(script)
    job = "type: command\nenvironment: azureml:e:1\ncompute: azureml:c\ncode: .\n"
    (tmp_path / "job.yml").write_text(f"{job}command: python train.py --data_folder x {flags}\n")
    assert lint([tmp_path / "job.yml"]).diagnostics == ()


@pytest.mark.parametrize(
    "rest",
    [
        "from mine import More\nHfArgumentParser((Settings, More))\n",
        "@dataclass\nclass More(Settings):\n    depth: int = 3\nHfArgumentParser(More)\n",
        "@dataclass\nclass More:\n    a: int = field(default=3, metadata={'aliases': '-d'})\nHfArgumentParser(More)\n",
        "parser = HfArgumentParser(Settings)\nparser.add_argument('--more')\n",
    ],
)
def test_dataclasses_from_elsewhere_are_left_alone(tmp_path: Path, rest: str) -> None:
    assert flags_of(tmp_path, HUGGING_FACE + rest) is None
