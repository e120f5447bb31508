"""Continuations: what a run has done together with the runs that it continues.

A resumed run continues the one that it resumes, a retry the attempt before it, and the training of a backfill the last
of its runs that ingest.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Sequence

from spanwise.orchestrator.errors import NotRecorded
from spanwise.orchestrator.run import Run, State, Trigger
from spanwise.orchestrator.store import Store


def completed_nodes(store: Store, run: Run) -> frozenset[str]:
    """The nodes that a complete run has done or reused, with those of the runs that it continues.

    None of a run that has not completed, of a replay, which repeats what was, and of a push by name, which puts into
    service what was trained at another time.
    """
    return nodes_of(completed_attempts(store, run))


def completed_attempts(store: Store, run: Run) -> Sequence[Run]:
    """A complete run and those that it continues, newest first, which have done `completed_nodes` together."""
    return list(list_attempts(store, run)) if _counts(run) else []


def has_completed(store: Store, run: Run, nodes: Collection[str]) -> bool:
    """Whether a run has completed all of these nodes, as `completed_nodes` says."""
    return _counts(run) and (set(nodes) <= set(run.nodes) or set(nodes) <= attempted_nodes(store, run))


def _counts(run: Run) -> bool:
    return run.state is State.COMPLETE and run.ordinary


def attempted_nodes(store: Store, run: Run) -> frozenset[str]:
    """The nodes of a run, and of the runs that it continues; not those that its base run has supplied otherwise."""
    return nodes_of(list_attempts(store, run))


def nodes_of(attempts: Iterable[Run]) -> frozenset[str]:
    """The nodes of these runs."""
    return frozenset(node for each in attempts for node in each.nodes)


def list_attempts(store: Store, run: Run) -> Iterator[Run]:
    """A run and those that it continues, newest first."""
    yield run
    with contextlib.suppress(NotRecorded):
        while run.base is not None:
            before = store.run(run.pipeline, run.base)
            resumed = run.trigger is Trigger.RESUME and run.cause == before.name
            of_one = run.trigger in (Trigger.SCHEDULE, Trigger.BACKFILL) and (run.trigger, run.cause) == (
                before.trigger,
                before.cause,
            )
            if not (resumed or of_one):
                return
            yield (run := before)


def find_origin(store: Store, run: Run) -> Run:
    """The run that a resumed run resumes in the end; the run itself where it resumes none that is recorded."""
    with contextlib.suppress(NotRecorded):
        while run.trigger is Trigger.RESUME:
            run = store.run(run.pipeline, int(run.cause.rpartition("/")[2]))
    return run
