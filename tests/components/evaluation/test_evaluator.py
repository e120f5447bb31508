"""Evaluator: measures what the model says of every row, beside the baseline, and gives the verdict."""

import json
import math
import re
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanwise.components import Evaluator, Importer, Threshold, judge
from spanwise.components.evaluation import exact_rows, out_of_core
from spanwise.components.evaluation.metric import Metric
from spanwise.orchestrator import Model, ParameterError, Pipeline
from spanwise.resolvers import LatestBlessed
from tests.components.flow import Bench, Lake, only

ROWS = {
    2: {"x": [0.9, 0.8, 0.2, None], "y": [1, 0, 1, 0], "w": [1.0, 1.0, 0.0, 0.5], "origin": ["JFK", "EWR", None, "LGA"]},
    1: {"x": [0.1, 0.7], "y": [0, 1], "w": [0.0, 0.5], "origin": ["JFK", "JFK"]},
}  # fmt: skip
BY_SPAN = {
    1: {"x": [0.1, 0.9], "y": [0, 1], "origin": ["JFK", "EWR"]},
    2: {"x": [0.9, 0.1, 0.8], "y": [0, 1, 0], "origin": ["EWR", "EWR", "JFK"]},
}


def score(model_dir, table):
    """Scores are the column that the model names; a missing one is a half."""
    return table[(model_dir / "column").read_text()].fill_null(0.5).to_numpy()


def raw(model_dir, table):
    """The same without a score for missing ones."""
    return table[(model_dir / "column").read_text()].to_numpy()


def late(table):
    """A label that is made; there is none where y and w disagree about it."""
    y, w = table["y"].to_numpy(), table["w"].to_numpy()
    return np.where(w == 0.5, np.nan, y)


def nodes(tmp_path, column="x", *, rival=None, rows=ROWS, **arguments):
    """A pipeline of a lake, a model that scores by a column, and an evaluator."""
    lake = Lake(rows=rows, splits=["train", "eval"])
    models = []
    for role, named in (("model", column), ("baseline", rival)):
        if named is not None:
            (tmp_path / role).mkdir(parents=True, exist_ok=True)
            (tmp_path / role / "column").write_text(named)
            models.append(Importer(uri=str(tmp_path / role), kind=Model, name=role))
    given = {m.name: m["artifact"] for m in models}
    wanted = {"label": "y", "predict_fn": score, **arguments}
    return [lake, *models, Evaluator(examples=lake["examples"], **given, **wanted)]


def evaluated(tmp_path, *args, **arguments):
    outcome = Bench(tmp_path / "root").run(*nodes(tmp_path, *args, **arguments))
    return outcome.executions["Evaluator"]


def report(execution):
    return json.loads((only(execution, "evaluation").path / "metrics.json").read_text())


@pytest.fixture(scope="module")
def execution(tmp_path_factory):
    """A model held against a baseline and a threshold, by origin."""
    return evaluated(
        tmp_path_factory.mktemp("evaluator"),
        rival="w",
        metrics=("auc", "accuracy"),
        slices=("origin", ("origin", "y")),
        small_slice_rows=2,
        thresholds={"auc": Threshold(at_least=0.6, max_drop=0.1), "count": Threshold(at_least=6)},
        batch_size=2,
    )


def test_the_whole_window_is_measured(execution):
    """All spans count, each row once, however the batches fall."""
    found = report(execution)

    assert found["spans"] == [1, 2]
    assert "6 rows of split eval, 2 spans, 1 to 2" in page(execution)
    assert found["overall"] == {"count": 6.0, "auc": pytest.approx(2 / 3), "accuracy": pytest.approx(4 / 6)}


def test_the_baseline_is_measured_on_the_same_rows(execution):
    """Old and new model answer for the same examples of this window."""
    assert report(execution)["baseline_overall"]["count"] == 6
    assert report(execution)["baseline_overall"]["auc"] == pytest.approx(4.5 / 9)


def test_every_slice_is_measured(execution):
    """Each value of a column is a slice, also null; the largest come first and the small ones are flagged."""
    by_origin = [s for s in report(execution)["slices"] if list(s["slice"]) == ["origin"]]

    assert [(s["slice"]["origin"], s["metrics"]["count"], s["small"]) for s in by_origin] == [
        ("JFK", 3, False),
        ("EWR", 1, True),
        (None, 1, True),
        ("LGA", 1, True),
    ]
    assert by_origin[0]["metrics"]["auc"] == 1.0
    assert by_origin[1]["metrics"]["auc"] is None
    assert by_origin[0]["baseline_metrics"]["count"] == 3


def test_slices_of_several_columns_are_their_combinations(execution):
    """A group of columns gives a slice for each combination that occurs."""
    crossed = [s["slice"] for s in report(execution)["slices"] if list(s["slice"]) == ["origin", "y"]]

    assert {"origin": "JFK", "y": 1} in crossed
    assert {"origin": None, "y": 0} not in crossed
    assert len(crossed) == 5


