"""The budgets of a pass: no step and no setting goes beyond them."""

import threading
import time

import numpy as np
import pytest

from spanwise.pipelines import input as inputs
from spanwise.pipelines.input import AUTOTUNE
from spanwise.pipelines.input.execution.budget import PassBudget
from spanwise.pipelines.input.op import Options

MIB = 1 << 20


class Count:
    """How many are there at once, at most."""

    def __init__(self) -> None:
        self.now = self.most = self.all = 0
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            self.now += 1
            self.all += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *_) -> None:
        with self._lock:
            self.now -= 1


@pytest.mark.parametrize("optimize", [True, False])
@pytest.mark.parametrize("large", ["input", "result"])
def test_the_memory_budget_holds_for_an_explicit_num_parallel(large, optimize):
    """Whether elements are large before the call or after it; those that the consumer holds do not count."""
    made = Count()

    def elements():
        for _ in range(600):
            with made:
                yield np.zeros(MIB if large == "input" else 1, np.uint8)

    def enlarged(array):
        time.sleep(0.001)
        return np.zeros(MIB, np.uint8) if large == "result" else array[:1]

    dataset = inputs.from_generator(elements).map(enlarged, num_parallel=1024)
    with dataset.options(memory_budget_bytes=32 * MIB, optimize=optimize).iterator() as found:
        for taken in range(1, 51):
            next(found)
            assert made.all <= taken + 34
        time.sleep(0.3)  # nothing more is made meanwhile
        assert made.all <= 84


def test_the_memory_budget_is_that_of_all_steps():
    """Two maps and a prefetch share it."""
    made = Count()

    def elements():
        for _ in range(300):
            with made:
                yield np.zeros(MIB, np.uint8)

    dataset = (
        inputs.from_generator(elements).map(np.copy, num_parallel=64).prefetch(100).map(np.negative, num_parallel=64)
    )
    with dataset.options(memory_budget_bytes=16 * MIB).iterator() as found:
        for _ in range(20):
            next(found)
        time.sleep(0.3)
        assert made.all <= 20 + 16 + 8


@pytest.mark.parametrize("num_parallel", [64, AUTOTUNE])
@pytest.mark.parametrize("work", ["sleeps", "NumPy"])
def test_the_budget_of_processors_holds_for_calls_that_need_no_lock(work, num_parallel):
    """Calls that sleep or compute outside of Python run side by side in threads, but no more of them than said."""
    calls = Count()

    def call(number):
        with calls:
            if work == "sleeps":
                time.sleep(0.002)
            else:
                np.sort(np.random.default_rng(number).random(20_000))
            return number

    for budget in (1, 3):
        dataset = inputs.range(200).map(call, num_parallel=num_parallel).map(call, num_parallel=num_parallel)
        assert list(dataset.options(cpu_budget=budget, without=["map_fusion"])) == list(range(200))
        assert calls.most <= budget


def test_a_step_that_has_ended_holds_nothing():
    """So that a later part of a graph gets the whole budget."""
    budget = PassBudget(Options(memory_budget_bytes=10))

    class Held:
        held_bytes = 8.0

    one, other = Held(), Held()
    leave = budget.join(one)
    budget.join(other)

    assert not budget.has_room(other, 8)
    leave()
    assert budget.has_room(other, 8)
