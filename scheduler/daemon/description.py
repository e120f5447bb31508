"""Describing: what a pipeline file says of its schedules, asked in a child process.

A scheduler runs for years and never imports a user's file: a changed file would need a new process, a broken one would
take the others with it, and each brings its libraries. `python -m` of this module reads a question on stdin,
imports the file, and writes the answer as JSON on stdout; whatever the file prints goes to stderr.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO, TypeAlias

from spanwise.orchestrator.artifact import PushedModel
from spanwise.orchestrator.component import Component
from spanwise.orchestrator.errors import LoadError, ScheduleError, SpanwiseError
from spanwise.orchestrator.pipeline import Pipeline, Selection
from spanwise.orchestrator.record import from_plain, to_plain
from spanwise.scheduler.backfill.inventory import IngestNode
from spanwise.scheduler.daemon import arrival
from spanwise.scheduler.daemon.arrival import ReadyData
from spanwise.scheduler.project import child_process, load, root, settings
from spanwise.scheduler.project.settings import Settings
from spanwise.scheduler.project.span_sources import list_span_sources
from spanwise.scheduler.schedule.division import HALVES, Part
from spanwise.scheduler.schedule.part import ends_of_part, part_nodes, select_part
from spanwise.scheduler.schedule.schedule import Schedule, rule_of, source_rules, timetables_of
from spanwise.scheduler.schedule.schedule_key import DATA, part_of, schedule_key
from spanwise.scheduler.schedule.ticks import span_of, ticks
from spanwise.scheduler.schedule.timetable import Timetable

LIMIT_S = 120.0
"""How long a file may take to import, on a busy machine."""

_SHOWN = 2000  # letters of what a child printed before it died

Document: TypeAlias = dict[str, object]


@dataclass(frozen=True, kw_only=True)
class ScheduleDescription:
    """One schedule of a pipeline file."""

    timetable: Timetable
    source: str  #: `/path/file.py:name`
    calendar: str = "number"  #: how its spans are shown
    calendars: Mapping[str, str] = field(default_factory=dict)  #: the same of each node that ingests
    pushes: tuple[str, ...] = ()  #: outputs of pushed models, `node/key`
    nodes: tuple[str, ...] = ()  #: that it runs: whoever completes them has done what it is for
    first: tuple[str, ...] = ()  #: of a part: where a run by hand of it alone begins; empty where the pipeline does
    last: tuple[str, ...] = ()  #: the same where it ends
    ingests: bool = True  #: it has nodes that ingest spans, so it can be backfilled
    spans: Mapping[datetime, int] = field(default_factory=dict)  #: of the ticks that were asked for, by their moment
    by_node: Mapping[datetime, Mapping[str, int]] = field(default_factory=dict)  #: of each node, where each has its own
    trouble: str = ""  #: why some of these could not be computed
    ready: ReadyData | None = None  #: what lies ready to be ingested, where that was asked

    @property
    def pipeline(self) -> str:
        return self.timetable.pipeline


@dataclass(frozen=True, kw_only=True)
class FileQuestion:
    """What a child is asked about a file."""

    reference: str
    config: Path | None
    ticks: tuple[datetime, ...] = ()  #: moments for which a span rule of the file's own is asked
    root: str | None = None  #: if given, it is asked for its pipeline and for the data that is ready


class DescriptionRequest:
    """A question on its way: a child that imports a file."""

    def __init__(
        self,
        reference: str,
        config: Path | None,
        ticks: Sequence[datetime] = (),
        *,
        root: str | None = None,
        limit_s: float = LIMIT_S,
    ) -> None:
        """`ticks` are moments for which a span rule of the file's own is to be asked.

        With `root`, where the metadata are, it is asked for its pipeline and what lies ready, not for its schedules.
        """
        self._reference = reference
        self._deadline = time.monotonic() + limit_s
        self._limit_s = limit_s
        self._out = tempfile.TemporaryFile()  # noqa: SIM115  closed when it has answered; a pipe could fill up
        self._err = tempfile.TemporaryFile()  # noqa: SIM115
        question = to_plain(FileQuestion(reference=reference, config=config, ticks=tuple(ticks), root=root))
        self._child = child_process.start(
            "spanwise.scheduler.daemon.description", question, stdout=self._out, stderr=self._err
        )

    @property
    def pid(self) -> int:
        """The child's."""
        return self._child.pid

    def answer(self) -> list[ScheduleDescription] | None:
        """What the file says; None as long as the child works on it.

        Raises:
            LoadError: the file cannot be loaded, holds no schedule, or takes too long.
            ScheduleError: a schedule cannot mean anything.
        """
        late = time.monotonic() >= self._deadline
        # Not yet collected, so that its id, which is that of its group, is still its own when the group is ended.
        if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None and not late:
            return None
        self._kill()
        out, err = _read(self._out), _read(self._err)
        self.end()
        if late and not out:
            raise LoadError(f"{self._reference} was not loaded within {self._limit_s:g} s; it was given up.\n{err}")
        try:
            answer = json.loads(out)
        except ValueError:
            status = self._child.returncode
            raise LoadError(f"{self._reference} ended the process that loaded it ({_ended(status)}).\n{err}") from None
        if "error" in answer:
            raise LoadError(str(answer["error"]))
        return [from_plain(ScheduleDescription, each) for each in answer["schedules"]]

    def end(self) -> None:
        """Ends the child and what the file has started in it; what it has printed is gone."""
        self._kill()
        self._out.close()
        self._err.close()

    def _kill(self) -> None:
        if self._child.returncode is None:
            os.killpg(self.pid, signal.SIGKILL)
            self._child.wait()


