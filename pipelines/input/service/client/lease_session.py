"""A lease session: what a consumer says to the dispatcher about its leases, and what it makes of the answers. Pure.

Messages are numbered, and only the newest counts; so one that is late changes nothing. A consumer that was restored
first says what it was restored with, until that is answered: only then the splits of its state are its own.
"""

from __future__ import annotations

import secrets
from typing import Final, Generic, TypeVar

from spanwise.pipelines.input.op import State
from spanwise.pipelines.input.service.client.leases import LeaseCourse, Place
from spanwise.pipelines.input.service.wire.requests import ExchangeSplits, HeldSplits, ResumedLeases

_HOLDER_BYTES: Final = 16

_Item = TypeVar("_Item")


class LeaseSession(Generic[_Item]):
    """One consumer's side of the exchange. The holder serialises access."""

    def __init__(self, restored: State | None = None, place: Place | None = None) -> None:
        self.holder = secrets.token_hex(_HOLDER_BYTES)  #: the same for all that are restored from its states
        self.course = LeaseCourse[_Item]()
        self.keeps = False  #: whether the consumer stores its state
        self.is_spent = False  #: whether nothing is left to yield behind the state that it was restored with
        self._resumed: ResumedLeases | None = None
        self._number = 0
        self._is_answered = False  # it knows all that the dispatcher has leased it
        if restored is not None:
            self._restore(restored, place)

    def _restore(self, restored: State, place: Place | None) -> None:
        self.holder, base = restored["holder"], restored["base"]
        order = [(split, count) for split, count in restored["order"]]
        place = place or Place(base, order[0][1] if order else 0)
        done, held = order[: place.at - base], order[place.at - base :]
        if held:
            held[0] = (held[0][0], place.given)
        self.is_spent = restored["over"] and not held
        done = [*((split, count) for split, count in restored["done"]), *done]
        self._resumed = ResumedLeases(done=tuple(done), held=tuple(held))
        self.course = LeaseCourse[_Item](place, held)

    def describe(self) -> State:
        """What a session needs that is restored."""
        order = [list(each) for each in self.course.order()]
        before = () if self._resumed is None else self._resumed.done  # the dispatcher does not know of them yet
        done = [list(each) for each in (*before, *self.course.unacknowledged())]
        return {"holder": self.holder, "done": done, "base": self.course.base, "order": order}

    def request(self, client: int, want: int, *, waits: bool, key: str = "") -> ExchangeSplits:
        """The next message of a consumer that wants to hold so many splits; `waits`: for an element."""
        self._number += 1
        is_answered, self._is_answered = self._is_answered, False
        if self._resumed is not None:
            return ExchangeSplits(
                client=client, key=key, number=self._number, resumed=self._resumed, want=0, keeps=True
            )
        done, progress = self.course.committed()
        return ExchangeSplits(
            client=client,
            key=key,
            number=self._number,
            done=done,
            progress=progress,
            want=want + self.course.uncommitted if want else 0,
            # what it was leased by a message whose answer is lost, it does not know yet
            at_end=is_answered and waits and self.course.is_spent,
            keeps=self.keeps,
        )

    def receive(self, request: ExchangeSplits, answer: HeldSplits) -> bool:
        """Takes the answer to its last message; returns whether nothing is left for it to yield."""
        self._is_answered = True
        self._resumed = None
        self.course.update(answer.held, request.done)
        return request.at_end and answer.finished and self.course.is_spent
