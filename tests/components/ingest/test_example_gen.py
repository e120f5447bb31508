"""ExampleGen: one span a run at its newest version, compared with the span before, and not ingested twice."""

import errno
import importlib
import json
import logging
import os
import shutil
import warnings
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from spanwise import Gate, Input, Refused
from spanwise.components import Dialect, ExampleGen
from spanwise.orchestrator import Calendar, Examples, ParameterError, PatternError, Run, UnreadableInput
from tests.components.flow import Bench, only


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


class Field:
    """Where data arrives, with the runs that ingest it."""

    def __init__(self, folder) -> None:
        self.data = folder / "data"
        self.bench = Bench(folder / "root")

    def arrive(self, name: str, *lines: str) -> None:
        """A CSV file, from its header line on."""
        path = self.data / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n")

    def ingest(self, span: int | None = None, pattern: str = "{SPAN}/v{VERSION}/*.csv", **arguments):
        """Runs ExampleGen alone and returns its execution."""
        given = arguments if "patterns" in arguments else {"pattern": f"{self.data}/{pattern}", **arguments}
        return self.bench.run(ExampleGen(**given), span=span).executions["ExampleGen"]


@pytest.fixture
def field(tmp_path):
    return Field(tmp_path)


def rows(execution, split: str) -> list[dict]:
    return pq.read_table(only(execution, "examples").as_kind(Examples).split(split)).to_pylist()


def properties(execution) -> dict:
    return only(execution, "examples").properties


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    """Three runs: the newest span at its newest version, the same again, and an older span."""
    field = Field(tmp_path_factory.mktemp("example_gen"))
    field.arrive("1/v1/a.csv", "x,y", "1,a", "2,b")
    field.arrive("2/v1/a.csv", "x,y", "3,c")
    field.arrive("2/v10/a.csv", "x,y", *(f"{n},d" for n in range(30)))
    field.arrive("2/v9/a.csv", "x,y", "5,e")
    return field, [field.ingest(), field.ingest(2), field.ingest(1)]


def test_without_a_span_the_newest_is_ingested_at_its_newest_version(history):
    """Versions are numbers: the tenth is newer than the ninth."""
    _, (newest, *_) = history

    assert (properties(newest)["span"], properties(newest)["version"]) == (2, 10)


def test_a_pattern_without_spans_is_span_0(field):
    """A table that does not arrive in blocks, such as a list of countries, is read as a whole."""
    field.arrive("countries/a.csv", "x", "1", "2")

    assert properties(field.ingest(pattern="countries/*.csv"))["span"] == 0


def test_what_a_job_has_not_committed_is_refused(field):
    """Spark writes below `_temporary` first: such files are neither ingested nor passed over."""
    field.arrive("1/a.csv", "x", "1")
    field.arrive("1/_temporary/0/a.csv", "x", "1")

    with pytest.raises(UnreadableInput, match=r"_temporary/0/a\.csv matches the pattern and is what a job of Spark"):
        ExampleGen(pattern=f"{field.data}/{{SPAN}}/**/*.csv").prepare(Run(pipeline="p", span=1), None)


def test_one_input_is_divided_two_to_one(history):
    """The rows go to train and eval, each to one of them."""
    _, (newest, *_) = history
    train, held_out = rows(newest, "train"), rows(newest, "eval")

    assert properties(newest)["split_names"] == ["train", "eval"]
    assert sorted(row["x"] for row in train + held_out) == list(range(30))
    assert properties(newest)["rows"] == {"train": len(train), "eval": len(held_out)}
    assert len(train) > len(held_out) > 0


def test_the_examples_say_what_they_are(history):
    """Columns, fingerprint and calendar are in the metadata."""
    _, (newest, *_) = history

    assert properties(newest)["columns"] == {"x": "int64", "y": "string"}
    assert properties(newest)["calendar"] == "number"
    assert properties(newest)["fingerprint"]


def test_unchanged_files_of_a_span_are_served_from_the_cache(history):
    """Ingesting the same span and version again does no work, though it is asked for by name this time."""
    _, (newest, again, _) = history

    assert again.reused == newest.id


