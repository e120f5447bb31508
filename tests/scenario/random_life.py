"""Lives of a small pipeline, drawn at random: files of spans in a folder, and what their windows have to read."""

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

from spanwise.orchestrator import Artifact, Component, Examples, Output


class Ingest(Component):
    """Publishes the file of its span, which holds a version and a text."""

    prepared: ClassVar = ("span", "version", "text")

    def prepare(self, run, history):
        version, text = Path(self.parameters["lake"], str(run.span)).read_text().split()
        return {"span": run.span, "version": int(version), "text": text}

    def run(self, examples: Output[Examples], lake: str, span: int, version: int, text: str) -> None:
        examples.span, examples.version, examples.split_names = span, version, ["train"]
        (examples.path / "text").write_text(f"{span}v{version}{text}")


def read_text(artifact: Artifact) -> str:
    """What was written into an artifact of these pipelines."""
    return (artifact.path / "text").read_text()


def list_window(given: Mapping[int, str]) -> list[str] | None:
    """What a window of two spans has to read, of what was given last for each; None where a span is missing."""
    last = max(given, default=1)
    wanted = [span for span in (last - 1, last) if span >= 1]
    return [given[span] for span in wanted] if all(span in given for span in wanted) else None


def take_step(draw: random.Random, weights: Mapping[Callable[[], None], int]) -> None:
    """Does one of these, the more often the more it weighs."""
    (step,) = draw.choices(list(weights), list(weights.values()))
    step()
