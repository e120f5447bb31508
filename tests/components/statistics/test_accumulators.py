"""Accumulators: figures gathered batch by batch, merged, kept as bytes, within the errors they promise."""

import datetime as dt
import decimal
import functools
import math
import os
from fractions import Fraction

import datasketches
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
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
    distinct,
    from_bytes,
    to_bytes,
)
from spanwise.components.statistics.accumulators.frequent import abbreviate, cut, is_cut


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


NUMBERS = st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.floats(1e9, 1e9 + 1), st.just(0.1))


@settings(max_examples=int(os.environ.get("SPANWISE_NUMBERS_EXAMPLES", "60")))
@given(st.lists(NUMBERS, min_size=1), st.data())
def test_moments_are_exact_and_do_not_depend_on_the_batches(values, data):
    """However values are cut and merged, mean and deviation are the exact ones, rounded once."""
    cut = data.draw(st.integers(0, len(values)))

    left, right = (Moments.accumulate(pa.array(part, pa.float64())) for part in (values[:cut], values[cut:]))

    found, exact = left.merge(right), [Fraction(value) for value in values]
    mean = sum(exact) / len(exact)
    variance = sum((value - mean) ** 2 for value in exact) / len(exact)
    assert found == right.merge(left) == Moments.accumulate(pa.array(values, pa.float64()))
    assert found.mean == float(mean)
    with decimal.localcontext(prec=40):
        root = (decimal.Decimal(variance.numerator) / decimal.Decimal(variance.denominator)).sqrt()
    assert found.std == pytest.approx(float(root), rel=3e-16, abs=5e-324)


@pytest.mark.parametrize("value", [0.1, 19.99, 123456.789, 1e300, 3])
def test_a_constant_has_no_spread(value):
    """Rounding makes no standard deviation, in many rows or over merges; a z-score of it would be noise."""
    found = merged(Moments, [pa.array([value] * rows) for rows in (100, 101, 102, 336_776)])

    assert (found.mean, found.std) == (value, 0.0)


@pytest.mark.parametrize("mean", [1e9, 1e12, 1e14, 1e15])
@pytest.mark.parametrize("pieces", [1, 7, 97])
def test_a_large_mean_does_not_swallow_a_small_spread(mean, pieces):
    """The deviation of 0, 1 and 2 is the same 1e15 further up, batch by batch."""
    steps = np.random.default_rng(0).integers(0, 3, 10_000)

    found = merged(Moments, [pa.array(part) for part in np.array_split(mean + steps, pieces)])

    assert found.std == pytest.approx(steps.std(), rel=1e-15)


def test_moments_of_64_bits_keep_every_digit():
    """Integers beyond 2^53 are summed as they are, not as doubles."""
    signed, unsigned = pa.array([2**63 - 1, 2**63 - 3, -(2**63)]), pa.array([2**64 - 1, 2**64 - 2], pa.uint64())

    assert Moments.accumulate(signed).total == 2**63 - 4
    assert Moments.accumulate(signed).squares == (2**63 - 1) ** 2 + (2**63 - 3) ** 2 + 2**126
    assert Moments.accumulate(unsigned).std == 0.5
    assert Moments.accumulate(pa.array([2**62] * 300_000)).total == 2**62 * 300_000


def test_sums_of_whole_numbers_do_not_overflow():
    """Values whose sum exceeds 64 bits have their true mean, and extrema to the last digit."""
    values = pa.array([2**63 - 1] * 10 + [2**63 - 3])

    assert Moments.accumulate(values).mean == pytest.approx(float(2**63))
    assert Extrema.accumulate(values) == Extrema(least=2**63 - 3, greatest=2**63 - 1)


def test_sums_of_doubles_do_not_overflow():
    """Doubles whose sum exceeds a double still have a mean and a deviation."""
    found = merged(Moments, [pa.array([1e308] * 4), pa.array([-1e308] * 4)])

    assert Moments.accumulate(pa.array([1e308] * 4)).mean == 1e308
    assert (found.mean, found.std) == (0.0, 1e308)


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


