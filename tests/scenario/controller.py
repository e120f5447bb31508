"""A run in a process of its own, for tests that kill and freeze it: `python -m tests.scenario.controller ROOT [key=value]`.

It says on stdout what happens, one event a line, and at the end how the run ended, or which error it raised.
"""

import os
import sys
import time
from functools import partial
from pathlib import Path

from spanwise.orchestrator import (
    Attempt,
    Blessing,
    Component,
    Examples,
    Gate,
    Input,
    Model,
    Output,
    Pipeline,
    Report,
    SpanwiseError,
    process,
)
from spanwise.orchestrator.lease import Clock
from spanwise.orchestrator.local_executor import LocalExecutor
from spanwise.orchestrator.mlmd import open_store
from spanwise.orchestrator.run_request import RunRequest
from spanwise.orchestrator.runner import run
from spanwise.resolvers import LatestSpans

say = partial(print, flush=True)


class Make(Component):
    """Two outputs, so that half of them could be seen."""

    def run(self, first: Output[Report], second: Output[Report], work_s: float) -> None:
        for output in (first, second):
            (output.path / "a").write_bytes(os.urandom(100_000))
            time.sleep(work_s / 2)
            (output.path / "b").write_bytes(os.urandom(100_000))


class Copy(Component):
    def run(self, source: Input[Report], report: Output[Report], work_s: float) -> None:
        (report.path / "a").write_bytes((source.path / "a").read_bytes())
        time.sleep(work_s)
        (report.path / "b").write_bytes((source.path / "b").read_bytes())


class Day(Component):
    """A span of its own for each run, and a model of it."""

    def run(self, examples: Output[Examples], model: Output[Model], attempt: Attempt, work_s: float) -> None:
        for output in (examples, model):
            (output.path / "a").write_bytes(os.urandom(1000))
            time.sleep(work_s / 2)
        examples.span, examples.version, examples.split_names = attempt.run.number, 1, ["train"]
        model.spans = [attempt.run.number]


class Check(Gate):
    def run(self, examples: Input[Examples], work_s: float) -> None:
        time.sleep(work_s)


class Judge(Component):
    """Blesses the model of every second run."""

    def run(
        self, model: Input[Model], examples: Input[list[Examples]], blessing: Output[Blessing], work_s: float
    ) -> None:
        (blessing.path / "spans").write_text(str([each.span for each in examples]))
        time.sleep(work_s)
        blessing.blessed = model.spans[0] % 2
        blessing.current_model, blessing.current_model_id = model.name, model.id
        blessing.reasons = [] if blessing.blessed else ["an even run"]


class Act(Component):
    """An effect outside the store, behind the fence; waits for the file `go` first."""

    cacheable = False

    def run(self, source: Input[Report], report: Output[Report], attempt: Attempt, place: str) -> None:
        Path(place, "waiting").write_text(str(os.getpid()))
        while not Path(place, "go").exists():
            time.sleep(0.01)
        attempt.check_fence()
        Path(place, f"acted-{attempt.run.number}").touch()


def branching(work_s: float) -> Pipeline:
    make = Make(work_s=work_s)
    copies = [Copy(source=make[key], work_s=work_s, name=f"Copy{i}") for i, key in enumerate(["first", "second"] * 2)]
    last = Copy(source=copies[0]["report"], work_s=work_s, name="Last")
    day = Day(work_s=work_s)
    check = Check(examples=day["examples"], work_s=work_s)
    window = LatestSpans(check["examples"], n=3)
    judge = Judge(model=day["model"], examples=window["examples"], work_s=work_s)
    return Pipeline("branching", [make, *copies, last, day, check, window, judge])


def acting(place: str) -> Pipeline:
    make = Make(work_s=0.0)
    return Pipeline("acting", [make, Act(source=make["first"], place=place)])


def main(root: Path, work_s: float = 0.02, ttl_s: float = 15.0, act: bool = False, elsewhere: bool = False) -> str:
    if elsewhere:  # as seen from another machine, where processes cannot be looked up
        process.machine = lambda: "elsewhere/0/0"
    pipeline = acting(str(root)) if act else branching(work_s)
    with LocalExecutor(pipeline) as executor:
        store = open_store(str(root / "metadata.db"))
        try:
            outcome = run(
                pipeline,
                executor=executor,
                store=store,
                root=root,
                request=RunRequest(cache=False, jobs=4, grace_s=1.0),
                observe=lambda event: say(event.what, event.node),
                clock=Clock(ttl_s=ttl_s),
            )
        except SpanwiseError as error:
            return type(error).__name__
        finally:
            store.close()
    return outcome.run.state.value


if __name__ == "__main__":
    options = dict(word.split("=") for word in sys.argv[2:])
    say(
        "end",
        main(Path(sys.argv[1]), **{k: float(v) if k.endswith("_s") else bool(int(v)) for k, v in options.items()}),
    )
