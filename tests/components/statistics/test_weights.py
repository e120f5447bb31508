"""Weighted quantiles and frequent values: as NumPy and plain sums have them, exactly or within the bound that they state."""

import collections
import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spanwise.components.statistics.accumulators import WeightedQuantiles, WeightedTerms, from_bytes, to_bytes
from spanwise.components.statistics.accumulators.frequent import cut
from spanwise.components.statistics.span_statistics import SpanStatistics, SplitCounts, count_column
from spanwise.components.statistics.weighted import WeightedStatistics

SHARES = [0.0, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0]


@settings(deadline=None)
@given(rows=st.lists(st.tuples(st.integers(-50, 50), st.integers(0, 8)), min_size=1, max_size=200).filter(
    lambda rows: any(weight for _, weight in rows)))  # fmt: skip
def test_few_values_have_the_quantiles_of_numpy(rows):
    """The least number up to which at least each share of the weight lies; weights of 0 do not count."""
    values, weights = np.array(rows, np.float64).T

    found = WeightedQuantiles.accumulate(values, weights / 8)

    expected = np.quantile(values[weights > 0], SHARES, weights=weights[weights > 0], method="inverted_cdf")
    assert found.quantiles(SHARES).tolist() == expected.tolist()
    assert found.rank_error() == 0.0


@pytest.mark.parametrize("parts", [1, 2, 16, 31])
def test_many_values_are_within_the_bound_that_is_stated(parts):
    """However they are merged; the ends are exact."""
    random = np.random.default_rng(parts)
    values, weights = random.lognormal(0, 2, 100_000), random.exponential(1, 100_000) ** 2
    cuts = zip(np.array_split(values, parts), np.array_split(weights, parts), strict=True)
    first, *others = [WeightedQuantiles.accumulate(*cut) for cut in cuts]
    for other in others:
        first = first.merge(from_bytes(WeightedQuantiles, to_bytes(other)))
    order = np.argsort(values)
    ends = np.cumsum(weights[order]) / weights.sum()

    off = [
        max(0, (ends[np.searchsorted(values[order], found, side="left")] - share), share
            - ends[np.searchsorted(values[order], found, side="right") - 1])
        for share, found in zip(SHARES, first.quantiles(SHARES), strict=True)
    ]  # fmt: skip

    assert max(off) <= first.rank_error() <= 0.025
    assert (first.quantiles([0.0])[0], first.quantiles([1.0])[0]) == (values.min(), values.max())
    assert first.total == pytest.approx(weights.sum(), rel=1e-12)


def test_equal_weights_are_no_weights():
    """Then the figures are those of counted rows."""
    values = np.arange(1, 1000, dtype=np.float64)

    found = WeightedQuantiles.accumulate(values, np.full(999, 0.3))

    assert found.quantiles([0.5, 0.25]).tolist() == [500.0, 250.0]
    assert found.boundaries(4).tolist() == [250.0, 500.0, 750.0]


@pytest.mark.parametrize("most", [None, 100])
def test_texts_are_weighed(most):
    """All of them exactly, or the heaviest within the error that is stated."""
    random = np.random.default_rng(0)
    texts = [f"t{number}" for number in random.zipf(1.3, 30_000) % 1_000]
    weights = random.exponential(1, 30_000)
    expected = collections.Counter()
    for text, weight in zip(texts, weights, strict=True):
        expected[text] += weight

    parts = [
        WeightedTerms.accumulate(pa.array(texts[start : start + 1000]), weights[start : start + 1000], most=most)
        for start in range(0, 30_000, 1000)
    ]
    found = parts[0]
    for part in parts[1:]:
        found = found.merge(from_bytes(WeightedTerms, to_bytes(part)))

    for each in found.top():
        assert each.weight - each.error - 1e-9 <= expected[each.value] <= each.weight + 1e-9
    assert found.top(1)[0].value == expected.most_common(1)[0][0]
    assert found.error <= weights.sum() / 100
    assert found.top(1)[0].exact == (most is None)


def test_a_least_weight_is_met_by_what_rounding_explains():
    """0.1 and 0.7 are 0.8, also where their sum as doubles is below it, as for every other bound."""
    found = WeightedTerms.accumulate(pa.array(["a", "a", "b"]), np.array([0.1, 0.7, 0.79]))

    assert [each.value for each in found.top(at_least=0.8)] == ["a"]


def test_a_column_has_weighted_quantiles_and_frequent_values(tmp_path):
    """Numbers, texts, whole numbers, booleans and dates; they are stored and merged."""
    columns = {
        "x": pa.array([1.5, None, 2.5, np.nan], from_pandas=False),
        "who": pa.array(["a", "b", None, "b"]).dictionary_encode(),
        "whole": pa.array([7, 7, 8, None]),
        "late": pa.array([True, False, None, False]),
        "day": pa.array([0, 1, 1, None], pa.date32()),
    }
    weights = np.array([1.0, 2.0, 4.0, 8.0])
    features = {name: count_column(name, array, weights)[0] for name, array in columns.items()}
    SpanStatistics(splits={"train": SplitCounts(name="train", rows=4, features=features)}).write(tmp_path)

    found = SpanStatistics.load(tmp_path).splits["train"].features
    merged = {name: each.merge(each).weighted for name, each in found.items()}

    assert found["x"].weighted.quantile(0.3) == 2.5
    assert [(each.value, each.weight) for each in merged["who"].top()] == [("b", 20.0), ("a", 2.0)]
    assert [(each.value, each.weight) for each in merged["whole"].top()] == [("8", 8.0), ("7", 6.0)]
    assert [each.value for each in merged["late"].top()] == ["false", "true"]
    assert [each.value for each in merged["day"].top(1)] == ["1970-01-02"]
    assert merged["x"].shares_between([0.0, 2.0, 3.0]) == pytest.approx((0.2, 0.8))


def test_the_widest_spread_of_doubles_has_weighted_figures():
    """Whose squares, and whose difference, are larger than any double: in one batch, and in two that are merged."""
    most = np.finfo(np.float64).max
    weights = np.array([1.0, 3.0])

    whole = WeightedStatistics.accumulate_numbers(np.array([-most, most]), weights)
    parts = [
        WeightedStatistics.accumulate_numbers(np.array([x]), weights[n : n + 1]) for n, x in enumerate((-most, most))
    ]

    for found in (whole, parts[0].merge(parts[1])):
        assert (found.mean, found.std) == pytest.approx((most / 2, most * 0.75**0.5))
        assert WeightedStatistics.from_state(json.loads(json.dumps(found.state(), allow_nan=False))) == found


def test_figures_from_before_have_no_quantiles():
    """A span that was counted without them is merged all the same."""
    old = dict.fromkeys(("present", "missing", "counted", "high", "low", "m2"), 1.0)

    found = WeightedStatistics.from_state(old)

    assert np.isnan(found.quantile(0.5))
    assert found.std == 1.0
    assert found.merge(found).top() == ()


def test_long_texts_have_weights_of_their_own():
    """Those that begin alike are told apart, as where rows are counted."""
    texts = pa.array(["x" * 250, "x" * 251, None, "x" * 250, "y"])

    (found,) = count_column("text", texts, np.array([1.0, 2.0, 4.0, 8.0, 3.0]))

    assert found.weighted is not None
    assert {each.value: each.weight for each in found.weighted.top()} == {
        cut("x" * 250): 9.0,
        cut("x" * 251): 2.0,
        "y": 3.0,
    }
    assert {each.value for each in found.top()} == {each.value for each in found.weighted.top()}
