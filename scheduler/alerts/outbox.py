"""The outbox: alerts in the root, each written before anything is sent, and sent until every channel has accepted it.

    <root>/alerts/outbox/   letters: alerts that are still to be sent
    <root>/alerts/open/     causes that were alerted and have not recovered
    <root>/alerts/recovered/  when the recovery of a cause was sent last
    <root>/alerts/sent/     the last letters that are done
    <root>/alerts/lock      held by whoever delivers

So it is in a folder, which needs neither network nor database; `outbox_bucket` says how it is in object storage. `put`
only writes. `deliver`, on its own in this root, sends what `letter.plan_letters` lets go, whichever host has put it in.
A letter is sent to each channel once; only when the process is killed between a channel's answer and the note of it, is
it sent there again.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import random
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path

from spanwise.orchestrator.errors import SpanwiseError, StorageError
from spanwise.orchestrator.storage import is_object_url
from spanwise.scheduler.alerts.alert import (
    Alert,
    format_body,
    format_title,
    local_site,
    recovery_alert,
    trouble_alert,
    trouble_cause,
)
from spanwise.scheduler.alerts.channel import AlertChannel, AlertRoutes, ChannelMessage, ChannelSender
from spanwise.scheduler.alerts.letter import DeliveryAttempt, Letter, LetterPlan, plan_letters
from spanwise.scheduler.alerts.outbox_bucket import BucketOutbox, OutboxTaken
from spanwise.scheduler.alerts.outbox_folder import FolderOutbox
from spanwise.scheduler.alerts.outbox_store import OutboxStore

log = logging.getLogger("spanwise.alerts")

FIRST_WAIT_S, LONGEST_WAIT_S = 30.0, 3600.0
GIVEN_UP_AFTER = timedelta(days=7)

_BUSY_S = 5.0  # until it is seen whether the host that delivers has gone on, or has died
_NOT_STORED = "alerts cannot be stored in the root"


@dataclass(frozen=True, kw_only=True)
class DeliveryReport:
    """The result of a delivery."""

    busy: bool = False  #: somebody else delivers, so nothing was done
    sent: int = 0  #: messages that a channel took
    waiting: int = 0  #: letters that are held or that a channel has not accepted
    failed: Mapping[str, str] = field(default_factory=dict)  #: by channel, what was wrong
    next: datetime | None = None  #: when there is something to do again


# Putting in


def put(place: str | Path, alert: Alert, *, spool: bool = True) -> bool:
    """Stores an alert until it is delivered; a recovery only if its cause was alerted.

    `place` is the root. While its object storage is away, the alert goes to the spool of this host; with `spool` false
    it does not, for alerts that are raised again when they were not stored, by whichever host is there then.

    Never raises: what could not be stored is logged, and printed on stderr; then it returns False, and `send_now` may
    still get through.
    """
    try:
        outbox = _open(place)
        if isinstance(outbox, BucketOutbox):
            return _put_shared(outbox, alert, spool=spool)
        return _put(outbox, alert)
    except Exception as error:  # whatever it is, the scheduler goes on
        known = isinstance(error, OSError | SpanwiseError)
        log.error("alert-lost", extra={"kind": alert.kind, "subject": alert.subject}, exc_info=not known)  # noqa: TRY400  what is known is printed
        with contextlib.suppress(OSError, ValueError):  # stderr may be gone
            sys.stderr.write(
                f"spanwise: could not store an alert ({error}); it says:\n{alert.subject}\n{format_body(alert)}\n"
            )
        return False


def _put(outbox: OutboxStore, alert: Alert) -> bool:
    if alert.kind == "recovery" and not outbox.was_alerted(alert.cause):
        return True
    level = logging.INFO if alert.kind == "recovery" else logging.WARNING
    log.log(level, "alert-raised", extra={"kind": alert.kind, "pipeline": alert.pipeline, "subject": alert.subject})
    outbox.add(alert)
    return True


def _put_shared(outbox: BucketOutbox, alert: Alert, *, spool: bool) -> bool:
    if alert.kind == "recovery" and outbox.spool.was_alerted(alert.cause):
        return _put(outbox.spool, alert)  # behind its alert, which was sent from there
    if not outbox.is_away:
        try:
            return _put(outbox, alert)
        except StorageError as error:
            outbox.mark_away(error)
    if spool:
        outbox.spool.add(alert)  # a recovery too: whether it ends anything, the bucket knows
        return True
    trouble = trouble_alert(_NOT_STORED, at=alert.at, site=local_site(), error=outbox.why_away)
    if not outbox.spool.was_alerted(trouble.cause):
        _put(outbox.spool, trouble)
    return False


def was_alerted(place: str | Path, cause: str) -> bool:
    """Whether an alert of this cause was sent, or is about to be, and no recovery has come after it.

    While the storage is away, from this host.
    """
    outbox = _open(place)
    if not isinstance(outbox, BucketOutbox):
        return outbox.was_alerted(cause)
    if outbox.spool.was_alerted(cause):
        return True
    try:
        return not outbox.is_away and outbox.was_alerted(cause)
    except StorageError as error:
        outbox.mark_away(error)
        return False


def list_standing(place: str | Path) -> frozenset[str]:
    """The digests of all causes that were alerted and may not have recovered, by one look; none while that fails."""
    outbox = _open(place)
    try:
        return frozenset(outbox.standing())
    except (OSError, StorageError) as error:
        if isinstance(outbox, BucketOutbox) and isinstance(error, StorageError):
            outbox.mark_away(error)
        return frozenset()


def send_now(channels: Iterable[AlertChannel], alert: Alert) -> dict[str, str]:
    """Sends an alert once, without the outbox; returns the error of each channel, empty where it was accepted."""
    message = ChannelMessage(title=format_title(alert), body=format_body(alert), kind=alert.kind)
    with ChannelSender() as sender:
        return {channel.name: sender.send(channel, message) for channel in channels}


def list_waiting(place: str | Path) -> list[Letter]:
    """What is in the outbox, oldest first.

    Raises:
        StorageError: its object storage cannot be reached, or refuses.
    """
    outbox = _open(place)
    if isinstance(outbox, BucketOutbox):
        spooled = FolderOutbox(outbox.spool.root).letters()
        return sorted([*BucketOutbox(str(place)).letters(), *spooled], key=lambda letter: letter.id)
    return outbox.letters()


def count_waiting(place: str | Path) -> int:
    """The number of letters in the outbox; in object storage, when this process looked last."""
    outbox = _open(place)
    return outbox.waiting if isinstance(outbox, BucketOutbox) else len(outbox.names())


def wants_delivery(place: str | Path) -> bool:
    """Whether `deliver` may have something to do. Asks no network."""
    outbox = _open(place)
    return outbox.wants_delivery() if isinstance(outbox, BucketOutbox) else bool(outbox.names())


def _open(place: str | Path) -> FolderOutbox | BucketOutbox:
    return _open_bucket(str(place)) if is_object_url(str(place)) else FolderOutbox(Path(place))


@functools.cache  # it remembers what it has read
def _open_bucket(place: str) -> BucketOutbox:
    return BucketOutbox(place)


# Delivering


def deliver(place: str | Path, routes: AlertRoutes, now: datetime) -> DeliveryReport:
    """Sends what is due, and notes what was sent. Takes as long as the network does; one at a time in a root.

    While the object storage of the root is away, what waits on this host is sent.

    Raises:
        OSError: the outbox cannot be read.
    """
    outbox = _open(place)
    if isinstance(outbox, BucketOutbox):
        return _deliver_shared(outbox, routes, now)
    return _deliver_folder(outbox, routes, now)


def _deliver_folder(outbox: FolderOutbox, routes: AlertRoutes, now: datetime) -> DeliveryReport:
    if not outbox.exists:
        return DeliveryReport()
    with outbox.alone() as alone:
        return _deliver_all(outbox, routes, now) if alone else DeliveryReport(busy=True)


def _deliver_shared(outbox: BucketOutbox, routes: AlertRoutes, now: datetime) -> DeliveryReport:
    try:
        if not outbox.look(routes):
            return DeliveryReport(waiting=outbox.waiting)
        with outbox.alone() as alone:
            if not alone:
                outbox.look_again(_BUSY_S)
                return DeliveryReport(busy=True)
            _end_trouble(outbox, now)
            report = _deliver_all(outbox, routes, now)
            outbox.note_delivery(routes, None if report.next is None else (report.next - now).total_seconds())
            return report
    except OutboxTaken as error:
        log.warning("delivery-taken-over", extra={"reason": str(error)})
        outbox.look_again(_BUSY_S)
        return DeliveryReport(busy=True)
    except StorageError as error:
        outbox.mark_away(error)
        return _deliver_folder(outbox.spool, routes, now)


def _end_trouble(outbox: BucketOutbox, now: datetime) -> None:
    """Announces that alerts can be stored again: those of the spool have just been."""
    site = local_site()
    cause = trouble_cause(_NOT_STORED, site)
    if outbox.cause(cause).open is not None:
        outbox.add(recovery_alert("", at=now, site=site, cause=cause, summary="alerts can be stored again"))


def _deliver_all(outbox: OutboxStore, routes: AlertRoutes, now: datetime) -> DeliveryReport:
    by_cause: dict[str, list[Letter]] = {}
    for letter in outbox.letters():
        by_cause.setdefault(letter.alert.cause, []).append(letter)
    plans: dict[str, tuple[Sequence[Letter], LetterPlan]] = {}
    going: list[Letter] = []
    moments: list[datetime] = []
    for cause, letters in by_cause.items():
        route, known = routes.of(letters[0].alert.pipeline), outbox.cause(cause)
        plan = plan_letters(letters, known.open, route, now, recovered=known.recovered)
        plans[cause] = letters, plan
        going += (letter for letter in plan.letters if letter.released)
        if plan.cause and any(not letter.released for letter in plan.letters):
            moments.append(plan.cause.announced + timedelta(seconds=route.group_s))
    outbox.record(plans)
    with ChannelSender() as sender:
        return _send_all(outbox, routes, sorted(going, key=lambda letter: letter.id), moments, sender, now)


def _send_all(
    outbox: OutboxStore,
    routes: AlertRoutes,
    letters: Sequence[Letter],
    moments: list[datetime],
    sender: ChannelSender,
    now: datetime,
) -> DeliveryReport:
    sent, left, finished = 0, len(moments), False
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
                letter, fault = _try_channel(outbox, letter, channel, sender, now)
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
            _finish(outbox, letter)
            finished = True
    if finished:
        outbox.tidy()
    return DeliveryReport(sent=sent, waiting=left, failed=failed, next=min(moments, default=None))


def _try_channel(
    outbox: OutboxStore, letter: Letter, channel: AlertChannel, sender: ChannelSender, now: datetime
) -> tuple[Letter, str]:
    """The letter after one attempt with one channel, and what was wrong.

    The attempt is noted before it is made, so that whatever ends this process is not met again at once.
    """
    count = letter.todo[channel.name].count + 1
    again = now + timedelta(seconds=wait_s(letter.id + channel.name, count))
    trying = DeliveryAttempt(count=count, next=again, error="the attempt was interrupted")
    letter = replace(letter, todo={**letter.todo, channel.name: trying})
    outbox.write(letter)
    message = ChannelMessage(title=format_title(letter.alert, letter.count), body=_body(letter), kind=letter.alert.kind)
    facts = {"letter": letter.id, "channel": channel.name, "attempt": count}
    if fault := sender.send(channel, message):
        letter = replace(letter, todo={**letter.todo, channel.name: replace(trying, error=fault)})
        log.warning("alert-failed", extra={**facts, "error": fault})
    else:
        todo = {name: attempt for name, attempt in letter.todo.items() if name != channel.name}
        letter = replace(letter, todo=todo, done={**letter.done, channel.name: now})
        log.info("alert-sent", extra=facts)
    if not outbox.write(letter) and letter.done:
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


def _finish(outbox: OutboxStore, letter: Letter) -> None:
    """Puts a letter that was delivered or has expired among the sent ones."""
    if letter.todo:
        facts = {"letter": letter.id, "subject": letter.alert.subject, "channels": list(letter.todo)}
        log.error("alert-abandoned", extra=facts)
    outbox.finish(letter)
