"""Pusher: copies a blessed model to where it is served, as a new version that appears atomically.

A destination is a folder with a numbered folder for each version; servers take the highest. The folder `.spanwise/`
beside them is for pushers only: `lock`, `fences.json` and the drafts.

The commit is one rename. Before it, the model is copied into a draft, compared with the digest of the published model,
labelled with `.spanwise.json` (which model it is, and who pushed it), and synced to disk. Then, under the lock, a push

1. stops if the run has lost its lease, or if a run of the pipeline with a higher fencing token has pushed here;
2. records its own token, so that runs with lower tokens stop at 1 from now on;
3. stops if an earlier attempt of this run, or another push of the same model, has already created the version;
4. picks a version above all existing ones, and renames the draft to it.

A push that dies before the rename has changed nothing that is served: its draft is no longer locked, and the next push
removes it. A push that dies after the rename has succeeded: the next attempt finds its version in step 3.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar

from spanwise.orchestrator import durable, fingerprint
from spanwise.orchestrator.artifact import Blessing, InfraBlessing, Model, PushedModel
from spanwise.orchestrator.component import Component
from spanwise.orchestrator.errors import Fenced, NodeFailed, ParameterError
from spanwise.orchestrator.local_path import refuse_url
from spanwise.orchestrator.run import Trigger
from spanwise.orchestrator.signature import Attempt, Input, Output

log = logging.getLogger("spanwise.serving")

RECORD = ".spanwise.json"
"""The record in each version."""

_PRIVATE = ".spanwise"
_LOCK_WAIT_S = 60.0  # the lock is held for milliseconds; a longer holder hangs


@dataclass(frozen=True, kw_only=True)
class PushRecord:
    """A version's record: the model, and the run that pushed it."""

    model: str  #: name of the artifact
    content: str  #: its digest
    run: str  #: `pipeline/number`
    node: str
    home: str  #: the folder of the pipeline's artifacts; distinguishes installations with pipelines of the same name
    at: str  #: ISO 8601, UTC


@dataclass(frozen=True, kw_only=True)
class PushedVersion:
    """A version in a destination."""

    version: int
    path: Path
    record: PushRecord | None  #: None if no Pusher created it


_WHY_NONE = {"blessing": ": an Evaluator without thresholds gives none"}


def find_refusal(verdicts: Mapping[str, int | None]) -> str | None:
    """Why a model must not be pushed; None if it may. Pure.

    `verdicts` has the connected inputs by name: 1 blessed, 0 not blessed, None without a verdict, as from an Evaluator
    without thresholds. Without connected inputs every model may be pushed (as in TFX).
    """
    for name, verdict in verdicts.items():
        if verdict is None:
            return f"{name} has no verdict{_WHY_NONE.get(name, '')}"
        if verdict != 1:
            return f"{name} is negative"
    return None


def next_version(existing: Iterable[int], now_s: float) -> int:
    """The version to push: Unix seconds as in TFX, or one above the highest existing version. Pure."""
    return max(int(now_s), *(version + 1 for version in existing), 1)


def find_existing(versions: Iterable[PushedVersion], mine: PushRecord) -> PushedVersion | None:
    """The version that makes this push unnecessary: this run's own, or the newest if it is the same model. Pure."""
    newest_first = sorted(versions, key=lambda v: v.version, reverse=True)
    for place, pushed in enumerate(newest_first):
        theirs = pushed.record
        if theirs is None or (theirs.model, theirs.content, theirs.home) != (mine.model, mine.content, mine.home):
            continue
        if not place or (theirs.run, theirs.node) == (mine.run, mine.node):
            return pushed
    return None


def surplus_versions(versions: Iterable[PushedVersion], keep: int | None, home: str) -> list[PushedVersion]:
    """The versions beyond the newest `keep` of those that this pipeline pushed; others are not ours to remove. Pure."""
    if keep is None:
        return []
    mine = [v for v in versions if v.record is not None and v.record.home == home]
    return sorted(mine, key=lambda v: v.version, reverse=True)[max(keep, 1) :]


