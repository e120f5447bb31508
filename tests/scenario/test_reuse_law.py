"""A law of reuse: whatever was run, edited, replayed, collected or damaged before, a run gives what an empty store would.

Random histories of a small pipeline: spans arrive and are corrected, parameters are edited and put back, whole runs,
parts, failures, resumes and replays follow each other, spans are left out by name, and files are removed or cut. Each
output of a run is computed again from what its node has read, as if nothing had been there to reuse, and what a window
reads is computed from the history alone, as of the time of the run. `SPANWISE_TEST_REUSE=300` is the long form.
"""

import os
import random
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar

import pytest

from spanwise.orchestrator import Component, Examples, Input, Model, Output, Pipeline, Report, State, UsageError
from spanwise.orchestrator.base_run import usable_executions
from spanwise.orchestrator.run_request import RunRequest
from spanwise.orchestrator.store import Address
from spanwise.orchestrator.testing import Trial
from spanwise.resolvers import RollingWindow
from spanwise.scheduler.run.resume import resume_request
from tests.scenario.random_life import Ingest, list_window, read_text, take_step

SEEDS = range(int(os.environ.get("SPANWISE_TEST_REUSE", "8")))
STEPS = 18
SPANS = 4


class Clean(Component):
    def run(self, examples: Input[Examples], clean: Output[Examples], counts: Output[Report], factor: int) -> None:
        clean.span, clean.version, clean.split_names = examples.span, examples.version, examples.split_names
        (clean.path / "text").write_text(f"{read_text(examples)}x{factor}")
        (counts.path / "text").write_text(f"count {factor}")


class Learn(Component):
    hints: ClassVar = ("stop",)

    def run(
        self, examples: Input[list[Examples]], counts: Input[Report], model: Output[Model], depth: int, stop: str
    ) -> None:
        if Path(stop).exists():
            raise ValueError("as drawn")
        (model.path / "text").write_text(f"{[read_text(e) for e in examples]} {read_text(counts)} d{depth}")


