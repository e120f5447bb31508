"""An `ElasticJob` as a Trainer runs it, on the records and the model of `elastic_loop`.

Its input is Parquet examples, its master is a real one, and its worker a process.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.elastic_model import CompiledStep, eager
from benchmarks.elastic_records import BATCH, BLOCKS, PIXELS, Batch, input_fn, preprocess
from spanwise.components.training.elastic import training
from spanwise.components.training.elastic.arrays import Arrays
from spanwise.components.training.elastic.job import ElasticJob
from spanwise.components.training.elastic.phases import Phases
from spanwise.components.training.prepared_spans import SnapshotTally
from spanwise.components.training.trainer_task import ExamplesWindow, TrainerTask
from spanwise.orchestrator.artifact import Examples

if TYPE_CHECKING:
    from spanwise.pipelines.input.dataset import Dataset

RATE: Final = 1e-3


@dataclass(frozen=True, kw_only=True)
class JobTimes:
    """A job, as measured by its own phases."""

    step_s: float  #: of a batch, over all phases of the worker
    shares: str  #: of the phases, as the log of a Trainer says it


def one_by_one(rows: Dataset) -> Dataset:
    """Batches as the document's loop makes them: a record after the other."""
    return rows.batch(BATCH).map(_input_fn)


def vectorised(rows: Dataset) -> Dataset:
    """All records of a batch at once."""
    return rows.batch(BATCH).map(_preprocess)


def _input_fn(batch: pa.RecordBatch) -> Batch:
    return input_fn(batch["record"].to_pylist())


def _preprocess(batch: pa.RecordBatch) -> Batch:
    return preprocess(_bytes_of(batch["record"]))


def _bytes_of(column: pa.Array[Any]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    width = column.type.byte_width
    return np.frombuffer(column.buffers()[1], np.uint8)[column.offset * width :][: len(column) * width].reshape(
        -1, width
    )[:, : 1 + PIXELS]


class Compiled:
    """The compiled step, made in the worker when it first has parameters."""

    def __init__(self) -> None:
        self._step: CompiledStep | None = None

    def __call__(self, parameters: Arrays, batch: Batch) -> Arrays:
        self._step = self._step or CompiledStep(parameters)
        return self._step(parameters, batch)


FORMS: Final[dict[str, tuple[Callable[[Dataset], Dataset], Callable[[Arrays, Batch], Arrays]]]] = {
    "an ElasticJob, records one by one": (one_by_one, eager),
    "an ElasticJob, vectorised": (vectorised, eager),
    "an ElasticJob, vectorised, with the compiled step": (vectorised, Compiled()),
}


def run(name: str, examples: Examples, create: Callable[[], Arrays], steps: int) -> JobTimes:
    """Runs a form for about so many steps."""
    dataset_fn, gradient = FORMS[name]
    epochs = -(-steps // BLOCKS)
    job = ElasticJob(
        dataset_fn=dataset_fn,
        init=lambda _: create(),
        save=lambda _, __: None,
        gradient=gradient,
        apply=_descend,
        epochs=epochs,
        task_rows=BLOCKS * BATCH,
    )
    with tempfile.TemporaryDirectory() as name_of_folder, _report() as records:
        folder = Path(name_of_folder)
        window = ExamplesWindow(artifacts=(examples,), snapshots=folder / "snapshots", tally=SnapshotTally())
        task = TrainerTask(examples=window, model_dir=folder, checkpoints=folder)
        training.run_job(job, task)
    facts = vars(records[-1])
    assert facts["steps"] == epochs * BLOCKS, "a gradient of each batch counts"
    phases: Phases = facts["phases"]
    return JobTimes(step_s=sum(phases.seconds.values()) / facts["steps"], shares=str(phases))


def write_examples(folder: Path, path: Path, record_bytes: int) -> Examples:
    """The records of the loop as examples of one span, a row each."""
    width = record_bytes - 4  # the checksum is Parquet's own now
    rows = np.fromfile(path, np.uint8).reshape(-1, record_bytes)[:, :width]
    column = pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(rows), [None, pa.py_buffer(rows.tobytes())])
    place = folder / "examples"
    (place / "Split-train").mkdir(parents=True)
    file = place / "Split-train" / "part-00000.parquet"
    pq.write_table(pa.table({"record": column}), file, compression="none", write_page_checksum=True)
    examples = Examples(str(place), name="records/examples/1/1")
    examples.span, examples.split_names, examples.calendar = 1, ["train"], "number"
    return examples


def _descend(values: Arrays, gradient: Arrays) -> Arrays:
    return {name: value - RATE * gradient[name] for name, value in values.items()}


@contextmanager
def _report() -> Iterator[list[logging.LogRecord]]:
    """What a training logs."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler(logging.INFO)
    handler.emit = records.append  # type: ignore[method-assign]
    training.log.addHandler(handler)
    level = training.log.level
    training.log.setLevel(logging.INFO)
    try:
        yield records
    finally:
        training.log.removeHandler(handler)
        training.log.setLevel(level)
