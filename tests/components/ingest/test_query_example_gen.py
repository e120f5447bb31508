"""QueryExampleGen: one span a run out of a database, SQLite always and PostgreSQL where it is installed.

`make test-sql` installs PostgreSQL where it is missing; SPANWISE_TEST_POSTGRESQL names a server that is there already.
"""

import contextlib
import datetime as dt
import importlib
import logging
import os
import sqlite3
import uuid
import warnings
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spanwise.components import QueryExampleGen
from spanwise.components.ingest.answer_part import check_order
from spanwise.components.ingest.answers import answer_schema, rebatch
from spanwise.components.ingest.database import connect
from spanwise.components.ingest.query import Query
from spanwise.orchestrator import Calendar, Examples, ParameterError
from spanwise.orchestrator.errors import UnreadableInput
from spanwise.pipelines.demo_servers import find_postgresql
from tests.components.flow import Bench, only
from tests.components.ingest.type_table import POSTGRESQL, REFUSED
from tests.postgresql import NEEDED, serve

DAY = Calendar.DAY.parse("2013-01-05")
ROWS = "SELECT * FROM rides WHERE at >= {SPAN_START} AND at < {SPAN_END} ORDER BY id"


@pytest.fixture(scope="module", autouse=True)
def _beam():
    """Imports Beam once: the nodes are forked from this process and have it from the start."""
    root = logging.getLogger()
    quiet = logging.NullHandler()
    root.addHandler(quiet)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in QueryExampleGen.preload:
            importlib.import_module(module)
    root.removeHandler(quiet)


class Sqlite:
    """A file with a table of rides."""

    def __init__(self, folder) -> None:
        self.path = folder / "rides & more.db"
        self.url = f"sqlite:///{self.path}"
        self.connection = sqlite3.connect(self.path, isolation_level=None)

    def do(self, text) -> None:
        with contextlib.closing(self.connection.cursor()) as cursor:
            cursor.execute(text)

    def close(self) -> None:
        self.connection.close()


