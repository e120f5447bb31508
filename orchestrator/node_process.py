"""Node processes: the life of a child that does the work of one node."""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import shlex
import shutil
import signal
import sys
import traceback
from collections.abc import Mapping
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

from spanwise.orchestrator import durable, fingerprint, integrity, loose_ends, process, rendezvous
from spanwise.orchestrator.artifact import Artifact, Examples, Model, missing_properties, normalize_draft
from spanwise.orchestrator.checkpoints import Checkpoints
from spanwise.orchestrator.component import Component
from spanwise.orchestrator.driver import Artifacts
from spanwise.orchestrator.errors import Fenced, MissingProperty, NodeFailed, Refused, RunError, SpanwiseError
from spanwise.orchestrator.job import JobFailure, Limits, NodeJob
from spanwise.orchestrator.logs import log_to_stderr
from spanwise.orchestrator.pipeline import Pipeline
from spanwise.orchestrator.replica import NO_GANG, ReplicaPlace
from spanwise.orchestrator.resources import limit_threads
from spanwise.orchestrator.signature import Attempt, Outputs, Signature, read_signature
from spanwise.orchestrator.user_code import without_our_frames, without_our_frames_around

ASKING_TO_END = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_job(pipeline: Pipeline, job: NodeJob, line: Connection, parent: int) -> NoReturn:
    """Does the work and exits; never returns into the code that was forked with it."""
    code, me = 1, os.getpid()
    try:
        signal.set_wakeup_fd(-1)
        for number in (*ASKING_TO_END, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        os.setpgid(0, 0)
        process.die_with_parent(parent)
        process.adopt_orphans()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ASKING_TO_END)
        _redirect_output(job.log)
        _apply(job.limits)
        made = _work(pipeline, job, line)
        if os.getpid() == me:  # the work may have forked, and this be the copy
            line.send(("done", made))
            code = 0
    except BaseException as error:  # noqa: BLE001  the controller reports every error
        if os.getpid() == me:
            with contextlib.suppress(OSError):
                line.send(("failed", _failure(error, job)))
        _print_error(error, job)
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _redirect_output(log: str) -> None:
    Path(log).parent.mkdir(parents=True, exist_ok=True)
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(target, 1)
    os.dup2(target, 2)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", errors="replace", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="replace", buffering=1, closefd=False)  # noqa: SIM115
    log_to_stderr()
    logging.captureWarnings(capture=True)


def _apply(limits: Limits) -> None:
    if limits.threads is not None:
        limit_threads(limits.threads)
    if limits.gpus is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(limits.gpus)


def _work(pipeline: Pipeline, job: NodeJob, line: Connection) -> dict[str, tuple[Artifact, ...]]:
    node = pipeline.nodes[job.node]
    assert isinstance(node, Component)
    damaged = _verify(node, job)
    signature = read_signature(type(node))
    shutil.rmtree(job.scratch, ignore_errors=True)  # of an attempt that was killed
    Path(job.scratch).mkdir(parents=True)
    # What rank 0 makes is what the node makes; what the others write goes with their scratch.
    made_in = {name: f"{job.scratch}/outputs/{name}" if job.replica.rank else job.outputs[name] for name in job.outputs}
    outputs: dict[str, Artifact | Outputs[Artifact]] = {}
    for name, spec in signature.outputs.items():
        Path(made_in[name]).mkdir(parents=True, exist_ok=True)
        outputs[name] = Outputs(spec.kind, made_in[name]) if spec.many else spec.kind(made_in[name])
    try:
        arguments = _arguments(node, signature, job, outputs)
        workers = loose_ends.list_workers()
        read = _read_only(node, job)
        before = integrity.stamp(read)
        if signature.attempt is None:
            _join(job, line)
            node.run(**arguments)
        else:
            checkpoints = Checkpoints.of(job)  # before any replica can commit others
            checkpoints.folder.mkdir(parents=True, exist_ok=True)
            place = _join(job, line)
            attempt = replace(_attempt(job, checkpoints, line, damaged), replica=place)
            with checkpoints.watched():
                node.run(**arguments | {signature.attempt: attempt})
        loose_ends.tie_up(spared=workers)
        integrity.refuse_written(node.name, job.run, read, before, job.judges, job.spans)
    finally:
        shutil.rmtree(job.scratch, ignore_errors=True)
    if job.replica.rank:
        return {}
    made = {name: _drafts(signature, name, output) for name, output in outputs.items()}
    for draft in itertools.chain(*made.values()):
        _inherit_graph(node.name, draft, job.inputs)
    for name in [name for name, drafts in made.items() if not drafts]:
        _remove_empty(Path(job.outputs[name]))
    sealed = {name: tuple(_seal(node.name, name, draft) for draft in drafts) for name, drafts in made.items()}
    if job.archive is not None:
        for draft in itertools.chain(*sealed.values()):
            job.archive.keep(draft.path, draft.content)
    return sealed


