import json
from dataclasses import dataclass, replace
from datetime import UTC, timedelta, timezone
from functools import partial

import pytest

from spanwise.orchestrator import (
    Artifact,
    Blessing,
    Calendar,
    Evaluation,
    Execution,
    Output,
    Pipeline,
    Report,
    Run,
    State,
    component,
)
from spanwise.orchestrator.errors import StorageError
from spanwise.scheduler.inspect import records
from tests.scheduler.records import DAY, NOON, examples, filled, model

EST = timezone(timedelta(hours=-5), "EST")


def test_runs_are_a_table_with_dated_spans() -> None:
    """A span is shown in the calendar of its run; a run that is still going takes until now."""
    going = Run(pipeline="flights", number=4, span=DAY, calendar="day", started=NOON)

    lines = records.format_runs([going], now=NOON + timedelta(seconds=90), zone=UTC).splitlines()

    assert lines[0].split() == ["RUN", "SPAN", "TRIGGER", "STATE", "STARTED", "TOOK", "ERROR"]
    assert lines[1] == "flights/4  2013-01-05  manual   running  2013-01-08 12:00:00 UTC  1 min 30 s"


def test_an_error_in_a_table_is_one_short_line() -> None:
    """The whole of it is in `show`."""
    failed = Run(pipeline="flights", number=4, error="x" * 80 + "\nmore", started=NOON, ended=NOON)

    assert records.format_runs([failed], now=NOON).splitlines()[1].endswith("x" * 59 + "…")


def test_a_run_is_shown_with_spans_versions_and_reasons() -> None:
    """Each node tells why it ran, what it read and what it made."""
    store = filled()
    run = store.run("flights", 3)

    text = records.format_run(run, store.executions(run), now=NOON, zone=UTC)

    assert "state       failed: Pusher failed" in text
    assert "\nExampleGen: complete" in text
    assert "why         because" in text
    assert "examples: 2013-01-05 v2 (flights/ExampleGen/examples/15710/2)" in text


@pytest.mark.parametrize(("began", "named"), [(NOON, True), (None, False)])
def test_the_log_of_a_failed_node_is_named_where_its_code_was_started(began, named) -> None:
    """A resolver, and a node whose input was not there, have printed nothing."""
    failed = Execution(
        pipeline="p", run=1, node="a", state=State.FAILED, error="no input", log="/l.log", work_started=began
    )

    assert ("log" in records.format_execution(failed, Calendar.DAY, now=NOON)) == named


def test_a_document_has_spans_as_number_and_label() -> None:
    """A program needs no calendar of its own."""
    document = records.run_document(filled().run("flights", 1))

    assert (document["span"], document["span_label"]) == (DAY, "2013-01-05")
    assert document["started"] == "2013-01-08T12:00:00+00:00"
    assert json.loads(json.dumps(document)) == document


def test_an_execution_document_holds_its_artifacts() -> None:
    """What was made can be found from the document alone."""
    store = filled()
    (execution, _) = store.executions(store.run("flights", 1))

    document = records.execution_document(execution, Calendar.DAY)

    assert json.loads(json.dumps(document)) == document
    made = document["outputs"]["examples"][0]  # type: ignore[index,call-overload]
    assert (made["uri"], made["span_label"], made["version"]) == (f"/root/{DAY}/1", "2013-01-05", 1)  # type: ignore[index,call-overload]


def test_artifacts_are_a_table() -> None:
    """Kinds without spans have a dash there."""
    lines = records.format_artifacts([examples(DAY, 2), model()], {}, zone=UTC).splitlines()

    assert lines[1].split()[0:5] == ["Examples", "2013-01-05", "2", "3.4", "kB"]
    assert lines[2].split()[0:5] == ["Model", "-", "-", "12", "B"]


