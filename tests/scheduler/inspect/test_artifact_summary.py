import pytest

from spanwise.orchestrator import (
    Anomalies,
    Artifact,
    Blessing,
    Calendar,
    Evaluation,
    Execution,
    Model,
    PushedModel,
    Run,
    State,
)
from spanwise.scheduler.inspect import artifact_summary
from tests.scheduler.records import DAY, examples, model

WHY = "auc is 0.663 and the baseline's is 0.667"


class Forecast(Artifact):
    """A kind of a user's own."""


def of(kind: type[Artifact], **properties: object) -> Artifact:
    return kind("/x", properties=properties)  # type: ignore[arg-type]  # what a store gives back


def refused() -> Artifact:
    return of(Blessing, blessed=0, current_model="p/Trainer/model/1", current_model_id=1, reasons=[WHY])


def not_pushed(reason: str | None = "not pushed: it was refused") -> Artifact:
    return of(PushedModel, pushed=0, model="p/Trainer/model/1", reason=reason)


PUSHED = of(PushedModel, pushed=1, pushed_destination="/srv/7", pushed_version="7", model="m")

FED = {"hits": 29, "misses": 1, "written": 1, "bytes_read": 1_200_000_000, "bytes_written": 40_000_000}


@pytest.mark.parametrize(
    ("artifact", "parts"),
    [
        (refused(), [f"not blessed: {WHY}"]),
        (of(Blessing, blessed=1, current_model="m", current_model_id=1), ["blessed"]),
        (PUSHED, ["pushed to /srv/7"]),
        (of(PushedModel, pushed=1, pushed_destination="/srv", pushed_version="7"), ["pushed to /srv as version 7"]),
        (of(PushedModel, pushed=1, reason="not pushed again: it is there"), ["not pushed again: it is there"]),
        (not_pushed(), ["not pushed: it was refused"]),
        (not_pushed(None), ["not pushed"]),
        (
            of(Evaluation, metrics={"auc": 2 / 3, "count": 9}, baseline_metrics={"auc": 0.5}),
            ["auc 0.666667 (baseline 0.5)", "count 9"],
        ),
        (of(Anomalies, span=DAY, found=0), ["nothing found"]),
        (of(Anomalies, span=DAY, found=2, severity="error"), ["2 found, error"]),
        (of(type(examples(DAY)), rows={"train": 5, "eval": 2}, fingerprint="ab"), ["train 5 rows", "eval 2 rows"]),
        (of(Model, spans=[DAY, DAY + 1], base="m"), ["learned from 2013-01-05 to 2013-01-06"]),
        (of(Model, snapshots=FED), ["found 29 of 30 snapshots (1.2 GB read)", "wrote 1 (40.0 MB)"]),
        (of(Model, snapshots=FED | {"written": 0}), ["found 29 of 30 snapshots (1.2 GB read)"]),
        (of(Forecast, snapshots={"monday": 1}), []),
        (of(Forecast, horizon_days=7, note="fair", points=[1, 2]), ["horizon_days 7", "note fair"]),
        (model(), []),
    ],
)
def test_an_artifact_tells_what_people_look_for(artifact: Artifact, parts: list[str]) -> None:
    """By its properties: verdicts with reasons, metrics beside the baseline's, rows; not digests and columns."""
    assert artifact_summary.summarize_artifact(artifact, Calendar.DAY) == parts


RUN = Run(pipeline="p", number=2, nodes=("Trainer", "Latest", "Evaluator", "Pusher"))


def done(node: str, *made: Artifact, state: State = State.COMPLETE, reused: int | None = None) -> Execution:
    return Execution(pipeline="p", run=2, node=node, state=state, reused=reused, outputs={"made": made})


@pytest.mark.parametrize(
    ("executions", "said"),
    [
        ([done("Pusher", not_pushed()), done("Evaluator", refused())], f"not blessed: {WHY}; not pushed"),
        ([done("Evaluator", of(Blessing, blessed=1)), done("Pusher", PUSHED)], "blessed; pushed to /srv/7"),
        ([done("Pusher", not_pushed())], "not pushed: it was refused"),
        ([done("Evaluator", refused(), state=State.CACHED, reused=4)], f"not blessed: {WHY}"),
        ([done("Latest", refused(), state=State.CACHED), done("Elsewhere", refused())], ""),
    ],
)
def test_the_verdict_of_a_run_is_whether_its_model_was_taken(executions: list[Execution], said: str) -> None:
    """In the order of the nodes; of what it made or found made, not of what it chose from the past or left out."""
    assert artifact_summary.describe_verdict(RUN, executions) == said
