"""PyTorch's view of a dataset: an `IterableDataset` whose workers share the elements of each epoch. Needs torch.

The workers of an epoch are processes that know nothing of each other, and usually new ones in each epoch. What they
have in common is the seed that the loader drew for the epoch. So epochs are numbered by these seeds: the first worker
that meets a new one adds it to a file, and its line there is the number of the epoch.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from spanwise.orchestrator.errors import DatasetError
from spanwise.orchestrator.user_code import Shipment, ship, unpack
from spanwise.pipelines.input.arrays import convert_arrays, examples_of, refuse_missing
from spanwise.pipelines.input.element import Ragged, each_leaf
from spanwise.pipelines.input.flow import Flow
from spanwise.pipelines.input.lookahead import Lookahead
from spanwise.pipelines.input.op import State, mix_seed
from spanwise.pipelines.input.ops.shard import Shard
from spanwise.pipelines.input.snapshot.source import why_not_shared


@dataclass(frozen=True, kw_only=True)
class Handover:
    """How elements become tensors."""

    copy: bool = True  #: into memory of their own: torch might write to ours
    pin_memory: bool = False
    device: Any = None
    prefetch: int = 0  #: how many elements ahead they are pinned or sent
    lightning: bool = False  #: whether a state leaves out the last element if the number of elements is not known

    def tensors(self, element: Any, like: Any = None) -> Any:
        """The element with tensors; `like` says what is in empty lists: see `convert_arrays`."""
        return each_leaf(self._tensor, convert_arrays(element, "to_torch", like))

    def _tensor(self, leaf: Any) -> Any:
        if isinstance(leaf, Ragged):
            return [self._tensor(row) for row in leaf]
        if isinstance(leaf, list):  # of no numbers
            return leaf
        refuse_missing("to_torch", "tensor", leaf)
        array = np.array(leaf) if self.copy else np.asarray(leaf)
        if array.dtype.kind not in "biufc":
            return leaf
        if not array.dtype.isnative or min(array.strides, default=0) < 0:  # torch has neither
            array = np.ascontiguousarray(array, array.dtype.newbyteorder("="))
        tensor = torch.from_numpy(array) if array.flags.writeable else _shared(array)
        tensor = tensor.pin_memory() if self.pin_memory else tensor
        return tensor if self.device is None else tensor.to(self.device, non_blocking=True)

    def check(self) -> None:
        """Refuses to pin or send memory, or to leave an element out, where that cannot be.

        Raises:
            DatasetError: this is a worker of a loader, or there is no accelerator.
        """
        if get_worker_info() is not None and self.lightning:
            raise DatasetError(
                "to_torch(lightning=True): a loader's workers cannot know which of them gave the element that was read "
                "ahead. Use StatefulDataLoader(…, num_workers=0); map(…, num_parallel=) works ahead there."
            )
        if get_worker_info() is not None and (self.pin_memory or self.device is not None):
            raise DatasetError(
                "to_torch(pin_memory=, device=): a loader's workers cannot do that. Leave it to the loader: "
                "DataLoader(…, pin_memory=True)."
            )
        if self.pin_memory and not torch.accelerator.is_available():
            raise DatasetError("to_torch(pin_memory=True): there is no accelerator for which memory could be pinned.")


def _shared(array: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that it must not be written to, as the user has agreed
        return torch.from_numpy(array)


class TorchDataset(IterableDataset):  # type: ignore[misc, type-arg, unused-ignore]  # torch may be missing
    """Each pass is the dataset's next one; of n workers, worker i gives the elements i, i + n, and so on."""

    def __init__(self, dataset: Flow, handover: Handover | None = None, folder: str | None = None) -> None:
        super().__init__()
        self._dataset = dataset
        self._handover = handover or Handover()
        self._passes = 0  # in this process
        self._folder = folder or tempfile.mkdtemp(prefix="spanwise-epochs-")
        if folder is None:
            weakref.finalize(self, _remove, self._folder, os.getpid())

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (ship(self._dataset, by_value=True), self._handover, self._folder)

    def __len__(self) -> int:
        """How many elements a pass has; Lightning reads one element less ahead where that is known."""
        count = self._dataset.cardinality
        if not isinstance(count, int):
            raise TypeError("how many elements this dataset has is only known when they have been read")
        return count

    def __iter__(self) -> TorchIterator:
        self._handover.check()
        number, self._passes = self._passes, self._passes + 1
        worker = get_worker_info()
        dataset = self._dataset if worker is None else self._share(worker)
        name = "" if worker is None else f"{worker.seed - worker.id} {number}"
        epoch = number if worker is None else self._epoch(name)

        def follow(restored: int) -> None:
            """Lets the next pass have the number after that of a restored one."""
            if worker is None:
                self._passes = restored + 1
            else:
                self._epoch(name, restored)

        leaves_out = self._handover.lightning and not isinstance(dataset.cardinality, int)
        return TorchIterator(dataset, epoch, self._handover, follow, leaves_out=leaves_out)

    def _share(self, worker: Any) -> Flow:
        """The elements of one worker; all have them in one order, also where none or no seed was asked for."""
        op, settings = self._dataset.op, self._dataset.settings
        unshared = why_not_shared(op) if worker.num_workers > 1 else ""
        if unshared:
            raise DatasetError(f"to_torch: {worker.num_workers} workers count the elements, and {unshared}")
        if settings.seed is None:
            settings = replace(settings, seed=mix_seed(worker.seed - worker.id))
        settings = replace(settings, in_order=worker.num_workers > 1)
        return type(self._dataset)(Shard(input=op, shards=worker.num_workers, index=worker.id), settings)

    def _epoch(self, name: str, restored: int = 0) -> int:
        """The number of the epoch, which its workers have under one name; each loading process counts its own.

        It is at least that of a pass that is restored.
        """
        with Path(self._folder, str(os.getppid())).open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            known = file.read().splitlines()
            if name in known[restored:]:
                return known.index(name, restored)
            gap = ["(before)"] * (restored - len(known))
            file.write("".join(line + "\n" for line in (*gap, name)))
            return len(known) + len(gap)


class TorchIterator(Iterator[Any]):
    """One pass, or a worker's share of it. Its state does not count what was sent to a device and not given yet."""

    def __init__(
        self, dataset: Flow, epoch: int, handover: Handover, follow: Callable[[int], None], *, leaves_out: bool = False
    ) -> None:
        self._dataset = dataset
        self._follow = follow
        elements = dataset.iterator(epoch=epoch)
        convert = partial(handover.tensors, like=examples_of(dataset.spec))
        self._ahead = Lookahead(elements, convert, handover.prefetch, leaves_out=leaves_out)

    def __next__(self) -> Any:
        return next(self._ahead)

    def state_dict(self) -> State:
        """Where it stands: the state of the dataset's iterator."""
        return {"input": self._ahead.state()}

    def load_state_dict(self, state: State) -> None:
        """Continues where the iterator stood that returned the state."""
        self._ahead.restart(self._dataset.iterator(epoch=0).restore(state["input"]))
        self._follow(int(state["input"]["epoch"][0]))

    def commit(self, state: State | None = None) -> None:
        """Counts the elements before a state as used: see `DatasetIterator.commit`."""
        self._ahead.elements.commit(state and state["input"])

    def close(self) -> None:
        """Ends the pass."""
        self._ahead.close()


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # a worker that was forked has a copy of the dataset
        shutil.rmtree(folder, ignore_errors=True)


def _restore(shipment: Shipment, handover: Handover, folder: str) -> TorchDataset:
    flow = unpack(shipment)
    assert isinstance(flow, Flow)
    return TorchDataset(flow, handover, folder)
