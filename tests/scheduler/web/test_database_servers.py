"""The page over MariaDB and PostgreSQL: `make test-sql`."""

import contextlib
import re
from dataclasses import replace

import pytest

from spanwise.orchestrator.mlmd import open_store
from spanwise.scheduler.client import Client
from spanwise.scheduler.project.settings import read
from spanwise.scheduler.web.access import make_policy
from spanwise.scheduler.web.actions.jobs import read_job, start_job
from spanwise.scheduler.web.site import WebSite
from tests.contract.conftest import SERVERS, fresh_url
from tests.scheduler.client.test_client import a_week
from tests.scheduler.past import Past
from tests.scheduler.web.conftest import ask
from tests.scheduler.web.test_pages import text_of

pytestmark = pytest.mark.skipif(not SERVERS, reason="no SPANWISE_TEST_MYSQL or SPANWISE_TEST_POSTGRESQL")

PAGES = (
    "/", "/p/flights/runs", "/p/flights/runs?state=failed", "/p/flights/spans", "/p/flights/spans/2013-01-02",
    "/p/flights/models", "/p/flights/tainted?span=2013-01-02", "/p/flights/schedule", "/runs/flights/3",
    "/runs/flights/3/diff", "/runs/flights/3/why/Trainer", "/a/1", "/data", "/search?q=2013-01-02",
    "/search?q=flights/Trainer/model/1", "/runs/flights/99",
)  # fmt: skip


@contextlib.contextmanager
def a_site(folder, url):
    """A site over a week that was recorded in this database."""
    place = folder / url[:5].replace("/", "_")
    place.mkdir()
    with contextlib.closing(open_store(url, root=place)) as store:
        a_week(Past(place, store))
    with Client(replace(read(root=place), metadata=url)) as client:
        yield WebSite(client, make_policy("127.0.0.1", tokens={}))


def texts_of(site):
    """What a reader sees, without what differs from one recording to another: times, ages and folders."""
    with ask(site) as browser:
        found = {path: browser.get(path) for path in PAGES}
    assert [path for path, answer in found.items() if answer.status_code not in (200, 404)] == []
    changing = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC|\d+ (s|min) ago|\d+\.\d s|\d+ s|" + re.escape(str(site.root))
    return {path: re.sub(changing, "…", text_of(answer)) for path, answer in found.items()}


@pytest.mark.parametrize("kind", list(SERVERS))
def test_pages_say_the_same_whichever_database_is_behind_them(folder, kind):
    """As with a file; and an action is recorded and done there."""
    with a_site(folder, fresh_url(kind, folder)) as site, a_site(folder, fresh_url("sqlite", folder)) as other:
        assert texts_of(site) == texts_of(other)

        number = start_job(site, ["pin", "--because=kept", "--", "flights/Trainer/model/1"], "ann")
        while (job := read_job(site, number)).code is None:
            pass
        with ask(site) as browser:
            pinned = text_of(browser.get(f"/a/{site.client.artifact('flights/Trainer/model/1').id}"))

        assert (job.code, job.request.who) == (0, "ann"), job.output
        assert "kept" in pinned
