"""A root in object storage: only `root = "s3://…"` is written, and a machine without anything else goes on."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from spanwise.orchestrator.storage import BucketArchive, forget_buckets, open_bucket, parse_url
from spanwise.orchestrator.storage.copies import folder_of_copies
from spanwise.orchestrator.storage.log_pieces import PIECE_BYTES
from spanwise.scheduler.client import connect
from spanwise.scheduler.main import main
from spanwise.scheduler.project import settings
from spanwise.scheduler.web.access import make_policy
from spanwise.scheduler.web.queries.logs import read_log
from spanwise.scheduler.web.site import WebSite
from tests.contract.faulty_proxy import proxied
from tests.contract.object_storage import SERVERS, serve
from tests.scheduler.web.conftest import ask

PIPELINE = """
import time
from pathlib import Path

from spanwise import Component, ExampleGen, Examples, Input, Model, Output, Pipeline


class Count(Component):
    def run(self, examples: Input[Examples], model: Output[Model], patience: str) -> None:
        print("counting", examples.span, flush=True)
        if patience:
            Path(patience).touch()
            for _ in range(600):
                if Path(patience + ".go").exists():
                    break
                time.sleep(0.1)
        (model.path / "rows").write_text(str(sum(1 for _ in examples.path.rglob("*.parquet"))))


def rows(patience: str = "") -> Pipeline:
    ingest = ExampleGen(pattern="{data}/{{SPAN}}/*.csv")
    return Pipeline("rows", [ingest, Count(examples=ingest["examples"], patience=patience)])
"""


@pytest.fixture(scope="module", params=["moto", *SERVERS])
def home(request):
    with serve(request.param) as home:
        yield home


@pytest.fixture
def place(home):
    return f"{home}/{uuid.uuid4().hex}"


class Machine:
    """A host with nothing but the project, and what it copies."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._patch = monkeypatch
        folder.mkdir()

    def use(self) -> None:
        self._patch.setenv("XDG_CACHE_HOME", str(self.folder))


