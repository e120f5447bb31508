"""The loop of an elastic worker, in the form that ElasticDL's design has measured and with each change to it.

The loop reads records, makes a batch of them, computes a gradient, and talks to a parameter server in another process.
Before anything is compared, sizes are searched for that give the first form the document's shares of time on this
machine. All of the work is really done: nothing sleeps.

https://github.com/sql-machine-learning/elasticdl/blob/develop/docs/designs/worker_optimization_design.md
"""

from __future__ import annotations

import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import ClassVar, Final, Literal, TypeAlias

from benchmarks import elastic_job
from benchmarks.elastic_job import RATE
from benchmarks.elastic_model import CompiledStep, create_model, eager
from benchmarks.elastic_records import (
    BATCH,
    PIXELS,
    Batch,
    input_fn,
    preprocess,
    read_blocks,
    read_records,
    record_batches,
    take_batch,
    write_records,
)
from spanwise.components.training.elastic import requests
from spanwise.components.training.elastic.arrays import Arrays, pack, unpack
from spanwise.components.training.elastic.parameters import Contribution, Parameters
from spanwise.components.training.elastic.phases import Phase, Phases
from spanwise.pipelines.input.dataset import Dataset
from spanwise.pipelines.input.service.wire.connection import ServiceConnection
from spanwise.pipelines.input.service.wire.requests import Done, Request
from spanwise.pipelines.input.service.wire.security import Security
from spanwise.pipelines.input.service.wire.server import Answer, FlightServer
from spanwise.pipelines.input.sources import from_generator

Gradient: TypeAlias = Callable[[Arrays, Batch], Arrays]

DOCUMENT_S: Final[Mapping[Phase, float]] = {
    Phase.GET_BATCH: 6.7,
    Phase.INPUT_FN: 17.9,
    Phase.COMPUTE: 14.8,
    Phase.GET_MODEL: 5.0,
    Phase.REPORT: 5.0,
}
"""The document's seconds; 51.0 with what stands between them."""


@dataclass(frozen=True, kw_only=True)
class LoopSizes:
    """The amount of work in each phase."""

    tail_bytes: int = 4_000  #: of each record behind its pixels: read and checked, and not used
    hidden: int = 24  #: units of the model's hidden layer
    table: int = 10_000  #: numbers more in the model, which only decay


@dataclass(frozen=True, kw_only=True)
class LoopTimes:
    """One form of the loop, as measured."""

    name: str
    change: str  #: which of the document's changes: "", "dataset", "overlap", "compiled step"
    step_s: float  #: from one step to the next
    seconds: Mapping[Phase, float]  #: of the median step

    @property
    def full_overlap_s(self) -> float:
        """The time of a step if its input were made during the rest: the longer of the two."""
        input_s = self.seconds[Phase.GET_BATCH] + self.seconds[Phase.INPUT_FN]
        return max(input_s, self.step_s - input_s)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a run of all forms has found."""

    core_share: float  #: of a core that computing had
    forms: Sequence[LoopTimes]  #: the first is the loop unchanged
    jobs: Mapping[str, elastic_job.JobTimes]  #: an `ElasticJob` in place of the loop, by its form


def measure(run_s: float) -> Measured:
    """Runs every form twice for `run_s`."""
    with tempfile.TemporaryDirectory() as folder, parameter_server() as server:
        sizes, core_share = _calibrate(Path(folder), server)
        data = LoopData.create(sizes, Path(folder), server)
        forms = tuple(loop_forms(data))
        rounds = [[run(form, data, run_s) for form in forms] for _ in range(2)]  # in turns: noise meets all of them
        best = [min(tries, key=lambda times: times.step_s) for tries in zip(*rounds, strict=True)]
        examples = elastic_job.write_examples(Path(folder), data.path, data.record_bytes)
        steps = round(run_s / best[0].step_s)
        create = partial(create_model, sizes.hidden, sizes.table)
        jobs = {
            name: min((elastic_job.run(name, examples, create, steps) for _ in range(2)), key=lambda job: job.step_s)
            for name in elastic_job.FORMS
        }
        return Measured(core_share=core_share, forms=best, jobs=jobs)


def shares(seconds: Mapping[Phase, float]) -> dict[Phase, float]:
    """The part of each phase in the whole, from 0 to 1."""
    return {phase: spent / sum(seconds.values()) for phase, spent in seconds.items()}


def distance(seconds: Mapping[Phase, float]) -> float:
    """By how much the share of a phase differs most from the document's."""
    document = shares(DOCUMENT_S)
    return max(abs(share - document[phase]) for phase, share in shares(seconds).items())


# The parameter server


@contextmanager
def parameter_server() -> Iterator[ServiceConnection]:
    """Starts a parameter server in a process of its own and connects to it."""
    token = secrets.token_urlsafe(16)
    program = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import serve; serve()"
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(token + "\n")
        target = process.stdout.readline().strip()
        if not target:
            raise RuntimeError(f"the parameter server ended with exit code {process.wait()}; see its errors above")
        connection = ServiceConnection(target, Security(token=token))
        yield connection
        connection.close()
    finally:
        process.stdin.close()  # the server stops at the end of its input
        process.wait()
        process.stdout.close()


