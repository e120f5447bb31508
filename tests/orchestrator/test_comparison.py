"""Which readers of a choice compare it with what the run makes, by the wiring."""

import pytest

from spanwise.orchestrator import (
    Component,
    Evaluation,
    Examples,
    InferenceResult,
    Input,
    Model,
    Output,
    Pipeline,
    PipelineError,
    Report,
    past,
)
from spanwise.resolvers import Champion


class Ingest(Component):
    def run(self, examples: Output[Examples]) -> None: ...


class Train(Component):
    def run(self, examples: Input[Examples], base: Input[Model | None], model: Output[Model]) -> None: ...


class Export(Component):
    def run(self, model: Input[Model | None], exported: Output[Model]) -> None: ...


class Judge(Component):
    def run(self, model: Input[Model], baseline: Input[Model | None], evaluation: Output[Evaluation]) -> None: ...


class Predict(Component):
    def run(self, examples: Input[Examples], model: Input[Model | None], scores: Output[InferenceResult]) -> None: ...


class CompareScores(Component):
    def run(self, one: Input[InferenceResult], other: Input[InferenceResult], report: Output[Report]) -> None: ...


class Shadow(Component):
    def run(self, model: Input[Model], scores: Input[InferenceResult], report: Output[Report]) -> None: ...


class Ranking(InferenceResult): ...


class Rank(Component):
    def run(self, model: Input[Model], ranking: Output[Ranking]) -> None: ...


class Summary(Component):
    def run(self, evaluation: Input[Evaluation], scores: Input[InferenceResult], report: Output[Report]) -> None: ...


class Again(Component):
    def run(self, report: Input[Report], again: Output[Report]) -> None: ...


INGEST = Ingest()
TRAIN = Train(examples=INGEST["examples"])
EXPORT = Export(model=TRAIN["model"])
CHAMPION = Champion(TRAIN["model"])
MODEL, EXAMPLES = CHAMPION["model"], INGEST["examples"]
PREDICT = Predict(examples=EXAMPLES, model=MODEL)
JUDGE = Judge(model=TRAIN["model"])
SUMMARY = Summary(evaluation=JUDGE["evaluation"], scores=PREDICT["scores"])


def scope_of(*nodes, champion=CHAMPION):
    pipeline = Pipeline("p", [INGEST, TRAIN, champion, *nodes])
    return pipeline.scopes["Champion"][champion.source.key]


def predict_with_the_candidate():
    ours = Predict(examples=EXAMPLES, model=TRAIN["model"], name="Ours")
    return [PREDICT, ours, CompareScores(one=ours["scores"], other=PREDICT["scores"])]


def predict_with_one(candidate):
    return [
        PREDICT,
        *([EXPORT] if candidate.node == "Export" else []),
        Shadow(model=candidate, scores=PREDICT["scores"]),
    ]


def apply_the_choice():
    calibrated, scores = Export(model=MODEL, name="Calibrate"), Predict(examples=EXAMPLES, model=TRAIN["model"])
    return [calibrated, scores, Shadow(model=calibrated["exported"], scores=scores["scores"])]


def rank_with_one():
    ranked = Rank(model=TRAIN["model"])
    return [PREDICT, ranked, CompareScores(one=ranked["ranking"], other=PREDICT["scores"])]


def calibrate():
    calibrated = Export(model=MODEL, name="Calibrate")
    return [calibrated, Judge(model=TRAIN["model"], baseline=calibrated["exported"])]


@pytest.mark.parametrize(
    ("nodes", "compared_by"),
    [
        ([Judge(model=TRAIN["model"], baseline=MODEL)], ("Judge",)),
        ([EXPORT, Judge(model=EXPORT["exported"], baseline=MODEL)], ("Judge",)),
        (calibrate(), ("Calibrate",)),
        (predict_with_the_candidate(), ("Predict",)),
        (predict_with_one(TRAIN["model"]), ("Predict",)),
        (predict_with_one(EXPORT["exported"]), ("Predict",)),
        (apply_the_choice(), ("Calibrate",)),
        (rank_with_one(), ("Predict",)),
    ],
    ids=[
        "it reads both",
        "what is made of the candidate",
        "what is made of the choice",
        "predictions of both",
        "a model and predictions",
        "an export and predictions",
        "predictions and a model",
        "predictions of a kind that extends the other",
    ],
)
def test_a_choice_that_meets_what_the_run_makes_is_compared(nodes, compared_by):
    """Directly, by something of one kind that is made of each, or by the model of one and what is made of the other."""
    scope = scope_of(*nodes)

    assert (scope.compared_by, scope.compared) == (compared_by, True)


@pytest.mark.parametrize(
    "nodes",
    [[PREDICT], [PREDICT, JUDGE, SUMMARY], [PREDICT, JUDGE, SUMMARY, Again(report=SUMMARY["report"])]],
    ids=["alone", "beside another that judges", "in a summary"],
)
def test_a_choice_that_does_not_meet_what_the_run_makes_is_used(nodes):
    """As for predictions, also where one page tells of both."""
    scope = scope_of(*nodes)

    assert (scope.used_by, scope.compared) == (("Predict",), False)


def test_an_export_is_compared_with_the_model_that_it_is_made_of():
    """Its judge reads that model, since an export has the blessing of it."""
    champion = Champion(EXPORT["exported"])
    judge = Judge(model=TRAIN["model"], baseline=champion["exported"])

    assert scope_of(EXPORT, judge, champion=champion).compared_by == ("Judge",)


def test_a_model_that_goes_on_from_an_earlier_one_is_compared_with_it():
    """What is made of the choice is the candidate."""
    before = Champion(past("Train", "model", Model))
    train = Train(examples=EXAMPLES, base=before["model"])
    pipeline = Pipeline("p", [INGEST, before, train])

    assert pipeline.scopes["Champion"]["model"].compared_by == ("Train",)


def test_a_choice_that_nobody_reads_is_as_one_that_is_compared():
    """Nothing says that it may be of this run."""
    assert scope_of().compared


def test_a_champion_is_either_compared_or_used():
    """One of two readers would be given another model than it wants: the pipeline is not built."""
    with pytest.raises(
        PipelineError, match=r'Give Predict a Champion of its own:  Champion\(train.*, name="Serving"\)'
    ):
        scope_of(PREDICT, Judge(model=TRAIN["model"], baseline=MODEL))

    serving = Champion(TRAIN["model"], name="Serving")
    assert (
        not Pipeline(
            "p",
            [
                INGEST,
                TRAIN,
                CHAMPION,
                Judge(model=TRAIN["model"], baseline=MODEL),
                serving,
                Predict(examples=EXAMPLES, model=serving["model"]),
            ],
        )
        .scopes["Serving"]["model"]
        .compared
    )
