"""The arguments of a snapshot op, checked; and the datasets that its functions make of its splits."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, TypeAlias, get_args

from spanwise.orchestrator.errors import DatasetError
from spanwise.orchestrator.fingerprint import Bindings
from spanwise.pipelines.input.element import DatasetSpec, ElementSpec, Unknown
from spanwise.pipelines.input.flow import Flow
from spanwise.pipelines.input.graph.fingerprint import FilesBy, refuse_changed, refuse_rebound
from spanwise.pipelines.input.op import Op, Options
from spanwise.pipelines.input.snapshot.parts import SnapshotSplit, SplitDatasets
from spanwise.pipelines.input.snapshot.splits import SplitFeed
from spanwise.pipelines.input.snapshot.state import MODES, Mode

Compression: TypeAlias = Literal["auto", "none", "lz4", "zstd", "gzip", "snappy"]
COMPRESSIONS: Final = get_args(Compression)

CompressionName: TypeAlias = Compression | Literal["AUTO", "GZIP", "SNAPPY"]
"""Also as the RFC has them, in capitals."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SnapshotSettings:
    """How a snapshot is written and read."""

    input: Op
    path: str
    fingerprint: str  #: of what the graph before it gives, as the user wrote it; empty for `mode="passthrough"`
    graph: str = ""  #: its fingerprint without the options of the dataset
    options: Options | None = None  #: those in its fingerprint, a seed and an order: its input runs with them
    stamps: tuple[tuple[str, str], ...] = field(default=(), repr=False)  #: of its source files, when it was taken
    bindings: Bindings = field(default_factory=Bindings, repr=False)  #: of the functions before it, at the same time
    files_by: FilesBy = "mtime"
    compression: Compression = "auto"
    mode: Mode = "auto"
    expiry_s: float = 86_400
    reader_fn: Callable[[Any], Any] | None = None
    writer_fn: Callable[[Any], Any] | None = None
    clock: Callable[[], float] = field(default=time.time, repr=False)

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise DatasetError(f"snapshot(mode={self.mode!r}): wants one of {', '.join(MODES)}.")
        if self.compression not in COMPRESSIONS:
            raise DatasetError(f"snapshot(compression={self.compression!r}): wants one of {', '.join(COMPRESSIONS)}.")
        if not self.expiry_s >= 1:
            raise DatasetError(f"snapshot(pending_snapshot_expiry_seconds={self.expiry_s!r}): wants at least 1 second.")
        if self.input.cardinality == math.inf and self.mode != "passthrough":
            raise DatasetError(
                "snapshot: its input is infinite, so it would never be complete. Put repeat() behind snapshot()."
            )

    def refuse_changed_files(self) -> None:
        """Raises:
        UnreadableInput: a source file is no longer that of the fingerprint.
        """  # noqa: D205
        refuse_changed(self.input, self.graph, self.stamps, files_by=self.files_by)

    def refuse_rebound(self) -> None:
        """Raises:
        DatasetError: a function uses a name that has been set anew since the fingerprint was taken.
        """  # noqa: D205
        refuse_rebound(self.bindings)

    def __getstate__(self) -> dict[str, Any]:
        """Where it is sent to, the functions mean what they mean now."""
        self.refuse_rebound()
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def split(self, feed: SplitFeed, dataset: Callable[[Op], Any]) -> list[Flow]:
        """The datasets that `writer_fn` returns for the input.

        Raises:
            DatasetError: it returns something else.
        """
        assert self.writer_fn is not None
        result = self.writer_fn(dataset(feed.op))
        if isinstance(getattr(result, "spec", None), DatasetSpec):
            result = list(result)
        splits = list(result) if isinstance(result, list | tuple) else []
        if not splits or not all(isinstance(each, Flow) for each in splits):
            raise DatasetError(
                f"snapshot(writer_fn=): must return a list of datasets, or a dataset of them, not {result!r:.80}. "
                f"For example: lambda ds: [ds.shard(2, 0), ds.shard(2, 1)]"
            )
        for each in splits:
            _check_same_elements("writer_fn", each.spec, self.input.spec)
        return splits

    def join(self, splits: SplitDatasets, dataset: Callable[[Op], Any]) -> Flow:
        """The dataset that `reader_fn` returns for the splits.

        Raises:
            DatasetError: it returns something else.
        """
        assert self.reader_fn is not None
        result = self.reader_fn(dataset(splits))
        if not isinstance(result, Flow):
            raise DatasetError(f"snapshot(reader_fn=): must return a dataset, not {result!r:.80}.")
        _check_same_elements("reader_fn", result.spec, self.input.spec)
        return result

    def rehearse(self, dataset: Callable[[Op], Any]) -> None:
        """Calls the user's functions when the graph is built, so that a mistake does not show at the end of a pass."""
        if self.writer_fn is not None:
            self.split(SplitFeed(self.input.spec, self.input.cardinality), dataset)
        if self.reader_fn is not None:
            split = SnapshotSplit(of=self.input.spec, folder=None, run=None, number=0, use=None)
            self.join(SplitDatasets(parts=(split,)), dataset)


def _check_same_elements(argument: str, found: ElementSpec, wanted: ElementSpec) -> None:
    if type(found) is not type(wanted) and not isinstance(found, Unknown) and not isinstance(wanted, Unknown):
        raise DatasetError(
            f"snapshot({argument}=): must return the elements of its input ({wanted}), not others ({found})."
        )
