"""One pass over a dataset."""

import gc
import math
import os
import pickle
import sys
import threading
import weakref

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spanwise.orchestrator.errors import DatasetError, StateMismatch
from spanwise.pipelines import input as inputs
from spanwise.pipelines.input.op import mix_seed
from tests.servers import eventually


def test_nothing_happens_before_the_first_element():
    """A graph and its iterator call nothing."""
    calls = []
    elements = iter(inputs.from_generator(lambda: calls.append(1) or iter([1, 2])))

    assert calls == []
    assert next(elements) == 1


def test_a_closed_pass_has_ended():
    """It gives nothing more, and can be closed again."""
    with iter(inputs.range(5)) as elements:
        next(elements)
    elements.close()

    assert list(elements) == []


def test_a_dropped_pass_gives_back_what_it_holds():
    """Forgetting the iterator closes the generator below it."""
    ended = []

    def source():
        try:
            yield from range(10)
        finally:
            ended.append(True)

    elements = iter(inputs.from_generator(source))
    next(elements)
    gone = weakref.ref(elements)
    del elements
    gc.collect()

    assert gone() is None
    assert ended == [True]


def closed_in(cycle):
    """The thread in which a pass is closed that is dropped here, alone or in a cycle."""
    closed = []

    def source():
        try:
            yield from range(10)
        finally:
            closed.append(threading.current_thread())

    holder = [iter(inputs.from_generator(source))]
    next(holder[0])
    if cycle:
        holder.append(holder)
    del holder
    gc.collect()
    eventually(lambda: closed)
    return closed[0]


def test_garbage_is_closed_in_a_thread_of_its_own():
    """The collector runs in any thread, which may hold the lock that closing needs; who drops the last reference knows."""
    assert closed_in(cycle=True) is not threading.current_thread()
    assert closed_in(cycle=False) is threading.current_thread()


def test_a_state_of_another_graph_is_refused():
    """The message shows both graphs."""
    state = iter(inputs.range(5).batch(2)).state()

    with pytest.raises(StateMismatch, match=r"\['Range', 'Batch'\].*\['Range', 'Take'\]"):
        inputs.range(5).take(2).iterator().restore(state)


def test_a_pass_that_has_begun_is_not_restored():
    """A fresh iterator is needed."""
    elements = iter(inputs.range(5))
    state = elements.state()

    with pytest.raises(StateMismatch, match="has already started"):
        elements.restore(state)


@pytest.mark.parametrize("passes", [0, 4])
def test_passes_go_on_from_one_that_is_restored(passes):
    """In a new process the pass after it was the second one again, with the orders of the second one."""
    before = inputs.range(9).shuffle(seed=1)
    orders = [list(before.iterator(epoch=epoch)) for epoch in range(5)]
    stopped = before.iterator(epoch=2)
    next(stopped)

    after = inputs.range(9).shuffle(seed=1)
    assert [list(after) for _ in range(passes)] == orders[:passes]
    assert list(after.iterator().restore(stopped.state())) == orders[2][1:]
    assert [list(after) for _ in range(2)] == orders[3:]


def test_blocks_are_of_rows_only():
    """Numbers do not travel in blocks."""
    with pytest.raises(DatasetError, match="the elements are not rows"):
        inputs.range(5).blocks()


def test_blocks_have_the_size_that_was_asked_for():
    """The option sets how many rows travel together."""
    rows = inputs.from_arrow(pa.table({"fare": np.arange(10)})).options(block_rows=4)

    assert [block.num_rows for block in rows.blocks()] == [4, 4, 2]


