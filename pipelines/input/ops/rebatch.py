"""Batches of another size. RecordBatches are cut and joined; others are unstacked and stacked again."""

from __future__ import annotations

from spanwise.pipelines.input.op import Op
from spanwise.pipelines.input.ops.batch import Batch
from spanwise.pipelines.input.ops.unbatch import Unbatch


def rebatch(source: Op, size: int, *, drop_remainder: bool = False, ragged: bool = False) -> Op:
    return Batch(input=Unbatch(input=source), size=size, drop_remainder=drop_remainder, ragged=ragged)
