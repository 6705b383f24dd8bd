"""`--environments docker` with Docker or Podman: what jobs find in their containers, and that nothing is left of them.

Needs an engine that can start containers; its image is made of this machine's own shell, so nothing is downloaded.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from trainyard.rehearse.container_images import ContainerEngine, find_engine
from trainyard.rehearse.errors import RunError
from trainyard.settings.run_record import read_run_record

PROGRAMS = ("bash", "cat", "env", "ls", "mkdir", "sleep", "touch")
# Stands for conda: it makes the environment's folder, with what it was asked for.
CONDA = '#!/bin/sh\n[ "$1" = clean ] || { mkdir -p "$4" && cat "$6" > "$4/packages"; }\n'
IMAGE = "localhost/trainyard-test:1"
WAITS_FOR_A_NOTICE = """\
[ -e $1/before ] && exit 0
trap 'touch $1/before; echo saved; exit 75' TERM
echo step 1/2
while true; do sleep 0.1; done
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> ContainerEngine:
    """An engine that has the image; the tests are skipped where there is none, or none that starts containers."""
    try:
        engine = find_engine(os.environ)
    except RunError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("image")
    archive = folder / "root.tar"
    (folder / "conda").write_text(CONDA)
    (folder / "conda").chmod(0o755)
    (folder / "passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    (folder / "tmp").mkdir()
    (folder / "tmp").chmod(0o1777)
    places = {"usr/bin/conda": folder / "conda", "etc/passwd": folder / "passwd", "tmp": folder / "tmp"}
    for program in PROGRAMS:
        places |= with_libraries(Path(str(shutil.which(program))))
    places["bin/sh"] = places["bin/bash"]
    with tarfile.open(archive, "w") as tar:
        for place, file in places.items():
            tar.add(file, place)
    imported = engine.ask("import", str(archive), IMAGE)
    assert imported.returncode == 0, imported.stderr
    started = engine.ask("run", "--rm", "--network", "host", IMAGE, "/bin/sh", "-c", "true")
    if started.returncode != 0:
        pytest.skip(f"{engine.name} starts no containers here: {started.stderr.strip()}")
    return engine


def with_libraries(program: Path) -> dict[str, Path]:
    """A program and the libraries that it needs, by the places where they are looked for."""
    linked = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    libraries = {library.lstrip("/"): Path(library).resolve() for library in re.findall(r"(/\S+) \(0x", linked)}
    return {f"bin/{program.name}": program.resolve(), **libraries}


def containers_of(engine: ContainerEngine, run_id: str) -> str:
    return engine.ask("ps", "--all", "--quiet", "--filter", f"label=trainyard.run={run_id}").stdout


def test_a_job_finds_its_files_and_variables_and_no_others(
    workspace: Any, engine: ContainerEngine, output_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_SHELL", "leaked")
    (workspace.root / "data").mkdir()
    (workspace.root / "data" / "rows.csv").write_text("1\n")
    command = (
        "cat ${{inputs.rows}}/rows.csv && echo to stderr >&2 && touch ${{inputs.rows}}/new || echo read-only; "
        "ls echo.py && touch outputs/kept && env > ${{outputs.seen}}/rank_$RANK && ls ~ > /dev/null && echo rank $RANK"
    )
    (workspace.code / "echo.py").touch()
    component = workspace.component(
        "worker",
        command,
        inputs={"rows": {"type": "uri_folder"}},
        outputs={"seen": "uri_folder"},
        environment={"image": IMAGE},
        distribution={"type": "pytorch", "process_count_per_instance": 2},
    )
    job = {
        "component": component,
        "inputs": {"rows": {"type": "uri_folder", "path": "../data"}},
        "environment_variables": {"TWO": "line one\nline 'two'", "HOME": "/tmp"},
    }
    pipeline = workspace.pipeline({"work": job})

    record = workspace.run(pipeline, environments="docker")

    assert record.status == "completed", record.jobs["work"].error_lines
    written = output_of(record, "work", "seen")
    for rank, log in enumerate(record.jobs["work"].logs):
        first, second, *_, last = (record.folder / log).read_text().splitlines()
        assert (first, second, last) == ("1", "to stderr", f"rank {rank}")
        variables = (written / f"rank_{rank}").read_text()
        assert "TWO=line one\nline 'two'\n" in variables
        assert f"AZUREML_ROOT_RUN_ID={record.id}\n" in variables
        assert "leaked" not in variables
        assert (written / f"rank_{rank}").stat().st_uid == os.getuid()
    assert (record.folder / "jobs" / "work" / "artifacts" / "outputs" / "kept").exists()
    assert re.fullmatch(re.escape(IMAGE) + r" \(sha256:[0-9a-f]{64}\)", str(record.jobs["work"].image))
    assert not containers_of(engine, record.id)
    assert workspace.run(pipeline, environments="docker").jobs["work"].reused_from == record.name


def test_a_notice_reaches_what_the_shell_started_and_exit_codes_come_back(
    workspace: Any, engine: ContainerEngine
) -> None:
    (workspace.code / "work.sh").write_text(WAITS_FOR_A_NOTICE)
    component = workspace.component(
        "worker", "bash work.sh ${{outputs.kept}}", outputs={"kept": "uri_folder"}, environment={"image": IMAGE}
    )
    failing = workspace.component("failing", "exit 3", environment={"image": IMAGE})
    pipeline = workspace.pipeline({"work": {"component": component}, "failing": {"component": failing}})

    record = workspace.run(pipeline, environments="docker", preempt=("work@step:1",), only="work")
    assert record.status == "completed", record.reason
    assert [attempt.exit_codes for attempt in record.jobs["work"].attempts] == [{"0": 75}, {"0": 0}]
    assert "saved\n" in (record.folder / record.jobs["work"].logs[0]).read_text()

    failed = workspace.run(pipeline, environments="docker", only="failing")
    assert failed.jobs["failing"].reason == "its process ended with exit code 3"
    killed = workspace.run(pipeline, environments="docker", kill=("work:rank0@step:1",), only="work")
    assert killed.jobs["work"].attempts[0].exit_codes == {"0": -9}
    assert killed.jobs["work"].reason == "rank 0 was killed by --kill work:rank0@step:1"
    assert not any(containers_of(engine, each.id) for each in (record, failed, killed))


def test_what_a_container_uses_of_the_machine_is_sampled(workspace: Any, engine: ContainerEngine) -> None:
    samples = "${{outputs.kept}}/../../system_logs/machine_use.jsonl"
    until_sampled = f"for i in {{1..600}}; do [ -s {samples} ] && exit; sleep 0.1; done"
    component = workspace.component(
        "worker", until_sampled, outputs={"kept": "uri_folder"}, environment={"image": IMAGE}
    )

    record = workspace.run(workspace.pipeline({"work": {"component": component}}), environments="docker")

    header, sample, *_ = (record.folder / "jobs/work/system_logs/machine_use.jsonl").read_text().splitlines()
    assert json.loads(header)["attempt"] == 1
    assert json.loads(sample)["processors_busy"] >= 0
    assert json.loads(sample)["memory_bytes"] > 0


def test_nothing_is_left_of_a_runner_that_is_killed(workspace: Any, engine: ContainerEngine) -> None:
    pipeline = workspace.one_job("echo started && sleep 600", environment={"image": IMAGE})
    words = [sys.executable, "-m", "trainyard", "run", str(pipeline), "--environments", "docker", "--name", "killed"]
    runner = subprocess.Popen(words, cwd=workspace.root, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    folder = workspace.runs_folder / "killed"
    wait_until(lambda: "started" in text_of(folder / "jobs" / "work" / "user_logs" / "std_log.txt"))
    run_id = read_run_record(folder).id
    assert containers_of(engine, run_id)

    runner.send_signal(signal.SIGKILL)
    runner.wait()

    wait_until(lambda: not containers_of(engine, run_id))


def text_of(file: Path) -> str:
    return file.read_text() if file.exists() else ""


def wait_until(holds: Any) -> None:
    for _ in range(600):
        if holds():
            return
        time.sleep(0.2)
    pytest.fail("it did not happen")


def test_environments_are_built_on_an_image(workspace: Any, engine: ContainerEngine, output_of: Any) -> None:
    context = workspace.root / "context"
    context.mkdir()
    (context / "Dockerfile").write_text(f"FROM {IMAGE}\nENV GREETING=hello\nRUN touch /made_here\n")
    (workspace.root / "conda.yaml").write_text("dependencies: [python=3.12]\n")
    environments = {
        "built": ("ls /made_here && echo $GREETING", {"build": {"path": "../context"}}),
        "with_conda": ("cat $CONDA_PREFIX/packages", {"image": IMAGE, "conda_file": "../conda.yaml"}),
    }
    jobs = {
        name: {
            "component": workspace.component(
                name, f"({command}) > ${{{{outputs.seen}}}}", outputs={"seen": "uri_file"}, environment=environment
            )
        }
        for name, (command, environment) in environments.items()
    }

    record = workspace.run(workspace.pipeline(jobs), environments="docker")

    assert record.status == "completed", record.reason
    assert output_of(record, "built", "seen").read_text() == "/made_here\nhello\n"
    assert output_of(record, "with_conda", "seen").read_text() == "dependencies: [python=3.12]\n"
    for job in record.jobs.values():
        engine.ask("rmi", "--force", str(job.image).partition(" ")[0])
