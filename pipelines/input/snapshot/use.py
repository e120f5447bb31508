"""How one pass used a snapshot: a record that its streams fill in, and that the report of a run shows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(kw_only=True)
class SnapshotUse:
    """One pass over one snapshot op; it grows while the pass goes on."""

    path: str
    fingerprint: str = ""  #: empty until the first element is asked for
    state: Literal["undecided", "read", "write", "passthrough"] = "undecided"
    reason: str = ""  #: why it is not read
    run_id: str = ""  #: that is read or written
    elements_read: int = 0  #: from the snapshot
    bytes_read: int = 0  #: of its files, as stored
    elements_written: int = 0
    bytes_written: int = 0
    elements_passed: int = 0  #: that came from the input
    committed: bool = False  #: what was written has become the snapshot
    damaged: list[str] = field(default_factory=list)  #: files that were not what was written
    failed: str = ""  #: why writing was abandoned

    @property
    def hit(self) -> bool:
        """Whether the elements came from the snapshot."""
        return self.state == "read"
