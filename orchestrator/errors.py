"""Errors: every error that a user can meet. The class says whose fault it is, and so decides the exit code.

SpanwiseError
├── UsageError                  the command, the pipeline file or a setting is wrong      exit 2
│   ├── PatternError            a span pattern that cannot be read
│   ├── PipelineError           nodes wired wrongly: unknown input, cycle, two of one name
│   ├── ParameterError          a parameter that is unknown, missing or of another type
│   ├── Unfingerprintable       a value, function or folder whose content a cache key cannot cover
│   ├── DatasetError            a dataset composed wrongly: an argument, a column, elements that do not fit
│   │   └── NotPortable         a function, an element or a result that cannot be sent to another process
│   ├── ScheduleError           a cron expression, time zone or other part of a schedule that is invalid
│   ├── LoadError               a pipeline file that could not be imported or defines no pipeline
│   └── SettingsError           spanwise.toml or a SPANWISE_* variable
├── RunError                    the run started and could not finish           exit 1
│   ├── InputError              the data itself
│   │   ├── SpanNotFound        no such span; the message says which there are
│   │   ├── AmbiguousSpan       the splits disagree on the newest span or version
│   │   ├── UnreadableInput     empty, corrupt, truncated, in another encoding, a row that does not parse
│   │   ├── ColumnsChanged      a column disappeared or changed type since the previous span
│   │   ├── DamagedArtifact     files of an artifact that are not those that were published
│   │   └── Refused             a gate refused a span
│   ├── ResolutionError         a resolver found less than it needs
│   │   └── WindowIncomplete    spans missing from a rolling window
│   ├── FunctionFailed          a function of a dataset raised; the message says at which element
│   │   └── BlockFailed         it was given a block of rows, of which `ignore_errors` leaves out none
│   ├── SourceFailed            a function that makes elements, or its iterator, raised: none follows
│   ├── StateMismatch           a saved state of a dataset that belongs to another graph
│   ├── WorkerLost              a process that worked for a dataset was killed
│   ├── ServiceError            the data service: not reachable, not allowed, not known to it, or damaged
│   ├── SnapshotNotFound        a required snapshot does not exist
│   ├── SnapshotDamaged         a file of a snapshot that differs from what was written
│   ├── NodeFailed              an executor raised, exited or was killed
│   ├── StorageError            object storage: not reachable, not allowed, no such bucket
│   │   └── Conflict            an object that somebody else has written meanwhile
│   ├── MissingProperty         an output was published without a property its kind requires
│   └── Fenced                  another run has taken the lease; this one may publish nothing more
├── Held                        another run holds the pipeline                             exit 3
└── StoreError                  the metadata database                                      exit 1
    ├── StoreUnavailable        locked, unreachable, read-only, disk full
    ├── StoreCorrupt            not a database, or a damaged one
    ├── StoreTooNew             written by a newer program
    └── NotRecorded             a run, node or artifact that the metadata does not know
"""

from __future__ import annotations

from typing import ClassVar

from spanwise.orchestrator.redaction import redact_urls


class SpanwiseError(Exception):
    """Something a user can act on; its message is complete and is printed without a traceback.

    Messages are recorded and sent to alert channels, so none has the secrets that a URL in it has.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, *arguments: object) -> None:
        super().__init__(*(redact_urls(each) if isinstance(each, str) else each for each in arguments))


class UsageError(SpanwiseError):
    """The command, the pipeline file or a setting is wrong; nothing was started."""

    exit_code = 2


class PatternError(UsageError):
    """A span pattern that cannot be read; the message quotes it and says what is wrong."""


class PipelineError(UsageError):
    """Nodes that do not fit together, found when the pipeline is built."""


class ParameterError(UsageError):
    """A parameter that is unknown, missing or of another type than its annotation."""


class Unfingerprintable(UsageError):
    """A value, function or folder whose content a cache key cannot cover; the message says which part of it."""


class DatasetError(UsageError):
    """A dataset composed wrongly: an argument that is out of range, an unknown column, elements that do not fit."""


class NotPortable(DatasetError):
    """A function, an element or a result that exists only in one process; the message says which, and what to do."""


class ScheduleError(UsageError):
    """An invalid schedule, found when it is created; the message shows a valid one."""


class LoadError(UsageError):
    """A pipeline file that could not be imported, or that defines no pipeline or more than one."""


class SettingsError(UsageError):
    """A setting in `spanwise.toml` or a `SPANWISE_*` variable that does not validate."""


class RunError(SpanwiseError):
    """A run that could not finish."""


class InputError(RunError):
    """The input data is missing or wrong."""


class SpanNotFound(InputError):
    """The span has no input, or no span has; the message says which spans there are."""


class AmbiguousSpan(InputError):
    """The splits of one input disagree on the newest span or on its newest version, or have a file in common."""


class UnreadableInput(InputError):
    """A file that is empty, corrupt, truncated or in another encoding, or a row that cannot be parsed."""


class ColumnsChanged(InputError):
    """A column disappeared or changed its type since the previous span."""


class DamagedArtifact(InputError):
    """The files of an artifact are not those that were published; the message names them and how to get them back."""


class Refused(InputError):
    """A gate refused a span: raised in `run` of a Gate; the message is the reason, which is recorded as a verdict."""


class ResolutionError(RunError):
    """A resolver found less than its node needs."""


class WindowIncomplete(ResolutionError):
    """Spans are missing from a rolling window; the message names them and the command that fills the gap."""


class FunctionFailed(RunError):
    """A function of a dataset raised; its error is the cause, the message says at which element."""


class BlockFailed(FunctionFailed):
    """It was given a block of rows, whose size is arbitrary: to leave it out would lose rows that are sound."""


class SourceFailed(RunError):
    """A function that makes elements, or its iterator, raised; its error is the cause. No element follows."""


class StateMismatch(RunError):
    """A saved state of a dataset that belongs to another graph, or to other data."""


class WorkerLost(RunError):
    """A process that worked for a dataset was killed or ended by itself; the message says which and where."""


class ServiceError(RunError):
    """The data service failed: it is unreachable, refuses the request, or does not know the name in it."""


class SnapshotNotFound(RunError):
    """A required snapshot does not exist or is incomplete."""


class SnapshotDamaged(RunError):
    """A file of a snapshot is missing, truncated or altered; the message names it."""


class NodeFailed(RunError):
    """An executor raised, exited with another status than 0, or was killed."""


class StorageError(RunError):
    """Object storage could not be reached or refused; the message names the place and what to check."""


class Conflict(StorageError):
    """An object is not the one that was listed or is to be replaced: somebody else has written it meanwhile."""


class MissingProperty(RunError):
    """An output was about to be published without a property that its kind requires."""


class Fenced(RunError):
    """Another run has taken this pipeline's lease, so this one may publish and push nothing more."""


class Held(SpanwiseError):
    """Another run holds the pipeline; the message says which, and which command to type next."""

    exit_code = 3


class StoreError(SpanwiseError):
    """The metadata database failed."""


class StoreUnavailable(StoreError):
    """The database is locked, unreachable, read-only, or its disk is full."""


class StoreCorrupt(StoreError):
    """The file is not a database, or is damaged."""


class StoreTooNew(StoreError):
    """The database was written by a newer program."""


class NotRecorded(StoreError):
    """A run, node or artifact that the metadata does not know."""

    exit_code = 2
