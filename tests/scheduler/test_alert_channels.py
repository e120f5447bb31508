"""Alerts on their way through Apprise to real servers on this machine: mail and webhooks, up, down, slow and refusing."""

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult

from spanwise.orchestrator.errors import SettingsError
from spanwise.scheduler.alerts import alert as words
from spanwise.scheduler.alerts import channel as channels
from spanwise.scheduler.alerts import outbox
from spanwise.scheduler.alerts.alert import Alert, Site
from spanwise.scheduler.alerts.channel import AlertChannel, ChannelMessage, ChannelSender, check_channels, read_routes
from spanwise.scheduler.project.settings import AlertSettings
from tests.servers import free_ports

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
PROJECT = Path(__file__).parents[2]
SECRET = "hunter2-p4ss"
SITE = Site(host="train-1", folder=Path("/srv/rides"))
FAILURE = words.failure_alert(
    "flights", at=NOON, site=SITE, error="Trainer failed: <labels> & *NaN*", span="2013-01-05"
)
MESSAGE = ChannelMessage(title="a title", body="a body", kind="failure")


class Receiver:
    """A webhook receiver that can be told to refuse, to wait, and to go away."""

    def __init__(self, port: int = 0) -> None:
        self.got: list[dict[str, Any]] = []
        self.status = 200
        self.arrived = threading.Event()
        self.answer = threading.Event()
        self.answer.set()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                owner.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                owner.arrived.set()
                owner.answer.wait(300)
                self.send_response(owner.status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                pass  # a client that was killed does not hear the answer

        self.server = Server(("127.0.0.1", port), Handler)
        self.port = self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    def url(self, path: str = "hook") -> str:
        return f"json://127.0.0.1:{self.port}/{path}"

    @property
    def titles(self) -> list[str]:
        return [message["title"] for message in self.got]

    def close(self) -> None:
        self.answer.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    there = Receiver()
    yield there
    there.close()


class Mails:
    def __init__(self) -> None:
        self.got: list[tuple[list[str], str]] = []

    async def handle_DATA(self, server: object, session: object, envelope: Any) -> str:
        from email import message_from_bytes, policy

        mail = message_from_bytes(envelope.content, policy=policy.default)
        self.got.append((envelope.rcpt_tos, f"{mail['Subject']}\n{mail.get_body().get_content()}"))  # type: ignore[union-attr]
        return "250 OK"


@pytest.fixture
def post() -> Iterator[Callable[..., tuple[Mails, int]]]:
    """Starts a mail server, one that wants a password or one that does not."""
    running: list[Controller] = []

    def start(*, password: str = "") -> tuple[Mails, int]:
        mails = Mails()

        def known(server: object, session: object, envelope: object, mechanism: str, data: Any) -> AuthResult:
            return AuthResult(success=data.password.decode() == password, handled=False)

        wants = {"authenticator": known, "auth_required": True, "auth_require_tls": False} if password else {}
        controller = Controller(mails, hostname="127.0.0.1", port=free_ports(1)[0], **wants)  # type: ignore[arg-type]
        controller.start()
        running.append(controller)
        return mails, controller.port

    yield start
    for controller in running:
        controller.stop()


@pytest.fixture(scope="module")
def one_sender() -> Iterator[ChannelSender]:
    with ChannelSender() as sender:
        yield sender


@pytest.fixture
def sender(one_sender: ChannelSender, monkeypatch: pytest.MonkeyPatch) -> ChannelSender:
    """One child for the tests that need no other, for deliveries too: to load Apprise takes a second."""
    monkeypatch.setattr(outbox, "ChannelSender", lambda: contextlib.nullcontext(one_sender))
    monkeypatch.setattr(channels, "ChannelSender", lambda: contextlib.nullcontext(one_sender))
    return one_sender


def channel(url: str) -> AlertChannel:
    return read_routes(AlertSettings(urls=(url,))).channels[0]


def deliver(root: Path, urls: str | tuple[str, ...], minutes: float = 0, **variables: str) -> outbox.DeliveryReport:
    wanted = read_routes(AlertSettings(urls=(urls,) if isinstance(urls, str) else urls), variables)
    return outbox.deliver(root, wanted, NOON + timedelta(minutes=minutes))


@pytest.mark.filterwarnings("ignore:Requiring AUTH")
@pytest.mark.usefixtures("sender")
def test_a_mail_arrives_as_it_was_written(tmp_path: Path, post: Callable[..., tuple[Mails, int]]) -> None:
    """At the address, past the password, with the first line as its subject and the commands as lines of their own."""
    mails, port = post(password=SECRET)
    outbox.put(tmp_path, FAILURE)

    report = deliver(
        tmp_path,
        f"mailto://me:${{PASSWORD}}@127.0.0.1:{port}?from=alerts@example.com&to=you@example.com",
        PASSWORD=SECRET,
    )

    assert (report.sent, dict(report.failed)) == (1, {})
    ((to, text),) = mails.got
    assert to == ["you@example.com"]
    assert text.replace("\r\n", "\n").strip() == f"{FAILURE.subject}\n{words.format_body(FAILURE)}"


def test_a_mail_server_without_passwords_will_do(sender: ChannelSender, post: Callable[..., tuple[Mails, int]]) -> None:
    """As the one that listens on many a host for its own mail."""
    mails, port = post()

    said = sender.send(channel(f"mailto://127.0.0.1:{port}?from=alerts@example.com&to=you@example.com"), MESSAGE)

    assert said == ""
    assert [text.split("\n")[0] for _, text in mails.got] == ["a title"]


@pytest.mark.filterwarnings("ignore:Requiring AUTH")
def test_a_wrong_password_is_told_without_it(sender: ChannelSender, post: Callable[..., tuple[Mails, int]]) -> None:
    """By the number of the server's answer."""
    mails, port = post(password="another")

    said = sender.send(channel(f"mailto://me:{SECRET}@127.0.0.1:{port}?from=a@example.com&to=b@example.com"), MESSAGE)

    assert said == "answered 535"
    assert mails.got == []


@pytest.mark.usefixtures("sender")
def test_a_webhook_gets_title_text_and_kind(tmp_path: Path, receiver: Receiver) -> None:
    """As JSON; nothing in the text is taken for markup."""
    outbox.put(tmp_path, FAILURE)

    report = deliver(tmp_path, receiver.url())

    assert report.sent == 1
    (got,) = receiver.got
    assert (got["title"], got["message"], got["type"]) == (FAILURE.subject, words.format_body(FAILURE), "failure")


def test_a_refusal_is_told_by_its_number(sender: ChannelSender, receiver: Receiver) -> None:
    """With the words that HTTP has for it."""
    receiver.status = 403

    assert sender.send(channel(receiver.url(SECRET)), MESSAGE) == "answered 403 Forbidden"


@pytest.mark.usefixtures("sender")
def test_an_alert_survives_a_network_that_is_down(tmp_path: Path) -> None:
    """Nobody listens; later somebody does, and gets it, once."""
    port = free_ports(1)[0]
    outbox.put(tmp_path, FAILURE)

    down = deliver(tmp_path, f"json://127.0.0.1:{port}/hook")
    receiver = Receiver(port)
    up = deliver(tmp_path, receiver.url(), minutes=1)
    after = deliver(tmp_path, receiver.url(), minutes=2)
    receiver.close()

    assert dict(down.failed) == {"alerts.urls[0] (json)": "the connection was refused"}
    assert (down.waiting, up.sent, after.sent) == (1, 1, 0)
    assert receiver.titles == [FAILURE.subject]


@pytest.mark.slow
def test_a_server_that_never_answers_is_left(receiver: Receiver) -> None:
    """After the limit its child is ended, whatever it waits for, and the next message gets another."""
    receiver.answer.clear()
    with ChannelSender(limit_s=30) as sender:
        assert sender.refuses(channel(receiver.url())) == ""  # by now the child is there, and has Apprise
        child = sender._child
        sender._limit_s = 0.5
        said = sender.send(channel(f"{receiver.url()}?rto=60"), MESSAGE)
        sender._limit_s = 30
        receiver.answer.set()
        again = sender.send(channel(receiver.url()), MESSAGE)

    assert (said, again) == ("no answer within 0.5 s", "")
    assert child is not None
    assert child.returncode == -signal.SIGKILL


DELIVERY = """
import sys
from datetime import datetime
from pathlib import Path
from spanwise.scheduler.alerts import channel as channels
from spanwise.scheduler.alerts import outbox
from spanwise.scheduler.alerts.channel import read_routes
from spanwise.scheduler.project.settings import AlertSettings
print(outbox.deliver(Path(sys.argv[1]), read_routes(AlertSettings(urls=(sys.argv[2],))), datetime.fromisoformat(sys.argv[3])).sent)
"""


def delivering(root: Path, url: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", DELIVERY, str(root), url, NOON.isoformat()],
        env={**os.environ, "PYTHONPATH": str(PROJECT / "src")}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("sender")
def test_a_deliverer_that_is_killed_loses_nothing(tmp_path: Path, receiver: Receiver) -> None:
    """It dies between the sending and the note of it: the message is sent again, after a while, by the next."""
    receiver.answer.clear()
    outbox.put(tmp_path, FAILURE)
    child = delivering(tmp_path, receiver.url())
    assert receiver.arrived.wait(300)
    child.kill()
    child.communicate()
    receiver.answer.set()

    at_once = deliver(tmp_path, receiver.url())
    later = deliver(tmp_path, receiver.url(), minutes=1)

    assert (at_once.busy, at_once.sent, later.sent) == (False, 0, 1)
    assert receiver.titles == [FAILURE.subject] * 2
    assert not outbox.list_waiting(tmp_path)


@pytest.mark.slow
def test_two_deliverers_send_nothing_twice(tmp_path: Path, receiver: Receiver) -> None:
    """Of two processes at once, one finds the other at work."""
    subjects = [f"flow {n} failed" for n in range(10)]
    for subject in subjects:
        outbox.put(tmp_path, Alert(kind="failure", pipeline="flow", cause=subject, subject=subject, at=NOON))

    both = [delivering(tmp_path, receiver.url()) for _ in range(2)]
    sent = [int(child.communicate()[0]) for child in both]

    assert sum(sent) == 10
    assert sorted(receiver.titles) == sorted(subjects)


@pytest.mark.usefixtures("sender")
def test_no_secret_is_told_to_anybody(
    tmp_path: Path, receiver: Receiver, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Not in a log, a file, an error or the text of a record, wherever in a URL it stands and however that fails."""
    caplog.set_level(logging.DEBUG)
    receiver.status = 500
    urls = (
        f"json://me:${{SECRET}}@127.0.0.1:{receiver.port}/${{SECRET}}?-key=${{SECRET}}&+Authorization=${{SECRET}}",
        f"mailto://me:${{SECRET}}@127.0.0.1:{free_ports(1)[0]}?from=a@example.com&to=b@example.com",
        "slack://${SECRET}",
        "${SECRET}",
        f"mailto://{SECRET}",
        f"{SECRET}://x",
    )
    wanted = read_routes(AlertSettings(urls=urls), {"SECRET": SECRET})
    outbox.put(tmp_path, FAILURE)

    report = outbox.deliver(tmp_path, wanted, NOON)
    with pytest.raises(SettingsError) as refused:
        check_channels(wanted)

    assert len(report.failed) == len(urls)
    assert report.failed["alerts.urls[0] (json)"] == "answered 500 Internal Server Error"
    told = [
        repr(wanted),
        repr(report),
        repr(AlertSettings(urls=urls)),
        str(refused.value),
        caplog.text,
        *capfd.readouterr(),
    ]
    told += [file.read_text() for file in tmp_path.rglob("*") if file.is_file()]
    assert "alert-failed" in caplog.messages
    assert [text for text in told if SECRET in text.replace(f"({SECRET})", "")] == []


@pytest.mark.usefixtures("sender")
def test_a_channel_that_cannot_be_used_is_found_before_it_is_needed() -> None:
    """All of them at once, each by the setting that it stands in."""
    urls = ("json://127.0.0.1/fine", "slak://a/b/c", "slack://short")
    other = AlertSettings(urls=("mailto://",))

    with pytest.raises(SettingsError) as refused:
        check_channels(read_routes(AlertSettings(urls=urls, pipelines={"taxi": other})))

    assert str(refused.value) == (
        "alerts.pipelines.taxi.urls[0] (mailto): is not a valid Apprise URL for E-Mail. "
        "See https://appriseit.com/services/email/\n"
        "alerts.urls[1] (slak): Apprise supports no such service. See https://appriseit.com/services/\n"
        "alerts.urls[2] (slack): is not a valid Apprise URL for Slack. See https://appriseit.com/services/slack/"
    )


def test_a_variable_that_is_not_set_is_named() -> None:
    """With the setting that wants it, and what to type."""
    with pytest.raises(SettingsError, match=r"alerts\.urls\[1\] needs the variable TOKEN, which is not set") as refused:
        read_routes(AlertSettings(urls=("json://x", "slack://${TOKEN}")), {"TOKEN": ""})

    assert "export TOKEN=…" in str(refused.value)


@pytest.mark.usefixtures("sender")
def test_an_alert_can_be_sent_past_the_outbox(receiver: Receiver) -> None:
    """To try the channels, and when an alert could not be kept."""
    found = (channel(receiver.url()), channel(f"json://127.0.0.1:{free_ports(1)[0]}/"))

    said = outbox.send_now(found[:1], words.trial_alert(at=NOON, site=SITE))

    assert said == {"alerts.urls[0] (json)": ""}
    assert receiver.titles == ["test: alerts from spanwise on train-1 reach you"]


@pytest.mark.slow
def test_apprise_is_not_imported_here(tmp_path: Path, receiver: Receiver) -> None:
    """The scheduler's own process stays small: what sends is a child that ends with the delivery."""
    outbox.put(tmp_path, FAILURE)
    child = subprocess.run(
        [sys.executable, "-c", f"{DELIVERY}print('apprise' in sys.modules)", str(tmp_path), receiver.url(), NOON.isoformat()],
        env={**os.environ, "PYTHONPATH": str(PROJECT / "src")}, capture_output=True, text=True, check=True,
    )  # fmt: skip

    assert child.stdout.split() == ["1", "False"]
