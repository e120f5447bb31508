"""The runs of a pipeline as a grid of nodes, and one run with its graph, its times and its nodes."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from markupsafe import Markup

from spanwise.orchestrator.artifact import Artifact
from spanwise.orchestrator.errors import NotRecorded
from spanwise.orchestrator.placement import Placement, find_placements
from spanwise.orchestrator.run import Execution, Run, State, Trigger
from spanwise.scheduler.formatting import elapsed_s, format_duration, format_run_span, run_calendar, single_line
from spanwise.scheduler.inspect import artifact_summary, find, records
from spanwise.scheduler.ledger.holder import note_left_open
from spanwise.scheduler.web.pages import SIGNS, run_url, style_of
from spanwise.scheduler.web.pictures.charts import Bar, draw_gantt
from spanwise.scheduler.web.pictures.graphs import Box, draw_graph
from spanwise.scheduler.web.site import WebSite

PER_PAGE = 25
MOST_PER_PAGE = 100
LOOK_BACK = 3000
"""How many runs are looked through for those that a filter selects; older ones are on the next page."""


def number_of_run(text: str, pipeline: str) -> int:
    """The number of a run, as an address says it.

    Raises:
        NotRecorded: it is no number, so there is no such run.
    """
    if not text.isdecimal() or len(text) > 9:  # noqa: PLR2004
        raise NotRecorded(f"{text!r} is not the number of a run. See:  spanwise runs {pipeline}")
    return int(text)


def took_s(record: Run | Execution) -> float | None:
    """How long it took, or has taken so far; None where its end was never recorded."""
    return elapsed_s(record, None if record.state.ended else datetime.now(UTC))


@dataclass(frozen=True, kw_only=True)
class RunFilter:
    """Which runs to show."""

    state: str = ""
    trigger: str = ""
    span: str = ""
    text: str = ""  #: in the error, the cause, or the name of a node

    @property
    def empty(self) -> bool:
        return not (self.state or self.trigger or self.span or self.text)

    def fits(self, run: Run) -> bool:
        """Whether a run is one of these."""
        words = " ".join([run.error or "", run.cause, *run.nodes, *run.typed]).lower()
        return (
            self.state in ("", run.state.value)
            and self.trigger in ("", run.trigger.value)
            and any(label.startswith(self.span) for label in (format_run_span(run), *run.spans.values()))
            and (not self.text or self.text.lower() in words)
        )


@dataclass(frozen=True, kw_only=True)
class GridCell:
    """One node in one run."""

    state: str  #: empty where the run did not have it
    href: str = ""
    label: str = ""


@dataclass(frozen=True, kw_only=True)
class RunGrid:
    """Some runs, and their nodes beside each other."""

    runs: Sequence[Run]  #: newest first
    nodes: Sequence[str]
    cells: Mapping[tuple[str, int], GridCell]  #: by node and run
    errors: Mapping[int, str]  #: by run: why it did not complete
    longest_s: float
    older: int | None  #: the next page begins below this number
    looked_back: bool  #: the search ended before the first run

    @property
    def columns(self) -> Sequence[Run]:
        """Oldest first, as time goes."""
        return self.runs[::-1]

    def height(self, run: Run) -> float:
        """Of the bar of a run, of 100."""
        took = took_s(run) or 0.0
        return min(100.0, max(2.0, 100 * took / self.longest_s)) if self.longest_s else 2.0


def read_grid(site: WebSite, pipeline: str, chosen: RunFilter, *, before: int | None, limit: int) -> RunGrid:
    """The runs of a page below a number, newest first."""
    runs: list[Run] = []
    last, looked = 0, 0
    for run in itertools.islice(site.store.runs(pipeline, before=before), LOOK_BACK):
        last, looked = run.number, looked + 1
        if chosen.fits(run):
            runs.append(note_left_open(site.store, run))
            if len(runs) == limit:
                break
    executions: dict[tuple[str, int], Execution] = {}
    for execution in site.store.executions_of(runs):
        executions[execution.node, execution.run] = execution
    nodes = _order_nodes(runs)
    cells = {
        (node, run.number): _cell(executions.get((node, run.number)), run)
        for node in nodes
        for run in runs
        if node in run.nodes
    }
    longest = max((took_s(run) or 0.0 for run in runs), default=0.0)
    return RunGrid(
        runs=runs,
        nodes=nodes,
        cells=cells,
        errors={run.number: _explain(run, executions) for run in runs if run.error},
        longest_s=longest,
        older=last if last > 1 else None,
        looked_back=looked == LOOK_BACK and last > 1,
    )


def _explain(run: Run, executions: Mapping[tuple[str, int], Execution]) -> str:
    """What the run says, and what its failed node says, a line each."""
    found = (executions.get((node, run.number)) for node in run.nodes)
    failed = next((e for e in found if e is not None and e.state is State.FAILED and e.error), None)
    said = [run.error, "" if failed is None else failed.error]
    return ": ".join(dict.fromkeys(single_line(text.strip().split("\n")[0]) for text in said if text))


def _order_nodes(runs: Sequence[Run]) -> list[str]:
    """The nodes of some runs: in the order of the widest, then those that only others have."""
    widest = sorted(runs, key=lambda run: -len(run.nodes))
    return list(dict.fromkeys(node for run in widest for node in run.nodes))


def state_of(execution: Execution) -> str:
    """The state of an execution in one word."""
    return "reused" if execution.reused is not None else execution.state.value


def _cell(execution: Execution | None, run: Run) -> GridCell:
    if execution is None:
        return GridCell(state="")
    state = state_of(execution)
    took = format_duration(took_s(execution))
    attempt = f", attempt {execution.attempt}" if execution.attempt > 1 else ""
    href = f"{run_url(run.pipeline, run.number)}#node-{execution.node}"
    return GridCell(state=state, href=href, label=f"{execution.node} in run {run.number}: {state}{attempt}, {took}")


@dataclass(frozen=True, kw_only=True)
class NodeView:
    """One node of a run, its last attempt."""

    name: str
    state: str
    execution: Execution | None = None
    placement: Placement | None = None  #: where an engine has executed it
    logged: bool = False  #: its code was started, so that it has a log
    attempts: int = 0
    took_s: float | None = None
    waited_s: float | None = None  #: from when all that it read was there
    publish_s: float | None = None  #: of `took_s`, after its code had ended
    summary: str = ""
    parameters: Sequence[tuple[str, str]] = ()
    inputs: Sequence[tuple[str, Sequence[Artifact]]] = ()
    outputs: Sequence[tuple[str, Sequence[Artifact]]] = ()


@dataclass(frozen=True, kw_only=True)
class RunView:
    """One run."""

    run: Run
    span: str
    took_s: float | None
    verdict: str
    nodes: Sequence[NodeView]
    graph: Markup
    gantt: Markup
    repeatable: bool  #: the form of a run can ask for the same
    pushed: Artifact | None  #: the model, where a person has pushed it by name
    previous: int | None
    next: int | None

    @property
    def failed(self) -> Sequence[NodeView]:
        return [node for node in self.nodes if node.state == "failed"]


def read_run(site: WebSite, pipeline: str, number: int) -> RunView:
    """One run with everything that is on its page.

    Raises:
        NotRecorded: there is no such run.
    """
    run = note_left_open(site.store, site.store.run(pipeline, number))
    executions = site.store.executions(run)
    last = {execution.node: execution for execution in executions}
    attempts: dict[str, int] = defaultdict(int)
    for execution in executions:
        attempts[execution.node] += 1
    nodes = [_node(run, name, last.get(name), attempts[name]) for name in dict.fromkeys([*run.nodes, *last])]
    waited = _queued(nodes)
    placements = find_placements(site.store, last.values())
    placed = {name: placements.get(execution.name) for name, execution in last.items()}
    nodes = [replace(node, waited_s=waited.get(node.name), placement=placed.get(node.name)) for node in nodes]
    newer = next((r.number for r in itertools.islice(site.store.runs(pipeline, before=number + 2), 1)), number)
    return RunView(
        run=run,
        span=format_run_span(run, "none requested"),
        took_s=took_s(run),
        verdict=artifact_summary.describe_verdict(run, last.values()),
        nodes=nodes,
        graph=_graph(run, nodes),
        gantt=_gantt(run, executions, nodes),
        repeatable=_is_repeatable(site, run),
        pushed=find.pushed_model(executions) if run.trigger is Trigger.PUSH else None,
        previous=number - 1 or None,
        next=newer if newer > number else None,
    )


def _is_repeatable(site: WebSite, run: Run) -> bool:
    """Whether `spanwise run` can do the same: it has no option for a training from scratch, and a push has no span."""
    whole = find.requested_run(site.store, run).whole
    return bool(run.source) and whole and not run.from_scratch and run.trigger is not Trigger.PUSH


def _node(run: Run, name: str, execution: Execution | None, attempts: int) -> NodeView:
    if execution is None:
        return NodeView(name=name, state="waiting" if run.state is State.RUNNING else "not reached")
    calendar = records.execution_calendar(execution, run_calendar(run))
    made = [a for row in execution.outputs.values() for a in row]
    parts = [p for a in made[:3] for p in artifact_summary.summarize_artifact(a, calendar)[:3]]
    chosen = records.describe_artifacts(made, calendar) if execution.chosen else ""
    return NodeView(
        name=name,
        state="chosen" if execution.chosen else state_of(execution),
        execution=execution,
        logged=records.has_log(execution),
        attempts=attempts,
        took_s=took_s(execution),
        publish_s=_publish_s(execution),
        summary=chosen or ", ".join(parts),
        parameters=[
            (n, records.describe_parameter(n, text, calendar))
            for n, text in execution.parameters.items()
            if n not in execution.defaults
        ],
        inputs=[(key, row) for key, row in execution.inputs.items() if row],
        outputs=[(key, row) for key, row in execution.outputs.items() if row],
    )


def _graph(run: Run, nodes: Sequence[NodeView]) -> Markup:
    """The nodes of a run; its edges are what was read, as far as it has been read."""
    boxes = [
        Box(
            node.name,
            node.name,
            f"{node.state}{f', {format_duration(node.took_s)}' if node.took_s is not None else ''}",
            style_of(node.state),
            f"#node-{node.name}",
            SIGNS.get(node.state, ""),
        )
        for node in nodes
    ]
    return draw_graph(
        boxes, _edges(nodes), f"The nodes of run {run.number} and what each read; the table below says the same"
    )


def _edges(nodes: Sequence[NodeView]) -> Iterator[tuple[str, str]]:
    """Who read whose outputs. Gates and resolvers pass artifacts on, so the last node before the reader counts.

    What is read is compared as a whole: a window is read from the resolver that chose exactly these artifacts.
    """
    gave: dict[tuple[int, ...], str] = {}  # the last node so far that gave exactly these artifacts
    made: dict[int, str] = {}  # the last so far that published or passed on an artifact
    for node in nodes:
        wanted = node.outputs if node.state == "chosen" else node.inputs
        for _, row in wanted:
            ids = tuple(a.id for a in row)
            whole = gave.get(ids) if node.state != "chosen" else None
            yield from {(source, node.name) for source in ([whole] if whole else [made[i] for i in ids if i in made])}
        for _, row in node.outputs:
            gave[tuple(a.id for a in row)] = node.name
            made.update({a.id: node.name for a in row} if node.state != "chosen" else {})


def _gantt(run: Run, executions: Sequence[Execution], nodes: Sequence[NodeView]) -> Markup:
    began = run.started
    if began is None or not executions:
        return Markup("")
    waited = {node.name: node.waited_s for node in nodes}
    bars = [
        Bar(
            execution.node + (f" ({execution.attempt})" if execution.attempt > 1 else ""),
            style_of(state_of(execution)),
            f"#node-{execution.node}",
            max(0.0, (execution.started - began).total_seconds()) if execution.started else 0.0,
            took_s(execution) or 0.0,
            waited.get(execution.node) if execution.attempt == 1 else None,
            _publish_s(execution),
        )
        for execution in executions
        if not execution.chosen
    ]
    return draw_gantt(bars, took_s(run) or 1.0)


def _publish_s(execution: Execution) -> float | None:
    if execution.ended is None or execution.work_ended is None:
        return None
    return max(0.0, (execution.ended - execution.work_ended).total_seconds())


def _queued(nodes: Sequence[NodeView]) -> dict[str, float]:
    """For how long each node had waited: from when all that it read was there, until it was begun."""
    executions = {node.name: node.execution for node in nodes if node.execution is not None}
    ready: dict[str, datetime] = {}
    for source, node in _edges(nodes):
        if (ended := executions[source].ended) is not None:
            ready[node] = max(ended, ready.get(node, ended))
    return {
        name: max(0.0, (e.started - ready[name]).total_seconds())
        for name, e in executions.items()
        if name in ready and e.started is not None and e.attempt == 1
    }
