"""Readers of the user's own: rows of any file, errors in the user's lines, and a cache key that has their code."""

import importlib
import logging
import warnings
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spanwise.components import ExampleGen
from spanwise.orchestrator import Examples, ParameterError
from tests.components.flow import Bench, only

SCHEMA = pa.schema({"day": pa.string(), "n": pa.int64()})


@pytest.fixture(scope="module", autouse=True)
def _beam():
    """Imports Beam once: the nodes are forked from this process and have it from the start."""
    root = logging.getLogger()
    quiet = logging.NullHandler()
    root.addHandler(quiet)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in ExampleGen.preload:
            importlib.import_module(module)
    root.removeHandler(quiet)


def fixed_width(path):
    """Eight characters of a day, four of a number."""
    with Path(path).open() as file:
        rows = [{"day": line[:8], "n": int(line[8:12])} for line in file]
    yield pa.Table.from_pylist(rows, schema=SCHEMA)


@pytest.fixture
def lake(tmp_path):
    """A folder with one file of fixed width for each of two spans."""
    for span in (1, 2):
        (tmp_path / f"{span}.txt").write_text(f"2013010{span}{span:4}\n2013010{span}  99\n")
    return tmp_path


@pytest.fixture
def ingest(lake):
    bench = Bench(lake / "root")

    def ingest(reader, span=1, **arguments):
        node = ExampleGen(pattern=f"{lake}/{{SPAN}}.txt", reader=reader, ratios={"all": 1}, **arguments)
        return bench.run(node, span=span).executions["ExampleGen"]

    return ingest


def rows(execution):
    return pq.read_table(only(execution, "examples").as_kind(Examples).split("all")).to_pylist()


def test_a_function_reads_what_it_likes(ingest):
    """Its tables are ingested as any file's rows are."""
    assert rows(ingest(fixed_width)) == [{"day": "20130101", "n": 1}, {"day": "20130101", "n": 99}]


def test_a_function_may_return_one_table(ingest):
    """It need not be a generator, and may give batches as well."""

    def table(path):
        return pa.table({"n": [1, 2]})

    def batches(path):
        return [pa.record_batch({"n": [1]}), pa.record_batch({"n": [2]})]

    assert rows(ingest(table)) == rows(ingest(batches)) == [{"n": 1}, {"n": 2}]


def test_its_code_is_part_of_the_cache_key(ingest):
    """The same code is served from the cache, other code is run."""

    def other(path):
        yield from fixed_width(path)
        yield pa.table({"day": ["x"], "n": [0]}, schema=SCHEMA)

    first = ingest(fixed_width)

    assert ingest(fixed_width).reused == first.id
    assert len(rows(ingest(other))) == 3


def test_its_columns_are_compared_with_the_span_before(ingest):
    """A type that changes is an error, as with any file."""

    def changing(path):
        yield pa.table({"n": [1] if path.endswith("1.txt") else ["one"]})

    ingest(changing, span=1)

    assert "column 'n' was int64 in the previous span and is string" in ingest(changing, span=2).error


def fails(path):
    yield pa.table({"n": [1]})
    number = int("12x")
    yield pa.table({"n": [number]})


def fails_at_once(path):
    raise OSError("no such tape")


@pytest.mark.parametrize(
    ("reader", "said"),
    [
        (fails, ["1.txt: the reader fails failed with ValueError", '"12x"', "test_custom.py", "in fails"]),
        (fails_at_once, ["1.txt: the reader fails_at_once failed with OSError: no such tape", "in fails_at_once"]),
        (lambda _: [], ["1.txt: the reader <lambda> gives nothing"]),
        (lambda _: None, ["the reader <lambda> failed with TypeError: 'NoneType'"]),
        (lambda _: [{"n": 1}], ["gives dict {'n': 1}; it must give pyarrow.RecordBatch or pyarrow.Table"]),
        (lambda _: [pa.table({"n": [1]}), pa.table({"m": [1]})], ["column 'm' in some batches and not in others"]),
        (lambda _: [pa.table({"n": [1]}), pa.table({"n": [0.5]})], ["'n' as int64 first and as double later"]),
        (lambda _: [pa.table([[1], [2]], names=["n", "n"])], ["gives two columns called 'n'"]),
        (lambda _: [SCHEMA.empty_table()], ["the span has no rows"]),
    ],
)
def test_what_is_wrong_with_it_is_told(ingest, reader, said):
    """The message names the file and the function, and shows the user's lines and none of ours."""
    error = ingest(reader).error

    assert [part for part in said if part not in error] == []
    assert "components/ingest/readers/custom.py" not in error


def test_a_format_beside_a_reader_is_refused():
    """Only one of the two can say how files are read."""
    with pytest.raises(ParameterError, match="a format or a reader of your own, one of the two"):
        ExampleGen(pattern="{SPAN}.txt", reader=fixed_width, format="csv")


def test_files_of_tfrecord_and_avro_need_no_reader(tmp_path):
    """Their endings say how they are read."""
    import io

    import fastavro

    from tests.components.tf_example import framed, serialized

    out = io.BytesIO()
    fastavro.writer(out, {"type": "record", "name": "r", "fields": [{"name": "n", "type": "long"}]}, [{"n": 7}])
    (tmp_path / "1.avro").write_bytes(out.getvalue())
    (tmp_path / "2.tfrecord").write_bytes(framed([serialized({"n": [7]})]))
    bench = Bench(tmp_path / "root")

    for span, ending in ((1, "avro"), (2, "tfrecord")):
        node = ExampleGen(pattern=f"{tmp_path}/{{SPAN}}.{ending}", ratios={"all": 1})
        assert rows(bench.run(node, span=span).executions["ExampleGen"]) == [{"n": 7}]
