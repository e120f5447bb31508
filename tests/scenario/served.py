"""A data service as processes: servers that are killed and started again, consumers that write down what they get."""

import os
import pickle
import signal
import time

from spanwise.orchestrator import durable
from spanwise.orchestrator.errors import ServiceError
from spanwise.pipelines import input as inputs
from spanwise.pipelines.input.service.wire.connection import ServiceConnection
from spanwise.pipelines.input.service.wire.requests import GetStatus
from spanwise.pipelines.input.service.wire.security import Security
from spanwise.scheduler.main import main
from tests.forkserver import FORKS
from tests.servers import free_ports

END = "end"
LATE = "was read to its end"  # the dispatcher's words to who joins a finished job


class Servers:
    """A dispatcher and two workers, each at its port."""

    def __init__(self, folder, client_timeout_s=20):
        self.ports = dict(zip(("dispatcher", "left", "right"), free_ports(3), strict=True))
        self.target = f"grpc://127.0.0.1:{self.ports['dispatcher']}"
        self.folder = folder
        self.client_timeout_s = client_timeout_s
        self.processes = {}
        for name in self.ports:
            self.start(name)

    def start(self, name):
        port = ["--port", str(self.ports[name])]
        if name == "dispatcher":
            patience = ["--client-timeout", str(self.client_timeout_s)]
            listed = [word for worker in ("left", "right") for word in ("--worker", f"127.0.0.1:{self.ports[worker]}")]
            words = ["dispatcher", *port, "--work-dir", str(self.folder), *patience, *listed]
        else:
            words = ["worker", self.target, *port]
        self.processes[name] = FORKS.Process(target=_serve, args=(words,), daemon=True)
        self.processes[name].start()

    def kill(self, name, how=signal.SIGKILL):
        process = self.processes[name]
        process.kill() if how == signal.SIGKILL else process.terminate()
        process.join()

    def restart(self, name):
        self.kill(name)
        self.start(name)

    def status(self):
        connection = ServiceConnection(self.target, Security())
        try:
            return connection.ask(GetStatus())[0].model_dump(mode="json")
        finally:
            connection.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for name in self.processes:
            self.kill(name)


def _serve(words):
    """What `spanwise service` does, in a fork of a process that has imported it: that takes a tenth of the time."""
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    main(["service", *words])


class Consumer:
    """A process that reads a dataset, and writes down each element before it asks for the next one.

    `make` and what it is called with make the dataset, in the process; `limit` elements are enough for it.
    """

    def __init__(self, path, make, *arguments, limit=None):
        self.path = path
        path.touch()
        self.process = FORKS.Process(target=_consume, args=(path, limit, make, *arguments))
        self.process.start()

    def given(self):
        """Each element that it has got, and when, by a clock that all processes have in common."""
        pairs = (line.split() for line in self._lines() if line != END)
        return [(int(element), float(moment)) for element, moment in pairs]

    @property
    def has_ended(self):
        """Whether it has got to the end of the elements, or to its limit; or has joined when nothing was left."""
        return self._lines()[-1:] == [END]

    def _lines(self):
        return self.path.read_text().splitlines()

    def kill(self):
        self.process.kill()
        self.process.join()


def _consume(path, limit, make, *arguments):
    number = 0
    with path.open("ab", buffering=0) as file, make(*arguments).iterator() as elements:
        try:
            for number, element in enumerate(elements, 1):
                if number - 1 == limit:
                    break
                file.write(f"{element} {time.monotonic()}\n".encode())
        except ServiceError as error:
            if number or LATE not in str(error):
                raise
        file.write(END.encode() + b"\n")


def slow(number):
    time.sleep(0.001)
    return number


def numbers(target, count, mode, name=None):
    """So many numbers, made slowly by the workers."""
    everything = inputs.range(count)
    if mode == "file":  # what is read for a text counts as a file
        everything = inputs.from_elements([str(first) for first in range(0, count, 100)]).flat_map(hundred)
    if mode == "hint":
        everything = everything.shard(inputs.SHARD_HINT, 0)
    return everything.map(slow).distribute(target, mode, name)


def hundred(first):
    return inputs.range(int(first), int(first) + 100)


def learn(path, target, count, mode, name):
    """A training that stores what it has learned together with its place in the input, and commits; until it ends."""
    dataset = inputs.range(count).map(slow).distribute(target, mode, name).shuffle(90, seed=7).batch(10)
    iterator = dataset.iterator(epoch=0)
    learned: list[int] = []
    if path.exists():
        learned, state = pickle.loads(path.read_bytes())
        iterator.restore(state)
    else:
        iterator.state()  # nothing counts before the first checkpoint
    for number, batch in enumerate(iterator):
        learned += batch.tolist()
        if number % 4 == 0:
            _store(path, learned, iterator)
    _store(path, learned, iterator)
    path.with_suffix(".end").touch()


def _store(path, learned, iterator):
    durable.put(path, [pickle.dumps((learned, iterator.state()))])
    iterator.commit()
