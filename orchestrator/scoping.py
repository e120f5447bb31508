"""Finds what each resolver of a pipeline chooses among, by the gates of the pipeline. Pure; done when it is built.

A resolver reads a channel of its own, or what derives from one span by span, such as the statistics of examples. Gates
that judge what it derives from decide which spans count, whether the resolver stands behind them or, because they
depend on it, before them. What it derives from through the choice of another resolver, such as the day before, has to
count too. Who reads its choice decides whether that may be of this run.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from spanwise.orchestrator.comparison import split_readers
from spanwise.orchestrator.component import Channel, Component, Node, Resolver
from spanwise.orchestrator.errors import PipelineError
from spanwise.orchestrator.gate import Gate, calendar_of, has_spans, ingested_calendar, passed_by
from spanwise.orchestrator.lineage import may_hold_rows
from spanwise.orchestrator.scope import GatedSource, Scope


@dataclass(frozen=True)
class _DerivedFrom:
    """A channel that a resolver's choice derives from."""

    node: str
    key: str
    passed: frozenset[str]  #: gates in between
    reader: str  #: the node that reads it, or the last gate that passed it on


def find_scopes(
    resolver: Resolver, nodes: Mapping[str, Node], order: Sequence[str], ancestors: Callable[[str], frozenset[str]]
) -> Mapping[str, Scope]:
    """What a resolver of a pipeline chooses among, by the keys of its sources.

    Raises:
        PipelineError: it reads spans around a gate that it does not have to precede; the message names the channel to
            read instead.
    """
    found = {}
    for key, source in resolver.sources.items():
        scope = _find_scope(resolver, source, nodes, order, ancestors)
        comparing, using = split_readers(resolver, key, (scope.node, scope.key), nodes, order)
        found[key] = replace(scope, compared_by=comparing, used_by=using, awaited=ancestors(resolver.name))
    return found


def _find_scope(
    resolver: Resolver,
    source: Channel,
    nodes: Mapping[str, Node],
    order: Iterable[str],
    ancestors: Callable[[str], frozenset[str]],
) -> Scope:
    own = _origin_of(source, nodes)
    if not has_spans(source.kind):
        return Scope(*own)
    judges = _judges(nodes, order)
    sources, ungated = [], []
    origins = [*_origins(source, resolver.name, frozenset(), nodes)]
    for origin in origins:
        gates = judges.get((origin.node, origin.key), [])
        around = [gate for gate in gates if gate not in origin.passed]
        for gate in around:
            if not {resolver.name, origin.reader} & ancestors(gate):
                raise PipelineError(_around(resolver, source, origin, nodes[gate], judges, nodes))
        if gates:
            pending = frozenset(gate for gate in around if resolver.name in ancestors(gate))
            sources.append(GatedSource(origin.node, origin.key, tuple(gates), pending, alone=len(judges) == 1))
        elif (origin.node, origin.key) != own:
            ungated.append((origin.node, origin.key))
    above = ancestors(source.node) | {source.node}
    ingests = tuple(name for name in order if name in above and ingested_calendar(nodes[name]) is not None)
    return Scope(
        *own,
        tuple(sources),
        tuple(ungated),
        ingests,
        _find_ingested(source, origins, ingests, nodes),
        tuple(_find_chosen(source, judges, nodes)),
    )


def _find_chosen(
    source: Channel, judges: Mapping[tuple[str, str], Sequence[str]], nodes: Mapping[str, Node]
) -> Iterator[GatedSource]:
    """The judged channels from which a resolver's source is made through the choice of another one."""
    todo, seen = [(source, False)], set()
    while todo:
        channel, chosen = todo.pop()
        place = _origin_of(channel, nodes)
        if (place, chosen) in seen:
            continue
        seen.add((place, chosen))
        if chosen and place in judges:
            yield GatedSource(*place, tuple(judges[place]), alone=len(judges) == 1)
        producer = nodes[place[0]]
        if isinstance(producer, Resolver):
            todo += [(above, True) for above in producer.sources.values()]
        elif isinstance(producer, Component):
            read = itertools.chain(*producer.inputs.values())
            todo += [(above, chosen) for above in read if may_hold_rows(above.kind)]


