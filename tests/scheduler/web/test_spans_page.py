"""The page of spans: every state as a cell, zoom, and long histories that are shown while they are read."""

import re
import shlex
from dataclasses import replace
from datetime import UTC, datetime
from html import unescape
from pathlib import Path
from urllib.parse import quote

import pytest

from spanwise.orchestrator import Anomalies, Examples, Model, PushedModel, State, TransformGraph, UsageError
from spanwise.orchestrator.run import Trigger
from spanwise.orchestrator.verdict import Verdict, append
from spanwise.scheduler.inspect import span_history
from spanwise.scheduler.web.actions.catalog import ACTIONS
from spanwise.scheduler.web.queries import spans as queries
from spanwise.scheduler.web.site import WebSite
from tests.scheduler.client.conftest import FIRST
from tests.scheduler.client.test_client import serve
from tests.scheduler.web.test_pages import text_of

PIPELINE = """
from spanwise import ExampleGen, Pipeline


def flights() -> Pipeline:
    return Pipeline("flights", [ExampleGen(pattern="data/{YYYY}-{MM}-{DD}/v{VERSION}/*.csv")])
"""


def states_of(found):
    """The state of each cell, by its number."""
    cells = re.findall(r'class="cell ([\w -]+)" data-span="(\d+)"', found.text)
    return {int(span): state.removesuffix(" window") for state, span in cells}


def lists_input(folder, *days):
    """A pipeline file whose input has these days and versions."""
    (folder / "flights.py").write_text(PIPELINE)
    for day, version in days:
        place = folder / "data" / day / f"v{version}"
        place.mkdir(parents=True)
        (place / "a.csv").write_text("a\n1\n")


def wait_for_versions(site, page):
    """Asks until the input was looked through."""
    page("/p/flights/spans")
    while ("waiting", "flights") in site.working:
        pass
    return page("/p/flights/spans")


def test_every_state_of_a_span_is_a_cell_of_its_own(folder, past, site, page):
    """Ingested, with a newer version in the input, tainted, refused, missing, failed and running; windows have a frame."""
    lists_input(folder, ("2013-01-01", 2), ("2013-01-02", 1))
    spans = []
    for number in range(4):
        past.begin(FIRST + number)
        spans.append(past.ingest(FIRST + number))
    model = past.train(spans[2:])
    serve(past, past.push(model, 1))
    past.begin(FIRST + 3)
    past.ingest(FIRST + 3, version=2)  # the model has learned from version 1
    past.begin(FIRST + 4)
    refused = past.ingest(FIRST + 4)
    append(past.store, [Verdict(mark="accepted", artifact=refused.name, given=False, by="Gate", because="few rows")])
    failed = past.begin(FIRST + 6)
    past.store.update_run(replace(failed, state=State.FAILED, error="no such day"))
    past.store.update_run(replace(past.begin(FIRST + 7), state=State.RUNNING))
    past.store.update_run(replace(past.store.run("flights", 1), source=f"{folder / 'flights.py'}:flights"))

    found = wait_for_versions(site, page)

    assert [states_of(found)[FIRST + n] for n in range(8)] == [
        "newer-version-waiting",
        "ingested",
        "ingested",
        "tainted",
        "refused",
        "missing",
        "failed",
        "running",
    ]
    for word in ("newer version waiting", "tainted", "refused", "missing", "failed", "running"):
        assert f"{word} 1" in text_of(found)
    assert '"state": "tainted"' in page("/api/pipelines/flights/spans").text


def test_the_window_is_what_the_last_model_learned_from(past, page):
    """What a schema or a drift baseline chose in the same run is not in it, nor what a replay trained on."""
    past.begin(FIRST)
    spans = [past.ingest(FIRST + number) for number in range(4)]
    past.do("Earlier", {"examples": spans}, state=State.CACHED, examples=spans)
    past.train(spans[2:])
    past.begin(FIRST + 3, replay=True)
    past.train(spans[:1])

    framed = re.findall(r'class="cell [\w -]+ window" data-span="(\d+)"', page("/p/flights/spans").text)

    assert sorted(map(int, framed)) == [FIRST + 2, FIRST + 3]