class PostgreSql(Sqlite):
    """A database of its own on a server, and a connection: to make them takes longer than most tests, which share them."""

    def __init__(self, server) -> None:
        from adbc_driver_postgresql import dbapi

        base, name = server.rsplit("/", 1)[0], f"rides_{uuid.uuid4().hex[:12]}"
        with dbapi.connect(f"{base}/postgres", autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {name}")
        self.url = f"{base}/{name}"
        self.connection = dbapi.connect(self.url, autocommit=True)

    def empty(self) -> None:
        """Ends what an earlier test has left connected, and drops what it has made."""
        self.do(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        self.do("DROP SCHEMA public CASCADE")
        self.do("CREATE SCHEMA public")


@pytest.fixture(scope="session")
def server():
    """The URL of a PostgreSQL: one that was named, or one of its own where it is installed."""
    pytest.importorskip("adbc_driver_postgresql")
    given = os.environ.get("SPANWISE_TEST_POSTGRESQL")
    if given is not None:
        yield given
    elif find_postgresql() is None:
        (pytest.fail if os.environ.get(NEEDED) else pytest.skip)("no PostgreSQL; make test-sql installs one")
    else:
        with serve() as url:
            yield url


@pytest.fixture(scope="session")
def shared_database(server):
    made = PostgreSql(server)
    yield made
    made.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request, tmp_path, monkeypatch):
    """Rides of three days, none on the sixth."""
    made = Sqlite(tmp_path) if request.param == "sqlite" else request.getfixturevalue("postgresql")
    monkeypatch.setenv("RIDES_URL", made.url)
    made.do("CREATE TABLE rides (id bigint, at timestamp, fare double precision, who text)")
    made.do(
        "INSERT INTO rides VALUES (1, '2013-01-04 23:59:59', 1.5, 'a'), (2, '2013-01-05 00:00:00', 2.5, NULL), "
        "(3, '2013-01-05 13:30:00', NULL, 'ü'), (4, '2013-01-05 23:59:59', 4.5, 'c'), (5, '2013-01-07 00:00:00', 5, 'd')"
    )
    yield made
    if request.param == "sqlite":
        made.close()


@pytest.fixture
def postgresql(shared_database, monkeypatch):
    """An empty database of PostgreSQL."""
    shared_database.empty()
    monkeypatch.setenv("RIDES_URL", shared_database.url)
    return shared_database


@pytest.fixture
def asks(tmp_path):
    """Runs QueryExampleGen alone and returns its execution."""
    bench = Bench(tmp_path / "root")

    def asks(span=DAY, query=ROWS, **arguments):
        given = {"connection": "env:RIDES_URL", "ratios": {"all": 1}, "query": query, **arguments}
        return bench.run(QueryExampleGen(**given), span=span).executions["QueryExampleGen"]

    return asks


def table(execution):
    return pq.read_table(only(execution, "examples").as_kind(Examples).split("all"))


def ids(execution):
    return table(execution)["id"].to_pylist()


def test_a_span_is_the_rows_of_its_day(database, asks):
    """From midnight to midnight in UTC, the end not included, in the order that was asked for."""
    execution = asks()

    made = only(execution, "examples").properties
    assert ids(execution) == [2, 3, 4]
    assert table(execution)["fare"].to_pylist() == [2.5, None, 4.5]
    assert table(execution)["who"].to_pylist() == [None, "ü", "c"]
    assert (made["span"], made.get("version"), made["calendar"], made["rows"]) == (DAY, None, "day", {"all": 3})
    assert made["fingerprint"]


def test_an_hour_is_asked_for_in_utc(database, asks):
    """With the calendar of hours the bounds are instants."""
    assert ids(asks(Calendar.HOUR.parse("2013-01-05T13"), calendar="hour")) == [3]


def test_numbered_spans_are_numbers(database, asks):
    """A span may be anything that is counted."""
    found = asks(
        3, "SELECT id FROM rides WHERE id >= {SPAN_START} AND id < {SPAN_END} OR id = {SPAN} + 1", calendar="number"
    )

    assert sorted(ids(found)) == [3, 4]


def test_the_placeholders_of_tfx_are_bound(database, asks):
    """A query that was written for TFX works as it stands, as far as its SQL does."""
    query = "SELECT id FROM rides WHERE id * 86400 >= @span_begin_timestamp AND id * 86400 < @span_end_timestamp"

    assert ids(asks(2, query)) == [2]
    assert ids(asks(DAY, "SELECT 9 AS id, @span_yyyymmdd_utc AS day")) == [9]


def test_rows_are_divided_like_those_of_files(database, asks):
    """The splits are train and eval unless others are named, and each row is in one of them."""
    execution = asks(ratios=None)

    assert list(only(execution, "examples").properties["rows"]) == ["train", "eval"]
    assert sum(only(execution, "examples").properties["rows"].values()) == 3


def test_a_pinned_type_holds(database, asks):
    """An exact number that a database gives as text is read as the decimal that it is pinned to."""
    found = table(asks(query="SELECT '1.25' AS price, {SPAN} AS span", types={"price": "decimal128(9, 2)"}))

    assert str(found.schema.field("price").type) == "decimal128(9, 2)"


def test_the_same_rows_have_the_same_fingerprint(database, asks):
    """Whatever their order; and it is another as soon as one value is."""
    first = only(asks(), "examples").properties["fingerprint"]

    assert only(asks(query=ROWS + " DESC"), "examples").properties["fingerprint"] == first
    database.do("UPDATE rides SET who = 'b' WHERE id = 3")
    assert only(asks(), "examples").properties["fingerprint"] != first


def test_without_a_version_the_database_is_asked_each_time(database, asks):
    """Only it knows whether its rows are the same; the same rows in the same order are the same content."""
    first = only(asks(), "examples")

    again = asks()

    assert again.reused is None
    assert only(again, "examples").content == first.content


def test_a_version_that_was_ingested_is_served_from_the_cache(database, asks):
    """The number promises that the rows are the same, and a new number is a new version of the span."""
    database.do("CREATE TABLE loads (day date, number bigint)")
    database.do("INSERT INTO loads VALUES ('2013-01-05', 1)")
    version = "SELECT max(number) FROM loads WHERE day = {SPAN_START}"
    first = asks(version_query=version)

    again = asks(version_query=version)
    database.do("INSERT INTO loads VALUES ('2013-01-05', 2)")
    newer = asks(version_query=version)

    assert again.reused == first.id
    assert only(first, "examples").properties["version"] == 1
    assert only(newer, "examples").properties["version"] == 2
    assert newer.reused is None


def test_rows_of_a_version_that_changes_meanwhile_are_refused(sqlite, asks):
    """The number is asked for before the rows and after them; only where it is the same are they of it."""
    sqlite.do("CREATE TABLE rides (id bigint, at text)")
    sqlite.do("INSERT INTO rides VALUES (1, '2013-01-05 10:00:00')")

    refused = asks(version_query="SELECT abs(random())")

    assert "before its rows were read and is" in refused.error
    assert refused.outputs == {}


def test_a_run_without_a_span_takes_the_newest_that_a_query_gives(database, asks):
    """The newest day of the table, as a date or as a text of one."""
    newest = "SELECT max(at) FROM rides"

    execution = asks(None, newest_query=newest)

    assert only(execution, "examples").properties["span"] == DAY + 2


def test_a_query_without_a_span_is_span_0(database, asks):
    """All its rows are one block, and no other can be asked for."""
    assert only(asks(None, "SELECT * FROM rides"), "examples").properties["span"] == 0
    assert "has no placeholder for a span, so 2013-01-05 cannot be asked for" in asks(DAY, "SELECT * FROM rides").error


def test_the_columns_are_compared_with_the_span_before(database, asks):
    """A column that disappears is an error, as with files."""
    asks(DAY - 1)

    failed = asks(query=ROWS.replace("*", "id, at, who"))

    assert "column 'fare' (double in the previous span) is missing" in failed.error


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_a_column_that_a_span_loses_when_it_is_queried_again_is_an_error(sqlite, asks, order):
    """Whichever span was ingested first: nothing says that its rows are the same, so they are compared anew."""
    for span in order:
        assert asks(span, "SELECT {SPAN} AS v, 0.5 AS w", calendar="number").error is None

    for span in order:
        failed = asks(span, "SELECT {SPAN} AS v", calendar="number")

        assert "column 'w' (double in the previous span) is missing" in failed.error


def test_what_is_wrong_with_an_answer_is_to_be_changed_in_the_query(database, asks):
    """No message names a parameter that files alone have, or the file in which the answer waits."""
    asks(DAY - 1)

    renamed = asks(query=ROWS.replace("*", "id, at, who, fare AS price"))
    pinned = asks(types={"who": "int64"})

    assert 'give it the old one in the query: "price" AS "fare". If it is gone for good, say so: QueryExampleGen(' in (
        renamed.error
    )
    assert asks(query=ROWS.replace("*", 'id, at, who, fare AS "fare"')).error is None
    assert "the answer of QueryExampleGen.query, line 2: column 'who'" in pinned.error
    assert "Convert the value in the query, or leave such rows out there." in pinned.error


def test_no_rows_are_an_error(database, asks):
    """A day without rows is told with what was asked, and nothing is ingested."""
    failed = asks(DAY + 1)

    assert "the query returned no rows for span 2013-01-06" in failed.error
    assert "at >= '2013-01-06' AND at < '2013-01-07'" in failed.error
    assert not failed.outputs


@pytest.mark.parametrize(
    ("query", "arguments", "said"),
    [
        ("SELECT * FROM nowhere WHERE {SPAN} = 1", {}, "the database refuses the query"),
        ("SELECT id, who AS id FROM rides WHERE {SPAN} > 1", {}, "gives two columns called 'id'"),
        (
            ROWS,
            {"version_query": "SELECT max(id) FROM rides WHERE at >= {SPAN_END} AND at < {SPAN_START}"},
            "version_query gives nothing",
        ),
        (ROWS, {"version_query": "SELECT 'x'"}, "version_query gives 'x'; a version is a whole number"),
        ("SELECT {SPAN} AS id; SELECT 2 AS id", {}, "the database refuses the query"),
        (ROWS, {"version_query": "SELECT id, at FROM rides"}, "version_query gives 5 rows of 2 columns"),
    ],
)
def test_what_a_database_refuses_is_told(database, asks, query, arguments, said):
    """The message says which node and which connection by its name."""
    failed = asks(query=query, **arguments)

    assert said in failed.error
    assert "QueryExampleGen" in failed.error


def test_a_version_that_is_true_or_false_is_refused(postgresql, asks):
    """It says that something is there, not which edition."""
    failed = asks(0, "SELECT {SPAN} AS v", calendar="number", version_query="SELECT true")

    assert "version_query gives True; a version is a whole number" in failed.error


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "does not say by itself what its newest span is"),
        ({"newest_query": "SELECT max(at) FROM rides WHERE id > 9"}, "newest_query gives nothing"),
    ],
)
def test_the_newest_span_must_be_known(database, asks, arguments, said):
    """Without a span in the run, something has to say which is the newest."""
    assert said in asks(None, **arguments).error


