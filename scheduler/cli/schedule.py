"""Commands for schedules: run them, show past and future ticks, pause, check and simulate them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from spanwise.scheduler.cli.app import (
    Because,
    Config,
    File,
    Json,
    Root,
    app,
    echo,
    location_options,
    now,
    open_client,
    print_document,
    read_settings,
)

if TYPE_CHECKING:
    from spanwise.scheduler.ledger.ticks import TickRecord
    from spanwise.scheduler.project.settings import Settings
    from spanwise.scheduler.schedule.duration import Duration
    from spanwise.scheduler.schedule.span_rule import SpanRule
    from spanwise.scheduler.schedule.timetable import Timetable

schedule = typer.Typer(
    name="schedule",
    help="Run pipelines by the clock.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(schedule)

_LAST_RUNS = 200  # durations to draw from

Files: TypeAlias = Annotated[
    list[str], typer.Argument(metavar="FILE", help="Python files; FILE:NAME selects a schedule of several.")
]
Pipeline: TypeAlias = Annotated[str, typer.Argument(metavar="PIPELINE", help="The name of a scheduled pipeline.")]
Pipelines: TypeAlias = Annotated[
    list[str] | None, typer.Argument(metavar="PIPELINE", help="Only these. [default: all that are scheduled]")
]


@schedule.command()
def start(
    files: Files,
    let_finish: Annotated[
        bool, typer.Option("--let-finish", help="When stopped, wait for the runs to end instead of stopping them.")
    ] = False,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="[ADDRESS:]PORT",
            help="Serve /metrics and /healthz there; without an address, to this machine alone.",
        ),
    ] = None,
    root: Root = None,
    config: Config = None,
    json: Annotated[bool, typer.Option("--json", help="Log one JSON object a line.")] = False,
) -> None:
    """Run pipelines by their schedules.

    Runs until SIGTERM or Ctrl-C. Reloads a file when it changes, and all files on SIGHUP.

    Example: spanwise schedule start flights.py
    """
    from spanwise.scheduler.daemon import decision_log
    from spanwise.scheduler.daemon.loop import SchedulerLoop

    decision_log.configure(as_json=json)
    settings, options = read_settings(root, config), location_options(root, config)
    if listen is None:
        SchedulerLoop(files, settings, let_finish=let_finish, options=options).run()
        return
    from spanwise.scheduler.daemon import health
    from spanwise.scheduler.daemon.metrics import SchedulerMetrics

    where = health.parse_address(listen)
    metrics = SchedulerMetrics(settings.place)
    cron = SchedulerLoop(files, settings, let_finish=let_finish, options=options, metrics=metrics)
    with health.serve_metrics(where, metrics):
        cron.run()


@schedule.command()
def tick(files: Files, root: Root = None, config: Config = None, json: Json = False) -> None:
    """Run the ticks that are due, then exit.

    For cron, systemd timers and Kubernetes. Exit code 1 when a tick did not succeed.

    Example: spanwise schedule tick flights.py
    """
    import logging

    from spanwise.scheduler.daemon import decision_log
    from spanwise.scheduler.daemon.loop import SchedulerLoop
    from spanwise.scheduler.ledger.schedule_status import schedule_of
    from spanwise.scheduler.ledger.status_formatting import format_ended_tick, tick_document
    from spanwise.scheduler.ledger.ticks import read_tick
    from spanwise.scheduler.project import root as home

    decision_log.configure(level=logging.WARNING)
    settings = read_settings(root, config)
    ended: list[TickRecord] = []
    SchedulerLoop(files, settings, once=True, options=location_options(root, config), on_ended=ended.append).run()
    with home.open_for_reading(settings) as store:
        found = [(read_tick(store, e.key, e.tick.name) or e, schedule_of(store, e)) for e in ended]
        if json:
            print_document([tick_document(e, of, location_options(root, config)) for e, of in found])
        else:
            for record, of in found:
                typer.echo(format_ended_tick(record, of))
            if not found:
                typer.echo("Nothing is due.")
    raise typer.Exit(1 if any(e.end is not None and e.end.outcome.abnormal for e in ended) else 0)


@schedule.command("next")
def list_next(
    file: File,
    count: Annotated[int, typer.Argument(metavar="N", min=1, max=10**9, help="How many ticks.")] = 5,
    root: Root = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Show the next ticks.

    With the span of each, and the effect of clock changes.

    Example: spanwise schedule next flights.py 10
    """
    from spanwise.orchestrator.calendar import Calendar
    from spanwise.scheduler.schedule import preview

    found = [
        (timetable, preview.list_coming(timetable, now(), count, rule), Calendar.from_name(calendar))
        for timetable, rule, calendar in _timetables(file, read_settings(root, config))
    ]
    if json:
        print_document([preview.ticks_document(*each) for each in found])
    else:
        typer.echo("\n\n".join(_add_heading(each[0], preview.format_ticks(*each)) for each in found))


