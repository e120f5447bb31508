"""The application: requests to views, errors to pages in our words, files to downloads."""

from __future__ import annotations

import logging
import mimetypes
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, TypeAlias
from urllib.parse import parse_qsl, quote

from spanwise.orchestrator.errors import (
    Held,
    NotRecorded,
    SpanwiseError,
    StorageError,
    StoreError,
    StoreUnavailable,
    UsageError,
)
from spanwise.scheduler.formatting import format_json
from spanwise.scheduler.web.access import Visit
from spanwise.scheduler.web.api import describe_api, find_endpoint
from spanwise.scheduler.web.guard import Asgi, Guard
from spanwise.scheduler.web.live import LiveHub
from spanwise.scheduler.web.pages import ASSETS, Page
from spanwise.scheduler.web.queries.artifacts import find_file
from spanwise.scheduler.web.queries.logs import find_log, open_log
from spanwise.scheduler.web.routes import find_route, make_page
from spanwise.scheduler.web.site import Ask, WebSite
from spanwise.scheduler.web.views.actions import Redirected

Request: TypeAlias = Any  # starlette's, which is imported where it is used
Response: TypeAlias = Any

log = logging.getLogger("spanwise.web")

_STATUS: tuple[tuple[type[SpanwiseError], int, str], ...] = (
    (NotRecorded, 404, "Not recorded"),
    (StoreUnavailable, 503, "The metadata does not answer"),
    (StoreError, 500, "The metadata cannot be read"),
    (Held, 409, "Another run holds the pipeline"),
    (UsageError, 400, "That cannot be done"),
    (StorageError, 503, "Object storage cannot be read"),
    (SpanwiseError, 500, "That did not work"),
)


def _status_of(error: SpanwiseError) -> tuple[int, str]:
    """The status and the title of an answer that is an error."""
    return next((status, title) for kind, status, title in _STATUS if isinstance(error, kind))


def create_application(site: WebSite) -> Asgi:
    """The application of a site, with its guard."""
    from starlette.applications import Starlette
    from starlette.routing import Route

    hub = LiveHub(site)
    handler = _Handler(site, hub)

    @asynccontextmanager
    async def lifespan(_app: object) -> AsyncIterator[None]:
        try:
            yield
        finally:
            hub.close()

    app = Starlette(
        routes=[
            Route("/healthz", handler.answer_health),
            Route("/live", handler.stream),
            Route("/assets/{name}", handler.send_asset),
            Route("/login", handler.log_in, methods=["GET", "POST"]),
            Route("/file/{artifact}/{name:path}", handler.send_page),
            Route("/download/{artifact}/{name:path}", handler.send_file),
            Route("/runs/{pipeline}/{number}/log/{node}/download", handler.send_log),
            Route("/api{rest:path}", handler.answer_api),
            Route("/{rest:path}", handler.show, methods=["GET", "POST"]),
        ],
        lifespan=lifespan,
    )
    return Guard(app, site.policy, handler.refuse)


