"""Functions that a fresh process imports: what a user's predict functions do, well and badly."""

import functools
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from tests import without_pandas


@functools.cache
def loaded(model: Path) -> float:
    return float((model / "factor").read_text())


def times(model: Path, table: pa.Table) -> np.ndarray:
    """Each row's x, times a factor that the model holds."""
    return table["x"].to_numpy() * loaded(model)


def fresh() -> bool:
    """Whether this is not the process of the tests, nor one that was forked from it."""
    return "pytest" not in sys.modules


if fresh():
    without_pandas.refuse()  # no function here wants it


def named(model: Path, table: pa.Table) -> pa.Table:
    """Columns with names of their own."""
    return pa.table({"late": table["x"].to_numpy() > 1, "why": [f"x is {x}" for x in table["x"].to_pylist()]})


def imported(model: Path, table: pa.Table) -> pa.Table:
    """For each row, whether there is a part of pyarrow that imports pandas."""
    return pa.table({"dataset": [fresh() and "pyarrow.dataset" in sys.modules] * len(table)})


def missing(model: Path, table: pa.Table) -> np.ndarray:
    """Needs what the model does not have."""
    return table["x"].to_numpy() * float((model / "weights").read_text())


def unknown_module(model: Path, table: pa.Table) -> np.ndarray:
    """Needs a library that only the training has."""
    if fresh():
        raise ModuleNotFoundError("No module named 'luggage'")
    return table["x"].to_numpy()


def nan_somewhere(model: Path, table: pa.Table) -> np.ndarray:
    """One prediction is no number."""
    found = table["x"].to_numpy().astype(float)
    found[1] = np.nan
    return found


def too_few(model: Path, table: pa.Table) -> np.ndarray:
    """One prediction is missing."""
    return table["x"].to_numpy()[1:]


def different(model: Path, table: pa.Table) -> np.ndarray:
    """Not the numbers that training saw."""
    return table["x"].to_numpy() + (0.5 if fresh() else 0.0)


def slow(model: Path, table: pa.Table) -> np.ndarray:
    """Does not come to an end in the process that serves."""
    if fresh():
        time.sleep(600)
    return table["x"].to_numpy()


def dies(model: Path, table: pa.Table) -> np.ndarray:
    """Takes the process with it."""
    if fresh():
        os.kill(os.getpid(), signal.SIGKILL)
    return table["x"].to_numpy()


def lists(model: Path, table: pa.Table) -> pa.Table:
    """Several numbers for each row, of which the fresh process rounds one otherwise, under the name of an option."""
    return pa.table(
        {"file": [[0.25, x + (1e-12 if fresh() else 0.0)] for x in table["x"].to_pylist()], "allow": table["x"]}
    )
