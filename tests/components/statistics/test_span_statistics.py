"""Statistics: what is counted of each kind of column, and what merges."""

import datetime as dt
import decimal
import functools
import json
import math
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from spanwise.components.statistics.feature_value import format_value
from spanwise.components.statistics.span_statistics import (
    NumberStatistics,
    SpanStatistics,
    SplitCounts,
    count_column,
    merge,
    merge_column,
)
from spanwise.components.statistics.statistics_page import page
from spanwise.components.statistics.weighted import read_weights
from spanwise.orchestrator.errors import ColumnsChanged, InputError, ParameterError


def features(values, name="x"):
    """The features of a column, by name."""
    return {f.name: f for f in count_column(name, values)}


def feature(values):
    """The feature of a column that is not nested."""
    (found,) = count_column("x", values)
    return found


def statistics(**columns):
    """Statistics of one split, `train`, with these columns."""
    found = {name: count_column(name, values) for name, values in columns.items()}
    rows = len(next(iter(columns.values())))
    return SpanStatistics(
        splits={"train": SplitCounts(name="train", rows=rows, features={f.name: f for c in found.values() for f in c})}
    )


def test_numbers_are_counted_with_their_shape():
    """A column of numbers has count, missing, mean, deviation, extrema, zeros and quantiles."""
    found = feature(pa.array([1, 2, None, 0, 5]))

    assert (found.count, found.missing, found.zeros, found.unique) == (5, 1, 1, 4)
    assert found.numbers.mean == 2.0
    assert found.numbers.std == pytest.approx(np.std([1, 2, 0, 5]))
    assert (found.numbers.least, found.numbers.greatest, found.numbers.quantile(0.5)) == (0, 5, 1.0)
    assert [(o.value, o.count) for o in found.top(2)] == [("0", 1), ("1", 1)]


def test_nan_and_infinities_are_neither_values_nor_missing():
    """NaN and infinities are counted as such; mean and extrema are of the finite numbers."""
    found = feature(pa.array([1.0, math.nan, math.inf, None, 3.0]))

    assert (found.missing, found.nan, found.infinite) == (1, 1, 1)
    assert (found.numbers.mean, found.numbers.greatest) == (2.0, 3.0)


def test_an_all_missing_column_has_a_type_and_nothing_else():
    """A column without any value says so, whatever its type."""
    typed, untyped = feature(pa.nulls(3, pa.int64())), feature(pa.nulls(3))

    assert (typed.kind, typed.missing, typed.numbers.least) == ("number", 3, None)
    assert (untyped.kind, untyped.missing, untyped.unique) == ("null", 3, None)


def test_one_row_is_a_distribution():
    """One value has no deviation, and one bin."""
    found = feature(pa.array([7]))

    assert (found.numbers.mean, found.numbers.std) == (7.0, 0.0)
    assert found.numbers.histogram() == ((6.5, 7.5), (1,))


def test_texts_have_lengths_in_characters_and_frequent_values():
    """Names of any script are text; a length is that of characters, not of bytes."""
    found = feature(pa.array(["日本", "a", "a", None]))

    assert (found.lengths.least, found.lengths.greatest, found.unique) == (1, 2, 2)
    assert [(o.value, o.count) for o in found.top()] == [("a", 2), ("日本", 1)]


def test_a_hundred_thousand_distinct_texts_stay_small():
    """Statistics of many different texts take kilobytes, and count them within 5 %."""
    found = feature(pa.array([f"text {i}" for i in range(100_000)]))

    assert found.unique == pytest.approx(100_000, rel=0.05)
    assert len(str(found.state())) < 200_000


def test_dates_and_times_are_shown_as_such():
    """Dates, timestamps, times and durations are ordered, and read as people write them."""
    day = feature(pa.array([dt.date(2013, 1, 1), dt.date(2013, 2, 1)]))
    moment = feature(pa.array([1357016400_000_000_000], pa.timestamp("ns", "UTC")))
    clock = feature(pa.array([dt.time(5, 4)]))
    length = feature(pa.array([dt.timedelta(days=5)]))

    assert (day.format(day.numbers.least), day.top(1)[0].value) == ("2013-01-01", "2013-01-01")
    assert moment.format(moment.numbers.least) == "2013-01-01 05:00:00"
    assert clock.format(clock.numbers.least) == "05:04:00"
    assert length.format(length.numbers.least) == "5 days, 0:00:00"


def test_booleans_have_a_share():
    """The mean of booleans is the share that is true."""
    found = feature(pa.array([True, True, False, None]))

    assert found.numbers.mean == pytest.approx(2 / 3)
    assert [(o.value, o.count) for o in found.top()] == [("true", 2), ("false", 1)]


