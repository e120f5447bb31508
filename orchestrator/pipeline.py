"""Pipelines: immutable, acyclic sets of nodes under one name, and the selection of a part for a run."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from spanwise.orchestrator.component import NAME, Channel, Node, Resolver
from spanwise.orchestrator.errors import PipelineError, UsageError
from spanwise.orchestrator.scope import GatedSource, Scope
from spanwise.orchestrator.scoping import find_judged, find_scopes

TAKEN = ("alerts", "snapshots")
"""Folders that a root keeps beside those of its pipelines; so are `metadata.db` and what SQLite puts beside it."""


@dataclass(frozen=True)
class Selection:
    """The nodes that a run executes, and what happens to the others; each tuple has parents first."""

    run: tuple[str, ...]  #: these run
    required: tuple[str, ...] = ()  #: their ancestors: the base run supplies their outputs
    optional: tuple[str, ...] = ()  #: the rest that is not downstream: carried over if the base run has them
    dropped: tuple[str, ...] = ()  #: downstream, but not selected: the base run's outputs would be out of date


class Pipeline:
    """Nodes under one name. Daily, backfill and partial runs share it, so that they share their history.

    `nodes` may come in any order; `order` has parents first and otherwise keeps that order. Raises
    PipelineError if two nodes share a name, a node reads from one that is not listed, there is a cycle, a resolver
    reads spans around a gate that judges them, or does not fit in otherwise.
    `preload` names modules that several nodes import, such as "sklearn.linear_model": a run imports them once.
    """

    def __init__(self, name: str, nodes: Iterable[Node], *, preload: Iterable[str] = ()) -> None:
        if not NAME.fullmatch(name):
            raise PipelineError(
                f"{name!r} cannot name a pipeline: use a letter, then letters, digits, '_', '.' or '-'; at most 64."
            )
        if name in TAKEN or name.startswith("metadata.db"):
            raise PipelineError(f"{name!r} cannot name a pipeline: the root keeps a file or folder of that name.")
        self.name = name
        self.preload = tuple(preload)
        listed = list(nodes)
        for node in listed:
            if not isinstance(node, Node):
                raise PipelineError(f"Pipeline {name!r} takes nodes; {node!r} is not a node.")
        self.nodes: Mapping[str, Node] = {node.name: node for node in listed}
        if len(self.nodes) < len(listed):
            twice = next(n.name for i, n in enumerate(listed) if n.name in {m.name for m in listed[:i]})
            raise PipelineError(
                f"Pipeline {name!r} has two nodes named {twice!r}; rename one: {twice}(…, name='{twice}2')."
            )
        for node in listed:
            for channel in channels_of(node):
                self._refuse_loose(node, channel)
            for other in node.after:
                if self.nodes.get(other.name) is not other:
                    raise PipelineError(
                        f"{node.name} comes after {other.name}, which is not in pipeline {name!r}; add it."
                    )
        self._parents = {n.name: _parents(n) for n in listed}
        self.order: tuple[str, ...] = _sorted(name, self._parents)
        resolvers = [node for node in listed if isinstance(node, Resolver)]
        #: what each resolver chooses among, by the keys of its sources
        self.scopes: Mapping[str, Mapping[str, Scope]] = {node.name: self._find_scopes(node) for node in resolvers}
        self.judged: tuple[GatedSource, ...] = find_judged(self.nodes, self.order)  #: the channels that gates judge

    def __iter__(self) -> Iterator[Node]:
        return (self.nodes[name] for name in self.order)

    def __repr__(self) -> str:
        return f"Pipeline({self.name!r}, {len(self.nodes)} nodes)"

    def parents(self, node: str) -> tuple[str, ...]:
        """The nodes it waits for."""
        return self._parents[node]

    def children(self, node: str) -> tuple[str, ...]:
        """The nodes that wait for it."""
        return tuple(n for n in self.order if node in self._parents[n])

    def ancestors(self, *nodes: str) -> frozenset[str]:
        """All nodes that these depend on."""
        return _reached(nodes, self.parents)

    def descendants(self, *nodes: str) -> frozenset[str]:
        """All nodes that depend on these."""
        return _reached(nodes, self.children)

    def first_of(self, nodes: Iterable[str]) -> tuple[str, ...]:
        """The nodes among these that depend on none of the others."""
        chosen = set(nodes)
        return tuple(n for n in self.order if n in chosen and not self.ancestors(n) & chosen)

    def last_of(self, nodes: Iterable[str]) -> tuple[str, ...]:
        """The nodes among these that no other depends on."""
        chosen = set(nodes)
        return tuple(n for n in self.order if n in chosen and not self.descendants(n) & chosen)

    def select(self, *, first: Sequence[str] = (), last: Sequence[str] = (), skip: Sequence[str] = ()) -> Selection:
        """Selects the nodes that are downstream of `first` and upstream of `last`; empty means all.

        `skip` leaves out nodes that depend on nothing that runs; on others it has no effect, since their inputs
        will have changed (TFX's partial runs have the same rule).

        Raises:
            UsageError: a name is unknown, or no node lies between the two.
        """
        self._refuse_unknown((*first, *last, *skip))
        down = set(first) | self.descendants(*first) if first else set(self.order)
        up = set(last) | self.ancestors(*last) if last else set(self.order)
        run: set[str] = set()
        for node in self.order:
            if node in down & up and (node not in skip or run & self.ancestors(node)):
                run.add(node)
        if not run:
            between = f"from {', '.join(first)} to {', '.join(last)}" if first and last else "the rest"
            raise UsageError(
                f"No node of {self.name!r} would run: {between} is empty. The order is: {' -> '.join(self.order)}."
            )
        above = self.ancestors(*run) - run
        below = self.descendants(*run) - run
        return Selection(
            run=self._ordered(run),
            required=self._ordered(above),
            optional=self._ordered(set(self.order) - run - above - below),
            dropped=self._ordered(below),
        )

    def _find_scopes(self, resolver: Resolver) -> Mapping[str, Scope]:
        scopes = find_scopes(resolver, self.nodes, self.order, self.ancestors)
        resolver.check_wiring(self.nodes, scopes)
        return scopes

    def _refuse_loose(self, node: Node, channel: Channel) -> None:
        producer = self.nodes.get(channel.node)
        if producer is None or (channel.producer is not None and producer is not channel.producer):
            raise PipelineError(
                f"{node.name} reads {channel!r}, but that {channel.node} is not in pipeline {self.name!r}; "
                f"add it to the list."
            )
        if not issubclass(producer[channel.key].kind, channel.kind):
            wanted, found = channel.kind.kind, producer[channel.key].kind.kind
            raise PipelineError(f"{node.name} expects {wanted} from {channel!r}, which is a channel of {found}.")

    def _ordered(self, names: Iterable[str]) -> tuple[str, ...]:
        chosen = set(names)
        return tuple(n for n in self.order if n in chosen)

    def _refuse_unknown(self, names: Iterable[str]) -> None:
        unknown = [n for n in names if n not in self.nodes]
        if unknown:
            near = difflib.get_close_matches(unknown[0], self.order, n=1, cutoff=0.5)
            meant = f" Did you mean {near[0]}?" if near else ""
            raise UsageError(
                f"Pipeline {self.name!r} has no node {unknown[0]!r}.{meant} Its nodes: {', '.join(self.order)}."
            )


def channels_of(node: Node) -> Iterator[Channel]:
    """Every channel that a node reads."""
    for channels in node.inputs.values():
        yield from channels


def _parents(node: Node) -> tuple[str, ...]:
    producers = (c.node for c in channels_of(node) if c.producer is not None)
    return tuple(dict.fromkeys([*producers, *(other.name for other in node.after)]))


def _reached(start: Sequence[str], step: Callable[[str], Iterable[str]]) -> frozenset[str]:
    reached: set[str] = set()
    todo = list(start)
    while todo:
        for name in step(todo.pop()):
            if name not in reached:
                reached.add(name)
                todo.append(name)
    return frozenset(reached)


def _sorted(name: str, parents: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    done: dict[str, None] = {}
    while len(done) < len(parents):
        ready = [n for n, above in parents.items() if n not in done and all(p in done for p in above)]
        if not ready:
            waiting = [n for n in parents if n not in done]
            raise PipelineError(f"Pipeline {name!r} has a cycle: {', '.join(waiting)} wait for each other.")
        done[ready[0]] = None
    return tuple(done)