@pytest.fixture
def project(tmp_path, place, monkeypatch):
    data = tmp_path / "data"
    for span in (1, 2, 3):
        (data / str(span)).mkdir(parents=True)
        (data / str(span) / "a.csv").write_text("x\n" + "".join(f"{n}\n" for n in range(span * 10)))
    (tmp_path / "rows.py").write_text(PIPELINE.format(data=data))
    (tmp_path / "spanwise.toml").write_text(f'root = "{place}"\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def machine(tmp_path, monkeypatch, project):
    def make(name):
        made = Machine(tmp_path / name, monkeypatch)
        made.use()
        return made

    return make


def typed(*words):
    assert main([*words]) == 0, words


def printed(capsys, *words):
    capsys.readouterr()
    typed(*words)
    return capsys.readouterr().out


def test_a_new_machine_goes_on(machine, project, place, capsys):
    """With the same metadata and root, and nothing else: results are reused, logs are read, artifacts are fetched."""
    machine("one")
    typed("run", "rows.py", "--span", "1")
    machine("two")

    again = printed(capsys, "run", "rows.py", "--span", "1")
    logs = printed(capsys, "logs", "rows/1", "Count")
    copies = folder_of_copies(parse_url(place))
    before = list(copies.glob("rows/*/*/*"))
    with connect() as client:
        model = client.artifact("rows/Count/model/1")
        rows = (model.path / "rows").read_text()
        with ask(WebSite(client, make_policy("127.0.0.1", tokens={}))) as browser:
            page = browser.get("/runs/rows/1/log/Count").text
            saved = browser.get("/runs/rows/1/log/Count/download").text
            examples = client.artifacts("rows", kind="Examples")[0]
            artifact = browser.get(f"/a/{examples.id}").text
            part = next(name for name in examples.files() if name.suffix == ".parquet")
            whole = browser.get(f"/download/{examples.id}/{part}").content
        shown = list(copies.glob("rows/ExampleGen/*/*"))

    assert "counting 1" in page
    assert "counting 1" in saved
    assert "First rows" in artifact
    assert whole[:4] == whole[-4:] == b"PAR1"
    assert shown == [], "a page copies nothing"
    assert "reused" in again
    assert "counting 1" in logs
    assert before == [], "nothing is copied that nobody asks for"
    assert rows.isdigit()
    assert not (project / ".spanwise" / "rows").exists()
    assert (project / ".spanwise" / "metadata.db").exists()


def test_a_cached_run_asks_the_storage_once(machine, place, monkeypatch):
    """Whose root it is; a machine without copies also asks whether each artifact is there."""
    if not place.startswith("s3:"):
        pytest.skip("the proxy counts requests of S3")
    machine("one")
    typed("run", "rows.py", "--span", "1")
    with proxied(os.environ["AWS_ENDPOINT_URL"]) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        forget_buckets()
        machine("two")
        typed("run", "rows.py", "--span", "1")
        first = [method for method, _ in proxy.requests]
        proxy.requests.clear()
        typed("run", "rows.py", "--span", "1")
        second = [path.rpartition("/")[2] for _, path in proxy.requests]
    forget_buckets()

    assert first.count("HEAD") == 2, "an artifact of each node"
    assert len(first) <= 4
    assert len(second) <= 3


def test_every_command_works_there(machine, project, place, capsys):
    """On a machine that has made nothing."""
    machine("one")
    for span in ("1", "2"):
        typed("run", "rows.py", "--span", span)
    machine("two")

    assert "rows" in printed(capsys, "runs")
    assert "ok    object storage" in printed(capsys, "doctor", "--deep")
    assert "rows/Count/model/1" in printed(capsys, "pin", "rows/Count/model/1")
    assert "span" in printed(capsys, "diff", "rows/1", "rows/2")
    typed("tainted", "rows", "--span", "1")
    typed("show", "rows/1")
    typed("lineage", "rows/Count/model/1")
    typed("artifacts", "rows")
    assert main(["backup", str(project / "copy")]) == 2
    assert "switch on versions or replication" in capsys.readouterr().err
    assert main(["restore", str(project)]) == 2


def test_gc_deletes_there(machine, place, capsys):
    """Artifacts, and logs; what an upload has left that died is found as well."""
    machine("one")
    for span in ("1", "2", "3"):
        typed("run", "rows.py", "--span", span)
    assert main(["run", "rows.py", "--span", "9"]) == 1
    machine("two")
    bucket, top = open_bucket(parse_url(place).home), parse_url(place)
    bucket.write((top / "rows/ExampleGen/examples/7/rows/00001").key, b"half of a large file")
    bucket.write((top / "rows/.runs/1/Count.checkpoints/1/abc").key, b"of a commit that was killed")

    typed("gc", "rows", "--keep-younger", "0s", "--keep-last", "1", "--keep-logs", "0s")

    left = {info.key.removeprefix(top.key + "/") for info in bucket.list(top.key)}
    outputs = {"/".join(key.split("/")[:3]) for key in left if key.endswith(".json")}
    assert outputs == {"rows/ExampleGen/examples", "rows/Count/model"}
    assert len([key for key in left if key.endswith(".json")]) == 2, "those of the newest run"
    assert not any("/7/" in key or "/.runs/" in key for key in left)


def test_gc_leaves_the_files_of_what_it_keeps(machine, project, place, capsys):
    """Also those whose names end like a manifest's: another machine still reads all of them."""
    (project / "rows.py").write_text((project / "rows.py").read_text().replace('/ "rows")', '/ "metrics.json")'))
    machine("one")
    typed("run", "rows.py", "--span", "1")

    planned = printed(capsys, "gc", "rows", "--dry-run")
    typed("gc", "rows")
    machine("two")
    with connect() as client:
        files = [file.name for file in client.artifact("rows/Count/model/1").path.iterdir()]

    assert files == ["metrics.json"]
    assert "0 leftovers" in planned or "leftover" not in planned


def test_show_fetches_the_pages_that_it_names_and_nothing_else(machine, project, place, capsys):
    """They can be opened then."""
    (project / "rows.py").write_text(
        (project / "rows.py").read_text().replace('        (model.path / "rows")', '        (model.path / "r.html")')
    )
    machine("one")
    typed("run", "rows.py", "--span", "1")
    machine("two")

    shown = printed(capsys, "show", "rows/1")

    (page,) = [line.strip() for line in shown.splitlines() if line.endswith("r.html")]
    assert Path(page).exists()
    fetched = folder_of_copies(parse_url(place)).glob("rows/*/*/*")
    assert [copy.parent.name for copy in fetched] == ["model"]


def test_an_artifact_is_found_by_its_url(machine, place, capsys):
    """The folder has the number of an execution, so it is not the artifact whose name looks like it."""
    machine("one")
    typed("run", "rows.py", "--span", "1")
    typed("run", "rows.py", "--span", "2")
    machine("two")

    assert printed(capsys, "lineage", f"{place}/rows/Count/model/2").startswith("rows/Count/model/1 ")
    assert printed(capsys, "lineage", f"{place}/rows/Count/model/4/rows").startswith("rows/Count/model/2 ")
    assert main(["lineage", f"{place}/rows/Count/model/9"]) == 2
    assert list(folder_of_copies(parse_url(place)).glob("rows/*/*/*")) == [], "nothing was fetched"


def test_gc_touches_nothing_there_that_no_node_has_written(machine, place, capsys):
    """Such as models that are served from below the root, however their folders are called."""
    machine("one")
    typed("run", "rows.py", "--span", "1")
    bucket, top = open_bucket(parse_url(place).home), parse_url(place)
    served = [(top / f"rows/serving/1795257036/{name}").key for name in ("0/weights", "1/weights", "2.json")]
    for key in served:
        bucket.write(key, b"a shard")

    listed = printed(capsys, "gc", "rows", "--keep-younger", "0s", "--keep-last", "0")

    assert "rows/serving/1795257036/0" in listed
    assert [key for key in served if bucket.head(key) is None] == []


def test_doctor_looks_there_for_what_has_a_copy_here(machine, place, capsys):
    """What is gone from the storage is gone for all other machines."""
    machine("one")
    typed("run", "rows.py", "--span", "1")
    typed("doctor", "--deep")
    top = parse_url(place)
    (model,) = [i.key for i in open_bucket(top.home).list(f"{top.key}/rows/Count/model") if i.key.endswith("/rows")]
    open_bucket(top.home).delete([model])
    capsys.readouterr()

    assert main(["doctor", "--deep"]) == 1

    printed = capsys.readouterr().out
    assert "artifact rows/Count/model/1: rows is gone from the object storage" in printed
    assert "give it up: spanwise unbless rows/Count/model/1" in printed


def test_what_serves_there_is_said_until_a_recorded_push_replaces_it(machine, project, place, capsys):
    """A run that restored metadata have forgotten had pushed it: `doctor`, `tainted` and the champion's reason say so."""
    text = (project / "rows.py").read_text().replace("Pipeline\n", "Pipeline, Pusher, Champion\n", 1)
    pushed = 'count = Count(examples=ingest["examples"], patience=patience); c = Champion(count["model"])\n    '
    pushed += f'return Pipeline("rows", [ingest, count, c, Pusher(model=count["model"], destination="{place}/rows/x")])'
    (project / "rows.py").write_text(text[: text.index("return Pipeline")] + pushed)
    machine("one")
    typed("run", "rows.py", "--span", "1")
    bucket, key = open_bucket(parse_url(place).home), (parse_url(place) / "rows/x/serving.json").key
    document = json.loads(bucket.read(key)[0])
    before = printed(capsys, "doctor")
    served = main(["tainted", "rows", "--span", "1"])

    (record,) = document["versions"].values()
    newest = document["version"] + 1
    document["versions"][str(newest)] = {**record, "model": "rows/Count/model/2", "content": "another"}
    bucket.write(key, json.dumps({**document, "version": newest}).encode())
    said = printed(capsys, "doctor")
    tainted = printed(capsys, "tainted", "rows", "--span", "1")
    ran = printed(capsys, "run", "rows.py", "--span", "2")

    place_of_it = f"{place}/rows/x/{newest}"
    assert "what serves" not in before
    assert served == 1
    assert f"warn  what serves of rows: {place_of_it} serves, which is newer than the last recorded push" in said
    assert "None of them serves now." in tainted
    assert f"pushed last by rows/1; but {place_of_it} serves" in ran


def test_a_root_belongs_to_one_history(machine, project, place, capsys):
    """Another machine with metadata of its own is refused, not mixed in."""
    machine("one")
    typed("run", "rows.py", "--span", "1")
    machine("two")

    assert main(["run", "rows.py", "--span", "1", "--config", str(_other_settings(project, place))]) == 2

    assert f"The root {place} belongs to another metadata store" in capsys.readouterr().err


def test_a_folder_of_copies_serves_a_root_that_was_made_anew(machine, project, place, capsys):
    """With new metadata: what it knows of the old ones is neither believed nor read."""
    one = machine("one")
    typed("run", "rows.py", "--span", "1")
    bucket, top = open_bucket(parse_url(place).home), parse_url(place)
    bucket.delete([info.key for info in bucket.list(top.key)])
    shutil.rmtree(project / ".spanwise")
    machine("two")
    typed("run", "rows.py", "--span", "3")
    one.use()

    with connect() as client:
        rows = client.artifact("rows/ExampleGen/examples/3/1").table().num_rows
    typed("doctor")
    typed("run", "rows.py", "--span", "2")
    printed(capsys, "runs")

    assert rows == 30


def _other_settings(project, place):
    file = project / "elsewhere.toml"
    file.write_text(f'root = "{place}"\nmetadata = "other.db"\n')
    return file


def test_copies_are_bounded(machine, place, monkeypatch):
    """Evicted by age, never what only this machine has."""
    machine("one")
    for span in ("1", "2", "3"):
        typed("run", "rows.py", "--span", span)
    root = folder_of_copies(parse_url(place))
    mine = root / "rows/Count/model/999"
    mine.mkdir()
    (mine / "rows").write_bytes(bytes(10_000))
    old = sorted(root.glob("rows/ExampleGen/examples/*"), key=lambda path: int(path.name))
    os.utime(mine, (1e9, 1e9))
    for age, folder in enumerate(old):
        os.utime(folder, (1e9 + age, 1e9 + age))
        for below in folder.iterdir():
            os.utime(below, (1e9 + age, 1e9 + age))
    (root / ".evicted").unlink()

    BucketArchive(root, parse_url(place), most_bytes=12_000).fetch(str(root / "rows/ExampleGen/examples/none"), "")
    assert len(list(root.glob("rows/ExampleGen/examples/*"))) == 3, "nothing was fetched, so nothing was removed"
    shutil.rmtree(old[2])
    BucketArchive(root, parse_url(place), most_bytes=12_000).fetch(str(old[2]), "")

    assert mine.exists()
    assert not old[0].exists()
    assert old[2].exists()


def test_logs_are_followed_from_another_machine(machine, project, place):
    """While the node runs."""
    one = machine("one")
    flag = project / "running"
    command = [sys.executable, "-P", "-m", "spanwise"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(one.folder)}
    run = subprocess.Popen([*command, "run", "rows.py", "--span", "1", "--param", f"patience={flag}"], env=environment)
    try:
        deadline = time.monotonic() + 300
        while not flag.exists():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        two = machine("two")
        follow = subprocess.Popen(
            [*command, "logs", "rows/1", "Count", "-f"],
            env={**os.environ, "XDG_CACHE_HOME": str(two.folder)},
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            first = follow.stdout.readline()
            assert run.poll() is None, "it still runs"
            (project / "running.go").touch()
            assert run.wait(300) == 0
            assert follow.wait(300) == 0
        finally:
            follow.kill()
            follow.stdout.close()
            follow.wait()
    finally:
        run.kill()
        run.wait()

    assert first == "counting 1\n"


def test_a_log_longer_than_a_piece_is_whole(tmp_path, place):
    """It is written in pieces, and read from any byte on."""
    archive = BucketArchive(tmp_path, parse_url(place))
    log = tmp_path / "rows/.runs/1/logs/Count.1.log"
    log.parent.mkdir(parents=True)
    text = b"".join(b"%09d\n" % number for number in range(60_000))
    sent = 0
    for end in (0, 5, 300_000, 300_000, len(text)):
        log.write_bytes(text[:end])
        sent = archive.keep_log(log, sent)
        assert sent == end

    assert archive.read_log(str(log)) == text
    assert archive.read_log(str(log), 299_999) == text[299_999:]
    assert archive.read_log(str(log), 299_999, 1) == text[299_999 : 2 * PIECE_BYTES]
    assert archive.open_log(str(log)).read() == text
    assert archive.open_log(str(log.with_name("Other.1.log"))) is None
    assert archive.run_folders("rows") == [str(log.parent)]


def test_the_end_of_a_long_log_is_a_piece(tmp_path, place):
    """A page asks for no more; its search for the text is by pieces as well."""
    if not place.startswith("s3:"):
        pytest.skip("the proxy counts requests of S3")
    log = tmp_path / "rows/.runs/1/logs/Count.1.log"
    log.parent.mkdir(parents=True)
    log.write_bytes(b"".join(b"%09d\n" % number for number in range(150_000)))
    with proxied(os.environ["AWS_ENDPOINT_URL"]) as proxy, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", proxy.url)
        forget_buckets()
        archive = BucketArchive(tmp_path, parse_url(place))
        archive.keep_log(log, 0)
        proxy.requests.clear()
        view = read_log(archive.open_log(str(log)))
        asked = [path.partition("?")[0].rpartition("/")[2] for _, path in proxy.requests]
    forget_buckets()

    assert view.text.endswith("000149999\n")
    assert view.size_bytes == 1_500_000
    assert asked[1:] == ["000005"]


def test_archive_as_a_setting_says_what_it_is_now(project, capsys):
    """The root itself."""
    (project / "spanwise.toml").write_text('archive = "s3://lake/x"\n')

    assert main(["runs"]) == 2

    assert "'archive' is now the root itself" in capsys.readouterr().err


def test_printed_commands_name_the_url(machine, place, capsys):
    """They work when they are pasted."""
    machine("one")
    Path("spanwise.toml").write_text("")

    assert main(["run", "rows.py", "--span", "9", "--root", place]) == 1
    out = capsys.readouterr().out

    assert f"--root {place}" in out
    assert json.loads(printed(capsys, "runs", "--root", place, "--json"))[0]["state"] == "failed"


def test_settings_say_where_the_storage_is(project, place, monkeypatch):
    """Without secrets; a variable of the environment overrides them, and the nodes have them too."""
    if not place.startswith("s3:"):
        pytest.skip("the variables are those of S3")
    endpoint = os.environ["AWS_ENDPOINT_URL"]
    monkeypatch.setenv("AWS_ENDPOINT_URL", "")  # has it removed again at the end
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    monkeypatch.setenv("_SPANWISE_STORAGE_ENVIRONMENT", "{}")  # likewise
    Path("spanwise.toml").write_text(
        f"root = '{place}'\n[storage]\ncache = '1GiB'\n[storage.environment]\nAWS_ENDPOINT_URL = '{endpoint}'\n"
        "AWS_REGION = 'nowhere'\n"
    )

    typed("run", "rows.py", "--span", "1")

    assert settings.read().cache_bytes == 1 << 30
    assert os.environ["AWS_REGION"] == "us-east-1"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("environment = {AWS_SECRET_ACCESS_KEY = 'x'}", "secrets do not belong in a file"),
        ("environment = {PATH = '/x'}", "expected variables of object storage, such as AWS_REGION"),
        ("cache = 'much'", "expected a size, such as 50GiB"),
        ("region = 'x'", "storage.region: is not a setting"),
    ],
)
def test_settings_that_cannot_be_are_refused(project, capsys, line, said):
    """And the value of a secret is not shown."""
    Path("spanwise.toml").write_text(f"[storage]\n{line}\n")

    assert main(["runs"]) == 2

    assert said in capsys.readouterr().err
