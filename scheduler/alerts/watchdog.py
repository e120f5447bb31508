"""The watchdog: alerts about overdue ticks and stale models, from outside, so also when no scheduler is left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from spanwise.scheduler.alerts import channel, outbox
from spanwise.scheduler.alerts.alert import (
    Alert,
    Site,
    clock_alert,
    clock_recovery,
    freshness_alert,
    freshness_recovery,
    local_site,
    missed_alert,
    recovery_alert,
)
from spanwise.scheduler.ledger.schedule_status import ScheduleStatus
from spanwise.scheduler.project.settings import Settings


def send_alerts(
    statuses: Sequence[ScheduleStatus], settings: Settings, now: datetime, options: Sequence[str] = ()
) -> None:
    """Sends an alert for each problem, and for each problem that has recovered.

    `options` are --root and --config as they were typed.
    """
    routes = channel.read_routes(settings.alerts)
    site = local_site(options)
    settings.root.mkdir(parents=True, exist_ok=True)
    for status in statuses:
        for each in list_alerts(status, now, site):
            outbox.put(settings.place, each)
    outbox.deliver(settings.place, routes, now)


def list_alerts(status: ScheduleStatus, now: datetime, site: Site) -> Iterator[Alert]:
    """The alerts for a schedule; of the recoveries, the outbox sends those whose cause was alerted."""
    pipeline = status.schedule.key
    if status.overdue is not None:
        late = status.overdue
        yield missed_alert(
            pipeline,
            at=now,
            site=site,
            ticks=[late.first.name],
            why="the scheduler that took it has died" if late.abandoned else "no scheduler has taken it",
            more=late.count - 1,
            overdue=True,
        )
    else:
        cause = f"overdue {pipeline}"
        yield recovery_alert(pipeline, at=now, site=site, cause=cause, summary="no tick is overdue")
    if status.stale is not None:
        yield freshness_alert(pipeline, at=now, site=site, pushed=status.stale.pushed, allowed=status.stale.allowed)
    else:
        yield freshness_recovery(pipeline, at=now, site=site)
    if status.set_back:
        yield clock_alert(pipeline, at=now, site=site, set_back=status.set_back)
    else:
        yield clock_recovery(pipeline, at=now, site=site)