def test_decimals_are_counted_as_doubles():
    """Decimals of any width have the figures of the nearest doubles."""
    for type_ in (pa.decimal128(5, 2), pa.decimal256(50, 2)):
        found = feature(pa.array([decimal.Decimal("1.25"), None], type_))

        assert (found.kind, found.numbers.mean, found.missing) == ("number", 1.25, 1)


def test_binary_values_have_lengths_and_a_number_of_distinct_ones():
    """Bytes that are no text are counted without being looked into."""
    found = feature(pa.array([b"\xff\x00", b"\xff\x00", b"", None]))

    assert (found.kind, found.unique, found.lengths.greatest) == ("binary", 2, 2)
    assert found.frequent is None


def test_lists_have_lengths_and_elements():
    """A list is a feature of lengths; its elements are a feature of their own, `x[]`."""
    found = features(pa.array([[1, 2], None, [], [3, None]]))

    assert (found["x"].missing, found["x"].lengths.least, found["x"].lengths.greatest) == (1, 0, 2)
    assert (found["x[]"].count, found["x[]"].missing, found["x[]"].numbers.mean) == (4, 1, 2.0)


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (pa.array([[[1], [2, 3]], None]), ["x", "x[]", "x[][]"]),
        (pa.array([{"a": 1, "b": {"c": "t"}}, None]), ["x", "x.a", "x.b", "x.b.c"]),
        (pa.array([[{"a": 1}], []]), ["x", "x[]", "x[].a"]),
        (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())), ["x", "x[]", "x[].key", "x[].value"]),
        (pa.array([[1, 2]], pa.list_(pa.int8(), 2)), ["x", "x[]"]),
        (pa.array(["a", "b", "a"]).dictionary_encode(), ["x"]),
        (pa.array(["a"], pa.string_view()), ["x"]),
    ],
)
def test_nested_columns_are_counted_at_every_depth(values, names):
    """Fields of structs and elements of lists and maps are features, however deep."""
    assert list(features(values)) == names


def test_a_field_counts_where_its_struct_is_there():
    """The places of a field are the structs that are there, not the rows."""
    found = features(pa.array([{"a": 1}, None, {"a": None}]))

    assert (found["x"].missing, found["x.a"].count, found["x.a"].missing) == (1, 2, 1)


def test_a_type_that_cannot_be_counted_says_so():
    """Of a type without an order and equality of its own only presence is counted, and its kind tells that."""
    found = feature(pa.array([(1, 2, 3), None], pa.month_day_nano_interval()))

    assert (found.kind, found.count, found.missing) == ("other", 2, 1)


def test_sliced_arrays_are_counted_without_what_is_cut_off():
    """A batch that is a view into a larger one counts its own rows only."""
    whole = pa.array([[1, 2], [3], None, [4, 5, 6]])

    assert features(whole.slice(1, 2))["x[]"].numbers.mean == 3.0
    assert features(pa.array([1, None, 3]).slice(1))["x"].missing == 1


def test_the_statistics_of_spans_merge_without_their_data():
    """Merged statistics are those of all the rows together."""
    first, second = pa.array([1.0, 2.0, None]), pa.array([4.0, 5.0])

    found = merge([statistics(x=first), statistics(x=second)]).splits["train"]
    whole = feature(pa.concat_arrays([first, second]))

    assert found.rows == 5
    assert found.features["x"].numbers.mean == whole.numbers.mean
    assert found.features["x"].numbers.std == pytest.approx(whole.numbers.std)
    assert found.features["x"].numbers.quantile(0.5) == whole.numbers.quantile(0.5)
    assert (found.features["x"].missing, found.features["x"].unique) == (1, 4)


def test_a_column_that_one_span_lacks_is_missing_in_its_rows():
    """A column that came later is missing in every row of the spans before."""
    found = merge([statistics(x=pa.array([1, 2])), statistics(x=pa.array([3]), y=pa.array([[1]]))]).splits["train"]

    assert (found.features["y"].count, found.features["y"].missing) == (3, 2)
    assert found.features["y[]"].count == 1


def test_an_untyped_column_takes_the_type_of_the_other_span():
    """A span in which a column is all missing does not spoil the type that others gave it."""
    found = merge([statistics(x=pa.nulls(2)), statistics(x=pa.array(["a"]))]).splits["train"].features["x"]

    assert (found.type, found.kind, found.missing) == ("string", "text", 2)


EMPTY = pa.array([{"tags": [], "note": None}], pa.struct([("tags", pa.list_(pa.null())), ("note", pa.null())]))
FILLED = pa.array([{"tags": ["a", "b"], "note": 1}])
OTHER = pa.array([{"tags": [2], "note": 1}])


