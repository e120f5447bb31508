"""Says which ml-metadata answers, after one execution went in and came out of a SQLite store."""

import sys
import tempfile
from pathlib import Path

import ml_metadata
from ml_metadata.metadata_store import metadata_store
from ml_metadata.proto import metadata_store_pb2


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        config = metadata_store_pb2.ConnectionConfig()
        config.sqlite.filename_uri = str(Path(folder) / "metadata.sqlite")
        store = metadata_store.MetadataStore(config)
        type_id = store.put_execution_type(metadata_store_pb2.ExecutionType(name="smoke"))
        store.put_executions([metadata_store_pb2.Execution(type_id=type_id, name="once")])
        found = store.get_execution_by_type_and_name("smoke", "once")
        assert found is not None
        assert found.type_id == type_id
    python = ".".join(map(str, sys.version_info[:3]))
    print(f"ml-metadata {ml_metadata.__version__} on Python {python} keeps what it is given")  # noqa: T201  # its one answer


main()
