"""Recoveries: what a complete run makes good of what its pipeline's schedule has missed."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path

from orchestrator.run import Run
from orchestrator.store import Store
from scheduler import alert, ledger, outbox


def make_good(store: Store, run: Run, spans: Collection[int], home: Path) -> None:
    """Notes that the abnormal ticks of these spans are made good, and has it told once none is left.

    Told is only what was complained of; the next scheduler, `schedule tick` or `schedule check` delivers it.
    """
    found = [entry for span in spans for entry in ledger.recover(store, run.pipeline, span, run.number)]
    if found and not ledger.missed(store, run.pipeline):
        for each in alert.recovered(run, at=datetime.now(UTC), site=alert.here()):
            outbox.put(home, each)
