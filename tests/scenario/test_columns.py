"""Columns that go, come, widen or change for good: each has a declared way, and each message names one that works."""

from __future__ import annotations

import json
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spanwise import Dialect, ExampleGen, Examples
from spanwise.components import rows
from spanwise.orchestrator.errors import ColumnsChanged
from tests.components.flow import Bench, only


class Feed:
    """Days of input in one format, and the runs that ingest them."""

    def __init__(self, folder, ending: str) -> None:
        self.folder, self.ending = folder, ending
        self.bench = Bench(folder / "root")

    def arrive(self, span: int, *records: dict) -> None:
        path = self.folder / "data" / str(span) / f"a.{self.ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        if self.ending == "parquet":
            pq.write_table(pa.Table.from_pylist(list(records)), path)
        elif self.ending == "jsonl":
            path.write_text("".join(json.dumps(record) + "\n" for record in records))
        else:
            lines = [list(records[0]), *(record.values() for record in records)]
            path.write_text("".join(",".join(map(str, line)) + "\n" for line in lines))

    def ingest(self, span: int, **arguments):
        node = ExampleGen(pattern=f"{self.folder}/data/{{SPAN}}/*", **arguments)
        return self.bench.run(node, span=span).executions["ExampleGen"]

    def examples(self, span: int, **arguments) -> Examples:
        execution = self.ingest(span, **arguments)
        assert execution.error is None
        return only(execution, "examples").as_kind(Examples)


@pytest.fixture(params=["csv", "jsonl", "parquet"])
def feed(tmp_path, request):
    return Feed(tmp_path, request.param)


def suggested(error: str) -> dict:
    """The arguments of ExampleGen that a message suggests, as somebody would paste them."""
    found = re.search(r"ExampleGen\(\.\.\., (.*)\)\.|(types=\{.*?\}|dialect=Dialect\(.*?\))", error)
    assert found, error
    return eval(f"dict({found[1] or found[2]})", {"Dialect": Dialect})


def test_a_column_that_is_gone_for_good_is_dropped_by_name(feed):
    """The message says how; later days, and days before with the column, are ingested without it."""
    feed.arrive(1, {"x": 1, "old": 5}, {"x": 2, "old": 6})
    feed.arrive(2, {"x": 3}, {"x": 4})
    feed.examples(1)

    error = feed.ingest(2).error
    way = suggested(error)

    assert "column 'old' (int64 in the previous span) is missing" in error
    assert way == {"drop_columns": ["old"]}
    assert feed.examples(2, **way).columns == {"x": "int64"}
    assert feed.examples(1, **way).columns == {"x": "int64"}


def test_a_renamed_column_goes_on_under_the_name_that_code_knows(feed):
    """The message says how; a window over the change has the column in all rows, without a backfill."""
    feed.arrive(1, {"x": 1, "fare": 5}, {"x": 2, "fare": 6})
    feed.arrive(2, {"x": 3, "total": 7}, {"x": 4, "total": 8})
    before = feed.examples(1)

    error = feed.ingest(2).error
    way = re.search(r"If 'total' is its new name, write (rename_columns=.*?)\. If", error)

    assert way is not None
    assert way[1] == "rename_columns={'total': 'fare'}"
    after = feed.examples(2, rename_columns={"total": "fare"}, types={"fare": "int64"}, split_key=["fare"])
    assert after.columns == {"x": "int64", "fare": "int64"}
    tables = [rows.read_table([before, after], split) for split in ("train", "eval")]
    assert sorted(v for table in tables for v in table["fare"].to_pylist()) == [5, 6, 7, 8]
    assert feed.examples(1, rename_columns={"total": "fare"}).content == before.content


def test_a_pipeline_takes_over_the_new_name(feed):
    """What was published under the old name is left out of windows, until its span is ingested again."""
    feed.arrive(1, {"x": 1, "fare": 5}, {"x": 2, "fare": 6})
    feed.arrive(2, {"x": 3, "total": 7}, {"x": 4, "total": 8})
    before = feed.examples(1)
    new = {"rename_columns": {"fare": "total"}}

    after = feed.examples(2, **new)

    assert rows.read_schema([before, after], "train").names == ["x", "total"]
    again = feed.examples(1, **new)
    tables = [rows.read_table([again, after], split) for split in ("train", "eval")]
    assert sorted(v for table in tables for v in table["total"].to_pylist()) == [5, 6, 7, 8]


def test_two_columns_are_never_published_under_one_name(feed):
    """Neither is guessed to be the right one; two that change places are no conflict."""
    feed.arrive(1, {"a": 1, "b": 5}, {"a": 2, "b": 6})

    assert (
        "'a' cannot be published as 'b', because the input has another"
        in feed.ingest(1, rename_columns={"a": "b"}).error
    )
    swapped = feed.examples(1, rename_columns={"a": "b", "b": "a"})
    assert sorted(rows.read_table([swapped], "train").to_pylist() + rows.read_table([swapped], "eval").to_pylist(), key=str) == [
        {"b": 1, "a": 5}, {"b": 2, "a": 6},
    ]  # fmt: skip


def test_a_value_that_does_not_fit_a_renamed_column_is_told_by_its_published_name(feed):
    """And what is suggested is of that name, too."""
    feed.arrive(1, {"fare": 5}, {"fare": 6})
    feed.arrive(2, {"total": 7}, {"total": "free"} if feed.ending != "parquet" else {"total": 8})
    feed.examples(1)
    if feed.ending == "parquet":
        feed.arrive(2, {"total": 7.5}, {"total": 8.5})

    error = feed.ingest(2, rename_columns={"total": "fare"}).error

    assert "column 'fare'" in error


