"""Every request of the data service, with its answer: one record each, built by who asks and checked by who answers."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Generic, Literal, Self, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from spanwise.pipelines.input.service.policy import ShardingPolicy
from spanwise.pipelines.input.service.wire.security import Role
from spanwise.pipelines.input.snapshot.state import ChunkRecord

Number: TypeAlias = Annotated[int, Field(ge=0, lt=1 << 62)]
Text: TypeAlias = Annotated[str, Field(max_length=10_000)]
Name: TypeAlias = Annotated[str, Field(min_length=1, max_length=500)]
OptionalName: TypeAlias = Annotated[str, Field(max_length=500)]
Tasks: TypeAlias = Annotated[tuple[Number, ...], Field(max_length=100_000)]

MAX_SHARDS = 10_000
MAX_ROUNDS_AHEAD = 1_024
"""How many rounds of a coordinated read a worker or a consumer holds ahead of the current round."""


class ServiceMessage(BaseModel):
    """What one member of a service sends another."""

    model_config = ConfigDict(extra="forbid", frozen=True)


_Answer = TypeVar("_Answer", bound=ServiceMessage)


class Request(ServiceMessage, Generic[_Answer]):
    """A message that is answered by `Request[Answer]`'s argument."""

    kind: ClassVar[str]  #: its name on the wire and in metrics
    role: ClassVar[Role | None]  #: whose token allows it, beside the one that allows everything; None: any
    answer: ClassVar[type[ServiceMessage]]

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        arguments = cls.__pydantic_generic_metadata__["args"]
        if arguments and isinstance(arguments[0], type):
            cls.answer = arguments[0]


class Done(ServiceMessage):
    """The answer of a request that asks for nothing."""


# Datasets.


class RegisterDataset(Request[Done]):
    """The pickled graph comes with it. Also a record of the dispatcher's journal."""

    kind: ClassVar = "put_dataset"
    role: ClassVar = "all"

    dataset: Name  #: its id
    structure: Text  #: a description of its elements: equal for equal structures
    splits: Annotated[tuple[Number, ...], Field(max_length=10_000)]  #: how many splits each of its sources has
    unsplittable: Text = ""  #: why it has no splits
    unleasable: Text = ""  #: why a split cannot be produced without the others
    infinite: bool = False  #: whether a pass never ends
    opaque: Text = ""  #: why an equal dataset may have another id


class GetDataset(Request[Done]):
    """The pickled graph comes with the answer."""

    kind: ClassVar = "get_dataset"
    role: ClassVar = None

    dataset: Name


# Workers.


class WorkerLoad(ServiceMessage):
    """What a worker has done since it started, and what it holds."""

    busy_s: Annotated[float, Field(ge=0)] = 0.0  #: spent on producing elements, over all tasks, without waiting
    given: Number = 0  #: elements sent
    given_bytes: Number = 0
    buffered_bytes: Number = 0  #: ready and not sent yet
    lent_bytes: Number = 0  #: of shared memory


class TaskAssignment(ServiceMessage):
    """A task that a worker is to run."""

    task: int
    dataset: str
    mode: ShardingPolicy
    seed: int
    shards: int  #: of static sharding
    index: int  #: the worker's shard of these; in dynamic sharding the task's number, counted from that of its job
    consumers: int  #: of a coordinated read; 0 for first come, first served
    cached: bool  #: whether trainers share a window
    epoch: Name = "0"  #: which of the consumers' iterations


class StartSave(Request[Done]):
    """Has the workers write a snapshot of a dataset. Also a record of the journal, and what workers are sent."""

    kind: ClassVar = "start_save"
    role: ClassVar = "all"

    save: Name  #: its id: that of the run in the snapshot's folder
    dataset: Name
    path: Text  #: of the snapshot, as workers reach it
    fingerprint: Name
    compression: Literal["auto", "none", "lz4", "zstd", "gzip", "snappy"]
    shards: Annotated[int, Field(gt=0, le=MAX_SHARDS)]
    seed: Number  #: for the dataset's ops without a seed


class Assignments(ServiceMessage):
    """All that a worker is to do."""

    tasks: tuple[TaskAssignment, ...]
    saves: tuple[StartSave, ...]
    gone: tuple[int, ...] = ()  #: of the clients that it waits for
    over: tuple[int, ...] = ()  #: of the drained tasks, those that no consumer can ask for


class TaskFailure(ServiceMessage):
    """The error that has ended the pass of a task."""

    task: Number
    error: Name  #: its class
    text: Text


class Heartbeat(Request[Assignments]):
    """The first one registers the worker."""

    kind: ClassVar = "heartbeat"
    role: ClassVar = "worker"

    worker: Name
    address: Name
    process: Name
    tasks: Tasks = ()  #: that it runs
    drained: Tasks = ()  #: that it has finished, and still answers
    finished: Tasks = ()  #: since the last heartbeat
    failed: Annotated[tuple[TaskFailure, ...], Field(max_length=100_000)] = ()  #: of these, by an error
    awaited: Tasks = ()  #: clients of drained tasks, which have not said that their last answer has arrived
    wait_s: Annotated[float, Field(ge=0, le=10)]  #: how long the answer may wait for a change
    load: WorkerLoad = WorkerLoad()


