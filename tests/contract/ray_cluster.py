"""Ray clusters for tests, each in a folder of its own."""

import tempfile
from contextlib import contextmanager
from pathlib import Path

from spanwise.pipelines.demo_servers import RayCluster


@contextmanager
def start_ray(cpus):
    """A cluster whose head has so many processors."""
    with (
        tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder,
        RayCluster(Path(folder), cpus=cpus) as cluster,
    ):
        yield cluster
