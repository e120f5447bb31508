"""Accumulators: figures gathered batch by batch, merged, kept as bytes, within the errors they promise."""

import datetime as dt
import decimal
import functools
import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanwise.components.statistics.accumulators import (
    Distinct,
    Extrema,
    Frequent,
    Moments,
    Occurrence,
    Quantiles,
    Vocabulary,
    count_values,
    from_bytes,
    to_bytes,
)


def merged(kind, batches):
    """What a kind of accumulator gathers over batches, in their order."""
    return functools.reduce(kind.merge, map(kind.accumulate, batches))


def texts(*values):
    return pa.array(values, pa.string())


EVERY = [
    (Moments, pa.array([1.5, None, -2.0])),
    (Extrema, pa.array([3, None, 2**62])),
    (Quantiles, pa.array(np.arange(5000.0))),
    (Distinct, texts("a", "b", None)),
    (Frequent, texts("a", "b", "b")),
    (Vocabulary, texts("ü", "b", "b")),
]


@pytest.mark.parametrize(("kind", "values"), EVERY)
def test_bytes_give_back_what_was_kept(kind, values):
    """An accumulator that was written and read again is written as the same bytes."""
    state = kind.accumulate(values)

    kept = to_bytes(state)

    assert to_bytes(from_bytes(kind, kept)) == kept


@pytest.mark.parametrize(("kind", "values"), EVERY)
def test_merging_with_nothing_changes_nothing(kind, values):
    """A batch without values leaves every figure as it is, on either side."""
    state, nothing = kind.accumulate(values), kind.accumulate(values.slice(0, 0))

    assert to_bytes(state.merge(nothing)) == to_bytes(state)
    assert to_bytes(nothing.merge(state)) == to_bytes(state)


@pytest.mark.parametrize(("kind", "values"), EVERY)
def test_the_same_batches_give_the_same_bytes(kind, values):
    """Nothing is drawn at random: the same batches in the same order are the same bytes each time."""
    batches = [values, values, values]

    assert to_bytes(merged(kind, batches)) == to_bytes(merged(kind, batches))


@given(st.lists(st.floats(-1e9, 1e9), min_size=2), st.data())
def test_moments_do_not_depend_on_the_batches(values, data):
    """However values are cut into batches, mean and deviation are those of all of them."""
    cut = data.draw(st.integers(0, len(values)))

    found = merged(Moments, [pa.array(values[:cut], pa.float64()), pa.array(values[cut:], pa.float64())])

    assert found.count == len(values)
    assert found.mean == pytest.approx(np.mean(values), rel=1e-9, abs=1e-6)
    assert found.std == pytest.approx(np.std(values), rel=1e-6, abs=1e-4)


def test_a_large_mean_does_not_swallow_a_small_spread():
    """A deviation of 1 around 10^9 is found, batch by batch."""
    values = 1e9 + np.tile([-1.0, 1.0], 50_000)

    found = merged(Moments, [pa.array(part) for part in np.split(values, 10)])

    assert found.std == pytest.approx(1.0, rel=1e-9)


def test_sums_of_whole_numbers_do_not_overflow():
    """Values whose sum exceeds 64 bits have their true mean, and extrema to the last digit."""
    values = pa.array([2**63 - 1] * 10 + [2**63 - 3])

    assert Moments.accumulate(values).mean == pytest.approx(float(2**63))
    assert Extrema.accumulate(values) == Extrema(least=2**63 - 3, greatest=2**63 - 1)


def test_sums_of_doubles_do_not_overflow():
    """Doubles whose sum exceeds a double still have a mean; their deviation is infinite, and says so."""
    found = Moments.accumulate(pa.array([1e308] * 4))

    assert found.mean == pytest.approx(1e308)
    assert merged(Moments, [pa.array([1e308] * 4), pa.array([-1e308] * 4)]).mean == pytest.approx(0, abs=1e294)


def test_nan_and_infinities_are_counted_apart():
    """What is no finite number takes part in no figure, and is counted."""
    found = count_values(pa.array([1.0, math.nan, math.inf, -math.inf, None, 1.0]))

    assert (found.count, found.nan, found.infinite) == (2, 1, 2)
    assert found.values.tolist() == [1.0]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (pa.array([True, None, False]), [0, 1]),
        (pa.array([decimal.Decimal("1.25"), None]), [1.25]),
        (pa.array([dt.date(1970, 1, 3)]), [2]),
        (pa.array([60_000], pa.timestamp("ms")), [60_000]),
        (pa.array([2**64 - 1, 1], pa.uint64()), [1, 2**64 - 1]),
        (pa.array([-128, 127], pa.int8()), [-128, 127]),
        (pa.array([-(2**63), 2**63 - 1]), [-(2**63), 2**63 - 1]),
        (pa.array([1.5], pa.float32()), [1.5]),
    ],
)
def test_every_type_that_is_a_number_is_counted_as_one(values, expected):
    """Booleans, decimals, dates and times are numbers too; 64 bits stay 64 bits."""
    assert count_values(values).values.tolist() == expected