class SplitRange(ServiceMessage):
    """Splits `first` to `first + count - 1`; none if the source has none left in this repetition."""

    first: int
    count: int
    below: int  #: repetitions before this one have no splits left


class TakeSplits(Request[SplitRange]):
    """A task wants more splits."""

    kind: ClassVar = "deal"
    role: ClassVar = "worker"

    task: Number
    number: Number  #: of the request: one that is repeated gets the same answer
    source: Number
    repetition: Number


# Consumers.


class Membership(ServiceMessage):
    """A consumer that has joined a job."""

    client: int
    seed: int  #: the job's


SplitPlaces: TypeAlias = Annotated[tuple[tuple[Number, Number], ...], Field(max_length=100_000)]
"""Splits, each with a number of its elements."""


class ResumedLeases(ServiceMessage):
    """What a consumer held that stored its state, with how many elements of each split lie before that state."""

    done: SplitPlaces = ()  #: splits that lie before it as a whole; and how many were committed when it was taken
    held: SplitPlaces = ()  #: splits that it goes on with


class JoinJob(Request[Membership]):
    kind: ClassVar = "join"
    role: ClassVar = "consumer"

    dataset: Name
    mode: ShardingPolicy
    name: OptionalName
    epoch: Name
    key: OptionalName = ""  #: who joins again with the same key is the same consumer; it is a secret
    cached: bool = False  #: whether trainers share a window
    private: bool = False  #: whether nobody else joins the job, except the same consumer with its state
    holder: OptionalName = ""  #: the same for a consumer and those that are restored from its states
    resumes: bool = False  #: whether it was restored, and so wants no other job
    index: Number | None = None  #: of the consumer, in a coordinated read
    consumers: Number = 0  #: how many there are

    @model_validator(mode="after")
    def _has_seat(self) -> Self:
        is_free = self.index is None and not self.consumers
        if not is_free and not (self.index is not None and self.index < self.consumers and self.key):
            raise ValueError(f"it comes from consumer {self.index} of {self.consumers} with the key {self.key!r:.40}")
        return self


class RoundReport(ServiceMessage):
    """How far a consumer of a coordinated read has come."""

    plans: Number  #: that it knows
    ready: Number  #: it holds all rounds below, by these plans
    agreed: Number  #: it may yield all rounds below


class RoundPlan(ServiceMessage):
    """From round `first` on these tasks serve in turn."""

    first: int
    tasks: tuple[int, ...]


class JobView(ServiceMessage):
    """What a consumer can read from, and whether more is to come."""

    tasks: tuple[tuple[int, str], ...]  #: each with its worker's address
    workers: tuple[str, ...] = ()  #: addresses, if the consumer leases splits
    leasable: bool = False  #: whether it can lease more, or nothing more will come
    finished: bool
    failures: tuple[TaskFailure, ...] = ()  #: that have ended passes: something is missing
    plans: tuple[RoundPlan, ...] = ()  #: of a coordinated read: those that the consumer does not know
    agreed: int = 0  #: all consumers hold the rounds below
    gone: int | None = None  #: a consumer that has left
    again_s: float = 0.0  #: when to ask again
    poisoned: tuple[int, int] | None = None  #: source and number of a split that ends each worker that produces it


class PollJob(Request[JobView]):
    """A consumer's heartbeat: is there anything new to read?"""

    kind: ClassVar = "look"
    role: ClassVar = "consumer"

    client: Number
    key: OptionalName = ""  #: with which it joined: nobody else speaks for it
    targets: tuple[Name, ...] | Literal["any", "local"]
    process: Name
    tasks: Tasks = ()  #: that it knows
    waited_s: Annotated[float, Field(ge=0)] = 0.0  #: for elements, since it started
    given: Number = 0  #: elements and blocks that it has yielded
    rounds: RoundReport | None = None
    wait_s: Annotated[float, Field(ge=0, le=10)]


class LeaveJob(Request[Done]):
    kind: ClassVar = "leave"
    role: ClassVar = "consumer"

    client: Number
    key: OptionalName = ""  #: with which it joined: nobody else speaks for it


class HeldSplits(ServiceMessage):
    held: tuple[tuple[int, int], ...]  #: splits, and how many elements of each are committed
    more: bool = False  #: whether there are splits that nobody holds
    finished: bool  #: whether the consumer will get no more splits


