"""Judged models: what was measured of models last, and whether they are blessed, for whoever shows one. Reads only."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from spanwise.orchestrator.artifact import Artifact, Blessing, Evaluation
from spanwise.orchestrator.run import Execution, Run
from spanwise.orchestrator.store import Store
from spanwise.orchestrator.verdict import Standing, find_joint_standings, find_origins_of_many
from spanwise.scheduler.formatting import format_spans, run_calendar
from spanwise.scheduler.inspect import records

_Judgements: TypeAlias = dict[type[Evaluation | Blessing], Artifact]
"""The evaluation and the blessing that one execution has made, by their kind."""


@dataclass(frozen=True, kw_only=True)
class LastEvaluation:
    """What was published last about a model, or about one that it was made of, as by an export."""

    evaluation: Artifact | None = None
    blessing: Artifact | None = None

    @property
    def metrics(self) -> dict[str, float]:
        """Those of the model over all examples."""
        return self._read("metrics")

    @property
    def baseline_metrics(self) -> dict[str, float]:
        """Those of the model that it was compared with, on the same examples."""
        return self._read("baseline_metrics")

    def _read(self, name: str) -> dict[str, float]:
        found = None if self.evaluation is None else self.evaluation.properties.get(name)
        items = found.items() if isinstance(found, dict) else ()
        return {str(k): float(v) for k, v in items if isinstance(v, int | float) and not isinstance(v, bool)}


def find_figures(store: Store, models: Sequence[Artifact]) -> dict[int, LastEvaluation]:
    """The newest evaluation and blessing of each of these models, by its id, whichever run has made them.

    What a base run has supplied is not made again by that, and a replay says nothing of today.
    """
    groups = _group(store, models)
    ids = {artifact.id for group in groups.values() for artifact in group}
    found: dict[int, _Judgements] = defaultdict(dict)
    for execution, made in _list_judges(store, ids):
        for model in _find_judged(store, execution, made):
            found[model] |= made
    return {
        model.id: LastEvaluation(
            evaluation=_first_of(found, groups[model.name], Evaluation),
            blessing=_first_of(found, groups[model.name], Blessing),
        )
        for model in models
    }


def find_blessings(store: Store, models: Sequence[Artifact]) -> dict[int, Standing]:
    """What the verdicts on each of these models amount to, by its id, with those on what it was made of."""
    standings = find_joint_standings(store, _group(store, models))
    return {model.id: standings[model.name] for model in models}


def list_learned_spans(model: Artifact) -> list[int]:
    """The spans that a model says it has learned from; none where it says nothing, as an export does."""
    spans = model.properties.get("spans")
    return [span for span in spans if isinstance(span, int)] if isinstance(spans, list) else []


def format_learned(model: Artifact, run: Run) -> str:
    """Those spans, as people write them; `run` has trained the model."""
    learned = list_learned_spans(model)
    return format_spans(learned, records.artifact_calendar(model, run_calendar(run))) if learned else ""


def is_blessed(standing: Standing) -> bool | None:
    """Whether a model is blessed; None where nobody has judged it."""
    return standing.holds() if standing.by_judge else None


def _group(store: Store, models: Sequence[Artifact]) -> dict[str, list[Artifact]]:
    origins = find_origins_of_many(store, models)
    return {model.name: [model, *origins[model.name]] for model in models}


def _first_of(
    found: Mapping[int, _Judgements], group: Sequence[Artifact], kind: type[Evaluation | Blessing]
) -> Artifact | None:
    return next((made[kind] for model in group if kind in (made := found.get(model.id, {}))), None)


def _list_judges(store: Store, models: Collection[int]) -> list[tuple[Execution, _Judgements]]:
    """The executions that read models and have measured or judged one, oldest first, with what they have made."""
    readers = {link.execution for link in store.links(artifacts=models, read=True)}
    links = store.links(executions=readers, read=False) if readers else []
    made = {a.id: a for a in store.artifacts_by_id({link.artifact for link in links})}
    judged: dict[int, _Judgements] = defaultdict(dict)
    for link in links:
        artifact = made.get(link.artifact)
        for kind in (Evaluation, Blessing):
            if artifact is not None and artifact.is_a(kind):
                judged[link.execution][kind] = artifact
    executions = store.executions_by_id(list(judged))
    return [(e, judged[e.id]) for e in executions if e.state.succeeded and not (e.chosen or e.supplied or e.replay)]


def _find_judged(store: Store, execution: Execution, made: _Judgements) -> set[int]:
    """The models that an execution has judged: the one that its blessing names, else what it read, except a baseline.

    The blessing of a cached result names the model that was read then; this one reads the same, published again.
    """
    blessing = made.get(Blessing)
    named = None if blessing is None else blessing.properties.get("current_model_id")
    if isinstance(named, int) and execution.reused is None:
        return {named}
    now = store.execution(execution.id).inputs
    if isinstance(named, int) and execution.reused is not None:
        then = store.execution(execution.reused).inputs
        pairs = ((a, b) for key, row in then.items() for a, b in zip(row, now.get(key, ()), strict=False))
        return {read.id for earlier, read in pairs if earlier.id == named}
    compared = {artifact.id for artifact in now.get("baseline", ())}
    return {artifact.id for artifact in itertools.chain(*now.values())} - compared