def test_the_metrics_of_each_span_of_the_window_are_slices(tmp_path):
    """`span` is the span that a row is from, alone or with columns, and thresholds may be of it."""
    threshold = Threshold(at_least=0.9, by="span")
    execution = evaluated(
        tmp_path,
        rows=BY_SPAN,
        slices=("span", ("span", "origin")),
        small_slice_rows=2,
        slice_thresholds={"auc": threshold},
    )

    slices = report(execution)["slices"]
    by_span = {s["slice"]["span"]: s["metrics"] for s in slices if list(s["slice"]) == ["span"]}
    assert {span: (m["count"], m["auc"]) for span, m in by_span.items()} == {"1": (2, 1.0), "2": (3, 0.0)}
    assert [s["slice"] for s in slices if list(s["slice"]) == ["span", "origin"]] == [
        {"span": "2", "origin": "EWR"},
        {"span": "1", "origin": "JFK"},
        {"span": "1", "origin": "EWR"},
        {"span": "2", "origin": "JFK"},
    ]
    assert only(execution, "blessing").properties["reasons"] == ["auc of span=2 is 0; at_least=0.9 is required"]


def test_the_spans_of_a_window_are_slices_however_the_rows_are_counted(tmp_path):
    """Rows in files, of windows of many rows, have the same slices."""
    execution = evaluated(tmp_path, rows=BY_SPAN, slices=("span",), memory_rows=1)

    assert [(s["slice"]["span"], s["metrics"]["count"]) for s in report(execution)["slices"]] == [("2", 3), ("1", 2)]


def test_slices_that_were_not_measured_bless_nothing(tmp_path, monkeypatch):
    """Too many slices are left out of the report; where a threshold judges them, the node fails and says so."""
    monkeypatch.setattr(out_of_core, "MOST_OCCURRING", 1)
    asked = {"rows": BY_SPAN, "memory_rows": 1, "metrics": ("auc",), "slices": ("span", "origin")}
    limit = {"auc": Threshold(at_least=0.0)}

    shown = evaluated(tmp_path / "shown", thresholds=limit, **asked)
    judged = evaluated(tmp_path / "judged", slice_thresholds=limit, **asked)

    assert report(shown)["slicings"][0] == {"by": ["span"], "occurring": None, "reported": 0}
    assert "slices by span are left out: there are too many" in page(shown)
    assert "too many slices by span to measure, and slice_thresholds judge them" in str(judged.error)


@pytest.mark.parametrize("memory_rows", [10**6, 1])
def test_a_slice_beyond_those_that_are_measured_blesses_nothing(tmp_path, monkeypatch, memory_rows):
    """A threshold is of every slice that is not small; the error says from which size on all of them are measured."""
    for module in (exact_rows, out_of_core):
        monkeypatch.setattr(module, "MOST_SLICES", 2)
    rows = {1: {"x": [0.9] * 9, "y": [1] * 6 + [0] * 3, "o": list("aaabbbccc")}}
    asked = {"rows": rows, "memory_rows": memory_rows, "metrics": ("accuracy",), "slices": ("o",), "replicates": 0}
    limit = {"accuracy": Threshold(at_least=0.9)}

    judged = evaluated(tmp_path / "judged", slice_thresholds=limit, small_slice_rows=3, **asked)
    shown = evaluated(tmp_path / "shown", thresholds=limit, small_slice_rows=3, **asked)
    larger = evaluated(tmp_path / "larger", slice_thresholds=limit, small_slice_rows=4, **asked)

    assert "2 of 3 slices by o are measured" in judged.error
    assert "Set small_slice_rows=4 or more" in judged.error
    assert shown.error is None
    assert larger.error is None


def test_rows_count_by_their_weights(tmp_path):
    """The report and the page name the column of weights; a threshold judges the weighted metric."""
    rows = {1: {"x": [0.1, 0.9, 0.9], "y": [0, 1, 0], "often": [1.0, 5.0, 2.0]}}

    execution = evaluated(
        tmp_path, rows=rows, metrics=("accuracy",), weight="often", thresholds={"accuracy": Threshold(at_least=0.75)}
    )

    assert report(execution)["overall"] == {"count": 3, "accuracy": 0.75}
    assert report(execution)["blessed"]
    assert "rows are weighted by often" in page(execution)


def test_a_column_called_span_is_sliced_by_as_a_column(tmp_path):
    """What the rows say comes first; then the span of the examples has no name."""
    rows = {1: {"x": [0.1, 0.9], "y": [0, 1], "span": ["wing", "bridge"]}}
    execution = evaluated(tmp_path, rows=rows, slices=("span",))

    assert {s["slice"]["span"] for s in report(execution)["slices"]} == {"wing", "bridge"}


def test_a_model_that_meets_every_threshold_is_blessed(execution):
    """The blessing names both models as TFX does, and marks the model."""
    blessing = only(execution, "blessing").properties

    assert blessing == {
        "blessed": 1,
        "current_model": "p/model/artifact/1",
        "current_model_id": execution.inputs["model"][0].id,
        "baseline_model": "p/baseline/artifact/1",
        "baseline_model_id": execution.inputs["baseline"][0].id,
    }
    assert (only(execution, "blessing").path / "BLESSED").exists()


def test_the_metrics_are_properties_too(execution):
    """What can be asked of the metadata needs no file."""
    assert only(execution, "evaluation").properties["metrics"]["count"] == 6
    assert only(execution, "evaluation").properties["baseline_metrics"]["auc"] == pytest.approx(0.5)


def test_a_model_that_misses_a_threshold_is_refused_with_reasons(tmp_path):
    """A refusal is a result, not a failure, and says what was found and wanted."""
    refused = evaluated(tmp_path, thresholds={"auc": Threshold(at_least=0.9)})

    blessing = only(refused, "blessing")
    assert blessing.properties["blessed"] == 0
    assert blessing.properties["reasons"] == ["auc is 0.666667; at_least=0.9 is required"]
    assert (blessing.path / "NOT_BLESSED").exists()
    assert report(refused)["reasons"] == blessing.properties["reasons"]