def test_an_older_span_is_ingested_when_it_is_named(history):
    """A backfill ingests the span that it names, not the newest."""
    _, (*_, older) = history

    assert properties(older)["span"] == 1
    assert sum(properties(older)["rows"].values()) == 2


def test_a_span_that_is_not_there_is_told_with_those_that_are(history):
    """The run fails, ingests nothing else instead, and names the nearest spans."""
    field, _ = history

    failed = field.ingest(7)

    assert "no file of span 7" in failed.error
    assert "1, 2" in failed.error
    assert not failed.outputs


def test_a_rewritten_version_is_a_new_artifact_and_a_warning(field, caplog):
    """Files that change under one version are ingested again, and somebody is told that this is no version."""
    field.arrive("1/v1/a.csv", "x", "1")
    first = field.ingest()
    field.arrive("1/v1/a.csv", "x", "2")

    with caplog.at_level(logging.WARNING, "spanwise.ingest"):
        second = field.ingest()

    assert only(second, "examples").id != only(first, "examples").id
    assert properties(second)["version"] == properties(first)["version"] == 1
    (warning,) = [r for r in caplog.records if r.message == "version-rewritten"]
    assert warning.version == 1
    assert warning.reason.endswith("; write a new version")


def test_nobody_is_told_to_write_a_version_that_the_pattern_does_not_have(field, caplog):
    """Rewriting is the only way to change such data."""
    field.arrive("countries/a.csv", "x", "1")
    field.ingest(pattern="countries/*.csv")
    field.arrive("countries/a.csv", "x", "2")

    with caplog.at_level(logging.WARNING, "spanwise.ingest"):
        field.ingest(pattern="countries/*.csv")

    (warning,) = [r for r in caplog.records if r.message == "version-rewritten"]
    assert warning.reason.endswith("; the pattern has no {VERSION}")


def test_files_written_anew_with_the_same_content_are_the_same(field, caplog):
    """It is content that counts, not the time of a file."""
    field.arrive("1/v1/a.csv", "x", "1")
    first = field.ingest()
    shutil.rmtree(field.data)
    field.arrive("1/v1/a.csv", "x", "1")

    assert field.ingest().reused == first.id
    assert not [r for r in caplog.records if r.message == "version-rewritten"]


def test_strays_are_told_and_passed_over(field, caplog):
    """A path without a span does not stop the run, and is not silently left out either."""
    field.arrive("1/v1/a.csv", "x", "1")
    field.arrive("latest/v1/a.csv", "x", "1")

    execution = field.ingest()

    assert properties(execution)["span"] == 1
    (warning,) = [r for r in caplog.records if r.message == "stray-files-skipped"]
    assert (warning.count, warning.first) == (1, str(field.data / "latest/v1/a.csv"))


def test_a_column_that_disappears_is_an_error_that_names_it(field):
    """The next span lacks a column of the span before."""
    field.arrive("1/v1/a.csv", "x,y", "1,2")
    field.arrive("2/v1/a.csv", "x", "1")
    field.ingest(1)

    assert "column 'y' (int64 in the previous span) is missing" in field.ingest(2).error


def columns(execution) -> list[str]:
    """The columns in the order in which they are stored."""
    examples = only(execution, "examples").as_kind(Examples)
    (stored,) = {tuple(pq.read_schema(path).names) for path in examples.path.glob("*/*.parquet")}
    assert list(examples.columns) == list(stored)
    return list(stored)


def test_columns_stay_in_the_order_of_the_span_before(field):
    """A model that goes by their places is given what it was trained on; new columns follow."""
    field.arrive("2/v1/a.csv", "x,y,z", *["1,2,3"] * 9)
    field.arrive("3/v1/a.csv", "new,z,x,y", *["0,3,1,2"] * 9)
    field.arrive("4/v1/a.csv", "y,new,z,w,x", *["2,0,3,4,1"] * 9)
    field.arrive("1/v1/a.csv", "z,old,x", *["3,8,1"] * 9)

    found = {span: columns(field.ingest(span)) for span in (2, 3, 4, 1)}

    assert found == {
        2: ["x", "y", "z"],
        3: ["x", "y", "z", "new"],
        4: ["x", "y", "z", "new", "w"],
        1: ["x", "z", "old"],
    }


