"""Rows of Parquet files."""

import datetime as dt
import decimal
import itertools
import math
import operator
import os

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spanwise.components.ingest.readers import parquet
from spanwise.orchestrator.errors import ColumnsChanged, DatasetError, UnreadableInput
from spanwise.pipelines import input as inputs
from spanwise.pipelines.input.ops.parquet import ParquetReader
from spanwise.pipelines.input.readers.descriptor import Dialect
from tests.pipelines.input.elements import all_of


@pytest.fixture
def spans(tmp_path):
    """Three spans of ten rows, in row groups of four."""
    for span in range(3):
        rows = pa.table({"span": np.full(10, span), "fare": np.arange(10.0) + 10 * span})
        pq.write_table(rows, tmp_path / f"{span}.parquet", row_group_size=4)
    return [tmp_path / f"{span}.parquet" for span in range(3)]


@pytest.fixture
def groups_read(monkeypatch):
    """The row groups that were read, as (file, group)."""
    read = []

    def noted(reader, part):
        batches = list(original(reader, part))
        group = reader._op.groups[part]
        read.extend([(group.path[-9], group.number)] if batches else [])
        return iter(batches)

    original = ParquetReader.read
    monkeypatch.setattr(ParquetReader, "read", noted)
    return read


def fares(dataset):
    return dataset.to_arrow()["fare"].to_pylist()


def test_paths_are_read_in_their_order(spans):
    """One path, a pattern, a list, or a list for each span."""
    expected = [float(fare) for fare in range(30)]

    assert fares(inputs.from_parquet(spans[0])) == expected[:10]
    assert fares(inputs.from_parquet(str(spans[0].parent / "*.parquet"))) == expected
    assert fares(inputs.from_parquet([spans[1], spans[0]])) == expected[10:20] + expected[:10]
    assert fares(inputs.from_parquet([[spans[0], spans[1]], [spans[2]]])) == expected


def test_the_number_of_rows_is_known_before_they_are_read(spans, groups_read):
    """Footers are enough."""
    assert inputs.from_parquet(spans).cardinality == 30
    assert groups_read == []


def test_a_condition_spares_row_groups(spans, groups_read):
    """Only those in which it can hold by their statistics are read."""
    dataset = inputs.from_parquet(spans).filter(inputs.col("fare") >= 17).filter(inputs.col("fare") < 21).select("fare")

    assert fares(dataset) == [17, 18, 19, 20]
    assert groups_read == [("1", 1), ("1", 2), ("2", 0)]
    assert inputs.from_parquet(spans).filter(inputs.col("fare") < 0).to_arrow().num_rows == 0


@pytest.mark.parametrize("compare", [operator.lt, operator.le])
def test_a_comparison_with_nan_spares_no_row_group_that_it_holds_for(spans, compare):
    """Nothing is less than NaN, so what is not is every row."""
    rows = pa.table({"number": range(10)})
    pq.write_table(rows, spans[0], row_group_size=4)

    dataset = inputs.from_parquet(spans[0]).filter(~compare(inputs.col("number"), math.nan))

    assert dataset.to_arrow() == rows


UTC = dt.UTC
CONDITIONS_ARROW_MISJUDGES = {
    "isin_zero": (pa.array([0.0] * 3 + [1.0, 2.0, None]), inputs.col("x").isin([0.0, 3.0])),
    "isin_zero_of_floats": (pa.array([0.0] * 3 + [1.0], pa.float32()), inputs.col("x").isin([0.0])),
    "null_in_a_dictionary": (pa.array([None] * 3 + ["a"]).dictionary_encode(), inputs.col("x").is_null()),
    "not_valid_in_a_dictionary": (pa.array([None] * 3 + ["a"]).dictionary_encode(), ~inputs.col("x").is_valid()),
    "cast_that_wraps": (pa.array([1, 2, 3, 255, 255, None], pa.uint8()), inputs.col("x").cast("int8", safe=False) < 1),
    "isin_times_of_another_zone": (
        pa.array([0, 1, 2, 10**9], pa.timestamp("ms", "America/New_York")),
        inputs.col("x").isin([dt.datetime(1970, 1, 1, tzinfo=UTC)]),
    ),
}