def test_few_values_have_exact_quantiles():
    """Up to 1023 values nothing is left out."""
    found = Quantiles.accumulate(pa.array(range(1, 1001)))

    assert found.quantiles([0.001, 0.25, 0.5, 1.0]).tolist() == [1, 250, 500, 1000]
    assert found.rank_error() == 0.0


SHAPES = {
    "normal": lambda n: np.random.default_rng(1).normal(size=n),
    "ascending": lambda n: np.arange(n, dtype=float),
    "descending": lambda n: -np.arange(n, dtype=float),
    "skewed": lambda n: np.random.default_rng(2).pareto(0.5, n),
    "few values": lambda n: np.random.default_rng(3).integers(0, 7, n).astype(float),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("batch", [777, 65_536])
def test_ranks_are_within_the_promised_error(shape, batch):
    """Whatever comes in whatever order, every rank is within the bound of the docstring."""
    values = SHAPES[shape](300_000)

    found = merged(Quantiles, [pa.array(values[i : i + batch]) for i in range(0, len(values), batch)])

    points = np.quantile(values, np.linspace(0.01, 0.99, 99), method="inverted_cdf")
    true = np.searchsorted(np.sort(values), points, side="right") / len(values)
    assert np.abs(found.share_up_to(points) - true).max() <= found.rank_error()
    assert found.count == len(values)
    assert sum(level.size for level in found.levels) < 1024 * 10


def test_boundaries_cut_into_groups_of_equal_weight():
    """Ten groups have nine inner boundaries."""
    found = Quantiles.accumulate(pa.array(range(100)))

    assert found.boundaries(10).tolist() == [9, 19, 29, 39, 49, 59, 69, 79, 89]


def test_nothing_has_no_quantile():
    """Quantiles of nothing are NaN, not an error and not 0."""
    assert math.isnan(Quantiles().quantiles([0.5])[0])


@pytest.mark.parametrize("count", [0, 1, 100, 100_000])
def test_distinct_values_are_counted_within_the_error(count):
    """An estimate is within three standard errors, 5 %, also when it was merged from overlapping batches."""
    values = [f"value {i}" for i in range(count)]

    found = merged(Distinct, [texts(*values), texts(*values[: count // 2])])

    assert found.estimate == pytest.approx(count, rel=0.05)


def test_the_empty_text_is_a_value():
    """An empty text counts as one of the distinct values, and as a frequent one."""
    assert Distinct.accumulate(texts("", "a", "")).estimate == 2
    assert Frequent.accumulate(texts("", "a", "")).top(1) == (Occurrence("", 2),)


def test_equal_numbers_of_different_widths_are_one_value():
    """A value is counted once, whatever batch it comes in."""
    found = merged(Distinct, [pa.array([1, 2, 3]), pa.array([3, 2, 1])])

    assert found.estimate == 3


def test_a_few_values_are_counted_exactly():
    """While all different values fit, counts are exact and nothing is missing."""
    found = merged(Frequent, [texts("b", "a", "a"), texts("a", None, "c")])

    assert found.top() == (Occurrence("a", 3), Occurrence("b", 1), Occurrence("c", 1))
    assert found.complete
    assert found.error == 0


def test_the_most_frequent_of_many_values_are_found():
    """Among 100,000 different strings those that make up more than 0.17 % are found, never counted too low."""
    rare = [f"rare {i}" for i in range(100_000)]
    values = np.random.default_rng(0).permutation([*rare, *["often"] * 2000, *["sometimes"] * 1000])

    found = merged(Frequent, [pa.array(part, pa.string()) for part in np.array_split(values, 5)])

    first, second = found.top(2)
    assert (first.value, second.value) == ("often", "sometimes")
    assert 2000 <= first.count <= 2000 + 0.0018 * len(values)
    assert not found.complete


def test_a_long_text_is_counted_by_its_beginning():
    """A text of a megabyte does not make the statistics a megabyte."""
    found = Frequent.accumulate(texts("x" * 1_000_000))

    assert found.top() == (Occurrence("x" * 200, 1),)
    assert len(to_bytes(found)) < 1000


def test_a_vocabulary_is_exact_and_in_order():
    """All texts are counted; the most frequent come first, equals in order of their bytes."""
    found = merged(Vocabulary, [texts("b", "a", "日本"), texts("a", "c", None)])

    assert [(o.value, o.count) for o in found.top()] == [("a", 2), ("b", 1), ("c", 1), ("日本", 1)]
    assert [o.value for o in found.top(1)] == ["a"]
    assert [o.value for o in found.top(at_least=2)] == ["a"]
    assert len(found) == 4
