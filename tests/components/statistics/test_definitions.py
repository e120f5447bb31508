"""Definitions: each figure of a column is what NumPy, Polars, pyarrow or SciPy compute over the same values."""

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spanwise.components.statistics.distances import jensen_shannon, l_infinity
from spanwise.components.statistics.span_statistics import count_column, edges_between
from tests.later import Later

distance = Later("scipy.spatial.distance")
RANDOM = np.random.default_rng(21)
X = np.round(RANDOM.lognormal(0, 1, 1000), 2)
X[:40] = 0.0
WITH_ODD = pa.array([*X, None, float("nan"), float("inf"), None], from_pandas=False)
WORDS = pa.array([*RANDOM.choice(["b", "a", "é", "", "abc"], 500).tolist(), None])
WEIGHTS = RANDOM.exponential(1, 1000)


def feature(values, weights=None):
    (found,) = count_column("x", values, weights)
    return found


def test_counts_are_those_of_pyarrow_and_polars():
    """Places, missing values, NaN, infinities and zeros."""
    found, series = feature(WITH_ODD), pl.Series(WITH_ODD)

    assert (found.count, found.missing) == (len(WITH_ODD), WITH_ODD.null_count)
    assert (found.nan, found.infinite) == (series.is_nan().sum(), series.is_infinite().sum())
    assert found.zeros == pc.sum(pc.equal(WITH_ODD, 0.0)).as_py()
    assert found.numbers.count == series.is_finite().sum()


def test_extrema_and_moments_are_numpys():
    """Least, greatest, mean, and the standard deviation of the population, of the finite numbers."""
    numbers = feature(WITH_ODD).numbers

    assert (numbers.least, numbers.greatest) == (X.min(), X.max())
    assert (numbers.mean, numbers.std) == pytest.approx((X.mean(), X.std()), rel=1e-14)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.25, 1 / 3, 0.5, 0.99, 1.0])
def test_quantiles_are_numpys(share):
    """By the inverted distribution."""
    assert feature(WITH_ODD).numbers.quantile(share) == np.quantile(X, share, method="inverted_cdf")


def test_histograms_are_numpys_with_the_other_edge():
    """NumPy's bins contain their lower edge, ours their upper one: those of the negative numbers, turned round."""
    edges = edges_between(X.min(), X.max(), 12)

    counts, _ = np.histogram(-X, bins=-np.array(edges[::-1]))

    assert feature(WITH_ODD).numbers.shares_between(edges) == pytest.approx(counts[::-1] / X.size, abs=1e-12)


def test_distinct_values_are_those_of_polars():
    """Within the error of the sketch, which has none to speak of for a few."""
    assert feature(WITH_ODD).unique == pytest.approx(np.unique(X).size + 2, rel=0.033)  # and NaN, and infinity
    assert feature(WORDS).unique == pl.Series(WORDS).drop_nulls().n_unique()


def test_frequent_values_are_those_of_polars():
    """With their counts, equals by their text."""
    counts = pl.Series("word", WORDS).drop_nulls().value_counts().sort(["count", "word"], descending=[True, False])

    assert [(each.value, each.count) for each in feature(WORDS).top()] == counts.rows()


def test_lengths_are_those_of_polars():
    """In characters."""
    lengths, theirs = feature(WORDS).lengths, pl.Series(WORDS).drop_nulls().str.len_chars()

    assert (lengths.least, lengths.greatest, lengths.count) == (theirs.min(), theirs.max(), theirs.len())
    assert lengths.mean == pytest.approx(theirs.mean(), rel=1e-15)


def test_weighted_figures_are_numpys():
    """Mean, deviation, quantiles, histograms, frequent values, and the share of what is missing."""
    weighted = feature(pa.array(X), WEIGHTS).weighted
    edges, mean = edges_between(X.min(), X.max(), 12), np.average(X, weights=WEIGHTS)
    words = feature(WORDS, WEIGHTS[: len(WORDS)]).weighted
    sums = pl.DataFrame({"word": WORDS, "w": WEIGHTS[: len(WORDS)]}).group_by("word").agg(pl.sum("w")).rows()

    assert weighted.mean == pytest.approx(mean, rel=1e-14)
    assert weighted.std == pytest.approx(np.sqrt(np.average((X - mean) ** 2, weights=WEIGHTS)), rel=1e-14)
    assert weighted.total == pytest.approx(WEIGHTS.sum(), rel=1e-14)
    for share in (0.1, 0.5, 0.9):
        assert weighted.quantile(share) == np.quantile(X, share, weights=WEIGHTS, method="inverted_cdf")
    theirs, _ = np.histogram(-X, bins=-np.array(edges[::-1]), weights=WEIGHTS)
    assert weighted.shares_between(edges) == pytest.approx(theirs[::-1] / WEIGHTS.sum(), abs=1e-12)
    assert {each.value: each.weight for each in words.top()} == pytest.approx({k: v for k, v in sums if k is not None})
    assert words.missing_share == pytest.approx(dict(sums)[None] / words.total, rel=1e-12)


def test_distances_are_those_of_numpy_and_scipy():
    """L-infinity of the shares of texts; of a few whole numbers the divergence is that of their shares, in bits."""
    before, now = RANDOM.integers(0, 5, 1000), RANDOM.choice(5, 1000, p=[0.4, 0.3, 0.1, 0.1, 0.1])
    p, q = (np.bincount(each, minlength=5) / 1000 for each in (before, now))
    a, b = feature(pa.array(before)), feature(pa.array(now))

    assert l_infinity(a, b)[0] == pytest.approx(np.abs(p - q).max(), rel=1e-12)
    assert jensen_shannon(a, b) == pytest.approx(distance.jensenshannon(p, q, base=2) ** 2, rel=1e-9)
