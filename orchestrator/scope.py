"""Scopes: which published artifacts a resolver chooses among, and which gates have to accept them."""

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
