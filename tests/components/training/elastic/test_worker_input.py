"""The input of a worker: one dataset over tasks, whose batches end with their task."""

import threading

import numpy as np
import pytest

from spanwise.components.training.elastic.tasks import JobPlan, TaskKind, TaskLease, TaskTable
from spanwise.components.training.elastic.training import readings_of
from spanwise.components.training.elastic.worker_input import build_task_graph, rows_in, task_batches
from spanwise.orchestrator.errors import ParameterError
from spanwise.pipelines.input import col
from spanwise.pipelines.input import range as numbers
from spanwise.pipelines.input.ops.parquet import ParquetReader
from tests.components.training.elastic import jobs

TRAINING = TaskKind.TRAINING


@pytest.fixture
def reading(tmp_path):
    """One row group of 90 rows."""
    return readings_of(jobs.SUM, jobs.task_of(tmp_path, spans=1))[TRAINING]


def pieces_of(reading, dataset_fn, task_rows=20, counted=0):
    """What a worker is given that does all tasks."""
    table = TaskTable(JobPlan(training=tuple(group.rows for group in reading.groups), task_rows=task_rows))

    def next_lease():
        lease = table.take("w", 0.0)
        return None if lease is None else TaskLease(**{**vars(lease), "counted": counted})

    return list(task_batches({TRAINING: build_task_graph(reading, dataset_fn, 1)}, next_lease, 2))


def flat(lists):
    return [each for one in lists for each in one]


def rows_of(pieces):
    """The rows of each task's batches."""
    found = {}
    for piece in pieces:
        if piece.error is None and not piece.is_end:
            found.setdefault(piece.lease.task.number, []).append(piece.batch["x"].tolist())
    return list(found.values())


def test_batches_end_with_their_task(reading):
    """So a batch belongs to one task, and each task ends behind its last batch."""
    pieces = pieces_of(reading, lambda rows: rows.batch(8).as_numpy())

    first = [list(range(8)), list(range(8, 16)), list(range(16, 20))]
    assert rows_of(pieces)[0] == first
    assert flat(rows_of(pieces)[-1]) == list(range(80, 90))
    assert [piece.number for piece in pieces[:4]] == [0, 1, 2, 3]
    assert [piece.is_end for piece in pieces[:4]] == [False, False, False, True]


def test_a_task_has_the_same_batches_whoever_does_it(reading):
    """Shuffled ones too, so that those which count can be left out; tasks are shuffled in different ways."""

    def shuffled(rows):
        return rows.select("x").shuffle(100).batch(5).as_numpy()

    all_, others = (rows_of(pieces_of(reading, shuffled, counted=counted)) for counted in (0, 2))

    assert [task[2:] for task in all_ if task[2:]] == others
    assert all_[0] != sorted(all_[0])
    assert [row % 20 for row in flat(all_[0])] != [row % 20 for row in flat(all_[1])]
    assert sorted(flat(flat(all_))) == list(range(90))


def test_a_task_of_which_nothing_is_left_ends_at_once(reading):
    """A filter may drop every row of it."""
    pieces = pieces_of(reading, lambda rows: rows.filter(col("x") > 65).batch(8).as_numpy())

    assert [piece.is_end for piece in pieces[:3]] == [True, True, True]
    assert flat(flat(rows_of(pieces))) == list(range(66, 90))


def test_an_error_is_told_in_the_place_of_a_batch_and_others_go_on(reading):
    """The tasks behind it are done."""

    def check(columns):
        if 25 in columns["x"]:
            raise ValueError("no")
        return columns

    pieces = pieces_of(reading, lambda rows: rows.select("x").map(check, vectorized=True).batch(20).as_numpy())

    assert [piece.lease.task.number for piece in pieces if piece.error is not None] == [1]
    assert [piece.lease.task.number for piece in pieces if piece.is_end] == [0, 2, 3, 4]


def test_tasks_that_follow_each_other_decode_their_row_group_once(reading, monkeypatch):
    """The next goes on where the last has ended; one that lies before it begins anew."""
    opened = []
    read = ParquetReader.read
    monkeypatch.setattr(ParquetReader, "read", lambda self, part: opened.append(part) or read(self, part))

    pieces_of(reading, lambda rows: rows.batch(7))
    in_order, opened[:] = len(opened), []
    made = build_task_graph(reading, lambda rows: rows.batch(100).as_numpy(), 0)
    leases = [TaskTable(JobPlan(training=(90,), task_rows=size)).take("w", 0.0) for size in (30, 20, 90)]
    found = [
        piece.batch["x"]
        for piece in task_batches({TRAINING: made}, iter([*leases, None]).__next__, 1)
        if not piece.is_end
    ]

    assert in_order == 1
    assert len(opened) == 3
    assert [batch.tolist() for batch in found] == [list(range(stop)) for stop in (30, 20, 90)]


def test_batches_keep_their_order_whatever_a_function_says(reading):
    """Another worker that continues a task skips as many batches as were counted; predictions are of the rows in order."""
    late = threading.Event()

    def first_is_last(batch):
        if batch["x"][0] == 0:
            late.wait(0.2)
        return batch

    def unordered(rows):
        return rows.select("x").batch(5).as_numpy().map(first_is_last, num_parallel=4, deterministic=False)

    assert flat(flat(rows_of(pieces_of(reading, unordered)))) == list(range(90))


def test_only_the_columns_are_read_that_are_needed(reading):
    """The graph is rewritten as that of any dataset."""
    made = build_task_graph(reading, lambda rows: rows.select("x").batch(8), 0)

    assert made.rows.row_schema.names == ["x"]


@pytest.mark.parametrize(
    ("dataset_fn", "says"),
    [
        (lambda rows: rows, r"end it with .batch\(256\)"),
        (lambda rows: rows.cache().batch(8), "stores a whole pass"),
        (lambda rows: rows.repeat().batch(8), "epochs="),
        (lambda rows: numbers(10).batch(5), "must return a dataset over the rows"),
    ],
)
def test_what_cannot_be_cut_into_tasks_is_refused(reading, dataset_fn, says):
    """Before anything is started, with what to write instead."""
    with pytest.raises(ParameterError, match=says):
        build_task_graph(reading, dataset_fn, 0)


def test_the_rows_of_a_batch_are_counted_along_its_first_axis(reading):
    """Of arrays, structures of them, RecordBatches; a single value is one row."""
    (first, *_), *_ = ([piece.batch for piece in pieces_of(reading, lambda rows: rows.batch(8))],)

    assert rows_in(first) == 8
    assert rows_in(({"x": first["x"].to_numpy()}, 3)) == 8
    assert rows_in(3.0) == 1
    assert rows_in({"rate": 0.5, "name": "rides", "scale": np.array(2), "x": np.arange(8)}) == 8
