import pytest

from spanwise.orchestrator.component import Retry
from spanwise.orchestrator.run import Run, State
from spanwise.scheduler.schedule.outcome import TickEnd, TickOutcome
from spanwise.scheduler.schedule.retry import RetryRun, decide_retry

ONCE = Retry(times=1, backoff_s=30.0)
COMPLETE = Run(pipeline="p", number=7, state=State.COMPLETE)
FAILED = Run(pipeline="p", number=7, state=State.FAILED, error="Trainer failed")
STOPPED = Run(pipeline="p", number=7, state=State.CANCELED, error="stopped by `spanwise stop`")


def ended(outcome: TickOutcome, why: str = "", run: int | None = 7) -> TickEnd:
    return TickEnd(outcome=outcome, why=why, run=run)


@pytest.mark.parametrize(
    ("run", "tries", "overrun_by", "then"),
    [
        (COMPLETE, 1, None, ended(TickOutcome.RAN)),
        (COMPLETE, 1, "the tick 02:00", ended(TickOutcome.RAN)),
        (FAILED, 1, None, RetryRun(30.0, 7)),
        (FAILED, 2, None, ended(TickOutcome.FAILED, "Trainer failed (attempt 2 of 2)")),
        (FAILED, 1, "the tick 02:00", ended(TickOutcome.KILLED, "ended for the tick 02:00")),
        (STOPPED, 1, "the tick 02:00", ended(TickOutcome.KILLED, "ended for the tick 02:00")),
        (STOPPED, 1, None, ended(TickOutcome.FAILED, "stopped by `spanwise stop`")),
        (None, 1, None, RetryRun(30.0, None)),
        (None, 2, None, ended(TickOutcome.FAILED, "no file p.py (attempt 2 of 2)", None)),
    ],
)
def test_what_follows_an_attempt(run: Run | None, tries: int, overrun_by: str | None, then: RetryRun | TickEnd) -> None:
    """It is over, or there is another; a run that succeeded ran, whatever was meant to be done to it."""
    assert decide_retry(run, tries, ONCE, overrun_by=overrun_by, error="no file p.py") == then
