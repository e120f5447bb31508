"""A root whose pipeline `flights` has run before: records in ml-metadata, and the files of what was published."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from spanwise.orchestrator import Artifact, Examples, Execution, Model, PushedModel, Run, State, TransformGraph
from spanwise.orchestrator.collection import Retention
from spanwise.orchestrator.mlmd import open_store
from spanwise.orchestrator.publisher import place
from spanwise.orchestrator.serving import claim_pushes
from spanwise.orchestrator.verdict import Verdict, append
from spanwise.scheduler.inspect.disk_inventory import DiskInventory, take_inventory
from spanwise.scheduler.storage import gc

NOTHING = Retention(last=0, younger=timedelta(0), logs=timedelta(days=90))


class Yard:
    """Publishes by hand what the nodes of a run would; `now` is what the store's clock says."""

    def __init__(self, root: Path, name: str = "metadata.db") -> None:
        self.root = root
        self.now = datetime(2013, 1, 1, 3, tzinfo=UTC)
        self.store = open_store(str(root / name), clock=lambda: self.now)

    def run(self, number: int | None = None, *, state: State = State.COMPLETE, **facts: object) -> Run:
        """Begins a run, which has ended; a day after the one before."""
        self.now += timedelta(days=1)
        begun = self.store.begin_run(Run(pipeline="flights", calendar="day", **facts))  # type: ignore[arg-type]
        assert number in (None, begun.number)
        ended = replace(begun, state=state, ended=self.now if state.ended else None)
        self.store.update_run(ended)
        return ended

    def do(
        self,
        run: Run,
        node: str,
        inputs: dict[str, list[Artifact]] | None = None,
        *,
        state: State = State.COMPLETE,
        chosen: dict[str, list[Artifact]] | None = None,
        **made: Artifact,
    ) -> Execution:
        """One execution. What is `made` gets a folder with a file; what is `chosen` is there already."""
        begun = self.store.begin(Execution(pipeline="flights", run=run.number, node=node, component=node))
        outputs: dict[str, tuple[Artifact, ...]] = {k: tuple(found) for k, found in (chosen or {}).items()}
        for key, draft in made.items():
            folder = place(self.root, begun, key)
            folder.mkdir(parents=True)
            (folder / "data").write_text(f"{node} {run.number}")
            if state.succeeded:
                outputs[key] = (type(draft)(str(folder), size_bytes=9 + len(node), properties=draft.properties),)
        ended = replace(
            begun,
            state=State.CACHED if chosen else state,
            inputs={key: tuple(found) for key, found in (inputs or {}).items()},
            outputs=outputs,
        )
        return begun if state is State.RUNNING else self.store.publish(ended)

    def push(self, run: Run, model: Artifact) -> None:
        """Records that a Pusher has pushed a model, which the run no longer uses."""
        pusher = Execution(pipeline="flights", run=run.number, node="Pusher", component="Pusher")
        pushed = PushedModel("", properties={"pushed": 1, "model": model.name})
        self.store.claim(*claim_pushes(self.store, pusher, [pushed]))

    def day(self, span: int, *, window: int = 2, mark: str = "", graph: bool = False) -> Artifact:
        """A whole run: a span, a window of the newest, a model of it; gives the model."""
        run = self.run(span=span)
        (made,) = self.do(run, "ExampleGen", examples=examples(span)).outputs["examples"]
        before = [
            self.store.artifact(f"flights/ExampleGen/examples/{s}/1") for s in range(max(span - window + 1, 1), span)
        ]
        recent = [*before, made]
        self.do(run, "Recent", {"examples": recent}, chosen={"examples": recent})
        read = {"examples": recent}
        if graph:
            read["graph"] = list(self.do(run, "Transform", read, graph=TransformGraph("")).outputs["graph"])
        (model,) = self.do(run, "Trainer", read, model=Model("")).outputs["model"]
        if mark == "blessed":
            append(self.store, [Verdict(mark="blessed", artifact=model.name, given=True, by="ann@host", because="")])
        elif mark == "pushed":
            self.push(run, model)
        return model

    def context(self, retention: Retention = NOTHING, **facts: object) -> gc.CollectionContext:
        return gc.CollectionContext(store=self.store, root=self.root, retention=retention, now=self.now, **facts)  # type: ignore[arg-type]

    def inventory(self, *, logs_days: int = 90) -> DiskInventory:
        return take_inventory(self.store, self.root, "flights", now=self.now, logs=timedelta(days=logs_days))

    def removals(self, retention: Retention = NOTHING) -> list[str]:
        """What would be removed, by its name within the pipeline."""
        return [short(a) for a in gc.plan_collection(self.context(retention), "flights").removals]

    def kept(self, retention: Retention = NOTHING) -> dict[str, tuple[str, ...]]:
        found = gc.plan_collection(self.context(retention), "flights").decisions
        return {short(decision.artifact): decision.reasons for decision in found if decision.reasons}

    def collect(self, retention: Retention = NOTHING, **facts: object) -> gc.CollectionResult:
        context = self.context(retention, **facts)
        return gc.collect(context, gc.plan_collection(context, "flights"))

    def there(self) -> list[str]:
        """Every artifact whose files are there."""
        return [short(a) for a in self.inventory().artifacts]


def examples(span: int) -> Examples:
    return Examples("", properties={"span": span, "version": 1, "split_names": ["train"], "calendar": "day"})


def short(artifact: Artifact) -> str:
    return artifact.name.removeprefix("flights/")
