import itertools
import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from spanwise.scheduler.alerts import outbox, outbox_store
from spanwise.scheduler.alerts.alert import Alert
from spanwise.scheduler.alerts.channel import AlertChannel, AlertRoute, AlertRoutes, ChannelMessage, ChannelSender
from spanwise.scheduler.alerts.letter import Letter, OpenCause, plan_letters
from spanwise.scheduler.alerts.outbox import deliver, put
from spanwise.scheduler.alerts.outbox_folder import FolderOutbox
from spanwise.scheduler.project.settings import AlertKind

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
PROJECT = Path(__file__).parents[3]
CHANNEL = AlertChannel(name="alerts.urls[0] (json)", url="json://127.0.0.1:1/x", from_name="spanwise")
ROUTE = AlertRoute(channels=(CHANNEL,), on=None, group_s=3600)
NOBODY = AlertRoutes(otherwise=AlertRoute(channels=(), on=None, group_s=3600), pipelines={})


def alert(minute: float = 0, kind: AlertKind = "failure", cause: str = "failure flights") -> Alert:
    at = NOON + timedelta(minutes=minute)
    return Alert(kind=kind, pipeline="flights", cause=cause, subject=f"{kind} at {minute:g}", at=at)


class Desk:
    """Keeps letters and a cause as the outbox does, and delivers at once what may go."""

    def __init__(self, route: AlertRoute = ROUTE) -> None:
        self.route, self.works = route, True
        self.letters: list[Letter] = []
        self.cause: OpenCause | None = None
        self.recovered: datetime | None = None

    def put(self, minute: float, kind: AlertKind = "failure") -> None:
        letter = Letter(id=f"{len(self.letters)}{minute:08.3f}", alert=alert(minute, kind), since=alert(minute).at)
        self.letters.append(letter)

    def deliver(self, minute: float) -> list[tuple[str, int]]:
        """What is told at that minute: the subjects and counts."""
        now = NOON + timedelta(minutes=minute)
        arranged = plan_letters(self.letters, self.cause, self.route, now, recovered=self.recovered)
        going = [letter for letter in arranged.letters if letter.released]
        self.letters = [letter for letter in arranged.letters if not self.works or not letter.released]
        self.cause, self.recovered = arranged.cause, arranged.recovered
        return [(letter.alert.subject, letter.count) for letter in going if letter.todo] if self.works else []


def test_the_first_goes_at_once_and_repeats_as_one() -> None:
    """Within the group's time there is one message, and at its end one for all that came meanwhile."""
    desk = Desk()
    told = []
    for minute in range(130):
        if minute % 10 == 0:
            desk.put(minute)
        told += [(minute, *letter) for letter in desk.deliver(minute)]

    assert told == [(0, "failure at 0", 1), (60, "failure at 60", 6), (120, "failure at 120", 6)]


def test_a_recovery_goes_at_once_and_counts_what_was_held() -> None:
    """Nobody is told of the held ones after that; what comes later is the first again."""
    desk = Desk()
    for minute in (0, 10, 20):
        desk.put(minute)
        desk.deliver(minute)
    desk.put(25, "recovery")

    assert desk.deliver(25) == [("recovery at 25", 3)]
    assert desk.deliver(90) == []
    desk.put(95)
    assert desk.deliver(95) == [("failure at 95", 1)]


def test_a_cause_that_flaps_is_told_of_twice_in_the_time_of_a_group() -> None:
    """It fails and recovers every two minutes: nobody reads that; what was told last is what it was then."""
    desk, told = Desk(), []
    for minute in range(0, 180, 4):
        desk.put(minute)
        told += [(subject, minute) for subject, _ in desk.deliver(minute)]
        desk.put(minute + 2, "recovery")
        told += [(subject, minute + 2) for subject, _ in desk.deliver(minute + 2)]

    assert told[:3] == [("failure at 0", 0), ("recovery at 2", 2), ("failure at 4", 4)]
    assert len(told) <= 3 + 2 * 3
    assert len(desk.letters) <= 2


def test_the_recovery_of_a_cause_that_flapped_comes_when_it_is_quiet() -> None:
    """It is late by the time of the group, and not lost."""
    desk = Desk()
    for minute, kind in [(0, "failure"), (2, "recovery"), (4, "failure"), (6, "recovery")]:
        desk.put(minute, kind)
        desk.deliver(minute)
    assert desk.deliver(61) == []

    assert desk.deliver(62) == [("recovery at 6", 1)]
    assert desk.letters == []


