"""Maps and interleaves whose work runs side by side: order, errors, state, and that nothing is left behind."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

import spanwise.pipelines.input as tfdata
from spanwise.orchestrator.errors import DatasetError, FunctionFailed, WorkerLost
from spanwise.orchestrator.process import children
from spanwise.pipelines.input.execution.ahead import AheadStream
from spanwise.pipelines.input.execution.process import Process, ship_function
from spanwise.pipelines.input.op import Knob, Opening
from spanwise.pipelines.input.ops import map as map_op
from tests.pipelines.input.execution.sent import square

WAYS = pytest.mark.parametrize("workers", ["threads", "processes"])


def squares(count, workers="threads", **how):
    num_parallel = 3 if workers == "threads" else 2  # a process takes long to start
    dataset = tfdata.range(count).map(square, num_parallel=num_parallel, workers=workers, **how)
    return dataset.options(optimize=False)


def left_behind():
    """Threads, child processes, open files and mapped shared memory of this process."""
    gc.collect()
    here = Path("/proc/self")
    files = len(list((here / "fd").iterdir())) if here.exists() else 0
    shared = (here / "maps").read_text().count("memfd:spanwise") if here.exists() else 0
    return threading.active_count(), sorted(children()), files, shared


@WAYS
def test_results_keep_the_order_of_the_input(workers):
    """However long single calls take."""

    def late(x):
        time.sleep(0.002 * (x % 3 == 0))
        return x * x

    found = list(tfdata.range(30).map(late, num_parallel=3, workers=workers).options(optimize=False))

    assert found == [x * x for x in range(30)]


@WAYS
def test_without_order_no_result_is_lost_or_given_twice(workers):
    """What is ready first comes first."""
    found = list(squares(50, workers=workers, deterministic=False))

    assert Counter(found) == Counter(x * x for x in range(50))


def test_without_order_a_slow_element_holds_nobody_up():
    """The first waits until the third has been given."""
    given = threading.Event()

    def first_is_last(x):
        if x == 0:
            given.wait(300)
        return x

    elements = iter(tfdata.range(4).map(first_is_last, num_parallel=2, deterministic=False).options(optimize=False))
    found = [next(elements) for _ in range(3)]
    given.set()

    assert sorted(found) == [1, 2, 3]
    assert list(elements) == [0]


@WAYS
def test_an_error_comes_in_its_turn_with_the_users_traceback_and_the_position(workers):
    """The elements before it and after it are given."""

    def fails_at_5(x):
        if x == 5:
            raise ValueError("five is right out")
        return x

    elements = iter(tfdata.range(8).map(fails_at_5, num_parallel=3, workers=workers).options(optimize=False))

    assert [next(elements) for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(FunctionFailed, match="element 5") as failed:
        next(elements)
    assert list(elements) == [6, 7]
    cause = failed.value.__cause__
    assert isinstance(cause, ValueError)
    told = "".join(getattr(cause, "__notes__", [])) or str(_code_names(cause))
    assert "fails_at_5" in told


def _code_names(error):
    trace, names = error.__traceback__, []
    while trace is not None:
        names.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    return names


@WAYS
@pytest.mark.parametrize("ordered", [True, False])
def test_a_stream_that_is_restored_gives_the_rest(workers, ordered):
    """What was on its way is made again; after the state was restored it can be saved once more."""
    dataset = squares(100, workers=workers, deterministic=ordered)
    whole = Counter(x * x for x in range(100))
    stops = (0, 1, 37, 100) if workers == "threads" else (37,)
    for stop in stops:
        with dataset.iterator(epoch=0) as first:
            before = [next(first) for _ in range(stop)]
            state = first.state()
        with dataset.iterator().restore(state) as second:
            middle = [next(second) for _ in range(min(3, 100 - stop))]
            state = second.state()
        after = list(dataset.iterator().restore(state))

        assert Counter(before + middle + after) == whole
        assert not ordered or before + middle + after == [x * x for x in range(100)]


def test_a_state_that_was_saved_with_threads_is_restored_with_processes():
    """And the other way round: who calls the function is no part of the state."""
    ways = squares(40, workers="threads"), squares(40, workers="processes")
    for saved_by, restored_by in (ways, reversed(ways)):
        with saved_by.iterator() as elements:
            before = [next(elements) for _ in range(25)]
            state = elements.state()

        assert before + list(restored_by.iterator().restore(state)) == [x * x for x in range(40)]


@pytest.mark.parametrize(("num_parallel", "bounds"), [(tfdata.AUTOTUNE, (1, 3)), (5, (5, 5))])
def test_processes_are_no_more_than_cores_if_nobody_said_how_many(num_parallel, bounds, monkeypatch):
    """Threads may be more, since they may wait for a disk."""
    monkeypatch.setattr(map_op, "available_cores", lambda: 3)
    dataset = tfdata.range(8).map(square, num_parallel=num_parallel, workers="processes")
    knobs = []
    opening = Opening(tuner=SimpleNamespace(register=lambda knob, stream: knobs.append(knob)))

    stream = opening.open(dataset.op)
    stream.close()

    assert stream.parallelism == bounds[0]
    assert [(knob.minimum, knob.maximum) for knob in knobs] == [bounds] * (num_parallel == tfdata.AUTOTUNE)


@pytest.mark.parametrize("ordered", [True, False])
def test_blocks_of_rows_are_restored_whatever_their_size(ordered):
    """Rows that were given are left out, also where blocks are cut elsewhere now."""
    table = pa.table({"x": np.arange(10_000)})
    dataset = (
        tfdata.from_arrow(table)
        .map(lambda columns: {"x": columns["x"] + 1}, vectorized=True, num_parallel=3, deterministic=ordered)
        .options(optimize=False, block_rows=700)
    )
    with dataset.blocks(epoch=0) as blocks:
        before = [x for _ in range(4) for x in next(blocks).column("x").to_pylist()]
        state = blocks.state()
    other = dataset.options(block_rows=450)

    after = [x for block in other.blocks().restore(state) for x in block.column("x").to_pylist()]

    assert sorted(before + after) == list(range(1, 10_001))
    assert not ordered or before + after == sorted(before + after)


@WAYS
@pytest.mark.parametrize("end", ["drop", "close", "finish", "fail"])
def test_nothing_is_left_behind(workers, end):
    """No thread, process or shared memory: when the consumer stops early, at the end, and after an error."""

    def array(x):
        if end == "fail" and x == 3:
            raise ValueError(x)
        return np.full(100_000, x)

    before = left_behind()
    elements = iter(tfdata.range(8).map(array, num_parallel=2, workers=workers).options(optimize=False))
    next(elements)
    assert left_behind() != before
    if end == "close":
        elements.close()
    elif end == "finish":
        list(elements)
    elif end == "fail":
        with pytest.raises(FunctionFailed):
            list(elements)
        elements.close()
    del elements

    assert left_behind() == before


def test_a_worker_process_that_is_killed_is_an_error_not_a_hang():
    """It says so; the next elements are worked on by another process."""

    def dies_at_2(x):
        if x == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return x

    elements = iter(tfdata.range(5).map(dies_at_2, num_parallel=1, workers="processes").options(optimize=False))

    assert [next(elements), next(elements)] == [0, 1]
    with pytest.raises(WorkerLost, match=r"killed by SIGKILL at element 2"):
        next(elements)
    assert list(elements) == [3, 4]


def test_a_function_that_cannot_be_sent_to_a_process_is_an_error():
    """Not a hang: it holds a lock, which exists only here."""
    lock = threading.Lock()
    dataset = tfdata.range(3).map(lambda x: (lock, x)[1], num_parallel=1, workers="processes").options(optimize=False)

    with pytest.raises(DatasetError, match=r"cannot be sent .*lock.* workers='threads'"):
        list(dataset)


def test_a_function_that_was_edited_since_it_was_loaded_is_refused_by_another_process(edited_module):
    """A worker process loads the file anew: elements came from the new code, beside those of the old in threads."""
    module = edited_module("def work(x): return x * 2\n", "def work(x): return x * 3\n")
    dataset = tfdata.range(3).map(module.work, num_parallel=1, workers="processes").options(optimize=False)

    with pytest.raises(DatasetError, match=r"edited_module\.work is not what was sent"):
        list(dataset)


def test_what_goes_to_another_process_is_shared_not_copied_through_the_socket():
    """Arrays and batches come back as they went; a slice of a batch does not take its table along."""
    table = pa.table({"x": np.arange(1_000_000), "text": pa.array(["a", "bb"] * 500_000).dictionary_encode()})
    block = table.slice(500_000, 1000).to_batches()[0]
    process = Process(ship_function(lambda element, position: element, name="map"), name="map")
    try:
        nested = {"a": (np.arange(50_000.0), "text"), "b": None}
        back = process(nested, 0)
        same = process(block, 1)
    finally:
        process.close()

    assert same.equals(block)
    assert same.nbytes < 100_000
    np.testing.assert_array_equal(back["a"][0], nested["a"][0])
    assert back["a"][0].flags.writeable
    assert back["a"][1] == "text"


def test_what_was_given_is_the_consumers_alone():
    """Also while its slot is still needed, to tell the state: those that were given out of turn."""
    alive, go_on = weakref.WeakSet(), threading.Event()

    class Made:
        def __init__(self, number):
            if number == 0:
                go_on.wait(300)
            alive.add(self)

    elements = iter(tfdata.range(3).map(Made, num_parallel=3, deterministic=False).options(optimize=False))
    next(elements)
    next(elements)

    assert not alive
    go_on.set()
    assert len(list(elements)) == 1


def test_a_program_that_ends_with_a_live_iterator_ends():
    """Threads and processes of an iterator that nobody closed do not keep the interpreter."""
    program = """
