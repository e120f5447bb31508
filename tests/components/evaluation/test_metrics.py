"""Metrics: held against scikit-learn where it has an answer, and NaN where there is none."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spanwise.components.evaluation.metric import KNOWN, parse_name, suits
from spanwise.components.evaluation.metrics import find_mismatch, measure
from tests.later import Later

reference = Later("sklearn.metrics")
BINARY = ("count", "calibration", "auc", "pr_auc", "log_loss", "accuracy", "precision", "recall", "f1", "f1@0.3")


ANY = [name for name in KNOWN if suits(name, classes=False)]


def one(name, labels, scores):
    return measure([name], labels, scores)[name]


@st.composite
def binary(draw):
    """Labels of both classes with scores of which many are equal."""
    scores = st.integers(0, 20).map(lambda n: n / 20)
    rows = draw(st.lists(st.tuples(st.booleans(), scores), min_size=2, max_size=60))
    labels = np.array([float(label) for label, _ in rows])
    labels[:2] = 0.0, 1.0
    return labels, np.array([score for _, score in rows])


@settings(max_examples=60)
@given(binary())
def test_classification_agrees_with_scikit_learn(rows):
    """Every metric of a classifier is scikit-learn's, ties, zeros and ones included."""
    labels, scores = rows

    ours = measure(BINARY, labels, scores)

    chosen = scores > 0.5
    assert ours["count"] == len(labels)
    assert ours["calibration"] == pytest.approx(scores.mean() / labels.mean())
    assert ours["auc"] == pytest.approx(reference.roc_auc_score(labels, scores))
    assert ours["pr_auc"] == pytest.approx(reference.average_precision_score(labels, scores))
    assert ours["f1"] == pytest.approx(reference.f1_score(labels, chosen))
    assert ours["f1@0.3"] == pytest.approx(reference.f1_score(labels, scores > 0.3))
    assert ours["log_loss"] == pytest.approx(reference.log_loss(labels, scores, labels=[0, 1]))
    assert ours["accuracy"] == pytest.approx(reference.accuracy_score(labels, chosen))
    assert ours["recall"] == pytest.approx(reference.recall_score(labels, chosen))
    if chosen.any():
        assert ours["precision"] == pytest.approx(reference.precision_score(labels, chosen))
    else:
        assert np.isnan(ours["precision"])


@pytest.mark.parametrize("at", ["0.9999995", "0.12345678"])
def test_the_score_of_a_metric_has_all_its_digits(at):
    """A decision threshold is not rounded, as calibrated scores of rare classes need many digits."""
    below, above = float(at) - 1e-8, float(at) + 1e-8
    labels, scores = np.array([0.0, 1.0]), np.array([below, above])

    ours = measure([f"precision@{at}", f"recall@{at}", f"f1@{at}", f"accuracy@{at}"], labels, scores)

    assert set(ours.values()) == {1.0}


@settings(max_examples=50)
@given(st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(-1e3, 1e3)), min_size=2, max_size=40))
def test_regression_agrees_with_scikit_learn(rows):
    """Errors and explained variance of a regression are scikit-learn's."""
    labels, scores = (np.array(column) for column in zip(*rows, strict=True))

    ours = measure(("mae", "rmse", "r2"), labels, scores)

    assert ours["mae"] == pytest.approx(reference.mean_absolute_error(labels, scores))
    assert ours["rmse"] == pytest.approx(reference.root_mean_squared_error(labels, scores))
    if np.square(labels - labels.mean()).sum() > 1e-6:
        assert ours["r2"] == pytest.approx(reference.r2_score(labels, scores), rel=1e-6)


@settings(max_examples=50)
@given(binary(), st.permutations(range(60)))
def test_the_order_of_rows_does_not_matter(rows, order):
    """AUC is of the set of rows, not of their order."""
    labels, scores = rows
    order = [place for place in order if place < len(labels)]

    assert one("auc", labels[order], scores[order]) == pytest.approx(one("auc", labels, scores))


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_auc_of_one_class_is_undefined(label):
    """Without rows of both classes there is nothing to tell apart."""
    assert np.isnan(one("auc", np.full(5, label), np.linspace(0, 1, 5)))


