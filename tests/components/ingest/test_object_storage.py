"""ExampleGen on a bucket: spans and versions by URL, each object copied once, in the revision that was listed."""

from __future__ import annotations

import json
import os
import uuid
from datetime import date, timedelta

import pyarrow.parquet as pq
import pytest

from spanwise import ExampleGen, Pipeline
from spanwise.components.ingest.fingerprint import fingerprint
from spanwise.components.ingest.source_files import SourceFiles, copy_objects, newest_object_span
from spanwise.orchestrator.errors import Conflict, ParameterError
from spanwise.orchestrator.run import State
from spanwise.orchestrator.span import choose
from spanwise.orchestrator.span_pattern import SpanPattern
from spanwise.orchestrator.storage import forget_buckets, list_objects, machine_copies, open_bucket, parse_url
from spanwise.orchestrator.testing import Trial
from tests.contract.faulty_proxy import proxied
from tests.contract.object_storage import serve
from tests.contract.web_server import serve_web


@pytest.fixture(scope="module")
def home():
    with serve("moto") as home:
        yield home


class BucketLake:
    """Writes spans below a folder of a bucket."""

    def __init__(self, url):
        self.url = url
        self.bucket = open_bucket(parse_url(url).home)

    def arrive(self, day, version, text):
        url = f"{self.url}/{day}/v{version}/trips.csv"
        self.bucket.write(parse_url(url).key, text.encode())
        return url