@pytest.mark.parametrize(
    ("states", "skipped", "says"),
    [
        ([State.COMPLETE, State.CACHED], (), "2 of 2 nodes done, 1 reused."),
        ([State.COMPLETE, State.FAILED], ("Pusher",), "1 of 3 nodes done, not reached: Pusher."),
    ],
)
def test_the_end_of_a_run_is_one_line(states: list[State], skipped: tuple[str, ...], says: str) -> None:
    """It counts what was done, reused and not reached."""
    run = Run(pipeline="flights", number=7, span=DAY, calendar="day", state=State.COMPLETE, started=NOON, ended=NOON)
    executions = {
        str(i): Execution(pipeline="flights", run=7, node=str(i), state=s, reused=1 if s is State.CACHED else None)
        for i, s in enumerate(states)
    }

    text = records.summarize_run(replace(run, ended=NOON + timedelta(seconds=2)), executions, skipped)

    assert text == f"Run flights/7 of span 2013-01-05: complete in 2.0 s; {says}"


def test_a_pipeline_without_nodes_is_shown() -> None:
    """Nothing is a pipeline too."""
    assert records.format_pipeline(Pipeline("empty", []), {}) == "empty: 0 nodes"


def executed(**facts: object) -> Execution:
    return Execution(pipeline="flights", run=1, node="Work", component="Work", state=State.COMPLETE, **facts)  # type: ignore[arg-type]


def test_what_was_left_at_its_default_is_not_shown() -> None:
    """Nor what is null within a value; a span is a date, and a long value is cut short."""
    parameters = {
        "rate": "0.5",
        "span": str(DAY),
        "limits": '{"auc": {"low": null, "drop": 0.1}}',
        "files": f'"{"x" * 200}"',
    }
    record = executed(parameters=parameters, defaults=("rate",))

    lines = records.format_execution(record, Calendar.DAY, now=NOON).splitlines()

    assert lines[1:3] == ["  parameter   span = 2013-01-05", '  parameter   limits = {"auc": {"drop": 0.1}}']
    assert lines[3].endswith("x…")
    assert len(lines) == 4


def test_everything_is_shown_when_asked_for() -> None:
    """Defaults, nulls, inputs that were not given, and long values."""
    record = executed(parameters={"rate": "0.5", "limits": '{"low": null}'}, defaults=("rate",), inputs={"base": ()})

    lines = records.format_execution(record, Calendar.DAY, now=NOON, whole=True).splitlines()

    assert lines[1:] == [
        "  parameter   rate = 0.5",
        '  parameter   limits = {"low": null}',
        "  input       base: nothing",
    ]


def test_what_a_resolver_chose_is_its_line() -> None:
    """It was not reused, and it took no time worth telling."""
    record = executed(inputs={"examples": (examples(DAY),)}, outputs={"examples": (examples(DAY),)})
    record = replace(record, state=State.CACHED, reason="chose 2013-01-05 v1")

    assert records.format_execution(record, Calendar.DAY, now=NOON).splitlines()[0] == "Work chose 2013-01-05 v1"


def test_what_was_reused_is_called_so() -> None:
    """In the word that a run uses; the record's state stays."""
    record = replace(executed(), state=State.CACHED, reused=3, reason="same inputs")

    assert records.format_execution(record, Calendar.DAY, now=NOON).splitlines()[0] == "Work: reused, -"
    assert records.execution_document(record, Calendar.DAY)["state"] == "cached"


def test_an_output_is_shown_with_what_it_tells() -> None:
    """The verdict on a model is read below the artifact, and at the top."""
    record = executed(outputs={"blessing": (Blessing("/b", properties={"blessed": 0, "reasons": ["too bad"]}),)})
    run = Run(pipeline="flights", number=1, nodes=("Work",))

    lines = records.format_run(run, [record], now=NOON, zone=UTC).splitlines()

    assert lines[2] == "verdict     not blessed: too bad"
    assert lines[-1].strip() == "not blessed: too bad"


def test_many_inputs_are_shown_by_their_spans() -> None:
    """Neighbours of one version are summed up."""
    found = [examples(DAY, 2), examples(DAY + 1), examples(DAY + 2)]

    assert records.describe_artifacts(found, Calendar.NUMBER) == "2013-01-05 v2, 2013-01-06 to 2013-01-07 v1"


