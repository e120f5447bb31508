"""A full pipeline of nine nodes on taxi rides, whose training is trivial, or reads all rows with `learns=true`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import spanwise
from spanwise import (
    Champion,
    Columns,
    Evaluator,
    ExampleGen,
    ExampleValidator,
    Pipeline,
    Pusher,
    SchemaGen,
    StatisticsGen,
    Threshold,
    Trainer,
    TrainerTask,
    Transform,
)

if TYPE_CHECKING:
    import numpy as np
    import polars as pl
    import pyarrow as pa
    from numpy.typing import NDArray

LARGE_TIP = 2.0


def preprocess(columns: Columns) -> dict[str, pl.Expr]:
    return {
        "distance": spanwise.scale_to_z_score(columns["distance"]),
        "minutes": spanwise.bucketize(columns["minutes"], 10),
        "fare": spanwise.scale_to_0_1(columns["fare"]),
        "company": spanwise.vocabulary(columns["company"]),
        "zone": spanwise.vocabulary(columns["zone"], min_count=2),
        "tipped": columns["tip"] > LARGE_TIP,
    }


def train(task: TrainerTask) -> None:
    (task.model_dir / "model").write_text("0.1")


def learn(task: TrainerTask) -> None:
    """Streams the rows once. The weight is how much further rides with a large tip go, in standard deviations."""
    far, count = {True: 0.0, False: 0.0}, {True: 0, False: 0}
    for block in task.examples.dataset("train", ["distance", "tipped"]).blocks():
        distance, large = block["distance"].to_numpy(), block["tipped"].to_numpy(zero_copy_only=False)
        for side in (True, False):
            far[side] += float(distance[large == side].sum())
            count[side] += int((large == side).sum())
    (task.model_dir / "model").write_text(repr(far[True] / count[True] - far[False] / count[False]))


def predict(model: Path, rides: pa.Table) -> NDArray[np.float64]:
    import numpy as np

    weight = float((model / "model").read_text())
    scores: NDArray[np.float64] = 1 / (1 + np.exp(-weight * rides["distance"].to_numpy()))
    return scores


def tipped(rides: pa.Table) -> NDArray[np.float64]:
    scores: NDArray[np.float64] = (rides["tip"].to_numpy() > LARGE_TIP).astype(float)
    return scores


def taxi(data: str, serving: str, learns: bool = False) -> Pipeline:
    ingest = ExampleGen(pattern=f"{data}/{{SPAN}}/*.parquet", ratios={"train": 2, "eval": 1})
    statistics = StatisticsGen(examples=ingest["examples"])
    schema = SchemaGen(statistics=statistics["statistics"])
    validator = ExampleValidator(statistics=statistics["statistics"], schema=schema["schema"])
    transform = Transform(examples=ingest["examples"], preprocessing_fn=preprocess, after=[validator])
    trainer = Trainer(examples=transform["examples"], graph=transform["graph"], run_fn=learn if learns else train)
    champion = Champion(trainer["model"])
    evaluator = Evaluator(
        examples=ingest["examples"],
        model=trainer["model"],
        baseline=champion["model"],
        label=tipped,
        predict_fn=predict,
        slices=("company",),
        thresholds={"auc": Threshold(at_least=0.1)},
    )
    pusher = Pusher(model=trainer["model"], blessing=evaluator["blessing"], destination=serving)
    nodes = [ingest, statistics, schema, validator, transform, trainer, champion, evaluator, pusher]
    return Pipeline("taxi", nodes)
