"""A job with `distribution: ray`: a cluster of Ray with the job's nodes, whose head runs the command.

Azure ML documents no more than the keys (azure-ai-ml 1.35.2, RayDistribution). Here all nodes have one address, so the
job finds its own cluster by RAY_ADDRESS, and Ray's port is a free one.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from trainyard.rehearse.contract import NODE_ADDRESS
from trainyard.rehearse.processes import ProcessStart
from trainyard.spec.distributions import Ray

_START_SECONDS = 300
"""How long Ray may take to start on the head, and then to find all nodes: many times what it takes where it works."""

# Waits until as many nodes as given have joined.
_WAIT_FOR_NODES = """\
import sys, time, ray
end = time.monotonic() + float(sys.argv[3])
ray.init(address=sys.argv[1], logging_level="ERROR")
while (found := sum(node["Alive"] for node in ray.nodes())) < int(sys.argv[2]):
    if time.monotonic() > end:
        sys.exit(f"{found} of {sys.argv[2]} nodes have joined Ray within {sys.argv[3]} seconds")
    time.sleep(0.1)
"""
# Waits until Ray listens on the head, without a shell's own way to connect, which sh does not have.
_WAIT_FOR_HEAD = """\
import socket, sys, time
host, port, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
end = time.monotonic() + seconds
while True:
    try:
        socket.create_connection((host, port), timeout=1).close()
        break
    except OSError as error:
        if time.monotonic() > end:
            sys.exit(f"error: Ray does not listen on {host}:{port} after {seconds:g} seconds: {error}")
        time.sleep(0.2)
"""


def with_ray(
    starts: Sequence[ProcessStart],
    distribution: Ray,
    port: int,
    temporary: Path,
    log: Path,
) -> list[ProcessStart]:
    """Return the processes of the nodes: the head starts Ray, waits for the others and runs its command; they serve it.

    `temporary` is a folder for Ray's sockets, whose paths must be short; what the head's Ray prints goes into `log`.
    """
    address = f"{NODE_ADDRESS}:{port}"
    common = ["ray", "start", "--disable-usage-stats"]
    dashboard = str(distribution.include_dashboard).lower()
    of_head = ["--head", f"--port={port}", f"--temp-dir={temporary}", f"--include-dashboard={dashboard}"]
    head = [*common, f"--node-ip-address={NODE_ADDRESS}", *of_head]
    wait = ["python", "-c", _WAIT_FOR_NODES, address, str(len(starts)), str(_START_SECONDS)]
    to_log = f">> {shlex.quote(str(log))} 2>&1"
    begin = f"{_line(head, distribution.head_arguments)} {to_log} && {shlex.join(wait)} {to_log}"
    failed = f"{{ echo {shlex.quote(f'error: Ray did not start; see {log}')} >&2; exit 1; }}"
    first, *others = starts
    until_head_listens = shlex.join(["python", "-c", _WAIT_FOR_HEAD, NODE_ADDRESS, str(port), str(_START_SECONDS)])
    started = [replace(first, command=f"{begin} || {failed}\n{first.command}")]
    node = [*common, f"--node-ip-address={NODE_ADDRESS}", f"--address={address}", "--block"]
    command = f"{until_head_listens} && exec {_line(node, distribution.worker_arguments)}"
    return [*started, *(replace(other, command=command) for other in others)]


def _line(words: Sequence[str], arguments: str) -> str:
    return f"{shlex.join(words)} {arguments}".rstrip()
