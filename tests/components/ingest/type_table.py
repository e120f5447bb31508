"""The table of docs/reference/sources.md: what becomes of each type of each format, found by ingesting one value of it.

python -m tests.components.ingest.type_table    ingests the cases and writes the table

The rows of PostgreSQL are those that test_query_example_gen.py compares with a real server, where there is one.
"""

import contextlib
import io
import json
import tempfile
import uuid
from decimal import Decimal
from pathlib import Path

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

from spanwise.components.ingest.answers import answer_schema
from spanwise.components.ingest.database import connect
from spanwise.components.ingest.ingestion import ingest
from spanwise.components.ingest.plan import IngestPlan
from spanwise.components.ingest.query import Query
from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.errors import UnreadableInput
from tests.components.tf_example import framed, serialized, serialized_sequence

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "sources.md"
BEGIN = "<!-- written by `python -m tests.components.ingest.type_table` -->"
END = "<!-- end -->"
REFUSED = "refused by name"

#: By what stands in a file: texts that become the same.
TEXTS = {
    "`7`": ["7", "-7"],
    "`9223372036854775808` (2^63)": [str(2**63)],
    "`18446744073709551617` (2^64 + 1)": [str(2**64 + 1)],
    "`0.5`, `1e3`, `inf`": ["0.5", "1e3", "inf"],
    "`true`, `False`": ["true", "False"],
    "`2024-01-31`": ["2024-01-31"],
    "`2024-01-31 10:00:00`, `2024-01-31T10:00:00.123456`": ["2024-01-31 10:00:00", "2024-01-31T10:00:00.123456"],
    "`2024-01-31T10:00:00Z`, `…+02:00`": ["2024-01-31T10:00:00Z", "2024-01-31T10:00:00+02:00"],
    "`10:00:00`": ["10:00:00"],
    "`007`": ["007"],
    "`0x10`": ["0x10"],
    "anything else": ["a"],
    "nothing": [""],
}
JSON = {
    "`7`": 7,
    "`9223372036854775808` (2^63)": 2**63,
    "`0.5`": 0.5,
    "`true`": True,
    '`"a"`': "a",
    '`"2024-01-31"`': "2024-01-31",
    '`"2024-01-31T10:00:00Z"`': "2024-01-31T10:00:00Z",
    "`[1, null]`": [1, None],
    "`[]`": [],
    '`{"x": 1, "y": "a"}`': {"x": 1, "y": "a"},
    "`{}`": {},
    "`null`": None,
}
INT = pa.int64()
ARROW = {
    "bool": pa.array([True]),
    "int8 to int64, uint8 to uint64": [pa.array([1], pa.int8()), pa.array([2**64 - 1], pa.uint64())],
    "half float, float, double": [pa.array([0.5], pa.float16()), pa.array([0.5], pa.float32()), pa.array([0.5])],
    "string, binary": [pa.array(["a"]), pa.array([b"a"])],
    "date32": pa.array([0], pa.date32()),
    "time32 in milliseconds, time64": [pa.array([0], pa.time32("ms")), pa.array([0], pa.time64("ns"))],
    "large string, string view": [pa.array(["a"], pa.large_string()), pa.array(["a"], pa.string_view())],
    "large binary, binary view": [pa.array([b"a"], pa.large_binary()), pa.array([b"a"], pa.binary_view())],
    "fixed-size binary": pa.array([b"ab"], pa.binary(2)),
    "UUID": pa.array([uuid.UUID(int=1)], pa.uuid()),
    "JSON": pa.array(["{}"], pa.json_()),
    "dictionary, run-end encoded": [
        pa.array(["a"]).dictionary_encode(),
        pa.RunEndEncodedArray.from_arrays([1], ["a"]),
    ],
    "decimal of up to 38 digits": pa.array([Decimal("1.5")], pa.decimal64(9, 2)),
    "decimal of up to 76 digits": pa.array([Decimal("1.5")], pa.decimal256(50, 2)),
    "decimal with a negative scale": pa.array([Decimal("1E+3")], pa.decimal128(5, -2)),
    "date64": pa.array([0], pa.date64()),
    "time32 in seconds": pa.array([0], pa.time32("s")),
    "timestamp in seconds": pa.array([0], pa.timestamp("s")),
    "timestamp in ms, us or ns, with a zone": pa.array([0], pa.timestamp("ns", "Asia/Kolkata")),
    "duration": pa.array([0], pa.duration("s")),
    "interval of months, days, nanoseconds": pa.array([(1, 2, 3)], pa.month_day_nano_interval()),
    "list, large list, list view": [
        pa.array([[1]], type_) for type_ in (pa.list_(INT), pa.large_list(INT), pa.list_view(INT))
    ],
    "fixed-size list": pa.array([[1, 2]], pa.list_(INT, 2)),
    "fixed-size list, one of them missing": pa.array([[1, 2], None], pa.list_(INT, 2)),
    "fixed-shape tensor": pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(INT, [2]), pa.array([[1, 2]], pa.list_(INT, 2))
    ),
    "struct": pa.array([{"x": 1}], pa.struct([pa.field("x", INT, nullable=False)])),
    "struct without fields, or with two of one name": [
        pa.array([{}], pa.struct([])),
        pa.StructArray.from_arrays([pa.array([1])] * 2, ["a", "a"]),
    ],
    "map": pa.array([[("a", 1)]], pa.map_(pa.string(), INT)),
    "union": pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])]),
    "null": pa.nulls(1),
}
AVRO = {
    "`boolean`": ("boolean", True),
    "`int`": ("int", 1),
    "`long`": ("long", 1),
    "`float`": ("float", 0.5),
    "`double`": ("double", 0.5),
    "`bytes`": ("bytes", b"a"),
    "`string`": ("string", "a"),
    "`enum`": ({"type": "enum", "name": "E", "symbols": ["A"]}, "A"),
    "`fixed`": ({"type": "fixed", "name": "F", "size": 2}, b"ab"),
    "`array`": ({"type": "array", "items": "int"}, [1]),
    "`map`": ({"type": "map", "values": "int"}, {"a": 1}),
    "`record`": ({"type": "record", "name": "In", "fields": [{"name": "x", "type": "int"}]}, {"x": 1}),
    "`date`": ({"type": "int", "logicalType": "date"}, 0),
    "`time-millis`": ({"type": "int", "logicalType": "time-millis"}, 0),
    "`time-micros`": ({"type": "long", "logicalType": "time-micros"}, 0),
    "`timestamp-millis`": ({"type": "long", "logicalType": "timestamp-millis"}, 0),
    "`timestamp-micros`": ({"type": "long", "logicalType": "timestamp-micros"}, 0),
    "`timestamp-nanos`": ({"type": "long", "logicalType": "timestamp-nanos"}, 0),
    "`local-timestamp-micros`": ({"type": "long", "logicalType": "local-timestamp-micros"}, 0),
    "`decimal`": ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, Decimal("1.50")),
    "`uuid`": ({"type": "string", "logicalType": "uuid"}, str(uuid.UUID(int=1))),
    "`duration`": ({"type": "fixed", "name": "D", "size": 12, "logicalType": "duration"}, bytes(12)),
    "`null` and another": (["null", "int"], 1),
    "`int` and `long`": (["int", "long"], 1),
    "other unions of numbers": (["long", "double"], 1),
    "any other union": (["int", "string"], 1),
}
RECORDS = {
    "`int64_list`, one value at most": serialized({"v": [1]}),
    "`int64_list`": serialized({"v": [1, 2]}),
    "`float_list`, one value at most": serialized({"v": [0.5]}),
    "`bytes_list`, one value at most, UTF-8": serialized({"v": [b"a"]}),
    "`bytes_list`, one value at most": serialized({"v": [b"\xff"]}),
    "a feature without values": serialized({"v": []}),
    "a feature list of `int64_list`": serialized_sequence({}, {"v": [[1]]}),
}
SQLITE = {
    "integers": "SELECT 1 AS v",
    "reals": "SELECT 0.5 AS v",
    "integers and reals": "SELECT 1 AS v UNION ALL SELECT 0.5",
    "texts": "SELECT 'a' AS v",
    "texts and numbers": "SELECT 'a' AS v UNION ALL SELECT 0.123456789012345",
    "blobs": "SELECT x'ff' AS v",
    "blobs and anything else": "SELECT x'ff' AS v UNION ALL SELECT 1",
    "NULL only": "SELECT NULL AS v",
}
#: By type: an expression and what it becomes.
POSTGRESQL = {
    "`boolean`": ("true", "bool"),
    "`smallint`": ("1::int2", "int16"),
    "`integer`": ("1::int4", "int32"),
    "`bigint`": ("1::int8", "int64"),
    "`real`": ("1::float4", "float"),
    "`double precision`": ("1::float8", "double"),
    "`numeric`": ("1.50::numeric", "string"),
    "`text`, `varchar`, `char`": ("'a'::varchar", "string"),
    "`bytea`": ("'a'::bytea", "binary"),
    "`date`": ("date '2024-01-31'", "date32[day]"),
    "`timestamp`": ("timestamp '2024-01-31'", "timestamp[us]"),
    "`timestamptz`": ("timestamptz '2024-01-31'", "timestamp[us, tz=UTC]"),
    "an infinite `date` or `timestamp`": ("date 'infinity'", REFUSED),
    "a `timestamp` after the year 294246": ("timestamp '294276-12-31'", REFUSED),
    "`time`": ("time '10:00'", "time64[us]"),
    "`timetz`": ("timetz '10:00+02'", REFUSED),
    "`interval`": ("interval '1 month'", REFUSED),
    "`uuid`": ("'00000000-0000-0000-0000-000000000001'::uuid", "fixed_size_binary[16]"),
    "`json`, `jsonb`": ("'{}'::jsonb", "string"),
    "an enumeration": ("'sad'::mood", "string"),
    "an array": ("ARRAY[1]", "list<element: int32>"),
    "an array of several dimensions": ("ARRAY[[1]]::int[] || ARRAY[[2]]", REFUSED),
    "an array of a domain of arrays": ("ARRAY['{1}'::ints]", REFUSED),
    "a composite type, an array of one": ("ROW(1, '1')::item", REFUSED),
    "`money`, `oid`": ("1::money", REFUSED),
    "`inet`, `cidr`, `macaddr`": ("'10.0.0.1'::inet", REFUSED),
    "`bit`, `varbit`": ("B'1'", REFUSED),
    "`xml`, `tsvector`": ("'<a/>'::xml", REFUSED),
    "ranges, points and other types": ("int4range(1, 3)", REFUSED),
}