@schedule.command()
def ticks(
    what: Annotated[str, typer.Argument(metavar="FILE|PIPELINE", help="A pipeline file, or a scheduled pipeline.")],
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="The start, such as 2026-03-01. [default: a week ago]")
    ] = None,
    root: Root = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Explain past ticks.

    The outcome of each, and why.

    Example: spanwise schedule ticks flights --since 2026-03-01
    """
    from datetime import timedelta

    from spanwise.orchestrator.calendar import Calendar
    from spanwise.scheduler.ledger.schedule_status import expand_keys, explain_ticks, find_schedule, is_cut, is_file
    from spanwise.scheduler.ledger.schedules import read_schedule
    from spanwise.scheduler.ledger.status_formatting import format_past_ticks, past_tick_document
    from spanwise.scheduler.run.launch import parse_time

    settings = read_settings(root, config)
    by_file = is_file(what)
    wanted = [(timetable, calendar) for timetable, _, calendar in _timetables(what, settings)] if by_file else []

    with open_client(root, config) as client:
        store = client.session.store
        for key in [] if by_file else expand_keys(store, [what]):
            known = find_schedule(store, key)
            wanted.append((known.timetable, known.calendar))
        found = []
        for timetable, calendar in wanted:
            begin = now() - timedelta(days=7) if since is None else parse_time(since, timetable.clock)
            known_one = read_schedule(store, timetable.pipeline)
            explained = explain_ticks(store, timetable, known_one, begin, now())
            found.append((explained, timetable, Calendar.from_name(calendar)))
        if json:
            print_document(
                [
                    {
                        "pipeline": table.pipeline,
                        "cut": is_cut(explained),
                        "ticks": [past_tick_document(e, calendar) for e in explained],
                    }
                    for explained, table, calendar in found
                ]
            )
        else:
            typer.echo("\n\n".join(_add_heading(each[1], format_past_ticks(*each)) for each in found))


@schedule.command()
def status(pipelines: Pipelines = None, root: Root = None, config: Config = None, json: Json = False) -> None:
    """Show the status of schedules.

    The last and next ticks, the running run, past and predicted durations, problems, and the schedulers.

    Example: spanwise schedule status flights
    """
    from spanwise.scheduler.ledger.schedule_status import read_forecast
    from spanwise.scheduler.ledger.status_formatting import (
        format_schedulers,
        format_status,
        scheduler_document,
        status_document,
    )
    from spanwise.scheduler.schedule.forecast import forecast_document

    with open_client(root, config) as client:
        store, standing = client.session.store, client.schedules(*pipelines or ())
        found = [(one, read_forecast(store, one.schedule.timetable.pipeline, now())) for one in standing]
        schedulers, alerts = client.schedulers(), client.settings.alerts
    if json:
        print_document(
            {
                "schedules": [
                    status_document(one, forecast_document(ahead, alerts.of(ahead.pipeline).forecast_load))
                    for one, ahead in found
                ],
                "schedulers": [scheduler_document(one) for one in schedulers],
            }
        )
        return
    parts = [format_status(one, ahead, now()) for one, ahead in found] or ["Nothing is scheduled here."]
    echo("\n\n".join([*parts, format_schedulers(schedulers, now())]), root, config)


@schedule.command()
def pause(
    pipeline: Pipeline,
    because: Because,
    until: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="When the pause ends, in the schedule's zone. [default: when it is resumed]"),
    ] = None,
    root: Root = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Pause a schedule.

    All schedulers obey it at once. A running run goes on; ticks during the pause are recorded as missed.

    Example: spanwise schedule pause flights --because "new disks" --until 2026-03-02T06:00
    """
    from spanwise.orchestrator.errors import UsageError
    from spanwise.scheduler.formatting import format_time
    from spanwise.scheduler.ledger.schedule_status import expand_keys, find_schedule
    from spanwise.scheduler.ledger.status_formatting import pause_document
    from spanwise.scheduler.run.launch import parse_time

    with open_client(root, config) as client:
        end, end_text = None, f"until:  spanwise schedule resume {pipeline}"
        if until is not None:
            zone = find_schedule(client.session.store, expand_keys(client.session.store, [pipeline])[0]).timetable.clock
            end = parse_time(until, zone)
            if end <= now():
                raise UsageError(f"--until {until} is in the past; give a later time.")
            end_text = f"until {format_time(end, zone)}"
        new_pause = client.pause(pipeline, because=because, until=end)
    if json:
        print_document(pause_document(pipeline, new_pause))
    else:
        echo(f"The schedule of {pipeline} is paused {end_text}", root, config)


