"""Object leases: one process at a time does something, wherever it runs; its object is replaced only on condition.

A holder is dead when its process is gone (same machine), or when its object was not renewed for `ttl_s` by the clock of
the storage: it dates both the object of the holder and a mark that whoever asks writes beside it, so that no clock of a
host matters. A process that is paused and goes on later may believe that it holds the lease: what it writes under it
has to be conditional as well.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace

from spanwise.orchestrator import process
from spanwise.orchestrator.errors import Conflict, StorageError
from spanwise.orchestrator.process import Identity
from spanwise.orchestrator.storage.bucket import StorageBucket

log = logging.getLogger("spanwise.storage")

_RENEWALS = 4  # in that time


@dataclass(frozen=True, kw_only=True)
class LeaseHolder:
    """What the object of a lease says."""

    who: Identity
    token: str = field(default_factory=lambda: uuid.uuid4().hex)  #: of this time that it is held
    beat: int = 0  #: counts up, so that a renewed object is another revision
    released: bool = False

    def to_json(self) -> bytes:
        """The content of the object."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, content: bytes) -> LeaseHolder | None:
        """None where the object is not one that we write: then nobody holds the lease."""
        try:
            known = json.loads(content)
            return cls(**{**known, "who": Identity(**known["who"])})
        except (ValueError, TypeError, KeyError):
            log.warning("lease-unreadable", extra={"content": content[:200].decode(errors="replace")})
            return None


@dataclass(frozen=True, kw_only=True)
class ObjectLease:
    """A lease on an object."""

    bucket: StorageBucket
    key: str
    ttl_s: float  #: the same for all who compete for it

    @contextlib.contextmanager
    def hold(self) -> Iterator[bool]:
        """Holds the lease, and renews it from a thread; yields False, and does nothing, while another holds it.

        Raises:
            StorageError: the storage cannot be reached, or refuses.
        """
        mine = self._acquire()
        if mine is None:
            yield False
            return
        ended = threading.Event()
        renewed = [mine]
        heart = threading.Thread(target=self._renew, args=(renewed, ended), name="object lease", daemon=True)
        heart.start()
        try:
            yield True
        finally:
            ended.set()
            heart.join()
            self._release(*renewed[0])

    def _acquire(self) -> tuple[LeaseHolder, str] | None:
        found = self.bucket.read(self.key)
        if found is not None:
            other = LeaseHolder.from_json(found[0])
            if other is not None and not other.released and not self._is_dead(other, found[1]):
                return None
        holder = LeaseHolder(who=process.identity())
        etag = self._write(holder, "" if found is None else found[1])
        return None if etag is None else (holder, etag)

    def _is_dead(self, other: LeaseHolder, etag: str) -> bool:
        alive = process.is_alive(other.who)
        if alive is False:
            return True
        mark = f"{self.key}.asked"
        self.bucket.write(mark, uuid.uuid4().hex.encode())
        asked, held = self.bucket.head(mark), self.bucket.head(self.key)
        if asked is None or held is None or held.etag != etag:
            return False
        return (asked.modified_ns - held.modified_ns) / 1e9 > self.ttl_s + 1  # it is dated in whole seconds

    def _renew(self, renewed: list[tuple[LeaseHolder, str]], ended: threading.Event) -> None:
        while not ended.wait(self.ttl_s / _RENEWALS):
            holder, etag = renewed[0]
            following = replace(holder, beat=holder.beat + 1)
            try:
                written = self._write(following, etag)
            except StorageError as error:
                log.warning("lease-not-renewed", extra={"lease": self.key, "reason": str(error)})
                continue
            if written is None:
                log.warning("lease-lost", extra={"lease": self.key})
                return
            renewed[0] = following, written

    def _release(self, holder: LeaseHolder, etag: str) -> None:
        """Frees the lease for the next; where that fails, it is free after `ttl_s`."""
        try:
            self._write(replace(holder, beat=holder.beat + 1, released=True), etag)
        except StorageError as error:
            log.warning("lease-not-released", extra={"lease": self.key, "reason": str(error)})

    def _write(self, holder: LeaseHolder, etag: str) -> str | None:
        """Replaces the object, and returns its etag; None when somebody else was quicker."""
        return write_once(self.bucket, self.key, holder.to_json(), replacing=etag)


def write_once(bucket: StorageBucket, key: str, content: bytes, *, replacing: str) -> str | None:
    """Writes an object on condition, and returns its etag; None when somebody else has written it meanwhile.

    A request whose answer was lost is made again and is refused: then the object has our content. Two writers never
    give an object the same content.

    Raises:
        StorageError: the storage cannot be reached, or refuses.
    """
    try:
        return bucket.write(key, content, replacing=replacing)
    except Conflict:
        found = bucket.read(key)
        return found[1] if found is not None and found[0] == content else None