def test_columns_that_are_ingested_again_stay_in_their_order(field):
    """The same files, by other code or without the cache, are the same examples."""
    field.arrive("1/v1/a.csv", "z,y,x", *["3,2,1"] * 9)
    field.arrive("2/v1/a.csv", "x,y,z", *["1,2,3"] * 9)
    field.ingest(1)
    first = field.ingest(2)

    again = field.ingest(2, split_key=["x"])

    assert (columns(first), again.state.name) == (["z", "y", "x"], "COMPLETE")
    assert columns(again) == columns(first)


def test_a_renamed_column_stays_in_its_place(field):
    """Also where the oldest span is compared with one that has the new name."""
    field.arrive("2/v1/a.csv", "x,y,z", *["1,2,3"] * 9)
    field.arrive("3/v1/a.csv", "z,why,x", *["3,2,1"] * 9)
    field.arrive("1/v1/a.csv", "z,why,x", *["3,2,1"] * 9)

    found = [columns(field.ingest(span, rename_columns={"why": "y"})) for span in (2, 3, 1)]

    assert found == [["x", "y", "z"]] * 3


def test_a_span_is_compared_with_the_one_before_it_not_with_the_last_ingested(field):
    """A backfill of span 2 is held against span 1, whatever span 3 has."""
    field.arrive("1/v1/a.csv", "x", "1")
    field.arrive("3/v1/a.csv", "x,y", "1,2")
    field.arrive("2/v1/a.csv", "x", "1")
    field.ingest(1)
    field.ingest(3)

    assert field.ingest(2).state.succeeded


def test_the_oldest_span_is_held_against_the_next_but_may_lack_its_new_columns(field):
    """A span from before the first takes the types of its successor; columns that came later need not be there."""
    field.arrive("2/v1/a.csv", "x,y", "1.5,a")
    field.arrive("1/v1/a.csv", "x", "1")
    field.ingest(2)

    assert properties(field.ingest(1))["columns"] == {"x": "double"}


def test_the_oldest_span_may_not_lose_a_column_that_it_had(field):
    """What a new version lacks came not later; it would be missing values in a window. A column of its own may go."""
    field.arrive("2/v1/a.csv", "x,y,z", "1,2,3")
    field.arrive("1/v1/a.csv", "x,y,own", "1,2,3")
    field.ingest(2)
    field.ingest(1)
    field.arrive("1/v2/a.csv", "x", "1")

    assert "column 'y' (int64 in the previous span) is missing" in field.ingest(1).error
    field.arrive("1/v3/a.csv", "x,y", "1,2")
    assert properties(field.ingest(1))["columns"] == {"x": "int64", "y": "int64"}


def test_the_oldest_span_may_not_contradict_the_next(field):
    """A type that cannot become that of the next span is an error."""
    field.arrive("2/v1/a.csv", "x", "1")
    field.arrive("1/v1/a.csv", "x", "one")
    field.ingest(2)

    assert "column 'x'" in field.ingest(1).error


def test_the_arrival_of_other_spans_does_not_make_an_old_one_new(field):
    """An unchanged span is served from the cache, though the span before it was rewritten with more columns since."""
    field.arrive("1/v1/a.csv", "x", "1")
    field.arrive("2/v1/a.csv", "x", "2")
    field.ingest(1)
    second = field.ingest(2)
    field.arrive("1/v2/a.csv", "x,y", "1,1")
    field.ingest(1)

    assert field.ingest(2).reused == second.id


class Junkless(Gate):
    """Refuses a day with a column of junk."""

    def run(self, examples: Input[Examples]) -> None:
        if "junk" in examples.columns:
            raise Refused("junk")


