"""The network interface over which this node reaches the others."""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress

_GLOO_VARIABLE = "GLOO_SOCKET_IFNAME"
_ELSEWHERE = "192.0.2.1"
"""An address of nobody (RFC 5737): the route to it is the default route."""
_SIOCGIFADDR = 0x8915
"""From linux/sockios.h: asks for an interface's IPv4 address, which is in bytes 20 to 24 of the answer."""
_NAME_BYTES = 15


def choose_gloo_interface(master_address: str) -> str | None:
    """Let gloo use the interface of the route to MASTER_ADDR, unless GLOO_SOCKET_IFNAME names one of this machine.

    Without it gloo takes the one that the host's name leads to, which is often the loopback interface, where no other
    node can reach it. Return this node's address there, or None if it cannot be found, as on systems other than Linux.
    """
    if sys.platform != "linux":
        return None
    addresses = dict(_interfaces())
    given = os.environ.get(_GLOO_VARIABLE)
    if given in addresses:
        return addresses[given]
    address = _address_towards(master_address)
    if address is None or (_is_loopback(address) and not _names_loopback(master_address)):
        # A name of this machine's own may lead to the loopback interface here, and to another address elsewhere.
        address = _address_towards(_ELSEWHERE) or next((a for a in addresses.values() if not _is_loopback(a)), address)
    found = next((name for name, own in addresses.items() if own == address), None)
    if found is not None:
        os.environ[_GLOO_VARIABLE] = found
        if given is not None:
            print(f"warning: {_GLOO_VARIABLE}={given}: this machine has no such interface; using {found}", flush=True)
    return address


def _address_towards(address: str) -> str | None:
    """Return this machine's address on the route to another, or None. Nothing is sent."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.connect((address, 9))
        own: str = asking.getsockname()[0]
        return own
    return None


def _interfaces() -> Iterator[tuple[str, str]]:
    """Yield this machine's interfaces that have an IPv4 address."""
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                answer = fcntl.ioctl(asking.fileno(), _SIOCGIFADDR, struct.pack("256s", name[:_NAME_BYTES].encode()))
                yield name, socket.inet_ntoa(answer[20:24])


def _is_loopback(address: str) -> bool:
    return address.startswith("127.")


def _names_loopback(master_address: str) -> bool:
    return master_address == "localhost" or _is_loopback(master_address)
