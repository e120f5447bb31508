"""The notebook of the docs in a real Jupyter kernel, whose event loop runs and which has used Polars and gRPC."""

from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "docs" / "how-to" / "use-a-notebook.ipynb"

BEFORE = """
import asyncio
from concurrent import futures

import grpc
import polars

polars.LazyFrame({"x": range(10_000)}).group_by(polars.col("x") % 7).agg(polars.len()).collect()
server = grpc.server(futures.ThreadPoolExecutor())
port = server.add_insecure_port("127.0.0.1:0")
server.start()
channel = grpc.insecure_channel(f"127.0.0.1:{port}")
grpc.channel_ready_future(channel).result(60)
assert asyncio.get_running_loop().is_running()
"""
AFTER = "channel.close()\nserver.stop(None).wait()"


def test_the_notebook_runs_in_a_kernel_that_has_used_polars_and_grpc(tmp_path):
    """Runs are started, read and shown as tables; a fork of such a kernel could not have run them."""
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    book = nbformat.read(NOTEBOOK, as_version=4)
    book.cells.insert(0, nbformat.v4.new_code_cell(BEFORE))
    book.cells.append(nbformat.v4.new_code_cell(AFTER))

    nbclient.NotebookClient(book, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    printed = [output for cell in book.cells if cell.cell_type == "code" for output in cell.outputs]
    text = "".join(output.text for output in printed if output.output_type == "stream" and output.name == "stdout")

    assert text.count("complete") == 2
    assert "ingested" in text
    assert any("<table>" in output.data.get("text/html", "") for output in printed if "data" in output)