def _verify(node: Component, job: NodeJob) -> dict[str, str]:
    """Compares the inputs with what was published; returns what was found of those that may be damaged, by name.

    Raises:
        DamagedArtifact: another one is.
    """
    optional = node.may_be_damaged()
    needed = {a.id for name, found in job.inputs.items() if name not in optional for a in found}
    integrity.verify_inputs(node.name, job.run, [a for a in job.verify if a.id in needed], job.judges, job.spans)
    others = integrity.find_damages(a for a in job.verify if a.id not in needed)
    return {damage.artifact.name: damage.found for damage in others}


def _read_only(node: Component, job: NodeJob) -> list[Artifact]:
    """The inputs that the work must leave as they are; of an archive there are copies, which may be fetched anew."""
    spared = node.may_be_damaged()
    if job.archive is not None:
        return []
    return [artifact for name, found in job.inputs.items() if name not in spared for artifact in found]


def _remove_empty(place: Path) -> None:
    """Removes the folder of an output without artifacts, and its parent when that is empty too."""
    with contextlib.suppress(OSError):
        place.rmdir()
        place.parent.rmdir()


def _arguments(
    node: Component,
    signature: Signature,
    job: NodeJob,
    outputs: Mapping[str, object],
) -> dict[str, object]:
    made = {signature.outputs[name].argument or name: output for name, output in outputs.items()}
    arguments: dict[str, object] = {**node.parameters, **job.prepared, **made}
    for name, wanted in signature.inputs.items():
        given = [a.as_kind(wanted.kind) for a in job.inputs.get(name, ())]
        arguments[name] = given if wanted.many else next(iter(given), None)
    return arguments


def _attempt(job: NodeJob, checkpoints: Checkpoints, line: Connection, damaged: Mapping[str, str]) -> Attempt:
    return Attempt(
        run=job.run,
        node=job.node,
        number=job.attempt,
        scratch=Path(job.scratch),
        checkpoints=checkpoints.folder,
        snapshots=job.snapshots if job.archive is not None else Path(job.snapshots),
        check_fence=lambda: _check_fence(line),
        origins=job.origins,
        verdicts=job.verdicts,
        damaged=damaged,
        commit_checkpoints=checkpoints.commit,
    )


def _join(job: NodeJob, line: Connection) -> ReplicaPlace:
    """Meets the other replicas, if there are any."""
    if job.replica.count == 1:
        return NO_GANG

    def gather(said: object) -> tuple[object, ...]:
        line.send(("gather", said))
        heard: tuple[object, ...] = line.recv()
        return heard

    if job.gang.elastic:
        return rendezvous.join(job.replica, gather, apart=job.placed)
    place = rendezvous.meet(job.replica, gather)
    os.environ.update(place.environment())
    return place


def _check_fence(line: Connection) -> None:
    line.send(("fence", None))
    lost = line.recv()
    if lost is not None:
        raise Fenced(lost)


def _inherit_graph(node: str, draft: Artifact, inputs: Artifacts) -> None:
    """Gives what was made of transformed examples the digest of their graph, unless the component has set one.

    Raises:
        NodeFailed: the examples were made by several graphs.
    """
    if not isinstance(draft, Examples | Model) or draft.graph_digest is not None:
        return
    examples = (a.as_kind(Examples) for a in itertools.chain(*inputs.values()) if a.is_a(Examples))
    digests = {each.graph_digest for each in examples} - {None}
    if len(digests) > 1:
        raise NodeFailed(
            f"{node} reads examples that {len(digests)} transform graphs have made, so it is unknown which of them its "
            f"{draft.kind} belongs to; set it in `run`: graph_digest = …"
        )
    if digests:
        draft.graph_digest = digests.pop()


