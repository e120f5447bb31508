"""The client: one door to a root, with the words, records and errors of the command line."""

import asyncio
import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import spanwise
from spanwise.orchestrator import Execution, Model, State
from spanwise.orchestrator.errors import DamagedArtifact, Held, LoadError, NotRecorded, StoreError, UsageError
from spanwise.orchestrator.serving import claim_pushes
from spanwise.orchestrator.verdict import Verdict, append
from spanwise.scheduler.client import RunRecord
from tests.scheduler.cli.test_judge import PIPELINE, arrive
from tests.scheduler.client.conftest import FIRST


def a_week(past):
    """Three days, a model of the last two, pushed; then a run that fails and one that is still going."""
    spans = []
    for number in range(3):
        past.begin(FIRST + number)
        spans.append(past.ingest(FIRST + number))
    model = past.train(spans[1:])
    past.evaluate(model, spans[1:], auc=0.71)
    serve(past, past.push(model, 1))
    failed = past.begin(FIRST + 4)
    past.do("ExampleGen", state=State.FAILED)
    past.store.update_run(replace(failed, state=State.FAILED, error="no such day"))
    past.store.update_run(replace(past.begin(FIRST + 5), state=State.RUNNING))
    return model


def serve(past, pushed):
    """Records a push as the publisher does."""
    pusher = Execution(pipeline="flights", run=past.run.number, node=pushed.name.split("/")[1])
    past.store.claim(*claim_pushes(past.store, pusher, [pushed]))


def test_a_client_of_a_root_where_nothing_ran_sees_nothing_and_creates_nothing(folder, client):
    """It sees the first run as soon as there is one."""
    assert client.pipelines() == client.runs() == client.artifacts() == client.schedules() == []
    with pytest.raises(NotRecorded, match="Nothing has run here yet"):
        client.pipeline()
    assert list(folder.iterdir()) == []


def test_runs_are_found_by_state_span_and_number(past, client):
    """As typed records, newest first."""
    a_week(past)
    flights = client.pipeline("flights")

    assert [run.name for run in flights.runs(limit=2)] == ["flights/5", "flights/4"]
    assert [(run.number, run.error) for run in flights.runs(state="failed")] == [(4, "no such day")]
    assert [run.number for run in flights.runs(span="2013-01-02")] == [2]
    assert [run.number for run in flights.runs(before=3)] == [2, 1]
    assert flights.latest.state == "running"
    assert client.run_record("flights/3").execution("Trainer").state == "complete"
    assert [a.kind for a in flights.run(3).artifacts("Model")] == ["Model"]
    assert flights.run(3).document()["executions"][0]["node"] == "ExampleGen"
    with pytest.raises(UsageError, match="There is no state 'fialed'"):
        flights.runs(state="fialed")
    with pytest.raises(UsageError, match="There is no trigger 'by hand'"):
        flights.runs(trigger="by hand")
    with pytest.raises(NotRecorded, match="Did you mean flights"):
        client.pipeline("flight")


def test_each_model_of_a_list_costs_no_question_of_its_own(past, client, monkeypatch):
    """But the one for the executions of its run."""
    for number in range(6):
        past.begin(FIRST + number)
        span = past.ingest(FIRST + number)
        past.evaluate(past.train([span]), [span], auc=0.7 + number / 100)
    store, asked = client.session.store, []

    class Counted:
        def __getattr__(self, name):
            asked.append(name)
            return getattr(store, name)

    monkeypatch.setattr(type(client.session), "store", property(lambda _: Counted()))

    def ask(limit):
        asked.clear()
        found = client.pipeline("flights").models(limit=limit)
        return [round(model.metrics["auc"], 2) for model in found], len(asked)

    few, many = ask(2), ask(5)

    assert (few[0], many[0]) == ([0.75, 0.74], [0.75, 0.74, 0.73, 0.72, 0.71])
    assert many[1] - few[1] == 3


def test_the_model_that_serves_comes_with_its_metrics_and_its_spans(past, client):
    """And with the verdict that holds, of which a person has the last word; its spans are days wherever they are said."""
    model = a_week(past)
    flights = client.pipeline()
    serving = flights.serving()

    assert (serving.name, serving.run, serving.serves) == (model.name, "flights/3", True)
    assert serving.metrics == {"auc": 0.71}
    assert serving.spans_label == "2013-01-02 to 2013-01-03"
    assert (
        {*serving.summary} == {*client.artifacts(kind="Model")[0].summary} == {"learned from 2013-01-02 to 2013-01-03"}
    )
    client.unbless(serving, because="wrong for refunds")
    assert client.model(model.name).blessed is False
    assert "wrong for refunds" in str(client.artifact(model.name).verdicts()[-1])
    client.bless(model.name, because="right after all")
    assert [(m.name, m.blessed) for m in flights.models()] == [(model.name, True)]