def test_the_same_data_published_again_taints_nothing(folder, past, page):
    """As when its files were gone and it was ingested once more; a refused newer version taints nothing either."""
    past.begin(FIRST)
    examples = past.ingest(FIRST)
    serve(past, past.push(past.train([examples]), 1))
    past.begin(FIRST)
    past.ingest(FIRST)

    assert states_of(page("/p/flights/spans")) == {FIRST: "ingested"}


def test_a_model_that_learned_from_what_was_refused_since_is_tainted(past, page):
    """By a person, after it was trained."""
    past.begin(FIRST)
    examples = past.ingest(FIRST)
    serve(past, past.push(past.train([examples]), 1))
    append(past.store, [Verdict(mark="accepted", artifact=examples.name, given=False, by="ann@host", because="wrong")])

    assert states_of(page("/p/flights/spans")) == {FIRST: "tainted"}


def test_a_file_that_no_longer_loads_is_named_and_its_spans_are_shown(folder, past, site, page):
    """Newer versions in its input are then not known, and the page says why."""
    (folder / "flights.py").write_text("import nothing_like_it\n")
    past.begin(FIRST)
    past.ingest(FIRST)
    past.store.update_run(replace(past.run, source=f"{folder / 'flights.py'}:flights"))

    found = wait_for_versions(site, page)

    assert states_of(found) == {FIRST: "ingested"}
    assert "Newer versions in the input are not known" in text_of(found)
    assert "nothing_like_it" in text_of(found)


@pytest.mark.parametrize(
    ("first", "last", "cells"),
    [("2012-01-01", "2014-12-31", 1096), ("2013-01-01", "2013-01-30", 30), ("2013-01-05", "2013-01-05", 1)],
)
def test_days_are_zoomed_from_three_years_to_one(past, page, first, last, cells):
    """Each span has a cell that leads to its page; the ranges before and after are a click away."""
    for span in (FIRST - 400, FIRST, FIRST + 760):
        past.begin(span)
        past.ingest(span)

    found = page(f"/p/flights/spans?first={first}&last={last}")

    assert len(states_of(found)) == cells
    assert f"{first} to {last}" in text_of(found)
    assert 'rel="next"' in found.text
    for zoom in ("a day", "30 days", "a year", "3 years"):
        assert f">{zoom}</a>" in found.text


def test_a_long_history_is_shown_from_its_newest_spans_while_the_rest_is_read(past, page, site: WebSite, monkeypatch):
    """The page says so, and is whole soon after, without being asked for anything else."""
    for number in range(6):
        past.begin(FIRST + number)
        past.ingest(FIRST + number)
    monkeypatch.setattr(span_history, "_AT_ONCE", 2)
    monkeypatch.setattr(queries, "PATIENCE_S", 0.0)
    held = []
    monkeypatch.setattr(WebSite, "begin_work", lambda _site, key, work: held.append((key, work)))

    early = page("/p/flights/spans")
    (work,) = {key[0]: work for key, work in held if key[0] == "history"}.values()
    work()
    late = page("/p/flights/spans")

    assert list(states_of(early)) == [FIRST + 4, FIRST + 5]
    assert "Reading older spans; the newest 2 are here already." in text_of(early)
    assert len(states_of(late)) == 6
    assert "Reading older spans" not in late.text


def test_a_span_shows_what_was_measured_in_each_version_and_which_models_read_it(past, page):
    """Statistics and anomalies with their pages in frames; each model beside the version that it learned from."""
    first = past.ingest(FIRST)
    past.train([first])
    second = past.ingest(FIRST, version=2)
    statistics = past.count(second)["statistics"][0]
    facts = {"span": FIRST, "found": 2, "severity": "warning"}
    past.do("ExampleValidator", {"statistics": [statistics]}, anomalies=[past.draft(Anomalies, **facts)])
    (statistics.path / "statistics.html").write_text("<h1>nine rows</h1>")
    past.train([second])
    found = page("/p/flights/spans/2013-01-01")
    rows = re.findall(r"<tr>(.*?)</tr>", found.text, re.DOTALL)
    frame = re.search(r'<iframe sandbox src="([^"]+)" title="statistics.html of StatisticsGen"', found.text)[1]

    assert "StatisticsGen" in rows[1]
    assert "2 found, warning" in rows[1]
    assert "StatisticsGen" not in rows[2]
    assert "nine rows" in page(frame).text
    assert [re.findall(r">(?:flights/Trainer/model/)?(\d+)<", row) for row in rows if "Trainer/model" in row] == [
        ["2", "2"], ["1", "1"],
    ]  # fmt: skip
    assert "sandbox" in page(frame).headers["content-security-policy"]


