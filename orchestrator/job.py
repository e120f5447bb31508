"""Jobs: what a child process needs to do the work of one execution, and what it reports back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from spanwise.orchestrator.artifact import Artifact, ArtifactArchive
from spanwise.orchestrator.placement import Placement
from spanwise.orchestrator.replica import ALONE, ONE, Gang, Replica
from spanwise.orchestrator.run import Run
from spanwise.orchestrator.signature import ModelOrigin
from spanwise.orchestrator.verdict import Verdict

GRACE_S = 10.0
"""Between asking a node to end and killing it."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a job may use of the machine on which it runs."""

    threads: int | None = None  #: of each library; None: as many as it likes
    memory_bytes: int | None = None  #: of all its processes together
    gpus: tuple[str, ...] | None = None  #: those it sees; None: all


FailureCause: TypeAlias = Literal["", "aborted", "died", "memory", "preempted"]
"""What a job failed from, where a program should know.

"died": its process ended, or its agent, and it had not said why. "aborted": it has ended itself so, by SIGABRT, as
frameworks do where another process of theirs has failed. "preempted": its machine was taken away.
"""


@dataclass(frozen=True, kw_only=True)
class NodeJob:
    """One execution, as its child process needs it."""

    id: int  #: of the execution
    node: str
    inputs: Mapping[str, tuple[Artifact, ...]]
    verify: tuple[Artifact, ...]  #: the inputs whose files are compared with what was published before the work
    prepared: Mapping[str, object]
    outputs: Mapping[str, str]  #: an empty folder for each, by name
    run: Run
    attempt: int
    log: str  #: file that receives everything the child prints
    scratch: str
    checkpoints: str
    snapshots: str
    judges: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  #: the gates that have judged what is verified
    spans: Mapping[str, str] = field(default_factory=dict)
    """The options that name the spans of what is verified, by its name, where several nodes ingest for it."""
    limits: Limits = field(default_factory=Limits)
    archive: ArtifactArchive | None = None  #: where the files of outputs are kept besides
    origins: Mapping[str, ModelOrigin] = field(default_factory=dict)  #: of each model that is read, by its name
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)  #: of people, on models that are read, by their names
    gang: Gang = ALONE  #: the processes that do the work together
    replica: Replica = ONE  #: which of them this job is
    placed: bool = False  #: an engine has chosen its machine, so that the others of its gang may be on other machines


@dataclass(frozen=True, kw_only=True)
class JobFailure:
    """Why a job failed."""

    message: str  #: for people, without a traceback
    trace: str = ""  #: the user's lines
    timed_out: bool = False
    refused: bool = False  #: a gate refused what it was given
    cause: FailureCause = ""


@dataclass(frozen=True, kw_only=True)
class JobEnded:
    """The end of a job: its child and everything below it are gone."""

    id: int
    outputs: Mapping[str, tuple[Artifact, ...]] | None = None  #: drafts, when it succeeded
    failure: JobFailure | None = None


@dataclass(frozen=True)
class JobPlaced:
    """An engine has placed a job on a machine, where it starts now."""

    id: int
    placement: Placement


@dataclass(frozen=True)
class FenceQuery:
    """A child asks whether the lease still holds; answer with `Executor.answer`."""

    id: int


@dataclass(frozen=True)
class GatherQuery:
    """A replica says something to all replicas of its gang, and waits for what they say: answer with all of it."""

    id: int
    value: object
