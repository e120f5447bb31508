"""Models of a client: their metrics, the spans that they learned from, whether they are blessed, where they serve."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from spanwise.orchestrator import serving
from spanwise.orchestrator.artifact import Artifact, Model
from spanwise.orchestrator.run import Execution, Run
from spanwise.orchestrator.serving import Push
from spanwise.orchestrator.store import Store
from spanwise.orchestrator.verdict import Standing, find_origins_of_many
from spanwise.scheduler.client.artifacts import ArtifactRecord
from spanwise.scheduler.client.session import Session
from spanwise.scheduler.formatting import format_number, format_time
from spanwise.scheduler.inspect.judged_models import (
    LastEvaluation,
    find_blessings,
    find_figures,
    format_learned,
    is_blessed,
    list_learned_spans,
)

_CLOCKS = timedelta(hours=1)  # by so much the clocks of two hosts may differ


@dataclass(frozen=True)
class ModelRecord(ArtifactRecord):
    """One model, as it was evaluated and judged last; of one that was made of another model, as that was."""

    run: str = ""  #: `pipeline/number` of the run that trained it; empty where that is not known
    figures: LastEvaluation = field(default_factory=LastEvaluation, repr=False)  #: what was measured of it last
    pushes: tuple[Push, ...] = field(default=(), repr=False)  #: its pushes, newest first
    serves: bool = False  #: a Pusher has pushed it, or what was made of it, last
    standing: Standing = field(default_factory=lambda: Standing({}), repr=False)  #: what the verdicts on it amount to
    spans: list[int] = field(default_factory=list)  #: that it learned from, or the model that it was made of
    spans_label: str = ""  #: those, as people write them

    @property
    def evaluation(self) -> ArtifactRecord | None:
        """The artifact with its metrics; None when it was not evaluated."""
        return self._record(self.figures.evaluation)

    @property
    def blessing(self) -> ArtifactRecord | None:
        """The artifact in which its Evaluator has judged it last; None when none has."""
        return self._record(self.figures.blessing)

    @property
    def blessed(self) -> bool | None:
        """Whether it is blessed; None when nobody has judged it."""
        return is_blessed(self.standing)

    @property
    def metrics(self) -> dict[str, float]:
        """Its metrics over all examples."""
        return self.figures.metrics

    @property
    def baseline_metrics(self) -> dict[str, float]:
        """Those of the model that it was compared with, on the same examples."""
        return self.figures.baseline_metrics

    @property
    def reasons(self) -> list[str]:
        """Why it is not blessed, as its Evaluator said, or a person who has overruled it."""
        refusal = self.standing.refusal()
        return [] if refusal is None else refusal.because.splitlines()

    def _record(self, artifact: Artifact | None) -> ArtifactRecord | None:
        return None if artifact is None else ArtifactRecord(self.session, artifact)

    def _repr_html_(self) -> str:
        from spanwise.scheduler.client import html

        state = "" if self.blessed is None else "blessed" if self.blessed else "refused"
        before = self.baseline_metrics
        rows = [
            (name, format_number(value), format_number(before[name]) if name in before else "-")
            for name, value in self.metrics.items()
        ]
        facts = f"{'serves; ' * self.serves}learned from {self.spans_label or '-'}; trained {format_time(self.created)}"
        return html.heading(self.name, state) + html.heading(facts) + html.table(("METRIC", "VALUE", "BASELINE"), rows)


def list_models(session: Session, pipeline: str, limit: int) -> list[ModelRecord]:
    """The newest models of a pipeline, those of replays left out, newest first."""
    return _describe(session, list(itertools.islice(_find_trained(session.store, pipeline), limit)))


def find_serving(session: Session, pipeline: str) -> ModelRecord | None:
    """The model that serves, of several the one that was pushed last; None when none does."""
    last = next(iter(serving.find_served(session.store, pipeline)), None)
    return None if last is None else find_model(session, last[0].name)


def find_model(session: Session, reference: str) -> ModelRecord:
    """The model of that name.

    Raises:
        NotRecorded: there is none.
    """
    artifact = session.store.artifact(reference)
    maker = session.store.producer(artifact)
    (found,) = _describe(session, [(artifact, session.store.run(maker.pipeline, maker.run))])
    return found


def _find_trained(store: Store, pipeline: str) -> Iterator[tuple[Artifact, Run]]:
    """The models that runs have trained, those of replays left out, newest first, each with its run."""
    for run in store.runs(pipeline):
        if not run.replay:
            yield from ((artifact, run) for artifact in _made(store.executions(run)))


def _made(executions: list[Execution]) -> Iterator[Artifact]:
    """The models that executions have trained, not those that they reused or chose."""
    return (
        a
        for e in reversed(executions)
        if e.state.succeeded and e.reused is None and not e.chosen
        for a in itertools.chain(*e.outputs.values())
        if a.is_a(Model)
    )


def _describe(session: Session, trained: Sequence[tuple[Artifact, Run]]) -> list[ModelRecord]:
    """The same models, in a few questions for all of them."""
    store, models = session.store, [model for model, _ in trained]
    figures, standings = find_figures(store, models), find_blessings(store, models)
    origins = find_origins_of_many(store, models)
    pushed, served = _find_pushes(store, models), _find_served(store, models)
    described = []
    for model, run in trained:
        learner = next((each for each in (model, *origins[model.name]) if each.properties.get("spans")), model)
        described.append(
            ModelRecord(
                session,
                model,
                run=run.name,
                figures=figures[model.id],
                pushes=tuple(push for push in pushed[serving.channel_of(model.name)] if push.model == model.name),
                serves=model.name in served,
                standing=standings[model.id],
                spans=list_learned_spans(learner),
                spans_label=format_learned(learner, run),
            )
        )
    return described


def _find_served(store: Store, models: Iterable[Artifact]) -> set[str]:
    """The names of what serves in the pipelines of these models."""
    pipelines = {model.name.partition("/")[0] for model in models}
    return {name for pipeline in pipelines for name in serving.find_serving(store, pipeline)}


def _find_pushes(store: Store, models: Iterable[Artifact]) -> dict[str, list[Push]]:
    """By channel, the pushes since the oldest of these models was made, newest first."""
    made: dict[str, list[datetime | None]] = defaultdict(list)
    for model in models:
        made[serving.channel_of(model.name)].append(model.created)
    return {channel: list(_pushes_since(store, channel, times)) for channel, times in made.items()}


def _pushes_since(store: Store, channel: str, times: Sequence[datetime | None]) -> Iterator[Push]:
    known = [time for time in times if time is not None]
    since = min(known) - _CLOCKS if len(known) == len(times) else None
    newest = serving.pushes(store, channel)
    return itertools.takewhile(lambda push: since is None or not push.created or push.created > since, newest)