def serve_next(past, number):
    """A model of the next run, which is pushed and serves."""
    past.begin(FIRST + number)
    model = past.train([past.ingest(FIRST + number)])
    serve(past, past.push(model, number))
    return model


def test_a_model_that_served_once_has_its_pushes(past, client):
    """Also when another one was pushed since; of several, the newest first."""
    models = [serve_next(past, number) for number in range(3)]
    past.begin()
    serve(past, past.push(models[0], 3))

    found = {model.name: [push.run for push in model.pushes] for model in client.pipeline().models()}

    assert [found[model.name] for model in models] == [["flights/4", "flights/1"], ["flights/2"], ["flights/3"]]
    assert [client.model(model.name).serves for model in models] == [True, False, False]


def test_what_serves_is_the_version_that_lies_there(past, client):
    """As `tainted` says: where a version was taken away, the one before; where another pipeline has pushed, none."""
    models = [serve_next(past, number) for number in range(2)]

    def serving():
        found = client.pipeline().serving()
        return found and found.name, [client.model(model.name).serves for model in models]

    assert serving() == (models[1].name, [False, True])
    shutil.rmtree(past.serving / "1")
    assert serving() == (models[0].name, [True, False])
    other = past.serving / "9"
    other.mkdir()
    (other / ".spanwise.json").write_text('{"model": "other/Trainer/model/1"}')
    assert serving() == (None, [False, False])
    assert not client.unbless(models[0].name, because="wrong for refunds").serves


def test_spans_have_a_state_each_gaps_included(past, client):
    """What is published later, refused or run is seen by the next question, which reads only what is new."""
    a_week(past)
    flights = client.pipeline()
    before = [(span.label, span.status) for span in flights.spans()]
    past.begin(FIRST + 1)
    again = past.ingest(FIRST + 1, version=2)
    append(past.store, [Verdict(mark="accepted", artifact=again.name, given=False, by="ann@host", because="wrong")])

    assert before == [
        ("2013-01-01", "ingested"),
        ("2013-01-02", "ingested"),
        ("2013-01-03", "ingested"),
        ("2013-01-04", "missing"),
        ("2013-01-05", "failed"),
        ("2013-01-06", "running"),
    ]
    second = flights.span("2013-01-02")
    assert (second.status, second.version, second.publications, second.rows) == ("refused", 2, 2, 9)
    assert [v.version for v in second.versions()] == [1, 2]
    assert [run.number for run in second.runs()] == [6, 2]
    assert [tainted.model.name for tainted in second.taint(version=1).models] == ["flights/Trainer/model/1"]


def test_rows_are_read_as_a_table_up_to_a_limit(past, client):
    """Of one split or all; what holds no rows, or whose files are gone, says so."""
    past.begin(FIRST)
    examples = past.ingest(FIRST)
    folder = examples.path / "Split-train"
    folder.mkdir()
    pq.write_table(pa.table({"x": list(range(9)), "y": list("abcdefghi")}), folder / "part-0.parquet")
    found = client.artifact(examples.id)

    assert found.table().num_rows == 9
    assert found.table("train", columns=["x"], limit=2).to_pydict() == {"x": [0, 1]}
    assert found.files() == [Path("Split-train/part-0.parquet")]
    with pytest.raises(UsageError, match="no split 'test'; it has: train"):
        found.table("test")
    with pytest.raises(UsageError, match="no column 'z'; it has: x, y"):
        found.table(columns=["z"])
    with pytest.raises(UsageError, match="holds no rows"):
        client.artifact(past.count(examples)["statistics"][0].name).table()
    (folder / "part-0.parquet").unlink()
    with pytest.raises(DamagedArtifact, match="gone from"):
        found.table()


