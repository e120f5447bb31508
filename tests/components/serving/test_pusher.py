"""Pusher: only blessed models, each version whole from the moment it is seen, nothing pushed twice."""

import errno
import itertools
import json
import os
import resource
import signal
import sys
import time
import warnings
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanwise.components import Importer, Pusher
from spanwise.components.serving.folder_push import explain_failure, list_versions
from spanwise.components.serving.pushed_versions import (
    PushedVersion,
    PushRecord,
    find_existing,
    next_version,
    surplus_versions,
)
from spanwise.components.serving.pusher import find_refusal, push
from spanwise.orchestrator import (
    Attempt,
    Blessing,
    Component,
    Fenced,
    InfraBlessing,
    Input,
    Model,
    NodeFailed,
    Output,
    ParameterError,
    Run,
)
from spanwise.orchestrator.fingerprint import of_tree
from spanwise.orchestrator.run_dir import NOTE
from spanwise.orchestrator.serving import RECORD, find_pushed
from tests.components.flow import Bench, only


def model(place: Path, number: int = 1, *, files: int = 2, size_bytes: int = 10) -> Model:
    """A published model of some files."""
    folder = place / f"model-{number}"
    (folder / "variables").mkdir(parents=True)
    for index in range(files):
        (folder / "variables" / f"{index}.bin").write_bytes(bytes([number % 256]) * size_bytes)
    tree = of_tree(folder)
    return Model(
        str(folder), id=number, name=f"p/Trainer/model/{number}", content=tree.digest, size_bytes=tree.size_bytes
    )


def imported(a_model: Model) -> Model:
    """The same model, published with the record of a version that another pipeline serves."""
    (a_model.path / RECORD).write_text("{}")
    return Model(a_model.uri, id=a_model.id, name=a_model.name, content=of_tree(a_model.path).digest)


def attempt(number: int = 1, *, token: int = 1, fence=lambda: None) -> Attempt:
    """An attempt of the node Pusher in a run of the pipeline p."""
    run = Run(pipeline="p", number=number, token=token)
    places = {"scratch": Path(), "checkpoints": Path(), "snapshots": Path()}
    return Attempt(run=run, node="Pusher", number=1, check_fence=fence, **places)


def pushed(place: Path, a_model: Model, number: int = 1, home: str = "home", **arguments):
    token = arguments.pop("token", number)
    return push(a_model, place / "serving", attempt(number, token=token), home=home, **arguments)


def served(destination: Path) -> list[Path]:
    """What a server sees, oldest version first."""
    if not destination.exists():
        return []
    return sorted((p for p in destination.iterdir() if not p.name.startswith(".")), key=lambda p: int(p.name))


def in_child(work) -> int:
    """Does the work in a forked process, which ends without going on here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of threads; the child uses none
        pid = os.fork()
    if not pid:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return pid


class Verdict(Component):
    """Gives a blessing, or none."""

    def run(self, *, model: Input[Model], blessing: Output[Blessing | None], says: int | None) -> None:
        if says is not None:
            blessing.blessed, blessing.current_model, blessing.current_model_id = says, model.name, model.id
            blessing.reasons = ["auc is 0.5; at_least=0.6 is required"]


class InfraVerdict(Component):
    """Gives an infra blessing, or none."""

    def run(self, *, model: Input[Model], blessing: Output[InfraBlessing | None], says: int | None) -> None:
        if says is not None:
            blessing.blessed, blessing.model = says, model.name
            blessing.reasons = [] if says else ["it does not load: no module named 'torch'"]


def run_of(bench: Bench, tmp_path: Path, *, says="unconnected", infra_says="unconnected", **arguments):
    """A run that imports a model, maybe judges it, and pushes it."""
    if not (tmp_path / "first").exists():
        model(tmp_path / "first")
    importer = Importer(uri=str(tmp_path / "first" / "model-1"), kind=Model)
    judges = [] if says == "unconnected" else [Verdict(model=importer["artifact"], says=says)]
    blessing = {"blessing": judges[0]["blessing"]} if judges else {}
    if infra_says != "unconnected":
        judges.append(InfraVerdict(model=importer["artifact"], says=infra_says))
        blessing["infra_blessing"] = judges[-1]["blessing"]
    pusher = Pusher(
        model=importer["artifact"], destination=str(tmp_path / "serving"), name="Pusher", **blessing, **arguments
    )
    return bench.run(importer, *judges, pusher).executions["Pusher"]


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path / "root")


def test_a_blessed_model_is_pushed(bench, tmp_path):
    """The version folder holds the model's files, and the output says which version."""
    execution = run_of(bench, tmp_path, says=1)

    (version,) = served(tmp_path / "serving")
    properties = only(execution, "pushed_model").properties
    assert (version / "variables" / "1.bin").read_bytes() == b"\1" * 10
    assert properties["pushed"] == 1
    assert properties["pushed_version"] == version.name
    assert properties["pushed_destination"] == str(version)
    assert properties["model"] == "p/Importer/artifact/1"
    assert json.loads((only(execution, "pushed_model").path / "push.json").read_text())["record"]["run"] == "p/1"