def test_a_champion_whose_scores_suit_no_metric_has_failed(tmp_path):
    """The error names it and the way out; where champions that fail are ignored, so is this one."""
    rows = {1: {"x": [0.5] * 6, "y": [0, 1] * 3, "z": [0.2, 7.0] * 3}}

    failed = evaluated(tmp_path / "fail", rows=rows, rival="z")
    ignored = evaluated(tmp_path / "ignore", rows=rows, rival="z", on_baseline_error="ignore")

    assert "the baseline p/baseline/artifact/1" in failed.error
    assert "log_loss needs probabilities; found the score 7" in failed.error
    assert "spanwise unbless p/baseline/artifact/1" in failed.error
    assert "log_loss needs probabilities" in report(ignored)["baseline_error"]


def test_a_model_whose_scores_of_classes_are_no_probabilities_has_no_log_loss(tmp_path):
    """One that gives every class a score of 1 passed for perfect."""
    asked = {"classes": (0, 1), "predict_fn": lambda folder, table: np.ones((len(table), 2))}

    failed = evaluated(tmp_path / "loss", **asked, thresholds={"log_loss": Threshold(at_most=0.1)})
    measured = evaluated(tmp_path / "none", **asked, metrics=("accuracy",))

    assert "log_loss needs probabilities; found scores of the classes that sum to 2, not 1" in failed.error
    assert measured.error is None


def test_an_infinite_score_leaves_the_metrics_undefined(tmp_path):
    """As a missing one does: it refuses the model, and does not fail the node."""
    rows = {1: {"x": [0.5] * 5 + [math.inf], "y": [0, 1] * 3}}

    execution = evaluated(tmp_path, rows=rows, thresholds={"log_loss": Threshold(at_most=1.0)})

    assert only(execution, "blessing").properties["blessed"] == 0
    assert report(execution)["overall"]["log_loss"] is None


@pytest.mark.parametrize("memory_rows", [10**6, 0])
def test_a_score_of_32_bits_on_a_cut_is_not_above_it(tmp_path, memory_rows):
    """As a double it would be: 0.3 in 32 bits is 0.30000001192092896. The same holds in "Decisions by score"."""
    x = pa.array([0.3, 0.3, 0.6, 0.9], pa.float32())

    execution = evaluated(
        tmp_path, rows={1: {"x": x, "y": [0, 0, 1, 1]}}, metrics=("precision@0.3",), memory_rows=memory_rows
    )

    (curves,) = json.loads((only(execution, "evaluation").path / "curves.json").read_text()).values()
    assert report(execution)["overall"]["precision@0.3"] == 1.0
    assert {at: share for at, _, _, share in curves["at"]} == {
        **dict.fromkeys((0.1, 0.2), 1.0),
        **dict.fromkeys((0.3, 0.4, 0.5), 0.5),
        **dict.fromkeys((0.6, 0.7, 0.8), 0.25),
    }


@pytest.mark.parametrize("memory_rows", [10**6, 0])
def test_a_model_without_a_score_for_some_rows_has_no_curves(tmp_path, memory_rows):
    """Its metrics are undefined, and a curve would count these rows as of score 0; those of no weight matter to neither."""
    rows = {
        1: {"x": [math.nan, 0.2, 0.9, 0.8], "z": [0.1, 0.2, 0.9, 0.8], "y": [1, 0, 1, 0], "w": [0.0, 1.0, 1.0, 1.0]}
    }

    def curves(folder, **arguments):
        execution = evaluated(folder, rows=rows, rival="z", memory_rows=memory_rows, **arguments)
        found = json.loads((only(execution, "evaluation").path / "curves.json").read_text())
        return list(found), "Decisions by score" in page(execution)

    assert curves(tmp_path / "all") == (["p/baseline/artifact/1"], False)
    assert curves(tmp_path / "weighted", weight="w") == (["p/model/artifact/1", "p/baseline/artifact/1"], True)


def test_without_thresholds_there_is_no_verdict(tmp_path):
    """Nothing was asked of the model, so it is neither blessed nor refused (TFX)."""
    execution = evaluated(tmp_path)

    assert "blessing" not in execution.outputs
    assert report(execution)["blessed"] is None


def test_an_undefined_metric_is_never_enough(tmp_path):
    """AUC of one class is NaN, which passes no threshold, and the report stays valid JSON."""
    rows = {1: {"x": [0.5, 0.6], "y": [1, 1]}}

    execution = evaluated(tmp_path, rows=rows, thresholds={"auc": Threshold(at_least=0.0)})

    assert only(execution, "blessing").properties["blessed"] == 0
    assert "auc is undefined" in only(execution, "blessing").properties["reasons"][0]
    assert report(execution)["overall"]["auc"] is None


def test_labels_may_be_made_and_rows_without_one_are_left_out(tmp_path):
    """A function makes the labels; rows for which it has none are counted, not guessed."""
    execution = evaluated(tmp_path, label=late, metrics=("accuracy",))

    assert report(execution)["rows_without_label"] == 2
    assert report(execution)["overall"]["count"] == 4


