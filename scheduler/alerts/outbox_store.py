"""Outbox stores: where letters and causes are kept, and what is the same wherever that is."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol, TypeVar

from spanwise.scheduler.alerts.alert import Alert
from spanwise.scheduler.alerts.letter import Letter, LetterPlan, OpenCause

T = TypeVar("T")

FOLDER = "alerts"
SENT_LETTERS = 1000
"""The maximum number of letters kept in `sent`."""

_STAMP = "%Y%m%dT%H%M%S%f"


@dataclass(frozen=True, kw_only=True)
class CauseState:
    """What is known of a cause."""

    open: OpenCause | None = None  #: None: it was not alerted, or has recovered
    recovered: datetime | None = None  #: when its recovery was sent last


class OutboxStore(Protocol):
    """Letters and causes of one root. Every method raises OSError or StorageError when the place cannot be used."""

    def add(self, alert: Alert) -> None:
        """Stores a new letter, after all others of its cause, whatever the clocks say."""

    def was_alerted(self, cause: str) -> bool:
        """Whether an alert of this cause was sent, or is about to be, and no recovery has come after it."""

    def standing(self) -> set[str]:
        """The digests of all causes of which that may be so."""

    def alone(self) -> AbstractContextManager[bool]:
        """Whether nobody else delivers from here, until the end of the context."""

    def letters(self) -> list[Letter]:
        """Those that are to be sent, oldest first."""

    def cause(self, cause: str) -> CauseState:
        """What is known of a cause. Only for whoever is alone, like all that follows."""

    def record(self, plans: Mapping[str, tuple[Sequence[Letter], LetterPlan]]) -> None:
        """Records what was planned, by cause, for which letters."""

    def write(self, letter: Letter) -> bool:
        """Replaces a letter; False where that failed, and the delivery goes on."""

    def finish(self, letter: Letter) -> None:
        """Puts a letter among those that were sent."""

    def tidy(self) -> None:
        """Keeps only the newest of the letters that were sent."""


def name_letter(alert: Alert, others: Iterable[str]) -> str:
    """A unique name, which sorts after the names of the other letters of its cause: clocks of hosts differ."""
    mark = digest_cause(alert.cause)
    last = max((name.partition("-")[0] for name in others if read_mark(name) == mark), default="")
    stamp = f"{alert.at.astimezone(UTC):{_STAMP}}"
    if stamp <= last:
        stamp = f"{datetime.strptime(last, _STAMP).replace(tzinfo=UTC) + timedelta(microseconds=1):{_STAMP}}"
    return f"{stamp}-{mark}-{uuid.uuid4().hex[:8]}"


def read_mark(name: str) -> str:
    """The digest of the cause of which the letter of this name is."""
    return name.partition("-")[2].partition("-")[0]


def digest_cause(cause: str) -> str:
    """The name of a cause in files and keys."""
    return hashlib.blake2b(cause.encode(), digest_size=8).hexdigest()


def is_recovery(content: bytes) -> bool:
    """Whether a letter is one that announces a recovery; a damaged one is not."""
    try:
        return bool(json.loads(content)["alert"]["kind"] == "recovery")
    except (ValueError, TypeError, KeyError):
        return False


def write_letter(letter: Letter) -> bytes:
    """A letter as JSON, without its id, which is the name of its file."""
    return to_json({name: value for name, value in asdict(letter).items() if name != "id"})


def read_letter(name: str, content: bytes) -> Letter:
    """The letter of this name.

    Raises:
        ValueError, TypeError: it is damaged.
    """
    return validate(Letter, {**json.loads(content), "id": name})


def to_json(document: Mapping[str, object]) -> bytes:
    """A document with moments in it."""
    return json.dumps(document, default=_text).encode()


def validate(kind: type[T], known: Mapping[str, Any]) -> T:
    """A record from what was read; what it does not know is left out."""
    from pydantic import TypeAdapter

    return TypeAdapter(kind).validate_python(known)


def _text(value: object) -> str:
    assert isinstance(value, datetime)
    return value.isoformat()