@pytest.mark.parametrize(
    ("says", "infra_says", "pushed", "reason"),
    [
        ("unconnected", 1, 1, None),
        (1, 1, 1, None),
        (1, 0, 0, "infra_blessing is negative; it does not load: no module named 'torch'"),
        (0, 1, 0, "blessing is negative; auc is 0.5; at_least=0.6 is required"),
        (1, None, 0, "infra_blessing has no verdict"),
        ("unconnected", 0, 0, "infra_blessing is negative; it does not load: no module named 'torch'"),
    ],
)
def test_a_model_that_does_not_serve_is_not_pushed(bench, tmp_path, says, infra_says, pushed, reason):
    """Every verdict that is connected must be a yes, and the reasons of a no are passed on."""
    execution = run_of(bench, tmp_path, says=says, infra_says=infra_says)

    assert only(execution, "pushed_model").properties["pushed"] == pushed
    assert only(execution, "pushed_model").properties.get("reason") == (reason and f"not pushed: {reason}")
    assert len(served(tmp_path / "serving")) == pushed


def test_the_version_is_unix_seconds(bench, tmp_path):
    """Servers take the highest number, and so the newest."""
    before = int(time.time())

    run_of(bench, tmp_path)

    assert before <= int(served(tmp_path / "serving")[0].name) <= time.time()


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        (0, "not pushed: blessing is negative; auc is 0.5; at_least=0.6 is required"),
        (None, "not pushed: blessing has no verdict: an Evaluator that compares nothing with a threshold gives none"),
    ],
)
def test_what_is_not_blessed_is_not_pushed(bench, tmp_path, says, reason):
    """No, or no verdict at all, leaves the destination alone; the run goes on and says why."""
    execution = run_of(bench, tmp_path, says=says)

    assert execution.state.succeeded
    assert only(execution, "pushed_model").properties["pushed"] == 0
    assert only(execution, "pushed_model").properties["reason"] == reason
    assert not (tmp_path / "serving").exists()


def test_without_a_blessing_connected_everything_is_pushed_with_a_warning(bench, tmp_path):
    """A pipeline without Evaluator pushes unseen, and says so in the log (TFX)."""
    execution = run_of(bench, tmp_path)

    assert len(served(tmp_path / "serving")) == 1
    assert "no blessing is connected" in Path(execution.log).read_text()


def test_a_run_that_looks_back_pushes_nothing(bench, tmp_path):
    """A replay (--as-of) pushes nothing: a model of old data never becomes the newest version."""
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "weights").write_text("1")
    model = Importer(uri=str(tmp_path / "m"), kind=Model)
    pusher = Pusher(model=model["artifact"], destination=str(tmp_path / "serving"))

    outcome = bench.run(model, pusher, as_of=datetime(2024, 1, 2, tzinfo=UTC), replay=True)

    told = only(outcome.executions["Pusher"], "pushed_model")
    assert told.properties["pushed"] == 0
    assert "as of 2024-01-02" in told.properties["reason"]
    assert not (tmp_path / "serving").exists()


