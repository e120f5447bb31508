"""Commands of a client and of the page are started where what they continue began, wherever the server was started."""

from dataclasses import replace
from pathlib import Path

import pytest

import spanwise as library
from spanwise.orchestrator.calendar import Calendar
from spanwise.scheduler.client.folders import locate
from spanwise.scheduler.inspect import find
from spanwise.scheduler.project.settings import read
from spanwise.scheduler.web.access import make_policy
from spanwise.scheduler.web.actions import jobs
from spanwise.scheduler.web.site import WebSite
from tests.scheduler.backfill.conftest import World, world  # noqa: F401
from tests.scheduler.client.conftest import past  # noqa: F401
from tests.scheduler.conftest import run_warm
from tests.scheduler.past import Past
from tests.scheduler.run.test_folder import project, read_copy  # noqa: F401
from tests.scheduler.web.conftest import ask
from tests.scheduler.web.test_actions import send


@pytest.fixture
def elsewhere(project: Path, monkeypatch: pytest.MonkeyPatch):  # noqa: F811
    """A client of the project in the folder of another one."""
    (project / "spanwise.toml").write_text("[params.copied]\nfail = false\n")
    (Path("spanwise.toml")).write_text("[params.copied]\nfail = true\n")
    with library.Client(read(root=project / ".spanwise")) as client:
        yield client


def test_a_client_continues_a_run_where_it_began(elsewhere, project: Path) -> None:  # noqa: F811
    """With the data and the settings of that folder, not of the notebook's."""
    done = run_warm("run", "copied.py", "--param", "data=none", cwd=project)
    assert done.returncode == 1
    (project / "none").write_text("the project's")
    Path("none").write_text("another's")

    assert elsewhere.resume("copied/2").run.state.succeeded

    assert read_copy(project / ".spanwise") == "the project's"


def test_a_client_names_its_metadata_and_settings_from_anywhere(folder: Path) -> None:
    """What it starts may be in another folder than it is."""
    Path("my.toml").touch()
    config = Path("my.toml")
    with library.Client(replace(read(config=config), metadata="meta.db"), config=config) as client:
        assert client.session.environment["SPANWISE_METADATA"] == str(folder / "meta.db")
        assert client.session.config == folder / "my.toml"


def test_the_page_runs_a_file_where_it_ran_before(
    elsewhere,
    project: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the data and the settings of that folder, not of the server's; the command that it shows goes there."""
    monkeypatch.setattr(jobs, "WAIT_S", 300.0)
    assert run_warm("run", "copied.py", cwd=project).returncode == 0
    (project / "data").write_text("new")
    site = WebSite(elsewhere, make_policy("127.0.0.1", tokens={}))
    with ask(site) as browser:
        file = "../the project/copied.py"
        form = browser.get(f"/do/run?file={file}&params=data=./data").text
        job = browser.get(send(browser, "/do/run", file=file, params="data=./data").headers["location"])

        state = jobs.read_job(site, 1).state

    assert state == "complete", job.text
    assert "cd &#39;" in form
    assert {f.read_text() for f in project.glob(".spanwise/copied/Copy/report/*/text")} == {"the project", "new"}


def test_what_waits_is_listed_where_the_pipeline_runs(
    world: World,  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Seen from another folder its data is not there, and nothing would wait."""
    world.lived(1)
    world.arrive(1, version=2)
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    with library.Client(read(root=world.folder / ".spanwise")) as client:
        assert client.pipeline("days").find_waiting() == [Calendar.DAY.parse("2024-05-01")]


@pytest.mark.parametrize("subject", ["flights", "flights.py", "flights/Trainer/model/1", "root/1"])
def test_what_is_pushed_is_pushed_where_its_pipeline_is(
    past: Past,  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    subject: str,
) -> None:
    """The champion of a pipeline, by its name or its file, or a model by its name or folder: typed there as here."""
    Path("flights.py").touch()
    past.begin(folder=str(tmp_path_factory.mktemp("began")))
    model = past.train([past.ingest(15_706)])
    monkeypatch.setattr(find, "_artifact_at", lambda *_: model)
    typed = {"flights.py": str(Path("flights.py").absolute()), "root/1": model.name}

    folder, words = locate(past.store, ["push", "--because=x", "--", subject], Path("root"))

    assert str(folder) == past.run.folder
    assert words == ["push", "--because=x", "--", typed.get(subject, subject)]
