"""Accumulators: figures of a column that are gathered batch by batch and merged, so that nothing is read twice.

Each is an immutable value with three verbs, and what it knows as properties and methods:

    state = Moments.accumulate(batch)        # one Arrow array
    state = state.merge(Moments.accumulate(next_batch))
    kept = to_bytes(state)                   # from_bytes(Moments, kept) gives it back
    state.mean, state.std

The order of merging can change a result within its error bound, never beyond; in a fixed order the result is the same
to the byte, on any machine: nothing is drawn at random.
"""

from components.accumulators.accumulator import Accumulator, State, from_bytes, to_bytes
from components.accumulators.counted import Counted, counted
from components.accumulators.distinct import Distinct
from components.accumulators.extrema import Extrema
from components.accumulators.frequent import Frequent, Occurrence
from components.accumulators.histogram import Histogram
from components.accumulators.moments import Moments
from components.accumulators.quantiles import Quantiles
from components.accumulators.vocabulary import Vocabulary

__all__ = [
    "Accumulator",
    "Counted",
    "Distinct",
    "Extrema",
    "Frequent",
    "Histogram",
    "Moments",
    "Occurrence",
    "Quantiles",
    "State",
    "Vocabulary",
    "counted",
    "from_bytes",
    "to_bytes",
]
