"""Shares: which rows of a window each replica of a Trainer reads.

The rows of a split are numbered over the whole window: oldest span first, in each span by file, in each file as they
lie. Of n rows and k replicas, rank r reads those from n*r // k to n*(r+1) // k - 1. So each row is read by exactly one
of them, their shares differ by one row at most, and each opens only the row groups in which its rows are.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

from spanwise.pipelines.input.op import Op
from spanwise.pipelines.input.ops.parquet import Parquet
from spanwise.pipelines.input.ops.skip import Skip
from spanwise.pipelines.input.ops.take import Take


def bounds(rows: int, rank: int, replicas: int) -> tuple[int, int]:
    """The first row of a share, and the one behind its last."""
    return rows * rank // replicas, rows * (rank + 1) // replicas


def share(reading: Parquet, rank: int, replicas: int, *, even: bool = False) -> Op:
    """The rows of one replica. `even`: as many as each of the others, which leaves out less than one row of each."""
    total = sum(group.rows for group in reading.groups)
    start, stop = bounds(total, rank, replicas)
    if even:
        stop = start + total // replicas
    ends = list(itertools.accumulate(group.rows for group in reading.groups))
    wanted = [
        (end - group.rows, group)
        for group, end in zip(reading.groups, ends, strict=True)
        if start < end and end - group.rows < stop
    ]
    paths = dict.fromkeys(group.path for _, group in wanted)
    found: Op = replace(reading, groups=tuple(group for _, group in wanted), paths=tuple(paths))
    if not wanted:
        return found
    first, last = wanted[0][0], wanted[-1][0] + wanted[-1][1].rows
    if first < start:
        found = Skip(input=found, count=start - first)
    return Take(input=found, count=stop - start) if stop < last else found