def test_a_push_is_never_served_from_the_cache(bench, tmp_path):
    """The second run acts too: it looks, finds its model there, and says so instead of pushing it again."""
    run_of(bench, tmp_path)
    execution = run_of(bench, tmp_path)

    (version,) = served(tmp_path / "serving")
    assert execution.reused is None
    assert only(execution, "pushed_model").properties["pushed"] == 1
    assert only(execution, "pushed_model").properties["pushed_version"] == version.name
    assert (
        f"version {version.name} is this model, pushed by p/1" in only(execution, "pushed_model").properties["reason"]
    )


def test_a_push_is_recorded_of_its_model(bench, tmp_path):
    """The metadata knows of a model that it was pushed."""
    run_of(bench, tmp_path)

    assert find_pushed(bench.store, ["p/Importer/artifact"]) == {"p/Importer/artifact/1"}


def test_an_empty_destination_and_no_versions_to_keep_are_refused(tmp_path):
    """What cannot be meant is told when the pipeline is made."""
    first = Importer(uri="x", kind=Model)

    with pytest.raises(ParameterError, match="needs a folder as destination"):
        Pusher(model=first["artifact"], destination="")
    with pytest.raises(ParameterError, match="keep_versions is 0"):
        Pusher(model=first["artifact"], destination="x", keep_versions=0)


def test_versions_only_grow(tmp_path):
    """Within one second, or after a version from the future, the next version is one above."""
    (tmp_path / "serving" / "99999999999").mkdir(parents=True)

    found = [pushed(tmp_path, model(tmp_path, n), n)[0].version for n in (1, 2)]

    assert found == [100000000000, 100000000001]


def test_others_may_read_what_is_served(tmp_path):
    """A version has the permissions of the model's own folder, not those of a temporary one."""
    first = model(tmp_path)
    first.path.chmod(0o755)

    version, _ = pushed(tmp_path, first)

    assert version.place.stat().st_mode & 0o777 == 0o755


def test_old_versions_are_removed_but_not_those_of_others(tmp_path):
    """Beyond the newest two, what Pusher has put there goes; what somebody else has put there stays."""
    (tmp_path / "serving" / "5").mkdir(parents=True)
    for number in (1, 2, 3):
        newest, _ = pushed(tmp_path, model(tmp_path, number), number, keep_versions=2)

    assert [int(p.name) for p in served(tmp_path / "serving")] == [5, newest.version - 1, newest.version]
    assert not list((tmp_path / "serving" / ".spanwise").glob("draft-*"))


def test_a_copied_root_leaves_the_versions_of_the_original(tmp_path):
    """The same model is pushed anew, too. A root that was moved, or has another name by a link, counts them as its own."""
    first, copy = tmp_path / "root", tmp_path / "copy"
    for root in (first, copy):
        root.mkdir()
        (root / NOTE).write_text("known\n")
    (tmp_path / "link").symlink_to(first)

    def push_from(root, number):
        home, known = f"{root}/p", {"root": "known", "keep_versions": 1}
        version, why = pushed(tmp_path, models[number], number, home, **known)
        return version.version, why

    models = [model(tmp_path, number) for number in range(4)]
    original, _ = push_from(first, 1)
    copied, why = push_from(copy, 1)

    assert why is None
    assert [int(version.name) for version in served(tmp_path / "serving")] == [original, copied]
    linked, _ = push_from(tmp_path / "link", 2)
    assert [int(version.name) for version in served(tmp_path / "serving")] == [copied, linked]
    copy.rename(tmp_path / "moved")
    moved, _ = push_from(tmp_path / "moved", 3)
    assert [int(version.name) for version in served(tmp_path / "serving")] == [linked, moved]