def test_a_report_says_nothing_of_memory(tmp_path):
    """An evaluation that is repeated has the content of the first, also where `predict_fn` is a partial."""
    execution = evaluated(tmp_path, predict_fn=partial(score), metrics=("accuracy",))

    assert report(execution)["predict_fn"] == "functools.partial(<function score>)"


def test_labels_that_leave_every_bound_undefined_give_no_verdict(tmp_path):
    """As where every slice is small: any model was blessed where the labels of all slices were of one class."""
    rows = {1: {**MANY[7], "y": [0] * len(MANY[7]["y"])}}

    execution = evaluated(tmp_path, rows=rows, slices=("origin",), slice_thresholds={"auc": Threshold(at_least=0.9)})

    assert "blessing" not in execution.outputs
    assert report(execution)["blessed"] is None
    assert "none that could be applied" in page(execution)


def test_a_metric_that_is_undefined_for_the_baseline_alone_names_the_way_out(tmp_path):
    """Nothing can be compared with it, and so no model would ever be blessed."""
    rows = {1: {"x": [0.9, 0.1] * 3, "y": [1, 0] * 3, "z": [0.9, math.nan] * 3}}

    execution = evaluated(tmp_path, rows=rows, rival="z", predict_fn=raw, thresholds={"auc": Threshold(max_drop=0.1)})

    (reason,) = only(execution, "blessing").properties["reasons"]
    assert reason == (
        "auc is 1 and undefined for the baseline; max_drop=0.1 is required. Take the baseline's blessing back:  "
        "spanwise unbless p/baseline/artifact/1 --because TEXT"
    )


def test_the_first_run_has_no_baseline_and_only_values_count(tmp_path):
    """Without a baseline, changes are not judged; values are (TFX)."""
    before = nodes(tmp_path)[:-1]
    champion = LatestBlessed(before[1]["artifact"])
    again = Evaluator(
        examples=before[0]["examples"],
        model=before[1]["artifact"],
        baseline=champion["artifact"],
        label="y",
        predict_fn=score,
        thresholds={"auc": Threshold(at_least=0.6, max_drop=-0.5)},
    )

    execution = Bench(tmp_path / "root").run(*before, champion, again).executions["Evaluator"]

    assert only(execution, "blessing").properties["blessed"] == 1
    assert [t["passed"] for t in report(execution)["thresholds"]] == [True, None]


def test_a_comparison_without_a_baseline_connected_is_refused_when_the_pipeline_is_made(tmp_path):
    """A threshold that could never be applied is a mistake in the wiring."""
    with pytest.raises(ParameterError, match="compares with a baseline, and none is connected"):
        nodes(tmp_path, thresholds={"auc": Threshold(max_drop=0.1)})


class Misspelt(Metric):
    name = "own"
    undefined_with = "recal"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"label": "z"}, "no column 'z'"),
        ({"slices": ("carrier",)}, "no column 'carrier'"),
        ({"label": "origin"}, "expected numbers"),
        ({"predict_fn": lambda _, table: np.zeros((len(table), 2))}, "predict_fn returned an array of shape (6, 2)"),
        ({"predict_fn": lambda _model, _table: None}, "predict_fn returned None for 6 rows"),
        ({"predict_fn": lambda _, table: np.full(len(table), 3.0)}, "log_loss needs probabilities"),
        ({"split": "test"}, "no split 'test'"),
        ({"predict_fn": lambda _, table: np.zeros(len(table) - 1)}, "shape (5,) for 6 rows"),
    ],
)
def test_what_cannot_be_evaluated_is_told(tmp_path, arguments, said):
    """A wrong column, label, score or split fails the node in words that say what was found."""
    rows = {1: {"x": [0.5] * 6, "y": [0, 1] * 3, "origin": ["JFK"] * 6}}

    assert said in evaluated(tmp_path, rows=rows, **arguments).error


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ({1: {"x": [0.5, 0.6], "y": [math.nan, math.nan]}}, "has no rows with a label (2 without), so there is"),
        ({1: {"x": [], "y": []}}, "has no rows, so there is nothing to evaluate"),
    ],
)
def test_a_window_without_rows_is_an_error(tmp_path, rows, said):
    """Nothing to evaluate is not a verdict."""
    assert said in evaluated(tmp_path, rows=rows).error


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"metrics": ("acu",)}, "no metric 'acu'; there are: count, auc"),
        ({"metrics": ("auc@0.3",)}, "only accuracy, precision, recall, f1"),
        ({"metrics": ("macro_f1",)}, "macro_f1 cannot be measured without classes"),
        ({"metrics": ("auc",), "classes": ("a", "b")}, "auc cannot be measured with classes"),
        ({"slice_thresholds": {"auc": Threshold(at_least=0.5)}}, "there are none; name some"),
        (
            {"slices": ("origin",), "slice_thresholds": {"auc": Threshold(at_least=0.5, by="x")}},
            "which `slices` does not have",
        ),
        ({"thresholds": {"auc": Threshold(at_least=0.5, by="origin")}}, "move it to slice_thresholds"),
        ({"replicates": -1}, "replicates is -1; it is 0 or more"),
        ({"thresholds": {"acu": Threshold(at_least=1)}}, "acu"),
        ({"thresholds": {"auc": 0.6}}, "Threshold"),
        ({"metrics": (Misspelt(),)}, "there is no metric 'recal'"),
        ({"slices": "origin"}, "slices"),
        ({"metrics": None, "classes": ("a", "b", "a")}, "classes has 'a' twice"),
    ],
)
def test_misspelt_arguments_are_refused_when_the_pipeline_is_made(tmp_path, arguments, said):
    """What is wrong in the file is told before anything runs."""
    with pytest.raises(ParameterError, match=said):
        Pipeline("p", nodes(tmp_path, **arguments))


