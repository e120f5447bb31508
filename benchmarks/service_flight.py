"""What bare Arrow Flight makes of the work of `benchmarks.service`: the same map behind `do_get`, and nothing else.

    python -m benchmarks.service_flight TABLE.arrow …

Serves on a free port of this machine, and prints it. A ticket says how many rows a batch has, and how many passes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pyarrow as pa
from pyarrow import flight

from benchmarks.input_peers import features


class Server(flight.FlightServerBase):
    def __init__(self, files: list[str]) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self._files = files

    def do_get(self, _context: object, ticket: flight.Ticket) -> flight.FlightDataStream:
        rows, passes = map(int, ticket.ticket.decode().split())
        batches = self._batches(rows, passes)
        first = next(batches)
        return flight.GeneratorStream(first.schema, _chained(first, batches))

    def _batches(self, rows: int, passes: int) -> Iterator[pa.RecordBatch]:
        for _ in range(passes):
            for file in self._files:
                reader = pa.ipc.open_file(pa.memory_map(file))
                for number in range(reader.num_record_batches):
                    block = reader.get_batch(number)
                    made = features({name: block.column(name).to_numpy() for name in block.schema.names})
                    whole = pa.RecordBatch.from_pydict(made)
                    for at in range(0, whole.num_rows, rows):
                        yield whole.slice(at, rows)


def _chained(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest


if __name__ == "__main__":
    server = Server(sys.argv[1:])
    print(server.port, flush=True)
    server.serve()
