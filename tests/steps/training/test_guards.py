"""Steps that make no sense, and ranks that wait for each other too long."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from forked_ranks import forked_ranks
from rank_processes import free_port, training_arguments

from trainyard.settings.batch_arithmetic import divide_batch
from trainyard.steps import train_ddp
from trainyard.steps.runtime.errors import LOST_EXIT_CODE, StepError
from trainyard.steps.runtime.meeting import TCPStore, open_store
from trainyard.steps.runtime.rank_variables import RankVariables
from trainyard.steps.runtime.watcher import ATTEMPT_VARIABLE
from trainyard.steps.training.observing.hang_watch import HangWatch, Place, late_ranks, late_ranks_named
from trainyard.steps.training.observing.measures import StepGuards
from trainyard.steps.training.samples.plan import AgreedStep, TrainingPlan

PLAN = TrainingPlan(1000, divide_batch(10, 10, 1), epochs=1)


def agreed(number: int, loss: float = 1.0, norm: float = 1.0) -> AgreedStep:
    return AgreedStep(PLAN.step(number), 0.1, loss, norm, False, [0.1], 0.2)


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def metrics(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "metrics" / "metrics.jsonl").read_text().splitlines()]


def test_steps_in_a_row_that_are_not_finite() -> None:
    guards = StepGuards(nonfinite_steps_limit=3, loss_spike_factor=3.0, skipped_steps=5)
    for number, norm in enumerate([float("nan"), float("inf"), 1.0, float("nan"), float("nan")], start=1):
        guards.observe(agreed(number, norm=norm))
    assert guards.skipped_steps == 9
    with pytest.raises(StepError, match="the last 3 steps, up to step 6, had a loss or gradient that is not finite"):
        guards.observe(agreed(6, norm=float("nan")))


def test_a_spike_is_far_above_the_mean_of_the_last_losses() -> None:
    guards = StepGuards(nonfinite_steps_limit=3, loss_spike_factor=3.0)
    assert [guards.observe(agreed(number, loss=2.0)) for number in range(1, 13)] == [None] * 12
    assert guards.observe(agreed(13, loss=5.9)) is None
    warning = guards.observe(agreed(14, loss=9.2))
    assert warning == "loss spike: 9.2 at step 14 is 4.0 times the mean of the last 13 steps (--loss-spike-factor 3)"
    assert guards.loss_spikes == 1


def test_losses_that_stay_high_stop_being_spikes() -> None:
    guards = StepGuards(nonfinite_steps_limit=3, loss_spike_factor=3.0)
    for number in range(1, 90):
        guards.observe(agreed(number, loss=1.0 if number < 20 else 4.0))
    assert 0 < guards.loss_spikes < 10


def test_no_spikes_where_the_ratio_is_meaningless() -> None:
    """At the start, with a factor of 0, and where a loss is negative by nature."""
    early, off, negative = (StepGuards(3, factor) for factor in (3.0, 0.0, 3.0))
    assert [early.observe(agreed(n, loss=100.0 / n**3)) for n in range(1, 9)] == [None] * 8
    for number in range(1, 30):
        assert off.observe(agreed(number, loss=10.0**number)) is None
        assert negative.observe(agreed(number, loss=-float(number))) is None


def test_a_spike_is_logged_and_counted(digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--micro-batch-size", 64, "--log-every-steps", 1)
    arguments = training_arguments(digits, tmp_path, "disturbed_tasks:Spikes", *flags)
    assert train_ddp.main([str(argument) for argument in arguments]) == 0
    assert capsys.readouterr().out.count("loss spike: ") == 1
    counts = [line["loss_spikes"] for line in metrics(tmp_path)]
    assert counts == [0] * 14 + [1] * 7


def test_which_ranks_are_late() -> None:
    here = Place(7, 1, "backward pass")
    assert late_ranks({0: here, 1: here}) == "all ranks are at step 7, backward pass"
    assert late_ranks({0: here, 1: Place(7, 0, "forward pass"), 2: here, 3: Place(7, 0, "forward pass")}) == (
        "late: ranks 1, 3, at step 7, forward pass; others are at step 7, backward pass"
    )
    assert late_ranks({0: here, 1: None}) == "nothing heard from rank 1"


def test_a_single_rank_that_hangs_dumps_its_stacks(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log:
        watch = HangWatch(RankVariables(), timeout_seconds=1, log=log)
        watch.start()
        watch.reached(3, "forward pass")
        wait_until(lambda: watch.finding is not None)
        watch.close()
    text = (tmp_path / "log").read_text()
    assert "rank 0: no progress for 0." in text
    assert "at step 3, forward pass; stacks of its threads:" in text
    assert "test_a_single_rank_that_hangs_dumps_its_stacks" in text


def place_of(rank: int) -> str:
    """The key under which a rank publishes how far it has come, in the first attempt of a job."""
    return f"hang_watch/0/{rank}"


KEEPS_THE_STORE = """
import sys, time
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", int(sys.argv[1]), is_master=True, wait_for_workers=False)
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.slow
def test_a_stopped_rank_0_is_named_by_the_others(tmp_path: Path) -> None:
    """It hosts the store in which the others would read which rank is late, and no request is answered."""
    port = free_port()
    with (
        subprocess.Popen([sys.executable, "-c", KEEPS_THE_STORE, str(port)], stdout=subprocess.PIPE) as rank_0,
        (tmp_path / "log").open("w") as log,
    ):
        assert rank_0.stdout is not None
        assert rank_0.stdout.readline() == b"ready\n"
        watch = HangWatch(RankVariables(1, 1, 2, 1, "127.0.0.1", port), timeout_seconds=2, log=log)
        watch.start()
        store = open_store("127.0.0.1", port)
        wait_until(lambda: store.check([place_of(1)]))
        rank_0.send_signal(signal.SIGSTOP)
        watch.reached(3, "forward pass")
        wait_until(lambda: watch.finding is not None)
        watch.close()
        rank_0.kill()
    assert watch.finding == "rank 0, which hosts the store of the process group, does not answer"
    assert f"rank 1: {watch.finding}" in (tmp_path / "log").read_text()


