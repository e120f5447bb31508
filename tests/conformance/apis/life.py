"""What becomes of nodes in runs: `life`. Each scenario is run by the real runner, in real child processes.

The states are those of the nodes that the reference names; nodes of ours that only set the stage are left out. Where
the reference's `run` raises, ours returns an outcome that did not succeed, and the command exits with 1.
"""

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from spanwise.components import ExampleGen
from spanwise.orchestrator import Attempt, Component, Held, Input, Model, Node, Output, Outputs, Pipeline, SpanwiseError
from spanwise.orchestrator.local_executor import LocalExecutor
from spanwise.orchestrator.run_request import Event, RunOutcome
from spanwise.orchestrator.runner import run
from spanwise.orchestrator.store import Address
from spanwise.resolvers import Latest, LatestBlessed
from spanwise.scheduler.project.load import load
from tests.components.flow import Bench
from tests.conformance.judge import NotMapped


def _called(calls: str) -> None:
    with Path(calls).open("a") as file:
        file.write("called\n")


class Load(Component):
    """Makes something."""

    def run(self, *, model: Output[Model], calls: str) -> None:
        _called(calls)
        (model.path / "value").write_text("1")


class Fail(Component):
    """Reads it, begins to write, and fails."""

    def run(self, *, loaded: Input[Model], model: Output[Model]) -> None:
        (model.path / "half").write_text("1")
        raise RuntimeError("fails")


class Stop(Component):
    """Somebody presses Ctrl-C while it works."""

    def run(self, *, loaded: Input[Model], attempt: Attempt) -> None:
        os.kill(attempt.run.pid, signal.SIGINT)
        time.sleep(600)


class Consumer(Component):
    """Needs something to read, and makes nothing."""

    def run(self, *, model: Input[Model], calls: str) -> None:
        _called(calls)


class Nothing(Component):
    """Turns out to make nothing."""

    def run(self, *, models: Outputs[Model]) -> None: ...


class ManyConsumer(Component):
    """Needs one or more to read."""

    def run(self, *, models: Input[list[Model]]) -> None: ...


class OptionalConsumer(Component):
    """Does without."""

    def run(self, *, model: Input[Model | None]) -> None: ...


class Alone(Component):
    """Reads nothing and makes nothing."""

    def run(self, *, calls: str) -> None:
        _called(calls)


class Add(Component):
    """Makes something on a condition that what it reads decides."""

    def run(self, *, loaded: Input[Model], models: Outputs[Model], wanted: str) -> None:
        if (loaded.path / "value").read_text() == wanted:
            models.new()


class LoadTwo(Component):
    """Makes two."""

    def run(self, *, models: Outputs[Model]) -> None:
        for _ in range(2):
            (models.new().path / "value").write_text("1")


class Plus(Component):
    """Computes with a number that an earlier node made."""

    def run(self, *, loaded: Input[Model], model: Output[Model], more: int) -> None:
        (model.path / "value").write_text(str(int((loaded.path / "value").read_text()) + more))


class CsvExampleGen(ExampleGen):
    preload: ClassVar[Any] = ()  # it does not come to an ingest, so nothing heavy is needed


@dataclass
class Stage:
    """A place to run things in, and what is counted there."""

    bench: Bench
    calls: Path = field(init=False)

    def __post_init__(self) -> None:
        self.calls = self.bench.root / "calls"
        self.calls.touch()

    def run(self, *nodes: Node, **request: Any) -> RunOutcome:
        return self.bench.run(*nodes, **request)

    def load(self, kind: type[Component] = Load) -> Component:
        return kind(calls=str(self.calls))

    def consumer(self, load: Component) -> Component:
        return Consumer(model=load["model"], calls=str(self.calls))

    def count(self, node: str) -> int:
        """The models that a node has published, over all runs."""
        return len(list(self.bench.store.newest(Address("p", node, "model"))))


def _told(outcome: RunOutcome, *nodes: str) -> dict[str, Any]:
    states = {name: execution.state.name for name, execution in outcome.executions.items()}
    return {
        "states": {name: state for name, state in states.items() if not nodes or name in nodes},
        "run_raises": not outcome.succeeded,
    }


def _executor_raises(stage: Stage) -> dict[str, Any]:
    load = stage.load()
    fail = Fail(loaded=load["model"])
    outcome = stage.run(load, fail, stage.consumer(fail))
    return {
        **_told(outcome),
        "model_artifacts": stage.count("Fail"),
        "output_dir_left": any((stage.bench.root / "p" / "Fail").glob("*/*")),
    }


def _input_missing(stage: Stage) -> dict[str, Any]:
    nothing = Nothing()
    return _told(stage.run(nothing, ManyConsumer(models=nothing["models"], name="Consumer")), "Consumer")


def _nothing_chosen(resolver: type[Latest | LatestBlessed]) -> "Scenario":
    def play(stage: Stage) -> dict[str, Any]:
        load = stage.load()
        chosen = resolver(load["model"], name="r")
        return _told(stage.run(load, chosen, Consumer(model=chosen["model"], calls=str(stage.calls))), "r", "Consumer")

    return play


def _optional_missing(stage: Stage) -> dict[str, Any]:
    load = stage.load()
    chosen = LatestBlessed(load["model"])
    return _told(stage.run(load, chosen, OptionalConsumer(model=chosen["model"], name="Consumer")), "Consumer")


def _driver_raises(stage: Stage) -> dict[str, Any]:
    return _told(stage.run(CsvExampleGen(pattern=f"{stage.bench.root}/lake/{{SPAN}}/*.csv")))


