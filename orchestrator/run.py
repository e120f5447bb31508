"""Runs and executions: the records of what was started, why, and how it ended."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.errors import UsageError

if TYPE_CHECKING:
    from spanwise.orchestrator.artifact import Artifact, Value


class State(Enum):
    """The state of a run or an execution; the names are ML Metadata's."""

    RUNNING = "running"
    COMPLETE = "complete"
    CACHED = "cached"  #: executions only: the outputs are those of an earlier execution
    FAILED = "failed"
    CANCELED = "canceled"

    @property
    def ended(self) -> bool:
        return self is not State.RUNNING

    @property
    def succeeded(self) -> bool:
        return self in (State.COMPLETE, State.CACHED)


class Trigger(Enum):
    """Why a run was started."""

    MANUAL = "manual"
    SCHEDULE = "schedule"
    BACKFILL = "backfill"
    RESUME = "resume"
    PUSH = "push"  #: a person pushes a model by name


@dataclass(frozen=True, kw_only=True)
class Run:
    """One pass over a pipeline or a part of it."""

    pipeline: str
    number: int = 0  #: counts from 1 within the pipeline; 0 until the store assigns it
    trigger: Trigger = Trigger.MANUAL
    cause: str = ""  #: name of the tick or backfill that started it, or of the run that it resumes
    span: int | None = None  #: the requested span; None is the newest available
    calendar: str = "number"  #: how spans are written: the name of a calendar
    spans: Mapping[str, str] = field(default_factory=dict)
    """The labels of the requested spans by ingesting node, where they were named one by one; `span` is the first."""
    exclude: tuple[str, ...] = ()  #: spans and ranges that its windows leave out, `2013-12-25`, `Recent=2013-12-25`
    from_scratch: bool = False  #: no warm starts, as in a backfill of wrong data
    as_of: datetime | None = None  #: resolvers see only artifacts published by then
    replay: bool = False  #: it repeats an earlier moment, `as_of`; ordinary runs read nothing that it makes
    base: int | None = None  #: number of the run that supplies the outputs of skipped nodes
    behind: tuple[str, ...] = ()  #: of a part of a schedule that reads the part before: the nodes of that part
    nodes: tuple[str, ...] = ()  #: the nodes it runs, parents first
    unselected: tuple[str, ...] = ()  #: the other nodes of its pipeline
    parameters: Mapping[str, Value] = field(default_factory=dict)  #: arguments of the pipeline function
    beam: Mapping[str, Value] = field(default_factory=dict)  #: the runner and options of Beam in the settings
    typed: tuple[str, ...] = ()  #: the arguments typed on the command line, as `name=value`
    source: str = ""  #: the pipeline's reference, `/path/file.py:name`
    folder: str = ""  #: where it began: relative paths of its pipeline are of this folder; empty where unknown
    token: int = 0  #: the lease's fencing token
    host: str = ""
    pid: int = 0
    state: State = State.RUNNING
    started: datetime | None = None
    ended: datetime | None = None
    error: str | None = None

    @property
    def ordinary(self) -> bool:
        """Whether other runs may build on it: it is no replay, and no push of a model by name."""
        return not self.replay and self.trigger is not Trigger.PUSH

    @property
    def whole(self) -> bool:
        """Whether it ran every node of its pipeline."""
        return self.base is None and not self.unselected  # runs of a checkout before this one record the base alone

    @property
    def heard_until(self) -> datetime | None:
        """Until when what people say counts; None: whenever it was said, as in each run that is no replay.

        A parallel run of a backfill is to see no other run, so it has an `as_of`, but it hears people.
        """
        return self.as_of if self.replay else None

    @property
    def name(self) -> str:
        """`pipeline/number`, unique."""
        return f"{self.pipeline}/{self.number}"

    def span_for(self, node: str, calendar: Calendar, *, takes_span: bool) -> int | None:
        """The span that an ingesting node is to ingest; None is the newest available.

        Raises:
            UsageError: the spans of other nodes were named, and not that of this one, which takes one.
        """
        if not self.spans:
            return self.span
        label = self.spans.get(node)
        if label is None and takes_span:
            raise UsageError(f"No span was named for {node}; add:  --span {node}=SPAN. {calendar.hint}")
        return None if label is None else calendar.parse(label)