def test_a_long_answer_is_written_in_pieces(database, asks):
    """Rows of many batches are all there, in order, whatever the sizes that the database hands on."""
    numbers = "WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n WHERE id < 150000) SELECT id FROM n"

    execution = asks(query=numbers + " WHERE {SPAN} > 0")

    assert ids(execution) == list(range(1, 150001))


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("date 'infinity'", "has an infinite date"),
        ("date '-infinity'", "has an infinite date"),
        ("timestamp 'infinity'", "has an infinite timestamp"),
        ("timestamptz '-infinity'", "has an infinite timestamp"),
        ("ARRAY[date 'infinity']", "has an infinite date"),
        ("time '24:00'", "has the time 24:00"),
        ("interval '1 month'", "is of type month_day_nano_interval"),
        ("timetz '10:00+02'", "is of type timetz"),
        ("'10.0.0.1'::inet", "is of type inet"),
        ("B'101'::bit(3)", "is of type bit"),
        ("'<a/>'::xml", "is of type xml"),
        ("ARRAY['<a/>'::xml]", "is of type xml"),
        (
            "'12.34'::money",
            'is of type money, which the driver gives as a plain number. Convert it in the query: "v"::numeric',
        ),
        ("ARRAY['12.34'::money]", '"v"::numeric[]'),
        ("4000000000::oid", '"v"::bigint'),
        ("int4range(1, 3)", "has no Arrow type"),
        ("ARRAY[[1, 2], [3, 4]]", 'Convert it in the query: array_to_json("v")::text AS "v"'),
        ("CASE k WHEN 1 THEN NULL ELSE ARRAY[[1], [3]] END", "column 'v' has an array of several dimensions"),
        ("ROW(1, 'a')", "is of type record, and what is inside its values is not checked"),
        ("timestamp '294276-12-31'", "has a timestamp after the year 294246, which Arrow does not have. Convert it"),
        ("ARRAY[timestamptz '294247-02-01']", "has a timestamp after the year 294246"),
        ("ROW(1, '12.34')::item", "is of type item, and what is inside its values is not checked"),
        ("ARRAY[ROW(1, '12.34')::item]", 'Convert it in the query: to_json("v")::text AS "v"'),
        ("ROW(1)::_named", "is of type named[]"),
        ("ARRAY['{{1, 2}, {3, 4}}'::ints]", "is of type ints[]"),
    ],
)
def test_what_has_no_form_outside_postgresql_is_refused_by_name(postgresql, asks, expression, said):
    """Neither raw bytes nor cents nor the year 5,877,612 are ingested; the message says what to write in the query."""
    postgresql.do("CREATE TYPE item AS (sku int, price money)")
    postgresql.do("CREATE TYPE _named AS (sku int)")
    postgresql.do("CREATE DOMAIN ints AS int[]")

    failed = asks(None, f"SELECT k, {expression} AS v FROM generate_series(1, 2) AS k")

    assert said in failed.error
    assert "Traceback" not in failed.error
    assert not failed.outputs