def _drafts(signature: Signature, name: str, output: Artifact | Outputs[Artifact]) -> list[Artifact]:
    if isinstance(output, Outputs):
        return output.drafts
    written = not signature.outputs[name].optional or any(output.path.iterdir()) or output.properties
    return [output] if written else []


def _seal(node: str, name: str, draft: Artifact) -> Artifact:
    """The draft with its digest, synced to disk; refuses one without a property that its kind requires."""
    missing = missing_properties(draft)
    if missing:
        raise MissingProperty(
            f"{node} made its output {name!r} without {', '.join(missing)}, which {draft.kind} requires; "
            f"set it in `run`: {name}.{missing[0]} = …"
        )
    ready = normalize_draft(draft)
    tree = fingerprint.of_tree(draft.path, sync=True)
    return ready.with_content(tree.digest, tree.size_bytes, tree.files)


def _failure(error: BaseException, job: NodeJob) -> JobFailure:
    if (full := _explain_full_disk(error, job)) is not None:
        return JobFailure(message=full)
    if isinstance(error, SystemExit):
        return JobFailure(message=f"It called sys.exit({error.code!r}) before its work was done.")
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  an exception of the user's may do anything
        text = ""
    if isinstance(error, MemoryError):
        message = f"It ran out of memory (MemoryError{': ' if text else ''}{text})."
        return JobFailure(message=message, trace=_user_lines(error), cause="memory")
    name = "" if isinstance(error, SpanwiseError) else f"{type(error).__name__}: "
    trace = "" if isinstance(error, RunError) else _user_lines(error)
    message = f"{name}{text}" if text else type(error).__name__
    return JobFailure(message=message, trace=trace, refused=isinstance(error, Refused))


def _explain_full_disk(error: BaseException, job: NodeJob) -> str | None:
    """What to do about a full disk, whichever library has met it; None of another error, or of one that says it."""
    full = None if isinstance(error, SpanwiseError) else durable.find_full_disk(error)
    if full is None:
        return None
    places = [Path(job.scratch).parent, Path(os.environ.get("TMPDIR") or "/tmp")]  # noqa: S108
    what = "the node could not write what it makes"
    if isinstance(full.filename, str | bytes):
        file = Path(os.fsdecode(full.filename)).absolute()
        what = f"{file} could not be written"
        home = next(folder for folder in file.parents if folder.is_dir())
        # the folder of the file may go with the failure
        places = [place for place in (*places, home) if place.is_dir() and place.stat().st_dev == home.stat().st_dev]
    disks = {place.stat().st_dev: shlex.quote(str(place)) for place in reversed(places) if place.is_dir()}
    quota = " or a quota" if full.errno == errno.EDQUOT else ""
    return f"A disk{quota} is full: {what}. Free some space, then run it again:  df -h {' '.join(disks.values())}"


def _user_lines(error: BaseException) -> str:
    """The traceback without our own frames around the user's code."""
    return "".join(traceback.format_list(_their_frames(error, traceback.extract_tb(error.__traceback__)))).rstrip()


def _their_frames(error: BaseException, frames: traceback.StackSummary) -> list[traceback.FrameSummary]:
    """The frames from the user's code on; of an error of ours, which says what is wrong, those of the user alone."""
    return without_our_frames_around(frames) if isinstance(error, SpanwiseError) else without_our_frames(frames)


def _print_error(error: BaseException, job: NodeJob) -> None:
    """Prints to the log of the node: the message of an expected error, else a traceback from the user's code on."""
    try:
        if (full := _explain_full_disk(error, job)) is not None:
            sys.stderr.write(f"{full}\n")
            return
        report = traceback.TracebackException.from_exception(error)
        theirs = _their_frames(error, report.stack)
        if isinstance(error, RunError) or (isinstance(error, SpanwiseError) and not theirs):
            sys.stderr.write(f"{error}\n")
            return
        if theirs:  # otherwise it is a bug of ours: show all
            report.stack = traceback.StackSummary.from_list(theirs)
        sys.stderr.write("".join(report.format()))
    except Exception:  # noqa: BLE001  an exception of the user's may do anything
        traceback.print_exc()