def test_an_attempt_after_the_commit_does_not_push_again(tmp_path):
    """A run that died after its rename finds its version, also when another pipeline has pushed since."""
    first, second = model(tmp_path, 1), model(tmp_path, 2)
    mine, _ = pushed(tmp_path, first, 1)
    pushed(tmp_path, second, 1, home="another")

    again, why = pushed(tmp_path, first, 1)

    assert (again.version, why) == (
        mine.version,
        f"not pushed again: version {mine.version} is this model, pushed by this run",
    )
    assert len(served(tmp_path / "serving")) == 2


def test_a_model_that_was_imported_from_a_version_is_pushed_once(tmp_path):
    """The record in its files is that of the other push; its version has a record of its own."""
    first = imported(model(tmp_path))
    version, _ = pushed(tmp_path, first, 1)

    again, why = pushed(tmp_path, first, 2)

    assert why == f"not pushed again: version {version.version} is this model, pushed by p/1"
    assert json.loads((again.place / RECORD).read_text())["run"] == "p/1"


@pytest.mark.parametrize("damage", ["removed", "changed"])
def test_a_version_whose_files_are_not_those_of_the_model_is_pushed_again(tmp_path, damage):
    """Somebody has emptied or edited what serves; what a server adds to its folder is not damage."""
    first = model(tmp_path)
    one, _ = pushed(tmp_path, first, 1)
    (one.place / "warm-up").write_text("by the server")
    assert pushed(tmp_path, first, 2)[0].version == one.version
    file = one.place / "variables" / "0.bin"
    file.unlink() if damage == "removed" else file.write_bytes(b"x")

    again, why = pushed(tmp_path, first, 3)

    assert why is None
    assert again.version > one.version
    assert (again.place / "variables" / "0.bin").read_bytes() == b"\x01" * 10
    assert pushed(tmp_path, first, 3)[0].version == again.version


def test_an_earlier_model_can_be_pushed_again(tmp_path):
    """Going back to an older model is a new version of it."""
    first, second = model(tmp_path, 1), model(tmp_path, 2)
    for number, each in enumerate((first, second, first), start=1):
        newest, _ = pushed(tmp_path, each, number)

    assert len(served(tmp_path / "serving")) == 3
    assert newest.record.model == first.name


def test_a_run_that_has_lost_its_lease_pushes_nothing(tmp_path):
    """The fence is asked last, just before the rename; nothing is left behind."""

    def lost():
        raise Fenced("another run has taken over")

    with pytest.raises(Fenced):
        push(model(tmp_path), tmp_path / "serving", attempt(fence=lost), home="home")

    assert served(tmp_path / "serving") == []
    assert not list((tmp_path / "serving" / ".spanwise").glob("draft-*"))


def test_a_run_that_lost_its_lease_while_it_committed_takes_its_version_back(tmp_path):
    """A zombie that sleeps after it has asked, while the later run pushes nothing: it asks once more."""
    first, asked = model(tmp_path, 1), []
    before, _ = pushed(tmp_path, first, 1)

    def lost_meanwhile():
        asked.append(True)
        if len(asked) > 1:
            raise Fenced("another run has taken over")

    with pytest.raises(Fenced, match="taken over"):
        push(model(tmp_path, 2), tmp_path / "serving", attempt(2, token=2, fence=lost_meanwhile), home="home")

    assert served(tmp_path / "serving") == [before.place]
    assert not list((tmp_path / "serving" / ".spanwise").glob("draft-*"))


def test_a_run_with_an_older_token_is_refused_by_the_destination(tmp_path):
    """Even with a controller that believes it holds the lease, an older run does not push over a newer one."""
    first, second = model(tmp_path, 1), model(tmp_path, 2)
    pushed(tmp_path, second, 2, token=8)

    with pytest.raises(Fenced, match="token 7, and a run with token 8 has pushed since"):
        pushed(tmp_path, first, 1, token=7)

    assert len(served(tmp_path / "serving")) == 1


def test_pipelines_of_one_name_in_two_places_do_not_fence_each_other(tmp_path):
    """Tokens count within one installation; a fresh one starts at 1 and may push."""
    pushed(tmp_path, model(tmp_path, 1), 9, home="a", token=9)

    version, _ = pushed(tmp_path, model(tmp_path, 2), 1, home="b", token=1)

    assert served(tmp_path / "serving")[-1] == version.place