def a_metric(called):
    """A metric of the user's own."""

    class Own(Metric):
        name = called

    return Own()


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("cost", "cost"), "two custom metrics have the name 'cost'"),
        (("precision@0.3",), "there is a metric 'precision@0.3' already"),
        (("auc",), "there is a metric 'auc' already"),
    ],
)
def test_metrics_of_one_name_are_refused_when_the_pipeline_is_made(tmp_path, names, said):
    """One would take the place of the other in the report, and under its threshold."""
    with pytest.raises(ParameterError, match=said):
        nodes(tmp_path, metrics=tuple(map(a_metric, names)))


@pytest.mark.parametrize("bounds", [{}, {"at_least": math.nan}, {"at_least": 2, "at_most": 1}])
def test_a_threshold_that_bounds_nothing_or_everything_is_refused(bounds):
    """A threshold is a number that some model could meet."""
    with pytest.raises(ParameterError):
        Threshold(**bounds)


@pytest.mark.parametrize(
    ("threshold", "value", "baseline", "passed"),
    [
        (Threshold(at_least=0.6), 0.6, None, True),
        (Threshold(at_most=0.3), 0.31, None, False),
        (Threshold(max_drop=0.125), 0.5, 0.625, True),
        (Threshold(max_drop=0.125), 0.4, 0.625, False),
        (Threshold(max_drop=-0.125), 0.7, 0.625, False),
        (Threshold(max_drop=-0.125), 0.75, 0.625, True),
        (Threshold(max_rise=0.0), 0.5, 0.5, True),
        (Threshold(max_rise=0.0), 0.6, 0.5, False),
        (Threshold(max_drop_ratio=0.5), 0.25, 0.5, True),
        (Threshold(max_drop_ratio=0.5), 0.2, 0.5, False),
        (Threshold(max_rise_ratio=0.5), -0.25, -0.5, True),
        (Threshold(max_rise_ratio=0.1), -0.25, -0.5, False),
        (Threshold(max_drop=9), 0.5, math.nan, False),
        (Threshold(max_drop=9), 0.5, None, None),
        (Threshold(max_drop=9), math.nan, None, False),
        (Threshold(max_drop_ratio=9), math.nan, 0.5, False),
    ],
)
def test_bounds(threshold, value, baseline, passed):
    """Bounds are inclusive; a drop is below the baseline, a rise above it, a ratio is of the baseline's size."""
    (finding,) = judge({"auc": threshold}, {"auc": value}, None if baseline is None else {"auc": baseline})

    assert finding.passed is passed


@given(st.floats(allow_nan=True), st.floats(allow_nan=True), st.floats(allow_nan=False, allow_infinity=False))
def test_nan_never_passes(value, baseline, limit):
    """Whatever the bound, a metric or baseline that is NaN does not satisfy it."""
    bounds = ("at_least", "at_most", "max_drop", "max_rise", "max_drop_ratio", "max_rise_ratio")
    for bound in bounds:
        (finding,) = judge({"auc": Threshold(**{bound: limit})}, {"auc": value}, {"auc": baseline})

        if math.isnan(value) or (finding.baseline is not None and math.isnan(baseline)):
            assert finding.passed is False


@pytest.mark.parametrize(("bound", "baseline"), [("max_drop_ratio", math.inf), ("max_rise_ratio", -math.inf)])
def test_no_share_of_an_infinite_baseline_allows_a_finite_metric(bound, baseline):
    """A metric of one's own may divide by zero; what is infinitely worse is not ten percent worse."""
    (finding,) = judge({"lift": Threshold(**{bound: 0.1})}, {"lift": 5.0}, {"lift": baseline})

    assert finding.passed is False


# --- slices, intervals, classes, the page -------------------------------------------------------------------------

MANY = {
    7: {
        "x": [0.9, 0.8, 0.3, 0.2, 0.1] * 60 + [0.1, 0.9] * 60,
        "w": [0.9, 0.4, 0.6, 0.2, 0.1] * 60 + [0.9, 0.1] * 60,
        "y": [1, 1, 0, 0, 0] * 60 + [1, 0] * 60,
        "origin": ["JFK"] * 300 + ["Łódź <b>"] * 120,
    }
}


def test_a_slice_that_is_worse_than_the_baseline_refuses_the_model(tmp_path):
    """Overall it is better; in one slice it is not, and the reason names the slice."""
    execution = evaluated(
        tmp_path,
        rival="w",
        rows=MANY,
        slices=("origin",),
        thresholds={"auc": Threshold(at_least=0.5)},
        slice_thresholds={"auc": Threshold(max_drop=0.1)},
    )

    assert only(execution, "blessing").properties["reasons"] == [
        "auc of origin=Łódź <b> is 0 and the baseline's is 1; max_drop=0.1 is required"
    ]
    assert [(t["slice"], t["passed"]) for t in report(execution)["thresholds"]] == [
        (None, True),
        ({"origin": "JFK"}, True),
        ({"origin": "Łódź <b>"}, False),
    ]


