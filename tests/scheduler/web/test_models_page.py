"""The pages of models: bands of confidence, slices side by side, and what a wrong span reached, as a graph."""

import json
import re
from html import unescape
from urllib.parse import parse_qs, unquote, urlencode

from spanwise.orchestrator import Blessing, Evaluation, Model, PushedModel
from spanwise.orchestrator.collection import COLLECTED
from spanwise.orchestrator.store import Claim
from spanwise.scheduler.web.actions.catalog import ACTIONS
from spanwise.scheduler.web.pages import SIGNS
from spanwise.scheduler.web.queries import model_metrics, models
from tests.scheduler.client.conftest import FIRST
from tests.scheduler.client.test_client import serve
from tests.scheduler.web.test_pages import text_of


def evaluated(past, number, auc):
    """A model of one span, with the file that an Evaluator writes; returns the span and the model."""
    past.begin(FIRST + number)
    examples = past.ingest(FIRST + number)
    model = past.train([examples])
    made = past.evaluate(model, [examples], auc=auc, log_loss=0.4)
    write_evaluation(made["evaluation"][0].path, auc)
    return examples, model


def write_evaluation(folder, auc):
    """Two slices, of which one has no interval; a metric without any."""
    jfk = {"slice": {"origin": "JFK"}, "metrics": {"auc": auc + 0.05, "count": 60}, "intervals": {"auc": [auc, auc + 0.1]},
           "baseline_metrics": {"auc": 0.5}}  # fmt: skip
    none = {"slice": {"origin": None}, "metrics": {"auc": auc - 0.05, "count": 40}}
    figures = {"overall": {"auc": auc, "log_loss": 0.4}, "intervals": {"auc": [auc - 0.02, auc + 0.02]},
               "baseline_overall": {"auc": 0.6}, "slices": [jfk, none]}  # fmt: skip
    (folder / "metrics.json").write_text(json.dumps(figures))


def test_a_chart_has_the_band_of_its_metric_and_the_table_the_same_numbers(past, page):
    """A metric without intervals has no band; both are drawn beside the baseline."""
    for number, auc in enumerate((0.70, 0.75)):
        evaluated(past, number, auc)
    auc = page("/p/flights/models?metric=auc")
    loss = page("/p/flights/models?metric=log_loss")

    assert len(re.findall(r'class="[^"]*\bband\b', auc.text)) > len(re.findall(r'class="[^"]*\bband\b', loss.text))
    assert "0.73 to 0.77" in text_of(auc)
    assert "0.68 to 0.72" in text_of(auc)
    assert "0.6" in text_of(auc)


def test_slices_of_the_newest_model_are_listed_with_their_intervals(past, page):
    """The largest first; of two models each slice that both have is side by side."""
    models = [evaluated(past, number, auc)[1].name for number, auc in enumerate((0.70, 0.75))]
    newest = text_of(page("/p/flights/models?metric=auc&by=origin"))
    both = text_of(page(f"/p/flights/models?metric=auc&by=origin&a={models[0]}&b={models[1]}"))

    assert newest.index("JFK") < newest.index("none")
    assert "0.75 to 0.85" in newest
    assert "auc of both by origin" in both
    assert "0.75" in both
    assert "0.8" in both


def test_each_model_has_the_figures_of_the_evaluation_that_read_it(past, page, site):
    """Of two that a run trains, whichever is evaluated first; to be the baseline of the other is no evaluation."""
    past.begin(FIRST)
    examples = past.ingest(FIRST)
    model = past.train([examples])
    (other,) = past.do("Trainer2", {"examples": [examples]}, model=[past.draft(Model, spans=[FIRST])])["model"]
    facts = {"current_model": other.name, "current_model_id": other.id}
    past.do(
        "Evaluator2",
        {"model": [other], "examples": [examples], "baseline": [model]},
        evaluation=[past.draft(Evaluation, metrics={"auc": 0.55})],
        blessing=[past.draft(Blessing, blessed=0, **facts)],
    )
    past.evaluate(model, [examples], auc=0.8)

    (listed,) = page("/api/pipelines/flights/models").json()

    assert (listed["model"], listed["metrics"], listed["blessed"]) == (model.name, {"auc": 0.8}, True)
    assert {each.name: each.metrics for each in site.client.pipeline().models()} == {
        model.name: {"auc": 0.8},
        other.name: {"auc": 0.55},
    }