def test_a_dataset_can_be_sent_to_another_process():
    """It is data: pickled, it gives the same."""
    dataset = inputs.range(10).shuffle(4, seed=1).batch(3)

    copy = pickle.loads(pickle.dumps(dataset))

    assert [batch.tolist() for batch in copy] == [batch.tolist() for batch in dataset]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sede": 3}, r"options\(sede=…\): no such option. The options are seed"),
        ({"block_rows": 0}, "block_rows=0"),
        ({"seed": -1}, "seed=-1"),
        ({"without": ["magic"]}, "no such rewrite. The rewrites are noop_elimination"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    """The message lists what there is."""
    with pytest.raises(DatasetError, match=message):
        inputs.range(3).options(**options)


def test_options_go_with_the_chain():
    """What comes behind keeps them."""
    dataset = inputs.range(30).options(seed=4).shuffle().batch(30)

    assert dataset.settings.seed == 4
    assert next(dataset.iterator(epoch=0)).tolist() == next(dataset.iterator(epoch=0)).tolist()


def test_reduce_and_apply():
    """A pass can end in one value, and a chain of words have a name."""
    assert inputs.range(5).reduce(0, lambda total, number: total + number) == 10
    assert list(inputs.range(5).apply(lambda dataset: dataset.skip(3))) == [3, 4]
    with pytest.raises(DatasetError, match="must return a Dataset, not int"):
        inputs.range(5).apply(lambda _: 3)


def test_seeds_are_mixed_the_same_everywhere():
    """Pinned: the order of every seed depends on it."""
    assert mix_seed(1, 2, 3) == 1517167407554927345
    assert mix_seed(1, 23) != mix_seed(12, 3)


def test_an_endless_dataset_is_not_collected():
    """A sink that needs the end says so."""
    endless = inputs.range(3).repeat()

    assert endless.cardinality == math.inf
    with pytest.raises(DatasetError, match="never ends"):
        endless.to_numpy()


def double(number):
    return number * 2


def triple(number):
    return number * 3


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        (lambda: inputs.range(9).batch(2), lambda: inputs.range(9).batch(3), "Batch"),
        (lambda: inputs.range(9).shuffle(4, seed=1), lambda: inputs.range(9).shuffle(4, seed=2), "Shuffle"),
        (lambda: inputs.range(9).map(double), lambda: inputs.range(9).map(triple), "Map"),
        (lambda: inputs.from_elements([1, 2]), lambda: inputs.from_elements([1, 3]), "Elements"),
        (lambda: inputs.range(9).filter(lambda n: n > 1), lambda: inputs.range(9).filter(lambda n: n > 2), "Filter"),
    ],
)
def test_the_state_of_another_graph_is_refused(before, after, named):
    """Also if its ops have the same names: the message says which of them had other arguments or functions."""
    with iter(before()) as elements:
        next(elements)
        state = elements.state()

    with pytest.raises(StateMismatch, match=f"another dataset: {named} had other arguments, functions or data"):
        after().iterator().restore(state)
    assert next(before().iterator().restore(state)) is not None


def test_the_state_of_other_files_is_refused(tmp_path):
    """Unless the user says that they hold the same rows."""
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"x": [1, 2, 3]}), path)
    os.utime(path, (1, 1))
    with iter(inputs.from_parquet(path)) as rows:
        next(rows)
        state = rows.state()
    os.utime(path, (2, 2))

    with pytest.raises(StateMismatch, match=r"written again since the state was taken.*pass check_files=False"):
        inputs.from_parquet(path).iterator().restore(state)
    assert next(inputs.from_parquet(path).iterator().restore(state, check_files=False)) == {"x": 2}
    pq.write_table(pa.table({"x": [1, 2, 3, 4]}), path)
    with pytest.raises(StateMismatch, match="Parquet had other"):
        inputs.from_parquet(path).iterator().restore(state, check_files=False)


def test_a_graph_that_holds_a_lock_can_be_restored():
    """What has no content to compare counts by its type."""
    lock = threading.Lock()

    def locked(number):
        with lock:
            return number

    with iter(inputs.range(3).map(locked)) as numbers:
        next(numbers)
        state = numbers.state()

    assert list(inputs.range(3).map(locked).iterator().restore(state)) == [1, 2]


@pytest.mark.parametrize(
    "dataset",
    [
        lambda: inputs.range(400).map(str).shuffle(30, seed=1),
        lambda: inputs.from_generator(lambda: iter(range(400))).map(str),
        lambda: inputs.from_arrow(pa.table({"x": range(400)})).map(lambda row: str(row["x"])),
    ],
)
def test_threads_that_share_an_iterator_get_each_element_once(dataset):
    """None is lost, and none comes twice."""
    found = []
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with iter(dataset()) as elements:
            threads = [threading.Thread(target=lambda: found.extend(elements)) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        sys.setswitchinterval(switch)

    assert sorted(found) == sorted(map(str, range(400)))


@pytest.mark.parametrize("epoch", [-1, 1.0, "1", True, np.int64(1)], ids=repr)
def test_a_pass_has_a_whole_number(epoch):
    """Else shuffles of what is meant to be one pass would differ, or the error would be one of the implementation."""
    rows = inputs.from_arrow(pa.table({"n": [1]}))

    with pytest.raises(DatasetError, match=r"iterator\(epoch=.*\): expected a whole number of at least 0"):
        rows.iterator(epoch=epoch)
    with pytest.raises(DatasetError, match=r"blocks\(epoch="):
        rows.blocks(epoch=epoch)