@pytest.mark.parametrize(
    ("rows", "small", "judged"),
    [(MANY, 121, ["JFK"]), ({1: {**MANY[7], "y": MANY[7]["y"][:300] + [1] * 120}}, 100, ["JFK"])],
    ids=["small", "of one class"],
)
def test_a_slice_that_tells_nothing_is_not_judged(tmp_path, rows, small, judged):
    """One with few rows, or one whose labels leave the metric undefined, refuses no model."""
    execution = evaluated(
        tmp_path,
        rows=rows,
        slices=("origin",),
        small_slice_rows=small,
        slice_thresholds={"auc": Threshold(at_least=0.9)},
    )

    passed = [t["slice"]["origin"] for t in report(execution)["thresholds"] if t["passed"] is not None]
    assert passed == judged
    assert only(execution, "blessing").properties["blessed"] == 1


@pytest.mark.parametrize(("label", "passed"), [(1, False), (0, None)], ids=["positive rows", "none"])
def test_a_model_that_finds_no_positive_row_of_a_slice_has_no_precision_there_by_its_own_fault(tmp_path, label, passed):
    """It is refused where the slice has positive rows; where it has none, that nothing is found is right."""
    y = MANY[7]["y"][:300] + [label, 0] * 60
    rows = {1: {**MANY[7], "x": MANY[7]["x"][:300] + [0.1] * 120, "y": y}}

    execution = evaluated(
        tmp_path, rows=rows, slices=("origin",), slice_thresholds={"precision@0.4": Threshold(at_least=0.5)}
    )

    found = {t["slice"]["origin"]: t["passed"] for t in report(execution)["thresholds"]}
    assert found == {"JFK": True, "Łódź <b>": passed}
    assert only(execution, "blessing").properties["blessed"] == (passed is None)


@pytest.mark.parametrize(
    ("metric", "label", "found_before", "passed"),
    [("precision", 0, 0.1, None), ("f1", 0, 0.1, None), ("precision", 1, 0.1, False), ("f1", 0, math.nan, False)],
    ids=["precision", "f1", "with a positive row", "without a score"],
)
def test_a_baseline_that_rightly_finds_no_positive_row_of_a_slice_is_not_compared_with(
    tmp_path, metric, label, found_before, passed
):
    """One false alarm would be below what is undefined, whatever is allowed; a baseline that overlooks rows is worse."""
    rows = {
        1: {
            "x": [0.9, 0.1] * 3 + [0.1, 0.1, 0.6],
            "z": [0.9, 0.1] * 3 + [0.1, 0.1, found_before],
            "y": [1, 0] * 3 + [label, 0, 0],
            "origin": ["JFK"] * 6 + ["EWR"] * 3,
        }
    }

    execution = evaluated(
        tmp_path,
        rows=rows,
        rival="z",
        predict_fn=raw,
        slices=("origin",),
        small_slice_rows=0,
        slice_thresholds={metric: Threshold(max_drop=1.0)},
    )

    found = {t["slice"]["origin"]: t["passed"] for t in report(execution)["thresholds"]}
    assert found == {"JFK": True, "EWR": passed}
    reasons = only(execution, "blessing").properties.get("reasons", [])
    assert ["spanwise unbless p/baseline" in reason for reason in reasons] == ([] if passed is None else [True])


class PositivePredictiveValue(Metric):
    """As the built-in precision."""

    name = "ppv"

    def accumulate(self, labels, scores, weights):
        said = weights * (scores > 0.4)
        return np.array([(said * (labels == 1)).sum(), said.sum()])

    def merge(self, one, other):
        return one + other

    def finish(self, state):
        return state[0] / state[1] if state[1] else math.nan


class WithRecall(PositivePredictiveValue):
    undefined_with = "recall@0.4"


@pytest.mark.parametrize(
    ("metric", "label", "passed"),
    [
        (PositivePredictiveValue(), 1, False),
        (PositivePredictiveValue(), 0, False),
        (WithRecall(), 1, False),
        (WithRecall(), 0, None),
    ],
    ids=["unsaid, positive rows", "unsaid, none", "with recall, positive rows", "with recall, none"],
)
def test_an_own_metric_that_is_undefined_in_a_slice_fails_unless_it_is_for_the_labels(tmp_path, metric, label, passed):
    """It says so by a built-in metric that the labels leave undefined too; else it may be the model's doing."""
    y = MANY[7]["y"][:300] + [label, 0] * 60
    rows = {1: {**MANY[7], "x": MANY[7]["x"][:300] + [0.1] * 120, "y": y}}

    execution = evaluated(
        tmp_path,
        rows=rows,
        metrics=(metric,),
        slices=("origin",),
        slice_thresholds={"ppv": Threshold(at_least=0.5)},
    )

    found = {t["slice"]["origin"]: t["passed"] for t in report(execution)["thresholds"]}
    assert found == {"JFK": True, "Łódź <b>": passed}
    reasons = only(execution, "blessing").properties.get("reasons", [])
    assert [reason.partition("; at_least")[0] for reason in reasons] == (
        [] if passed is None else ["ppv of origin=Łódź <b> is undefined on these examples"]
    )
    assert all('undefined_with = "recall"' in reason for reason in reasons)


