"""Predictions: what a user's functions return is read as numbers or columns, or refused."""

import math
import os
from datetime import UTC, date, datetime
from decimal import Decimal
from random import Random

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from spanwise.components import predictions
from spanwise.orchestrator.errors import ParameterError
from tests.components.ingest.generated import build, draw_type, draw_value

COLUMNS = int(os.environ.get("SPANWISE_TEST_PREDICTIONS", "300"))


def as_numbers(values, type_):
    """What Python makes of a column of labels: one float for each row; None if these are no numbers."""
    types = pa.types
    if types.is_temporal(type_) or types.is_nested(type_):
        return None
    try:
        return [math.nan if value is None else float(value) for value in values]
    except ValueError:
        return None


def same(found, wanted):
    return [repr(float(each)) for each in found] == [repr(each) for each in wanted]


def test_a_column_of_any_type_is_labels_that_python_reads_alike_or_is_refused():
    """Whole numbers beyond 2^53 are the nearest doubles, missing values NaN; times are no numbers."""
    for seed in range(COLUMNS):
        random = Random(f"labels {seed}")
        type_ = draw_type(random, random.choice([0, 0, 1]))
        values = [draw_value(random, type_) for _ in range(random.choice([1, 2, 5]))]
        wanted = as_numbers(values, type_)
        table = pa.table({"y": build(values, type_)})
        for read in (lambda t: predictions.labels("y", t), lambda t: predictions.scores(t["y"], len(t))):
            try:
                found = read(table)
            except ParameterError:
                found = None
            except BaseException as error:
                error.add_note(f"seed {seed}: {type_} {values}")
                raise
            if wanted is None or found is None:
                assert wanted is found, (seed, type_, values, found)
            else:
                assert same(found, wanted), (seed, type_, values, found)


def test_what_a_masked_array_masks_is_missing():
    """Of a score, of a label, of one of several numbers, and of a column; NumPy would read what is below the mask."""
    masked = np.ma.masked_array([0.5, 7.0], mask=[False, True])
    pairs = np.ma.masked_array([[1, 2], [3, 4]], mask=[[False, True], [False, False]])
    table = pa.table({"y": [1, 2]})

    assert same(predictions.scores(masked, 2), [0.5, math.nan])
    assert same(predictions.labels(lambda _: masked, table), [0.5, math.nan])
    assert same(predictions.classes(lambda _: np.ma.masked_array([1, 2], [0, 1]), table, [1, 2]), [0.0, math.nan])
    assert same(predictions.chances(pairs, 2, ("a", "b"))[0], [1.0, math.nan])
    assert predictions.columns(masked, 2, "p")["p"].to_pylist() == [0.5, None]
    assert predictions.columns({"p": pairs}, 2, "")["p"].to_pylist() == [[1, None], [3, 4]]


@pytest.mark.parametrize("dtype", ["boolean", "Int64", "string"])
def test_what_pandas_calls_missing_is_missing(dtype):
    """Of a label, of a class and of a score; its NA is neither equal to anything nor unequal."""
    series = pytest.importorskip("pandas").Series(["1", None] if dtype == "string" else [1, None], dtype=dtype)
    table = pa.table({"y": [1, 2]})

    assert same(predictions.classes(lambda _: series, table, ["0", series[0]]), [1.0, math.nan])
    assert same(predictions.classes(lambda _: series.tolist(), table, ["0", series[0]]), [1.0, math.nan])
    if dtype != "string":
        assert same(predictions.labels(lambda _: series, table), [1.0, math.nan])
        assert same(predictions.scores(series, 2), [1.0, math.nan])


NARROW = [0.1, 0.3, 0.7, 0.12345678, 0.3004]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(
    "form",
    [
        lambda scores: scores,
        lambda scores: scores[:, None],
        list,
        lambda scores: np.ma.masked_where(np.isnan(scores), scores),
        pa.array,
        lambda scores: pa.chunked_array([pa.array(scores)]),
        lambda scores: pa.table({"p": scores}),
        lambda scores: pytest.importorskip("pandas").Series(scores),
        pl.Series,
    ],
    ids=["array", "column", "list", "masked", "arrow", "chunked", "table", "pandas", "polars"],
)
def test_a_score_in_fewer_bits_is_above_a_cut_where_numpy_says_so(dtype, form):
    """In 32 bits 0.3 is the double 0.30000001192092896, which is above 0.3; it is the cut itself all the same."""
    scores = np.array([*NARROW, np.nan, np.inf], dtype)

    found = predictions.scores(form(scores), len(scores), cuts=NARROW)

    assert [(found > cut).tolist() for cut in NARROW] == [(scores > dtype(cut)).tolist() for cut in NARROW]
    assert np.array_equal(found.astype(dtype), scores, equal_nan=True)