def test_everything_shows_itself_in_a_notebook_with_names_escaped(past, client):
    """Whatever a name or an error holds."""
    a_week(past)
    past.store.update_run(replace(past.begin(FIRST + 6, cause="x"), state=State.FAILED, error="<script>"))
    past.do("<img>")
    flights = client.pipeline()
    shown = [
        r._repr_html_()
        for r in (flights, flights.latest, flights.serving(), flights.span("2013-01-02"), flights.artifacts(limit=1)[0])
    ]

    assert all(text.startswith("<p><b>") and "<table>" in text for text in shown)
    assert "&lt;img&gt;" in shown[1]
    assert not any("<script>" in text or "<img>" in text for text in shown)


def test_threads_share_a_client_also_beside_a_running_event_loop(past, client):
    """As in a notebook, whose cells run inside one."""
    a_week(past)

    def ask(_):
        return client.pipeline("flights").serving().name, len(client.pipeline("flights").spans())

    async def cell():
        return ask(0), await asyncio.gather(*(asyncio.to_thread(ask, n) for n in range(3)))

    before = threading.active_count()
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(ask, range(8)))
    here, others = asyncio.run(cell())
    assert found == {here} == set(others)
    assert threading.active_count() == before


def test_a_closed_client_says_so(past, client):
    """Rather than reading from a closed connection."""
    client.close()

    with pytest.raises(StoreError, match="This client is closed"):
        client.pipelines()


def test_a_pipeline_is_run_refused_accepted_backfilled_and_resumed(folder):
    """Each as the command does it, in a process of its own; errors are those of the command, by class."""
    (folder / "days.py").write_text(PIPELINE)
    arrive(1, rows=10)
    arrive(2, rows=2)
    lines = []
    client = spanwise.connect(folder / "elsewhere")

    first = client.run("days.py", span="1", show=lines.append)
    second = client.run("days.py", span="2")
    window = client.pipeline("days").window()[0]
    accepted = client.accept("days.py", "2", because="a holiday")
    resumed = client.resume(second)
    plan = client.plan_backfill("days.py", span="2", train_once=True)
    done = client.backfill(plan)

    assert isinstance(first, RunRecord)
    assert (first.state, second.state, resumed.state) == ("complete", "failed", "complete")
    assert any(line.startswith("Learn") for line in lines)
    assert "refused by Big" in window.refusal
    assert "RollingWindow" in window._repr_html_()
    assert [judged.artifact.name for judged in accepted] == ["days/ExampleGen/examples/2/1"]
    assert plan.spans == ["2"]
    assert "2" in str(plan)
    assert (done["backfill"], [run.trigger for run in client.pipeline("days").runs(limit=2)]) == (
        "days/1",
        ["backfill", "backfill"],
    )
    assert client.pipeline("days").window()[0].spans == [1, 2]
    assert [s.status for s in client.pipeline("days").spans()] == ["ingested", "ingested"]
    assert second.diff()
    assert "Big" in second.why("Big").execution.node
    with pytest.raises(LoadError, match=r"no file nope\.py"):
        client.run("nope.py")
    with pytest.raises(UsageError, match="nothing to resume"):
        client.resume(first)
    with pytest.raises(NotRecorded, match="never scheduled"):
        client.pause("days", because="new disks")
    assert client.pipeline("days").schedules() == []
    assert not Path(".spanwise").exists()
    assert json.dumps(first.document())
    client.close()


def test_the_error_of_a_command_is_raised_by_its_class(past, client):
    """Held stays Held, so that a caller can wait."""
    from spanwise.scheduler.client.commands import _error

    assert isinstance(_error(['{"error": "busy", "kind": "Held", "exit_code": 3}'], 3), Held)
    assert str(_error(["Killed"], 137)) == "Killed"
    assert "exit code 9" in str(_error([], 9))


def test_a_verdict_of_a_person_is_shown_of_the_same_model_published_again(past, client, spanwise):
    """It holds for that too, as where the first one was collected and trained again: nothing said who had decided."""
    spans = [FIRST]
    first = past.do("Trainer", model=[past.draft(Model, spans=spans)])["model"][0]
    client.unbless(first.name, because="wrong for refunds")
    past.begin()
    again = past.do("Trainer", model=[past.draft(Model, spans=spans)])["model"][0]
    other = past.do("Trainer2", model=[past.draft(Model, spans=spans)])["model"][0]

    def said(model):
        return [(v.artifact, v.because) for v in client.artifact(model.name).verdicts()]

    assert client.model(again.name).blessed is False
    assert said(first) == said(again) == [(first.name, "wrong for refunds")]
    assert said(other) == []
    assert [v["artifact"] for v in json.loads(spanwise("lineage", again.name, "--json")[1])["verdicts"]] == [first.name]
