"""Models of a client: their metrics, the spans that they learned from, whether they are blessed, where they serve."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta

from spanwise.orchestrator.artifact import Artifact, Blessing, Evaluation, Model
from spanwise.orchestrator.run import Execution, Run
from spanwise.orchestrator.serving import Push, channel_of, pushes
from spanwise.orchestrator.store import Store
from spanwise.orchestrator.verdict import find_standing
from spanwise.scheduler.client.artifacts import ArtifactRecord
from spanwise.scheduler.client.session import Session
from spanwise.scheduler.formatting import format_number, format_spans, format_time, run_calendar
from spanwise.scheduler.inspect import records
from spanwise.scheduler.inspect.run_outputs import find_model_channel, is_baseline

_CLOCKS = timedelta(hours=1)  # by so much the clocks of two hosts may differ


@dataclass(frozen=True)
class ModelRecord(ArtifactRecord):
    """One model, with the evaluation that the run which trained it has made."""

    run: str = ""  #: `pipeline/number` of the run that trained it; empty where that is not known
    evaluation: ArtifactRecord | None = None
    blessing: ArtifactRecord | None = None
    pushes: tuple[Push, ...] = field(default=(), repr=False)  #: its pushes, newest first
    serves: bool = False  #: it was pushed last
    blessed: bool | None = None  #: None when nobody has judged it
    spans_label: str = ""  #: the spans that it learned from, as people write them

    @property
    def metrics(self) -> dict[str, float]:
        """Its metrics over all examples."""
        return _numbers(self.evaluation, "metrics")

    @property
    def baseline_metrics(self) -> dict[str, float]:
        """Those of the model that it was compared with, on the same examples."""
        return _numbers(self.evaluation, "baseline_metrics")

    @property
    def spans(self) -> list[int]:
        """The spans that it learned from."""
        spans = self.artifact.properties.get("spans")
        return [span for span in spans if isinstance(span, int)] if isinstance(spans, list) else []

    @property
    def reasons(self) -> list[str]:
        """Why it was not blessed."""
        reasons = None if self.blessing is None else self.blessing.artifact.properties.get("reasons")
        return [str(reason) for reason in reasons] if isinstance(reasons, list) else []

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
    found = _models(session, session.store.runs(pipeline))
    return list(itertools.islice(found, limit))


def find_serving(session: Session, pipeline: str) -> ModelRecord | None:
    """The model that was pushed last; None when none was."""
    channel = find_model_channel(session.store, pipeline)
    last = None if channel is None else next(pushes(session.store, channel), None)
    return None if last is None else find_model(session, last.model)


def find_model(session: Session, reference: str) -> ModelRecord:
    """The model of that name.

    Raises:
        NotRecorded: there is none.
    """
    artifact = session.store.artifact(reference)
    maker = session.store.producer(artifact)
    run = session.store.run(maker.pipeline, maker.run)
    return _record(session, artifact, run, session.store.executions(run))


def _models(session: Session, runs: Iterator[Run]) -> Iterator[ModelRecord]:
    for run in runs:
        if run.replay:
            continue
        executions = session.store.executions(run)
        for artifact in _made(executions):
            yield _record(session, artifact, run, executions)


def _made(executions: list[Execution]) -> Iterator[Artifact]:
    """The models that executions have trained, not those that they reused or chose."""
    return (
        a
        for e in reversed(executions)
        if e.state.succeeded and e.reused is None and not e.chosen
        for a in itertools.chain(*e.outputs.values())
        if a.kind == Model.kind
    )


def _record(session: Session, artifact: Artifact, run: Run, executions: list[Execution]) -> ModelRecord:
    store: Store = session.store
    read = [e for e in executions if any(a.id == artifact.id for row in e.inputs.values() for a in row)]
    mine = [e for e in read if not is_baseline(artifact, e)]
    made = [a for e in mine if not e.chosen for row in e.outputs.values() for a in row]
    blessing = next((a for a in made if a.kind == Blessing.kind), None)
    evaluation = next((a for a in made if a.kind == Evaluation.kind), None)
    standing = find_standing(store, "blessed", artifact)
    every = list(_pushes_since(store, artifact))
    spans = artifact.properties.get("spans")
    learned = [s for s in spans if isinstance(s, int)] if isinstance(spans, list) else []
    return ModelRecord(
        session,
        artifact,
        run=run.name,
        evaluation=None if evaluation is None else ArtifactRecord(session, evaluation),
        blessing=None if blessing is None else ArtifactRecord(session, blessing),
        pushes=tuple(push for push in every if push.model == artifact.name),
        serves=bool(every) and every[0].model == artifact.name,
        blessed=standing.holds() if standing.by_judge else None,
        spans_label=format_spans(learned, records.artifact_calendar(artifact, run_calendar(run))) if learned else "",
    )


def _pushes_since(store: Store, model: Artifact) -> Iterator[Push]:
    """The pushes of its channel since the model was made, newest first; at least the last of all."""
    every = pushes(store, channel_of(model.name))
    yield from itertools.islice(every, 1)
    made = model.created
    yield from itertools.takewhile(lambda push: not made or not push.created or push.created > made - _CLOCKS, every)
