"""A root in object storage against a folder, and artifacts up and down against bare requests and s3fs.

Needs a server: `tests/contract/buckets.sh FOLDER python -m benchmarks.storage` starts one. `--s3fs PYTHON` names an
interpreter that has s3fs.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

from benchmarks.figures import Figure, at_least, at_most, show
from spanwise.orchestrator.storage import BucketArchive, list_objects, open_bucket, parse_url
from spanwise.pipelines import flights_demo, nycflights

FILES, FILE_BYTES = 8, 8 << 20
DAYS = 4
SPANS = 10_000
_MB = 1e6

_S3FS = """
import os, sys, time, s3fs
folder, place, back = sys.argv[1:]
fs = s3fs.S3FileSystem(
    key=os.environ["AWS_ACCESS_KEY_ID"], secret=os.environ["AWS_SECRET_ACCESS_KEY"],
    client_kwargs={"endpoint_url": os.environ["AWS_ENDPOINT_URL"], "region_name": os.environ["AWS_REGION"]},
)
for turn in range(3):
    begun = time.perf_counter()
    fs.put(folder + "/", f"{place}/{turn}/", recursive=True)
    up = time.perf_counter() - begun
    fs.get(f"{place}/{turn}/", f"{back}/{turn}/", recursive=True)
    print(up, time.perf_counter() - begun - up)
