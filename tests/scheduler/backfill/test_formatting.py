"""What a backfill prints."""

from datetime import UTC, datetime

from spanwise.orchestrator.artifact import Blessing, PushedModel
from spanwise.orchestrator.run import Execution, Run, State
from spanwise.orchestrator.run_request import RunOutcome
from spanwise.scheduler.backfill.execution import BackfillEvent
from spanwise.scheduler.backfill.formatting import format_event
from spanwise.scheduler.backfill.record import Backfill


def test_a_run_that_trained_says_whether_its_model_serves():
    """In the words of `spanwise run`: it is complete also where its model was refused and the old one serves on."""
    refused = Blessing("", properties={"blessed": 0, "reasons": ["mae is 9.1; at_most=5 is required"]})
    made = {
        "Ingest": (),
        "Evaluator": (refused,),
        "Pusher": (PushedModel("", properties={"pushed": 0, "reason": "not pushed: blessing is negative"}),),
    }
    run = Run(pipeline="days", number=3, nodes=tuple(made), state=State.COMPLETE)
    executions = {
        node: Execution(pipeline="days", run=3, node=node, state=State.COMPLETE, outputs={"made": outputs})
        for node, outputs in made.items()
    }
    backfill = Backfill(
        pipeline="days",
        source="days.py",
        typed=(),
        calendar="day",
        spans=(1,),
        train=(),
        parallel=1,
        from_scratch=True,
        began=datetime(2024, 5, 1, tzinfo=UTC),
        after_run=0,
    )

    said = format_event(BackfillEvent(what="ran", outcome=RunOutcome(run=run, executions=executions)), backfill)

    verdict, summary = said.splitlines()
    assert verdict == "Not blessed: mae is 9.1; at_most=5 is required; not pushed."
    assert summary.startswith("Run days/3: complete")
