"""Threads or processes for a function, chosen by measurement."""

import threading
import time

import numpy as np
import pytest

import spanwise.pipelines.input as tfdata
from spanwise.pipelines.input.execution import parallel
from spanwise.pipelines.input.execution.trial import CARRIED_BYTES, Timing, Trial, Verdict, judged, known, remember


def timing(*, calls=10, call_s=0.01, cpu=1.0, lock=1.0, element_bytes=0.0):
    took_s = calls * call_s
    return Timing(calls=calls, took_s=took_s, cpu_s=cpu * took_s, late_s=lock * took_s, element_bytes=element_bytes)


@pytest.mark.parametrize(
    ("seen", "workers"),
    [
        (timing(lock=0.95), "processes"),  # Python code
        (timing(lock=0.1), "threads"),  # NumPy
        (timing(lock=0.9, cpu=0.01, calls=30), "threads"),  # it waits for something, while others keep the lock
        (timing(lock=0.95, call_s=0.001, calls=30), "processes"),
        (timing(lock=0.95, call_s=0.0002, calls=30), "threads"),  # to hand it over takes longer
        (timing(lock=0.95, element_bytes=100e6), "threads"),  # as above
        (timing(lock=0.95, call_s=1.0, calls=1), "processes"),  # one call tells enough
    ],
)
def test_what_keeps_pythons_lock_goes_to_processes_if_that_is_worth_the_way(seen, workers):
    """And only that: what lets go of the lock gets on as well in a thread, with nothing to hand over."""
    verdict = judged(seen)

    assert verdict is not None
    assert verdict.workers == workers
    assert verdict.lock_share == seen.lock_share


def test_a_verdict_wants_some_time_or_some_calls():
    """A few calls of a quick function, 50 ms of a core of any other, or 250 ms, and no more than thirty calls."""
    assert judged(timing(calls=0)) is None
    assert judged(timing(calls=2, call_s=1e-6)) is None
    assert judged(timing(calls=3, call_s=1e-6)) is not None
    assert judged(timing(calls=4, call_s=0.01)) is None
    assert judged(timing(calls=5, call_s=0.01)) is not None
    assert judged(timing(calls=10, call_s=0.01, cpu=0.1)) is None
    assert judged(timing(calls=10, call_s=0.025, cpu=0.1)) is not None
    assert judged(timing(calls=29, call_s=0.001)) is None
    assert judged(timing(calls=30, call_s=0.001)) is not None


def in_python(x):
    total = 0
    for i in range(60_000):
        total += i % 7
    return total + x


NUMBERS = np.arange(1_000_000.0)


def in_numpy(x):
    return float(np.sqrt(np.abs(np.sin(NUMBERS + x))).sum())


def verdict_on(function):
    trial = Trial(function=lambda x, position: function(x), functions=(function,), name="map")
    results = []
    while trial.verdict is None:
        results.append(trial(len(results), len(results)))
    assert results == [function(x) for x in range(len(results))]
    return trial.verdict


@pytest.mark.parametrize(("function", "workers"), [(in_python, "processes"), (in_numpy, "threads")])
def test_the_first_calls_tell_python_from_numpy(function, workers):
    """Also while other programs want the cores: the time that a thread waits for one does not count."""
    assert verdict_on(function).workers == workers


def passes(function, **how):
    return tfdata.range(40).map(function, **how).options(optimize=False)


def test_the_choice_is_made_in_the_first_pass_and_kept_for_the_next():
    """Also for another dataset with the same function, and for no other function."""

    def slow(x):
        return in_python(x)

    first = list(passes(slow, num_parallel=2))
    found = known((slow,))

    assert first == list(passes(slow, num_parallel=2))
    assert found is not None
    assert found.workers == "processes"
    assert known((slow,)) is found
    assert known((in_python, slow)) is None


@pytest.mark.parametrize(("num_parallel", "ordered"), [(2, True), (2, False), (tfdata.AUTOTUNE, True)])
def test_results_are_the_same_whatever_makes_them(num_parallel, ordered):
    """In the same order, unless that was given up; while it is being found out, and after."""
    wanted = list(map(in_python, range(40)))
    for _ in range(2):
        found = list(passes(in_python, num_parallel=num_parallel, deterministic=ordered))

        assert sorted(found) == sorted(wanted)
        assert not ordered or found == wanted


