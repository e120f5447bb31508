"""The outbox of a root in object storage: what one host has put in, any host delivers.

    <root>/alerts/outbox/      letters, in a folder for each cause; a listing finds what is to be sent, and nothing else
    <root>/alerts/causes.json  causes that were alerted and have not recovered, and when others have
    <root>/alerts/sent/        the last letters that are done
    <root>/alerts/sender.json  the lease of the host that delivers

The lease lets one host deliver at a time. One that was paused and has lost it cannot note an attempt, and makes none:
every letter and the causes are replaced only if they are what the writer has read.

While the storage is away, letters go to the spool, an outbox in the folder of this host, and are sent from there.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timedelta

from spanwise.orchestrator.errors import Conflict, StorageError
from spanwise.orchestrator.storage import ObjectLease, StorageBucket, open_bucket, parse_url, write_once
from spanwise.orchestrator.storage.side_by_side import call_side_by_side
from spanwise.scheduler.alerts import outbox_store
from spanwise.scheduler.alerts.alert import Alert
from spanwise.scheduler.alerts.channel import AlertRoutes
from spanwise.scheduler.alerts.letter import Letter, LetterPlan, OpenCause
from spanwise.scheduler.alerts.outbox_folder import FolderOutbox
from spanwise.scheduler.alerts.outbox_store import (
    FOLDER,
    CauseState,
    digest_cause,
    is_recovery,
    name_letter,
    read_letter,
    read_mark,
    to_json,
    validate,
    write_letter,
)
from spanwise.scheduler.project.settings import root_folder

log = logging.getLogger("spanwise.alerts")

LOOK_S = 30.0
"""Between two looks for what other hosts have put in: one request each."""

AWAY_S = 30.0
"""How long the storage counts as away after a request failed: the scheduler has other things to do than to wait."""

LEASE_S = 30.0
"""A host that delivers and has not renewed its lease for this long counts as dead."""

PATIENCE = timedelta(seconds=5)
"""How long a request is made again before the storage counts as away."""

RECOVERED_CAUSES = 1000
"""The maximum number of causes that are known for their recovery alone."""


class OutboxTaken(StorageError):
    """Another host delivers now: this one was paused or cut off for so long that its lease has expired."""


class SpoolOutbox(FolderOutbox):
    """Letters on this host that could not be put into the bucket."""

    def letters(self) -> list[Letter]:
        """Those that can be sent from here: whether other recoveries end anything, only the bucket knows."""
        found = super().letters()
        alerted = {letter.alert.cause for letter in found if letter.alert.kind != "recovery"}
        return [
            letter
            for letter in found
            if letter.released or letter.alert.cause in alerted or self.cause(letter.alert.cause).open is not None
        ]


class BucketOutbox:
    """Letters and causes in object storage. An `OutboxStore`, for the threads of one process."""

    def __init__(self, place: str) -> None:
        self.spool = SpoolOutbox(root_folder(place))
        self.why_away = ""  #: what was wrong with the last request that failed
        self._home = parse_url(place) / FOLDER
        self._known: dict[str, tuple[str, Letter]] = {}  # letters and their etags, as far as they were read
        self._causes: dict[str, dict[str, object]] = {}
        self._causes_etag = ""
        self._unnoted: dict[str, Letter] = {}  # channels took them, and the note of that could not be written
        self._waiting: dict[str, str] = {}  # etags of the letters at the last look, by name
        self._delivered: tuple[dict[str, str], AlertRoutes] | None = None  # what the last delivery has left
        self._look_s = self._away_until_s = 0.0  # monotonic
        self._next_s = float("inf")  # monotonic: when a letter is due

    # What the loop asks

    @property
    def waiting(self) -> int:
        """The number of letters at the last look, without a request."""
        return len(self._waiting) + len(self.spool.names())

    @property
    def is_away(self) -> bool:
        """Whether a request has just failed."""
        return time.monotonic() < self._away_until_s

    def mark_away(self, error: StorageError) -> None:
        """Notes that a request has failed."""
        log.warning("outbox-unreachable", extra={"place": str(self._home), "reason": str(error)})
        self._away_until_s, self.why_away = time.monotonic() + AWAY_S, str(error)

    def wants_delivery(self) -> bool:
        """Whether to look for letters, at the cost of a request: there is one of this host, or it is time again."""
        return time.monotonic() >= min(self._look_s, self._next_s) or bool(self.spool.names())

    def look(self, routes: AlertRoutes) -> bool:
        """Whether there is something to deliver: a letter is new or due, or the channels have changed. One request."""
        self._look_s = time.monotonic() + LOOK_S
        self._waiting = self._list()
        if not self._waiting:
            self._next_s = float("inf")
        if self.spool.names() or self.spool.causes():
            return True
        due = time.monotonic() >= self._next_s
        return bool(self._waiting) and (due or self._delivered != (self._waiting, routes))

    def note_delivery(self, routes: AlertRoutes, wait_s: float | None) -> None:
        """Remembers what a delivery has left, and when there is something to do again."""
        self._waiting = {name: _unquote(etag) for name, (etag, _) in self._known.items()}
        self._delivered = (self._waiting, routes)
        self._next_s = float("inf") if wait_s is None else time.monotonic() + max(wait_s, 0.0)

    def look_again(self, after_s: float) -> None:
        """Has the next look come sooner: somebody else delivers, or has died while doing so."""
        self._next_s = time.monotonic() + after_s

    # An outbox store

    def add(self, alert: Alert) -> None:
        letter = Letter(id=name_letter(alert, self._list(alert.cause)), alert=alert, since=alert.at)
        self._create(letter.id, write_letter(letter))
        self._look_s = 0.0

    def was_alerted(self, cause: str) -> bool:
        # A letter leaves the outbox after its cause was recorded as open, so this order misses neither.
        last = max(self._list(cause), default=None)
        letter = None if last is None else self._bucket.read(self._letter_key(last))
        if letter is not None:
            return not is_recovery(letter[0])
        return _open_of(self._read_causes()[0], cause) is not None

    def standing(self) -> set[str]:
        opened = {digest for digest, known in self._read_causes()[0].items() if known.get("open")}
        return {*map(read_mark, self._list()), *opened, *self.spool.standing()}

    @contextlib.contextmanager
    def alone(self) -> Iterator[bool]:
        with ObjectLease(bucket=self._bucket, key=self._key("sender"), ttl_s=LEASE_S).hold() as alone:
            if alone:
                self._causes, self._causes_etag = self._read_causes()
                self._take_up_spool()
            yield alone

    def letters(self) -> list[Letter]:
        listed = self._list()
        self._known = {name: known for name, known in self._known.items() if listed.get(name) == _unquote(known[0])}
        self._unnoted = {name: letter for name, letter in self._unnoted.items() if name in listed}
        call_side_by_side(self._read, sorted(listed.keys() - self._known.keys()))
        return [self._as_noted(self._known[name][1]) for name in sorted(self._known)]

    def cause(self, cause: str) -> CauseState:
        known = self._causes.get(digest_cause(cause), {})
        recovered = known.get("recovered")
        return CauseState(
            open=_open_of(self._causes, cause),
            recovered=None if recovered is None else datetime.fromisoformat(str(recovered)),
        )

    def record(self, plans: Mapping[str, tuple[Sequence[Letter], LetterPlan]]) -> None:
        """Letters first, so that a process that dies in between loses none; the causes of all by one request."""
        known = {letter.id: letter for before, _ in plans.values() for letter in before}
        changed = [letter for _, plan in plans.values() for letter in plan.letters if letter != known[letter.id]]
        call_side_by_side(self.write, changed)
        states = {cause: CauseState(open=plan.cause, recovered=plan.recovered) for cause, (_, plan) in plans.items()}
        self._write_causes({**self._causes, **{digest_cause(c): _document(c, state) for c, state in states.items()}})
        self._delete([letter.id for _, plan in plans.values() for letter in plan.dropped])

    def write(self, letter: Letter) -> bool:
        """Replaces a letter.

        Raises:
            OutboxTaken: another host has replaced it.
        """
        etag, _ = self._known[letter.id]
        try:
            written = write_once(self._bucket, self._letter_key(letter.id), write_letter(letter), replacing=etag)
        except StorageError:
            if letter.done:
                self._unnoted[letter.id] = letter
            raise
        if written is None:
            raise OutboxTaken(f"{self._home}: another host delivers the alerts now.")
        self._known[letter.id] = written, letter
        self._unnoted.pop(letter.id, None)
        return True

    def finish(self, letter: Letter) -> None:
        self._bucket.write(self._key("sent", letter.id), write_letter(letter))
        self._delete([letter.id])

    def tidy(self) -> None:
        sent = sorted(info.key for info in self._bucket.list((self._home / "sent").key))
        self._bucket.delete(sent[: -outbox_store.SENT_LETTERS])

    # The spool

    def _take_up_spool(self) -> None:
        """Moves what lies on this host into the bucket: causes first, as a recovery is nothing without its cause."""
        names, causes = self.spool.names(), self.spool.causes()
        if not names and not causes:
            return
        with self.spool.alone() as alone:
            if not alone:
                return
            merged = {digest_cause(c): _document(c, _merge(self.cause(c), spooled)) for c, spooled in causes.items()}
            self._write_causes({**self._causes, **merged})
            for cause in causes:
                self.spool.remove(cause=cause)
            for letter in FolderOutbox.letters(self.spool):
                with contextlib.suppress(Conflict):  # it died before it could remove the file
                    self._create(letter.id, write_letter(letter))
                self.spool.remove(letter=letter.id)

    # Objects

    @property
    def _bucket(self) -> StorageBucket:
        return open_bucket(self._home.home, retry_for=PATIENCE)

    def _key(self, *names: str) -> str:
        return f"{self._home.key}/{'/'.join(names)}.json"

    def _list(self, cause: str = "") -> dict[str, str]:
        """The etags of the letters, by name; only those of a cause, if one is given."""
        home = self._home / "outbox"
        found = self._bucket.list((home / digest_cause(cause) if cause else home).key)
        named = [(info.key.rpartition("/")[2].removesuffix(".json"), info) for info in found]
        return {name: _unquote(info.etag) for name, info in named if info.key == self._letter_key(name)}

    def _letter_key(self, name: str) -> str:
        return self._key("outbox", read_mark(name), name)

    def _read(self, name: str) -> None:
        key = self._letter_key(name)
        found = self._bucket.read(key)
        if found is None:
            return  # whoever delivers was quicker
        try:
            self._known[name] = found[1], read_letter(name, found[0])
        except (ValueError, TypeError):
            log.exception("letter-unreadable", extra={"object": f"{self._home.home}/{key}"})
            self._bucket.write(f"{key.removesuffix('.json')}.unreadable", found[0])
            self._bucket.delete([key])

    def _as_noted(self, letter: Letter) -> Letter:
        """A letter with what this process knows to be done, and could not write."""
        noted = self._unnoted.get(letter.id)
        if noted is None:
            return letter
        done = {**letter.done, **noted.done}
        return replace(letter, done=done, todo={name: left for name, left in letter.todo.items() if name not in done})

    def _create(self, name: str, content: bytes) -> None:
        if write_once(self._bucket, self._letter_key(name), content, replacing="") is None:
            raise Conflict(f"{self._home}/outbox/{name}.json was written by somebody else.")

    def _delete(self, names: Sequence[str]) -> None:
        self._bucket.delete(self._letter_key(name) for name in names)
        for name in names:
            self._known.pop(name, None)
            self._unnoted.pop(name, None)

    def _read_causes(self) -> tuple[dict[str, dict[str, object]], str]:
        found = self._bucket.read(self._key("causes"))
        if found is None:
            return {}, ""
        try:
            return dict(json.loads(found[0])), found[1]
        except (ValueError, TypeError):
            log.exception("cause-unreadable", extra={"object": f"{self._home}/causes.json"})
            return {}, found[1]

    def _write_causes(self, causes: dict[str, dict[str, object]]) -> None:
        known = {digest: state for digest, state in causes.items() if state["open"] or state["recovered"]}
        ended = sorted((str(state["recovered"]), digest) for digest, state in known.items() if not state["open"])
        for _, digest in ended[:-RECOVERED_CAUSES]:
            del known[digest]
        if known == self._causes:
            return
        written = write_once(self._bucket, self._key("causes"), to_json(known), replacing=self._causes_etag)
        if written is None:
            raise OutboxTaken(f"{self._home}: another host delivers the alerts now.")
        self._causes, self._causes_etag = known, written


def _unquote(etag: str) -> str:
    """As listings of Azure have it: the headers of its other answers have quotes."""
    return etag.strip('"')


def _open_of(causes: Mapping[str, Mapping[str, object]], cause: str) -> OpenCause | None:
    known = causes.get(digest_cause(cause), {}).get("open")
    return None if known is None else validate(OpenCause, known)  # type: ignore[arg-type]  # checked there


def _document(cause: str, state: CauseState) -> dict[str, object]:
    """What the object of the causes says of one."""
    opened = None if state.open is None else asdict(state.open)
    return dict(json.loads(to_json({"cause": cause, "open": opened, "recovered": state.recovered})))


def _merge(known: CauseState, spooled: CauseState) -> CauseState:
    """What two outboxes know of a cause."""
    recovered = max((at for at in (known.recovered, spooled.recovered) if at is not None), default=None)
    if known.open is None or spooled.open is None:
        return CauseState(open=known.open or spooled.open, recovered=recovered)
    later = max(known.open, spooled.open, key=lambda cause: cause.announced)
    since = min(known.open.since, spooled.open.since)
    count = known.open.count + spooled.open.count
    return CauseState(open=replace(later, since=since, count=count), recovered=recovered)
