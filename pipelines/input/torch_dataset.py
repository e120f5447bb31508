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
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from spanwise.orchestrator.user_code import Shipment, ship, unpack
from spanwise.pipelines.input.arrays import convert_arrays
from spanwise.pipelines.input.element import Ragged, each_leaf
from spanwise.pipelines.input.flow import Flow
from spanwise.pipelines.input.op import mix_seed
from spanwise.pipelines.input.ops.shard import Shard


class TorchDataset(IterableDataset):  # type: ignore[misc, type-arg, unused-ignore]  # torch may be missing
    """Each pass is the dataset's next one; of n workers, worker i gives the elements i, i + n, and so on."""

    def __init__(self, dataset: Flow, folder: str | None = None) -> None:
        super().__init__()
        self._dataset = dataset
        self._passes = 0  # in this process
        self._folder = folder or tempfile.mkdtemp(prefix="spanwise-epochs-")
        if folder is None:
            weakref.finalize(self, _remove, self._folder, os.getpid())

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (ship(self._dataset, by_value=True), self._folder)

    def __iter__(self) -> Iterator[Any]:
        number, self._passes = self._passes, self._passes + 1
        worker = get_worker_info()
        dataset = self._dataset if worker is None else self._share(worker)
        epoch = number if worker is None else self._epoch(f"{worker.seed - worker.id} {number}")
        with dataset.iterator(epoch=epoch) as elements:
            for element in elements:
                yield each_leaf(as_tensor, convert_arrays(element))

    def _share(self, worker: Any) -> Flow:
        """The elements of one worker; all of them shuffle alike, also where no seed was given."""
        op, settings = self._dataset.op, self._dataset.settings
        if settings.seed is None:
            settings = replace(settings, seed=mix_seed(worker.seed - worker.id))
        return type(self._dataset)(Shard(input=op, shards=worker.num_workers, index=worker.id), settings)

    def _epoch(self, name: str) -> int:
        """The number of the epoch, which its workers have under one name; each loading process counts its own."""
        with Path(self._folder, str(os.getppid())).open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            known = file.read().splitlines()
            if name not in known:
                file.write(name + "\n")
            return known.index(name) if name in known else len(known)


def as_tensor(leaf: Any) -> Any:
    """Numbers as tensors with memory of their own: torch might write to ours."""
    if isinstance(leaf, Ragged):
        return [as_tensor(row) for row in leaf]
    array = np.array(leaf)
    return torch.from_numpy(array) if array.dtype.kind in "biufc" else leaf


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # a worker that was forked has a copy of the dataset
        shutil.rmtree(folder, ignore_errors=True)


def _restore(shipment: Shipment, folder: str) -> TorchDataset:
    flow = unpack(shipment)
    assert isinstance(flow, Flow)
    return TorchDataset(flow, folder)
