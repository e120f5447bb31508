"""Rendezvous: how the replicas of a node learn, before they work, where rank 0 can be reached and who shares a machine.

Each says where it is by the line to its controller, which exists on every engine and cannot be joined by others.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spanwise.orchestrator import process
from spanwise.orchestrator.errors import NodeFailed
from spanwise.orchestrator.replica import Gather, Replica, ReplicaPlace

ADDRESS: Final = "SPANWISE_ADDRESS"
"""The variable that names the address of a machine, for one that has several networks."""

LOOPBACK: Final = "127.0.0.1"

_PORTS: Final = range(20_000, 32_000)
"""Below those from which Linux takes the ports of connections: one might be taken before rank 0 listens."""

_TRIES: Final = 100
_ELSEWHERE: Final = ("192.0.2.1", 9)
"""An address for documentation (RFC 5737). Nothing is sent there."""


@dataclass(frozen=True, kw_only=True)
class _Peer:
    """Where a replica is."""

    machine: str  #: the same for those that can reach each other by the loopback
    host: str
    port: int


def meet(replica: Replica, gather: Gather) -> ReplicaPlace:
    """Waits for all replicas of a gang, and returns what this one has to know of them.

    Raises:
        NodeFailed: rank 0 is on another machine, and has no address there.
    """
    host = own_address()
    peers = [each for each in gather(_Peer(machine=_network(), host=host, port=free_port())) if isinstance(each, _Peer)]
    first, mine = peers[0], peers[replica.rank].machine
    alone = len({each.machine for each in peers}) == 1
    if not alone and is_loopback(first.host):
        raise NodeFailed(
            f"the machine of rank 0 has no address at which other machines reach it. Give it one by the variable "
            f"{ADDRESS}."
        )
    neighbours = [rank for rank, each in enumerate(peers) if each.machine == mine]
    return ReplicaPlace(
        rank=replica.rank,
        count=replica.count,
        host=LOOPBACK if alone else first.host,
        port=first.port,
        local_rank=neighbours.index(replica.rank),
        local_count=len(neighbours),
        gather=gather,
    )


def join(replica: Replica, gather: Gather, *, apart: bool) -> ReplicaPlace:
    """What one of an elastic gang knows; it waits for nobody. `apart`: the others may be on other machines.

    Here `gather` says something to those above rank 0, and returns what rank 0 has said last, once it has.
    """
    host = own_address() if apart else LOOPBACK
    return ReplicaPlace(rank=replica.rank, count=replica.count, host=host, start=replica.start, gather=gather)


def own_address() -> str:
    """The address at which other machines reach this one, as far as it can know; the loopback if it has none."""
    if named := os.environ.get(ADDRESS):
        return named
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(_ELSEWHERE)  # chooses a route, and so an address
        return str(probe.getsockname()[0])
    return next((each for _, name in socket.if_nameindex() if (each := _address_of(name)) != LOOPBACK), LOOPBACK)


def is_loopback(address: str) -> bool:
    return address.startswith("127.") or address in {"::1", "localhost"}


def free_port() -> int:
    """A port that nobody listens at."""
    for port in random.SystemRandom().sample(_PORTS, _TRIES):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("", port))
            return port
    raise NodeFailed(f"no port between {_PORTS.start} and {_PORTS.stop} is free.")


def _network() -> str:
    """This machine and its network: a container has one of its own."""
    with contextlib.suppress(OSError):
        return f"{process.machine()}/{Path('/proc/self/ns/net').readlink()}"
    return process.machine()


def _address_of(interface: str) -> str:
    """The IPv4 address of an interface; the loopback's if it has none."""
    with contextlib.suppress(OSError, ImportError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        import fcntl

        found = fcntl.ioctl(probe, 0x8915, interface.encode()[:15].ljust(256, b"\0"))  # SIOCGIFADDR, linux/sockios.h
        return socket.inet_ntoa(found[20:24])
    return LOOPBACK