def test_a_damaged_model_is_not_pushed(tmp_path):
    """What is served is what was published, byte for byte."""
    first = model(tmp_path)
    (first.path / "variables" / "0.bin").write_bytes(b"rotten")

    with pytest.raises(NodeFailed, match="not those that were published"):
        pushed(tmp_path, first)

    assert served(tmp_path / "serving") == []


def test_a_destination_that_cannot_be_made_is_told(tmp_path):
    """A file in the way is named."""
    (tmp_path / "serving").write_text("a file")

    with pytest.raises(NodeFailed, match=r"was not pushed to .*serving"):
        pushed(tmp_path, model(tmp_path))


def test_a_copy_that_fails_leaves_nothing(tmp_path):
    """When the system stops the copy half-way (here by a limit on file sizes), no version and no draft is left."""
    first = model(tmp_path, size_bytes=100_000)
    told = tmp_path / "told"

    def work():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
        try:
            pushed(tmp_path, first)
        except NodeFailed as error:
            told.write_text(str(error))

    os.waitpid(in_child(work), 0)

    assert "File too large" in told.read_text()
    assert served(tmp_path / "serving") == []
    assert not list((tmp_path / "serving" / ".spanwise").glob("draft-*"))


@pytest.mark.parametrize(
    ("number", "said"),
    [(errno.ENOSPC, "the disk is full"), (errno.EROFS, "x cannot be written"), (errno.EACCES, "x cannot be written")],
)
def test_what_the_system_refuses_is_told_with_what_to_do(number, said):
    """A full disk and a folder that may not be written say so, and how to go on."""
    assert said in explain_failure(OSError(number, os.strerror(number), "x"))
    assert "then run again" in explain_failure(OSError(number, os.strerror(number), "x"))


def counting(work, told: Path):
    """The work; `told` has then how many audited operations (opening, renaming, ...) it took."""

    def count():
        events = itertools.count()
        sys.addaudithook(lambda _event, _arguments: next(events))
        work()
        told.write_text(str(next(events)))

    return count


def killed(work, step: int):
    """The work, killed just before an operation, given by its number."""

    def step_by_step():
        events = itertools.count(1)
        sys.addaudithook(lambda _event, _arguments: next(events) == step and os.kill(os.getpid(), signal.SIGKILL))
        work()

    return step_by_step


@pytest.mark.slow
def test_a_push_killed_anywhere_leaves_only_whole_versions(tmp_path):
    """SIGKILL at thirty steps of a push: every version that is seen is whole, and the next push clears up."""
    count = 30
    models = [model(tmp_path, n, files=12, size_bytes=300_000) for n in range(1, count + 2)]
    by_content = {m.content: m for m in models}
    os.waitpid(in_child(counting(lambda: pushed(tmp_path, models[0], 1), tmp_path / "steps")), 0)
    steps = int((tmp_path / "steps").read_text())
    committed = 0
    for number, each in enumerate(models[1:], start=2):
        work = killed(lambda each=each, number=number: pushed(tmp_path, each, number), steps * 2 * number // count)
        os.waitpid(in_child(work), 0)
        for version in list_versions(tmp_path / "serving"):
            assert version.record is not None
            assert of_files(version.place) == of_files(by_content[version.record.content].path)
        committed = len(served(tmp_path / "serving")) - 1

    final, _ = pushed(tmp_path, model(tmp_path, 99), 99)

    assert 0 < committed < count
    assert served(tmp_path / "serving")[-1] == final.place
    assert not list((tmp_path / "serving" / ".spanwise").glob("draft-*"))


@pytest.mark.slow
def test_pushes_at_the_same_time_each_get_a_version(tmp_path):
    """Six pipelines pushing to one destination at once give six whole versions."""
    models = [model(tmp_path, n, files=4) for n in range(6)]

    children = [in_child(lambda m=m: pushed(tmp_path, m, home=m.name)) for m in models]
    codes = [os.waitpid(child, 0)[1] for child in children]

    assert codes == [0] * 6
    assert {v.record.content for v in list_versions(tmp_path / "serving")} == {m.content for m in models}
    assert len(served(tmp_path / "serving")) == 6


def of_files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != RECORD}


