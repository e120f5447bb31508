"""Leases: what a dispatcher answers consumers that commit splits, lease more, or were restored. Pure.

A split goes through these states, for one consumer:

    returned -> leased -> its elements are yielded -> they lie before a state -> the state is stored -> committed

Only the first two and the last are known here. Until a split is committed it comes back if its consumer is gone. A
consumer and all that were restored from its states are one *holder*: the newest of them has the leases of all once it
has said what it was restored with. Those that joined before it are released then, so that nothing that one of them has
sent before it died counts.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from spanwise.orchestrator.errors import ServiceError
from spanwise.pipelines.input.service.dispatcher.records import KeepJob, LeaseSplits, Record, ReleaseClient
from spanwise.pipelines.input.service.dispatcher.state import JobState, ServiceState
from spanwise.pipelines.input.service.wire.requests import ExchangeSplits, HeldSplits, ResumedLeases

MAX_SPLITS = 64
"""How many splits a worker or consumer gets at once, at most."""


@dataclass
class Exchanges:
    """What the messages of consumers have said. It is lost when the dispatcher stops, and with it who sent them."""

    newest: dict[int, int] = field(default_factory=dict)  #: the highest number of each client's messages
    at_end: dict[int, bool] = field(default_factory=dict)  #: clients that wait at the end; whether each keeps its state

    def forget_gone(self, state: ServiceState) -> None:
        self.newest = {client: number for client, number in self.newest.items() if client in state.clients}
        self.at_end = {client: keeps for client, keeps in self.at_end.items() if client in state.clients}


def exchange(state: ServiceState, exchanges: Exchanges, request: ExchangeSplits) -> list[Record]:
    """What a consumer's message changes: nothing if a later one of it was answered, since that said more.

    Raises:
        ServiceError: the job has no leases; or it cannot continue from the consumer's state.
    """
    client = request.client
    job = state.jobs[state.clients[client]]
    if not job.create.mode.is_leased:
        raise ServiceError(f"client {client} reads a job without leases.")
    if request.number <= exchanges.newest.get(client, -1):
        return []
    if request.resumed is not None:
        records = resume(state, client, request.resumed)
        exchanges.newest[client] = request.number
        return records
    exchanges.newest[client] = request.number
    change = lease(state, client, request.done, request.want, request.progress)
    if request.at_end and not change.taken:
        exchanges.at_end[client] = request.keeps
    else:  # with what it is given now it is no longer at the end: should it die, others get that
        exchanges.at_end.pop(client, None)
    keep: list[Record] = [KeepJob(job=job.create.job)] if request.keeps and not job.kept else []
    return [*keep, change] if change.done or change.taken or change.progress else keep


def answer(state: ServiceState, exchanges: Exchanges, request: ExchangeSplits) -> HeldSplits:
    """What a consumer is answered, once its message has changed the state."""
    is_newest = request.number == exchanges.newest.get(request.client)
    return HeldSplits(
        held=held_by(state, request.client),
        more=has_more(state, state.jobs[state.clients[request.client]]),
        finished=is_newest and has_ended(state, request.client, exchanges),
    )


def lease(
    state: ServiceState, client: int, done: Sequence[int], want: int, progress: Sequence[tuple[int, int]] = ()
) -> LeaseSplits:
    """Takes committed splits from a client and leases it more, until it holds `want` splits."""
    job = state.jobs[state.clients[client]]
    acknowledged = tuple(split for split in done if job.leased.get(split) == client)
    held = sum(holder == client for holder in job.leased.values()) - len(acknowledged)
    count = sum(state.datasets[job.create.dataset].splits)
    missing = max(0, min(want - held, MAX_SPLITS))
    again = heapq.nsmallest(missing, job.returned)
    fresh = range(job.cursor, min(count, job.cursor + missing - len(again)))
    further = tuple(
        (split, count)
        for split, count in progress
        if job.leased.get(split) == client and split not in acknowledged and count > job.progress.get(split, 0)
    )
    return LeaseSplits(client=client, done=acknowledged, progress=further, taken=(*again, *fresh))


def resume(state: ServiceState, client: int, resumed: ResumedLeases) -> list[Record]:
    """Lets a consumer that was restored continue with the splits of its holder; the others of it are released.

    Raises:
        ServiceError: elements behind its state were committed since, or given to another holder.
    """
    job = state.jobs[state.clients[client]]
    holder = state.holders[client]
    # one that joined later has no lease yet: it is alive where this message is late, and will release this consumer
    earlier = [each for each in job.clients if each < client and holder and state.holders[each] == holder]
    free = {*job.returned, *(split for split, each in job.leased.items() if each == client or each in earlier)}
    lost = sorted(_lost(job, holder, free, resumed))
    if lost:
        raise ServiceError(
            f"job {job.create.name!r} (pass {job.create.epoch}) cannot continue from this state: splits {lost[:5]} "
            f"were committed since, or given to another consumer after client_timeout_s. Restore the newest state, or "
            f"start the pass again."
        )
    done = tuple(split for split, _ in resumed.done if split in free)
    held = tuple(split for split, _ in resumed.held)
    progress = tuple((split, count) for split, count in resumed.held if count > job.progress.get(split, 0))
    return [
        *(ReleaseClient(client=each) for each in sorted(earlier)),
        LeaseSplits(client=client, taken=tuple(each for each in (*done, *held) if job.leased.get(each) != client)),
        LeaseSplits(client=client, done=done, progress=progress),
        *([] if job.kept else [KeepJob(job=job.create.job)]),
    ]


def _lost(job: JobState, holder: str, free: set[int], resumed: ResumedLeases) -> Iterator[int]:
    """The splits that a holder's state has, and of which others may have learned elements behind it."""
    for split, count in resumed.done:
        was_given = holder in job.forfeited.get(split, ())
        is_committed = split < job.cursor and split not in job.leased and split not in free
        if split in free:
            if was_given and job.progress.get(split, 0) > count:
                yield split
        elif was_given or not is_committed:
            yield split
    for split, count in resumed.held:
        if split not in free or job.progress.get(split, 0) > count:
            yield split


def has_ended(state: ServiceState, client: int, exchanges: Exchanges) -> bool:
    """Whether a client that has yielded all it holds gets nothing more from a leased job.

    A client that has nothing left to commit waits for those that have, since they may die; two that have do not wait
    for each other.
    """
    job = state.jobs[state.clients[client]]
    if has_more(state, job):
        return False
    holders = set(job.leased.values())
    others = holders - {client}
    if client in holders:
        return others <= exchanges.at_end.keys()
    return all(exchanges.at_end.get(other, False) for other in others)


def has_more(state: ServiceState, job: JobState) -> bool:
    """Whether a job has splits that nobody holds."""
    return bool(job.returned) or job.cursor < sum(state.datasets[job.create.dataset].splits)


def held_by(state: ServiceState, client: int) -> tuple[tuple[int, int], ...]:
    """The splits that a client holds, and how many elements of each are committed."""
    job = state.jobs[state.clients[client]]
    splits = sorted(split for split, holder in job.leased.items() if holder == client)
    return tuple((split, job.progress.get(split, 0)) for split in splits)
