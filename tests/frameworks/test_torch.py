"""What PyTorch, torchdata and Lightning are given; `make test-torch` installs them."""

import itertools
import json
import random
import time

import numpy as np
import pyarrow as pa
import pytest

from spanwise.orchestrator.errors import DatasetError
from spanwise.pipelines import input as inputs
from tests.pipelines.input.service.servers import Service

torch = pytest.importorskip("torch")
loaders = pytest.importorskip("torchdata.stateful_dataloader")

COUNT = 40


def numbers():
    return inputs.range(COUNT).shuffle(12, seed=1)


def is_small(number):
    return number < 1_000


def ints(elements):
    return [int(element) for element in elements]


@pytest.mark.parametrize("workers", [0, 2])
def test_each_epoch_has_every_element_once_in_another_order(workers):
    """The dataset's passes, in the order that they have without a loader."""
    loader = torch.utils.data.DataLoader(numbers().to_torch(), batch_size=None, num_workers=workers)

    for epoch in range(3):
        assert ints(loader) == list(numbers().iterator(epoch=epoch))


def uneven(number):
    time.sleep(random.random() / 1_000)
    return number


def test_workers_share_what_has_no_order_in_one_order():
    """Else some elements come twice, and others never."""
    unordered = inputs.range(200).map(uneven, num_parallel=4, deterministic=False)
    loader = torch.utils.data.DataLoader(unordered.to_torch(), batch_size=None, num_workers=2)

    assert ints(loader) == list(range(200))


def test_workers_share_a_snapshot_of_a_drawn_order_when_it_is_complete(tmp_path):
    """Until then one might write it in the order of an earlier pass, and the other count in its own."""
    dataset = numbers().snapshot(tmp_path)

    def loader(workers):
        return torch.utils.data.DataLoader(dataset.to_torch(), batch_size=None, num_workers=workers)

    with pytest.raises(DatasetError, match="Write it first, in one process"):
        list(loader(2))

    assert sorted(ints(loader(1))) == sorted(ints(loader(2))) == list(range(COUNT))


@pytest.mark.parametrize("mode", ["off", "dynamic", "exactly_once"])
def test_workers_do_not_share_the_elements_of_a_data_service(mode):
    """Each would read a job of its own, in an order of its own; one worker reads them all."""
    with Service(1) as service:
        dataset = inputs.range(40).distribute(service.target, mode)

        def loader(workers):
            return torch.utils.data.DataLoader(
                dataset.to_torch(), batch_size=None, num_workers=workers, multiprocessing_context="spawn"
            )

        with pytest.raises(DatasetError, match="Read the service in one process"):
            list(loader(2))
        assert sorted(ints(loader(1))) == list(range(40))


@pytest.mark.parametrize("stop", [0, 1, 7, 39])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_loader_saves_and_restores_a_pass(workers, stop):
    """In a loader and a dataset that are new; later epochs go on where the first loader's would."""

    def loader():
        return loaders.StatefulDataLoader(numbers().to_torch(), batch_size=None, num_workers=workers)

    before = loader()
    assert ints(before) == list(numbers().iterator(epoch=0))
    elements = iter(before)
    first = ints(itertools.islice(elements, stop))
    state = before.state_dict()
    del elements, before
    after = loader()
    after.load_state_dict(state)

    assert first + ints(after) == list(numbers().iterator(epoch=1))
    assert ints(after) == list(numbers().iterator(epoch=2))


def test_the_state_of_an_iterator_is_plain_data():
    """So any checkpoint can hold it; what was sent ahead is not lost."""
    dataset = numbers().to_torch(device="cpu", prefetch=5)
    elements = iter(dataset)
    first = ints(itertools.islice(elements, 3))
    state = json.loads(json.dumps(elements.state_dict()))
    other = iter(numbers().to_torch(prefetch=2))
    other.load_state_dict(state)

    assert first + ints(other) == list(numbers().iterator(epoch=0))


def test_what_was_sent_ahead_and_not_given_is_not_committed():
    """A pass that stores no states commits what was given, whatever is ready; one that does, when it says so."""
    with Service(2) as service:
        for name, stores in (("kept", True), ("plain", False)):
            dataset = inputs.range(60).distribute(service.target, "exactly_once", job_name=name)
            elements = iter(dataset.to_torch(prefetch=10))
            learned = ints(itertools.islice(elements, 20))
            rest = iter(dataset.to_torch())
            if stores:
                state = elements.state_dict()
                elements.commit()
                rest.load_state_dict(state)
            else:
                elements.close()
            learned += ints(rest)

            assert sorted(learned) == list(range(60))