def test_the_page_of_a_span_is_about_its_node(past, page):
    """Another node has published the same version of the same day, and a model learned from that; both show where."""
    past.begin(FIRST)
    past.ingest(FIRST)
    past.do("Trainer2", {"examples": [past.ingest(FIRST, node="Returns")]}, model=[past.draft(Model, spans=[FIRST])])

    ours = page("/p/flights/spans/2013-01-01?node=ExampleGen").text
    theirs = page("/p/flights/spans/2013-01-01?node=Returns").text
    reached = page("/p/flights/tainted?span=Returns%3D2013-01-01").text

    assert "Trainer2/model/1" not in ours
    assert "Trainer2/model/1" in theirs
    assert "span=Returns%3D2013-01-01" in theirs
    assert "What Returns=2013-01-01 reached" in reached
    assert "ExampleGen/examples" not in reached


def test_the_backfill_that_is_planned_is_the_one_that_is_shown(past, page):
    """With the arguments of the newest run; without them it would read the default input."""
    past.begin(FIRST, typed=("data=my data", "window=3"))
    past.train([past.ingest(FIRST)])

    shown = page("/p/flights/tainted?span=2013-01-01").text
    form = re.search(r'href="(/do/backfill[^"]*)"', shown)[1].replace("&amp;", "&")

    assert "--param &#39;data=my data&#39; --param window=3 --span 2013-01-01" in shown
    assert "--span=2013-01-01 &#39;--param=data=my data&#39; --param=window=3" in page(form).text
    with pytest.raises(UsageError, match="Arguments: No closing quotation"):
        ACTIONS["backfill"].words({"file": "flights.py", "params": "it's"})


def again(page, number):
    """The words that *Run again* on the page of a run types; None where it is not offered."""
    offered = re.search(r'href="(/do/run[^"]*)"', page(f"/runs/flights/{number}").text)
    if offered is None:
        return None
    form = unescape(page(unescape(offered[1])).text)
    return shlex.split(re.search(r"<code>spanwise run (.*?)</code>", form)[1])


def test_a_run_is_run_again_as_it_was_asked_for(past, page):
    """With its span, its arguments and what its windows leave out; a replay stays one. A resumed run is one too."""
    then = datetime(2013, 1, 2, tzinfo=UTC)
    past.begin(FIRST, typed=("data=my data",), exclude=("2012-12-25", "Recent=2012-12-30"), as_of=then, replay=True)
    spans = {"Ads": "2013-01-01", "Clicks": "2013-01"}
    past.begin(FIRST, spans=spans)
    past.begin(FIRST, spans=spans, base=2, trigger=Trigger.RESUME, cause="flights/2")
    file = ["--", str(Path("flights.py").absolute())]
    excluded = ["--exclude=2012-12-25", "--exclude=Recent=2012-12-30"]

    assert again(page, 1) == [
        "--span=2013-01-01", "--param=data=my data", *excluded, "--as-of=2013-01-02T00:00:00+00:00", *file
    ]  # fmt: skip
    assert again(page, 2) == again(page, 3) == ["--span=Ads=2013-01-01", "--span=Clicks=2013-01", *file]


def test_a_span_is_run_with_the_arguments_of_the_newest_run(past, page):
    """And backfilled with them: without them its pipeline would read the default input."""
    past.begin(FIRST, typed=("data=my data",))
    past.ingest(FIRST)
    shown = page("/p/flights/spans/2013-01-01").text

    for action in ("run", "backfill"):
        form = unescape(re.search(rf'href="(/do/{action}[^"]*)"', shown)[1])
        assert "'--param=data=my data'" in unescape(page(form).text)