import sys, time, spanwise.pipelines.input as tfdata
def slow(x):
    time.sleep(0.01)
    return x
threads = iter(tfdata.range(1000).map(slow, num_parallel=4).prefetch(2))
processes = iter(tfdata.range(1000).map(slow, num_parallel=1, workers="processes"))
print(next(threads), next(processes), flush=True)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False, cwd=Path.cwd()
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "0 0\n", "")


def test_worker_processes_die_with_their_parent():
    """Even when it is killed, and even in the middle of a call."""
    program = """
import os, time, spanwise.pipelines.input as tfdata
def pid(x):
    if x:
        time.sleep(600)
    return os.getpid()
elements = iter(tfdata.range(9).map(pid, num_parallel=1, workers="processes").options(optimize=False))
print(next(elements), flush=True)
time.sleep(600)
"""
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()

    for _ in range(12_000):
        state = Path(f"/proc/{worker}/stat")
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z":
            break
        time.sleep(0.01)
    else:
        pytest.fail(f"worker {worker} outlived its parent")


def spans(x):
    """A dataset of up to four numbers."""
    return tfdata.range(10 * x, 10 * x + x % 5)


def turns(**how):
    return tfdata.range(20).interleave(spans, cycle_length=3, block_length=2, **how).options(optimize=False)


