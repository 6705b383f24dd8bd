"""What files contain is text wherever it is printed: in a comment on a pull request, on a terminal, in a workflow."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from trainyard.plan import markdown
from trainyard.report.run_report import write_report
from trainyard.spec.secrets import redacted, redacted_data

CommandLine = Callable[..., Any]
ATTACKS = (
    "`](https://evil.example)`",
    "``` [a](https://evil.example) ```",
    "` @everyone `",
    "[click](https://evil.example)",
    "![](https://evil.example/pixel.png)",
    "<img src=https://evil.example>",
    "<!-- -->",
    "| a | b |\n|---|---|",
    "https://evil.example",
    "www.evil.example",
    "@octocat #1",
    "a`b``c```d",
    "`",
    "\\`[x](https://evil.example)",
    "# heading\n\n- list\n> quote",
    "~~~\ncode",
    "*bold* _it_ **b**",
)


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text_outside_code = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.tags:
            self.tags.remove(tag)

    def handle_data(self, data: str) -> None:
        if "code" not in self.tags:
            self.text_outside_code += data


def tags_of(text: str) -> tuple[set[str], str]:
    """The tags of a text as GitHub's Markdown, and what is not code in it."""
    html = MarkdownIt("gfm-like", {"linkify": False}).render(text)
    found = _Tags()
    tags: set[str] = set()
    found.handle_starttag = lambda tag, attrs: (tags.add(tag), found.tags.append(tag))[0]  # type: ignore[method-assign]
    found.feed(html)
    return tags, found.text_outside_code


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("write", [markdown.code, markdown.prose, lambda text: markdown.row(["a", text, "b"])])
def test_markdown_of_a_text_has_no_links_mentions_or_html(attack: str, write: Callable[[str], str]) -> None:
    lines = ["| a | b | c |", "| --- | --- | --- |"] if write("x").startswith("|") else []
    tags, outside = tags_of("\n".join([*lines, f"{write(attack)}"]))
    assert tags <= {"p", "code", "table", "thead", "tbody", "tr", "th", "td"}
    for linked in ("@octocat", "@everyone", "#1", "https://evil", "www.evil"):
        assert linked not in outside
    if lines:
        assert write(attack).count("\n") == 0


def test_a_code_span_shows_every_character() -> None:
    assert MarkdownIt().render(markdown.code("a`b``c")) == "<p><code>a`b``c</code></p>\n"
    assert MarkdownIt().render(markdown.code("`")) == "<p><code>`</code></p>\n"


PIPELINE = """type: pipeline
settings: {default_compute: azureml:c}
jobs:
  train:
    type: command
    command: VALUE
    environment: azureml:e:1
    environment_variables: {HF_TOKEN: SECRET, NAME: VALUE}
"""
SECRETS = (
    "hf_QmVyZ2ZyaWVkaG9mU3RyYXNzZTEyMzQ1",
    "https://a.blob.core.windows.net/c?sv=1&sig=abcdefghijklmnopqrstuvwxyz0123456789",
    "ghp_0123456789abcdefghijklmnopqrstuvwxyz",
    "AKIAABCDEFGHIJKLMNOP",
)


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("output_format", ["markdown", "text", "json", "html"])
def test_what_a_pull_request_changes_is_shown_without_its_secrets(
    trainyard: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, secret: str, output_format: str
) -> None:
    monkeypatch.chdir(tmp_path)
    who = ("-c", "user.name=A", "-c", "user.email=a@example.com")
    (tmp_path / "p.yaml").write_text(PIPELINE.replace("VALUE", "echo").replace("SECRET", "none"))
    for arguments in (("init", "--quiet"), ("add", "."), ("commit", "--quiet", "-m", "one")):
        subprocess.run(["git", *who, *arguments], check=True, capture_output=True)
    (tmp_path / "p.yaml").write_text(PIPELINE.replace("VALUE", f'"echo {secret}"').replace("SECRET", f'"{secret}"'))
    outcome = trainyard("plan", "p.yaml", "--against", "HEAD", "--format", output_format)
    assert outcome.exit_code == 0, outcome.stderr
    assert "***" in outcome.stdout
    assert secret not in outcome.stdout
    assert secret[-20:] not in outcome.stdout


def test_secrets_are_hidden_by_their_form_and_by_their_name() -> None:
    assert redacted("curl https://x?sig=" + "a" * 40) == "curl https://x***"
    assert redacted("anything", "environment_variables.password") == "***"
    assert redacted("${{inputs.password}}", "password") == "${{inputs.password}}"
    assert redacted("a text", "name") == "a text"
    assert redacted_data({"a": [{"api_key": "x", "n": 1}]}) == {"a": [{"api_key": "***", "n": 1}]}


def test_a_report_holds_no_secret(tmp_path: Path) -> None:
    job = {"status": "failed", "command": f"train --token {SECRETS[0]}", "error_lines": [SECRETS[1]], "logs": ["log"]}
    record = {"format": "trainyard.run/1", "name": "r", "pipeline": "p", "jobs": {"train": job}}
    (tmp_path / "run.json").write_text(json.dumps(record))
    (tmp_path / "log").write_text(f"downloading with {SECRETS[2]}\n")
    page = write_report(tmp_path).read_text()
    for secret in SECRETS[:3]:
        assert secret[-20:] not in page


def test_a_terminal_gets_no_escape_sequences_of_a_log(tmp_path: Path) -> None:
    folder = tmp_path / ".trainyard" / "runs" / "r"
    folder.mkdir(parents=True)
    record = {"format": "trainyard.run/1", "name": "r", "pipeline": "p", "jobs": {"a": {"logs": ["log"]}}}
    (folder / "run.json").write_text(json.dumps(record))
    link = b"\x1b]8;;https://evil.example\x1b\\link\x1b]8;;\x1b\\"
    attack = b"\x1b]0;title\x07\x1b[2J\x1b[31mred\x1b[0m" + link + b"\xc2\x9b31m end\n"
    (folder / "log").write_bytes(attack)
    command = [sys.executable, "-c", "from trainyard.cli import main; main()", "runs", "logs", "r"]
    ours, theirs = pty.openpty()
    with subprocess.Popen(command, cwd=tmp_path, stdout=theirs, stderr=subprocess.DEVNULL) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                part = os.read(ours, 4096)
            except OSError:
                break
            if not part:
                break
            shown += part
        process.wait(120)
    os.close(ours)
    assert b"red" in shown
    assert b"end" in shown
    assert b"\x1b" not in shown
    assert b"\x07" not in shown
    assert "\x9b".encode() not in shown
    assert b"evil.example" not in shown


@pytest.mark.parametrize("output_format", ["text", "github", "json", "sarif"])
def test_findings_contain_no_commands_of_a_workflow_and_no_escape_sequences(
    trainyard: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output_format: str
) -> None:
    monkeypatch.chdir(tmp_path)
    key = '"a\\n::set-env name=PATH::/evil\\e[2J\\r::error::x"'
    (tmp_path / "c.yaml").write_text(f"type: command\nname: c\ncommand: x\nenvironment: azureml:e:1\n{key}: 1\n")
    shown = trainyard("lint", "c.yaml", "--format", output_format)
    lines = (shown.stdout + shown.stderr).replace("\r", "\n").splitlines()
    assert not [line for line in lines if line.startswith(("::set-env", "::error::x"))]
    assert "\x1b" not in shown.stdout + shown.stderr
