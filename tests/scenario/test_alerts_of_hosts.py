"""Alerts of a root that several hosts share: what one has raised, any of them delivers."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
import uuid
from datetime import UTC, datetime

import pytest

from spanwise.orchestrator.storage import forget_buckets, open_bucket, parse_url
from spanwise.scheduler.alerts import outbox
from spanwise.scheduler.alerts.alert import Alert
from spanwise.scheduler.alerts.channel import read_routes
from spanwise.scheduler.project.settings import AlertSettings, root_folder
from tests import warm
from tests.contract.faulty_proxy import Fault, FaultyProxy
from tests.contract.object_storage import SERVERS, serve
from tests.scenario.processes import kill
from tests.scenario.ticking_place import Place
from tests.scheduler.test_alert_channels import Receiver

pytestmark = pytest.mark.slow

AWAY, DENIED = Fault(status=503, code="SlowDown"), Fault(status=403, code="AccessDenied")
SOON_S = 120.0
FAILED = "ticking failed on span"


class Host:
    """A process with a folder for copies of its own; forked warm, so signals go to the process that works."""

    def __init__(self, folder, place, url, *, ahead_s=0.0, lease_s=2.0):
        self.name = f"host{len(list(folder.glob('host*')))}"
        self.cache = folder / self.name
        self.cache.mkdir()
        words = [str(place), url, self.name, str(ahead_s), str(lease_s)]
        self.process = subprocess.Popen(
            [*warm.command(), "-m", "tests.scenario.alerting_host", *words],
            env={**os.environ, "XDG_CACHE_HOME": str(self.cache), "PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = int(self.process.stdout.readline())

    def ask(self, *words):
        self.process.stdin.write(f"{shlex.join(words)}\n")
        self.process.stdin.flush()

    def answer(self):
        return json.loads(self.process.stdout.readline())

    def put(self, kind, subject, *cause, command="put"):
        self.ask(command, kind, subject, *cause)
        return self.answer()["stored"]

    def deliver(self):
        self.ask("deliver")
        return self.answer()

    def retry_for(self, seconds):
        self.ask("retry", str(seconds))
        self.answer()

    def deliver_until(self, holds):
        deadline = time.monotonic() + SOON_S
        while not holds(report := self.deliver()):
            assert time.monotonic() < deadline, report
            time.sleep(0.2)
        return report

    def die(self):
        if self.process.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
        self.process.wait()

    def pause(self):
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self):
        os.kill(self.pid, signal.SIGCONT)


@pytest.fixture(scope="module")
def home():
    with serve("s3" if "s3" in SERVERS else "moto") as home:
        yield home


@pytest.fixture(params=["bucket", "folder"])
def place(request, tmp_path):
    if request.param == "folder":
        return str(tmp_path / "root")
    return f"{request.getfixturevalue('home')}/{uuid.uuid4().hex}"


@pytest.fixture
def bucket(home):
    """A root in object storage, for what only that has."""
    return f"{home}/{uuid.uuid4().hex}"


@pytest.fixture
def proxy(home, monkeypatch):
    """What stands between the hosts that are started from now on and their storage."""
    there = FaultyProxy(os.environ["AWS_ENDPOINT_URL"])
    monkeypatch.setenv("AWS_ENDPOINT_URL", there.url)
    yield there
    there.close()


@contextlib.contextmanager
def away(proxy, *hosts, decide=lambda _method, _path: AWAY, retry_s=0.3):
    """The storage is away, or does what `decide` says; these hosts do not try for long."""
    for one in hosts:
        one.retry_for(retry_s)
    proxy.decide = decide
    yield
    proxy.decide = lambda _method, _path: None
    for one in hosts:
        one.retry_for(30)


@pytest.fixture
def receiver():
    there = Receiver()
    yield there
    there.close()


@pytest.fixture
def host(tmp_path, receiver):
    started = []

    def start(place, url=None, **options):
        started.append(Host(tmp_path, place, url or receiver.url(), **options))
        return started[-1]

    yield start
    for one in started:
        one.die()
        with contextlib.suppress(OSError):
            one.process.stdin.close()
        one.process.stdout.close()


def test_an_alert_that_a_dead_host_has_not_sent_is_sent_by_another_host(place, host, receiver):
    """The outbox is in the root: nothing waits for the dead host to come back."""
    first, second = host(place), host(place)
    assert first.put("failure", "flights failed")
    first.die()

    assert second.deliver()["sent"] == 1
    assert receiver.titles == ["flights failed"]
    assert second.deliver()["waiting"] == 0


def test_a_recovery_is_announced_whichever_host_sees_it(place, host, receiver):
    """Once, though both see it, and not for a cause that nobody alerted."""
    first, second = host(place), host(place)
    first.put("failure", "flights failed")
    first.deliver()
    first.put("recovery", "taxi recovered", "failure taxi")

    second.put("recovery", "flights recovered")
    second.deliver()
    first.put("recovery", "flights recovered too")
    first.deliver()

    assert receiver.titles == ["flights failed", "flights recovered"]


def test_each_alert_is_sent_once_while_both_hosts_live(place, host, receiver):
    """Both raise alerts and deliver all the time."""
    both = [host(place) for _ in range(2)]
    subjects = [f"flow {number} failed" for number in range(24)]
    for subject, one in zip(subjects, both * 12, strict=True):
        one.put("failure", subject, subject)
    for one in both:
        one.ask("deliver")
    for one in both:
        one.answer()

    for one in both:
        one.deliver_until(lambda report: not report["busy"])

    assert sorted(receiver.titles) == sorted(subjects)


def test_an_alert_of_a_cause_that_another_host_alerted_is_a_repeat(place, host, receiver):
    """Grouping counts the alerts of all hosts; the recovery says how many there were."""
    first, second = host(place), host(place)
    first.put("failure", "flights failed")
    first.deliver()
    second.put("failure", "flights failed again")
    second.deliver()
    second.put("recovery", "flights recovered")
    first.deliver_until(lambda report: report["waiting"] == 0)

    assert receiver.titles == ["flights failed", "flights recovered"]
    assert "alerts: 2 since" in receiver.got[1]["message"]


def test_a_host_that_dies_between_the_sending_and_the_note_of_it_loses_nothing(place, host, receiver):
    """Another host sends that message again, and the others once: at least once, as on one host."""
    first, second = host(place), host(place, ahead_s=60.0)  # by then the first attempt is due again
    first.put("failure", "one failed", "one")
    first.put("failure", "two failed", "two")
    receiver.answer.clear()
    first.ask("deliver")
    assert receiver.arrived.wait(SOON_S)
    first.die()
    receiver.answer.set()

    second.deliver_until(lambda report: not report["busy"] and report["waiting"] == 0)

    assert receiver.titles == ["one failed", "one failed", "two failed"]


def test_a_paused_host_that_comes_back_sends_nothing_twice(bucket, host, receiver):
    """It cannot note the next attempt, so it makes none: another host has taken over."""
    first, second = host(bucket), host(bucket, ahead_s=60.0)
    for number in range(5):
        first.put("failure", f"flow {number} failed", f"flow {number}")
    receiver.answer.clear()
    first.ask("deliver")
    assert receiver.arrived.wait(SOON_S)
    first.pause()
    receiver.answer.set()
    second.deliver_until(lambda report: not report["busy"] and report["waiting"] == 0)

    first.resume()

    assert first.answer()["busy"]
    assert sorted(receiver.titles) == sorted(["flow 0 failed", *(f"flow {number} failed" for number in range(5))])


@pytest.mark.parametrize("ahead_s", [120.0, -120.0])
def test_clocks_that_differ_by_two_minutes_change_no_order(place, host, receiver, ahead_s):
    """A recovery comes after its alert, and a repeat is a repeat, whatever the clock of its host says."""
    first, second = host(place), host(place, ahead_s=ahead_s)
    first.put("failure", "flights failed")
    second.put("recovery", "flights recovered")
    second.put("failure", "flights failed again")
    second.deliver()
    first.put("failure", "flights failed a third time")
    first.deliver()

    assert receiver.titles == ["flights failed", "flights recovered", "flights failed again"]


def test_alerts_are_sent_while_the_storage_is_away(proxy, bucket, host, receiver):
    """From the host that raised them; once it is back, any host announces that they have recovered."""
    first, second = host(bucket), host(bucket)
    with away(proxy, first):
        assert first.put("scheduler", "the metadata cannot be reached")
        first.deliver()
        assert receiver.titles == ["the metadata cannot be reached"]
        first.put("recovery", "taxi recovered", "failure taxi")
        first.deliver()

    first.deliver()
    second.put("recovery", "the metadata can be reached")
    second.deliver()
    first.put("recovery", "the metadata can be reached")
    first.deliver()

    assert receiver.titles == ["the metadata cannot be reached", "the metadata can be reached"]


def test_a_recovery_that_is_seen_while_the_storage_is_away_is_announced_when_it_is_back(proxy, bucket, host, receiver):
    """Only the bucket knows whether it ends anything, so it waits on its host for that long."""
    first, second = host(bucket), host(bucket)
    first.put("failure", "flights failed")
    first.deliver()
    with away(proxy, second):
        second.put("recovery", "flights recovered")
        second.deliver()
        assert receiver.titles == ["flights failed"]

    second.deliver()

    assert receiver.titles == ["flights failed", "flights recovered"]


def test_who_may_not_write_alerts_says_so(proxy, bucket, host, receiver):
    """What is raised again is not stored on one host, so that another can send it; that it cannot be is an alert."""
    one = host(bucket)
    proxy.decide = lambda method, path: DENIED if method == "PUT" and "alerts" in path else None
    assert not one.put("failure", "flights failed", command="record")
    assert not one.put("failure", "flights failed", command="record")
    one.deliver()
    assert receiver.titles == ["scheduler: alerts cannot be stored in the root"]
    assert "access was denied" in receiver.got[0]["message"]

    proxy.decide = lambda _method, _path: None
    assert one.put("failure", "flights failed", command="record")
    one.deliver()

    assert sorted(receiver.titles[1:]) == ["flights failed", "scheduler recovered: alerts can be stored again"]


def test_a_delivery_whose_storage_goes_away_sends_nothing_twice(proxy, bucket, host, receiver):
    """The channel took the message, the note of that failed: this host knows it for as long as it lives."""
    one = host(bucket)
    one.put("failure", "flights failed")

    def decide(method, path):
        return AWAY if receiver.got and method in ("PUT", "DELETE", "POST") else None

    with away(proxy, one, decide=decide, retry_s=1.0):
        one.deliver()
    one.deliver_until(lambda report: report["waiting"] == 0 and not report["busy"])

    assert receiver.titles == ["flights failed"]


def test_an_idle_look_is_one_request_however_much_was_sent(proxy, bucket, monkeypatch, tmp_path):
    """A listing of what is to be sent, which is empty; and no request until it is time to look again."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    forget_buckets()
    nobody = read_routes(AlertSettings())
    now = datetime.now(UTC)
    for number in range(30):
        cause = f"flow {number}"
        outbox.put(bucket, Alert(kind="failure", pipeline="flow", cause=cause, subject=cause, at=now))
    outbox.deliver(bucket, nobody, now)
    sent = (parse_url(bucket) / "alerts/sent").key
    assert len(list(open_bucket(parse_url(bucket).home).list(sent))) == 30
    proxy.requests.clear()

    outbox.deliver(bucket, nobody, now)
    wants = outbox.wants_delivery(bucket)

    assert [method for method, _ in proxy.requests] == ["GET"]
    assert "outbox" in proxy.requests[0][1]
    assert not wants
    forget_buckets()