@schedule.command()
def resume(pipeline: Pipeline, root: Root = None, config: Config = None, json: Json = False) -> None:
    """Resume a schedule.

    Exit code 1 when it was not paused.

    Example: spanwise schedule resume flights
    """
    from spanwise.scheduler.ledger.status_formatting import pause_document

    with open_client(root, config) as client:
        ended = client.unpause(pipeline)
    if json:
        print_document(None if ended is None else pause_document(pipeline, ended))
    else:
        typer.echo(f"The schedule of {pipeline} {'was not paused.' if ended is None else 'is resumed.'}")
    raise typer.Exit(1 if ended is None else 0)


@schedule.command()
def check(pipelines: Pipelines = None, root: Root = None, config: Config = None, json: Json = False) -> None:
    """Check for overdue ticks and stale models.

    For another machine or a monitor: exit code 1, and an alert, when a tick is overdue or a model is stale.

    Example: spanwise schedule check flights
    """
    import logging

    from spanwise.scheduler.alerts import watchdog
    from spanwise.scheduler.daemon import decision_log
    from spanwise.scheduler.ledger.status_formatting import format_check, status_document

    decision_log.configure(level=logging.ERROR)  # problems are printed on stdout

    with open_client(root, config) as client:
        found = client.schedules(*pipelines or ())
        watchdog.send_alerts(found, client.settings, now(), location_options(root, config))
    if json:
        print_document([status_document(one) for one in found])
    else:
        echo("\n".join(format_check(one) for one in found) or "Nothing is scheduled here.", root, config)
    raise typer.Exit(0 if all(one.healthy for one in found) else 1)


@schedule.command()
def simulate(
    file: File,
    start: Annotated[str, typer.Option("--from", metavar="TIME", help="The start; in the schedule's zone.")],
    end: Annotated[str, typer.Option("--to", metavar="TIME", help="The end.")],
    duration: Annotated[
        str | None,
        typer.Option(
            metavar="LENGTH", help="How long runs take: 2h, normal(2h,30m), uniform(1h,3h) or lognormal(2h,5h)"
        ),
    ] = None,
    from_history: Annotated[
        bool, typer.Option("--duration-from-history", help="Draw the durations from recorded runs.")
    ] = False,
    seed: Annotated[int, typer.Option(metavar="N", help="The random seed; the same seed gives the same result.")] = 0,
    whole: Annotated[bool, typer.Option("--all", help="Show every tick, even if there are many.")] = False,
    root: Root = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Simulate a schedule.

    On a simulated clock: ticks, overruns, skipped ticks, days on which clocks change.

    Example: spanwise schedule simulate flights.py --from 2026-03-01 --to 2026-04-01 --duration "normal(2h,30m)"
    """
    from spanwise.orchestrator.calendar import Calendar
    from spanwise.orchestrator.errors import UsageError
    from spanwise.scheduler.run.launch import parse_time
    from spanwise.scheduler.schedule import simulate as play
    from spanwise.scheduler.schedule.duration import Duration

    if (duration is None) != from_history:
        raise UsageError("Give the duration of runs: either --duration 2h, or --duration-from-history.")
    settings = read_settings(root, config)
    found = []
    for timetable, rule, calendar in _timetables(file, settings):
        length = Duration.parse(duration) if duration is not None else _read_durations(timetable.pipeline, settings)
        begin, stop = parse_time(start, timetable.clock), parse_time(end, timetable.clock)
        found.append((play.simulate(timetable, begin, stop, length, seed, rule=rule), Calendar.from_name(calendar)))
    if json:
        print_document([play.simulation_document(*each) for each in found])
    else:
        typer.echo("\n\n".join(play.format_simulation(*each, whole=whole) for each in found))


def _timetables(file: str, settings: Settings) -> Iterator[tuple[Timetable, SpanRule | None, str]]:
    """The schedules of a file, each with its custom span rule and the calendar of its spans."""
    from spanwise.scheduler.project import load
    from spanwise.scheduler.schedule.schedule import rule_of, timetables_of
    from spanwise.scheduler.schedule.schedule_key import part_of
    from spanwise.scheduler.schedule.span_rule import CustomSpanRule

    for one, loaded in load.schedules(file, settings=settings.params):
        for timetable in timetables_of(one, loaded.pipeline.name):
            rule = rule_of(one, part_of(timetable.pipeline)) if isinstance(timetable.span, CustomSpanRule) else None
            yield timetable, rule, loaded.calendar.value


def _add_heading(timetable: Timetable, text: str) -> str:
    """A table of ticks under its schedule key, if the schedule is of a part."""
    from spanwise.scheduler.schedule.schedule_key import part_of

    return f"{timetable.pipeline}\n{text}" if part_of(timetable.pipeline) else text


def _read_durations(pipeline: str, settings: Settings) -> Duration:
    """The durations of the last runs of a pipeline."""
    from spanwise.scheduler.ledger.past_runs import list_past_runs
    from spanwise.scheduler.project import root as home
    from spanwise.scheduler.schedule.duration import Duration

    with home.open_for_reading(settings) as store:
        return Duration.of([run.took_s for run in list_past_runs(store, pipeline, _LAST_RUNS, nodes=False)])
