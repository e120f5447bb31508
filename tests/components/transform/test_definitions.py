"""Definitions: what analyzers learn and functions compute is what NumPy and scikit-learn compute."""

from collections import Counter

import numpy as np
import polars as pl
import pytest

from spanwise.components.transform.preprocessing import (
    bucketize,
    count,
    impute_mean,
    maximum,
    mean,
    minimum,
    one_hot,
    quantile,
    scale_to_0_1,
    scale_to_z_score,
    standard_deviation,
    total,
    vocabulary,
)
from tests.components.transform.test_graph import learned
from tests.later import Later

impute, preprocessing = Later("sklearn.impute"), Later("sklearn.preprocessing")

X = np.random.default_rng(11).normal(5, 3, 1000)
WORDS = np.random.default_rng(12).choice(["b", "a", "é", "Z", "ab"], 1000)
HOLES = np.where(np.arange(1000) % 7 == 0, np.nan, X)
LISTS = [X[:n].tolist() for n in np.random.default_rng(13).integers(1, 9, 1000)]


def preprocess(columns):
    x = columns["x"]
    return {
        "z": scale_to_z_score(x),
        "unit": scale_to_0_1(x),
        "bucket": bucketize(x, 7),
        "word": vocabulary(columns["word"]),
        "count": count(x),
        "total": total(x),
        "mean": mean(x),
        "std": standard_deviation(x),
        "least": minimum(x),
        "most": maximum(x),
        "third": quantile(x, 0.3),
        "filled": impute_mean(columns["holes"]),
        "hot": one_hot(columns["word"]),
        "list_sum": columns["list"].list.sum(),
        "list_mean": columns["list"].list.mean(),
    }


@pytest.fixture(scope="module")
def found():
    rows = pl.DataFrame({"x": X, "word": WORDS, "holes": HOLES, "list": LISTS})
    return learned(preprocess, rows).apply(rows)


def test_single_values_are_numpys(found):
    """Count, sum, mean, deviation of the population, extrema, and the quantile by the inverted distribution."""
    expected = {
        "count": X.size,
        "total": X.sum(),
        "mean": X.mean(),
        "std": X.std(),
        "least": X.min(),
        "most": X.max(),
        "third": np.quantile(X, 0.3, method="inverted_cdf"),
    }

    assert {name: found[name][0] for name in expected} == pytest.approx(expected, rel=1e-13)


def test_scaling_is_scikit_learns(found):
    """StandardScaler and MinMaxScaler."""
    column = X[:, None]

    np.testing.assert_allclose(
        found["z"], preprocessing.StandardScaler().fit_transform(column)[:, 0], rtol=1e-11, atol=1e-13
    )
    np.testing.assert_allclose(
        found["unit"], preprocessing.MinMaxScaler().fit_transform(column)[:, 0], rtol=1e-11, atol=1e-13
    )


def test_buckets_are_those_of_quantiles_but_for_values_on_a_boundary(found):
    """scikit-learn's bins contain their lower edge, ours their upper one, as the page says."""
    bins = preprocessing.KBinsDiscretizer(7, encode="ordinal", strategy="quantile", quantile_method="inverted_cdf")
    theirs = bins.fit_transform(X[:, None])[:, 0]
    edges = bins.bin_edges_[0][1:-1]

    ours = found["bucket"].to_numpy()

    on_an_edge = np.isin(X, edges)
    assert (ours[~on_an_edge] == theirs[~on_an_edge]).all()
    assert (ours[on_an_edge] == theirs[on_an_edge] - 1).all()


def test_terms_are_numbered_by_count_then_by_their_bytes(found):
    """The most frequent is 0."""
    times = Counter(WORDS.tolist())
    order = sorted(times, key=lambda word: (-times[word], word.encode()))

    assert found["word"].to_list() == [order.index(word) for word in WORDS.tolist()]


def test_missing_values_are_filled_as_scikit_learn_does(found):
    """SimpleImputer, by the mean."""
    expected = impute.SimpleImputer(strategy="mean").fit_transform(HOLES[:, None])[:, 0]

    np.testing.assert_allclose(found["filled"], expected, rtol=1e-14)


def test_one_hot_is_scikit_learns_but_for_the_order(found):
    """OneHotEncoder's columns, in the order of the vocabulary, and one more for what is not in it."""
    encoder = preprocessing.OneHotEncoder(sparse_output=False)
    theirs = encoder.fit_transform(WORDS[:, None])
    times = Counter(WORDS.tolist())
    order = sorted(times, key=lambda word: (-times[word], word.encode()))

    ours = np.array(found["hot"].to_list())

    assert (ours[:, : len(order)] == theirs[:, [encoder.categories_[0].tolist().index(word) for word in order]]).all()
    assert not ours[:, len(order) :].any()


def test_sums_of_lists_are_numpys(found):
    """And means."""
    assert found["list_sum"].to_list() == pytest.approx([np.sum(each) for each in LISTS], rel=1e-13)
    assert found["list_mean"].to_list() == pytest.approx([np.mean(each) for each in LISTS], rel=1e-13)


def scale(columns):
    x, w = columns["x"], columns["w"]
    return {"z": scale_to_z_score(x), "weighted": scale_to_z_score(x, weight=w), "unit": scale_to_0_1(x)}


def test_a_constant_is_scaled_to_the_distance_from_it():
    """Rounding makes no spread to divide by: 0.11 served after rows of 0.1 is 0.01 away, and no trillion deviations."""
    rows = pl.DataFrame({"x": [0.1] * 3001, "w": np.arange(3001) / 7})

    graph = learned(scale, rows)

    assert set(graph.apply(rows).rows()) == {(0.0, 0.0, 0.0)}
    assert graph.apply(pl.DataFrame({"x": [0.11], "w": [1.0]})).row(0) == pytest.approx((0.01, 0.01, 0.01))
