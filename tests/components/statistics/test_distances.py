"""Distances of distributions: 0 for the same, 1 for disjoint ones, and the share that moved in between."""

import functools

import numpy as np
import pyarrow as pa
import pytest

from spanwise.components.statistics.distances import jensen_shannon, l_infinity
from spanwise.components.statistics.span_statistics import count_column, merge_column

DICE = np.random.default_rng(0)


def feature(values):
    """The statistics of a column, counted in batches."""
    batches = np.array_split(np.asarray(values, float), max(1, len(values) // 20_000))
    (found,) = functools.reduce(merge_column, (count_column("x", pa.array(b, from_pandas=False)) for b in batches))
    return found


def normal(*means, count=5000):
    return np.concatenate([DICE.normal(mean, 1, count) for mean in means])


DISJOINT = {
    "normals": (normal(0), normal(100)),
    "constants": (np.zeros(1000), np.ones(1000)),
    "few values": (np.arange(100.0), np.arange(1000.0, 1100.0)),
    "clusters one within the other": (normal(0, 20), normal(10, 30)),
    "many values": (normal(0, count=100_000), normal(100, count=50_000)),
    "a constant amid the others": (np.concatenate([normal(-9), normal(9)]), np.zeros(700)),
    "NaN": (np.full(200, np.nan), np.zeros(200)),
}


@pytest.mark.parametrize("case", DISJOINT)
def test_disjoint_distributions_are_one_bit_apart(case):
    """Whatever the shapes and sizes, as TFDV and the mathematics have it."""
    a, b = map(feature, DISJOINT[case])

    assert jensen_shannon(a, b) == jensen_shannon(b, a) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("moved", [0.02, 0.09])
def test_a_small_part_that_moves_far_is_seen(moved):
    """The distance is the share that has left, though no decile has changed."""
    some, rest = int(10_000 * moved), np.zeros(10_000 - int(10_000 * moved))
    a, b = feature(np.r_[rest, DICE.uniform(1, 2, some)]), feature(np.r_[rest, DICE.uniform(1e6, 2e6, some)])

    assert jensen_shannon(a, b) == pytest.approx(moved, rel=0.1)


def test_missing_values_and_nan_are_values():
    """A column that loses nine tenths of its values, or has NaN in their place, has another distribution."""
    whole, some = normal(0), normal(0, count=500)
    lost = count_column("x", pa.array([*some.tolist(), *[None] * 4500]))[0]
    spoilt = feature(np.r_[some, np.full(4500, np.nan)])

    assert jensen_shannon(feature(whole), lost) > 0.5
    assert jensen_shannon(feature(whole), spoilt) > 0.5
    assert jensen_shannon(lost, spoilt) > 0.8
    assert jensen_shannon(lost, lost) == 0


@pytest.mark.parametrize("count", [100, 1000, 10_000])
@pytest.mark.parametrize(
    "draw", [DICE.normal, lambda size: DICE.integers(0, 50, size), lambda size: DICE.pareto(1, size)]
)
def test_chance_alone_is_about_seven_over_n(draw, count):
    """Samples of one distribution are that far apart on average, as docs/reference/schema.md says."""
    found = [jensen_shannon(feature(draw(size=count)), feature(draw(size=count))) for _ in range(20)]

    assert 4 / count < np.mean(found) < 12 / count


def test_two_normals_are_apart_as_calculus_says():
    """The divergence of N(0, 1) and N(1, 1) is 0.1607 bits."""
    a, b = normal(0, count=100_000), normal(1, count=100_000)

    assert jensen_shannon(feature(a), feature(b)) == pytest.approx(0.1607, abs=0.005)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [([0, 1] * 50, [0, 1] * 500, 0), ([0] * 100, [1] * 100, 1), ([0] * 100, [0, 1] * 50, 0.3113)],
)
def test_divergence_is_in_bits(one, other, expected):
    """The same distribution has divergence 0, disjoint ones 1, whatever the counts."""
    (a,), (b,) = count_column("x", pa.array(one)), count_column("x", pa.array(other))

    assert jensen_shannon(a, b) == pytest.approx(expected, abs=1e-3)
    assert jensen_shannon(b, a) == pytest.approx(expected, abs=1e-3)


def test_distance_of_texts_counts_values_that_only_one_side_has():
    """A value that is new has its whole share as difference."""
    (a,), (b,) = count_column("x", pa.array(["a", "b", None])), count_column("x", pa.array(["a", "c", "c", "c"]))

    assert l_infinity(a, b) == (0.75, "c")
