"""Database checks: what the database itself says about its file. They run in a process of their own.

SQLite's locks on a file belong to the process: Python's `sqlite3`, which is another copy of SQLite than ml-metadata's,
must never open the file in a process that has a store open.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from spanwise.orchestrator.errors import StoreCorrupt

_HEADER = b"SQLite format 3\0"

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
    """
    with file.open("rb") as opened:
        if opened.read(len(_HEADER)) != _HEADER:
            return ""  # opening it as a store says so
    done = _run(_CHECK, file, "integrity_check" if deep else "quick_check")
    lines = [line for line in (done.stdout + done.stderr).strip().splitlines() if line.strip()]
    if done.returncode:
        return lines[-1].removeprefix("sqlite3.DatabaseError: ") if lines else "the check was killed"
    return "" if lines == ["ok"] else "; ".join(lines)


def copy_database(file: Path, copy: Path) -> None:
    """Copies a database as it is at one moment, also while others write to it.

    Raises:
        StoreCorrupt: it cannot be read.
    """
    done = _run(_COPY, file, str(copy))
    if done.returncode:
        found = done.stderr.strip().splitlines()
        raise StoreCorrupt(f"The metadata {file} could not be copied: {found[-1] if found else 'the copy was killed'}.")


def _run(program: str, file: Path, argument: str) -> subprocess.CompletedProcess[str]:
    name = str(file).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    return subprocess.run(
        [sys.executable, "-I", "-c", program, name, argument],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
