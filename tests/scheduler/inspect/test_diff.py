"""Differences between two runs."""

import base64
import json

import pytest

from spanwise.orchestrator import Schema, State, Statistics
from spanwise.scheduler.inspect import diff
from tests.scheduler.past import Past
from tests.scheduler.records import DAY


@pytest.fixture
def past(tmp_path):
    return Past(tmp_path)


def found(past, before, after):
    return [(d.topic, d.where, d.what, d.before, d.after, d.note) for d in diff.compare_runs(past.store, before, after)]


def schema(past, text):
    made = past.draft(Schema, content=text)
    (made.path / "schema.toml").write_text(text)
    return past.do("SchemaGen", schema=[made])


def feature(name, mean=10.0, missing=0, kind="number", counts=None, type_="int64", std=2.0):
    """A line of a file of statistics: a hundred rows, standard deviation 2."""
    import datasketches

    sketch = datasketches.frequent_strings_sketch(11)
    for value, count in (counts or {}).items():
        sketch.update(value, count)
    return {
        "name": name, "in_column": name, "type": type_, "kind": kind, "count": 100, "missing": missing,
        "numbers": {"moments": {"count": 100, "mean": mean, "std": std}} if kind == "number" else None,
        "frequent": {"frequent": base64.b64encode(sketch.serialize()).decode()} if counts else None,
    }  # fmt: skip


