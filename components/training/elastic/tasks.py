"""Tasks: which rows are to be done, by whom and until when, and what is done. Pure; time is told, nothing is read.

A task is leased. Whoever holds its newest lease may count batches of it and finish it; a lease that ran out or whose
worker is gone sends the task to the next who asks, and what its former holder says of it is refused from then on. So
every task, and of a training task every batch, counts exactly once, in whatever order workers come, fail and go.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """What is done with the rows of a task."""

    TRAINING = "training"
    EVALUATION = "evaluation"
    PREDICTION = "prediction"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a job is to do. A shard is rows that are read together, such as a row group; it is known by its place."""

    training: tuple[int, ...] = ()  #: rows of each shard
    evaluation: tuple[int, ...] = ()
    prediction: tuple[int, ...] = ()
    task_rows: int  #: how many rows a task has at most
    epochs: int = 1  #: how often the training rows are done
    evaluate_every: int | None = None  #: versions of the model; None evaluates at the end of each epoch
    seed: int = 0  #: of the order of shards, which is another one in each epoch
    lease_s: float = 30.0  #: for how long a worker may be silent
    max_failures: int = 3  #: how often a task may fail and is tried again


@dataclass(frozen=True, kw_only=True)
class Task:
    """A range of rows of one shard, and what is to be done with them."""

    number: int  #: unique in the job
    kind: Kind
    shard: int
    start: int
    stop: int
    epoch: int = 0
    version: int = 0  #: of the model that is evaluated


@dataclass(frozen=True, kw_only=True)
class Lease:
    """The right to do a task, of one worker and for a time."""

    task: Task
    number: int  #: unique in the job; of two leases of a task the higher is the newer
    worker: str
    until_s: float
    counted: int  #: how many of its batches count already and are to be left out


