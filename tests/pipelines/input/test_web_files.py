"""Files of web servers: tables are read by ranges, and what a server cannot do is refused in a sentence."""

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spanwise.orchestrator.errors import ParameterError, UnreadableInput
from spanwise.orchestrator.storage import as_os_errors, object_files, open_bucket, parse_url
from spanwise.orchestrator.storage.object_files import ObjectFile
from spanwise.pipelines import input as inputs
from tests.contract.web_server import serve_web


@pytest.fixture
def web():
    with serve_web() as web:
        yield web


def parquet(table):
    file = io.BytesIO()
    pq.write_table(table, file, row_group_size=50_000, compression="none", use_dictionary=False)
    return file.getvalue()


def test_tables_are_read_by_ranges(web):
    """Only the columns and row groups that are needed travel; a query and a space in a name are passed on."""
    count = 200_000
    table = pa.table({"n": range(count), "wide": [bytes(40)] * count})
    web.files["/a b.parquet"] = parquet(table)

    rows = inputs.from_parquet(f"{web.url}/a%20b.parquet?token=x", columns=["n"], filter=inputs.col("n") > 160_000)
    found = rows.to_arrow()["n"].to_pylist()

    assert found == list(range(160_001, count))
    assert sum(sent for _, _, sent in web.requests) < len(web.files["/a b.parquet"]) / 5
    assert {path for _, path, _ in web.requests} == {"/a%20b.parquet?token=x"}


@pytest.mark.parametrize("sends_tags", [True, False])
def test_a_snapshot_is_of_the_file_that_the_server_has_now(web, tmp_path, sends_tags):
    """Also where its size is that of the file before, and no tag tells the two apart."""
    web.sends_tags = sends_tags
    found = []
    for text in (b"n\n1\n", b"n\n1\n", b"n\n2\n"):
        web.files["/a.csv"] = text
        found.append(inputs.from_csv(f"{web.url}/a.csv").snapshot(tmp_path).to_arrow()["n"].to_pylist())

    assert found == [[1], [1], [2]]
    assert len([path for path in tmp_path.iterdir() if not path.name.startswith(".")]) == 2


def test_text_is_read_ahead_in_blocks(web, monkeypatch):
    """A file that is read on and on costs a request for each block, whatever the reader asks for."""
    monkeypatch.setattr(object_files, "_BLOCK_BYTES", 64 << 10)
    web.files["/a.csv"] = b"n\n" + b"".join(b"%d\n" % number for number in range(100_000))

    assert inputs.from_csv(f"{web.url}/a.csv").to_arrow()["n"].to_pylist() == list(range(100_000))

    before = len(web.requests)
    info = open_bucket(parse_url(web.url).home).head("a.csv")
    with ObjectFile(open_bucket(parse_url(web.url).home), info) as file:
        content = b"".join(iter(lambda: file.read(1000), b""))
        file.seek(-5, io.SEEK_END)
        end = file.read()
    assert content == web.files["/a.csv"]
    assert end == content[-5:]
    blocks = -(-len(content) // (64 << 10))
    assert len(web.requests) - before <= blocks + 2


def test_a_file_that_is_replaced_while_it_is_read_is_refused(web):
    """Rather than read as half of one and half of the other."""
    web.files["/a.csv"] = b"n\n" * 1000
    bucket = open_bucket(parse_url(web.url).home)
    file = ObjectFile(bucket, bucket.head("a.csv"))
    web.files["/a.csv"] = b"m\n" * 1000

    with pytest.raises(OSError, match="was written by somebody else meanwhile"):
        file.read(10)


def test_what_a_server_cannot_do_is_refused(web):
    """Listings, parts, a file that is not there, a password in the URL."""
    web.files["/a.parquet"] = parquet(pa.table({"n": [1]}))

    with pytest.raises(UnreadableInput, match=r"b.parquet: cannot be read as Parquet \(.*does not exist\)"):
        inputs.from_parquet(f"{web.url}/b.parquet")
    with pytest.raises(OSError, match=r"a web server's files cannot be listed\. Name them without wildcards"):
        inputs.from_parquet(f"{web.url}/*.parquet")
    web.sends_parts = False
    with pytest.raises(UnreadableInput, match=r"the server sends no parts of files\. Copy the file to this machine"):
        inputs.from_parquet(f"{web.url}/a.parquet")
    with pytest.raises(ParameterError, match="holds a password, which would be shown"):
        inputs.from_parquet("https://me:secret@host/a.parquet")


def test_errors_do_not_show_a_query(web):
    """It may be a signature."""
    with pytest.raises(OSError, match=r"a.parquet\?…") as error, as_os_errors():
        open_bucket(parse_url(f"{web.url}/a.parquet?secret=1").home).read_range("a.parquet", 0, 1)

    assert "secret" not in str(error.value)
