"""Commands for missed ticks: list them, and give them up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from spanwise.scheduler.cli.app import (
    Because,
    Config,
    Json,
    Root,
    location_options,
    now,
    open_client,
    print_document,
)
from spanwise.scheduler.cli.schedule import Pipelines, schedule

if TYPE_CHECKING:
    from spanwise.orchestrator.calendar import Calendar

_LAST_MISSED = 1000  # ticks that did not succeed, listed with --all


@schedule.command()
def missed(
    pipelines: Pipelines = None,
    closed: Annotated[
        bool, typer.Option("--all", help="Include those that were recovered, superseded or acknowledged.")
    ] = False,
    root: Root = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """List ticks that need backfilling.

    Ticks that were skipped, killed, missed or failed, with the commands that backfill them and that give them up. Exit
    code 1 when there are any.

    Example: spanwise schedule missed flights
    """
    from spanwise.scheduler.ledger.missed import list_abnormal, list_missed
    from spanwise.scheduler.ledger.schedule_status import expand_keys, find_schedule
    from spanwise.scheduler.ledger.status_formatting import format_missed, tick_document

    with open_client(root, config) as client:
        store = client.session.store
        keys = expand_keys(store, pipelines)
        left = {key: list_missed(store, key) for key in keys}
        shown = {key: list_abnormal(store, key, max(_LAST_MISSED, len(left[key]))) for key in keys} if closed else left
        found = [(find_schedule(store, key), shown[key]) for key in keys]
        options = location_options(root, config)
        if json:
            print_document([tick_document(tick, of, options) for of, ticks in found for tick in ticks])
        else:
            typer.echo(format_missed(store, found, options))
        raise typer.Exit(1 if any(left.values()) else 0)


@schedule.command()
def acknowledge(
    what: Annotated[str, typer.Argument(metavar="FILE|PIPELINE", help="A pipeline file, or a scheduled pipeline.")],
    because: Because,
    span: Annotated[
        str | None, typer.Option(metavar="SPAN", help="The missed ticks of a span, or of all spans from A to B: A..B.")
    ] = None,
    tick: Annotated[str | None, typer.Option(metavar="TICK", help="The missed tick of this name.")] = None,
    root: Root = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Give up missed ticks.

    They need no backfill any more, and are no longer listed by `schedule missed`. Who gave them up, and why, is shown
    by `schedule missed --all` and `schedule ticks`.

    Example: spanwise schedule acknowledge flights --span 2013-01-08 --because "no data on a holiday"
    """
    from spanwise.orchestrator.calendar import Calendar
    from spanwise.orchestrator.errors import UsageError
    from spanwise.scheduler.alerts.recovery import record_closing
    from spanwise.scheduler.ledger.missed import select_missed
    from spanwise.scheduler.ledger.schedule_status import (
        expand_keys,
        find_schedule,
        is_file,
        list_keys_of_file,
        user_name,
    )
    from spanwise.scheduler.ledger.status_formatting import format_acknowledged, tick_document
    from spanwise.scheduler.schedule.outcome import Closing, TickClosure

    if (span is None) == (tick is None):
        raise UsageError("Give either --span, or --tick with the name of a tick from `spanwise schedule missed`.")
    if not because.strip():
        raise UsageError("--because takes the reason, for whoever reads it in a year.")
    with open_client(root, config) as client, client.session.writing() as store:
        keys = list_keys_of_file(store, what) if is_file(what) else expand_keys(store, [what])
        schedules = {key: find_schedule(store, key) for key in keys}
        calendars = {key: Calendar.from_name(known.calendar) for key, known in schedules.items()}
        spans = None if span is None else _parse_spans(calendars, span)
        selected = select_missed(store, keys, spans=spans, tick=tick)
        closure = TickClosure(how=Closing.ACKNOWLEDGED, at=now(), who=user_name(), because=because.strip())
        done = record_closing(store, selected, closure, client.settings.place)
    if json:
        print_document([tick_document(each, schedules[each.key], location_options(root, config)) for each in done])
    else:
        typer.echo(format_acknowledged(done))


def _parse_spans(calendars: Mapping[str, Calendar], text: str) -> Mapping[str, range]:
    """The spans that were typed, for each schedule key in whose calendar they are written.

    Raises:
        UsageError: they are written in no calendar of these.
    """
    from spanwise.orchestrator.errors import UsageError

    found, refused = {}, []
    for key, calendar in calendars.items():
        try:
            first, last = calendar.parse_range(text)
        except UsageError as error:
            refused.append(error)
        else:
            found[key] = range(first, last + 1)
    if not found:
        raise refused[0]
    return found
