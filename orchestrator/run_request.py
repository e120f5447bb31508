"""Run requests: what a caller asks of a run, what it observes while the run lasts, and what it gets back."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, TypeAlias

from spanwise.orchestrator.artifact import Value
from spanwise.orchestrator.job import GRACE_S
from spanwise.orchestrator.pipeline import Selection
from spanwise.orchestrator.run import BaseRun, Execution, Run, State, Trigger
from spanwise.orchestrator.store import Claim

EventName: TypeAlias = Literal[
    "run-started", "base-run-chosen", "abandoned-run-closed", "node-waiting", "node-started", "node-placed",
    "node-reused", "node-completed", "node-failed", "retry-scheduled", "node-canceled", "node-skipped",
    "stop-requested", "run-ended",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """What a caller asks of a run; see Run for the fields of the same names."""

    selection: Selection | None = None  #: None is every node
    trigger: Trigger = Trigger.MANUAL
    cause: str = ""
    claims: tuple[Claim, ...] = ()  #: inserted in the transaction that begins the run; one that exists prevents it
    span: int | None = None
    calendar: str = "number"
    spans: Mapping[str, str] = field(default_factory=dict)
    exclude: tuple[str, ...] = ()
    from_scratch: bool = False
    as_of: datetime | None = None
    replay: bool = False
    base: int | None = None  #: the run that supplies the outputs of nodes left out; None is the newest that has them
    supplied: BaseRun | None = None  #: what supplies the nodes left out, without a search
    behind: tuple[str, ...] = ()
    """The nodes of the part before: the newest run that completed them supplies them, whatever was ingested since."""
    force_base: bool = False  #: read `base` also when something newer exists upstream of what it supplies
    parameters: Mapping[str, object] = field(default_factory=dict)
    typed: tuple[str, ...] = ()
    source: str = ""
    beam: Mapping[str, Value] = field(default_factory=dict)
    cache: bool = True
    jobs: int = field(default_factory=lambda: max(2, os.cpu_count() or 2))  #: the most nodes that run at once
    pools: Mapping[str, int] = field(default_factory=dict)  #: how many nodes of each pool may run at once
    grace_s: float = GRACE_S

    @property
    def recorded_parameters(self) -> Mapping[str, Value]:
        """The arguments of the pipeline function as a run records them."""
        return {n: v if isinstance(v, bool | int | float | str) else str(v) for n, v in self.parameters.items()}


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that has just happened in a run; for progress displays and logs."""

    what: EventName
    run: Run
    node: str = ""
    execution: Execution | None = None
    message: str = ""
    base: BaseRun | None = None  #: of "base-run-chosen"


Observer: TypeAlias = Callable[[Event], None]


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """How a run ended."""

    run: Run
    executions: Mapping[str, Execution]  #: the last one of each node that was reached
    failed: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()  #: never reached, because a node before them failed or the run was stopped

    @property
    def succeeded(self) -> bool:
        return self.run.state is State.COMPLETE
