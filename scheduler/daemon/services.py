"""Services: what a scheduler provides to each of its pipelines."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from spanwise.orchestrator.store import Store
from spanwise.scheduler.alerts import outbox
from spanwise.scheduler.alerts.alert import Alert, Site
from spanwise.scheduler.daemon import scheduled_run
from spanwise.scheduler.daemon.scheduled_run import ScheduledJob
from spanwise.scheduler.ledger.ticks import TickRecord
from spanwise.scheduler.project.settings import FORECAST_LOAD
from spanwise.scheduler.schedule.forecast import Forecast


def _alarm(forecast: Forecast) -> str:
    return forecast.alarm(FORECAST_LOAD)


@dataclass(frozen=True, kw_only=True)
class SchedulerServices:
    """What a scheduler provides to each of its pipelines."""

    root: Path
    config: Path | None
    url: str | None = None  #: of the root, where it is in object storage
    site: Site
    settle_s: float = 0.0  #: how long arrived data must not have changed before a run is started for it
    start: Callable[[ScheduledJob], subprocess.Popen[bytes]] = scheduled_run.start
    on_ended: Callable[[TickRecord], object] = lambda _record: None  #: gets each tick that this scheduler ends
    measure: Callable[[Store, TickRecord], object] = lambda _store, _record: None  #: the same, for metrics
    alarm: Callable[[Forecast], str] = _alarm  #: why an alert about a forecast is sent; empty: none is

    @property
    def place(self) -> str:
        """The root as `--root` takes it."""
        return self.url or str(self.root)

    def send(self, message: Alert) -> bool:
        """Puts an alert into the outbox."""
        return outbox.put(self.place, message)

    def record(self, message: Alert) -> bool:
        """Puts an alert into the outbox that every host sees; False: it is raised again, by whoever is there then."""
        return outbox.put(self.place, message, spool=False)