def test_the_table_of_types_is_right_about_postgresql(postgresql, monkeypatch):
    """What the page of sources says of each type."""
    postgresql.do("CREATE TYPE mood AS ENUM ('sad', 'ok')")
    postgresql.do("CREATE TYPE item AS (sku int, price money)")
    postgresql.do("CREATE DOMAIN ints AS int[]")
    found = {}
    for shown, (expression, _) in POSTGRESQL.items():
        query = Query.parse(f"SELECT {expression} AS v", "q")
        with connect("env:RIDES_URL", "Q") as opened, opened.query(query, 0, Calendar.DAY) as answer:
            try:
                schema = answer_schema(answer.schema, "Q")
                list(rebatch(answer, schema, "Q"))
                found[shown] = str(schema.field("v").type)
            except UnreadableInput:
                found[shown] = REFUSED

    assert found == {shown: type_ for shown, (_, type_) in POSTGRESQL.items()}


def test_what_postgresql_has_is_ingested_value_by_value(postgresql, asks):
    """The limits of each type, exact numbers as text, and what the messages advise for the others."""
    postgresql.do("CREATE TYPE mood AS ENUM ('sad', 'ok')")
    postgresql.do("CREATE TYPE item AS (sku int, price money)")
    rows = {
        "9223372036854775807::int8": ("int64", 2**63 - 1),
        "'-32768'::int2": ("int16", -32768),
        "0.1::float4": ("float", pytest.approx(0.1, rel=1e-7)),
        "0.1::float8": ("double", 0.1),
        "12345678901234567890.123::numeric": ("string", "12345678901234567890.123"),
        "ARRAY[1.5]::numeric[]": ("list<element: string>", ["1.5"]),
        "'\\xff'::bytea": ("binary", b"\xff"),
        "date '0001-01-01'": ("date32[day]", dt.date(1, 1, 1)),
        "timestamptz '9999-12-31 23:59:59.999999+00'": (
            "timestamp[us, tz=UTC]",
            dt.datetime(9999, 12, 31, 23, 59, 59, 999999, dt.UTC),
        ),
        "time '23:59:59.999999'": ("time64[us]", dt.time(23, 59, 59, 999999)),
        "'{\"a\": 1}'::jsonb": ("string", '{"a": 1}'),
        "'00000000-0000-0000-0000-000000000001'::uuid": ("fixed_size_binary[16]", bytes(15) + b"\1"),
        "ARRAY[1, NULL]": ("list<element: int32>", [1, None]),
        "ARRAY[]::text[]": ("list<element: string>", []),
        "'[0:1]={5,6}'::int[]": ("list<element: int32>", [5, 6]),
        "array_to_json(ARRAY[[1, 2], [3, 4]])::text": ("string", "[[1,2],[3,4]]"),
        "to_json(ARRAY[ROW(1, '12.34')::item])::text": ("string", '[{"sku":1,"price":"$12.34"}]'),
        "'sad'::mood": ("string", "sad"),
        "'12.34'::money::numeric": ("string", "12.34"),
        "(interval '1 month 2 days')::text": ("string", "1 mon 2 days"),
        "CASE WHEN isfinite(date 'infinity') THEN date 'infinity' END": ("date32[day]", None),
        "'10.0.0.1'::inet::text": ("string", "10.0.0.1/32"),
        "char_length('ü')::int4": ("int32", 1),
        "NULL": ("string", None),
    }

    made = asks(None, "SELECT " + ", ".join(f"{e} AS v{n}" for n, e in enumerate(rows)))

    assert [str(field.type) for field in table(made).schema] == [type_ for type_, _ in rows.values()]
    assert list(table(made).to_pylist()[0].values()) == [value for _, value in rows.values()]


