"""A PostgreSQL of the tests' own: a cluster in a temporary folder that listens on a free port."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spanwise.pipelines.demo_servers import serve_postgresql

NEEDED = "SPANWISE_TEST_SQL"  #: set where a missing PostgreSQL is a failure, as in `make test-sql`


@contextmanager
def serve(host: str = "127.0.0.1") -> Iterator[str]:
    """The URL of a server that stops at the end, with all that is in it; its network of 256 addresses may come in."""
    with tempfile.TemporaryDirectory(prefix="postgresql-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)  # PostgreSQL may be another user's
        with serve_postgresql(Path(folder, "cluster"), host, durable=False) as url:
            yield url
