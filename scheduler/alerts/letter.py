"""Letters: alerts on their way, and which of one cause are sent now. Pure; `outbox` keeps and sends them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from spanwise.scheduler.alerts.alert import Alert
from spanwise.scheduler.alerts.channel import AlertRoute


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
    recovered: datetime | None = None  #: when a recovery was released last


def plan_letters(
    letters: Sequence[Letter],
    cause: OpenCause | None,
    route: AlertRoute,
    now: datetime,
    *,
    recovered: datetime | None = None,
) -> LetterPlan:
    """Which letters of one cause may go, which are held, and which are part of another. Oldest first; pure.

    The first alert goes at once, its repeats as one letter with a count when the group's time is over. A recovery goes
    at once, unless the cause had `recovered` within the group's time before: then the cause flaps, so the recovery
    waits until that time is over, and is dropped if the cause is alerted again.
    """
    planner = _LetterPlanner(cause, recovered, route, now)
    for letter in letters:
        if letter.released:
            planner.go_on(letter)
    for letter in letters:
        if letter.released:
            continue
        if letter.alert.kind == "recovery":
            planner.add_recovery(letter)
        else:
            planner.add_alert(letter)
    return planner.plan()


class _LetterPlanner:
    """The letters of one cause, taken one after another."""

    def __init__(self, cause: OpenCause | None, recovered: datetime | None, route: AlertRoute, now: datetime) -> None:
        self._cause = cause
        self._recovered = recovered
        self._route = route
        self._now = now
        self._going: list[Letter] = []
        self._dropped: list[Letter] = []
        self._held: Letter | None = None  # the repeats of an alert
        self._resting: Letter | None = None  # a recovery that waits whether the cause is alerted again

    def go_on(self, letter: Letter) -> None:
        """Takes a letter that may go already. A process that died may have written it, and not yet the cause."""
        letter = _readdress(letter, self._route, self._now)
        self._going.append(letter)
        if letter.released and (self._cause is None or letter.released > self._cause.announced):
            self._cause = _after(self._cause, letter, letter.released)
            if letter.alert.kind == "recovery":
                self._recovered = max(self._recovered or letter.released, letter.released)

    def add_recovery(self, letter: Letter) -> None:
        if self._cause is None or self._resting is not None:
            self._dropped.append(letter)
        elif self._is_recent(self._recovered) and self._is_recent(self._cause.announced):
            self._resting = letter
        else:
            self._end(self._cause, letter)

    def add_alert(self, letter: Letter) -> None:
        if self._resting is not None:
            self._dropped.append(self._resting)
            self._resting = None
        if self._cause is None:
            self._release(letter)
        elif self._held is None:
            self._held = letter
        else:
            self._dropped.append(letter)
            self._held = replace(self._held, alert=letter.alert, count=self._held.count + letter.count)

    def plan(self) -> LetterPlan:
        """What follows, once the time of the group is over for what was held."""
        sending = any(letter.todo for letter in self._going)
        over = self._cause is not None and not sending and not self._is_recent(self._cause.announced)
        if self._held is not None and self._resting is None and over:
            held, self._held = self._held, None
            self._release(held)
        staying = [letter for letter in (self._held, self._resting) if letter is not None]
        return LetterPlan(
            letters=(*self._going, *staying),
            dropped=tuple(self._dropped),
            cause=self._cause,
            recovered=self._recovered,
        )

    def _release(self, letter: Letter) -> None:
        self._going.append(_release(letter, self._route, self._now))
        self._cause = _after(self._cause, self._going[-1], self._now)

    def _end(self, cause: OpenCause, recovery: Letter) -> None:
        """Lets a recovery go, with all alerts that it ends."""
        count = cause.count + (self._held.count if self._held else 0)
        ending = replace(recovery, complaint=cause.complaint, count=count, since=cause.since)
        self._going.append(_release(ending, self._route, self._now))
        self._dropped += [self._held] if self._held else []
        self._held, self._cause, self._recovered = None, None, self._now

    def _is_recent(self, moment: datetime | None) -> bool:
        return moment is not None and _within(moment, self._route, self._now)


def _within(moment: datetime, route: AlertRoute, now: datetime) -> bool:
    """A moment may come from a host whose clock is ahead; if it is ahead by more, our clock was set back."""
    return abs(now - moment) < timedelta(seconds=route.group_s)


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
