"""Replicas: the processes that do the work of one node together, each with a rank. A node's replicas are its gang."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

Gather: TypeAlias = Callable[[object], tuple[object, ...]]
"""Says something to all replicas, and returns what each said, by rank, once all have. All call it equally often."""


@dataclass(frozen=True, kw_only=True)
class Gang:
    """How many replicas do the work of a node. They start together, and when one fails all end."""

    size: int = 1
    elastic: bool = False  #: they do not: those above rank 0 come and go


ALONE: Final = Gang()


@dataclass(frozen=True, kw_only=True)
class Replica:
    """One of the replicas of a job."""

    rank: int = 0  #: counts from 0; what rank 0 makes is what the node makes
    count: int = 1
    job: int = 0  #: the execution that it is a part of
    start: int = 1  #: counts those that have had this rank, in an elastic gang


ONE: Final = Replica()


@dataclass(frozen=True, kw_only=True)
class ReplicaPlace:
    """What a replica knows of its gang."""

    rank: int = 0
    count: int = 1
    host: str = "127.0.0.1"  #: of rank 0, as all of them reach it
    port: int = 0  #: of that host, free when they met; 0 in a node without replicas
    local_rank: int = 0  #: counts the replicas of one machine
    local_count: int = 1
    start: int = 1  #: counts those that have had this rank, in an elastic gang
    gather: Gather = lambda said: (said,)

    @property
    def coordinator(self) -> str:
        """`host:port`, where rank 0 can listen for the others."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def environment(self) -> dict[str, str]:
        """The variables by which `torchrun` informs its processes."""
        return {
            "MASTER_ADDR": self.host,
            "MASTER_PORT": str(self.port),
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.count),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_count),
        }


NO_GANG: Final = ReplicaPlace()
"""That of a node that works in one process."""
