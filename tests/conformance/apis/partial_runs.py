"""Which nodes a part of a pipeline takes, and whose outputs stand in: `mark`, `partial_runs`, `snapshot_idempotent`."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from spanwise.orchestrator import Component, Input, Output, Pipeline, Report, SpanwiseError
from spanwise.orchestrator.run import State
from tests.components.flow import Bench

Given = Mapping[str, Any]


class Step(Component):
    """Reads what its parents made; makes something."""

    def run(self, *, above: Input[list[Report] | None], made: Output[Report]) -> None: ...


def mark(given: Given) -> dict[str, Any]:
    """The selection, by name."""
    pipeline = _of_graph(given["graph"])
    chosen = pipeline.select(first=given.get("from") or (), last=given.get("to") or (), skip=given.get("skip") or ())
    return {
        "run": sorted(chosen.run),
        "reuse_required": sorted(chosen.required),
        "reuse_optional": sorted(chosen.optional),
        "not_reused": sorted(chosen.dropped),
    }


def _of_graph(graph: Mapping[str, Sequence[str]]) -> Pipeline:
    """A pipeline of these nodes, each with the nodes that read from it."""
    made: dict[str, Step] = {}
    waiting = list(graph)
    while waiting:
        for name in list(waiting):
            above = [parent for parent, children in graph.items() if name in children]
            if all(parent in made for parent in above):
                made[name] = Step(name=name, above=[made[parent]["made"] for parent in above] or None)
                waiting.remove(name)
    return Pipeline("graph", [made[name] for name in graph])


class Number(Component):
    """A number: given, or the first of those read less the others; plus `add`. Or no number, but a failure."""

    def run(
        self,
        *,
        terms: Input[list[Report] | None],
        number: Output[Report],
        value: int = 0,
        add: int = 0,
        fail: bool = False,
    ) -> None:
        if fail:
            raise RuntimeError("fails")
        first, *others = [int((term.path / "number").read_text()) for term in terms or ()] or [value]
        (number.path / "number").write_text(str(first - sum(others) + add))


def run_steps(given: Given) -> dict[str, Any]:
    """Runs one version of a pipeline after the other, whole or in part; what each node made, or how it was refused."""
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        numbers: dict[str, int] = {}  # of our runs, by the reference's name
        return {"per_step": [_run_step(bench, step, numbers) for step in given["steps"]]}


def _run_step(bench: Bench, step: Given, numbers: dict[str, int]) -> dict[str, Any]:
    nodes = list(_numbers(step["nodes"]))
    part = {"first": step.get("from") or (), "last": step.get("to") or (), "skip": step.get("skip") or ()}
    base = step.get("base_run_id")
    try:
        ran = bench.run(
            *nodes,
            selection=Pipeline("p", nodes).select(**part),
            base=None if base is None else numbers.get(base, len(numbers) + 1000),
        )
    except SpanwiseError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    numbers[step["run_id"]] = ran.run.number
    if not ran.succeeded:
        return {"error": f"{ran.run.error}"}
    return {
        name: int((found.path / "number").read_text())
        for name, execution in ran.executions.items()
        if execution.state is State.COMPLETE
        for found in execution.outputs["number"]
    }


def _numbers(nodes: Mapping[str, Given]) -> Iterator[Number]:
    """The nodes, parents first as they are listed; every text is the name of a node that is read."""
    made: dict[str, Number] = {}
    for name, spec in nodes.items():
        read = [read for value in spec.values() for read in ([value] if isinstance(value, str | list) else [])]
        names = [name for one in read for name in ([one] if isinstance(one, str) else one)]
        plain = {key: value for key, value in spec.items() if not isinstance(value, str | list)}
        made[name] = Number(name=name, terms=[made[above]["number"] for above in names] or None, cache=False, **plain)
        yield made[name]


def repeat(given: Given) -> dict[str, Any]:
    """Runs the second half of a pipeline again and again: what is recorded, each time, of the half left out."""
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        load = Number(name="Load", value=1)
        nodes = [load, Number(name="Result", terms=load["number"])]
        whole = bench.run(*nodes)
        for _ in range(given["times"]):
            part = bench.run(*nodes, selection=Pipeline("p", nodes).select(first=["Result"]))
        of_load = [execution for execution in bench.store.executions(part.run) if execution.node == "Load"]
        return {
            "executions_of_reused_node_in_new_run": len(of_load),
            "state": of_load[-1].state.name,
            "same_artifact": [a.id for a in of_load[-1].outputs["number"]]
            == [a.id for a in whole.executions["Load"].outputs["number"]],
        }


APIS = {"mark": mark, "partial_runs": run_steps, "snapshot_idempotent": repeat}
