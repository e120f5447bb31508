"""Condition alerts: of conditions that last, one alert when they begin to hold, and one when they end."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from spanwise.orchestrator.store import Store
from spanwise.scheduler.alerts import alert, outbox
from spanwise.scheduler.daemon.open_tick import OpenTick
from spanwise.scheduler.daemon.services import SchedulerServices
from spanwise.scheduler.ledger.holder import newest_run
from spanwise.scheduler.ledger.overdue import find_stale, measure_progress
from spanwise.scheduler.ledger.past_runs import list_past_runs
from spanwise.scheduler.ledger.schedules import ScheduleRecord
from spanwise.scheduler.ledger.ticks import read_tick
from spanwise.scheduler.schedule.forecast import format_forecast, make_forecast
from spanwise.scheduler.schedule.timetable import Timetable

log = logging.getLogger("spanwise.scheduler")


MEASURES = 10
"""How often progress is measured in the time after which a run counts as stalled."""


class ConditionAlerts:
    """The conditions of one schedule: a clock set back, a stale model, runs that will overrun, a run that stalls."""

    def __init__(self, key: str, services: SchedulerServices) -> None:
        self._key = key
        self._services = services
        self._overrun_alerted = False  # that runs take too much of the time between two ticks, which holds
        self._was_set_back: bool | None = None  # the clock, at the last look; None before the first
        self._was_stale: bool | None = None  # at the last look; None before the first

    def look_again(self) -> None:
        """What holds is asked anew, and whether it was alerted: the schedule is another, and alerts may have ended."""
        self._was_stale = None
        self._overrun_alerted = False

    def report_clock(self, set_back: timedelta, now: datetime) -> None:
        """Alerts once when the clock was set back behind the newest tick, and once when it has caught up.

        Earlier schedulers of this host have looked too: whichever sees the end announces it.
        """
        site = self._services.site
        if set_back and not self._was_set_back:
            self._services.send(alert.clock_alert(self._key, at=now, site=site, set_back=set_back))
        elif not set_back and self._was_set_back is not False:
            recovery = alert.clock_recovery(self._key, at=now, site=site)
            if self._was_set_back or outbox.was_alerted(self._services.place, recovery.cause):
                self._services.send(recovery)
        self._was_set_back = bool(set_back)

    def check_freshness(self, store: Store, record: ScheduleRecord, now: datetime) -> None:
        """Alerts once when the model in service becomes stale, and once when a model was pushed again.

        Other schedulers of the root look too, and earlier ones have looked: whichever alerted, whichever sees the end
        announces it.
        """
        stale = find_stale(store, record, now)
        site, cause = self._services.site, f"freshness {self._key}"
        if stale is not None and not self._was_stale:
            if not outbox.was_alerted(self._services.place, cause):
                log.warning("model-outdated", extra={"pipeline": self._key, "pushed": str(stale.pushed)})
                pushed, allowed = stale.pushed, stale.allowed
                self._services.send(alert.freshness_alert(self._key, at=now, site=site, pushed=pushed, allowed=allowed))
        elif stale is None and self._was_stale is not False:
            self._services.send(alert.freshness_recovery(self._key, at=now, site=site))
        self._was_stale = stale is not None

    def check_forecast(self, store: Store, timetable: Timetable, now: datetime) -> None:
        """Alerts once when runs come to take too much of the time between two ticks, and once when they do not."""
        forecast = make_forecast(timetable, list_past_runs(store, self._key, nodes=False), now)
        site, cause = self._services.site, f"forecast {self._key}"
        why = self._services.alarm(forecast)
        if not why:
            self._services.send(
                alert.recovery_alert(self._key, at=now, site=site, cause=cause, summary="runs end in time")
            )
        elif not self._overrun_alerted and not outbox.was_alerted(self._services.place, cause):
            log.warning("overrun-forecast", extra={"pipeline": self._key, "reason": why})
            facts = format_forecast(forecast)
            self._services.send(alert.forecast_alert(self._key, at=now, site=site, forecast=why, facts=facts))
        self._overrun_alerted = bool(why)

    def watch_progress(
        self, tick: OpenTick, store: Store, limit: timedelta | None, now: datetime, monotonic: float
    ) -> None:
        """Alerts once when a run makes no progress for longer than `limit`, which its schedule allows."""
        if limit is None:
            return
        tick.record = read_tick(store, self._key, tick.record.tick.name) or tick.record
        run = newest_run(store, tick.record)
        if run is None or run.state.ended:
            return
        if monotonic < tick.measure_s and tick.progress[:1] == (run.number,):
            return
        tick.measure_s = monotonic + limit.total_seconds() / MEASURES  # the run may be elsewhere: requests, not stats
        progress = (run.number, *measure_progress(store, run, self._services.root))
        if progress != tick.progress:
            tick.progress, tick.progress_s, tick.stalled = progress, monotonic, False
        elif monotonic - tick.progress_s >= limit.total_seconds() and not tick.stalled:
            tick.stalled = True
            quiet, name = timedelta(seconds=monotonic - tick.progress_s), tick.record.tick.name
            facts = {"pipeline": self._key, "tick": name, "run": run.name, "quiet_s": quiet.total_seconds()}
            log.warning("run-stalled", extra=facts)
            self._services.send(alert.stall_alert(run, at=now, site=self._services.site, quiet=quiet, tick=name))
