"""Pushes to object storage: the objects of a version first, then the one object that says which version serves.

A destination such as `s3://models/flights` has a numbered folder for each version, as a folder has, and
`serving.json`, the pointer: which version serves, which others there are, and the fencing tokens of the pipelines that
push here. Servers follow the pointer; a folder that it does not name is not complete, or is about to be removed.

The commit is the replacement of the pointer, on condition that nobody has replaced it since it was read. Before it, a
push

1. reads the pointer, and stops if a run with a higher fencing token has pushed here, or if an earlier attempt of this
   run, or another push of the same model, has already created the version;
2. takes a number above all existing ones by creating the record in its folder, which only one push can;
3. compares the model with the digest of the published model, and writes its objects;
4. asks whether the run still holds its lease, and replaces the pointer. If somebody was faster, it begins again at 1,
   with the objects that are there;
5. asks again, and takes its version back if the lease was lost in between, unless another push has followed.

A push that dies before the pointer is replaced has changed nothing that is served; what it wrote is removed by the
first push that succeeds a day later. A push that is stopped for long after step 4 has asked cannot replace the pointer
once a later run has; where none has pushed, its version serves until it has asked again.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

from spanwise.components.serving.pushed_versions import (
    PushedVersion,
    PushRecord,
    find_existing,
    next_version,
    reason_to_skip,
    surplus_versions,
)
from spanwise.orchestrator import fingerprint
from spanwise.orchestrator.artifact import Model
from spanwise.orchestrator.errors import Conflict, Fenced, NodeFailed, StorageError, Unfingerprintable
from spanwise.orchestrator.serving import POINTER, RECORD
from spanwise.orchestrator.signature import Attempt
from spanwise.orchestrator.storage import ObjectUrl, StorageBucket, open_bucket

log = logging.getLogger("spanwise.serving")

_ABANDONED_AFTER_S = 86_400.0  # no push takes longer
_TRIES = 20  # times that others were faster


@dataclass(frozen=True, kw_only=True)
class Pointer:
    """The content of `serving.json`."""

    version: int = 0  #: the one that serves; 0: none yet
    versions: Mapping[int, PushRecord] = field(default_factory=dict)  #: all that are complete
    fences: Mapping[str, int] = field(default_factory=dict)  #: home of a pipeline -> its highest token

    def to_json(self, top: ObjectUrl) -> bytes:
        """What servers read: beside the record, where the version is."""
        document = {
            "version": self.version,
            "location": str(top / str(self.version)),
            "versions": {str(number): asdict(record) for number, record in self.versions.items()},
            "fences": self.fences,
        }
        return json.dumps(document, indent=2).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Pointer:
        """Reads it; raises ValueError, KeyError or TypeError where it is damaged."""
        document = json.loads(text)
        return cls(
            version=int(document["version"]),
            versions={int(number): PushRecord(**record) for number, record in document["versions"].items()},
            fences={str(home): int(token) for home, token in document["fences"].items()},
        )


def push_to_bucket(
    model: Model, top: ObjectUrl, attempt: Attempt, mine: PushRecord, *, keep_versions: int | None = None
) -> tuple[PushedVersion, str | None]:
    """Writes the model as a new version; returns that version, or an existing one with the reason to skip the push.

    Raises:
        Fenced: the run has lost its pipeline to another; nothing was pushed.
        NodeFailed: the destination cannot be written, or the model is damaged; nothing was pushed.
    """
    try:
        return _push(_Destination(open_bucket(top.home), top), model, attempt, mine, keep_versions)
    except StorageError as error:
        raise NodeFailed(f"{attempt.node}: {model.name} was not pushed. {error}") from error


def _push(
    there: _Destination, model: Model, attempt: Attempt, mine: PushRecord, keep: int | None
) -> tuple[PushedVersion, str | None]:
    number = 0
    for _ in range(_TRIES):
        pointer, etag = there.read_pointer()
        _check_fence(pointer, there.top, attempt, mine.home)
        present = there.versions(pointer)
        if (existing := find_existing(present, mine)) is not None and there.is_whole(existing.version, model):
            if number != existing.version:  # else an answer was lost, and this push has succeeded
                there.remove([number])
            return existing, reason_to_skip(existing, mine)
        if number <= pointer.version:  # none yet; or a later push was faster, so it would not be the highest
            there.remove([number])
            number = there.claim((v.version for v in present), mine)
            there.fill(number, model)
        new = PushedVersion(version=number, place=there.top / str(number), record=mine)
        surplus = {old.version for old in surplus_versions([*present, new], keep, mine)}
        versions = {v: record for v, record in {**pointer.versions, number: mine}.items() if v not in surplus}
        fences = {**pointer.fences, mine.home: attempt.run.token}
        try:
            attempt.check_fence()
            etag = there.write_pointer(Pointer(version=number, versions=versions, fences=fences), replacing=etag)
        except Conflict:
            continue
        except Fenced:
            there.remove([number])
            raise
        try:
            attempt.check_fence()
        except Fenced:
            there.take_back(number, pointer, replacing=etag)
            raise
        there.remove(surplus)
        there.remove_abandoned(versions)
        return new, None
    raise NodeFailed(
        f"{attempt.node}: {model.name} was not pushed to {there.top}: {_TRIES} other pushes were faster. Push it again."
    )


def _check_fence(pointer: Pointer, top: ObjectUrl, attempt: Attempt, home: str) -> None:
    seen = pointer.fences.get(home, 0)
    if attempt.run.token < seen:
        raise Fenced(
            f"{attempt.run.name} may not push to {top}: it has the lease token {attempt.run.token}, and a run with "
            f"token {seen} has pushed since. If the metadata store was created anew and counts from 1 again, remove "
            f"{home!r} from the fences in {top / POINTER}."
        )


@dataclass(frozen=True)
class _Destination:
    """A folder of versions in a bucket."""

    bucket: StorageBucket
    top: ObjectUrl

    def read_pointer(self) -> tuple[Pointer, str]:
        """The pointer and its etag; an empty one where nothing has been pushed."""
        found = self.bucket.read((self.top / POINTER).key)
        if found is None:
            return Pointer(), ""
        try:
            return Pointer.from_json(found[0]), found[1]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise NodeFailed(
                f"{self.top / POINTER} is damaged ({error}); if no run is active, remove it and push again."
            ) from error

    def write_pointer(self, pointer: Pointer, *, replacing: str) -> str:
        """Returns the etag of what is there now; raises Conflict when somebody was faster."""
        return self.bucket.write((self.top / POINTER).key, pointer.to_json(self.top), replacing=replacing)

    def take_back(self, number: int, before: Pointer, *, replacing: str) -> None:
        """Makes what served before serve again, and removes a version, unless somebody has pushed since."""
        try:
            self.write_pointer(before, replacing=replacing)
        except (Conflict, StorageError) as error:
            log.warning("version-not-taken-back", extra={"version": number, "reason": str(error)})
        else:
            self.remove([number])

    def versions(self, pointer: Pointer) -> list[PushedVersion]:
        return [
            PushedVersion(version=version, place=self.top / str(version), record=record)
            for version, record in pointer.versions.items()
        ]

    def claim(self, existing: Iterable[int], mine: PushRecord) -> int:
        """A number above the existing ones that no other push has; its folder has the record from now on."""
        number = next_version(existing, time.time())
        while True:
            try:
                self._write_record(number, mine)
            except Conflict:
                number += 1
            else:
                return number

    def fill(self, number: int, model: Model) -> None:
        """Writes the files of the model, once they have been compared with what was published."""
        try:
            tree = fingerprint.of_tree(model.path)
        except Unfingerprintable as error:
            raise NodeFailed(f"{model.name} was not pushed: {error}") from error
        if tree.digest != model.content:
            raise NodeFailed(
                f"{model.name} was not pushed: its files in {model.path} are not those that were published "
                f"(digest {tree.digest}, not {model.content}). Train it again: --from its Trainer, with --no-cache."
            )
        files = _list_files(model)
        keys = [f"{(self.top / str(number)).key}/{name}" for name in files]
        try:
            with ThreadPoolExecutor(8, "push") as pool:  # network, not processors
                list(pool.map(self.bucket.upload, files.values(), keys))
        except StorageError:
            self.remove([number])
            raise

    def is_whole(self, number: int, model: Model) -> bool:
        """Whether a version still has objects of the sizes of the model's files."""
        top = (self.top / str(number)).key
        present = {info.key.removeprefix(f"{top}/"): info.size_bytes for info in self.bucket.list(top)}
        lost = [name for name, path in _list_files(model).items() if present.get(name) != path.stat().st_size]
        if lost:
            facts = {"version": number, "objects": len(lost), "reason": f"{lost[0]} is not that of {model.name}"}
            log.warning("version-damaged", extra=facts)
        return not lost

    def remove_abandoned(self, complete: Collection[int]) -> None:
        """Removes the numbers that pushes took a day ago and never committed, and the uploads they never completed."""
        depth = len(self.top.key) + 1 if self.top.key else 0
        written: dict[int, int] = {}
        for info in self.bucket.list(self.top.key):
            folder = info.key[depth:].partition("/")[0]
            if re.fullmatch("[0-9]+", folder):
                written[int(folder)] = max(written.get(int(folder), 0), info.modified_ns)
        old = (time.time() - _ABANDONED_AFTER_S) * 1e9
        self.remove(number for number, when in written.items() if number not in complete and when < old)
        try:
            for upload in self.bucket.list_uploads(self.top.key):
                if upload.begun_s * 1e9 < old:
                    self.bucket.abort_upload(upload)
        except StorageError as error:  # a role that may push need not be allowed to list them
            log.warning("uploads-not-removed", extra={"reason": str(error)})

    def remove(self, numbers: Iterable[int]) -> None:
        """Removes versions. What cannot be removed is left for a later push."""
        for number in numbers:
            if not number:
                continue
            try:
                self.bucket.delete([info.key for info in self.bucket.list((self.top / str(number)).key)])
            except StorageError as error:
                log.warning("version-not-removed", extra={"version": number, "reason": str(error)})

    def _write_record(self, number: int, mine: PushRecord) -> None:
        content = json.dumps(asdict(mine), indent=2).encode()
        self.bucket.write((self.top / str(number) / RECORD).key, content, replacing="")


def _list_files(model: Model) -> dict[str, Path]:
    """The files of a model by their names, apart from the record of a version that was imported."""
    files = (path for path in sorted(model.path.rglob("*")) if path.is_file())
    named = {path.relative_to(model.path).as_posix(): path for path in files}
    return {name: path for name, path in named.items() if name != RECORD}
