"""Lineage as text: what an artifact was made from, or what was made from it, as a tree, as Mermaid or as a document."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from spanwise.orchestrator.artifact import Artifact, Value
from spanwise.orchestrator.calendar import Calendar, format_versions
from spanwise.orchestrator.lineage import Direction, Lineage, Step
from spanwise.orchestrator.store import Store
from spanwise.scheduler.formatting import Document, format_count, iso_time, run_calendar, single_line
from spanwise.scheduler.inspect import artifact_summary, find, records
from spanwise.scheduler.inspect.artifact_pages import PageFinder

_MANY_PARTS = 2  # of an artifact's summary


def find_calendars(store: Store, artifacts: Iterable[Artifact]) -> dict[str, Calendar]:
    """The calendar of each pipeline that the artifacts come from, as recorded in its newest run."""
    newest = {name: find.latest(store, name) for name in {_pipeline(a) for a in artifacts}}
    return {name: run_calendar(run) for name, run in newest.items() if run is not None}


def format_tree(
    found: Lineage, calendars: Mapping[str, Calendar], verdicts: Mapping[int, str] = MappingProxyType({})
) -> str:
    """A tree that begins with the artifact, one artifact per line, with the execution that made it after the arrow.

    A shared branch is shown once, where it first appears; `…` marks where the depth ended. `verdicts` has, by the id
    of an artifact, what was decided about it.
    """
    artifacts = format_count(len(found.artifacts) - 1, "artifact")
    counted = f"{artifacts}, {format_count(len(found.steps), 'execution')}"
    way = "It was made from" if found.direction is Direction.UP else "Made from it:"
    return "\n".join([*_tree(found, calendars, verdicts), f"{way} {counted}."])


def format_mermaid(found: Lineage, calendars: Mapping[str, Calendar]) -> str:
    """The graph in Mermaid's flowchart language, as Markdown renderers draw it; executions have round ends."""
    lines = ["flowchart TD"]
    for artifact in sorted(found.artifacts.values(), key=lambda a: a.id):
        label = (
            f"{artifact.kind}{_span_and_version(artifact, calendars)}<br/><small>{html.escape(artifact.name)}</small>"
        )
        lines.append(f'    a{artifact.id}["{label}"]')
    for step in found.steps:
        lines.append(f'    e{step.execution.id}(["{html.escape(_producer(step))}"])')
        lines += [f"    a{i} --> e{step.execution.id}" for i in step.inputs]
        lines += [f"    e{step.execution.id} --> a{i}" for i in step.outputs]
    lines += [f"    style a{i} stroke-width:3px" for i in found.start]
    return "\n".join(lines)


def lineage_document(found: Lineage, calendars: Mapping[str, Calendar]) -> Document:
    """The graph for programs: the artifacts, and the executions with the ids of their inputs and outputs."""
    (start,) = found.start
    steps: list[Value] = [
        {
            "id": step.execution.id,
            "name": step.execution.name,
            "component": step.execution.component,
            "state": step.execution.state.value,
            "ended": iso_time(step.execution.ended),
            "inputs": list(step.inputs),
            "outputs": list(step.outputs),
        }
        for step in found.steps
    ]
    pages = PageFinder()
    return {
        "artifact": found.artifacts[start].name,
        "direction": found.direction.value,
        "artifacts": [records.artifact_document(a, _calendar(a, calendars), pages) for a in found.artifacts.values()],
        "executions": steps,
        "cut": list[Value](sorted(found.cut)),
    }


def _tree(found: Lineage, calendars: Mapping[str, Calendar], verdicts: Mapping[int, str]) -> Iterator[str]:
    """Depth first, with a stack of its own: a chain of warm starts can exceed Python's recursion limit."""
    seen: set[int] = set()  # branches that are above; the outputs of one execution share a branch
    stack = [(i, "", "") for i in found.start]  # an artifact, the prefix of its line, the prefix of the lines below it
    while stack:
        artifact, head, below = stack.pop()
        branch, beyond = _beyond(found, artifact)
        end = "  …" if artifact in found.cut else "  (above)" if beyond and branch in seen else ""
        yield f"{head}{_line(found, artifact, calendars, verdicts)}{end}"
        if branch in seen:
            continue
        seen.add(branch)
        for number, other in reversed(list(enumerate(beyond, start=1))):
            last = number == len(beyond)
            stack.append((other, f"{below}{'└─ ' if last else '├─ '}", f"{below}{'   ' if last else '│  '}"))


def _beyond(found: Lineage, artifact: int) -> tuple[int, tuple[int, ...]]:
    """The id of the branch below an artifact in the tree, and the artifacts in it."""
    if found.direction is Direction.DOWN:
        return artifact, tuple(dict.fromkeys(i for step in found.readers(artifact) for i in step.outputs))
    step = found.producer(artifact)
    return (0, ()) if step is None else (step.execution.id, step.inputs)


def _line(found: Lineage, artifact: int, calendars: Mapping[str, Calendar], verdicts: Mapping[int, str]) -> str:
    one = found.artifacts[artifact]
    step = found.producer(artifact)
    said = [verdicts[artifact]] if artifact in verdicts else []
    parts = ", ".join(["", *artifact_summary.summarize_artifact(one, _calendar(one, calendars))[:_MANY_PARTS], *said])
    maker = "" if step is None else f"  <- {_producer(step)}"
    return single_line(f"{one.name}  {one.kind}{_span_and_version(one, calendars)}{parts}{maker}")


def _producer(step: Step) -> str:
    return f"{step.execution.node} in {step.execution.pipeline}/{step.execution.run}"


def _span_and_version(artifact: Artifact, calendars: Mapping[str, Calendar]) -> str:
    """The span and version of an artifact, as people write them; empty where it has no span."""
    span, version = artifact.properties.get("span"), artifact.properties.get("version")
    if not isinstance(span, int):
        return ""
    return (
        f" {format_versions([(span, version if isinstance(version, int) else None)], _calendar(artifact, calendars))}"
    )


def _calendar(artifact: Artifact, calendars: Mapping[str, Calendar]) -> Calendar:
    return records.artifact_calendar(artifact, calendars.get(_pipeline(artifact), Calendar.NUMBER))


def _pipeline(artifact: Artifact) -> str:
    return artifact.name.partition("/")[0]
