"""What is written is readable by whoever the umask of its user allows, and by nobody else."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.scenario.cli import PROJECT, lay_out


@pytest.mark.slow
@pytest.mark.parametrize("umask", [0o077, 0o027])
def test_no_file_or_folder_is_wider_than_the_umask_allows(tmp_path: Path, umask: int) -> None:
    """After a run, a replay of a failure, a verdict, and a backup: metadata, artifacts, logs and what is served."""
    project = lay_out(tmp_path / "project", spans=2)
    before = set(tmp_path.rglob("*"))

    for words in (
        ["run", "rides.py", "--span", "1"],
        ["run", "rides.py", "--span", "7"],
        ["pin", "rides/Trainer/model/1", "--because", "a test"],
        ["backup", str(tmp_path / "backup")],
    ):
        subprocess.run(
            [sys.executable, "-m", "spanwise", *words],
            cwd=project, env={**os.environ, "PYTHONPATH": str(PROJECT / "src")}, umask=umask, check=False,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=300,
        )  # fmt: skip

    made = [path for path in set(tmp_path.rglob("*")) - before if not path.is_symlink()]
    wide = [str(path) for path in made if stat.S_IMODE(path.stat().st_mode) & umask]
    assert {"metadata.db", "serving", "backup.json", "logs"} <= {path.name for path in made}
    assert wide == []
