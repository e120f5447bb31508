"""Parts: which nodes of a pipeline belong to each part of its schedule, and what a part reads of the one before. Pure.

`ingest` is what runs for each span; `train` is what chooses among spans, and everything after it, as far as no
later part begins there. A resolver that nothing else reads belongs to what it serves.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

from spanwise.orchestrator.artifact import Model
from spanwise.orchestrator.component import Channel, Node, Resolver
from spanwise.orchestrator.errors import ScheduleError, UsageError
from spanwise.orchestrator.gate import passed_by
from spanwise.orchestrator.lineage import JUDGEMENTS
from spanwise.orchestrator.pipeline import Pipeline, Selection, channels_of
from spanwise.orchestrator.span_resolver import chooses_among_spans, is_window
from spanwise.scheduler.schedule.division import HALVES, PartStart
from spanwise.scheduler.schedule.schedule_key import WHOLE


def select_part(pipeline: Pipeline, part: str, division: Sequence[PartStart] = HALVES) -> Selection | None:
    """The nodes of a part; None for all."""
    if part == WHOLE:
        return None
    nodes = _divide(pipeline, division)[part]
    return pipeline.select(first=pipeline.first_of(nodes), last=pipeline.last_of(nodes))


def nodes_behind(pipeline: Pipeline, part: str, division: Sequence[PartStart] = HALVES) -> tuple[str, ...]:
    """The nodes of the part before, where a part reads what that one has made of the spans that it chose.

    Empty where a part begins at resolvers: these choose for themselves.
    """
    if part == WHOLE:
        return ()
    chosen = set(_span_resolvers(pipeline))
    nodes = _divide(pipeline, division)
    if not {n for n in _read_from_outside(pipeline, nodes[part]) if n in chosen or pipeline.ancestors(n) & chosen}:
        return ()
    names = list(nodes)
    return tuple(n for n in pipeline.order if n in nodes[names[names.index(part) - 1]])


def completed_parts(
    pipeline: Pipeline, nodes: Collection[str], division: Sequence[PartStart] = HALVES
) -> frozenset[str]:
    """The parts of which all nodes are among these, those of a complete run.

    A pipeline that has no such parts any more completes them all when all of it runs.
    """
    parts = {WHOLE: set(pipeline.order)}
    try:
        parts |= _divide(pipeline, division)
    except UsageError:
        if set(pipeline.order) <= set(nodes):
            return frozenset({WHOLE, *(part.name for part in division)})
    return frozenset(part for part, its in parts.items() if its <= set(nodes))


def part_nodes(pipeline: Pipeline, part: str, division: Sequence[PartStart] = HALVES) -> tuple[str, ...]:
    """The nodes of a part, or of all, parents first."""
    nodes = set(pipeline.order) if part == WHOLE else _divide(pipeline, division)[part]
    return tuple(node for node in pipeline.order if node in nodes)


def ends_of_part(
    pipeline: Pipeline, part: str, division: Sequence[PartStart] = HALVES
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Between which nodes a run by hand does a part alone: its first, unless all before run too, and its last.

    None for what runs as a whole, nor for a part that reads the newest run of the one before it, whatever has been
    ingested since: a run by hand does not.
    """
    if part == WHOLE or nodes_behind(pipeline, part, division):
        return (), ()
    nodes = part_nodes(pipeline, part, division)
    first, last = pipeline.first_of(nodes), pipeline.last_of(nodes)
    if pipeline.select(last=last).run == nodes:
        return (), last
    return first, () if pipeline.select(first=first).run == nodes else last


def check_parts(pipeline: Pipeline, division: Sequence[PartStart] = HALVES) -> None:
    """Refuses a division in which a part would have no nodes, skip spans, or read what does not belong together.

    Raises:
        ScheduleError: what is wrong with it, or missing.
    """
    try:
        nodes = _divide(pipeline, division)
    except UsageError as error:
        if any(part.at for part in division):
            raise ScheduleError(f"parts= cannot divide {pipeline.name!r}: {error}") from error
        raise ScheduleError(
            f"parts= needs a pipeline in two parts: nodes that ingest, and a node that chooses among their spans, such "
            f"as RollingWindow, with the nodes that learn from them after it. {pipeline.name!r} has no such parts: "
            f"{', '.join(pipeline.order)}. Write cron= for all of it."
        ) from error
    names = list(nodes)
    starts = {part.name: part.at for part in division}
    chosen = set(_span_resolvers(pipeline))
    for before, part in itertools.pairwise(names):
        for first in pipeline.first_of(nodes[part]) if starts[part] else ():  # else it begins at what chooses
            if first not in chosen and not pipeline.ancestors(first) & chosen:
                raise ScheduleError(
                    f"The part {part!r} begins at {first}, which works on the span of its run: spans that {names[0]!r} "
                    f"ingests between two of its ticks would be skipped. Begin it at, or after, a node that chooses "
                    f"among spans: {', '.join(sorted(chosen)) or 'there is none'}."
                )
        astray = [n for n in _read_from_outside(pipeline, nodes[part]) if n not in nodes[before]]
        if astray:
            owner = next(name for name in names if astray[0] in nodes[name])
            raise ScheduleError(
                f"The part {part!r} needs {astray[0]} of {owner!r}, but the part before it is {before!r}: a part reads "
                f"the newest run of the part before it, and what two parts made by clocks of their own need not belong "
                f"together. Begin {part!r} or {before!r} at another node, so that {astray[0]} and its readers are in "
                f"one part, or in neighbors."
            )


