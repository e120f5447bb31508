"""The guard: what every request passes before a view sees it, and the headers that every answer gets.

It checks the Host and the Origin (DNS rebinding, other sites), who asks, the token of forms, and the size of bodies.
"""

from __future__ import annotations

import getpass
import re
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias
from urllib.parse import parse_qs, parse_qsl, urlencode

from spanwise.scheduler.web.access import AccessPolicy, Visit, accepts_path

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Asgi: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
Refuse: TypeAlias = Callable[[int, str, str], Asgi]
"""Makes an answer of a status, a title and a sentence."""

MOST_BODY = 64 * 1024
FORM_TOKEN = "form_token"  # noqa: S105  the name of a field

PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; font-src 'self'; "
    "frame-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
FILE_POLICY = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; font-src data:"

_OPEN = re.compile(r"/assets/.*|/login|/healthz")  # nothing of the metadata is there
_SECONDS = re.compile(r"[0-9]{1,19}")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[\w.-]+)(:[0-9]*)?", re.ASCII)


class Guard:
    """Wraps the application."""

    def __init__(self, app: Asgi, policy: AccessPolicy, refuse: Refuse) -> None:
        self._app = app
        self._policy = policy
        self._refuse = refuse
        self._me = f"{getpass.getuser()}@{socket.gethostname()}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            answer = _with_headers(send, scope["path"], secure=self._policy.secure)
            await self._answer(scope, receive, answer)

    async def _answer(self, scope: Scope, receive: Receive, answer: Send) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        path: str = scope["path"]
        if (refusal := self._refuse_site(scope["method"], headers)) is not None:
            await refusal(scope, receive, answer)
            return
        if path.startswith("/file/"):
            await self._serve_file(scope, receive, answer)
            return
        visit, fresh = self._identify(headers)
        if visit is None and not _OPEN.fullmatch(path):
            await self._admit(scope)(scope, receive, answer)
            return
        scope["visit"] = visit
        if visit is not None and scope["method"] not in ("GET", "HEAD"):
            receive = await _limited(receive, headers)
            if not _is_form_of(visit, self._policy.key, headers, receive):
                await self._refuse(
                    403, "Not sent from a page of this server", "Open the page again, and send the form from there."
                )(scope, receive, answer)
                return
        cookie = self._policy.make_cookie(visit) if visit and fresh else ""
        await self._app(scope, receive, _with_cookie(answer, cookie) if cookie else answer)

    def _refuse_site(self, method: str, headers: dict[str, str]) -> Asgi | None:
        host = headers.get("host", "")
        name = _name_of(host)
        if name not in self._policy.hosts:
            return self._refuse(
                421, "Not a name of this server", f"It was called as {name or 'nothing'}. Allow it: --allow-host NAME"
            )
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host:
            return self._refuse(403, "Another site asks", "Requests from pages of other sites are refused.")
        if method not in ("GET", "HEAD", "POST"):
            return self._refuse(405, "Not a method of this server", "It takes GET and POST.")
        if headers.get("sec-fetch-site") == "cross-site" and headers.get("sec-fetch-mode") != "navigate":
            return self._refuse(403, "Another site asks", "Requests from pages of other sites are refused.")
        return None

    def _identify(self, headers: dict[str, str]) -> tuple[Visit | None, bool]:
        """Who asks, and whether they need a new cookie."""
        policy = self._policy
        known = _cookie_of(headers.get("cookie", ""), policy.cookie)
        visit = Visit.unseal(known, policy.key) if known else None
        if policy.trust_header:
            person = headers.get(policy.trust_header.lower(), "")
            if not person:
                return None, False
            return (visit, False) if visit and visit.person == person else (Visit.begin(policy.role, person), True)
        if visit is not None:
            return visit, False
        if policy.tokens:
            role = policy.role_of(_bearer_of(headers))
            return (None if role is None else Visit.by_token(role)), False
        return Visit.begin(policy.role, self._me), True

    def _admit(self, scope: Scope) -> Asgi:
        """What a reader without a session gets: one, for the token in the address; or the question for a token."""
        path: str = scope["path"]
        here: str = scope["raw_path"].decode("latin-1")
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        role = self._policy.role_of(dict(query).get("token", ""))
        rest = [(name, value) for name, value in query if role is None or name != "token"]
        asked = f"{here}{f'?{urlencode(rest)}' if rest else ''}"
        if role is not None:
            return _redirect(_local(asked), self._policy.make_cookie(Visit.by_token(role)))
        if self._policy.trust_header:
            return self._refuse(
                401, "Nobody has authenticated you", f"The proxy has set no {self._policy.trust_header}."
            )
        if path.startswith(("/api/", "/live")):
            return self._refuse(401, "A token is needed", "Send it as:  Authorization: Bearer TOKEN")
        return _redirect(f"/login?{urlencode({'next': asked})}")

    async def _serve_file(self, scope: Scope, receive: Receive, send: Send) -> None:
        """`/file/UNTIL/SIGNATURE/…` needs no session: its signature says that a page has shown it to somebody."""
        _, _, until, signature, path = (scope["path"].split("/", 4) + 3 * [""])[:5]
        if not _SECONDS.fullmatch(until) or not accepts_path(self._policy.key, path, int(until), signature):
            await self._refuse(403, "This link is over", "Open the page of the artifact again.")(scope, receive, send)
            return
        scope["path"] = f"/file/{path}"
        scope["raw_path"] = scope["path"].encode()
        await self._app(scope, receive, send)


