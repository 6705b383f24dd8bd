"""What a run does with values and files that would break out: as the service's shell line does, or a refusal."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from trainyard.rehearse.errors import UsageError
from trainyard.spec.diagnostic import SpecError

VALUES = {
    "single_quote": "it's",
    "double_quotes": 'a "b" c',
    "spaces": "  two   words ",
    "semicolon": "a; echo b",
    "substitution": "$(echo run) `echo run` $HOME_OF_NOBODY",
    "newline": "a\necho b",
    "wildcard": "/dev/nul*",
    "operators": "a && echo b || echo c | tr c d",
    "backslash": "a\\nb\\",
}
COMMAND = "printf '<%s>' ${{inputs.v}}; printf '<%s>' \"${{inputs.v}}\"; printf '<%s>' '${{inputs.v}}'"


def test_values_behave_as_in_the_shell_line_of_the_service(workspace: Any, tmp_path: Path) -> None:
    """The service puts a value in as it is, and bash reads the line."""
    component = workspace.component("worker", COMMAND, inputs={"v": {"type": "string"}}, code=None)
    jobs = {name: {"component": component, "inputs": {"v": value}} for name, value in VALUES.items()}

    record = workspace.run(
        workspace.pipeline(jobs, settings={"default_compute": "azureml:cpu", "continue_on_step_failure": True})
    )

    for name, value in VALUES.items():
        line = COMMAND.replace("${{inputs.v}}", value)
        shell = subprocess.run(["bash", "-c", line], capture_output=True, text=True, cwd=tmp_path, check=False)
        job = record.jobs[name]
        assert job.command == line
        assert job.attempts[0].exit_codes == {"0": shell.returncode}
        log = (record.folder / job.logs[0]).read_text()
        assert [each for each in log.splitlines() if "bash: " not in each] == shell.stdout.splitlines(), name
    assert {job.status for job in record.jobs.values()} == {"completed", "failed"}


@pytest.mark.parametrize("place", ["inputs", "environment_variables"])
def test_a_text_that_no_process_can_be_given_is_refused_on_its_line(workspace: Any, place: str) -> None:
    component = workspace.component("worker", "true", inputs={"v": {"type": "string", "default": "x"}})
    file = workspace.pipeline({"work": {"component": component, place: {"v": "a\0b"}}})

    with pytest.raises(SpecError, match=r"'v' has a character that no process can be given: 'a\\x00b'"):
        workspace.run(file)


def test_bytes_on_the_command_line_that_are_no_text_are_refused(workspace: Any) -> None:
    component = workspace.component("worker", "true", inputs={"v": {"type": "string"}})
    file = workspace.pipeline(
        {"work": {"component": component, "inputs": {"v": "${{parent.inputs.v}}"}}}, inputs={"v": {"type": "string"}}
    )

    with pytest.raises(UsageError, match="has a character that no process can be given"):
        workspace.run(file, overrides={"inputs.v": "\udcff"})


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("ln -s /etc/passwd ${{outputs.made}}/users", "outputs/made/users -> /etc/passwd"),
        ("rm -r ${{outputs.made}}; ln -s /etc ${{outputs.made}}", "outputs/made -> /etc"),
        ("mkdir ${{outputs.made}}/a; ln -s ../../../../../up ${{outputs.made}}/a/b", "a/b -> ../../../../../up"),
        ("cd ${{outputs.made}} && python -c '{make}' && tar -xf made.tar", "outputs/made/users -> /etc/passwd"),
        ("ln -s ${{inputs.given}} ${{outputs.made}}/copy", "outputs/made/copy -> "),
        ("ln -s /etc outputs/users", "artifacts/outputs/users -> /etc"),
    ],
    ids=["a link", "the output itself", "upwards", "from an archive", "to an input", "an artifact"],
)
def test_a_link_that_leads_out_of_the_jobs_folder_fails_the_job(workspace: Any, command: str, shown: str) -> None:
    make = 'import tarfile; link = tarfile.TarInfo("users"); link.type = tarfile.SYMTYPE; link.linkname = "/etc/passwd"'
    make += '; tarfile.open("made.tar", "w").addfile(link)'
    (workspace.root / "given.txt").write_text("given")
    component = workspace.component(
        "worker",
        command.replace("{make}", make),
        inputs={"given": {"type": "uri_file"}},
        outputs={"made": "uri_folder"},
    )
    given = {"type": "uri_file", "path": "../given.txt"}

    record = workspace.run(workspace.pipeline({"work": {"component": component, "inputs": {"given": given}}}))

    assert record.status == "failed"
    assert f"has a link that leads out of the job's folder, {shown}" in record.jobs["work"].reason.replace(
        "outputs/made/a/b", "a/b"
    )
    assert record.jobs["work"].reason.endswith(": copy the data")


def test_links_within_an_output_are_kept(workspace: Any, output_of: Any) -> None:
    command = "echo 1 > ${{outputs.made}}/one; ln -s one ${{outputs.made}}/latest"
    record = workspace.run(workspace.one_job(command, outputs={"made": "uri_folder"}))

    assert (output_of(record, "work", "made") / "latest").read_text() == "1\n"


@pytest.mark.parametrize("path", ["azureml://datastores/kept/paths/../../../escaped", "../escaped", "a/../../escaped"])
def test_an_output_path_that_goes_upwards_is_refused_before_anything_starts(workspace: Any, path: str) -> None:
    component = workspace.component("worker", "touch ${{outputs.made}}/file", outputs={"made": "uri_folder"})
    outputs = {"made": {"type": "uri_folder", "path": path}}

    with pytest.raises(SpecError, match=r"the path of output 'made' goes upwards with '\.\.'"):
        workspace.run(workspace.pipeline({"work": {"component": component, "outputs": outputs}}))

    assert not list(workspace.root.rglob("escaped"))
