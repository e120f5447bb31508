"""New York flights: each morning, learn from the last days which flights will arrive more than 15 minutes late.

Only what is known before departure is used: when and where, which carrier, how far. `spanwise run flights.py` needs
to know where the data lies and where models go: `--param data=… --param serving=…`, or `[params.flights]` in
`spanwise.toml`.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

from components import Evaluator, ExampleGen, Pusher, Threshold, Trainer, TrainerTask
from orchestrator import Component, Examples, Input, NodeFailed, Output, Pipeline, Report
from resolvers import LatestBlessed, RollingWindow

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray
    from sklearn.pipeline import Pipeline as Fitted

NUMBERS = ("sched_dep_time", "sched_arr_time", "distance", "month", "day")
CATEGORIES = ("carrier", "origin", "dest")
LATE_MINUTES = 15


class RowCount(Component):
    """Stops the run when a day of data is suspiciously small."""

    def run(self, examples: Input[Examples], report: Output[Report], at_least: int) -> None:
        rows = sum((examples.rows or {}).values())
        (report.path / "rows.txt").write_text(f"{rows}\n")
        if rows < at_least:
            raise NodeFailed(f"{examples.name} has {rows} rows, and {at_least} is the least a day should have.")


def late(table: pa.Table) -> NDArray[np.float64]:
    """1 for flights that arrived more than 15 minutes late; NaN for those that never did."""
    import numpy as np

    delay = table["arr_delay"].to_numpy().astype(float)
    return np.where(np.isnan(delay), np.nan, delay > LATE_MINUTES)


def features(table: pa.Table) -> NDArray[np.object_]:
    """What is known before departure, one column each, in the order of NUMBERS and CATEGORIES."""
    import numpy as np

    return np.column_stack([table[name].to_numpy().astype(object) for name in (*NUMBERS, *CATEGORIES)])


def train(task: TrainerTask) -> None:
    """Fits a logistic regression on the flights that arrived."""
    import joblib
    from sklearn.compose import make_column_transformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, SplineTransformer

    flights = task.table("train", columns=[*NUMBERS, *CATEGORIES, "arr_delay"]).drop_null()
    columns = make_column_transformer(
        (SplineTransformer(n_knots=6), [0, 1, 2]),
        (OneHotEncoder(handle_unknown="ignore", min_frequency=5), [5, 6, 7]),
    )
    model = make_pipeline(columns, LogisticRegression(C=0.1, max_iter=1000))
    model.fit(features(flights), late(flights))
    joblib.dump(model, task.model_dir / "model.joblib")


def predict(model: Path, table: pa.Table) -> NDArray[np.float64]:
    """The chance of each flight to be late."""
    chances: NDArray[np.float64] = _loaded(model).predict_proba(features(table))[:, 1]
    return chances


@functools.cache
def _loaded(model: Path) -> Fitted:
    import joblib

    fitted: Fitted = joblib.load(model / "model.joblib")
    return fitted


def flights(data: str, serving: str, window: int = 7, since: str = "2013-01-01") -> Pipeline:
    ingest = ExampleGen(pattern=f"{data}/{{YYYY}}-{{MM}}-{{DD}}/v{{VERSION}}/*.csv")
    count = RowCount(examples=ingest["examples"], at_least=100)
    recent = RollingWindow(ingest["examples"], size=window, since=since, after=[count])
    trainer = Trainer(examples=recent["examples"], run_fn=train)
    champion = LatestBlessed(trainer["model"])
    evaluator = Evaluator(
        examples=recent["examples"],
        model=trainer["model"],
        baseline=champion["model"],
        label=late,
        predict_fn=predict,
        slices=("origin", "carrier"),
        thresholds={"auc": Threshold(at_least=0.55, max_drop=0.0)},
    )
    pusher = Pusher(model=trainer["model"], blessing=evaluator["blessing"], destination=serving)
    nodes = [ingest, count, recent, trainer, champion, evaluator, pusher]
    return Pipeline("flights", nodes, preload=("sklearn.compose", "sklearn.linear_model", "sklearn.preprocessing"))
