"""Comparisons: which readers of a resolver's choice compare it with what the run itself makes. Pure; by the wiring.

What is compared with what the run makes is never that (law 8); what is only used may be. A reader compares the two if
it reads both, or if what is made of its choice meets the counterpart: the evaluations of both, the predictions of both,
or the model of one and the predictions of the other.
What resolvers choose is of earlier runs, so nothing leads through them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

from spanwise.orchestrator.artifact import Artifact, Model
from spanwise.orchestrator.component import Channel, Component, Node, Resolver


def split_readers(
    resolver: Resolver, key: str, source: tuple[str, str], nodes: Mapping[str, Node], order: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The nodes that read a choice: those that compare it with what the run makes, and those that do not.

    `source` is the node and key under which what it chooses from is made. A node that makes it, as one that goes on
    from an earlier model does, compares.
    """
    components = [node for name in order if isinstance(node := nodes[name], Component)]
    candidates = {source, *_models_above(nodes[source[0]])}
    made = _reach(components, lambda channel: (channel.node, channel.key) in candidates)

    def is_candidate(channel: Channel) -> bool:
        return (channel.node, channel.key) in candidates or channel.node in made

    def compares(reader: str) -> bool:
        fed = {reader} | _reach(components, lambda channel: channel.node == reader)
        return reader in made or source[0] in fed or any(_meet(node, fed, is_candidate) for node in components)

    readers = [n.name for n in components if any((c.node, c.key) == (resolver.name, key) for c in _read(n))]
    comparing = tuple(name for name in readers if compares(name))
    return comparing, tuple(name for name in readers if name not in comparing)


def _meet(node: Node, fed: set[str], is_candidate: Callable[[Channel], bool]) -> bool:
    """Whether a node reads something from both sides that can be compared."""
    choice = [c.kind for c in _read(node) if c.node in fed and not is_candidate(c)]
    candidate = [c.kind for c in _read(node) if is_candidate(c) and c.node not in fed]
    return any(_is_comparable(one, other) for one in choice for other in candidate)


def _is_comparable(one: type[Artifact], other: type[Artifact]) -> bool:
    """A model with anything, since it can be applied; else things of one kind, or of kinds that extend each other."""
    if issubclass(one, Model) or issubclass(other, Model) or one.kind == other.kind:
        return True
    return Artifact not in (one, other) and (issubclass(one, other) or issubclass(other, one))


def _reach(components: Sequence[Component], begins: Callable[[Channel], bool]) -> set[str]:
    """The components that read a channel with which a flow begins, or what is made of it."""
    reached: set[str] = set()
    for node in components:
        if any(begins(channel) or channel.node in reached for channel in _read(node)):
            reached.add(node.name)
    return reached


def _models_above(node: Node) -> Iterator[tuple[str, str]]:
    """The models of the run that a node makes its own from, as an export is made from what was trained."""
    for channel in _read(node):
        if issubclass(channel.kind, Model) and isinstance(channel.producer, Component):
            yield channel.node, channel.key
            yield from _models_above(channel.producer)


def _read(node: Node) -> Iterator[Channel]:
    return itertools.chain(*node.inputs.values())
