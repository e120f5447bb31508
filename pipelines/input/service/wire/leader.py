"""The leader record: which dispatcher has the journal at a URL, where it listens, and from where the journal is read.

It is one small object, `dispatcher.json`, and is replaced only by who has read what it replaces. Whoever knows the URL
finds the dispatcher by it.
"""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from spanwise.orchestrator import process
from spanwise.orchestrator.errors import ServiceError
from spanwise.orchestrator.storage import ObjectUrl, open_bucket

RECORD: Final = "dispatcher.json"
FORMAT: Final = 1


class LeaderRecord(BaseModel):
    """Who leads. Times are nobody's business here: each who watches measures them by its own clock."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    format: int = FORMAT
    token: int  #: counts the dispatchers that have had the journal; the highest one has it
    id: str  #: of this life of a dispatcher
    machine: str
    pid: int
    started: int
    address: str = ""  #: by which it is reached; empty until it listens
    beat: int = 0  #: counts up while it lives
    ttl_s: float  #: another dispatcher may take over when `beat` has not changed for so long
    released: bool = False  #: it has ended, and waits for nobody
    snapshot: str = ""  #: the object with the records before those of the segments below
    from_token: int = 1  #: whose segments are read first
    from_segment: int = 0  #: which of them is read first

    @property
    def who(self) -> process.Identity:
        return process.Identity(self.machine, self.pid, self.started)

    def __str__(self) -> str:
        where = f"{self.address}, " if self.address else ""
        return f"the dispatcher {self.token} ({where}pid {self.pid} on {self.who.host})"


def read_leader(journal: ObjectUrl) -> tuple[LeaderRecord, str] | None:
    """The record at a journal's URL and its etag; None if there is none.

    Raises:
        ServiceError: it is damaged, or another version of spanwise has written it.
        StorageError: the storage cannot be reached, or refuses.
    """
    place = journal / RECORD
    found = open_bucket(place.home).read(place.key)
    if found is None:
        return None
    try:
        record = LeaderRecord.model_validate_json(found[0])
    except ValidationError as error:
        raise ServiceError(
            f"{place} is damaged: {error.errors()[0]['msg']}. Restore it, or use the URL of an empty folder."
        ) from error
    if record.format != FORMAT:
        raise ServiceError(
            f"{place} has format {record.format}, and this version of spanwise knows format {FORMAT}. Use the version "
            f"that wrote it, or the URL of an empty folder."
        )
    return record, found[1]
