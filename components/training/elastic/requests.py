"""What workers ask of the master and tell it, as it arrives from outside."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import Field

from spanwise.pipelines.input.service.wire.requests import Message, Name, Number, Text

Layout: TypeAlias = Annotated[
    tuple[tuple[Name, Annotated[str, Field(max_length=20)], Annotated[tuple[Number, ...], Field(max_length=32)]], ...],
    Field(max_length=10_000),
]
Wait: TypeAlias = Annotated[float, Field(ge=0, le=10)]


class GetTask(Message):
    worker: Name
    wait_s: Wait  #: how long the answer may wait for a task to be there


class Heartbeat(Message):
    worker: Name


class GetModel(Message):
    """The parameters: of a version that is being evaluated, or the current ones."""

    worker: Name
    version: Number | None = None
    have: int = -1  #: the version that the worker has, and need not be sent
    newer: bool = False  #: whether the answer is to wait for a version above that
    wait_s: Wait = 0.0


class ReportGradient(Message):
    """The arrays come with it."""

    worker: Name
    task: Number
    lease: Number
    batch: Number  #: its place in the task
    version: Number  #: of the parameters
    rows: Number
    layout: Layout


class ReportTask(Message):
    """Every batch of the task was computed; predictions come with it, as an Arrow file."""

    worker: Name
    task: Number
    lease: Number
    batches: Number
    rows: Number
    metrics: Annotated[dict[Name, float], Field(max_length=1_000)]  #: sums of means times rows
    seconds: dict[Name, float]  #: of this worker by phase, since its last report


class ReportFailure(Message):
    worker: Name
    task: Number
    lease: Number
    message: Text
    trace: Text
