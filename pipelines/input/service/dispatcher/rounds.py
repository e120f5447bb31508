"""Rounds of a coordinated read: which task serves which, and up to where all consumers agree. Pure.

A plan says that from its first round on its tasks serve in turn, until a later plan begins. A consumer gives a round
when all consumers have it in hand, which is what they agree upon. So a new plan may begin at the agreed round whatever
a lost worker has taken along: nobody was given anything of what lies behind.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar


@dataclass(frozen=True, kw_only=True)
class Plan:
    first: int  #: the round from which on it counts
    tasks: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Report:
    """How far a consumer has come."""

    plans: int  #: that it knows
    ready: int  #: rounds below are in its hands, by these plans
    agreed: int  #: rounds below it has leave to give


def task_of(plans: Sequence[Plan], number: int) -> int | None:
    """The task that serves a round; None if no plan reaches it."""
    for plan in reversed(plans):
        if plan.first <= number:
            return plan.tasks[(number - plan.first) % len(plan.tasks)]
    return None


def later(one: Report | None, other: Report) -> Report:
    """The later of two reports of a consumer, which may arrive in any order."""
    if one is None:
        return other
    plans, ready = max((one.plans, one.ready), (other.plans, other.ready))
    return Report(plans=plans, ready=ready, agreed=max(one.agreed, other.agreed))


def agreed(plans: Sequence[Plan], reports: Sequence[Report | None]) -> int | None:
    """Rounds below are in the hands of all consumers; None as long as one of them was not heard of."""
    heard = [report for report in reports if report is not None]
    if len(heard) < len(reports):
        return None
    # what a consumer has in hand by earlier plans counts as far as no later one begins
    in_hand = min(min([report.ready, *(plan.first for plan in plans[report.plans :])]) for report in heard)
    return max(in_hand, *(report.agreed for report in heard))


_Item = TypeVar("_Item")


class Course(Generic[_Item]):
    """Where one consumer stands: what it holds of each task, which rounds these are, and which it may give."""

    def __init__(self) -> None:
        self.known = 0  #: how many plans it was told
        self.given = 0  #: the round that is given next
        self.ready = 0  #: rounds below are in hand
        self.agreed = 0  #: rounds below may be given
        self._plans: list[Plan] = []  # those that count from `given` on
        self._lanes: dict[int, deque[tuple[_Item, int]]] = {}  # of each task what was not given, with sizes
        self._sizes = Counter[int]()
        self._spoken = Counter[int]()  # of each lane: how many are of the rounds from `given` to `ready`

    @property
    def report(self) -> Report:
        return Report(plans=self.known, ready=self.ready, agreed=self.agreed)

    @property
    def may_give(self) -> bool:
        return self.given < min(self.agreed, self.ready)

    def held(self, task: int) -> tuple[int, int]:
        """How many items are held of a task, and their size in bytes."""
        return len(self._lanes.get(task, ())), self._sizes[task]

    def add(self, task: int, items: Sequence[tuple[_Item, int]]) -> None:
        """What came of a task, with sizes: an element for each of its rounds, in their order."""
        self._lanes.setdefault(task, deque()).extend(items)
        self._sizes[task] += sum(size_bytes for _, size_bytes in items)
        self._advance()

    def hear(self, known: int, plans: Sequence[Plan], agreed: int) -> None:
        """Takes in what the dispatcher answers: all plans behind the first `known` ones, and what is agreed."""
        new = plans[self.known - known :]
        if new:
            self._plans += new
            self.known += len(new)
            self.ready = self.given
            self._spoken.clear()
            self._advance()
        self.agreed = max(self.agreed, agreed)

    def _advance(self) -> None:
        while True:
            task = task_of(self._plans, self.ready)
            if task is None or len(self._lanes.get(task, ())) <= self._spoken[task]:
                return
            self._spoken[task] += 1
            self.ready += 1

    def give(self) -> _Item:
        """What is to be given in the next round; `may_give` says whether there is something."""
        task = task_of(self._plans, self.given)
        assert task is not None
        item, size_bytes = self._lanes[task].popleft()
        self._sizes[task] -= size_bytes
        self._spoken[task] -= 1
        self.given += 1
        while len(self._plans) > 1 and self._plans[1].first <= self.given:
            self._forget(self._plans.pop(0))
        return item

    def _forget(self, over: Plan) -> None:
        """Drops what is left of tasks that serve no more."""
        for task in set(over.tasks).difference(*(plan.tasks for plan in self._plans)):
            self._lanes.pop(task, None)
            del self._sizes[task], self._spoken[task]