def _find_ingested(
    source: Channel, origins: Iterable[_DerivedFrom], ingests: Sequence[str], nodes: Mapping[str, Node]
) -> tuple[str, str] | None:
    """The channel of which each span is made into one of a resolver's source, in the run that ingests it.

    None where it is ingested itself or several are joined, where spans are counted otherwise, and of the past, which
    may have none of this run yet.
    """
    first = {origin.node: origin.key for origin in reversed([*origins]) if _is_ingested(nodes[origin.node])}
    if source.producer is None or len(first) != 1 or len(ingests) > 1:
        return None
    ((node, key),) = first.items()
    alike = calendar_of(nodes[node][key]) is calendar_of(source)
    return (node, key) if alike and node != _origin_of(source, nodes)[0] else None


def _is_ingested(node: Node) -> bool:
    """Whether what a node makes is made of no other artifacts, but of a span of the input."""
    return isinstance(node, Component) and not node.inputs and getattr(node, "takes_span", True)


def find_judged(nodes: Mapping[str, Node], order: Iterable[str]) -> tuple[GatedSource, ...]:
    """The channels of a pipeline whose spans gates judge."""
    judges = _judges(nodes, order)
    return tuple(GatedSource(*source, tuple(gates), alone=len(judges) == 1) for source, gates in judges.items())


def _judges(nodes: Mapping[str, Node], order: Iterable[str]) -> dict[tuple[str, str], list[str]]:
    """The gates that judge each channel, parents first."""
    judges: dict[tuple[str, str], list[str]] = {}
    for name in order:
        if isinstance(node := nodes[name], Gate):
            judges.setdefault(_origin_of(node.source, nodes), []).append(name)
    return judges


def _origin_of(channel: Channel, nodes: Mapping[str, Node]) -> tuple[str, str]:
    """The node and key under which the artifacts of a channel were made: gates only pass them on."""
    while (gate := passed_by(channel, nodes[channel.node])) is not None:
        channel = gate.source
    return channel.node, channel.key


def _origins(
    channel: Channel, reader: str, passed: frozenset[str], nodes: Mapping[str, Node]
) -> Iterator[_DerivedFrom]:
    """Every channel that this one is, or derives from span by span, up to the choices of other resolvers."""
    producer = nodes[channel.node]
    if (gate := passed_by(channel, producer)) is not None:
        yield from _origins(gate.source, reader, passed | {gate.name}, nodes)
        return
    yield _DerivedFrom(channel.node, channel.key, passed, reader)
    if isinstance(producer, Component):
        for above in (c for channels in producer.inputs.values() for c in channels):
            if has_spans(above.kind) and not isinstance(above.producer, Resolver):
                yield from _origins(above, producer.name, frozenset(), nodes)


def _around(
    resolver: Resolver,
    source: Channel,
    origin: _DerivedFrom,
    gate: Node,
    judges: Mapping[tuple[str, str], list[str]],
    nodes: Mapping[str, Node],
) -> str:
    assert isinstance(gate, Gate)
    beside = [g for g in judges[origin.node, origin.key] if g != gate.name and g in origin.passed]
    read = nodes[beside[-1]] if beside else None
    behind = (
        f"Let {gate.name} judge what {read.name} passes on, {read.name}[{read.judged!r}], and pass"  # type: ignore[attr-defined]
        if read is not None
        else "Pass"
    )
    channel = f"{gate.name}[{gate.judged!r}]"
    whom = origin.reader if origin.reader == resolver.name else f"{origin.reader}, which {resolver.name} chooses from,"
    past = f" (or past({gate.name!r}, {gate.judged!r}, …))" if source.producer is None else ""
    return (
        f"{resolver.name} reads spans of {origin.node}[{origin.key!r}] around {gate.name}, which judges them, so it "
        f"would read what was refused. {behind} {channel}{past} to {whom} instead."
    )