def test_what_a_run_of_the_whole_pipeline_does_not_repeat_is_not_run_again(past, page):
    """A part, its resumption, and a training from scratch."""
    past.begin(FIRST, unselected=("Trainer",))
    past.begin(FIRST, base=1)
    past.begin(FIRST, base=1, trigger=Trigger.RESUME, cause="flights/1")
    past.begin(FIRST, from_scratch=True)

    assert [again(page, number) for number in (1, 2, 3, 4)] == [None] * 4


def test_a_push_is_repeated_as_a_push(past, page):
    """By the same Pusher; a run of its pipeline would train a model, and push that."""
    past.begin(FIRST)
    model = past.train([past.ingest(FIRST)])
    past.begin(trigger=Trigger.PUSH)
    past.push(model, 1)

    assert again(page, 2) is None
    again_there = f'href="/do/push?model={quote(model.name, safe="")}&amp;node=Pusher">Push again<'
    assert again_there in page("/runs/flights/2").text


def describe(site, *nodes):
    """The state of the first span of each node, and whether the newest model has learned from it."""
    spans = {node: site.client.pipeline().span("2013-01-01", node=node) for node in nodes}
    return {node: (span.status, span.in_window) for node, span in spans.items()}


def test_a_model_says_nothing_of_a_node_that_it_has_not_read(past, site):
    """Nor does the gate of that node; both nodes have published the same span, and the run went on to train."""
    past.begin(FIRST)
    read, refused = past.ingest(FIRST), past.ingest(FIRST, node="Returns")
    model = past.train([read])
    past.do("Gate", {"examples": [refused]}, state=State.FAILED, error="Refused: few rows")
    past.store.update_run(replace(past.run, state=State.FAILED))
    said = {"given": False, "by": "Gate", "because": "few rows", "judge": "Gate"}
    append(past.store, [Verdict(mark="accepted", artifact=refused.name, **said)])
    serve(past, past.push(model, 1))

    found = describe(site, "ExampleGen", "Returns")

    assert found == {"ExampleGen": ("ingested", True), "Returns": ("refused", False)}


def test_what_serves_has_learned_from_what_its_features_were_made_of(past, site):
    """Also where features, or an export of the model, are between: that is the model which serves."""
    past.begin(FIRST)
    read = past.ingest(FIRST)
    features = past.do("Features", {"examples": [read]}, examples=[past.draft(Examples, span=FIRST)])["examples"]
    trained = past.do("Trainer", {"examples": features}, model=[past.draft(Model, spans=[FIRST])])["model"]
    (export,) = past.do("Export", {"model": trained}, model=[past.draft(Model)])["model"]
    serve(past, past.push(export, 1))
    past.begin(FIRST)
    past.ingest(FIRST, version=2)

    assert describe(site, "ExampleGen") == {"ExampleGen": ("tainted", True)}


def test_what_serves_has_learned_what_it_was_made_of_had_learned(past, site):
    """An ensemble records the spans of its models; its window is theirs."""
    past.begin(FIRST)
    models = [past.train([past.ingest(FIRST + number)]) for number in range(2)]
    blend = past.do("Blend", {"models": models}, model=[past.draft(Model, spans=[FIRST, FIRST + 1])])["model"]
    serve(past, past.push(*blend, 1))
    past.begin(FIRST)
    past.ingest(FIRST, version=2)

    assert [(span.status, span.in_window) for span in site.client.pipeline().spans()] == [
        ("tainted", True), ("ingested", True)
    ]  # fmt: skip


def test_what_serves_has_learned_what_its_base_had_learned(past, site):
    """It was warm-started, and has read a newer version itself; the window is what it has read itself."""
    past.begin(FIRST)
    base = past.train([past.ingest(FIRST), past.ingest(FIRST + 1)])
    past.begin(FIRST)
    corrected = past.ingest(FIRST, version=2)
    serve(past, past.push(past.train([corrected], base=base), 1))

    assert [(span.status, span.in_window) for span in site.client.pipeline().spans()] == [
        ("tainted", True), ("ingested", False)
    ]  # fmt: skip

    past.begin(FIRST)
    serve(past, past.push(past.train([corrected], base=base, from_base=False), 2))

    assert [span.status for span in site.client.pipeline().spans()] == ["ingested", "ingested"]


