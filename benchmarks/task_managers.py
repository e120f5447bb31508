"""What a second task manager of Flink brings: an ingest by one and by two, each with a slot and a core.

It needs Flink as `make test-engines` gets it: `SPANWISE_TEST_BEAM_ENGINES=… python -m benchmarks.task_managers`.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figures import Figure, Timed, at_least, show
from benchmarks.ingest import flights_csv
from spanwise.components.ingest.ingestion import ingest
from spanwise.components.ingest.plan import IngestPlan
from spanwise.orchestrator.beam_settings import BeamSettings
from spanwise.orchestrator.fingerprint import of_tree
from tests.contract.beam_engines import start, start_workers

FILES, FILE_BYTES = 16, 256 << 20
WANTED = 1.7


def measured() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        data.mkdir()
        _write(data)
        small = data / "small.csv"
        small.write_bytes(flights_csv())
        large = [file for file in data.iterdir() if file != small]
        digests, work_s = set(), {}
        for managers in (1, 2):
            place = Path(folder) / str(managers)
            place.mkdir()
            cluster = start("flink-cluster", place, task_managers=managers, core_each=True)
            with cluster as engine, start_workers("PROCESS", place) as workers:
                beam = BeamSettings(runner="FlinkRunner", options={**_without_runner(engine), **workers})
                _ingest([small], place / "first", beam)  # starts the workers, which the engine keeps for a while
                fixed = _ingest([small], place / "small", beam)
                timed = _ingest(large, place / "large", beam)
            digests.add(of_tree(place / "large").digest)
            work_s[managers] = timed.wall_s - fixed.wall_s
            yield Figure(name=f"{FILES} CSVs of 256 MiB, task managers: {managers}", value=timed.wall_s, unit="s")
            yield Figure(name=f"one CSV of 2 MB, task managers: {managers}", value=fixed.wall_s, unit="s")
        assert len(digests) == 1, "other bytes with two task managers"
        name = "two task managers to one, without what a job takes by itself"
        yield at_least(name, work_s[1] / work_s[2], "x", WANTED)


def _without_runner(options: object) -> dict[str, object]:
    return {name: value for name, value in options.items() if name != "runner"}


def _ingest(files: list[Path], destination: Path, beam: BeamSettings) -> Timed:
    destination.mkdir()
    plan = IngestPlan(files={"all": tuple(sorted(map(str, files)))}, destination=str(destination), beam=beam)
    return Timed.of(lambda: ingest(plan))


def _write(folder: Path) -> None:
    header, newline, body = flights_csv().partition(b"\n")
    for number in range(FILES):
        with (folder / f"{number}.csv").open("wb") as file:
            file.write(header + newline)
            while file.tell() < FILE_BYTES:
                file.write(body)


if __name__ == "__main__":
    sys.exit(show(measured(), sys.argv[1:]))