@pytest.fixture
def sqlite(tmp_path, monkeypatch):
    """A database of SQLite with a table whose column has no type."""
    made = Sqlite(tmp_path)
    monkeypatch.setenv("RIDES_URL", made.url)
    made.do("CREATE TABLE loose (v)")
    yield made
    made.close()


@pytest.mark.parametrize(
    ("values", "type_", "found"),
    [
        (["'a'", "0.123456789012345", "9007199254740993"], "string", ["a", "0.123456789012345", "9007199254740993"]),
        (["1", "NULL", "0.1"], "double", [1.0, None, 0.1]),
        (["9223372036854775807"], "int64", [2**63 - 1]),
        (["x'ff00'", "NULL"], "binary", [b"\xff\0", None]),
        (["NULL"], "null", [None]),
        (["''", "'NA'", "'007'"], "string", ["", "NA", "007"]),
    ],
)
def test_a_column_of_sqlite_has_the_type_of_all_its_values(sqlite, asks, values, type_, found):
    """Whatever their order; a number among texts keeps its digits."""
    for order in (values, values[::-1]):
        sqlite.do("DELETE FROM loose")
        sqlite.do("INSERT INTO loose VALUES " + ", ".join(f"({value})" for value in order))

        made = table(asks(None, "SELECT v FROM loose ORDER BY rowid"))

        assert str(made.schema.field("v").type) == type_
        assert made["v"].to_pylist() == (found if order is values else found[::-1])


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (["'a'", "x'ff'"], "column 'v' has blobs and texts. Convert it in the query: CAST(v AS TEXT)"),
        (["1", "x'ff'"], "column 'v' has blobs and whole numbers"),
        (["0.5", "9007199254740993"], "column 'v' has fractions, so it is read as double, and a whole number"),
        (["CAST(x'ff' AS TEXT)"], "the database refuses the query"),
    ],
)
def test_a_column_of_sqlite_that_mixes_what_no_type_holds_is_refused(sqlite, asks, values, said):
    """By its name, with what to write in the query."""
    sqlite.do("INSERT INTO loose VALUES (NULL), " + ", ".join(f"({value})" for value in values))

    failed = asks(None, "SELECT v FROM loose")

    assert said in failed.error
    assert "Traceback" not in failed.error


