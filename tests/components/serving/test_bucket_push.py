"""Pushes to object storage: servers that follow the pointer see whole versions only, and never an older run's."""

from __future__ import annotations

import contextlib
import json
import threading
import time
import uuid

import pytest

from spanwise.components.serving import bucket_push
from spanwise.components.serving.bucket_push import POINTER
from spanwise.components.serving.pusher import push
from spanwise.orchestrator.errors import Fenced, NodeFailed, StorageError
from spanwise.orchestrator.run_dir import NOTE
from spanwise.orchestrator.serving import RECORD
from spanwise.orchestrator.storage import StorageBucket, open_bucket, parse_url
from tests.components.serving.test_pusher import attempt, imported, model
from tests.contract.object_storage import SERVERS, serve


@pytest.fixture(scope="module", params=["moto", *(name for name in SERVERS if name != "az")])
def home(request):
    with serve(request.param) as home:
        yield home


@pytest.fixture
def destination(home):
    return f"{home}/models/{uuid.uuid4().hex}"


@pytest.fixture
def bucket(home):
    return open_bucket(parse_url(home))


def pushed(destination, a_model, number=1, **arguments):
    token = arguments.pop("token", number)
    fence = arguments.pop("fence", lambda: None)
    return push(a_model, destination, attempt(number, token=token, fence=fence), home="home", **arguments)


def served(bucket, destination):
    """What a server loads that follows the pointer: the version, and its files."""
    found = bucket.read(parse_url(f"{destination}/{POINTER}").key)
    if found is None:
        return None, {}
    pointer = json.loads(found[0])
    top = parse_url(pointer["location"]).key
    return pointer["version"], {
        info.key.removeprefix(f"{top}/"): bucket.read(info.key)[0]
        for info in bucket.list(top)
        if not info.key.endswith(".json")
    }


def folders(bucket, destination):
    """The numbers of all versions that have objects, complete or not."""
    top = parse_url(destination).key
    return sorted(
        {int(found) for info in bucket.list(top) if (found := info.key[len(top) + 1 :].split("/")[0]).isdigit()}
    )


def files_of(a_model):
    return {p.relative_to(a_model.path).as_posix(): p.read_bytes() for p in a_model.path.rglob("*") if p.is_file()}


def test_a_push_becomes_what_serves(bucket, destination, tmp_path):
    """The pointer names it, its record is beside it, and its files are those of the model."""
    first, second = model(tmp_path, 1), model(tmp_path, 2)

    one, _ = pushed(destination, first, 1)
    two, skipped = pushed(destination, second, 2)

    assert skipped is None
    assert two.version > one.version
    assert served(bucket, destination) == (two.version, files_of(second))
    record = json.loads(bucket.read(parse_url(f"{destination}/{two.version}/.spanwise.json").key)[0])
    assert (record["model"], record["run"]) == ("p/Trainer/model/2", "p/2")


def test_a_version_of_which_objects_are_gone_is_pushed_again(bucket, destination, tmp_path):
    """Somebody has removed objects of what serves."""
    first = model(tmp_path)
    one, _ = pushed(destination, first, 1)
    bucket.delete([parse_url(f"{destination}/{one.version}/variables/0.bin").key])

    again, why = pushed(destination, first, 2)

    assert why is None
    assert again.version > one.version
    assert served(bucket, destination) == (again.version, files_of(first))


def test_a_model_that_was_imported_from_a_version_is_pushed_once(bucket, destination, tmp_path):
    """The record in its files is that of the other push; its version has a record of its own."""
    first = imported(model(tmp_path))
    one, _ = pushed(destination, first, 1)

    again, _ = pushed(destination, first, 2)

    assert again.version == one.version
    record = json.loads(bucket.read(parse_url(f"{destination}/{one.version}/{RECORD}").key)[0])
    assert record["run"] == "p/1"


def test_the_same_model_is_not_pushed_twice(bucket, destination, tmp_path):
    """Neither by a second attempt of the run, nor by the next run."""
    first = model(tmp_path)
    one, _ = pushed(destination, first, 1)

    again, why = pushed(destination, first, 1)
    later, _ = pushed(destination, first, 2)

    assert again.version == later.version == one.version
    assert why == f"not pushed again: version {one.version} is this model, pushed by this run"
    assert folders(bucket, destination) == [one.version]


