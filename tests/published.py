"""A store with artifacts published by hand, at times that the test sets: what resolver tests choose from."""

from datetime import UTC, datetime, timedelta

from spanwise.orchestrator import Artifact, Channel, Component, Examples, Execution, History, Model, Output, Run, State
from spanwise.orchestrator.artifact import Blessing
from spanwise.orchestrator.store import Address, MemoryStore
from spanwise.orchestrator.verdict import Verdict, append, verdicts_of, write_with


class Ingest(Component):
    def run(self, examples: Output[Examples]) -> None: ...


class Train(Component):
    def run(self, model: Output[Model]) -> None: ...


class Published:
    """Publishes spans and models of the pipeline `taxi`; `now` moves on by a minute with each."""

    def __init__(self):
        self.now = datetime(2024, 1, 1, tzinfo=UTC)
        self.store = MemoryStore(lambda: self.now)
        self.ingest, self.train = Ingest(), Train()

    @property
    def examples(self) -> Channel:
        return self.ingest["examples"]

    @property
    def model(self) -> Channel:
        return self.train["model"]

    def span(self, span, version=None, **properties):
        draft = _draft(Examples, span=span, version=version, split_names=["train"], **properties)
        return self._publish("Ingest", "examples", draft)

    def a_model(self, *, kind=Model, blessed=None, spans=None, base=None, inputs=()):
        model = self._publish("Train", "model", _draft(kind, spans=spans, base=base), inputs=inputs)
        if blessed is not None:
            verdict = _draft(Blessing, blessed=int(blessed), current_model=model.name, current_model_id=model.id)
            self._publish("Evaluate", "blessing", verdict)
        return model

    def judge(self, artifact, *, given, person=False):
        """A verdict on examples: of the gate, or of a person."""
        self.now += timedelta(minutes=1)
        by = {"by": "ann@host"} if person else {"judge": "Gate", "by": "taxi/1"}
        verdict = Verdict(mark="accepted", artifact=artifact.name, given=given, because=f"{self.now:%H:%M}", **by)
        append(self.store, [verdict])

    def history(self, channel, *, as_of=None, mine=(), gated=(), exclude=()):
        run = Run(
            pipeline="taxi", number=999, as_of=as_of, replay=as_of is not None, source="taxi.py", exclude=tuple(exclude)
        )
        return History(self.store, Address("taxi", channel.node, channel.key), channel.kind, run, tuple(mine), gated)

    def _publish(self, node, key, draft, inputs=()) -> Artifact:
        self.now += timedelta(minutes=1)
        run = self.store.begin_run(Run(pipeline="taxi"))
        begun = self.store.begin(Execution(pipeline="taxi", run=run.number, node=node))
        ended = Execution(
            **{
                **begun.__dict__,
                "state": State.COMPLETE,
                "inputs": {"examples": tuple(inputs)},
                "outputs": {key: (draft,)},
            },
        )
        verdicts = verdicts_of([draft], judge=node, run=ended.run_name)
        return write_with(self.store, verdicts, lambda claims: self.store.publish(ended, *claims)).outputs[key][0]


def _draft(kind, **properties):
    draft = kind("/nowhere")
    for name, value in properties.items():
        setattr(draft, name, value)
    return draft