def test_a_slice_whose_rows_have_no_weight_is_not_judged_by_an_own_metric(tmp_path):
    """No metric is defined there, whatever the model says."""
    rows = {1: {**MANY[7], "weight": [1.0] * 300 + [0.0] * 120}}

    execution = evaluated(
        tmp_path,
        rows=rows,
        metrics=(PositivePredictiveValue(),),
        weight="weight",
        slices=("origin",),
        slice_thresholds={"ppv": Threshold(at_least=0.1)},
    )

    found = {t["slice"]["origin"]: t["passed"] for t in report(execution)["thresholds"]}
    assert found == {"JFK": True, "Łódź <b>": None}


def test_scores_that_are_no_numbers_refuse_the_model_in_slices_too(tmp_path):
    """A model that says nothing of some rows is undefined there, and undefined by its own fault."""
    rows = {1: {**MANY[7], "x": [math.nan, *MANY[7]["x"][1:]]}}

    execution = evaluated(
        tmp_path,
        rows=rows,
        predict_fn=lambda _, table: table["x"].to_numpy(),
        slices=("origin",),
        slice_thresholds={"accuracy": Threshold(at_least=0.0)},
    )

    assert only(execution, "blessing").properties["blessed"] == 0
    assert report(execution)["rows_without_score"] == {"p/model/artifact/1": 1}


@pytest.mark.parametrize("memory_rows", [1000, 0])
def test_a_missing_score_matters_to_the_slice_that_it_is_in(tmp_path, memory_rows):
    """In other slices a metric is undefined for the labels as before, and refuses nothing."""
    rows = {
        1: {
            "x": [0.9, 0.1] * 3 + [0.1, 0.2] + [0.3, math.nan],
            "y": [1, 0] * 3 + [0, 0] + [1, 0],
            "origin": ["JFK"] * 6 + ["EWR"] * 2 + ["LGA"] * 2,
        }
    }

    execution = evaluated(
        tmp_path,
        rows=rows,
        predict_fn=raw,
        memory_rows=memory_rows,
        slices=("origin",),
        small_slice_rows=0,
        slice_thresholds={"auc": Threshold(at_least=0.5)},
    )

    found = {t["slice"]["origin"]: t["passed"] for t in report(execution)["thresholds"]}
    assert found == {"JFK": True, "EWR": None, "LGA": False}


def test_every_figure_has_an_interval_and_so_has_the_difference(tmp_path):
    """The interval holds the figure; that of the difference is of the same rows; without replicates there is none."""
    with_them = report(evaluated(tmp_path / "a", rival="w", rows=MANY, slices=("origin",)))
    without = report(evaluated(tmp_path / "b", rival="w", rows=MANY, replicates=0))

    low, high = with_them["intervals"]["auc"]
    assert low < with_them["overall"]["auc"] < high <= 1
    low, high = with_them["change_intervals"]["auc"]
    assert low < with_them["change"]["auc"] < high
    assert with_them["change"]["auc"] == with_them["overall"]["auc"] - with_them["baseline_overall"]["auc"]
    assert with_them["slices"][0]["change_intervals"]["auc"][0] is not None
    assert without["intervals"] == {}


def test_a_second_evaluation_gives_the_same_intervals(tmp_path):
    """Nothing is drawn at random."""
    one, other = (report(evaluated(tmp_path / name, rival="w", rows=MANY)) for name in ("a", "b"))

    assert one == other


def test_an_unchanged_model_does_not_differ_from_itself(tmp_path):
    """Where model and baseline say the same, the difference is nothing, for certain."""
    found = report(evaluated(tmp_path, rival="x", rows=MANY))

    assert found["change"]["auc"] == 0
    assert found["change_intervals"]["auc"] == [0, 0]


def chances(model_dir, table):
    """Of two classes; none where the score is missing."""
    x = table["x"].to_numpy(zero_copy_only=False)
    return np.column_stack([1 - x, x])


def classes_on_page(execution):
    return page(execution).partition(">Classes<")[2].partition("</table>")[0]


def test_classes_have_no_recall_where_rows_have_no_score(tmp_path):
    """As their F1 is undefined; the matrix is of the other rows."""
    rows = {1: {"x": [None, 0.2, 0.9, 0.8], "y": [1, 0, 1, 0]}}

    execution = evaluated(tmp_path, rows=rows, classes=(0, 1), predict_fn=chances, metrics=("macro_f1",))

    assert report(execution)["overall"]["macro_f1"] is None
    assert classes_on_page(execution).count("undefined") == 4


@pytest.mark.parametrize("memory_rows", [10**6, 0])
def test_the_classes_on_the_page_heed_weights(tmp_path, memory_rows):
    """As every metric but count does."""
    rows = {1: {"x": [0.9, 0.1, 0.2, 0.8], "y": [1, 1, 0, 0], "w": [9.0, 1.0, 1.5, 1.0]}}
    asked = {"rows": rows, "classes": (0, 1), "predict_fn": chances, "memory_rows": memory_rows}

    weighted = evaluated(tmp_path / "weighted", **asked, weight="w")
    counted = evaluated(tmp_path / "counted", **asked)

    (matrix,) = report(weighted)["confusion"].values()
    assert matrix == [[1.5, 1.0], [1.0, 9.0]]
    assert ["<td>0.9000</td><td>0.9000</td>" in classes_on_page(each) for each in (weighted, counted)] == [True, False]
    assert [">weight<" in classes_on_page(each) for each in (weighted, counted)] == [True, False]
    assert str(report(counted)["confusion"]["p/model/artifact/1"]) == "[[1, 1], [1, 1]]"


