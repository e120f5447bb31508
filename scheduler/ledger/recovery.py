"""Recoveries: what a complete run makes good of what its pipeline's schedule has missed."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path

from spanwise.orchestrator.run import Run
from spanwise.orchestrator.store import Store
from spanwise.scheduler.alerts import alert, outbox
from spanwise.scheduler.ledger import ticks
from spanwise.scheduler.schedule.part import PARTS, TRAIN, WHOLE


def make_good(
    store: Store, run: Run, spans: Collection[int], home: Path, parts: Collection[str] = (WHOLE, *PARTS)
) -> None:
    """Notes that the abnormal ticks of these spans are made good, and has it told once none is left.

    `parts` are those that the run has brought to an end. One that has trained makes good all that was to train on the
    newest span, whichever that was.

    Told is only what was complained of; the next scheduler, `schedule tick` or `schedule check` delivers it.
    """
    lines = ticks.lines(store, run.pipeline)
    found = [e for line in lines for span in spans for e in ticks.recover(store, line, span, run.number, parts)]
    if TRAIN in parts:
        found += [e for line in lines for e in ticks.recover(store, line, None, run.number, [TRAIN])]
    if found and not any(ticks.missed(store, line) for line in lines):
        for each in alert.recovered(run, at=datetime.now(UTC), site=alert.here()):
            outbox.put(home, each)
