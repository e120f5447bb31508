"""Lineage: which artifact was made of which, over all runs. A walk over the store's links, a question a step.

A resolver's choice makes nothing: what is chosen goes straight from who made it to who reads it.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from spanwise.orchestrator.artifact import Artifact
from spanwise.orchestrator.run import Execution
from spanwise.orchestrator.store import Link, Store


class Direction(StrEnum):
    """Which way to walk."""

    UP = "up"  #: to what it was made of
    DOWN = "down"  #: to what was made of it


@dataclass(frozen=True, kw_only=True)
class Step:
    """One execution, with those of its inputs and outputs that the walk came by."""

    execution: Execution  #: without inputs and outputs
    inputs: tuple[int, ...] = ()  #: ids
    outputs: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Lineage:
    """What a walk came by: a graph whose edges go from inputs through steps to outputs."""

    start: tuple[int, ...]  #: ids
    direction: Direction
    artifacts: Mapping[int, Artifact]
    steps: tuple[Step, ...]  #: oldest first
    cut: frozenset[int] = field(default_factory=frozenset)  #: at the depth that was asked for: there may be more

    def producer(self, artifact: int) -> Step | None:
        """The step that an artifact comes out of: the one that made it, if the walk came by that."""
        return self._makers.get(artifact)

    def readers(self, artifact: int) -> tuple[Step, ...]:
        """The steps that an artifact goes into, oldest first."""
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
"""Whether the second, which an execution made, has to do with the first, which it read."""


def walk(
    store: Store,
    start: Iterable[Artifact],
    direction: Direction,
    *,
    depth: int | None = None,
    carries: Carries = lambda _read, _made: True,
) -> Lineage:
    """Walks from some artifacts, breadth first: up to all they were made of, or down to all that was made of them.

    `depth` is how many executions lie between the start and the last artifacts; None is as far as it goes. An edge
    that does not carry is not walked.
    """
    known = {artifact.id: artifact for artifact in start}
    graph = _Graph(store, direction, carries, known)
    frontier = tuple(known)
    went = 0
    while frontier and (depth is None or went < depth):
        frontier = graph.advance(frontier)
        went += 1
    return graph.lineage(frontier)


class _Graph:
    """What has been walked so far."""

    def __init__(self, store: Store, direction: Direction, carries: Carries, start: Mapping[int, Artifact]) -> None:
        self._store = store
        self._direction = direction
        self._carries = carries
        self._start = tuple(start)
        self._artifacts = dict(start)
        self._inputs: dict[int, dict[int, None]] = defaultdict(dict)  # by execution; dicts as sets that keep an order
        self._outputs: dict[int, dict[int, None]] = defaultdict(dict)
        self._links: dict[int, list[Link]] = {}  # of executions, asked for once

    def advance(self, frontier: Collection[int]) -> tuple[int, ...]:
        """One step further: the artifacts that were not met before."""
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
        """What the makers of these artifacts read, as (read, execution, made)."""
        makers = _makers(self._store.links(artifacts=frontier))
        links = self._of(makers.values())
        return [
            (link.artifact, maker, made)
            for made, maker in makers.items()
            for link in links[maker]
            if link.read and link.artifact != made
        ]

    def _below(self, frontier: Collection[int]) -> list[tuple[int, int, int]]:
        """What was made of these artifacts, as (read, execution, made); of one thing only the first that gave it."""
        asked = frozenset(frontier)
        readers = sorted({link.execution for link in self._store.links(artifacts=frontier) if link.read})
        links = self._of(readers)
        edges = []
        first: dict[tuple[int, int], int] = {}
        for reader in readers:
            read = {link.artifact for link in links[reader] if link.read}
            made = [link.artifact for link in links[reader] if not link.read and link.artifact not in read]
            edges += [(a, first.setdefault((a, b), reader), b) for a in sorted(read & asked) for b in made]
        return list(dict.fromkeys(edges))

    def _of(self, executions: Iterable[int]) -> dict[int, list[Link]]:
        wanted = set(executions)
        lacking = [execution for execution in wanted if execution not in self._links]
        if lacking:
            self._links.update((execution, []) for execution in lacking)
            for link in self._store.links(executions=lacking):
                self._links[link.execution].append(link)
        return {execution: self._links[execution] for execution in wanted}

    def lineage(self, frontier: tuple[int, ...]) -> Lineage:
        """All of it; `frontier` is where the walk was cut off."""
        sources: dict[int, int] = {}
        if self._direction is Direction.UP:  # also who made what was made of nothing
            loose = set(self._artifacts) - {made for outputs in self._outputs.values() for made in outputs}
            sources = _makers(self._store.links(artifacts=loose - set(frontier)))
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


def _makers(links: Iterable[Link]) -> dict[int, int]:
    """The execution that made each artifact: the first that had it as an output; the later ones gave it on."""
    makers: dict[int, int] = {}
    for link in links:
        if not link.read:
            makers[link.artifact] = min(link.execution, makers.get(link.artifact, link.execution))
    return makers
