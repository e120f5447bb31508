"""A data service in this process: a dispatcher, workers, and ways to start and stop them."""

import contextlib

from spanwise.pipelines.input.service.dispatcher.dispatcher import DispatchServer
from spanwise.pipelines.input.service.wire.config import DispatcherConfig, WorkerConfig
from spanwise.pipelines.input.service.worker.worker import WorkerServer
from tests.servers import free_ports


class Service(contextlib.ExitStack):
    """A dispatcher and workers, stopped together."""

    def __init__(self, workers=1, **config):
        super().__init__()
        self.config = config
        self.dispatcher = DispatchServer(DispatcherConfig(**config))
        self.callback(self._stop_dispatcher)
        self.workers = []
        for _ in range(workers):
            self.add_worker()

    def _stop_dispatcher(self):
        self.dispatcher.stop()  # the one that is there by then

    @property
    def target(self):
        return self.dispatcher.target

    def add_worker(self, **config):
        config.setdefault("heartbeat_s", 0.1)
        worker = WorkerServer(WorkerConfig(dispatcher_address=self.target, **config))
        self.workers.append(worker)
        self.callback(worker.stop)
        return worker

    def restart_worker(self, number):
        old = self.workers[number]
        old.stop()
        port = int(old.address.rpartition(":")[2])
        self.workers[number] = WorkerServer(WorkerConfig(dispatcher_address=self.target, port=port, heartbeat_s=0.1))
        self.callback(self.workers[number].stop)

    def restart_dispatcher(self):
        self.dispatcher.stop()
        port = int(self.target.rpartition(":")[2])
        self.dispatcher = DispatchServer(DispatcherConfig(**{**self.config, "port": port}))


def listed(count, **config):
    """A service with a fixed list of workers, none of which is lost because the machine stands still for a while."""
    ports = free_ports(count)
    addresses = tuple(f"127.0.0.1:{port}" for port in ports)
    service = Service(0, worker_addresses=addresses, **{"worker_timeout_s": 600.0, **config})
    for port in ports:
        service.add_worker(port=port)
    return service
