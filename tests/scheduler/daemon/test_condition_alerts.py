"""Conditions that several schedulers of one root see: one alert when they begin to hold, one recovery when they end."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from spanwise.orchestrator.store import MemoryStore
from spanwise.scheduler.alerts import outbox
from spanwise.scheduler.alerts.alert import Site
from spanwise.scheduler.alerts.channel import read_routes
from spanwise.scheduler.daemon.condition_alerts import ConditionAlerts
from spanwise.scheduler.daemon.services import SchedulerServices
from spanwise.scheduler.ledger.schedules import ScheduleRecord
from spanwise.scheduler.project.settings import AlertSettings
from spanwise.scheduler.schedule.span_rule import days_before
from spanwise.scheduler.schedule.timetable import Timetable

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
UNHEARD = read_routes(AlertSettings(urls=("json://127.0.0.1:1/x",)))  # nobody listens there
STALE = ScheduleRecord(
    timetable=Timetable("p", cron="0 * * * *", span=days_before(1), freshness=timedelta(days=1)),
    since=NOON - timedelta(days=3),
)
FRESH = replace(STALE, since=NOON)


class Schedulers:
    """Those of one root, each as it was started."""

    def __init__(self, root: Path) -> None:
        self.root, self.store = root, MemoryStore(lambda: NOON)

    def start(self, host: str) -> ConditionAlerts:
        site = Site(host=host, folder=self.root)
        return ConditionAlerts("p", SchedulerServices(root=self.root, config=None, site=site))

    def deliver(self) -> list[str]:
        """The kinds of the alerts that were to be sent until now, and of what is held, the number of times."""
        outbox.deliver(self.root, UNHEARD, NOON)
        return [letter.alert.kind for letter in outbox.list_waiting(self.root)]


@pytest.fixture
def schedulers(tmp_path: Path) -> Schedulers:
    return Schedulers(tmp_path)


def test_a_stale_model_is_alerted_once_however_many_schedulers_see_it(schedulers: Schedulers) -> None:
    """Also by one that is started again."""
    for host in ("one", "two", "one"):
        schedulers.start(host).check_freshness(schedulers.store, STALE, NOON)
        assert schedulers.deliver() == ["freshness"]


def test_a_model_that_is_fresh_again_is_announced_whichever_scheduler_sees_it(schedulers: Schedulers) -> None:
    """Once, though the one that alerted sees it too."""
    first, second = schedulers.start("one"), schedulers.start("two")
    for one in (first, second):
        one.check_freshness(schedulers.store, STALE, NOON)
    for one in (second, first):
        one.check_freshness(schedulers.store, FRESH, NOON)

    assert schedulers.deliver() == ["freshness", "recovery"]


def test_a_model_that_became_fresh_while_no_scheduler_ran_is_announced(schedulers: Schedulers) -> None:
    """The first look of a scheduler that is started is at what others have alerted."""
    schedulers.start("one").check_freshness(schedulers.store, STALE, NOON)
    schedulers.deliver()

    schedulers.start("two").check_freshness(schedulers.store, FRESH, NOON)

    assert schedulers.deliver() == ["freshness", "recovery"]
