"""The breakdown of a worker's loop, as ElasticDL's design has measured it, and what each change to the loop brings.

The loop reads records, makes a batch of them, computes a gradient, and speaks with a parameter server in another
process. Before anything is compared, sizes are found with which the loop as it was has the document's shares of time on
this machine. All of it is work that is really done: nothing sleeps.

https://github.com/sql-machine-learning/elasticdl/blob/develop/docs/designs/worker_optimization_design.md
"""

from __future__ import annotations

import json
import os
import secrets
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from spanwise.components.training.elastic.arrays import Arrays, packed, unpacked
from spanwise.components.training.elastic.phases import Phase, Phases
from spanwise.orchestrator.errors import NodeFailed

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from spanwise.pipelines.input.dataset import Dataset
    from spanwise.pipelines.input.service.wire.connection import Connection

    Batch: TypeAlias = tuple[NDArray[np.float32], NDArray[np.int32]]  # features and labels
    Gradient: TypeAlias = Callable[[Arrays, Batch], Arrays]

DOCUMENT_S: Final[Mapping[Phase, float]] = {
    Phase.GET_BATCH: 6.7,
    Phase.INPUT_FN: 17.9,
    Phase.COMPUTE: 14.8,
    Phase.GET_MODEL: 5.0,
    Phase.REPORT: 5.0,
}
"""The document's seconds; 51.0 with what stands between them."""

WANTED: Final = 51.0 / 23.8  #: times faster, as the document has it
TOLERANCE: Final = 0.03  #: of the whole, by which a share may differ from the document's
FULL_OVERLAP: Final = 0.9  #: of what full overlap could give
IDLE: Final = 0.95  #: of a core that a computing thread gets: with less, other programs have the cores

BATCH: Final = 128
PIXELS: Final = 32 * 32 * 3
CLASSES: Final = 10
BLOCKS: Final = 8  #: batches in the file, which is read again and again
MEAN: Final = (0.4914, 0.4822, 0.4465)
STD: Final = (0.2470, 0.2435, 0.2616)
DECAY: Final = 1e-4
RATE: Final = 1e-3


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What a machine must be given to do so that its shares of time are the document's."""

    tail_bytes: int = 4_000  #: of each record behind its pixels: what is read and checked, and not used
    hidden: int = 24  #: units of the model's hidden layer
    table: int = 10_000  #: numbers more in the model, which only decay


@dataclass(frozen=True, kw_only=True)
class Form:
    """One way to run the loop, as measured."""

    name: str
    change: str  #: which of the document's changes: "", "dataset", "overlap", "compiled step", "all"
    step_s: float  #: from one step to the next
    seconds: Mapping[str, float]  #: of a step, by phase, as most steps have it


@dataclass(frozen=True, kw_only=True)
class Breakdown:
    """Every form of the loop on one machine."""

    sizes: Sizes
    core_share: float  #: of the time that a thread which only computes had a core: 1 on an idle machine
    forms: tuple[Form, ...]  #: the first is the loop as it was, the last has all changes

    @property
    def before(self) -> Form:
        return self.forms[0]

    @property
    def together(self) -> Form:
        return self.forms[-1]

    def speedup(self, form: Form) -> float:
        return self.before.step_s / form.step_s

    @property
    def shares(self) -> Mapping[str, float]:
        """Of each phase in a step of the loop as it was."""
        return {str(phase): share for phase, share in Phases(self.before.seconds).shares().items()}

    @property
    def off(self) -> float:
        """By how much a share differs most from the document's."""
        return max(abs(self.shares[name] - share) for name, share in document_shares().items())

    @property
    def full_overlap_s(self) -> float:
        """What a step would take if its input were made while the rest is done: the longer of the two."""
        return Phases(self.before.seconds).overlapped_s(self.before.step_s)

    @property
    def overlap(self) -> float:
        """How near the best way to overlap comes to that; above 1 if several calls make the input at once."""
        return self.full_overlap_s / min(form.step_s for form in self.forms if form.change == "overlap")

    @property
    def is_idle(self) -> bool:
        """Whether the cores were there for the loop alone; else neither its shares nor overlap can be judged."""
        return self.core_share >= IDLE and (os.cpu_count() or 1) > 1

    @property
    def missed(self) -> tuple[str, ...]:
        """The goals that were not reached."""
        found = []
        if self.is_idle and self.off > TOLERANCE:
            found.append(f"a share differs by {self.off * 100:.1f} points from the document's, more than 3")
        if self.speedup(self.together) < WANTED:
            found.append(f"all together is {self.speedup(self.together):.2f} times faster, less than {WANTED:.2f}")
        if self.is_idle and self.overlap < FULL_OVERLAP:
            found.append(f"overlap gives {self.overlap:.0%} of what full overlap could, less than {FULL_OVERLAP:.0%}")
        return tuple(found)


