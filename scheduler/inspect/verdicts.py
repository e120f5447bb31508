"""Verdicts as people read them: what the judges and people of an artifact have decided. Reads only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from spanwise.orchestrator.artifact import Artifact, Examples, Mark, Model, Value
from spanwise.orchestrator.run import Execution
from spanwise.orchestrator.store import Store
from spanwise.orchestrator.verdict import Standing, Verdict, find_standings, read_verdicts_on
from spanwise.scheduler.formatting import Document, format_table, iso_time, single_line
from spanwise.scheduler.inspect.judged_models import find_blessings

_MARKS: dict[type[Artifact], Mark] = {Examples: "accepted", Model: "blessed"}


def describe_standing(standing: Standing) -> str:
    """What the verdicts on an artifact amount to, in one line; empty when there are none."""
    decisive = standing.refusal() or standing.personal or next(iter(standing.by_judge.values()), None)
    return "" if decisive is None else single_line(str(decisive))


def describe_verdicts(store: Store, artifacts: Iterable[Artifact]) -> dict[int, str]:
    """By the id of an artifact, what the verdicts on it amount to: of examples, and of models that people judged.

    What people said of a model holds for what was made of it, as by an export. Evaluators say it in their blessings.
    """
    judged = list(artifacts)
    accepted = [artifact for artifact in judged if artifact.is_a(Examples)]
    said = find_standings(store, "accepted", accepted)
    standings = {artifact.id: said[artifact.name] for artifact in accepted}
    blessed = find_blessings(store, [artifact for artifact in judged if artifact.is_a(Model)])
    standings |= {model: standing for model, standing in blessed.items() if standing.personal is not None}
    found = (
        (artifact.id, describe_standing(standings[artifact.id])) for artifact in judged if artifact.id in standings
    )
    return {artifact: line for artifact, line in found if line}


def published(executions: Iterable[Execution]) -> list[Artifact]:
    """The artifacts that executions published, reused or judged, each once."""
    made = (a for e in executions for found in (*e.outputs.values(), *e.inputs.values()) for a in found if not e.chosen)
    return list({artifact.id: artifact for artifact in made}.values())


def format_verdicts(store: Store, artifacts: Sequence[Artifact]) -> str:
    """A table of the artifacts that were judged, with what the verdicts amount to now; empty when there are none."""
    said = describe_verdicts(store, artifacts)
    rows = [(artifact.name, said[artifact.id]) for artifact in artifacts if artifact.id in said]
    return format_table(("JUDGED", "VERDICT NOW"), rows) if rows else ""


def list_verdicts(store: Store, artifacts: Iterable[Artifact]) -> list[Value]:
    """All verdicts on artifacts for programs, each artifact's oldest first."""
    marks = {artifact: mark for artifact in artifacts for kind, mark in _MARKS.items() if artifact.is_a(kind)}
    names = {artifact.name for artifact in marks}
    found = (
        verdict
        for artifact, mark in marks.items()
        for verdict in read_verdicts_on(store, mark, artifact)
        if verdict.artifact == artifact.name or verdict.artifact not in names
    )
    return [verdict_document(verdict) for verdict in dict.fromkeys(found)]


def verdict_document(verdict: Verdict) -> Document:
    """One verdict for programs."""
    return {
        "mark": verdict.mark,
        "artifact": verdict.artifact,
        "given": verdict.given,
        "judge": verdict.judge or None,
        "by": verdict.by,
        "because": verdict.because,
        "created": iso_time(verdict.created),
    }
