"""Unseen spans: the newest spans, with the newest model that has learned from none of them (span-driven evaluation)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from spanwise.orchestrator import Artifact, Channel, History, Model, Node, ParameterError, PipelineError, Withheld
from spanwise.orchestrator.errors import ResolutionError
from spanwise.orchestrator.history import span_of
from spanwise.orchestrator.store import Address
from spanwise.resolvers.rolling_window import RollingWindow


class UnseenSpans(RollingWindow):
    """The `size` newest spans, and the newest model that learned only from spans before them.

        unseen = UnseenSpans(gate["examples"], trainer["model"])
        evaluator = Evaluator(examples=unseen["examples"], model=unseen["model"], metrics=...)

    So each model is judged on data that came after it, as it will be in service (TFX: SpanDrivenEvaluatorInputs). The
    spans are those of a `RollingWindow`: with `skip`, they end that many before the newest; a gap, or a span that a
    gate refused, is an error. `offset` moves the last span that the model may have learned from: that many more spans
    lie between with 1, and with -1 it may have learned from the first that it is judged on.

    A model has learned from the spans that it records (`model.spans`; the Trainer does), and from those of the models
    that it was warm-started from. A model that this run trained never counts, nor one that records no spans or counted
    them by another calendar, nor one that learned from a span that was refused since, nor one whose blessing a person
    has taken back.
    """

    def __init__(
        self,
        examples: Channel,
        model: Channel,
        *,
        size: int = 1,
        skip: int = 0,
        offset: int = 0,
        since: int | str | None = None,
        missing: int = 0,
        exclude: Sequence[int | str] | None = None,
        name: str | None = None,
        after: Sequence[Node] = (),
    ) -> None:
        super().__init__(
            examples, size=size, skip=skip, since=since, missing=missing, exclude=exclude, name=name, after=after
        )
        self._add_source(model, many=False)
        if not issubclass(model.kind, Model):
            raise PipelineError(f"{self.name} takes examples, then a channel of models, not {model!r}.")
        if not isinstance(offset, int):
            raise ParameterError(f"{self.name}.offset is {offset!r}; it is a number of spans.")
        self.offset = offset
        self.parameters = {**self.parameters, "offset": offset}
        self._models = model

    def choose(self, histories: Mapping[str, History]) -> Mapping[str, Sequence[Artifact]]:
        examples = self.resolve(histories[self.source.key])
        model = self._choose_model(histories[self._models.key], histories[self.source.key], examples[0])
        return {self.source.key: examples, self._models.key: (model,)}

    def why(self, history: History, chosen: Sequence[Artifact]) -> str:
        """How far the model has learned, and which newer one was passed over."""
        learned = _spans_learned(history, chosen[-1], chosen[0])
        if not learned:
            return ""
        address = Address(history.address.pipeline, self._models.node, self._models.key)
        models = replace(history, address=address, kind=Model, mine=(), gated=(), origins=(), calendar=None)
        newest = next(self._find_old_enough(models, chosen[0]), chosen[-1])
        withheld = history.find_refused(newest)
        passed = "" if withheld is None else f"; {newest.name} learned from {self._describe(withheld)}"
        return f"which learned from spans to {self.calendar.label(max(learned))}{passed}"

    def _choose_model(self, models: History, spans: History, first: Artifact) -> Artifact:
        """The newest model that learned only from spans before `first`, moved by the offset, and from none refused."""
        refused = None
        for model in self._find_old_enough(models, first):
            if (withheld := spans.find_refused(model)) is None:
                return model
            refused = refused or (model, withheld)
        before = self.calendar.label(span_of(first) - self.offset)
        wanted = f"{self.name} wants a model that learned only from spans before {before}, but "
        if refused is not None:
            model, withheld = refused
            raise ResolutionError(
                f"{wanted}{model.name} learned from {self._describe(withheld)}. Train one without it, then run the "
                f"pipeline for the next span."
            )
        learned = [(model, _spans_learned(models, model, first)) for model in models.newest()]
        least = min((max(found) for _, found in learned if found), default=None)
        if least is not None:
            raise ResolutionError(
                f"{wanted}every model of {self._models!r} that counts learned from {self.calendar.label(least)} or "
                "later. Run the pipeline for the next span, train on a window that ends earlier (RollingWindow's "
                "skip=), or pass offset= to let a model be judged on spans that it learned from."
            )
        if learned and (calendar := _other_calendar(models, learned[0][0], first)) is not None:
            raise ResolutionError(
                f"{wanted}{learned[0][0].name} learned from spans that count by another calendar, {calendar}. Run the "
                f"pipeline for the next span."
            )
        if learned:
            raise ResolutionError(
                f"{wanted}{learned[0][0].name} does not record what it learned from. Set model.spans where it is "
                f"trained; the Trainer does."
            )
        raise ResolutionError(
            f"{wanted}no earlier run has published one on {self._models!r} that counts. "
            f"Train one first, then run the pipeline for the next span."
        )

    def _find_old_enough(self, models: History, first: Artifact) -> Iterator[Artifact]:
        """The models that learned only from spans before `first`, moved by the offset; the newest first."""
        for model in models.newest():
            learned = _spans_learned(models, model, first)
            if learned and max(learned) < span_of(first) - self.offset:
                yield model

    def _describe(self, refused: Withheld) -> str:
        return f"{self.calendar.label(span_of(refused.artifact))}, which was {refused} since"


def _spans_learned(history: History, model: Artifact, beside: Artifact) -> set[int]:
    """The spans that a model, its bases and those that it was made of learned from.

    Empty when one of them does not say, or counted them by another calendar than the examples beside it.
    """
    learned: set[int] = set()
    for each in _with_models_above(history, model):
        if not each.spans or _other_calendar(history, each, beside) is not None:
            return set()
        learned |= set(each.spans)
    return learned


def _other_calendar(history: History, model: Artifact, beside: Artifact) -> str | None:
    """The calendar of the spans that a model learned from, if it is not that of these examples: numbers say nothing."""
    wanted = beside.properties.get("calendar")
    read = itertools.chain(*history.store.producer(model).inputs.values())
    recorded = (each.properties.get("calendar") for each in read if "span" in each.properties)
    return next((str(name) for name in recorded if None not in (name, wanted) and name != wanted), None)


def _with_models_above(history: History, model: Artifact) -> Iterator[Model]:
    """A model, those that it was warm-started from or made of, and so on."""
    todo, seen = [model.as_kind(Model)], {model.name}
    while todo:
        each = todo.pop()
        yield each
        read = [a for a in itertools.chain(*history.store.producer(each).inputs.values()) if a.is_a(Model)]
        base = [] if each.base is None else [history.store.artifact(each.base)]
        todo += [above.as_kind(Model) for above in (*base, *read) if above.name not in seen]
        seen.update(above.name for above in todo)
