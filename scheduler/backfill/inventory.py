"""Inventories: which spans lie ready to be ingested, and which were, each at its newest version. Reads only."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from spanwise.orchestrator.artifact import Examples
from spanwise.orchestrator.calendar import Calendar, Version, format_versions
from spanwise.orchestrator.component import Channel
from spanwise.orchestrator.errors import UsageError
from spanwise.orchestrator.history import version_key, version_of
from spanwise.orchestrator.pipeline import Pipeline
from spanwise.orchestrator.store import Address, Store


@runtime_checkable
class Ingests(Protocol):
    """A node that ingests one span a run, and can say what lies ready."""

    @property
    def outputs(self) -> Mapping[str, Channel]: ...

    def available(self, spans: Collection[int] | None = None) -> Mapping[int, Version]:
        """The newest version of each span that is there; of these spans only, when they are named."""


@runtime_checkable
class Marks(Protocol):
    """A node that can say whether what lies ready of a span is still as it was."""

    def mark(self, span: int) -> str:
        """Changes whenever the input of the span does; cheap, so not read from the data itself."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """What one ingesting node has: newest versions by span."""

    node: str
    ready: Mapping[int, Version]  #: in the input
    published: Mapping[int, Version]  #: in the metadata, of those that are ready


def ingesting(pipeline: Pipeline) -> dict[str, Ingests]:
    """The nodes that ingest spans, by name.

    Raises:
        UsageError: there is none.
    """
    found: dict[str, Ingests] = {node.name: node for node in pipeline if isinstance(node, Ingests)}
    if not found:
        raise UsageError(
            f"Pipeline {pipeline.name!r} has no node that ingests spans, such as ExampleGen, so nothing can be "
            f"backfilled; its nodes: {', '.join(pipeline.order)}."
        )
    return found


def inventory(pipeline: Pipeline, store: Store, spans: Collection[int] | None = None) -> list[Source]:
    """What every ingesting node has for these spans; without names, for all that lies ready."""
    found = []
    for name, node in ingesting(pipeline).items():
        ready = node.available(spans)
        editions = {span: store.of_span(address_of(pipeline, name, node), span) for span in ready}
        published = {
            span: version_of(max(versions, key=version_key)) for span, versions in editions.items() if versions
        }
        found.append(Source(node=name, ready=ready, published=published))
    return found


def address_of(pipeline: Pipeline, name: str, node: Ingests) -> Address:
    """Where what the node ingests is published."""
    key = next(key for key, channel in node.outputs.items() if issubclass(channel.kind, Examples))
    return Address(pipeline.name, name, key)


def ready(sources: Iterable[Source]) -> dict[int, dict[str, Version]]:
    """The spans that every node has ready, ascending, with the version of each node."""
    every = list(sources)
    shared = set.intersection(*(set(source.ready) for source in every))
    return {span: {source.node: source.ready[span] for source in every} for span in sorted(shared)}


def arrived(sources: Iterable[Source]) -> dict[int, dict[str, Version]]:
    """The spans that are `ready` and that some node has not ingested at that version, ascending."""
    every = list(sources)
    return {span: versions for span, versions in ready(every).items() if any(not _has(each, span) for each in every)}


def _has(source: Source, span: int) -> bool:
    return span in source.published and _order(source.ready[span]) <= _order(source.published[span])


def stale(sources: Iterable[Source]) -> list[int]:
    """Spans that were ingested, and of which a newer version lies ready."""
    found: set[int] = set()
    for source in sources:
        for span, version in source.ready.items():
            if span in source.published and _order(version) > _order(source.published[span]):
                found.add(span)
    return sorted(found)


def _order(version: Version) -> int:
    return -1 if version is None else version


def listed(spans: Iterable[int], calendar: Calendar) -> str:
    """Spans as people write them, neighbours as ranges."""
    return format_versions(((span, None) for span in sorted(spans)), calendar)
