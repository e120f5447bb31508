"""The outbox: alerts in files, each written before anything is sent, and sent until every channel has accepted it.

    <root>/alerts/outbox/   letters: alerts that are still to be sent
    <root>/alerts/open/     causes that were alerted and have not recovered
    <root>/alerts/sent/     the last letters that are done
    <root>/alerts/lock      held by whoever delivers

`put` only writes a file, so it needs neither network nor database. `deliver` decides, on its own in this root, what
is sent now: the first alert of a cause at once, its repeats as one letter with a count when the group's time is over,
the recovery at once. A letter is sent to each channel once; only when the process is killed between a channel's
answer and the note of it, is it sent there again.
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
from spanwise.scheduler.alerts.channel import AlertChannel, AlertRoute, AlertRoutes, ChannelMessage, ChannelSender

log = logging.getLogger("spanwise.alerts")

T = TypeVar("T")

FOLDER = "alerts"
SENT_LETTERS = 1000
"""How many letters stay in `sent`."""

FIRST_WAIT_S, LONGEST_WAIT_S = 30.0, 3600.0
GIVEN_UP_AFTER = timedelta(days=7)


@dataclass(frozen=True, kw_only=True)
class DeliveryAttempt:
    """How far a letter has come with one channel."""

    count: int = 0
    next: datetime  #: not before
    error: str = ""  #: what was wrong the last time


@dataclass(frozen=True, kw_only=True)
class Letter:
    """An alert on its way, with the repeats that it stands for."""

    id: str
    alert: Alert  #: the last of them
    count: int = 1
    since: datetime  #: when the first of them came
    complaint: str = ""  #: of a recovery: what it puts an end to
    released: datetime | None = None  #: when it was found that it may go; None while it is new or held
    todo: Mapping[str, DeliveryAttempt] = field(default_factory=dict)  #: by channel
    done: Mapping[str, datetime] = field(default_factory=dict)  #: by channel, when it took the letter


@dataclass(frozen=True, kw_only=True)
class OpenCause:
    """A cause that was alerted and has not recovered."""

    announced: datetime  #: when the last letter of it was released
    since: datetime
    count: int  #: of alerts, those that are held included
    complaint: str  #: the subject of the last


@dataclass(frozen=True, kw_only=True)
class LetterPlan:
    """What is to be done with the letters of one cause."""

    letters: tuple[Letter, ...]  #: that stay, those that may go first
    dropped: tuple[Letter, ...]  #: that another stands for, or that announce the end of what was never sent
    cause: OpenCause | None


@dataclass(frozen=True, kw_only=True)
class DeliveryReport:
    """What a delivery came to."""

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
    """Sends an alert past the outbox, once; by channel what was wrong, empty where it was taken."""
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
        arranged = plan_letters(letters, _cause(root, cause), route, now)
        _carry_out(root, cause, letters, arranged)
        going += (letter for letter in arranged.letters if letter.released)
        if arranged.cause and any(not letter.released for letter in arranged.letters):
            moments.append(arranged.cause.announced + timedelta(seconds=route.group_s))
    with ChannelSender() as sender:
        return _send_all(root, routes, sorted(going, key=lambda letter: letter.id), moments, sender, now)


def plan_letters(letters: Sequence[Letter], cause: OpenCause | None, route: AlertRoute, now: datetime) -> LetterPlan:
    """Which letters of one cause may go, which are held, and which are part of another. Oldest first; pure."""
    going = [_readdress(letter, route, now) for letter in letters if letter.released]
    for letter in going:  # a process that died may have written these, and not yet the cause
        if letter.released and (cause is None or letter.released > cause.announced):
            cause = _after(cause, letter, letter.released)
    held: Letter | None = None
    dropped: list[Letter] = []
    for letter in letters:
        if letter.released:
            continue
        if letter.alert.kind == "recovery":
            dropped += [held] if held else []
            if cause is None:
                dropped.append(letter)
                continue
            count = cause.count + (held.count if held else 0)
            ending = replace(letter, complaint=cause.complaint, count=count, since=cause.since)
            going.append(_release(ending, route, now))
            held = cause = None
        elif cause is None:
            going.append(_release(letter, route, now))
            cause = _after(None, going[-1], now)
        elif held is None:
            held = letter
        else:
            dropped.append(letter)
            held = replace(held, alert=letter.alert, count=held.count + letter.count)
    if held and cause and not any(letter.todo for letter in going) and not _within(cause, route, now):
        going.append(_release(held, route, now))
        held, cause = None, _after(cause, going[-1], now)
    return LetterPlan(letters=(*going, *([held] if held else [])), dropped=tuple(dropped), cause=cause)


def _within(cause: OpenCause, route: AlertRoute, now: datetime) -> bool:
    return cause.announced <= now < cause.announced + timedelta(seconds=route.group_s)  # else the clock was set back


def _after(cause: OpenCause | None, letter: Letter, announced: datetime) -> OpenCause | None:
    """How a cause stands once a letter may go; what nobody is announced of is none."""
    if letter.alert.kind == "recovery":
        return None
    if not letter.todo and not letter.done:
        return cause
    since, count = (cause.since, cause.count) if cause else (letter.since, 0)
    return OpenCause(announced=announced, since=since, count=count + letter.count, complaint=letter.alert.subject)


def _release(letter: Letter, route: AlertRoute, now: datetime) -> Letter:
    return replace(letter, released=now, todo={c.name: DeliveryAttempt(next=now) for c in route.to(letter.alert)})


def _readdress(letter: Letter, route: AlertRoute, now: datetime) -> Letter:
    """The letter without the channels that the settings no longer have; to all of them, if it had no other."""
    names = {channel.name for channel in route.to(letter.alert)}
    todo = {name: attempt for name, attempt in letter.todo.items() if name in names}
    if letter.todo and not todo and not letter.done:
        return replace(letter, todo=_release(letter, route, now).todo)
    return replace(letter, todo=todo)


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
    trying = DeliveryAttempt(count=count, next=again, error="the attempt did not end")
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
    """Puts a letter that is done, or too old, with the sent ones; of these only the last are kept."""
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
    """Whether nobody else delivers in this root; the kernel gives the place back when its holder dies."""
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


def _store(root: Path, letter: Letter) -> bool:
    with _log_errors("letter", letter.id):
        _write(_file(root, "outbox", letter.id), _document(letter))
        return True
    return False


@contextlib.contextmanager
def _log_errors(what: str, name: str) -> Iterator[None]:
    """Goes on when a file cannot be written: an alert that is sent twice is better than one that is not."""
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