def test_classes_are_judged_by_their_own_metrics(tmp_path):
    """Labels may be words; the confusion matrix is in the report, and on the page."""
    execution = evaluated(
        tmp_path,
        rows=MANY,
        label="origin",
        classes=("JFK", "Łódź <b>"),
        predict_fn=lambda _, table: np.column_stack([table["x"].to_numpy(), 1 - table["x"].to_numpy()]),
        thresholds={"macro_f1": Threshold(at_least=0.1)},
    )

    assert report(execution)["confusion"]["p/model/artifact/1"] == [[120, 180], [60, 60]]
    assert only(execution, "blessing").properties["blessed"] == 1
    assert "said Łódź &lt;b&gt;" in page(execution)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"classes": ("JFK",)}, "the label 'Łódź <b>' is not one of the classes: 'JFK'"),
        ({"classes": ("JFK", "Łódź <b>")}, "shape (420,) for 420 rows and 2 classes"),
    ],
)
def test_classes_that_do_not_fit_are_told(tmp_path, arguments, said):
    """A label that is no class, and scores that are not one for each."""
    assert said in evaluated(tmp_path, rows=MANY, label="origin", **arguments).error


def test_on_a_runner_that_is_named_an_error_reads_the_same(tmp_path):
    """What a worker refuses is told without Beam around it."""
    error = evaluated(tmp_path, label="origin", beam_runner="FnApiRunner").error

    assert "expected numbers" in error
    assert "Beam" not in error


def test_a_runner_gives_the_same_report(tmp_path):
    """Figures and intervals are those of this process."""
    here, beam = (
        report(evaluated(tmp_path / name, rival="w", rows=MANY, slices=("origin",), **given))
        for name, given in (("here", {}), ("beam", {"beam_runner": "FnApiRunner"}))
    )

    assert beam == here


def page(execution):
    return (only(execution, "evaluation").path / "report.html").read_text()


def test_the_page_stands_alone_and_says_why(tmp_path):
    """It loads nothing, shows the verdict with its reasons, and lists slices with the worst first, whatever their names."""
    execution = evaluated(
        tmp_path,
        rival="w",
        rows=MANY,
        slices=("origin",),
        slice_thresholds={"auc": Threshold(max_drop=0.1)},
    )

    found = page(execution)
    assert "http" not in found.replace("http-equiv", "")
    assert "<script src" not in found
    assert "Not blessed" in found
    assert "Łódź &lt;b&gt;" in found
    assert "<b>is" not in found
    assert found.index("origin=Łódź &lt;b&gt; <span") < found.index("origin=JFK")
    for plot in ("ROC", "Precision and recall", "Calibration", "Scores of the model"):
        assert f"<h3>{plot}" in found


class Cost(Metric):
    """The share of wrong decisions: less is better."""

    name = "cost"

    def accumulate(self, labels, scores, weights):
        return np.array([weights.sum(), (weights * (labels != (scores > 0.5))).sum()])

    def merge(self, one, other):
        return one + other

    def finish(self, state):
        return state[1] / state[0]


@pytest.mark.parametrize(
    ("threshold", "heading", "slices", "red"),
    [
        (Threshold(max_rise=1.0), "the worst first", ["dearer", "cheaper"], ["dearer"]),
        (Threshold(max_drop=1.0), "the worst first", ["cheaper", "dearer"], ["cheaper"]),
        (Threshold(max_drop=1.0, max_rise=1.0), "the least first", ["cheaper", "dearer"], []),
    ],
)
def test_the_page_takes_from_the_bounds_whether_less_of_ones_own_metric_is_better(
    tmp_path, threshold, heading, slices, red
):
    """Where both sides are bounded, it claims nothing."""
    good, bad = [0.1, 0.9] * 100, [0.1, 0.9, 0.1, 0.1] * 50
    rows = {"x": bad + good, "old": good + bad, "y": [0, 1] * 200, "where": ["dearer"] * 200 + ["cheaper"] * 200}

    execution = evaluated(
        tmp_path,
        rival="old",
        rows={1: rows},
        metrics=(Cost(),),
        slices=("where",),
        slice_thresholds={"cost": threshold},
    )

    listed = page(execution).partition("Slices by difference in cost, ")[2]
    assert listed.startswith(heading)
    assert re.findall(r"where=(dearer|cheaper)", listed) == slices
    assert re.findall(r"where=(dearer|cheaper)(?:(?!</tr>).)*var\(--bad\)", listed, re.DOTALL) == red


@pytest.mark.parametrize(
    "arguments",
    [
        {"rows": {1: {"x": [0.5], "y": [1]}}},
        {"rows": {1: {"x": [0.5, 0.5], "y": [1, 1]}}, "rival": "x"},
        {"rows": MANY, "metrics": ("rmse", "r2")},
        {"rows": MANY, "metrics": ("count",), "slices": ("origin",)},
        {"rows": MANY, "metrics": ("auc",), "slices": ("x",), "small_slice_rows": 10**6, "replicates": 1},
        {"rows": MANY, "memory_rows": 1, "rival": "w", "slices": ("origin",)},
        {"rows": MANY, "intervals": "jackknife", "rival": "w"},
    ],
)
def test_there_is_a_page_whatever_there_is_to_show(tmp_path, arguments):
    """One row, one class, numbers instead of classes, nothing but the count, only small slices, and so on."""
    execution = evaluated(tmp_path, **arguments)

    assert execution.error is None
    assert "No verdict" in page(execution)
