"""Files that no linter wants to meet: a diagnostic each, at once, and never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from trainyard.lint.checks import CHECKS, LintContext, LintedFile
from trainyard.lint.linter import lint
from trainyard.lint.machine_output import as_json, as_sarif
from trainyard.lint.rules.linting import CHECK_FAILED
from trainyard.lint.text_output import as_text
from trainyard.spec.diagnostic import Diagnostic
from trainyard.spec.documents import parse_document

COMPONENT = "type: command\nname: c\nversion: 1\nenvironment: azureml:e:1\nis_deterministic: false\n"
# How many times as long as parsing 20,000 ordinary keys the linter and all reports may take for any file.
LIMIT = 20

pytestmark = pytest.mark.timeout(30)


@cache
def reference_time() -> float:
    """Processor time, in seconds, for parsing a long ordinary file: how fast this machine is."""
    text = "type: command\ntags:\n" + "".join(f"  key{number}: value {number}\n" for number in range(20_000))
    start = time.process_time()
    parse_document(Path("reference.yaml"), text)
    return time.process_time() - start


def rules_of(path: Path) -> list[str]:
    """The rules with findings, which are reported in every format within the limit."""
    limit = LIMIT * reference_time()
    # Processor time, since the machine may be busy; what waits forever runs into the test's timeout.
    start = time.process_time()
    found = lint([path]).diagnostics
    for write in (as_json, as_sarif):
        write(found, relative_to=path.parent)
    as_text(found, colour=True, relative_to=path.parent)
    assert time.process_time() - start < limit
    assert all(diagnostic.message and "\n" not in diagnostic.message for diagnostic in found)
    return [diagnostic.rule for diagnostic in found]


def bomb(levels: int) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels)]
    return "type: command\n" + "\n".join(lines) + "\n"


CONTENTS: dict[str, tuple[bytes, str]] = {
    "binary": (bytes(range(256)) * 64, "AML003"),
    "an image": (b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" * 9, "AML003"),
    "UTF-16, little end first": ((COMPONENT + "command: run\n").encode("utf-16"), "AML003"),
    "UTF-16, big end first": ((COMPONENT + "command: run\n").encode("utf-16-be"), "AML003"),
    "UTF-32": ((COMPONENT + "command: run\n").encode("utf-32"), "AML003"),
    "Latin-1": ("type: command\ndescription: caf\xe9\n".encode("latin-1"), "AML003"),
    "a NUL in the middle": (COMPONENT.encode() + b"command: a\0b\n", "AML003"),
    "a control character": (COMPONENT.encode() + b"command: a\x07b\n", "AML002"),
    "half a character": (COMPONENT.encode() + b"command: \xf0\x9f\x98", "AML003"),
    "half a pair of surrogates": (COMPONENT.encode() + b"command: \xed\xa0\x80\n", "AML003"),
    "nothing": (b"", "AML005"),
    "a mark alone": (b"\xef\xbb\xbf", "AML005"),
    "comments alone": (b"# nothing\n# here\n", "AML005"),
    "blanks alone": (b" \n\t\n \n", "AML002"),
    "a list": (b"- 1\n- 2\n", "AML006"),
    "a text": (b"just words\n", "AML006"),
    "a number": (b"42\n", "AML006"),
    "null": (b"null\n", "AML006"),
    "a date": (b"2026-11-21\n", "AML006"),
    "two documents": (COMPONENT.encode() + b"command: run\n---\na: 1\n", "AML005"),
    "brackets without end": (b"[" * 100_000, "AML004"),
    "braces without end": (b"{" * 100_000, "AML004"),
    "lists in lists, by indentation": ("".join("  " * n + "-\n" for n in range(1500)).encode(), "AML004"),
    "mappings in mappings": ("".join(" " * n + "a:\n" for n in range(1500)).encode(), "AML004"),
    "lists in lists, on one line": (b"- " * 100_000, "AML004"),
    "questions without end": (b"? " * 100_000, "AML004"),
    "anchors without end": (b"&a " * 50_000, "AML002"),
    "an alias bomb": (bomb(30).encode(), "AML004"),
    "an alias in itself": (b"type: command\na: &a [*a]\n", "AML004"),
    "a merge of itself": (b"type: command\na: &a\n  <<: *a\n", "AML004"),
    "merges of merges": (
        b"type: command\na: &a {x: 1}\n"
        + b"".join(b"k%d: &k%d {<<: [*a, *a]}\n" % (n, n) for n in range(2000)),
        "AML101",
    ),
    "many keys": (COMPONENT.encode() + b"".join(b"key%d: 1\n" % n for n in range(3000)), "AML101"),
    "a long key": (COMPONENT.encode() + b"k" * 1000 + b": 1\ncommand: run\n", "AML101"),
    "a long line": (COMPONENT.encode() + b"command: " + b"x " * 500_000 + b"\nfoo: 1\n", "AML004"),
    "many bindings": (COMPONENT.encode() + b"command: " + b"${{inputs.a}} " * 4_000 + b"\n", "AML206"),
    "bindings that are not closed": (COMPONENT.encode() + b"command: " + b"${{" * 20_000 + b"\n", "AML201"),
    "parts that are not closed": (COMPONENT.encode() + b"command: '" + b"$[[" * 20_000 + b"'\n", "AML201"),
    "quotes that are not closed": (COMPONENT.encode() + b"command: " + b"a 'b \"c \\" * 5_000 + b"\n", ""),
    "a number of many digits": (COMPONENT.encode() + b"command: run\nversion: " + b"9" * 10_000 + b"\n", "AML007"),
    "a base-60 number of many digits": (COMPONENT.encode() + b"command: run\ntags: {a: 1" + b":59" * 500 + b"}\n", ""),
    "a hexadecimal number": (COMPONENT.encode() + b"command: run\ntags: {a: 0x" + b"f" * 20_000 + b"}\n", "AML008"),
    "keys of other kinds": (b"type: command\n1: a\ntrue: c\nnull: d\n2026-11-21: e\n[a]: f\n{a: b}: g\n", "AML101"),
    "foreign tags": (b"type: command\na: !!python/object/apply:os.system ['true']\nb: !!binary x\n", "AML008"),
    "an unknown directive": (b"%FOO bar\n%YAML 1.9\n---\ntype: command\n", "AML002"),
    "carriage returns alone": (COMPONENT.replace("\n", "\r").encode() + b"foo: 1\rcommand: run\r", "AML101"),
    "separators of lines that few know": ("type: command\u2028foo: 1\u2029bar: 2\x85name: c\n".encode(), "AML101"),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTENTS)
def test_a_file_of_this_content(tmp_path: Path, name: str) -> None:
    content, rule = CONTENTS[name]
    file = tmp_path / "file.yaml"
    file.write_bytes(content)
    found = rules_of(file)
    assert not rule or rule in found, found


@pytest.mark.parametrize("name", CONTENTS)
def test_a_component_of_this_content(tmp_path: Path, name: str) -> None:
    content, rule = CONTENTS[name]
    (tmp_path / "file.yaml").write_bytes(content)
    pipeline = tmp_path / "p.yml"
    pipeline.write_text("type: pipeline\njobs:\n  a: {component: ./file.yaml}\n  b: {component: ./file.yaml}\n")
    found = rules_of(pipeline)
    assert not rule or rule in found, found


def make_odd_paths(folder: Path) -> None:
    """Everything a name can lead to besides a plain file."""
    (folder / "folder.yaml").mkdir()
    (folder / "folder.yaml" / "inside.yaml").write_text(COMPONENT + "foo: 1\ncommand: run\n")
    os.mkfifo(folder / "fifo.yaml")
    (folder / "dangling.yaml").symlink_to("nowhere.yaml")
    (folder / "loop.yaml").symlink_to("loop.yaml")
    (folder / "upwards").symlink_to("..")
    (folder / "upwards.yaml").symlink_to(".")
    (folder / "endless.yaml").symlink_to("/dev/zero")
    (folder / "terminal.yaml").symlink_to("/dev/tty")
    with open(folder / "large.yaml", "wb") as large:
        large.truncate(100 * 1024 * 1024)


def test_paths_that_are_no_plain_files(tmp_path: Path) -> None:
    make_odd_paths(tmp_path)
    found = rules_of(tmp_path)
    assert sorted(set(found)) == ["AML001", "AML101"], "a huge file without a sign of Azure ML is skipped"
    assert found.count("AML101") == 1


@pytest.mark.parametrize(
    "name", ["folder.yaml", "fifo.yaml", "dangling.yaml", "loop.yaml", "upwards", "endless.yaml", "large.yaml", "\0"]
)
@pytest.mark.parametrize(
    "text",
    [
        "type: pipeline\njobs: {{a: {{component: './{name}'}}}}\n",
        "type: pipeline\njobs: {{a: {{component: 'file:{name}'}}}}\n",
        COMPONENT + "command: python {name}\ncode: .\n",
        COMPONENT + "command: python -m {name}\ncode: ./{name}\n",
        COMPONENT.replace("azureml:e:1", "{{conda_file: ./{name}, image: x}}") + "command: run\n",
        COMPONENT.replace("azureml:e:1", "{{build: {{path: ./{name}}}}}") + "command: run\n",
        COMPONENT.replace("azureml:e:1", "'file:./{name}'") + "command: run\n",
        "type: command\ncommand: run ${{{{inputs.d}}}}\nenvironment: azureml:e:1\ncompute: azureml:c\n"
        "inputs: {{d: {{type: uri_folder, path: './{name}'}}}}\n",
        "type: command\ncommand: deepspeed --deepspeed_config ./{name} train.py\ncode: .\nenvironment: azureml:e:1\n"
        "compute: azureml:c\n",
    ],
)
def test_references_to_what_is_no_plain_file(tmp_path: Path, text: str, name: str) -> None:
    if name != "\0":
        make_odd_paths(tmp_path)
    file = tmp_path / "here" / "file.yml"
    file.parent.mkdir()
    written = text.format(name=f"../{name}" if name != "\0" else "a\\0b")
    file.write_text(written.replace("'", '"'))
    rules_of(file)


SCRIPTS: dict[str, bytes] = {
    "is binary": bytes(range(256)),
    "holds a NUL": b"import argparse\0\n",
    "nests deeply": b"x = " + b"(" * 5_000 + b")" * 5_000 + b"\n",
    "adds up deeply": b"x = " + b"1 + " * 50_000 + b"1\n",
    "calls deeply": b"x = a" + b".b()" * 20_000 + b"\n",
    "indents deeply": b"".join(b" " * n + b"if x:\n" for n in range(200)),
    "has another encoding": b"# -*- coding: utf-7 -*-\nimport argparse\n",
    "has an encoding that is none": b"# -*- coding: nonsense -*-\nimport argparse\n",
    "is Python 2": b"print 'x'\nexec 'y'\n",
    "is large": b"x = 1\n" * 1_000_000,
    "imports itself": b"from train import *\nimport train\n",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_that(tmp_path: Path, name: str) -> None:
    (tmp_path / "train.py").write_bytes(SCRIPTS[name])
    file = tmp_path / "c.yaml"
    file.write_text(COMPONENT + "command: python train.py --epochs 3\ncode: .\n")
    assert [rule for rule in rules_of(file) if not rule.startswith("AML5")] == []


@pytest.mark.parametrize(
    "content", [b"\xff\xfe", b"[" * 1000, b"(" * 1000, b"!" * 100_000, b"*" * 200 + b"\n", b"\\\n"]
)
def test_an_ignore_file_of_any_content(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ".amlignore").write_bytes(content)
    (tmp_path / "train.py").write_text("print()\n")
    file = tmp_path / "c.yaml"
    file.write_text(COMPONENT + "command: python train.py\ncode: .\n")
    rules_of(file)


def test_a_path_longer_than_any_file_name(tmp_path: Path) -> None:
    (tmp_path / "data.yml").write_text(f"name: labels\ntype: uri_file\npath: ./{'a' * 300}\n")
    assert CHECK_FAILED.id not in rules_of(tmp_path / "data.yml")


def test_pipelines_that_use_each_other(tmp_path: Path) -> None:
    for name, other in (("a", "b"), ("b", "a"), ("c", "c")):
        text = f"type: pipeline\nname: {name}\nversion: 1\njobs: {{x: {{type: pipeline, component: ./{other}.yaml}}}}\n"
        (tmp_path / f"{name}.yaml").write_text(text)
    rules_of(tmp_path)


def test_a_chain_of_pipelines_without_end(tmp_path: Path) -> None:
    for number in range(400):
        text = f"type: pipeline\nname: p\nversion: 1\njobs: {{x: {{type: pipeline, component: ./{number + 1}.yaml}}}}\n"
        (tmp_path / f"{number}.yaml").write_text(text)
    lint([tmp_path / "0.yaml"])


def test_inline_components_nested_to_the_limit(tmp_path: Path) -> None:
    text = "component: azureml:c:1"
    for _ in range(45):
        text = f"type: pipeline, component: {{type: pipeline, jobs: {{x: {{{text}}}}}}}"
    (tmp_path / "p.yaml").write_text(f"type: pipeline\njobs: {{x: {{{text}}}}}\n")
    rules_of(tmp_path / "p.yaml")


def test_a_folder_that_may_not_be_read(tmp_path: Path) -> None:
    """As another user, since the superuser may read everything."""
    closed = tmp_path / "closed.yaml"
    closed.write_text(COMPONENT)
    closed.chmod(0)
    (tmp_path / "locked").mkdir()
    (tmp_path / "locked" / "a.yaml").write_text(COMPONENT)
    (tmp_path / "locked").chmod(0)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.owner() == "root" and folder.stat().st_uid == os.getuid() and "pytest" in str(folder):
            folder.chmod(0o755)
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from trainyard.lint.linter import lint\n"
        "os.getuid() == 0 and os.setuid(65534)\n"
        "print([d.rule for d in lint([Path(sys.argv[1])]).diagnostics])\n"
    )
    # Without coverage, which would write beside the tests as the other user.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    (tmp_path / "locked").chmod(0o755)
    assert done.stderr == ""
    assert done.stdout.strip() in ("['AML001']", "['AML001', 'AML001']")


def test_names_that_are_no_utf8(tmp_path: Path) -> None:
    with open(os.fsencode(tmp_path) + b"/odd\xff\n.yaml", "wb") as file:
        file.write(b"type: command\nfoo: 1\n")
    assert "AML101" in rules_of(tmp_path)


@pytest.mark.parametrize("key", ["1", "01", "+1", "1.5", "null", "true", "2026-01-01", "-1", "1_0"])
@pytest.mark.parametrize("place", ["jobs", "inputs", "jobs: {a: {type: command, command: x}}\ntags", ""])
def test_a_key_that_is_no_text_is_a_key(tmp_path: Path, place: str, key: str) -> None:
    file = tmp_path / "pipeline.yml"
    where = f"{place}:\n  " if place else ""
    file.write_text(f"type: pipeline\n{where}{key}: {{command: x, 2: [3]}}\n")
    assert CHECK_FAILED.id not in rules_of(file)


def test_a_failing_check_costs_no_other_file_its_findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.yml").write_text(COMPONENT + "command: echo\n")
    (tmp_path / "b.yml").write_text(COMPONENT + "command: echo\nenvironmnt: x\n")

    def fails_at_a(linted: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
        if linted.document.file.name == "a.yml":
            raise IndexError("out of range")
        yield from ()

    monkeypatch.setitem(CHECKS, "file", [fails_at_a])
    found = {(d.span.file.name, d.rule) for d in lint([tmp_path]).diagnostics}
    assert {("a.yml", CHECK_FAILED.id), ("b.yml", "AML101")} <= found
