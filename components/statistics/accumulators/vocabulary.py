"""Vocabularies: every text that occurs, with its exact count."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from spanwise.components.statistics.accumulators.accumulator import State, raw, text
from spanwise.components.statistics.accumulators.frequent import Occurrence
from spanwise.components.statistics.accumulators.value_counts import count_texts, to_list


def _empty_table() -> pa.Table:
    return pa.table({"value": pa.array([], pa.string()), "count": pa.array([], pa.int64())})


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """All texts with their counts, in order of their UTF-8 bytes. It grows with the number of different texts."""

    table: pa.Table = field(default_factory=_empty_table)  #: value, count; each value once

    @classmethod
    def accumulate(cls, values: pa.Array[Any]) -> Self:
        found, counts = count_texts(values.cast(pa.string()))
        return cls(_group(pa.table({"value": found, "count": counts})))

    def merge(self, other: Self) -> Self:
        return type(self)(_group(pa.concat_tables([self.table, other.table])))

    def top(self, most: int | None = None, *, at_least: int = 1) -> tuple[Occurrence, ...]:
        """The values that occur `at_least` so often, the most frequent first, equals by their bytes."""
        kept = self.table.filter(pc.field("count") >= at_least)
        ordered = kept.sort_by([("count", "descending"), ("value", "ascending")]).slice(0, most)
        values, counts = to_list(ordered["value"].combine_chunks()), to_list(ordered["count"].combine_chunks())
        return tuple(Occurrence(value, count) for value, count in zip(values, counts, strict=True))

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def state(self) -> State:
        buffer = pa.BufferOutputStream()
        with pa.ipc.new_stream(buffer, self.table.schema) as stream:
            stream.write_table(self.table.combine_chunks())
        return {"arrow": text(buffer.getvalue().to_pybytes())}

    @classmethod
    def from_state(cls, state: State) -> Self:
        with pa.ipc.open_stream(raw(state, "arrow")) as stream:
            return cls(stream.read_all())


def _group(table: pa.Table) -> pa.Table:
    found = table.group_by("value").aggregate([("count", "sum")]).sort_by("value")
    return pa.table({"value": found["value"].combine_chunks(), "count": found["count_sum"].combine_chunks()})
