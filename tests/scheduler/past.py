"""A past of the flights pipeline, recorded as its nodes record it: who read what, made what, and from which parts."""

import itertools
import json
from dataclasses import replace
from pathlib import Path

from spanwise.orchestrator import Blessing, Evaluation, Examples, Execution, Model, PushedModel, Run, State, Statistics
from spanwise.orchestrator.serving import claim_pushes
from spanwise.orchestrator.store import MemoryStore
from spanwise.orchestrator.verdict import append, verdicts_of


class Past:
    """Runs of flights, one after the other, in a store; artifacts lie below a folder."""

    def __init__(self, folder, store=None):
        self.store = store or MemoryStore()
        self.folder = folder
        self.serving = folder / "serving"
        self.run = None
        self._done = set()  # nodes of the run; a second turn of one begins another run
        self._folders = iter(range(1, 10_000))

    def begin(self, span=None, **facts):
        self.run = self.store.begin_run(
            Run(
                pipeline="flights",
                calendar="day",
                span=span,
                source=str(Path("flights.py").absolute()),
                state=State.COMPLETE,
                **facts,
            )
        )
        self._done = set()
        return self.run

    def do(
        self, node, inputs=None, state=State.COMPLETE, parts=None, parameters=None, reused=None, error=None, **outputs
    ):
        if self.run is None or node in self._done:
            self.begin()
        self._done.add(node)
        if node not in self.run.nodes:  # a run names its nodes when it begins
            recorded_run = self.store.run("flights", self.run.number)
            self.run = replace(recorded_run, nodes=(*recorded_run.nodes, node))
            self.store.update_run(self.run)
        begun = self.store.begin(
            Execution(
                pipeline="flights",
                run=self.run.number,
                node=node,
                component=node.removesuffix("2"),
                replay=self.run.replay,
            )
        )
        recorded = {name: json.dumps(value) for name, value in (parameters or {}).items()}
        ended = replace(
            begun,
            state=state,
            inputs={key: tuple(found) for key, found in (inputs or {}).items()},
            outputs={key: tuple(found) for key, found in outputs.items()},
            parameters=recorded,
            key="".join(parts.values()) if parts else "",
            key_parts=parts or {},
            reused=reused,
            error=error,
            reason="no cached result matched" if reused is None else "same as before",
        )
        pushes = [] if ended.replay else claim_pushes(self.store, ended, itertools.chain(*outputs.values()))
        made = self.store.publish(ended, *pushes).outputs
        if reused is None:
            append(self.store, verdicts_of(itertools.chain(*outputs.values()), judge=node, run=self.run.name))
        return made

    def draft(self, kind, content="c", **properties):
        folder = self.folder / "root" / str(next(self._folders))
        folder.mkdir(parents=True)
        return kind(str(folder), content=content, size_bytes=7, properties=properties)

    def ingest(self, span, version=1, content=None, node="ExampleGen"):
        rows = self.draft(
            Examples, content or f"{span}v{version}", span=span, version=version, split_names=["train"], calendar="day",
            rows={"train": 9},
        )  # fmt: skip
        return self.do(node, examples=[rows])["examples"][0]

    def count(self, examples):
        facts = {"span": examples.properties["span"], "split_names": ["train"]}
        return self.do("StatisticsGen", {"examples": [examples]}, statistics=[self.draft(Statistics, **facts)])

    def train(self, window, base=None, from_base=True):
        spans = [e.properties["span"] for e in window]
        named = base.name if base is not None and from_base else None
        model = self.draft(Model, f"model {next(self._folders)}", spans=spans, base=named)
        read = {"examples": window, "base": [base] if named else []}  # one that is not used is no input
        return self.do("Trainer", read, model=[model])["model"][0]

    def evaluate(self, model, window, baseline=None, **metrics):
        return self.do(
            "Evaluator",
            {"model": [model], "examples": window, "baseline": [baseline] if baseline is not None else []},
            evaluation=[self.draft(Evaluation, metrics=metrics or {"auc": 0.7})],
            blessing=[self.draft(Blessing, blessed=1, current_model=model.name, current_model_id=model.id)],
        )

    def push(self, model, version, *, on_disk=True):
        where = (self.serving if on_disk else Path("/another/machine/serving")) / str(version)
        if on_disk:
            where.mkdir(parents=True)
            (where / ".spanwise.json").write_text(json.dumps({"model": model.name, "content": model.content}))
        pushed = self.draft(
            PushedModel, pushed=1, pushed_destination=str(where), pushed_version=str(version), model=model.name
        )
        return self.do("Pusher", {"model": [model]}, pushed_model=[pushed])["pushed_model"][0]
