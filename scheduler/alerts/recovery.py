"""Recoveries: what closes missed ticks, and the alerts that end once none is left."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from spanwise.orchestrator.run import Run
from spanwise.orchestrator.store import Store
from spanwise.scheduler.alerts import alert, outbox
from spanwise.scheduler.alerts.alert import Alert, Site
from spanwise.scheduler.ledger.missed import MissedTicks, close_ticks, is_any_missed
from spanwise.scheduler.ledger.schedules import list_keys, list_replaced
from spanwise.scheduler.ledger.ticks import TickRecord
from spanwise.scheduler.schedule.outcome import TickClosure
from spanwise.scheduler.schedule.schedule_key import pipeline_of

MISSING_KINDS = ("failure", "overrun", "missed")
"""The alerts that say that a tick was lost: they end once no missed tick of the pipeline is left."""


def record_recovery(
    store: Store,
    run: Run,
    spans: Collection[int],
    place: str | Path,
    missed: MissedTicks | None = None,
    is_done: Callable[[TickRecord], bool] = lambda _record: True,
    earlier: Callable[[TickRecord], Collection[int]] = lambda _record: (),
) -> None:
    """Records the missed ticks of these spans as recovered, and announces it once none is left.

    Of these, the ones that came before the run began, and of which `is_done` says that what else they were to do is
    done. It also recovers all ticks that were to run on the newest data, whichever that was. Whoever records many
    recoveries gives the same `missed` to each. For a tick that stands for several, those spans count too that
    `earlier` runs of the same nodes have ingested since.

    Only what was alerted is announced, by whichever host; `place` is the root. The next scheduler, `schedule tick` or
    `schedule check` delivers it.
    """

    def is_recovered(record: TickRecord) -> bool:
        return record.came_before(run) and is_done(record)

    keys, now = list_keys(store, run.pipeline), datetime.now(UTC)
    missed = MissedTicks(store) if missed is None else missed
    recovered = [missed.recover(key, spans, run.number, now=now, is_done=is_recovered, earlier=earlier) for key in keys]
    if any(recovered):
        _announce(store, run.pipeline, place, now, f"run {run.number} succeeded", missed.is_any)


def record_closing(
    store: Store, records: Sequence[TickRecord], closure: TickClosure, place: str | Path
) -> list[TickRecord]:
    """Closes missed ticks, and announces it for each pipeline of which none is left; returns those that were closed."""
    closed = close_ticks(store, records, closure)
    by = f" by {closure.who}" if closure.who else ""
    summary = f"the last missed tick was {closure.how.value}{by}"
    is_any = functools.partial(is_any_missed, store)
    for pipeline in dict.fromkeys(pipeline_of(record.key) for record in closed):
        _announce(store, pipeline, place, closure.at, summary, is_any)
    return closed


def list_recoveries(
    store: Store,
    pipeline: str,
    *,
    at: datetime,
    site: Site,
    summary: str,
    is_any: Callable[[str], bool],
) -> Iterator[Alert]:
    """The recoveries from lost ticks, for all schedules that a pipeline has or had; none while a tick is still missed.

    `is_any` says whether one of a schedule key is.
    """
    keys = list_keys(store, pipeline)
    if any(is_any(key) for key in keys):
        return
    replaced = [known.key for known in list_replaced(store, pipeline)]
    for key in dict.fromkeys([*keys, *replaced]):
        for kind in MISSING_KINDS:
            yield alert.recovery_alert(key, at=at, site=site, cause=f"{kind} {key}", summary=summary)


def _announce(
    store: Store, pipeline: str, place: str | Path, now: datetime, summary: str, is_any: Callable[[str], bool]
) -> None:
    for each in list_recoveries(store, pipeline, at=now, site=alert.local_site(), summary=summary, is_any=is_any):
        outbox.put(place, each)
