"""What one pass had of a snapshot: a record that its streams fill in, and that a run's report shows."""

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
    run_id: str = ""  #: that is read, or written
    elements_read: int = 0  #: from the snapshot
    bytes_read: int = 0  #: of its files, as they lie there
    elements_written: int = 0
    bytes_written: int = 0
    elements_passed: int = 0  #: that came from the input
    committed: bool = False  #: what was written is the snapshot now
    damaged: list[str] = field(default_factory=list)  #: files that were not what had been written
    failed: str = ""  #: why writing was given up

    @property
    def hit(self) -> bool:
        """Whether the elements came from the snapshot."""
        return self.state == "read"