# --- decisions ----------------------------------------------------------------------------------------------------

MINE = PushRecord(
    model="m", content="c", run="p/2", node="Pusher", home="home", at="2013-01-05T00:00:00+00:00", root="moved"
)


def at(version: int, record: PushRecord | None) -> PushedVersion:
    return PushedVersion(version=version, place=Path(str(version)), record=record)


@pytest.mark.parametrize(
    ("verdicts", "may"),
    [
        ({}, True),
        ({"blessing": 1}, True),
        ({"blessing": 0}, False),
        ({"blessing": None}, False),
        ({"blessing": 1, "infra_blessing": 1}, True),
        ({"blessing": 1, "infra_blessing": 0}, False),
        ({"infra_blessing": 1}, True),
    ],
)
def test_everything_that_is_connected_must_say_yes(verdicts, may):
    """One no, or one that says nothing, is enough to withhold a model."""
    assert (find_refusal(verdicts) is None) is may


@given(st.sets(st.integers(0, 10**12)), st.floats(0, 10**10))
def test_the_next_version_is_above_all_and_no_less_than_the_time(existing, now_s):
    """No version is ever overwritten, and a clock set back does not hide the newest model."""
    version = next_version(existing, now_s)

    assert all(version > other for other in existing)
    assert version >= int(now_s)


@pytest.mark.parametrize(
    ("there", "found"),
    [
        ([], None),
        ([at(7, None)], None),
        ([at(7, replace(MINE, run="p/1"))], 7),
        ([at(7, replace(MINE, run="p/1")), at(8, replace(MINE, model="other"))], None),
        ([at(7, MINE), at(8, replace(MINE, model="other"))], 7),
        ([at(7, replace(MINE, content="other"))], None),
        ([at(7, replace(MINE, home="elsewhere", root=""))], None),
        ([at(7, replace(MINE, home="elsewhere", root="moved"))], 7),
        ([at(7, replace(MINE, home="elsewhere", root="another"))], None),
        ([at(7, MINE), at(8, None)], 7),
        ([at(7, replace(MINE, began="before"))], 7),
        ([at(7, replace(MINE, began="before")), at(8, None)], None),
    ],
)
def test_a_push_is_needless_when_this_run_has_made_it_or_the_newest_is_the_model(there, found):
    """The same model by name, content and place: as the newest version, or as this run's own."""
    version = find_existing(there, MINE)

    assert (version.version if version else None) == found


@pytest.mark.parametrize(("keep", "gone"), [(None, []), (1, [2, 1]), (2, [1]), (3, []), (9, [])])
def test_keep_versions_removes_only_what_this_pipeline_pushed(keep, gone):
    """So many of its own stay; those of another pipeline, and those that nobody pushed, are neither counted nor removed."""
    another = replace(MINE, home="/another/root/p", root="another")
    there = [at(0, another), at(1, MINE), at(2, MINE), at(3, None), at(4, MINE), at(5, another)]

    assert [v.version for v in surplus_versions(there, keep, MINE)] == gone


def test_a_relative_destination_is_refused_where_the_folder_of_the_run_is_not(tmp_path, monkeypatch):
    """In a pod, it was written to a disk that goes with the pod."""
    monkeypatch.chdir(tmp_path)
    one = attempt()
    in_pod = replace(one, run=replace(one.run, folder=str(tmp_path / "gone")))

    with pytest.raises(NodeFailed, match=r"relative to the folder of the run, .*/gone, which is not on this machine"):
        push(model(tmp_path), "serving", in_pod, home="home")

    assert not Path("serving").exists()
    push(model(tmp_path, 2), tmp_path / "serving", in_pod, home="home")
