"""A worker of `benchmarks.service` that lends no memory, so that everything is sent.

python -m benchmarks.service_worker DISPATCHER PORT
"""

from __future__ import annotations

import sys

from spanwise.pipelines.input.service.wire.config import WorkerConfig
from spanwise.pipelines.input.service.worker.worker import WorkerServer

if __name__ == "__main__":
    worker = WorkerServer(WorkerConfig(dispatcher_address=sys.argv[1], port=int(sys.argv[2]), shared_bytes=0))
    print(f"worker at {worker.address}", flush=True)
    worker.join()