def test_all_scores_equal_is_a_coin_toss():
    """A model that always says the same has an AUC of one half."""
    assert one("auc", np.array([0.0, 1.0, 1.0]), np.full(3, 0.7)) == 0.5


def test_calibration_is_predicted_over_actual():
    """A model that promises twice as many positive rows as there are has calibration 2."""
    assert one("calibration", np.array([0.0, 0.0, 0.0, 1.0]), np.full(4, 0.5)) == 2.0


@pytest.mark.parametrize("name", ["calibration", "recall"])
def test_without_positive_rows_what_divides_by_them_is_undefined(name):
    """Calibration and recall divide by the positive rows."""
    assert np.isnan(one(name, np.zeros(3), np.full(3, 0.4)))


def test_r2_of_labels_that_do_not_vary_is_undefined():
    """There is no variance to explain."""
    assert np.isnan(one("r2", np.full(3, 2.0), np.array([1.0, 2.0, 3.0])))


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_a_score_that_is_no_number_spoils_every_metric_but_count(odd):
    """One NaN must not vanish in a mean or be sorted to the end."""
    found = measure(ANY, np.array([0.0, 1.0, 1.0]), np.array([0.2, odd, 0.8]))

    assert found.pop("count") == 3
    assert all(np.isnan(value) for value in found.values())


def test_no_rows_give_no_answer():
    """An empty slice has a count and nothing else."""
    found = measure(ANY, np.empty(0), np.empty(0))

    assert found.pop("count") == 0
    assert all(np.isnan(value) for value in found.values())


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("auc", ("auc", 0.5)),
        ("precision@0.25", ("precision", 0.25)),
        ("f1@.9", ("f1", 0.9)),
        ("recall@1", ("recall", 1)),
    ],
)
def test_a_name_may_say_from_which_score_on_a_row_is_positive(name, found):
    """Half, if it says nothing."""
    assert parse_name(name) == found


@pytest.mark.parametrize(
    ("name", "said"),
    [("acu", "no metric 'acu'; there are: count, auc"), ("auc@0.3", "only accuracy, precision"), ("f1@2", "no metric")],
)
def test_a_name_that_is_none_is_told(name, said):
    """With the names that there are."""
    with pytest.raises(ValueError, match=said):
        parse_name(name)


@pytest.mark.parametrize(
    ("name", "label", "score", "said"),
    [
        ("auc", 2.0, 0.5, "label 2"),
        ("log_loss", 1.0, 1.5, "score 1.5"),
        ("log_loss", 1.0, np.inf, None),  # which makes the metric undefined
        ("accuracy", 1.0, 1.5, None),
        ("rmse", 2.0, 7.0, None),
    ],
)
def test_metrics_say_what_they_cannot_judge(name, label, score, said):
    """A label that is no class and a score that is no probability are told, not averaged."""
    found = find_mismatch([name], np.array([label]), np.array([score]))

    assert found is None if said is None else said in found


@pytest.mark.parametrize(
    ("scores", "said"),
    [
        ([1.0, 1.0, 1.0], "found scores of the classes that sum to 3, not 1"),
        ([0.5, 0.5, 0.1], "that sum to 1.1, not 1"),
        ([2.0, -1.0, 0.0], "found the score 2"),
        ([0.0, 0.0, 0.0], "that sum to 0, not 1"),
        ([np.nan, 1.0, 1.0], None),  # which makes the metric undefined
        ([0.3333, 0.3333, 0.3333], None),
        (np.full(1000, 0.001, np.float16).astype(float), None),
    ],
)
def test_log_loss_needs_probabilities_of_all_classes(scores, said):
    """A model that gives every class a score of 1 is not perfect; other metrics take any scores."""
    rows = np.array([np.eye(len(scores))[0], scores])

    found = find_mismatch(["accuracy", "log_loss"], np.zeros(0), rows)

    assert found is None if said is None else said in found
    assert find_mismatch(["accuracy", "macro_f1"], np.zeros(0), rows) is None
