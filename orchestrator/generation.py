"""Generations: whether what an earlier run supplies is what its nodes would be read for now. Reads only.

What an earlier run supplies belongs to one generation as long as nothing newer exists upstream of it: no later run has
published other outputs of the same nodes, no resolver among them would choose otherwise now, none of them that others
come after has failed on the same since, and the pipeline defines the components among them as it did then.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from spanwise.orchestrator import fingerprint
from spanwise.orchestrator.artifact import Artifact
from spanwise.orchestrator.component import Channel, Component, Node, Resolver
from spanwise.orchestrator.continuation import attempted_nodes
from spanwise.orchestrator.driver import (
    Artifacts,
    check_given,
    choose,
    find_edits,
    find_unreadable,
    format_choice,
    histories_of,
)
from spanwise.orchestrator.errors import ResolutionError
from spanwise.orchestrator.history import History
from spanwise.orchestrator.parameter_record import encode_parameter, is_same_parameter
from spanwise.orchestrator.pipeline import Pipeline
from spanwise.orchestrator.run import Execution, Run, State
from spanwise.orchestrator.span_resolver import SpanResolver
from spanwise.orchestrator.store import Store

LOOK_BACK = 100
"""How many runs are searched, newest first."""


@dataclass(frozen=True, kw_only=True)
class OutdatedNode:
    """A node whose outputs in an earlier run are not those that would be read now."""

    node: str
    why: str  #: what is newer
    again: bool = False  #: it has to run again itself, not only what follows it


def outdated_by(newest: Execution) -> OutdatedNode:
    """The node of an execution of which an earlier run has other outputs."""
    names = ", ".join(a.name for a in itertools.chain(*newest.outputs.values())) or "nothing"
    return OutdatedNode(node=newest.node, why=f"{newest.node} gave {names} in run {newest.run}, which is newer")


def has_same_content(outputs: Artifacts, others: Artifacts) -> bool:
    """Whether the outputs of two executions are the same, whoever made them."""
    return _identities(outputs) == _identities(others)


def find_supplied(store: Store, execution: Execution) -> Execution:
    """The execution whose outputs a base run has supplied, over any number of runs; without a base run, this one."""
    while execution.supplied and execution.reused is not None:
        execution = store.execution(execution.reused)
    return execution


class NewestOutputs:
    """What recent runs published last for each node. A run gives the outputs of its own nodes, not of its base run's.

    What a replay has made does not count, nor, for a replay, what came after its time. For a run that names a span,
    only runs of that span count.
    """

    def __init__(self, store: Store, pipeline: Pipeline, run: Run) -> None:
        self._store = store
        self._pipeline = pipeline
        self._run = run
        self._given: dict[str, list[Execution]] = defaultdict(list)  # newest first, of the runs read so far
        self._failed: dict[str, list[Execution]] = defaultdict(list)  # likewise
        self._runs = self._recent()

    def find_outdated(self, part: Iterable[str], base: Run, supplied: Mapping[str, Execution]) -> list[OutdatedNode]:
        """The nodes of a base run, upstream of a part, for which something newer exists; parents first.

        `supplied` has the last execution of every node of the base run. What a resolver of the part would choose is not
        considered, since it chooses anew.
        """
        found: dict[str, OutdatedNode] = {}
        part = set(part)
        seen = set(part)
        todo = list(part)
        while todo:
            reader = self._pipeline.nodes[todo.pop()]
            for name in self._parents(reader, self._run if reader.name in part else base):
                if name in seen or name not in supplied:
                    continue
                seen.add(name)
                outdated = self._check(name, base, supplied)
                if outdated is not None:
                    found[name] = outdated
                else:
                    todo.append(name)
            for check in (other.name for other in reader.after if other.name in supplied and other.name not in part):
                if check not in found and (failed := self._find_failed(check, supplied[check])) is not None:
                    found[check] = failed
        return [found[name] for name in self._pipeline.order if name in found]

    def _parents(self, node: Node, run: Run) -> list[str]:
        """The nodes that a node of a run takes something from, or comes after; a resolver chooses from any run."""
        read = () if isinstance(node, Resolver) else _channels_read(node, run)
        return [*(c.node for c in read if c.producer is not None), *(other.name for other in node.after)]

    def _find_failed(self, name: str, supplied: Execution) -> OutdatedNode | None:
        """A check that passed, and has failed since on the same."""
        newest = self._newest(name, None)
        failed = next(iter(self._failed[name]), None)
        if failed is None or (newest is not None and newest.run >= failed.run):
            return None
        if _identities(failed.inputs) != _identities(supplied.inputs):
            return None
        return OutdatedNode(node=name, why=f"{name} failed in run {failed.run}, which is newer", again=True)

    def _check(self, name: str, base: Run, supplied: Mapping[str, Execution]) -> OutdatedNode | None:
        node = self._pipeline.nodes[name]
        if isinstance(node, Resolver):
            return self._check_choice(node, base, supplied)
        assert isinstance(node, Component)
        if edits := self._find_edits(node, supplied):
            why = f"{name} is defined otherwise now than in run {supplied[name].run} ({', '.join(edits)})"
            return OutdatedNode(node=name, why=why, again=True)
        newest = self._newest(name, _lowest_span(supplied[name]))
        if newest is None or self._is_same(newest.outputs, supplied[name].outputs):
            return None
        return outdated_by(newest)

    def _find_edits(self, node: Component, supplied: Mapping[str, Execution]) -> list[str]:
        """What was edited since a node was executed: its code, its parameters, what it reads and what it comes after.

        A parameter that had the value of an argument that was typed for that run, and is not for this one, was not
        edited if it has the value of that argument now.
        """
        made = find_supplied(self._store, supplied[node.name])
        run = self._store.run(made.pipeline, made.run)
        typed = (_typed(run) - _typed(self._run)) & run.parameters.keys() & self._run.parameters.keys()
        values = [tuple(encode_parameter(of.parameters[name]) for of in (run, self._run)) for name in typed]
        asked = {
            f"parameter {name}"
            for name, text in made.parameters.items()
            if name in node.definition
            and any(
                is_same_parameter(text, then) and encode_parameter(node.definition[name]) == now for then, now in values
            )
        }
        unread = node.unread(run)
        others = [
            f"input {key}"
            for key, channels in node.inputs.items()
            if key not in unread
            and all(c.producer is not None for c in channels)
            and self._is_connected_otherwise(channels, run, made.inputs.get(key, ()), supplied)
        ]
        awaited = [other.name for other in node.after if other.name not in supplied]
        if awaited:  # else they succeeded before it
            succeeded = {e.node for e in self._store.executions(run) if e.state.succeeded}
            others += [f"after {name}" for name in awaited if name not in succeeded]
        return [*(edit for edit in find_edits(node, made) if edit not in asked), *others]

    def _is_connected_otherwise(
        self, channels: Sequence[Channel], run: Run, read: Sequence[Artifact], supplied: Mapping[str, Execution]
    ) -> bool:
        """Whether an input of a node of this run, which read these artifacts, would read others from its channels."""
        absent = {c.node for c in channels if c.node not in supplied}
        if absent:  # it is new, or what it made was collected since
            return not absent <= {execution.node for execution in self._store.executions(run)}
        now = [a for c in channels for a in supplied[c.node].outputs.get(c.key, ())]
        return _identities({"": now}) != _identities({"": read})

    def _check_choice(self, node: Resolver, base: Run, supplied: Mapping[str, Execution]) -> OutdatedNode | None:
        then = supplied[node.name].outputs
        mine = {
            key: supplied[source.node].outputs.get(source.key, ())
            for key, source in node.sources.items()
            if source.node in supplied
        }
        made = find_supplied(self._store, supplied[node.name])
        chosen_in = self._store.run(made.pipeline, made.run)
        run = replace(
            base,
            number=made.run,  # it has not seen what that pushed after it
            as_of=self._run.as_of,
            replay=self._run.replay,
            source=self._run.source or base.source,
            exclude=self._run.exclude,  # what a run leaves out by name, the next one reads
        )
        attempted = attempted_nodes(self._store, chosen_in)
        histories = histories_of(self._store, run, node, mine, self._pipeline.scopes[node.name], attempted)
        try:
            now = choose(node, histories)
        except ResolutionError as error:
            return OutdatedNode(node=node.name, why=f"{node.name} would fail now: {error}", again=True)
        if self._is_same(now, then):
            return self._check_given(node, histories[node.source.key])
        earlier, chosen = (tuple(itertools.chain(*found.values())) for found in (then, now))
        before, after = format_choice(earlier, base), format_choice(chosen, base)
        if before == after:  # the same spans and versions, other artifacts
            before, after = (", ".join(a.name for a in found) for found in (earlier, chosen))
        why = f"{node.name} chose {before} in run {base.number}, and would choose {after} now"
        return OutdatedNode(node=node.name, why=why, again=True)

    def _is_same(self, now: Artifacts, then: Artifacts) -> bool:
        """Whether it has the same content, and what was there then can be read, or is what is there now."""
        if not has_same_content(now, then):
            return False
        again = {a.id for a in itertools.chain(*now.values())} != {a.id for a in itertools.chain(*then.values())}
        return not (again and any(True for _ in find_unreadable(self._store, then)))

    def _check_given(self, node: Resolver, history: History) -> OutdatedNode | None:
        """A window that would choose the same fails all the same if a lower version was given since."""
        if not isinstance(node, SpanResolver):
            return None
        try:
            check_given(node, node, replace(history, mine=()))  # what the base run gave may have been refused since
        except ResolutionError as error:
            return OutdatedNode(node=node.name, why=f"{node.name} would fail now: {error}", again=True)
        return None

    def _newest(self, name: str, span: int | None) -> Execution | None:
        """The last execution of a node; of one that publishes spans, the last for this span or a higher one.

        An old span that was ingested again is nothing newer for a later one.
        """
        for place in itertools.count():
            while place >= len(self._given[name]):
                run = next(self._runs, None)
                if run is None:
                    return None
                executions = self._store.executions(run)
                if self._run.span not in (None, span_of(run, executions)):
                    continue
                for execution in reversed(executions):
                    if execution.node in run.nodes and self._counts(execution):
                        if execution.state.succeeded:
                            self._given[execution.node].append(execution)
                        elif execution.state is State.FAILED:
                            self._failed[execution.node].append(execution)
            found = self._given[name][place]
            lowest = _lowest_span(found)
            if span is None or lowest is None or lowest >= span:
                return found
        raise AssertionError("counting has no end")

    def _counts(self, execution: Execution) -> bool:
        as_of = self._run.as_of
        return as_of is None or (execution.ended is not None and execution.ended <= as_of)

    def _recent(self) -> Iterator[Run]:
        recent = itertools.islice(self._store.runs(self._pipeline.name), LOOK_BACK)
        return (run for run in recent if not run.replay)


def _channels_read(node: Node, run: Run) -> Iterator[Channel]:
    unread = node.unread(run) if isinstance(node, Component) else ()
    return (channel for name, channels in node.inputs.items() if name not in unread for channel in channels)


def span_of(run: Run, executions: Iterable[Execution]) -> int | None:
    """The span of a run: the one asked for, or the highest that its nodes published, which is the newest available."""
    if run.span is not None:
        return run.span
    published = (a for e in executions if not e.chosen for a in itertools.chain(*e.outputs.values()))
    return max((s for a in published if isinstance(s := a.properties.get("span"), int)), default=None)


def _typed(run: Run) -> set[str]:
    """The names of the arguments that were typed for a run."""
    return {text.partition("=")[0] for text in run.typed}


def _lowest_span(execution: Execution) -> int | None:
    found = (a.properties.get("span") for a in itertools.chain(*execution.outputs.values()))
    return min((span for span in found if isinstance(span, int)), default=None)


def _identities(outputs: Mapping[str, Sequence[Artifact]]) -> dict[str, list[str]]:
    return {key: [fingerprint.of_artifact(a) for a in found] for key, found in outputs.items() if found}
