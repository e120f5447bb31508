"""Pusher: puts a blessed model where it is served, as a new version that appears whole or not at all.

A destination is a folder with one folder for each version, named by a number; servers take the highest. Beside them
stands `.spanwise/` with what only pushers read: `lock`, `fences.json` and the drafts.

The commit is one rename. Before it, the model is copied into a draft, checked against the digest it was published
with, given `.spanwise.json` (which model this is, and who pushed it), and written through to the disk. Then, holding
the lock, a push

1. stops if the run's lease is lost, or if a run of the pipeline with a higher fencing token has pushed here;
2. writes its own token down, so that a run with a lower one stops at 1 from now on;
3. stops if an earlier attempt of this run, or another push of the very same model, has already made its version;
4. picks a version above all that exist, and renames the draft to it.

A push that dies before the rename has changed nothing that is served: its draft is no longer locked, and the next push
removes it. One that dies after it has pushed: the next attempt finds that in 3, and only reports it.
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
from spanwise.orchestrator.component import Attempt, Component, Input, Output
from spanwise.orchestrator.errors import Fenced, NodeFailed, ParameterError

log = logging.getLogger("spanwise.pusher")

RECORD = ".spanwise.json"
"""In a version: what it is and who pushed it."""

_ROOM = ".spanwise"
_LOCK_WAIT_S = 60.0  # the lock is held for milliseconds; who holds it for longer is frozen


@dataclass(frozen=True, kw_only=True)
class Push:
    """A version's record: the model, and the run that pushed it."""

    model: str  #: name of the artifact
    content: str  #: its digest
    run: str  #: `pipeline/number`
    node: str
    home: str  #: where the pipeline keeps its artifacts; tells apart two installations with a pipeline of one name
    at: str  #: ISO 8601, UTC


@dataclass(frozen=True, kw_only=True)
class Pushed:
    """A version in a destination."""

    version: int
    path: Path
    record: Push | None  #: None when somebody else has put it there


_WHY_NONE = {"blessing": ": an Evaluator without thresholds gives none"}


def refusal(verdicts: Mapping[str, int | None]) -> str | None:
    """Why a model must not be pushed; None when it may. Pure.

    `verdicts` has what is connected, by name: 1 blessed, 0 not, None when it came without a verdict, as from an
    Evaluator without thresholds. Nothing connected is no reason (TFX has the same rules).
    """
    for name, verdict in verdicts.items():
        if verdict is None:
            return f"there is no verdict from {name}{_WHY_NONE.get(name, '')}"
        if verdict != 1:
            return f"{name} says no"
    return None


def next_version(existing: Iterable[int], now_s: float) -> int:
    """The version to push: unix seconds as TFX has it, or one above the highest that exists. Pure."""
    return max(int(now_s), *(version + 1 for version in existing), 1)


def already(versions: Iterable[Pushed], mine: Push) -> Pushed | None:
    """The version that makes this push needless: this run's own, or the newest if it is the same model. Pure."""
    newest_first = sorted(versions, key=lambda v: v.version, reverse=True)
    for place, pushed in enumerate(newest_first):
        theirs = pushed.record
        if theirs is None or (theirs.model, theirs.content, theirs.home) != (mine.model, mine.content, mine.home):
            continue
        if not place or (theirs.run, theirs.node) == (mine.run, mine.node):
            return pushed
    return None


def removable(versions: Iterable[Pushed], keep: int | None) -> list[Pushed]:
    """The versions beyond the newest `keep`; never one that no Pusher has put there. Pure."""
    if keep is None:
        return []
    newest_first = sorted(versions, key=lambda v: v.version, reverse=True)
    return [v for v in newest_first[max(keep, 1) :] if v.record is not None]


