"""Leadership: one dispatcher at a time has the journal in object storage; others stand by until it is gone.

The leader record (`wire.leader`) is replaced on condition that it is what was read. Each dispatcher that takes over
counts the token up, so the next heartbeat of the one before it fails, whether that was killed, paused or cut off. What
keeps the journal itself from being written by two is in `stored_journal`.

A leader is gone when it has said so, when its process is gone (same machine), or when its heartbeat has not moved for
its `ttl_s` on the watcher's own clock. Clocks of others are not trusted.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from typing import Final

from spanwise.orchestrator import process
from spanwise.orchestrator.errors import Conflict, ServiceError, StorageError
from spanwise.orchestrator.storage import ObjectUrl, StorageBucket, open_bucket, write_once
from spanwise.pipelines.input.service.wire.connection import Unreachable
from spanwise.pipelines.input.service.wire.leader import RECORD, LeaderRecord, read_leader

_TRIES: Final = 5
_BEATS: Final = 5  # of a leader, within its time to live
_LOOKS: Final = 10  # of who stands by, within it

_log = logging.getLogger("spanwise.service.dispatcher")


class Leadership:
    """The right to write a journal, while it lasts."""

    def __init__(self, journal: ObjectUrl, record: LeaderRecord, etag: str, since: float) -> None:
        self.lost: ServiceError | None = None
        self._journal = journal
        self._place = journal / RECORD
        self._record = record
        self._etag = etag
        self._confirmed = since  # when the last request began that has shown that it is not lost
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="dispatcher-lease", daemon=True)
        self._heart.start()

    @property
    def record(self) -> LeaderRecord:
        return self._record

    def check(self) -> None:
        """Asks nobody: the time tells whether another dispatcher may lead.

        Raises:
            Unreachable: it may.
        """
        if self.lost is not None:
            raise Unreachable(str(self.lost))
        silent_s = time.monotonic() - self._confirmed
        if silent_s > self._record.ttl_s * (_BEATS - 1) / _BEATS:
            raise Unreachable(
                f"the dispatcher could not reach {self._place} for {silent_s:.0f} s; another one may have taken over."
            )

    def amend(self, **changes: str | int | bool) -> None:
        """Replaces the record, which is a heartbeat as well.

        Raises:
            Unreachable: another dispatcher has taken over; or the storage cannot be reached, and it is not known
                whether the record was replaced.
        """
        with self._lock:
            for _ in range(_TRIES):
                self.raise_if_lost()
                began = time.monotonic()
                renewed = self._record.model_copy(update={**changes, "beat": self._record.beat + 1})
                try:
                    etag = write_once(self._bucket, self._place.key, content_of(renewed), replacing=self._etag)
                except StorageError as error:
                    raise Unreachable(str(error)) from error
                if etag is not None:
                    self._record, self._etag, self._confirmed = renewed, etag, began
                    return
                self._read_again()  # it may be an earlier one of ours, whose answer was lost
        raise Unreachable(f"{self._place} is replaced all the time.")

    @property
    def _bucket(self) -> StorageBucket:
        return open_bucket(self._place.home)

    def _read_again(self) -> None:
        try:
            found = read_leader(self._journal)
        except StorageError as error:
            raise Unreachable(str(error)) from error
        if found is not None and found[0].id == self._record.id:
            self._record, self._etag = found
        else:
            self.lose("its leader record was removed" if found is None else f"{found[0]} has taken over")

    def raise_if_lost(self) -> None:
        if self.lost is not None:
            raise Unreachable(str(self.lost))

    def lose(self, why: str) -> None:
        """Nothing is acknowledged from now on."""
        self.lost = self.lost or ServiceError(
            f"the dispatcher {self._record.token} has lost {self._journal}: {why}. It acknowledges nothing more. If "
            f"its machine was paused, or cut off from the storage, start it again: it stands by."
        )

    def release(self) -> None:
        """Lets the next dispatcher begin at once."""
        self._ended.set()
        if self.lost is None:
            try:
                self.amend(released=True)
            except Unreachable as error:
                _log.warning("release-failed", extra={"journal": self._place, "reason": str(error)})

    def _beat(self) -> None:
        missed = ""
        while not self._ended.wait(self._record.ttl_s / _BEATS) and self.lost is None:
            try:
                self.amend()
                missed = ""
            except Exception as error:  # noqa: BLE001  a damaged record, say: without heartbeats others take over
                if self.lost is None and str(error) != missed:
                    missed = str(error)
                    _log.warning("heartbeat-missed", extra={"journal": self._place, "reason": missed})


def lead(journal: ObjectUrl, ttl_s: float, on_standby: Callable[[str], None]) -> Leadership:
    """Takes the journal as soon as nobody else has it; `on_standby` hears for whom it waits.

    Raises:
        ServiceError: the record there is damaged; or the storage does not heed conditions.
        StorageError: the storage cannot be reached, or refuses.
    """
    watch = _Watch(journal, on_standby)
    while True:
        previous, etag = watch.await_gone()
        if previous is None and _is_orphaned(journal):
            continue
        mine = _claim_after(previous, ttl_s)
        since = time.monotonic()
        place = journal / RECORD
        written = write_once(open_bucket(place.home), place.key, content_of(mine), replacing=etag)
        if written is not None:
            _check_conditions(place, mine)
            return Leadership(journal, mine, written, since)


def _is_orphaned(journal: ObjectUrl) -> bool:
    """Whether there is a journal though there was no record when that was looked for; one has come since.

    Raises:
        ServiceError: none has come, so the record is lost, and with it where the journal begins.
    """
    folders, _ = open_bucket(journal.home).list_folder(journal.key)
    if "journal" not in folders and "snapshots" not in folders:
        return False
    if read_leader(journal) is not None:
        return True
    raise ServiceError(
        f"{journal / RECORD} is gone, but not the journal beside it. Restore it; or use another URL, or remove all "
        f"below this one, and what consumers have leased and committed is forgotten."
    )


def content_of(record: LeaderRecord) -> bytes:
    return record.model_dump_json(indent=2).encode()


def _claim_after(previous: LeaderRecord | None, ttl_s: float) -> LeaderRecord:
    who = process.identity()
    mine = LeaderRecord(
        token=1,
        id=secrets.token_hex(8),
        machine=who.machine,
        pid=who.pid,
        started=who.started,
        ttl_s=ttl_s,
    )
    if previous is None:
        return mine
    journal = {"token", "snapshot", "from_token", "from_segment"}
    return mine.model_copy(update={**previous.model_dump(include=journal), "token": previous.token + 1})


def _check_conditions(place: ObjectUrl, mine: LeaderRecord) -> None:
    """There is something, so a write on condition that there is nothing must fail.

    Raises:
        ServiceError: it did not, so nothing would keep two dispatchers apart.
    """
    try:
        open_bucket(place.home).write(place.key, content_of(mine), replacing="")
    except Conflict:
        return
    raise ServiceError(
        f"the storage of {place} ignores the condition of a write (If-None-Match), so two dispatchers could write one "
        f"journal. Use a storage that heeds it, or a folder as --work-dir."
    )


class _Watch:
    """Waits for the end of a leader."""

    def __init__(self, journal: ObjectUrl, on_standby: Callable[[str], None]) -> None:
        self._journal = journal
        self._on_standby = on_standby
        self._seen = ("", -1)  # the life and the beat that was there when it was looked at last
        self._since = 0.0  # when this beat was first seen
        self._looked_at = 0.0
        self._announced = ""

    def await_gone(self) -> tuple[LeaderRecord | None, str]:
        """The record of who had it last, and its etag; None and nothing if nobody had it."""
        has_read = False
        wait_s = 1.0
        while True:
            try:
                found = read_leader(self._journal)
                has_read = True
            except StorageError as error:
                if not has_read:
                    raise
                _log.warning("storage-unreachable", extra={"journal": self._journal, "reason": str(error)})
                time.sleep(wait_s)
                continue
            if found is None:
                return None, ""
            if self._is_gone(found[0]):
                return found
            self._announce(found[0])
            wait_s = found[0].ttl_s / _LOOKS
            time.sleep(wait_s)

    def _is_gone(self, record: LeaderRecord) -> bool:
        if record.released or process.is_alive(record.who) is False:
            return True
        now = time.monotonic()
        was_away = now - self._looked_at > record.ttl_s / 2  # the storage, for both; or this process was paused
        if was_away or self._seen != (record.id, record.beat):
            self._seen, self._since = (record.id, record.beat), now
        self._looked_at = now
        return now - self._since > record.ttl_s

    def _announce(self, record: LeaderRecord) -> None:
        if self._announced != f"{record}":
            self._announced = f"{record}"
            self._on_standby(
                f"standby: {record} has {self._journal}; this one takes over when that one has ended, or was silent "
                f"for {record.ttl_s:g} s"
            )