def test_a_refused_span_says_nothing_about_the_columns_of_the_next(field):
    """They are compared with the last one that was not refused, whether it lies before or after."""

    def judged(span):
        ingest = ExampleGen(pattern=f"{field.data}/{{SPAN}}/*.csv")
        return field.bench.run(ingest, Junkless(examples=ingest["examples"]), span=span).executions["ExampleGen"]

    field.arrive("1/a.csv", "x,junk", "1,a")
    field.arrive("2/a.csv", "x,y", "1.5,1")
    field.arrive("3/a.csv", "x,y,junk", "text,2,b")
    field.arrive("4/a.csv", "x,y", "7,3")
    field.arrive("0/a.csv", "x,y", "8,4")
    found = [judged(span) for span in (2, 1, 3, 4, 0)]

    assert [(e.error or "")[:60] for e in found] == [
        "",
        "",
        "column 'x' was double in the previous span and is string now",
        "",
        "",
    ]
    field.arrive("3/a.csv", "x,y,junk", "5,2,b")
    judged(3)
    field.arrive("4/a.csv", "x,y", "9,3")
    assert properties(judged(4))["columns"] == {"x": "double", "y": "int64"}
    assert properties(found[4])["columns"] == {"x": "double", "y": "int64"}


def test_dated_patterns_count_days(field):
    """A span of days is numbered since 1970 and shown as a date."""
    field.arrive("2013-01-05/a.csv", "x", "1")

    found = properties(field.ingest(15710, pattern="{YYYY}-{MM}-{DD}/*.csv"))

    assert (found["span"], found["calendar"], found.get("version")) == (15710, "day", None)


def test_an_input_that_is_divided_stays_so(field):
    """With a pattern for each split, the rows stay where they are."""
    field.arrive("train/1.csv", "x", "1", "2")
    field.arrive("test/1.csv", "x", "3")
    patterns = {split: f"{field.data}/{split}/{{SPAN}}.csv" for split in ("train", "test")}

    execution = field.ingest(patterns=patterns)

    assert [row["x"] for row in rows(execution, "train")] == [1, 2]
    assert [row["x"] for row in rows(execution, "test")] == [3]


def test_a_file_that_two_splits_have_stops_the_run(field):
    """What a model is evaluated on, it must not have learned from."""
    field.arrive("1/a.csv", "x", "1", "2")
    field.arrive("1/eval-a.csv", "x", "3")
    patterns = {"train": f"{field.data}/{{SPAN}}/*.csv", "eval": f"{field.data}/{{SPAN}}/eval-*.csv"}

    execution = field.ingest(patterns=patterns)

    assert "1/eval-a.csv' matches the patterns of 'train' and of 'eval'" in execution.error


def test_rows_of_one_key_are_never_in_two_splits(field):
    """The split is chosen by the key columns alone, by weights that are given."""
    field.arrive("1/v1/a.csv", "who,n", *(f"p{n % 7},{n}" for n in range(70)))

    execution = field.ingest(ratios={"a": 1, "b": 1}, split_key=("who",))

    who = {split: {row["who"] for row in rows(execution, split)} for split in ("a", "b")}
    assert who["a"] | who["b"] == {f"p{n}" for n in range(7)}
    assert not who["a"] & who["b"]


def test_a_bad_row_stops_the_run(field):
    """By default a row that cannot be parsed is an error that names file and line."""
    field.arrive("1/v1/a.csv", "x,y", "1,2", "3")

    failed = field.ingest()

    assert "a.csv" in failed.error
    assert "line 3" in failed.error


def test_bad_rows_are_kept_when_asked_for(field):
    """They are counted and kept beside the examples, and a span without any has no such output."""
    field.arrive("1/v1/a.csv", "x,y", "1,2", "3")
    field.arrive("2/v1/a.csv", "x,y", "1,2")

    with_rejects, without = field.ingest(1, bad_rows="keep"), field.ingest(2, bad_rows="keep")

    rejects = only(with_rejects, "rejects")
    assert rejects.properties == {"span": 1, "version": 1, "calendar": "number", "rows": 1}
    assert json.loads((rejects.path / "rejects.jsonl").read_text())["line"] == 3
    assert "rejects" not in without.outputs


def test_types_and_dialect_are_as_said(field):
    """A pinned type holds, and text is read in the dialect that it is written in."""
    field.arrive("1/v1/a.csv", "zip;n", "01234;-", "2;3")

    execution = field.ingest(types={"zip": "string"}, dialect=Dialect(delimiter=";", null_values=("-",)))

    found = sorted((row["zip"], row["n"]) for split in ("train", "eval") for row in rows(execution, split))
    assert found == [("01234", None), ("2", 3)]