class Pusher(Component):
    """Puts a model into `destination/<version>/`, unless a connected `blessing` or `infra_blessing` withholds it.

    Without either connected it pushes every model, and says so. The version is the time in unix seconds, or one
    more than the highest there is. What is not pushed is reported: `pushed` 0 with the reason, and the run goes on.
    The same model is not pushed twice in a row, and a run as of an earlier time pushes nothing. With `keep_versions`,
    older versions beyond that many are removed.

    It is never served from the cache (law 7). The output holds `push.json`, not a second copy of the model.
    """

    cacheable: ClassVar = False

    def check(self) -> None:
        if not self.parameters["destination"]:
            raise ParameterError(f"{self.name} needs a folder as destination, for example destination='serving'.")
        keep = self.parameters["keep_versions"]
        if isinstance(keep, int) and keep < 1:
            raise ParameterError(f"{self.name}.keep_versions is {keep}; it is 1 or more, or None to keep all.")

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
        given = {"blessing": blessing, "infra_blessing": infra_blessing}
        connected = {name: verdict for name, verdict in given.items() if self.inputs[name]}
        why_not = refusal({name: b.blessed if b is not None else None for name, b in connected.items()})
        if attempt.run.as_of is not None:
            then = f"{attempt.run.as_of.astimezone():%Y-%m-%d %H:%M %Z}"
            why_not = f"the run looks back to {then}, and what it learned then is old"
        pushed_model.model = model.name
        pushed_model.pushed = 0 if why_not else 1
        found = None
        if why_not:
            refusals = [verdict for verdict in connected.values() if verdict is not None and verdict.blessed != 1]
            reasons = [reason for verdict in refusals for reason in verdict.reasons or ()]
            pushed_model.reason = f"not pushed: {'; '.join([why_not, *reasons])}"
            log.warning("%s", pushed_model.reason)
        else:
            if not connected:
                log.warning("no blessing is connected, so %s is pushed unseen", model.name)
            home = str(pushed_model.path.parents[2])
            found, pushed_model.reason = push(model, destination, attempt, home=home, keep_versions=keep_versions)
            pushed_model.pushed_version = str(found.version)
            pushed_model.pushed_destination = str(found.path)
            log.info("%s: %s", found.path, pushed_model.reason or "pushed")
        facts = {**pushed_model.properties, "content": model.content, "record": found and found.record}
        (pushed_model.path / "push.json").write_text(json.dumps(facts, indent=2, default=asdict) + "\n")


