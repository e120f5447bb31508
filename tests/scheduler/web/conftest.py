"""A site over a past that is recorded by hand, asked in this process."""

import pytest
from starlette.testclient import TestClient

from spanwise.scheduler.client import Client
from spanwise.scheduler.project.settings import read
from spanwise.scheduler.web.access import WebRole, make_policy
from spanwise.scheduler.web.application import create_application
from spanwise.scheduler.web.site import WebSite
from tests.scheduler.client.conftest import past  # noqa: F401

HERE = "http://127.0.0.1:8080"


def ask(site, base=HERE):
    """A browser that talks to the site."""
    return TestClient(create_application(site), base_url=base, follow_redirects=False, raise_server_exceptions=False)


@pytest.fixture
def site(folder):
    with Client(read()) as client:
        yield WebSite(client, make_policy("127.0.0.1", tokens={}))


@pytest.fixture
def page(site):
    """Gets a page, as text."""
    with ask(site) as browser:
        yield browser.get


@pytest.fixture
def guarded(folder):
    """A site that others can reach."""
    tokens = {WebRole.OPERATOR: "an-operator's-token", WebRole.VIEWER: "a-viewer's-token"}
    with Client(read()) as client:
        yield WebSite(client, make_policy("0.0.0.0", tokens=tokens, names=("models.example.com",)))