class Life:
    """The life of the pipeline, and what a few lines say of it."""

    def __init__(self, folder, seed):
        self.draw, self.folder, self.lake = random.Random(seed), folder, folder / "lake"
        self.lake.mkdir()
        self.trial = Trial(folder / "root")
        self.factor = self.depth = 1
        self.files = {}  # version and text by span, as they are in the lake
        self.given = []  # when and for which span an ordinary run gave something, and its text
        self.times = []  # of which there may be a replay
        self.failed = []
        self.texts = {}
        self.log = []
        for span in (1, 2):
            self.correct(span)
            self.whole(span)

    def build(self):
        ingest = Ingest(lake=str(self.lake))
        clean = Clean(examples=ingest["examples"], factor=self.factor)
        window = RollingWindow(clean["clean"], size=2, since=1, name="Window")
        learn = Learn(
            examples=window["clean"], counts=clean["counts"], depth=self.depth, stop=str(self.folder / "stop")
        )
        return Pipeline("p", [ingest, clean, window, learn])

    def window(self, as_of=None):
        """What a window has to read; None where a span is missing."""
        return list_window({span: text for at, span, text in self.given if as_of is None or at <= as_of})

    def step(self):
        weights = {
            self.correct: 3, self.edit: 3, self.whole: 4, self.ingest: 2, self.part: 5,
            self.fail: 2, self.resume: 3, self.replay: 4, self.damage: 3,
        }  # fmt: skip
        take_step(self.draw, weights)

    def correct(self, span=None):
        span = span or self.draw.randint(1, SPANS)
        version = self.files.get(span, (0,))[0] + 1
        self.files[span] = (version, self.draw.choice("AB"))
        (self.lake / str(span)).write_text("{} {}".format(*self.files[span]))
        self.log.append(f"correct {span}: {self.files[span]}")

    def edit(self):
        self.factor, self.depth = self.draw.choice([1, 2]), self.draw.choice([1, 2])
        self.log.append(f"edit x{self.factor} d{self.depth}")

    def whole(self, span=None):
        self.go("whole", [], [], span=span or self.draw.choice(list(self.files)))

    def ingest(self):
        self.go("ingest", [], ["Clean"], span=self.draw.choice(list(self.files)))

    def part(self):
        first = self.draw.choice(["Clean", "Window", "Learn"])
        self.go("part", [first], [], span=self.draw.choice([None, *self.files]))

    def fail(self):
        (self.folder / "stop").touch()
        self.go("fail", [], [], span=self.draw.choice(list(self.files)))
        (self.folder / "stop").unlink()

    def replay(self):
        if self.times:
            as_of, first = self.draw.choice(self.times), self.draw.choice([[], [], ["Clean"], ["Window"], ["Learn"]])
            span = self.draw.choice(list(self.files)) if not first else self.draw.choice([None, *self.files])
            self.go(f"replay of {self.times.index(as_of)}", first, [], span=span, as_of=as_of, replay=True)

    def resume(self):
        if self.failed:
            failed, pipeline = self.draw.choice(self.failed), self.build()
            executions = usable_executions(self.trial.store, self.trial.store.executions(failed))
            self.run(f"resume {failed.number}", pipeline, resume_request(failed, executions, pipeline))

    def damage(self):
        """Removes or cuts the files of something that was published."""
        key = self.draw.choice([("Ingest", "examples"), ("Clean", "clean"), ("Clean", "counts"), ("Learn", "model")])
        found = list(self.trial.store.newest(Address("p", *key))) or [
            a
            for span in self.trial.store.spans(Address("p", *key))
            for a in self.trial.store.of_span(Address("p", *key), span)
        ]
        if found:
            artifact = self.draw.choice(found)
            self.log.append(f"damage {artifact.name}")
            if self.draw.random() < 0.5:
                shutil.rmtree(artifact.uri, ignore_errors=True)
            elif Path(artifact.uri, "text").exists():
                Path(artifact.uri, "text").write_text("cut")

    def go(self, what, first, last, **asked):
        pipeline = self.build()
        selection = pipeline.select(first=first, last=last) if first or last else None
        self.run(f"{what} {first} {last} {asked}", pipeline, RunRequest(selection=selection, source="p.py", **asked))

    def run(self, what, pipeline, request):
        self.log.append(what)
        try:
            ran = self.trial.run(pipeline, request)
        except UsageError as refused:
            self.log.append(f"  refused: {refused}")
            return
        self.log.append(
            "  " + ", ".join(f"{n}: {e.state.value} {e.error or ''}" for n, e in ran.outcome.executions.items())
        )
        self.check(ran.outcome)
        self.times.append(datetime.now(UTC))
        if ran.run.state is State.FAILED:
            self.failed.append(ran.run)

    def text_of(self, artifact):
        """What an artifact held when it was published."""
        if artifact.id not in self.texts:
            self.texts[artifact.id] = read_text(artifact)
        return self.texts[artifact.id]

    def check(self, outcome):
        """Each output is what its node makes of what it has read; a window read what the history says."""
        run = outcome.run
        done = {n: e for n, e in outcome.executions.items() if e.state.succeeded and n in run.nodes}
        read, made = (
            {(n, key): [self.text_of(a) for a in found] for n, e in done.items() for key, found in of(e).items()}
            for of in (lambda e: e.inputs, lambda e: e.outputs)
        )
        if "Ingest" in done:
            version, text = self.files[run.span]
            assert made["Ingest", "examples"] == [f"{run.span}v{version}{text}"], self.log
        if "Clean" in done:
            assert made["Clean", "clean"] == [f"{read['Clean', 'examples'][0]}x{self.factor}"], self.log
            assert made["Clean", "counts"] == [f"count {self.factor}"], self.log
            if not run.replay:
                (clean,), ended = done["Clean"].outputs["clean"], done["Clean"].ended
                at = clean.created if done["Clean"].state is State.COMPLETE else ended
                self.given.append((at, clean.properties["span"], self.text_of(clean)))
                self.times.append(at)
        if "Window" in done:
            assert made["Window", "clean"] == self.window(run.as_of), self.log
        if "Learn" in done:
            assert read["Learn", "examples"] == self.window(run.as_of), self.log
            assert read["Learn", "counts"] == [f"count {self.factor}"], self.log
            (counts,) = read["Learn", "counts"]
            assert made["Learn", "model"] == [f"{read['Learn', 'examples']} {counts} d{self.depth}"], self.log
        for execution in done.values():
            for artifact in (a for found in execution.outputs.values() for a in found):
                assert execution.node == "Window" or read_text(artifact) == self.texts[artifact.id]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_gives_what_an_empty_store_would(tmp_path, seed):
    """After any history, what a run gives is computed from what it reads, and it reads what the history says."""
    life = Life(tmp_path, seed)
    for _ in range(STEPS):
        life.step()

    assert life.log
