"""What a task of TensorFlow's cluster reads from TF_CONFIG, and how tasks meet."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from rank_processes import free_port
from tensorflow_tasks import arguments_for, tf_config

from trainyard.steps import train_tensorflow
from trainyard.steps.runtime.errors import SetupError, StepError
from trainyard.steps.training.tensorflow.cluster import ClusterPlace, Tasks, meet, read_cluster

WORKERS = ["host0:2222", "host1:2222"]


def test_workers_and_parameter_servers_know_their_place() -> None:
    place = read_cluster({"TF_CONFIG": tf_config({"worker": WORKERS, "ps": ["host2:2222"]}, "ps", 0)})
    assert (place.workers, place.parameter_servers) == (tuple(WORKERS), ("host2:2222",))
    assert place.is_parameter_server
    assert place.number == 2
    assert place.name_of(2) == "parameter server 0 (host2:2222)"


def test_a_chief_is_worker_0_and_without_a_config_there_is_one_worker() -> None:
    place = read_cluster({"TF_CONFIG": tf_config({"chief": ["a:1"], "worker": ["b:1"]}, "worker", 0)})
    assert (place.workers, place.index) == (("a:1", "b:1"), 1)
    assert len(read_cluster({}).tasks) == 1


TWO = {"worker": WORKERS}


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"TF_CONFIG": "{'cluster'"}, "which of them this is: {'cluster'; expected {\"cluster\""),
        *(
            ({"TF_CONFIG": config}, f"TF_CONFIG does not name the tasks and which of them this is: {config}; expected")
            for config in (
                "[]",
                json.dumps({"cluster": TWO}),
                tf_config(TWO, "worker", 2),
                tf_config(TWO, "ps", 0),
                tf_config({"worker": ["a"]}, "worker", 0),
                tf_config({"worker": ["a:65536"]}, "worker", 0),
                tf_config({"workers": WORKERS}, "worker", 0),
                tf_config({}, "worker", 0),
            )
        ),
        ({"TF_CONFIG": tf_config(TWO, "worker", 0), "WORLD_SIZE": "2"}, "start the processes with one launcher only"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "OMPI_COMM_WORLD_SIZE=2 is set by another launcher"),
    ],
    ids=lambda value: "" if isinstance(value, dict) else value,
)
def test_a_broken_config_is_one_line_and_exit_code_2(
    environment: dict[str, str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert train_tensorflow.main(arguments_for(tmp_path, tmp_path)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_without_tensorflow_the_step_says_which_extra_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tensorflow", None)
    assert train_tensorflow.main(arguments_for(tmp_path, tmp_path)) == 2
    said = capsys.readouterr().err
    assert 'train_tensorflow needs the package tensorflow; pip install "trainyard-azureml[tensorflow]"' in said


def places(tasks: int) -> list[ClusterPlace]:
    addresses = tuple(f"127.0.0.1:{free_port()}" for _ in range(tasks))
    return [ClusterPlace(addresses, (), index) for index in range(tasks)]


def test_tasks_exchange_values_and_leave_together() -> None:
    def work(place: ClusterPlace) -> tuple[list[int], str, int]:
        tasks = meet(place, 30)
        tasks.end_when_one_is_lost()
        tasks.require_same({"seed": 1})
        return tasks.gather(place.index), tasks.main(lambda: "chosen"), tasks.leave(75 if tasks.is_main else 0)

    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(work, places(3))) == [([0, 1, 2], "chosen", 75)] * 3


def test_what_worker_0_or_settings_refuse_is_raised_everywhere() -> None:
    def refuse() -> str:
        raise StepError("no such checkpoint")

    def work(place: ClusterPlace) -> list[str]:
        tasks = meet(place, 30)
        said = []
        for action in (lambda: tasks.main(refuse), lambda: tasks.require_same({"seed": place.index})):
            with pytest.raises(StepError) as caught:
                action()
            said.append(str(caught.value))
        tasks.close()
        return said

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(work, places(2))
    assert first == second
    assert first[0] == "no such checkpoint"
    assert "seed is '0' on worker 0" in first[1]
    assert "'1' on worker 1" in first[1]


def test_a_task_that_does_not_connect_is_named() -> None:
    place, absent = places(2)
    with pytest.raises(StepError, match=rf"worker 1 \({absent.workers[1]}\) did not connect within 1 seconds"):
        meet(place, 1)
    with pytest.raises(StepError, match="did not reach worker 0"):
        meet(absent, 1)


def test_a_task_that_was_started_twice_is_named() -> None:
    main, other, _ = places(3)
    joined: list[Tasks] = []

    def join() -> None:
        try:
            joined.append(meet(other, 3))
        except StepError:
            return

    threads = [threading.Thread(target=join) for _ in range(2)]
    for thread in threads:
        thread.start()
    with pytest.raises(
        SetupError, match=r"two processes say in TF_CONFIG that they are worker 1 .*start each task once"
    ):
        meet(main, 30)
    for thread in threads:
        thread.join()
    assert not joined
