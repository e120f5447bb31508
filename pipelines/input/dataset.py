"""The words in which a dataset is written: each wraps the op before it in another one. It holds no data."""

from __future__ import annotations

import builtins
import itertools
import secrets
import weakref
from collections.abc import Iterator
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Self

from orchestrator.errors import StateMismatch
from pipelines.input.element import Spec
from pipelines.input.op import Count, Element, Op, Opening, Options, State, Stream, rows_of
from pipelines.input.ops.arrow import Arrow
from pipelines.input.ops.batch import Batch
from pipelines.input.ops.range import Range

if TYPE_CHECKING:
    import pyarrow as pa


class Dataset:
    """A description of a flow of elements; nothing happens until it is iterated over."""

    def __init__(self, op: Op, options: Options | None = None) -> None:
        self.op = op
        self.settings = options or Options()
        self._epochs = itertools.count()

    @property
    def spec(self) -> Spec:
        """What an element is, as far as it is known before one was made."""
        return self.op.spec

    @property
    def cardinality(self) -> Count:
        """How many elements one pass gives; `math.inf` if it never ends, None if only reading them could tell."""
        return self.op.cardinality

    def __iter__(self) -> DatasetIterator:
        return self.iterator()

    def iterator(self, *, epoch: int | None = None) -> DatasetIterator:
        """One pass over the elements. Passes are numbered, so that shuffles differ; `epoch` names one."""
        return self._opened(epoch, blocks=False)

    def blocks(self, *, epoch: int | None = None) -> DatasetIterator:
        """One pass over rows, a RecordBatch of many at a time: how many is not promised."""
        return self._opened(epoch, blocks=True)

    def _opened(self, epoch: int | None, *, blocks: bool) -> DatasetIterator:
        number = next(self._epochs) if epoch is None else epoch
        return DatasetIterator(self, number, blocks=blocks)

    def _then(self, op: Op) -> Dataset:
        return Dataset(op, self.settings)

    def batch(self, size: int, *, drop_remainder: bool = False, ragged: bool = False) -> Dataset:
        """Batches of exactly `size` elements; the last may be smaller, unless dropped. Rows make RecordBatches."""
        return self._then(Batch(input=self.op, size=size, drop_remainder=drop_remainder, ragged=ragged))


class DatasetIterator(Iterator[Element]):
    """One pass over a dataset; its `state` can be kept and given to another one, in another process too."""

    def __init__(self, dataset: Dataset, epoch: int, *, blocks: bool) -> None:
        options = dataset.settings
        seed = secrets.randbits(63) if options.seed is None else options.seed
        self._op = dataset.op
        self._opening = Opening(options=options, seed=seed, epoch=(epoch,), dataset=Dataset)
        self._stream: Stream | None = None
        self._in_rows = rows_of(dataset.op) and not blocks
        self._rows: list[Element] = []  # of the block that is being given row by row
        self._at = 0
        self._before: State = {}
        self._closed = False

    def _open(self) -> Stream:
        if self._stream is None:
            self._stream = self._opening.open(self._op)
            weakref.finalize(self, self._stream.close)
        return self._stream

    def __next__(self) -> Element:
        if self._closed:
            raise StopIteration
        stream = self._stream or self._open()
        if not self._in_rows:
            return next(stream)
        if self._at == len(self._rows):
            self._before = stream.state()
            self._rows, self._at = next(stream).to_pylist(), 0
        self._at += 1
        return self._rows[self._at - 1]

    def state(self) -> State:
        """Where it stands, as plain data."""
        stream = self._open()
        inside = self._at < len(self._rows)
        return {
            "epoch": list(self._opening.epoch),
            "seed": self._opening.seed,
            "stream": self._before if inside else stream.state(),
            "used": self._at if inside else 0,
        }

    def restore(self, state: State) -> Self:
        """Goes on where the iterator stood whose state it was."""
        if self._stream is not None:
            raise StateMismatch("restore: this iterator has been used already; take a fresh one from the dataset.")
        self._opening = replace(self._opening, epoch=tuple(state["epoch"]), seed=state["seed"])
        self._open().restore(state["stream"])
        for _ in builtins.range(state["used"]):
            next(self)
        return self

    def close(self) -> None:
        """Ends the pass and gives back what it holds; also done when the iterator is dropped."""
        self._closed = True
        if self._stream is not None:
            self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def range(start: int, stop: int | None = None, step: int = 1) -> Dataset:  # noqa: A001  as tf.data calls it
    """Whole numbers, as Python's own `range`."""
    return Dataset(Range(start=0, stop=start, step=step) if stop is None else Range(start=start, stop=stop, step=step))


def from_arrow(table: pa.Table | pa.RecordBatch) -> Dataset:
    """Rows of a table."""
    import pyarrow as pa

    return Dataset(Arrow(table=pa.Table.from_batches([table]) if isinstance(table, pa.RecordBatch) else table))
