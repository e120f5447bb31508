"""The figures of spanwise beside those of TFDV, TensorFlow Transform and TFMA over the same rows: `make test-peers`."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest

from spanwise.components.evaluation.metrics import ScoredRows, finish_metrics, levels, rank_areas, sum_terms, terms
from spanwise.components.statistics.accumulators import Quantiles, Vocabulary
from spanwise.components.statistics.distances import jensen_shannon, l_infinity
from spanwise.components.statistics.statistics_gen import count as count_spans
from spanwise.components.transform.preprocessing import (
    bucketize,
    count,
    maximum,
    minimum,
    scale_to_0_1,
    scale_to_z_score,
    total,
    vocabulary,
)
from tests.components.transform.test_graph import learned
from tests.peers.rows import write_rows

FOLDER = os.environ.get("SPANWISE_TEST_PEERS")
pytestmark = pytest.mark.skipif(FOLDER is None, reason="the peers' figures are made by make test-peers")

NUMBERS = ("fare", "delay", "late", "whole", "few", "constant", "weight")
RANKS = 0.01  # by which each side may be off

METRICS = {  # the name there, and by how much the figures may differ
    "auc": ("auc", 1e-6),
    "pr_auc": ("auc_precision_recall", 0.01),
    "log_loss": ("binary_crossentropy", 1e-6),
    "accuracy": ("binary_accuracy", 1e-12),
    "precision": ("precision", 1e-12),
    "recall": ("recall", 1e-12),
    "calibration": ("calibration", 1e-12),
    "mae": ("mean_absolute_error", 1e-12),
    "rmse": ("mean_squared_error", 1e-12),
}


@pytest.fixture(scope="module")
def peers():
    return json.loads(Path(str(FOLDER), "figures.json").read_text())


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    return dict(zip(("data", "earlier", "scores"), write_rows(folder), strict=True))


def counted(path):
    folder = path.parent / f"Split-{path.stem}"
    folder.mkdir(exist_ok=True)
    shutil.copy(path, folder / "part-00000.parquet")
    return count_spans({"train": folder}, scratch=path.parent, weight="weight").splits["train"].features


@pytest.fixture(scope="module")
def spans(files):
    return counted(files["data"]), counted(files["earlier"])


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_are_those_of_tfdv(peers, spans, name):
    """TFDV counts NaN as missing; its constant of 0.1 has a spread of rounding noise."""
    ours, theirs = spans[0][name], peers["statistics"][name]

    assert (ours.missing + ours.nan, ours.zeros) == (theirs["missing"], theirs["zeros"])
    assert (ours.numbers.least, ours.numbers.greatest) == (theirs["least"], theirs["greatest"])
    assert ours.numbers.mean == pytest.approx(theirs["mean"], rel=1e-12)
    assert ours.numbers.std == pytest.approx(theirs["std"], rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("name", NUMBERS)
def test_weighted_numbers_are_those_of_tfdv(peers, spans, name):
    """Mean and standard deviation."""
    ours, theirs = spans[0][name].weighted, peers["weighted"][name]

    assert ours.mean == pytest.approx(theirs["weighted_mean"], rel=1e-10)
    assert ours.std == pytest.approx(theirs["weighted_std"], rel=1e-10, abs=1e-15)


@pytest.mark.parametrize("name", NUMBERS)
def test_quantiles_are_within_the_errors_of_both(peers, files, spans, name):
    """By rank among the values."""
    column = pq.read_table(files["data"])[name].to_numpy()
    values = np.sort(column[np.isfinite(column)])
    for place, theirs in enumerate(peers["statistics"][name]["quantiles"], 1):
        ours = spans[0][name].numbers.quantile(place / 10)
        low, high = sorted((ours, theirs))
        apart = np.searchsorted(values, high, side="left") - np.searchsorted(values, low, side="right")
        assert apart <= 2 * RANKS * values.size


@pytest.mark.parametrize("name", NUMBERS)
def test_weighted_quantiles_are_within_the_errors_of_both(peers, files, spans, name):
    """By the share of the weight up to them."""
    table = pq.read_table(files["data"])
    column, weight = table[name].to_numpy(), table["weight"].to_numpy()
    order = np.argsort(column)[np.isfinite(np.sort(column))]
    values, shares = column[order], np.cumsum(weight[order]) / weight[order].sum()
    for place, theirs in enumerate(peers["weighted"][name]["weighted_quantiles"], 1):
        low, high = sorted((spans[0][name].weighted.quantile(place / 10), theirs))
        below, above = np.searchsorted(values, low, side="right"), np.searchsorted(values, high, side="left")
        assert above <= below or shares[above - 1] - shares[below - 1] <= 2 * RANKS


@pytest.mark.parametrize("name", NUMBERS)
def test_histograms_are_within_the_errors_of_both(peers, spans, name):
    """The share of each of ten bins of equal width, which contain their upper edges."""
    ours, theirs = spans[0][name], peers["statistics"][name]["bins"]
    edges = [low for low, _, _ in theirs] + [theirs[-1][1]]
    counts = np.array([count for *_, count in theirs])

    found = np.diff(ours.numbers.quantiles.share_up_to(edges))
    found[0] += ours.numbers.quantiles.share_up_to(edges[:1])[0]  # the first bin has both of its edges

    if name != "constant":  # whose bins have no width
        assert np.abs(found - counts / counts.sum()).max() <= 2 * RANKS


@pytest.mark.parametrize("name", [*NUMBERS, "who"])
def test_the_weight_of_missing_values_is_that_of_tfdv(peers, files, spans, name):
    """Its NaN are missing."""
    table = pq.read_table(files["data"])
    weight, column = table["weight"].to_numpy(), table[name]
    nan = weight[np.isnan(column.to_numpy())].sum() if column.null_count == 0 and name != "who" else 0.0

    assert spans[0][name].weighted.missing + nan == pytest.approx(peers["weighted"][name]["weighted_missing"], rel=1e-6)


def test_lengths_of_texts_are_those_of_tfdv(peers, spans):
    """The mean; theirs is in bytes."""
    assert spans[0]["who"].lengths.mean == pytest.approx(peers["statistics"]["who"]["average_length"], rel=1e-6)


def test_frequent_values_are_those_of_tfdv(peers, spans):
    """Counts and weights."""
    ours, theirs = spans[0]["who"], peers["statistics"]["who"]

    assert ours.unique == pytest.approx(theirs["unique"], rel=0.033)
    assert [each.count for each in ours.top(30)] == [frequency for _, frequency in theirs["top"]]
    weighed = [each.weight for each in ours.weighted.top(30)]
    assert weighed == pytest.approx([weight for _, weight in peers["weighted"]["who"]["weighted_top"]], rel=1e-9)


def test_drift_by_the_greatest_difference_is_that_of_tfdv(peers, spans):
    """The L-infinity distance of shares."""
    now, before = spans

    assert l_infinity(now["who"], before["who"])[0] == pytest.approx(peers["drift"]["who"]["infinity_norm"], rel=1e-9)


def test_drift_of_numbers_is_smaller_than_in_the_bins_of_tfdv(peers, spans):
    """TFDV spreads the values of a bin evenly before it compares; two normal samples 0.07 deviations apart differ by 0.001."""
    now, before = spans

    assert jensen_shannon(now["late"], before["late"]) == pytest.approx(0.001, abs=0.001)
    assert peers["drift"]["late"]["jensen_shannon_divergence"] > 0.02


def test_what_transform_learns_is_what_tft_learns(peers, files):
    """Floats are float32 there; a vocabulary has its ties in descending order."""
    table, theirs = pq.read_table(files["data"]), peers["analyzers"]
    fare = table["fare"].to_numpy()
    quantiles = Quantiles.accumulate(table["fare"].combine_chunks())

    assert (fare.mean(), fare.var()) == pytest.approx((theirs["mean"], theirs["var"]), rel=1e-6)
    ranks = np.searchsorted(np.sort(fare), [quantiles.boundaries(8), theirs["boundaries"]]) / fare.size
    assert np.abs(ranks[0] - ranks[1]).max() <= RANKS
    counts = {each.value: each.count for each in Vocabulary.accumulate(table["who"].combine_chunks()).top()}
    assert (
        theirs["words"] == sorted(counts, key=lambda word: (counts[word], word), reverse=True)[: len(theirs["words"])]
    )


def preprocess(columns):
    fare, whole = columns["fare"], columns["whole"]
    return {
        "least": minimum(fare), "greatest": maximum(fare), "sum": total(whole), "size": count(whole),
        "z": scale_to_z_score(fare), "unit": scale_to_0_1(fare), "bucket": bucketize(whole, 8),
        "term": vocabulary(columns["who"], top_k=40),
        "weighted": vocabulary(columns["who"], top_k=40, weight=columns["weight"]),
        "boundaries": bucketize(fare, 8, weight=columns["weight"]),
    }  # fmt: skip


def test_what_transform_makes_is_what_tft_makes(peers, files):
    """Row by row. Values on a boundary are one bucket lower here, and ties of a vocabulary in another order."""
    rows, theirs = pl.read_parquet(files["data"]), peers["analyzers"]
    ours = learned(preprocess, rows).apply(rows)

    for name in ("least", "greatest", "sum", "size"):
        assert ours[name][0] == pytest.approx(theirs[name], rel=1e-7), name
    for name in ("z", "unit"):
        assert ours[name][:200].to_list() == pytest.approx(theirs[name], rel=1e-4, abs=1e-6), name
    apart = np.array(theirs["bucket"]) - ours["bucket"].to_numpy()
    assert set(apart) <= {0, 1}
    assert apart.mean() <= 7 * (RANKS + 1 / 1000)  # seven boundaries, and a thousandth of the rows on each
    counts = rows["who"].value_counts().rows()
    alone = {who for who, count in counts if [each for _, each in counts].count(count) == 1}
    shown = rows["who"].is_in([word for word in theirs["words"] if word in alone])
    assert shown.sum() > 1000
    assert ours["term"].filter(shown).to_list() == pl.Series(theirs["term"]).filter(shown).to_list()
    first = dict(zip(rows["who"], ours["weighted"], strict=True))
    assert sorted((word for word in first if first[word] < 40), key=first.get) == theirs["weighted_words"]
    fare, weight = rows["fare"].to_numpy(), rows["weight"].to_numpy()
    for group, boundary in enumerate(theirs["weighted_boundaries"], 1):
        share = weight[ours["boundaries"].to_numpy() < group].sum() / weight.sum()
        assert share == pytest.approx(weight[fare <= boundary].sum() / weight.sum(), abs=2 * RANKS)


@pytest.mark.parametrize("weights", ["metrics", "weighted_metrics"])
@pytest.mark.parametrize("slice_", ["all", "r0", "r1", "r2"])
def test_metrics_are_those_of_tfma(peers, files, slice_, weights):
    """Overall and by slice, with and without weights; TFMA has 10,000 thresholds, and interpolates precision and recall."""
    rows = pq.read_table(files["scores"])
    chosen = np.ones(rows.num_rows, bool) if slice_ == "all" else rows["who"].to_numpy() == slice_
    label, score, weight = (rows[name].to_numpy()[chosen] for name in ("label", "score", "weight"))
    theirs = peers[weights][slice_]

    found = weigh(label, score, np.ones(len(label)) if weights == "metrics" else weight)

    if weights == "metrics":
        assert found["count"] == theirs["example_count"]
    for name, (key, error) in METRICS.items():
        expected = theirs[key] ** 0.5 if name == "rmse" else theirs[key]
        assert found[name] == pytest.approx(expected, abs=error, rel=1e-9), name


def weigh(label, score, weight):
    """The metrics of rows in memory."""
    order, names = np.argsort(score), ["count", *METRICS]
    rows = ScoredRows(
        labels=label[order], scores=score[order], unscored=np.zeros(len(label), bool), starts=np.zeros(1, np.int64)
    )
    weights = weight[order][None, :]
    sums = sum_terms(terms(names, rows), rows, weights)
    return {
        name: values[0, 0]
        for name, values in finish_metrics(names, sums, rank_areas(names, rows, weights, levels(rows))).items()
    }
