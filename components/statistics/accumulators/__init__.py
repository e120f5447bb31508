"""Accumulators: figures of a column that are gathered batch by batch and merged, so that nothing is read twice.

Each is an immutable value with three verbs, and what it knows as properties and methods:

    state = Moments.accumulate(batch)        # one Arrow array
    state = state.merge(Moments.accumulate(next_batch))
    kept = to_bytes(state)                   # from_bytes(Moments, kept) gives it back
    state.mean, state.std

The order of merging can change a result within its error bound, never beyond; in a fixed order the result is the same
to the byte, on any machine: nothing is drawn at random.
"""

from spanwise.components.statistics.accumulators.accumulator import Accumulator, State, from_bytes, to_bytes
from spanwise.components.statistics.accumulators.distinct import Distinct
from spanwise.components.statistics.accumulators.extrema import Extrema
from spanwise.components.statistics.accumulators.frequent import Frequent, Occurrence
from spanwise.components.statistics.accumulators.moments import Moments
from spanwise.components.statistics.accumulators.quantiles import Quantiles
from spanwise.components.statistics.accumulators.value_counts import ValueCounts, count_values
from spanwise.components.statistics.accumulators.vocabulary import Vocabulary
from spanwise.components.statistics.accumulators.weights import WeightedOccurrence, WeightedQuantiles, WeightedTerms

__all__ = [
    "Accumulator",
    "Distinct",
    "Extrema",
    "Frequent",
    "Moments",
    "Occurrence",
    "Quantiles",
    "State",
    "ValueCounts",
    "Vocabulary",
    "WeightedOccurrence",
    "WeightedQuantiles",
    "WeightedTerms",
    "count_values",
    "from_bytes",
    "to_bytes",
]
