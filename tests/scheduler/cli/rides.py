"""A pipeline of models that are one number, which its parameter names, and runs of it."""

import shutil
from collections.abc import Iterable
from pathlib import Path

from tests.scheduler.conftest import run_warm

PARTS = """
from pathlib import Path
from spanwise import (
    Champion, Component, Evaluator, Examples, InfraValidator, Input, Model, Output, Pipeline, Pusher, Threshold, Trainer
)
import pyarrow as pa, pyarrow.parquet as pq

class Rows(Component):
    def run(self, examples: Output[Examples]) -> None:
        examples.span, examples.split_names = 1, ["train", "eval"]
        for split in examples.split_names:
            examples.split(split).mkdir()
            pq.write_table(pa.table({"y": [0.0]}), examples.split(split) / "part-0.parquet")

def train(task):
    (task.model_dir / "k").write_text(str(task.parameters["k"]))

def predict(model, table):
    return [float((model / "k").read_text())] * len(table)

def measure(model, most=5.0, **given):
    return Evaluator(
        model=model, label="y", predict_fn=predict, metrics=("mae",), thresholds={"mae": Threshold(at_most=most)},
        replicates=0, **given,
    )
"""
"""What pipelines of a test are made of."""


def train_models(folder: Path, pipeline: str, numbers: Iterable[int]) -> Path:
    """Runs `rides.py` for each number, in a folder of this one; gives a copy of it as it is then."""
    home = folder / "rides"
    home.mkdir()
    (home / "rides.py").write_text(pipeline)
    for k in numbers:
        done = run_warm("run", "rides.py", "--param", f"k={k}", cwd=home, reads_data=True)
        assert done.returncode == 0, done.stdout + done.stderr
    return Path(shutil.copytree(home, home.with_name("kept"), symlinks=True))


def find_served() -> Path:
    """The folder of the highest version below `serving`."""
    versions = [path for path in Path("serving").iterdir() if path.name.isdigit()]
    return max(versions, key=lambda path: int(path.name))
