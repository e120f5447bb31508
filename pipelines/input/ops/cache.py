"""A cache in memory, filled by the first complete pass. A pass that does not finish leaves nothing behind."""

from __future__ import annotations

import contextlib
import sys
import threading
from dataclasses import dataclass, field, replace
from typing import Any

from spanwise.orchestrator.errors import DatasetError, FunctionFailed
from spanwise.pipelines.input.element import Ragged, Sparse, parts_of, read_only
from spanwise.pipelines.input.op import (
    Element,
    InputSeries,
    Op,
    Opening,
    SingleInputStream,
    State,
    Stream,
    assign_seeds,
    check_whole,
    rebuild,
)
from spanwise.pipelines.input.ops.arrow import ArrowStream
from spanwise.pipelines.input.ops.tensors import ElementsStream
from spanwise.pipelines.input.rows import RowCursor, block_bytes, in_rows

DEFAULT_LIMIT_BYTES = 1 << 30


class CacheContents:
    """The elements, shared by all passes over the dataset. They stay in their process: a copy elsewhere is empty."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.contents: list[Any] | None = None
        self.seed: int | None = None  #: of the pass that filled it

    def __reduce__(self) -> tuple[type[CacheContents], tuple[()]]:
        return CacheContents, ()


@dataclass(frozen=True, kw_only=True, eq=False)
class Cache(Op):
    input: Op
    limit_bytes: int = DEFAULT_LIMIT_BYTES
    cached: CacheContents = field(default_factory=CacheContents, repr=False)

    def __post_init__(self) -> None:
        check_whole("cache", "limit_bytes", self.limit_bytes)

    @property
    def needs_all(self) -> str:
        return ""

    def open(self, opening: Opening) -> Stream:
        return CacheStream(self, opening)


def with_own_caches(op: Op) -> Op:
    """The graph with empty caches, which no other pass shares: for a pass over a part of the graph's sources."""
    return rebuild(op, lambda each: replace(each, cached=CacheContents()) if isinstance(each, Cache) else each)


class CacheStream(Stream):
    """Gives the cached elements, or fills the cache; restored where the cache is empty, it repeats the pass."""

    def __init__(self, op: Cache, opening: Opening) -> None:
        self._op = op
        self._opening = opening
        self._series = InputSeries(opening)
        self._begin: State = {}  # of the input, until all of it was read: a restored pass may have to read it again
        self._seed: int | None = None
        self._source: Stream | None = None
        self._found: list[Any] | None = None  # read so far, while the cache is being filled
        self._bytes = 0
        self._at = 0  # elements or rows given

    def _opened(self) -> Stream:
        if self._source is None:
            cached, op = self._op.cached, self._op
            with cached.lock:
                contents, seed = cached.contents, cached.seed
            if contents is not None and self._seed in {None, seed}:
                self._seed = seed
                self._source = ArrowStream(contents, self._opening.block) if in_rows(op) else ElementsStream(contents)
            else:
                self._seed = self._opening.seed if self._seed is None else self._seed
                # always as a first pass: the contents do not depend on which pass happened to fill the cache
                first = replace(self._series.opening(0), seed=self._seed, epoch=(0,))
                self._source = first.open(assign_seeds(op.input, self._seed))
                self._begin = {"input": self._source.state()}
                self._found = []
        return self._source

    def __next__(self) -> Element:
        source = self._opened()
        try:
            element = next(source)
        except StopIteration:
            self._keep()
            self._begin = {}
            raise
        except Exception:
            self._found = None  # a pass with a gap is not cached
            self._at += not in_rows(self._op)  # it has used up an element
            raise
        self._at += element.num_rows if in_rows(self._op) else 1
        if self._found is not None:
            self._found.append(element)
            self._bytes += size_bytes(element)
            if self._bytes > self._op.limit_bytes:
                raise DatasetError(
                    f"cache(limit_bytes={self._op.limit_bytes}): {self._at} elements take {self._bytes} bytes, and "
                    f"more follow. Raise the limit, select fewer columns, or use snapshot, which stores them on disk."
                )
            return element if in_rows(self._op) else read_only(element)
        return element

    def close(self) -> None:
        if self._source is not None:
            self._source.close()

    def _keep(self) -> None:
        if self._found is not None:
            with self._op.cached.lock:
                self._op.cached.contents, self._op.cached.seed = self._found, self._seed
            self._found = None

    def state(self) -> State:
        self._opened()
        return {"at": self._at, "seed": self._seed, **self._begin}

    def restore(self, state: State) -> None:
        self._seed = state["seed"]
        source = self._opened()
        if self._found is None and in_rows(self._op):
            source.restore({"rows": state["at"]})
            self._at = state["at"]
        elif self._found is None:
            source.restore({"at": state["at"]})
            self._at = state["at"]
        else:
            self._replay(state["at"])

    def _replay(self, count: int) -> None:
        """Repeats the pass up to that point; a block that reaches further is cut, and its rest comes next."""
        if not in_rows(self._op):
            while self._at < count:
                with contextlib.suppress(FunctionFailed):  # raised before the state was taken
                    next(self)
            return
        rows = RowCursor(self._opened())
        while self._at < count:
            try:
                block = rows.take(count - self._at)
            except FunctionFailed:
                self._found = None
                continue
            if self._found is not None:
                self._found.append(block)
                self._bytes += block_bytes(block)
            self._at += block.num_rows
        self._source = Rest(rows, self._opened())


class Rest(SingleInputStream):
    """The rest of the blocks of which `rows` has taken some."""

    def __init__(self, rows: RowCursor, source: Stream) -> None:
        super().__init__(source)
        self._rows = rows

    def __next__(self) -> Element:
        return self._rows.rest()


def size_bytes(element: Element) -> int:
    """About how much memory an element takes."""
    if isinstance(element, Ragged):
        return int(element.values.nbytes + element.offsets.nbytes)
    if isinstance(element, Sparse):
        return int(element.values.nbytes + element.indices.nbytes)
    taken = parts_of(element)
    if taken is not None:
        return sys.getsizeof(element) + sum(map(size_bytes, taken[1]))
    if hasattr(element, "get_total_buffer_size"):  # RecordBatches; of a slice only its own rows count
        return block_bytes(element)
    return int(getattr(element, "nbytes", 0)) or sys.getsizeof(element)