def _interrupt(stage: Stage) -> dict[str, Any]:
    load = stage.load()
    return _told(stage.run(load, Stop(loaded=load["model"])))


def _concurrent(stage: Stage) -> dict[str, Any]:
    """The second run comes when the first has begun a node."""
    load, second = stage.load(), []

    def start(event: Event) -> None:
        if event.what == "node-started":
            try:
                second.append(stage.run(load).succeeded)
            except Held:
                second.append(False)

    pipeline = Pipeline("p", [load])
    with LocalExecutor(pipeline) as executor:
        first = run(pipeline, executor=executor, store=stage.bench.store, root=stage.bench.root, observe=start)
    return {"both_succeed": first.succeeded and all(second)}


def _condition(wanted: str) -> "Scenario":
    """`Add` inspects what `Load` made, which is 1, and makes something or nothing."""

    def play(stage: Stage) -> dict[str, Any]:
        load = stage.load()
        add = Add(loaded=load["model"], wanted=wanted)
        return _told(stage.run(load, add, ManyConsumer(models=add["models"], name="Print")))

    return play


def _loop(stage: Stage) -> dict[str, Any]:
    """A node that takes one, connected to several."""
    load = LoadTwo(name="Load")
    return _told(stage.run(load, Consumer(model=load["models"], calls=str(stage.calls), name="Print")), "Print")


def _computed(stage: Stage) -> dict[str, Any]:
    """Read as an input, not taken as a parameter."""
    load = stage.load()
    plus = Plus(loaded=load["model"], more=2)
    outcome = stage.run(load, plus)
    (made,) = outcome.executions[plus.name].outputs["model"]
    return {"value": int((made.path / "value").read_text()), "run_raises": not outcome.succeeded}


def _twice(
    *,
    cache: tuple[bool, bool] = (True, True),
    between: Callable[[Stage], None] = lambda _stage: None,
    nodes: Callable[[Stage], Sequence[Component]] | None = None,
    later: type[Component] = Load,
) -> "Scenario":
    """The same pipeline run again, as far as the arguments do not say otherwise."""

    def play(stage: Stage) -> dict[str, Any]:
        def placed(kind: type[Component]) -> Sequence[Component]:
            load = stage.load(kind)
            return [load, stage.consumer(load)]

        stage.run(*(placed(Load) if nodes is None else nodes(stage)), cache=cache[0])
        before = stage.count("Load")
        between(stage)
        outcome = stage.run(*(placed(later) if nodes is None else nodes(stage)), cache=cache[1])
        return {
            **_told(outcome),
            "second_run_states": [execution.state.name for execution in outcome.executions.values()],
            "executor_calls": len(stage.calls.read_text().splitlines()),
            "new_artifacts": stage.count("Load") - before,
        }

    return play


def _remove_output(stage: Stage) -> None:
    (made,) = stage.bench.store.newest(Address("p", "Load", "model"))
    shutil.rmtree(made.path)


def _edited() -> type[Component]:
    """The component as it is after an edit that changes nothing of what it makes."""

    class Load(Component):
        def run(self, *, model: Output[Model], calls: str) -> None:
            _called(calls)
            (model.path / "value").write_text(str(2 - 1))

    return Load


PIPELINE_OF_N = """\
from spanwise.orchestrator import Component, Pipeline


class Step(Component):
    def run(self, *, n: int) -> None: ...


def taxi(n: int{default}) -> Pipeline:
    return Pipeline("p", [Step(n=n)])
"""


def _parameter(default: str) -> "Scenario":
    """A pipeline is a function, and what is known when a run starts is an argument of it."""

    def play(stage: Stage) -> dict[str, Any]:
        file = stage.bench.root / "taxi.py"
        file.write_text(PIPELINE_OF_N.format(default=default))
        try:
            loaded = load(str(file))
        except SpanwiseError as error:
            return {"run_raises": True, "message": str(error).replace(f"{file.parent}/", "")}
        outcome = stage.run(*loaded.pipeline)
        return {**_told(outcome), "value": loaded.parameters["n"]}

    return play


Scenario = Callable[[Stage], Mapping[str, Any]]

SCENARIOS: Mapping[str, Scenario] = {
    "executor_raises": _executor_raises,
    "input_missing": _input_missing,
    "latest_artifact_none": _nothing_chosen(Latest),
    "blessed_none": _nothing_chosen(LatestBlessed),
    "optional_missing": _optional_missing,
    "driver_raises": _driver_raises,
    "interrupt": _interrupt,
    "concurrent": _concurrent,
    "cache_twice": _twice(),
    "nocache_twice": _twice(cache=(False, False)),
    "nocache_then_cache": _twice(cache=(False, True)),
    "cache_then_nocache": _twice(cache=(True, False)),
    "cache_no_output": _twice(nodes=lambda stage: [stage.load(Alone)]),
    "cache_deleted": _twice(between=_remove_output),
    "cache_code_changed": _twice(later=_edited()),
    "runtime_missing": _parameter(""),
    "runtime_default": _parameter(" = 3"),
    "cond_true": _condition("1"),
    "cond_false": _condition("2"),
    "foreach_two": _loop,
    "dynamic_property": _computed,
}


def play(given: Mapping[str, Any]) -> Mapping[str, Any]:
    scenario = given["scenario"]
    if scenario not in SCENARIOS:
        raise NotMapped(scenario)
    with tempfile.TemporaryDirectory() as folder:
        return SCENARIOS[scenario](Stage(Bench(Path(folder))))


APIS = {"life": play}