def test_a_path_may_begin_at_home(field, monkeypatch):
    """`~` is the user's home folder."""
    field.arrive("1.csv", "x", "1")
    monkeypatch.setenv("HOME", str(field.data))

    outcome = field.bench.run(ExampleGen(pattern="~/{SPAN}.csv"))

    assert properties(outcome.executions["ExampleGen"])["span"] == 1


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"pattern": "data/{SPAM}/*"}, PatternError, "SPAM"),
        ({}, ParameterError, "a pattern, or patterns by split, one of the two"),
        ({"pattern": "a/{SPAN}", "patterns": {"train": "b/{SPAN}"}}, ParameterError, "one of the two"),
        ({"patterns": {}}, ParameterError, "no input split"),
        ({"patterns": {"train": "a/{SPAN}", "eval": "b/{YYYY}-{MM}-{DD}"}}, PatternError, "same kinds"),
        ({"patterns": {"a": "a/{SPAN}", "b": "b/{SPAN}"}, "ratios": {"c": 1}}, ParameterError, "divided already"),
        ({"pattern": "a/{SPAN}", "ratios": {"train": 0}}, ParameterError, "weight 0"),
        ({"pattern": "a/{SPAN}", "bad_rows": "drop"}, ParameterError, "bad_rows"),
        ({"pattern": "a/{SPAN}", "format": "xml"}, ParameterError, "format"),
        ({"pattern": "a/{SPAN}", "drop_columns": ["x"], "split_key": ["x"]}, ParameterError, "which split_key needs"),
        ({"pattern": "a/{SPAN}", "drop_columns": ["x"], "types": {"x": "int64"}}, ParameterError, "is pinned in types"),
    ],
)
def test_what_is_wrong_is_told_when_the_pipeline_is_made(arguments, error, said):
    """Nothing runs with a pattern, split or option that cannot be meant."""
    with pytest.raises(error, match=said):
        ExampleGen(**arguments)


@pytest.mark.parametrize(
    ("pattern", "calendar"),
    [
        ("a/{SPAN}/*", Calendar.NUMBER),
        ("a/{YYYY}/{MM}/{DD}", Calendar.DAY),
        ("a/{YYYY}{MM}{DD}T{HH}", Calendar.HOUR),
    ],
)
def test_the_calendar_is_known_before_anything_runs(pattern, calendar):
    """The command line reads a span as the pattern counts it."""
    assert ExampleGen(pattern=pattern).calendar is calendar


@pytest.mark.parametrize(("there", "told"), [(False, True), (True, False)])
def test_where_nothing_is_found_at_all_it_is_said_where_paths_begin(field, monkeypatch, there, told):
    """A command that was typed in another folder finds no span; when some are there, the folder is right."""
    if there:
        field.arrive("3/v1/x.csv", "a", "1")
    monkeypatch.chdir(field.data.parent)
    ended = field.bench.run(ExampleGen(pattern="data/{SPAN}/v{VERSION}/*.csv"), span=9).executions["ExampleGen"]

    assert (f"is relative to {field.data.parent}." in ended.error) is told


def test_beam_does_not_chatter(field):
    """What a node prints is about the data; Beam tells of each cache and worker that it makes."""
    field.arrive("3/v1/x.csv", "a", "1")

    assert "apache_beam" not in Path(field.ingest().log).read_text()


def test_what_is_available_is_the_newest_version_that_every_split_has(tmp_path):
    """Span 2's second version has no eval files yet; span 3 has none at all. One span is asked for alone."""
    for file in ("train/1/v1", "eval/1/v1", "train/2/v1", "eval/2/v1", "train/2/v2", "train/3/v1"):
        (tmp_path / file).mkdir(parents=True)
        (tmp_path / file / "a.csv").write_text("x\n1\n")
    node = ExampleGen(patterns={s: f"{tmp_path}/{s}/{{SPAN}}/v{{VERSION}}/*.csv" for s in ("train", "eval")})

    assert node.available() == {1: 1, 2: 1}
    assert node.available([2, 3]) == {2: 1}
    assert node.available(range(2, 100)) == {2: 1}


