"""Run directories: where the logs, scratch and checkpoints of a run lie."""

from __future__ import annotations

import itertools
import logging
import shutil
from pathlib import Path

from spanwise.orchestrator.artifact import ArtifactArchive
from spanwise.orchestrator.errors import StorageError
from spanwise.orchestrator.run import Run, State

log = logging.getLogger("spanwise.run")

NOTE = ".spanwise-store"
"""The file in a root with the identity of its metadata store; it moves with the root."""


def run_dir(root: Path, run: Run) -> Path:
    """The folder of a run."""
    return root / run.pipeline / ".runs" / str(run.number)


def set_aside(folder: Path) -> Path | None:
    """Renames a folder that another history has written, so that nothing is added to it; returns its new place.

    After the restore of an older database, numbers of runs and executions are given again, and the folders of the first
    run that had a number are still there. They stay, as `<number>~1`, `<number>~2` and so on.
    """
    if not folder.exists():
        return None
    for count in itertools.count(1):
        aside = folder.with_name(f"{folder.name}~{count}")
        if not aside.exists():
            folder.rename(aside)
            reason = f"{folder} was written by a run that the metadata do not know any more; it is now {aside.name}"
            log.warning("folder-set-aside: %s", reason)  # seen also where no log is set up
            return aside
    raise AssertionError("numbers do not end")


def remove_working_files(root: Path, run: Run, archive: ArtifactArchive | None) -> None:
    """Removes what only an active run needs: scratch and checkpoints. The logs stay."""
    for kind in ("scratch", "checkpoints"):
        for folder in run_dir(root, run).glob(f"*.{kind}"):
            shutil.rmtree(folder, ignore_errors=True)
    if archive is not None and run.state is not State.COMPLETE:  # a node that succeeds removes its own
        try:
            archive.remove_checkpoints(run_dir(root, run))
        except StorageError as error:
            log.warning(
                "checkpoints-not-removed", extra={"run": run.name, "reason": f"{error} `spanwise gc` finds them"}
            )