class _Handler:
    """Answers requests."""

    def __init__(self, site: WebSite, hub: LiveHub) -> None:
        self._site = site
        self._hub = hub

    def refuse(self, status: int, title: str, message: str) -> Asgi:
        """A page that says why a request is refused."""
        from starlette.responses import HTMLResponse

        page = Page("error.html", title, {"message": message})
        response: Asgi = HTMLResponse(self._site.renderer.render(page, None, "/"), status)
        return response

    async def answer_health(self, _request: Request) -> Response:
        from starlette.responses import PlainTextResponse

        return PlainTextResponse("ok\n")

    def send_asset(self, request: Request) -> Response:
        from starlette.responses import FileResponse, PlainTextResponse

        name = request.path_params["name"]
        if name not in {file.name for file in ASSETS.iterdir()}:
            return PlainTextResponse("There is no such asset.\n", 404)
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        return FileResponse(ASSETS / name, media_type=kind, headers={"cache-control": "public, max-age=31536000"})

    def send_page(self, request: Request) -> Response:
        """An HTML page of an artifact, for a sandboxed frame."""
        return self._send(request, "text/html; charset=utf-8")

    def send_file(self, request: Request) -> Response:
        """A file of an artifact, to be saved."""
        return self._send(request, "")

    def _send(self, request: Request, kind: str) -> Response:
        from starlette.responses import FileResponse

        try:
            place = find_file(self._site, request.path_params["artifact"], request.path_params["name"])
        except SpanwiseError as error:
            return self.refuse(*_status_of(error), str(error))
        if not isinstance(place, Path):
            return _stream(place, kind, PurePosixPath(request.path_params["name"]).name)
        if kind:
            return FileResponse(place, media_type=kind)
        return FileResponse(place, media_type="application/octet-stream", filename=place.name)

    def send_log(self, request: Request) -> Response:
        """The whole log of one attempt."""
        from starlette.responses import FileResponse

        places = {name: str(place) for name, place in request.path_params.items()}
        try:
            execution, _ = find_log(self._site, Ask(places, dict(request.query_params)))
            name = f"{execution.pipeline}-{execution.run}-{execution.node}.log"
            if Path(execution.log).is_file():
                return FileResponse(execution.log, media_type="application/octet-stream", filename=name)
            opened = open_log(self._site, execution.log)
        except SpanwiseError as error:
            return self.refuse(*_status_of(error), str(error))
        if opened is None:
            return self.refuse(404, "No log", "Its file is gone; logs of old runs are removed by: spanwise gc")
        return _stream(opened, "", name)

    def answer_api(self, request: Request) -> Response:
        """A document; an error is one too, as those of commands with `--json`."""
        from starlette.responses import Response as Answer

        status, document = self._answer_document(request.scope["path"], dict(request.query_params))
        return Answer(format_json(document) + "\n", status, media_type="application/json")

    def _answer_document(self, path: str, query: Mapping[str, str]) -> tuple[int, object]:
        if path in ("/api", "/api/", "/api/openapi.json"):
            return 200, describe_api()
        found = find_endpoint(path)
        if found is None:
            return 404, {"error": f"There is no {path}. See /api for what there is.", "kind": "NotRecorded"}
        endpoint, places = found
        try:
            self._site.client.session.look_back()
            return 200, endpoint.reply(self._site, Ask(places, query))
        except SpanwiseError as error:
            return _status_of(error)[0], {
                "error": str(error),
                "kind": type(error).__name__,
                "exit_code": error.exit_code,
            }

    async def log_in(self, request: Request) -> Response:
        from starlette.responses import HTMLResponse, RedirectResponse

        form = dict(parse_qsl((await request.body())[:4096].decode("utf-8", "replace")))
        given = form if request.method == "POST" else request.query_params
        where = "/" + str(given.get("next", "/")).lstrip("/\\")
        policy = self._site.policy
        role = policy.role_of(form.get("token", "").strip()) if request.method == "POST" else None
        if role is not None:
            return RedirectResponse(where, 303, {"set-cookie": policy.make_cookie(Visit.by_token(role))})
        page = Page("login.html", "A token is needed", {"next": where, "wrong": request.method == "POST"})
        return HTMLResponse(self._site.renderer.render(page, None, "/login"), 403 if request.method == "POST" else 200)

    async def stream(self, request: Request) -> Response:
        from starlette.responses import PlainTextResponse, StreamingResponse

        if self._hub.full:
            return PlainTextResponse("Too many pages are open. Close some.\n", 503)
        return StreamingResponse(self._hub.follow(request.query_params.get("page", "")), media_type="text/event-stream")

    async def show(self, request: Request) -> Response:
        """Any page."""
        from starlette.concurrency import run_in_threadpool

        form = dict(parse_qsl((await request.body()).decode("utf-8", "replace"))) if request.method == "POST" else {}
        return await run_in_threadpool(self._answer, request, form)

    def _answer(self, request: Request, form: Mapping[str, str]) -> Response:
        from starlette.responses import HTMLResponse, RedirectResponse

        visit: Visit | None = request.scope.get("visit")
        path = request.scope["path"]
        try:
            page = self._find_page(path, Ask(query=dict(request.query_params), form=form, visit=visit))
        except Redirected as answer:
            return RedirectResponse(answer.where, 303)
        token = visit.form_token(self._site.policy.key) if visit is not None else ""
        return HTMLResponse(self._site.renderer.render(page, visit, path, token), page.status)

    def _find_page(self, path: str, ask: Ask) -> Page:
        found = find_route(path)
        if found is None:
            return Page("error.html", "No such page", {"message": f"There is no page {path}."}, status=404)
        route, places = found
        try:
            return make_page(self._site, route, Ask(places, ask.query, ask.form, ask.visit))
        except Redirected:
            raise
        except SpanwiseError as error:
            if isinstance(error, StoreError) and not isinstance(error, NotRecorded):
                self._site.client.session.reset()  # the next question connects again
            status, title = _status_of(error)
            return Page("error.html", title, {"message": str(error)}, status=status)
        except Exception:
            log.exception("page-failed", extra={"path": path})
            message = (
                "This is a bug in spanwise; the log of the server has the details. The command line shows the same: "
                "spanwise runs"
            )
            return Page("error.html", "This page could not be made", {"message": message}, status=500)


def _stream(opened: BinaryIO, kind: str, name: str) -> Response:
    """A file in object storage; without a kind, to be saved."""
    from starlette.responses import StreamingResponse

    pieces = iter(lambda: opened.read(1 << 18), b"")
    if kind:
        return StreamingResponse(pieces, media_type=kind)
    headers = {"content-disposition": f"attachment; filename*=utf-8''{quote(name, safe='')}"}
    return StreamingResponse(pieces, media_type="application/octet-stream", headers=headers)
