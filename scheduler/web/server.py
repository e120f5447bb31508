"""The server: which address it listens on, who is let in, and how it begins and ends."""

from __future__ import annotations

import os
import threading
import webbrowser
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from spanwise.orchestrator.errors import UsageError
from spanwise.scheduler.client import Client
from spanwise.scheduler.project.settings import Settings
from spanwise.scheduler.web.access import AccessPolicy, WebRole, make_policy
from spanwise.scheduler.web.pages import Renderer
from spanwise.scheduler.web.site import WebSite

OPERATOR_TOKEN = "SPANWISE_UI_TOKEN"  # noqa: S105  the name of a variable
VIEWER_TOKEN = "SPANWISE_UI_VIEWER_TOKEN"  # noqa: S105

_LOCKED_S = 5.0  # a page says that the metadata is locked rather than waiting for as long as a run does

MISSING = "The page needs more packages than the command line. Install them:  pip install 'spanwise[ui]'"


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """The options of the server, as they were typed."""

    host: str = "127.0.0.1"
    port: int = 8080
    open_browser: bool = False
    trust_header: str = ""
    role: WebRole = WebRole.OPERATOR  #: of those who need no token
    names: tuple[str, ...] = ()  #: other names by which it may be called
    certificate: Path | None = None
    key: Path | None = None
    dispatcher: str = ""
    elsewhere: tuple[str, ...] = ()  #: --root and --config as they were typed


def read_tokens(environment: Mapping[str, str]) -> dict[WebRole, str]:
    """The tokens in the environment, where other users of the machine do not see them."""
    found = {WebRole.OPERATOR: environment.get(OPERATOR_TOKEN, ""), WebRole.VIEWER: environment.get(VIEWER_TOKEN, "")}
    return {role: token.strip() for role, token in found.items() if token.strip()}


def check_options(options: ServerOptions) -> AccessPolicy:
    """Who is let in.

    Raises:
        UsageError: others reach the address and nobody authenticates them, a token is too short, a package is missing,
            or one of the files of TLS is missing or of no use.
    """
    if (options.certificate is None) != (options.key is None):
        raise UsageError("TLS takes both files:  --certificate FILE --key FILE")
    for file in (options.certificate, options.key):
        if file is not None and not file.is_file():
            raise UsageError(f"There is no file {file}. TLS takes a certificate and its key as PEM files.")
    if options.certificate is not None and options.key is not None:
        _check_certificate(options.certificate, options.key)
    policy = make_policy(
        options.host,
        tokens=read_tokens(os.environ),
        trust_header=options.trust_header,
        role=options.role,
        names=options.names,
        secure=options.certificate is not None,
    )
    try:
        import jinja2  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise UsageError(MISSING) from error
    return policy


def _check_certificate(certificate: Path, key: Path) -> None:
    """Raises UsageError when TLS cannot use the two: one is no PEM file, or the key is not that of the certificate."""
    import ssl

    def refuse_password() -> str:
        raise UsageError(f"The key {key} needs a password, which a server cannot be asked for. Give one without.")

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, refuse_password)
    except (ssl.SSLError, OSError) as error:
        raise UsageError(
            f"TLS cannot use {certificate} with the key {key}: {error}. It takes a certificate and its key, as PEM."
        ) from error


def serve(options: ServerOptions, settings: Settings, config: Path | None) -> None:
    """Serves the page until it is interrupted.

    Raises:
        UsageError: see `check_options`; or the port is taken.
    """
    policy = check_options(options)
    import uvicorn

    from spanwise.scheduler.web.application import create_application

    with Client(settings, config=config, deadline_s=_LOCKED_S) as client:
        site = WebSite(client, policy, Renderer(options.elsewhere), dispatcher=options.dispatcher)
        server = uvicorn.Server(
            uvicorn.Config(
                create_application(site),
                host=options.host,
                port=options.port,
                ssl_certfile=options.certificate,
                ssl_keyfile=options.key,
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=2,
                limit_concurrency=500,
                ws="none",
                lifespan="on",
            )
        )
        _listen(server, options)


def _listen(server: object, options: ServerOptions) -> None:
    import socket

    import uvicorn

    assert isinstance(server, uvicorn.Server)
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((options.host, options.port))
            listener.listen(2048)  # so that who reads the address below is answered
        except OSError as error:
            raise UsageError(
                f"{options.host}:{options.port} cannot be listened on: {error.strerror}. Choose another:  --port 0"
            ) from error
        port = listener.getsockname()[1]
        scheme = "http" if options.certificate is None else "https"
        host = f"[{options.host}]" if ":" in options.host else options.host
        url = f"{scheme}://{host}:{port}/"
        print(f"The page is at {url}  (end it with Ctrl-C)", flush=True)  # noqa: T201  its only output
        if options.open_browser:
            threading.Timer(0.5, webbrowser.open, [url]).start()
        server.run(sockets=[listener])
