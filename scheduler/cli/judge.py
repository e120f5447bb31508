"""Commands by which people overrule gates: accept and refuse."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

from spanwise.scheduler.cli.app import Because, Config, File, Json, Param, Root, app, echo, open_client, print_document

JudgedSpan: TypeAlias = Annotated[
    str, typer.Option(metavar="SPAN", help="A span, or A..B for all from A to B; NODE=SPAN where several nodes ingest.")
]
JudgedVersion: TypeAlias = Annotated[
    int | None, typer.Option(metavar="V", help="This version. [default: the one that windows read]")
]


@app.command()
def accept(
    file: File,
    span: JudgedSpan,
    because: Because,
    version: JudgedVersion = None,
    param: Param = [],  # noqa: B006
    root: Root = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Accept a span that a gate refused.

    Or one that is not judged yet. Windows read it from now on, and gates pass it, until a person refuses it or a new
    version comes.

    Example: spanwise accept flights.py --span 2013-01-01 --because "a holiday: fewer flights are right"
    """
    _judge(file, span, because, version, param, (root, config), given=True, json=json)


@app.command()
def refuse(
    file: File,
    span: JudgedSpan,
    because: Because,
    version: JudgedVersion = None,
    param: Param = [],  # noqa: B006
    root: Root = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Refuse a span that gates have accepted.

    No window reads it from now on, and gates fail on it, until it is accepted by a person or a new version comes.
    Lists the models that have learned from it.

    Example: spanwise refuse flights.py --span 2013-01-05 --because "delays are in hours, not minutes"
    """
    _judge(file, span, because, version, param, (root, config), given=False, json=json)


def _judge(
    file: str,
    span: str,
    because: str,
    version: int | None,
    param: list[str],
    where: tuple[Root, Config],
    *,
    given: bool,
    json: bool,
) -> None:
    from spanwise.scheduler.inspect import taint as taints
    from spanwise.scheduler.inspect import verdicts
    from spanwise.scheduler.run import judge

    with open_client(*where) as client:
        loaded = client.load(file, params=param)
        found = (client.accept if given else client.refuse)(loaded, span, version=version, because=because)
        reports = [
            taints.trace_taint(
                client.session.store,
                loaded.pipeline.name,
                j.span,
                node=j.artifact.name.split("/")[1],
                version=taints.number_of_version(j.artifact),
                source=file,
                calendar=j.calendar,
            )
            for j in found
            if j.read and not given
        ]
        learned = [report for report in reports if report.models]
        if json:
            print_document(
                {
                    "verdicts": [
                        {**verdicts.verdict_document(j.verdict), "span": j.span, "recorded": j.changed} for j in found
                    ],
                    "tainted": [taints.taint_document(report) for report in learned],
                }
            )
            return
        echo(judge.format_judgements(found, loaded), *where)
        for report in learned:
            echo("\n" + taints.format_taint(report), *where)