class Table:
    """The tasks of a job, and where each of them stands."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.done: Counter[Kind] = Counter()  #: tasks
        self.given_up: Task | None = None  #: the first one that failed too often
        self._numbers = self._leases = 0  # given so far
        self._begun = self._ended = 0  # epochs
        self._evaluated = -1  # the newest version for which there is or was an evaluation
        self._is_due = False  # whether an evaluation is
        self._todo: deque[Task] = deque()
        self._doing: dict[int, Lease] = {}
        self._last: dict[str, tuple[int, int]] = {}  # the task that a worker has finished last, and its lease
        self._counted: Counter[int] = Counter()  # batches, by task
        self._failures: Counter[int] = Counter()
        self._left: Counter[int] = Counter()  # training tasks that are not done, by epoch
        self._versions: Counter[int] = Counter()  # evaluation tasks that are not done, by version
        if plan.prediction:
            self._todo.extend(self._made(Kind.PREDICTION, plan.prediction))
        elif not plan.training:
            self._evaluate(0)

    # What a worker may do

    def take(self, worker: str, now_s: float) -> Lease | None:
        """A lease on the next task; None if there is none to be had, now or at all."""
        self.expire(now_s)
        if not self._todo:
            self._begin_epoch()
        if not self._todo:
            return None
        task = self._todo.popleft()
        self._leases += 1
        lease = Lease(
            task=task,
            number=self._leases,
            worker=worker,
            until_s=now_s + self.plan.lease_s,
            counted=self._counted[task.number],
        )
        self._doing[task.number] = lease
        return lease

    def renew(self, worker: str, now_s: float) -> None:
        """Its leases begin anew: it has been heard of."""
        for number, lease in self._doing.items():
            if lease.worker == worker:
                self._doing[number] = replace(lease, until_s=now_s + self.plan.lease_s)

    def held(self, task: int, lease: int) -> Lease | None:
        """The lease, if it is the one of this task that counts."""
        found = self._doing.get(task)
        return found if found is not None and found.number == lease else None

    def next_batch(self, task: int) -> int:
        """How many batches of it count, which is the number of the one that would count next."""
        return self._counted[task]

    def count(self, task: int, lease: int) -> None:
        """One more batch of it counts, whoever goes on with it."""
        assert self.held(task, lease), "who counts has looked"
        self._counted[task] += 1

    def finish(self, task: int, lease: int) -> bool:
        """The task is done, if the lease holds; what was done under this lease before is said to be done again."""
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
        if done.kind is Kind.EVALUATION:
            self._less(self._versions, done.version)
        elif done.kind is Kind.TRAINING:
            self._less(self._left, done.epoch)
            if done.epoch not in self._left:
                self._ended += 1
                self._is_due |= self.plan.evaluate_every is None or self._ended == self.plan.epochs
        return True

    def fail(self, task: int, lease: int) -> bool:
        """It is tried again, by whoever asks next, or given up; nothing happens if the lease does not hold."""
        held = self.held(task, lease)
        if held is None:
            return False
        self._again([held])
        self._failures[task] += 1
        if self._failures[task] > self.plan.max_failures and self.given_up is None:
            self.given_up = self._todo[0]
        return True

    # Who is gone

    def lose(self, worker: str) -> tuple[Task, ...]:
        """A worker is gone, and its tasks are free again. That is not the tasks' failure: workers come and go."""
        return self._again([lease for lease in self._doing.values() if lease.worker == worker])

    def expire(self, now_s: float) -> tuple[Task, ...]:
        """Tasks whose leases have run out are free again."""
        return self._again([lease for lease in self._doing.values() if lease.until_s < now_s])

    def _again(self, leases: Sequence[Lease]) -> tuple[Task, ...]:
        """In front of all others, in the order in which they were taken."""
        tasks = tuple(lease.task for lease in leases)
        for task in tasks:
            del self._doing[task.number]
        self._todo.extendleft(reversed(tasks))
        return tasks

    # How the job stands

    @property
    def is_finished(self) -> bool:
        """Whether nothing is left to do."""
        left = self._todo or self._doing or self._is_due or self._begun < self._epochs
        return not left and self.given_up is None

    @property
    def epoch(self) -> int:
        """How many epochs were begun."""
        return self._begun

    def trainers(self) -> set[str]:
        """The workers that hold a training task."""
        return {lease.worker for lease in self._doing.values() if lease.task.kind is Kind.TRAINING}

    def versions(self) -> set[int]:
        """The versions of the model for which an evaluation goes on."""
        return set(self._versions)

    # What comes next

    @property
    def _epochs(self) -> int:
        return self.plan.epochs if self.plan.training else 0

    def _begin_epoch(self) -> None:
        if self._begun == self._epochs:
            return
        order = list(range(len(self.plan.training)))
        random.Random(f"{self.plan.seed} {self._begun}").shuffle(order)  # noqa: S311  no secret
        tasks = list(self._made(Kind.TRAINING, self.plan.training, order=order, epoch=self._begun))
        self._left[self._begun] = len(tasks)
        self._todo.extend(tasks)
        self._begun += 1

    def evaluate_if_due(self, version: int) -> bool:
        """Adds the tasks of an evaluation, before all others; to be called when a version or an epoch is complete."""
        every = self.plan.evaluate_every
        due = self._is_due or (every is not None and version > 0 and version % every == 0)
        self._is_due = False
        if not due or version == self._evaluated or not self.plan.evaluation or not self.plan.training:
            return False
        self._evaluate(version)
        return True

    def _evaluate(self, version: int) -> None:
        tasks = list(self._made(Kind.EVALUATION, self.plan.evaluation, version=version))
        self._versions[version] = len(tasks)
        self._evaluated = version
        self._todo.extendleft(reversed(tasks))

    def _made(
        self, kind: Kind, shards: Sequence[int], *, order: Iterable[int] | None = None, epoch: int = 0, version: int = 0
    ) -> Iterator[Task]:
        size = self.plan.task_rows
        for shard in range(len(shards)) if order is None else order:
            for start in range(0, shards[shard], size):
                stop = min(start + size, shards[shard])
                number, self._numbers = self._numbers, self._numbers + 1
                yield Task(number=number, kind=kind, shard=shard, start=start, stop=stop, epoch=epoch, version=version)

    @staticmethod
    def _less(counter: Counter[int], key: int) -> None:
        counter[key] -= 1
        if not counter[key]:
            del counter[key]

    # How it is kept

    def state(self) -> dict[str, Any]:
        """All of it but the leases, in plain data: who goes on with it has other workers."""
        tasks = [*(lease.task for lease in self._doing.values()), *self._todo]
        return {
            "plan": repr(self.plan),
            "tasks": [astuple(task) for task in tasks],
            "done": dict(self.done),
            "numbers": [self._numbers, self._leases, self._begun, self._ended, self._evaluated],
            "due": self._is_due,
            "counted": _listed(self._counted),
            "failures": _listed(self._failures),
            "left": _listed(self._left),
            "versions": _listed(self._versions),
        }

    @classmethod
    def restored(cls, plan: Plan, state: dict[str, Any]) -> Table | None:
        """The table whose state it was; None if that was one of another plan."""
        if state["plan"] != repr(plan):
            return None
        table = cls(plan)
        table._todo = deque(
            Task(number=number, kind=Kind(kind), shard=shard, start=start, stop=stop, epoch=epoch, version=version)
            for number, kind, shard, start, stop, epoch, version in state["tasks"]
        )
        table.done = Counter({Kind(kind): count for kind, count in state["done"].items()})
        table._numbers, table._leases, table._begun, table._ended, table._evaluated = state["numbers"]
        table._is_due = state["due"]
        table._counted = Counter(dict(state["counted"]))
        table._failures = Counter(dict(state["failures"]))
        table._left = Counter(dict(state["left"]))
        table._versions = Counter(dict(state["versions"]))
        return table


def _listed(counter: Counter[int]) -> list[tuple[int, int]]:
    """Pairs, since a key of JSON is a text."""
    return [(key, count) for key, count in counter.items() if count]