@pytest.mark.parametrize("order", [(EMPTY, FILLED), (FILLED, EMPTY), (EMPTY, FILLED, EMPTY)])
def test_what_is_in_lists_and_structs_without_values_takes_the_type_of_others(order):
    """Nobody knows what would be in lists that are all empty: they are of the type that other spans found."""
    found = merge([statistics(x=each) for each in order]).splits["train"].features

    assert {name: feature.type for name, feature in found.items()} == {
        name: feature.type for name, feature in statistics(x=FILLED).splits["train"].features.items()
    }
    assert (found["x.tags[]"].count, found["x.note"].missing) == (2, len(order) - 1)


def test_what_is_in_lists_and_structs_of_two_types_does_not_merge():
    """That one field agrees does not excuse another."""
    with pytest.raises(ColumnsChanged, match="feature 'x' is"):
        merge([statistics(x=each) for each in (EMPTY, FILLED, OTHER)])


def test_a_column_of_two_types_does_not_merge():
    """Spans that disagree on a type are named, not mixed."""
    with pytest.raises(ColumnsChanged, match="'x' is int64 in one span and string"):
        merge([statistics(x=pa.array([1])), statistics(x=pa.array(["a"]))])


def test_batches_of_a_column_merge_feature_by_feature():
    """The features of a nested column merge each with its own."""
    one, other = count_column("x", pa.array([[1]])), count_column("x", pa.array([[2, 3]]))

    assert [f.count for f in merge_column(one, other)] == [2, 3]


def test_what_was_written_reads_back_the_same(tmp_path):
    """A file of statistics is read and written again as the same bytes, whatever the names."""
    made = statistics(**{"ünï 名": pa.array(["é", None]), 'quo"te\n': pa.array([1.5, math.nan])})
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()

    made.write(tmp_path / "a")
    SpanStatistics.load(tmp_path / "a").write(tmp_path / "b")

    assert (tmp_path / "a/train.jsonl").read_bytes() == (tmp_path / "b/train.jsonl").read_bytes()


def test_a_spread_beyond_doubles_is_kept(tmp_path):
    """A deviation whose square exceeds a double is written and read, in a file that any JSON reader takes."""
    statistics(x=pa.array([1.7e308, -1.7e308])).write(tmp_path)

    text = (tmp_path / "train.jsonl").read_text()
    lines = [json.loads(line, parse_constant=pytest.fail) for line in text.strip().split("\n")]

    assert len(lines) == 2
    assert SpanStatistics.load(tmp_path).splits["train"].features["x"].numbers.std == 1.7e308


@pytest.mark.parametrize("content", ["", "{}\n", "no json\n", '{"format":"spanwise statistics 2"}\n{}\n'])
def test_a_damaged_file_is_named(tmp_path, content):
    """What is no statistics is refused with the file's name."""
    (tmp_path / "train.jsonl").write_text(content)

    with pytest.raises(InputError, match=r"train\.jsonl"):
        SpanStatistics.load(tmp_path)


def test_a_folder_without_statistics_is_named(tmp_path):
    """An empty folder is an error, not statistics of nothing."""
    with pytest.raises(InputError, match="has no statistics"):
        SpanStatistics.load(tmp_path)


def test_a_histogram_holds_every_value():
    """The counts of all bins add up to the count, ends included."""
    found = feature(pa.array(np.random.default_rng(0).normal(size=500)))

    edges, counts = found.numbers.histogram(10)

    assert len(edges) == 11
    assert sum(counts) == 500


def test_the_widest_range_of_doubles_has_a_histogram():
    """Edges between the least and the greatest double do not overflow."""
    found = feature(pa.array([-1.7e308, 1.7e308]))

    edges, counts = found.numbers.histogram(4)

    assert all(map(math.isfinite, edges))
    assert sum(counts) == 2


def test_no_values_have_no_histogram():
    """Nothing has no bins."""
    assert NumberStatistics().histogram() == ((), ())


@pytest.mark.parametrize(
    ("value", "type_", "text"),
    [
        (2013, "int64", "2013"),
        (12345, "int64", "12,345"),
        (0.5, "double", "0.5"),
        (26919.2, "double", "26,919"),
        (1e300, "double", "1e+300"),
        (10**9, "date32[day]", "1,000,000,000"),
        (1, "bool", "true"),
    ],
)
def test_numbers_are_shown_short(value, type_, text):
    """Numbers are shown as people read them; a date beyond the calendar as its number."""
    assert format_value(value, type_) == text


