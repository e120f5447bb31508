"""Commands for snapshots of datasets: list, show, verify and remove them.

With `snapshot_formatting`, the only part of the scheduler that imports `pipelines.input`
(docs/decisions/0032-snapshots.md).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from spanwise.scheduler.cli.app import Config, Json, Root, app, now, print_document, read_settings

if TYPE_CHECKING:
    from spanwise.pipelines.input.snapshot.storage import Files

snapshot = typer.Typer(
    name="snapshot",
    help="Manage snapshots of datasets.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(snapshot)

Place: TypeAlias = Annotated[
    str | None,
    typer.Option("--path", metavar="DIR", help="A folder or URL that holds snapshots. [default: ROOT/snapshots]"),
]
Fingerprint: TypeAlias = Annotated[
    str, typer.Argument(metavar="FINGERPRINT", help="The fingerprint of a snapshot, or its first letters.")
]
_EXPIRY_S = 86_400.0


@snapshot.command()
def ls(path: Place = None, root: Root = None, config: Config = None, json: Json = False) -> None:
    """List snapshots, newest first.

    Example: spanwise snapshot ls
    """
    from spanwise.scheduler.data_service import snapshot_formatting as rendering
    from spanwise.scheduler.data_service.observation import list_snapshots

    found = list_snapshots(_place(path, root, config))
    if json:
        print_document([rendering.listing_document(listing) for listing in found])
    else:
        typer.echo(rendering.format_listings(found) if found else "No snapshot is stored here yet.")


@snapshot.command()
def show(
    fingerprint: Fingerprint, path: Place = None, root: Root = None, config: Config = None, json: Json = False
) -> None:
    """Show a snapshot, its runs and chunks.

    Example: spanwise snapshot show 20bac5
    """
    from spanwise.pipelines.input.snapshot import inventory
    from spanwise.scheduler.data_service import snapshot_formatting as rendering

    listing = inventory.snapshot(_files(path, root, config), fingerprint)
    if json:
        print_document(rendering.listing_document(listing, whole=True))
    else:
        typer.echo(rendering.format_listing(listing))


@snapshot.command()
def verify(
    fingerprint: Annotated[
        str | None, typer.Argument(metavar="FINGERPRINT", help="Only this snapshot; the first letters suffice.")
    ] = None,
    path: Place = None,
    root: Root = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Verify the checksums of snapshots.

    Changes nothing: the next pass that reads a damaged snapshot detects the damage, too, and rewrites it.

    Example: spanwise snapshot verify
    """
    from spanwise.pipelines.input.snapshot import inventory
    from spanwise.scheduler.data_service import snapshot_formatting as rendering

    files = _files(path, root, config)
    chosen = [inventory.snapshot(files, fingerprint)] if fingerprint else list(inventory.snapshots(files))
    verdicts = [verdict for listing in chosen for verdict in inventory.verify(files, listing)]
    if json:
        print_document([rendering.verdict_document(verdict) for verdict in verdicts])
    else:
        typer.echo(rendering.format_verdicts(verdicts))
    raise typer.Exit(1 if any(verdict.problem for verdict in verdicts) else 0)


@snapshot.command()
def gc(
    older_than: Annotated[
        str | None,
        typer.Option(metavar="LENGTH", help="Also complete snapshots older than this, such as 30d."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be removed, and remove nothing.")
    ] = False,
    path: Place = None,
    root: Root = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Remove unfinished and old snapshots.

    Snapshots that are being read are kept, and folders that are not a snapshot's.

    Example: spanwise snapshot gc --older-than 30d
    """
    from spanwise.pipelines.input.snapshot import inventory
    from spanwise.scheduler.data_service import snapshot_formatting as rendering
    from spanwise.scheduler.schedule.duration import parse_length

    files = _files(path, root, config)
    whole_s = None if older_than is None else parse_length(older_than).total_seconds()
    act = inventory.garbage if dry_run else inventory.collect
    gone = list(act(files, now=now().timestamp(), whole_s=whole_s, expiry_s=_EXPIRY_S))
    if json:
        print_document([rendering.garbage_document(each) for each in gone])
    else:
        typer.echo(rendering.format_garbage(gone, list(inventory.unknown_folders(files)), dry_run=dry_run))


def _files(path: str | None, root: str | None, config: Path | None) -> Files:
    from spanwise.pipelines.input.snapshot.storage import files_at

    return files_at(_place(path, root, config))


def _place(path: str | None, root: Root, config: Path | None) -> str | Path:
    return path if path is not None else read_settings(root, config).snapshots
