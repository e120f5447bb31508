"""A law over pipelines that are edited between runs: what a node gives is what the pipeline gives as it stands now.

Whole runs, parts, failures and resumes follow each other, and between them a pipeline is edited: values, code and
connections change, nodes are swapped, renamed, taken out and put back. What each node of a run must give is computed
from the definition alone. A part may be refused instead, and then the command that is printed does what was wanted.
`SPANWISE_TEST_EDITED=300` is the long form.
"""

import os
import random
import re
from pathlib import Path
from typing import ClassVar

import pytest

from spanwise.orchestrator import Component, Input, Output, Pipeline, Report, State, UsageError
from spanwise.orchestrator.base_run import usable_executions
from spanwise.orchestrator.run_request import RunRequest
from spanwise.orchestrator.runner import run
from spanwise.orchestrator.store import MemoryStore
from spanwise.scheduler.run.resume import resume_request
from tests.scenario.inline import InlineExecutor

SEEDS = range(int(os.environ.get("SPANWISE_TEST_EDITED", "8")))
STEPS = 16


def join(above):
    return ",".join((a.path / "text").read_text() for a in above or ())


class Plain(Component):
    hints: ClassVar = ("stop",)

    def run(self, above: Input[list[Report] | None], report: Output[Report], value: int, stop: str) -> None:
        if Path(stop).exists():
            raise ValueError("as drawn")
        (report.path / "text").write_text(f"plain{value}({join(above)})")


class Other(Component):
    hints: ClassVar = ("stop",)

    def run(self, above: Input[list[Report] | None], report: Output[Report], value: int, stop: str) -> None:
        if Path(stop).exists():
            raise ValueError("as drawn")
        (report.path / "text").write_text(f"other{value}({join(above)})")


class Uncached(Plain):
    """It is executed each time; what is recorded of it are its parameters."""

    def run(self, above: Input[list[Report] | None], report: Output[Report], value: int, stop: str) -> None:
        super().run(above, report, value, stop)


CLASSES = {"plain": Plain, "other": Other, "uncached": Uncached}


