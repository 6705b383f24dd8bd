"""Stores: tables of keys and values in which ranks find each other and agree, beside any process group."""

from __future__ import annotations

from datetime import timedelta

# torch.distributed passes the same classes on, but hides their types.
from torch._C._distributed_c10d import HashStore, PrefixStore, Store, TCPStore

__all__ = ["HashStore", "PrefixStore", "Store", "TCPStore", "open_store"]

_ANSWERS_WITHIN = timedelta(minutes=5)


def open_store(
    address: str, port: int, *, world_size: int | None = None, hosts: bool = False, timeout: timedelta = _ANSWERS_WITHIN
) -> Store:
    """Connect to the store at an address, or host it there, without waiting for the other ranks.

    `timeout` is for connecting and for each request. RuntimeError if nobody answers, or the port is taken.
    """
    return TCPStore(address, port, world_size, is_master=hosts, timeout=timeout, wait_for_workers=False)