def test_an_evaluation_that_is_gone_or_damaged_leaves_the_metrics_that_were_recorded(past, page):
    """Without a band or slices, and without an error."""
    examples, model = evaluated(past, 0, 0.7)
    made = past.evaluate(model, [examples], auc=0.7)
    (made["evaluation"][0].path / "metrics.json").write_text('{"overall": [], "slices": 7, "intervals": {"auc": "x"}}')
    found = page("/p/flights/models")

    assert found.status_code == 200
    assert "0.7" in text_of(found)


def test_the_backfill_of_a_wrong_span_is_planned_for_the_span(past, page):
    """Whatever else the command beside it says: the window may be wider than that of the first day."""
    past.begin(FIRST)
    past.train([past.ingest(FIRST)])
    past.begin(FIRST + 1)
    past.ingest(FIRST + 1)

    found = page("/p/flights/tainted?span=2013-01-01").text

    assert "--span 2013-01-01 --force" in found
    assert "first=2013-01-01&amp;last=2013-01-01" in found


def test_what_a_wrong_span_reached_is_a_graph_of_which_each_box_is_a_page(past, page):
    """A model that was warm-started from a tainted one is reached too; one of other days is not."""
    wrong, tainted = evaluated(past, 0, 0.7)
    past.begin(FIRST + 1)
    after = past.train([past.ingest(FIRST + 1)], base=tainted)
    past.begin(FIRST + 2)
    other = past.train([past.ingest(FIRST + 2)])
    found = page("/p/flights/tainted?span=2013-01-01")
    graph = found.text[found.text.index("<svg") : found.text.index("</svg>")]

    assert {f"/a/{a.id}" for a in (wrong, tainted, after)} <= set(re.findall(r'href="(/a/\d+)"', graph))
    assert f"/a/{other.id}" not in graph
    assert "warm start from" in text_of(found)
    assert "2 models learned from it" in text_of(found)


def test_an_export_was_made_of_its_model(past, page):
    """Not warm-started from it; both serve."""
    past.begin(FIRST)
    model = past.train([past.ingest(FIRST)])
    (export,) = past.do("Export", {"model": [model]}, model=[past.draft(Model)])["model"]
    past.push(export, 1)

    found = text_of(page("/p/flights/tainted?span=2013-01-01"))

    assert f"made of {model.name}" in found
    assert "warm start" not in found


def test_a_model_is_blessed_as_was_decided_last(past, page, site):
    """By a person, or by the Evaluator of a later run, on the list, in the API and in the client."""
    examples, model = evaluated(past, 0, 0.7)
    facts = {"current_model": model.name, "current_model_id": model.id}

    def ask():
        (listed,) = page("/api/pipelines/flights/models").json()
        record = site.client.model(model.name)
        word = "blessed" if record.blessed else "not blessed"
        assert listed["blessed"] is record.blessed
        assert f"2013-01-01 {SIGNS[word]} {word}" in text_of(page("/p/flights/models"))
        assert listed["metrics"] == record.metrics
        return record.blessed, record.reasons, record.metrics

    assert ask() == (True, [], {"auc": 0.7, "log_loss": 0.4})
    past.begin(FIRST)
    past.do(
        "Evaluator",
        {"model": [model], "examples": [examples]},
        evaluation=[past.draft(Evaluation, metrics={"auc": 0.6})],
        blessing=[past.draft(Blessing, blessed=0, reasons=["auc fell"], **facts)],
    )
    assert ask() == (False, ["auc fell"], {"auc": 0.6})
    site.client.bless(model.name, because="as good")
    assert ask() == (True, [], {"auc": 0.6})
    site.client.unbless(model.name, because="wrong for refunds")
    assert ask() == (False, ["wrong for refunds"], {"auc": 0.6})


def test_a_model_has_the_metrics_of_the_run_that_resumed_its_own(past, page, site):
    """So has what was exported of it, which serves; the overview shows them too."""
    past.begin(FIRST)
    examples = past.ingest(FIRST)
    model = past.train([examples])
    assert page("/api/pipelines/flights/models").json()[0]["metrics"] == {}
    past.begin(FIRST, base=1)
    past.evaluate(model, [examples], auc=0.8)
    (export,) = past.do("Export", {"model": [model]}, model=[past.draft(Model)])["model"]
    serve(past, past.push(export, 1))

    *_, listed = page("/api/pipelines/flights/models").json()
    serving = site.client.pipeline().serving()

    assert (listed["model"], listed["metrics"], listed["blessed"]) == (model.name, {"auc": 0.8}, True)
    assert (serving.name, serving.metrics, serving.blessed, serving.spans) == (export.name, {"auc": 0.8}, True, [FIRST])
    assert "auc 0.8" in text_of(page("/"))