def test_a_parallel_interleave_gives_what_a_sequential_one_gives():
    """In the same order; unordered, the same elements."""
    plain = list(turns())

    assert list(turns(num_parallel=2)) == plain
    assert Counter(turns(num_parallel=2, deterministic=False)) == Counter(plain)


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("stop", [0, 1, 7, 20])
def test_a_parallel_interleave_is_restored(ordered, stop):
    """Each dataset goes on where it stood."""
    dataset = turns(num_parallel=2, deterministic=ordered)
    with dataset.iterator(epoch=0) as first:
        before = [next(first) for _ in range(stop)]
        state = first.state()

    after = list(dataset.iterator().restore(state))

    assert Counter(before + after) == Counter(turns())
    assert not ordered or before + after == list(turns())


def test_a_parallel_interleave_reads_so_many_datasets_at_once():
    """No more than `num_parallel`, and not one after another either."""
    reading, most, lock = [0], [0], threading.Lock()
    both = threading.Barrier(2, timeout=120)

    def slow(x):
        def element(y):
            with lock:
                reading[0] += 1
                most[0] = max(most[0], reading[0])
            if y == 0:
                both.wait()
            with lock:
                reading[0] -= 1
            return x

        return tfdata.range(2).map(element)

    found = list(tfdata.range(4).interleave(slow, cycle_length=4, num_parallel=2).options(optimize=False))

    assert len(found) == 8
    assert most[0] == 2


def test_a_dropped_interleave_leaves_nothing_behind():
    """A thread for each open dataset, and all of them end."""
    before = left_behind()
    endless = tfdata.range(3).interleave(lambda x: tfdata.range(1).repeat(), cycle_length=3, num_parallel=3)
    elements = iter(endless.options(optimize=False))
    next(elements)
    assert threading.active_count() > 1
    del elements

    assert left_behind() == before


def test_a_knob_that_is_turned_while_the_stream_runs_changes_nothing_but_speed():
    """From no thread to some and back, again and again, in order and without loss."""
    size = Knob(name="num_parallel", kind="parallelism", value=0, minimum=0, maximum=8)
    stream = AheadStream(
        Opening().open(tfdata.range(400).op),
        name="map",
        rows=False,
        window=lambda: 2 * size.value,
        function=lambda x, position: (x, position),
        num_parallel=size,
    )
    found = []
    for at, element in enumerate(stream):
        found.append(element)
        size.value = (0, 3, 1, 0, 5)[at // 20 % 5]

    assert found == [(x, x) for x in range(400)]
    assert stream.work is not None
    assert stream.work.calls == 400
