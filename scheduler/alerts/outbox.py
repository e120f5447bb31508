"""The outbox: alerts in files, each written before anything is sent, and sent until every channel has accepted it.

    <root>/alerts/outbox/   letters: alerts that are still to be sent
    <root>/alerts/open/     causes that were alerted and have not recovered
    <root>/alerts/recovered/  when the recovery of a cause was sent last
    <root>/alerts/sent/     the last letters that are done
    <root>/alerts/lock      held by whoever delivers

`put` only writes a file, so it needs neither network nor database. `deliver`, on its own in this root, sends what
`letter.plan_letters` lets go. A letter is sent to each channel once; only when the process is killed between a
channel's answer and the note of it, is it sent there again.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import random
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

from spanwise.orchestrator import durable
from spanwise.scheduler.alerts.alert import Alert, format_body, format_title
from spanwise.scheduler.alerts.channel import AlertChannel, AlertRoutes, ChannelMessage, ChannelSender
from spanwise.scheduler.alerts.letter import DeliveryAttempt, Letter, LetterPlan, OpenCause, plan_letters

log = logging.getLogger("spanwise.alerts")

T = TypeVar("T")

FOLDER = "alerts"
SENT_LETTERS = 1000
"""The maximum number of letters kept in `sent`."""

FIRST_WAIT_S, LONGEST_WAIT_S = 30.0, 3600.0
GIVEN_UP_AFTER = timedelta(days=7)


@dataclass(frozen=True, kw_only=True)
class DeliveryReport:
    """The result of a delivery."""

    busy: bool = False  #: somebody else delivers, so nothing was done
    sent: int = 0  #: messages that a channel took
    waiting: int = 0  #: letters that are held or that a channel has not accepted
    failed: Mapping[str, str] = field(default_factory=dict)  #: by channel, what was wrong
    next: datetime | None = None  #: when there is something to do again


# Putting in


def put(root: Path, alert: Alert) -> bool:
    """Stores an alert until it is delivered; a recovery only if its cause was alerted.

    Never raises: what could not be stored is logged, and printed on stderr; then it returns False, and `send_now` may
    still get through.
    """
    try:
        if alert.kind == "recovery" and not was_alerted(root, alert.cause):
            return True
        level = logging.INFO if alert.kind == "recovery" else logging.WARNING
        log.log(level, "alert-raised", extra={"kind": alert.kind, "pipeline": alert.pipeline, "subject": alert.subject})
        name = f"{_stamp(alert.at)}-{_digest(alert.cause)}-{uuid.uuid4().hex[:8]}"
        letter = Letter(id=name, alert=alert, since=alert.at)
        _write(_file(root, "outbox", letter.id), _document(letter))
    except Exception as error:  # whatever it is, the scheduler goes on
        log.exception("alert-lost", extra={"kind": alert.kind, "subject": alert.subject})
        with contextlib.suppress(OSError, ValueError):  # stderr may be gone
            sys.stderr.write(
                f"spanwise: could not store an alert ({error}); it says:\n{alert.subject}\n{format_body(alert)}\n"
            )
        return False
    return True


def was_alerted(root: Path, cause: str) -> bool:
    """Whether an alert of this cause was sent, or is about to be."""
    mark = _digest(cause)
    return _file(root, "open", mark).exists() or any((root / FOLDER / "outbox").glob(f"*-{mark}-*.json"))


def send_now(channels: Iterable[AlertChannel], alert: Alert) -> dict[str, str]:
    """Sends an alert once, without the outbox; returns the error of each channel, empty where it was accepted."""
    message = ChannelMessage(title=format_title(alert), body=format_body(alert), kind=alert.kind)
    with ChannelSender() as sender:
        return {channel.name: sender.send(channel, message) for channel in channels}


def list_waiting(root: Path) -> list[Letter]:
    """What is in the outbox, oldest first."""
    return list(_letters(root))


# Delivering


def deliver(root: Path, routes: AlertRoutes, now: datetime) -> DeliveryReport:
    """Sends what is due, and notes what was sent. Takes as long as the network does; one at a time in a root.

    Raises:
        OSError: the outbox cannot be read.
    """
    if not (root / FOLDER / "outbox").is_dir():
        return DeliveryReport()
    with _alone(root) as alone:
        return _deliver_all(root, routes, now) if alone else DeliveryReport(busy=True)


def _deliver_all(root: Path, routes: AlertRoutes, now: datetime) -> DeliveryReport:
    by_cause: dict[str, list[Letter]] = {}
    for letter in _letters(root):
        by_cause.setdefault(letter.alert.cause, []).append(letter)
    going: list[Letter] = []
    moments: list[datetime] = []
    for cause, letters in by_cause.items():
        route = routes.of(letters[0].alert.pipeline)
        arranged = plan_letters(letters, _cause(root, cause), route, now, recovered=_find_recovery_time(root, cause))
        _carry_out(root, cause, letters, arranged)
        going += (letter for letter in arranged.letters if letter.released)
        if arranged.cause and any(not letter.released for letter in arranged.letters):
            moments.append(arranged.cause.announced + timedelta(seconds=route.group_s))
    with ChannelSender() as sender:
        return _send_all(root, routes, sorted(going, key=lambda letter: letter.id), moments, sender, now)


def _carry_out(root: Path, cause: str, before: Sequence[Letter], arranged: LetterPlan) -> None:
    """Writes what has changed: letters first, so that a process that dies in between loses none."""
    known = {letter.id: letter for letter in before}
    for letter in arranged.letters:
        if letter != known[letter.id]:
            _store(root, letter)
    file = _file(root, "open", _digest(cause))
    with _log_errors("cause", cause):
        if arranged.cause is None:
            file.unlink(missing_ok=True)
        elif arranged.cause != _cause(root, cause):
            _write(file, {**asdict(arranged.cause), "cause": cause})
        if arranged.recovered is not None and arranged.recovered != _find_recovery_time(root, cause):
            _write(_file(root, "recovered", _digest(cause)), {"at": arranged.recovered, "cause": cause})
    for letter in arranged.dropped:
        with _log_errors("letter", letter.id):
            _file(root, "outbox", letter.id).unlink(missing_ok=True)


def _send_all(
    root: Path,
    routes: AlertRoutes,
    letters: Sequence[Letter],
    moments: list[datetime],
    sender: ChannelSender,
    now: datetime,
) -> DeliveryReport:
    sent, left = 0, len(moments)
    failed: dict[str, str] = {}
    down: dict[str, datetime] = {}  # channels that have failed this time, and when to try them again
    behind: set[tuple[str, str]] = set()  # cause and channel of what is not sent: what comes later keeps its place
    for first in letters:
        letter = first
        for channel in routes.of(letter.alert.pipeline).to(letter.alert):
            attempt = letter.todo.get(channel.name)
            if attempt is None:
                continue
            if _due(attempt, now) and channel.name not in down and (letter.alert.cause, channel.name) not in behind:
                letter, fault = _try_channel(root, letter, channel, sender, now)
                if not fault:
                    sent += 1
                    continue
                failed[channel.name] = fault
                down[channel.name] = letter.todo[channel.name].next
            behind.add((letter.alert.cause, channel.name))
        if letter.todo and now - letter.since < GIVEN_UP_AFTER:
            left += 1
            moments += (max(a.next, down.get(name, a.next)) for name, a in letter.todo.items())
        else:
            _finish(root, letter)
    return DeliveryReport(sent=sent, waiting=left, failed=failed, next=min(moments, default=None))


def _try_channel(
    root: Path, letter: Letter, channel: AlertChannel, sender: ChannelSender, now: datetime
) -> tuple[Letter, str]:
    """The letter after one attempt with one channel, and what was wrong.

    The attempt is noted before it is made, so that whatever ends this process is not met again at once.
    """
    count = letter.todo[channel.name].count + 1
    again = now + timedelta(seconds=wait_s(letter.id + channel.name, count))
    trying = DeliveryAttempt(count=count, next=again, error="the attempt was interrupted")
    letter = replace(letter, todo={**letter.todo, channel.name: trying})
    _store(root, letter)
    message = ChannelMessage(title=format_title(letter.alert, letter.count), body=_body(letter), kind=letter.alert.kind)
    facts = {"letter": letter.id, "channel": channel.name, "attempt": count}
    if fault := sender.send(channel, message):
        letter = replace(letter, todo={**letter.todo, channel.name: replace(trying, error=fault)})
        log.warning("alert-failed", extra={**facts, "error": fault})
    else:
        todo = {name: attempt for name, attempt in letter.todo.items() if name != channel.name}
        letter = replace(letter, todo=todo, done={**letter.done, channel.name: now})
        log.info("alert-sent", extra=facts)
    if not _store(root, letter) and letter.done:
        letter = replace(letter, todo={})  # one channel has it; without a note of that it would get it again and again
    return letter, fault


def wait_s(what: str, count: int) -> float:
    """How long to wait after the `count`th attempt: twice as long each time, and for each letter a little different."""
    longest = min(FIRST_WAIT_S * 2.0 ** min(count - 1, 20), LONGEST_WAIT_S)
    return longest * random.Random(f"{what} {count}").uniform(0.5, 1)  # noqa: S311  not a secret


def _due(attempt: DeliveryAttempt, now: datetime) -> bool:
    return attempt.next <= now or attempt.next > now + timedelta(seconds=LONGEST_WAIT_S)  # the clock was set back


def _body(letter: Letter) -> str:
    return format_body(letter.alert, count=letter.count, since=letter.since, complaint=letter.complaint)


def _finish(root: Path, letter: Letter) -> None:
    """Moves a letter that was delivered or has expired to the sent ones, and keeps only the newest of these."""
    if letter.todo:
        facts = {"letter": letter.id, "subject": letter.alert.subject, "channels": list(letter.todo)}
        log.error("alert-abandoned", extra=facts)
    here, there = _file(root, "outbox", letter.id), _file(root, "sent", letter.id)
    try:
        there.parent.mkdir(exist_ok=True)
        here.replace(there)
        for old in sorted(there.parent.iterdir())[:-SENT_LETTERS]:
            old.unlink(missing_ok=True)
    except OSError:
        log.exception("letter-misfiled", extra={"letter": letter.id})
        with _log_errors("letter", letter.id):
            here.unlink(missing_ok=True)  # it would be sent again


# Files


@contextlib.contextmanager
def _alone(root: Path) -> Iterator[bool]:
    """Whether no other process delivers in this root; the kernel releases the lock when its holder dies."""
    with (root / FOLDER / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _letters(root: Path) -> Iterator[Letter]:
    for file in sorted((root / FOLDER / "outbox").glob("*.json")):
        try:
            yield _read(Letter, {**json.loads(file.read_bytes()), "id": file.stem})
        except FileNotFoundError:
            continue  # whoever delivers was quicker
        except (OSError, ValueError, TypeError):
            log.exception("letter-unreadable", extra={"file": str(file)})
            with _log_errors("letter", file.stem):
                file.replace(file.with_suffix(".unreadable"))


def _cause(root: Path, cause: str) -> OpenCause | None:
    try:
        return _read(OpenCause, json.loads(_file(root, "open", _digest(cause)).read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        log.exception("cause-unreadable", extra={"cause": cause})
        return None


def _find_recovery_time(root: Path, cause: str) -> datetime | None:
    """When the recovery of a cause was last sent; None if it never was."""
    try:
        return datetime.fromisoformat(json.loads(_file(root, "recovered", _digest(cause)).read_bytes())["at"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError):
        log.exception("recovery-unreadable", extra={"cause": cause})
        return None


def _store(root: Path, letter: Letter) -> bool:
    with _log_errors("letter", letter.id):
        _write(_file(root, "outbox", letter.id), _document(letter))
        return True
    return False


@contextlib.contextmanager
def _log_errors(what: str, name: str) -> Iterator[None]:
    """Continues when a file cannot be written: an alert that is sent twice is better than one that is not sent."""
    try:
        yield
    except OSError:
        log.exception("write-failed", extra={what: name})


def _write(file: Path, document: Mapping[str, object]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}.{uuid.uuid4().hex[:8]}")
    durable.put(file, [json.dumps(document, default=_text).encode()], draft=draft)


def _text(value: object) -> str:
    assert isinstance(value, datetime)
    return value.isoformat()


def _document(letter: Letter) -> dict[str, object]:
    return {name: value for name, value in asdict(letter).items() if name != "id"}


def _read(kind: type[T], known: Mapping[str, object]) -> T:
    from pydantic import TypeAdapter

    return TypeAdapter(kind).validate_python(known)


def _file(root: Path, folder: str, name: str) -> Path:
    return root / FOLDER / folder / f"{name}.json"


def _digest(cause: str) -> str:
    return hashlib.blake2b(cause.encode(), digest_size=8).hexdigest()


def _stamp(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y%m%dT%H%M%S%f}"
