"""The command that backfills past spans."""

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
    echo,
    location_options,
    print_document,
    read_settings,
)


@app.command()
def backfill(
    file: Annotated[
        str | None, typer.Argument(metavar="FILE", help="A Python file; FILE:NAME picks a pipeline in it.")
    ] = None,
    span: Annotated[
        str | None,
        typer.Option(
            metavar="SPAN",
            help="A span, or A..B for all spans from A to B, at their newest versions; NODE=SPAN of one node.",
        ),
    ] = None,
    missed: Annotated[
        bool, typer.Option("--missed", help="All spans with a tick that was skipped, killed or missed, or that failed.")
    ] = False,
    stale: Annotated[bool, typer.Option("--stale", help="All ingested spans whose input has a newer version.")] = False,
    resume: Annotated[
        str | None, typer.Option(metavar="ID", help="Continue a backfill that was interrupted or failed.")
    ] = None,
    train_once: Annotated[
        bool, typer.Option("--train-once", help="Ingest each span, then train one model on the latest window.")
    ] = False,
    split_at: Annotated[
        list[str],
        typer.Option(metavar="NODE", help="A first node of the part that runs once. [default: resolvers by span]"),
    ] = [],  # noqa: B006  typer copies it
    parallel: Annotated[
        int, typer.Option(min=1, metavar="N", help="Ingest N spans in parallel; with --train-once.")
    ] = 1,
    warm_start: Annotated[
        bool,
        typer.Option("--warm-start", help="Warm-start models from earlier ones, which may be wrong."),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Include spans that no window reads.")] = False,
    skip_absent: Annotated[bool, typer.Option("--skip-absent", help="Skip spans of the range without input.")] = False,
    kill: Annotated[bool, typer.Option("--kill", help="Stop the running run instead of waiting for it.")] = False,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="Start no other span after one has failed.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan, and run nothing.")] = False,
    param: Param = [],  # noqa: B006
    no_cache: NoCache = False,
    jobs: Jobs = None,
    root: Root = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Backfill past spans.

    Prints the plan, pauses the schedule, waits for the running run, runs each span at its newest version, oldest
    first, and resumes the schedule.

    Example: spanwise backfill flights.py --span 2013-01-05..2013-01-09 --train-once
    """
    from spanwise.scheduler.backfill import command, formatting
    from spanwise.scheduler.backfill.execution import catch_stop_signals
    from spanwise.scheduler.backfill.plan import BackfillOptions
    from spanwise.scheduler.run.launch import ExecutionOptions

    settings = read_settings(root, config)
    request = command.BackfillRequest(
        reference=file,
        span=span,
        missed=missed,
        stale=stale,
        resume=resume,
        options=BackfillOptions(
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
        execution=ExecutionOptions(jobs, cache=not no_cache),
        elsewhere=location_options(root, config),
    )
    if resume is not None:
        so_far, loaded = command.load_resumed(request, settings)
        if dry_run and json:
            print_document(formatting.result_document(so_far))
        elif dry_run:
            typer.echo(formatting.format_remaining(so_far))
        if dry_run:
            return
        with catch_stop_signals() as stop_signal:
            raise typer.Exit(command.execute(so_far.backfill, loaded, request, settings, stop_signal, json=json))
    plan, loaded = command.plan_request(request, settings)
    if json and (dry_run or not plan.targets):
        print_document(formatting.plan_document(plan))
    elif not json:
        echo(formatting.format_plan(plan), root, config)
    if dry_run:
        return
    closed = command.close_outside(settings, plan, loaded)
    if not json:
        sys.stdout.write(command.describe_left_out(request, plan, closed))
        sys.stdout.flush()
    if not plan.targets:
        raise typer.Exit(1 if plan.absent or plan.lowered or plan.alone or plan.runs or plan.own or plan.lost else 0)
    with catch_stop_signals() as stop_signal:
        recorded = command.record_plan(request, settings, plan, loaded)
        code = command.execute(recorded, loaded, request, settings, stop_signal, json=json)
        raise typer.Exit(code or (1 if plan.lowered or plan.alone or plan.own or plan.lost else 0))
