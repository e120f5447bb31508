"""The guard: who may call the server by which name, from where, with what token."""

import os
from dataclasses import replace
from urllib.parse import parse_qsl, urlsplit

import pytest

from spanwise.orchestrator.errors import UsageError
from spanwise.scheduler.web import live
from spanwise.scheduler.web.access import Visit, WebRole, make_policy
from spanwise.scheduler.web.server import read_tokens
from tests.scheduler.web.conftest import ask


def test_an_address_that_others_reach_needs_a_token(folder):
    """It refuses to start, and says how; a token that can be guessed is refused as well."""
    for host in ("0.0.0.0", "::", "10.0.0.7", "models.example.com"):
        with pytest.raises(UsageError, match="SPANWISE_UI_TOKEN"):
            make_policy(host, tokens={})
    for host in ("127.0.0.1", "127.0.0.9", "::1", "localhost"):
        assert make_policy(host, tokens={}).tokens == {}
    with pytest.raises(UsageError, match="at least 16"):
        make_policy("0.0.0.0", tokens={WebRole.OPERATOR: "hunter2"})
    with pytest.raises(UsageError, match="are the same"):
        make_policy("0.0.0.0", tokens=dict.fromkeys(WebRole, "the-same-for-both"))


@pytest.mark.parametrize(
    "host",
    [
        "evil.example.com",
        "evil.example.com:8080",
        "127.0.0.1.evil.com",
        "",
        "[::2]",
        "[::1",
        "[localhost]",
        "127.0.0.1:8080]",
        "localhost/runs?",
        "ann@localhost",
    ],
)
def test_a_name_that_is_not_ours_is_refused(site, host):
    """So that a name that an attacker points at this machine reads nothing (DNS rebinding)."""
    with ask(site) as browser:
        assert browser.get("/", headers={"host": host}).status_code == 421
        assert browser.get("/", headers={"host": "localhost:9"}).status_code == 200


@pytest.mark.parametrize(
    "origin", ["http://evil.example.com", "null", "https://127.0.0.1", "http://127.0.0.1:9999", "http://[::1", "[", ""]
)
def test_another_site_may_not_ask(site, origin):
    """Neither read nor write."""
    with ask(site) as browser:
        assert browser.get("/", headers={"origin": origin}).status_code == 403
        assert browser.post("/do/run", headers={"origin": origin}).status_code == 403
        assert browser.get("/", headers={"origin": "http://127.0.0.1:8080"}).status_code == 200
        cross = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}
        assert browser.get("/", headers=cross).status_code == 403
        assert browser.get("/", headers={**cross, "sec-fetch-mode": "navigate"}).status_code == 200


def test_a_change_needs_the_token_of_a_form_of_the_session(site):
    """A form of another session, or none, is refused before a view sees it."""
    with ask(site) as browser:
        browser.get("/")
        other = Visit.begin(WebRole.OPERATOR, "ann").form_token(site.policy.key)
        for sent in ({}, {"form_token": ""}, {"form_token": other}):
            refused = browser.post("/do/run", data=sent)
            assert refused.status_code == 403
            assert "Not sent from a page of this server" in refused.text
        assert browser.request("PUT", "/").status_code == 405
        assert browser.post("/", content=b"x" * 100_000).status_code == 403


def test_pages_are_sent_with_headers_that_keep_scripts_out(site):
    """No inline scripts, no frames, nothing kept by caches."""
    with ask(site) as browser:
        found = browser.get("/")
        policy = found.headers["content-security-policy"]

    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert found.headers["x-content-type-options"] == "nosniff"
    assert found.headers["cache-control"] == "no-store"
    assert "<script>" not in found.text
    assert " style=" not in found.text
    assert "onclick" not in found.text


def test_a_token_opens_a_session_and_leaves_the_address(guarded):
    """The cookie is not the token, scripts cannot read it, and without it nothing is shown."""
    with ask(guarded, "http://models.example.com") as browser:
        assert browser.get("/p/flights/runs").headers["location"] == "/login?next=%2Fp%2Fflights%2Fruns"
        assert browser.get("/api/runs").status_code == browser.get("/live?page=/").status_code == 401
        assert browser.get("/login").status_code == 200
        assert browser.post("/login", data={"token": "a guess"}).status_code == 403
        first = browser.get("/?token=a-viewer's-token&page=1")
        cookie = first.headers["set-cookie"]
        assert first.headers["location"] == "/?page=1"
        assert "HttpOnly" in cookie
        assert "SameSite=Lax" in cookie
        assert "viewer's-token" not in cookie
        assert "viewer" in browser.get("/").text
        browser.cookies.clear()
        assert browser.get("/", headers={"authorization": "Bearer an-operator's-token"}).status_code == 200
        assert browser.get("/", headers={"cookie": cookie.replace(".", ".0", 1)}).status_code == 303
        assert (
            browser.get("http://models.example.com//evil.example.com/?token=a-viewer's-token").headers["location"]
            == "/evil.example.com/"
        )


@pytest.mark.parametrize("path", ["/loginx", "/login/", "/healthz/runs"])
def test_only_the_sign_in_itself_is_open_without_a_token(guarded, path):
    """A page whose address merely begins like one that is open asks for the token."""
    with ask(guarded, "http://models.example.com") as browser:
        assert browser.get(path).headers["location"].startswith("/login?next=")


def test_a_view_goes_by_the_path_alone(site):
    """As the guard does: a URL that is put together of the path and the Host would have been read again."""
    with ask(site) as browser:
        assert "There is no page /data?." in browser.get("/data%3F").text
        assert browser.get("/api/runs%23").json()["error"].startswith("There is no /api/runs#.")


