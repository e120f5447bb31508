"""Out of core: rows in files give the figures that rows in memory give, and those are scikit-learn's."""

import functools
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spanwise.components.evaluation import bootstrap, exact_rows, out_of_core, scored_parts, sorted_runs
from spanwise.components.evaluation.exact_rows import ExactRows, measure_exact
from spanwise.components.evaluation.measurement import EvaluationSpec
from spanwise.components.evaluation.out_of_core import measure_parts
from spanwise.components.evaluation.scored_parts import ScoredPart
from tests.later import Later

reference = Later("sklearn.metrics")

SPEC = EvaluationSpec(
    schema=pa.schema([]),
    label="y",
    predict_fn=print,
    models={"new": Path("new"), "old": Path("old")},
    names=("count", "auc", "pr_auc", "log_loss", "accuracy", "calibration", "precision", "recall", "f1@0.3", "r2"),
    slicings=(("a",), ("a", "b")),
    replicates=3,
)


@st.composite
def windows(draw):
    """The parts of a window: with many ties, one class, far apart scores, or rows without weight."""
    dice = np.random.default_rng(draw(st.integers(0, 2**32)))
    levels = draw(st.sampled_from([1, 2, 30, 10**6]))
    weighted = draw(st.booleans())
    positive = draw(st.sampled_from([0.0, 0.1, 0.5, 1.0]))
    parts = []
    for number, count in enumerate(draw(st.lists(st.integers(1, 60), min_size=1, max_size=5))):
        scores = {m: dice.integers(0, levels, count) / levels for m in SPEC.models}
        parts.append(
            ExactRows(
                labels=(dice.random(count) < positive).astype(float),
                ids=bootstrap.row_ids(f"part {number}", 0, count),
                scores=scores,
                chosen={},
                codes={
                    "a": dice.integers(0, 2, count, dtype=np.int32),
                    "b": dice.integers(0, 3, count, dtype=np.int32),
                },
                values={"a": [None, "x"] if number % 2 else ["x", "y"], "b": [1.5, -0.0, float("nan")]},
                unlabelled=number,
                weights=dice.integers(0, 3, count) / 2 if weighted else None,
            )
        )
    return parts


@pytest.fixture(autouse=True)
def _small_files(monkeypatch):
    """Files of some sixteen rows, so that few rows fill many."""
    monkeypatch.setattr(out_of_core, "RUN_ROWS", 16)
    monkeypatch.setattr(scored_parts, "STRIDE", 4)
    monkeypatch.setattr(sorted_runs, "STRIDE", 4)


@settings(max_examples=int(os.environ.get("SPANWISE_NUMBERS_EXAMPLES", "12")), deadline=None)
@given(windows())
def test_files_give_what_memory_gives(tmp_path_factory, parts):
    """All figures, replicates, slices with their order and sizes; and the areas are scikit-learn's."""
    folder = tmp_path_factory.mktemp("parts")
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.merge(part)

    memory = measure_exact(whole, SPEC)
    files = measure_parts([ScoredPart.write(p, SPEC, folder / f"{n}") for n, p in enumerate(parts)], SPEC, folder)

    assert (files.rows, files.unlabelled, files.unscored) == (memory.rows, memory.unlabelled, memory.unscored)
    for one, other in zip(memory.slices, files.slices, strict=True):
        assert (one.sizes, repr(one.groups), one.occurring) == (other.sizes, repr(other.groups), other.occurring)
        np.testing.assert_equal(one.unscored, other.unscored)
    everything = [(memory.overall, files.overall)]
    everything += [(a.figures, b.figures) for a, b in zip(memory.slices, files.slices, strict=True)]
    for one, other in everything:
        for model in SPEC.models:
            for name in SPEC.names[1:]:
                np.testing.assert_allclose(other[model][name], one[model][name], atol=1e-9, rtol=1e-9, err_msg=name)
    check_with_scikit_learn(whole, files)


@settings(max_examples=6, deadline=None)
@given(parts=windows(), chunk=st.sampled_from([1, 200, 1 << 20]))
def test_figures_do_not_depend_on_the_number_of_threads(tmp_path_factory, parts, chunk):
    """In memory and in files, however many replicates are measured at once: the same bits."""
    spec = replace(SPEC, replicates=11, small_rows=2)
    whole = functools.reduce(ExactRows.merge, parts)
    before = pa.cpu_count()
    measured = []
    try:
        for threads in (1, 2, 4):
            pa.set_cpu_count(threads)
            folder = tmp_path_factory.mktemp("parts")
            scored = [ScoredPart.write(p, spec, folder / f"{n}") for n, p in enumerate(parts)]
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(exact_rows, "CHUNK", chunk)
                patch.setattr(out_of_core, "WEIGHTS", chunk)
                measured.append((list_bits(measure_exact(whole, spec)), list_bits(measure_parts(scored, spec, folder))))
    finally:
        pa.set_cpu_count(before)

    assert measured[0] == measured[1] == measured[2]


def list_bits(measured):
    """Every figure with its replicates, as bytes."""
    every = [measured.overall, *(slices.figures for slices in measured.slices)]
    return [(model, name, values.tobytes()) for each in every for model in each for name, values in each[model].items()]


def check_with_scikit_learn(rows, measured):
    weights = np.ones(len(rows.labels)) if rows.weights is None else rows.weights
    found = measured.overall["new"]
    if (weights * rows.labels).sum() > 0 and (weights * (1 - rows.labels)).sum() > 0:
        area = reference.roc_auc_score(rows.labels, rows.scores["new"], sample_weight=weights)
        assert found["auc"][0, 0] == pytest.approx(area, rel=1e-12)
        average = reference.average_precision_score(rows.labels, rows.scores["new"], sample_weight=weights)
        assert found["pr_auc"][0, 0] == pytest.approx(average, rel=1e-12)
        r2 = reference.r2_score(rows.labels, rows.scores["new"], sample_weight=weights)
        assert found["r2"][0, 0] == pytest.approx(r2, rel=1e-9)
    else:
        assert np.isnan(found["auc"][0, 0])
        assert np.isnan(found["r2"][0, 0])
