"""What would be uploaded with a job's code without anyone meaning it is found by lint, and listed before the upload."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainyard.spec import uploads
from trainyard.spec.uploads import doubtful_uploads

CommandLine = Callable[..., Any]
JOB = """\
type: command
code: ./src
command: python train.py
environment: azureml:torch:3
compute: azureml:cpus
"""
KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n"


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text("print('training')\n")
    return tmp_path / "src"


def places(code: Path) -> list[str]:
    return [place for place, _ in doubtful_uploads(code)]


@pytest.mark.parametrize(
    "name",
    [".env", ".env.production", "id_rsa", "conf/id_ed25519", ".netrc", ".git-credentials", ".pypirc", "a.pfx", "a.p12"],
)
def test_files_of_secrets_are_found_by_name(code: Path, name: str) -> None:
    (code / name).parent.mkdir(exist_ok=True)
    (code / name).write_text("x")
    assert places(code) == [name]


@pytest.mark.parametrize("name", [".env.example", ".env.template", "environment.yaml", "id_rsa.pub", "keys.py"])
def test_examples_and_public_keys_are_not(code: Path, name: str) -> None:
    (code / name).write_text("x")
    assert places(code) == []


def test_a_key_is_known_by_what_it_says(code: Path) -> None:
    (code / "host.pem").write_text(KEY)
    (code / "authority.pem").write_text("-----BEGIN CERTIFICATE-----\nabc\n")
    assert places(code) == ["host.pem"]


def test_a_repository_is_named_and_not_entered(code: Path) -> None:
    (code / ".git" / "objects").mkdir(parents=True)
    (code / ".git" / "id_rsa").write_text(KEY)
    assert places(code) == [".git"]


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_links_that_leave_the_folder_are_named_and_not_followed(code: Path, tmp_path: Path, kind: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "id_rsa").write_text(KEY)
    (code / "link").symlink_to(outside if kind == "folder" else outside / "id_rsa")
    (code / "own.py").symlink_to(code / "train.py")
    (found,) = doubtful_uploads(code)
    assert found.place == "link"
    assert found.reason.startswith("a link to ")
    assert str(outside) in found.reason


def test_a_large_file_is_found_without_reading_it(code: Path) -> None:
    with (code / "model.pt").open("wb") as file:
        os.truncate(file.fileno(), (200 << 20) + 1)
    (found,) = doubtful_uploads(code)
    assert found.place == "model.pt"
    assert found.reason == "200 MiB"


@pytest.mark.parametrize("ignore_file", [".amlignore", ".gitignore"])
def test_what_an_ignore_file_leaves_out_is_not_uploaded(code: Path, tmp_path: Path, ignore_file: str) -> None:
    (code / ".env").write_text("x")
    (code / ".git").mkdir()
    (code / "data").symlink_to(tmp_path)
    (code / ignore_file).write_text(".env\n.git/\ndata\n")
    assert places(code) == []


def test_an_endless_folder_is_cut_with_a_word_about_it(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "_MOST_FILES", 10)
    for number in range(20):
        (code / f"{number}.txt").touch()
    assert [found.reason for found in doubtful_uploads(code)] == ["more than 10 files"]


def test_a_circle_of_links_ends(code: Path) -> None:
    (code / "again").symlink_to(code)
    (code / "one").symlink_to(code / "two")
    (code / "two").symlink_to(code / "one")
    assert places(code) == ["again"]


def test_lint_says_what_to_write_where(code: Path, trainyard: CommandLine) -> None:
    (code / ".env").write_text("TOKEN=verysecret\n")
    done = trainyard("lint", "job.yaml")
    assert done.exit_code == 0
    assert "AML423" in done.stderr
    assert ".env (secrets)" in done.stderr
    assert "Add `/.env` to `.amlignore`" in done.stderr
    assert "verysecret" not in done.stderr


def test_a_code_folder_outside_of_the_root_is_not_looked_into(
    code: Path, tmp_path: Path, trainyard: CommandLine
) -> None:
    (code / ".env").write_text("x")
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "job.yaml").write_text(JOB.replace("./src", "../src"))
    done = trainyard("lint", "--root", "project", "project/job.yaml")
    assert "AML423" not in done.stderr


def test_a_large_checkpoint_is_found(code: Path) -> None:
    for name, size_bytes in (("small.pt", 10 << 20), ("large.ckpt", (10 << 20) + 1)):
        with (code / name).open("wb") as file:
            os.truncate(file.fileno(), size_bytes)
    assert doubtful_uploads(code) == [("large.ckpt", "a checkpoint of 10 MiB")]


def test_a_large_folder_is_found_by_what_is_uploaded_of_it(code: Path) -> None:
    for number in range(4):
        with (code / f"{number}.bin").open("wb") as file:
            os.truncate(file.fileno(), 90_000_000)
    assert doubtful_uploads(code) == [(".", "343 MiB in all")]
    (code / ".amlignore").write_text("3.bin\n")
    assert places(code) == []


def test_files_of_secrets_are_not_submitted_unless_forced(code: Path, trainyard: CommandLine) -> None:
    (code / ".env").write_text("x")
    (code / "id_\x1b[31mrsa.pfx").write_text("x")
    done = trainyard("submit", "job.yaml", "--dry-run")
    assert done.exit_code == 1
    assert done.stdout == ""
    assert "job.yaml:2:7: error[upload] job 'job' would upload src/.env (secrets)" in done.stderr
    assert "nothing was submitted; --force submits it as it is" in done.stderr
    assert "\x1b[31m" not in done.stderr
    forced = trainyard("submit", "job.yaml", "--dry-run", "--force")
    assert forced.exit_code == 0, forced.stderr
    assert "warning[upload] job 'job' would upload src/.env (secrets)" in forced.stderr
    assert json.loads(forced.stdout)


def test_a_file_of_secrets_is_told_once_of_jobs_that_share_a_folder(code: Path, trainyard: CommandLine) -> None:
    (code / ".env").write_text("x")
    inline = "{type: command, command: python train.py, code: src, environment: 'azureml:e:1', compute: 'azureml:c'}"
    Path("two.yaml").write_text(f"type: pipeline\njobs:\n  one: {inline}\n  two: {inline}\n")
    done = trainyard("submit", "two.yaml", "--dry-run")
    assert done.exit_code == 1
    assert done.stderr.count("would upload src/.env (secrets)") == 1


def test_files_of_secrets_beside_the_code_are_uploaded_as_well(code: Path, trainyard: CommandLine) -> None:
    """Azure ML's client uploads additional includes, a folder or a file each, contexts of images, and data."""
    for folder, name in (("shared", "id_rsa"), ("image", ".netrc"), ("data", "a.p12")):
        Path(folder).mkdir()
        (Path(folder) / name).write_text("x")
    Path("image/Dockerfile").write_text("FROM python:3.11\n")
    Path(".env").write_text("x")
    component = JOB.replace("type: command", "type: command\nname: one\nadditional_includes: [./shared, .env]")
    component += "inputs: {data: {type: uri_folder}}\n"
    Path("one.yaml").write_text(component.replace("azureml:torch:3", "{build: {path: image}}").replace("compute:", "#"))
    Path("all.yaml").write_text(
        "type: pipeline\njobs:\n  one: {component: one.yaml, compute: 'azureml:c', inputs: {data: {path: data}}}\n"
    )
    done = trainyard("submit", "all.yaml", "--dry-run")
    assert done.exit_code == 1
    for named, file, place in (
        ("./shared, .env", "one.yaml", "shared/id_rsa"),
        (".env]", "one.yaml", ".env"),
        ("{build: ", "one.yaml", "image/.netrc"),
        ("{path: data}", "all.yaml", "data/a.p12"),
    ):
        before = Path(file).read_text().partition(named)[0].split("\n")
        at = f"{file}:{len(before)}:{len(before[-1]) + 1}"
        assert f"{at}: error[upload] job 'one' would upload {place} (secrets)" in done.stderr
    assert done.stderr.count("This names the file itself.") == 1
    found = json.loads(trainyard("lint", "one.yaml", "--select", "AML423", "--format", "json").stdout)
    assert [each["message"].rpartition(": ")[2] for each in found] == ["id_rsa (secrets)", ".env (secrets)"]
    assert found[0]["hint"] == "Add `/id_rsa` to `.amlignore` in that folder."


