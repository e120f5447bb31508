"""Models of a client: their metrics, the spans that they learned from, whether they are blessed, where they serve."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from datetime import timedelta

from spanwise.orchestrator import serving
from spanwise.orchestrator.artifact import Artifact, Model
from spanwise.orchestrator.run import Execution, Run
from spanwise.orchestrator.serving import Push
from spanwise.orchestrator.store import Store
from spanwise.orchestrator.verdict import Standing, find_origins
from spanwise.scheduler.client.artifacts import ArtifactRecord
from spanwise.scheduler.client.session import Session
from spanwise.scheduler.formatting import format_number, format_spans, format_time, run_calendar
from spanwise.scheduler.inspect import records
from spanwise.scheduler.inspect.judged_models import find_blessings, find_figures, is_blessed

_CLOCKS = timedelta(hours=1)  # by so much the clocks of two hosts may differ


@dataclass(frozen=True)
class ModelRecord(ArtifactRecord):
    """One model, as it was evaluated and judged last; of one that was made of another model, as that was."""

    run: str = ""  #: `pipeline/number` of the run that trained it; empty where that is not known
    evaluation: ArtifactRecord | None = None
    blessing: ArtifactRecord | None = None
    pushes: tuple[Push, ...] = field(default=(), repr=False)  #: its pushes, newest first
    serves: bool = False  #: a Pusher has pushed it, or what was made of it, last
    standing: Standing = field(default_factory=lambda: Standing({}), repr=False)  #: what the verdicts on it amount to
    spans: list[int] = field(default_factory=list)  #: that it learned from, or the model that it was made of
    spans_label: str = ""  #: those, as people write them

    @property
    def blessed(self) -> bool | None:
        """Whether it is blessed; None when nobody has judged it."""
        return is_blessed(self.standing)

    @property
    def metrics(self) -> dict[str, float]:
        """Its metrics over all examples."""
        return _numbers(self.evaluation, "metrics")

    @property
    def baseline_metrics(self) -> dict[str, float]:
        """Those of the model that it was compared with, on the same examples."""
        return _numbers(self.evaluation, "baseline_metrics")

    @property
    def reasons(self) -> list[str]:
        """Why it is not blessed, as its Evaluator said, or a person who has overruled it."""
        refusal = self.standing.refusal()
        return [] if refusal is None else refusal.because.splitlines()

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


def _numbers(artifact: ArtifactRecord | None, name: str) -> dict[str, float]:
    found = None if artifact is None else artifact.artifact.properties.get(name)
    numbers = found.items() if isinstance(found, dict) else ()
    return {key: float(value) for key, value in numbers if isinstance(value, int | float)}


def list_models(session: Session, pipeline: str, limit: int) -> list[ModelRecord]:
    """The newest models of a pipeline, those of replays left out, newest first."""
    return list(itertools.islice(_models(session, pipeline), limit))


def find_serving(session: Session, pipeline: str) -> ModelRecord | None:
    """The model that was pushed last; None when none was."""
    last = next(iter(serving.find_served(session.store, pipeline)), None)
    return None if last is None else find_model(session, last[0].name)


def find_model(session: Session, reference: str) -> ModelRecord:
    """The model of that name.

    Raises:
        NotRecorded: there is none.
    """
    artifact = session.store.artifact(reference)
    maker = session.store.producer(artifact)
    served = serving.find_serving(session.store, maker.pipeline)
    return _record(session, artifact, session.store.run(maker.pipeline, maker.run), served)


def _models(session: Session, pipeline: str) -> Iterator[ModelRecord]:
    served = serving.find_serving(session.store, pipeline)
    for run in session.store.runs(pipeline):
        if run.replay:
            continue
        for artifact in _made(session.store.executions(run)):
            yield _record(session, artifact, run, served)


def _made(executions: list[Execution]) -> Iterator[Artifact]:
    """The models that executions have trained, not those that they reused or chose."""
    return (
        a
        for e in reversed(executions)
        if e.state.succeeded and e.reused is None and not e.chosen
        for a in itertools.chain(*e.outputs.values())
        if a.kind == Model.kind
    )


def _record(session: Session, artifact: Artifact, run: Run, served: Collection[str]) -> ModelRecord:
    store: Store = session.store
    figures = find_figures(store, [artifact])[artifact.id]
    trained = next((a for a in (artifact, *find_origins(store, artifact)) if a.properties.get("spans")), artifact)
    learned = _list_spans(trained)
    return ModelRecord(
        session,
        artifact,
        run=run.name,
        evaluation=None if figures.evaluation is None else ArtifactRecord(session, figures.evaluation),
        blessing=None if figures.blessing is None else ArtifactRecord(session, figures.blessing),
        pushes=tuple(push for push in _pushes_since(store, artifact) if push.model == artifact.name),
        serves=artifact.name in served,
        standing=find_blessings(store, [artifact])[artifact.id],
        spans=learned,
        spans_label=format_spans(learned, records.artifact_calendar(trained, run_calendar(run))) if learned else "",
    )


def _pushes_since(store: Store, model: Artifact) -> Iterator[Push]:
    """The pushes of its channel since the model was made, newest first."""
    every, made = serving.pushes(store, serving.channel_of(model.name)), model.created
    return itertools.takewhile(lambda push: not made or not push.created or push.created > made - _CLOCKS, every)


def _list_spans(model: Artifact) -> list[int]:
    spans = model.properties.get("spans")
    return [span for span in spans if isinstance(span, int)] if isinstance(spans, list) else []
