"""The task table of an elastic job: open tasks, leases and progress. Pure: time is an argument, no data is read.

Workers lease tasks. Only the holder of the newest lease may count batches of a task and finish it. When a lease expires
or its worker is gone, the next worker gets the task, and reports of the former holder are refused. So every task, and
every batch of a training task, counts exactly once, in whatever order workers come, fail and go.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from pydantic import TypeAdapter


class TaskKind(StrEnum):
    """What a worker does with the rows of a task."""

    TRAINING = "training"
    EVALUATION = "evaluation"
    PREDICTION = "prediction"


@dataclass(frozen=True, kw_only=True)
class JobPlan:
    """The work of a job. A shard is a run of rows that are read together, such as a row group."""

    training: tuple[int, ...] = ()  #: rows of each shard
    evaluation: tuple[int, ...] = ()
    prediction: tuple[int, ...] = ()
    task_rows: int  #: at most, in a task
    epochs: int = 1  #: passes over the training rows
    evaluate_every: int | None = None  #: versions of the model; None evaluates at the end of each epoch
    seed: int = 0  #: of the order of shards, which differs from epoch to epoch
    lease_s: float = 30.0  #: how long a worker may be silent
    max_failures: int = 3  #: of one task, each followed by a retry; one more ends the job


@dataclass(frozen=True, kw_only=True)
class ShardTask:
    """A range of rows of one shard, and what to do with them."""

    number: int  #: unique in the job
    kind: TaskKind
    shard: int
    start: int
    stop: int
    epoch: int = 0
    version: int = 0  #: of the model that is evaluated


SHARD_TASK: Final = TypeAdapter(ShardTask)


@dataclass(frozen=True, kw_only=True)
class TaskLease:
    """The right of one worker to do a task, for a limited time."""

    task: ShardTask
    number: int  #: unique in the job; of two leases of a task the higher is the newer
    worker: str
    until_s: float
    counted: int  #: batches that already count and are to be skipped


class TaskTable:
    """The tasks of a job and their progress."""

    def __init__(self, plan: JobPlan) -> None:
        self.plan = plan
        self.done: Counter[TaskKind] = Counter()  #: tasks
        self.given_up: ShardTask | None = None  #: the first one that failed too often
        self._numbers = self._leases = 0  # assigned so far
        self._begun = self._ended = 0  # epochs
        self._evaluated = -1  # the newest version that is or was evaluated
        self._is_due = False  # whether an evaluation is due
        self._todo: deque[ShardTask] = deque()
        self._doing: dict[int, TaskLease] = {}
        self._last: dict[str, tuple[int, int]] = {}  # each worker's last finished task, and its lease
        self._counted: Counter[int] = Counter()  # batches, by task
        self._failures: Counter[int] = Counter()
        self._unfinished: Counter[int] = Counter()  # training tasks, by epoch
        self._versions: Counter[int] = Counter()  # unfinished evaluation tasks, by version
        if plan.prediction:
            self._todo.extend(self._create(TaskKind.PREDICTION, plan.prediction))
        elif not plan.training:
            self._evaluate(0)

    # Requests of workers

    def take(self, worker: str, now_s: float) -> TaskLease | None:
        """Leases the next task to a worker; None if there is none, now or ever."""
        self.expire(now_s)
        if not self._todo:
            self._begin_epoch()
        if not self._todo:
            return None
        task = self._todo.popleft()
        self._leases += 1
        lease = TaskLease(
            task=task,
            number=self._leases,
            worker=worker,
            until_s=now_s + self.plan.lease_s,
            counted=self._counted[task.number],
        )
        self._doing[task.number] = lease
        return lease

    def renew(self, worker: str, now_s: float) -> None:
        """Extends all leases of a worker that gave a sign of life."""
        for number, lease in self._doing.items():
            if lease.worker == worker:
                self._doing[number] = replace(lease, until_s=now_s + self.plan.lease_s)

    def held(self, task: int, lease: int) -> TaskLease | None:
        """The lease, if it is the current one of the task."""
        current = self._doing.get(task)
        return current if current is not None and current.number == lease else None

    def next_batch(self, task: int) -> int:
        """The number of the next batch to count, which is the count so far."""
        return self._counted[task]

    def count(self, task: int, lease: int) -> None:
        """Counts one more batch of the task, whoever continues with it."""
        assert self.held(task, lease), "the caller has checked"
        self._counted[task] += 1

    def finish(self, task: int, lease: int) -> bool:
        """Finishes the task if the lease is current; repeating a report returns True again."""
        if (task, lease) in self._last.values():
            return True
        held = self.held(task, lease)
        if held is None:
            return False
        del self._doing[task]
        self._last[held.worker] = (task, lease)
        done = held.task
        self._counted.pop(task, None)
        self._failures.pop(task, None)
        self.done[done.kind] += 1
        if done.kind is TaskKind.EVALUATION:
            self._decrement(self._versions, done.version)
        elif done.kind is TaskKind.TRAINING:
            self._decrement(self._unfinished, done.epoch)
            if done.epoch not in self._unfinished:
                self._ended += 1
                self._is_due |= self.plan.evaluate_every is None or self._ended == self.plan.epochs
        return True

    def fail(self, task: int, lease: int) -> bool:
        """Puts the task back, or gives it up after too many failures; refuses a lease that is not current."""
        held = self.held(task, lease)
        if held is None:
            return False
        self._put_back([held])
        self._failures[task] += 1
        if self._failures[task] > self.plan.max_failures and self.given_up is None:
            self.given_up = self._todo[0]
        return True

    # Lost workers

    def lose(self, worker: str) -> tuple[ShardTask, ...]:
        """Puts back the tasks of a worker that is gone. It does not count as their failure: workers come and go."""
        return self._put_back([lease for lease in self._doing.values() if lease.worker == worker])

    def expire(self, now_s: float) -> tuple[ShardTask, ...]:
        """Puts back the tasks whose leases have expired."""
        return self._put_back([lease for lease in self._doing.values() if lease.until_s < now_s])

    def _put_back(self, leases: Sequence[TaskLease]) -> tuple[ShardTask, ...]:
        """Puts tasks in front of all others, in the order in which they were leased."""
        tasks = tuple(lease.task for lease in leases)
        for task in tasks:
            del self._doing[task.number]
        self._todo.extendleft(reversed(tasks))
        return tasks

    # Progress

    @property
    def is_finished(self) -> bool:
        """Whether no task is open and none was given up."""
        is_open = self._todo or self._doing or self._is_due or self._begun < self._epochs
        return not is_open and self.given_up is None

    @property
    def epoch(self) -> int:
        """The number of epochs that have begun."""
        return self._begun

    def trainers(self) -> set[str]:
        """The workers that hold a training task."""
        return {lease.worker for lease in self._doing.values() if lease.task.kind is TaskKind.TRAINING}

    def versions(self) -> set[int]:
        """The versions of the model that are being evaluated."""
        return set(self._versions)

    # New tasks

    @property
    def _epochs(self) -> int:
        return self.plan.epochs if self.plan.training else 0

    def _begin_epoch(self) -> None:
        if self._begun == self._epochs:
            return
        order = list(range(len(self.plan.training)))
        random.Random(f"{self.plan.seed} {self._begun}").shuffle(order)  # noqa: S311  no secret
        tasks = list(self._create(TaskKind.TRAINING, self.plan.training, order=order, epoch=self._begun))
        self._unfinished[self._begun] = len(tasks)
        self._todo.extend(tasks)
        self._begun += 1

    def evaluate_if_due(self, version: int) -> bool:
        """Adds the tasks of an evaluation before all others; call it when a version or an epoch is complete."""
        every = self.plan.evaluate_every
        due = self._is_due or (every is not None and version > 0 and version % every == 0)
        self._is_due = False
        if not due or version == self._evaluated or not self.plan.evaluation or not self.plan.training:
            return False
        self._evaluate(version)
        return True

    def _evaluate(self, version: int) -> None:
        tasks = list(self._create(TaskKind.EVALUATION, self.plan.evaluation, version=version))
        self._versions[version] = len(tasks)
        self._evaluated = version
        self._todo.extendleft(reversed(tasks))

    def _create(
        self,
        kind: TaskKind,
        shards: Sequence[int],
        *,
        order: Iterable[int] | None = None,
        epoch: int = 0,
        version: int = 0,
    ) -> Iterator[ShardTask]:
        size = self.plan.task_rows
        for shard in range(len(shards)) if order is None else order:
            for start in range(0, shards[shard], size):
                stop = min(start + size, shards[shard])
                number, self._numbers = self._numbers, self._numbers + 1
                yield ShardTask(
                    number=number, kind=kind, shard=shard, start=start, stop=stop, epoch=epoch, version=version
                )

    @staticmethod
    def _decrement(counter: Counter[int], key: int) -> None:
        counter[key] -= 1
        if not counter[key]:
            del counter[key]

    # Checkpoints

    def state(self) -> dict[str, Any]:
        """Everything but the leases, as plain data: whoever resumes has other workers."""
        tasks = [*(lease.task for lease in self._doing.values()), *self._todo]
        return {
            "plan": repr(self.plan),
            "tasks": [SHARD_TASK.dump_python(task, mode="json") for task in tasks],
            "done": dict(self.done),
            "numbers": [self._numbers, self._leases, self._begun, self._ended, self._evaluated],
            "due": self._is_due,
            "counted": _pairs(self._counted),
            "failures": _pairs(self._failures),
            "left": _pairs(self._unfinished),
            "versions": _pairs(self._versions),
        }

    @classmethod
    def restored(cls, plan: JobPlan, state: dict[str, Any]) -> TaskTable | None:
        """The table with that state; None if the state belongs to another plan."""
        if state["plan"] != repr(plan):
            return None
        table = cls(plan)
        table._todo = deque(map(SHARD_TASK.validate_python, state["tasks"]))
        table.done = Counter({TaskKind(kind): count for kind, count in state["done"].items()})
        table._numbers, table._leases, table._begun, table._ended, table._evaluated = state["numbers"]
        table._is_due = state["due"]
        table._counted = Counter(dict(state["counted"]))
        table._failures = Counter(dict(state["failures"]))
        table._unfinished = Counter(dict(state["left"]))
        table._versions = Counter(dict(state["versions"]))
        return table


def _pairs(counter: Counter[int]) -> list[tuple[int, int]]:
    """As pairs, since the keys of a JSON object are strings."""
    return [(key, count) for key, count in counter.items() if count]