def push(
    model: Model, destination: str | Path, attempt: Attempt, *, home: str, keep_versions: int | None = None
) -> tuple[Pushed, str | None]:
    """Puts the model into a new version, and returns that version; or the one that has it, and why it is enough.

    Raises:
        Fenced: the run has lost its pipeline to another; nothing was pushed.
        NodeFailed: the destination cannot be written, or the model is damaged; nothing was pushed.
    """
    top = Path(destination).expanduser().absolute()
    mine = Push(
        model=model.name,
        content=model.content,
        run=attempt.run.name,
        node=attempt.node,
        home=home,
        at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    try:
        (top / _ROOM).mkdir(parents=True, exist_ok=True)
        there = already(versions(top), mine)
        if there is not None:
            return there, _enough(there, mine)
        with _draft(top) as draft:
            _fill(draft, model, mine)
            with _locked(top):
                attempt.check_fence()
                _raise_fence(top, attempt, home)
                present = versions(top)
                there = already(present, mine)
                if there is not None:
                    return there, _enough(there, mine)
                version = next_version((v.version for v in present), time.time())
                target = top / str(version)
                draft.rename(target)  # the commit
                durable.sync_folder(top)
                new = Pushed(version=version, path=target, record=mine)
                _remove(top, removable([*present, new], keep_versions))
                return new, None
    except (OSError, _CopyFailed) as error:
        cause = error.__cause__ if isinstance(error, _CopyFailed) else error
        raise NodeFailed(f"{attempt.node}: {model.name} was not pushed to {top}: {_told(cause)}") from error


def versions(destination: Path) -> list[Pushed]:
    """The versions in a destination, in no promised order."""
    folders = (path for path in destination.iterdir() if re.fullmatch(r"[0-9]+", path.name) and path.is_dir())
    return [Pushed(version=int(path.name), path=path, record=_record(path)) for path in folders]


def _record(version: Path) -> Push | None:
    try:
        return Push(**json.loads((version / RECORD).read_text()))
    except (OSError, ValueError, TypeError):  # put there by hand, or by another program
        return None


def _enough(there: Pushed, mine: Push) -> str:
    by = f"by {there.record.run}" if there.record is not None and there.record.run != mine.run else "by this run"
    return f"not pushed again: version {there.version} is this model, pushed {by}"


def _fill(draft: Path, model: Model, record: Push) -> None:
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
    """Refuses a run that is older than one that has pushed here, and shuts out those older than this one."""
    fences = top / _ROOM / "fences.json"
    try:
        tokens: dict[str, int] = json.loads(fences.read_text())
    except FileNotFoundError:
        tokens = {}
    except ValueError as error:
        raise NodeFailed(f"{fences} is damaged ({error}); if no run is going on, remove it and push again.") from error
    token, seen = attempt.run.token, tokens.get(home, 0)
    if token < seen:
        raise Fenced(
            f"{attempt.run.name} may not push to {top}: it has the lease token {token}, and a run with token {seen} "
            f"has pushed since. If the metadata was begun anew and counts from 1 again, remove {fences}."
        )
    if token > seen:
        durable.put(fences, [_json({**tokens, home: token})])


def _remove(top: Path, surplus: Iterable[Pushed]) -> None:
    """Takes away old versions; each goes at once, by a rename. What fails is left for the next push."""
    for old in surplus:
        gone = top / _ROOM / f"draft-{uuid.uuid4().hex[:12]}"  # not locked, so it is swept if we die here
        try:
            old.path.rename(gone)
            shutil.rmtree(gone)
        except OSError as error:
            log.warning("version %d could not be removed: %s", old.version, error)


# --- drafts and locks ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _draft(top: Path) -> Iterator[Path]:
    """An empty folder that is locked while we live; those that are not locked are removed first."""
    with _locked(top):
        for left in (top / _ROOM).glob("draft-*"):
            _sweep(left)
        draft = top / _ROOM / f"draft-{uuid.uuid4().hex[:12]}"
        draft.mkdir()
        handle = os.open(draft, os.O_RDONLY)
        fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield draft
    finally:
        if draft.exists():  # not renamed
            shutil.rmtree(draft, ignore_errors=True)
        os.close(handle)


def _sweep(left: Path) -> None:
    try:
        handle = os.open(left, os.O_RDONLY)
    except FileNotFoundError:
        return  # its push has just given up
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return  # its push goes on
    else:
        shutil.rmtree(left, ignore_errors=True)
    finally:
        os.close(handle)


@contextlib.contextmanager
def _locked(top: Path) -> Iterator[None]:
    """Alone in a destination, among all pushes of all pipelines."""
    deadline = time.monotonic() + _LOCK_WAIT_S
    with (top / _ROOM / "lock").open("a") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise NodeFailed(
                        f"{lock.name} has been held by another push for {_LOCK_WAIT_S:g} s; end it (see: lsof "
                        f"{lock.name}), then run again."
                    ) from None
                time.sleep(0.01)
        yield  # closing the file gives the lock back


def _json(value: object) -> bytes:
    return json.dumps(value, default=asdict, indent=2).encode()


def _told(error: BaseException | None) -> str:
    if not isinstance(error, OSError):
        return str(error)
    if error.errno == errno.ENOSPC:
        return "the disk is full. Make room (keep_versions=3 removes older versions by itself), then run again."
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return f"{error.filename} cannot be written ({error.strerror}). Let this user write there, then run again."
    return str(error)