@pytest.mark.parametrize("name", CONDITIONS_ARROW_MISJUDGES)
def test_a_condition_that_arrow_misjudges_by_statistics_finds_all_rows(tmp_path, name):
    """As in memory: row groups are left out only by conditions and types for which its judgement is right."""
    values, condition = CONDITIONS_ARROW_MISJUDGES[name]
    rows = pa.table({"x": values})
    pq.write_table(rows, tmp_path / "0.parquet", row_group_size=3)
    expected = inputs.from_arrow(rows).filter(condition).to_arrow()

    found = inputs.from_parquet(tmp_path / "0.parquet").filter(condition).to_arrow()

    assert found == expected
    assert expected.num_rows > 0


NUMBERS = st.sampled_from([-1.0, 0.0, 1.0, 2.5, 7.0, math.nan])
FLOATS = st.lists(st.none() | NUMBERS, min_size=12, max_size=12)
CONDITIONS = st.recursive(
    st.builds(
        lambda compare, name, number: compare(inputs.col(name), number),
        st.sampled_from([operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]),
        st.sampled_from(["x", "y", "n"]),
        NUMBERS,
    )
    | st.builds(
        lambda name, numbers: inputs.col(name).isin(numbers), st.sampled_from("xy"), st.lists(NUMBERS, min_size=1)
    )
    | st.builds(lambda name, nan: inputs.col(name).is_null(nan_is_null=nan), st.sampled_from("xyn"), st.booleans())
    | st.sampled_from([pc.is_nan(inputs.col("x")), pc.is_finite(inputs.col("y")), inputs.col("x") == inputs.col("y")]),
    lambda inner: (
        st.builds(operator.and_, inner, inner)
        | st.builds(operator.or_, inner, inner)
        | st.builds(operator.invert, inner)
    ),
    max_leaves=4,
)


@settings(max_examples=int(os.environ.get("SPANWISE_TEST_DATASETS", "40")))
@given(x=FLOATS, y=FLOATS, condition=CONDITIONS)
def test_a_condition_gives_the_same_rows_from_files_as_from_memory(tmp_path_factory, x, y, condition):
    """Nulls and NaN included: a row group is left out only where no row of it can fulfil the condition."""
    rows = pa.table(
        {"i": range(12), "x": pa.array(x, pa.float64()), "y": pa.array(y, pa.float32()), "n": [None, *range(11)]}
    )
    path = tmp_path_factory.mktemp("rows") / "rows.parquet"
    pq.write_table(rows, path, row_group_size=3)
    expected = inputs.from_arrow(rows).filter(condition).to_arrow()["i"]

    assert inputs.from_parquet(path).filter(condition).to_arrow()["i"] == expected
    assert inputs.from_parquet(path).filter(condition).options(optimize=False).to_arrow()["i"] == expected


TYPED = {
    "int64": (pa.int64(), [-(2**63), -1, 0, 1, 2**53 + 1, 2**63 - 1]),
    "uint8": (pa.uint8(), [0, 1, 2, 127, 128, 255]),
    "float32": (pa.float32(), [-math.inf, -0.0, 0.0, 1.0, math.nan]),
    "float64": (pa.float64(), [-0.0, 0.0, 0.5, 2.0**53, math.inf, math.nan]),
    "decimal": (pa.decimal128(9, 2), [decimal.Decimal(each) for each in ("-1.50", "0.00", "0.01", "7.00")]),
    "string": (pa.string(), ["", "a", "b", "é", "\U0010ffff", "a" * 70, "a" * 70 + "b"]),
    "binary": (pa.binary(), [b"", b"a", b"\xff", b"\xff" * 70]),
    "bool": (pa.bool_(), [False, True]),
    "date": (pa.date32(), [dt.date(1, 1, 1), dt.date(2013, 1, 1)]),
    "time": (
        pa.timestamp("ms", "America/New_York"),
        [dt.datetime(year, 1, 1, tzinfo=UTC) for year in (1969, 1970, 2013)],
    ),
    "duration": (pa.duration("s"), [dt.timedelta(seconds=each) for each in (-1, 0, 3600)]),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), ["", "a", "b", "é"]),
}


