"""Measurement: one pass over row groups that merges, the same figures here and on Beam, exact up to a number of rows."""

import importlib.util
import itertools
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spanwise.components import rows
from spanwise.components.evaluation import out_of_core
from spanwise.components.evaluation.bootstrap import interval
from spanwise.components.evaluation.exact_rows import read_rows
from spanwise.components.evaluation.measurement import MOST_SLICES, EvaluationSpec
from spanwise.components.evaluation.metric import KNOWN, Metric
from spanwise.components.evaluation.window_pass import measure_window, merge_all
from spanwise.orchestrator import ParameterError
from spanwise.orchestrator.beam_settings import HERE, BeamSettings
from tests.components.flow import written
from tests.components.warm_beam import use_warm_workers
from tests.later import Later

reference = Later("sklearn.metrics")
ROWS = 4000
TEMPORARY = Path(tempfile.gettempdir())


def column(model, table):
    """Scores are a column of the table, called as the model's folder."""
    return table[model.name].to_numpy()


def classes(model, table):
    """Chances of three classes, made of one column."""
    x = table[model.name].to_numpy()
    return np.column_stack([1 - x, x * 0.6, x * 0.4])


class Cost(Metric):
    """The mean of what wrong decisions cost."""

    name = "cost"

    def accumulate(self, labels, scores, weights):
        cost = np.where(labels == 1, 5.0 * (scores <= 0.3), 1.0 * (scores > 0.3))
        return np.array([weights.sum(), (weights * cost).sum()])

    def merge(self, one, other):
        return one + other

    def finish(self, state):
        return state[1] / state[0] if state[0] else float("nan")


