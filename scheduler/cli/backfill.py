"""Commands that mend the past."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from spanwise.scheduler.cli.app import (
    Config,
    Jobs,
    Json,
    NoCache,
    Param,
    Root,
    app,
    elsewhere,
    print_document,
    settings_of,
)


@app.command()
def backfill(
    file: Annotated[
        str | None, typer.Argument(metavar="FILE", help="A Python file; FILE:NAME picks a pipeline in it.")
    ] = None,
    span: Annotated[
        str | None, typer.Option(metavar="SPAN", help="A span, or A..B for all from A to B, at their newest versions.")
    ] = None,
    missed: Annotated[
        bool, typer.Option("--missed", help="Every span whose tick was skipped, killed or missed, or failed.")
    ] = False,
    stale: Annotated[
        bool, typer.Option("--stale", help="Every span of which a newer version has arrived since it was ingested.")
    ] = False,
    resume: Annotated[
        str | None, typer.Option(metavar="ID", help="Go on with a backfill that was interrupted or has failed.")
    ] = None,
    train_once: Annotated[
        bool, typer.Option("--train-once", help="Ingest each span, then train one model on the latest window.")
    ] = False,
    split_at: Annotated[
        list[str], typer.Option(metavar="NODE", help="A first node of what runs once. [default: what chooses by span]")
    ] = [],  # noqa: B006  typer copies it
    parallel: Annotated[
        int, typer.Option(min=1, metavar="N", help="Ingest so many spans side by side; with --train-once.")
    ] = 1,
    warm_start: Annotated[
        bool,
        typer.Option("--warm-start", help="Let models start from earlier ones, which may be wrong."),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Also run spans that no window reads.")] = False,
    skip_absent: Annotated[
        bool, typer.Option("--skip-absent", help="Leave out spans of the range that have no input.")
    ] = False,
    kill: Annotated[bool, typer.Option("--kill", help="End the run that is going, instead of waiting for it.")] = False,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="Begin no other span once one has failed.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan, and do nothing.")] = False,
    param: Param = [],  # noqa: B006
    no_cache: NoCache = False,
    jobs: Jobs = None,
    root: Root = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Run past spans again.

    Pauses the schedule, waits for the run that is going, runs each span at its newest version, the oldest first, and
    resumes the schedule. The plan is printed first.

    Example: spanwise backfill flights.py --span 2013-01-05..2013-01-09 --train-once
    """
    from spanwise.scheduler.backfill import command, formatting
    from spanwise.scheduler.backfill.execution import asked
    from spanwise.scheduler.backfill.plan import Wish
    from spanwise.scheduler.run.launch import ExecutionOptions

    settings = settings_of(root, config)
    typed = command.Typed(
        reference=file,
        span=span,
        missed=missed,
        stale=stale,
        resume=resume,
        wish=Wish(
            train_once=train_once,
            split_at=tuple(split_at),
            parallel=parallel,
            force=force,
            skip_absent=skip_absent,
            warm_start=warm_start,
        ),
        params=param,
        kill=kill,
        fail_fast=fail_fast,
        effort=ExecutionOptions(jobs, cache=not no_cache),
        elsewhere=elsewhere(root, config),
    )
    if resume is not None:
        so_far, loaded = command.again(typed, settings)
        if dry_run and json:
            print_document(formatting.result_document(so_far))
        elif dry_run:
            typer.echo(formatting.stands(so_far))
        if dry_run:
            return
        with asked() as by:
            raise typer.Exit(command.work(so_far.backfill, loaded, typed, settings, by, json=json))
    plan, loaded = command.plan(typed, settings)
    if json and (dry_run or not plan.targets):
        print_document(formatting.plan_document(plan))
    elif not json:
        sys.stdout.write(formatting.planned(plan) + "\n")
        sys.stdout.flush()
    if dry_run or not plan.targets:
        return
    with asked() as by:
        going = command.begin(typed, settings, plan, loaded)
        raise typer.Exit(command.work(going, loaded, typed, settings, by, json=json))