@dataclass(frozen=True, kw_only=True)
class Execution:
    """One attempt at one node in one run."""

    id: int = 0  #: the store's number; 0 until begun
    pipeline: str
    run: int  #: number of the run
    node: str
    attempt: int = 1
    replay: bool = False  #: of a replay
    component: str = ""  #: class name of the node
    state: State = State.RUNNING
    parameters: Mapping[str, str] = field(default_factory=dict)  #: as recorded, JSON text by name
    defaults: tuple[str, ...] = ()  #: the parameters with their default values
    key: str = ""  #: the cache key; empty if the node is not cached
    key_parts: Mapping[str, str] = field(default_factory=dict)  #: the parts of the key, digest by name
    inputs: Mapping[str, tuple[Artifact, ...]] = field(default_factory=dict)
    outputs: Mapping[str, tuple[Artifact, ...]] = field(default_factory=dict)
    reused: int | None = None  #: id of the execution whose outputs it reused
    reason: str | None = None  #: why it was reused, or executed
    error: str | None = None
    log: str = ""  #: file with everything the executor printed
    started: datetime | None = None
    ended: datetime | None = None
    work_started: datetime | None = None  #: when its code was started; None where there was nothing to do
    work_ended: datetime | None = None  #: when its code had ended; its outputs were then published

    @property
    def name(self) -> str:
        """`pipeline/run/node/attempt`, unique."""
        return f"{self.pipeline}/{self.run}/{self.node}/{self.attempt}"

    @property
    def run_name(self) -> str:
        """`pipeline/run`, the name of its run."""
        return f"{self.pipeline}/{self.run}"

    @property
    def chosen(self) -> bool:
        """Whether a resolver chose its outputs; no execution of this node produced them."""
        return self.state is State.CACHED and self.reused is None

    @property
    def supplied(self) -> bool:
        """Whether the base run supplied its outputs: it has the inputs of that execution, and no key of its own."""
        return self.reused is not None and not self.key


@dataclass(frozen=True)
class BaseRun:
    """What one earlier run supplies to a partial run; outputs of several runs are never mixed."""

    run: Run | None = None  #: None when nothing has to be supplied
    executions: Mapping[str, Execution] = field(default_factory=dict)  #: by node
    span: int | None = None  #: the span that the earlier run was asked for, or that its nodes published

    @property
    def number(self) -> int | None:
        return None if self.run is None else self.run.number


def go_to(folder: str) -> str:
    """What a printed command begins with to be typed in another folder than this one; empty where it is not there."""
    try:
        here = Path(folder).samefile(Path.cwd())
    except OSError:
        return ""
    return "" if here else f"cd {shlex.quote(folder)} && "


def format_source(source: str, folder: str = ".") -> str:
    """Formats a run's source for a command typed in a folder: relative if its file lies below that."""
    path, colon, name = source.rpartition(":")
    if not colon:
        path, name = source, ""
    with contextlib.suppress(ValueError):
        path = str(Path(path).relative_to(Path(folder).absolute()))
    beyond_options = "./" if path.startswith("-") else ""
    return f"{beyond_options}{path}{colon}{name}"


def quote_source(source: str, pipeline: str) -> str:
    """A run's source for a command that is printed, quoted where a shell would split it; `pipeline.py` if unknown."""
    return shlex.quote(format_source(source) or f"{pipeline}.py")


def quote_pipeline(run: Run) -> str:
    """The pipeline of a run for a command that is printed: its source, and the arguments that were typed for it."""
    typed = [word for text in run.typed for word in ("--param", text)]
    return " ".join([quote_source(run.source, run.pipeline), *map(shlex.quote, typed)])