@st.composite
def typed_rows(draw):
    """Rows with a column of some type, in groups of three that often hold one value, and a condition on it."""
    type_, known = TYPED[draw(st.sampled_from(sorted(TYPED)))]
    value, column = st.sampled_from(known), inputs.col("x")
    literal = type_.value_type if pa.types.is_dictionary(type_) else type_
    cell = st.none() | value
    groups = st.lists(
        st.builds(lambda one: [one] * 3, cell) | st.lists(cell, min_size=3, max_size=3), min_size=4, max_size=4
    )
    compared = st.builds(
        lambda compare, one: compare(column, pa.scalar(one, literal)),
        st.sampled_from([operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]),
        value,
    )
    atoms = compared | st.builds(column.is_null, nan_is_null=st.booleans()) | st.just(column.is_valid())
    atoms |= st.builds(lambda one, more: column.isin([one, *more]), value, st.lists(cell, max_size=2))
    if pa.types.is_integer(type_):
        atoms |= st.builds(lambda one: column.cast("int8", safe=False) < one, st.integers(-1, 1))
    atoms |= st.builds(operator.invert, atoms)
    condition = atoms | st.builds(operator.and_, atoms, atoms) | st.builds(operator.or_, atoms, atoms)
    cells = list(itertools.chain.from_iterable(draw(groups)))
    return pa.table({"x": pa.array(cells, type_), "i": range(len(cells))}), draw(condition)


@settings(max_examples=int(os.environ.get("SPANWISE_TEST_DATASETS", "40")))
@given(typed=typed_rows(), statistics=st.booleans())
def test_a_condition_on_a_column_of_any_type_gives_the_rows_that_it_gives_in_memory(
    tmp_path_factory, typed, statistics
):
    """Values at the bounds of their types, groups of one value, and groups of nulls."""
    rows, condition = typed
    path = tmp_path_factory.mktemp("rows") / "rows.parquet"
    pq.write_table(rows, path, row_group_size=3, write_statistics=statistics)
    stored = inputs.from_parquet(path).to_arrow()  # a type may have changed on the way

    found = inputs.from_parquet(path).filter(condition).to_arrow()["i"]

    assert found == inputs.from_arrow(stored).filter(condition).to_arrow()["i"]


def test_row_groups_that_only_nan_could_save_are_read(tmp_path, groups_read):
    """Statistics pass over NaN: `x != 1` holds for it, `x > 5` does not."""
    rows = pa.table({"x": [1.0, 1.0, math.nan, 2.0]})
    pq.write_table(rows, tmp_path / "0.parquet", row_group_size=3)

    assert inputs.from_parquet(tmp_path / "0.parquet").filter(inputs.col("x") != 1).to_arrow().num_rows == 2
    assert [number for _, number in groups_read] == [0, 1]
    groups_read.clear()
    assert inputs.from_parquet(tmp_path / "0.parquet").filter(inputs.col("x") > 1.5).to_arrow().num_rows == 1
    assert [number for _, number in groups_read] == [1]


def test_only_columns_that_are_wanted_are_read(spans):
    """A selection reaches the files, which read a condition's columns for themselves."""
    plan = inputs.from_parquet(spans).filter(inputs.col("span") > 0).take(5).select("fare").explain()
    source = plan.op
    while source.inputs:
        source = source.inputs[0]

    assert source.columns == ("fare",)
    assert [step.rule for step in plan.steps] == ["filter_pushdown", "projection_pushdown", "prefetch_insertion"]


