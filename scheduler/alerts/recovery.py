"""Recoveries: which missed ticks a complete run recovers, and the alerts that this ends."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path

from spanwise.orchestrator.run import Run
from spanwise.orchestrator.store import Store
from spanwise.scheduler.alerts import alert, outbox
from spanwise.scheduler.ledger.schedules import list_keys
from spanwise.scheduler.ledger.ticks import list_missed, recover_ticks
from spanwise.scheduler.schedule.schedule_key import PARTS, TRAIN, WHOLE


def record_recovery(
    store: Store, run: Run, spans: Collection[int], home: Path, parts: Collection[str] = (WHOLE, *PARTS)
) -> None:
    """Records the missed ticks of these spans as recovered, and announces it once none is left.

    `parts` are those that the run has completed. A run that has trained recovers all ticks that were to train on the
    newest span, whichever that was.

    Only what was alerted is announced; the next scheduler, `schedule tick` or `schedule check` delivers it.
    """
    keys = list_keys(store, run.pipeline)
    recovered = [tick for key in keys for span in spans for tick in recover_ticks(store, key, span, run.number, parts)]
    if TRAIN in parts:
        recovered += [tick for key in keys for tick in recover_ticks(store, key, None, run.number, [TRAIN])]
    if recovered and not any(list_missed(store, key) for key in keys):
        for each in alert.recovery_alerts(run, at=datetime.now(UTC), site=alert.local_site()):
            outbox.put(home, each)
