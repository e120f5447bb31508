"""The figures of spanwise beside those of TFDV, TensorFlow Transform and TFMA over the same rows: `make test-peers`."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from spanwise.components.evaluation.metrics import measure
from spanwise.components.statistics.accumulators import Quantiles, Vocabulary
from spanwise.components.statistics.distances import jensen_shannon, l_infinity
from spanwise.components.statistics.statistics_gen import count
from tests.peers.rows import write_rows

FOLDER = os.environ.get("SPANWISE_TEST_PEERS")
pytestmark = pytest.mark.skipif(FOLDER is None, reason="the peers' figures are made by make test-peers")

NUMBERS = ("fare", "delay", "late", "whole", "few", "constant", "weight")
RANKS = 0.01  # by which each side may be off


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
    return count({"train": folder}, scratch=path.parent, weight="weight").splits["train"].features


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


@pytest.mark.parametrize("slice_", ["all", "r0", "r1", "r2"])
def test_metrics_are_those_of_tfma(peers, files, slice_):
    """Overall and by slice; TFMA has 10,000 thresholds, and interpolates precision and recall."""
    rows = pq.read_table(files["scores"])
    chosen = np.ones(rows.num_rows, bool) if slice_ == "all" else rows["who"].to_numpy() == slice_
    label, score = rows["label"].to_numpy()[chosen], rows["score"].to_numpy()[chosen]
    theirs = peers["metrics"][slice_]

    ours = measure(("auc", "log_loss", "calibration", "pr_auc"), label, score)

    assert ours["auc"] == pytest.approx(theirs["auc"], abs=1e-6)
    assert ours["log_loss"] == pytest.approx(theirs["binary_crossentropy"], abs=1e-6)
    assert ours["calibration"] == pytest.approx(theirs["calibration"], rel=1e-12)
    assert ours["pr_auc"] == pytest.approx(theirs["auc_precision_recall"], abs=0.01)