def test_a_recovery_is_told_once_and_only_of_what_was_told() -> None:
    """A good run after a good run is no news."""
    desk = Desk()
    desk.put(0, "recovery")
    assert desk.deliver(0) == []

    desk.put(1)
    desk.put(2, "recovery")
    desk.put(3, "recovery")

    assert desk.deliver(3) == [("failure at 1", 1), ("recovery at 2", 1)]


def test_what_nobody_wants_to_hear_has_no_recovery() -> None:
    """`on` without failures: their end is not told either."""
    desk = Desk(AlertRoute(channels=(CHANNEL,), on=("recovery",), group_s=3600))
    desk.put(0)
    desk.put(1, "recovery")

    assert desk.deliver(1) == []


def test_while_nothing_gets_through_repeats_gather_in_one_letter() -> None:
    """A week without a network ends with two messages of a cause, not with a hundred."""
    desk = Desk()
    desk.works = False
    for minute in range(0, 7 * 24 * 60, 30):
        desk.put(minute)
        desk.deliver(minute)

    assert [letter.count for letter in desk.letters] == [1, 7 * 48 - 1]


def test_a_clock_that_is_set_back_holds_nothing() -> None:
    """What was told in the future does not silence what comes now."""
    desk = Desk()
    desk.put(600)
    desk.deliver(600)
    desk.put(0)

    assert desk.deliver(0) == [("failure at 0", 1)]