def window(folder: Path, seed: int = 1, rows_: int = ROWS) -> tuple[list, pa.Table]:
    """Two spans of rows in several row groups, with two columns of scores and three of slices."""
    draw = np.random.default_rng(seed)
    label = draw.random(rows_) < 0.3
    table = pa.table(
        {
            "y": label.astype(float),
            "kind": draw.choice(["a", "b", "c"], rows_),
            "new": np.clip(0.3 * label + draw.random(rows_) * 0.7, 0, 1),
            "old": np.round(np.clip(0.2 * label + draw.random(rows_) * 0.8, 0, 1), 2),
            "origin": draw.choice(["JFK", "EWR", "LGA", "ÅÄÖ"], rows_, p=[0.5, 0.3, 0.19, 0.01]),
            "hour": draw.integers(0, 24, rows_),
        }
    )
    spans = [(1, table.slice(0, rows_ // 2)), (2, table.slice(rows_ // 2))]
    examples = [written(folder / str(span), span, {"eval": part}) for span, part in spans]
    for example, (_, part) in zip(examples, spans, strict=True):
        pq.write_table(part, example.split("eval") / "part-00000.parquet", row_group_size=max(rows_ // 6, 1))
    return examples, table


EMBEDDED = BeamSettings(runner="FnApiRunner")


def answer(examples, *, memory_rows=10**6, beam=HERE, scratch=TEMPORARY, **question):
    wanted = {
        "label": "y",
        "predict_fn": column,
        "models": {"new": Path("new"), "old": Path("old")},
        "names": ("count", "auc", "pr_auc", "log_loss", "accuracy", "calibration", "f1@0.4", "rmse", "r2"),
        "slicings": (("origin",), ("origin", "hour")),
        "replicates": 6,
        **question,
    }
    asked = EvaluationSpec(schema=rows.read_schema(examples, "eval"), **wanted)
    parts = rows.list_parts(examples, "eval")
    return measure_window(asked, parts, memory_rows=memory_rows, beam=beam, scratch=scratch)


def same(one, other, *, within=0.0, replicates=0.0):
    """Whether two answers have the same figures, and replicates within another distance."""
    assert one.rows == other.rows
    assert one.unlabelled == other.unlabelled
    everything = [(one.overall, other.overall)]
    everything += [(a.figures, b.figures) for a, b in zip(one.slices, other.slices, strict=True)]
    for mine, theirs in everything:
        for model, name in itertools.product(mine, next(iter(mine.values()))):
            a, b = mine[model][name], theirs[model][name]
            np.testing.assert_allclose(b[:, 0], a[:, 0], rtol=0, atol=within, err_msg=name)
            if name != "count":
                np.testing.assert_allclose(b, a, rtol=0, atol=replicates or within, err_msg=name)


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    return window(tmp_path_factory.mktemp("measurement"))


@pytest.fixture(scope="module")
def exact(lake):
    return answer(lake[0], small_rows=100)


def test_figures_are_scikit_learns(lake, exact):
    """Over all rows and in a slice, those of scikit-learn."""
    _, table = lake
    here = table.filter(pa.compute.equal(table["origin"], "EWR"))
    places = [group["origin"] for group in exact.slices[0].groups]

    for rows_, found, at in ((table, exact.overall, 0), (here, exact.slices[0].figures, places.index("EWR"))):
        y, p = rows_["y"].to_numpy(), rows_["new"].to_numpy()
        value = {name: values[at, 0] for name, values in found["new"].items()}
        assert value["auc"] == pytest.approx(reference.roc_auc_score(y, p), rel=1e-12)
        assert value["pr_auc"] == pytest.approx(reference.average_precision_score(y, p), rel=1e-12)
        assert value["log_loss"] == pytest.approx(reference.log_loss(y, p), rel=1e-12)
        assert value["f1@0.4"] == pytest.approx(reference.f1_score(y, p > 0.4), rel=1e-12)
        assert value["r2"] == pytest.approx(reference.r2_score(y, p), rel=1e-9)


@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_batches_change_nothing(lake, exact, size):
    """Neither a figure nor its replicates depend on the size of the batches."""
    if size == 1:
        examples, _ = lake
        few = [rows.list_parts(examples, "eval")[0]]
        one, other = ([merge_all(read_rows(part, spec_of(examples, batch_rows=n))) for part in few] for n in (1, 64))
        assert (one[0].ids == other[0].ids).all()
        return
    same(exact, answer(lake[0], small_rows=100, batch_rows=size))


def spec_of(examples, **question):
    return EvaluationSpec(
        schema=rows.read_schema(examples, "eval"),
        label="y",
        predict_fn=column,
        models={"new": Path("new")},
        names=("auc",),
        **question,
    )


@pytest.mark.parametrize("memory_rows", [10**6, 1000])
def test_beam_gives_the_same(lake, tmp_path, memory_rows):
    """On Beam, all figures are those of this process to the last bit, exact or not."""
    here = answer(lake[0], memory_rows=memory_rows)
    beam = answer(lake[0], memory_rows=memory_rows, beam=EMBEDDED, scratch=tmp_path)

    same(here, beam)


@pytest.mark.parametrize("run_rows", [1 << 18, 512])
def test_figures_are_the_same_at_every_size(lake, exact, run_rows, monkeypatch):
    """Rows in files give what rows in memory give: areas, sums, replicates, slices in their order, and the curves."""
    monkeypatch.setattr(out_of_core, "RUN_ROWS", run_rows)

    found = answer(lake[0], memory_rows=100, small_rows=100, batch_rows=333)

    same(exact, found, within=1e-9, replicates=0.02)
    assert [s.groups for s in found.slices] == [s.groups for s in exact.slices]
    assert [s.sizes for s in found.slices] == [s.sizes for s in exact.slices]
    assert np.allclose(found.curves["new"].at, exact.curves["new"].at)
    assert np.allclose(found.curves["new"].calibration, exact.curves["new"].calibration, atol=2 / ROWS)


def test_areas_of_many_ties_and_of_few_scores_are_exact(tmp_path, monkeypatch):
    """Where most rows have one score, or all have, files of one score are read in pieces."""
    monkeypatch.setattr(out_of_core, "RUN_ROWS", 512)
    draw = np.random.default_rng(2)
    label = (draw.random(6000) < 0.4).astype(float)
    old = np.where(draw.random(6000) < 0.7, 0.25, np.round(draw.random(6000) * 0.5 + label * 0.2, 3))
    table = pa.table({"y": label, "new": np.full(6000, 0.5), "old": old, "origin": draw.choice(["a", "b"], 6000)})
    examples = [written(tmp_path, 1, {"eval": table})]
    asked = {"names": ("count", "auc", "pr_auc"), "slicings": (("origin",),)}

    found = answer(examples, memory_rows=10, **asked)

    same(answer(examples, **asked), found, within=1e-12, replicates=0.02)
    assert found.overall["new"]["auc"][0, 0] == 0.5
    assert found.overall["old"]["auc"][0, 0] == pytest.approx(reference.roc_auc_score(label, old), rel=1e-12)
    assert found.overall["old"]["pr_auc"][0, 0] == pytest.approx(reference.average_precision_score(label, old))


@pytest.mark.parametrize("memory_rows", [10**6, 100])
@pytest.mark.parametrize("far", [100.0, 1e8, 1e10])
def test_a_far_label_in_one_slice_spoils_no_other(tmp_path, memory_rows, far):
    """r2 of a slice is scikit-learn's, whatever lies in others; a wrong one could bless a wrong model."""
    draw = np.random.default_rng(0)
    y, score, origin = draw.normal(100, 10, 3000), draw.normal(100, 10, 3000), draw.choice(["p", "q"], 3000)
    y[0], origin[0] = far, "far"
    table = pa.table({"y": y, "new": score, "origin": origin})
    examples = [written(tmp_path, 1, {"eval": table})]

    found = answer(
        examples, memory_rows=memory_rows, models={"new": Path("new")}, names=("r2",), slicings=(("origin",),)
    )

    for place, group in enumerate(found.slices[0].groups):
        here, values = origin == group["origin"], found.slices[0].figures["new"]["r2"][place]
        if here.sum() > 1:
            assert values[0] == pytest.approx(reference.r2_score(y[here], score[here]), rel=1e-12)
            assert np.isfinite(values).all()
            assert np.abs(values[1:] - values[0]).max() < 0.5
    assert found.overall["new"]["r2"][0, 0] == pytest.approx(reference.r2_score(y, score), rel=1e-9)


@pytest.mark.parametrize("memory_rows", [10**6, 100])
def test_weights_count_as_scikit_learn_has_them(lake, tmp_path, memory_rows):
    """With a column of weights every metric is the weighted one; the count is of rows."""
    table = lake[1].append_column("w", pa.array(np.random.default_rng(5).integers(0, 4, ROWS) / 2))
    examples = [written(tmp_path, 1, {"eval": table})]

    found = answer(examples, memory_rows=memory_rows, weight="w")

    y, p, w = (table[name].to_numpy() for name in ("y", "new", "w"))
    value = {name: values[0, 0] for name, values in found.overall["new"].items()}
    assert value["count"] == ROWS
    assert value["auc"] == pytest.approx(reference.roc_auc_score(y, p, sample_weight=w), rel=1e-12)
    assert value["pr_auc"] == pytest.approx(reference.average_precision_score(y, p, sample_weight=w), rel=1e-12)
    assert value["log_loss"] == pytest.approx(reference.log_loss(y, p, sample_weight=w), rel=1e-12)
    assert value["accuracy"] == pytest.approx(reference.accuracy_score(y, p > 0.5, sample_weight=w), rel=1e-12)
    assert value["f1@0.4"] == pytest.approx(reference.f1_score(y, p > 0.4, sample_weight=w), rel=1e-12)
    assert value["rmse"] == pytest.approx(reference.root_mean_squared_error(y, p, sample_weight=w), rel=1e-12)
    assert value["r2"] == pytest.approx(reference.r2_score(y, p, sample_weight=w), rel=1e-9)
    low, high = interval(found.overall["new"]["auc"], "bootstrap")
    assert low < value["auc"] < high


@pytest.mark.parametrize("memory_rows", [10**6, 100])
@pytest.mark.parametrize("far", [1e7, 1e9, 1e18])
def test_labels_of_rows_without_weight_leave_the_figures_alone(tmp_path, memory_rows, far):
    """r2 is that of the rows which count, also where most rows do not and their labels are far away; NaN where these are equal."""
    draw = np.random.default_rng(0)
    counts = draw.random(3000) < 0.4
    y, score, origin = draw.normal(100, 10, 3000), draw.normal(100, 10, 3000), draw.choice(["p", "q"], 3000)
    y[origin == "q"] = 0.1
    table = pa.table({"y": np.where(counts, y, far), "new": score, "origin": origin, "w": counts * 0.3})
    examples = [written(tmp_path, 1, {"eval": table})]

    found = answer(
        examples,
        memory_rows=memory_rows,
        models={"new": Path("new")},
        names=("r2",),
        slicings=(("origin",),),
        weight="w",
    )

    r2 = {group["origin"]: found.slices[0].figures["new"]["r2"][n] for n, group in enumerate(found.slices[0].groups)}
    here = counts & (origin == "p")
    assert r2["p"][0] == pytest.approx(reference.r2_score(y[here], score[here]), rel=1e-12)
    assert np.abs(r2["p"][1:] - r2["p"][0]).max() < 0.5
    assert np.isnan(r2["q"]).all()
    assert found.overall["new"]["r2"][0, 0] == pytest.approx(reference.r2_score(y[counts], score[counts]), rel=1e-9)


def test_weights_that_mean_nothing_are_refused(tmp_path):
    """A weight is a finite number that is not negative."""
    for number, odd in enumerate([-1.0, float("nan"), None, float("inf")]):
        table = pa.table({"y": [0.0, 1.0], "new": [0.1, 0.2], "w": pa.array([1.0, odd], pa.float64())})
        examples = [written(tmp_path / str(number), 1, {"eval": table})]
        with pytest.raises(ParameterError, match="weights are finite and not negative"):
            answer(examples, models={"new": Path("new")}, slicings=(), weight="w")


@pytest.mark.parametrize("memory_rows", [10**6, 1])
def test_both_zeros_are_one_slice(tmp_path, memory_rows):
    """0.0 and -0.0 are equal, so rows with either are of one slice; NaN is another."""
    table = pa.table({"y": [0.0, 1.0] * 2, "new": [0.1, 0.2] * 2, "origin": [0.0, -0.0, -0.0, float("nan")]})
    examples = [written(tmp_path, 1, {"eval": table})]

    found = answer(
        examples, memory_rows=memory_rows, models={"new": Path("new")}, slicings=(("origin",),), names=("count",)
    )

    assert found.slices[0].sizes == [3, 1]


@pytest.mark.parametrize("memory_rows", [10**6, 0])
@pytest.mark.parametrize(
    "origin",
    [
        pa.array(["a", "b", None, "a"]).dictionary_encode(),
        pa.DictionaryArray.from_arrays([0, 1, None, 2], ["a", "b", "a"]),
        pa.array(["a", "b", None, "a"], pa.string_view()),
    ],
    ids=["categories", "equal categories", "a view"],
)
def test_a_column_of_categories_has_slices(tmp_path, memory_rows, origin):
    """As one of texts has: equal ones are one, and a missing one is null."""
    table = pa.table({"y": [0.0, 1.0, 0.0, 1.0], "new": [0.1, 0.9, 0.2, 0.8], "origin": origin})
    examples = [written(tmp_path, 1, {"eval": table})]

    found = answer(
        examples, memory_rows=memory_rows, models={"new": Path("new")}, slicings=(("origin",),), names=("count", "mae")
    ).slices[0]

    assert [group["origin"] for group in found.groups] == ["a", "b", None]
    assert found.sizes == [2, 1, 1]


def test_a_column_of_very_many_values_is_bounded(tmp_path, monkeypatch):
    """Of 100,000 slices the largest thousand are reported, from memory and from files; too many are left out."""
    count = 100_000
    value = [f"id-{i}" for i in range(count)] + ["id-7"] * 5
    table = pa.table({"y": [0.0, 1.0] * (count // 2) + [1.0] * 5, "new": [0.5] * (count + 5), "origin": value})
    examples = [written(tmp_path, 1, {"eval": table})]
    asked = {"models": {"new": Path("new")}, "slicings": (("origin",),), "names": ("count", "auc")}

    found = answer(examples, **asked)
    beyond = answer(examples, memory_rows=10, **asked)

    assert found.slices[0].occurring == count
    assert len(found.slices[0].groups) == MOST_SLICES
    assert (found.slices[0].groups[0], found.slices[0].sizes[0]) == ({"origin": "id-7"}, 6)
    assert beyond.slices[0].groups == found.slices[0].groups
    assert beyond.slices[0].occurring == count

    monkeypatch.setattr(out_of_core, "MOST_OCCURRING", 50_000)
    few = answer(examples, memory_rows=10, **asked)
    assert (few.left_out, few.slices) == ((("origin",),), ())
    assert few.overall["new"]["count"][0, 0] == count + 5


@pytest.mark.parametrize("memory_rows", [10**6, 100])
def test_classes_are_measured_as_scikit_learn_does(lake, memory_rows):
    """Accuracy, log loss, macro and micro F1, and the confusion matrix."""
    _, table = lake
    names = ("count", "accuracy", "log_loss", "macro_f1", "micro_f1")
    found = answer(
        lake[0], memory_rows=memory_rows, label="kind", predict_fn=classes, names=names, classes=("a", "b", "c")
    )

    truth, chances = table["kind"].to_pylist(), classes(Path("new"), table)
    chosen = [("a", "b", "c")[place] for place in chances.argmax(axis=1)]
    value = {name: values[0, 0] for name, values in found.overall["new"].items()}
    assert value["accuracy"] == pytest.approx(reference.accuracy_score(truth, chosen))
    assert value["micro_f1"] == pytest.approx(reference.f1_score(truth, chosen, average="micro"))
    assert value["macro_f1"] == pytest.approx(reference.f1_score(truth, chosen, average="macro"))
    assert value["log_loss"] == pytest.approx(reference.log_loss(truth, chances), rel=1e-6)
    assert (found.confusion["new"] == reference.confusion_matrix(truth, chosen)).all()


@pytest.mark.parametrize("memory_rows", [10**6, 100])
def test_a_metric_of_ones_own_is_measured_like_the_others(lake, memory_rows):
    """Overall, by slice and in replicates; in one piece or merged from many."""
    _, table = lake
    found = answer(lake[0], memory_rows=memory_rows, custom=(Cost(),), names=("count",), replicates=20)

    y, p = table["y"].to_numpy(), table["new"].to_numpy()
    expected = np.where(y == 1, 5.0 * (p <= 0.3), 1.0 * (p > 0.3)).mean()
    assert found.overall["new"]["cost"][0, 0] == pytest.approx(expected)
    low, high = interval(found.overall["new"]["cost"], "bootstrap")
    assert low < expected < high
    assert found.slices[0].figures["new"]["cost"].shape == (4, 21)


@pytest.mark.parametrize("memory_rows", [10**6, 100])
@pytest.mark.parametrize("written_to", ["labels", "scores", "weights"])
def test_a_metric_that_writes_into_its_arrays_is_refused(lake, memory_rows, written_to):
    """Other metrics read the same arrays; the metric is named."""

    class Clipped(Cost):
        def accumulate(self, labels, scores, weights):
            array = {"labels": labels, "scores": scores, "weights": weights}[written_to]
            np.clip(array, 0.4, 0.6, out=array)
            return super().accumulate(labels, scores, weights)

    with pytest.raises(ParameterError, match=r"the metric 'cost' writes into .*; write into a copy"):
        answer(lake[0], memory_rows=memory_rows, custom=(Clipped(),), names=("count",))


def test_the_curves_are_those_of_the_rows(exact, lake):
    """The points of ROC are points of scikit-learn's; calibration and spread count every row once."""
    curves = exact.curves["new"]
    _, table = lake

    x, y, _ = reference.roc_curve(table["y"].to_numpy(), table["new"].to_numpy(), drop_intermediate=False)
    assert {(round(a, 9), round(b, 9)) for a, b in curves.roc} <= {
        (round(a, 9), round(b, 9)) for a, b in zip(x, y, strict=True)
    }
    assert {(0, 0), (1, 1)} <= set(curves.roc)
    assert len(curves.roc) > 100
    assert sum(rows_ for _, _, rows_ in curves.calibration) == ROWS
    assert sum(sum(bars) for bars in curves.spread) == pytest.approx(1)


@pytest.mark.parametrize("memory_rows", [10**6, 0])
@pytest.mark.parametrize(("at", "ties"), [(0.1, 3), (0.7, 3), (0.3, 20)])
def test_a_decision_at_a_score_is_the_metric_at_that_score(tmp_path, at, ties, memory_rows):
    """Rows whose score is 0.1 are not above 0.1, though the mean of three such scores is."""
    labels = [1.0, 0.0] * (ties // 2) + [1.0] * (ties % 2) + [0.0, 1.0, 1.0]
    table = pa.table({"y": labels, "new": [at] * ties + [0.05, 0.95, 0.97]})
    examples = [written(tmp_path, 1, {"eval": table})]
    names = (f"precision@{at}", f"recall@{at}")

    found = answer(
        examples, memory_rows=memory_rows, models={"new": Path("new")}, slicings=(), names=names, replicates=0
    )

    decisions = {score: figures for score, *figures in found.curves["new"].at}
    assert decisions[at][:2] == pytest.approx([found.overall["new"][name][0, 0] for name in names])


def test_a_small_slice_has_no_intervals(exact):
    """Its figure is there, its replicates are not."""
    place = [group["origin"] for group in exact.slices[0].groups].index("ÅÄÖ")
    found = exact.slices[0].figures["new"]["accuracy"][place]

    assert exact.slices[0].sizes[place] < 100
    assert np.isfinite(found[0])
    assert np.isnan(found[1:]).all()


@settings(max_examples=40)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=40))
def test_merging_goes_by_a_tree_and_keeps_the_order(sizes):
    """Whatever the number of pieces, all of them are there, in order."""

    class Piece:
        def __init__(self, values):
            self.values = values

        def merge(self, other):
            return Piece(self.values + other.values)

    assert merge_all([Piece([size]) for size in sizes]).values == sizes


def test_every_metric_has_a_formula():
    """What may be asked for by name can be computed."""
    from spanwise.components.evaluation.metrics import AREAS, FORMULAS

    assert {*FORMULAS, *AREAS, "count"} == set(KNOWN)


PIPELINE_FILE = """
import functools
from neighbour_of_a_pipeline import SCALE
from spanwise.components import Metric

@functools.cache
def scale(model):
    return SCALE

def predict(model, table):
    return table[model.name].to_numpy() * scale(model)

class Wrong(Metric):
    name = "wrong"
    def accumulate(self, labels, scores, weights):
        return weights.sum(), (weights * (labels != (scores > 0.5))).sum()
    def merge(self, one, other):
        return one[0] + other[0], one[1] + other[1]
    def finish(self, state):
        return state[1] / state[0]
"""


@pytest.fixture
def pipeline_file(tmp_path, monkeypatch):
    """A pipeline file with a neighbour, loaded by its path as the command line does."""
    (tmp_path / "neighbour_of_a_pipeline.py").write_text("SCALE = 0.5\n")
    (tmp_path / "a_pipeline_file.py").write_text(PIPELINE_FILE)
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = importlib.util.spec_from_file_location("pipeline_file_of_a_test", tmp_path / "a_pipeline_file.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "pipeline_file_of_a_test", module)
    spec.loader.exec_module(module)
    yield module
    sys.modules.pop("neighbour_of_a_pipeline", None)


@pytest.mark.slow
@pytest.mark.parametrize(("memory_rows", "fresh"), [(10**6, True), (100, False)])
def test_other_processes_know_the_pipeline_file(lake, tmp_path, pipeline_file, memory_rows, fresh, monkeypatch):
    """Two workers that have not loaded it give the same figures, with functions and a metric of a pipeline file."""
    if not fresh:
        use_warm_workers(monkeypatch)
    asked = {
        "predict_fn": pipeline_file.predict,
        "custom": (pipeline_file.Wrong(),),
        "names": ("count", "auc", "log_loss"),
        "memory_rows": memory_rows,
    }
    workers = {"direct_running_mode": "multi_processing", "direct_num_workers": 2}

    here = answer(lake[0], **asked)
    there = answer(lake[0], beam=BeamSettings(runner="FnApiRunner", options=workers), scratch=tmp_path, **asked)

    same(here, there)


def test_what_cannot_travel_is_told(lake, tmp_path):
    """A function that holds something open cannot be sent to another process."""
    with (
        (tmp_path / "open").open("w") as file,
        pytest.raises(ParameterError, match="cannot be sent to another process"),
    ):
        answer(lake[0], beam=EMBEDDED, scratch=tmp_path, predict_fn=lambda *_: file.write(""))
