"""Pools: at most so many nodes of a pool at a time, over all pipelines of a store.

A pool of two has two slots. A slot is held like a lease (see there): a claim `gpu/1#n`, whose n counts up and is the
fencing token. It is free once its holder has released it, or is gone and has left nothing that still runs. A holder
whose slot was taken over ends its node.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace

from spanwise.orchestrator import process
from spanwise.orchestrator.claim_record import facts_of, record_of
from spanwise.orchestrator.lease import TTL_S, Holder, Lease, WatchedTime, read
from spanwise.orchestrator.store import AlreadyClaimed, Claim, Store

POLL_S = 0.5
"""A slot that becomes free announces itself to nobody, so the store is asked this often."""


@dataclass(frozen=True, kw_only=True)
class Slot:
    """A slot of a pool as the store has it."""

    place: str  #: `pool/number`
    token: int
    pipeline: str
    lease: int  #: the token of its holder's lease
    work: str  #: run and node
    silence_s: float = TTL_S  #: where its holder's machine cannot be asked, its work has ended after this long
    released: bool = False

    @property
    def name(self) -> str:
        return f"{self.place}#{self.token}"


class Pools:
    """Takes slots for the nodes of the runs under one lease, and releases them. Never waits."""

    def __init__(self, store: Store, lease: Lease, monotonic: Callable[[], float] | None = None) -> None:
        self._store = store
        self._monotonic = monotonic or WatchedTime()
        self._lease = lease
        self._mine: set[str] = set()
        self._beats: dict[str, tuple[int, float]] = {}  # of holders elsewhere: the last beat, and when it was seen

    def take(self, pool: str, size: int, work: str, *, silence_s: float = TTL_S) -> Slot | None:
        """Takes a free slot of a pool of this size; None while there is none."""
        beyond = len(self._held_beyond(pool, size))
        for place in _places(pool, size):
            newest = self._newest(place)
            if newest is not None and not self._is_free(newest):
                continue
            if beyond:  # a slot that was taken when the pool was larger stands in the place of this one
                beyond -= 1
                continue
            slot = Slot(
                place=place,
                token=1 if newest is None else newest.token + 1,
                pipeline=self._lease.pipeline,
                lease=self._lease.token,
                work=work,
                silence_s=silence_s,
            )
            try:
                self._store.claim(_claim(slot))
            except AlreadyClaimed:
                continue  # another has taken it between the look and the claim
            self._mine.add(slot.name)
            return slot
        return None

    def release(self, slot: Slot) -> None:
        """Releases a slot, unless somebody has taken it over."""
        self._mine.discard(slot.name)
        self._store.amend(_claim(replace(slot, released=True)))

    def is_lost(self, slot: Slot) -> bool:
        """Whether somebody has taken it over."""
        return self._store.find_claim("slot", f"{slot.place}#{slot.token + 1}") is not None

    def holders(self, pool: str, size: int) -> list[Slot]:
        """The slots that are taken."""
        newest = map(self._newest, _places(pool, size))
        held = [slot for slot in newest if slot is not None and not self._is_free(slot)]
        return [*held, *self._held_beyond(pool, size)]

    def _held_beyond(self, pool: str, size: int) -> list[Slot]:
        """Slots of runs that began when the pool was larger. Below a place that was ever taken all others were, too."""
        held: list[Slot] = []
        for number in itertools.count(size + 1):
            newest = self._newest(f"{pool}/{number}")
            if newest is None:
                return held
            if not self._is_free(newest):
                held.append(newest)
        raise AssertionError("numbers do not end")

    def _newest(self, place: str) -> Slot | None:
        token = self._store.last_claim("slot", f"{place}#")
        claim = self._store.find_claim("slot", f"{place}#{token}") if token else None
        return None if claim is None else record_of(Slot, claim)

    def _is_free(self, slot: Slot) -> bool:
        if slot.released:
            return True
        if (slot.pipeline, slot.lease) == (self._lease.pipeline, self._lease.token):
            return slot.name not in self._mine
        holder = read(self._store, slot.pipeline, slot.lease)
        return holder is None or holder.released or holder.closed or self._is_gone(holder, slot)

    def _is_gone(self, holder: Holder, slot: Slot) -> bool:
        """Whether a holder that has not released anything is dead, and what it started has ended."""
        lives = process.is_alive(holder.who)
        if lives is False and slot.silence_s <= TTL_S:  # what it started ran on this machine
            return not process.find_survivors(holder.mark)
        if lives:  # if it is frozen, so is its work, which is still there
            return False
        now = self._monotonic()
        beat, since = self._beats.get(holder.name, (-1, now))
        if beat != holder.beat:
            self._beats[holder.name] = (holder.beat, now)
            return False
        return now - since > slot.silence_s


def _places(pool: str, size: int) -> list[str]:
    return [f"{pool}/{number}" for number in range(1, size + 1)]


def _claim(slot: Slot) -> Claim:
    return Claim("slot", slot.name, facts_of(slot))
