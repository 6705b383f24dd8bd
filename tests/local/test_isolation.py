"""`--isolate`: what only shows between hosts. Needs a machine that allows network namespaces."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from trainyard.local.errors import RunError, UsageError
from trainyard.local.isolation import check_isolation

TALK = """\
import os, socket, time

rank, port = int(os.environ["RANK"]), int(os.environ["MASTER_PORT"])
if rank == 0:
    with socket.create_server(("0.0.0.0", port)) as server:
        peer, (address, _) = server.accept()
        print("met", address, "at", socket.gethostbyname(socket.gethostname()))
else:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1)
        print("the loopback is shared")
    except OSError:
        print("alone on", socket.gethostname())
    while True:
        try:
            socket.create_connection((os.environ["MASTER_ADDR"], port), timeout=1)
            break
        except OSError:
            time.sleep(0.1)
"""


def is_allowed() -> bool:
    try:
        check_isolation()
    except RunError:
        return False
    return True


@pytest.fixture
def two_nodes(workspace: Any) -> Path:
    (workspace.code / "talk.py").write_text(TALK)
    return Path(workspace.one_job("python talk.py", distribution={"type": "pytorch"}, resources={"instance_count": 2}))


@pytest.mark.skipif(not is_allowed(), reason="this machine allows no network namespaces")
def test_isolated_nodes_reach_each_other_by_their_addresses_only(workspace: Any, two_nodes: Path) -> None:
    record = workspace.run(two_nodes, isolate=True)

    assert record.status == "completed"
    assert record.isolate
    logs = [(record.folder / log).read_text() for log in record.jobs["work"].logs]
    assert logs == ["met 10.213.0.2 at 10.213.0.1\n", "alone on node-1\n"]
    assert not list(Path("/run/netns").glob(f"trainyard-{os.getpid()}-*"))


@pytest.mark.skipif(not is_allowed(), reason="this machine allows no network namespaces")
def test_isolated_nodes_do_not_reach_the_notice_of_a_preemption(workspace: Any, two_nodes: Path) -> None:
    with pytest.raises(UsageError, match="--isolate and --preempt cannot be used together"):
        workspace.run(two_nodes, isolate=True, preempt=("work@1s",))


def test_where_it_is_not_allowed_the_run_says_what_is_missing(
    workspace: Any, two_nodes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(workspace.root))

    with pytest.raises(RunError, match="--isolate needs ip, nsenter, unshare, mount, hostname, which is not on PATH"):
        workspace.run(two_nodes, isolate=True)