@pytest.fixture
def lake(home, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    machine_copies.cache_clear()
    yield BucketLake(f"{home}/{uuid.uuid4().hex}")
    machine_copies.cache_clear()


@pytest.fixture
def pipeline(lake):
    def make(**arguments):
        return Pipeline(
            "trips", [ExampleGen(pattern=f"{lake.url}/{{YYYY}}-{{MM}}-{{DD}}/v{{VERSION}}/*.csv", **arguments)]
        )

    return make


@pytest.fixture
def trial(tmp_path):
    return Trial(tmp_path / "root")


def test_a_run_ingests_the_newest_version_of_its_span(lake, pipeline, trial):
    """As from a folder; the same content written again is served from the cache, another is not."""
    lake.arrive("2013-01-01", 1, "x\n1\n")
    lake.arrive("2013-01-02", 1, "x\n1\n")
    lake.arrive("2013-01-02", 2, "x\n2\n3\n")

    first = trial.run(pipeline(), span="2013-01-02")
    lake.arrive("2013-01-02", 2, "x\n2\n3\n")
    again = trial.run(pipeline(), span="2013-01-02")
    lake.arrive("2013-01-02", 2, "x\n2\n4\n")
    other = trial.run(pipeline(), span="2013-01-02")

    examples = first.artifact("ExampleGen", "examples")
    facts = examples.properties
    assert (facts["span"], facts["version"], sum(facts["rows"].values())) == (15707, 2, 2)
    assert again["ExampleGen"].state is State.CACHED
    assert other["ExampleGen"].state is State.COMPLETE


def test_a_span_that_is_missing_is_named_with_those_there_are(lake, pipeline, trial):
    """The message of a folder."""
    lake.arrive("2013-01-01", 1, "x\n1\n")

    ran = trial.run(pipeline(), span="2013-01-05")

    assert "no file of span 2013-01-05 matches" in ran["ExampleGen"].error
    assert "Available spans: 2013-01-01" in ran["ExampleGen"].error


def test_messages_and_rejects_name_the_object(lake, pipeline, trial):
    """Not its copy on this machine."""
    url = lake.arrive("2013-01-01", 1, "x,y\n1,2\n3\n")

    stopped = trial.run(pipeline(), span="2013-01-01")
    kept = trial.run(pipeline(bad_rows="keep"), span="2013-01-01")

    assert url in stopped["ExampleGen"].error
    assert "cache" not in stopped["ExampleGen"].error
    rejects = kept.artifact("ExampleGen", "rejects").path / "rejects.jsonl"
    assert [json.loads(line)["file"] for line in rejects.read_text().splitlines()] == [url]


def test_an_object_that_is_replaced_before_it_is_read_stops_the_ingest(lake):
    """The fingerprint is of another revision."""
    url = lake.arrive("2013-01-01", 1, "x\n1\n")
    listed = list_objects(f"{lake.url}/*/*/*")[url]
    lake.arrive("2013-01-01", 1, "x\n22\n")

    with pytest.raises(Conflict):
        copy_objects({"input": [url]}, {url: (listed.etag, listed.size_bytes, listed.modified_ns)})


def test_the_same_bytes_uploaded_again_have_the_same_fingerprint(tmp_path):
    """Files of one name count in the order of their URLs: their copies have other paths once they are uploaded again."""
    copies = {"s3://lake/3/north/part-0.csv": ("b", "z"), "s3://lake/3/south/part-0.csv": ("c", "a")}
    found = set()
    for revision in (0, 1):
        local = {url: tmp_path / folders[revision] / "part-0.csv" for url, folders in copies.items()}
        for url, copy in local.items():
            copy.parent.mkdir()
            copy.write_text(url)
        found.add(fingerprint({"all": tuple(map(str, local.values()))}, {str(c): url for url, c in local.items()}))

    assert len(found) == 1


def test_the_mark_of_a_span_changes_with_its_objects(lake, pipeline):
    """So that watch sees a rewritten file; `available` lists the spans."""
    lake.arrive("2013-01-01", 1, "x\n1\n")
    (node,) = pipeline()
    before = node.mark(15706)

    lake.arrive("2013-01-01", 1, "x\n2\n")

    assert node.mark(15706) != before
    assert node.available() == {15706: 1}


def test_a_cluster_cannot_read_the_copies(lake):
    """It is refused when the pipeline is built."""
    with pytest.raises(ParameterError, match="are copied to this machine, where the workers of PrismRunner"):
        ExampleGen(
            pattern=f"{lake.url}/{{SPAN}}/*.csv",
            beam_runner="PrismRunner",
            beam_options={"environment_type": "EXTERNAL"},
        )


def test_a_web_servers_files_are_ingested_by_the_span_that_a_run_names(lake, trial):
    """By the name that the pattern gives it; the newest is unknown, which is said."""
    with serve_web() as web:
        web.files["/trips-2024-01.csv"] = b"x\n1\n2\n"
        pipeline = Pipeline("trips", [ExampleGen(pattern=f"{web.url}/trips-{{YYYY}}-{{MM}}.csv")])

        ran = trial.run(pipeline, span="2024-01")
        again = trial.run(pipeline, span="2024-01")
        newest = trial.run(pipeline)
        missing = trial.run(pipeline, span="2024-02")

    assert sum(ran.artifact("ExampleGen", "examples").properties["rows"].values()) == 2
    assert again["ExampleGen"].state is State.CACHED
    assert "cannot be listed" in newest["ExampleGen"].error
    assert "name a span whose files are there: --span" in missing["ExampleGen"].error


def test_a_web_servers_file_is_read_anew_where_nothing_tells_its_revisions_apart(trial, monkeypatch, tmp_path):
    """Its size may be the same, and so may its time, which is in whole seconds."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    machine_copies.cache_clear()
    with serve_web() as web:
        web.sends_tags = False
        pipeline = Pipeline("trips", [ExampleGen(pattern=f"{web.url}/trips-{{YYYY}}-{{MM}}.csv", ratios={"all": 1})])
        runs = []
        for text in (b"x\n1\n2\n", b"x\n1\n2\n", b"x\n7\n8\n"):
            web.files["/trips-2024-01.csv"] = text
            runs.append(trial.run(pipeline, span="2024-01"))
    machine_copies.cache_clear()

    assert [ran["ExampleGen"].state for ran in runs] == [State.COMPLETE, State.CACHED, State.COMPLETE]
    assert pq.read_table(runs[-1].artifact("ExampleGen", "examples").path)["x"].to_pylist() == [7, 8]


@pytest.mark.parametrize(
    ("place", "file"),
    [
        ("region=eu/trips+tips", "region=eu/trips+tips"),
        ("New%20York", "New York"),
        ("(all) ü", "(all) ü"),
        ("a%2Bb", "a+b"),
    ],
)
def test_a_web_servers_file_is_found_however_its_name_is_written(place, file, trial):
    """With or without percent signs for what could stand in a URL as it is, or could not."""
    with serve_web() as web:
        web.files[f"/{file}/2024-01.csv"] = b"x\n1\n2\n"
        pipeline = Pipeline("trips", [ExampleGen(pattern=f"{web.url}/{place}/{{YYYY}}-{{MM}}.csv")])

        ran = trial.run(pipeline, span="2024-01")

    assert ran["ExampleGen"].state is State.COMPLETE, ran["ExampleGen"].error


@pytest.mark.parametrize("name", ["*.csv", "{SPAN}.csv", "{SPAN:4}/v{VERSION}/a.csv", "{SPAN:4}-[ab].csv"])
def test_a_web_server_is_asked_for_no_listing(name):
    """A pattern that would need one is refused when the pipeline is built."""
    with pytest.raises(
        ParameterError, match=r"but a web server's files cannot be listed\. Use dates, or numbers of one"
    ):
        ExampleGen(pattern=f"https://host/{name}")


@pytest.mark.parametrize(
    ("pattern", "name"),
    [("{YYYY}-{MM}-{DD}", lambda n: str(date(2020, 1, 1) + timedelta(n))), ("n{SPAN:5}", "n{:05d}".format)],
)
def test_the_newest_of_many_spans_takes_a_request_for_a_thousand(lake, pattern, name, monkeypatch):
    """And reads few of their names: nothing grows with the objects in them."""
    count, key = 1_200, parse_url(lake.url).key
    import moto.backends
    from moto.core import DEFAULT_ACCOUNT_ID

    store = moto.backends.get_backend("s3")[DEFAULT_ACCOUNT_ID]["aws"]
    for number in range(count):
        for file in "ab":
            store.put_object(parse_url(lake.url).bucket, f"{key}/{name(number)}/v1/{file}.csv", b"x\n")
    patterns = {"all": SpanPattern.parse(f"{lake.url}/{pattern}/v{{VERSION}}/*.csv")}
    matched, match = [], SpanPattern.match
    monkeypatch.setattr(SpanPattern, "match", lambda self, path: matched.append(path) or match(self, path))

    with proxied(os.environ["AWS_ENDPOINT_URL"]) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        forget_buckets()
        source = SourceFiles()
        found = choose(patterns, source.list, newest_object_span(patterns, source))
    forget_buckets()

    assert found.files["all"][0] == f"{lake.url}/{name(count - 1)}/v1/a.csv"
    assert len(proxy.requests) == 2 + 1
    assert len(matched) < 20
