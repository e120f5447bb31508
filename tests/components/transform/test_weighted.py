"""Weights: what analyzers learn of rows that count by a column, compared with NumPy and with repeated rows."""

import numpy as np
import polars as pl
import pytest

from spanwise.components.transform.analyzers import HeaviestTerms, WeightedQuantile
from spanwise.components.transform.preprocessing import (
    bucketize,
    impute_mean,
    mean,
    minimum,
    one_hot,
    quantile,
    scale_to_z_score,
    standard_deviation,
    vocabulary,
)
from tests.components.transform.test_graph import learned

RANDOM = np.random.default_rng(3)
X = np.round(RANDOM.normal(5, 3, 300), 2)  # few enough for exact quantiles, also if repeated
WORDS = RANDOM.choice(["b", "a", "é", "Z", "ab", "rare"], 300, p=[0.3, 0.3, 0.2, 0.1, 0.09, 0.01])
WEIGHTS = RANDOM.integers(0, 6, 300)
ROWS = pl.DataFrame({"x": X, "word": WORDS, "w": WEIGHTS})


def weighted(columns):
    x, w = columns["x"], columns["w"]
    return {
        "mean": mean(x, weight=w),
        "std": standard_deviation(x, weight=w),
        "z": scale_to_z_score(x, weight=w),
        "imputed": impute_mean(x, weight=w),
        "third": quantile(x, 0.3, weight=w),
        "bucket": bucketize(x, 7, weight=w),
        "word": vocabulary(columns["word"], weight=w, min_count=20.5, top_k=4),
        "hot": one_hot(columns["word"], weight=w),
    }


def plain(columns):
    x = columns["x"]
    return {
        "mean": mean(x),
        "std": standard_deviation(x),
        "z": scale_to_z_score(x),
        "imputed": impute_mean(x),
        "third": quantile(x, 0.3),
        "bucket": bucketize(x, 7),
        "word": vocabulary(columns["word"], min_count=21, top_k=4),
        "hot": one_hot(columns["word"]),
    }


def test_a_weight_is_a_row_that_is_there_several_times():
    """Whole weights give what the rows give that are repeated so often."""
    again = pl.DataFrame({"x": np.repeat(X, WEIGHTS), "word": np.repeat(WORDS, WEIGHTS)})

    found = learned(weighted, ROWS).apply(ROWS)

    expected = learned(plain, again).apply(ROWS)
    for name in ("bucket", "word", "hot", "third"):
        assert found[name].equals(expected[name]), name
    for name in ("mean", "std", "z", "imputed"):
        assert found[name].to_list() == pytest.approx(expected[name].to_list(), rel=1e-12)


def test_weighted_figures_are_numpys():
    """Fractions as weights."""
    rows = ROWS.with_columns(w=pl.col("w") / 7 + 0.1)
    x, w = X, rows["w"].to_numpy()

    found = learned(weighted, rows).apply(rows)

    middle = np.average(x, weights=w)
    assert found["mean"][0] == pytest.approx(middle, rel=1e-14)
    assert found["std"][0] == pytest.approx(np.sqrt(np.average((x - middle) ** 2, weights=w)), rel=1e-14)
    assert found["third"][0] == np.quantile(x, 0.3, weights=w, method="inverted_cdf")
    sums = {word: w[word == WORDS].sum() for word in set(WORDS)}
    assert found.filter(word=0)["word"].len() == (max(sums, key=sums.get) == WORDS).sum()


@pytest.mark.parametrize(
    ("weights", "said"),
    [([1.0, None], "a weight is missing"), ([1.0, -1.0], "a weight is -1"), ([1.0, float("inf")], "a weight is inf")],
)
def test_what_is_no_weight_is_refused(weights, said):
    """Rather than left out."""
    with pytest.raises(ValueError, match=said):
        learned(z_score, pl.DataFrame({"x": [1.0, 2.0], "w": weights}))


@pytest.mark.parametrize("type_", [pl.Float32, pl.Float64])
def test_a_term_with_the_least_weight_is_a_term(type_):
    """As a double, 0.7 in 32 bits is less than 0.7."""
    terms = HeaviestTerms(min_count=0.7)

    found = terms.finish(terms.accumulate(pl.Series(["a", "b"]), pl.Series([0.7, 0.69], dtype=type_)))

    assert found == ["a"]


def test_a_column_of_texts_is_no_weight():
    """It is refused before a row is read."""
    assert "weights are numbers, not String" in WeightedQuantile(0.5).refusal(pl.Float64(), pl.String())
    assert "not of Float64" in HeaviestTerms().refusal(pl.Float64(), pl.Int64())


def z_score(columns):
    return {"z": scale_to_z_score(columns["x"], weight=columns["w"])}


def test_nothing_with_weight_teaches_nothing():
    """As no rows at all."""
    rows = pl.DataFrame({"x": [1.0, 2.0], "w": [0, 0]})

    assert learned(z_score, rows).apply(rows)["z"].to_list() == [None, None]


def test_functions_for_which_a_weight_means_nothing_take_none():
    """The least value is the least, whatever it weighs."""
    with pytest.raises(TypeError, match="weight"):
        minimum(pl.col("x"), weight=pl.col("w"))


def test_a_single_row_is_served_without_its_weight():
    """What was learned is in the graph; the column of weights is not needed."""
    graph = learned(z_score, ROWS)

    assert graph.needs() == ("x",)
