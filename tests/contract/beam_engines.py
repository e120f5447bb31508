"""Engines of Beam for tests: real ones on this machine, each started alone.

SPANWISE_TEST_BEAM names the folder in which `tests/contract/beam_engines.sh` has put them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

Options: TypeAlias = Mapping[str, str | int]

ENGINES = ("prism",)


@contextlib.contextmanager
def start(engine: str) -> Iterator[Options]:
    """Starts an engine, where Beam does not; yields what `[beam]` in the settings has to say to use it."""
    assert engine == "prism", "Beam starts Prism for each job, and stops it"
    yield {"runner": "PrismRunner", "prism_location": str(Path(os.environ["SPANWISE_TEST_BEAM"], "prism"))}