def document_shares() -> Mapping[str, float]:
    """Those of a loop in which nothing stands between the phases."""
    return {str(phase): share for phase, share in Phases(DOCUMENT_S).shares().items()}


def measured(run_s: float = 0.5) -> Breakdown:
    """Every form of the loop, each twice for `run_s`, in a process of its own that computes on one core.

    Raises:
        NodeFailed: that process ended without an answer.
    """
    program = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import main; main({run_s!r})"
    one_core = dict.fromkeys(("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"), "1")
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | one_core, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise NodeFailed(f"the loop to be measured ended with exit code {done.returncode}; its errors stand above.")
    found = json.loads(done.stdout)
    forms = tuple(Form(**form) for form in found["forms"])
    return Breakdown(sizes=Sizes(**found["sizes"]), core_share=found["core_share"], forms=forms)


def main(run_s: float) -> None:
    """That process: prints a breakdown as JSON."""
    with tempfile.TemporaryDirectory() as folder, _parameter_server() as server:
        sizes, core_share = _calibrated(Path(folder), server)
        work = Work.of(sizes, Path(folder), server)
        kinds = tuple(_kinds(work))
        rounds = [[_run(kind, work, run_s) for kind in kinds] for _ in range(2)]  # in turns: noise meets all of them
        forms = tuple(min(tries, key=lambda form: form.step_s) for tries in zip(*rounds, strict=True))
    sys.stdout.write(json.dumps(asdict(Breakdown(sizes=sizes, core_share=core_share, forms=forms))))


# The records


def _write(path: Path, sizes: Sizes) -> None:
    """Records as CIFAR-10 has them, a label and 3 x 32 x 32 pixels, with a tail and a checksum behind each."""
    import numpy as np

    random = np.random.default_rng(0)
    with path.open("wb") as file:
        for _ in range(BLOCKS * BATCH):
            body = bytes([int(random.integers(CLASSES))]) + random.bytes(PIXELS) + random.bytes(sizes.tail_bytes)
            file.write(body + struct.pack("<I", zlib.crc32(body)))


def _records(path: Path, record_bytes: int) -> Iterator[bytes]:
    """Each record, checked, without its tail; from the start again after the last."""
    with path.open("rb") as file:
        while True:
            while record := file.read(record_bytes):
                body = memoryview(record)[:-4]
                if zlib.crc32(body) != struct.unpack_from("<I", record, record_bytes - 4)[0]:
                    raise ValueError(f"{path} is damaged")
                yield record[: 1 + PIXELS]
            file.seek(0)


def _taken(records: Iterator[bytes]) -> list[bytes]:
    """get_batch, as it was."""
    return [next(records) for _ in range(BATCH)]


def _batches_of_records(path: Path, record_bytes: int) -> Iterator[list[bytes]]:
    records = _records(path, record_bytes)
    while True:
        yield _taken(records)