def test_a_held_repeat_costs_a_look_one_request(proxy, bucket, monkeypatch, tmp_path, receiver):
    """It is read once; until its time has come, or something changes, it is only listed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    forget_buckets()
    routes = read_routes(AlertSettings(urls=(receiver.url(),)))
    now = datetime.now(UTC)
    for subject in ("flights failed", "flights failed again"):
        outbox.put(bucket, Alert(kind="failure", pipeline="flights", cause="failure flights", subject=subject, at=now))
        outbox.deliver(bucket, routes, now)
    proxy.requests.clear()

    assert outbox.deliver(bucket, routes, now).waiting == 1
    assert len(proxy.requests) == 1
    forget_buckets()


def test_what_an_earlier_version_has_left_on_a_host_goes_up(bucket, host, receiver):
    """Its outbox was in the folder of the host: what waits there is sent, and what was alerted can recover anywhere."""
    first, second = host(bucket), host(bucket)
    folder = folder_on(first, bucket)
    earlier = host(folder)
    earlier.put("failure", "flights failed")
    earlier.deliver()
    earlier.put("failure", "taxi failed", "failure taxi")
    earlier.die()

    first.deliver()
    second.put("recovery", "flights recovered")
    second.deliver()

    assert receiver.titles == ["flights failed", "taxi failed", "flights recovered"]


def folder_on(host, place):
    """The folder for the copies of a root on a host."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(host.cache))
        return str(root_folder(place))


