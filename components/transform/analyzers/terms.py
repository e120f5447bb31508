"""Terms: which values a column has and how often, counted exactly; the basis of vocabularies.

A state holds each distinct value once, so a column of 10 million different texts makes a state of as many.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spanwise.components.deferred_polars import pl
from spanwise.components.transform.analyzers.analyzer import AccumulatorAnalyzer
from spanwise.components.transform.analyzers.plain import Plain

if TYPE_CHECKING:
    from spanwise.components.statistics.accumulators import Vocabulary


def refuse_terms(type_: pl.DataType) -> str | None:
    """Why a column of this type has no vocabulary; None if it has."""
    if type_.is_float() or type_.is_nested() or type_ in (pl.Binary, pl.Object):
        return f"a vocabulary is of texts, whole numbers or dates, not of {type_}; make a text of it first"
    return None


@dataclass(frozen=True)
class Terms(AccumulatorAnalyzer["Vocabulary"]):
    """The values as text, the most frequent first, those of equal counts by their bytes."""

    accumulator = "Vocabulary"
    finishing = ("top_k", "min_count")

    top_k: int | None = None  #: at most this many
    min_count: int = 1  #: fewer occurrences in all spans together leave a term out

    def refusal(self, *types: pl.DataType) -> str | None:
        return refuse_terms(types[0])

    def prepare(self, values: pl.Series) -> pl.Series:
        return values.cast(pl.String)

    def finish(self, state: Vocabulary) -> Plain:
        return [term.value for term in state.top(self.top_k, at_least=self.min_count)]