WAITS_IN_A_KERNEL = """
import sys, time
from trainyard.steps.runtime.rank_variables import RankVariables
from trainyard.steps.training.observing.hang_watch import HangWatch
watch = HangWatch(RankVariables(1, 1, 2, 1, "127.0.0.1", int(sys.argv[1])), timeout_seconds=int(sys.argv[2]),
                  log=sys.stdout, ends_before_timeout=sys.argv[3] == "before")
watch.start()
watch.reached(3, "backward pass")
time.sleep(60)
"""


def waiting_rank(
    store: TCPStore, timeout_seconds: int, ends: str, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """Rank 1 of 2, which has published where it waits: as in a kernel of a GPU, nothing wakes its main thread."""
    command = [sys.executable, "-c", WAITS_IN_A_KERNEL, str(store.port), str(timeout_seconds), ends]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **(environment or {})})
    store.wait([place_of(1)], timedelta(seconds=60))
    return process


def fail_on_rank_0(store: TCPStore, failure: Exception) -> None:
    watch = HangWatch(RankVariables(0, 0, 2, 1, "127.0.0.1", store.port), timeout_seconds=4)
    with late_ranks_named(watch):
        watch.start()
        wait_until(lambda: store.check([place_of(0)]))
        raise failure


@pytest.mark.slow
def test_a_rank_that_waits_for_one_that_failed_is_ended() -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with waiting_rank(store, 4, "after") as waiting:
        with pytest.raises(RuntimeError, match="CUDA"):
            fail_on_rank_0(store, RuntimeError("CUDA out of memory\n(details)"))
        output, _ = waiting.communicate(timeout=60)
    assert waiting.returncode == 1
    why = "rank 0 failed: CUDA out of memory"
    assert output.splitlines()[-1] == f"rank 1: error: waited at step 3, backward pass, but {why}"


