"""The requests of workers to the master, validated as they arrive."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import Field

from spanwise.pipelines.input.service.wire.requests import Name, Number, ServiceMessage, Text

Layout: TypeAlias = Annotated[
    tuple[tuple[Name, Annotated[str, Field(max_length=20)], Annotated[tuple[Number, ...], Field(max_length=32)]], ...],
    Field(max_length=10_000),
]
Wait: TypeAlias = Annotated[float, Field(ge=0, le=10)]


class GetTask(ServiceMessage):
    worker: Name
    wait_s: Wait  #: how long the master may wait for a task before it answers


class JobHeartbeat(ServiceMessage):
    worker: Name


class GetModel(ServiceMessage):
    """Asks for the parameters: a version that is being evaluated, or the current one."""

    worker: Name
    version: Number | None = None
    have: int = -1  #: the version that the worker has
    newer: bool = False  #: whether to wait for a version above `have`
    wait_s: Wait = 0.0


class ReportGradient(ServiceMessage):
    """Reports the gradient of one batch; its arrays follow as bytes."""

    worker: Name
    task: Number
    lease: Number
    batch: Number  #: its index in the task
    version: Number  #: of the parameters
    rows: Number
    layout: Layout


class ReportTask(ServiceMessage):
    """Reports that every batch of a task was computed; predictions follow as an Arrow file."""

    worker: Name
    task: Number
    lease: Number
    batches: Number
    rows: Number
    metrics: Annotated[dict[Name, float], Field(max_length=1_000)]  #: means times rows, summed
    seconds: dict[Name, float]  #: spent in each phase since the worker's last report


class ReportFailure(ServiceMessage):
    worker: Name
    task: Number
    lease: Number
    message: Text
    trace: Text