def become(name, content):
    """The type that the column `v` of a file gets."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_bytes(content)
        try:
            report = ingest(IngestPlan(files={"all": (str(path),)}, destination=f"{folder}/out"))
        except UnreadableInput as error:
            return REFUSED if "column 'v'" in str(error) else str(error)
    return dict(report.columns)["v"]


def avro_file(schema, value):
    out = io.BytesIO()
    row = {"type": "record", "name": "Row", "fields": [{"name": "v", "type": schema}]}
    fastavro.writer(out, row, [{"v": value}])
    return out.getvalue()


def arrow_file(array):
    out = io.BytesIO()
    table = pa.table({"v": array})
    with pa.ipc.new_file(out, table.schema) as sink:
        sink.write_table(table)
    return out.getvalue()


def parquet_file(array):
    """The same as Parquet; None where Parquet has no such type."""
    out = io.BytesIO()
    with contextlib.suppress(pa.ArrowException, OSError):
        pq.write_table(pa.table({"v": array}), out)
        return out.getvalue()
    return None


def of_sqlite(query):
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "a.db").touch()
        try:
            with (
                connect(f"sqlite:///{folder}/a.db", "Q") as database,
                database.query(Query.parse(query, "q"), 0, Calendar.DAY) as answer,
            ):
                return str(answer_schema(answer.schema, "Q").field("v").type)
        except UnreadableInput as error:
            return REFUSED if "column 'v'" in str(error) else str(error)


def rows():
    """Source, type there, what it becomes."""
    for shown, texts in TEXTS.items():
        (found,) = {become("a.csv", f"k,v\n1,{text}\n".encode()) for text in texts}
        yield "CSV", shown, found
    for shown, value in JSON.items():
        yield "JSON lines", shown, become("a.jsonl", json.dumps({"k": 1, "v": value}).encode() + b"\n")
    for shown, given in ARROW.items():
        arrays = given if isinstance(given, list) else [given]
        found = [become("a.arrow", arrow_file(array)) for array in arrays]
        for array, type_ in zip(arrays, found, strict=True):
            parquet = parquet_file(array)
            # what has a missing fixed-size list is written and cannot be read again
            assert parquet is None or "missing" in shown or become("a.parquet", parquet) == type_, shown
        same = found == [str(array.type) for array in arrays]
        yield "Parquet, Arrow", shown, "the same" if same else " ".join(dict.fromkeys(found))
    for shown, (schema, value) in AVRO.items():
        yield "Avro", shown, become("a.avro", avro_file(schema, value))
    for shown, record in RECORDS.items():
        yield "TFRecord", shown, become("a.tfrecord", framed([record]))
    for shown, query in SQLITE.items():
        yield "SQLite", shown, of_sqlite(query)
    for shown, (_, type_) in POSTGRESQL.items():
        yield "PostgreSQL", shown, type_


def table():
    """The table as it stands on the page."""
    lines = ["| source | what it has | what that becomes |", "|---|---|---|"]
    before = None
    for source, shown, type_ in rows():
        becomes = type_ if type_ in (REFUSED, "the same") else f"`{type_}`"
        lines.append(f"| {'' if source == before else source} | {shown} | {becomes} |")
        before = source
    return "\n".join(lines)


def page(text, made):
    """The page with another table."""
    head, _, rest = text.partition(BEGIN)
    return f"{head}{BEGIN}\n\n{made}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(), table()))