@pytest.mark.parametrize("seed", range(30))
def test_an_interrupted_delivery_is_taken_up(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever write a delivery dies at, the next one tells the first alert, the repeats as one, and the end."""
    chance = random.Random(seed)

    class Killed(BaseException):
        pass

    def mortal(verb: Callable[..., None]) -> Callable[..., None]:
        def dying(*arguments: object) -> None:
            if chance.random() < 0.3:
                raise Killed
            verb(*arguments)

        return dying

    told: list[tuple[str, str]] = []
    kinds: tuple[AlertKind, ...] = ("failure", "failure", "recovery", "failure")
    _sends(monkeypatch, told)
    put_file, finish = FolderOutbox.put, FolderOutbox.finish
    for step, kind in enumerate(kinds):
        put(tmp_path, alert(step * 100, kind))
        for _ in range(4):
            monkeypatch.setattr(FolderOutbox, "put", mortal(put_file))
            monkeypatch.setattr(FolderOutbox, "finish", mortal(finish))
            try:
                deliver(tmp_path, AlertRoutes(otherwise=ROUTE, pipelines={}), NOON + timedelta(minutes=step * 100))
            except Killed:
                pass
            finally:
                monkeypatch.setattr(FolderOutbox, "put", put_file)
                monkeypatch.setattr(FolderOutbox, "finish", finish)
        deliver(tmp_path, AlertRoutes(otherwise=ROUTE, pipelines={}), NOON + timedelta(minutes=step * 100 + 90))
    subjects = list(dict.fromkeys(subject for subject, _ in told))
    assert subjects == ["failure at 0", "failure at 100", "recovery at 200", "failure at 300"]
    assert not outbox.list_waiting(tmp_path)


def _sends(monkeypatch: pytest.MonkeyPatch, told: list[tuple[str, str]], faults: dict[str, str] | None = None) -> None:
    """Stands in for the network: the channels themselves are tried in test_alert_channels.py."""

    def send(_: object, channel: AlertChannel, message: ChannelMessage) -> str:
        if fault := (faults or {}).get(channel.name, ""):
            return fault
        told.append((message.title, channel.name))
        return ""

    monkeypatch.setattr(ChannelSender, "send", send)


def two(on: tuple[str, ...] | None = None) -> AlertRoutes:
    other = AlertChannel(name="alerts.urls[1] (json)", url="json://127.0.0.1:2/x", from_name="spanwise")
    return AlertRoutes(otherwise=AlertRoute(channels=(CHANNEL, other), on=on, group_s=0), pipelines={})


def test_each_channel_gets_a_letter_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is down is tried again, later and later; the others are left in peace."""
    told: list[tuple[str, str]] = []
    faults = {CHANNEL.name: "the connection was refused"}
    _sends(monkeypatch, told, faults)
    put(tmp_path, alert())

    moments = [NOON]
    for _ in range(9):
        report = deliver(tmp_path, two(), moments[-1])
        assert report.failed == faults
        assert report.next is not None
        moments.append(report.next)
    faults.clear()
    report = deliver(tmp_path, two(), moments[-1])

    assert told == [("failure at 0", "alerts.urls[1] (json)"), ("failure at 0", CHANNEL.name)]
    waits = [(b - a).total_seconds() for a, b in itertools.pairwise(moments)]
    assert all(15 * 2**n <= wait <= 30 * 2**n for n, wait in enumerate(waits[:7]))
    assert max(waits) <= 3600
    assert (report.waiting, report.next) == (0, None)


def test_nothing_is_tried_before_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A restart goes on with the waiting that the file notes."""
    told: list[tuple[str, str]] = []
    _sends(monkeypatch, told, faults := {CHANNEL.name: "no answer in time"})
    put(tmp_path, alert())
    first = deliver(tmp_path, AlertRoutes(otherwise=ROUTE, pipelines={}), NOON)
    faults.clear()

    early = deliver(tmp_path, AlertRoutes(otherwise=ROUTE, pipelines={}), NOON + timedelta(seconds=1))

    assert (early.sent, early.waiting, early.next) == (0, 1, first.next)
    assert told == []


def test_the_order_of_a_cause_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An end is not told before the beginning, however the attempts fall."""
    told: list[tuple[str, str]] = []
    _sends(monkeypatch, told, faults := {CHANNEL.name: "no answer in time"})
    put(tmp_path, alert(0))
    deliver(tmp_path, AlertRoutes(otherwise=ROUTE, pipelines={}), NOON)
    put(tmp_path, alert(0.1, "recovery"))
    faults.clear()

    between = deliver(tmp_path, AlertRoutes(otherwise=ROUTE, pipelines={}), NOON + timedelta(seconds=10))
    deliver(tmp_path, AlertRoutes(otherwise=ROUTE, pipelines={}), NOON + timedelta(seconds=40))

    assert between.sent == 0
    assert [title for title, _ in told] == ["failure at 0", "recovery at 0.1"]


def test_a_pipeline_may_have_channels_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its alerts go there, and those of the others do not."""
    told: list[tuple[str, str]] = []
    _sends(monkeypatch, told)
    own = AlertChannel(name="alerts.pipelines.taxi.urls[0] (json)", url="json://127.0.0.1:3", from_name="spanwise")
    routes = AlertRoutes(otherwise=ROUTE, pipelines={"taxi": AlertRoute(channels=(own,), on=None, group_s=60)})
    put(tmp_path, alert())
    put(tmp_path, Alert(kind="stall", pipeline="taxi", cause="stall taxi", subject="taxi stands", at=NOON))

    deliver(tmp_path, routes, NOON)

    assert sorted(told) == [("failure at 0", CHANNEL.name), ("taxi stands", own.name)]


def test_without_a_channel_alerts_are_kept_to_be_read(tmp_path: Path) -> None:
    """In `sent`, of which only the last are kept."""
    for minute in range(5):
        put(tmp_path, alert(minute))

    report = deliver(tmp_path, NOBODY, NOON)

    assert report == outbox.DeliveryReport()
    assert len(list((tmp_path / "alerts" / "sent").iterdir())) == 5


def test_what_was_sent_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest stay."""
    monkeypatch.setattr(outbox_store, "SENT_LETTERS", 3)
    for minute in range(9):
        put(tmp_path, alert(minute))

    deliver(tmp_path, NOBODY, NOON)

    kept = [json.loads(f.read_text())["alert"]["subject"] for f in sorted((tmp_path / "alerts" / "sent").iterdir())]
    assert kept == ["failure at 6", "failure at 7", "failure at 8"]


def test_a_letter_that_nobody_takes_is_given_up_after_a_week(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And the log says so."""
    _sends(monkeypatch, [], {CHANNEL.name: "answered 404 Not Found"})
    put(tmp_path, alert())
    routes = AlertRoutes(otherwise=ROUTE, pipelines={})

    deliver(tmp_path, routes, NOON)
    deliver(tmp_path, routes, NOON + timedelta(days=6))
    assert outbox.list_waiting(tmp_path)
    deliver(tmp_path, routes, NOON + timedelta(days=8))

    assert not outbox.list_waiting(tmp_path)
    assert "alert-abandoned" in caplog.messages


def test_a_corrected_channel_gets_what_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A letter whose only channel is gone from the settings goes to those that are there now."""
    told: list[tuple[str, str]] = []
    _sends(monkeypatch, told, {CHANNEL.name: "answered 404 Not Found"})
    put(tmp_path, alert())
    deliver(tmp_path, AlertRoutes(otherwise=ROUTE, pipelines={}), NOON)
    other = AlertChannel(name="alerts.urls[0] (slack)", url="slack://x", from_name="spanwise")

    deliver(
        tmp_path,
        AlertRoutes(otherwise=AlertRoute(channels=(other,), on=None, group_s=0), pipelines={}),
        NOON + timedelta(hours=1),
    )

    assert told == [("failure at 0", other.name)]


def test_a_damaged_letter_holds_up_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is put aside under another name, and the log says where."""
    put(tmp_path, alert())
    (tmp_path / "alerts" / "outbox" / "0.json").write_text('{"alert": {"kind"')
    (tmp_path / "alerts" / "outbox" / "1.json").write_text('{"alert": 3}')

    deliver(tmp_path, NOBODY, NOON)

    assert sorted(f.name for f in (tmp_path / "alerts" / "outbox").iterdir()) == ["0.unreadable", "1.unreadable"]
    assert caplog.messages.count("letter-unreadable") == 2


def test_one_delivers_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second one, in this process or in another, sees that somebody does it already."""
    reports: list[outbox.DeliveryReport] = []

    def send(*_: object) -> str:
        thread = threading.Thread(target=lambda: reports.append(deliver(tmp_path, routes, NOON)))
        thread.start()
        thread.join()
        return ""

    routes = AlertRoutes(otherwise=ROUTE, pipelines={})
    monkeypatch.setattr(ChannelSender, "send", send)
    put(tmp_path, alert())

    assert deliver(tmp_path, routes, NOON).sent == 1
    assert reports == [outbox.DeliveryReport(busy=True)]


def test_a_good_run_without_a_complaint_writes_nothing(tmp_path: Path) -> None:
    """A thousand pipelines on minute schedules are no work for the disk."""
    assert put(tmp_path, alert(kind="recovery"))

    assert list(tmp_path.iterdir()) == []


def test_nothing_to_deliver_starts_and_makes_nothing(tmp_path: Path) -> None:
    """The loop may ask as often as it likes."""
    assert deliver(tmp_path, two(), NOON) == outbox.DeliveryReport()
    assert list(tmp_path.iterdir()) == []


FULL = """
import resource, sys
from pathlib import Path
from collections.abc import Callable
from datetime import UTC, datetime
from spanwise.scheduler.alerts import outbox, outbox_store
from spanwise.scheduler.alerts.alert import Alert
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
alert = Alert(kind="failure", pipeline="flights", cause="c", subject="flights failed", text="as asked for", at=datetime(2026, 3, 1, tzinfo=UTC))
print(outbox.put(Path(sys.argv[1]), alert), outbox.put(Path("/proc/no/such/place"), alert))
"""


def test_a_full_disk_does_not_end_the_scheduler(tmp_path: Path) -> None:
    """No byte can be written: the alert is on stderr, nothing half-written is left, and `put` returns."""
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(PROJECT / "src")}, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.stdout == "False False\n"
    assert done.stderr.count("flights failed\nas asked for") == 2
    assert [f for f in tmp_path.rglob("*") if f.is_file()] == []


def test_with_a_disk_that_is_full_by_now_an_alert_is_sent_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was kept before; what happens to it cannot be noted. One channel took it, and does not get it again."""
    told: list[tuple[str, str]] = []
    _sends(monkeypatch, told, {CHANNEL.name: "no answer in time"})
    put(tmp_path, alert())

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(FolderOutbox, "put", full)
    for minute in range(3):
        deliver(tmp_path, two(), NOON + timedelta(minutes=minute))

    assert told == [("failure at 0", "alerts.urls[1] (json)")]
