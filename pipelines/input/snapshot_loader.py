"""Loading: the elements of a snapshot as a dataset, without the graph that produced them."""

from __future__ import annotations

import os
from collections.abc import Sequence

from spanwise.orchestrator.errors import SnapshotNotFound
from spanwise.pipelines.input.dataset import Dataset
from spanwise.pipelines.input.element import UNKNOWN, BatchSpec, Spec, Table
from spanwise.pipelines.input.snapshot.folder import FolderContent, SnapshotFolder
from spanwise.pipelines.input.snapshot.format import blocks_of, header_of
from spanwise.pipelines.input.snapshot.source import LoadedSnapshot
from spanwise.pipelines.input.snapshot.state import Metadata
from spanwise.pipelines.input.snapshot.storage import files_at, from_anywhere


def load(path: str | os.PathLike[str], *, fingerprint: str = "") -> Dataset:
    """The elements of the snapshot below `path`; of several, the one whose fingerprint begins with `fingerprint`.

    Raises:
        SnapshotNotFound: there is no complete one, or more than one; the message gives the error of a failed save.
    """
    where = from_anywhere(path)
    files = files_at(where)
    found = [SnapshotFolder(files, each).look() for each in files.folders("") if each.startswith(fingerprint)]
    whole = [each.final for each in found if each.final is not None]
    if len(whole) != 1:
        raise SnapshotNotFound(f"load({where!r}): {_why(found, whole)}")
    (run,) = whole
    return Dataset(
        LoadedSnapshot(path=where, run=run, chunks=run.chunks, of=_spec(SnapshotFolder(files, run.fingerprint), run))
    )


def _why(found: Sequence[FolderContent], whole: Sequence[Metadata]) -> str:
    if whole:
        names = ", ".join(each.fingerprint for each in whole)
        return f"there are several snapshots. Pass the first letters of a fingerprint: {names}."
    for each in found:
        if each.failed is not None and each.pending is None:
            return f"the save job failed to write it: {each.failed.error}"
    if any(each.pending is not None for each in found):
        return "it is not complete yet."
    return "there is no snapshot. Write one with Dataset.snapshot or save."


def _spec(folder: SnapshotFolder, run: Metadata) -> Spec:
    """What its elements are, as far as the first chunk shows."""
    first = next((chunk for chunk in run.chunks if chunk.elements), None)
    if first is None:
        return UNKNOWN
    content = folder.read_chunk(run.run_id, first)
    kind, (schema, _) = header_of(content).kind, blocks_of(content)
    return {"rows": Table(schema), "batches": BatchSpec(schema, None)}.get(kind, UNKNOWN)
