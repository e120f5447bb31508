"""What JAX and Orbax are given; `make test-torch` installs them."""

import itertools

import numpy as np
import pyarrow as pa
import pytest

from spanwise.orchestrator.errors import DatasetError, FunctionFailed, StateMismatch
from spanwise.pipelines import input as inputs
from tests.pipelines.input.service.servers import Service

jax = pytest.importorskip("jax")
ocp = pytest.importorskip("orbax.checkpoint")

ROWS = pa.table({"x": np.arange(24, dtype=np.float32), "row": range(24)})


def batches():
    return inputs.from_arrow(ROWS).shuffle(10, seed=1).batch(4).as_numpy()


def as_lists(elements):
    return [jax.tree.map(lambda leaf: np.asarray(leaf).tolist(), element) for element in elements]


def test_elements_become_arrays_of_jax():
    """Each leaf that is a number; texts stay."""
    dataset = inputs.from_elements([{"a": np.arange(3), "b": ("x", 2.0)}])

    (element,) = dataset.to_jax()

    assert isinstance(element["a"], jax.Array)
    assert element["b"][0] == "x"
    assert float(element["b"][1]) == 2.0


@pytest.mark.parametrize("prefetch", [0, 1, 3, 100])
def test_prefetched_elements_are_the_same(prefetch):
    """In their order; an error comes after the elements before it."""
    assert as_lists(batches().to_jax(prefetch=prefetch).iterator(epoch=0)) == as_lists(batches().iterator(epoch=0))
    elements = iter(inputs.range(5).map(lambda number: 6 // (number - 2)).to_jax(prefetch=prefetch))
    assert as_lists(itertools.islice(elements, 2)) == [-3, -6]
    with pytest.raises(FunctionFailed):
        next(elements)
    assert as_lists(elements) == [6, 3]


@pytest.mark.parametrize("prefetch", [0, 10])
def test_what_was_placed_and_not_given_is_not_committed(prefetch):
    """Neither with a state nor by a pass that stores none: another consumer gets it."""
    with Service(2) as service:
        for name, stores in (("kept", True), ("plain", False)):
            dataset = inputs.range(60).distribute(service.target, "exactly_once", job_name=name)
            elements = dataset.to_jax(prefetch=prefetch).iterator(epoch=0)
            learned = as_lists(itertools.islice(elements, 20))
            state = elements.state() if stores else None
            if stores:
                elements.commit()
            else:
                elements.close()
            rest = dataset.to_jax().iterator(epoch=0)
            learned += as_lists(rest.restore(state) if stores else rest)
            rest.close()
            elements.close()

            assert sorted(learned) == list(range(60))


def test_arrays_are_laid_over_a_mesh():
    """By one sharding for all leaves, or by a function of the leaf."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())

    first = next(iter(batches().to_jax(sharding=split, prefetch=1)))
    second = next(iter(batches().to_jax(sharding=lambda leaf: split if leaf.dtype == np.float32 else whole)))

    assert {leaf.sharding for leaf in first.values()} == {split}
    assert len(first["x"].addressable_shards) == len(jax.devices()) == 4
    assert (second["x"].sharding, second["row"].sharding) == (split, whole)


def test_an_array_that_nobody_writes_to_is_not_copied():
    """On a CPU, where JAX may use its memory; one that somebody could write to is."""
    memory = np.zeros(1024, np.float32)
    aligned = memory[(-memory.ctypes.data % 64) // 4 :][:512]
    fixed = aligned.view()
    fixed.flags.writeable = False

    (shared,) = inputs.from_elements([fixed]).to_jax()
    (copied,) = inputs.range(1).map(lambda _: aligned).to_jax()
    aligned[0] = 7

    assert shared.unsafe_buffer_pointer() == aligned.ctypes.data
    assert copied[0] == 0


def test_numbers_that_jax_would_cut_are_refused():
    """It has 32 bits for them unless told otherwise."""
    with pytest.raises(DatasetError, match=r"cuts int64 to 32 bits.*jax_enable_x64"):
        list(inputs.from_elements([np.array([2**40])]).to_jax())
    with pytest.raises(DatasetError, match=r"cuts float64 to 32 bits, and -1e\+300 does not fit"):
        list(inputs.from_elements([np.array([1.0, np.inf, -1e300])]).to_jax())
    assert as_lists(inputs.from_elements([np.array([2**30])]).to_jax()) == [[2**30]]
    assert as_lists(inputs.from_elements([np.array([0.5, np.inf])]).to_jax()) == [[0.5, np.inf]]


def test_lists_of_different_lengths_become_an_array_each():
    """As for PyTorch; and numbers in another order of bytes are those of this machine."""
    table = pa.table({"x": [[1, 2], [], [3]]})

    (batch,) = inputs.from_arrow(table).batch(3).to_jax()
    (number,) = inputs.from_elements([np.array(5, ">i4")]).to_jax()

    assert as_lists([batch]) == [{"x": [[1, 2], [], [3]]}]
    assert isinstance(batch["x"][0], jax.Array)
    assert int(number) == 5


@pytest.mark.parametrize("prefetch", [0, 2])
def test_orbax_saves_and_restores_where_a_pass_stands(tmp_path, prefetch):
    """Beside the model, in one checkpoint; what was prefetched is not lost."""
    from spanwise.pipelines.input.orbax import IteratorRestore, IteratorSave

    iterator = batches().to_jax(prefetch=prefetch).iterator(epoch=3)
    first = as_lists(itertools.islice(iterator, 2))
    with ocp.CheckpointManager(tmp_path) as manager:
        model = ocp.args.StandardSave({"w": np.zeros(2)})
        manager.save(1, args=ocp.args.Composite(model=model, input=IteratorSave(iterator)))
        manager.wait_until_finished()
        fresh = batches().to_jax(prefetch=prefetch).iterator()
        restored = manager.restore(
            1, args=ocp.args.Composite(model=ocp.args.StandardRestore(), input=IteratorRestore(fresh))
        )

    assert first + as_lists(restored["input"]) == as_lists(batches().iterator(epoch=3))


def test_a_checkpoint_of_other_processes_is_refused(tmp_path):
    """Each has a state of its own."""
    from spanwise.pipelines.input.orbax import IteratorHandler, IteratorRestore

    (tmp_path / "process_0-of-2.json").write_text("{}")
    with pytest.raises(StateMismatch, match=r"which has process_0-of-2\.json"):
        IteratorHandler().restore(tmp_path, IteratorRestore(inputs.range(3).iterator()))
