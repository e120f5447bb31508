"""Database checks: what the database itself says about its file. They run in a process of their own.

SQLite's locks on a file belong to the process: Python's `sqlite3`, which is another copy of SQLite than ml-metadata's,
must never open the file in a process that has a store open.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from spanwise.orchestrator.errors import StoreCorrupt, StoreUnavailable
from spanwise.scheduler.project.root import copy_database_files

_HEADER = b"SQLite format 3\0"

_OPERATIONAL = "sqlite3.OperationalError: "

_CHECK = """
import sqlite3, sys
database = sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True, timeout=30)
for (line,) in database.execute(f"PRAGMA {sys.argv[2]}(5)"):
    print(line)
"""

_COPY = """
import sqlite3, sys
source = sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True, timeout=30)
copy = sqlite3.connect(sys.argv[2])
source.backup(copy)
copy.close()
"""


def find_database_damage(file: Path, *, deep: bool = False) -> str:
    """What SQLite finds wrong with a database; empty if nothing, also for a file that is no database at all.

    `deep` also compares the indexes with the tables.

    Raises:
        StoreUnavailable: it cannot be checked, as on a full disk, which says nothing of what is in it.
    """
    with file.open("rb") as opened:
        if opened.read(len(_HEADER)) != _HEADER:
            return ""  # opening it as a store says so
    with _readable(file) as place:
        done = _run(_CHECK, place, "integrity_check" if deep else "quick_check")
    _refuse_unavailable(file, done.stderr)
    lines = [line for line in (done.stdout + done.stderr).strip().splitlines() if line.strip()]
    if done.returncode:
        return lines[-1].removeprefix("sqlite3.DatabaseError: ") if lines else "the check was killed"
    return "" if lines == ["ok"] else "; ".join(lines)


def copy_database(file: Path, copy: Path) -> None:
    """Copies a database as it is at one moment, also while others write to it; who may read it is copied too.

    Raises:
        StoreCorrupt: it is damaged.
        StoreUnavailable: it cannot be read now, or the disk of the copy is full.
    """
    copy.touch(mode=0o600)
    with _readable(file) as place:
        done = _run(_COPY, place, str(copy))
    _refuse_unavailable(file, done.stderr)
    if done.returncode:
        found = done.stderr.strip().splitlines()
        raise StoreCorrupt(f"The metadata {file} could not be copied: {found[-1] if found else 'the copy was killed'}.")
    shutil.copymode(file, copy)


@contextlib.contextmanager
def _readable(file: Path) -> Iterator[Path]:
    """The file, or a copy of it where its folder is read-only: SQLite writes beside a file even to read it."""
    if os.access(file.parent, os.W_OK):
        yield file
        return
    with tempfile.TemporaryDirectory(prefix="spanwise-") as folder:
        yield copy_database_files(file, Path(folder))


def _refuse_unavailable(file: Path, said: str) -> None:
    """Raises StoreUnavailable for what SQLite calls operational: no room, no access, a lock that others hold."""
    found = next((line for line in said.splitlines() if line.startswith(_OPERATIONAL)), "")
    if found:
        place, folder = shlex.quote(str(file)), shlex.quote(str(file.parent))
        raise StoreUnavailable(
            f"The metadata {file} could not be read: {found.removeprefix(_OPERATIONAL)}. "
            f"Check its file, its folder and their disk: ls -ld {place} {folder}; df -h {folder}"
        )


def _run(program: str, file: Path, argument: str) -> subprocess.CompletedProcess[str]:
    name = str(file).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    return subprocess.run(
        [sys.executable, "-I", "-c", program, name, argument],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
