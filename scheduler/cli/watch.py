"""The command that runs pipelines when data arrives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from spanwise.scheduler.cli.app import Config, Root, app, location_options, read_settings
from spanwise.scheduler.cli.schedule import Files

if TYPE_CHECKING:
    from spanwise.scheduler.ledger.ticks import TickRecord


@app.command()
def watch(
    files: Files,
    settle: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="How long new data must not have changed.")
    ] = 60,
    poll: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="How often to look for new data.")] = 30,
    once: Annotated[
        bool, typer.Option("--once", help="Run for the data that is ready, once it has settled; then exit.")
    ] = False,
    let_finish: Annotated[
        bool, typer.Option("--let-finish", help="When stopped, wait for the runs to end instead of stopping them.")
    ] = False,
    root: Root = None,
    config: Config = None,
    json: Annotated[bool, typer.Option("--json", help="Log one JSON object a line.")] = False,
) -> None:
    """Run pipelines when data arrives.

    Runs each new span, and from scratch each newer version that a window reads; of several, each is ingested and one
    model is trained. Runs until SIGTERM or Ctrl-C. With --once, exit code 1 when a run did not succeed.

    Example: spanwise watch flights.py --settle 300
    """
    from spanwise.scheduler.daemon import decision_log
    from spanwise.scheduler.daemon.loop import SchedulerLoop
    from spanwise.scheduler.daemon.pipeline_files import DataWatch
    from spanwise.scheduler.ledger.schedule_status import schedule_of
    from spanwise.scheduler.ledger.status_formatting import format_ended_tick
    from spanwise.scheduler.project import root as home

    decision_log.configure(as_json=json)
    settings, options = read_settings(root, config), location_options(root, config)
    data_watch = DataWatch(settle_s=settle, poll_s=poll)
    ended: list[TickRecord] = []

    def collect(record: TickRecord) -> None:
        if once:
            ended.append(record)

    SchedulerLoop(
        files, settings, once=once, let_finish=let_finish, watch=data_watch, options=options, on_ended=collect
    ).run()
    if not once:
        return
    with home.open_for_reading(settings) as store:
        for record in ended if not json else []:
            typer.echo(format_ended_tick(record, schedule_of(store, record)))
    if not (ended or json):
        typer.echo("No new data has arrived.")
    raise typer.Exit(1 if any(e.end is not None and e.end.outcome.abnormal for e in ended) else 0)
