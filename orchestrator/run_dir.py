"""Run directories: where the logs, scratch and checkpoints of a run lie."""

from __future__ import annotations

import shutil
from pathlib import Path

from spanwise.orchestrator.run import Run


def run_dir(root: Path, run: Run) -> Path:
    """The folder of a run."""
    return root / run.pipeline / ".runs" / str(run.number)


def remove_working_files(root: Path, run: Run) -> None:
    """Removes what only an active run needs: scratch and checkpoints. The logs stay."""
    for kind in ("scratch", "checkpoints"):
        for folder in run_dir(root, run).glob(f"*.{kind}"):
            shutil.rmtree(folder, ignore_errors=True)
