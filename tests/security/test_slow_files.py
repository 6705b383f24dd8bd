"""Files that were made to take all time or all memory: each costs a finding, and the others are checked."""

from __future__ import annotations

import ast
import json
import re
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from trainyard.lint import linter
from trainyard.resources import word_tables
from trainyard.spec.shell_words import python_calls

CommandLine = Callable[..., Any]
SOURCE = Path(__file__).resolve().parents[2] / "src" / "trainyard"
COMPONENT = "type: command\nname: c\nenvironment: azureml:e:1\ncommand: x ${{inputs.n}}\n"
HANGING_SECONDS = 120
MEASURABLE_SECONDS = 0.002
PIPELINE = "type: pipeline\nsettings: {default_compute: azureml:c}\n"


def cpu_seconds() -> float:
    return sum(resource.getrusage(resource.RUSAGE_SELF)[:2])


def jobs(count: int) -> str:
    binding = "${{parent.jobs.jbo%d.outputs.o}}"
    each = "  job%d: {component: 'azureml:c:1', inputs: {a: '" + binding + "'}}\n"
    return PIPELINE + "jobs:\n" + "".join(each % (number, number) for number in range(count))


def with_command(text: str) -> str:
    return COMPONENT.replace("x ", f"x {text} ")


def nested(folder: Path) -> str:
    for number in range(1, 1500):
        reference = f"./p{number + 1}.yaml" if number < 1499 else "azureml:c:1"
        (folder / f"p{number}.yaml").write_text(
            f"type: pipeline\njobs:\n  a:\n    type: pipeline\n    component: {reference}\n"
        )
    return PIPELINE + "jobs:\n  a:\n    type: pipeline\n    component: ./p1.yaml\n"


