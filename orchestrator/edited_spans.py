"""Edited spans: which spans of a window were made by a node that is defined otherwise now. Reads only.

A window goes back further than an edit, so after one it holds spans of both definitions until the last span from before
has left it, or was made anew.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from spanwise.orchestrator.artifact import Artifact
from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.component import Component
from spanwise.orchestrator.driver import Definition, format_choice
from spanwise.orchestrator.gate import ingested_calendar
from spanwise.orchestrator.history import span_of
from spanwise.orchestrator.integrity import recreate_command
from spanwise.orchestrator.making import name_spans
from spanwise.orchestrator.pipeline import Pipeline
from spanwise.orchestrator.run import Execution, Run, quote_pipeline
from spanwise.orchestrator.span_resolver import is_window
from spanwise.orchestrator.store import Store
from spanwise.orchestrator.user_code import Owner, owner_of_module
from spanwise.orchestrator.verdict import judges_of

_MOST_COMMANDS = 5  # in a message


@dataclass(frozen=True, kw_only=True)
class EditedSpans:
    """What one node made before it was edited."""

    node: str
    artifacts: Sequence[Artifact]
    edits: Sequence[str]  #: `code`, `parameter scale`, …
    commands: Sequence[str]  #: that make them anew

    @property
    def why(self) -> str:
        """When they were made."""
        return f"made before {self.node} was edited ({', '.join(self.edits)})"

    @property
    def way(self) -> str:
        """What to type to make them anew."""
        count = len(self.commands)
        more = [f"… and {count - _MOST_COMMANDS} more like these."] if count > _MOST_COMMANDS else []
        return "Make them anew:  " + "\n  ".join([*self.commands[:_MOST_COMMANDS], *more])

    def describe(self, run: Run) -> str:
        """The spans, why they count as edited, and what to type."""
        return f"{format_choice(self.artifacts, run)}, {self.why}. {self.way}"


def find_edited_spans(store: Store, run: Run, pipeline: Pipeline, chosen: Sequence[Artifact]) -> list[EditedSpans]:
    """Those of what a run chose that were made, or reused last, before an edit of the node that made them.

    What a node that is not in the pipeline has made is not asked, nor what nodes upstream of that node have made. An
    upgrade of spanwise is no edit.
    """
    makers = {a.id: pipeline.nodes.get(a.name.split("/")[1]) for a in chosen if "span" in a.properties}
    definitions = {n.name: Definition(n) for n in makers.values() if isinstance(n, Component)}
    made = _find_makers(store, [a for a in chosen if getattr(makers.get(a.id), "name", "") in definitions])
    edits = {id_: _edits_since(definitions[execution.node], execution) for id_, execution in made.items()}
    found = []
    for name in definitions:
        edited = [a for a in chosen if edits.get(a.id) and made[a.id].node == name]
        if edited:
            what = sorted({edit for a in edited for edit in edits[a.id]})
            commands = list(_commands(store, run, pipeline, name, edited))
            found.append(EditedSpans(node=name, artifacts=edited, edits=what, commands=commands))
    return found


def _edits_since(definition: Definition, made: Execution) -> list[str]:
    """After an upgrade of spanwise, which edits nothing, all that its components are made with has other digests."""
    edits = definition.edits_since(made)
    is_upgraded = "code" in edits and owner_of_module(type(definition.node).__module__) is Owner.SPANWISE
    return definition.recorded_edits_since(made) if is_upgraded else edits


def _find_makers(store: Store, artifacts: Sequence[Artifact]) -> Mapping[int, Execution]:
    """The execution that made each artifact or reused it last, by the id of the artifact."""
    nodes = {a.id: a.name.split("/")[1] for a in artifacts}
    links = store.links(artifacts=nodes.keys(), read=False) if nodes else []
    executions = {e.id: e for e in store.executions_by_id({link.execution for link in links})}
    made: dict[int, Execution] = {}
    for link in sorted(links, key=lambda link: link.execution):
        execution = executions.get(link.execution)
        if execution is None or execution.supplied or execution.replay or not execution.state.succeeded:
            continue
        if execution.node == nodes.get(link.artifact):
            made[link.artifact] = execution
    return made


def _commands(store: Store, run: Run, pipeline: Pipeline, node: str, edited: Sequence[Artifact]) -> Iterator[str]:
    """A backfill of each range; where not exactly one node ingests, a run of each span up to the node that made it."""
    above = pipeline.ancestors(node)
    if sum(ingested_calendar(pipeline.nodes[name]) is not None for name in (node, *above)) != 1:
        for artifact in edited:
            spans = name_spans(store, artifact, calendar=run.calendar)
            yield recreate_command(run, artifact, judges_of(store, "accepted", artifact), spans=spans)
        return
    once = "" if any(is_window(pipeline.nodes[name]) for name in above) else " --train-once"
    calendar = Calendar.from_name(edited[0].properties.get("calendar") or run.calendar)
    for first, last in _ranges(sorted({span_of(a) for a in edited})):
        span = calendar.label(first) if first == last else f"{calendar.label(first)}..{calendar.label(last)}"
        yield f"spanwise backfill {quote_pipeline(run)} --span {span}{once}"


def _ranges(spans: Collection[int]) -> Iterator[tuple[int, int]]:
    """The first and the last of each group of spans without a gap."""
    for _, group in itertools.groupby(enumerate(spans), lambda each: each[1] - each[0]):
        together = [span for _, span in group]
        yield together[0], together[-1]
