"""Shares: each row of a window is read by exactly one replica."""

import tempfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spanwise.components.training.shares import bounds, share
from spanwise.input import Dataset, from_parquet
from spanwise.pipelines.input.op import list_ops
from spanwise.pipelines.input.ops.parquet import Parquet

FILES = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4)), min_size=1, max_size=4)  # rows; rows a row group


def written(folder, files):
    """Files of so many rows, numbered over all files."""
    first = 0
    for number, (rows, group) in enumerate(files):
        table = pa.table({"x": np.arange(first, first + rows)})
        pq.write_table(table, f"{folder}/{number}.parquet", row_group_size=group)
        first += rows
    return from_parquet(f"{folder}/*.parquet")


def read(op):
    return [x for batch in Dataset(op).batch(3).as_numpy() for x in batch["x"].tolist()]


@settings(max_examples=40, deadline=None)
@given(files=FILES, replicas=st.integers(1, 5))
def test_the_union_of_all_shares_is_the_window(files, replicas):
    """Any number of files, row groups, rows and replicas: in order, no row twice, none missing, sizes almost equal."""
    with tempfile.TemporaryDirectory() as folder:
        whole = written(folder, files).op
        shares = [read(share(whole, rank, replicas)) for rank in range(replicas)]

    assert [x for each in shares for x in each] == list(range(sum(rows for rows, _ in files)))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@settings(max_examples=40, deadline=None)
@given(files=FILES, replicas=st.integers(1, 5))
def test_even_shares_have_the_same_number_of_rows(files, replicas):
    """They are the shares without a last row that others lack: fewer rows than replicas are left out."""
    with tempfile.TemporaryDirectory() as folder:
        whole = written(folder, files).op
        shares = [read(share(whole, rank, replicas)) for rank in range(replicas)]
        even = [read(share(whole, rank, replicas, even=True)) for rank in range(replicas)]

    assert {len(each) for each in even} == {sum(rows for rows, _ in files) // replicas}
    assert all(less == each[: len(less)] for each, less in zip(shares, even, strict=True))


@pytest.mark.parametrize("rank", range(4))
def test_a_replica_opens_only_its_row_groups(tmp_path, rank):
    """No host reads the whole window."""
    whole = written(tmp_path, [(10, 2), (10, 2)]).op

    (reading,) = (op for op in list_ops(share(whole, rank, 4)) if isinstance(op, Parquet))

    start, stop = bounds(20, rank, 4)
    assert sum(group.rows for group in reading.groups) <= stop - start + 2