class Life:
    """A pipeline, as it stands and as it was; each node by its name: its class, its value and what it reads."""

    def __init__(self, folder, seed):
        self.draw, self.folder, self.store = random.Random(seed), folder, MemoryStore()
        self.nodes = {
            "a": ("plain", 1, ()),
            "b": ("plain", 2, ("a",)),
            "c": ("plain", 3, ("a", "b")),
            "d": ("uncached", 4, ("c",)),
        }
        self.past, self.failed, self.whole_of = [self.nodes], [], None
        self.log = []

    def build(self):
        built = {}
        for name, (kind, value, above) in self.nodes.items():
            stop = str(self.folder / f"stop-{name}")
            built[name] = CLASSES[kind](
                name=name, above=[built[a]["report"] for a in above], value=value, stop=stop, cache=kind != "uncached"
            )
        return Pipeline("p", list(built.values()))

    def text_of(self, name):
        """What a node gives."""
        kind, value, above = self.nodes[name]
        return f"{'plain' if kind == 'uncached' else kind}{value}({','.join(map(self.text_of, above))})"

    def step(self):
        kinds = {self.edit: 5, self.whole: 2, self.part: 5, self.fail: 2, self.resume: 3, self.revert: 1}
        (kind,) = self.draw.choices(list(kinds), list(kinds.values()))
        kind()

    def edit(self):
        nodes, name = dict(self.nodes), self.draw.choice(list(self.nodes))
        kind, value, above = nodes[name]
        place = list(nodes).index(name)
        earlier = list(nodes)[:place]
        what = self.draw.choice(["value", "value", "class", "inputs", "swap", "rename", "out", "in"])
        if what == "value":
            nodes[name] = (kind, self.draw.randint(1, 3), above)
        elif what == "class" and kind != "uncached":
            nodes[name] = ("other" if kind == "plain" else "plain", value, above)
        elif what == "inputs" and earlier:
            nodes[name] = (kind, value, tuple(self.draw.sample(earlier, self.draw.randint(0, len(earlier)))))
        elif what == "swap" and earlier:
            other = self.draw.choice(earlier)
            nodes[name], nodes[other] = (*nodes[other][:2], above), (*nodes[name][:2], nodes[other][2])
        elif what == "rename":
            nodes = self.renamed(nodes, name, self.draw.choice([n for n in "abcdef" if n not in nodes]))
        elif what == "out" and len(nodes) > 2:
            del nodes[name]
            nodes = {n: (k, v, tuple(a for a in read if a != name)) for n, (k, v, read) in nodes.items()}
        elif what == "in" and len(nodes) < 5:
            nodes[next(n for n in "abcdef" if n not in nodes)] = ("plain", 5, tuple(earlier[-1:]))
        self.nodes = nodes
        self.past.append(nodes)
        self.log.append(f"{what} {name}: {nodes}")

    def renamed(self, nodes, old, new):
        names = {old: new}
        return {names.get(n, n): (k, v, tuple(names.get(a, a) for a in read)) for n, (k, v, read) in nodes.items()}

    def revert(self):
        self.nodes = self.draw.choice(self.past)
        self.log.append(f"revert to {self.nodes}")

    def whole(self):
        self.go("whole", RunRequest())
        self.whole_of = self.nodes

    def fail(self):
        stop = self.folder / f"stop-{self.draw.choice(list(self.nodes))}"
        stop.touch()
        try:
            self.go(f"whole, with {stop.name}", RunRequest())
        finally:
            stop.unlink()
        self.whole_of = None

    def part(self):
        name, pipeline = self.draw.choice(list(self.nodes)), self.build()
        last = [name] if self.draw.random() < 0.2 else []
        request = RunRequest(selection=pipeline.select(first=[name], last=last), source="p.py")
        try:
            self.go(f"from {name} to {last}", request, last)
        except UsageError as refused:
            assert self.whole_of != self.nodes, self.log
            self.follow(str(refused), request)
        else:
            self.whole_of = None if self.whole_of != self.nodes else self.whole_of

    def resume(self):
        if not self.failed:
            return
        failed, pipeline = self.failed.pop(), self.build()
        executions = usable_executions(self.store, self.store.executions(failed))
        try:
            request = resume_request(failed, executions, pipeline)
            self.go(f"resume {failed.number}", request, failed.nodes)
        except UsageError as refused:
            self.log.append(str(refused))

    def follow(self, refusal, request):
        """Runs what the message says; what is insisted on is not judged."""
        self.log.append(refusal)
        (line,) = re.findall(r"(?:Run what lies between as well|Run the whole pipeline once):  spanwise (.+)", refusal)
        first, last = (re.findall(rf"--{option} (\w+)", line) for option in ("from", "to"))
        self.go(line, RunRequest(selection=self.build().select(first=first, last=last), source="p.py"))

    def go(self, what, request, asked=()):
        """Runs it, and compares what each of its nodes gave."""
        self.log.append(what)
        pipeline = self.build()
        with InlineExecutor(pipeline) as executor:
            outcome = run(pipeline, executor=executor, store=self.store, root=self.folder / "root", request=request)
        if outcome.run.state is State.FAILED:
            self.failed.append(outcome.run)
        for name in outcome.run.nodes:
            execution = outcome.executions.get(name)
            if execution is not None and execution.state.succeeded:
                (made,) = execution.outputs["report"]
                assert (made.path / "text").read_text() == self.text_of(name), (name, self.log)
        assert outcome.succeeded or "stop-" in what, self.log


@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_gives_what_its_pipeline_says_now(tmp_path, seed):
    """After any edits, each node of a run gives what the pipeline as it stands gives, or the part is refused."""
    life = Life(tmp_path, seed)
    for _ in range(STEPS):
        life.step()

    assert life.log
