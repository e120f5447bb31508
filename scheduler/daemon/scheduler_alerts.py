"""The alerts about a scheduler itself, and the delivery of every alert in its outbox."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Sequence
from datetime import datetime

from spanwise.orchestrator.errors import SpanwiseError
from spanwise.orchestrator.lease import Clock
from spanwise.scheduler.alerts import alert, channel, outbox
from spanwise.scheduler.alerts.outbox_store import digest_cause
from spanwise.scheduler.daemon.services import SchedulerServices
from spanwise.scheduler.project import settings
from spanwise.scheduler.project.settings import Settings
from spanwise.scheduler.schedule.forecast import Forecast
from spanwise.scheduler.schedule.schedule_key import pipeline_of

log = logging.getLogger("spanwise.scheduler")

DELIVER_S = 5.0
"""The interval at which the outbox is checked."""

DELIVERY_S = 15.0
"""How long the last delivery of alerts may take."""

INVALID_ALERT_SETTINGS = "invalid alert settings"
PIPELINE_NOT_SCHEDULED = "a pipeline is not scheduled"
SCHEDULE_OVER = "the schedule is over: the pipeline has another one now, or none in its file"

LASTING_KINDS = ("overdue", "freshness", "forecast")
"""The alerts of a schedule that say how it stands."""


class SchedulerAlerts:
    """Sends the alerts about a scheduler, and delivers what is in its outbox through the channels of its settings."""

    def __init__(self, known: Settings, services: SchedulerServices, clock: Clock) -> None:
        """Raises SettingsError: a channel names a variable that is not set."""
        self._settings = known
        self._services = services
        self._clock = clock
        self._alerts = known.alerts
        self._routes = channel.read_routes(known.alerts)
        self._deliver_s = 0.0  # monotonic: when to look into the outbox next
        self._delivery: threading.Thread | None = None
        self._earlier: frozenset[str] | None = None  # digests of the causes that others have alerted; None: not read

    def check_channels(self) -> None:
        """Raises SettingsError: a channel cannot be used."""
        channel.check_channels(self._routes)
        self.end_earlier(INVALID_ALERT_SETTINGS, "they are valid now", self._clock.now())

    def explain_forecast(self, forecast: Forecast) -> str:
        """Why an alert about a forecast is sent; empty: none is."""
        return forecast.alarm(self._alerts.of(forecast.pipeline).forecast_load)

    def send_trouble(self, what: str, error: Exception, now: datetime, pipeline: str = "") -> None:
        text = str(error) if isinstance(error, SpanwiseError) else f"{type(error).__name__}: {error}"
        self._services.send(alert.trouble_alert(what, at=now, site=self._services.site, error=text, pipeline=pipeline))

    def send_recovery(self, what: str, summary: str, now: datetime, pipeline: str = "") -> None:
        cause = alert.trouble_cause(what, self._services.site, pipeline)
        self._services.send(
            alert.recovery_alert(pipeline, at=now, site=self._services.site, cause=cause, summary=summary)
        )

    def end_earlier(self, what: str, summary: str, now: datetime, pipeline: str = "") -> None:
        """Announces the end of what an earlier scheduler of this host alerted, and did not see the end of."""
        if self._earlier is None:
            self._earlier = outbox.list_standing(self._settings.place)
        if digest_cause(alert.trouble_cause(what, self._services.site, pipeline)) in self._earlier:
            self.send_recovery(what, summary, now, pipeline)

    def end_conditions(self, over: Sequence[str], now: datetime, *, stalled: Collection[str]) -> None:
        """Announces the end of what was alerted of schedules that are over, and would hold for ever.

        `stalled` are pipelines of which nothing is scheduled any more, and no run goes on.
        """
        site, endings = self._services.site, []
        for key in over:
            causes = [f"{kind} {key}" for kind in LASTING_KINDS]
            causes += [alert.trouble_cause(what, site, key) for what in (alert.CLOCK_SET_BACK, PIPELINE_NOT_SCHEDULED)]
            causes += [f"stall {pipeline_of(key)}"] if pipeline_of(key) in stalled else []
            endings += [(key, cause, SCHEDULE_OVER) for cause in causes]
        self.end_standing(endings, now)

    def end_standing(self, endings: Sequence[tuple[str, str, str]], now: datetime) -> None:
        """Announces the ends of causes, each given with its schedule key and how it ended, of those that were alerted.

        One look for all: most have never been.
        """
        standing = outbox.list_standing(self._settings.place) if endings else frozenset()
        for key, cause, summary in endings:
            if digest_cause(cause) in standing:
                ended = alert.recovery_alert(key, at=now, site=self._services.site, cause=cause, summary=summary)
                self._services.send(ended)

    def start_reload(self) -> None:
        """Reads the alert settings again, in a thread, since Apprise takes its time."""
        threading.Thread(target=self._reload, name="settings", daemon=True).start()

    def deliver(self, monotonic: float) -> None:
        """Delivers from time to time, unless a delivery is still going."""
        if monotonic >= self._deliver_s and (self._delivery is None or not self._delivery.is_alive()):
            self._deliver_s = monotonic + DELIVER_S
            self._start_delivery()

    def close(self) -> None:
        """Delivers the last alerts."""
        self._await_delivery()
        self._start_delivery()
        self._await_delivery()

    def _reload(self) -> None:
        """Uses the alert settings as they are now, if they are valid and every channel can be used."""
        now = self._clock.now()
        try:
            fresh = settings.read(config=self._settings.file, root=self._settings.place).alerts
            routes = channel.read_routes(fresh)
            channel.check_channels(routes)
        except SpanwiseError as error:
            log.error("alert-settings-rejected", extra={"reason": str(error)})  # noqa: TRY400  the reason is enough
            self.send_trouble(INVALID_ALERT_SETTINGS, error, now)
            return
        self._alerts, self._routes = fresh, routes
        log.info("alert-settings-loaded", extra={"channels": len(routes.channels)})
        self.send_recovery(INVALID_ALERT_SETTINGS, "they are valid now", now)

    def _await_delivery(self) -> None:
        if self._delivery is not None:
            self._delivery.join(DELIVERY_S)

    def _start_delivery(self) -> None:
        if not outbox.wants_delivery(self._settings.place):
            return

        def deliver() -> None:
            try:
                outbox.deliver(self._settings.place, self._routes, self._clock.now())
            except Exception as error:
                log.exception("alert-delivery-failed", extra={"reason": str(error)})

        self._delivery = threading.Thread(target=deliver, name="delivery", daemon=True)
        self._delivery.start()