SCORES = [[0.8, 0.1, 0.1], [0.1, 0.8, 0.1]]


@pytest.mark.parametrize("as_table", [True, False], ids=["table", "frame"])
@pytest.mark.parametrize(
    ("classes", "names", "expected"),
    [
        (("low", "mid", "high"), ("high", "low", "mid"), [[0.1, 0.1, 0.8], [0.8, 0.1, 0.1]]),
        (("c2", "c0", "c1"), ("c0", "c1", "c2"), [[0.1, 0.8, 0.1], [0.1, 0.1, 0.8]]),
        (("low", "mid", "high"), ("low", "mid", "high"), SCORES),
        ((2, 0, 1), ("1", "2", "0"), [[0.1, 0.1, 0.8], [0.8, 0.1, 0.1]]),
        ((0, 1, 2), ("0", "1", "2"), SCORES),
        ((0, 1, 2), ("p0", "p1", "p2"), SCORES),
        (("low", "mid", "high"), ("0", "1", "2"), SCORES),
        (("low", "mid", "high"), ("column_0", "column_1", "column_2"), SCORES),
        (("low", "mid", "high"), ("", "", ""), SCORES),
    ],
)
def test_scores_in_columns_named_as_the_classes_are_of_these(classes, names, expected, as_table):
    """As scikit-learn sorts its `classes_`; columns that are only numbered are in the order of classes."""
    pandas = pytest.importorskip("pandas")
    table = pa.table([list(column) for column in zip(*SCORES, strict=True)], names)

    values = table if as_table else pandas.DataFrame(SCORES, columns=names)
    assert predictions.chances(values, 2, classes).tolist() == expected


@pytest.mark.parametrize(
    ("classes", "names"),
    [
        (("low", "mid", "high"), ("p_high", "p_low", "p_mid")),
        (("low", "mid", "high"), ("1", "2", "3")),
        (("low", "mid", "high"), ("low", "mid", "mid")),
        ((2, 0, 1), ("0", "1", "2")),  # the classes, or their places
        ((2, 0, 1), ("p0", "p1", "p2")),
    ],
)
def test_scores_in_columns_whose_classes_are_unknown_are_refused(classes, names):
    """A guess would give a perfect model an accuracy of zero."""
    table = pa.table([list(column) for column in zip(*SCORES, strict=True)], names)

    with pytest.raises(ParameterError, match="name them as the classes, or return an array"):
        predictions.chances(table, 2, classes)
    predictions.chances(np.array(SCORES), 2, classes)


@pytest.mark.parametrize(
    "values", [[["a"], ["b"]], [{"x": 1}, None], np.array([["a"], ["b"]])], ids=["list", "struct", "array"]
)
def test_a_label_of_several_values_is_no_class(values):
    """Of a column or of a function: the message shows the first."""
    label = "y" if isinstance(values, list) else lambda _: values
    table = pa.table({"y": values if isinstance(values, list) else [1, 2]})

    with pytest.raises(ParameterError, match=r"the label [\[{].* is not one of the classes"):
        predictions.classes(label, table, ["a", "b"])


@pytest.mark.parametrize("values", [[5, None, 7], ["1", None, "0"], [0.5, None, 0.25]], ids=["int", "text", "float"])
def test_a_missing_value_of_a_dictionary_is_missing(values):
    """Of a column of categories that pandas has made; pyarrow would read another category there."""
    table = pa.table({"y": pa.array(values).dictionary_encode()})
    wanted = [float(values[0]), math.nan, float(values[2])]

    assert same(predictions.labels("y", table), wanted)
    assert same(predictions.scores(table["y"], 3), wanted)
    assert same(predictions.scores(table, 3), wanted)
    with pytest.raises(ParameterError, match="has the value nan"):
        predictions.weights("y", table)


def test_complex_numbers_are_refused():
    """NumPy would leave out their imaginary part."""
    with pytest.raises(ParameterError, match="complex128"):
        predictions.scores(np.array([0.5 + 2j]), 1)


@pytest.mark.parametrize(
    "returned",
    [pa.table([pa.array([1.0]), pa.array([2.0])], names=["a", "a"]), {1: [1.0], "1": [2.0]}],
    ids=["table", "mapping"],
)
def test_two_columns_of_one_name_are_refused(returned):
    """Only the last of them would be written."""
    with pytest.raises(ParameterError, match="two columns called"):
        predictions.columns(returned, 1, "prediction")


