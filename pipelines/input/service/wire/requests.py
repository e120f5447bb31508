"""What members of the service ask of each other, as it arrives from outside."""

from __future__ import annotations

from typing import Annotated, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

from spanwise.pipelines.input.service.policy import ShardingPolicy

Number: TypeAlias = Annotated[int, Field(ge=0, lt=1 << 62)]
Text: TypeAlias = Annotated[str, Field(max_length=10_000)]
Name: TypeAlias = Annotated[str, Field(min_length=1, max_length=500)]


class Request(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PutDataset(Request):
    """The graph comes with it."""

    dataset: Name
    structure: Text
    splits: Annotated[tuple[Number, ...], Field(max_length=10_000)]
    unsplittable: Text
    unleasable: Text
    infinite: bool


class GetDataset(Request):
    dataset: Name


class Load(Request):
    """What a worker has done since it began, and what it holds."""

    busy_s: Annotated[float, Field(ge=0)] = 0.0
    given: Number = 0
    given_bytes: Number = 0
    buffered_bytes: Number = 0
    lent_bytes: Number = 0


class Heartbeat(Request):
    """Of a worker, which is registered by its first one."""

    worker: Name
    address: Name
    process: Name
    tasks: Annotated[tuple[Number, ...], Field(max_length=100_000)]  #: that it has
    finished: Annotated[tuple[Number, ...], Field(max_length=100_000)]  #: since the last one
    wait_s: Annotated[float, Field(ge=0, le=10)]  #: how long the answer may wait for something new
    load: Load = Load()


class Join(Request):
    dataset: Name
    mode: ShardingPolicy
    name: Annotated[str, Field(max_length=500)]
    epoch: Name
    key: Annotated[str, Field(max_length=500)] = ""  #: who joins a coordinated read again by it is the same consumer
    cached: bool = False  #: whether trainers share a window
    index: Number | None = None  #: of the consumer, in a coordinated read
    consumers: Number = 0  #: how many there are

    @model_validator(mode="after")
    def _has_seat(self) -> Self:
        is_free = self.index is None and not self.consumers
        if not is_free and not (self.index is not None and self.index < self.consumers and self.key):
            raise ValueError(f"it comes from consumer {self.index} of {self.consumers} with the key {self.key!r:.40}")
        return self


class Rounds(Request):
    """How far a consumer of a coordinated read has come: see `rounds.Report`."""

    plans: Number
    ready: Number
    agreed: Number


class Look(Request):
    """A consumer's heartbeat: what is there to read?"""

    client: Number
    targets: tuple[Name, ...] | Literal["any", "local"]
    process: Name
    tasks: Annotated[tuple[Number, ...], Field(max_length=100_000)]  #: that it knows
    waited_s: Annotated[float, Field(ge=0)]  #: for elements, since it began
    given: Number  #: elements and blocks, since it began
    rounds: Rounds | None = None
    wait_s: Annotated[float, Field(ge=0, le=10)]


class Leave(Request):
    client: Number


class Deal(Request):
    task: Number
    number: Number
    source: Number
    repetition: Number


class Lease(Request):
    client: Number
    done: Annotated[tuple[Number, ...], Field(max_length=10_000)]
    want: Number


class Status(Request):
    pass


class Fetch(Request):
    """A ticket: elements of a task, or of a split that the client has leased."""

    task: Number | None = None
    split: Number | None = None
    dataset: Annotated[str, Field(max_length=500)] = ""  #: of the split
    seed: Number = 0  #: of the split's job
    client: Number
    number: Number  #: of the request: one that is made again is answered as before
    index: Number | None = None  #: of the consumer, in a coordinated read
    trainer: Annotated[str, Field(max_length=500)] = ""  #: that shares a window
    limit_bytes: Annotated[int, Field(gt=0, le=1 << 30)]
    compression: Literal["lz4", "zstd"] | None = None
    host: Annotated[str, Field(max_length=500)] | None = None  #: whose memory the client can map
    returned: Annotated[tuple[Number, ...], Field(max_length=1_000)] = ()  #: segments that it has done with
