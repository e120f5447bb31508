"""Publishers: make the outcome of an execution visible, all at once, or remove the files of a failed one.

Only these functions write executions, each write under the run's lease.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from spanwise.orchestrator import process
from spanwise.orchestrator.artifact import Artifact
from spanwise.orchestrator.driver import Artifacts, Execute, Reuse
from spanwise.orchestrator.lease import Holder, Lease, mark_closed, unclosed_leases
from spanwise.orchestrator.renewal import renewals_of
from spanwise.orchestrator.run import Execution, Run, State
from spanwise.orchestrator.serving import claim_pushes
from spanwise.orchestrator.stop_request import find_stop
from spanwise.orchestrator.store import AlreadyClaimed, Claim, Store
from spanwise.orchestrator.verdict import Verdict, write_with

ABANDONED = "abandoned: its run died before it ended"

LONGEST_ERROR = 20_000
"""Characters of an error that are recorded, from its beginning and its end; the log has all of it."""


def begin(store: Store, lease: Lease, execution: Execution) -> Execution:
    """Records an execution as running, before anything of it can fail."""
    return lease.write(lambda place: store.begin(execution, place))


def reuse(
    store: Store,
    lease: Lease,
    execution: Execution,
    inputs: Artifacts,
    plan: Reuse,
    *,
    renewed: Sequence[Artifact] = (),
    verdicts: Sequence[Verdict] = (),
) -> Execution:
    """Publishes an execution whose outputs are artifacts that exist already; makes `renewed` current again."""
    ended = replace(
        execution,
        state=State.CACHED,
        log="",  # what lies there is of a forgotten run, after the restore of older metadata
        inputs=inputs,
        outputs=plan.outputs,
        parameters=plan.parameters,
        key=plan.key.digest if plan.key else "",
        key_parts=plan.key.parts if plan.key else {},
        reused=plan.execution,
        reason=plan.reason,
    )

    def publish(claims: Sequence[Claim]) -> Execution:
        renewals = renewals_of(store, renewed)
        return lease.write(lambda place: store.publish(ended, place, *renewals, *claims))

    while True:
        try:
            return write_with(store, verdicts, publish)
        except AlreadyClaimed:
            continue  # a parallel run has renewed an artifact at the same place between the look and the write


def complete(
    store: Store,
    lease: Lease,
    execution: Execution,
    inputs: Artifacts,
    plan: Execute,
    drafts: Mapping[str, tuple[Artifact, ...]],
    verdicts: Sequence[Verdict] = (),
) -> Execution:
    """Publishes the outputs of an executor, what they have pushed and its verdicts, in one transaction."""
    ended = replace(
        with_plan(execution, plan),
        state=State.COMPLETE,
        inputs=inputs,
        outputs={key: found for key, found in drafts.items() if found},
    )

    def publish(claims: Sequence[Claim]) -> Execution:
        made = () if ended.replay else itertools.chain(*drafts.values())  # what a replay does says nothing of today
        served = claim_pushes(store, ended, made)
        return lease.write(lambda place: store.publish(ended, place, *served, *claims))

    while True:
        try:
            return write_with(store, verdicts, publish)
        except AlreadyClaimed:
            continue  # somebody pushed between the look and the write


def fail(
    store: Store,
    lease: Lease,
    root: Path,
    execution: Execution,
    state: State,
    error: str,
    verdicts: Sequence[Verdict] = (),
) -> Execution:
    """Publishes that an execution failed or was canceled, or what it refused, then removes its files."""
    ended = replace(execution, state=state, error=shorten(error))
    failed = write_with(store, verdicts, lambda claims: lease.write(lambda place: store.publish(ended, place, *claims)))
    clear(root, execution)  # not before: a write whose answer was lost may have made them visible
    return failed


def shorten(error: str) -> str:
    """The error, without its middle where it is too long to record."""
    if len(error) <= LONGEST_ERROR:
        return error
    half, left_out = LONGEST_ERROR // 2, len(error) - LONGEST_ERROR
    return f"{error[:half]}\n… {left_out} characters left out …\n{error[-half:]}"


def with_plan(execution: Execution, plan: Execute) -> Execution:
    """The execution with the parameters, key and reason of its plan."""
    return replace(
        execution,
        parameters=plan.parameters,
        key=plan.key.digest if plan.key else "",
        key_parts=plan.key.parts if plan.key else {},
        reason=plan.reason,
    )


@dataclass(frozen=True, kw_only=True)
class GoneEngine:
    """An engine of which a person says that it is gone for good, with whatever ran there."""

    name: str
    who: str


def close_abandoned_runs(store: Store, lease: Lease, root: Path, gone: GoneEngine | None = None) -> list[Run]:
    """Records the runs that dead holders of this pipeline's lease left running as failed, and returns them.

    Raises:
        Held: some of their processes would not die, or cannot be proven dead.
    """

    def end_on_engine(name: str, mark: int) -> list[str]:
        from spanwise.orchestrator.agents import engines  # hardly a run needs it

        return engines.end_on_engine(name, mark, gone.name if gone else "")

    found = []
    for holder in unclosed_leases(store, lease, end_on_engine):
        for run in _runs_of(store, holder):
            for execution in store.executions(run):
                if not execution.state.succeeded:
                    clear(root, execution)  # also where its run recorded the failure and died before it could clear
                if not execution.state.ended:
                    fail(store, lease, root, execution, State.FAILED, ABANDONED)
            # The run comes last: until its end is written, the next holder finds it again.
            given_up = f", and {gone.who} says that {gone.name} is gone" if gone and gone.name == holder.engine else ""
            ended = replace(_end_abandoned(store, run, holder, given_up), ended=lease.now())
            lease.write(lambda place, ended=ended: store.update_run(ended, place))  # type: ignore[misc]
            found.append(ended)
        mark_closed(store, holder)
    return found


def _end_abandoned(store: Store, run: Run, holder: Holder, given_up: str) -> Run:
    if process.is_of_another_root(holder.who):
        why = "it goes on in the root of which this one is a copy"
        return replace(run, state=State.FAILED, error=f"abandoned: {why}{given_up}")
    if by := find_stop(store, run):
        error = f"stopped by {by}; killed, since it had not recorded its end{given_up}"
        return replace(run, state=State.CANCELED, error=error)
    return replace(run, state=State.FAILED, error=f"abandoned: its controller died{given_up}")


def place(root: Path, execution: Execution, key: str) -> Path:
    """Where an execution writes one of its outputs; no other ever writes there."""
    return root / execution.pipeline / execution.node / key / str(execution.id)


def clear(root: Path, execution: Execution) -> None:
    """Removes everything an execution may have written as outputs."""
    for folder in folders(root, execution):
        shutil.rmtree(folder, ignore_errors=True)


def folders(root: Path, execution: Execution) -> list[Path]:
    """The places of its outputs that exist."""
    return list((root / execution.pipeline / execution.node).glob(f"*/{execution.id}"))


def _runs_of(store: Store, holder: Holder) -> list[Run]:
    found = []
    for run in store.runs(holder.pipeline):
        if run.token < holder.token:
            break
        if run.token == holder.token and not run.state.ended:
            found.append(run)
    return found