def test_tensors_have_memory_of_their_own_unless_it_may_be_shared():
    """Torch cannot be kept from writing to a tensor."""
    array = np.arange(4.0)
    fixed = array.view()
    fixed.flags.writeable = False

    (copied,) = inputs.from_elements([fixed]).to_torch()
    (shared,) = inputs.from_elements([fixed]).to_torch(copy=False)
    copied += 1

    assert array.tolist() == [0, 1, 2, 3]
    assert shared.data_ptr() == array.ctypes.data


def test_a_column_of_arrow_is_handed_over_without_a_copy():
    """The tensor is the memory of the table."""
    table = pa.table({"x": np.arange(8.0)})

    (batch,) = inputs.from_arrow(table).batch(8).to_torch(copy=False)

    assert batch["x"].data_ptr() == table["x"].chunk(0).buffers()[1].address


def test_elements_go_to_a_device_ahead():
    """Here to one that holds shapes only."""
    elements = list(inputs.range(4).batch(2).to_torch(device="meta", prefetch=1))

    assert [(element.device.type, tuple(element.shape)) for element in elements] == [("meta", (2,)), ("meta", (2,))]


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")
def test_memory_is_not_pinned_for_nothing():
    """Without an accelerator that is refused; and in workers, where the loader does it."""
    with pytest.raises(DatasetError, match="there is no accelerator for which memory could be pinned"):
        iter(inputs.range(3).to_torch(pin_memory=True))
    loader = torch.utils.data.DataLoader(inputs.range(3).to_torch(device="cpu"), batch_size=None, num_workers=1)
    with pytest.raises(DatasetError, match="Leave it to the loader"):
        list(loader)


@pytest.mark.parametrize("dataset", [numbers(), numbers().filter(is_small)], ids=["known", "unknown"])
@pytest.mark.parametrize("steps", [1, 13, 24])
def test_lightning_restores_the_place_in_an_epoch(tmp_path, dataset, steps):
    """A training that was stopped in an epoch sees each element of it once; also where their number is not known."""
    lightning = pytest.importorskip("lightning.pytorch")

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.seen = []
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch, number):
            self.seen.append(int(batch))
            return self.layer(torch.ones(1)).sum()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    class Stop(lightning.Callback):
        """Saves after so many steps, and ends the training."""

        def __init__(self, steps):
            self.steps = steps

        def on_train_batch_end(self, trainer, module, outputs, batch, number):
            if len(module.seen) == self.steps:
                trainer.save_checkpoint(tmp_path / "stopped.ckpt")
                trainer.should_stop = True

    def fit(model, steps, path=None):
        loader = loaders.StatefulDataLoader(dataset.to_torch(lightning=True), batch_size=None, num_workers=0)
        trainer = lightning.Trainer(
            max_epochs=1,
            callbacks=[Stop(steps)],
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(model, loader, ckpt_path=path, weights_only=False)

    first, second = Model(), Model()
    fit(first, steps)
    fit(second, None, tmp_path / "stopped.ckpt")

    assert len(first.seen) == steps
    assert first.seen + second.seen == list(dataset.iterator(epoch=0))


def test_workers_cannot_leave_out_what_lightning_reads_ahead():
    """Each has given some of the last elements."""
    loader = torch.utils.data.DataLoader(
        numbers().filter(is_small).to_torch(lightning=True), batch_size=None, num_workers=1
    )
    with pytest.raises(DatasetError, match="num_workers=0"):
        list(loader)


def test_what_a_tensor_cannot_say_is_refused_or_converted():
    """Missing values were 0; numbers of the other byte order, and arrays that run backwards, are copied."""
    with pytest.raises(DatasetError, match=r"to_torch: values are missing in an array of int64.*filled"):
        list(inputs.from_arrow(pa.table({"a": [1, None]})).batch(2).to_torch())
    (swapped,) = inputs.from_elements([np.arange(3, dtype=">f4")]).to_torch()
    (backwards,) = inputs.from_elements([np.arange(3)[::-1]]).to_torch(copy=False)

    assert swapped.tolist() == [0, 1, 2]
    assert backwards.tolist() == [2, 1, 0]
