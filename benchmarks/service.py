"""The data service on one machine: how fast elements come and splits are dealt, a start on a journal, many consumers.

One dispatcher and two workers, each a process, and the table of `benchmarks.input` in files of 65,536 rows. With `--tf
PYTHON`, an interpreter that has TensorFlow (`make bench-service` makes one), also against the tf.data service on the
same machine. Rates are of the best of a few jobs, each of several passes over the table.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import flight

from benchmarks.figures import Figure, at_least, at_most, median_s, show
from benchmarks.input_peers import features, rate
from spanwise.pipelines.input import sources
from spanwise.pipelines.input.flow import AnyFlow
from spanwise.pipelines.input.service.client.feed import Compression
from spanwise.pipelines.input.service.dispatcher.dispatcher import DispatchServer
from spanwise.pipelines.input.service.dispatcher.journal import Journal
from spanwise.pipelines.input.service.dispatcher.records import AcquireClient, CreateJob, LeaseSplits
from spanwise.pipelines.input.service.policy import ShardingPolicy
from spanwise.pipelines.input.service.wire.config import DispatcherConfig
from spanwise.pipelines.input.service.wire.connection import ServiceConnection
from spanwise.pipelines.input.service.wire.requests import (
    ExchangeSplits,
    GetStatus,
    Heartbeat,
    JoinJob,
    RegisterDataset,
    TakeSplits,
)
from spanwise.pipelines.input.service.wire.security import Security
from spanwise.pipelines.input.sources import from_arrow_files, from_parquet
from tests.servers import free_ports

ROWS = 2_000_000
COLUMNS = 12
FILE_ROWS = 65_536
PASSES = 4
REPLICAS = 2
WORKERS = 2
BATCHES = (1_024, 16_384)
SPLITS = 20_000
SMALL = 10_000
JOURNALED = 100_000
CROWD = 1_000
CROWD_PROCESSES = 10
PEERS = Path(__file__).with_name("service_peers.py")


def measured(python: str | None) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as name:
        files = written(Path(name))
        rates: dict[int, float] = {}
        for rows in BATCHES:
            rates[rows] = yield from _read(files, rows)
        yield from _together(files)
        yield from _apart(files)
        yield from _splits(Path(name))
        yield _small(Path(name))
        yield _start(Path(name))
        yield from _crowd()
        if python is not None:
            done = subprocess.run([python, str(PEERS), *files], stdout=subprocess.PIPE, text=True, check=True)
            peers = json.loads(done.stdout.splitlines()[-1])
            for form, rows, factor in (
                ("records parsed on workers", 1_024, 20),
                ("batches of 1,024", 1_024, 3),
                ("batches of 1,024, uncompressed", 1_024, 3),
                ("blocks of 16,384, uncompressed", 16_384, 2),
            ):
                yield Figure(name=f"tf.data service, {form}", value=peers[form], unit="M rows/s")
                yield at_least(f"batches of {rows:,}, to that", rates[rows] / peers[form], "x", factor)


def written(folder: Path) -> list[str]:
    """The table, as files."""
    random = np.random.default_rng(0)
    files = []
    for at in range(0, ROWS, FILE_ROWS):
        rows = min(FILE_ROWS, ROWS - at)
        table = pa.table({f"c{i}": random.random(rows) for i in range(COLUMNS)})
        files.append(str(folder / f"{at:08}.arrow"))
        with pa.ipc.new_file(files[-1], table.schema) as out:
            out.write_table(table)
    return files


class Served(contextlib.ExitStack):
    """A dispatcher and workers, each a process."""

    def __init__(self, workers: int = WORKERS, *options: str) -> None:
        super().__init__()
        self.pids: list[int] = []
        self._prefix: tuple[str, ...] = ()
        self.target = self.start("spanwise", "service", "dispatcher", "--port", "0", *options)
        for _ in range(workers):
            self.start("spanwise", "service", "worker", self.target)

    def start(self, *arguments: str) -> str:
        """Starts a process of ours that serves; gives the last word of its first line."""
        process = self.enter_context(
            subprocess.Popen([*self._prefix, sys.executable, "-m", *arguments], stdout=subprocess.PIPE, text=True)
        )
        self.callback(process.terminate)
        self.pids.append(process.pid)
        assert process.stdout is not None
        return process.stdout.readline().split()[-1]


# Reading.


def _read(files: list[str], rows: int) -> Generator[Figure, None, float]:
    with Served() as service:
        halves = [files[number::WORKERS] for number in range(WORKERS)]
        ports = [service.start("benchmarks.service_flight", *half) for half in halves]
        mapped = from_arrow_files(files).repeat(PASSES).map(features, vectorized=True, stateless=True).batch(rows)
        forms: dict[str, Callable[[], Iterable[int]]] = {
            "ours": lambda: (batch.num_rows for batch in mapped.distribute(service.target, "dynamic")),
            "sent": lambda: (
                batch.num_rows for batch in mapped.distribute(service.target, "dynamic", compression="lz4")
            ),
            "bare": lambda: _bare(ports, rows),
        }
        found = dict.fromkeys(forms, 0.0)
        for number in range(6):
            for form, passes in forms.items():  # in turns, so that what else the machine does meets all
                now = rate(passes, times=1, warm_up=0)
                found[form] = max(found[form], now) if number else 0.0  # the first ones warm up
    yield Figure(name=f"batches of {rows:,}", value=found["ours"], unit="M rows/s")
    yield Figure(name="the same, compressed by LZ4 and sent", value=found["sent"], unit="M rows/s")
    yield Figure(name=f"bare Flight, batches of {rows:,}", value=found["bare"], unit="M rows/s")
    yield at_least(f"batches of {rows:,}, to bare Flight", found["ours"] / found["bare"], "x", 0.7)
    return found["ours"]


def _count_bare(ports: list[str], rows: int) -> int:
    return sum(_bare(ports, rows))


def _bare(ports: list[str], rows: int) -> Iterator[int]:
    counts = [0] * len(ports)

    def read(number: int) -> None:
        client = flight.connect(f"grpc://127.0.0.1:{ports[number]}")
        for chunk in client.do_get(flight.Ticket(f"{rows} {PASSES}".encode())):
            counts[number] += chunk.data.num_rows  # type: ignore[union-attr]  # there is no metadata without data

    threads = [threading.Thread(target=read, args=[number]) for number in range(len(ports))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    yield from counts


class Replicas(contextlib.ExitStack):
    """Consumers of a coordinated read, each in a thread of its own."""

    def __init__(self, dataset: AnyFlow, target: str) -> None:
        super().__init__()
        self._iterators = [
            self.enter_context(
                dataset.distribute(target, job_name="steps", consumer_index=index, num_consumers=REPLICAS).iterator()
            )
            for index in range(REPLICAS)
        ]
        self._threads = self.enter_context(ThreadPoolExecutor(REPLICAS))

    def read(self, rounds: int) -> int:
        """The rows of so many rounds."""
        return sum(self._threads.map(lambda each: sum(b.num_rows for b in islice(each, rounds)), self._iterators))


def _together(files: list[str]) -> Iterator[Figure]:
    """Rounds as a long training reads them: the first ones, in which buffers fill, are not counted."""
    table = from_arrow_files(files).repeat().map(features, vectorized=True, stateless=True)
    for rows in BATCHES:
        rounds = ROWS * PASSES // (rows * REPLICAS)
        best: dict[str, float] = {}
        for _ in range(4):  # in turns, as above
            with Served() as service, Replicas(table.batch(rows), service.target) as replicas:
                replicas.read(rounds)
                best["ours"] = max(best.get("ours", 0.0), *(_rate(replicas.read, rounds) for _ in range(3)))
            with Served(0) as service:
                ports = [service.start("benchmarks.service_flight", *files[n::WORKERS]) for n in range(WORKERS)]
                best["bare"] = max(best.get("bare", 0.0), *(_rate(_count_bare, ports, rows) for _ in range(4)))
        name = f"coordinated reads, batches of {rows:,}"
        yield Figure(name=name, value=best["ours"], unit="M rows/s")
        yield at_least(f"{name}, to bare Flight", best["ours"] / best["bare"], "x", 0.7)


def _rate(read: Callable[..., int], *arguments: object) -> float:
    begun = time.perf_counter()
    rows = read(*arguments)
    return rows / (time.perf_counter() - begun) / 1e6


# Reading without shared memory.

NAMESPACE = "spanwise-bench"
DELAY_S = 0.001


class Apart(Served):
    """Servers that lend no memory, as on other machines; in a network namespace, if one is named."""

    def __init__(self, namespace: str = "", delay_s: float = 0.0) -> None:
        contextlib.ExitStack.__init__(self)
        self.pids = []
        self._prefix = ("ip", "netns", "exec", namespace) if namespace else ()
        ports = free_ports(1 + WORKERS)
        if namespace:  # at the same ports on both sides, so that the addresses of workers hold on both
            self._start_relay(namespace, delay_s, ports)
        self.target = self.start("spanwise", "service", "dispatcher", "--port", str(ports[0]))
        for port in ports[1:]:
            self.start("benchmarks.service_worker", self.target, str(port))

    def _start_relay(self, namespace: str, delay_s: float, ports: list[int]) -> None:
        prefix, self._prefix = self._prefix, ()
        self.start("benchmarks.service_relay", namespace, str(delay_s), *map(str, ports))
        self._prefix = prefix


def _apart(files: list[str]) -> Iterator[Figure]:
    """Batches that are sent: on this machine; and into a network namespace, by a relay that holds them or does not."""
    yield Figure(name="batches of 1,024, not shared", value=_read_apart(Apart(), files), unit="M rows/s")
    ip = ["ip", "netns"]
    if subprocess.run([*ip, "add", NAMESPACE], check=False, capture_output=True).returncode:
        print("no figure over a network: it takes root and iproute2", file=sys.stderr)
        return
    try:
        subprocess.run([*ip, "exec", NAMESPACE, "ip", "link", "set", "lo", "up"], check=True)
        near = _read_apart(Apart(NAMESPACE), files)
        yield Figure(name="the same over a relay into a network namespace", value=near, unit="M rows/s")
        with Apart(NAMESPACE, DELAY_S) as served:
            connection = ServiceConnection(served.target, Security())
            answer_s = median_s(lambda: connection.ask(GetStatus()), times=20)
            connection.close()
        far = _read_apart(Apart(NAMESPACE, DELAY_S), files)
        packed = _read_apart(Apart(NAMESPACE, DELAY_S), files, "lz4")
    finally:
        subprocess.run([*ip, "del", NAMESPACE], check=False)
    name = f"the same, held {DELAY_S * 1e3:g} ms each way"
    yield Figure(name=name, value=far, unit="M rows/s")
    yield Figure(name="the same, compressed by LZ4", value=packed, unit="M rows/s")
    yield Figure(name="what the delay leaves of the throughput", value=far / near, unit="x")
    yield Figure(name="an answer of the dispatcher, held as these", value=answer_s * 1e3, unit="ms")


def _read_apart(served: Apart, files: list[str], compression: Compression = "auto") -> float:
    mapped = from_arrow_files(files).repeat(PASSES).map(features, vectorized=True, stateless=True).batch(1_024)
    with served as service:

        def passes() -> Iterator[int]:
            return (b.num_rows for b in mapped.distribute(service.target, "dynamic", compression=compression))

        return rate(passes, times=3)


# Splits.


class Asking:
    """A worker and a consumer that do nothing but ask for splits."""

    def __init__(self, target: str, mode: str) -> None:
        self._connection = ServiceConnection(target, Security())
        self._connection.ask(RegisterDataset(dataset="d", structure="", splits=(SPLITS,)))
        join = JoinJob(dataset="d", mode=ShardingPolicy(mode), name="", epoch="0")
        self._client = self._connection.ask(join)[0].client
        heartbeat = Heartbeat(worker="w", address="127.0.0.1:1", process="p", wait_s=0.0)
        tasks = self._connection.ask(heartbeat)[0].tasks
        self._task = tasks[0].task if tasks else 0
        self._number = 0
        self._held: tuple[int, ...] = ()

    def dynamic(self) -> int:
        self._number += 1
        request = TakeSplits(task=self._task, number=self._number, source=0, repetition=0)
        return self._connection.ask(request)[0].count

    def at_least_once(self) -> int:
        """As a consumer of four workers does."""
        self._number += 1
        request = ExchangeSplits(client=self._client, number=self._number, done=self._held, want=16)
        self._held = tuple(split for split, _ in self._connection.ask(request)[0].held)
        return len(self._held)


def _splits(folder: Path) -> Iterator[Figure]:
    """Every answer waits until the disk has it; one request at a time, as of one worker or consumer."""
    for what, mode in (("dealt to a worker", "dynamic"), ("leased by a consumer", "at_least_once")):
        with Served(0, "--work-dir", str(folder / mode)) as service:
            ask = getattr(Asking(service.target, mode), mode)
            begun = time.perf_counter()
            taken = sum(iter(ask, 0))
            took_s = time.perf_counter() - begun
        assert taken == SPLITS, f"{taken} of {SPLITS} splits were given"
        yield at_least(f"splits {what}", taken / took_s, "/s", 5_000)


def _small(folder: Path) -> Figure:
    """Row groups of ten rows: if each is opened, leased and fetched by itself, about 60 a second come."""
    path = folder / "small.parquet"
    pq.write_table(pa.table({"a": range(10 * SMALL)}), path, row_group_size=10)
    with Served() as service:
        batches = from_parquet(str(path)).batch(1_024).distribute(service.target, "exactly_once")
        begun = time.perf_counter()
        rows = sum(batch.num_rows for batch in batches)
        took_s = time.perf_counter() - begun
    assert rows == 10 * SMALL, f"{rows} rows of {SMALL} row groups were given"
    return at_least("small row groups read under leases", SMALL / took_s, "/s", 1_000)


def _start(folder: Path) -> Figure:
    """From nothing to the first answer, in this process; each split was leased and done with by a record of its own."""
    journal = Journal(folder / "restart")
    journal.write(
        [
            RegisterDataset(dataset="d", structure="", splits=(JOURNALED,)),
            CreateJob(job=1, dataset="d", mode=ShardingPolicy.AT_LEAST_ONCE, name="", epoch=""),
            AcquireClient(client=2, job=1),
            *(LeaseSplits(client=2, done=(at - 1,) if at else (), taken=(at,)) for at in range(JOURNALED)),
        ]
    )
    journal.close()
    begun = time.perf_counter()
    with DispatchServer(DispatcherConfig(work_dir=str(folder / "restart"), fault_tolerant_mode=True)) as there:
        (job,) = ServiceConnection(there.target, Security()).ask(GetStatus())[0].jobs
        took_s = time.perf_counter() - begun
    assert job.splits_leased == 1
    return at_most(f"a start on a journal of {JOURNALED:,} splits", took_s, "s", 2)


# Many consumers.


def _crowd() -> Iterator[Figure]:
    """Consumers who share a job and take an element now and then; each has connections of its own."""
    with Served() as service:
        command = [sys.executable, "-m", "benchmarks.service", "--consume", service.target]
        crowd = [
            service.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            for _ in range(CROWD_PROCESSES)
        ]
        for each in crowd:
            service.callback(each.terminate)
        for each in crowd:
            assert each.stdout is not None
            each.stdout.readline()
        begun = time.perf_counter()
        _go_on(crowd)
        fed = sum(_read_count(each) for each in crowd)
        yield at_least(f"of {CROWD:,} consumers at once, those with an element", fed, "", CROWD)
        yield at_most("until all of them have one", time.perf_counter() - begun, "s", 10)
        connection = ServiceConnection(service.target, Security())
        took_s = []
        for _ in range(20):
            asked = time.perf_counter()
            status = connection.ask(GetStatus())[0]
            took_s.append(time.perf_counter() - asked)
        yield at_least("consumers that the dispatcher knows", status.jobs[0].consumers, "", CROWD)
        yield at_most("an answer of the dispatcher meanwhile, the slowest of 20", max(took_s), "s", 1)
        for name, pid in zip(("dispatcher", "worker"), service.pids, strict=False):
            yield Figure(name=f"threads of the {name}", value=_of_process(pid, "Threads"), unit="")
            yield at_most(f"memory of the {name}", _of_process(pid, "VmHWM") / 1024, "MiB", 1024)
        _go_on(crowd)
        yield at_least("consumers with another element after 5 s", sum(_read_count(each) for each in crowd), "", CROWD)


def _go_on(crowd: Iterable[subprocess.Popen[str]]) -> None:
    for each in crowd:
        print(file=each.stdin, flush=True)


def _read_count(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline() or 0)


def _of_process(pid: int, what: str) -> int:
    found = re.search(rf"{what}:\s*(\d+)", Path(f"/proc/{pid}/status").read_text(encoding="ascii"))
    assert found is not None
    return int(found[1])


def _slow(number: int) -> int:
    time.sleep(0.001)
    return number


def consume(target: str) -> None:
    """A part of the crowd, in this process: says how many have got an element, and then another one."""
    dataset = sources.range(1 << 40).map(_slow).distribute(target, "dynamic", "crowd")
    consumers = [dataset.iterator(epoch=0) for _ in range(CROWD // CROWD_PROCESSES)]
    print("ready", flush=True)
    sys.stdin.readline()
    for wait_s in (5.0, 0.0):
        with ThreadPoolExecutor(len(consumers)) as threads:
            print(len(list(threads.map(next, consumers))), flush=True)
        sys.stdin.readline()
        time.sleep(wait_s)
    os._exit(0)  # a thousand farewells are not what is measured


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--tf", metavar="PYTHON")
    parser.add_argument("--consume", metavar="DISPATCHER")
    options, rest = parser.parse_known_args()
    if options.consume:
        consume(options.consume)
    sys.exit(show(measured(options.tf), rest))