def test_a_frame_is_refused_with_the_call_that_makes_a_table_of_it():
    """Its columns would become one column of lists, and lose their names."""
    frame = pl.DataFrame({"a": [1.0], "b": [2.0]})

    with pytest.raises(ParameterError, match="returned a DataFrame of polars; return a pyarrow table"):
        predictions.columns(frame, 1, "prediction")


@pytest.mark.parametrize(
    "values",
    [[b"\x01\x00", b"\x02\x00\x00"], ["a\0", "b"], [b"", None]],
    ids=["bytes", "text", "missing"],
)
def test_a_list_of_bytes_or_text_keeps_its_zeros(values):
    """NumPy cuts them off at the end, as of an embedding whose last number is 0."""
    assert predictions.columns(values, len(values), "y")["y"].to_pylist() == values


ZONED = [datetime(2024, 1, 1, 12, tzinfo=UTC)] * 2


@pytest.mark.parametrize(
    "values",
    [
        [2**60 + 1, None],
        [True, None],
        ["a\0", None],
        ZONED,
        [{"a": 1, "b": 2}] * 2,
        [[1, 2], [3]],
        [Decimal("1.10"), None],
    ],
    ids=["whole numbers", "bools", "text", "zones", "structs", "lists", "decimals"],
)
def test_a_series_of_polars_is_written_as_it_is(values):
    """NumPy would round the numbers beside a missing one, drop the zones, and make numbers of structs."""
    assert predictions.columns(pl.Series(values), 2, "y")["y"].to_pylist() == values


@pytest.mark.parametrize(
    ("values", "dtype"),
    [([2**60 + 1, None], "Int64"), ([True, None], "boolean"), (["a", None], "category"), (["a", None], "string")],
)
def test_a_series_of_pandas_is_written_as_it_is(values, dtype):
    """Also where its types are not those of NumPy."""
    pandas = pytest.importorskip("pandas")

    assert predictions.columns(pandas.Series(values, dtype=dtype), 2, "y")["y"].to_pylist() == values


MOMENT = datetime(2020, 1, 1, 5)  # noqa: DTZ001  without a zone, beside one that has one


@pytest.mark.parametrize(
    "values",
    [
        [date(2020, 1, 1), MOMENT],
        [[date(2020, 1, 1)], [MOMENT]],
        [{"at": date(2020, 1, 1)}, {"at": MOMENT}],
        [MOMENT.replace(tzinfo=UTC), MOMENT],
        np.array([date(2020, 1, 1), MOMENT], object),
        np.ma.masked_array([[date(2020, 1, 1), MOMENT]] * 2, [[False, False], [True, False]]),
    ],
    ids=["hours", "in a list", "in a struct", "zone", "array", "masked array"],
)
def test_times_that_a_column_would_cut_are_refused(values):
    """Beside a date, Arrow cuts the hours off a moment; beside a moment with a zone, it gives one to another."""
    with pytest.raises(ParameterError, match=r"(?s)predict_fn returned 'p' as .*, which does not hold datetime.*\)\.$"):
        predictions.columns(values, 2, "p")


def test_numbers_between_text_are_refused():
    """NumPy would make text of them."""
    with pytest.raises(ParameterError, match=r"predict_fn returned 'y' as .*, not a column"):
        predictions.columns([1.5, "none"], 2, "y")


@pytest.mark.parametrize(
    "read",
    [
        lambda values: predictions.scores(values, 3),
        lambda values: predictions.columns(values, 3, "y"),
        lambda values: predictions.columns({"y": values}, 3, "y"),
        lambda values: predictions.labels(lambda table: values, pa.table({"x": [1, 2, 3]})),
        lambda values: predictions.classes(lambda table: values, pa.table({"x": [1, 2, 3]}), (1, 2, 3)),
        lambda values: predictions.chances(values.to_frame(), 3, ("a",)),
        lambda values: predictions.columns(pa.Table.from_pandas(values.to_frame()), 3, "y"),
    ],
    ids=["scores", "a column", "a named column", "labels", "classes", "chances", "a table"],
)
def test_values_with_an_index_in_another_order_than_the_rows_are_refused(read):
    """Pandas takes them for those of the rows that the index says; they would stand beside others."""
    pandas = pytest.importorskip("pandas")

    with pytest.raises(ParameterError, match=r"whose index is not in the order of the rows: return .*sort_index\(\)"):
        read(pandas.Series([1, 2, 3], index=[2, 0, 1]))
    read(pandas.Series([1, 2, 3], index=[0, 1, 2]))
    read(pandas.Series([1, 2, 3], index=[70, 50, 60]))
    read(pandas.Series([1, 2, 3], index=["c", "a", "b"]))