@dataclass(frozen=True)
class Limit:
    low: float | None = None
    high: float | None = None


@component
def limited(report: Output[Report], limits: dict[str, Limit], size: int = 3) -> None: ...


def test_a_pipeline_shows_what_its_author_said() -> None:
    """Not the defaults, of nodes and of records within; all of it when asked for."""
    made = Pipeline("p", [limited(limits={"auc": Limit(low=0.5)})])

    assert records.format_pipeline(made, {}).splitlines()[-1].strip() == "takes  limits = {'auc': Limit(low=0.5)}"
    assert records.format_pipeline(made, {}, whole=True).splitlines()[-2:] == [
        "       takes  limits = {'auc': Limit(low=0.5, high=None)}",
        "       takes  size = 3",
    ]


class Costs:
    """An object without a text of its own."""


@component
def given_any(report: Output[Report], value: object) -> None: ...


def test_a_pipeline_shows_no_addresses_in_memory() -> None:
    """They differ each time, and say nothing: the same pipeline reads the same."""
    given = {"costs": Costs(), "all": [Costs()], "chosen": partial(print, Costs())}
    made = Pipeline("p", [given_any(name=name, value=value) for name, value in given.items()])

    shown = [records.format_pipeline(made, given, whole=whole) for whole in (False, True)]
    document = json.dumps(records.pipeline_document(made, given))

    assert [text for text in [*shown, document] if "0x" in text] == []
    assert "costs=<tests.scheduler.inspect.test_records.Costs object>" in shown[0]


def test_properties_of_a_document_are_in_the_order_of_their_names() -> None:
    """Whatever order the store gives them in, so that two documents can be compared."""
    made = Artifact("/x", properties={"z": 1, "a": 2})

    assert list(records.artifact_document(made, Calendar.NUMBER)["properties"]) == ["a", "z"]  # type: ignore[arg-type]


def test_pages_of_outputs_are_shown_as_paths_to_open(tmp_path, monkeypatch) -> None:
    """A report is one click away: short where it lies below the current folder, whole for programs."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "root" / "7"
    folder.mkdir(parents=True)
    (folder / "report.html").write_text("<p>")
    evaluation = Evaluation(str(folder), id=1, name="p/Evaluator/evaluation/1")

    lines = records.format_execution(executed(outputs={"evaluation": (evaluation,)}), Calendar.DAY, now=NOON)
    document = records.artifact_document(evaluation, Calendar.DAY)

    assert lines.splitlines()[-1].strip() == "root/7/report.html"
    assert document["pages"] == [str(folder / "report.html")]


class AwayArchive:
    """Object storage that does not answer."""

    def __init__(self) -> None:
        self.asked = 0

    def has_copy(self, uri: str, content: str) -> bool:
        return False

    def list_files(self, uri: str) -> dict[str, int]:
        self.asked += 1
        raise StorageError(f"s3://lake{uri}: the storage could not be reached.")


def test_what_needs_no_storage_is_shown_while_it_is_away() -> None:
    """It is asked once, as each question may wait for a minute; what is not known about pages is said."""
    away = AwayArchive()
    made = [
        Evaluation(f"/gone/{n}", id=n, name=f"p/Evaluator/evaluation/{n}", archive=away)  # type: ignore[arg-type]
        for n in (1, 2)
    ]
    execution = executed(outputs={"evaluation": tuple(made)})
    run = Run(pipeline="p", number=1, started=NOON, ended=NOON)

    text = records.format_run(run, [execution, execution], now=NOON)
    asked, document = away.asked, records.execution_document(execution, Calendar.DAY)

    assert "output      evaluation: p/Evaluator/evaluation/1" in text
    assert text.endswith("Pages of artifacts are not shown: s3://lake/gone/1: the storage could not be reached.")
    assert asked == 1
    assert [each["pages"] for each in document["outputs"]["evaluation"]] == [None, None]  # type: ignore[index,call-overload]
