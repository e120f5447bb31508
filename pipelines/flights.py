"""New York flights: each morning, learn from the last days which flights will arrive more than 15 minutes late.

The features are known before departure: time, place, carrier, distance. `spanwise run flights.py` needs the folders of
the data and of the served models: `--param data=… --param serving=…`, or `[params.flights]` in
`spanwise.toml`. With `SPANWISE_SERVICE=grpc://…` in the environment, its rows are prepared and handed out by the
workers of that data service.
"""

from __future__ import annotations

import functools
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from spanwise import (
    AnomalyGate,
    Champion,
    Columns,
    Evaluator,
    ExampleGen,
    Examples,
    ExampleValidator,
    Gate,
    Input,
    Output,
    Pipeline,
    Preprocessor,
    Previous,
    Pusher,
    Refused,
    Report,
    RollingWindow,
    SchemaGen,
    StatisticsGen,
    Threshold,
    Trainer,
    TrainerTask,
    Transform,
    bucketize,
    scale_to_z_score,
    vocabulary,
)

if TYPE_CHECKING:
    import numpy as np
    import polars as pl
    import pyarrow as pa
    from numpy.typing import NDArray
    from sklearn.pipeline import Pipeline as Fitted

    from spanwise.input import Dataset

NUMBERS = ("distance",)
CATEGORIES = ("departure", "arrival", "carrier", "origin", "dest")
LATE_MINUTES = 15

log = logging.getLogger("spanwise.flights")


class RowCount(Gate):
    """Refuses a day of data that is suspiciously small."""

    def run(self, examples: Input[Examples], report: Output[Report], at_least: int) -> None:
        rows = sum((examples.rows or {}).values())
        (report.path / "rows.txt").write_text(f"{rows}\n")
        if rows < at_least:
            raise Refused(f"{rows} rows; a day needs at least {at_least}")


def preprocess(columns: Columns) -> dict[str, pl.Expr]:
    """The features of a flight, known before departure, and the label: whether it arrived late."""
    return {
        "departure": bucketize(columns["sched_dep_time"], 12),
        "arrival": bucketize(columns["sched_arr_time"], 12),
        "distance": scale_to_z_score(columns["distance"]),
        "carrier": vocabulary(columns["carrier"]),
        "origin": vocabulary(columns["origin"]),
        "dest": vocabulary(columns["dest"], min_count=5),
        "late": columns["arr_delay"] > LATE_MINUTES,
    }


def late(flights: pa.Table) -> NDArray[np.float64]:
    """1 for flights that arrived more than 15 minutes late; NaN for those that did not arrive."""
    import numpy as np

    delay = flights["arr_delay"].to_numpy().astype(float)
    return np.where(np.isnan(delay), np.nan, delay > LATE_MINUTES)


def matrix(features: pa.Table) -> NDArray[np.float64]:
    """The features of some flights, one column each, in the order of NUMBERS and CATEGORIES."""
    import numpy as np

    return np.column_stack([features[name].to_numpy().astype(float) for name in (*NUMBERS, *CATEGORIES)])


def arrived(rows: Dataset) -> Dataset:
    """The flights that arrived, and so have a label."""
    from spanwise.input import col

    return rows.filter(~col("late").is_null())


def train(task: TrainerTask) -> None:
    """Fits a logistic regression on the flights that arrived."""
    import joblib
    from sklearn.compose import make_column_transformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    service = os.environ.get("SPANWISE_SERVICE")
    rows = task.examples.dataset("train", prepare=arrived, service=service)
    if service:
        rows = rows.distribute(service, "exactly_once")
    flights = rows.to_arrow()
    log.info("training-started", extra={"flights": flights.num_rows, "service": service})
    categories = [len(NUMBERS) + number for number in range(len(CATEGORIES))]
    columns = make_column_transformer((OneHotEncoder(handle_unknown="ignore"), categories), remainder="passthrough")
    model = make_pipeline(columns, LogisticRegression(C=0.1, max_iter=1000))
    model.fit(matrix(flights), flights["late"].to_numpy())
    joblib.dump(model, task.model_dir / "model.joblib")


def predict(model: Path, flights: pa.Table) -> NDArray[np.float64]:
    """The probability of each flight to be late, from raw columns: the graph it was trained with is in the model."""
    fitted, graph = _loaded(model)
    chances: NDArray[np.float64] = fitted.predict_proba(matrix(graph.apply(flights, outputs=[*NUMBERS, *CATEGORIES])))[
        :, 1
    ]
    return chances


@functools.cache
def _loaded(model: Path) -> tuple[Fitted, Preprocessor]:
    import joblib

    return joblib.load(model / "model.joblib"), Preprocessor.load(model / "graph")


def flights(data: str, serving: str, window: int = 7, since: str = "2013-01-01") -> Pipeline:
    ingest = ExampleGen(pattern=f"{data}/{{YYYY}}-{{MM}}-{{DD}}/v{{VERSION}}/*.csv")
    count = RowCount(examples=ingest["examples"], at_least=100)
    statistics = StatisticsGen(examples=count["examples"])
    earlier = Previous(statistics["statistics"], n=28, name="Earlier")
    schema = SchemaGen(statistics=statistics["statistics"], earlier=earlier["statistics"], settled_after=3)
    before = Previous(statistics["statistics"])
    validator = ExampleValidator(
        statistics=statistics["statistics"], schema=schema["schema"], previous=before["statistics"]
    )
    gate = AnomalyGate(examples=count["examples"], anomalies=validator["anomalies"])

    recent = RollingWindow(gate["examples"], size=window, since=since)
    transform = Transform(examples=recent["examples"], preprocessing_fn=preprocess)
    trainer = Trainer(examples=transform["examples"], graph=transform["graph"], run_fn=train)
    champion = Champion(trainer["model"])
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

    checks = [ingest, count, statistics, earlier, schema, before, validator, gate]
    learning = [recent, transform, trainer, champion, evaluator, pusher]
    libraries = ("sklearn.compose", "sklearn.linear_model", "sklearn.preprocessing")
    return Pipeline("flights", [*checks, *learning], preload=libraries)