def test_a_span_that_lacks_a_column_gives_nulls(spans):
    """A column that came later is null before, also for a condition on it."""
    pq.write_table(pa.table({"fare": [90.0], "tip": [1.5]}), spans[1])
    dataset = inputs.from_parquet(spans)

    assert dataset.to_arrow()["tip"].to_pylist() == [None] * 10 + [1.5] + [None] * 10
    assert fares(dataset.filter(inputs.col("tip") > 1)) == [90.0]


def test_a_column_of_two_types_is_an_error(spans):
    """The message names both files."""
    pq.write_table(pa.table({"fare": ["much"]}), spans[1])

    with pytest.raises(ColumnsChanged, match=r"'fare' is double in .*0.parquet and string in .*1.parquet"):
        inputs.from_parquet(spans)


def test_row_groups_can_come_in_another_order(spans):
    """All rows come, group by group, in an order that follows from the seed and differs from pass to pass."""
    dataset = inputs.from_parquet(spans, shuffle=True, seed=1)
    first = [row["fare"] for row in dataset.iterator(epoch=0)]

    assert sorted(first) == fares(inputs.from_parquet(spans)) != first
    assert first != [row["fare"] for row in dataset.iterator(epoch=1)]
    assert first == [row["fare"] for row in inputs.from_parquet(spans, shuffle=True, seed=1).iterator(epoch=0)]


def test_a_state_names_the_row_group(spans, groups_read):
    """A restored pass reads no row group that lies behind it."""
    dataset = inputs.from_parquet(spans).options(optimize=False)
    with iter(dataset.batch(3)) as batches:
        list(itertools.islice(batches, 5))
        state = batches.state()
    groups_read.clear()

    rest = list(dataset.batch(3).iterator().restore(state))

    assert rest[0]["fare"].to_pylist() == [15, 16, 17]
    assert groups_read[0] == ("1", 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": ["fares"]}, r"columns='fares'\): no such column. The columns are span, fare"),
        ({"columns": []}, "expected at least one column"),
        ({"filter": inputs.col("tip") > 1}, "The columns are span, fare"),
    ],
)
def test_bad_arguments_are_found_when_the_graph_is_built(spans, options, message):
    """Nothing has to be read for a wrong column to be told."""
    with pytest.raises(DatasetError, match=message):
        inputs.from_parquet(spans, **options)


def test_files_that_are_not_there_or_no_parquet_are_told(tmp_path):
    """The message names the file or the pattern."""
    (tmp_path / "text.parquet").write_text("fare\n1\n")

    with pytest.raises(DatasetError, match=r"no file matches this pattern"):
        inputs.from_parquet(tmp_path / "*.csv")
    with pytest.raises(DatasetError, match="at least one file"):
        inputs.from_parquet([])
    with pytest.raises(UnreadableInput, match=r"nothing.parquet: cannot be read as Parquet"):
        inputs.from_parquet(tmp_path / "nothing.parquet")
    with pytest.raises(UnreadableInput, match=r"text.parquet: cannot be read as Parquet"):
        inputs.from_parquet(tmp_path / "text.parquet")


def test_damage_is_found_when_it_is_read(spans):
    """A file that was cut or overwritten after the graph was built is told by its name."""
    dataset = inputs.from_parquet(spans)
    content = bytearray(spans[1].read_bytes())
    content[4:200] = b"\xff" * 196
    spans[1].write_bytes(content)

    with pytest.raises(UnreadableInput, match=r"1.parquet: cannot be read"):
        all_of(dataset)


@pytest.mark.parametrize("read", [inputs.from_parquet, lambda path: parquet.describe(str(path), "parquet", Dialect())])
def test_a_damaged_name_in_a_footer_is_reported(tmp_path, read):
    """Footers have no checksum; a name that is no text says that the file is damaged, rather than where Python stopped."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"fares": [1]}), path, store_schema=False)
    path.write_bytes(path.read_bytes().replace(b"fares", b"f\xeers\xff"))

    with pytest.raises(UnreadableInput, match=r"a\.parquet"):
        read(path)
