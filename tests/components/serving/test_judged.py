"""Blessings are of the model that they decide about, or the pipeline is refused when it is built."""

import pytest

from spanwise import (
    Artifact,
    BulkInferrer,
    Champion,
    Component,
    Evaluator,
    ExampleGen,
    Examples,
    InfraValidator,
    Input,
    Latest,
    Model,
    Output,
    Pusher,
    Threshold,
    Trainer,
)
from spanwise.orchestrator import PipelineError


def predict(model_dir, table): ...


def train(task): ...


class Prepared(Artifact, kind="Prepared"):
    """Features, as somebody keeps them."""


class Prepare(Component):
    def run(self, examples: Input[Examples], prepared: Output[Prepared]) -> None: ...


class Tune(Component):
    def run(self, prepared: Input[Prepared], base: Input[Model], model: Output[Model]) -> None: ...


class Export(Component):
    def run(self, model: Input[Model], exported: Output[Model]) -> None: ...


INGEST = ExampleGen(pattern="data/{SPAN}/*.csv")
ONE = Trainer(examples=INGEST["examples"], run_fn=train, name="One")
OTHER = Trainer(examples=INGEST["examples"], run_fn=train, name="Other", base=ONE["model"])
EVALUATOR = Evaluator(
    examples=INGEST["examples"],
    model=ONE["model"],
    label="y",
    predict_fn=predict,
    thresholds={"auc": Threshold(at_least=0.5)},
)
INFRA = InfraValidator(examples=INGEST["examples"], model=ONE["model"], predict_fn=predict)
EXPORT = Export(model=ONE["model"])
PREPARED = Prepare(examples=INGEST["examples"])
TUNED = Tune(prepared=PREPARED["prepared"], base=ONE["model"])
CHAMPION = Champion(ONE["model"])


def push(model, **blessings):
    return Pusher(model=model, destination="serving", **blessings)


@pytest.mark.parametrize("model", [ONE["model"], EXPORT["exported"]])
def test_a_model_and_what_is_exported_of_it_have_its_blessings(model):
    """They are pushed and used for predictions by the same verdicts."""
    push(model, blessing=EVALUATOR["blessing"], infra_blessing=INFRA["blessing"])
    BulkInferrer(examples=INGEST["examples"], model=model, blessing=EVALUATOR["blessing"], predict_fn=predict)


@pytest.mark.parametrize("blessings", [{"blessing": EVALUATOR["blessing"]}, {"infra_blessing": INFRA["blessing"]}])
def test_a_blessing_of_another_model_is_refused(blessings):
    """Also of one that it was trained from: nothing would have judged it."""
    with pytest.raises(PipelineError, match=r"takes the model Other\['model'\], .*, which judges One\['model'\]"):
        push(OTHER["model"], **blessings)


def test_a_model_that_was_trained_on_features_of_an_own_type_is_no_export():
    """The type may hold rows, so that nothing would have judged what was learned from them."""
    with pytest.raises(PipelineError, match=r"takes the model Tune\['model'\], .*, which judges One\['model'\]"):
        push(TUNED["model"], blessing=EVALUATOR["blessing"])


@pytest.mark.parametrize("model", [OTHER["model"], CHAMPION["model"]])
def test_predictions_by_a_blessing_of_another_model_are_refused(model):
    """The verdict of this run is none on the champion."""
    with pytest.raises(PipelineError, match=r"take the model One\['model'\]"):
        BulkInferrer(examples=INGEST["examples"], model=model, blessing=EVALUATOR["blessing"], predict_fn=predict)


def test_a_blessing_of_an_earlier_run_is_refused():
    """It is of whichever model was judged last."""
    earlier = Latest(EVALUATOR["blessing"])

    with pytest.raises(PipelineError, match=r"may be of another model than .*LatestBlessed or Champion"):
        push(ONE["model"], blessing=earlier["blessing"])
