"""Conditions that several schedulers of one root see: one alert when they begin to hold, one recovery when they end."""

import os
import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from spanwise.orchestrator.store import MemoryStore
from spanwise.scheduler.alerts import outbox
from spanwise.scheduler.alerts.alert import Site
from spanwise.scheduler.alerts.channel import ChannelMessage, ChannelSender, read_routes
from spanwise.scheduler.daemon.condition_alerts import ConditionAlerts
from spanwise.scheduler.daemon.services import SchedulerServices
from spanwise.scheduler.ledger.schedules import ScheduleRecord
from spanwise.scheduler.project.settings import AlertSettings
from spanwise.scheduler.schedule.span_rule import days_before
from spanwise.scheduler.schedule.timetable import Timetable

LIVES = int(os.environ.get("SPANWISE_TEST_LIVES", "8"))  # the full form: 2000

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


@pytest.mark.parametrize(("host", "announced"), [("one", True), ("two", False)])
def test_a_clock_that_has_caught_up_is_announced_by_the_next_scheduler_of_its_host(
    schedulers: Schedulers, host: str, announced: bool
) -> None:
    """As `schedule tick` from cron is another each time; the clock of another host may never have been set back."""
    schedulers.start("one").report_clock(timedelta(hours=3), NOON)

    schedulers.start(host).report_clock(timedelta(0), NOON)

    assert schedulers.deliver() == ["scheduler", *(["recovery"] if announced else [])]


def test_a_model_that_became_fresh_while_no_scheduler_ran_is_announced(schedulers: Schedulers) -> None:
    """The first look of a scheduler that is started is at what others have alerted."""
    schedulers.start("one").check_freshness(schedulers.store, STALE, NOON)
    schedulers.deliver()

    schedulers.start("two").check_freshness(schedulers.store, FRESH, NOON)

    assert schedulers.deliver() == ["freshness", "recovery"]


def test_what_was_told_last_is_what_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever flaps, while a channel is down or not, on schedulers that come and go."""
    told: list[str] = []
    works = True

    def send(_sender: object, _channel: object, message: ChannelMessage) -> str:
        if works:
            told.append(message.kind)
        return "" if works else "the connection was refused"

    monkeypatch.setattr(ChannelSender, "send", send)
    for life in range(LIVES):
        dice = random.Random(life)
        told.clear()
        schedulers = Schedulers(tmp_path / str(life))
        now, stale, ever = NOON, False, False
        looking = [schedulers.start("one"), schedulers.start("two")]
        for _ in range(12):
            works, stale = dice.random() < 0.6, dice.random() < 0.5
            ever = ever or stale
            looking[dice.randrange(2)] = schedulers.start(dice.choice(["one", "two"]))
            for each in dice.sample(looking, 2):
                each.check_freshness(schedulers.store, STALE if stale else replace(STALE, since=now), now)
                if dice.random() < 0.7:
                    outbox.deliver(schedulers.root, UNHEARD, now)
            now += timedelta(minutes=dice.choice([1, 10, 70, 300]))
        works = True
        for _ in range(3):
            now += timedelta(hours=2)
            outbox.deliver(schedulers.root, UNHEARD, now)

        assert told[-1:] == (["freshness"] if stale else ["recovery"] if told else []), (life, told)
        assert outbox.list_waiting(schedulers.root) == [], life
        assert told or not ever
