"""The records of a dispatcher: every change of its state is one of these. The journal stores them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from spanwise.pipelines.input.service.policy import ShardingPolicy
from spanwise.pipelines.input.service.saves.state import SaveRecord
from spanwise.pipelines.input.service.wire.requests import RegisterDataset, RoundPlan, TaskFailure


@dataclass(frozen=True, kw_only=True)
class RegisterWorker:
    worker: str  #: one life of a worker; a restarted worker has another one
    address: str
    process: str  #: host and pid, so that a consumer can recognise a worker in its own process
    shard: int | None = None  #: its index in the dispatcher's list of workers


@dataclass(frozen=True, kw_only=True)
class RemoveWorker:
    worker: str


@dataclass(frozen=True, kw_only=True)
class StoreGraph:
    """The pickled graph of a dataset is stored under a name, beside the journal."""

    dataset: str
    name: str


@dataclass(frozen=True, kw_only=True)
class CreateJob:
    job: int
    dataset: str
    mode: ShardingPolicy
    name: str  #: by which consumers share it; empty for a job of one consumer
    epoch: str  #: which of the consumers' iterations
    shards: int = 0  #: how many workers share it by static sharding
    seed: int = 0  #: of all its workers, if the dataset has none; unused under OFF
    consumers: int = 0  #: how many read it in coordination; 0 for first come, first served
    cached: bool = False  #: whether trainers share a window
    private: bool = False  #: whether it is one consumer's, which comes back only with its state


@dataclass(frozen=True, kw_only=True)
class CollectJob:
    job: int


@dataclass(frozen=True, kw_only=True)
class FinishedJob:
    """A job that hands out splits was read to its end, and was collected since: its name stays used."""

    name: str
    dataset: str
    epoch: str


@dataclass(frozen=True, kw_only=True)
class AcquireClient:
    client: int
    job: int
    index: int | None = None  #: in a coordinated read
    key: str = ""  #: of who joined, so that a lost answer can be repeated
    holder: str = ""  #: the same for a consumer and those that are restored from its states


@dataclass(frozen=True, kw_only=True)
class ReleaseClient:
    client: int


@dataclass(frozen=True, kw_only=True)
class CreateTask:
    task: int
    job: int
    worker: str


@dataclass(frozen=True, kw_only=True)
class PlanRounds:
    job: int
    plan: RoundPlan


@dataclass(frozen=True, kw_only=True)
class FinishTask:
    task: int
    failure: TaskFailure | None = None  #: the error that has ended its pass


@dataclass(frozen=True, kw_only=True)
class ProduceSplits:
    """A task got the splits `first` to `first + count - 1` of a source; `count` 0 says that none were left."""

    task: int
    number: int  #: of the task's request: one that is repeated gets the same answer
    source: int
    repetition: int
    first: int
    count: int


@dataclass(frozen=True, kw_only=True)
class LeaseSplits:
    """A client has committed some splits, and holds others until it commits them or is gone."""

    client: int
    done: tuple[int, ...] = ()
    progress: tuple[tuple[int, int], ...] = ()  #: splits of which it has committed so many elements
    taken: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class KeepJob:
    """A consumer stores its state, and so may come back to the job."""

    job: int


@dataclass(frozen=True)
class LostTask:
    """A task whose worker was lost while it had splits."""

    before: int  #: tasks with smaller numbers were there already
    splits: tuple[tuple[int, int, int], ...]  #: that it may have been producing: source, first, count
    worker: str = ""


@dataclass(frozen=True, kw_only=True)
class JobProgress:
    """How far a job has come, in a compacted journal."""

    job: int
    sources: tuple[tuple[int, tuple[tuple[int, int], ...]], ...]  #: of each `SourceProgress`: below, taken
    cursor: int
    returned: tuple[int, ...]
    leased: tuple[tuple[int, int], ...]
    progress: tuple[tuple[int, int], ...] = ()
    forfeited: tuple[tuple[int, tuple[str, ...]], ...] = ()
    kept: bool = False
    lost: tuple[LostTask, ...] = ()
    failures: tuple[TaskFailure, ...] = ()
    ever_finished: bool
    shards_done: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class ContinueNumbers:
    """The next number, in a compacted journal."""

    next_id: int


Record: TypeAlias = (
    RegisterDataset
    | StoreGraph
    | RegisterWorker
    | RemoveWorker
    | CreateJob
    | CollectJob
    | FinishedJob
    | AcquireClient
    | ReleaseClient
    | CreateTask
    | PlanRounds
    | FinishTask
    | ProduceSplits
    | LeaseSplits
    | KeepJob
    | JobProgress
    | ContinueNumbers
    | SaveRecord
)
