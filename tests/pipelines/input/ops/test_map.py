"""Functions of elements and of blocks of rows."""

import traceback

import numpy as np
import pyarrow as pa
import pytest

from spanwise.orchestrator.errors import DatasetError, FunctionFailed
from spanwise.pipelines import input as inputs


@pytest.fixture
def rows():
    return inputs.from_arrow(
        pa.table({"fare": [1.5, None, 3.0], "riders": pa.array([1, None, 3]), "zone": ["a", None, "c"]})
    )


def test_a_tuple_is_spread_over_the_arguments():
    """The function of a zip takes one argument for each dataset."""
    dataset = inputs.zip(inputs.range(3), inputs.range(10, 13)).map(lambda one, other: one + other)

    assert list(dataset) == [10, 12, 14]


def test_a_row_is_a_dict():
    """A function that is not vectorized takes one row at a time."""
    dataset = inputs.from_arrow(pa.table({"fare": [1.0, 2.0]})).map(lambda row: row["fare"] + 1)

    assert list(dataset) == [2.0, 3.0]


def test_blocks_come_as_arrays_or_as_the_annotation_asks(rows):
    """Dicts of arrays unless the argument is annotated with RecordBatch, or `format` says otherwise."""
    seen = []

    def of_arrow(block: pa.RecordBatch):
        seen.append(type(block))
        return block

    def of_arrays(block):
        seen.append(type(block))
        return block

    for function, options in [(of_arrow, {}), (of_arrays, {}), (of_arrays, {"format": "arrow"})]:
        assert rows.map(function, vectorized=True, **options).to_arrow() == rows.to_arrow()
    assert seen == [pa.RecordBatch, dict, pa.RecordBatch]


def test_nulls_outlive_the_journey_through_arrays(rows):
    """A column that comes back as it was given is the column itself; a masked array makes nulls where it is masked."""
    made = rows.map(lambda c: {"zone": c["zone"], "fare": c["fare"], "riders": c["riders"] + 1}, vectorized=True)

    assert made.to_arrow().to_pydict() == {"zone": ["a", None, "c"], "fare": [1.5, None, 3.0], "riders": [2, None, 4]}


def test_columns_that_are_written_are_added_to_the_others(rows):
    """With `reads` and `writes` a function sees and gives some columns; the rest passes by."""
    seen = []

    def more(columns):
        seen.append(sorted(columns))
        return {"double": columns["fare"] * 2}

    made = rows.map(more, vectorized=True, reads=["fare"], writes=["double"])

    assert made.to_arrow().column_names == ["fare", "riders", "zone", "double"]
    assert seen == [["fare"]]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda columns: {"fare": columns["fare"][:1]}, "must return as many rows as it was given, 3, not 1"),
        (lambda columns: {"fare": columns["fare"], "one": [1]}, "must return columns of one length"),
        (lambda columns: 3, "must return a RecordBatch, a Table or a dict of arrays, not int"),
    ],
)
def test_what_comes_back_must_be_as_many_rows(rows, function, message):
    """A vectorized function gives a row for each row, or is told what it gave instead."""
    with pytest.raises(FunctionFailed, match=message):
        list(rows.map(function, vectorized=True))


def test_a_declared_schema_is_kept(rows):
    """With a schema the columns are cast to it, and others are refused."""
    schema = pa.schema([("fare", pa.float32())])

    assert rows.map(lambda c: {"fare": c["fare"]}, vectorized=True, spec=schema).to_arrow().schema == schema
    with pytest.raises(FunctionFailed, match="must return the columns fare, not zone"):
        list(rows.map(lambda c: {"zone": c["zone"]}, vectorized=True, spec=schema))


def failing(number):
    return 1 // number


def test_an_error_names_the_function_and_the_element_and_shows_its_traceback():
    """What a user's function raises arrives with its own traceback and the position of the element."""
    elements = iter(inputs.from_elements([2, 1, 0]).map(failing))
    next(elements), next(elements)

    with pytest.raises(FunctionFailed, match=r"map: failing raised ZeroDivisionError at element 2") as failure:
        next(elements)

    assert isinstance(failure.value.__cause__, ZeroDivisionError)
    assert "return 1 // number" in "".join(traceback.format_exception(failure.value))


def test_an_error_in_a_block_names_its_rows(rows):
    """A vectorized function fails for the rows of a block."""
    with pytest.raises(FunctionFailed, match=r"at rows 0 to 2"):
        list(rows.map(lambda columns: columns["nothing"], vectorized=True))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vectorized": True}, "the elements are not rows"),
        ({"reads": ["fare"]}, "only a vectorized map works on columns"),
        ({"num_parallel": 0}, r"num_parallel=0\): expected a whole number of at least 1, or AUTOTUNE"),
        ({"workers": "fibre"}, "expected 'threads' or 'processes'"),
        ({"format": "excel"}, "expected 'arrow'"),
        ({"spec": 3}, "expected an ElementSpec, or a pyarrow.Schema"),
    ],
)
def test_bad_arguments_are_found_when_the_graph_is_built(options, message):
    """Nothing has to run for a wrong argument to be told."""
    with pytest.raises(DatasetError, match=message):
        inputs.range(3).map(failing, **options)


