"""QueryExampleGen: one span a run out of a database, SQLite always and PostgreSQL where there is one.

tests/contract/databases.sh python -m pytest tests/components/test_query_example_gen.py
"""

import importlib
import logging
import os
import uuid
import warnings
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from spanwise.components import QueryExampleGen
from spanwise.orchestrator import Calendar, Examples, ParameterError
from tests.components.flow import Bench, only

pytest.importorskip("adbc_driver_sqlite")
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
        from adbc_driver_sqlite import dbapi

        self.path = folder / "rides & more.db"
        self.url = f"sqlite:///{self.path}"
        self.connection = dbapi.connect(str(self.path), autocommit=True)

    def do(self, text) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(text)

    def close(self) -> None:
        self.connection.close()


class PostgreSql(Sqlite):
    """A database of its own on the server that the tests were given."""

    def __init__(self, folder) -> None:
        from adbc_driver_postgresql import dbapi

        server = os.environ.get("SPANWISE_TEST_POSTGRESQL")
        if server is None:
            pytest.skip("no PostgreSQL; see tests/contract/databases.sh")
        base, name = server.rsplit("/", 1)[0], f"rides_{uuid.uuid4().hex[:12]}"
        with dbapi.connect(f"{base}/postgres", autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {name}")
        self.url = f"{base}/{name}"
        self.connection = dbapi.connect(self.url, autocommit=True)


@pytest.fixture(params=[Sqlite, PostgreSql])
def database(request, tmp_path, monkeypatch):
    """Rides of three days, none on the sixth."""
    made = request.param(tmp_path)
    monkeypatch.setenv("RIDES_URL", made.url)
    made.do("CREATE TABLE rides (id bigint, at timestamp, fare double precision, who text)")
    made.do(
        "INSERT INTO rides VALUES (1, '2013-01-04 23:59:59', 1.5, 'a'), (2, '2013-01-05 00:00:00', 2.5, NULL), "
        "(3, '2013-01-05 13:30:00', NULL, 'ü'), (4, '2013-01-05 23:59:59', 4.5, 'c'), (5, '2013-01-07 00:00:00', 5, 'd')"
    )
    yield made
    made.close()


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
        (ROWS, {"version_query": "SELECT id, at FROM rides"}, "version_query gives 5 rows of 2 columns"),
    ],
)
def test_what_a_database_refuses_is_told(database, asks, query, arguments, said):
    """The message says which node and which connection by its name."""
    failed = asks(query=query, **arguments)

    assert said in failed.error
    assert "QueryExampleGen" in failed.error


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


def test_a_query_may_end_with_a_semicolon_or_a_comment(database, asks):
    """As it is written for a console."""
    assert ids(asks(query=ROWS + ";\n")) == [2, 3, 4]
    assert ids(asks(query=ROWS + " -- by id")) == [2, 3, 4]


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