def test_what_serves_has_learned_what_its_node_had_ingested_under_another_name(past, site):
    """The node was renamed, and has ingested a newer version since."""
    past.begin(FIRST)
    wrong = past.ingest(FIRST)
    past.count(wrong)
    serve(past, past.push(past.train([wrong]), 1))
    past.begin(FIRST)
    past.count(past.ingest(FIRST, version=2, node="ExampleGen2"))

    assert [span.status for span in site.client.pipeline().spans(node="ExampleGen2")] == ["tainted"]
    assert [t.serves for t in site.client.pipeline().taint("2013-01-01").models] == [True]


def test_what_serves_has_learned_what_its_graph_had_learned(past, site):
    """A transform counts over the spans of its window, also those that a gate left out of what it transformed."""
    past.begin(FIRST)
    days = [past.ingest(FIRST + number) for number in range(2)]
    (graph,) = past.do("Transform", {"examples": days}, graph=[past.draft(TransformGraph)])["graph"]
    read = {"examples": days[1:], "graph": [graph]}
    (model,) = past.do("Trainer", read, model=[past.draft(Model, spans=[FIRST + 1])])["model"]
    serve(past, past.push(model, 1))
    past.begin(FIRST)
    past.ingest(FIRST, version=2)

    assert [(span.status, span.in_window) for span in site.client.pipeline().spans()] == [
        ("tainted", False), ("ingested", True)
    ]  # fmt: skip
    assert [t.serves for t in site.client.pipeline().taint("2013-01-01").models] == [True]


def test_each_model_that_serves_counts(past, site):
    """Of two nodes that train, each on the spans of another one."""
    past.begin(FIRST)
    read, other = past.ingest(FIRST), past.ingest(FIRST, node="Returns")
    (second,) = past.do("Trainer2", {"examples": [other]}, model=[past.draft(Model, spans=[FIRST])])["model"]
    serve(past, past.push(past.train([read]), 1))
    facts = {"pushed": 1, "pushed_destination": "/elsewhere/2", "pushed_version": "2", "model": second.name}
    serve(past, past.do("Pusher2", pushed_model=[past.draft(PushedModel, **facts)])["pushed_model"][0])
    for node in ("ExampleGen", "Returns"):
        past.begin(FIRST)
        past.ingest(FIRST, version=2, node=node)

    assert describe(site, "ExampleGen", "Returns") == {"ExampleGen": ("tainted", True), "Returns": ("tainted", True)}


def test_the_spans_are_those_of_the_first_node_whichever_has_run_last(past, site):
    """The others are there by name, although the newest run has ingested by one alone."""
    past.begin(FIRST)
    for node in ("ExampleGen", "Returns"):
        past.ingest(FIRST, node=node)
    past.begin(FIRST + 1)
    past.ingest(FIRST + 1, node="Returns")

    pipeline = site.client.pipeline()

    assert {span.address.node for span in pipeline.spans()} == {"ExampleGen"}
    assert [span.label for span in pipeline.spans(node="Returns")] == ["2013-01-01", "2013-01-02"]


def test_a_run_is_one_of_the_spans_that_it_names_for_a_node(past, site):
    """Not of the same span of a node that takes another, or that it leaves out."""
    past.begin(FIRST)
    for node in ("ExampleGen", "Returns"):
        past.ingest(FIRST, node=node)
    past.begin(FIRST + 1, spans={"ExampleGen": "2013-01-02", "Returns": "2013-01-01"})
    past.store.update_run(replace(past.run, state=State.RUNNING))

    pipeline = site.client.pipeline()

    assert describe(site, "ExampleGen", "Returns") == {"ExampleGen": ("ingested", False), "Returns": ("running", False)}
    assert [run.number for run in pipeline.span("2013-01-01", node="Returns").runs()] == [2, 1]
    assert [run.number for run in pipeline.span("2013-01-01", node="ExampleGen").runs()] == [1]
