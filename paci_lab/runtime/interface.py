"""Which network interface the ranks of several hosts speak over."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct

__all__ = ["choose_interface", "interface_towards"]

_SIOCGIFADDR = 0x8915
_ELSEWHERE = "192.0.2.1"
"""An address that no host has: its route is the default one."""


def choose_interface(meeting: str) -> None:
    """Make gloo listen on the interface that leads to `meeting`, the host where the ranks meet.

    gloo by itself takes the interface of the address that the host's own name stands for, which many systems map to
    loopback. GLOO_SOCKET_IFNAME in the environment wins. NCCL looks for itself (NCCL_SOCKET_IFNAME).
    """
    if "GLOO_SOCKET_IFNAME" not in os.environ and (name := interface_towards(meeting)) is not None:
        os.environ["GLOO_SOCKET_IFNAME"] = name


def interface_towards(host: str) -> str | None:
    """Name of the interface whose address this host would use to speak to `host`; None when it cannot be told.

    A name that stands for loopback here is this host's own name: the way out is asked for then.
    """
    source = _source_address(host)
    if source is not None and source.startswith("127.") and host != "localhost" and not host.startswith("127."):
        source = _source_address(_ELSEWHERE)
    if source is None:
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # an interface without an address
                request = struct.pack("256s", name.encode()[:15])
                if socket.inet_ntoa(fcntl.ioctl(asking, _SIOCGIFADDR, request)[20:24]) == source:
                    return name
    return None


def _source_address(host: str) -> str | None:
    """The IPv4 address that packets to `host` would come from. Nothing is sent: connecting a datagram socket asks the
    routing table alone."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.connect((host, 9))
        return asking.getsockname()[0]
    return None
