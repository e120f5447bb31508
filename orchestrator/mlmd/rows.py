"""Rows: what reading the metadata returns, whoever has read it. `layout` knows what they mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from spanwise.orchestrator.mlmd.text import Stored
from spanwise.orchestrator.store import Entry, Link

READ_BY_OTHERS = ("name", "pipeline_name", "producer_component")
"""The custom properties by which TFX's tools tell artifacts apart, a third of all; we read none of them."""


class ContextRow(NamedTuple):
    """A context, without the typed properties, which only other programs read."""

    id: int
    type_id: int
    name: str
    custom: Mapping[str, Stored]  #: its custom properties


class ArtifactRow(NamedTuple):
    """An artifact."""

    id: int
    type: str
    name: str
    uri: str
    typed: Mapping[str, Stored]  #: the properties that its type declares
    custom: Mapping[str, Stored]  #: those of `READ_BY_OTHERS` are left out


class ExecutionRow(NamedTuple):
    """An execution, without its artifacts."""

    id: int
    type_id: int
    type: str
    name: str
    state: int  #: as ml-metadata counts them
    typed: Mapping[str, Stored]
    custom: Mapping[str, Stored]


class EventRow(NamedTuple):
    """That an execution read an artifact, or had it as an output."""

    artifact_id: int
    execution_id: int
    read: bool
    steps: Sequence[str | int]  #: its path


class Reader(Protocol):
    """Reads the metadata. Each method sees one moment of it; what does not exist is left out, in no promised order."""

    def context(self, kind: str, name: str) -> ContextRow | None:
        """The context of this type and name."""

    def named_contexts(self, kind: str, names: Sequence[str]) -> list[ContextRow]:
        """The contexts of this type that have these names, perhaps not of one moment."""

    def last_numbered(self, kind: str, prefix: str, seen: int) -> int:
        """The highest n with a context `<prefix>n` of this type, where 1..n exist; `seen` is one that does, or 0."""

    def contexts(self, names: Sequence[str]) -> list[ContextRow]:
        """Those with these external ids."""

    def contexts_of_type(self, kind: str) -> list[ContextRow]:
        """All contexts of a type."""

    def entry(self, id: int | None) -> Entry | None:  # noqa: A002
        """The context with this id, or the newest."""

    def artifacts(self, names: Sequence[str]) -> list[ArtifactRow]:
        """Those with these external ids."""

    def artifacts_by_id(self, ids: Sequence[int]) -> list[ArtifactRow]:
        """Those with these ids."""

    def each_artifact(self, ids: Sequence[int]) -> Iterator[ArtifactRow]:
        """Yields the same of any number of ids, not of one moment."""

    def executions(self, names: Sequence[str]) -> list[ExecutionRow]:
        """Those with these external ids."""

    def executions_by_id(self, ids: Sequence[int]) -> list[ExecutionRow]:
        """Those with these ids."""

    def executions_in(self, context: int) -> list[ExecutionRow]:
        """All executions in a context."""

    def newest_in(self, context: int) -> list[ExecutionRow]:
        """The newest execution in a context."""

    def events(self, executions: Sequence[int]) -> list[EventRow]:
        """The events of any of these executions."""

    def links_of_artifacts(self, ids: Sequence[int], read: bool | None) -> list[Link]:
        """The links of any of these artifacts, of one kind, or of both if `read` is None."""

    def links_of_executions(self, ids: Sequence[int], read: bool | None) -> list[Link]:
        """The same of any of these executions."""

    def close(self) -> None:
        """Gives up what it has opened."""
