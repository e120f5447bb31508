"""What an evaluation with 50 slices and bootstrap intervals costs, to scikit-learn without either on the same rows."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from benchmarks.figures import Figure, Timed, at_most, growth, most_held_bytes, show
from spanwise.components.evaluation.evaluator import MEMORY_ROWS
from spanwise.components.evaluation.measurement import EvaluationSpec
from spanwise.components.evaluation.window_pass import measure_window
from spanwise.components.rows import list_parts, read_schema
from spanwise.orchestrator.artifact import Examples
from spanwise.orchestrator.beam_settings import HERE

ROWS = (100_000, 1_000_000, 10_000_000)
SLICES, REPLICATES = 50, 40
AT_ONCE = 1 << 16
METRICS = ("count", "auc", "log_loss", "accuracy")


def measured(rows: Sequence[int] = ROWS) -> Iterator[Figure]:
    taken = []
    for count in rows:
        with tempfile.TemporaryDirectory() as folder:
            _write(Path(folder), count)
            ours, theirs, peak = (_alone(what, folder) for what in ("ours", "theirs", "peak"))
        taken.append(ours)
        name = f"evaluation of {count:,} predictions, {SLICES} slices, {REPLICATES} replicates"
        yield Figure(name=f"{name}: processor", value=ours, unit="s")
        ratio = ours / theirs
        what = f"evaluation of {count:,} predictions, to scikit-learn without slices"
        yield at_most(what, ratio, "x", 1.5) if count == ROWS[-1] else Figure(name=what, value=ratio, unit="x")
        yield Figure(name="the same: peak memory", value=peak / 1e6, unit="MB")
    if len(rows) > 1:
        yield growth("evaluation, by predictions", rows, taken)


def _alone(what: str, folder: str) -> float:
    """In a process of its own, so that neither finds the memory or the imports of the other."""
    code = "from benchmarks.evaluation import print_one; import sys; print_one(*sys.argv[1:])"
    done = subprocess.run([sys.executable, "-c", code, what, folder], stdout=subprocess.PIPE, check=True, text=True)
    return float(done.stdout.split()[-1])


def print_one(what: str, folder: str) -> None:
    """Prints the processor time of one of the two, or the memory of ours."""
    if what == "theirs":
        from sklearn.metrics import accuracy_score, log_loss, roc_auc_score

        def measure() -> None:
            table = pq.read_table(Path(folder) / "Split-eval", columns=["label", "score"])
            labels, scores = (table[name].to_numpy() for name in ("label", "score"))
            assert roc_auc_score(labels, scores) > log_loss(labels, scores) - 1
            assert accuracy_score(labels, scores > 0.5) > 0  # noqa: PLR2004
    else:

        def measure() -> None:
            _measure(Path(folder))

    timed = Timed.of(measure)
    print(most_held_bytes() if what == "peak" else timed.cpu_s)


def _measure(folder: Path) -> None:
    examples = Examples(str(folder), content=folder.name)
    examples.span, examples.split_names = 1, ["eval"]
    spec = EvaluationSpec(
        schema=read_schema([examples], "eval"),
        label="label",
        predict_fn=_predict,
        models={"model": folder},
        names=METRICS,
        slicings=(("group",),),
        replicates=REPLICATES,
        small_rows=100,
    )
    scratch = folder / "scratch"
    scratch.mkdir(exist_ok=True)
    parts = list_parts([examples], "eval")
    found = measure_window(spec, parts, memory_rows=MEMORY_ROWS, beam=HERE, scratch=scratch)
    assert len(found.slices[0].sizes) == SLICES


def _predict(_: Path, rows: pa.Table) -> NDArray[np.float64]:
    scores: NDArray[np.float64] = rows["score"].to_numpy()
    return scores


def _write(folder: Path, rows: int) -> None:
    draw = np.random.default_rng(rows)
    groups = pa.array([f"group {n}" for n in range(SLICES)])
    schema = pa.schema({"label": pa.int64(), "score": pa.float64(), "group": pa.string()})
    (folder / "Split-eval").mkdir()
    with pq.ParquetWriter(folder / "Split-eval" / "part-00000.parquet", schema, compression="zstd") as file:
        for first in range(0, rows, AT_ONCE):
            scores = draw.random(min(AT_ONCE, rows - first))
            labels = (draw.random(len(scores)) < scores).astype(int)
            chosen = groups.take(pa.array(draw.integers(0, SLICES, len(scores))))
            file.write_table(pa.table([pa.array(labels), pa.array(scores), chosen], schema=schema))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    options, rest = parser.parse_known_args()
    sys.exit(show(measured(options.rows), rest))