def _read_from_outside(pipeline: Pipeline, nodes: Collection[str]) -> list[str]:
    """The nodes that these read from, or come after, and that are not among them.

    A resolver reads what was published, not a run.
    """
    readers = [pipeline.nodes[name] for name in nodes]
    read = {c.node for node in readers if not isinstance(node, Resolver) for c in channels_of(node) if c.producer}
    awaited = {other.name for node in readers for other in node.after}
    return [name for name in pipeline.order if name in read | awaited and name not in nodes]


def _divide(pipeline: Pipeline, division: Sequence[PartStart]) -> dict[str, set[str]]:
    """The nodes of each part: a node belongs to the last part of which it is, or follows, a first node.

    Raises:
        UsageError: a part begins nowhere, at an unknown node, before what ingests, or has no node left.
    """
    of = dict.fromkeys(pipeline.order, division[0].name)
    for part in division[1:]:
        of |= dict.fromkeys(train_nodes(pipeline, part.at), part.name)
    nodes = {part.name: {node for node, name in of.items() if name == part.name} for part in division}
    for name, its in nodes.items():
        if not its:
            raise UsageError(f"the part {name!r} has no node: a later part begins at or before its first one.")
    return nodes


def _span_resolvers(pipeline: Pipeline) -> list[str]:
    return [node.name for node in pipeline if is_window(node)]


def second_part(pipeline: Pipeline) -> tuple[str, ...]:
    """The nodes of the second part, parents first; none where the pipeline has no such part."""
    try:
        return train_nodes(pipeline)
    except UsageError:
        return ()


def train_nodes(pipeline: Pipeline, at: Sequence[str] = ()) -> tuple[str, ...]:
    """The nodes of the second part, parents first: the windows, all that depends on them, and what serves that alone.

    RFC, Partial pipeline execution: the first portion is scheduled for each span, the second, "a Resolver plus
    components like Transform, Trainer, Evaluator and Pusher", runs once. `at` names its first nodes instead. A
    resolver that is no window, such as a fixed range or the latest model, belongs to the part that it serves: in the
    first one, it would choose before all spans are there.

    Raises:
        UsageError: there is no such part, an unknown node, or a node that ingests lies behind the split.
    """
    first = list(at) or _span_resolvers(pipeline)
    if not first:
        raise UsageError(
            f"Pipeline {pipeline.name!r} has no node that chooses by span, such as RollingWindow, so it has no second "
            f"part to run once. Name its first node:  --split-at NODE  ({', '.join(pipeline.order)})"
        )
    second = pipeline.select(first=first).run if at else _with_serving(pipeline, pipeline.select(first=first).run)
    ingests = [n for n in second if hasattr(pipeline.nodes[n], "available")]
    if ingests or len(second) == len(pipeline.order):
        raise UsageError(
            f"A split at {', '.join(first)} leaves {', '.join(ingests) or 'nothing'} "
            f"{'behind it' if ingests else 'before it'}; the nodes that ingest run once for each span."
        )
    return second


def _with_serving(pipeline: Pipeline, part: Collection[str]) -> tuple[str, ...]:
    """A part with the resolvers that only its nodes read."""
    serving = {
        node.name
        for node in pipeline
        if isinstance(node, Resolver) and (readers := pipeline.children(node.name)) and set(readers) <= set(part)
    }
    return tuple(name for name in pipeline.order if name in serving or name in part)


def find_learned_choices(pipeline: Pipeline, second: Collection[str]) -> tuple[str, ...]:
    """The resolvers that choose among spans what gets into a second part, or a model: those in it, and before it.

    As in lineage, what describes data carries nothing on: a baseline of drift stops at the gate, or at the schema.
    """
    choosing = (node for node in pipeline if chooses_among_spans(node))
    return tuple(node.name for node in choosing if node.name in second or _is_learned(pipeline, node, second))


def _is_learned(pipeline: Pipeline, resolver: Node, second: Collection[str]) -> bool:
    carried = {_place(channel) for channel in resolver.outputs.values()}
    for node in pipeline:  # parents first
        if not any(_place(channel) in carried for channel in channels_of(node)):
            continue
        made = list(node.outputs.values())
        if node.name in second or any(issubclass(channel.kind, Model) for channel in made):
            return True
        for channel in made:
            gate = passed_by(channel, node)
            passes = not issubclass(channel.kind, JUDGEMENTS) if gate is None else _place(gate.source) in carried
            carried |= {_place(channel)} if passes else set()
    return False


def _place(channel: Channel) -> tuple[str, str]:
    return channel.node, channel.key