def test_what_serves_is_shown_however_many_runs_have_trained_nothing_since(past, page, site):
    """As where data comes by the hour, and a model is trained once a week; nor does a renamed Trainer hide it."""
    past.begin(FIRST)
    examples = past.ingest(FIRST)
    model = past.train([examples])
    past.evaluate(model, [examples], auc=0.8)
    serve(past, past.push(model, 1))
    for number in range(1, 30):
        past.begin(FIRST + number)
        past.ingest(FIRST + number)
    past.begin(FIRST)
    corrected = past.ingest(FIRST, version=2)
    (other,) = past.do("Trainer2", {"examples": [corrected]}, model=[past.draft(Model, spans=[FIRST])])["model"]

    overview = text_of(page("/"))
    assert "nothing serves" not in overview
    assert "auc 0.8" in overview
    assert site.client.pipeline().serving().name == model.name
    assert [site.client.model(each.name).serves for each in (model, other)] == [True, False]
    assert site.client.pipeline().span("2013-01-01").status == "tainted"


def test_the_older_model_that_is_offered_may_be_pushed(past, page, site):
    """The export that served, not the model that it was made of; none that was collected or refused since."""
    exports = []
    for number in range(4):
        past.begin(FIRST + number)
        examples = past.ingest(FIRST + number)
        model = past.train([examples])
        past.evaluate(model, [examples])
        exports += past.do("Export", {"model": [model]}, model=[past.draft(Model, f"export {number}")])["model"]
        serve(past, past.push(exports[-1], number + 1))

    def offered():
        found = re.findall(r'href="/do/push\?model=([^"]*)"', page("/p/flights/tainted?span=2013-01-04").text)
        return [unquote(name) for name in found]

    assert offered() == [exports[2].name]
    site.client.unbless(exports[2].name, because="wrong for refunds")
    past.store.claim(Claim(COLLECTED, exports[1].name, {"at": "2013-01-05T00:00:00+00:00"}))
    assert offered() == [exports[0].name]


def test_models_are_listed_however_many_runs_have_trained_nothing_since(past, page, monkeypatch):
    """On the page and in the API, as in the client; the page leads to those before."""
    monkeypatch.setattr(models, "MODELS", 2)
    made = [evaluated(past, number, 0.7)[1].name for number in range(3)]
    for number in range(3, 25):
        past.begin(FIRST + number)
        past.ingest(FIRST + number)

    newest = page("/p/flights/models")

    assert [each["model"] for each in page("/api/pipelines/flights/models?limit=2").json()] == [made[2], made[1]]
    assert [name in newest.text for name in made] == [False, True, True]
    assert "Older than run 2" in newest.text
    assert made[0] in page("/p/flights/models?before=2").text


def test_a_page_without_models_leads_to_those_before(past, page, monkeypatch):
    """Where as many runs as are looked through at once have trained none."""
    monkeypatch.setattr(model_metrics, "LOOK_BACK", 2)
    _, model = evaluated(past, 0, 0.7)
    for number in range(1, 3):
        past.begin(FIRST + number)
        past.ingest(FIRST + number)

    found = page("/p/flights/models")

    assert "None of these runs has trained a model" in found.text
    assert "Older than run 2" in found.text
    assert model.name in page("/p/flights/models?before=2").text


def test_each_pusher_is_rolled_back_by_its_name(past, page):
    """The push of a model that two Pushers read is refused without it."""
    for number in range(2):
        past.begin(FIRST + number)
        model = past.train([past.ingest(FIRST + number)])
        past.evaluate(model, [])
        past.push(model, number + 1)
        away = {"pushed": 1, "pushed_destination": f"/away/{number + 1}", "model": model.name}
        past.do("Pusher2", {"model": [model]}, pushed_model=[past.draft(PushedModel, **away)])

    shown = page("/p/flights/tainted?span=2013-01-02").text
    found = [parse_qs(unescape(query)) for query in re.findall(r'href="/do/push\?([^"]*)"', shown)]

    assert sorted(each["node"] for each in found) == [["Pusher"], ["Pusher2"]]
    assert [each["model"] for each in found] == [["flights/Trainer/model/1"]] * 2
    assert 'value="Pusher2"' in page(f"/do/push?{urlencode(found[0] | {'node': 'Pusher2'}, doseq=True)}").text
    asked = {"model": "flights/Trainer/model/1", "node": "Pusher2", "because": "wrong"}
    assert ACTIONS["push"].words(asked) == ["push", "--node=Pusher2", "--because=wrong", "--", asked["model"]]
