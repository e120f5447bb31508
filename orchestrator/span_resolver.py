"""Span resolvers: what a resolver that chooses by span says of its choice. Ports; `resolvers` implements them."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Protocol, runtime_checkable

from spanwise.orchestrator.artifact import Artifact
from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.component import Node, Resolver
from spanwise.orchestrator.gate import has_spans
from spanwise.orchestrator.history import History, Withheld


class WantedSpan(Protocol):
    """What a resolver says of one span that it wants."""

    @property
    def span(self) -> int: ...
    @property
    def label(self) -> str: ...
    @property
    def chosen(self) -> Artifact | None:
        """The newest version; None when nothing was published for the span, or when it does not count."""

    @property
    def withheld(self) -> Withheld | None:
        """Why the newest version does not count."""

    @property
    def superseded(self) -> tuple[Artifact, ...]:
        """What was published for it before, oldest first."""


@runtime_checkable
class SpanResolver(Protocol):
    """A resolver that chooses by span and says how."""

    def explain(self, history: History, at: int | None = None) -> Sequence[WantedSpan]:
        """Every span it wants, oldest first."""


@runtime_checkable
class SpanExcluder(Protocol):
    """A resolver that leaves out spans by name, also those that a run names."""

    calendar: Calendar
    exclude: Container[int]

    def explain_excluded(self, history: History, at: int | None = None) -> Sequence[WantedSpan]:
        """Every span that it leaves out, oldest first."""


@runtime_checkable
class SpanAwaiter(Protocol):
    """A resolver that may choose a span later that it passes over now: one that has yet to settle, or between steps."""

    def explain_awaited(self, history: History) -> Sequence[WantedSpan]:
        """Every published span that it does not want now, and may want once newer ones have come; oldest first."""


@runtime_checkable
class WindowChecker(Protocol):
    """A resolver that says whether a run could read a window that ends elsewhere."""

    def refuse(self, history: History, found: Sequence[WantedSpan]) -> None:
        """Raises ResolutionError when it could not."""


def is_window(node: Node) -> bool:
    """Whether a node chooses by span, says how, and moves as newer spans come."""
    return isinstance(node, Resolver) and isinstance(node, SpanResolver) and not node.is_fixed


def chooses_among_spans(node: Node) -> bool:
    """Whether a node is a resolver that chooses among what belongs to spans, whether or not it says how."""
    return isinstance(node, Resolver) and any(has_spans(source.kind) for source in node.sources.values())
