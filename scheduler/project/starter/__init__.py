"""The starter: a working example project, created by `spanwise init`. Its templates are next to this module."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path

from spanwise.orchestrator.errors import UsageError

TEMPLATES = Path(__file__).parent
FILES = ("rides.py", "test_rides.py", "spanwise.toml")
FIRST_DAY = date(2024, 5, 1)
DAYS = 5

_HOURS = 24
_STATIONS = 3
_SATURDAY = 5


def write_project(folder: Path, root: str | None = None) -> Path:
    """Writes the project into a folder; `root` goes into its settings. What else lies there stays as it is.

    Raises:
        UsageError: the folder has a file or folder of the project already, or is a file.
    """
    texts = list(_texts(root))
    there = sorted({Path(name).parts[0] for name, _ in texts if (folder / Path(name).parts[0]).exists()})
    if there or (folder.exists() and not folder.is_dir()):
        what = f"{folder} has {', '.join(there)} already" if there else f"{folder} is a file"
        raise UsageError(f"{what}, so nothing was written. Use a new folder:  spanwise init rides")
    for name, text in texts:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return folder


def format_next_steps(folder: Path) -> str:
    """What was created, and the commands to try next."""
    last = FIRST_DAY + timedelta(days=DAYS - 1)
    return f"""\
Created {folder}: rides.py (the pipeline), data/ ({DAYS} days of rides), spanwise.toml, test_rides.py.
Try it:
  cd {folder}
  spanwise run rides.py --span {FIRST_DAY}
  spanwise run rides.py --span {FIRST_DAY + timedelta(days=1)}
  spanwise show rides
  spanwise window rides.py
  pytest                     (needs pytest; there is data until {last})"""


def _texts(root: str | None) -> Iterator[tuple[str, str]]:
    for name in FILES:
        text = (TEMPLATES / f"{name}.txt").read_text(encoding="utf-8")
        if name == "spanwise.toml" and root is not None:
            text = text.replace('# root = ".spanwise"', f"root = {json.dumps(root)}")
        yield name, text
    for day in (FIRST_DAY + timedelta(days=n) for n in range(DAYS)):
        yield f"data/{day}/v1/rides.csv", _rides(day)


def _rides(day: date) -> str:
    """Rides by hour and station, the same every time: more in the afternoon, in warm weather and on work days."""
    chance = random.Random(day.toordinal())  # noqa: S311  made-up data, not a secret
    weekend = int(day.weekday() >= _SATURDAY)
    warmth = 12 + chance.uniform(-3, 6)
    lines = ["station,hour,temperature,weekend,rides"]
    for station in range(_STATIONS):
        for hour in range(_HOURS):
            wave = math.sin((hour - 9) / _HOURS * 2 * math.pi)
            temperature = warmth + 5 * wave + chance.uniform(-1, 1)
            rides = 30 + 18 * wave + 1.5 * temperature - 8 * weekend + chance.gauss(0, 3)
            lines.append(f"{station},{hour},{temperature:.1f},{weekend},{max(0, round(rides))}")
    return "\n".join(lines) + "\n"
