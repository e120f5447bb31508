import pytest

from spanwise.orchestrator.component import Retry
from spanwise.orchestrator.run import Run, State
from spanwise.scheduler.ledger.ticks import Ending, Outcome
from spanwise.scheduler.schedule.retry import Again, after

ONCE = Retry(times=1, backoff_s=30.0)
COMPLETE = Run(pipeline="p", number=7, state=State.COMPLETE)
FAILED = Run(pipeline="p", number=7, state=State.FAILED, error="Trainer failed")
STOPPED = Run(pipeline="p", number=7, state=State.CANCELED, error="stopped by `spanwise stop`")


def ending(outcome: Outcome, why: str = "", run: int | None = 7) -> Ending:
    return Ending(outcome=outcome, why=why, run=run)


@pytest.mark.parametrize(
    ("run", "tries", "overrun_by", "then"),
    [
        (COMPLETE, 1, None, ending(Outcome.RAN)),
        (COMPLETE, 1, "02:00", ending(Outcome.RAN)),
        (FAILED, 1, None, Again(30.0, 7)),
        (FAILED, 2, None, ending(Outcome.FAILED, "Trainer failed (attempt 2 of 2)")),
        (FAILED, 1, "02:00", ending(Outcome.KILLED, "ended for the tick 02:00")),
        (STOPPED, 1, "02:00", ending(Outcome.KILLED, "ended for the tick 02:00")),
        (STOPPED, 1, None, ending(Outcome.FAILED, "stopped by `spanwise stop`")),
        (None, 1, None, Again(30.0, None)),
        (None, 2, None, ending(Outcome.FAILED, "no file p.py (attempt 2 of 2)", None)),
    ],
)
def test_what_follows_an_attempt(run: Run | None, tries: int, overrun_by: str | None, then: Again | Ending) -> None:
    """It is over, or there is another; a run that came to its good end ran, whatever was meant to be done to it."""
    assert after(run, tries, ONCE, overrun_by=overrun_by, said="no file p.py") == then
