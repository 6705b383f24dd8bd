"""What public pipelines and jobs use of Azure ML's format, in small ones of our own."""

from __future__ import annotations

import functools
import http.server
import json
import os
import re
import stat
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trainyard.project_findings import errors_before_a_run
from trainyard.rehearse.display import Display
from trainyard.rehearse.errors import RunError
from trainyard.rehearse.run_options import RunOptions
from trainyard.rehearse.runner import run_pipeline
from trainyard.settings.run_record import RunRecord
from trainyard.spec.diagnostic import SpecError
from trainyard.spec.findings import DocumentStore
from trainyard.spec.loading import load_job

ENVIRONMENT = "environment: azureml:some_environment:1\ncompute: azureml:cpu\n"


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """Run a file with this text."""

    def run_text(text: str, **options: Any) -> RunRecord:
        file = tmp_path / "job.yml"
        file.write_text(text)
        options = {"grace_seconds": 2.0, **options}
        pipeline = load_job(file, strict=bool(options.get("strict")))
        return run_pipeline(pipeline, RunOptions(tmp_path / ".trainyard" / "runs", **options), Display(quiet=True))

    return run_text


def log_of(record: RunRecord, job: str = "job") -> str:
    return (record.folder / record.jobs[job].logs[0]).read_text()


