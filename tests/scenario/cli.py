"""A folder with a pipeline of three numbers a day, and the command line in a warm process of its own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests import warm

PROJECT = Path(__file__).parents[2]

PIPELINE = """
import json

from spanwise import (
    Component, ExampleGen, Examples, Input, Model, Output, Pipeline, Pusher, RollingWindow, Trainer, TrainerTask,
)


def fit(task: TrainerTask) -> None:
    rows = task.table("train")["value"].to_pylist()
    (task.model_dir / "model.json").write_text(json.dumps({"spans": task.spans, "sum": sum(rows)}))


def rides(destination: str = "serving", keep: int = 100) -> Pipeline:
    ingest = ExampleGen(pattern="data/{SPAN}/v{VERSION}/*.csv", ratios={"train": 1})
    recent = RollingWindow(ingest["examples"], size=3, since=1)
    trainer = Trainer(examples=recent["examples"], run_fn=fit)
    pusher = Pusher(model=trainer["model"], destination=destination, keep_versions=keep)
    return Pipeline("rides", [ingest, recent, trainer, pusher])
"""


def lay_out(folder: Path, spans: int) -> Path:
    """A project whose data has this many spans, each of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rides.py").write_text(PIPELINE)
    (folder / "spanwise.toml").write_text("")
    for span in range(1, spans + 1):
        arrive(folder, span)
    return folder


def arrive(folder: Path, span: int, version: int = 1) -> None:
    data = folder / "data" / str(span) / f"v{version}"
    data.mkdir(parents=True)
    (data / "rows.csv").write_text("value\n" + "\n".join(str(100 * span + row) for row in range(20)) + "\n")


def call(folder: Path, *words: str, code: int | None = 0, timeout_s: float = 120) -> str:
    """Runs `spanwise …` in a folder and returns everything it printed; `code` is the exit code that is expected."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SPANWISE_")}
    done = warm.run(
        *words,
        reads_data=True,
        cwd=folder,
        env={**environment, "PYTHONPATH": str(PROJECT / "src"), "NO_COLOR": "1", "COLUMNS": "200"},
        stderr=subprocess.STDOUT,
        timeout_s=timeout_s,
    )
    assert code is None or done.returncode == code, f"spanwise {' '.join(words)}: {done.returncode}\n{done.stdout}"
    return done.stdout
