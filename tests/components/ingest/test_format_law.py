"""The law of binary formats: what a file says is what is ingested, value by value, or it is refused by a sentence.

Each file is drawn from a seed, written by a library that is not ours, ingested, and compared with what was drawn.
SPANWISE_TEST_FORMATS is the number of files of each format; thousands find what is rare.
"""

import contextlib
import gzip
import io
import itertools
import math
import os
import sqlite3
import uuid
import zlib
from pathlib import Path
from random import Random

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spanwise.components.ingest.answers import answer_schema, rebatch
from spanwise.components.ingest.database import connect
from spanwise.components.ingest.ingestion import ingest
from spanwise.components.ingest.plan import IngestPlan
from spanwise.components.ingest.query import Query
from spanwise.components.ingest.readers import Dialect
from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.errors import SpanwiseError, UnreadableInput
from spanwise.pipelines.input.readers.stored_types import parse_type
from tests.components.ingest.generated import canonical_value, draw_table, has_missing_fixed_list, raw_values
from tests.components.ingest.generated_avro import draw_avro
from tests.components.tf_example import framed, parsed_sequence, serialized, serialized_sequence

FILES = int(os.environ.get("SPANWISE_TEST_FORMATS", "40"))


class Ingested:
    """What came out of a file, and how it was recorded."""

    def __init__(self, path, folder, **settings):
        self.report = ingest(IngestPlan(files={"all": (str(path),)}, destination=str(folder), **settings))
        self.tables = [pq.read_table(Path(folder, f"Split-{f.split}", f.name)) for f in self.report.files]
        self.table = pa.concat_tables(self.tables)
        self.values = {name: raw_values(self.table[name]) for name in self.table.column_names}


@pytest.fixture
def folders(tmp_path):
    """Folders that are not there yet."""
    return (tmp_path / str(number) for number in range(10**9))


def write_parquet(random, table, path):
    pq.write_table(
        table,
        path,
        compression=random.choice(["none", "snappy", "zstd", "gzip", "lz4", "brotli"]),
        version=random.choice(["1.0", "2.4", "2.6"]) if _keeps_nanoseconds(table) else "2.6",
        data_page_version=random.choice(["1.0", "2.0"]),
        row_group_size=random.choice([1, 2, 100]),
        use_dictionary=random.random() < 0.5,
        write_page_checksum=random.random() < 0.5,
        use_compliant_nested_type=random.random() < 0.5,
        store_schema=True,
    )


def _keeps_nanoseconds(table):
    """Whether old versions of Parquet have every type of the table."""
    return "[ns" not in str(table.schema) and "uint32" not in str(table.schema)


