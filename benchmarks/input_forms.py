"""Input pipelines of other forms than numbers: images, strings and ragged lists, to pyarrow and NumPy by hand.

Each form is read from a mapped file, changed by a function of blocks, shuffled and batched. By hand it is the same work
in one thread, and both take turns.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from benchmarks.figures import Figure, at_least, growth, show
from benchmarks.input import rates_in_turn
from spanwise.pipelines.input.dataset import Dataset
from spanwise.pipelines.input.sources import from_arrow_files

IMAGE = (64, 64, 3)
SIZES = (1, 2, 4)  #: how many times the rows of the smallest table, for the growth
TIMES = 5


@dataclass(frozen=True, kw_only=True)
class Form:
    """One kind of rows, and the same work on them twice."""

    name: str
    rows: int
    block_rows: int
    batch_rows: int
    make: Callable[[int], pa.Table]
    change: Callable[[Any], Any]  #: a block, as the dataset's function gets it
    read: Callable[[pa.RecordBatch], Any]  #: a block as the function takes it, by hand
    take: Callable[[Any, NDArray[np.int64]], Any]  #: rows of a changed block, by hand
    is_arrays: bool = False  #: whether batches are arrays in the end

    def dataset(self, file: Path) -> Dataset:
        kind = None if self.is_arrays else "arrow"
        mapped = from_arrow_files([str(file)]).map(self.change, vectorized=True, stateless=True, format=kind)
        batches = mapped.shuffle(self.block_rows, seed=1).batch(self.batch_rows)
        return (batches.as_numpy() if self.is_arrays else batches).prefetch()

    def by_hand(self, file: Path) -> Iterator[int]:
        reader = pa.ipc.open_file(pa.memory_map(str(file)))
        for number in range(reader.num_record_batches):
            block = reader.get_batch(number)
            shuffled = self.take(
                self.change(self.read(block)), np.random.default_rng(number).permutation(block.num_rows)
            )
            for at in range(0, block.num_rows, self.batch_rows):
                yield _count(_slice(shuffled, at, self.batch_rows))


def measured() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as name:
        for form in FORMS:
            taken = []
            for times in SIZES:
                file = Path(name, f"{times}.arrow")
                table = form.make(form.rows * times)
                with pa.ipc.new_file(str(file), table.schema) as out:
                    out.write_table(table, max_chunksize=form.block_rows)
                del table
                dataset = form.dataset(file)
                ours, plain = rates_in_turn(_counts(dataset), _by_hand(form, file), times=TIMES)
                taken.append(form.rows * times / ours)
                file.unlink()
            yield Figure(name=f"{form.name}: read, map, shuffle, batch, prefetch", value=ours * 1e6, unit="rows/s")
            yield at_least(f"{form.name}, to pyarrow and NumPy by hand", ours / plain, "x", 0.8)
            yield growth(f"{form.name}, by rows", [form.rows * times for times in SIZES], taken)


def _counts(dataset: Dataset) -> Callable[[], Iterator[int]]:
    return lambda: (_count(batch) for batch in dataset)


def _by_hand(form: Form, file: Path) -> Callable[[], Iterator[int]]:
    return lambda: form.by_hand(file)


def _count(batch: Any) -> int:
    return len(next(iter(batch.values()))) if isinstance(batch, dict) else int(batch.num_rows)


def _slice(rows: Any, at: int, count: int) -> Any:
    if isinstance(rows, dict):
        return {name: column[at : at + count] for name, column in rows.items()}
    return rows.slice(at, count)


def _images(rows: int) -> pa.Table:
    flat = np.random.default_rng(0).integers(0, 256, (rows, *IMAGE), dtype=np.uint8)
    return pa.table({"image": pa.FixedShapeTensorArray.from_numpy_ndarray(flat), "label": np.arange(rows)})


def _invert(block: dict[str, Any]) -> dict[str, Any]:
    return {"image": 255 - block["image"], "label": block["label"]}


def _as_arrays(block: pa.RecordBatch) -> dict[str, Any]:
    return {"image": block.column("image").to_numpy_ndarray(), "label": block.column("label").to_numpy()}


def _strings(rows: int) -> pa.Table:
    draw = np.random.default_rng(0)
    words = pa.array([f"word {n} of a sentence"[: 6 + n % 20] for n in range(50_000)])
    return pa.table({name: words.take(pa.array(draw.integers(0, len(words), rows))) for name in ("title", "city")})


def _upper(block: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"title": pc.ascii_upper(block.column("title")), "city": block.column("city")})


def _lists(rows: int) -> pa.Table:
    draw = np.random.default_rng(0)
    offsets = np.concatenate([[0], np.cumsum(draw.integers(0, 17, rows))]).astype(np.int32)
    values = draw.random(int(offsets[-1]), dtype=np.float32)
    return pa.table({"clicks": pa.ListArray.from_arrays(pa.array(offsets), pa.array(values)), "user": np.arange(rows)})


def _double(block: pa.RecordBatch) -> pa.RecordBatch:
    clicks = block.column("clicks")
    first = clicks.offsets[0]
    doubled = pc.multiply(clicks.flatten(), pa.scalar(2, pa.float32()))
    made = pa.ListArray.from_arrays(pc.subtract(clicks.offsets, first), doubled)
    return pa.record_batch({"clicks": made, "user": block.column("user")})


def _take_arrays(block: dict[str, Any], order: NDArray[np.int64]) -> dict[str, Any]:
    return {name: column[order] for name, column in block.items()}


def _take_batch(block: pa.RecordBatch, order: NDArray[np.int64]) -> pa.RecordBatch:
    return block.take(pa.array(order))


FORMS = (
    Form(
        name="images of 64x64x3 bytes",
        rows=2048,
        block_rows=1024,
        batch_rows=64,
        make=_images,
        change=_invert,
        read=_as_arrays,
        take=_take_arrays,
        is_arrays=True,
    ),
    Form(
        name="strings",
        rows=250_000,
        block_rows=65_536,
        batch_rows=1024,
        make=_strings,
        change=_upper,
        read=lambda block: block,
        take=_take_batch,
    ),
    Form(
        name="ragged lists",
        rows=250_000,
        block_rows=65_536,
        batch_rows=1024,
        make=_lists,
        change=_double,
        read=lambda block: block,
        take=_take_batch,
    ),
)


if __name__ == "__main__":
    sys.exit(show(measured()))