def input_fn(records: list[bytes]) -> Batch:
    """The document's function of the same name: each record is decoded and normalised by itself."""
    import numpy as np

    mean, std = np.asarray(MEAN, np.float32), np.asarray(STD, np.float32)
    images, labels = [], []
    for record in records:
        label = np.int64(record[0])
        pixels = np.frombuffer(record, np.uint8, PIXELS, 1).reshape(3, 32, 32).transpose(1, 2, 0)
        image = pixels.astype(np.float32)
        image /= np.float32(255)
        image = (image - mean) / std
        images.append(image)
        labels.append(label.astype(np.int32))
    features: NDArray[np.float32] = np.reshape(np.concatenate(images, axis=0), (len(images), PIXELS))
    return features, np.array(labels)


def _blocks(path: Path, record_bytes: int) -> Iterator[NDArray[np.uint8]]:
    """Batches of records as bytes in rows, checked, mapped rather than read; without their tails."""
    import numpy as np

    rows = np.memmap(path, np.uint8, mode="r").reshape(-1, record_bytes)
    sums = [zlib.crc32(rows[at : at + BATCH].data) for at in range(0, len(rows), BATCH)]
    while True:
        for at, sum_ in zip(range(0, len(rows), BATCH), sums, strict=True):
            block = rows[at : at + BATCH]
            if zlib.crc32(block.data) != sum_:
                raise ValueError(f"{path} is damaged")
            yield block[:, : 1 + PIXELS]


