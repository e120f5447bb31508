"""Terms: which values there are and how often, counted exactly; what vocabularies are made of.

A state holds each distinct value once, so a column of 10 million different texts makes a state of as many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from spanwise.components.transform.analyzers.analyzer import Analyzer
from spanwise.components.transform.analyzers.numbers import merged
from spanwise.components.transform.analyzers.plain import Plain

if TYPE_CHECKING:
    from spanwise.components.statistics.accumulators import Vocabulary


@dataclass(frozen=True)
class Terms(Analyzer["Vocabulary"]):
    """The values as text, the most frequent first, those of equal counts by their bytes."""

    finishing = ("top_k", "min_count")

    top_k: int | None = None  #: no more than these
    min_count: int = 1  #: only what occurs at least so often in all spans together

    def refusal(self, *types: pl.DataType) -> str | None:
        (type_,) = types
        if type_.is_float() or type_.is_nested() or type_ in (pl.Binary, pl.Object):
            return f"a vocabulary is of texts, whole numbers or dates, not of {type_}; make a text of it first"
        return None

    def accumulate(self, *values: pl.Series) -> Vocabulary:
        from spanwise.components.statistics.accumulators import Vocabulary

        return Vocabulary.accumulate(values[0].cast(pl.String).rechunk().to_arrow())

    def merge(self, states: Sequence[Vocabulary]) -> Vocabulary:
        return merged(states)

    def finish(self, state: Vocabulary) -> Plain:
        return [found.value for found in state.top(self.top_k, at_least=self.min_count)]

    def pack(self, state: Vocabulary) -> bytes:
        from spanwise.components.statistics.accumulators import to_bytes

        return to_bytes(state)

    def unpack(self, raw: bytes) -> Vocabulary:
        from spanwise.components.statistics.accumulators import Vocabulary, from_bytes

        return from_bytes(Vocabulary, raw)
