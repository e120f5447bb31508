"""Records with whatever a test does not care about filled in, and a store that holds some."""

from dataclasses import replace
from datetime import UTC, datetime

from spanwise.orchestrator import Artifact, Examples, Execution, Model, Run, State
from spanwise.orchestrator.artifact import Value
from spanwise.orchestrator.store import MemoryStore

NOON = datetime(2013, 1, 8, 12, 0, 0, tzinfo=UTC)
DAY = 15_710  # 2013-01-05


class Clock:
    """A clock that is told the time."""

    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> datetime:
        return self.now


def begun(store: MemoryStore, pipeline: str = "flights", **facts: object) -> Run:
    return store.begin_run(Run(pipeline=pipeline, calendar="day", **facts))  # type: ignore[arg-type]


def ended(store: MemoryStore, run: Run, state: State = State.COMPLETE, **facts: object) -> Run:
    over = replace(run, state=state, ended=NOON.replace(minute=3), **facts)  # type: ignore[arg-type]
    store.update_run(over)
    return over


def published(
    store: MemoryStore, run: Run, node: str, state: State = State.COMPLETE, outputs: dict[str, Artifact] | None = None
) -> Execution:
    execution = store.begin(Execution(pipeline=run.pipeline, run=run.number, node=node, component=node))
    made = {key: (artifact,) for key, artifact in (outputs or {}).items()}
    return store.publish(replace(execution, state=state, outputs=made, reason="because"))


def examples(span: int, version: int | None = 1) -> Examples:
    properties: dict[str, Value] = {"span": span, "version": version, "split_names": ["train"], "calendar": "day"}
    return Examples(f"/root/{span}/{version}", size_bytes=3_400, properties=properties)


def model() -> Model:
    return Model("/root/model", size_bytes=12)


def filled() -> MemoryStore:
    """Two pipelines: flights with three runs, the last of which failed, and taxi with one."""
    store = MemoryStore(Clock())
    for number, span in enumerate((DAY, DAY + 1, DAY)):
        run = begun(store, span=span)
        published(store, run, "ExampleGen", outputs={"examples": examples(span, version=1 + number // 2)})
        published(store, run, "Trainer", outputs={"model": model()})
        failed = number == 2
        ended(store, run, State.FAILED if failed else State.COMPLETE, error="Pusher failed" if failed else None)
    ended(store, begun(store, "taxi"))
    return store
