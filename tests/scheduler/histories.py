"""Histories: what has passed in a folder before a test begins. A test session lives each once, and tests copy it."""

import fcntl
import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

from tests import warm

Act = Callable[[Path, str], None]


def live(folder: Path, steps: tuple[str, ...], act: Act) -> None:
    """Adds to this folder, in which nothing has happened, what these steps leave there: they were taken elsewhere."""
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    shutil.copytree(_passed(files, steps, act), folder, symlinks=True, dirs_exist_ok=True)


def _passed(files: dict[str, bytes], steps: tuple[str, ...], act: Act) -> Path:
    """The folder in which these steps were taken; whoever comes first goes one step further than another history."""
    name = hashlib.sha256(repr((sorted(files.items()), steps)).encode()).hexdigest()[:16]
    place = Path(warm.session() / "histories" / name)
    place.parent.mkdir(exist_ok=True)
    with place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            draft = place.with_suffix(".draft")
            shutil.rmtree(draft, ignore_errors=True)  # a test that was interrupted
            if steps:
                shutil.copytree(_passed(files, steps[:-1], act), draft, symlinks=True)
                act(draft, steps[-1])
            else:
                draft.mkdir()
                for file, content in files.items():
                    (draft / file).parent.mkdir(parents=True, exist_ok=True)
                    (draft / file).write_bytes(content)
            draft.rename(place)
    return place