def test_a_run_that_was_overtaken_pushes_nothing(bucket, destination, tmp_path):
    """A later run has pushed: by its token the older one is refused, before anything is written."""
    newer, _ = pushed(destination, model(tmp_path, 2), 2)

    with pytest.raises(Fenced, match=r"p/1 may not push to .* it has the lease token 1, and a run with token 2"):
        pushed(destination, model(tmp_path, 1), 1)

    assert folders(bucket, destination) == [newer.version]


def test_a_run_that_is_overtaken_between_its_last_look_and_its_commit_pushes_nothing(bucket, destination, tmp_path):
    """A zombie that sleeps after it has asked for its lease: the pointer has changed."""
    overtaking = []

    def sleep_while_another_pushes():
        if not overtaking:
            overtaking.append(True)
            overtaking.append(pushed(destination, model(tmp_path, 2), 2)[0])

    with pytest.raises(Fenced, match="has pushed since"):
        pushed(destination, model(tmp_path, 1), 1, fence=sleep_while_another_pushes)

    assert served(bucket, destination)[0] == overtaking[1].version


@pytest.mark.parametrize("before", [True, False], ids=["", "first"])
def test_a_run_that_lost_its_lease_while_it_committed_takes_its_version_back(bucket, destination, tmp_path, before):
    """A zombie that sleeps after it has asked, while the later run pushes nothing: it asks once more."""
    asked = []

    def lost_meanwhile():
        asked.append(True)
        if len(asked) > 1:
            raise Fenced("another run has taken over")

    first, second, third = (model(tmp_path, number) for number in (1, 2, 3))
    number = pushed(destination, first, 1)[0].version if before else 0

    with pytest.raises(Fenced, match="taken over"):
        pushed(destination, second, 2, fence=lost_meanwhile)

    assert served(bucket, destination) == (number, files_of(first) if before else {})
    assert folders(bucket, destination) == ([number] if before else [])
    assert pushed(destination, third, 3)[1] is None
    assert served(bucket, destination)[1] == files_of(third)


def test_a_version_that_another_push_has_followed_is_not_taken_back(bucket, destination, tmp_path):
    """What serves is the other's."""
    asked, later, newer = [], [], model(tmp_path, 2)

    def overtaken_meanwhile():
        asked.append(True)
        if len(asked) > 1:
            later.append(pushed(destination, newer, 2)[0])
            raise Fenced("another run has taken over")

    with pytest.raises(Fenced):
        pushed(destination, model(tmp_path, 1), 1, fence=overtaken_meanwhile)

    assert served(bucket, destination) == (later[0].version, files_of(newer))


def test_a_run_that_lost_its_lease_leaves_nothing(bucket, destination, tmp_path):
    """What it had written is removed."""

    def lost():
        raise Fenced("another run holds p")

    with pytest.raises(Fenced):
        pushed(destination, model(tmp_path), 1, fence=lost)

    assert folders(bucket, destination) == []


@pytest.mark.parametrize("request_number", range(6))
def test_a_push_that_dies_at_any_request_can_be_made_again(bucket, destination, tmp_path, monkeypatch, request_number):
    """What served before serves until the commit, and the second attempt succeeds, whether or not the first had."""
    before, _ = pushed(destination, model(tmp_path, 1), 1)
    second = model(tmp_path, 2)
    requests = []

    class Died(BaseException):
        pass

    def dying(name):
        whole = getattr(StorageBucket, name)

        def request(self, *arguments, **options):
            requests.append(name)
            if len(requests) == request_number + 1:
                if name == "write":
                    whole(self, *arguments, **options)  # it arrived; the answer did not
                raise Died
            return whole(self, *arguments, **options)

        return request

    with monkeypatch.context() as patch:
        for name in ("read", "write", "upload", "list"):
            patch.setattr(StorageBucket, name, dying(name))
        with contextlib.suppress(Died):
            pushed(destination, second, 2)
    found = served(bucket, destination)
    assert found in [(before.version, files_of(model_again(tmp_path, 1))), (found[0], files_of(second))]

    after, _ = pushed(destination, second, 2)

    assert served(bucket, destination) == (after.version, files_of(second))


def model_again(place, number):
    """The model that `model` has made there."""
    return type("Files", (), {"path": place / f"model-{number}"})()