def test_a_column_that_is_not_there_is_found_when_the_graph_is_built(rows):
    """`reads` is checked against the columns that are known."""
    with pytest.raises(DatasetError, match=r"reads='fares'\): no such column. The columns are fare, riders, zone"):
        rows.map(failing, vectorized=True, reads=["fares"])


def test_a_map_over_batches_is_given_arrays():
    """The function of a batch of rows takes arrays as well."""
    dataset = inputs.from_arrow(pa.table({"fare": np.arange(5.0)})).batch(2).map(lambda batch: batch["fare"].sum())

    assert list(dataset) == [1.0, 5.0, 4.0]


def halve(x):
    x /= 2
    return x


@pytest.mark.parametrize(
    "dataset",
    [
        inputs.from_elements([np.full(2, 8.0)]),
        inputs.from_tensors({"x": np.full(2, 8.0)}).map(lambda each: each["x"]),
        inputs.from_tensor_slices(np.full((1, 2), 8.0)),
        inputs.from_generator(lambda: iter([np.full(2, 8.0)])).cache(),
        inputs.range(1).map(lambda _: np.full(2, 8.0)),
        inputs.range(2).batch(2).map(lambda numbers: numbers * 4.0),
    ],
)
@pytest.mark.parametrize("options", [{}, {"num_parallel": 2}])
def test_a_function_cannot_change_what_others_hold(dataset, options):
    """Sources and caches stay what they are from pass to pass, and the error says how to write it."""
    for _ in range(2):
        with pytest.raises(FunctionFailed, match=r"write x = x / 2 instead of x /= 2, or begin with x = x.copy\(\)"):
            list(dataset.map(halve, **options))


@pytest.mark.parametrize("column", [[{"a": 1}], [[{"a": 1}]]], ids=["structs", "lists of them"])
def test_each_pass_over_a_cache_gives_the_same_structs(column):
    """Their dicts are Python's, which a function can write to."""

    def count(batch):
        structs = getattr(batch["s"], "values", batch["s"])
        structs[0]["a"] += 1
        return structs[0]["a"]

    dataset = inputs.from_arrow(pa.table({"s": column})).batch(1).as_numpy().cache().map(count)

    assert [list(dataset) for _ in range(3)] == [[2]] * 3


def test_what_a_consumer_does_stays_out_of_sources():
    """Dicts and lists are handed out as copies, also those in arrays, and arrays read-only."""
    held = {"list": [1], "dict": {"a": 1}, "array": np.zeros(2), "objects": np.array([{"a": 1}, None], object)}
    for dataset in (inputs.from_elements([held]), inputs.from_elements([held]).cache()):
        for _ in range(2):
            for element in dataset:
                assert element["list"] == [1]
                assert element["dict"] == {"a": 1}
                element["list"].append(2)
                assert element["objects"].tolist() == [{"a": 1}, None]
                element["dict"]["b"] = element["objects"][0]["b"] = 2
                with pytest.raises(ValueError, match="read-only"):
                    element["array"] += 1
    assert held["array"].flags.writeable


@pytest.mark.parametrize("options", [{}, {"num_parallel": 2}, {"stateless": True}])
def test_a_type_that_differs_between_blocks_is_refused(options):
    """With what to do; whichever way the rows are cut into two blocks or more."""
    rows = inputs.from_arrow(pa.table({"x": range(10)}))

    def uneven(columns):
        return {"x": columns["x"] if columns["x"][0] == 0 else columns["x"] / 2}

    for block_rows in (1, 5):
        with pytest.raises(FunctionFailed, match=r"column 'x' as .* for other rows, and as .* Declare the types"):
            list(rows.map(uneven, vectorized=True, **options).options(block_rows=block_rows).batch(4))
    declared = rows.map(uneven, vectorized=True, spec=pa.schema([("x", pa.float64())]), **options)
    assert declared.options(block_rows=5).to_arrow()["x"].to_pylist() == [0, 1, 2, 3, 4, 2.5, 3, 3.5, 4, 4.5]


def test_a_type_that_differs_between_processes_is_refused():
    """Of two blocks, each process has one."""
    rows = inputs.from_arrow(pa.table({"x": range(10)})).options(block_rows=5)

    def uneven(columns):
        return {"x": columns["x"] if columns["x"][0] == 0 else columns["x"] / 2}

    halves = rows.map(uneven, vectorized=True, num_parallel=2, workers="processes").batch(5)

    with pytest.raises(FunctionFailed, match=r"column 'x' as .* for other rows, and as .* Declare the types"):
        list(halves)


@pytest.mark.parametrize(
    "join", [np.column_stack, np.stack, np.hstack, np.concatenate, lambda both: np.where(True, *both)]
)
def test_joined_columns_stay_masked(join):
    """NumPy's own functions would show the zeros that stand where a number is missing."""
    rows = inputs.from_arrow(pa.table({"x": [1, None], "y": [3, 4]}))
    seen = []

    list(rows.map(lambda columns: seen.append(join([columns["x"], columns["y"]])) or columns, vectorized=True))

    assert None in seen[0].ravel().tolist()
