"""Lineage: which artifact was made from which, over all runs. A walk over the store's links, one query per step.

Resolvers do not appear: an artifact that one chose goes straight from its producer to its reader.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from spanwise.orchestrator.artifact import (
    Anomalies,
    Artifact,
    Blessing,
    Evaluation,
    InfraBlessing,
    Model,
    PushedModel,
    Rejects,
    Report,
    Schema,
    Statistics,
    TransformCache,
    TransformGraph,
)
from spanwise.orchestrator.run import Execution
from spanwise.orchestrator.store import Link, Store


class Direction(StrEnum):
    """Which way to walk."""

    UP = "up"  #: to the artifacts it was made from
    DOWN = "down"  #: to the artifacts made from it


@dataclass(frozen=True, kw_only=True)
class Step:
    """One execution, with the inputs and outputs that the walk reached."""

    execution: Execution  #: without inputs and outputs
    inputs: tuple[int, ...] = ()  #: ids
    outputs: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Lineage:
    """The graph that a walk reached; its edges go from inputs through steps to outputs."""

    start: tuple[int, ...]  #: ids
    direction: Direction
    artifacts: Mapping[int, Artifact]
    steps: tuple[Step, ...]  #: oldest first
    cut: frozenset[int] = field(default_factory=frozenset)  #: artifacts at the depth limit, where there may be more

    def producer(self, artifact: int) -> Step | None:
        """The step that produced an artifact, if the walk reached it."""
        return self._makers.get(artifact)

    def readers(self, artifact: int) -> tuple[Step, ...]:
        """The steps that read an artifact, oldest first."""
        return tuple(self._readers.get(artifact, ()))

    @functools.cached_property
    def _makers(self) -> Mapping[int, Step]:
        return {artifact: step for step in reversed(self.steps) for artifact in step.outputs}

    @functools.cached_property
    def _readers(self) -> Mapping[int, Sequence[Step]]:
        readers: dict[int, list[Step]] = defaultdict(list)
        for step in self.steps:
            for artifact in step.inputs:
                readers[artifact].append(step)
        return readers


Carries: TypeAlias = Callable[[Artifact, Artifact], bool]
"""Whether the second artifact, an output of an execution, depends on the first, an input of it."""


JUDGEMENTS = (Anomalies, Blessing, Evaluation, InfraBlessing, PushedModel, Rejects, Report, Schema)
"""The kinds of artifacts that only describe data or models; so do those that extend them."""

_WITHOUT_ROWS = (*JUDGEMENTS, Model, Statistics, TransformCache, TransformGraph)


def may_hold_rows(what: Artifact | type[Artifact]) -> bool:
    """Whether an artifact, or one of a kind, may hold rows to train on, as any may that a project defines by itself."""
    return not (issubclass(what, _WITHOUT_ROWS) if isinstance(what, type) else what.is_a(*_WITHOUT_ROWS))


def passes_rows(read: Artifact, _made: Artifact) -> bool:
    """Whether an artifact contains something of an artifact that its execution read.

    All but judgements are passed on, also a model, whatever the other one records of itself: an ensemble, an export and
    a student learned what their models did. A base that is not used, as in a backfill, is no input of the execution
    (`Component.unread`).
    """
    return not read.is_a(*JUDGEMENTS)


def walk(
    store: Store,
    start: Iterable[Artifact],
    direction: Direction,
    *,
    depth: int | None = None,
    carries: Carries = lambda _read, _made: True,
) -> Lineage:
    """Walks breadth first from some artifacts: up to all they were made from, or down to all that was made from them.

    `depth` limits how many executions lie between the start and the last artifacts; None is no limit. The walk ignores
    edges for which `carries` is False.
    """
    known = {artifact.id: artifact for artifact in start}
    graph = _Graph(store, direction, carries, known)
    frontier = tuple(known)
    steps = 0
    while frontier and (depth is None or steps < depth):
        frontier = graph.advance(frontier)
        steps += 1
    return graph.lineage(frontier)


class _Graph:
    """The graph walked so far."""

    def __init__(self, store: Store, direction: Direction, carries: Carries, start: Mapping[int, Artifact]) -> None:
        self._store = store
        self._direction = direction
        self._carries = carries
        self._start = tuple(start)
        self._artifacts = dict(start)
        self._inputs: dict[int, dict[int, None]] = defaultdict(dict)  # by execution; dicts as sets that keep an order
        self._outputs: dict[int, dict[int, None]] = defaultdict(dict)
        self._links: dict[int, list[Link]] = {}  # by execution, queried once

    def advance(self, frontier: Collection[int]) -> tuple[int, ...]:
        """Walks one step further; returns the artifacts that it reached for the first time."""
        edges = self._above(frontier) if self._direction is Direction.UP else self._below(frontier)
        up = self._direction is Direction.UP
        far = {edge[0] if up else edge[2] for edge in edges}
        fresh = {a.id: a for a in self._store.artifacts_by_id([i for i in far if i not in self._artifacts])}
        new: dict[int, None] = {}
        for read, execution, made in edges:
            one, other = (fresh.get(i) or self._artifacts.get(i) for i in (read, made))
            if one is not None and other is not None and self._carries(one, other):
                self._inputs[execution][read] = None
                self._outputs[execution][made] = None
                if (reached := read if up else made) in fresh:
                    new[reached] = None
        self._artifacts.update((i, fresh[i]) for i in new)
        return tuple(new)

    def _above(self, frontier: Collection[int]) -> list[tuple[int, int, int]]:
        """The inputs of the executions that produced these artifacts, as (read, execution, made)."""
        makers = find_makers(self._store.links(artifacts=frontier))
        links = self._links_of(makers.values())
        return [
            (link.artifact, maker, made)
            for made, maker in makers.items()
            for link in links[maker]
            if link.read and link.artifact != made
        ]

    def _below(self, frontier: Collection[int]) -> list[tuple[int, int, int]]:
        """The artifacts made from these, as (read, execution, made); for each only the first execution."""
        asked = frozenset(frontier)
        readers = sorted({link.execution for link in self._store.links(artifacts=frontier) if link.read})
        links = self._links_of(readers)
        edges = []
        first: dict[tuple[int, int], int] = {}
        for reader in readers:
            read = {link.artifact for link in links[reader] if link.read}
            made = [link.artifact for link in links[reader] if not link.read and link.artifact not in read]
            edges += [(a, first.setdefault((a, b), reader), b) for a in sorted(read & asked) for b in made]
        return list(dict.fromkeys(edges))

    def _links_of(self, executions: Iterable[int]) -> dict[int, list[Link]]:
        wanted = set(executions)
        unknown = [execution for execution in wanted if execution not in self._links]
        if unknown:
            self._links.update((execution, []) for execution in unknown)
            for link in self._store.links(executions=unknown):
                self._links[link.execution].append(link)
        return {execution: self._links[execution] for execution in wanted}

    def lineage(self, frontier: tuple[int, ...]) -> Lineage:
        """Returns the whole graph; `frontier` is where the walk was cut off."""
        sources: dict[int, int] = {}
        if self._direction is Direction.UP:  # also the producers of artifacts without inputs
            loose = set(self._artifacts) - {made for outputs in self._outputs.values() for made in outputs}
            sources = find_makers(self._store.links(artifacts=loose - set(frontier)))
            for made, maker in sources.items():
                self._outputs[maker][made] = None
        executions = self._store.executions_by_id(self._outputs)
        steps = tuple(
            Step(execution=e, inputs=tuple(self._inputs[e.id]), outputs=tuple(self._outputs[e.id])) for e in executions
        )
        return Lineage(
            start=self._start,
            direction=self._direction,
            artifacts=self._artifacts,
            steps=steps,
            cut=frozenset(frontier),
        )


def find_makers(links: Iterable[Link]) -> dict[int, int]:
    """The execution that produced each artifact, by their ids: the first with it as an output; later ones reused it."""
    makers: dict[int, int] = {}
    for link in links:
        if not link.read:
            makers[link.artifact] = min(link.execution, makers.get(link.artifact, link.execution))
    return makers