class SendModel(Request[Done]):
    """The arrays follow as bytes."""

    kind: ClassVar = "set_model"

    layout: requests.WireLayout


class SendGradient(Request[Done]):
    """The arrays follow as bytes."""

    kind: ClassVar = "report_gradient"

    layout: requests.WireLayout


class GetCurrentModel(Request[requests.SharedModel]):
    kind: ClassVar = "get_model"


def serve() -> None:
    """The parameter server's program: serves until its standard input is closed."""
    model: list[Parameters] = []

    def descend(values: Arrays, gradient: Arrays) -> Arrays:
        return {name: value - RATE * gradient[name] for name, value in values.items()}

    def set_model(request: SendModel, content: bytes) -> Answer:
        model[:] = [Parameters(unpack(request.layout, content), descend)]
        return Done(), b""

    def get_model(_: GetCurrentModel, __: bytes) -> Answer:
        layout, content = pack(model[0].values)
        return requests.SharedModel(version=model[0].version, layout=layout), content

    def report_gradient(request: SendGradient, content: bytes) -> Answer:
        gradient = unpack(request.layout, content)
        model[0].offer(Contribution(worker="one", rows=BATCH, gradient=gradient), model[0].version)
        model[0].advance(frozenset())
        return Done(), b""

    server = FlightServer(
        "127.0.0.1",
        0,
        Security(token=sys.stdin.readline().strip()),
        actions={
            SendModel.kind: (SendModel, set_model),
            GetCurrentModel.kind: (GetCurrentModel, get_model),
            SendGradient.kind: (SendGradient, report_gradient),
        },
        limit_bytes=1 << 30,
    )
    sys.stdout.write(server.target + "\n")
    sys.stdout.flush()
    sys.stdin.read()
    server.shutdown()


# The loop


@dataclass(frozen=True, kw_only=True)
class LoopForm:
    """One way to run the loop."""

    name: str
    change: str
    gradient: Gradient
    dataset: Dataset | None = None  #: the input; None makes each batch in the loop itself
    switch_s: float | None = None  #: the interpreter's switch interval; None keeps the default


@dataclass(frozen=True, kw_only=True)
class LoopData:
    """The records and the model of a loop."""

    path: Path
    record_bytes: int
    model: Arrays = field(repr=False)
    server: ServiceConnection

    @classmethod
    def create(cls, sizes: LoopSizes, folder: Path, server: ServiceConnection) -> LoopData:
        """Writes the records and sends the model to the server."""
        path = folder / f"{sizes.tail_bytes}.records"
        if not path.exists():
            write_records(path, sizes.tail_bytes)
        model = create_model(sizes.hidden, sizes.table)
        layout, content = pack(model)
        server.ask(SendModel(layout=layout), content)
        return cls(path=path, record_bytes=1 + PIXELS + sizes.tail_bytes + 4, model=model, server=server)


def loop_forms(data: LoopData) -> Iterator[LoopForm]:
    """The loop unchanged, then with each change; with all of them it is an `ElasticJob`."""
    compiled = CompiledStep(data.model)
    records = from_generator(record_batches, data.path, data.record_bytes).options(optimize=False)
    blocks = from_generator(read_blocks, data.path, data.record_bytes).options(optimize=False)
    yield LoopForm(name="as it was", change="", gradient=eager)
    yield LoopForm(name="one dataset, vectorised", change="dataset", gradient=eager, dataset=blocks.map(preprocess))

    def mapped(num_parallel: int, workers: Literal["threads", "processes"]) -> Dataset:
        return records.map(input_fn, num_parallel=num_parallel, workers=workers, stateless=True).prefetch(2)

    prefetched = records.map(input_fn).prefetch(2)
    for name, dataset, switch_s in (
        ("a prefetch thread", prefetched, None),
        ("the same, lock handed on after 0.5 ms", prefetched, 5e-4),
        ("two map threads", mapped(2, "threads"), None),
        ("a map process", mapped(1, "processes"), None),
        ("two map processes", mapped(2, "processes"), None),
    ):
        yield LoopForm(name=name, change="overlap", gradient=eager, dataset=dataset, switch_s=switch_s)
    yield LoopForm(name="the compiled step", change="compiled step", gradient=compiled)


def run(form: LoopForm, data: LoopData, run_s: float, *, warm_up: int = 8) -> LoopTimes:
    """Runs the loop in one form and measures its steps."""
    steps: list[Phases] = []
    default_s = sys.getswitchinterval()
    sys.setswitchinterval(form.switch_s or default_s)
    try:
        with _open_input(form, data) as take:
            for _ in range(warm_up):
                _step(take, form.gradient, data.server)
            start = time.perf_counter()
            while not steps or time.perf_counter() < start + run_s:
                steps.append(_step(take, form.gradient, data.server))
            step_s = (time.perf_counter() - start) / len(steps)
    finally:
        sys.setswitchinterval(default_s)
    seconds = {phase: statistics.median(step.seconds[phase] for step in steps) for phase in Phase}
    return LoopTimes(name=form.name, change=form.change, step_s=step_s, seconds=seconds)


