"""How ranks meet, on one node and on two, and what they report when one of them does not come."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rank_processes import clean_environment, free_port, start_ranks

pytestmark = pytest.mark.slow

LIMIT_SECONDS = 120
UNSHARE = ("unshare", "--map-root-user", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child")


@pytest.mark.parametrize("killed", [0, 1])
def test_a_rank_that_is_killed_before_it_joined_is_named_long_before_the_timeout(killed: int) -> None:
    ranks = start_ranks("joining", ["--timeout-seconds", 10 * LIMIT_SECONDS], world_size=2)
    for process in ranks.processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting to import torch\n"
    ranks.signal(killed, signal.SIGKILL)
    exit_codes = ranks.wait(LIMIT_SECONDS)
    assert exit_codes[1 - killed] == 1
    assert f"rank {killed} of 2 on " in ranks.outputs[1 - killed]
    assert "ended before joining the others; the log of that process says why" in ranks.outputs[1 - killed]


@pytest.mark.parametrize("killed", [0, 1])
def test_a_forked_rank_that_ended_before_the_other_looked_is_named_too(killed: int, tmp_path: Path) -> None:
    """What ranks of other jobs left long ago, when they ended before joining, is removed."""
    folder = tmp_path / f"trainyard-joining-{os.getuid()}"
    folder.mkdir(mode=0o700)
    left, new = folder / "1 another job 0 0", folder / "1 another job 0 1"
    for file, age_seconds in ((left, 60), (new, 0)):
        file.touch(mode=0o600)
        os.utime(file, (time.time() - age_seconds,) * 2)
    ended = run_forked(tmp_path, killed)
    assert (left.exists(), new.exists()) == (False, True)
    assert ended.returncode == 1, ended.stdout
    assert f"joining: error: rank {killed} of 2 on " in ended.stdout
    assert "ended before joining the others" in ended.stdout


def test_what_an_earlier_attempt_left_ends_nobody(tmp_path: Path) -> None:
    ended = run_forked(tmp_path, 1, 6)
    assert ended.returncode == 0, ended.stdout
    assert "joined: [0, 1]" in ended.stdout
    (files,) = tmp_path.glob("trainyard-joining-*")
    assert not list(files.iterdir()), "ranks that have joined leave nothing"


def run_forked(folder: Path, killed: int, *seconds_until_again: int) -> subprocess.CompletedProcess[str]:
    """Run two forked ranks, of which one is killed before the other begins."""
    arguments = [killed, free_port(), 10 * LIMIT_SECONDS, *seconds_until_again]
    return subprocess.run(
        [sys.executable, "-m", "forked_joining", *map(str, arguments)],
        env=clean_environment({"TMPDIR": str(folder)}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_SECONDS,
    )


def test_a_rank_that_never_comes_is_named() -> None:
    ranks = start_ranks("joining", ["--timeout-seconds", 2], world_size=2, delayed_rank=1)
    ranks.signal(1, signal.SIGSTOP)
    ranks.processes[0].wait(LIMIT_SECONDS)
    ranks.kill()
    ranks.wait()
    assert "rank 1 of 2 did not connect to 127.0.0.1:" in ranks.outputs[0]


def test_a_listener_that_never_answers_is_named_when_the_time_is_over() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        variables = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
        ended = subprocess.run(
            [sys.executable, "-m", "joining", "--timeout-seconds", "3"],
            env={**clean_environment(), **variables, "MASTER_PORT": str(listener.getsockname()[1])},
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
        )
    assert ended.returncode == 1, ended.stderr
    assert "within 3 seconds (--process-group-timeout-seconds): what listens there does not answer" in ended.stderr


def test_nodes_whose_names_lead_to_their_loopback_interface_join(tmp_path: Path) -> None:
    ended = run_on_two_nodes(tmp_path, 60)
    assert ended.returncode == 0, ended.stdout
    assert ended.stdout.count("joined: [0, 1]") == 2


def test_a_node_that_cannot_be_reached_is_named_with_both_addresses(tmp_path: Path) -> None:
    ended = run_on_two_nodes(tmp_path, 16, "elsewhere")
    assert ended.returncode == 1, ended.stdout
    (message,) = {line for line in ended.stdout.splitlines() if "cannot reach rank 1" in line}
    assert message.startswith("joining: error: rank 0 on ")
    assert "(10.9.0.1) cannot reach rank 1 on " in message
    assert "(10.8.0.2): " in message


def run_on_two_nodes(folder: Path, seconds: int, interface: str = "") -> subprocess.CompletedProcess[str]:
    """Run `joining` on two nodes, where this machine lets its users make network namespaces."""
    if sys.platform != "linux" or subprocess.run([*UNSHARE, "ip", "link"], capture_output=True).returncode:
        pytest.skip("this machine does not allow network namespaces")
    script = Path(__file__).with_name("two_nodes.sh")
    return subprocess.run(
        [*UNSHARE, script, sys.executable, str(free_port()), str(seconds), *filter(None, [interface])],
        env=clean_environment({"TMPDIR": str(folder)}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_SECONDS,
    )