class ExchangeSplits(Request[HeldSplits]):
    """A consumer commits what it has used of its splits, and leases more until it holds `want`."""

    kind: ClassVar = "lease"
    role: ClassVar = "consumer"

    client: Number
    key: OptionalName = ""  #: with which it joined: nobody else speaks for it
    number: Number  #: of the message: one that arrives behind a later one of its client changes nothing
    resumed: ResumedLeases | None = None  #: by a consumer that was restored, until it is answered; alone
    done: Annotated[tuple[Number, ...], Field(max_length=100_000)] = ()  #: splits whose elements are all committed
    progress: SplitPlaces = ()  #: others, and how many elements of each are committed
    want: Number
    at_end: bool = False  #: whether it has yielded all it holds, by the answer to its last message, and waits
    keeps: bool = False  #: whether it stores its state: it commits by itself, and may come back


class WorkerStatus(WorkerLoad):
    address: str
    worker: str
    tasks: int
    busy: float  #: the share of its time that it has recently spent on producing elements
    given_per_s: float
    bytes_per_s: float


class JobStatus(ServiceMessage):
    job: int
    name: str
    dataset: str
    mode: ShardingPolicy
    tasks: int
    tasks_finished: int
    consumers: int
    starved: float  #: the share of their time that its consumers have recently spent waiting
    rate: float  #: elements and blocks per second
    given: int  #: elements and blocks
    splits_leased: int
    finished: bool


class ServiceStatus(ServiceMessage):
    """What a dispatcher knows of its service."""

    target: str
    workers: tuple[WorkerStatus, ...]
    wanted: int  #: how many workers would match what consumers take
    jobs: tuple[JobStatus, ...]
    datasets: int
    splits_dealt: int
    requests: dict[str, int]  #: since it started, by kind
    errors: dict[str, int]


class GetStatus(Request[ServiceStatus]):
    kind: ClassVar = "status"
    role: ClassVar = None


class Fetch(ServiceMessage):
    """A ticket: elements of a task, or of a split that the client has leased."""

    task: Number | None = None
    split: Number | None = None
    dataset: OptionalName = ""  #: of the split
    seed: Number = 0  #: of the split's job
    epoch: Name = "0"  #: which of the consumers' iterations the split's job is
    client: Number
    number: Number = 0  #: of the request: one that is repeated gets the same answer
    received: bool = False  #: asks for nothing: the answer of this number has come
    index: Number | None = None  #: of the consumer, in a coordinated read
    trainer: OptionalName = ""  #: that shares a window
    limit_bytes: Annotated[int, Field(gt=0, le=1 << 30)]
    compression: Literal["lz4", "zstd"] | None = None
    host: OptionalName | None = None  #: whose memory the client can map
    returned: Annotated[tuple[Number, ...], Field(max_length=1_000)] = ()  #: segments that it no longer uses


# Saves.


class WriteShard(ServiceMessage):
    do: Literal["write"] = "write"
    shard: int


class CommitSave(ServiceMessage):
    """All shards are written: these files, in this order, are the snapshot."""

    do: Literal["commit"] = "commit"
    chunks: tuple[ChunkRecord, ...]


class AbandonSave(ServiceMessage):
    """The snapshot's folder is to record why the save failed."""

    do: Literal["giveup"] = "giveup"
    error: str


class WaitForWriters(ServiceMessage):
    """Other workers write the remaining shards."""

    do: Literal["wait"] = "wait"


class LeaveSave(ServiceMessage):
    """The save is over."""

    do: Literal["end"] = "end"


SaveStep: TypeAlias = WriteShard | CommitSave | AbandonSave | WaitForWriters | LeaveSave


class NextStep(ServiceMessage):
    step: Annotated[SaveStep, Field(discriminator="do")]


class NextShard(Request[NextStep]):
    """A worker asks what it can do for a save."""

    kind: ClassVar = "next_shard"
    role: ClassVar = "worker"

    save: Name
    worker: Name


class Acceptance(ServiceMessage):
    kept: bool  #: whether the shard counts


class KeepShard(Request[Acceptance]):
    """A worker has written a shard into these files. Also a record of the journal."""

    kind: ClassVar = "keep_shard"
    role: ClassVar = "worker"

    save: Name
    worker: Name
    shard: Number
    chunks: Annotated[tuple[ChunkRecord, ...], Field(max_length=MAX_SHARDS)]


class FailSave(Request[Done]):
    """A save cannot be completed. Also a record of the journal."""

    kind: ClassVar = "fail_save"
    role: ClassVar = "worker"

    save: Name
    error: Annotated[str, Field(min_length=1, max_length=10_000)]


class EndSave(Request[Done]):
    """The snapshot's folder records how the save ended. Also a record of the journal."""

    kind: ClassVar = "end_save"
    role: ClassVar = "worker"

    save: Name


class SaveProgress(ServiceMessage):
    going: bool
    written: int  #: shards


class PollSave(Request[SaveProgress]):
    kind: ClassVar = "look_save"
    role: ClassVar = "consumer"

    save: Name