def test_a_query_may_end_with_a_semicolon_or_a_comment(database, asks):
    """As it is written for a console."""
    assert ids(asks(query=ROWS + ";\n")) == [2, 3, 4]
    assert ids(asks(query=ROWS + " -- by id")) == [2, 3, 4]


@pytest.mark.parametrize("partitions", [1, 2, 7])
def test_rows_read_in_ranges_of_a_key_are_the_same_bytes(database, asks, partitions):
    """In the order of the key, whatever the query's, and however many ranges there are; the rest is as without a key."""
    database.do("INSERT INTO rides SELECT id * 1000, at, fare, who FROM rides")
    database.do("INSERT INTO rides VALUES (-5, '2013-01-05 12:00:00', 1, 'x')")
    whole = only(asks(query=ROWS.replace("ORDER BY id", "ORDER BY id -- all")), "examples")

    made = only(asks(query=ROWS + " DESC -- last first", partition_by="id", partitions=partitions), "examples")

    assert made.as_kind(Examples).path.exists()
    assert pq.read_table(made.as_kind(Examples).split("all"))["id"].to_pylist() == [-5, 2, 3, 4, 2000, 3000, 4000]
    assert (made.content, made.properties["fingerprint"]) == (whole.content, whole.properties["fingerprint"])


def test_ranges_are_read_by_the_engine_of_beam_that_is_named(database, asks):
    """Its workers connect themselves; the rows are all there, over several of its parts."""
    found = asks(partition_by="ID", partitions=3, beam_runner="FnApiRunner")

    assert ids(found) == [2, 3, 4]


