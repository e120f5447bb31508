"""The watchdog: tells of schedules that are not kept, from outside, so also when no scheduler is left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from spanwise.scheduler.alerts import alert as words
from spanwise.scheduler.alerts import channel, outbox
from spanwise.scheduler.alerts.alert import Alert, Site
from spanwise.scheduler.ledger.schedule_status import ScheduleStatus
from spanwise.scheduler.project.settings import Settings


def send_alerts(
    found: Sequence[ScheduleStatus], settings: Settings, now: datetime, options: Sequence[str] = ()
) -> None:
    """Sends an alert for each thing that is wrong, and for what was wrong and is good again.

    `options` are --root and --config as they were typed.
    """
    routes = channel.read_routes(settings.alerts)
    site = words.local_site(options)
    settings.root.mkdir(parents=True, exist_ok=True)
    for one in found:
        for each in alerts(one, now, site):
            outbox.put(settings.root, each)
    outbox.deliver(settings.root, routes, now)


def alerts(found: ScheduleStatus, now: datetime, site: Site) -> Iterator[Alert]:
    """What there is to tell of a schedule; recoveries are told only where something was complained of."""
    pipeline = found.schedule.key
    if found.overdue is not None:
        late = found.overdue
        yield words.missed_alert(
            pipeline,
            at=now,
            site=site,
            ticks=[late.first.name],
            why="the scheduler that took it has died" if late.abandoned else "no scheduler has taken it",
            more=late.count - 1,
            overdue=True,
        )
    else:
        yield _good_again(pipeline, f"overdue {pipeline}", "no tick is overdue", now, site)
    if found.stale is not None:
        yield words.freshness_alert(pipeline, at=now, site=site, pushed=found.stale.pushed, allowed=found.stale.allowed)
    else:
        yield _good_again(pipeline, f"freshness {pipeline}", "a model was pushed", now, site)


def _good_again(pipeline: str, cause: str, how: str, now: datetime, site: Site) -> Alert:
    return words.recovery_alert(pipeline, at=now, site=site, cause=cause, words=how)
