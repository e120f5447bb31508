"""Base runs: which earlier run supplies the outputs of the nodes that a partial run leaves out."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Never

from spanwise.orchestrator.artifact import Artifact, Examples, Model
from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.collection import COLLECTED
from spanwise.orchestrator.component import Channel, Component, Resolver
from spanwise.orchestrator.continuation import attempted_nodes
from spanwise.orchestrator.driver import format_choice, histories_of, is_on_disk
from spanwise.orchestrator.errors import UsageError
from spanwise.orchestrator.gate import Gate, describe_accept, describe_fixes
from spanwise.orchestrator.generation import (
    LOOK_BACK,
    NewestOutputs,
    OutdatedNode,
    find_supplied,
    has_same_content,
    outdated_by,
    span_of,
)
from spanwise.orchestrator.history import History, Withheld, identity_of, versions_of
from spanwise.orchestrator.history import span_of as span_of_artifact
from spanwise.orchestrator.lineage import JUDGEMENTS, Direction, passes_rows, walk
from spanwise.orchestrator.pipeline import Pipeline, Selection, channels_of
from spanwise.orchestrator.run import BaseRun, Execution, Run, Trigger, quote_pipeline
from spanwise.orchestrator.run_command import format_run_command
from spanwise.orchestrator.run_request import RunRequest
from spanwise.orchestrator.scope import GatedSource
from spanwise.orchestrator.span_resolver import is_window
from spanwise.orchestrator.store import Address, Store, is_marked

_LOOK_BACK = 3000  # runs, in which a part looks for the part before: others may run often between two of its ticks


def find_base_run(store: Store, pipeline: Pipeline, selection: Selection, request: RunRequest) -> BaseRun:
    """Finds the outputs of the nodes left out: in the run that the request names, or in the newest that is up to date.

    TFX takes the newest run however it ended, so that one failed run blocks the next partial one; this takes the
    newest run that has what is needed. A run is out of date when something newer exists upstream of what is read from
    it; the request may force it. A replay is supplied with what was published by its time; no other run is supplied by
    a replay.

    Raises:
        UsageError: the base run lacks what a node reads, is out of date, or has nothing to supply; the message says
            what to run instead.
        NotRecorded: there is no such run.
    """
    search = _Search(store, pipeline, request)
    if request.base is not None:
        return search.check(selection, store.run(pipeline.name, request.base))
    return search.find(selection)


def usable_executions(store: Store, executions: Iterable[Execution]) -> list[Execution]:
    """Those whose outputs can still be read: they succeeded, and none of their artifacts was collected since."""
    return [
        execution
        for execution in executions
        if execution.state.succeeded
        and not any(is_marked(store, COLLECTED, a) for a in itertools.chain(*execution.outputs.values()))
    ]


@dataclass(frozen=True)
class _Candidate:
    """A run that has all that a part reads."""

    run: Run
    executions: Mapping[str, Execution]
    outdated: Sequence[OutdatedNode]


class _Search:
    def __init__(self, store: Store, pipeline: Pipeline, request: RunRequest) -> None:
        self._store = store
        self._pipeline = pipeline
        self._request = request
        #: the span of the runs that may supply; None: of any, also where each node that ingests has its own
        self._span = None if request.spans else request.span
        asked = Run(
            pipeline=pipeline.name,
            # A resumed run was asked for when it was the newest; what a later span has given since is newer.
            span=None if request.trigger is Trigger.RESUME else self._span,
            as_of=request.as_of if request.replay else None,
            replay=request.replay,
            from_scratch=request.from_scratch,
            trigger=request.trigger,
            source=request.source,
            exclude=request.exclude,
            parameters=request.recorded_parameters,
            typed=request.typed,
        )
        self._as_of = asked.as_of
        self._newest = NewestOutputs(store, pipeline, asked)

    def check(self, selection: Selection, base: Run) -> BaseRun:
        """The outputs of the run that was named."""
        left_out = _left_out(selection)
        if not left_out:
            raise UsageError(
                f"Run {base.number} of {self._pipeline.name!r} cannot be the base run, because this run leaves out no "
                "node that it could supply. Leave out --base-run, or select a part with --from, --only or --skip."
            )
        chosen, needed = _named_outputs(self._store, base, self._as_of), self._needed(selection)
        lacking = sorted(needed - set(chosen))
        if lacking:
            able = ", ".join(str(c.run.number) for c in itertools.islice(self._candidates(needed), 5))
            raise UsageError(
                f"Run {base.number} of {self._pipeline.name!r} has no finished {', '.join(lacking)}, which this part "
                f"needs. {f'Runs that have it: {able}.' if able else self._none()}"
            )
        if base.replay:  # what it may see never changes
            return _supply(base, chosen, left_out)
        outdated = [] if self._request.force_base else self._find_outdated(selection, base, chosen)
        candidate = _Candidate(base, chosen, outdated)
        if outdated:
            raise UsageError(self._refuse(selection, candidate))
        if self._request.behind and not self._request.force_base:
            self._refuse_withheld(selection, candidate)
        elif not self._is_insisted:
            self._refuse_refused(selection, candidate)
        return _supply(base, chosen, left_out)

    def _find_outdated(
        self, selection: Selection, base: Run, supplied: Mapping[str, Execution]
    ) -> Sequence[OutdatedNode]:
        """What is newer than a run that was named; of the part before, as for a tick of the part that is resumed."""
        behind = self._request.behind
        mine = {name: execution for name, execution in supplied.items() if name not in behind}
        outdated = self._newest.find_outdated(selection.run, base, mine)
        if behind:
            _, newest = self._read_part_before()
            outdated += self._find_newer(selection, supplied, newest)
        return outdated

    def find(self, selection: Selection) -> BaseRun:
        """The outputs of the newest run that is up to date."""
        left_out, needed = _left_out(selection), self._needed(selection)
        if not left_out:
            return BaseRun()
        if self._request.behind:
            return self._find_behind(selection)
        found, newest = self._first_current(selection)
        if found is not None:
            self._refuse_refused(selection, found)
            return _supply(found.run, found.executions, left_out)
        if newest is not None:
            raise UsageError(self._refuse(selection, newest))
        if needed:
            raise UsageError(
                f"This part of {self._pipeline.name!r} begins at {', '.join(self._pipeline.first_of(selection.run))} "
                f"and needs what it leaves out: {', '.join(n for n in self._pipeline.order if n in needed)}. "
                f"{self._none()}"
            )
        return BaseRun()

    @property
    def _is_insisted(self) -> bool:
        """Whether a person has named the base run: what was refused since is read all the same."""
        return self._request.force_base and self._request.trigger is Trigger.MANUAL

    def _find_behind(self, selection: Selection) -> BaseRun:
        """The newest run that has itself completed the part before; its spans must not have been refused since."""
        candidate, newest = self._read_part_before()
        if candidate is None:
            nodes = ", ".join(self._request.behind)
            count = next((run.number for run in self._store.runs(self._pipeline.name)), 0)
            none = f"none of the last {_LOOK_BACK} runs" if count > _LOOK_BACK else "no run"
            raise UsageError(
                f"This part of {self._pipeline.name!r} reads the newest run that has completed the part before it "
                f"({nodes}), and {none} has. Wait for that part, or run the whole pipeline once:  {self._whole}"
            )
        self._refuse_collected(candidate)
        if newer := self._find_newer(selection, candidate.executions, newest):
            reasons = "; ".join(outdated.why for outdated in newer)
            self._refuse_part_before(candidate, f"but something newer exists in that part: {reasons}")
        self._refuse_withheld(selection, candidate)
        return _supply(candidate.run, _outputs(self._store, candidate.run, self._as_of), _left_out(selection))

    def _read_part_before(self) -> tuple[_Candidate | None, Mapping[str, Execution]]:
        """The newest run that has itself completed the part before, and what each node of that part gave last.

        A run that failed in the part before has given nothing of it.
        """
        before = set(self._request.behind)
        newest: dict[str, Execution] = {}
        for run in itertools.islice(self._store.runs(self._pipeline.name), _LOOK_BACK):
            done = before & attempted_nodes(self._store, run)
            candidate = self._candidate(run, done, usable=False) if done else None
            if candidate is None:
                continue
            newest = {name: candidate.executions[name] for name in done} | newest
            if done == before:
                return candidate, newest
        return None, newest

    def _find_newer(
        self, selection: Selection, supplied: Mapping[str, Execution], newest: Mapping[str, Execution]
    ) -> list[OutdatedNode]:
        """The nodes of the part before of which this part would read other outputs than the newest.

        What was ingested since, or chosen from that, does not count, but what was made of such a choice does.
        """
        return [
            outdated_by(newest[name])
            for name in _nodes_read(self._pipeline, selection.run)
            if name in newest
            and name in supplied
            and isinstance(self._pipeline.nodes[name], Component)
            and any(is_window(self._pipeline.nodes[above]) for above in self._pipeline.ancestors(name))
            and not has_same_content(newest[name].outputs, supplied[name].outputs)
        ]

    def _refuse_collected(self, candidate: _Candidate) -> None:
        """Refuses a run of which files are gone: an older one would take its place without a word."""
        there = usable_executions(self._store, [candidate.executions[name] for name in self._request.behind])
        gone = [name for name in self._request.behind if name not in {execution.node for execution in there}]
        if gone:
            self._refuse_part_before(candidate, f"and the files of {', '.join(gone)} in it were garbage-collected")

    def _refuse_part_before(self, candidate: _Candidate, why: str) -> Never:
        behind = self._request.behind
        part = self._pipeline.select(first=self._pipeline.first_of(behind), last=self._pipeline.last_of(behind))
        raise UsageError(
            f"This part of {self._pipeline.name!r} reads the newest run that has completed the part before it, run "
            f"{candidate.run.number}, {why}. Run that part again:  {self._command(self._widen_to_current(part))}"
        )

    def _refuse_withheld(self, selection: Selection, candidate: _Candidate) -> None:
        """Refuses a run that has read, or whose models have learned, what was refused since: it must not go further."""
        for name, histories in self._histories(candidate):
            for key, history in histories.items():
                for artifact in candidate.executions[name].outputs.get(key, ()):
                    if (withheld := history.objection(artifact)) is not None:
                        self._refuse_choice(candidate.run, name, artifact, withheld)
        why = self._describe_refused(selection, candidate, candidate.executions)
        if why is not None:
            raise UsageError(f"This part of {self._pipeline.name!r} would read {why}")

    def _refuse_refused(self, selection: Selection, candidate: _Candidate) -> None:
        """Refuses a run of which the part reads what was refused since, behind its gate or in a model.

        Where it is read through a window, that would choose otherwise now, so that the run is out of date.
        """
        why = self._describe_refused(selection, candidate, _nodes_read(self._pipeline, selection.run))
        if why is None:
            return
        what = f"This part of {self._pipeline.name!r} would read"
        insist = f"Or read run {candidate.run.number} all the same"
        if self._request.trigger is Trigger.RESUME:
            what = f"Run {candidate.run.name} cannot be resumed, because the rest of it would read"
            insist = "Or resume it with what it has read"
        raise UsageError(f"{what} {why}{self._insist(insist, selection, candidate)}")

    def _describe_refused(self, selection: Selection, candidate: _Candidate, makers: Iterable[str]) -> str | None:
        """What was refused since: learned by a model of these nodes, or read by the part; None where nothing was."""
        if (learned := self._find_learned(candidate, makers)) is not None:
            return self._describe_learned(candidate, *learned)
        if (passed := self._find_passed(selection, candidate)) is not None:
            return self._describe_passed(selection, candidate, *passed)
        return None

    def _describe_learned(self, candidate: _Candidate, model: Artifact, withheld: Withheld) -> str:
        """The model of a run that has learned what was refused, and the command that says how to train without that."""
        counted = Calendar.from_name(withheld.artifact.properties.get("calendar") or candidate.run.calendar)
        span = counted.label(span_of_artifact(withheld.artifact))
        tainted = shlex.join(["spanwise", "tainted", candidate.run.pipeline, "--span", span])
        through = ""
        if withheld.artifact.id not in walk(self._store, [model], Direction.UP, carries=_passes_own).artifacts:
            warm = model.properties.get("base") is not None
            through = f" through {'the model that it was trained on from' if warm else 'what it was made of'}"
        choice = format_choice((withheld.artifact,), candidate.run)
        return (
            f"run {candidate.run.number}, whose {model.name} learned from {choice}{through}, which does not count any "
            f"more: {withheld}.\n"
            f"See how to train without it:  {tainted}"
        )

    def _find_learned(self, candidate: _Candidate, nodes: Iterable[str]) -> tuple[Artifact, Withheld] | None:
        """A model that one of these nodes has made in a run, and what it has learned that was refused since."""
        models = [
            artifact
            for name in nodes
            if name in candidate.executions and isinstance(self._pipeline.nodes.get(name), Component)
            for artifact in itertools.chain(*candidate.executions[name].outputs.values())
            if artifact.is_a(Model)
        ]
        if not models:
            return None
        for source in self._pipeline.judged:
            history = self._history_of(candidate.run, source)
            for model in models:
                if (withheld := history.find_refused(model)) is not None:
                    return model, withheld
        return None

    def _find_passed(self, selection: Selection, candidate: _Candidate) -> tuple[Gate, Withheld] | None:
        """The gate that has passed on what was refused since, and that the part reads, or something made of it."""
        for source in self._pipeline.judged:
            above = _gates_above(self._pipeline, selection.run, source.gates)
            for gate in (name for name in source.gates if name in above & candidate.executions.keys()):
                node = self._pipeline.nodes[gate]
                assert isinstance(node, Gate)
                history = self._history_of(candidate.run, replace(source, gates=(gate,)))
                for artifact in candidate.executions[gate].outputs.get(node.judged, ()):
                    if (withheld := _find_refusal(history, artifact)) is not None:
                        return node, withheld
        return None

    def _describe_passed(self, selection: Selection, candidate: _Candidate, gate: Gate, withheld: Withheld) -> str:
        """The span of a run that was refused behind its gate, and what to type, as where the gate refuses it."""
        artifact = withheld.artifact
        made = self._store.run(self._pipeline.name, find_supplied(self._store, candidate.executions[gate.name]).run)
        calendar = Calendar.from_name(artifact.properties.get("calendar") or made.calendar)
        label = calendar.label(span_of_artifact(artifact))
        asked = replace(self._request, spans=made.spans, span=made.span, calendar=made.calendar)
        if made.span is None:
            asked = replace(asked, span=span_of_artifact(artifact), calendar=calendar.value)
        last = self._pipeline.last_of(selection.run) if selection.dropped else ()
        node = "" if self._pipeline.judged[0].alone else artifact.name.split("/")[1]
        fixes = describe_fixes(
            format_run_command(asked, self._pipeline.name, last=last),
            describe_accept(quote_pipeline(candidate.run), label, node=node),
        )
        choice = format_choice((artifact,), candidate.run)
        return (
            f"run {candidate.run.number}, in which {gate.name} passed on {choice}, which does not count any more: "
            f"{withheld}.\n{fixes}"
        )

    def _history_of(self, run: Run, source: GatedSource) -> History:
        """What was published for a run on a channel that gates judge, and what they and people say of it now."""
        address = Address(self._pipeline.name, source.node, source.key)
        return History(self._store, address, Examples, self._seen_now(run), gated=(source,))

    def _histories(self, candidate: _Candidate) -> Iterator[tuple[str, Mapping[str, History]]]:
        """What each resolver of a run would choose from now, or would at the time of a replay."""
        run = self._seen_now(candidate.run)
        for name in candidate.executions:
            node = self._pipeline.nodes.get(name)
            if isinstance(node, Resolver):
                yield name, histories_of(self._store, run, node, {}, self._pipeline.scopes[name])

    def _seen_now(self, run: Run) -> Run:
        """The run with what is known now, or was at the time of a replay."""
        return replace(run, as_of=self._as_of, replay=self._request.replay)

    def _refuse_choice(self, run: Run, resolver: str, artifact: Artifact, withheld: Withheld) -> Never:
        raise UsageError(
            f"This part of {self._pipeline.name!r} would read run {run.number}, in which {resolver} chose "
            f"{format_choice((artifact,), run)}, which does not count any more: {withheld}.\n"
            f"Learn without it:  {self._command(self._pipeline.select(first=(resolver,)))}"
        )

    def _first_current(self, selection: Selection) -> tuple[_Candidate | None, _Candidate | None]:
        """The newest run that is up to date, and the newest that is not, of those that have all that a part reads."""
        newest: _Candidate | None = None
        for candidate in self._candidates(self._needed(selection)):
            outdated = self._newest.find_outdated(selection.run, candidate.run, candidate.executions)
            if not outdated:
                return candidate, None
            newest = newest or replace(candidate, outdated=outdated)
        return None, newest

    def _candidates(self, needed: Iterable[str]) -> Iterator[_Candidate]:
        """Runs that have the outputs of these nodes, newest first."""
        wanted = set(needed)
        for run in itertools.islice(self._store.runs(self._pipeline.name), LOOK_BACK):
            if (candidate := self._candidate(run, wanted)) is not None:
                yield candidate

    def _candidate(self, run: Run, needed: Collection[str], *, usable: bool = True) -> _Candidate | None:
        """A run, if it has the outputs of these nodes, and is of the span that was asked for, if one was.

        Unless `usable`, also one that had them before they were collected.
        """
        wanted, span = set(needed), self._span
        if not run.ordinary or (run.span is not None and span not in (None, run.span)):
            return None
        chosen = _outputs(self._store, run, self._as_of, usable=usable)
        if wanted <= set(chosen) and (span is None or not wanted or span_of(run, chosen.values()) == span):
            return _Candidate(run, chosen, ())
        return None

    def _needed(self, selection: Selection) -> set[str]:
        """The nodes left out that the part reads from, or comes after."""
        return {node for name in selection.run for node in self._pipeline.parents(name)} - set(selection.run)

    def _describe_needed(self, selection: Selection) -> str:
        """What a part takes from a base run, such as `read Trainer and come after Check`."""
        read = {channel.node for name in selection.run for channel in _channels_of_run(self._pipeline, name)}
        needed = [name for name in self._pipeline.order if name in self._needed(selection)]
        groups = {
            "read": [name for name in needed if name in read],
            "come after": [name for name in needed if name not in read],
        }
        return " and ".join(f"{verb} {', '.join(names)}" for verb, names in groups.items() if names)

    def _refuse(self, selection: Selection, found: _Candidate) -> str:
        """The message that a base run is out of date, with the command that runs what is, and the one that insists."""
        number, reasons = found.run.number, "; ".join(o.why for o in found.outdated)
        if "\n" not in reasons:  # else it ends with a command, which is to be pasted
            reasons += "."
        if self._request.trigger is Trigger.RESUME:
            again = self._command(self._again(selection, found))
            return (
                f"Run {found.run.name} cannot be resumed, because something newer exists upstream of the rest of it: "
                f"{reasons}\n"
                f"Run its span again, which reuses what has not changed:  {again}"
                f"{self._insist('Or resume it with what it has read', selection, found)}"
            )
        return (
            f"This part of {self._pipeline.name!r} would {self._describe_needed(selection)} of run {number}, but "
            f"something newer exists upstream of that: {reasons}\n"
            f"Run what lies between as well:  {self._command(self._widen(selection, found.outdated))}"
            f"{self._insist(f'Or read run {number} all the same', selection, found)}"
        )

    def _insist(self, words: str, selection: Selection, found: _Candidate) -> str:
        """The way on with what a run that is out of date supplies; none where files of that are gone."""
        executions = [found.executions[name] for name in self._needed(selection)]
        if not all(is_on_disk(a) for e in executions for row in e.outputs.values() for a in row):
            return ""
        return f"\n{words}:  {self._command(selection, base=found.run.number)}"

    def _again(self, selection: Selection, found: _Candidate) -> Selection:
        """What runs a resumed run again: the whole; where nodes have spans of their own, what that run had run."""
        last = self._pipeline.last_of(selection.run) if selection.dropped else ()
        if not self._request.spans:
            return self._pipeline.select(last=last)
        part = self._pipeline.select(first=self._pipeline.first_of(found.run.nodes), last=last)
        return self._widen_to_current(part)

    def _widen_to_current(self, part: Selection) -> Selection:
        """A part, or the smallest wider one, that has a base run that is up to date."""
        current, newest = self._first_current(part)
        if current is not None or not self._needed(part):
            return part
        return self._widen(part, () if newest is None else newest.outdated)

    def _widen(self, selection: Selection, outdated: Sequence[OutdatedNode]) -> Selection:
        """The smallest wider part that has a base run that is up to date."""
        wider = selection
        while True:
            begin = set(wider.run)
            for one in outdated:
                begin |= {one.node} if one.again else set(self._pipeline.children(one.node)) & set(wider.required)
            if begin <= set(wider.run):  # something newer that no run has together with the rest
                begin |= set(wider.required)
            last = self._pipeline.last_of(selection.run) if selection.dropped else ()
            wider = self._pipeline.select(first=self._pipeline.first_of(begin), last=last)
            current, newest = self._first_current(wider)
            if current is not None or not _left_out(wider):
                return wider
            outdated = [] if newest is None else newest.outdated

    def _command(self, selection: Selection, *, base: int | None = None) -> str:
        """The command that runs a part as it was asked for."""
        first = self._pipeline.first_of(selection.run) if _left_out(selection) else ()
        last = self._pipeline.last_of(selection.run) if selection.dropped else ()
        spans = {node: label for node, label in self._request.spans.items() if node in selection.run}
        span = self._request.span if spans or not self._request.spans else None
        asked = replace(self._request, span=span, spans=spans)
        return format_run_command(asked, self._pipeline.name, first=first, last=last, base=base)

    @property
    def _whole(self) -> str:
        return format_run_command(self._request, self._pipeline.name)

    def _none(self) -> str:
        if self._as_of is not None:
            return f"No run had finished that by {_format_time(self._as_of)}. Choose a later time."
        ran = next(iter(self._store.runs(self._pipeline.name)), None) is not None
        why = f"None of its last {LOOK_BACK} runs has finished that" if ran else "No run of it is recorded here yet"
        return f"{why}.\nRun the whole pipeline once:  {self._whole}"


def _supply(run: Run, executions: Mapping[str, Execution], left_out: set[str]) -> BaseRun:
    supplied = {name: execution for name, execution in executions.items() if name in left_out}
    return BaseRun(run, supplied, span_of(run, executions.values()))


def _left_out(selection: Selection) -> set[str]:
    return {*selection.required, *selection.optional}


def _nodes_read(pipeline: Pipeline, part: Iterable[str]) -> list[str]:
    """The nodes upstream of a part, as far as no resolver chooses in between."""
    part = set(part)
    seen, todo = set(part), list(part)
    while todo:
        name = todo.pop()
        if not isinstance(pipeline.nodes[name], Resolver):
            new = {channel.node for channel in _channels_of_run(pipeline, name)} - seen
            seen |= new
            todo += new
    return [name for name in pipeline.order if name in seen - part]


def _find_refusal(history: History, artifact: Artifact) -> Withheld | None:
    """Why an artifact that gates have judged was refused; of the same data published again, what was said last."""
    versions = versions_of(history.store, history.address, span_of_artifact(artifact), None, as_of=history.as_of)
    same = [each for each in versions if identity_of(each) == identity_of(artifact)]
    for each in (*same[-1:], artifact):
        if (withheld := history.objection(each)) is None or withheld.verdict is not None:
            return withheld
    return None


def _gates_above(pipeline: Pipeline, part: Iterable[str], gates: Collection[str]) -> set[str]:
    """Those of the gates of one channel that are left out and decide what a part reads, as far as none in it does.

    What judgements say of a span is no part of it, nor what a resolver chooses, and a model is asked for what it has
    learned.
    """
    part = set(part)
    seen, todo = set(part), [name for name in part if name not in gates]
    while todo:
        name = todo.pop()
        if not isinstance(pipeline.nodes[name], Resolver):
            read = (c for c in _channels_of_run(pipeline, name) if not issubclass(c.kind, (*JUDGEMENTS, Model)))
            new = {channel.node for channel in read} - seen
            seen |= new
            todo += new
    return (seen - part) & set(gates)


def _passes_own(read: Artifact, made: Artifact) -> bool:
    """Whether what an execution read reaches a model otherwise than through another model."""
    return not read.is_a(Model) and passes_rows(read, made)


def _channels_of_run(pipeline: Pipeline, node: str) -> list[Channel]:
    return [c for c in channels_of(pipeline.nodes[node]) if c.producer is not None]


def _outputs(store: Store, run: Run, as_of: datetime | None = None, *, usable: bool = True) -> dict[str, Execution]:
    """The last usable execution of each node of a run, of those that had ended by `as_of`; or the last successful."""
    if as_of is not None and run.started is not None and run.started > as_of:
        return {}
    found = [execution for execution in store.executions(run) if execution.state.succeeded]
    found = usable_executions(store, found) if usable else found
    return {e.node: e for e in found if as_of is None or (e.ended is not None and e.ended <= as_of)}


def _named_outputs(store: Store, run: Run, as_of: datetime | None) -> dict[str, Execution]:
    """The outputs of the run that somebody has named, or that is resumed.

    Raises:
        UsageError: it is a replay of another time, or what it has made is of later than `as_of`.
    """
    if run.replay and run.as_of == as_of:
        return _outputs(store, run)
    if run.replay:
        raise UsageError(
            f"Run {run.number} of {run.pipeline!r} is a replay as of {_format_time(run.as_of)}, so only a replay as of "
            "the same time is supplied by it. Name another base run, or none."
        )
    chosen = _outputs(store, run, as_of)
    if later := [node for node in _outputs(store, run) if node not in chosen]:
        raise UsageError(
            f"In run {run.number} of {run.pipeline!r}, {', '.join(later)} ended after {_format_time(as_of)}, the time "
            "of this replay. Name an earlier base run, or none."
        )
    return chosen


def _format_time(time: datetime | None) -> str:
    return f"{time.astimezone():%Y-%m-%d %H:%M %Z}" if time is not None else "no time"