def test_ranges_of_a_long_answer_are_all_of_it(postgresql, asks):
    """Ranges that end within a batch, and one that has no row."""
    postgresql.do(
        "CREATE TABLE n AS SELECT CASE WHEN i > 50000 THEN i + 400000 ELSE i END AS i FROM generate_series(1, 150000) AS i"
    )
    made = [only(asks(None, "SELECT i FROM n", partition_by="i", partitions=n), "examples") for n in (1, 4)]

    assert made[0].content == made[1].content
    assert made[1].properties["rows"] == {"all": 150000}


def test_all_ranges_are_of_one_moment(postgresql):
    """Rows that come in while they are read are in none."""
    postgresql.do("CREATE TABLE n AS SELECT i FROM generate_series(1, 10) AS i")
    count = Query.parse("SELECT count(*) FROM n", "q")
    with connect("env:RIDES_URL", "Q") as opened, connect("env:RIDES_URL", "Q") as other:
        snapshot = opened.share_snapshot()
        postgresql.do("INSERT INTO n VALUES (11)")
        other.take_snapshot(snapshot)

        assert other.one(count, 0, Calendar.DAY, "count") == 10


@pytest.mark.parametrize("partitions", [1, 3])
def test_rows_that_a_query_does_not_order_are_found_in_one_order(postgresql, asks, partitions):
    """No scan begins where another is, and no workers take turns: `row_number()` numbers rows alike in each range."""
    settings = "current_setting('synchronize_seqscans') || current_setting('max_parallel_workers_per_gather')"
    query = f"SELECT row_number() OVER () AS id, {settings} AS found FROM generate_series(1, 9)"

    made = table(asks(None, query, partition_by="id", partitions=partitions))

    assert made.to_pylist() == [{"id": number, "found": "off0"} for number in range(1, 10)]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT i AS id, pg_backend_pid() AS asked FROM generate_series(1, 9) AS i",
        "SELECT row_number() OVER (ORDER BY random()) AS id, i FROM generate_series(1, 99) AS i",
        "SELECT i AS id, ARRAY[random()] AS drawn, 'a' AS answer FROM generate_series(1, 9) AS i",
    ],
)
def test_ranges_that_are_not_those_of_one_answer_are_refused(postgresql, asks, query):
    """Each range runs the query for itself; where it answers otherwise each time, rows would be lost and doubled."""
    failed = asks(None, query, partition_by="id", partitions=3)

    assert "gives other rows each time that it is run, so 3 ranges of id are not those of one answer" in failed.error
    assert not failed.outputs
    assert asks(None, query, partition_by="id").error is None


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize(
    ("query", "key", "said"),
    [
        (ROWS.replace("*", "1 AS id, who"), "id", "several rows have id 1, so they have no order"),
        (ROWS.replace("*", "id, NULLIF(id, 3) AS k"), "k", "k is missing in a row"),
        (ROWS, "fare", "it has to hold whole numbers"),
        (ROWS, "nothing", "nothing"),
    ],
)
def test_a_key_that_orders_nothing_is_refused(database, asks, query, key, said, partitions):
    """Rows without one order could be other bytes tomorrow."""
    failed = asks(query=query, partition_by=key, partitions=partitions)

    assert said in failed.error
    assert "Traceback" not in failed.error


@pytest.mark.parametrize("names", [("v", "v"), ("v", "V")])
def test_columns_that_sqlite_would_rename_beside_a_key_are_refused(sqlite, asks, names):
    """In brackets, one of two columns of one name becomes `v:1`, also where they differ by case."""
    failed = asks(None, f"SELECT 1 AS id, 2 AS {names[0]}, 3 AS {names[1]}", partition_by="id")

    assert f"gives two columns called '{names[0]}' and '{names[1]}'" in failed.error