@pytest.mark.parametrize("count", [10, 55, 100, 200, 999, 1000])
def test_a_quantile_has_the_rank_that_was_asked_for(count):
    """The 0.55-quantile of 100 values is the 55th, although 0.55 * 100 is above 55 as doubles."""
    found = Quantiles.accumulate(pa.array(range(1, count + 1)))

    for percent in range(1, 101):
        rank = -(-percent * count // 100)
        assert found.quantiles([percent / 100]).tolist() == [rank]
    for buckets in (3, 7, 10, 49):
        assert found.boundaries(buckets).tolist() == [-(-i * count // buckets) for i in range(1, buckets)]


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
    assert 2000 <= first.count <= 2000 + first.error <= 2000 + 0.0018 * len(values)
    assert not first.exact
    assert first.error == found.error
    assert not found.complete


def test_a_long_text_is_known_by_its_beginning_and_a_digest():
    """A text of a megabyte does not make the statistics a megabyte, and others that begin like it are others."""
    beginning = "x" * 1_000_000
    found = Frequent.accumulate(texts(beginning, beginning + "a", beginning + "b", beginning + "b"))

    assert found.top(1) == (Occurrence("x" * 200 + "…#33913c638be760ef0e75f9bfeb16dd16", 2),)
    assert [each.count for each in found.top()] == [2, 1, 1]
    assert len(to_bytes(found)) < 2000


def test_what_a_long_text_is_known_by_is_no_text_of_the_data():
    """One that reads the same is longer than 200 characters, and so is known by a digest of its own."""
    known = cut("x" * 201)

    assert is_cut(known)
    assert not is_cut("x" * 234)
    assert cut(known) != known
    assert abbreviate(known) == "x" * 200 + "…"
    assert abbreviate("x" * 200) == "x" * 200


def test_a_vocabulary_is_exact_and_in_order():
    """All texts are counted; the most frequent come first, equals in order of their bytes."""
    found = merged(Vocabulary, [texts("b", "a", "日本"), texts("a", "c", None)])

    assert [(o.value, o.count) for o in found.top()] == [("a", 2), ("b", 1), ("c", 1), ("日本", 1)]
    assert [o.value for o in found.top(1)] == ["a"]
    assert [o.value for o in found.top(at_least=2)] == ["a"]
    assert len(found) == 4


@pytest.mark.parametrize("count", [1_537, 2 * 1_537])
def test_values_that_free_every_counter_are_still_counted(count):
    """The library writes such a sketch as if there had been no value: then 2 others seemed to be all there are."""
    ids = [f"id {number}" for number in range(count)]
    found, other = Frequent.accumulate(texts(*ids)), Frequent.accumulate(texts("a", "a", "b"))
    both = [found.merge(other), other.merge(found), Frequent.from_state(found.state()).merge(other)]

    assert (found.total, found.error, found.complete, found.top()) == (count, count // 1_537, False, ())
    assert Frequent.from_distinct(ids) == found
    assert {(each.total, each.complete) for each in both} == {(count + 3, False)}
    assert (found.merge(found).total, found.merge(found).error) == (2 * count, 2 * found.error)


@pytest.mark.parametrize("size", [0, 1, 1536, 1537, 1538, 3073, 3074, 3075, 20_000, 1537 * 13])
@pytest.mark.parametrize("show", [int, "user {}".format], ids=["numbers", "texts"])
def test_values_that_occur_once_make_the_sketch_that_counting_each_makes(size, show):
    """Of ids only the last ones are in a sketch: leaving out those that are forgotten again changes no byte."""
    values = [show(value) for value in np.random.default_rng(size).permutation(size).tolist()]
    more = Frequent.accumulate(texts("a", "a", "b"))

    short, whole = Frequent.from_distinct(values), Frequent.from_counts(map(str, values), [1] * size)

    assert to_bytes(short) == to_bytes(whole)
    assert to_bytes(short.merge(more)) == to_bytes(whole.merge(more))
    assert to_bytes(more.merge(short)) == to_bytes(more.merge(whole))


@settings(max_examples=40)
@given(
    size=st.sampled_from([1, 2048, 2049, 5000, 40_000]),
    seed=st.integers(0, 2**32),
    kind=st.sampled_from(["normal", "ids", "signed", "unsigned", "eighths"]),
)
def test_numbers_that_change_no_sketch_can_be_left_out(size, seed, kind):
    """A sketch of many different numbers is, to the byte, the one that has been given each of them."""
    dice = np.random.default_rng(seed)
    values = {
        "normal": lambda: dice.normal(size=size),
        "ids": lambda: np.arange(size) + dice.integers(-(2**40), 2**40),
        "signed": lambda: dice.integers(-(2**63), 2**63 - 1, size),
        "unsigned": lambda: dice.integers(0, 2**64 - 1, size, dtype=np.uint64),
        "eighths": lambda: np.concatenate([[-0.0], np.arange(1, size) / 8]),
    }[kind]()
    sketch = datasketches.hll_sketch(distinct.LOG_SIZE, datasketches.HLL_8)
    for value in values.view(np.int64 if kind == "unsigned" else values.dtype).tolist():
        sketch.update(value)

    assert Distinct.from_numbers(values).sketch == sketch.serialize_compact()
