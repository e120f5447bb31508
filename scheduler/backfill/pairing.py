"""Pairings: with which spans of other nodes a span was joined, by a component that reads both. Reads only."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.errors import UsageError
from spanwise.orchestrator.history import span_of, versions_of
from spanwise.orchestrator.pipeline import Pipeline
from spanwise.orchestrator.run import Execution, Run
from spanwise.orchestrator.store import Address, Store
from spanwise.scheduler.backfill.inventory import (
    IngestInventory,
    address_of,
    find_ingest_nodes,
    ready_versions,
    take_inventory,
)
from spanwise.scheduler.formatting import format_spans
from spanwise.scheduler.project.span_sources import find_joined, list_joins, list_span_sources

_FEW = 5  # commands and spans that are named


@dataclass(frozen=True, kw_only=True)
class Pairing:
    """Spans that one run has joined."""

    spans: Mapping[str, int]  #: by the node that ingests
    made: set[int] = field(default_factory=set)  #: the spans of what was made of them


@dataclass(frozen=True, kw_only=True)
class JoinedSpans:
    """The spans of one node to run again, each with the spans of the nodes that are joined with it."""

    source: str  #: whose spans name what is made of them
    calendar: Calendar  #: of its spans
    spans: Mapping[int, Mapping[str, str]]  #: by its span, ascending, the labels of the others
    inventories: Sequence[IngestInventory]  #: of it and the others, by its spans
    named: bool  #: whether windows name what is made by its spans


class Pairings:
    """The pairings of the nodes that ingest and that components of a part of a pipeline join."""

    def __init__(self, store: Store, pipeline: Pipeline, part: Collection[str]) -> None:
        self._store = store
        self._pipeline = pipeline
        self._joins = {name: of for name, of in list_joins(pipeline).items() if name in part}
        self._sources = {source.node: source for source in list_span_sources(pipeline)}
        self._addresses = {
            name: address_of(pipeline, name, node)
            for name, node in find_ingest_nodes(pipeline).items()
            if name in self._sources
        }

    def joined_with(self, source: str) -> tuple[str, ...]:
        """The other nodes that ingest whose spans are joined with those of this one, parents first."""
        joined = find_joined(source, self._joins) - {source}
        return tuple(name for name in self._sources if name in joined)

    def join(self, source: str, spans: Sequence[int], file: str) -> JoinedSpans | None:
        """What has to run for these spans of a node to be joined as before; None where it is joined with no other.

        That are often the spans of another node: a month of prices is joined with the clicks of each of its days.

        Raises:
            UsageError: a span was never joined, its partners have no input any more, or no node tells the runs apart.
        """
        others = self.joined_with(source)
        if not others:
            return None
        every: dict[tuple[tuple[str, int], ...], Pairing] = {}
        new = []
        for span in spans:
            pairings = self.find(source, span)
            for pairing in pairings:
                key = tuple(sorted(pairing.spans.items()))
                every.setdefault(key, Pairing(spans=pairing.spans)).made.update(pairing.made)
            if not pairings:
                new.append(span)
        if new:
            raise UsageError(self._describe_new(source, others, new, file))
        return self._name_by_one(source, others, list(every.values()), file)

    def find(self, source: str, span: int) -> list[Pairing]:
        """The pairings of what is made of a span now, the newest first; what was joined otherwise since has its own.

        Of what has no span of its own, such as a model, the newest is meant.
        """
        found, idle = [], None
        seen: set[tuple[str, int | None]] = set()
        for run, executions in self._runs_with(source, span):
            spans = self._spans_in(executions, {source, *self.joined_with(source)})
            made = [executions[name] for name in self._joins_of(source) if name in executions]
            if spans is None:
                continue
            if not made and idle is None and spans.keys() <= set(run.nodes):
                idle = Pairing(spans=spans)  # what joins them has failed
            for execution in made:
                if execution.supplied:
                    continue
                for current in self._list_current(execution):
                    if (execution.node, current) not in seen:
                        seen.add((execution.node, current))
                        found.append(Pairing(spans=spans, made=set() if current is None else {current}))
        return found or ([idle] if idle is not None else [])

    def differs(self, source: str, span: int) -> Pairing | None:
        """A pairing of this span with another span of a node that counts alike; None where it has none."""
        return next((p for p in self.find(source, span) if set(p.spans.values()) != {span}), None)

    def explain_apart(self, pairing: Pairing) -> str:
        """Why one span of all nodes is not run: clicks of a day were joined with the prices of the day before."""
        together = " and ".join(f"{name} {self._label(name, span)}" for name, span in pairing.spans.items())
        return (
            f"{together} were joined with each other, so the same span of every node would bring together what does "
            f"not belong together"
        )

    def command_for(self, source: str, span: int, file: str) -> str:
        """The command that joins a span of a node as before; one that was never joined, with what is filled in."""
        if self.find(source, span):
            return f"spanwise backfill {file} --span {source}={self._label(source, span)}"
        spans = {source: self._label(source, span), **dict.fromkeys(self.joined_with(source), "SPAN")}
        return f"spanwise run {file} {' '.join(f'--span {n}={spans[n]}' for n in self._sources if n in spans)}"

    def _runs_with(self, source: str, span: int) -> Iterator[tuple[Run, Mapping[str, Execution]]]:
        """The ordinary runs that have had this span of a node, newest first, with their executions by node."""
        published = versions_of(self._store, self._addresses[source], span, self._sources[source].calendar)
        if not published:
            return
        links = self._store.links(artifacts=[artifact.id for artifact in published], read=False)
        executions = self._store.executions_by_id({link.execution for link in links})
        for number in sorted({each.run for each in executions if each.node == source}, reverse=True):
            run = self._store.run(self._pipeline.name, number)
            if run.ordinary:
                yield run, {each.node: each for each in self._store.executions(run) if each.state.succeeded}

    def _spans_in(self, executions: Mapping[str, Execution], sources: Collection[str]) -> dict[str, int] | None:
        """The span that each of these nodes has given in a run; None where one has given none."""
        ran = [name for name in self._sources if name in sources and name in executions]
        given = {name: executions[name].outputs.get(self._addresses[name].key, ()) for name in ran}
        spans = {name: span_of(artifacts[0]) for name, artifacts in given.items() if artifacts}
        return spans if spans.keys() == set(sources) else None

    def _joins_of(self, source: str) -> list[str]:
        return [name for name, of in self._joins.items() if source in of]

    def _list_current(self, made: Execution) -> Iterator[int | None]:
        """The spans of what an execution has made, as far as nothing was made in its place; None for what has none."""
        mine = [a for a in itertools.chain(*made.outputs.values()) if a.name.split("/")[1] == made.node]
        spans = {span for a in mine if isinstance(span := a.properties.get("span"), int)}
        if not spans:
            yield None
        for artifact in mine:
            if artifact.properties.get("span") in spans:
                address = Address(*artifact.name.split("/")[:3])
                if versions_of(self._store, address, span_of(artifact), None)[-1].id == artifact.id:
                    yield span_of(artifact)

    def _name_by_one(self, source: str, others: Sequence[str], pairings: Sequence[Pairing], file: str) -> JoinedSpans:
        """The pairings by the spans of one node: those that what is made of them has, or any that occur once."""
        once = [name for name in (source, *others) if len({p.spans[name] for p in pairings}) == len(pairings)]
        naming = [name for name in once if all(p.made <= {p.spans[name]} for p in pairings)]
        if not once:
            raise UsageError(
                f"What was joined with these spans of {source} has no node that ingests whose spans tell it apart. "
                f"Nothing was started. Run each by itself:\n" + "\n".join(self._commands(pairings, file))
            )
        chosen = (naming or once)[0]
        by_span = {pairing.spans[chosen]: pairing.spans for pairing in sorted(pairings, key=lambda p: p.spans[chosen])}
        rest = [name for name in (source, *others) if name != chosen]
        inventories = [self._take_inventory(name, {span: of[name] for span, of in by_span.items()}) for name in rest]
        inventories = [self._take_inventory(chosen, {span: span for span in by_span}), *inventories]
        there = ready_versions(inventories)
        if gone := [span for span in by_span if span not in there]:
            lacking = {
                f"{each.node} {self._label(each.node, by_span[span][each.node])}"
                for each in inventories
                for span in gone
                if span not in each.ready
            }
            raise UsageError(
                f"{source} was joined with spans that have no input any more, or not in every split: "
                f"{', '.join(sorted(lacking)[:_FEW])}. Nothing was started; add their data to the input."
            )
        return JoinedSpans(
            source=chosen,
            calendar=self._sources[chosen].calendar,
            spans={
                span: {name: self._label(name, of[name]) for name in self._sources if name in rest}
                for span, of in by_span.items()
            },
            inventories=inventories,
            named=bool(naming),
        )

    def _take_inventory(self, source: str, spans: Mapping[int, int]) -> IngestInventory:
        """The inventory of a node by the spans that its own are joined with."""
        (found,) = take_inventory(self._pipeline, self._store, sorted(set(spans.values())), source)
        return IngestInventory(
            node=source,
            ready={span: found.ready[own] for span, own in spans.items() if own in found.ready},
            published={span: found.published[own] for span, own in spans.items() if own in found.published},
        )

    def _describe_new(self, source: str, others: Sequence[str], new: Sequence[int], file: str) -> str:
        several = len(new) > 1
        return (
            f"{format_spans(new, self._sources[source].calendar)} of {source} {'were' if several else 'was'} never "
            f"joined with spans of {' and '.join(others)}, and {', '.join(self._joins_of(source))} joins them, so "
            f"nothing says which belong together. Nothing was started. "
            f"{'Run each' if several else 'Run it'} with the spans of all:  {self.command_for(source, new[0], file)}"
        )

    def _commands(self, pairings: Sequence[Pairing], file: str) -> list[str]:
        named = [
            " ".join(f"--span {name}={self._label(name, p.spans[name])}" for name in self._sources if name in p.spans)
            for p in pairings[:_FEW]
        ]
        more = [f"  … and {len(pairings) - _FEW} more like these."] if len(pairings) > _FEW else []
        return [*(f"  spanwise run {file} {spans}" for spans in named), *more]

    def _label(self, source: str, span: int) -> str:
        return self._sources[source].calendar.label(span)