def test_rows_that_a_database_gives_in_another_order_are_refused():
    """MySQL, for one, takes a quoted name for a text, and orders by that; also where one batch ends and the next begins."""
    batches = [pa.record_batch({"Id": part}) for part in ([1, 2], [5], [4, 6])]

    with pytest.raises(UnreadableInput, match='not give the rows in the order of "Id"'):
        list(check_order(batches, batches[0].schema, '"Id"', "Q"))
    assert len(list(check_order(batches[:2], batches[0].schema, '"Id"', "Q"))) == 2


def test_the_secrets_of_a_connection_stay_in_the_environment(tmp_path, asks, monkeypatch):
    """Neither the metadata nor an error nor the node's log has the password, also where the driver quotes it."""
    pytest.importorskip("adbc_driver_postgresql")
    for url in ("postgresql://u:sek%20ret@127.0.0.1:1/x", "postgresql://u:sek ret@127.0.0.1:1/x"):
        monkeypatch.setenv("RIDES_URL", url)

        failed = asks()

        assert "QueryExampleGen (env:RIDES_URL): the database cannot be reached" in failed.error
        assert failed.parameters["connection"] == '"env:RIDES_URL"'
        for text in (failed.error, str(failed.parameters), Path(failed.log).read_text()):
            assert "sek" not in text


@pytest.mark.parametrize(
    ("variable", "said"),
    [
        (None, "the environment variable RIDES_URL is not set"),
        ("rides.db", "what the environment variable RIDES_URL holds is no URL"),
        ("oracle://x", "there is no driver for 'oracle' databases here"),
        ("sqlite:///nowhere.db", "cannot be reached"),
    ],
)
def test_a_connection_that_cannot_be_made_is_told(asks, monkeypatch, variable, said):
    """What to set, or what to install; a file that is not there is not made."""
    monkeypatch.delenv("RIDES_URL", raising=False)
    if variable is not None:
        monkeypatch.setenv("RIDES_URL", variable)

    assert said in asks().error
    assert not Path("nowhere.db").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"connection": "postgresql://u:sekret@host/x"}, "has a password in it"),
        ({"connection": "postgresql://host/x?user=u&password=sekret"}, "has a password in it"),
        ({"connection": "rides.db"}, "is neither a URL"),
        ({"query": "SELECT '{SPAN}'"}, "is inside quotes"),
        ({"newest_query": "SELECT {SPAN}"}, "newest_query finds the newest span, so it has no placeholder"),
        ({"query": "SELECT 1", "newest_query": "SELECT 1"}, "has no placeholder such as"),
        ({"query": "SELECT @span_begin_timestamp", "calendar": "hour"}, "placeholders of TFX, which are of days"),
        ({"calendar": "fortnight"}, "calendar"),
        ({"ratios": {"train": 0}}, "weight 0"),
        ({"split_key": ["id"], "drop_columns": ["id"]}, "drop_columns leaves out 'id', which split_key needs"),
        ({"partitions": 4}, "Name the key, a column of unique whole numbers: partition_by='id'"),
        ({"partition_by": "id", "partitions": 0}, "partitions is 0"),
        ({"partition_by": "id; DROP"}, "is the name of a column of the answer"),
    ],
)
def test_what_is_wrong_is_told_when_the_pipeline_is_made(arguments, said):
    """Nothing is connected, and no message shows a password."""
    with pytest.raises(ParameterError, match=said) as refused:
        QueryExampleGen(**{"query": ROWS, "connection": "env:RIDES_URL", **arguments})

    assert "sekret" not in str(refused.value)


def test_the_calendar_is_known_before_anything_runs():
    """The command line reads a span as the node counts it."""
    assert QueryExampleGen(query=ROWS, connection="env:X", calendar="hour").calendar is Calendar.HOUR