def test_files_of_secrets_are_reported_where_a_job_names_them_or_their_folder(
    code: Path, trainyard: CommandLine
) -> None:
    Path("data").mkdir()
    for file in ("data/.env", "src/id_rsa"):
        Path(file).write_text("x")
    inputs = "inputs:\n  data: {type: uri_folder, path: data}\n"
    Path("job.yaml").write_text(f"{JOB}{inputs}")
    done = trainyard("submit", "job.yaml", "--dry-run")
    assert "job.yaml:7:34: error[upload] job 'job' would upload data/.env (secrets)" in done.stderr
    assert "job.yaml:2:7: error[upload] job 'job' would upload src/id_rsa (secrets)" in done.stderr
    given = trainyard("submit", "job.yaml", "--dry-run", "--set", "inputs.data.path=src/../data")
    assert "--set: error[upload] job 'job' would upload data/.env (secrets)" in given.stderr
    assert "job.yaml:7:" not in given.stderr.partition("error[upload]")[2]


def test_secrets_in_yaml_are_not_submitted_unless_forced(code: Path, trainyard: CommandLine) -> None:
    secret = "hf_QmVyZ2ZyaWVkaG9mU3RyYXNzZTEyMzQ1"
    Path("job.yaml").write_text(f"{JOB}environment_variables: {{A: {secret}}}\n")
    done = trainyard("submit", "job.yaml", "--dry-run")
    assert done.exit_code == 1
    assert "error[AML552]" in done.stderr
    forced = trainyard("submit", "job.yaml", "--dry-run", "--force")
    assert forced.exit_code == 0, forced.stderr
    assert "warning[AML552]" in forced.stderr
    assert secret not in forced.stdout


def test_what_is_uploaded_and_its_largest_files_are_shown_before_a_submission(
    code: Path, trainyard: CommandLine
) -> None:
    for number, size_bytes in enumerate((1 << 20, 3 << 20, 2 << 20, 4 << 20)):
        (code / f"{number}.bin").write_bytes(bytes(size_bytes))
    (code / "ignored.bin").write_bytes(bytes(5 << 20))
    (code / ".amlignore").write_text("ignored.bin\n")
    done = trainyard("submit", "job.yaml", "--dry-run")
    assert done.exit_code == 0, done.stderr
    assert "10 MiB in 6 files; largest: 3.bin (4 MiB), 1.bin (3 MiB), 2.bin (2 MiB)" in done.stderr


def test_warnings_of_lint_are_shown_before_a_submission(code: Path, trainyard: CommandLine) -> None:
    with (code / "weights.ckpt").open("wb") as file:
        os.truncate(file.fileno(), 11 << 20)
    done = trainyard("submit", "job.yaml", "--dry-run")
    assert done.exit_code == 0, done.stderr
    assert "warning[AML423] would be uploaded with the code: weights.ckpt (a checkpoint of 11 MiB)" in done.stderr
