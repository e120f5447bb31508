"""Channels: where alerts go, and the only use of Apprise, which supports some hundred services.

Apprise runs in a child process: its slow import and its memory stay there, a server that never answers is ended with
the child, and its log, which may quote a URL with a password, goes nowhere. Of its messages only a status code or one
of a few known phrases is used, never the text.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import selectors
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Self

from spanwise.orchestrator import process
from spanwise.orchestrator.errors import SettingsError
from spanwise.scheduler.project.settings import AlertSettings
from spanwise.scheduler.schedule.schedule_key import pipeline_of

if TYPE_CHECKING:
    from apprise import Apprise

    from spanwise.scheduler.alerts.alert import Alert

LIMIT_S = 60.0
"""A channel that has not accepted a message by then has failed."""

_VARIABLE = re.compile(r"\$\{(\w*)\}")
_NUMBER = re.compile(r"(?:error=|\()([245]\d\d)\b")  # as Apprise reports HTTP's answers, and smtplib SMTP's
_PHRASES = {str(status.value): f" {status.phrase}" for status in HTTPStatus}
_KNOWN = {
    "refused": "the connection was refused",
    "timed out": "no answer in time",
    "not known": "no such host",
    "name resolution": "no such host",
    "certificate verify failed": "its certificate is not trusted",
    "unreachable": "the network is unreachable",
    "auth extension not supported": "it accepts no log-in over this connection",
}
_STYLES = {"recovery": "success", "failure": "failure", "scheduler": "failure", "missed": "failure", "test": "info"}


@dataclass(frozen=True, kw_only=True)
class AlertChannel:
    """One address that alerts go to."""

    name: str  #: without secrets: the setting and the scheme
    url: str = field(repr=False)
    from_name: str  #: the name that messages come from


@dataclass(frozen=True, kw_only=True)
class AlertRoute:
    """Where the alerts of a pipeline go."""

    channels: tuple[AlertChannel, ...]
    on: tuple[str, ...] | None  #: the kinds that are sent; None: all
    group_s: float

    def to(self, alert: Alert) -> tuple[AlertChannel, ...]:
        """The channels of an alert."""
        return self.channels if self.on is None or alert.kind in (*self.on, "test") else ()


@dataclass(frozen=True, kw_only=True)
class AlertRoutes:
    """Where the alerts of all pipelines go."""

    otherwise: AlertRoute
    pipelines: Mapping[str, AlertRoute]

    def of(self, pipeline: str) -> AlertRoute:
        """The route of a pipeline; an empty name is the scheduler itself."""
        return self.pipelines.get(pipeline_of(pipeline), self.otherwise)

    @property
    def channels(self) -> tuple[AlertChannel, ...]:
        """Every channel, once."""
        routes = (self.otherwise, *self.pipelines.values())
        return tuple({channel.url: channel for route in reversed(routes) for channel in route.channels}.values())


@dataclass(frozen=True, kw_only=True)
class ChannelMessage:
    """A message to send to a channel."""

    title: str
    body: str
    kind: str


# From settings


def read_routes(alerts: AlertSettings, variables: Mapping[str, str] = os.environ) -> AlertRoutes:
    """The channels in the settings, with each `${NAME}` replaced by the variable.

    Raises:
        SettingsError: a variable is not set.
    """
    return AlertRoutes(
        otherwise=_route(alerts, "alerts", variables),
        pipelines={n: _route(of, f"alerts.pipelines.{n}", variables) for n, of in alerts.pipelines.items()},
    )


def _route(alerts: AlertSettings, table: str, variables: Mapping[str, str]) -> AlertRoute:
    found = (_channel(url, f"{table}.urls[{n}]", alerts.from_name, variables) for n, url in enumerate(alerts.urls))
    return AlertRoute(channels=tuple(found), on=alerts.on, group_s=alerts.group_s)


def _channel(written: str, where: str, from_name: str, variables: Mapping[str, str]) -> AlertChannel:
    for name in _VARIABLE.findall(written):
        if not variables.get(name):
            raise SettingsError(
                f"{where} needs the variable {name or '${}'}, which is not set. Set it where the scheduler starts:  "
                f"export {name or 'NAME'}=…"
            )
    url = _VARIABLE.sub(lambda found: variables[found[1]], written)
    scheme = re.match(r"[a-z][a-z0-9+.-]{1,15}(?=://)", url.lower())
    return AlertChannel(name=f"{where} ({scheme[0]})" if scheme else where, url=url, from_name=from_name)


def check_channels(wanted: AlertRoutes) -> None:
    """Asks Apprise whether it can use every channel. Nothing is sent.

    Raises:
        SettingsError: it cannot; the message names the setting and hides the URL.
    """
    with ChannelSender() as sender:
        refused = [(channel, fault) for channel in wanted.channels if (fault := sender.refuses(channel))]
    if refused:
        raise SettingsError("\n".join(f"{channel.name}: {fault}" for channel, fault in refused))


# The child, from outside


class ChannelSender:
    """A child process that has Apprise, started when it is first needed."""

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def send(self, channel: AlertChannel, message: ChannelMessage) -> str:
        """Sends a message; returns the error, empty on success."""
        facts = {"title": message.title, "body": message.body, "kind": message.kind}
        return self._request({"url": channel.url, "from_name": channel.from_name, **facts})

    def refuses(self, channel: AlertChannel) -> str:
        """Why Apprise cannot use a channel; empty when it can."""
        return self._request({"url": channel.url, "from_name": channel.from_name})

    def _request(self, request: Mapping[str, str]) -> str:
        try:
            child = self._child = self._child or _start_sender()
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write(json.dumps(request).encode() + b"\n")
            child.stdin.flush()
            with selectors.DefaultSelector() as selector:
                selector.register(child.stdout, selectors.EVENT_READ)
                if not selector.select(self._limit_s):
                    self._end()
                    return f"no answer within {self._limit_s:g} s"
            if answer := child.stdout.readline():
                return str(json.loads(answer))
            self._end()
        except (OSError, ValueError) as error:
            self._end()
            return f"the sending process failed: {type(error).__name__}"
        return f"the sending process ended with {child.returncode}"

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        child.kill()
        with contextlib.suppress(OSError):
            child.communicate()  # closes its pipes and collects it


def _start_sender() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "spanwise.scheduler.alerts.channel", str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for us
    )


# The child, from inside


def main() -> None:
    """Answers requests, a line of JSON each, until there are no more."""
    process.die_with_parent(int(sys.argv[1]))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    for line in sys.stdin:
        request = json.loads(line)
        answers.write(json.dumps(_answer(**request)) + "\n")
        answers.flush()


def _answer(url: str, from_name: str, title: str = "", body: str = "", kind: str = "") -> str:
    try:
        from apprise import Apprise, AppriseAsset

        desk = Apprise(asset=AppriseAsset(app_id=from_name, async_mode=False))
        return _add_service(desk, url) or (_notify(desk, title, body, kind) if body else "")
    except Exception as error:  # noqa: BLE001  whatever a service's code raises; its message may quote the URL
        return f"{type(error).__name__} in the code for this service"


def _add_service(desk: Apprise, url: str) -> str:
    """Adds a service; returns the error, empty on success."""
    from apprise.manager_plugins import NotificationManager

    scheme, known = url.partition("://")[0].lower(), NotificationManager()  # type: ignore[no-untyped-call]
    if scheme not in known:
        return "Apprise supports no such service. See https://appriseit.com/services/"
    if not desk.add(url):
        return f"is not a valid Apprise URL for {known[scheme].service_name}. See {known[scheme].setup_url}"
    return ""


def _notify(desk: Apprise, title: str, body: str, kind: str) -> str:
    style = _STYLES.get(kind, "warning")
    with _capture_log() as lines:
        sent = desk.notify(title=title, body=body, notify_type=style, body_format="text")
    return "" if sent else _find_reason("\n".join(lines))


@contextlib.contextmanager
def _capture_log() -> Iterator[list[str]]:
    """Collects what Apprise logs, to look for known phrases."""
    lines: list[str] = []

    class _ListHandler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    handler, log = _ListHandler(), logging.getLogger("apprise")
    log.setLevel(logging.DEBUG)
    log.addHandler(handler)
    try:
        yield lines
    finally:
        log.removeHandler(handler)


def _find_reason(text: str) -> str:
    if number := _NUMBER.search(text):
        return f"answered {number[1]}{_PHRASES.get(number[1], '') if 'error=' in number[0] else ''}"
    return next((reason for phrase, reason in _KNOWN.items() if phrase in text.lower()), "did not accept the message")


if __name__ == "__main__":
    main()
