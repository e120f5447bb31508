"""What users get wrong, and data that is odd: an error that says what to do, and never a wrong result."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spanwise import Dialect
from spanwise.orchestrator.errors import DatasetError, FunctionFailed, StateMismatch, UnreadableInput
from spanwise.pipelines import input as inputs

TABLE = inputs.from_arrow(pa.table({"a": [1, 2, 3]}))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: inputs.from_parquet(5), r"from_parquet\(5\): expected a path, a URL, a pattern, or a list"),
        (lambda: inputs.from_csv(None), r"from_csv\(None\): expected a path"),
        (lambda: inputs.from_csv(b"x"), r"expected a path"),
        (lambda: inputs.from_csv("x.csv", delimiter="::"), r"delimiter='::'\): expected one character"),
        (lambda: inputs.from_csv("x.csv", delimiter=3), r"delimiter=3\): expected one character"),
        (lambda: inputs.from_parquet("x", columns="ab"), r"columns='ab'\): expected a list of names"),
        (lambda: inputs.from_arrow(pa.table([[1], [2]], ["a", "a"])), r"several columns are named 'a'"),
        (lambda: inputs.zip([1]), r"zip: expected datasets, not \[1\]"),
        (lambda: inputs.range(3).concatenate(None), r"concatenate: expected datasets, not None"),
        (lambda: inputs.sample_from_datasets([3]), r"sample_from_datasets: expected datasets"),
        (lambda: inputs.sample_from_datasets([inputs.range(3)] * 2, "ab"), r"weights=\['a', 'b'\]\): expected numbers"),
        (lambda: inputs.sample_from_datasets([inputs.range(3)] * 2, [1e308] * 2), "expected numbers of at least 0"),
        (lambda: inputs.range(3).rejection_resample(int, [None, 1]), r"target=\[None, 1\]\): expected numbers"),
        (lambda: list(inputs.range(3).scan(lambda: 0, max)), r"scan: what is carried .* cannot be pickled"),
        (lambda: inputs.range(3).profile(3), r"profile\(step=3\): expected a function"),
        (lambda: list(inputs.from_elements([1, "a"]).batch(2)), r"different types \(int, str\) cannot be batched"),
        (lambda: list(inputs.from_elements([1, np.zeros(2)]).batch(2)), r"different shapes \(\(\), \(2,\)\)"),
    ],
)
def test_a_wrong_argument_is_named(make, message):
    """With what was wanted; nothing of Python's or NumPy's own comes through."""
    with pytest.raises(DatasetError, match=message):
        make()


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda columns: {"a": 1}, r"must return a column of values, not 1 of type int\. Its own"),
        (lambda columns: {"a": "xyz"}, r"must return a column of values, not 'xyz' of type str"),
        (lambda columns: None, r"dict of arrays, not NoneType\. Its own"),
    ],
)
def test_what_a_vectorized_function_must_give_is_said(function, message):
    """A number is no column, and neither is a text."""
    with pytest.raises(FunctionFailed, match=message):
        list(TABLE.map(function, vectorized=True))


def test_a_state_that_is_none_is_refused():
    """Whatever it is."""
    for state in (None, {}, {"x": 1}, []):
        with pytest.raises(StateMismatch, match="not the state of an iterator"):
            inputs.range(3).iterator().restore(state)


def test_csv_files_have_the_same_columns_or_those_of_a_schema(tmp_path):
    """A file without a header, or without a column that others have, is refused; a schema reads what all of them have."""
    (tmp_path / "0.csv").write_text("a,b\n1,x\n")
    (tmp_path / "1.csv").write_text("c,b,a\n1,y,2\n")
    (tmp_path / "2.csv").write_text("2,y\n3,z\n")
    schema = pa.schema([("a", pa.int32())])
    one, other, headless = (tmp_path / f"{number}.csv" for number in range(3))

    for files, message in (
        ([one, other], "'c' is a column of .*1.csv and not of .*0.csv"),
        ([one, headless], "'2' is a"),
    ):
        with pytest.raises(UnreadableInput, match=message):
            inputs.from_csv(files)
    assert list(inputs.from_csv([one, other], schema=schema)) == [{"a": 1}, {"a": 2}]
    with pytest.raises(UnreadableInput, match=r"2.csv has no column 'a', which the schema has; it has: 2, y"):
        inputs.from_csv([one, headless], schema=schema)
    with pytest.raises(UnreadableInput, match=r"0.csv has no column 'A'"):
        inputs.from_csv(one, schema=pa.schema([("A", pa.int64())]))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'a,b\n1,"x\n2,y\n', "is never closed"),
        (b"a\n\xe9\n", r"line 2: byte 2 \(0xe9\) is not UTF-8.*dialect=Dialect\(encoding='latin-1'\)"),
        (b"a;b\n1;2\n", r"the header is one name.*Dialect\(delimiter=';'\)"),
        (b"a,b\n1\n", "line 2: 2 fields wanted, 1 found"),
        (b"a\n" + b"1\n" * 600_000 + b"x\n", r"line 600002 \('x'\): column 'a' was inferred to be int64"),
    ],
    ids=["quote", "encoding", "delimiter", "fields", "later"],
)
def test_csv_is_refused_as_an_ingest_refuses_it(tmp_path, content, message):
    """What ExampleGen cannot read, a dataset cannot either, in the same words."""
    (tmp_path / "a.csv").write_bytes(content)

    with pytest.raises(UnreadableInput, match=message):
        list(inputs.from_csv(tmp_path / "a.csv"))


def test_csv_has_the_values_that_an_ingest_gives(tmp_path):
    """Texts that look missing, wide numbers and rows longer than a block come out as they are written."""
    (tmp_path / "a.csv").write_text(
        "s,n,x\nnan,18446744073709551615,NA\n#N/A,1,1.5\n" + '"' + "x\n" * 800_000 + '",2,\n'
    )

    rows = list(inputs.from_csv(tmp_path / "a.csv"))

    assert rows[:2] == [{"s": "nan", "n": 2**64 - 1, "x": None}, {"s": "#N/A", "n": 1, "x": 1.5}]
    assert rows[2]["s"] == "x\n" * 800_000
    dialect = Dialect(null_values={"s": ("nan",)})
    assert list(inputs.from_csv(tmp_path / "a.csv", dialect=dialect).take(2).map(lambda row: row["s"])) == [
        None,
        "#N/A",
    ]


def test_two_columns_of_one_name_are_refused_in_files(tmp_path):
    """A row could show only one of them."""
    (tmp_path / "0.csv").write_text("a,a\n1,2\n")
    pq.write_table(pa.table([[1], [2]], ["a", "a"]), tmp_path / "0.parquet")

    with pytest.raises(DatasetError, match=r"0.parquet: several columns are named 'a'"):
        inputs.from_parquet(tmp_path / "0.parquet")
    with pytest.raises(UnreadableInput, match=r"0.csv, line 1: two columns are named 'a'"):
        inputs.from_csv(tmp_path / "0.csv")


def test_dicts_with_other_keys_lose_none():
    """Each key of any of them is a column; values of two types are an error."""
    table = inputs.from_elements([{"a": 1}, {"b": 2}]).to_arrow()

    assert table.to_pylist() == [{"a": 1, "b": None}, {"a": None, "b": 2}]
    with pytest.raises(DatasetError, match=r"to_arrow: the elements do not form a table: .*'x'"):
        inputs.from_elements([{"a": 1}, {"a": "x"}]).to_arrow()


def test_whole_numbers_beside_a_missing_struct_stay_whole():
    """What a value becomes does not depend on whether its neighbour is null."""
    whole = 2**53 + 1
    (batch,) = inputs.from_arrow(pa.table({"s": [{"x": whole}, None]})).batch(2).as_numpy()

    assert batch["s"].tolist() == [{"x": whole}, None]


def test_a_range_may_be_longer_than_a_machine_word():
    """It is counted as all others are."""
    assert inputs.range(10**30).cardinality == 10**30
    assert [inputs.range(*each).cardinality for each in ((5,), (5, 0, -2), (0, 6, 2), (5, 0), (3, 10, 3))] == [
        5,
        3,
        3,
        0,
        3,
    ]


def test_a_profile_of_nothing_says_so():
    """It blames no op."""
    assert "No elements came out" in str(inputs.range(0).profile())


def test_a_timeline_says_which_part_of_the_pass_it_shows():
    """It ends when there is too much to show."""
    long = inputs.range(100_000).map(lambda number: number).profile(limit_s=60)
    short = inputs.range(10).map(lambda number: number).profile()

    assert "These are the first" in long.html()
    assert "These are the first" not in short.html()


@pytest.mark.parametrize(
    ("call", "ours"),
    [
        (lambda numbers: numbers.map(str, num_parallel_calls=3), "num_parallel"),
        (lambda numbers: numbers.map(map_func=str), "function"),
        (lambda numbers: numbers.shuffle(buffer_size=3), "buffer"),
        (lambda numbers: numbers.prefetch(buffer_size=3), "buffer"),
        (lambda numbers: numbers.batch(batch_size=3), "size"),
        (lambda numbers: numbers.shard(num_shards=3, index=0), "shards"),
    ],
)
def test_names_of_tf_data_are_answered_with_ours(call, ours):
    """An argument that is called otherwise here is refused with its name."""
    with pytest.raises(DatasetError, match=f"the argument is called {ours} here"):
        call(inputs.range(3))


def test_methods_of_tf_data_are_answered_with_ours():
    """And others as any class answers."""
    with pytest.raises(AttributeError, match=r"has no method 'with_options'. Use options\(…\)"):
        inputs.range(3).with_options()
    with pytest.raises(AttributeError, match=r"has no method 'nothing'\.$"):
        inputs.range(3).nothing()


def test_each_element_comes_once():
    """By its type and content: also arrays, structures and NaN; what cannot be compared is refused."""
    nan = float("nan")
    values = [1, True, 1.0, nan, nan, "a", "a", {"a": np.zeros(2)}, {"a": np.zeros(2)}, (1,), (1,), [1], [1]]

    assert len(list(inputs.from_elements(values).unique())) == 8
    with pytest.raises(DatasetError, match="elements of the type set cannot be compared"):
        list(inputs.from_elements([{1}]).unique())


def test_lists_without_a_shape_and_dicts_in_any_order_are_compared():
    """Lists of lists of different lengths have no shape, and equal dicts may name their parts in another order."""
    lists = [[[1], [2, 3]], [[1], [2, 3]], [[1], [2], [3]]]
    dicts = [{"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 2, "b": 1}]

    assert list(inputs.from_elements(lists).unique()) == [lists[0], lists[2]]
    assert list(inputs.from_elements(dicts).unique()) == [dicts[0], dicts[2]]


def test_the_end_of_unique_elements_can_be_restored():
    """Although the last of its input had been there before."""
    ended = inputs.from_elements([1, 2, 1]).unique().iterator()
    assert list(ended) == [1, 2]

    assert list(inputs.from_elements([1, 2, 1]).unique().iterator().restore(ended.state())) == []


def test_an_error_that_is_due_behind_a_block_of_rows_is_in_the_state():
    """A pass that was restored between the two raises it: the element that failed is not lost without a word."""

    def rows():
        numbers = inputs.range(6).map(lambda number: {"number": number // (number != 3)})
        return numbers.as_rows(pa.schema([("number", pa.int64())]))

    def choices():
        table = inputs.from_arrow(pa.table({"number": range(6)}))
        return inputs.choose_from_datasets([table, table], inputs.range(6).map(lambda number: 0 // (number != 3)))

    for made in (rows, choices):
        elements = made().iterator()
        first = [next(elements)["number"] for _ in range(3)]
        with pytest.raises(FunctionFailed, match="element 3"):
            next(made().iterator().restore(elements.state()))
        assert first == [0, 1, 2]
