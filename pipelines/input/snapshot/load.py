"""Loading: the dataset of a snapshot's elements, where nobody has the graph any more that made them."""

from __future__ import annotations

import os
from collections.abc import Sequence

from spanwise.orchestrator.errors import SnapshotNotFound
from spanwise.pipelines.input.dataset import Dataset
from spanwise.pipelines.input.element import UNKNOWN, BatchSpec, Spec, Table
from spanwise.pipelines.input.snapshot.folder import Folder, Found
from spanwise.pipelines.input.snapshot.format import blocks_of, header_of
from spanwise.pipelines.input.snapshot.source import Loaded
from spanwise.pipelines.input.snapshot.state import Metadata
from spanwise.pipelines.input.snapshot.storage import files_at, from_anywhere


def load(path: str | os.PathLike[str], *, fingerprint: str = "") -> Dataset:
    """The elements of the snapshot below `path`; of the one whose fingerprint begins so, if there are several.

    Raises:
        SnapshotNotFound: there is none that is whole, or more than one; if a save has failed to write it, says why.
    """
    where = from_anywhere(path)
    files = files_at(where)
    found = [Folder(files, each).look() for each in files.folders("") if each.startswith(fingerprint)]
    whole = [each.final for each in found if each.final is not None]
    if len(whole) != 1:
        raise SnapshotNotFound(f"load({where!r}): {_why(found, whole)}")
    (run,) = whole
    return Dataset(Loaded(path=where, run=run, chunks=run.chunks, of=_spec(Folder(files, run.fingerprint), run)))


def _why(found: Sequence[Found], whole: Sequence[Metadata]) -> str:
    if whole:
        names = ", ".join(each.fingerprint for each in whole)
        return f"there are several snapshots. Give the first letters of a fingerprint: {names}."
    for each in found:
        if each.failed is not None and each.pending is None:
            return f"the save job failed to write it: {each.failed.error}"
    if any(each.pending is not None for each in found):
        return "it has not been written to its end yet."
    return "there is no snapshot. Dataset.snapshot and save write one."


def _spec(folder: Folder, run: Metadata) -> Spec:
    """What its elements are, as far as the first chunk tells."""
    first = next((chunk for chunk in run.chunks if chunk.elements), None)
    if first is None:
        return UNKNOWN
    content = folder.recorded(run.run_id, first)
    kind, (schema, _) = header_of(content).kind, blocks_of(content)
    return {"rows": Table(schema), "batches": BatchSpec(schema, None)}.get(kind, UNKNOWN)
