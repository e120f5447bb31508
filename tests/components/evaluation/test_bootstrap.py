"""Bootstrap: weights that follow from a row's number alone, and intervals that hold what they promise."""

import numpy as np
import pytest

from spanwise.components.evaluation.bootstrap import interval, row_ids, student, weights
from tests.later import Later

stats = Later("scipy.stats")
METHODS = ["bootstrap", "jackknife"]


def test_the_weights_are_these():
    """They are the same in every process and every version, or a figure's interval would change by itself."""
    ids = row_ids("1/None/part-00000.parquet/0", 0, 6)

    assert weights(ids, "bootstrap", 6, 0, 6).astype(int).tolist() == GOLDEN_BOOTSTRAP
    assert weights(ids, "jackknife", 3, 0, 3).astype(int).tolist() == GOLDEN_JACKKNIFE


GOLDEN_BOOTSTRAP = [
    [1, 1, 1, 1, 1, 2],
    [0, 1, 2, 0, 1, 2],
    [1, 0, 0, 0, 1, 0],
    [1, 0, 0, 1, 1, 0],
    [0, 2, 1, 3, 0, 1],
    [0, 0, 1, 2, 0, 2],
]
GOLDEN_JACKKNIFE = [[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0], [1, 1, 0, 0, 1, 1]]


@pytest.mark.parametrize("method", METHODS)
def test_replicates_may_be_drawn_in_pieces(method):
    """Whatever the pieces of replicates or of rows, a row's weights are the same."""
    ids = row_ids("place", 0, 50)
    whole = weights(ids, method, 11, 0, 11)

    pieces = [weights(ids, method, 11, first, last) for first, last in ((0, 1), (1, 3), (3, 11))]
    assert (np.concatenate(pieces) == whole).all()
    assert (weights(row_ids("place", 20, 30), method, 11, 0, 11) == whole[:, 20:]).all()


def test_weights_are_poisson():
    """0, 1, 2, … in the shares of a Poisson distribution of mean 1; two replicates know nothing of each other."""
    drawn = weights(row_ids("place", 0, 100_000), "bootstrap", 8, 0, 8)

    for count in range(5):
        assert (drawn == count).mean() == pytest.approx(stats.poisson(1).pmf(count), abs=0.002)
    assert np.abs(np.corrcoef(drawn) - np.eye(8)).max() < 0.015


def test_a_jackknife_leaves_out_each_row_once():
    """Every row is in all replicates but one, and the groups are about equal."""
    kept = weights(row_ids("place", 0, 10_000), "jackknife", 10, 0, 10)

    assert (kept.sum(axis=0) == 9).all()
    assert kept.mean(axis=1) == pytest.approx(0.9, abs=0.02)


@pytest.mark.parametrize("method", METHODS)
def test_intervals_hold_the_truth_nineteen_times_in_twenty(method):
    """Of 400 samples, the mean's interval holds the true mean as often as it says, give or take."""
    draw = np.random.default_rng(7)
    held = 0
    for sample in range(400):
        values = draw.exponential(size=300)
        weight = np.concatenate([np.ones((1, 300)), weights(row_ids(str(sample), 0, 300), method, 40, 0, 40)])
        low, high = interval((weight @ values) / weight.sum(axis=1), method)
        held += low < 1.0 < high

    assert 0.91 < held / 400 < 0.98


@pytest.mark.parametrize("freedom", [5, 9, 19, 39, 99])
def test_quantiles_of_student(freedom):
    """Close enough for an interval."""
    assert student(freedom) == pytest.approx(stats.t(freedom).ppf(0.975), rel=0.002)


def test_a_figure_that_is_often_undefined_has_no_interval():
    """With few positive rows many replicates have none; the rest would tell too narrow an interval."""
    values = np.array([[0.5, np.nan, np.nan, *[0.4, 0.6] * 4], [np.nan, *[0.5] * 10]])

    low, high = interval(values, "bootstrap")

    assert np.isnan([*low, *high]).all()
