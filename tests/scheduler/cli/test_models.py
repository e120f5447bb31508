"""bless, unbless and push: what people decide about models, and what serves then."""

import json
import shutil
from pathlib import Path

import pytest

from spanwise.orchestrator.storage import open_bucket, parse_url
from tests.contract.object_storage import serve
from tests.scheduler.cli.rides import PARTS, find_served, train_models
from tests.scheduler.conftest import Command

PIPELINE = (
    PARTS
    + """
def rides(k: int = 1, most: float = 5.0, serving: str = "serving") -> Pipeline:
    rows = Rows()
    trainer = Trainer(examples=rows["examples"], run_fn=train, parameters={"k": k})
    champion = Champion(trainer["model"])
    evaluator = measure(trainer["model"], most, examples=rows["examples"], baseline=champion["model"])
    pusher = Pusher(model=trainer["model"], blessing=evaluator["blessing"], destination=serving)
    return Pipeline("rides", [rows, trainer, champion, evaluator, pusher])
"""
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three models: the first two serve one after the other, the third is refused."""
    return train_models(tmp_path_factory.mktemp("trained"), PIPELINE, (1, 2, 9))


def served() -> str:
    """The `k` of the model with the highest version."""
    return (find_served() / "k").read_text()


def test_a_rollback_serves_an_earlier_model_and_compares_with_it(rides: Command) -> None:
    """The model is pushed as a new version by a run that records who and why; the next candidate is compared with it."""
    assert served() == "2"

    code, _, err = rides("push", "rides/Trainer/model/1", "--because", "2 is wrong for refunds")

    assert (code, err) == (0, "")
    assert served() == "1"
    _, shown, _ = rides("show", "rides")
    assert "push" in shown
    assert "2 is wrong for refunds" in shown
    assert "@" in shown
    rides("run", "rides.py", "--param", "k=3")
    assert "chose rides/Trainer/model/1, which serves, pushed by rides/4" in rides("show", "rides")[1]


def test_a_rollback_in_object_storage_serves_an_earlier_model(rides: Command) -> None:
    """From any folder: a URL is the same place everywhere."""
    with serve("moto") as home:
        top = parse_url(f"{home}/serving")
        moved, _, failed = rides("run", "rides.py", "--param", "k=4", "--param", f"serving={top}")
        code, _, err = rides("push", "rides/Trainer/model/1", "--because", "4 is wrong for refunds")
        found = open_bucket(top.home).read(f"{top.key}/serving.json")

    assert (moved, failed) == (0, "")
    assert (code, err) == (0, "")
    assert found is not None
    pointer = json.loads(found[0])
    assert pointer["versions"][str(pointer["version"])]["model"] == "rides/Trainer/model/1"


def test_a_rollback_is_seen_in_lineage(rides: Command) -> None:
    """What was pushed leads to the model, and the model to every push."""
    rides("push", "rides/Trainer/model/1", "--because", "2 is wrong")

    assert "rides/Trainer/model/1" in rides("lineage", "rides/Pusher/pushed_model/4")[1]
    assert "rides/Pusher/pushed_model/4" in rides("lineage", "--down", "rides/Trainer/model/1")[1]


def test_a_blessing_that_is_taken_back_leaves_the_champion_before(rides: Command) -> None:
    """The answer says what is the champion now, that the model still serves, and the command that rolls back works."""
    code, out, _ = rides("unbless", "rides/Trainer/model/2", "--because", "wrong for refunds")

    assert code == 0
    assert out.splitlines()[0].endswith(": wrong for refunds.")
    assert out.splitlines()[1:] == [
        "The champion is rides/Trainer/model/1.",
        "rides/Trainer/model/2 still serves.",
        "Roll back:  spanwise push rides/Trainer/model/1 --because TEXT",
    ]
    assert rides("push", "rides", "--because", "2 is wrong")[0] == 0
    assert served() == "1"


def test_a_model_whose_blessing_was_taken_back_is_not_pushed(rides: Command) -> None:
    """It says who took it back, and how to bless it again; then it is pushed."""
    rides("unbless", "rides/Trainer/model/1", "--because", "old")

    code, _, err = rides("push", "rides/Trainer/model/1", "--because", "try")

    assert code == 2
    assert "rides/Trainer/model/1 is not blessed by" in err
    assert "spanwise bless rides/Trainer/model/1 --because" in err
    assert served() == "2"
    rides("bless", "rides/Trainer/model/1", "--because", "not so old")
    assert rides("push", "rides/Trainer/model/1", "--because", "try")[0] == 0
    assert served() == "1"


def test_a_person_may_bless_what_its_evaluator_has_refused(rides: Command) -> None:
    """The threshold was wrong, says somebody; the model may be pushed then, and not before."""
    code, _, err = rides("push", "rides/Trainer/model/3", "--because", "better")
    assert code == 2
    assert "not blessed by Evaluator in run 3: mae is 9" in err

    code, out, _ = rides("bless", "rides/Trainer/model/3", "--because", "the threshold was wrong", "--json")

    assert code == 0
    assert json.loads(out)["blessed"] is True
    assert rides("push", "rides/Trainer/model/3", "--because", "better")[0] == 0
    assert served() == "9"


def test_a_push_that_failed_is_pushed_again_not_resumed(rides: Command) -> None:
    """A resumed run would ask for a blessing, which this one has none of; the failure says what to type instead."""
    Path("serving").rename("aside")
    Path("serving").touch()
    code, out, _ = rides("push", "rides/Trainer/model/1", "--because", "2 is wrong for refunds")
    assert code == 1
    assert "Push it again:  spanwise push rides/Trainer/model/1 --node Pusher --because" in out
    assert "spanwise resume" not in out
    Path("serving").unlink()
    Path("aside").rename("serving")

    code, _, err = rides("resume", "rides/4")

    assert code == 2
    assert "spanwise push rides/Trainer/model/1 --node Pusher --because" in err
    assert served() == "2"


def test_a_model_whose_files_were_collected_is_not_pushed(rides: Command) -> None:
    """To train again may make another model, so the message does not say that it would be this one."""
    rides("gc", "rides", "--keep-last", "0", "--keep-younger", "0s", "--keep-marked", "none")

    code, _, err = rides("push", "rides/Trainer/model/1", "--because", "2 is wrong for refunds")

    assert code == 2
    assert "rides/Trainer/model/1 was garbage-collected" in err
    assert "spanwise artifacts rides --type Model" in err


def test_the_same_model_is_not_pushed_twice_in_a_row(rides: Command) -> None:
    """It serves already, and the run says so."""
    code, out, _ = rides("push", "rides.py", "--because", "to be sure")

    assert code == 0
    assert "not pushed again" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("push", "rides/Trainer/model/1", "--because", " "), "--because takes the reason"),
        (("bless", "rides/Evaluator/evaluation/1", "--because", "good"), "is ModelEvaluation, not Model"),
        (("push", "rides/Trainer/model/1", "--because", "x", "--node", "Other"), "has no Pusher 'Other'"),
        (("unbless", "rides/Trainer/model/77", "--because", "x"), "rides/Trainer/model/77"),
    ],
)
def test_what_makes_no_sense_is_refused(rides: Command, words: tuple[str, ...], message: str) -> None:
    """Exit 2, one message, and no run is recorded."""
    code, out, err = rides(*words)

    assert (code, out) == (2, "")
    assert message in err
    assert "rides/3" in rides("show", "rides")[1].splitlines()[0]


def test_a_push_from_another_folder_does_not_go_elsewhere(
    rides: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The destination is relative to the folder in which the pipeline runs, and its arguments are set there."""
    folder = Path.cwd()
    (folder / "spanwise.toml").write_text('[params.rides]\nserving = "set"\n')
    monkeypatch.chdir(tmp_path)
    root = str(folder / ".spanwise")
    code, _, err = rides("push", "rides/Trainer/model/1", "--because", "2 is wrong", "--root", root)

    assert code == 2
    assert f"rides/2 began in {folder}" in err
    assert f"  cd {folder} && spanwise push rides/Trainer/model/1 '--because=2 is wrong' --root {root}" in err
    monkeypatch.chdir(folder)
    assert rides("push", "rides/Trainer/model/1", "--because=2 is wrong", "--root", root)[0] == 0
    assert [path.name for path in Path("set").glob("[0-9]*/k")] == ["k"]


def test_a_push_is_of_the_folder_that_was_pushed_from_and_not_of_the_newest_run(
    rides: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that was begun in a wrong folder, and has pushed nothing, does not move it."""
    folder, wrong = Path.cwd(), tmp_path / "wrong"
    wrong.mkdir()
    monkeypatch.chdir(wrong)
    rides("run", str(folder / "rides.py"), "--param", "k=9", "--root", str(folder / ".spanwise"))
    monkeypatch.chdir(folder)

    assert rides("push", "rides/Trainer/model/1", "--because", "2 is wrong")[0] == 0

    assert not (wrong / "serving").exists()


def test_a_push_goes_to_the_destination_that_the_pipeline_has_now(rides: Command) -> None:
    """Nothing was pushed there yet; no folder to change to would make it the destination before."""
    Path("spanwise.toml").write_text('[params.rides]\nserving = "elsewhere"\n')

    assert rides("push", "rides/Trainer/model/1", "--because", "2 is wrong")[0] == 0

    assert [path.name for path in Path("elsewhere").glob("[0-9]*/k")] == ["k"]


def test_a_project_that_was_moved_pushes_where_it_is_now(
    rides: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder to which it pushed before is gone, so nobody can change to it."""
    moved = shutil.copytree(".", tmp_path / "moved", symlinks=True)
    shutil.rmtree("serving")
    monkeypatch.chdir(moved)
    code, out, err = rides("push", "rides/Trainer/model/1", "--because", "x")

    assert code == 0, err
    assert f"Pushed to {moved / 'serving'}/" in out


def test_the_model_of_a_replay_is_neither_blessed_nor_pushed(rides: Command) -> None:
    """Nothing that a replay makes is read by other runs."""
    rides("run", "rides.py", "--from", "Trainer", "--param", "k=4", "--as-of", "2999-01-01T00:00Z")

    for words in ("bless", "push"):
        code, _, err = rides(words, "rides/Trainer/model@4/1", "--because", "x")
        assert code == 2
        assert "was made by a replay" in err


def test_doctor_warns_of_no_version_that_a_recorded_run_has_pushed(rides: Command) -> None:
    """After a Trainer was renamed, it named the command that serves an old model again."""
    file = Path("rides.py")
    file.write_text(file.read_text().replace("trainer = Trainer(", 'trainer = Trainer(name="Learner", '))
    rides("run", "rides.py", "--param", "k=4")
    assert served() == "4"

    assert "what serves" not in rides("doctor")[1]