def _is_form_of(visit: Visit, key: bytes, headers: dict[str, str], receive: Receive) -> bool:
    """Whether a state change comes from a form of this session, or from a program that sends its token itself.

    A browser sends by itself what a proxy has asked for by HTTP's Basic scheme, and with forms of other sites too.
    """
    if _bearer_of(headers):
        return True
    form = parse_qs(getattr(receive, "body", b"").decode("utf-8", "replace"))
    return visit.accepts_form(next(iter(form.get(FORM_TOKEN, [])), ""), key)


async def _limited(receive: Receive, headers: dict[str, str]) -> Receive:
    """Reads the body, which has to be small, and gives it to whoever reads it next."""
    body, more = b"", True
    while more and len(body) <= MOST_BODY:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False) and message["type"] == "http.request"
    kept = body if len(body) <= MOST_BODY and "multipart" not in headers.get("content-type", "") else b""

    async def again() -> Message:
        return {"type": "http.request", "body": kept, "more_body": False}

    again.body = kept  # type: ignore[attr-defined]
    return again


def _name_of(host: str) -> str:
    """The name in a Host header, in small letters; all of the header when it is not a name with or without a port."""
    found = _HOST.fullmatch(host)
    return found[1].strip("[]").lower() if found else host


def _bearer_of(headers: dict[str, str]) -> str:
    """The token that a program has sent, as UTF-8: headers are read as Latin-1."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.encode("latin-1").decode("utf-8", "replace").strip() if scheme.lower() == "bearer" else ""


def _cookie_of(header: str, wanted: str) -> str:
    pairs = (part.strip().partition("=") for part in header.split(";"))
    return next((value for name, _, value in pairs if name == wanted), "")


def _local(path: str) -> str:
    """A path on this server: `//other.site` would be another one. Of an address as it was sent, so with no blanks."""
    return "/" + path.lstrip("/\\")


def _redirect(where: str, cookie: str = "") -> Asgi:
    async def answer(_scope: Scope, _receive: Receive, send: Send) -> None:
        headers = [(b"location", where.encode("latin-1")), (b"content-length", b"0")]
        headers += [(b"set-cookie", cookie.encode("latin-1"))] if cookie else []
        await send({"type": "http.response.start", "status": 303, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    return answer


def _with_cookie(send: Send, cookie: str) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", []), (b"set-cookie", cookie.encode("latin-1"))]
        await send(message)

    return sending


def _with_headers(send: Send, path: str, *, secure: bool) -> Send:
    is_file = path.startswith("/file/")
    headers = [
        (b"content-security-policy", (FILE_POLICY if is_file else PAGE_POLICY).encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer" if is_file else b"same-origin"),
        (b"cross-origin-opener-policy", b"same-origin"),
        *([] if is_file else [(b"x-frame-options", b"DENY")]),
        *([(b"strict-transport-security", b"max-age=31536000")] if secure else []),
        *([] if path.startswith("/assets/") else [(b"cache-control", b"no-store")]),
    ]

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", []), *headers]
        await send(message)

    return sending