class Pusher(Component):
    """Copies a model to `destination/<version>/` if `blessing` and `infra_blessing`, where connected, are positive.

    Without connected blessings it pushes every model and logs a warning. A person's verdict on the model
    (`spanwise bless|unbless`) replaces `blessing`, connected or not. The version is the time in Unix seconds, or
    one above the highest existing version. A model that is not pushed does not fail the run: the output has `pushed` 0
    and the reason. The same model is not pushed twice in a row, and a run as of an earlier time pushes nothing. With
    `keep_versions`, older versions of this pipeline beyond that number are removed; those of others stay.

    It never reuses a cached result. The output holds `push.json`, not a second copy of the model.
    """

    cacheable: ClassVar = False

    def check(self) -> None:
        if not self.parameters["destination"]:
            raise ParameterError(f"{self.name} needs a folder as destination, for example destination='serving'.")
        refuse_url(f"{self.name}.destination", str(self.parameters["destination"]))
        keep = self.parameters["keep_versions"]
        if isinstance(keep, int) and keep < 1:
            raise ParameterError(f"{self.name}.keep_versions is {keep}; use 1 or more, or None to keep all versions.")

    def run(
        self,
        *,
        model: Input[Model],
        blessing: Input[Blessing | None],
        infra_blessing: Input[InfraBlessing | None],
        pushed_model: Output[PushedModel],
        attempt: Attempt,
        destination: str,
        keep_versions: int | None = None,
    ) -> None:
        person = attempt.run.cause if attempt.run.trigger is Trigger.PUSH else None  # `spanwise push` asks the verdicts
        overruled = attempt.verdicts.get(model.name)
        inputs = {} if person else {"blessing": blessing, "infra_blessing": infra_blessing}
        connected = {name: verdict for name, verdict in inputs.items() if self.inputs[name]}
        if overruled is not None:
            connected.pop("blessing", None)
        reason = find_refusal({name: b.blessed if b is not None else None for name, b in connected.items()})
        if overruled is not None and not overruled.given:
            reason = f"{model.name} is {overruled}"
        if attempt.run.replay and attempt.run.as_of is not None:
            then = f"{attempt.run.as_of.astimezone():%Y-%m-%d %H:%M %Z}"
            reason = f"the run is a replay as of {then}, and a replay never pushes"
        pushed_model.model = model.name
        pushed_model.pushed = 0 if reason else 1
        version = None
        if reason:
            refusals = [verdict for verdict in connected.values() if verdict is not None and verdict.blessed != 1]
            reasons = [reason for verdict in refusals for reason in verdict.reasons or ()]
            pushed_model.reason = f"not pushed: {'; '.join([reason, *reasons])}"
            log.warning("push-refused", extra={"model": model.name, "reason": "; ".join([reason, *reasons])})
        else:
            if not connected and not person and overruled is None:
                log.warning("evaluation-skipped", extra={"model": model.name, "reason": "no blessing is connected"})
            home = str(pushed_model.path.parents[2])
            version, skipped = push(model, destination, attempt, home=home, keep_versions=keep_versions)
            pushed_model.reason = skipped or person
            pushed_model.pushed_version = str(version.version)
            pushed_model.pushed_destination = str(version.path)
            event = "push-skipped" if skipped else "model-pushed"
            log.info(event, extra={"folder": version.path, "reason": skipped or person or ""})
        facts = {**pushed_model.properties, "content": model.content, "record": version and version.record}
        (pushed_model.path / "push.json").write_text(json.dumps(facts, indent=2, default=asdict) + "\n")


