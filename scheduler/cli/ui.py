"""The command that serves the web page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spanwise.scheduler.cli.app import Config, Root, app, location_options, read_settings


@app.command()
def ui(
    host: Annotated[str, typer.Option(metavar="HOST", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, metavar="PORT", help="The port; 0 is any that is free.")
    ] = 8080,
    open_browser: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    viewer: Annotated[bool, typer.Option("--viewer", help="Whoever needs no token may look, not act.")] = False,
    trust_header: Annotated[
        str, typer.Option(metavar="NAME", help="The header in which a reverse proxy names whom it has authenticated.")
    ] = "",
    allow_host: Annotated[
        list[str], typer.Option(metavar="NAME", help="Another name by which it may be called. May be repeated.")
    ] = [],  # noqa: B006  typer copies it
    certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The certificate for TLS, as a PEM file.")
    ] = None,
    key: Annotated[Path | None, typer.Option(metavar="FILE", help="The key of the certificate.")] = None,
    dispatcher: Annotated[
        str, typer.Option(metavar="ADDRESS", help="The dispatcher of a data service to show: grpc://127.0.0.1:5050.")
    ] = "",
    root: Root = None,
    config: Config = None,
) -> None:
    """Serve a web page.

    Of pipelines, runs, spans and models, to look at and to act on; for this machine alone, unless a token is set.

    Example: spanwise ui --open
    """
    from spanwise.scheduler.web.access import WebRole
    from spanwise.scheduler.web.server import ServerOptions, serve

    options = ServerOptions(
        host=host,
        port=port,
        open_browser=open_browser,
        trust_header=trust_header,
        role=WebRole.VIEWER if viewer else WebRole.OPERATOR,
        names=tuple(allow_host),
        certificate=certificate,
        key=key,
        dispatcher=dispatcher,
        elsewhere=tuple(location_options(root, config)),
    )
    serve(options, read_settings(root, config), config)
