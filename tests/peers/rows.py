"""Rows that the peers and spanwise are both given: skewed numbers, ties, missing values, a constant, rare texts."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

COUNT = 20_000


def make_rows(seed: int, shift: float = 0.0) -> pa.Table:
    """The rows of a span."""
    random = np.random.default_rng(seed)
    fare = np.round(random.lognormal(2 + shift, 0.8, COUNT), 3).astype(np.float32).astype(np.float64)
    delay = random.normal(10 * shift, 30, COUNT)
    who = random.zipf(1.4, COUNT) % 300
    return pa.table(
        {
            "fare": fare,
            "delay": pa.array(np.where(random.random(COUNT) < 0.02, np.nan, delay), from_pandas=False),
            "late": pa.array([None if r < 0.1 else float(d) for r, d in zip(random.random(COUNT), delay, strict=True)]),
            "whole": random.integers(-500, 500, COUNT),
            "few": random.integers(0, 5, COUNT),
            "constant": np.full(COUNT, 0.1),
            "who": [f"r{number:03}" for number in who],
            "weight": np.round(random.exponential(2, COUNT), 3).astype(np.float32).astype(np.float64),
        }
    )


def make_scores(seed: int) -> pa.Table:
    """Labels, scores with ties, weights, and a slice."""
    random = np.random.default_rng(seed)
    label = random.integers(0, 2, COUNT)
    score = np.clip(np.round(random.normal(0.35 + 0.3 * label, 0.2), 2), 0.01, 0.99)
    return pa.table(
        {
            "label": label.astype(np.float64),
            "score": score,
            "weight": np.round(random.exponential(2, COUNT), 3),
            "who": [f"r{number}" for number in random.integers(0, 3, COUNT)],
        }
    )


def write_rows(folder: Path) -> list[Path]:
    """The files of a comparison: a span, the one before, and scores."""
    tables = {"data": make_rows(1), "earlier": make_rows(2, 0.2), "scores": make_scores(3)}
    for name, table in tables.items():
        pq.write_table(table, folder / f"{name}.parquet")
    return [folder / f"{name}.parquet" for name in tables]
