"""What a snapshot op does when its first element is asked for: write, pass through or read. Pure; touches no file.

The rule is that of the tf.data Snapshot RFC, Standard Kernel Workflow, with one addition: a snapshot that seems to have
been started in the future counts as expired, so that one wrong clock does not keep others from writing for ever.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, TypeAlias, get_args

from spanwise.orchestrator.errors import SnapshotDamaged

Mode: TypeAlias = Literal["auto", "read", "write", "passthrough"]
MODES: Final[tuple[str, ...]] = get_args(Mode)

FORMAT: Final = 1
"""Incremented by every change that makes older programs misread what newer ones write."""

CLOCK_SKEW_S: Final = 300

Origin: TypeAlias = dict[str, Any]
"""What determines a sequence of elements beside the graph: seed, epoch, and the shape of the graph as it was run."""


@dataclass(frozen=True, kw_only=True)
class ChunkRecord:
    """One finished chunk file, as metadata name it."""

    file: str  #: `00000000.snapshot`, below the run's folder
    split: int  #: which of the writer's splits it belongs to
    first: int  #: how many elements of the split are before it
    elements: int
    size_bytes: int
    checksum: str


@dataclass(frozen=True, kw_only=True)
class Metadata:
    """One attempt at writing a snapshot: `snapshot.metadata` while it runs, `metadata.final` when it is complete."""

    run_id: str
    fingerprint: str
    started: float  #: seconds since 1970, on the writer's clock
    complete: bool = False
    spec: str = ""  #: what an element is, for readers
    versions: Mapping[str, str] = field(default_factory=dict)  #: of what wrote it
    origin: Mapping[str, Any] | None = None  #: what determines the order; None if it differs each time
    writer: str = ""  #: the process that writes it, by `owner.this_writer`; empty if unknown
    files: str = ""  #: the digest of its source files, for those who write it together
    splits: int = 1
    chunks: tuple[ChunkRecord, ...] = ()  #: empty until it is complete
    format: int = FORMAT

    @property
    def elements(self) -> int:
        return sum(chunk.elements for chunk in self.chunks)

    @property
    def size_bytes(self) -> int:
        return sum(chunk.size_bytes for chunk in self.chunks)

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self), indent=1).encode()

    @classmethod
    def from_bytes(cls, content: bytes, where: str) -> Metadata:
        """Raises:
        SnapshotDamaged: it is not metadata, or was written by a newer program.
        """  # noqa: D205
        try:
            document: dict[str, Any] = json.loads(content)
            if document["format"] > FORMAT:
                raise SnapshotDamaged(f"{where} was written by a newer program (format {document['format']}).")
            chunks = tuple(ChunkRecord(**chunk) for chunk in document.pop("chunks"))
            return cls(chunks=chunks, **document)
        except (ValueError, TypeError, KeyError) as error:
            raise SnapshotDamaged(f"{where} is not metadata of a snapshot: {error!r}.") from error


@dataclass(frozen=True)
class SaveFailure:
    """What `metadata.error` says: a run that was to become the snapshot, and cannot."""

    run_id: str
    error: str

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self), indent=1).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> SaveFailure:
        """An unreadable file still says that there was an error."""
        try:
            return cls(**json.loads(content))
        except (ValueError, TypeError):
            return cls("", "the error could not be read")


@dataclass(frozen=True)
class Read:
    """There is a complete snapshot: read it."""

    metadata: Metadata


@dataclass(frozen=True)
class Write:
    """Take the elements from the input, and write them on the way."""

    reason: str
    replaces: Metadata | None = None  #: the attempt that has expired


@dataclass(frozen=True)
class PassThrough:
    """Take the elements from the input, and write nothing."""

    reason: str


@dataclass(frozen=True)
class Refuse:
    """A snapshot was required, and there is none."""

    reason: str


Decision: TypeAlias = "Read | Write | PassThrough | Refuse"


def decide(  # noqa: PLR0911  a rule per line, in the order of the RFC
    *,
    final: Metadata | None,
    pending: Metadata | None,
    now: float,
    expiry_s: float,
    mode: Mode = "auto",
    failed: SaveFailure | None = None,
    abandoned: bool = False,
) -> Decision:
    """What to do, given what the snapshot's folder holds.

    Args:
        final: the content of `metadata.final`, None if there is no such file.
        pending: the content of `snapshot.metadata`, likewise.
        now: seconds since 1970.
        expiry_s: how old an unfinished snapshot may be before it is written again.
        mode: `auto` is the RFC's rule; the others name the outcome.
        failed: the content of `metadata.error`, likewise.
        abandoned: whether the writer of the unfinished one is certainly dead; the RFC, which cannot know, waits.
    """
    if mode == "passthrough":
        return PassThrough("mode='passthrough'")
    if mode == "write":
        return Write("mode='write'")
    whole = final or (pending if pending is not None and pending.complete else None)
    if whole is not None:
        return Read(whole)
    if mode == "read" and failed is not None and pending is None:
        return Refuse(f"the save job failed to write it: {failed.error}")
    if mode == "read":
        return Refuse("there is none" if pending is None else "it is not complete")
    if pending is None:
        return Write("there is none")
    if abandoned:
        return Write(f"the writer of run {pending.run_id} has died", replaces=pending)
    age_s = now - pending.started
    if age_s > expiry_s:
        return Write(f"the unfinished one is {age_s:.0f} s old, more than {expiry_s:g} s", replaces=pending)
    if age_s < -CLOCK_SKEW_S:
        return Write(f"the unfinished one was started {-age_s:.0f} s from now", replaces=pending)
    return PassThrough(f"run {pending.run_id} has been writing it for {max(age_s, 0):.0f} s")