def write_arrow(random, table, path):
    codec = random.choice([None, "lz4", "zstd"])
    opener = random.choice([pa.ipc.new_file, pa.ipc.new_stream])
    with (
        pa.OSFile(str(path), "wb") as sink,
        opener(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as out,
    ):
        out.write_table(table, max_chunksize=random.choice([1, 3, 100]))


@pytest.mark.parametrize(("ending", "write"), [("parquet", write_parquet), ("arrow", write_arrow)])
def test_a_table_of_any_types_is_ingested_as_it_is(ending, write, folders, tmp_path):
    """Values are those that were written, columns are recorded as they are stored, and the next span is of the same."""
    for seed in range(FILES):
        random = Random(f"{ending} {seed}")
        table, values = draw_table(random)
        path = tmp_path / f"a.{ending}"
        write(random, table, path)
        settings = {"dialect": Dialect(part_bytes=random.choice([1, 1 << 20]))}
        if any(has_missing_fixed_list(v, f.type) for f in table.schema for v in values[f.name]):
            with pytest.raises(UnreadableInput, match="lacks a list"):
                Ingested(path, next(folders))
            continue
        try:
            made = Ingested(path, next(folders), **settings)
            _compare(values, table.schema, made)
            types = dict(made.report.columns)
            assert {f.name: parse_type(str(f.type)) for f in made.table.schema} == {
                n: parse_type(t) for n, t in types.items()
            }
            again = Ingested(path, next(folders), previous=tuple(types.items()), **settings)
            assert again.report.columns == made.report.columns
            assert again.table.equals(made.table) or str(again.values) == str(made.values)
            split = Ingested(path, next(folders), ratios={"x": 1, "y": 1}, **settings)
            _compare_unordered(values, table.schema, split)
        except BaseException as error:
            error.add_note(f"seed {seed}: {table.schema} {values}")
            raise


def _compare(values, schema, made):
    for field in schema:
        type_ = made.table.schema.field(field.name).type
        wanted = [canonical_value(v, field.type) for v in values[field.name]]
        found = [canonical_value(v, type_) for v in made.values[field.name]]
        assert found == wanted, field


def _compare_unordered(values, schema, made):
    """Whatever split a row is in, the row is whole."""
    wanted, found = (
        sorted(
            str([canonical_value(v, s.field(n).type) for n, v in zip(schema.names, row, strict=True)]) for row in rows
        )
        for s, rows in (
            (schema, zip(*(values[n] for n in schema.names), strict=True)),
            (made.table.schema, zip(*(made.values[n] for n in schema.names), strict=True)),
        )
    )
    assert found == wanted


# --- Avro, against fastavro


def as_found(value):
    """A value of fastavro as it comes out of Parquet."""
    if isinstance(value, dict):
        return {key: as_found(each) for key, each in value.items()}
    if isinstance(value, list):
        return [as_found(each) for each in value]
    return str(value) if isinstance(value, uuid.UUID) else repr(value) if isinstance(value, float) else value


def maps_as_dicts(value, schema):
    if value is None or not isinstance(schema, dict):
        return value
    if schema["type"] == "map":
        return {key: maps_as_dicts(each, schema["values"]) for key, each in value}
    if schema["type"] == "array":
        return [maps_as_dicts(each, schema["items"]) for each in value]
    return {"x": maps_as_dicts(value["x"], schema["fields"][0]["type"])} if schema["type"] == "record" else value


def test_avro_is_ingested_as_fastavro_writes_it(folders, tmp_path):
    """Also the defaults of a field that another file of the span lacks, which are decoded as the specification says."""
    for seed in range(FILES):
        random = Random(f"avro {seed}")
        names = []
        schema, draw, default = draw_avro(random, names)
        missing = {"null": True, "plain": False}[random.choice(["null", "plain"])]
        type_ = ["null", schema] if missing and random.random() < 0.5 else [schema, "null"] if missing else schema
        given = None if isinstance(type_, list) and type_[0] == "null" else draw()
        fields = [
            {"name": "k", "type": "int"},
            {"name": "v", "type": type_, "default": default(given) if given is not None else None},
        ]
        rows = [
            {"k": n, "v": None if missing and random.random() < 0.3 else draw()} for n in range(random.randrange(1, 9))
        ]
        folder = tmp_path / f"in{seed}"
        folder.mkdir()
        settings = {
            "codec": random.choice(["null", "deflate", "bzip2", "xz"]),
            "sync_interval": random.choice([1, 16000]),
        }
        for name, described, content in (("a", fields[:1], [{"k": -1}]), ("b", fields, rows)):
            with (folder / f"{name}.avro").open("wb") as file:
                fastavro.writer(file, {"type": "record", "name": "Row", "fields": described}, content, **settings)
        plan = IngestPlan(files={"all": tuple(map(str, sorted(folder.iterdir())))}, destination=str(next(folders)))

        try:
            report = ingest(plan)
            tables = [pq.read_table(Path(plan.destination, "Split-all", f.name)) for f in report.files]
            found = pa.concat_tables(tables).to_pylist()
        except BaseException as error:
            error.add_note(f"seed {seed}: {fields} {rows}")
            raise

        wanted = [{"k": -1, "v": given}, *rows]
        found = [{"k": row["k"], "v": maps_as_dicts(row["v"], schema)} for row in found]
        assert as_found(found) == as_found(wanted), (seed, fields)


# --- TFRecord, against protobuf


def draw_feature(random, kind):
    if random.random() < 0.1:
        return None
    values = {
        "ints": lambda: random.choice([0, -1, 2**63 - 1, -(2**63), 300]),
        "floats": lambda: random.choice([0.5, -0.0, math.inf, 3.0]),
        "texts": lambda: random.choice([b"", b"NA", "ü".encode(), b"007"]),
        "bytes": lambda: random.choice([b"\xff", b"\x80a"]),
    }[kind]
    return [values() for _ in range(random.choice([0, 1, 1, 1, 2]))]


def as_column(values, kind):
    """What becomes of the values of a feature in each record: plain where no record has more than one."""
    decode = (lambda v: v.decode()) if kind == "texts" else (lambda v: v)
    lists = [None if each is None else [decode(v) for v in each] for each in values]
    if any(each is not None and len(each) > 1 for each in lists):
        return lists
    return [each[0] if each else None for each in lists]


def test_records_are_ingested_as_protobuf_reads_them(folders, tmp_path):
    """Examples, and SequenceExamples with their feature lists, whatever is missing and however they are cut."""
    for seed in range(FILES):
        random = Random(f"tfrecord {seed}")
        kinds = {name: random.choice(["ints", "floats", "texts", "bytes"]) for name in ("a", "b", "steps")}
        records = []
        for _ in range(random.choice([1, 3, 9])):
            context = {name: draw_feature(random, kinds[name]) for name in "ab" if random.random() < 0.8}
            context["k"] = [len(records)]
            steps = [draw_feature(random, kinds["steps"]) for _ in range(random.randrange(3))]
            plain = random.random() < 0.3
            records.append(serialized(context) if plain else serialized_sequence(context, {"steps": steps}))
        raw = framed(records)
        path = tmp_path / f"{seed}.tfrecord"
        path.write_bytes(gzip.compress(raw) if random.random() < 0.3 else raw)
        dialect = Dialect(part_bytes=random.choice([1, 1 << 20]), block_bytes=random.choice([1, 1 << 20]))

        made = Ingested(path, next(folders), dialect=dialect)

        rows = [parsed_sequence(record) for record in records]
        for name in {name for context, _ in rows for name in context}:
            wanted = as_column([context.get(name) for context, _ in rows], kinds.get(name))
            assert repr(made.values[name]) == repr(wanted), (seed, name)
        decode = (lambda v: v.decode()) if kinds["steps"] == "texts" else (lambda v: v)
        given = [lists.get("steps") for _, lists in rows]
        if any(each is not None for each in given):
            wanted = [each and [[decode(v) for v in step] for step in each] for each in given]
            assert repr(made.values["steps"]) == repr(wanted), seed


# --- SQLite, against sqlite3


def draw_column(random, rows):
    """Values of one column, of one kind or, often, of several."""
    kinds = {
        int: lambda: random.choice([0, -1, 2**53, 2**53 + 1, 2**63 - 1, -(2**63)]),
        float: lambda: random.choice([0.1, 0.123456789012345, -0.0, 1e300, math.inf, 5e-324, 2.0]),
        str: lambda: random.choice(["", "NA", "007", "1e5", "ü\U0001f600", "0.10"]),
        bytes: lambda: random.choice([b"", b"\xff\0", b"a"]),
    }
    chosen = random.choices(list(kinds), [3, 3, 3, 1], k=random.choice([1, 1, 2, 3]))
    return [None if random.random() < 0.2 else kinds[random.choice(chosen)]() for _ in range(rows)]


def as_one_type(values):
    """What a column of such values becomes; None where it is refused."""
    kinds = {type(value) for value in values} - {type(None)}
    if str in kinds and bytes not in kinds:
        return [v if v is None or isinstance(v, str) else repr(v) for v in values]
    if kinds == {int, float}:
        exact = all(not isinstance(v, int) or abs(v) <= 2**53 for v in values)
        return [v if v is None else float(v) for v in values] if exact else None
    return values if len(kinds) < 2 else None


def test_an_answer_of_sqlite_has_the_values_of_its_rows(tmp_path):
    """Each column has the type that holds them all, or is refused by its name."""
    with contextlib.closing(sqlite3.connect(tmp_path / "a.db", isolation_level=None)) as connection:
        connection.execute("CREATE TABLE loose (a, b)")
        for seed in range(FILES):
            random = Random(f"sqlite {seed}")
            columns = [draw_column(random, random.choice([1, 3, 9])) for _ in "ab"]
            rows = list(itertools.zip_longest(*columns))
            connection.execute("DELETE FROM loose")
            connection.executemany("INSERT INTO loose VALUES (?, ?)", rows)
            wanted = [as_one_type([row[at] for row in rows]) for at in (0, 1)]
            query = Query.parse("SELECT a, b FROM loose ORDER BY rowid", "q")
            with connect(f"sqlite:///{tmp_path}/a.db", "Q") as database:
                refused = (
                    pytest.raises(UnreadableInput, match="column '") if None in wanted else contextlib.nullcontext()
                )
                with refused, database.query(query, 0, Calendar.DAY) as answer:
                    schema = answer_schema(answer.schema, "Q")
                    found = pa.Table.from_batches(rebatch(answer, schema, "Q"), schema)
            if None not in wanted:
                assert repr([found[name].to_pylist() for name in "ab"]) == repr(wanted), seed


# --- flipped bits


def avro_of(codec):
    out = io.BytesIO()
    schema = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}, {"name": "s", "type": "string"}]}
    fastavro.writer(out, schema, ROWS, codec="null", sync_interval=400, metadata={"avro.codec": codec})
    return out.getvalue() if codec == "null" else repacked(out.getvalue(), codec)