"""


def measured(place: str, s3fs: str | None) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        yield from _artifacts(Path(folder), place, s3fs)
        yield from _runs(Path(folder), place)
        yield from _arrival(place)


def _artifacts(folder: Path, place: str, s3fs: str | None) -> Iterator[Figure]:
    """Up with its manifest; down with its digest compared and through to the disk."""
    size = FILES * FILE_BYTES / _MB
    root, url = folder / "root", parse_url(place)
    one = root / "p/Node/model/1"
    one.mkdir(parents=True)
    for number in range(FILES):
        (one / f"part-{number}").write_bytes(os.urandom(FILE_BYTES))
    archive = BucketArchive(root, url)

    def fetch() -> None:
        shutil.rmtree(one)
        begun = time.perf_counter()
        archive.fetch(str(one), "")
        taken["down"].append(time.perf_counter() - begun)

    taken: dict[str, list[float]] = {"up": [], "down": [], "bare up": [], "bare down": []}
    for _ in range(3):
        taken["up"].append(_seconds(lambda: archive.keep(one)))
        taken["bare up"].append(_seconds(lambda: _put(one, place)))
        taken["bare down"].append(_seconds(lambda: _get(folder / "bare", place)))
        fetch()
    medians = {name: size / statistics.median(found) for name, found in taken.items()}
    for name, rate in medians.items():
        yield Figure(name=f"artifact of 64 MiB, {name}", value=rate, unit="MB/s")
    yield at_least("up, to bare requests", medians["up"] / medians["bare up"], "x", 0.8)
    yield at_least("down, to bare requests", medians["down"] / medians["bare down"], "x", 0.8)
    if s3fs is not None:
        command = [s3fs, "-c", _S3FS, str(one), f"{url.bucket}/{url.key}/s3fs", str(folder / "s3fs")]
        lines = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
        up, down = (size / statistics.median(map(float, column)) for column in zip(*map(str.split, lines), strict=True))
        yield at_least("up, to s3fs", medians["up"] / up, "x", 3)
        yield at_least("down, to s3fs", medians["down"] / down, "x", 3)


def _put(folder: Path, place: str) -> None:
    """As a program does that knows only the library: one file after another, each in parallel parts."""
    import obstore

    bucket = parse_url(place)
    store = open_bucket(bucket.home)._objects  # noqa: SLF001
    for file in folder.iterdir():
        obstore.put(store, f"{bucket.key}/bare/{file.name}", file)


def _get(folder: Path, place: str) -> None:
    import obstore

    bucket = parse_url(place)
    store = open_bucket(bucket.home)._objects  # noqa: SLF001
    folder.mkdir(exist_ok=True)
    for number in range(FILES):
        with (folder / f"part-{number}").open("wb") as file:
            for chunk in obstore.get(store, f"{bucket.key}/bare/part-{number}").stream():
                file.write(chunk)


def _runs(folder: Path, place: str) -> Iterator[Figure]:
    """The flights pipeline from the shell, a run a day, on both roots in turn."""
    projects = {}
    for kind in ("folder", "url"):
        projects[kind] = project = folder / kind
        project.mkdir()
        flights_demo.prepare(project, DAYS)
        if kind == "url":
            settings = (project / "spanwise.toml").read_text()
            (project / "spanwise.toml").write_text(settings.replace('root = ".spanwise"', f'root = "{place}/root"'))
    days = [str(nycflights.FIRST + timedelta(days=number)) for number in range(DAYS)]
    fresh: dict[str, list[float]] = {"folder": [], "url": []}
    cached: dict[str, list[float]] = {"folder": [], "url": []}
    for day in days:
        for kind, project in projects.items():
            fresh[kind].append(_seconds(lambda p=project, d=day: _run(p, d)))  # type: ignore[misc]
    for _ in range(5):
        for kind, project in projects.items():
            cached[kind].append(_seconds(lambda p=project: _run(p, days[-1])))  # type: ignore[misc]
    day_s = {kind: statistics.median(times[1:]) for kind, times in fresh.items()}
    again_s = {kind: statistics.median(times) for kind, times in cached.items()}
    yield Figure(name="a day of flights on a folder", value=day_s["folder"], unit="s")
    yield at_most("a day of flights on object storage, to a folder", day_s["url"] / day_s["folder"], "x", 1.3)
    yield Figure(name="a cached day of flights on a folder", value=again_s["folder"], unit="s")
    yield at_most("the same on object storage, more by", again_s["url"] - again_s["folder"], "s", 0.2)


def _run(project: Path, day: str) -> None:
    command = [sys.executable, "-m", "spanwise", "run", "flights.py", "--span", day]
    environment = {**os.environ, "XDG_CACHE_HOME": str(project / "cache")}
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _arrival(place: str) -> Iterator[Figure]:
    """One file for each of many spans; which is the newest, and what one span has."""
    from concurrent.futures import ThreadPoolExecutor

    from spanwise.components.ingest.source_files import SourceFiles, newest_object_span
    from spanwise.orchestrator.span import choose
    from spanwise.orchestrator.span_pattern import SpanPattern

    url = parse_url(place)
    bucket = open_bucket(url.home)
    keys = [(url / f"lake/{span:05d}/v1/a.csv").key for span in range(SPANS)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda key: bucket.write(key, b"x\n1\n"), keys))
    patterns = {"all": SpanPattern.parse(f"{place}/lake/{{SPAN:5}}/v{{VERSION}}/*.csv")}
    source = SourceFiles()
    newest = _seconds(lambda: choose(patterns, source.list, newest_object_span(patterns, source)))
    yield at_most("the newest of 10,000 spans by a pattern", newest, "s", 1)
    one = _seconds(lambda: choose(patterns, SourceFiles().list, SPANS - 1))
    yield Figure(name="the files of one of 10,000 spans", value=one, unit="s")
    assert list_objects(f"{place}/lake/{SPANS - 1:05d}/v*/*.csv")


def _seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def main() -> int:
    if not os.environ.get("SPANWISE_TEST_S3"):
        sys.exit("There is no server. Start one:  tests/contract/buckets.sh .venv/storage python -m benchmarks.storage")
    settings = json.loads(os.environ["SPANWISE_TEST_S3"])
    home = settings.pop("home")
    os.environ.update(settings)
    arguments = sys.argv[1:]
    s3fs = None
    if "--s3fs" in arguments:
        at = arguments.index("--s3fs")
        s3fs = arguments[at + 1]
        del arguments[at : at + 2]
    return show(measured(f"{home}/{uuid.uuid4().hex}", s3fs), arguments)


if __name__ == "__main__":
    sys.exit(main())