def describe(references: Sequence[str], config: Path | None) -> list[ScheduleDescription]:
    """The schedules of all these files, asked side by side.

    Raises:
        LoadError: one of them cannot be loaded; see `DescriptionRequest.answer`.
    """
    asked = [DescriptionRequest(reference, config) for reference in references]
    try:
        found = []
        for each in asked:
            while (answer := each.answer()) is None:
                time.sleep(0.01)
            found += answer
        return found
    finally:
        for each in asked:
            each.end()


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    text = file.read().decode(errors="replace").strip()
    return text if len(text) <= _SHOWN or text.startswith("{") else f"…{text[-_SHOWN:]}"


def _ended(status: int) -> str:
    return f"by {signal.Signals(-status).name}" if status < 0 else f"exit code {status}"


# --- in the child


def main() -> None:
    """Answers the question on stdin."""
    question = from_plain(FileQuestion, child_process.read_document())
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answer:
        os.dup2(2, 1)
        json.dump(_answer(question), answer)
    sys.stderr.flush()
    os._exit(0)  # whatever threads the file has started


def _answer(question: FileQuestion) -> Document:
    try:
        known = settings.read(config=question.config, root=question.root)
        if question.root is not None:
            found = [_describe_ready(load.load(question.reference, settings=known.params), known)]
        else:
            found = [
                _describe_schedule(schedule, loaded, timetable, question.ticks)
                for schedule, loaded in load.schedules(question.reference, settings=known.params)
                for timetable in timetables_of(schedule, loaded.pipeline.name)
            ]
    except SpanwiseError as error:
        return {"error": str(error)}
    return {"schedules": [to_plain(each) for each in found]}


def _describe_ready(loaded: load.Loaded, known: Settings) -> ScheduleDescription:
    with root.open_for_writing(known) as store:
        ready = arrival.find_ready(loaded.pipeline, loaded.calendar, store, loaded.quoted)
    return ScheduleDescription(
        timetable=Timetable(schedule_key(loaded.pipeline.name, DATA)),
        source=loaded.place,
        calendar=loaded.calendar.value,
        ready=ready,
    )


def _describe_schedule(
    schedule: Schedule, loaded: load.Loaded, timetable: Timetable, moments: Sequence[datetime]
) -> ScheduleDescription:
    part = part_of(timetable.pipeline)
    rule, rules = rule_of(schedule, part), source_rules(schedule, part)
    spans, by_node, trouble = {}, {}, ""
    for at in moments:
        tick = next(ticks(timetable, at - timedelta(seconds=1), at), None)
        if tick is None or rule is None:
            continue
        try:
            each = {node: span_of(its, tick) for node, its in rules.items() if its is not None}
            spans[at], by_node[at] = next(iter(each.values())) if each else span_of(rule, tick), each
        except SpanwiseError as error:
            trouble = str(error)
    division = timetable.division or HALVES
    first, last = ends_of_part(loaded.pipeline, part, division)
    pushes = find_pushes(loaded.pipeline, select_part(loaded.pipeline, part, division))
    if part and not pushes:
        timetable = _leave_out_freshness(schedule, loaded.pipeline, timetable)
    return ScheduleDescription(
        timetable=timetable,
        source=loaded.place,
        calendar=loaded.calendar.value,
        calendars={each.node: each.calendar.value for each in list_span_sources(loaded.pipeline)},
        pushes=pushes,
        nodes=part_nodes(loaded.pipeline, part, division),
        first=first,
        last=last,
        ingests=any(isinstance(node, IngestNode) for node in loaded.pipeline),
        spans=spans,
        by_node=by_node,
        trouble=trouble,
    )


def _leave_out_freshness(schedule: Schedule, pipeline: Pipeline, timetable: Timetable) -> Timetable:
    """The timetable of a part that pushes nothing: where another part pushes, the model in service is of that one."""
    name, pushed = part_of(timetable.pipeline), find_pushes(pipeline)
    own = (schedule.parts or {}).get(name)
    if isinstance(own, Part) and own.terms.get("freshness") is not None:
        raise ScheduleError(
            f"{pipeline.name!r} has freshness= of the part {name!r}, which pushes no model"
            f"{': ' + ', '.join(pushed) + ' does' if pushed else ''}. Set it for the part that pushes, or for all."
        )
    return replace(timetable, freshness=None) if pushed else timetable


def find_pushes(pipeline: Pipeline, part: Selection | None = None) -> tuple[str, ...]:
    """The outputs of a pipeline, or of a part of it, that are pushed models, `node/key`."""
    return tuple(
        f"{node.name}/{key}"
        for node in pipeline
        if isinstance(node, Component) and (part is None or node.name in part.run)
        for key, channel in node.outputs.items()
        if issubclass(channel.kind, PushedModel)
    )


if __name__ == "__main__":
    main()