@contextmanager
def _open_input(form: LoopForm, data: LoopData) -> Iterator[Callable[[Phases], Batch]]:
    """Opens the input; what it yields returns the next batch and adds its time to the phases."""
    records = read_records(data.path, data.record_bytes)

    def from_records(phases: Phases) -> Batch:
        with phases.during(Phase.GET_BATCH):
            batch = take_batch(records)
        with phases.during(Phase.INPUT_FN):
            return input_fn(batch)

    with form.dataset.iterator() if form.dataset is not None else nullcontext() as batches:

        def from_dataset(phases: Phases) -> Batch:
            assert batches is not None
            with phases.during(Phase.GET_BATCH):
                batch: Batch = next(batches)
            return batch

        yield from_records if batches is None else from_dataset


def _step(take: Callable[[Phases], Batch], gradient: Gradient, server: ServiceConnection) -> Phases:
    """One turn of the document's loop."""
    phases = Phases(batches=1)
    batch = take(phases)
    with phases.during(Phase.GET_MODEL):
        answer, content = server.ask(GetCurrentModel())
        assert answer.layout is not None, "it always sends all"
        parameters = unpack(answer.layout, content)
    with phases.during(Phase.COMPUTE):
        values = gradient(parameters, batch)
    with phases.during(Phase.REPORT):
        layout, content = pack(values)
        server.ask(SendGradient(layout=layout), content)
    return phases


# Sizes


KNOBS: Final = {"tail_bytes": Phase.GET_BATCH, "hidden": Phase.COMPUTE, "table": Phase.GET_MODEL}
"""The phase whose time grows with each size."""

LEAST: Final = LoopSizes(tail_bytes=0, hidden=2, table=1)
MOST: Final = LoopSizes(tail_bytes=60_000, hidden=512, table=4_000_000)


def _calibrate(folder: Path, server: ServiceConnection, *, times: int = 4, steps: int = 24) -> tuple[LoopSizes, float]:
    """Sizes that give the first form the document's shares, and the share of a core that computing had.

    The input takes the time it takes; the other phases are made long enough to match it. A phase's time is a line over
    its size, fitted to two points; then the sizes are corrected by what is still missing.
    """
    small = LoopSizes()
    large = replace(small, tail_bytes=3 * small.tail_bytes, hidden=3 * small.hidden, table=20 * small.table)
    seconds, _ = _time_phases(small, folder, server, steps)
    second, core_share = _time_phases(large, folder, server, steps)
    slopes = {
        name: max(1e-12, second[phase] - seconds[phase]) / (getattr(large, name) - getattr(small, name))
        for name, phase in KNOBS.items()
    }
    sizes = best = small
    least = float("inf")
    for _ in range(times):
        sizes = correct_sizes(sizes, seconds, slopes)
        seconds, core_share = _time_phases(sizes, folder, server, steps)
        if distance(seconds) < least:
            best, least = sizes, distance(seconds)
    return best, core_share


def correct_sizes(sizes: LoopSizes, seconds: Mapping[Phase, float], slopes: Mapping[str, float]) -> LoopSizes:
    """Sizes that give each phase its length in the document beside `input_fn`, if one unit more costs its slope."""
    scale = seconds[Phase.INPUT_FN] / DOCUMENT_S[Phase.INPUT_FN]
    missing_s = {phase: scale * wanted_s - seconds[phase] for phase, wanted_s in DOCUMENT_S.items()}
    # the server's two phases share one size
    missing_s[Phase.GET_MODEL] = (missing_s[Phase.GET_MODEL] + missing_s[Phase.REPORT]) / 2
    return LoopSizes(
        **{
            name: min(
                getattr(MOST, name),
                max(getattr(LEAST, name), round(getattr(sizes, name) + missing_s[phase] / slopes[name])),
            )
            for name, phase in KNOBS.items()
        }
    )


def _time_phases(
    sizes: LoopSizes, folder: Path, server: ServiceConnection, steps: int
) -> tuple[Mapping[Phase, float], float]:
    """The least time of each phase with those sizes, and the share of a core that computing had."""
    data = LoopData.create(sizes, folder, server)
    form = LoopForm(name="", change="", gradient=eager)
    cpu_s = elapsed_s = 0.0

    def timed(parameters: Arrays, batch: Batch) -> Arrays:
        nonlocal cpu_s, elapsed_s
        cpu, start = time.thread_time(), time.perf_counter()
        gradient = eager(parameters, batch)
        cpu_s, elapsed_s = cpu_s + time.thread_time() - cpu, elapsed_s + time.perf_counter() - start
        return gradient

    with _open_input(form, data) as take:
        phases = [_step(take, timed, server) for _ in range(steps + 2)][2:]
    return {phase: min(step.seconds[phase] for step in phases) for phase in Phase}, cpu_s / elapsed_s
