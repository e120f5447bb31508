"""One pass over a dataset."""

import gc
import math
import pickle
import weakref

import numpy as np
import pyarrow as pa
import pytest

from spanwise.orchestrator.errors import DatasetError, StateMismatch
from spanwise.pipelines import input as inputs
from spanwise.pipelines.input.op import mix_seed


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
