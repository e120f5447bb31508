"""Fingerprints of graphs: equal where the elements are, whatever else differs."""

import os
from dataclasses import dataclass, fields

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from spanwise.orchestrator import code_digest
from spanwise.orchestrator.errors import DatasetError, Unfingerprintable
from spanwise.pipelines import input as inputs
from spanwise.pipelines.input.graph.fingerprint import of_graph
from spanwise.pipelines.input.ops.range import Range


def print_of(dataset, **options):
    return of_graph(dataset.op, **options)


def add(number):
    return number + 1


def is_even(number):
    return number % 2 == 0


BASE = inputs.range(10)
ROWS = inputs.from_arrow(pa.table({"x": [1, 2]}))

#: pairs of graphs that give different elements
DIFFERENT = {
    "size": (inputs.range(10), inputs.range(11)),
    "function": (BASE.map(add), BASE.map(is_even)),
    "order of ops": (BASE.map(add).filter(is_even), BASE.filter(is_even).map(add)),
    "batch": (BASE.batch(2), BASE.batch(3)),
    "drop_remainder": (BASE.batch(3), BASE.batch(3, drop_remainder=True)),
    "seed": (BASE.shuffle(5, seed=1), BASE.shuffle(5, seed=2)),
    "buffer of shuffle": (BASE.shuffle(5, seed=1), BASE.shuffle(6, seed=1)),
    "take and skip": (BASE.take(3), BASE.skip(3)),
    "one input or another": (BASE.concatenate(inputs.range(3)), inputs.range(3).concatenate(BASE)),
    "whether rounds are kept": (BASE.shuffle(seed=1).repeat(2), BASE.shuffle(seed=1).cache().repeat(2)),
    "whether a snapshot keeps rounds": (
        BASE.shuffle(seed=1).take(3).repeat(2),
        BASE.shuffle(seed=1).take(3).snapshot("unused").repeat(2),
    ),
    "an op or none": (BASE, BASE.take(-1)),
    "order given up": (BASE.map(add, num_parallel=2), BASE.map(add, num_parallel=2, deterministic=False)),
    "a value": (inputs.from_arrow(pa.table({"x": [1]})), inputs.from_arrow(pa.table({"x": [2]}))),
    "a column's name": (inputs.from_arrow(pa.table({"x": [1]})), inputs.from_arrow(pa.table({"y": [1]}))),
    "a condition": (
        inputs.from_arrow(pa.table({"x": [1]})).filter(pc.field("x") > 1),
        inputs.from_arrow(pa.table({"x": [1]})).filter(pc.field("x") > 2),
    ),
    "a value deep in a condition's list": (
        ROWS.filter(pc.field("x").isin(range(50))),
        ROWS.filter(pc.field("x").isin([*range(20), *range(600, 610), *range(30, 50)])),
    ),
    "the type of a number in a condition": (ROWS.filter(pc.field("x") / 2 > 1), ROWS.filter(pc.field("x") / 2.0 > 1)),
    "the sign of a zero": (ROWS.filter(pc.field("x") / 0.0 > 1), ROWS.filter(pc.field("x") / -0.0 > 1)),
    "the columns a function is declared to return": (
        ROWS.map_batches(dict, spec=pa.schema([("x", pa.int32())])),
        ROWS.map_batches(dict, spec=pa.schema([("x", pa.int64())])),
    ),
    "an array": (inputs.from_tensor_slices(np.zeros(3)), inputs.from_tensor_slices(np.zeros(3, np.float32))),
    "a nested dataset": (BASE.flat_map(inputs.range), BASE.flat_map(lambda n: inputs.range(n + 1))),
}

