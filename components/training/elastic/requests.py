"""The requests of workers to the master, and its answers."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import ConfigDict, Field

from spanwise.components.training.elastic.tasks import ShardTask
from spanwise.pipelines.input.service.wire.requests import Name, Number, Request, ServiceMessage, Text

WireLayout: TypeAlias = Annotated[
    tuple[tuple[Name, Annotated[str, Field(max_length=20)], Annotated[tuple[Number, ...], Field(max_length=32)]], ...],
    Field(max_length=10_000),
]
Wait: TypeAlias = Annotated[float, Field(ge=0, le=10)]


class ElasticJobState(ServiceMessage):
    is_over: bool = False


class LeasedTask(ElasticJobState):
    """A task; none if the wait was in vain or the job is over."""

    lease: Number | None = None
    task: ShardTask | None = None
    counted: Number = 0  #: batches that other workers have reported


class SharedModel(ElasticJobState):
    """The parameters, whose arrays follow as bytes."""

    version: Number | None = None  #: None if it is no longer evaluated
    layout: WireLayout | None = None  #: None if the worker has this version


class Receipt(ServiceMessage):
    """Whether a report counts: its lease may be lost, or its gradient too old."""

    answer: Literal["taken", "stale", "lost"]


class GetTask(Request[LeasedTask]):
    kind: ClassVar = "get_task"

    worker: Name
    wait_s: Wait  #: how long the master may wait for a task before it answers


class JobHeartbeat(Request[ElasticJobState]):
    kind: ClassVar = "heartbeat"

    worker: Name


class GetModel(Request[SharedModel]):
    """Asks for the parameters: a version that is being evaluated, or the current one."""

    kind: ClassVar = "get_model"

    worker: Name
    version: Number | None = None
    have: int = -1  #: the version that the worker has
    newer: bool = False  #: whether to wait for a version above `have`
    wait_s: Wait = 0.0


class ReportGradient(Request[Receipt]):
    """Reports the gradient of one batch; its arrays follow as bytes."""

    kind: ClassVar = "report_gradient"

    worker: Name
    task: Number
    lease: Number
    batch: Number  #: its index in the task
    version: Number  #: of the parameters
    rows: Number
    layout: WireLayout


class ReportTask(Request[Receipt]):
    """Reports that every batch of a task was computed; predictions follow as an Arrow file."""

    model_config = ConfigDict(ser_json_inf_nan="constants")

    kind: ClassVar = "report_task"

    worker: Name
    task: Number
    lease: Number
    batches: Number
    rows: Number
    metrics: Annotated[dict[Name, float], Field(max_length=1_000)]  #: means times rows, summed
    seconds: dict[Name, float]  #: spent in each phase since the worker's last report


class ReportFailure(Request[Receipt]):
    kind: ClassVar = "report_failure"

    worker: Name
    task: Number
    lease: Number
    message: Text
    trace: Text
