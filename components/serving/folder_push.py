"""Pushes to a folder: a new version appears by one rename, whole, and never by a run that has been overtaken.

A destination is a folder with a numbered folder for each version; servers take the highest. The folder `.spanwise/`
beside them is for pushers only: `lock`, `fences.json` and the drafts.

The commit is one rename. Before it, the model is copied into a draft, compared with the digest of the published model,
labelled with `.spanwise.json` (which model it is, and who pushed it), and synced to disk. Then, under the lock, a push

1. stops if the run has lost its lease, or if a run of the pipeline with a higher fencing token has pushed here;
2. records its own token, so that runs with lower tokens stop at 1 from now on;
3. stops if an earlier attempt of this run, or another push of the same model, has already created the version, and the
   version still has the model's files;
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
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

from spanwise.components.serving.pushed_versions import (
    PushedVersion,
    PushRecord,
    find_existing,
    next_version,
    reason_to_skip,
    surplus_versions,
)
from spanwise.orchestrator import durable, fingerprint
from spanwise.orchestrator.artifact import Model
from spanwise.orchestrator.errors import Fenced, NodeFailed, Unfingerprintable
from spanwise.orchestrator.serving import RECORD
from spanwise.orchestrator.signature import Attempt

log = logging.getLogger("spanwise.serving")

_PRIVATE = ".spanwise"
_LOCK_WAIT_S = 60.0  # the lock is held for milliseconds; a longer holder hangs


def push_to_folder(
    model: Model, top: Path, attempt: Attempt, mine: PushRecord, *, keep_versions: int | None = None
) -> tuple[PushedVersion, str | None]:
    """Copies the model to a new version; returns that version, or an existing one with the reason to skip the push.

    Raises:
        Fenced: the run has lost its pipeline to another; nothing was pushed.
        NodeFailed: the destination cannot be written, or the model is damaged; nothing was pushed.
    """
    try:
        (top / _PRIVATE).mkdir(parents=True, exist_ok=True)
        existing = find_existing(list_versions(top), mine)
        damaged = existing.version if existing is not None and not _is_whole(existing, model) else None
        if existing is not None and existing.version != damaged:
            return existing, reason_to_skip(existing, mine)
        with _draft(top) as draft:
            _fill(draft, model, mine)
            with _locked(top):
                attempt.check_fence()
                _raise_fence(top, attempt, mine.home)
                present = list_versions(top)
                existing = find_existing(present, mine)
                if existing is not None and existing.version != damaged:
                    return existing, reason_to_skip(existing, mine)
                version = next_version((v.version for v in present), time.time())
                target = top / str(version)
                draft.rename(target)  # the commit
                durable.sync_folder(top)
                try:
                    attempt.check_fence()
                except Fenced:  # this process slept since it asked: nobody may find the version later
                    target.rename(draft)
                    durable.sync_folder(top)
                    raise
                new = PushedVersion(version=version, place=target, record=mine)
                _remove(top, surplus_versions([*present, new], keep_versions, mine))
                return new, None
    except (OSError, _CopyFailed) as error:
        cause = error.__cause__ if isinstance(error, _CopyFailed) else error
        raise NodeFailed(f"{attempt.node}: {model.name} was not pushed to {top}: {explain_failure(cause)}") from error


def list_versions(destination: Path) -> list[PushedVersion]:
    """The versions in a destination, in no particular order."""
    folders = (path for path in destination.iterdir() if re.fullmatch(r"[0-9]+", path.name) and path.is_dir())
    return [PushedVersion(version=int(path.name), place=path, record=_record(path)) for path in folders]


def _record(version: Path) -> PushRecord | None:
    try:
        return PushRecord(**json.loads((version / RECORD).read_text()))
    except (OSError, ValueError, TypeError):  # created by hand, or by another program
        return None


def _is_whole(version: PushedVersion, model: Model) -> bool:
    """Whether a version still has the files of the model, apart from its record; a server may have added some."""
    assert isinstance(version.place, Path), "it is of a folder"
    try:
        present = fingerprint.of_tree(version.place).files
        wanted = model.files or fingerprint.of_tree(model.path).files
    except Unfingerprintable as error:
        log.warning("version-damaged", extra={"folder": version.place, "reason": str(error)})
        return False
    lost = [name for name, content in wanted.items() if present.get(name) != content and name != RECORD]
    if lost:
        facts = {"folder": version.place, "files": len(lost), "reason": f"{lost[0]} is not that of {model.name}"}
        log.warning("version-damaged", extra=facts)
    return not lost


def _fill(draft: Path, model: Model, record: PushRecord) -> None:
    shutil.copytree(model.path, draft, symlinks=True, dirs_exist_ok=True, copy_function=_copy)
    digest = fingerprint.of_tree(draft, sync=True).digest
    if digest != model.content:
        raise NodeFailed(
            f"{model.name} was not pushed: its files in {model.path} are not those that were published "
            f"(digest {digest}, not {model.content}). Train it again: --from its Trainer, with --no-cache."
        )
    durable.write(draft / RECORD, [_json(record)])  # in place of that of a version which was imported
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
            assert isinstance(old.place, Path), "it is of a folder"
            old.place.rename(gone)
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