def test_a_command_job_runs_alone(run: Any, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a,b\n")
    record = run(
        ENVIRONMENT
        + """
command: cat ${{inputs.rows}} && echo $GREETING ${{inputs.count}} > ${{outputs.out}}/count.txt
environment_variables: {GREETING: hello}
inputs:
  rows: {type: uri_file, path: rows.csv}
  count: 3
outputs:
  out:
"""
    )

    assert record.status == "completed"
    assert log_of(record) == "a,b\n"
    assert (record.folder / record.outputs["out"] / "count.txt").read_text() == "hello 3\n"


def test_outputs_and_logs_are_there_and_become_artifacts(run: Any) -> None:
    record = run(ENVIRONMENT + "command: echo kept > outputs/a.txt && test -d logs\n")

    assert record.status == "completed"
    assert (record.folder / "jobs/job/artifacts/outputs/a.txt").read_text() == "kept\n"
    assert not (record.folder / "jobs/job/artifacts/logs").exists()


def test_the_output_artifacts_holds_outputs(run: Any) -> None:
    record = run(
        """
type: pipeline
settings: {default_compute: azureml:cpu}
jobs:
  first:
    command: echo kept > outputs/a.txt
    environment: azureml:e:1
    outputs: {artifacts: }
  second:
    command: cat ${{inputs.all}}/outputs/a.txt
    environment: azureml:e:1
    inputs: {all: "${{parent.jobs.first.outputs.artifacts}}"}
"""
    )

    assert record.status == "completed"
    assert log_of(record, "second") == "kept\n"


def test_a_value_that_a_job_writes_is_an_input_of_another(run: Any) -> None:
    record = run(
        """
type: pipeline
settings: {default_compute: azureml:cpu}
jobs:
  count:
    component:
      type: command
      command: echo 7 > ${{outputs.rows}}
      environment: azureml:e:1
      outputs: {rows: {type: integer}}
  use:
    component:
      type: command
      command: echo there are ${{inputs.rows}}
      environment: azureml:e:1
      inputs: {rows: {type: integer}}
    inputs: {rows: "${{parent.jobs.count.outputs.rows}}"}
"""
    )

    assert log_of(record, "use") == "there are 7\n"


def test_an_input_is_a_read_only_copy(run: Any, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("a")
    record = run(
        ENVIRONMENT
        + """
command: stat -c %A ${{inputs.data}}/a.txt; readlink -f ${{inputs.data}}/a.txt
inputs: {data: {type: uri_folder, path: data}}
"""
    )

    file, place = log_of(record).split()
    assert "w" not in file
    assert place == str(record.folder / "jobs/job/data/INPUT_data/a.txt")
    assert not (record.folder / "jobs/job/data/INPUT_data").exists()
    assert "input data: 1 files, 1 bytes, copied" in (record.folder / "jobs/job/system_logs/job.log").read_text()
    assert (tmp_path / "data" / "a.txt").stat().st_mode & stat.S_IWUSR


def test_a_job_that_takes_longer_than_its_limit_is_ended(run: Any) -> None:
    record = run(ENVIRONMENT + "command: sleep 60\nlimits: {timeout: 1}\n")

    assert record.status == "failed"
    assert record.jobs["job"].reason == "it took longer than its limits.timeout of 1 s"


def test_nested_pipelines_pass_data_and_counts_on(run: Any, tmp_path: Path) -> None:
    (tmp_path / "sub.yml").write_text("""
type: pipeline
name: sub
inputs: {nodes: {type: integer}, raw: {type: uri_folder}}
outputs: {copied: {type: uri_folder}}
jobs:
  copy:
    command: |
      if [ $AZUREML_CR_NODE_RANK = 0 ]; then
        cp -r ${{inputs.raw}} ${{outputs.copied}}/raw && echo more > ${{outputs.copied}}/raw/b.txt
      fi
    environment: {image: "python:3.10"}
    inputs: {raw: "${{parent.inputs.raw}}"}
    outputs: {copied: "${{parent.outputs.copied}}"}
    resources: {instance_count: "${{parent.inputs.nodes}}"}
""")
    text = """
type: pipeline
settings: {default_compute: azureml:cpu}
inputs: {nodes: 2, raw: {type: uri_folder, path: azureml:raw@latest}}
outputs: {copied: {type: uri_folder}}
jobs:
  sub:
    type: pipeline
    component: ./sub.yml
    inputs: {nodes: "${{parent.inputs.nodes}}", raw: "${{parent.inputs.raw}}"}
    outputs: {copied: "${{parent.outputs.copied}}"}
"""
    with pytest.raises(SpecError, match="which only Azure ML can read"):
        run(text)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("a")
    record = run(text, overrides={"inputs.raw.path": str(tmp_path / "data")})

    assert record.status == "completed", record.reason
    assert record.jobs["sub.copy"].nodes == 2
    assert sorted(file.name for file in (record.folder / record.outputs["copied"] / "raw").iterdir()) == [
        "a.txt",
        "b.txt",
    ]


def test_what_azure_ml_lets_pass_runs_unless_strict(run: Any) -> None:
    text = """
type: pipeline
settings: {default_compute: azureml:cpu}
jobs:
  job:
    component:
      type: command
      command: echo ${{inputs.n}}
      environment: azureml:e:1
      inputs: {n: {type: integer, max: 3}}
    inputs: {n: "4", other: 1}
"""

    assert log_of(run(text)) == "4\n"
    with pytest.raises(SpecError, match="above the max"):
        run(text, strict=True)


def test_an_unknown_key_is_dropped_from_a_component_but_refused_in_a_job(tmp_path: Path) -> None:
    text = "name: c\ntype: command\ncommand: echo ran\nenvironment: azureml:e:1\nqueue: x\n"
    (tmp_path / "component.yml").write_text(text)
    file = tmp_path / "job.yml"
    file.write_text("type: pipeline\ncomputes: x\njobs: {job: {component: ./component.yml}}\n")

    refused, _, let_pass = errors_before_a_run(file, DocumentStore())

    assert [each.message for each in refused] == ["unknown key 'computes' here; Azure ML's client refuses the file"]
    assert [(each.span.file.name, each.span.line) for each in let_pass] == [("component.yml", 5)]


@pytest.mark.parametrize(("kind", "key"), [("sweep", "trial"), ("parallel", "component"), ("pipeline", "component")])
def test_what_a_job_of_any_kind_has_in_azure_ml_is_named(run: Any, kind: str, key: str) -> None:
    with pytest.raises(SpecError, match=f"the {key} 'azureml:theirs:1' is kept in Azure ML"):
        run(f"type: pipeline\njobs: {{job: {{type: {kind}, {key}: 'azureml:theirs:1'}}}}\n")


def test_a_command_that_installs_packages_is_noted(run: Any) -> None:
    notes = run(ENVIRONMENT + "command: true || pip install nothing\n").notes
    assert notes == [
        f"job: its command installs packages into {sys.executable}, which keeps them; --python PATH is another"
    ]


def test_datastores_are_folders_beside_the_runs(run: Any, tmp_path: Path) -> None:
    store = tmp_path / ".trainyard" / "datastores" / "workspaceblobstore"
    written = run(
        ENVIRONMENT
        + """
command: echo 1 > ${{outputs.out}}/a.txt
outputs:
  out: {type: uri_folder, path: "azureml://datastores/${{default_datastore}}/paths/kept/${{output_name}}"}
"""
    )
    assert written.status == "completed"
    assert (store / "kept" / "out" / "a.txt").read_text() == "1\n"

    read = run(
        ENVIRONMENT
        + """
command: cat ${{inputs.data}}/a.txt
inputs: {data: {type: uri_folder, path: "azureml://datastores/workspaceblobstore/paths/kept/out"}}
"""
    )
    assert log_of(read) == "1\n"


def test_the_default_datastore_is_that_of_the_pipelines_settings(run: Any, tmp_path: Path) -> None:
    path = "azureml://datastores/${{default_datastore}}/paths/kept"
    job = {"command": "touch ${{outputs.out}}/a", "environment": "azureml:e:1", "outputs": {"out": {"path": path}}}
    settings = {"default_compute": "azureml:cpu", "default_datastore": "azureml:mine"}
    record = run(json.dumps({"type": "pipeline", "settings": settings, "jobs": {"write": job}}))
    assert record.status == "completed"
    assert (tmp_path / ".trainyard" / "datastores" / "mine" / "kept" / "a").is_file()


NAMES_DATA = {
    "a command job": ENVIRONMENT + "command: ls ${{inputs.raw}}\ninputs: {raw: 'azureml:raw:1'}\n",
    "a job of a pipeline": """
type: pipeline
inputs: {raw: 'azureml:raw:1'}
jobs:
  job:
    command: ls ${{inputs.raw}}
    inputs: {raw: '${{parent.inputs.raw}}'}
    environment: azureml:some_environment:1
    compute: azureml:cpu
""",
}


@pytest.mark.parametrize("text", NAMES_DATA.values(), ids=NAMES_DATA)
def test_data_replaces_a_text_that_names_data(run: Any, tmp_path: Path, text: str) -> None:
    """`raw: azureml:raw:1` is a text for Azure ML too; what `--set inputs.raw.path=` puts in its place is data."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "rows.csv").touch()

    assert log_of(run(text, overrides={"inputs.raw.path": str(tmp_path / "data")})) == "rows.csv\n"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "www").mkdir()
    (tmp_path / "www" / "iris.csv").write_text("5.1,3.5\n")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path / "www"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_data_with_an_address_is_downloaded_once(run: Any, served: str, tmp_path: Path) -> None:
    text = f"""{ENVIRONMENT}
command: cat ${{{{inputs.rows}}}}; basename ${{{{inputs.rows}}}}
inputs: {{rows: {{type: uri_file, path: "{served}/iris.csv"}}}}
"""
    assert log_of(run(text)) == "5.1,3.5\niris.csv\n"
    (tmp_path / "www" / "iris.csv").unlink()
    assert run(text, use_cache=False).status == "completed"

    missing = text.replace("iris.csv", "none.csv")
    with pytest.raises(SpecError, match=r"none.csv, which cannot be downloaded \(File not found\)"):
        run(missing)
    (tmp_path / "here.csv").write_text("1\n")
    replaced = run(missing, overrides={"inputs.rows.path": str(tmp_path / "here.csv")})
    assert log_of(replaced) == "1\nhere.csv\n"


def test_files_of_an_mltable_are_downloaded_for_a_parallel_job(run: Any, served: str, tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    (tmp_path / "table").mkdir()
    table = {
        "paths": [{"file": f"{served}/iris.csv"}],
        "transformations": [{"read_delimited": {"delimiter": ",", "header": "no_header"}}],
    }
    (tmp_path / "table" / "MLTable").write_text(json.dumps(table))
    (tmp_path / "score.py").write_text("def run(rows):\n    return rows\n")
    score = {
        "type": "parallel",
        "inputs": {"rows": {"type": "mltable", "path": "table"}},
        "outputs": {"all": {"type": "uri_file"}},
        "input_data": "${{inputs.rows}}",
        "task": {
            "type": "run_function",
            "code": "score.py",
            "entry_script": "score.py",
            "environment": "azureml:e:1",
            "append_row_to": "${{outputs.all}}",
        },
    }
    settings = {"default_compute": "azureml:cpu"}
    record = run(json.dumps({"type": "pipeline", "settings": settings, "jobs": {"score": score}}))
    assert record.status == "completed", record.reason
    assert (record.folder / "jobs/score/outputs/all").read_text() == "5.1 3.5\n"


def test_jobs_run_with_another_python(run: Any, tmp_path: Path) -> None:
    other = tmp_path / "other" / "bin" / "python"
    other.parent.mkdir(parents=True)
    other.write_text(f'#!/bin/sh\nexport OTHER=yes\nexec {sys.executable} "$@"\n')
    other.chmod(0o755)
    text = ENVIRONMENT + "command: python -c \"import os; print(os.environ.get('OTHER'))\"\n"

    assert log_of(run(text, python=other)) == "yes\n"
    assert log_of(run(text)) == "None\n"
    with pytest.raises(RunError, match="cannot be started as the Python of jobs: no such file or directory"):
        run(text, python=tmp_path / "none")


def test_a_spark_job_needs_spark_submit(run: Any, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "count.py").write_text("print('counted')\n")
    text = """
type: spark
code: src
entry: {file: count.py}
conf: {spark.driver.cores: 1, spark.driver.memory: 1g, spark.executor.cores: 1, spark.executor.memory: 1g,
  spark.executor.instances: 1}
inputs: {rate: 3}
args: --rate ${{inputs.rate}}
resources: {instance_type: standard_e4s_v3, runtime_version: "3.4"}
"""
    python, submit = (tmp_path / "bin" / name for name in ("python", "spark-submit"))
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    with pytest.raises(SpecError, match="needs spark-submit"):
        run(text, python=python)

    submit.write_text('#!/bin/sh\necho "$@"\n')
    submit.chmod(0o755)
    shown = log_of(run(text, python=python))
    assert "--conf spark.driver.memory=1g" in shown
    assert "spark.executor" not in shown
    assert shown.endswith("count.py --rate 3\n")

    # A cluster's machine may have more memory than this one.
    shown = log_of(run(text.replace("driver.memory: 1g", "driver.memory: 90t"), python=python))
    (memory,) = re.findall(r"--conf spark.driver.memory=(\d+)g", shown)
    assert int(memory) * 2**30 <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2


def test_the_first_and_the_last_job_run_alone(run: Any, tmp_path: Path) -> None:
    """`on_init` and `on_finalize` order jobs that pass nothing on; the last also follows jobs that failed."""
    line = f"echo NAME >> {tmp_path}/order"
    jobs = {
        "close": line.replace("NAME", "close"),
        "train": f"sleep 0.1; {line.replace('NAME', 'train')}; false",
        "prepare": line.replace("NAME", "prepare"),
        "open": f"sleep 0.2; {line.replace('NAME', 'open')}",
    }
    record = run(
        json.dumps(
            {
                "type": "pipeline",
                "settings": {
                    "default_compute": "azureml:cpu",
                    "on_init": "open",
                    "on_finalize": "close",
                    "continue_on_step_failure": True,
                },
                "jobs": {name: {"command": text, "environment": "azureml:e:1"} for name, text in jobs.items()},
            }
        )
    )
    order = (tmp_path / "order").read_text().split()
    assert (order[0], order[-1], sorted(order[1:3])) == ("open", "close", ["prepare", "train"])
    assert record.jobs["close"].status == "completed"
    assert record.status == "failed"
