"""Lineage shown: what an artifact was made of, or what was made of it, as a tree, as Mermaid or as a document."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Mapping

from spanwise.orchestrator.artifact import Artifact, Value
from spanwise.orchestrator.lineage import Direction, Lineage, Step
from spanwise.orchestrator.span import Calendar, ranges
from spanwise.orchestrator.store import Store
from spanwise.scheduler.formatting import Document, format_count, iso_time, run_calendar, single_line
from spanwise.scheduler.inspect import artifact_summary, find, records

_MANY_PARTS = 2  # of what an artifact tells


def calendars(store: Store, artifacts: Iterable[Artifact]) -> dict[str, Calendar]:
    """How each pipeline that they come from shows its spans, as its newest run says."""
    newest = {name: find.latest(store, name) for name in {_pipeline(a) for a in artifacts}}
    return {name: run_calendar(run) for name, run in newest.items() if run is not None}


def text(found: Lineage, calendars: Mapping[str, Calendar]) -> str:
    """A tree that begins with the artifact, an artifact a line, and after the arrow who made it.

    What many share is shown once, where it is first met; `…` is where the depth ended.
    """
    artifacts = format_count(len(found.artifacts) - 1, "artifact")
    counted = f"{artifacts}, {format_count(len(found.steps), 'execution')}"
    way = "It was made of" if found.direction is Direction.UP else "Made of it:"
    return "\n".join([*_tree(found, calendars), f"{way} {counted}."])


def mermaid(found: Lineage, calendars: Mapping[str, Calendar]) -> str:
    """The graph in Mermaid's flowchart language, as Markdown renderers draw it: executions have round ends."""
    lines = ["flowchart TD"]
    for artifact in sorted(found.artifacts.values(), key=lambda a: a.id):
        label = f"{artifact.kind}{_edition(artifact, calendars)}<br/><small>{html.escape(artifact.name)}</small>"
        lines.append(f'    a{artifact.id}["{label}"]')
    for step in found.steps:
        lines.append(f'    e{step.execution.id}(["{html.escape(_who(step))}"])')
        lines += [f"    a{i} --> e{step.execution.id}" for i in step.inputs]
        lines += [f"    e{step.execution.id} --> a{i}" for i in step.outputs]
    lines += [f"    style a{i} stroke-width:3px" for i in found.start]
    return "\n".join(lines)


def document(found: Lineage, calendars: Mapping[str, Calendar]) -> Document:
    """The graph for programs: the artifacts, and the executions with the ids of what went in and what came out."""
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
    return {
        "artifact": found.artifacts[start].name,
        "direction": found.direction.value,
        "artifacts": [records.artifact_document(a, _calendar(a, calendars)) for a in found.artifacts.values()],
        "executions": steps,
        "cut": list[Value](sorted(found.cut)),
    }


def _tree(found: Lineage, calendars: Mapping[str, Calendar]) -> Iterator[str]:
    """Depth first; what is left to say is a list, since a chain of warm starts is longer than Python's stack."""
    told: set[int] = set()  # whose branches are above: of what one execution made, the branches are the same
    left = [(i, "", "") for i in found.start]  # an artifact, what precedes its line, what precedes the lines below it
    while left:
        artifact, head, below = left.pop()
        branch, beyond = _beyond(found, artifact)
        end = "  …" if artifact in found.cut else "  (above)" if beyond and branch in told else ""
        yield f"{head}{_line(found, artifact, calendars)}{end}"
        if branch in told:
            continue
        told.add(branch)
        for number, other in reversed(list(enumerate(beyond, start=1))):
            last = number == len(beyond)
            left.append((other, f"{below}{'└─ ' if last else '├─ '}", f"{below}{'   ' if last else '│  '}"))


def _beyond(found: Lineage, artifact: int) -> tuple[int, tuple[int, ...]]:
    """What stands below an artifact in the tree, and a number for that."""
    if found.direction is Direction.DOWN:
        return artifact, tuple(dict.fromkeys(i for step in found.read_by(artifact) for i in step.outputs))
    step = found.made_by(artifact)
    return (0, ()) if step is None else (step.execution.id, step.inputs)


def _line(found: Lineage, artifact: int, calendars: Mapping[str, Calendar]) -> str:
    one = found.artifacts[artifact]
    step = found.made_by(artifact)
    parts = ", ".join(["", *artifact_summary.summarize_artifact(one, _calendar(one, calendars))[:_MANY_PARTS]])
    maker = "" if step is None else f"  <- {_who(step)}"
    return single_line(f"{one.name}  {one.kind}{_edition(one, calendars)}{parts}{maker}")


def _who(step: Step) -> str:
    return f"{step.execution.node} in {step.execution.pipeline}/{step.execution.run}"


def _edition(artifact: Artifact, calendars: Mapping[str, Calendar]) -> str:
    """Its span and version, as people write them; empty where it has no span."""
    span, version = artifact.properties.get("span"), artifact.properties.get("version")
    if not isinstance(span, int):
        return ""
    return f" {ranges([(span, version if isinstance(version, int) else None)], _calendar(artifact, calendars))}"


def _calendar(artifact: Artifact, calendars: Mapping[str, Calendar]) -> Calendar:
    said = artifact.properties.get("calendar")
    return calendars.get(_pipeline(artifact), Calendar.NUMBER) if said is None else Calendar.called(said)


def _pipeline(artifact: Artifact) -> str:
    return artifact.name.partition("/")[0]