#: pairs of graphs that give the same
EQUAL = {
    "made twice": (lambda: inputs.range(10).map(add)),
    "parallel": (lambda: inputs.range(10).map(add), lambda: inputs.range(10).map(add, num_parallel=4)),
    "prefetch": (lambda: inputs.range(10).map(add), lambda: inputs.range(10).prefetch(3).map(add).prefetch(9)),
    "cache": (lambda: inputs.range(10).map(add), lambda: inputs.range(10).cache().map(add)),
    "options": (lambda: inputs.range(10).map(add), lambda: inputs.range(10).options(block_rows=7, seed=3).map(add)),
    "a snapshot on the way": (
        lambda: inputs.range(10).map(add).map(is_even),
        lambda: inputs.range(10).map(add).snapshot("unused").map(is_even),
    ),
    "a function's name": (lambda: inputs.range(10).map(add), lambda: inputs.range(10).map(lambda n: n + 1)),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_what_changes_the_elements_counts(what):
    """Two graphs that differ in this are two snapshots."""
    one, other = DIFFERENT[what]

    assert print_of(one) != print_of(other)


@pytest.mark.parametrize("what", EQUAL)
def test_what_does_not_change_the_elements_does_not_count(what):
    """Two graphs that differ in this are one snapshot."""
    made = EQUAL[what]
    one, other = made if isinstance(made, tuple) else (made, made)

    assert print_of(one()) == print_of(other())


def test_an_input_that_is_used_twice_is_like_two_equal_ones():
    """What is shared is a matter of speed."""
    shared = inputs.range(5).map(add)

    assert print_of(inputs.zip(shared, shared)) == print_of(
        inputs.zip(inputs.range(5).map(add), inputs.range(5).map(add))
    )


def write_parquet(path, values):
    pq.write_table(pa.table({"fare": values}), path)


def write_csv(path, values):
    pa_csv.write_csv(pa.table({"fare": values}), path)


def write_ipc(path, values):
    table = pa.table({"fare": values})
    with pa.ipc.new_file(str(path), table.schema) as file:
        file.write_table(table)


@pytest.mark.parametrize(
    ("source", "write"), [("from_parquet", write_parquet), ("from_csv", write_csv), ("from_arrow_files", write_ipc)]
)
def test_source_files_count_by_name_size_and_time_or_by_content(tmp_path, source, write):
    """A file that moves keeps its content; one that is touched keeps it too."""
    here, there = tmp_path / "a" / "rows", tmp_path / "b" / "rows"
    for path in (here, there):
        path.parent.mkdir()
        write(path, [1, 2, 3])
        os.utime(path, (1, 1))
    read = getattr(inputs, source)

    def of(path, files_by):
        return print_of(read(path), files_by=files_by)

    by_time, by_content = of(here, "mtime"), of(here, "content")
    assert of(there, "mtime") != by_time
    assert of(there, "content") == by_content
    write(here, [1, 2, 4])
    os.utime(here, (1, 1))
    assert of(here, "content") != by_content
    os.utime(here, (2, 2))
    assert of(here, "mtime") != by_time


def test_the_types_of_csv_columns_count(tmp_path):
    """The same lines are other values when they are read as texts."""
    write_csv(tmp_path / "rows", [1, 2])
    numbers, texts = (
        inputs.from_csv(tmp_path / "rows", schema=pa.schema([("fare", kind)])) for kind in (pa.int64(), pa.string())
    )

    assert print_of(numbers) != print_of(texts)
    assert print_of(numbers) == print_of(inputs.from_csv(tmp_path / "rows"))


def test_a_snapshot_is_not_read_for_another_condition(tmp_path):
    """Arrow's text of a condition shows only the ends of a long list, and prints 2 and 2.0 alike."""
    rows = inputs.from_arrow(pa.table({"x": range(1000)}))
    chosen = [[*range(50)], [*range(20), *range(30, 50), *range(600, 610)]]

    found = [rows.filter(inputs.col("x").isin(each)).snapshot(tmp_path).to_arrow()["x"].to_pylist() for each in chosen]

    assert found == chosen


def test_a_source_file_that_is_gone_is_told(tmp_path):
    """With what to do."""
    write_parquet(tmp_path / "rows", [1])
    dataset = inputs.from_parquet(tmp_path / "rows")
    (tmp_path / "rows").unlink()

    with pytest.raises(DatasetError, match="create the dataset again"):
        print_of(dataset)


def test_an_op_of_the_users_counts_by_its_code():
    """Its name alone would not tell that it was edited."""

    def made(step):
        @dataclass(frozen=True, kw_only=True, eq=False)
        class Steps(Range):
            def open(self, opening):
                return Range(start=self.start, stop=self.stop, step=step).open(opening)

        Steps.__module__ = "project"
        return Steps(start=0, stop=10)

    assert of_graph(made(1)) != of_graph(made(2))
    assert of_graph(made(1)) == of_graph(made(1))


def test_a_dataset_that_a_function_uses_counts_by_its_graph():
    """And not by how often it was run."""
    other, longer = inputs.range(3), inputs.range(4)
    before = print_of(BASE.flat_map(lambda n: other))

    list(other)

    assert print_of(BASE.flat_map(lambda n: other)) == before
    assert print_of(BASE.flat_map(lambda n: longer)) != before


def test_a_dataset_that_a_function_uses_counts_by_the_options_that_change_its_elements():
    """As a part of the function, and as an element."""

    def uses(**options):
        other = inputs.range(10).shuffle().options(**options)
        return print_of(inputs.range(3).map(lambda at: list(other)[at])), print_of(inputs.from_elements([other]))

    for one, seeded, again, faster in zip(uses(), uses(seed=1), uses(seed=2), uses(seed=2, block_rows=7), strict=True):
        assert len({one, seeded, again}) == 3
        assert faster == again


@pytest.mark.parametrize("fingerprint", ["", None, 3])
def test_a_name_for_a_step_is_a_text(fingerprint):
    """Refused when the graph is built."""
    with pytest.raises(DatasetError, match="with_snapshot_fingerprint"):
        inputs.range(3).with_snapshot_fingerprint(fingerprint)


def test_a_named_step_may_hold_what_nobody_can_fingerprint():
    """The name stands for it, so it is not looked at."""
    file = open(os.devnull)  # noqa: PTH123, SIM115
    held = inputs.range(3).map(lambda n: file.closed or n)

    with pytest.raises(Unfingerprintable, match="change the name whenever the step changes"):
        print_of(held)
    assert print_of(held.with_snapshot_fingerprint("reads /dev/null"))
    file.close()


def test_an_op_of_a_component_counts_by_the_code_of_the_component(monkeypatch):
    """Its name alone would not show that the component has changed."""
    kind = type("TaskRows", (Range,), {"__module__": "spanwise.components.training.elastic.worker_input"})
    op = kind(**{each.name: getattr(inputs.range(3).op, each.name) for each in fields(Range)})
    found = []
    for version in ("1", "2"):
        monkeypatch.setattr(code_digest, "distribution_of", lambda *_, v=version: code_digest.Distribution("ours", v))
        found.append(of_graph(op))

    assert found[0] != found[1]
