"""A law over random histories: whatever was run before, a model learns from what was given last, or nothing runs.

A few steps of a pipeline's life, drawn at random: files arrive, are corrected, rewritten and restored; whole runs, runs
with another parameter, parts, failures and resumes follow each other. A model of a few lines says what the window is
after each step. A part that is refused has to be one for which no earlier run has chosen that window.
"""

import random

import pytest

from spanwise.orchestrator import Component, Examples, Input, Model, Output, Pipeline, State, UsageError
from spanwise.orchestrator.base_run import usable_executions
from spanwise.orchestrator.run_request import RunRequest
from spanwise.orchestrator.testing import Trial
from spanwise.resolvers import RollingWindow
from spanwise.scheduler.run.resume import resume_request
from tests.scenario.random_life import Ingest, list_window, read_text, take_step

SEEDS = range(8)
STEPS = 14
SPANS = 3


class Clean(Component):
    def run(self, examples: Input[Examples], clean: Output[Examples], factor: int) -> None:
        clean.span, clean.version, clean.split_names = examples.span, examples.version, examples.split_names
        (clean.path / "text").write_text(f"{read_text(examples)}x{factor}")


class Learn(Component):
    def run(self, examples: Input[list[Examples]], model: Output[Model], fails: bool) -> None:
        if fails:
            raise ValueError("as drawn")
        (model.path / "x").touch()


def pipeline(lake, factor=1, *, fails=False):
    ingest = Ingest(lake=str(lake))
    clean = Clean(examples=ingest["examples"], factor=factor)
    window = RollingWindow(clean["clean"], size=2, since=1, name="Window")
    return Pipeline("p", [ingest, clean, window, Learn(examples=window["clean"], fails=fails)])


class Life:
    """The pipeline's life so far, and the model of it."""

    def __init__(self, folder, seed):
        self.draw = random.Random(seed)
        self.lake = folder / "lake"
        self.lake.mkdir()
        self.trial = Trial(folder / "root")
        self.files = {}  # version and text by span, as they are in the lake
        self.given = {}  # by span, what Clean gave last
        self.windows = []  # every window that a run has chosen
        self.failed = []  # runs that can be resumed
        self.log = []
        for span in (1, 2):
            self.write(span)
            self.run_span(span)

    @property
    def window(self):
        """What a window has to read now; None where a span is missing."""
        return list_window(self.given)

    def step(self):
        weights = {self.arrive: 3, self.whole: 2, self.ingest: 3, self.learn: 4, self.choose: 1, self.resume: 2}
        take_step(self.draw, weights)

    def arrive(self):
        self.write(self.draw.randint(1, SPANS))

    def write(self, span):
        """A span arrives, is corrected by a new version, or its file is changed in place to one of two texts."""
        version, _ = self.files.get(span, (1, ""))
        self.files[span] = (version + self.draw.choice([0, 0, 1]), self.draw.choice("AB"))
        (self.lake / str(span)).write_text("{} {}".format(*self.files[span]))

    def whole(self):
        self.run_span(self.draw.choice(list(self.files)), fails=self.draw.random() < 0.4)

    def ingest(self):
        self.run_span(self.draw.choice(list(self.files)), last="Clean")

    def run_span(self, span, *, last=None, fails=False):
        factor = self.draw.choice([1, 1, 2])
        asked = pipeline(self.lake, factor, fails=fails)
        part = RunRequest(selection=asked.select(last=[last] if last else []), span=span)
        self.log.append(f"run {span} {self.files[span]} x{factor} to {last} fails={fails}")
        ran = self.trial.run(asked, part)
        version, text = self.files[span]
        self.given[span] = f"{span}v{version}{text}x{factor}"
        self.check(ran, fails=fails, may_lack=last is not None)

    def learn(self):
        self.part("Learn")

    def choose(self):
        self.part("Window")

    def part(self, first):
        asked = pipeline(self.lake)
        self.log.append(f"from {first}")
        try:
            ran = self.trial.run(asked, RunRequest(selection=asked.select(first=[first])))
        except UsageError:
            assert first == "Window" or self.window not in self.windows, self.log
            assert first == "Learn" or not self.given, self.log
            return
        self.check(ran)

    def resume(self):
        if not self.failed:
            return
        run = self.draw.choice(self.failed)
        asked, executions = pipeline(self.lake), usable_executions(self.trial.store, self.trial.store.executions(run))
        self.log.append(f"resume {run.number}")
        try:
            ran = self.trial.run(asked, resume_request(run, executions, asked))
        except UsageError:
            return
        self.check(ran)

    def check(self, ran, *, fails=False, may_lack=False):
        """What a run has read is what the model says."""
        window = ran.outcome.executions.get("Window")
        if window is not None and "Window" in ran.run.nodes:
            assert (window.state is State.CACHED) == (self.window is not None), self.log
        if window is not None and window.state.succeeded:
            chosen = [read_text(a) for a in window.outputs["clean"]]
            assert chosen == self.window, self.log
            self.windows.append(chosen)
        if (learned := ran.outcome.executions.get("Learn")) is not None and learned.state.succeeded:
            read = [read_text(a) for a in learned.inputs["examples"]]
            assert read == self.window, self.log
        if ran.run.state is State.FAILED:
            self.failed.append(ran.run)
        assert ran.outcome.succeeded or fails or self.window is None or may_lack, self.log


@pytest.mark.parametrize("seed", SEEDS)
def test_a_model_learns_from_what_was_given_last(tmp_path, seed):
    """After each step, what the window chose and what was learned from is what the model of the history says."""
    life = Life(tmp_path, seed)
    for _ in range(STEPS):
        life.step()

    assert life.log