@pytest.mark.slow
def test_a_rank_that_waits_for_a_rank_0_that_is_gone_is_ended() -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with waiting_rank(store, 4, "after") as waiting:
        del store
        output, _ = waiting.communicate(timeout=60)
    assert waiting.returncode == 1
    assert "but rank 0, which hosts the store of the process group, has ended" in output


@pytest.mark.slow
def test_a_hang_is_ended_with_its_finding_before_the_watchdog_would() -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with waiting_rank(store, 4, "before") as waiting:
        output, _ = waiting.communicate(timeout=60)
    assert waiting.returncode == 1
    assert output.splitlines()[-1] == "rank 1: error: waited at step 3, backward pass, but nothing heard from rank 0"
    assert "time.sleep(60)" in output or 'File "<string>"' in output, "the stacks come first"


@pytest.mark.slow
def test_a_hang_ends_a_watched_worker_as_one_that_lost_another_rank_so_that_all_are_restarted() -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with waiting_rank(store, 4, "before", {ATTEMPT_VARIABLE: "0"}) as waiting:
        waiting.communicate(timeout=60)
    assert waiting.returncode == LOST_EXIT_CODE


def test_a_hang_that_is_over_clears_the_finding(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log:
        watch = HangWatch(RankVariables(), timeout_seconds=1, log=log)
        watch.start()
        wait_until(lambda: watch.finding is not None)
        watch.still_at_work()
        wait_until(lambda: watch.finding is None)
        watch.close()


def test_long_work_is_not_a_hang(tmp_path: Path) -> None:
    """Half of the timeout passes in it, and more."""
    with (tmp_path / "log").open("w") as log:
        watch = HangWatch(RankVariables(), timeout_seconds=4, log=log)
        watch.start()
        with watch.long_work("saving the model", 1):
            time.sleep(2.8)
        watch.close()
    assert (tmp_path / "log").read_text() == ""


@pytest.mark.slow
def test_rank_0_may_write_the_model_for_longer_than_the_timeout(digits: Path, tmp_path: Path) -> None:
    flags = ("disturbed_tasks:SlowToSave", "--process-group-timeout-seconds", 4, "--max-steps", 2)
    exit_codes, outputs = forked_ranks().run("train_ddp", training_arguments(digits, tmp_path, *flags), 2)
    assert exit_codes == [0, 0], outputs
    assert "saving the model; its stacks" not in "".join(outputs)
    assert (tmp_path / "model" / "model.safetensors").is_file()


@pytest.mark.slow
def test_a_hang_is_seen_by_all_ranks_and_the_late_one_is_named(digits: Path, tmp_path: Path) -> None:
    flags = ("disturbed_tasks:HangsOnce", "--process-group-timeout-seconds", 4, "--checkpoint-every-steps", 0)
    exit_codes, outputs = forked_ranks().run("train_ddp", training_arguments(digits, tmp_path, *flags), 2)
    assert exit_codes == [1, 1], outputs
    assert "rank 0 lost its connection to another rank, or waited too long for it" in outputs[0]
    late = "late: rank 1, at step 3, forward pass; others are at step 3, backward pass"
    assert f"({late})" in outputs[0].splitlines()[-1], "the error says it"
    for rank in (0, 1):
        assert f"rank {rank}: no progress for " in outputs[rank]
        assert f"rank {rank}: {late}" in outputs[rank]
        assert "Traceback" not in outputs[rank]
    assert "in loss" in outputs[1], "where it hangs"


@pytest.mark.slow
def test_the_slowest_rank_is_reported(digits: Path, tmp_path: Path) -> None:
    flags = ("disturbed_tasks:SlowOnRank1", "--log-every-steps", 5, "--epochs", 2)
    exit_codes, outputs = forked_ranks().run("train_ddp", training_arguments(digits, tmp_path, *flags), 2)
    assert exit_codes == [0, 0], outputs
    reported = [line for line in metrics(tmp_path) if "slowest_rank" in line]
    assert len(reported) >= 6
    for line in reported[1:]:
        assert line["slowest_rank"] == 1
        assert line["slowest_rank_seconds"] > 0.02
        assert line["fastest_rank_seconds"] < line["slowest_rank_seconds"]
