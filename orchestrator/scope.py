"""Scopes: which published artifacts a resolver chooses among, which gates have to accept them, and who reads them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GatedSource:
    """A channel whose spans are judged, and by which gates."""

    node: str
    key: str
    gates: tuple[str, ...]  #: all that judge it, parents first
    pending: frozenset[str] = frozenset()  #: those that wait for the resolver, so have not judged this run's span
    alone: bool = True  #: no other channel of the pipeline is judged, so a span needs no node to be named


@dataclass(frozen=True)
class Scope:
    """What a resolver chooses among."""

    node: str  #: that made the artifacts; a gate made none
    key: str
    sources: tuple[GatedSource, ...] = ()  #: what they derive from, or are, as far as gates judge it
    origins: tuple[tuple[str, str], ...] = ()  #: node and key of what they derive from, as far as no gate judges it
    ingests: tuple[str, ...] = ()  #: the nodes that ingest spans for them, parents first
    ingested: tuple[str, str] | None = None  #: node and key of the channel of which each span is made into one of these
    through: tuple[GatedSource, ...] = ()  #: what they may be made from through the choice of another resolver
    compared_by: tuple[str, ...] = ()  #: the nodes that compare its choice with what the run itself makes there
    used_by: tuple[str, ...] = ()  #: the other nodes that read its choice
    awaited: frozenset[str] = frozenset()  #: the nodes that have ended when it chooses

    @property
    def compared(self) -> bool:
        """Whether its choice is compared with what the run itself makes there, or nothing says that it is not."""
        return bool(self.compared_by) or not self.used_by
