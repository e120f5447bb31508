"""Batches of elements of similar length, so that little is padded.

A state names the elements that wait in buckets by their distance from the oldest of them, and holds none itself.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from spanwise.orchestrator.errors import DatasetError, FunctionFailed
from spanwise.pipelines.input.call import element_caller, function_error
from spanwise.pipelines.input.element import UNKNOWN, Spec
from spanwise.pipelines.input.op import (
    Count,
    Element,
    Op,
    Opening,
    SingleInputStream,
    State,
    Stream,
    check_callable,
    check_whole,
    count_some,
    needs_full_groups,
)
from spanwise.pipelines.input.ops.padded_batch import Padding, Sizes, pad_batch
from spanwise.pipelines.input.rows import open_elements
from spanwise.pipelines.input.stacking import stack


@dataclass(frozen=True, kw_only=True, eq=False)
class Bucket(Op):
    input: Op
    length: Callable[..., Any]
    boundaries: tuple[int, ...]  #: bucket i has the lengths below boundary i; one more bucket has the rest
    sizes: tuple[int, ...]  #: how many elements make a batch, bucket by bucket
    shapes: Sizes = None
    values: Padding = None
    drop_remainder: bool = False
    no_padding: bool = False  #: whether the elements of a bucket are all of one size already

    def __post_init__(self) -> None:
        op = "bucket_by_sequence_length"
        check_callable(op, "length", self.length)
        if any(high <= low for low, high in pairwise(self.boundaries)):
            raise DatasetError(f"{op}(boundaries={list(self.boundaries)}): expected ascending numbers.")
        if len(self.sizes) != len(self.boundaries) + 1:
            raise DatasetError(
                f"{op}: {len(self.boundaries)} boundaries make {len(self.boundaries) + 1} buckets, "
                f"but there are {len(self.sizes)} batch sizes."
            )
        for size in self.sizes:
            check_whole(op, "sizes", size)

    @property
    def needs_all(self) -> str:
        return needs_full_groups(self, drop_remainder=self.drop_remainder)

    @property
    def spec(self) -> Spec:
        return UNKNOWN

    @property
    def cardinality(self) -> Count:
        return count_some(self.input.cardinality)

    def open(self, opening: Opening) -> Stream:
        return BucketStream(open_elements(opening, self.input), self)


class BucketStream(SingleInputStream):
    def __init__(self, source: Stream, op: Bucket) -> None:
        super().__init__(source)
        self._op = op
        self._call = element_caller(op.length)
        self._at = 0  # elements read, and errors
        self._buckets: list[dict[int, Element]] = [{} for _ in op.sizes]  # by their numbers
        self._before: dict[int, State] = {}  # the source's state before each element that waits

    def __next__(self) -> Element:
        while True:
            before = self._source.state()
            try:
                element = next(self._source)
            except StopIteration:
                return self._last()
            except Exception:
                self._at += 1
                raise
            bucket = self._buckets[self._bucket_of(element)]
            number = self._at - 1
            bucket[number] = element
            self._before[number] = before
            if len(bucket) == self._op.sizes[self._buckets.index(bucket)]:
                return self._empty_bucket(bucket)

    def _bucket_of(self, element: Element) -> int:
        self._at += 1
        try:
            return bisect.bisect_right(self._op.boundaries, int(self._call(element)))
        except Exception as error:
            raise function_error(
                "bucket_by_sequence_length", self._op.length, f"element {self._at - 1}", error
            ) from error

    def _last(self) -> Element:
        for bucket in self._buckets:
            if bucket and not self._op.drop_remainder:
                return self._empty_bucket(bucket)
        raise StopIteration

    def _empty_bucket(self, bucket: dict[int, Element]) -> Element:
        found = list(bucket.values())
        for number in bucket:
            del self._before[number]
        bucket.clear()
        return stack(found) if self._op.no_padding else pad_batch(found, self._op.shapes, self._op.values)

    def state(self) -> State:
        oldest = min(self._before, default=self._at)
        return {
            "input": self._before[oldest] if self._before else self._source.state(),
            "oldest": oldest,
            "read": self._at,
            "waiting": sorted(self._before),
        }

    def restore(self, state: State) -> None:
        super().restore(state)
        self._at = state["oldest"]
        waiting = set(state["waiting"])
        while self._at < state["read"]:
            before = self._source.state()
            try:
                element = next(self._source)
            except FunctionFailed:  # raised before the state was taken
                self._at += 1
                continue
            if self._at not in waiting:
                self._at += 1
                continue
            self._buckets[self._bucket_of(element)][self._at - 1] = element
            self._before[self._at - 1] = before
