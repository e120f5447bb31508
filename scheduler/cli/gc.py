"""Commands that free disk space, and that protect artifacts from that."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, TypeAlias

import typer

from spanwise.scheduler.cli.app import Config, Json, Root, app, echo, now, print_document, read_settings

Artifact: TypeAlias = Annotated[
    str, typer.Argument(metavar="ARTIFACT", help="Its name, as `spanwise artifacts` lists it, its id, or its folder.")
]


@app.command()
def gc(
    pipeline: Annotated[
        str | None,
        typer.Argument(
            metavar="PIPELINE",
            help="Its name; or its file, to also keep what its resolvers would choose now. [default: all]",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be removed, and remove nothing.")
    ] = False,
    whole: Annotated[
        bool, typer.Option("--all", help="List all, not only 1000 of a kind, and what is kept, and why.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the running run to end, then collect.")] = False,
    keep_last: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Keep this many artifacts per channel. [default: 10]")
    ] = None,
    keep_last_of: Annotated[
        list[str], typer.Option(metavar="TYPE=N", help="Keep this many per channel of a type. May be repeated.")
    ] = [],  # noqa: B006  typer copies it
    keep_younger: Annotated[
        str | None, typer.Option(metavar="LENGTH", help="Keep what was published more recently. [default: 30d]")
    ] = None,
    keep_marked: Annotated[
        list[str], typer.Option(metavar="MARK", help="Keep what is `blessed` or `pushed`; or `none`. [default: both]")
    ] = [],  # noqa: B006
    keep_logs: Annotated[
        str | None, typer.Option(metavar="LENGTH", help="Keep logs of runs that ended more recently. [default: 90d]")
    ] = None,
    root: Root = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Remove the files of unused artifacts.

    Artifacts that recent runs used, windows, blessed and pushed models with what they need to be served, and young or
    pinned artifacts are kept. The metadata is never removed; an artifact that is needed again is produced again. Exit
    code 1 when something could not be removed, 3 when runs hold all pipelines.

    Example: spanwise gc flights --dry-run --all
    """
    from spanwise.scheduler.inspect import find
    from spanwise.scheduler.project import root as home
    from spanwise.scheduler.project.load import load
    from spanwise.scheduler.run import openlineage
    from spanwise.scheduler.storage import formatting
    from spanwise.scheduler.storage import gc as collection

    settings = read_settings(root, config)
    retention = collection.override_retention(
        settings.gc, last=keep_last, last_of=keep_last_of, younger=keep_younger, marked=keep_marked, logs=keep_logs
    )
    with home.open_for_reading(settings) if dry_run else home.open_to_record(settings) as store:
        name, file = find.pipeline_or_file(store, pipeline, settings.params) if pipeline is not None else ("", "")
        loaded = load(file, settings=settings.params) if file else None
        collection.refuse_unknown_types(store, retention)
        context = collection.CollectionContext(
            store=store,
            root=settings.root,
            retention=retention,
            now=now(),
            wait=wait,
            closed=lambda run: openlineage.send_end(settings, store, run),
        )
        pipelines = [name] if name else store.pipelines()
        results, documents = [], []
        for plan in collection.plan_collections(context, pipelines, loaded):
            result = None if dry_run else collection.collect(context, plan, loaded)
            if result is not None:
                results.append(replace(result, artifacts=(), leftovers=()))  # which are many
            if json:
                documents.append(formatting.collection_document(plan, result))
            else:
                echo(formatting.format_collection(plan, result, whole=whole), root, config)
    if json:
        print_document(documents)
    elif not pipelines:
        typer.echo("Nothing has run here yet.")
    raise typer.Exit(collection.exit_code(results))


@app.command()
def pin(
    artifact: Artifact,
    because: Annotated[str, typer.Option(metavar="TEXT", help="The reason; `spanwise gc --all` shows it.")] = "",
    root: Root = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Protect an artifact from garbage collection.

    Example: spanwise pin flights/Trainer/model/42 --because "the one in the paper"
    """
    from spanwise.scheduler.formatting import format_size
    from spanwise.scheduler.inspect import find
    from spanwise.scheduler.project import root as home
    from spanwise.scheduler.storage import pins as pinning

    settings = read_settings(root, config)
    with home.open_to_record(settings) as store:
        found = find.artifact(store, artifact, settings.root)
        pinning.pin(store, found, why=because, now=now())
    if json:
        print_document({"artifact": found.name, "pinned": True, "why": because})
    else:
        size = format_size(found.size_bytes)
        echo(f"Pinned {found.name}, {size}. To unpin it: spanwise unpin {found.name}", root, config)


@app.command()
def unpin(artifact: Artifact, root: Root = None, config: Config = None, json: Json = False) -> None:
    """Unpin an artifact.

    Example: spanwise unpin flights/Trainer/model/42
    """
    from spanwise.scheduler.inspect import find
    from spanwise.scheduler.project import root as home
    from spanwise.scheduler.storage import pins as pinning

    settings = read_settings(root, config)
    with home.open_to_record(settings) as store:
        found = find.artifact(store, artifact, settings.root)
        pinning.unpin(store, found, now=now())
    if json:
        print_document({"artifact": found.name, "pinned": False})
    else:
        typer.echo(f"Unpinned {found.name}.")