@pytest.mark.parametrize("read", [predictions.scores, lambda table, rows: predictions.columns(table, rows, "y")])
def test_the_table_of_a_reversed_frame_is_refused(read):
    """Its index is a range, which pyarrow stores as metadata; the column of another index may be one of the examples."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"y": [0.1, 0.2, 0.9]})

    for turned in (frame.iloc[::-1], frame.sort_values("y", ascending=False)):
        with pytest.raises(ParameterError, match=r"whose index is not in the order of the rows: return .*sort_index"):
            read(pa.Table.from_pandas(turned), 3)
        read(pa.Table.from_pandas(turned, preserve_index=False), 3)
        read(pa.Table.from_pandas(turned.reset_index(drop=True)), 3)
    read(pa.Table.from_pandas(frame.iloc[1:]), 2)
    read(pa.Table.from_pandas(pandas.concat([frame, frame]).iloc[::-1].reset_index(drop=True)).slice(3), 3)


@pytest.mark.parametrize("turned", [slice(None, None, -1), [2, 0, 1]])
def test_an_index_that_came_with_the_examples_is_in_the_order_of_the_rows(turned):
    """As in examples that pandas has written: what is computed from the frame of a table has its index."""
    pandas = pytest.importorskip("pandas")
    table = pa.Table.from_pandas(pandas.DataFrame({"y": [0.1, 0.2, 0.9]}).iloc[turned])
    values = table.to_pandas()["y"]

    assert predictions.scores(values, 3, table).tolist() == table["y"].to_pylist()
    assert predictions.columns(values, 3, "y", table)["y"].to_pylist() == table["y"].to_pylist()
    assert predictions.chances(values.to_frame(), 3, ("y",), table).ravel().tolist() == table["y"].to_pylist()
    assert predictions.labels(lambda given: given.to_pandas()["y"], table).tolist() == table["y"].to_pylist()


def test_a_column_of_the_examples_that_was_an_index_says_nothing_of_an_order():
    """As in examples of a file that pandas has written: only the metadata of pandas makes a column an index."""
    table = pa.table({"y": [0.1, 0.2, 0.9], "__index_level_0__": [2, 0, 1]})

    assert predictions.columns(table, 3, "y")["__index_level_0__"].to_pylist() == [2, 0, 1]


@pytest.mark.parametrize(
    "values",
    [
        [2**63 + 1, 1],
        [2**63 + 1, None],
        [[2**63 + 1, 1], [1, 2]],
        [2**53 + 1, None],
        [2**53, 0.5],
        [1e300, float("inf")],
    ],
)
def test_whole_numbers_of_a_list_are_written_exactly(values):
    """NumPy makes floats of them where no signed type holds all, as of ids and hashes."""
    assert predictions.columns({"id": values}, 2, "y")["id"].to_pylist() == values


@pytest.mark.parametrize(
    "values",
    [[2**53 + 1, 0.5], [2**53 + 1, float("nan")], [-1, 2**63 + 1], [2**64, 1], [np.int64(2**53 + 1), 0.5]],
)
def test_whole_numbers_of_a_list_that_no_type_holds_are_refused(values):
    """As floats, they would be other numbers."""
    with pytest.raises(ParameterError, match=r"'id' as .*: no type holds all these numbers exactly; return them as te"):
        predictions.columns({"id": values}, 2, "y")


def test_a_class_in_a_list_beside_nan_is_the_class_itself():
    """NumPy would make floats of all labels, and another class of a large number."""
    names = (2**53, 2**53 + 1)

    found = predictions.classes(lambda table: [2**53 + 1, float("nan")], pa.table({"x": [1, 2]}), names)

    np.testing.assert_array_equal(found, [1, np.nan])


def test_arrays_that_are_missing_are_refused():
    """Parquet has no missing lists of one length: a file of predictions with one could be read by nobody."""
    returned = pa.array([[1.0, 2.0], None], pa.list_(pa.float64(), 2))

    with pytest.raises(ParameterError, match=r"returned no list of 'pair' for row 1, .* lists of any length"):
        predictions.columns({"pair": returned}, 2, "prediction")
