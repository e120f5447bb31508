"""Makings: what ran in the run that made an artifact, and so which spans were ingested for it. Reads only."""

from __future__ import annotations

import itertools
from datetime import datetime

from spanwise.orchestrator.artifact import Artifact
from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.run import Execution
from spanwise.orchestrator.store import Store


def find_making(store: Store, artifact: Artifact, *, as_of: datetime | None = None) -> dict[str, Execution]:
    """The execution that made an artifact or reused it last, and those of the nodes above it in the same run, by node.

    With `as_of`, what ended later does not count.
    """
    node = artifact.name.split("/")[1]
    links = store.links(artifacts=[artifact.id], read=False)
    made = [
        execution
        for execution in store.executions_by_id({link.execution for link in links})
        if execution.node == node and execution.state.succeeded and not execution.supplied
        if as_of is None or (execution.ended is not None and execution.ended <= as_of)
    ]
    last = max(made, key=lambda execution: (not execution.replay, execution.id), default=None)
    if last is None:
        return {}
    run = store.run(last.pipeline, last.run)
    executions = {execution.node: execution for execution in store.executions(run) if execution.state.succeeded}
    found: dict[str, Execution] = {}
    todo = [node]
    while todo:
        name = todo.pop()
        if name in executions and name not in found:
            found[name] = executions[name]
            read = itertools.chain(*executions[name].inputs.values())
            todo += [each.name.split("/")[1] for each in read if each.name.startswith(f"{run.pipeline}/")]
    return found


def name_spans(store: Store, artifact: Artifact, *, calendar: str) -> str:
    """The options of `spanwise run` that name the spans that were ingested in the run that made an artifact.

    Empty where that is not known, and of what has no span of its own where one node ingests. `calendar` is that of
    spans that record none.
    """
    making = find_making(store, artifact)
    given = {
        name: next((a for a in itertools.chain(*made.outputs.values()) if "span" in a.properties), None)
        for name, made in sorted(making.items(), key=lambda item: item[1].id)
        if not any(made.inputs.values())
    }
    labels = {
        name: Calendar.from_name(a.properties.get("calendar") or calendar).label(span)
        for name, a in given.items()
        if a is not None and isinstance(span := a.properties["span"], int)
    }
    if len(labels) <= 1 and "span" not in artifact.properties:
        return ""
    if len(set(labels.values())) == 1:
        return f"--span {next(iter(labels.values()))}"
    return " ".join(f"--span {name}={label}" for name, label in labels.items())