def test_an_answer_that_is_lost_is_a_push(bucket, destination, tmp_path, monkeypatch):
    """The pointer was replaced and the storage's client tried again: it finds its own version, and keeps it."""
    whole = StorageBucket.write
    lost = []

    def write(self, key, content, *, replacing=None):
        etag = whole(self, key, content, replacing=replacing)
        if key.endswith(POINTER) and not lost:
            lost.append(etag)
            return whole(self, key, content, replacing=replacing)  # raises Conflict
        return etag

    with monkeypatch.context() as patch:
        patch.setattr(StorageBucket, "write", write)
        version, why = pushed(destination, model(tmp_path), 1)

    assert why is not None
    assert served(bucket, destination) == (version.version, files_of(model_again(tmp_path, 1)))


def test_pushes_at_the_same_time_each_have_a_version(bucket, destination, tmp_path):
    """Of several pipelines to one destination: each is complete, and the highest serves."""
    models = [model(tmp_path, number) for number in range(1, 5)]
    done = []

    def work(number):
        done.append(push(models[number], destination, attempt(number + 1), home=f"home {number}")[0].version)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(set(done)) == 4
    assert served(bucket, destination)[0] == max(done)
    assert folders(bucket, destination) == sorted(done)


def test_older_versions_of_this_pipeline_are_removed(bucket, destination, tmp_path):
    """Those of another pipeline stay."""
    other, _ = push(model(tmp_path, 9), destination, attempt(1), home="another")
    made = [pushed(destination, model(tmp_path, number), number, keep_versions=2)[0].version for number in (1, 2, 3)]

    assert folders(bucket, destination) == [other.version, *made[1:]]


def test_a_copied_root_in_object_storage_leaves_the_versions_of_the_original(home, bucket, destination, tmp_path):
    """Those of a root that was moved are its own."""
    first, copy, moved = (f"{home}/roots/{uuid.uuid4().hex}" for _ in range(3))
    for root in (first, copy):
        bucket.write((parse_url(root) / NOTE).key, b"known", replacing="")

    def push_from(root, number):
        known = {"home": f"{root}/p", "root": "known", "keep_versions": 1}
        version, _ = push(model(tmp_path, number), destination, attempt(number), **known)
        return version.version

    original, copied = push_from(first, 1), push_from(copy, 2)

    assert folders(bucket, destination) == [original, copied]
    bucket.delete([(parse_url(copy) / NOTE).key])
    newest = push_from(moved, 3)
    assert folders(bucket, destination) == [original, newest]


def test_what_dead_pushes_left_is_removed_a_day_later(bucket, destination, tmp_path, monkeypatch):
    """And not before: it may be of a push that is slow."""
    top = parse_url(destination)
    bucket.write((top / "17" / "weights").key, b"half")
    pushed(destination, model(tmp_path, 1), 1)
    assert 17 in folders(bucket, destination)

    now = time.time()
    monkeypatch.setattr(bucket_push.time, "time", lambda: now + 90_000)
    pushed(destination, model(tmp_path, 2), 2)

    assert 17 not in folders(bucket, destination)


def test_a_damaged_model_is_not_pushed(bucket, destination, tmp_path):
    """Its files are not those that were published."""
    damaged = model(tmp_path)
    (damaged.path / "variables" / "0.bin").write_bytes(b"rotten")

    with pytest.raises(NodeFailed, match="are not those that were published"):
        pushed(destination, damaged, 1)

    assert served(bucket, destination) == (None, {})


def test_storage_that_fails_is_named(bucket, destination, tmp_path, monkeypatch):
    """With the model; nothing was pushed, and nothing is left."""

    def upload(self, path, key):
        raise StorageError(f"{self.home / key}: access was denied. Check the credentials in the environment.")

    with monkeypatch.context() as patch:
        patch.setattr(StorageBucket, "upload", upload)
        with pytest.raises(NodeFailed, match=r"Pusher: p/Trainer/model/1 was not pushed\. .*: access was denied"):
            pushed(destination, model(tmp_path), 1)

    assert folders(bucket, destination) == []


def test_a_damaged_pointer_is_named(bucket, destination, tmp_path):
    """Rather than replaced: it holds the fences."""
    bucket.write(parse_url(f"{destination}/{POINTER}").key, b"{}")

    with pytest.raises(NodeFailed, match=r"serving\.json is damaged"):
        pushed(destination, model(tmp_path), 1)
