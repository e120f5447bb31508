"""The course of one consumer through a coordinated read: what it holds, and which rounds it may yield. Pure."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import Generic, TypeVar

from spanwise.pipelines.input.service.wire.requests import RoundPlan, RoundReport


def task_of(plans: Sequence[RoundPlan], number: int) -> int | None:
    """The task that serves a round; None if no plan reaches it."""
    for plan in reversed(plans):
        if plan.first <= number:
            return plan.tasks[(number - plan.first) % len(plan.tasks)]
    return None


_Item = TypeVar("_Item")


class RoundCourse(Generic[_Item]):
    """Where one consumer stands: the elements it holds of each task, and the rounds that they belong to."""

    def __init__(self) -> None:
        self.known = 0  #: how many plans it knows
        self.next_round = 0  #: the round that is yielded next
        self.ready = 0  #: it holds all rounds below
        self.agreed = 0  #: it may yield all rounds below
        self._plans: list[RoundPlan] = []  # those in force from `next_round` on
        self._lanes: dict[int, deque[tuple[_Item, int]]] = {}  # by task: items and sizes
        self._sizes = Counter[int]()
        self._assigned = Counter[int]()  # by task: items of the rounds from `next_round` to `ready`

    @property
    def report(self) -> RoundReport:
        return RoundReport(plans=self.known, ready=self.ready, agreed=self.agreed)

    @property
    def may_yield(self) -> bool:
        return self.next_round < min(self.agreed, self.ready)

    def held(self, task: int) -> tuple[int, int]:
        """How many items of a task it holds, and their size in bytes."""
        return len(self._lanes.get(task, ())), self._sizes[task]

    def add(self, task: int, items: Sequence[tuple[_Item, int]]) -> None:
        """Adds items of a task, with sizes: one for each of its rounds, in order."""
        self._lanes.setdefault(task, deque()).extend(items)
        self._sizes[task] += sum(size_bytes for _, size_bytes in items)
        self._advance()

    def update(self, known: int, plans: Sequence[RoundPlan], agreed: int) -> None:
        """Applies the dispatcher's answer: all plans behind the first `known` ones, and what is agreed."""
        new = plans[self.known - known :]
        if new:
            self._plans += new
            self.known += len(new)
            self.ready = self.next_round
            self._assigned.clear()
            self._advance()
        self.agreed = max(self.agreed, agreed)

    def _advance(self) -> None:
        while True:
            task = task_of(self._plans, self.ready)
            if task is None or len(self._lanes.get(task, ())) <= self._assigned[task]:
                return
            self._assigned[task] += 1
            self.ready += 1

    def pop(self) -> _Item:
        """The item of the next round, if `may_yield`."""
        task = task_of(self._plans, self.next_round)
        assert task is not None
        item, size_bytes = self._lanes[task].popleft()
        self._sizes[task] -= size_bytes
        self._assigned[task] -= 1
        self.next_round += 1
        while len(self._plans) > 1 and self._plans[1].first <= self.next_round:
            self._forget(self._plans.pop(0))
        return item

    def _forget(self, over: RoundPlan) -> None:
        """Drops the items of tasks that no longer serve."""
        for task in set(over.tasks).difference(*(plan.tasks for plan in self._plans)):
            self._lanes.pop(task, None)
            del self._sizes[task], self._assigned[task]
