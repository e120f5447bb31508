"""Messages between a controller and its agents. Each is pickled, sent whole, and arrives once and in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from spanwise.orchestrator.agents.code_bundle import CodeBundle, Environment
from spanwise.orchestrator.job import JobEnded, NodeJob
from spanwise.orchestrator.process import Identity


@dataclass(frozen=True, kw_only=True)
class Prepare:
    """The first message to an agent: what it needs before any job."""

    code: CodeBundle
    folder: str  #: of the run, which relative paths are of; empty where unknown
    mark: int  #: of the controller's processes, here and there
    root: str  #: the controller's; empty if jobs read and write nothing below one
    token: str  #: what the file `token_file` holds, if the agent sees the same root
    token_file: str
    archived: bool  #: whether artifacts are in an archive too
    silence_s: float  #: an agent that hears nothing for so long ends itself


@dataclass(frozen=True)
class StartJob:
    """The agent asks about its fence before it starts: this may come from a controller that woke too late."""

    job: NodeJob


@dataclass(frozen=True, kw_only=True)
class StopJob:
    job: int
    why: str
    timed_out: bool
    grace_s: float


@dataclass(frozen=True)
class Answer:
    """To a question: about the fence, or of a replica."""

    job: int
    reply: object


@dataclass(frozen=True)
class Ping:
    """The controller is there."""


@dataclass(frozen=True)
class Close:
    """The agent ends all that it has started, and answers `Closed`."""


Command: TypeAlias = StartJob | StopJob | Answer | Ping | Close


@dataclass(frozen=True)
class Hello:
    """The first message of an agent."""

    environment: Environment
    host: str
    place: str  #: where it runs, as its engine names it
    pid: int


@dataclass(frozen=True)
class Ready:
    """The code is loaded."""

    mark: int  #: of all that the agent starts
    who: Identity  #: the agent


@dataclass(frozen=True)
class Unfit:
    """The agent cannot do the work; the text says why."""

    why: str


@dataclass(frozen=True)
class Printed:
    """What a job has written to its log."""

    job: int
    text: bytes


@dataclass(frozen=True)
class Asked:
    """A job asks about the fence."""

    job: int


@dataclass(frozen=True)
class Said:
    """What a replica says to all of its gang; it waits for what they say."""

    job: int
    value: object


@dataclass(frozen=True)
class Ended:
    """A job has ended, and nothing of it is left."""

    ended: JobEnded


@dataclass(frozen=True)
class Closed:
    """All has ended; these processes would not die."""

    survivors: tuple[str, ...]


Report: TypeAlias = Hello | Ready | Unfit | Printed | Asked | Said | Ended | Closed