def statistics(past, rows, *features):
    made = past.draft(Statistics, content=str(features) + str(rows), span=DAY, split_names=["train"])
    lines = [{"format": "spanwise statistics 2", "split": "train", "rows": rows}, *features]
    (made.path / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return past.do("StatisticsGen", statistics=[made])


def test_a_run_does_not_differ_from_itself(past):
    """And that is said."""
    run = past.begin(DAY)
    past.ingest(DAY)

    assert found(past, run, run) == []
    assert diff.format_differences(run, run, []) == "flights/1 and flights/1 do not differ."


def test_spans_parameters_and_what_was_read_are_told(past):
    """Each under its topic, spans as people write them."""
    one = past.begin(DAY, parameters={"window": 7})
    past.do("Count", {"examples": [past.ingest(DAY)]}, parameters={"at_least": 100})
    other = past.begin(DAY + 1, parameters={"window": 8})
    past.do("Count", {"examples": [past.ingest(DAY + 1)]}, parameters={"at_least": 120})

    assert [f[:5] for f in found(past, one, other)] == [
        ("run", "", "span", "2013-01-05", "2013-01-06"),
        ("parameters", "", "window", "7", "8"),
        ("parameters", "Count", "at_least", "100", "120"),
        (
            "inputs", "Count", "examples",
            "2013-01-05 v1 (flights/ExampleGen/examples/15710/1)", "2013-01-06 v1 (flights/ExampleGen/examples/15711/1)",
        ),
    ]  # fmt: skip


def test_code_that_changed_is_named(past):
    """By the digests of the keys."""
    one, other = (past.begin() and past.run for _ in range(2))
    past.run = one
    past.do("Trainer", parts={"code": "a", "parameter run_fn": "f"}, parameters={"run_fn": "flights:train"})
    past.run, past._done = other, set()
    past.do("Trainer", parts={"code": "a", "parameter run_fn": "g"}, parameters={"run_fn": "flights:train"})

    assert found(past, one, other) == [("code", "Trainer", "train (parameter run_fn)", None, None, "changed")]


def test_nodes_that_only_one_has_or_that_failed_are_told(past):
    """With what became of each."""
    one = past.begin()
    past.do("Count")
    past.do("Trainer")
    other = past.begin()
    past.do("Count", state=State.FAILED)

    assert found(past, one, other) == [
        ("nodes", "Count", "state", "complete", "failed", ""),
        ("nodes", "Trainer", "state", "complete", None, ""),
    ]


def test_metrics_are_told_with_how_far_they_moved(past):
    """Those over all rows."""
    model = past.train([past.ingest(DAY)])
    one = past.run
    past.evaluate(model, [], auc=0.7, f1=0.5)
    other = past.begin()
    past.evaluate(model, [], auc=0.75, f1=0.5)

    assert ("metrics", "Evaluator", "auc", "0.7", "0.75", "+0.05") in found(past, one, other)
    assert not [f for f in found(past, one, other) if f[2] == "f1"]


def test_a_metric_that_is_no_number_in_both_runs_does_not_differ(past):
    """And one that moved a little is written with the digits in which it did."""
    runs = []
    for mae in (0.20000001, 0.20000002):
        model = past.train([past.ingest(DAY)])
        past.evaluate(model, [], auc=float("nan"), mae=mae)
        runs.append(past.run)

    metrics = [difference[2:5] for difference in found(past, *runs) if difference[0] == "metrics"]

    assert metrics == [("mae", "0.20000001", "0.20000002")]


def test_what_the_schema_says_of_each_feature_is_compared(past):
    """By key; a feature that came is there with all its keys."""
    one = past.begin()
    schema(past, 'format = 1\n[features.delay]\ntype = "int64"\nmin = 0\n')
    other = past.begin()
    schema(past, 'format = 1\n[features.delay]\ntype = "int64"\nmin = -5\n[features.gate]\ntype = "string"\n')

    assert found(past, one, other) == [
        ("schema", "SchemaGen", "delay.min", "0", "-5", ""),
        ("schema", "SchemaGen", "gate.type", None, "string", ""),
    ]


def test_rows_and_drift_are_told_where_they_moved(past):
    """Means in standard deviations, shares of missing and of frequent values; what stayed is not told."""
    one = past.begin()
    statistics(
        past, 100, feature("delay"), feature("hour"), feature("gate", kind="text", counts={"A": 50, "B": 50}),
        feature("old"),
    )  # fmt: skip
    other = past.begin()
    statistics(
        past, 80, feature("delay", mean=11.0, missing=30), feature("hour", mean=10.1),
        feature("gate", kind="text", counts={"A": 80, "B": 20}), feature("new", type_="double"),
    )  # fmt: skip

    assert [f[2:] for f in found(past, one, other)] == [
        ("train: rows", "100", "80", "-20.0%"),
        ("train: delay", "0.0%", "30.0%", "missing"),
        ("train: delay", "10", "11", "mean, +0.5 standard deviations"),
        ("train: gate", "50.0%", "80.0%", "share of 'A'"),
        ("train: old", "int64", None, "a feature is gone"),
        ("train: new", None, "double", "a new feature"),
    ]


def test_a_constant_that_moved_has_no_standard_deviations(past):
    """No ratio is made of a deviation of 0, and the means are written with the digits in which they differ."""
    one, *_ = past.begin(), statistics(past, 100, feature("price", mean=1234567.25, std=0.0), feature("same", std=0.0))
    other, *_ = past.begin(), statistics(past, 100, feature("price", mean=1234567.5), feature("same"))

    assert [f[2:] for f in found(past, one, other)] == [
        ("train: price", "1234567.2", "1234567.5", "mean of a column that was constant")
    ]


def test_another_type_is_told_and_not_compared_further(past):
    """A mean of numbers says nothing of texts."""
    one = past.begin()
    statistics(past, 100, feature("hour"))
    other = past.begin()
    statistics(past, 100, feature("hour", kind="text", type_="string", counts={"5": 100}))

    assert [f[2:] for f in found(past, one, other)] == [("train: hour", "int64", "string", "type")]


def test_files_that_are_gone_are_told_as_such(past):
    """The rest is compared all the same."""
    one = past.begin()
    made = schema(past, "format = 1\n[features]\n")["schema"][0]
    other = past.begin(DAY)
    schema(past, "format = 1\n[features.a]\ntype = 'int64'\n")
    (made.path / "schema.toml").unlink()

    (span, gone) = found(past, one, other)

    assert span[2] == "span"
    assert gone[0] == "schema"
    assert gone[5].startswith("could not compare")


def test_the_table_has_a_column_for_each_run(past):
    """Under the names of the runs."""
    one, other = past.begin(DAY), past.begin(DAY + 1)

    head, row = diff.format_differences(one, other, diff.compare_runs(past.store, one, other)).splitlines()

    assert head.split() == ["TOPIC", "NODE", "WHAT", "flights/1", "flights/2"]
    assert row.split() == ["run", "span", "2013-01-05", "2013-01-06"]