@pytest.mark.parametrize("stop", [0, 2, 25])
def test_a_state_that_was_saved_before_the_switch_is_restored_after_it(stop):
    """And the other way round: who calls the function is no part of the state."""

    def first_pass(x):
        return in_python(x)

    wanted = list(map(in_python, range(40)))
    dataset = passes(first_pass, num_parallel=2)
    with dataset.iterator() as elements:
        before = [next(elements) for _ in range(stop)]
        state = elements.state()
        rest = list(elements)

    assert before + rest == wanted
    assert list(dataset.iterator().restore(state)) == rest
    by_threads = passes(first_pass, num_parallel=2, workers="threads")
    assert list(by_threads.iterator().restore(state)) == rest


def callers(dataset):
    """Who has made the results in the end, after a pass that was long enough to choose."""
    with dataset.iterator() as elements:
        next(elements)
        stream = elements._stream
        list(elements)
    return stream._window.team


def test_a_function_that_keeps_something_stays_in_this_process():
    """Calls elsewhere would change another list. Nor is it tried out: its calls may wait for each other."""
    seen = []

    def notes(x):
        seen.append(x)
        return in_python(x)

    team = callers(passes(notes, num_parallel=2))

    assert sorted(seen) == list(range(40))
    assert team.trial is None
    assert team._workers == "threads"


def test_a_function_that_cannot_travel_or_carries_too_much_stays_in_this_process():
    """A lock exists only here; a large array would have to be held by every process once more."""
    lock, large = threading.Lock(), np.zeros(CARRIED_BYTES + 1, np.uint8)

    def locked(x):
        with lock:
            return in_python(x)

    def carries(x):
        return in_python(x) + int(large[0])

    for function in (locked, carries):
        team = callers(passes(function, num_parallel=2, stateless=True))

        assert team._workers == "threads"
        assert team.lock_share > 0


def test_a_result_that_cannot_travel_is_made_here():
    """The user asked for no process, and so need not hear of what processes cannot do."""

    def generators(x):
        return (y for y in [in_python(x)])

    remember((generators,), Verdict(workers="processes"))
    team = callers(passes(generators, num_parallel=1, stateless=True))
    found = [next(made) for made in passes(generators, num_parallel=1, stateless=True)]

    assert found == list(map(in_python, range(40)))
    assert team._size.value == 1


def test_what_a_process_cannot_do_is_not_tried_again():
    """The next pass knows it. Here the process is waited for, so that it is asked at all."""

    def generators(x):
        time.sleep(0.05 * (known((generators,)) != Verdict(workers="threads")))
        return (y for y in [x])

    remember((generators,), Verdict(workers="processes"))
    dataset = tfdata.range(2000).map(generators, num_parallel=1, stateless=True).options(optimize=False)

    assert [next(made) for made in dataset] == list(range(2000))
    assert known((generators,)) == Verdict(workers="threads")


def test_a_function_whose_processes_cannot_load_it_goes_on_in_threads():
    """A module that only this process can find."""

    class OnlyHere:
        def __reduce__(self):
            return __import__, ("no_such_module_anywhere",)

    only_here = OnlyHere()

    def function(x):
        assert only_here is not None
        return in_python(x)

    remember((function,), Verdict(workers="processes"))

    assert list(passes(function, num_parallel=1, stateless=True)) == list(map(in_python, range(40)))


def test_processes_are_no_more_than_cores_if_nobody_said_how_many(monkeypatch):
    """Threads may be more, since they may wait for a disk."""
    monkeypatch.setattr(parallel, "cores", lambda: 3)

    def function(x):
        return in_python(x)

    remember((function,), Verdict(workers="processes"))
    found = callers(passes(function, num_parallel=tfdata.AUTOTUNE).options(autotune=False))
    asked = callers(passes(function, num_parallel=5))

    assert (found._size.minimum, found._size.maximum) == (1, 3)
    assert asked._size.value == 5
