"""Services for generated graphs: one in this process, and one whose workers are processes that can be killed."""

import atexit
import functools
import itertools
import time

from spanwise.pipelines.input.service.dispatcher.dispatcher import DispatchServer
from spanwise.pipelines.input.service.wire.config import DispatcherConfig, WorkerConfig
from spanwise.pipelines.input.service.worker.worker import WorkerServer
from spanwise.pipelines.input.snapshot.element_types import register_type
from tests.contract.shapes import Pair, Ride, Whole, whole
from tests.forkserver import FORKS
from tests.pipelines.input.service.servers import listed
from tests.servers import free_ports

_numbers = itertools.count()
for _kind in (Pair, Ride, Whole):
    register_type(_kind)


def fresh_job():
    """A name that no other job has."""
    return f"job {next(_numbers)}"


@functools.cache
def running_service():
    """Two workers in this process, for all graphs."""
    service = listed(2)
    atexit.register(service.close)
    return service


class MortalWorkers:
    """A dispatcher in this process, and two workers as processes of their own, at fixed ports."""

    def __init__(self):
        self._ports = free_ports(2)
        self._dispatcher = DispatchServer(
            DispatcherConfig(worker_addresses=tuple(f"127.0.0.1:{port}" for port in self._ports))
        )
        self.target = self._dispatcher.target
        self._processes = [self._start(port) for port in self._ports]

    def _start(self, port):
        process = FORKS.Process(target=_work, args=(self.target, port), daemon=True)
        process.start()
        return process

    def replace(self, number):
        """Kills a worker and starts another one at its port."""
        self._processes[number].kill()
        self._processes[number].join()
        self._processes[number] = self._start(self._ports[number])

    def close(self):
        for process in self._processes:
            process.kill()
            process.join()
        self._dispatcher.stop()


@functools.cache
def mortal_service():
    service = MortalWorkers()
    atexit.register(service.close)
    return service


def _work(target, port):
    WorkerServer(WorkerConfig(dispatcher_address=target, port=port, heartbeat_s=0.1)).join()


def slowly_whole(*element):
    """So that a worker is killed while it has elements to make."""
    time.sleep(0.002)
    return whole(*element)