def preprocess(block: NDArray[np.uint8]) -> Batch:
    """What `input_fn` does, for all records of a batch at once."""
    import numpy as np

    pixels = block[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    scale = (1 / (255 * np.asarray(STD, np.float64))).astype(np.float32)
    features = pixels * scale
    features -= (np.asarray(MEAN, np.float64) / STD).astype(np.float32)
    return features.reshape(-1, PIXELS), block[:, 0].astype(np.int32)


# The model


def _model(sizes: Sizes) -> Arrays:
    import numpy as np

    random = np.random.default_rng(1)
    values = {
        "hidden": random.normal(0, 0.01, (PIXELS, sizes.hidden)),
        "hidden_bias": np.zeros(sizes.hidden),
        "classes": random.normal(0, 0.1, (sizes.hidden, CLASSES)),
        "classes_bias": np.zeros(CLASSES),
        "table": random.normal(0, 1, sizes.table),
    }
    return {name: value.astype(np.float32) for name, value in values.items()}


def eager(parameters: Arrays, batch: Batch) -> Arrays:
    """The gradient layer by layer: each step makes an array of 64 bits, as NumPy does if nothing else is asked for."""
    import numpy as np

    features, labels = batch
    w = {name: value.astype(np.float64) for name, value in parameters.items()}
    before = features @ w["hidden"] + w["hidden_bias"]
    hidden = np.maximum(before, 0)
    scores = hidden @ w["classes"] + w["classes_bias"]
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    chances = powers / powers.sum(axis=1, keepdims=True)
    wrong = (chances - np.eye(CLASSES)[labels]) / len(labels)
    back = (wrong @ w["classes"].T) * (before > 0)
    made = {
        "hidden": features.T @ back,
        "hidden_bias": back.sum(axis=0),
        "classes": hidden.T @ wrong,
        "classes_bias": wrong.sum(axis=0),
        "table": np.zeros_like(w["table"]),
    }
    return {name: (value + DECAY * w[name]).astype(np.float32) for name, value in made.items()}


class Compiled:
    """The same gradient as one step that was laid out before: BLAS of 32 bits, into memory that is there already."""

    def __init__(self, parameters: Arrays) -> None:
        import numpy as np

        units = parameters["hidden"].shape[1]
        self._made = {name: np.empty_like(value) for name, value in parameters.items()}
        self._hidden = np.empty((BATCH, units), np.float32)
        self._back = np.empty((BATCH, units), np.float32)
        self._scores = np.empty((BATCH, CLASSES), np.float32)
        self._rows = np.arange(BATCH)

    def __call__(self, parameters: Arrays, batch: Batch) -> Arrays:
        import numpy as np

        features, labels = batch
        made, hidden, back, scores = self._made, self._hidden, self._back, self._scores
        np.matmul(features, parameters["hidden"], out=hidden)
        hidden += parameters["hidden_bias"]
        np.maximum(hidden, 0, out=hidden)
        np.matmul(hidden, parameters["classes"], out=scores)
        scores += parameters["classes_bias"]
        scores -= scores.max(axis=1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=1, keepdims=True)
        scores[self._rows, labels] -= 1
        scores /= BATCH
        np.matmul(scores, parameters["classes"].T, out=back)
        back *= hidden > 0
        np.matmul(features.T, back, out=made["hidden"])
        np.matmul(hidden.T, scores, out=made["classes"])
        np.sum(back, axis=0, out=made["hidden_bias"])
        np.sum(scores, axis=0, out=made["classes_bias"])
        made["table"].fill(0)
        for name, value in made.items():
            np.add(value, np.float32(DECAY) * parameters[name], out=value)
        return made


# The parameter server


@contextmanager
def _parameter_server() -> Iterator[Connection]:
    """A connection to one in a process of its own."""
    from spanwise.pipelines.input.service.wire.connection import Connection
    from spanwise.pipelines.input.service.wire.security import Security

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
            raise NodeFailed(f"the parameter server ended with exit code {process.wait()}; its errors stand above.")
        connection = Connection(target, Security(token=token))
        yield connection
        connection.close()
    finally:
        process.stdin.close()  # which ends it
        process.wait()
        process.stdout.close()


def serve() -> None:
    """That process: keeps the model until nobody holds its standard input any more."""
    from spanwise.components.training.elastic import requests
    from spanwise.components.training.elastic.parameters import Contribution, Parameters
    from spanwise.pipelines.input.service.wire.requests import Request
    from spanwise.pipelines.input.service.wire.security import Security
    from spanwise.pipelines.input.service.wire.server import Server

    class Sent(Request):
        """Arrays come with it."""

        layout: requests.Layout

    class Get(Request):
        """Asks for the model."""

    model: list[Parameters] = []

    def descended(values: Arrays, gradient: Arrays) -> Arrays:
        return {name: value - RATE * gradient[name] for name, value in values.items()}

    def set_model(request: Sent, content: bytes) -> tuple[dict[str, Any], bytes]:
        model[:] = [Parameters(unpacked(request.layout, content), descended)]
        return {}, b""

    def get_model(_: Get, __: bytes) -> tuple[dict[str, Any], bytes]:
        layout, content = packed(model[0].values)
        return {"layout": layout}, content

    def report_gradient(request: Sent, content: bytes) -> tuple[dict[str, Any], bytes]:
        gradient = unpacked(request.layout, content)
        model[0].offer(Contribution(worker="one", rows=BATCH, gradient=gradient), model[0].version)
        model[0].settle(frozenset())
        return {"version": model[0].version}, b""

    server = Server(
        "127.0.0.1",
        0,
        Security(token=sys.stdin.readline().strip()),
        actions={
            "set_model": (Sent, set_model),
            "get_model": (Get, get_model),
            "report_gradient": (Sent, report_gradient),
        },
        limit_bytes=1 << 30,
    )
    sys.stdout.write(server.target + "\n")
    sys.stdout.flush()
    sys.stdin.read()
    server.shutdown()


# The loop


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A form that is to be measured."""

    name: str
    change: str
    gradient: Gradient
    dataset: Dataset | None = None  #: the input; None for the loop as it was
    switch_s: float | None = None  #: how long a thread that has Python's lock may keep others waiting; None as it is


@dataclass(frozen=True, kw_only=True)
class Work:
    """The data and the model of a loop."""

    path: Path
    record_bytes: int
    model: Arrays = field(repr=False)
    server: Connection

    @classmethod
    def of(cls, sizes: Sizes, folder: Path, server: Connection) -> Work:
        path = folder / f"{sizes.tail_bytes}.records"
        if not path.exists():
            _write(path, sizes)
        model = _model(sizes)
        layout, content = packed(model)
        server.call("set_model", {"layout": layout}, content)
        return cls(path=path, record_bytes=1 + PIXELS + sizes.tail_bytes + 4, model=model, server=server)


def _kinds(work: Work) -> Iterator[Kind]:
    from spanwise.pipelines.input.sources import from_generator

    compiled = Compiled(work.model)
    records = from_generator(_batches_of_records, work.path, work.record_bytes).options(optimize=False)
    blocks = from_generator(_blocks, work.path, work.record_bytes).options(optimize=False)
    yield Kind(name="as it was", change="", gradient=eager)
    one_after_another = blocks.map(preprocess)
    yield Kind(name="one dataset, vectorised", change="dataset", gradient=eager, dataset=one_after_another)

    def mapped(num_parallel: int, workers: Any) -> Dataset:
        return records.map(input_fn, num_parallel=num_parallel, workers=workers, stateless=True).prefetch(2)

    in_front = records.map(input_fn).prefetch(2)
    yield Kind(name="a prefetch thread", change="overlap", gradient=eager, dataset=in_front)
    yield Kind(
        name="the same, lock handed on after 0.5 ms", change="overlap", gradient=eager, dataset=in_front, switch_s=5e-4
    )
    for name, num_parallel, workers in (
        ("two map threads", 2, "threads"),
        ("a map process", 1, "processes"),
        ("two map processes", 2, "processes"),
        ("two, chosen by measurement", 2, "auto"),
    ):
        yield Kind(name=name, change="overlap", gradient=eager, dataset=mapped(num_parallel, workers))
    yield Kind(name="the compiled step", change="compiled step", gradient=compiled)
    both = blocks.map(preprocess, num_parallel=1, stateless=True).prefetch(2)
    yield Kind(name="all together", change="all", gradient=compiled, dataset=both)


def _run(kind: Kind, work: Work, run_s: float, *, warm_up: int = 8) -> Form:
    """Runs the loop in one form, and tells what a step takes."""
    steps: list[Phases] = []
    switch_s = sys.getswitchinterval()
    if kind.switch_s is not None:
        sys.setswitchinterval(kind.switch_s)
    try:
        with _input(kind, work) as take:
            for _ in range(warm_up):
                _step(take, kind.gradient, work.server)
            begun = time.perf_counter()
            while not steps or time.perf_counter() < begun + run_s:
                steps.append(_step(take, kind.gradient, work.server))
            step_s = (time.perf_counter() - begun) / len(steps)
    finally:
        sys.setswitchinterval(switch_s)
    seconds = {str(phase): statistics.median(step.seconds[phase] for step in steps) for phase in Phase}
    return Form(name=kind.name, change=kind.change, step_s=step_s, seconds=seconds)


@contextmanager
def _input(kind: Kind, work: Work) -> Iterator[Callable[[Phases], Batch]]:
    """What gives the next batch, and adds what that takes."""
    records = _records(work.path, work.record_bytes)

    def as_it_was(phases: Phases) -> Batch:
        with phases.during(Phase.GET_BATCH):
            taken = _taken(records)
        with phases.during(Phase.INPUT_FN):
            return input_fn(taken)

    with kind.dataset.iterator() if kind.dataset is not None else nullcontext() as batches:

        def from_dataset(phases: Phases) -> Batch:
            assert batches is not None
            with phases.during(Phase.GET_BATCH):
                batch: Batch = next(batches)
            return batch

        yield as_it_was if batches is None else from_dataset


def _step(take: Callable[[Phases], Batch], gradient: Gradient, server: Connection) -> Phases:
    """One turn of the document's loop."""
    phases = Phases(batches=1)
    batch = take(phases)
    with phases.during(Phase.GET_MODEL):
        found, content = server.call("get_model", {})
        parameters = unpacked(found["layout"], content)
    with phases.during(Phase.COMPUTE):
        made = gradient(parameters, batch)
    with phases.during(Phase.REPORT):
        layout, content = packed(made)
        server.call("report_gradient", {"layout": layout}, content)
    return phases


# Sizes


KNOBS: Final = {"tail_bytes": Phase.GET_BATCH, "hidden": Phase.COMPUTE, "table": Phase.GET_MODEL}
"""What each size is found by: the time of a phase, which grows with it."""

LEAST: Final = Sizes(tail_bytes=0, hidden=2, table=1)
MOST: Final = Sizes(tail_bytes=60_000, hidden=512, table=4_000_000)


def _calibrated(folder: Path, server: Connection, *, times: int = 4, steps: int = 24) -> tuple[Sizes, float]:
    """Sizes with which the loop as it was has the document's shares, and which share of a core a computing thread got.

    Input is what it is; the other phases are made as long as they are to be beside it. A phase's time is a line over
    its size, found by two points; then the sizes are mended by what is still missing.
    """
    small = Sizes()
    large = replace(small, tail_bytes=3 * small.tail_bytes, hidden=3 * small.hidden, table=20 * small.table)
    first, _ = _phases(small, folder, server, steps)
    second, core_share = _phases(large, folder, server, steps)
    slopes = {
        name: max(1e-12, second[phase] - first[phase]) / (getattr(large, name) - getattr(small, name))
        for name, phase in KNOBS.items()
    }
    sizes, seconds = small, first
    best, off = small, float("inf")
    for _ in range(times):
        sizes = nearer(sizes, seconds, slopes)
        seconds, core_share = _phases(sizes, folder, server, steps)
        worst = max(
            abs(share - wanted)
            for share, wanted in zip(Phases(seconds).shares().values(), document_shares().values(), strict=True)
        )
        if worst < off:
            best, off = sizes, worst
    return best, core_share


def nearer(sizes: Sizes, seconds: Mapping[Phase, float], slopes: Mapping[str, float]) -> Sizes:
    """Sizes whose phases are as long as the document has them beside `input_fn`, if a size more costs its slope."""
    scale = seconds[Phase.INPUT_FN] / DOCUMENT_S[Phase.INPUT_FN]
    found = {}
    for name, phase in KNOBS.items():
        # the server's two phases share one size
        missing_s = scale * DOCUMENT_S[phase] - seconds[phase]
        if phase is Phase.GET_MODEL:
            missing_s = (missing_s + scale * DOCUMENT_S[Phase.REPORT] - seconds[Phase.REPORT]) / 2
        wanted = round(getattr(sizes, name) + missing_s / slopes[name])
        found[name] = min(getattr(MOST, name), max(getattr(LEAST, name), wanted))
    return Sizes(**found)


def _phases(sizes: Sizes, folder: Path, server: Connection, steps: int) -> tuple[Mapping[Phase, float], float]:
    """What each phase takes with those sizes, where nothing disturbs it; and the share of a core in computing."""
    work = Work.of(sizes, folder, server)
    kind = Kind(name="", change="", gradient=eager)
    cpu_s = took_s = 0.0

    def timed(parameters: Arrays, batch: Batch) -> Arrays:
        nonlocal cpu_s, took_s
        cpu, started = time.thread_time(), time.perf_counter()
        made = eager(parameters, batch)
        cpu_s, took_s = cpu_s + time.thread_time() - cpu, took_s + time.perf_counter() - started
        return made

    with _input(kind, work) as take:
        found = [_step(take, timed, server) for _ in range(steps + 2)][2:]
    return {phase: min(step.seconds[phase] for step in found) for phase in Phase}, cpu_s / took_s