def test_a_token_may_have_spaces_and_letters_of_any_language(folder, site, monkeypatch):
    """Those around it are no part of it; it comes in by the form, by the address and from a program."""
    monkeypatch.setenv("SPANWISE_UI_TOKEN", " one key + für: alle \n")
    policy = make_policy("127.0.0.1", tokens=read_tokens(os.environ))
    token = "one key + für: alle"
    with ask(replace(site, policy=policy)) as browser:
        entered = browser.post("/login", data={"token": f"{token} ", "next": "/data"})
        assert entered.headers["location"] == "/data"
        assert browser.get("/data").status_code == 200
        browser.cookies.clear()
        assert browser.get("/data", params={"token": token}).headers["location"] == "/data"
        assert browser.get("/data").status_code == 200
        browser.cookies.clear()
        program = browser.get("/api/pipelines", headers={"authorization": f"Bearer {token}".encode()})
        assert program.status_code == 200
        assert browser.get("/api/pipelines", headers={"authorization": b"Bearer \xff"}).status_code == 401


def test_who_signs_in_comes_to_the_page_that_was_asked_for(guarded):
    """By the form, which leaves no token in an address, and by the address; whatever the page's name and its query."""
    asked = "/p/vols-d%C3%A9part-%E8%88%AA/runs?state=failed&page=2"
    with ask(guarded, "http://models.example.com") as browser:
        login = browser.get(asked).headers["location"]
        after = dict(parse_qsl(urlsplit(login).query))["next"]
        signed_in = browser.post("/login", data={"token": "a-viewer's-token", "next": after})
        browser.cookies.clear()
        by_address = browser.get(f"{asked}&token=a-viewer's-token")
        browser.cookies.clear()
        elsewhere = browser.get("/%09/evil.example.com/?token=a-viewer's-token")

    assert signed_in.headers["location"] == asked
    assert "HttpOnly" in signed_in.headers["set-cookie"]
    assert by_address.headers["location"] == asked
    assert elsewhere.headers["location"] == "/%09/evil.example.com/"


def test_credentials_that_a_browser_sends_by_itself_stand_for_no_form(site):
    """Those of a proxy, by HTTP's Basic scheme, come with the forms of any site; those of a program do not."""
    basic = {"authorization": "Basic YW5uOnNlY3JldA=="}
    with ask(site) as browser:
        assert browser.post("/do/run", headers=basic).status_code == 403
        assert browser.post("/do/run", headers={"authorization": "Bearer anything"}).status_code != 403


def test_two_servers_on_one_machine_leave_each_other_their_sessions(folder, site):
    """A browser sends the cookies of a host to all of its ports."""
    other = replace(site, policy=make_policy("127.0.0.1", tokens={}))
    with ask(site) as browser, ask(other, "http://127.0.0.1:8081") as beside:
        browser.get("/")
        beside.get("/")
        browser.cookies.update(beside.cookies)
        again = browser.get("/")

    assert "set-cookie" not in again.headers
    assert site.policy.cookie != other.policy.cookie


def test_a_session_is_over_when_its_time_or_the_tokens_are(guarded):
    """And cannot be made by who does not know the tokens."""
    key = guarded.policy.key
    visit = Visit.begin(WebRole.VIEWER, "ann")
    other = make_policy("0.0.0.0", tokens={WebRole.OPERATOR: "quite-another-token"})

    assert Visit.unseal(visit.seal(key), key) == visit
    assert Visit.unseal(visit.seal(other.key), key) is None
    assert Visit.unseal(Visit(role=WebRole.VIEWER, person="ann", word="w", until=1).seal(key), key) is None
    assert Visit.unseal("nonsense", key) is None


def test_behind_a_proxy_its_header_says_who_asks(folder, site):
    """Without the header nobody is let in."""
    policy = make_policy("0.0.0.0", tokens={}, trust_header="X-Forwarded-User", role=WebRole.VIEWER)
    with ask(replace(site, policy=policy), "http://localhost") as browser:
        assert browser.get("/").status_code == 401
        assert "ann" in browser.get("/", headers={"x-forwarded-user": "ann"}).text


def test_streams_are_bounded(site, monkeypatch):
    """Who opens one more is refused; a page without a view ends its stream by itself."""
    monkeypatch.setattr(live, "MOST_STREAMS", 0)
    with ask(site) as browser:
        refused = browser.get("/live?page=/")
        monkeypatch.setattr(live, "MOST_STREAMS", 1)
        over = browser.get("/live?page=/nowhere")

    assert refused.status_code == 503
    assert "Too many pages are open" in refused.text
    assert over.text.startswith("event: over")


@pytest.mark.parametrize(
    "path",
    ["/file/", "/file/9", "/file/9/x", "/file/²/x/1/a.html", "/file/9/ü/1/a.html", f"/file/{'9' * 5000}/x/1/a.html"],
)
def test_a_link_to_a_file_that_nobody_made_is_over(site, path):
    """However little of it there is."""
    with ask(site) as browser:
        refused = browser.get(path)

    assert refused.status_code == 403
    assert "This link is over" in refused.text


@pytest.mark.parametrize("cookie", ["", ".", "ü.ü", "zz.zz"])
def test_a_cookie_that_nobody_made_is_no_session(guarded, cookie):
    """Whatever it holds."""
    with ask(guarded, "http://models.example.com") as browser:
        assert browser.get("/", headers={"cookie": f"{guarded.policy.cookie}={cookie}".encode()}).status_code == 303
