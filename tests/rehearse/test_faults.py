"""Preemptions and crashes on purpose: what the job meets, what survives, and what the record tells of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainyard.rehearse.errors import UsageError
from trainyard.rehearse.fault_watch import StepsSeen
from trainyard.rehearse.guardian import processes_beneath

TWO_RANKS = {"type": "pytorch", "process_count_per_instance": 2}


def training(workspace: Any, behaviour: str = "saves", **component: Any) -> Path:
    command = f"python takes_steps.py '${{{{outputs.state}}}}' {behaviour}"
    uses = workspace.component("trains", command, outputs={"state": "uri_folder"}, **component)
    return Path(workspace.pipeline({"train": {"component": uses}}))


def test_a_preempted_job_starts_again_with_its_named_outputs(workspace: Any, output_of: Any) -> None:
    record = workspace.run(training(workspace), preempt=("train@step:12",))

    job = record.jobs["train"]
    first, second = job.attempts
    log = (record.folder / job.logs[0]).read_text()
    assert (record.status, output_of(record, "train", "state").joinpath("step").read_text()) == ("completed", "40")
    assert (first.exit_codes, first.reason) == ({"0": 75}, "preempted by --preempt train@step:12")
    assert (second.exit_codes, second.reason, second.last_step) == ({"0": 0}, None, 40)
    assert first.last_step >= 12
    assert f"resuming from step {first.last_step}" in log, "it saved on notice"
    assert second.repeated_steps == 0
    assert second.lost_s > 0
    assert '"EventType": "Preempt"' in log
    assert log.count("attempts in ./outputs: 1") == 2, "./outputs does not come back"
    assert "train preempted by --preempt train@step:12 at step" in workspace.shown
    assert "train running (1 process: it was preempted)" in workspace.shown


def test_a_job_that_ignores_the_notice_is_killed_and_repeats_steps(workspace: Any) -> None:
    file = training(workspace, "deaf", distribution=TWO_RANKS)

    record = workspace.run(file, preempt=("train@step:12",), notice_seconds=0.1)

    first, second = record.jobs["train"].attempts
    assert (record.status, first.exit_codes) == ("completed", {"0": -9, "1": -9})
    log = (record.folder / record.jobs["train"].logs[0]).read_text()
    resumed_from = int(log.rpartition("resuming from step ")[2].split()[0])
    assert second.repeated_steps == first.last_step - resumed_from
    assert not processes_beneath(record.folder)


def test_every_preemption_asked_for_happens_once(workspace: Any) -> None:
    record = workspace.run(training(workspace), preempt=("train@step:20", "train@step:10", "train@0.05s"))

    assert record.status == "completed"
    reasons = [attempt.reason for attempt in record.jobs["train"].attempts]
    assert sorted(map(str, reasons)) == [
        "None",
        "preempted by --preempt train@0.05s",
        "preempted by --preempt train@step:10",
        "preempted by --preempt train@step:20",
    ]


def test_preemptions_at_random_moments_happen_or_are_reported(workspace: Any) -> None:
    record = workspace.run(training(workspace, "deaf"), preempt=("train@random:3",), notice_seconds=0.1)

    preempted = [attempt for attempt in record.jobs["train"].attempts if attempt.reason]
    assert record.status == "completed"
    assert len(preempted) == 3 or record.notes


def test_an_output_that_is_uploaded_at_the_end_is_lost(workspace: Any) -> None:
    uses = workspace.component("trains", "python takes_steps.py '${{outputs.state}}'", outputs={"state": "uri_folder"})
    job = {"component": uses, "outputs": {"state": {"mode": "upload"}}}

    record = workspace.run(workspace.pipeline({"train": {**job}}), preempt=("train@step:12",))

    log = (record.folder / record.jobs["train"].logs[0]).read_text()
    assert log.count("resuming from step 0") == 2


def test_exit_code_0_after_the_notice_counts_as_completed(workspace: Any) -> None:
    record = workspace.run(training(workspace, "polite"), preempt=("train@step:12",))

    assert (record.status, len(record.jobs["train"].attempts)) == ("completed", 1)
    (note,) = record.notes
    assert note.startswith("train: every process exited with 0 after the notice of --preempt train@step:12, so the job")


def test_a_fault_that_came_too_late_is_reported(workspace: Any) -> None:
    record = workspace.run(training(workspace), preempt=("train@step:41",))

    assert record.notes == ["--preempt train@step:41 did not happen: train ended before, at step 40"]
    assert record.notes[0] in workspace.shown


def test_a_killed_rank_fails_the_job_and_a_resume_continues(workspace: Any) -> None:
    file = training(workspace, distribution=TWO_RANKS)

    record = workspace.run(file, kill=("train:rank1@step:12",))

    job = record.jobs["train"]
    assert (record.status, job.failed_rank) == ("failed", 1)
    assert job.reason == "rank 1 was killed by --kill train:rank1@step:12"
    assert job.attempts[0].exit_codes["1"] == -9


def test_a_job_to_be_hit_is_not_reused(workspace: Any) -> None:
    file = training(workspace)
    workspace.run(file)

    record = workspace.run(file, preempt=("train@step:12",))

    assert record.jobs["train"].reused_from is None
    assert len(record.jobs["train"].attempts) == 2


PREEMPT_FORM = "expected JOB@step:N, JOB@SECONDSs or JOB@random:COUNT, as in train@step:50, train@30s, train@random:5"
KILL_FORM = "expected JOB:rankN@step:N or JOB:rankN@SECONDSs, as in train:rank1@step:50, train:rank1@20s"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"preempt": ("trian@30s",)}, "--preempt trian@30s: unknown job 'trian'. Did you mean 'train'?"),
        ({"preempt": ("train",)}, f"--preempt train: {PREEMPT_FORM}"),
        ({"preempt": ("train@30",)}, f"--preempt train@30: {PREEMPT_FORM}"),
        ({"preempt": ("train@random:0",)}, f"--preempt train@random:0: {PREEMPT_FORM}"),
        ({"kill": ("train@20s",)}, f"--kill train@20s: {KILL_FORM}"),
        ({"kill": ("train:rank0@random:2",)}, f"--kill train:rank0@random:2: {KILL_FORM}"),
        ({"kill": ("train:rank2@20s",)}, "--kill train:rank2@20s: 'train' has no rank 2; its ranks are 0 to 1"),
        ({"kill": ("other:rank1@20s",)}, "--kill other:rank1@20s: 'other' has no rank 1; its only rank is 0"),
        (
            {"preempt": ("other@3s",), "only": "train"},
            "--preempt other@3s: --only or --from leaves 'other' out of this run",
        ),
    ],
)
def test_an_invalid_fault_is_refused_before_anything_starts(
    workspace: Any, options: dict[str, Any], message: str
) -> None:
    trains = workspace.component("trains", "echo", distribution=TWO_RANKS)
    other = workspace.component("other", "echo")
    file = workspace.pipeline({"train": {"component": trains}, "other": {"component": other}})

    with pytest.raises(UsageError) as refused:
        workspace.run(file, **options)

    assert str(refused.value) == message
    assert not workspace.runs_folder.exists()


@pytest.mark.parametrize(
    "line",
    [
        "step 30/40  loss 0.3",
        "Step: 30, loss 0.3",
        "{'global_step': 30}",
        '{"step": 30}',
        "steps=30",
        "[rank0] step 30",
    ],
)
def test_steps_are_read_from_what_jobs_print(tmp_path: Path, line: str) -> None:
    log = tmp_path / "log"
    log.write_text("step 7 of an earlier attempt\n")
    seen = StepsSeen(log, tmp_path / "tracked", tmp_path / "outputs")
    with log.open("a") as stream:
        stream.write(f"{line}\nstep 31, not complete yet")

    seen.look()

    assert (seen.first, seen.last) == (30, 30)


def test_steps_are_read_from_mlflow_and_metrics_files(tmp_path: Path) -> None:
    metrics, loss = tmp_path / "outputs/metrics/metrics.jsonl", tmp_path / "tracked/metrics/loss"
    for file in (metrics, loss):
        file.parent.mkdir(parents=True)
    metrics.write_text('{"step": 10, "loss": 3.5}\n{"step": 20, "loss": 3.1}\n')
    loss.write_text("1 3.5 10\n1 3.1 20\n")
    seen = StepsSeen(tmp_path / "log", tmp_path / "tracked", tmp_path / "outputs")

    seen.look()
    assert seen.last is None, "all of it is an earlier attempt's"
    # The next attempt goes back to its checkpoint at step 10.
    metrics.write_text('{"step": 10, "loss": 3.5}\n{"step": 20, "loss": 3.0}\n{"step": 30, "loss": 2.9}\n')
    seen.look()
    assert (seen.first, seen.last, seen.done_before) == (20, 30, 10)
    with loss.open("a") as stream:
        stream.write("99999999999999 2.7 50\n")
    seen.look()

    assert seen.last == 50


def test_a_trial_of_a_sweep_is_preempted_by_its_number(workspace: Any) -> None:
    trial = {
        "command": "python takes_steps.py '${{outputs.state}}' ${{search_space.how}}",
        "code": "../src",
        "environment": "azureml:e:1",
    }
    search = {
        "type": "sweep",
        "trial": trial,
        "sampling_algorithm": "grid",
        "search_space": {"how": {"type": "choice", "values": ["saves", "saves again"]}},
        "objective": {"goal": "minimize", "primary_metric": "loss"},
        "limits": {"max_total_trials": 2},
        "outputs": {"state": {"type": "uri_folder"}},
    }
    file = workspace.pipeline({"search": search})

    record = workspace.run(file, preempt=("search:trial1@step:12",), kill=("search:trial0:rank0@step:1000",))

    assert [trial.attempts for trial in record.jobs["search"].trials] == [1, 2]
    assert (record.folder / "jobs/search/trials/1/outputs/state/step").read_text() == "40"
    assert record.notes == ["--kill search:trial0:rank0@step:1000 did not happen: search ended before"]
    with pytest.raises(UsageError, match="'search' is a sweep; name one of its trials, as in search:trial0"):
        workspace.run(file, preempt=("search@5s",))
    with pytest.raises(UsageError, match="'search' has no trial 2; its trials are 0 to 1"):
        workspace.run(file, preempt=("search:trial2@5s",))