TEXTS: dict[str, Callable[[Path], str]] = {
    "a long address of a schema": lambda _: "$schema: " + "azureml" * 7200 + "\n" + COMPONENT,
    "a long address of slashes": lambda _: "$schema: " + "azureml/" * 6400 + "\n" + COMPONENT,
    "4,000 jobs with unknown bindings": lambda _: jobs(4000),
    "4,000 unknown keys": lambda _: COMPONENT + "".join(f"comand{number}: 1\n" for number in range(4000)),
    "4,000 unknown inputs": lambda _: with_command("".join(f"${{{{inputs.i{n}}}}} " for n in range(4000))),
    "1,500 nested pipelines": nested,
    "brackets": lambda _: PIPELINE + "jobs: " + "[" * 200_000,
    "braces": lambda _: PIPELINE + "jobs: " + "{a: " * 200_000,
    "indentation": lambda _: "".join(" " * depth + "a:\n" for depth in range(1800)),
    "aliases": lambda _: "a0: &a0 [1]\n" + "".join(f"a{n}: &a{n} [{f'*a{n - 1}, ' * 9}1]\n" for n in range(1, 12)),
    "a long line": lambda _: with_command("a" * 1_500_000),
    "many comments": lambda _: COMPONENT + "# trainyard: ignore[AML101]\n" * 20_000,
    "many quotes": lambda _: with_command("'\"" * 20_000),
    "many dollars": lambda _: with_command("${{" * 20_000),
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_no_file_takes_more_than_its_time(
    trainyard: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: Callable[[Path], str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "slow.yaml").write_text(text(tmp_path))
    (tmp_path / "zero.yaml").write_text(COMPONENT)
    started = time.monotonic()
    outcome = trainyard("lint", "slow.yaml", "zero.yaml")
    assert "zero.yaml:4" in outcome.stderr, "the other file is checked"
    assert "a bug in Trainyard" not in outcome.stderr
    assert time.monotonic() - started < HANGING_SECONDS


def test_a_file_that_takes_too_long_is_reported_and_the_rest_is_checked(
    trainyard: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(linter, "CPU_SECONDS", 0.05)
    (tmp_path / "a.yaml").write_text(jobs(3000))
    (tmp_path / "zero.yaml").write_text(COMPONENT)
    outcome = trainyard("lint", ".")
    assert "a.yaml:1:1: error[AML004] checking this file takes more than" in outcome.stderr
    assert "zero.yaml:4" in outcome.stderr


def test_a_model_of_ten_million_layers_is_estimated_without_counting_them(
    trainyard: CommandLine, tmp_path: Path
) -> None:
    def seconds_for(layers: int) -> float:
        config = {"model_type": "llama", "num_hidden_layers": layers, "hidden_size": 64, "num_attention_heads": 4}
        config |= {"intermediate_size": 128, "vocab_size": 1000, "max_position_embeddings": 512}
        (tmp_path / "config.json").write_text(json.dumps(config))
        before = cpu_seconds()
        trainyard("estimate", "--model", str(tmp_path / "config.json"), "--sku", "Standard_ND96asr_v4")
        return cpu_seconds() - before

    seconds_for(2)  # imports
    assert seconds_for(10_000_000) < 10 * seconds_for(2) + 1


def test_variables_of_a_shell_are_counted_once_for_all() -> None:
    def seconds_for(count: int, name: str) -> float:
        command = "\n".join(f"{name}{number}=a{number}" for number in range(count))
        before = cpu_seconds()
        assert list(python_calls(f"{command}\npython train.py"))
        return cpu_seconds() - before

    few = min(seconds_for(400, name) for name in "ABC")
    assert seconds_for(4000, "D") < 40 * few


# Regular expressions --------------------------------------------------------------------------------------------------


READERS = ("compile", "search", "match", "fullmatch", "findall", "sub")


def _patterns() -> dict[str, tuple[re.Pattern[str], str]]:
    """Every regular expression of the author's side, its tables included, and the method that it is used with."""
    found: dict[str, tuple[re.Pattern[str], str]] = {}
    folders = ("render", "cli", "editor", "lint", "plan", "report", "spec")
    for file in (file for folder in folders for file in sorted((SOURCE / folder).rglob("*.py"))):
        text = file.read_text()
        if not re.search(r"\bre\.|regex", text):
            continue
        nodes = [*ast.walk(ast.parse(text))]
        names = {
            (node.value.lineno, node.value.col_offset): node.targets[0].id
            for node in nodes
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        }
        for node in nodes:
            if not (isinstance(node, ast.Call) and node.args and isinstance(node.func, ast.Name | ast.Attribute)):
                continue
            if getattr(node.func, "attr", "compile") not in READERS:
                continue
            # `regex` is `re.compile` at the first use.
            module, _, function = ast.unparse(node.func).replace("regex", "re.compile").rpartition(".")
            if function not in READERS or module != "re":
                continue
            try:
                pattern = ast.literal_eval(node.args[0])
            except ValueError:
                continue
            if isinstance(pattern, bytes):
                pattern = pattern.decode("latin-1")
            if isinstance(pattern, str):
                said = ast.unparse(node)
                flags = sum(flag for flag in (re.VERBOSE, re.MULTILINE, re.DOTALL) if flag.name in said)
                name = names.get((node.lineno, node.col_offset), "")
                used = {function}
                if function == "compile":
                    used = set(re.findall(rf"\b{name}\.(\w+)\(", text))
                method = "search" if used - {"match", "fullmatch"} or not used else min(used)
                found[f"{file.relative_to(SOURCE)}:{node.lineno}"] = re.compile(pattern, flags), method
    for _, pattern, what in word_tables("spec")["secrets"]["words"]:
        found[f"secrets: {what}: {pattern[:20]}"] = re.compile(pattern), "search"
    for pattern, what, _ in word_tables("lint")["refused_calls"]["words"]:
        found[f"refused calls: {what}"] = re.compile(pattern), "fullmatch"
    return found


PATTERNS = _patterns()
CHARACTERS = "aA0 _-./:,=\"'{}[]()<>$#@\\\n\t"


def pathological(pattern: str) -> Iterator[str]:
    """Texts that a pattern may begin to match again and again: runs of a character, and of its own words."""
    yield from CHARACTERS
    words = re.findall(r"[A-Za-z0-9_/:.$#{} =-]{2,}", pattern)
    yield from words
    for word in words:
        for character in 'a /.-"':
            yield word + character


def seconds_for(pattern: re.Pattern[str], method: str, text: str) -> float:
    def once() -> float:
        before = time.process_time()
        getattr(pattern, method)(text)
        return time.process_time() - before

    return min(once() for _ in range(2))


@pytest.mark.parametrize("place", PATTERNS)
def test_every_regular_expression_is_linear(place: str) -> None:
    """From a size at which it can be measured, four times the text takes at most 4 ** 1.3 times as long."""
    pattern, method = PATTERNS[place]
    for unit in pathological(pattern.pattern):
        small, large = (unit * (size // len(unit)) + "!" for size in (1_000, 4_000))
        if seconds_for(pattern, method, large) < MEASURABLE_SECONDS:
            continue
        # Other programs disturb a measurement: one that is good enough proves it.
        found = (seconds_for(pattern, method, large) / max(seconds_for(pattern, method, small), 1e-6) for _ in range(5))
        assert any(ratio <= 4**1.3 for ratio in found), f"{pattern.pattern!r} on {unit!r} repeated"