def test_a_damaged_letter_holds_up_nobody(bucket, host, receiver):
    """It is put aside under another name."""
    one = host(bucket)
    one.put("failure", "flights failed")
    one.put("failure", "taxi failed", "failure taxi")
    top = parse_url(bucket)
    objects = open_bucket(top.home)
    outbox_key = (top / "alerts/outbox").key
    damaged = min(info.key for info in objects.list(outbox_key))
    objects.write(damaged, b'{"alert": 3}')

    report = one.deliver()

    assert (report["sent"], report["waiting"]) == (1, 0)
    assert [info.key for info in objects.list(outbox_key)] == [damaged.replace(".json", ".unreadable")]


class Hosts(Place):
    """Schedulers on several hosts, with one root in object storage and one database."""

    program = "tests.scenario.impatient"

    def __init__(self, folder, monkeypatch, url):
        super().__init__(folder, monkeypatch)
        self.root = url
        monkeypatch.setenv("SPANWISE_METADATA", self.metadata)

    @property
    def metadata(self):
        return str(self.folder / "metadata.db")

    def start_on(self, host, url):
        """Starts a scheduler that sends alerts to a URL."""
        self.monkeypatch.setenv("XDG_CACHE_HOME", str(self.folder / host))
        self.monkeypatch.setenv("SPANWISE_ALERTS", json.dumps({"urls": [url]}))
        return self.start()

    def await_log(self, event):
        self.until(lambda _: event in self.logs(-1))


def test_the_scheduler_of_another_host_sends_what_a_dead_one_could_not(bucket, tmp_path, monkeypatch, receiver):
    """With real schedulers, killed with all they had started; and what mends the tick there announces the recovery."""
    hosts = Hosts(tmp_path, monkeypatch, bucket)
    hosts.every(2)
    hosts.set(fail="")
    try:
        first = hosts.start_on("first", "json://127.0.0.1:1/nobody-listens")
        hosts.await_log(f'subject="{FAILED}')
        hosts.await_log("alert-failed")
        for pid in first.alive():
            kill(pid)
        hosts.every(None)
        hosts.start_on("second", receiver.url())
        hosts.until(lambda _: any(title.startswith(FAILED) for title in receiver.titles))
        hosts.until(lambda entries: all(entry.end for entry in entries))  # also of the tick at which the first one died

        hosts.give_up_missed()
        ended = f"what was wrong: {FAILED}"
        hosts.until(lambda _: any(ended in got["message"] for got in receiver.got))
    finally:
        hosts.end()

    assert sum(title.startswith(FAILED) for title in receiver.titles) == 1