def push(
    model: Model, destination: str | Path, attempt: Attempt, *, home: str, keep_versions: int | None = None
) -> tuple[PushedVersion, str | None]:
    """Copies the model to a new version; returns that version, or an existing one with the reason to skip the push.

    Raises:
        Fenced: the run has lost its pipeline to another; nothing was pushed.
        NodeFailed: the destination cannot be written, or the model is damaged; nothing was pushed.
    """
    top = Path(destination).expanduser().absolute()
    mine = PushRecord(
        model=model.name,
        content=model.content,
        run=attempt.run.name,
        node=attempt.node,
        home=home,
        at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    try:
        (top / _PRIVATE).mkdir(parents=True, exist_ok=True)
        existing = find_existing(list_versions(top), mine)
        if existing is not None:
            return existing, _reason_to_skip(existing, mine)
        with _draft(top) as draft:
            _fill(draft, model, mine)
            with _locked(top):
                attempt.check_fence()
                _raise_fence(top, attempt, home)
                present = list_versions(top)
                existing = find_existing(present, mine)
                if existing is not None:
                    return existing, _reason_to_skip(existing, mine)
                version = next_version((v.version for v in present), time.time())
                target = top / str(version)
                draft.rename(target)  # the commit
                durable.sync_folder(top)
                new = PushedVersion(version=version, path=target, record=mine)
                _remove(top, surplus_versions([*present, new], keep_versions, home))
                return new, None
    except (OSError, _CopyFailed) as error:
        cause = error.__cause__ if isinstance(error, _CopyFailed) else error
        raise NodeFailed(f"{attempt.node}: {model.name} was not pushed to {top}: {explain_failure(cause)}") from error


def list_versions(destination: Path) -> list[PushedVersion]:
    """The versions in a destination, in no particular order."""
    folders = (path for path in destination.iterdir() if re.fullmatch(r"[0-9]+", path.name) and path.is_dir())
    return [PushedVersion(version=int(path.name), path=path, record=_record(path)) for path in folders]


def _record(version: Path) -> PushRecord | None:
    try:
        return PushRecord(**json.loads((version / RECORD).read_text()))
    except (OSError, ValueError, TypeError):  # created by hand, or by another program
        return None


def _reason_to_skip(existing: PushedVersion, mine: PushRecord) -> str:
    by = (
        f"by {existing.record.run}"
        if existing.record is not None and existing.record.run != mine.run
        else "by this run"
    )
    return f"not pushed again: version {existing.version} is this model, pushed {by}"


def _fill(draft: Path, model: Model, record: PushRecord) -> None:
    shutil.copytree(model.path, draft, symlinks=True, dirs_exist_ok=True, copy_function=_copy)
    digest = fingerprint.of_tree(draft, sync=True).digest
    if digest != model.content:
        raise NodeFailed(
            f"{model.name} was not pushed: its files in {model.path} are not those that were published "
            f"(digest {digest}, not {model.content}). Train it again: --from its Trainer, with --no-cache."
        )
    durable.write(draft / RECORD, [_json(record)])
    durable.sync_folder(draft)


class _CopyFailed(Exception):
    """Carries an error past `copytree`, which would go on copying and keep only its text."""


def _copy(source: str, target: str) -> None:
    try:
        shutil.copy(source, target)
    except OSError as error:
        raise _CopyFailed from error


def _raise_fence(top: Path, attempt: Attempt, home: str) -> None:
    """Refuses a run that is older than the last one that pushed here, and fences off runs older than this one."""
    fences = top / _PRIVATE / "fences.json"
    try:
        tokens: dict[str, int] = json.loads(fences.read_text())
    except FileNotFoundError:
        tokens = {}
    except ValueError as error:
        raise NodeFailed(f"{fences} is damaged ({error}); if no run is active, remove it and push again.") from error
    token, seen = attempt.run.token, tokens.get(home, 0)
    if token < seen:
        raise Fenced(
            f"{attempt.run.name} may not push to {top}: it has the lease token {token}, and a run with token {seen} "
            f"has pushed since. If the metadata store was created anew and counts from 1 again, remove {fences}."
        )
    if token > seen:
        durable.put(fences, [_json({**tokens, home: token})])


def _remove(top: Path, surplus: Iterable[PushedVersion]) -> None:
    """Removes old versions, each by one rename. A version that cannot be removed is left for the next push."""
    for old in surplus:
        gone = top / _PRIVATE / f"draft-{uuid.uuid4().hex[:12]}"  # not locked, so it is swept if we die here
        try:
            old.path.rename(gone)
            shutil.rmtree(gone)
        except OSError as error:
            log.warning("version-not-removed", extra={"version": old.version, "reason": str(error)})


# --- drafts and locks ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _draft(top: Path) -> Iterator[Path]:
    """Yields an empty folder, locked as long as this process lives; removes abandoned drafts first."""
    with _locked(top):
        for abandoned in (top / _PRIVATE).glob("draft-*"):
            _sweep(abandoned)
        draft = top / _PRIVATE / f"draft-{uuid.uuid4().hex[:12]}"
        draft.mkdir()
        handle = os.open(draft, os.O_RDONLY)
        fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield draft
    finally:
        if draft.exists():  # not renamed
            shutil.rmtree(draft, ignore_errors=True)
        os.close(handle)


def _sweep(abandoned: Path) -> None:
    try:
        handle = os.open(abandoned, os.O_RDONLY)
    except FileNotFoundError:
        return  # its push has just ended
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return  # its push is still running
    else:
        shutil.rmtree(abandoned, ignore_errors=True)
    finally:
        os.close(handle)


@contextlib.contextmanager
def _locked(top: Path) -> Iterator[None]:
    """Holds the lock of a destination against all other pushes."""
    deadline = time.monotonic() + _LOCK_WAIT_S
    with (top / _PRIVATE / "lock").open("a") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise NodeFailed(
                        f"{lock.name} has been held by another push for {_LOCK_WAIT_S:g} s; stop it (see: lsof "
                        f"{lock.name}), then run again."
                    ) from None
                time.sleep(0.01)
        yield  # closing the file releases the lock


def _json(value: object) -> bytes:
    return json.dumps(value, default=asdict, indent=2).encode()


def explain_failure(error: BaseException | None) -> str:
    if not isinstance(error, OSError):
        return str(error)
    if error.errno == errno.ENOSPC:
        return "the disk is full. Free space (keep_versions=3 removes older versions automatically), then run again."
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return f"{error.filename} cannot be written ({error.strerror}). Grant this user write access, then run again."
    return str(error)