def test_a_window_is_read_without_what_any_of_its_spans_dropped(feed):
    """A training function that still asks for the column hears of it, and does not learn from nulls."""
    feed.arrive(1, {"x": 1, "old": 5}, {"x": 2, "old": 6})
    feed.arrive(2, {"x": 3}, {"x": 4})
    window = [feed.examples(1), feed.examples(2, drop_columns=["old"])]

    for split in ("train", "eval"):
        assert rows.read_schema(window, split).names == ["x"]
        assert rows.read_table(window, split).column_names == ["x"]


def test_a_column_is_removed_from_every_span_by_a_correction(feed):
    """No file of a span that is ingested again has it, as when a person asks to be forgotten."""
    feed.arrive(1, {"x": 1, "email": 7}, {"x": 2, "email": 8})
    feed.arrive(2, {"x": 3, "email": 9}, {"x": 4, "email": 9})
    before = [feed.examples(span) for span in (1, 2)]

    after = [feed.examples(span, drop_columns=["email"]) for span in (1, 2)]

    assert all("email" in pq.read_schema(file).names for each in before for file in each.path.rglob("*.parquet"))
    assert not any("email" in pq.read_schema(file).names for each in after for file in each.path.rglob("*.parquet"))


def test_a_column_that_comes_is_null_in_the_spans_before(feed):
    """Nothing has to be declared."""
    feed.arrive(1, {"x": 1}, {"x": 2})
    feed.arrive(2, {"x": 3, "new": 5}, {"x": 4, "new": 6})
    window = [feed.examples(1), feed.examples(2)]

    found = [row for split in ("train", "eval") for row in rows.read_table(window, split).to_pylist()]

    assert sorted((row["x"], row.get("new")) for row in found) == [(1, None), (2, None), (3, 5), (4, 6)]


def test_lists_and_structs_without_values_are_of_the_type_that_later_spans_give_them(tmp_path):
    """Of empty lists nobody knows what is in them: a window over them and later spans has the values."""
    feed = Feed(tmp_path, "jsonl")
    nothing = {"tags": [], "place": {"x": None}, "deep": [{"y": []}]}
    something = {"tags": [4], "place": {"x": 1.5}, "deep": [{"y": ["a"]}]}
    feed.arrive(1, {"n": 1, **nothing}, {"n": 2, **nothing})
    feed.arrive(2, {"n": 3, **something}, {"n": 4, **nothing})
    window = [feed.examples(span, ratios={"all": 1}) for span in (1, 2)]

    found = rows.read_table(window, "all")

    assert found.to_pylist() == [
        {"n": 1, **nothing}, {"n": 2, **nothing}, {"n": 3, **something}, {"n": 4, **nothing},
    ]  # fmt: skip
    assert rows.read_table(window[::-1], "all").schema.field("tags").type == pa.list_(pa.int64())


def test_what_a_span_has_dropped_does_not_have_to_fit_the_others(tmp_path):
    """A column that a window leaves out may be of any types in its spans."""
    feed = Feed(tmp_path, "jsonl")
    feed.arrive(1, {"x": 1, "y": 1})
    feed.arrive(2, {"x": 2, "y": "a"})
    feed.arrive(3, {"x": 3})
    window = [
        feed.examples(1, ratios={"all": 1}),
        feed.examples(2, ratios={"all": 1}, types={"y": "inferred"}),
        feed.examples(3, ratios={"all": 1}, drop_columns=["y"]),
    ]

    assert rows.read_table(window, "all").to_pylist() == [{"x": 1}, {"x": 2}, {"x": 3}]


def test_a_column_that_widens_is_pinned_and_its_window_ingested_again(feed):
    """The day is refused, then the mixed window, and each message says the step that follows."""
    feed.arrive(1, {"x": 1}, {"x": 2}, {"x": 3}, {"x": 4})
    feed.arrive(2, {"x": 1.5}, {"x": 2.5}, {"x": 3.5}, {"x": 4.5})
    first = feed.examples(1)

    way = suggested(feed.ingest(2).error)
    second = feed.examples(2, **way)
    with pytest.raises(ColumnsChanged) as mixed:
        rows.read_schema([first, second], "train")

    assert way == {"types": {"x": "double"}}
    assert "spanwise backfill FILE --span 1..2 --train-once" in str(mixed.value)
    assert rows.read_schema([feed.examples(1, **way), second], "train").field("x").type == pa.float64()


def test_a_nested_column_that_changes_is_inferred_anew(tmp_path):
    """A nested type has no name to pin, so the pin is that its values decide."""
    feed = Feed(tmp_path, "jsonl")
    feed.arrive(1, {"x": 1, "tags": [1]}, {"x": 2, "tags": [2]})
    feed.arrive(2, {"x": 3, "tags": ["a"]}, {"x": 4, "tags": ["b"]})
    feed.examples(1)

    way = suggested(feed.ingest(2).error)

    assert way == {"types": {"tags": "inferred"}}
    assert feed.examples(2, **way).columns["tags"].startswith("list")


@pytest.mark.parametrize(
    ("text", "cured"),
    [(b"x,y\n1,2\n3,4,5\n6,7\n8,9\n", 3), ("x,y\n1,ü\n2,ä\n3,b\n4,c\n".encode("latin-1"), 4)],
    ids=["a bad row", "another encoding"],
)
def test_what_a_message_about_a_file_suggests_works(tmp_path, text, cured):
    """The argument that is named exists, and with it the file is read."""
    feed = Feed(tmp_path, "csv")
    (tmp_path / "data" / "1").mkdir(parents=True)
    (tmp_path / "data" / "1" / "a.csv").write_bytes(text)

    way = suggested(feed.ingest(1).error)

    assert sum(feed.examples(1, **way).rows.values()) == cured