def test_a_column_of_integers_that_are_one_double_has_a_histogram():
    """2^63 and 2^63 + 1 are told apart by their extrema, and drawn as one bar."""
    (found,) = count_column("x", pa.array([2**63, 2**63 + 1] * 5, pa.uint64()))

    edges, counts = found.numbers.histogram()

    assert edges[0] < 2**63 < edges[1]
    assert counts == (10,)
    assert (found.numbers.least, found.numbers.greatest, found.numbers.std) == (2**63, 2**63 + 1, 0.5)


def test_estimated_counts_are_marked(tmp_path):
    """Beyond 1536 different values, top(), the page and the file say what is an estimate; of fewer ones all is exact."""
    many = pa.array([f"N{i % 4000}" for i in range(12_000)] + ["N7"] * 500)
    few = many.slice(0, 1000)
    estimated, exact = feature(many), feature(few)

    assert 503 <= estimated.top(1)[0].count <= 503 + estimated.top(1)[0].error
    assert not estimated.top(1)[0].exact
    assert all(found.exact for found in exact.top())
    assert "≈ N7" in page(statistics(x=many), title="")
    assert f"up to {estimated.frequent.error} too high" in page(statistics(x=many), title="")
    assert "≈" not in page(statistics(x=few), title="")
    for values, found in ((many, estimated), (few, exact)):
        statistics(x=values).write(tmp_path)
        written = json.loads((tmp_path / "train.jsonl").read_text().splitlines()[1])
        assert written["frequent"]["error"] == found.frequent.error == (found is estimated) * found.top(1)[0].error


def test_estimates_of_a_long_tail_bound_the_truth():
    """Of 30,000 different values every count is within its error, and whatever occurs more often than that is listed."""
    drawn = np.random.default_rng(2).zipf(1.15, 200_000) % 30_000
    truth = Counter(drawn.tolist())
    found = functools.reduce(lambda a, b: a.merge(b), (feature(pa.array(part)) for part in np.array_split(drawn, 5)))

    top = {int(each.value): each for each in found.top(None)}

    error = found.frequent.error
    assert 0 < error <= 0.0017 * drawn.size
    assert all(each.count - each.error <= truth[value] <= each.count for value, each in top.items())
    assert {value for value, count in truth.items() if count > error} <= set(top)
    assert not any(each.exact for each in found.top(20))


def weighted(values, weights, name="x"):
    """Statistics of one split whose rows have weights."""
    found = count_column(name, pa.array(values), read_weights("w", pa.array(weights)))
    return SpanStatistics(splits={"train": SplitCounts(name="train", rows=len(values), features={name: found[0]})})


@pytest.mark.parametrize("offset", [0, 1e9, 1e14])
def test_weights_count_in_means_and_shares(offset, tmp_path):
    """Each row counts by its weight, as numpy.average has it, after merges and reading too."""
    draw = np.random.default_rng(3)
    values, weights = offset + draw.integers(0, 9, 1000), draw.random(1000) * (draw.random(1000) < 0.9)
    parts = zip(np.array_split(values, 7), np.array_split(weights, 7), strict=True)

    merge([weighted([*v.tolist(), None, math.nan], [*w.tolist(), 2.0, 5.0]) for v, w in parts]).write(tmp_path)

    found = SpanStatistics.load(tmp_path).splits["train"].features["x"].weighted
    exact = np.average(values - offset, weights=weights)
    spread = np.average((values - offset - exact) ** 2, weights=weights)
    assert found.mean == pytest.approx(offset + exact, rel=1e-15)
    assert found.std == pytest.approx(math.sqrt(spread), rel=1e-13)
    assert found.missing_share == pytest.approx(14 / (weights.sum() + 7 * 7), rel=1e-14)
    assert "weighted mean" in page(SpanStatistics.load(tmp_path), title="")


def test_a_constant_has_no_weighted_spread():
    """Whatever the weights, and after merges."""
    draw = np.random.default_rng(4)
    found = merge([weighted([0.1] * n, draw.random(n)) for n in (100, 101, 1000)]).splits["train"].features["x"]

    assert (found.weighted.mean, found.weighted.std) == (0.1, 0.0)


def test_rows_of_a_span_without_the_column_weigh_as_missing():
    """A column that one span lacks is missing there, with the weight of that span's rows."""
    both = merge([weighted([1.0, 3.0], [1.0, 3.0]), weighted([7.0], [4.0], name="y")])

    assert both.splits["train"].features["x"].weighted.missing_share == 0.5
    assert both.splits["train"].features["x"].weighted.mean == 2.5


def test_weights_that_mean_nothing_are_refused():
    """Weights are finite numbers, none is missing or negative."""
    for odd in ([-1.0], [math.nan], [math.inf], [None], ["a"]):
        type_ = None if odd == ["a"] else pa.float64()
        with pytest.raises(ParameterError, match="'w'"):
            read_weights("w", pa.array(odd, type_))