def repacked(raw, codec):
    """The same file with blocks packed by Arrow's codecs, as the specification of Avro says."""
    reader = fastavro.block_reader(io.BytesIO(raw))
    blocks = list(reader)
    at = blocks[0].offset
    head, marker = raw[:at].replace(b"\x08null", bytes([2 * len(codec)]) + codec.encode()), raw[at - 16 : at]
    out = [head]
    for block in blocks:
        body = block.bytes_.getvalue()
        packed = pa.compress(body, codec={"snappy": "snappy", "zstandard": "zstd"}[codec], asbytes=True)
        packed += zlib.crc32(body).to_bytes(4, "big") if codec == "snappy" else b""
        out += [long(block.num_records), long(len(packed)), packed, marker]
    return b"".join(out)


def long(number):
    number, out = 2 * number, b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


ROWS = [{"n": n * n, "s": f"text {n % 7}"} for n in range(100)]


def parquet_of(**settings):
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(ROWS), out, row_group_size=50, write_page_checksum=True, **settings)
    return out.getvalue()


def arrow_of(opener):
    out = io.BytesIO()
    table = pa.Table.from_pylist(ROWS)
    with opener(out, table.schema) as sink:
        sink.write_table(table, max_chunksize=30)
    return out.getvalue()


def records_of():
    return framed([serialized({"n": [row["n"]], "s": [row["s"].encode()]}) for row in ROWS])


