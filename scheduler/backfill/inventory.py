"""Which spans have input, and which were ingested, each at its newest version. Reads only."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from spanwise.orchestrator.artifact import Examples
from spanwise.orchestrator.calendar import Version
from spanwise.orchestrator.component import Channel
from spanwise.orchestrator.errors import UsageError
from spanwise.orchestrator.history import version_of, versions_of
from spanwise.orchestrator.pipeline import Pipeline
from spanwise.orchestrator.store import Address, Store


@runtime_checkable
class IngestNode(Protocol):
    """A node that ingests one span per run and lists the spans that have input."""

    @property
    def outputs(self) -> Mapping[str, Channel]: ...

    def available(self, spans: Collection[int] | None = None) -> Mapping[int, Version]:
        """The newest version of each span that has input; of `spans` only, when given."""


@runtime_checkable
class InputChangeMarker(Protocol):
    """A node that detects whether the input of a span has changed."""

    def mark(self, span: int) -> str:
        """A mark that changes with the input of the span; cheap, so not computed from the data."""


@dataclass(frozen=True, kw_only=True)
class IngestInventory:
    """The newest versions of one ingesting node, by span."""

    node: str
    ready: Mapping[int, Version]  #: in the input
    published: Mapping[int, Version]  #: in the metadata, of the spans in `ready`


def find_ingest_nodes(pipeline: Pipeline) -> dict[str, IngestNode]:
    """The nodes that ingest spans, by name; a fixed table is among them only where there is nothing else.

    Raises:
        UsageError: there is none.
    """
    found: dict[str, IngestNode] = {node.name: node for node in pipeline if isinstance(node, IngestNode)}
    found = {name: node for name, node in found.items() if getattr(node, "takes_span", True)} or found
    if not found:
        raise UsageError(
            f"Pipeline {pipeline.name!r} has no node that ingests spans, such as ExampleGen, so nothing can be "
            f"backfilled; its nodes: {', '.join(pipeline.order)}."
        )
    return found


def take_inventory(
    pipeline: Pipeline, store: Store, spans: Collection[int] | None = None, source: str = ""
) -> list[IngestInventory]:
    """The inventory of every ingesting node, or of `source`, for these spans; without `spans`, for all with input."""
    found = []
    for name, node in find_ingest_nodes(pipeline).items():
        if source and name != source:
            continue
        ready = node.available(spans)
        address, calendar = address_of(pipeline, name, node), getattr(node, "calendar", None)
        published_artifacts = {span: versions_of(store, address, span, calendar) for span in ready}
        published = {span: version_of(versions[-1]) for span, versions in published_artifacts.items() if versions}
        found.append(IngestInventory(node=name, ready=ready, published=published))
    return found


def address_of(pipeline: Pipeline, name: str, node: IngestNode) -> Address:
    """The channel on which an ingesting node publishes."""
    key = next(key for key, channel in node.outputs.items() if issubclass(channel.kind, Examples))
    return Address(pipeline.name, name, key)


def ready_versions(sources: Iterable[IngestInventory]) -> dict[int, dict[str, Version]]:
    """The spans for which every node has input, ascending, with the version of each node."""
    every = list(sources)
    shared = set.intersection(*(set(source.ready) for source in every))
    return {span: {source.node: source.ready[span] for source in every} for span in sorted(shared)}


def arrived_versions(sources: Iterable[IngestInventory]) -> dict[int, dict[str, Version]]:
    """The ready spans that some node has not ingested at that version, ascending."""
    every = list(sources)
    return {
        span: versions
        for span, versions in ready_versions(every).items()
        if any(not is_ingested(each, span) for each in every)
    }


def lone_versions(sources: Iterable[IngestInventory]) -> dict[str, tuple[int, ...]]:
    """The spans of each node that it has not ingested at that version, and of which another node has no input."""
    every = list(sources)
    shared = ready_versions(every)
    lone = {s.node: tuple(sorted(n for n in s.ready if n not in shared and not is_ingested(s, n))) for s in every}
    return {node: spans for node, spans in lone.items() if spans}


def is_ingested(source: IngestInventory, span: int) -> bool:
    """Whether a node has ingested a span at the version that its input has, or a higher one."""
    return span in source.published and _order(source.ready[span]) <= _order(source.published[span])


def stale_spans(sources: Iterable[IngestInventory]) -> list[int]:
    """Spans that were ingested and whose input has a newer version."""
    found: set[int] = set()
    for source in sources:
        for span, version in source.ready.items():
            if span in source.published and _order(version) > _order(source.published[span]):
                found.add(span)
    return sorted(found)


def lowered_spans(sources: Iterable[IngestInventory]) -> list[int]:
    """Spans whose input has a lower version than was ingested, so that no window would read it."""
    found: set[int] = set()
    for source in sources:
        for span, version in source.ready.items():
            if span in source.published and _order(version) < _order(source.published[span]):
                found.add(span)
    return sorted(found)


def _order(version: Version) -> int:
    return -1 if version is None else version