def test_a_link_to_nothing_stops_the_run(field):
    """Its rows are missing: that is no reason to learn from the others."""
    field.arrive("1/v1/a.csv", "x", "1")
    (field.data / "1/v1/b.csv").symlink_to("gone.csv")

    error = field.ingest().error

    assert f"{field.data}/1/v1/b.csv matches the pattern and is a link to nothing." in error


@pytest.mark.parametrize(
    ("locked", "span", "refused"),
    [
        ("2/v1/b", 2, True),
        ("2/v1/b", 1, False),
        ("3", None, True),
        ("3", 2, False),
        ("1", None, False),
        ("lost+found", None, False),
    ],
)
def test_a_folder_that_cannot_be_read_stops_the_run(field, monkeypatch, locked, span, refused):
    """A listing passes over it without a word: rows, or the newest span, would be missing."""
    for name in ("1/v1/a/x.csv", "2/v1/a/x.csv", "2/v1/b/x.csv", "3/v1/a/x.csv", "lost+found/v1/a/x.csv"):
        if not (name.startswith("3") and locked != "3"):
            field.arrive(name, "x", "1")
    scandir = os.scandir

    def guarded(folder="."):
        if str(folder) == str(field.data / locked):
            raise PermissionError(errno.EACCES, "Permission denied", folder)
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", guarded)
    ended = field.ingest(span, pattern="{SPAN}/v{VERSION}/*/*.csv")

    assert (f"{locked} matches the pattern and cannot be read (Permission denied)" in (ended.error or "")) is refused
    assert (ended.error is None) is not refused


@pytest.mark.parametrize(
    ("link", "span", "refused"),
    [
        ("3", None, True),
        ("3", 2, False),
        ("2/v2", None, True),
        ("2/v2", 1, False),
        ("1/v2", None, False),
        ("x", None, False),
    ],
)
def test_a_folder_that_is_a_link_to_nothing_stops_the_run(field, link, span, refused):
    """Its disk may not be mounted: the run would take the span, or the version, before it."""
    for name in ("1/v1/a.csv", "2/v1/a.csv"):
        field.arrive(name, "x", "1")
    (field.data / link).symlink_to("/gone")

    ended = field.ingest(span)

    assert (f"{link} matches the pattern and cannot be read (a link to nothing)" in (ended.error or "")) is refused
    assert (ended.error is None) is not refused


def test_a_dead_link_beside_the_folders_of_a_pattern_is_passed_over(field):
    """Below `**` a link need not be a folder of the pattern's: editors lock files by links to nothing."""
    field.arrive("1/a.csv", "x", "1")
    (field.data / "notes").symlink_to("/gone")

    assert field.ingest(pattern="**/{SPAN}/*.csv").error is None


def test_a_name_that_is_not_utf_8_stops_the_run(field):
    """No reader could open the file."""
    field.arrive("1/v1/a.csv", "x", "1")
    (field.data / "1/v1/a.csv").rename(os.fsdecode(os.fsencode(field.data) + b"/1/v1/\xff.csv"))

    assert r"1/v1/\udcff.csv is not UTF-8. Rename the file." in field.ingest().error


def test_a_pipe_among_the_files_stops_the_run(field):
    """Reading it would wait for ever."""
    field.arrive("1/v1/a.csv", "x", "1")
    os.mkfifo(field.data / "1/v1/b.csv")

    assert "b.csv matches the pattern and is not a regular file" in field.ingest().error


def test_folders_that_match_are_reported(field, caplog):
    """What lies below them is not read, so somebody should know."""
    field.arrive("1/v1/a.csv", "x", "1")
    field.arrive("1/v1/more.csv/b.csv", "x", "2")
    field.arrive("2/v1/more.csv/b.csv", "x", "2")

    execution = field.ingest(1)

    assert len(rows(execution, "train") + rows(execution, "eval")) == 1
    (warning,) = [r for r in caplog.records if r.message == "folders-skipped"]
    assert (warning.count, warning.first) == (1, str(field.data / "1/v1/more.csv"))