@pytest.mark.parametrize(
    ("name", "make", "checked"),
    [
        ("a.parquet", lambda: parquet_of(compression="none", use_dictionary=False), True),
        ("a.parquet", lambda: parquet_of(compression="snappy", data_page_version="2.0"), True),
        ("a.avro", lambda: avro_of("snappy"), True),
        ("a.avro", lambda: avro_of("zstandard"), False),
        ("a.tfrecord", records_of, True),
        ("a.tfrecord", lambda: gzip.compress(records_of(), mtime=0), True),
        ("a.arrow", lambda: arrow_of(pa.ipc.new_file), False),
        ("a.arrow", lambda: arrow_of(pa.ipc.new_stream), False),
    ],
    ids=["parquet", "parquet 2", "avro snappy", "avro zstandard", "tfrecord", "tfrecord gz", "arrow", "arrow stream"],
)
def test_a_flipped_bit_is_found_where_a_file_carries_checksums(name, make, checked, folders, tmp_path):
    """Each flip is refused or harmless; without checksums it may change a value, but nothing crashes."""
    whole = make()
    path = tmp_path / name
    path.write_bytes(whole)
    made = Ingested(path, next(folders))
    assert made.values["n"] == [row["n"] for row in ROWS]
    random = Random(name)
    for _ in range(FILES):
        at, bit = random.randrange(len(whole)), random.randrange(8)
        torn = bytearray(whole)
        torn[at] ^= 1 << bit
        path.write_bytes(bytes(torn))
        try:
            found = Ingested(path, next(folders))
        except SpanwiseError:
            continue
        except BaseException as error:
            error.add_note(f"bit {bit} of byte {at} of {len(whole)}")
            raise
        assert not checked or found.values == made.values or _unchecked(name, at, whole), (at, bit)


def _unchecked(name, at, whole):
    """Neither the footer of Parquet nor the header of Avro, which name columns and types, has a checksum."""
    if name.endswith(".avro"):
        return at < next(iter(fastavro.block_reader(io.BytesIO(avro_of("null"))))).offset
    return name.endswith(".parquet") and at >= len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
