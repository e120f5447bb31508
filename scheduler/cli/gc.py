"""Commands that make room, and that keep what is to stay."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

from spanwise.scheduler.cli.app import Config, Json, Root, app, now, print_document, settings_of

Artifact: TypeAlias = Annotated[
    str, typer.Argument(metavar="ARTIFACT", help="Its name, as `spanwise artifacts` has it; its id; or its folder.")
]


@app.command()
def gc(
    pipeline: Annotated[
        str | None,
        typer.Argument(
            metavar="PIPELINE",
            help="Its name; or its file, to ask its resolvers what they would choose. [default: all]",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would go, and remove nothing.")] = False,
    whole: Annotated[bool, typer.Option("--all", help="Also print what stays, and why.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the run that is going, and then collect.")] = False,
    keep_last: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="How many of each channel stay. [default: 10]")
    ] = None,
    keep_last_of: Annotated[
        list[str], typer.Option(metavar="TYPE=N", help="How many of a channel of that type stay. May be repeated.")
    ] = [],  # noqa: B006  typer copies it
    keep_younger: Annotated[
        str | None, typer.Option(metavar="LENGTH", help="What was published so lately stays. [default: 30d]")
    ] = None,
    keep_marked: Annotated[
        list[str], typer.Option(metavar="MARK", help="What was blessed or pushed stays; or `none`. [default: both]")
    ] = [],  # noqa: B006
    keep_logs: Annotated[
        str | None, typer.Option(metavar="LENGTH", help="Logs of runs that ended so lately stay. [default: 90d]")
    ] = None,
    root: Root = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Remove files that nobody needs any more.

    What the last runs used, windows, pushed and blessed models and what serves them, what is young or pinned stays.
    The metadata stays whole; an artifact that is needed again is made again. Exit code 1 when something could not be
    removed, 3 when runs hold all of it.

    Example: spanwise gc flights --dry-run --all
    """
    from spanwise.scheduler.inspect import find
    from spanwise.scheduler.project import root as home
    from spanwise.scheduler.project.load import load
    from spanwise.scheduler.storage import gc as collecting

    settings = settings_of(root, config)
    retention = collecting.overridden(
        settings.gc, last=keep_last, last_of=keep_last_of, younger=keep_younger, marked=keep_marked, logs=keep_logs
    )
    with home.read(settings) as store:
        name, file = find.pipeline_or_file(store, pipeline, settings.params) if pipeline is not None else ("", "")
        loaded = load(file, settings=settings.params) if file else None
        means = collecting.Means(store=store, root=settings.root, retention=retention, now=now(), wait=wait)
        results = []
        for each in [name] if name else store.pipelines():
            planned = collecting.plan(means, each, loaded)
            done = None if dry_run else collecting.collect(means, planned, loaded)
            results.append((planned, done))
            if not json:
                typer.echo(collecting.told(planned, done, whole=whole))
    if json:
        print_document([collecting.document(planned, done) for planned, done in results])
    elif not results:
        typer.echo("Nothing has run here yet.")
    raise typer.Exit(collecting.exit_code([done for _, done in results if done is not None]))


@app.command()
def pin(
    artifact: Artifact,
    why: Annotated[str, typer.Option(metavar="TEXT", help="What for; it is shown with what stays.")] = "",
    root: Root = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Have an artifact stay, whatever `gc` removes.

    Example: spanwise pin flights/Trainer/model/42 --why "the one in the paper"
    """
    from spanwise.scheduler.formatting import format_size
    from spanwise.scheduler.inspect import find
    from spanwise.scheduler.project import root as home
    from spanwise.scheduler.storage import pins as pinning

    settings = settings_of(root, config)
    with home.read(settings) as store:
        found = find.artifact(store, artifact, settings.root)
        pinning.pin(store, found, why=why, now=now())
    if json:
        print_document({"artifact": found.name, "pinned": True, "why": why})
    else:
        typer.echo(f"{found.name} stays, {format_size(found.size_bytes)}. To let it go: spanwise unpin {found.name}")


@app.command()
def unpin(artifact: Artifact, root: Root = None, config: Config = None, json: Json = False) -> None:
    """End the pin of an artifact.

    Example: spanwise unpin flights/Trainer/model/42
    """
    from spanwise.scheduler.inspect import find
    from spanwise.scheduler.project import root as home
    from spanwise.scheduler.storage import pins as pinning

    settings = settings_of(root, config)
    with home.read(settings) as store:
        found = find.artifact(store, artifact, settings.root)
        pinning.unpin(store, found, now=now())
    if json:
        print_document({"artifact": found.name, "pinned": False})
    else:
        typer.echo(f"{found.name} is pinned no more.")
