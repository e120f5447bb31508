"""What lineage and taint cost when much was recorded: with warm starts, which tie every model to all before it, too."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.figures import Figure, at_most, median_s, show
from spanwise.orchestrator import (
    Artifact,
    Blessing,
    Evaluation,
    Examples,
    Execution,
    Model,
    PushedModel,
    Run,
    State,
    Statistics,
    TransformGraph,
)
from spanwise.orchestrator.artifact import Value
from spanwise.orchestrator.lineage import Direction, walk
from spanwise.orchestrator.mlmd import open_store
from spanwise.orchestrator.store import Address, Store
from spanwise.scheduler.inspect import lineage
from spanwise.scheduler.inspect.taint import format_taint, trace_taint

ARTIFACTS = 100_000
RUNS = 500
WINDOW = 7
LONG_AGO = 365
AT_ONCE = 1000


def measured() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(str(Path(folder) / "metadata.db"))
        made = sum(_publish(store, name, warm=warm) for name, warm in (("cold", False), ("warm", True)))
        _fill(store, ARTIFACTS - made)
        yield Figure(name="artifacts in the metadata", value=ARTIFACTS, unit="")
        yield Figure(name="of them in runs of the two pipelines asked about", value=made, unit="")
        for pipeline in ("cold", "warm"):
            yield from _tracing(store, pipeline)
        store.close()


def _tracing(store: Store, pipeline: str) -> Iterator[Figure]:
    wrong = RUNS - LONG_AGO
    found = trace_taint(store, pipeline, wrong, version=1)
    taken = median_s(lambda: format_taint(trace_taint(store, pipeline, wrong, version=1)), times=3)
    yield at_most(f"tainted, {pipeline} starts, {len(found.models)} models", taken, "s", 1)
    newest = next(store.newest(Address(pipeline, "Trainer", "model")))
    oldest = store.of_span(Address(pipeline, "ExampleGen", "examples"), wrong)[0]
    for start, way in ((newest, Direction.UP), (oldest, Direction.DOWN)):
        walked = walk(store, [start], way)
        taken = median_s(lambda start=start, way=way: _lineage(store, start, way), times=3)  # type: ignore[misc]
        name = f"lineage {way}, {pipeline} starts, {len(walked.artifacts)} artifacts"
        yield at_most(name, taken, "s", 1)


def _lineage(store: Store, start: Artifact, way: Direction) -> str:
    found = walk(store, [start], way)
    return lineage.format_tree(found, lineage.find_calendars(store, found.artifacts.values()))


@dataclass(frozen=True, kw_only=True)
class _Node:
    """One node of one run: publishes what it is given."""

    store: Store
    run: Run
    name: str

    def make(self, inputs: Mapping[str, Sequence[Artifact]], **outputs: Sequence[Artifact]) -> Execution:
        begun = self.store.begin(
            Execution(pipeline=self.run.pipeline, run=self.run.number, node=self.name, component=self.name)
        )
        ended = replace(
            begun,
            state=State.COMPLETE,
            inputs={key: tuple(found) for key, found in inputs.items()},
            outputs={key: tuple(found) for key, found in outputs.items()},
            parameters={"beam_runner": "null", "split": '[["train", 2], ["eval", 1]]'},
            key=f"{self.run.name}/{self.name}",
            key_parts={name: f"{len(name):032x}" for name in ("code", "component", *map("input {}".format, inputs))},
        )
        return self.store.publish(ended)


def _publish(store: Store, pipeline: str, *, warm: bool) -> int:
    """A run a day, as the worked example has them; how many artifacts that makes."""
    made = 0
    window: list[Artifact] = []
    base: tuple[Artifact, ...] = ()
    for span in range(1, RUNS + 1):
        run = store.begin_run(Run(pipeline=pipeline, calendar="day", span=span, state=State.COMPLETE))
        done = [
            ingested := _Node(store=store, run=run, name="ExampleGen").make({}, examples=[_examples(span)]),
        ]
        window = [*window, *ingested.outputs["examples"]][-WINDOW:]
        spans = [int(str(e.properties["span"])) for e in window]
        done += [
            _Node(store=store, run=run, name="StatisticsGen").make(
                ingested.outputs, statistics=[Statistics("/nowhere", properties={"span": span, "split_names": []})]
            ),
            transformed := _Node(store=store, run=run, name="Transform").make(
                {"examples": window}, graph=[TransformGraph("/nowhere")], examples=[_examples(s) for s in spans]
            ),
            trained := _Node(store=store, run=run, name="Trainer").make(
                {**transformed.outputs, "base": base}, model=[_model(spans, base)]
            ),
        ]
        model = trained.outputs["model"][0]
        done += [
            evaluated := _Node(store=store, run=run, name="Evaluator").make(
                {"examples": window, "model": [model], "baseline": base},
                evaluation=[Evaluation("/nowhere", properties={"metrics": {"auc": 0.5}})],
                blessing=[Blessing("/nowhere", properties={"blessed": 1, "current_model": model.name})],
            ),
            _Node(store=store, run=run, name="Pusher").make(
                {"model": [model], "blessing": evaluated.outputs["blessing"]}, pushed_model=[_pushed(model, span)]
            ),
        ]
        base = (model,) if warm else ()
        made += sum(len(row) for execution in done for row in execution.outputs.values())
    return made


def _examples(span: int) -> Examples:
    return Examples(
        "/nowhere",
        content=f"{span:032x}",
        properties={
            "span": span, "version": 1, "split_names": ["train", "eval"], "calendar": "day",
            "rows": {"train": 600, "eval": 300}, "columns": {f"column_{n}": "int64" for n in range(20)},
        },
    )  # fmt: skip


def _model(spans: Sequence[int], base: Sequence[Artifact]) -> Model:
    return Model("/nowhere", properties={"spans": list(spans), "base": base[0].name if base else None})


def _pushed(model: Artifact, version: int) -> PushedModel:
    destination = f"/nowhere/serving/{version}"
    facts: dict[str, Value] = {
        "pushed": 1,
        "pushed_destination": destination,
        "pushed_version": str(version),
        "model": model.name,
    }
    return PushedModel("/nowhere", properties=facts)


def _fill(store: Store, artifacts: int) -> None:
    """So many artifacts of another pipeline."""
    run = store.begin_run(Run(pipeline="others", state=State.COMPLETE))
    for first in range(0, artifacts, AT_ONCE):
        spans = range(first, min(first + AT_ONCE, artifacts))
        _Node(store=store, run=run, name=f"Ingest{first}").make({}, examples=[_examples(span) for span in spans])


if __name__ == "__main__":
    sys.exit(show(measured()))
