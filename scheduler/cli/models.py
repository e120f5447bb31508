"""Commands by which people decide about models: bless, unbless and push."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

from spanwise.scheduler.cli.app import (
    Because,
    Config,
    Json,
    Root,
    app,
    echo,
    location_options,
    open_client,
    print_document,
    read_settings,
)

ModelName: TypeAlias = Annotated[
    str, typer.Argument(metavar="MODEL", help="Its name, as `spanwise artifacts` lists it, its id, or its folder.")
]


@app.command()
def bless(model: ModelName, because: Because, root: Root = None, config: Config = None, json: Json = False) -> None:
    """Bless a model.

    It may be pushed then, and be the champion. This overrules its Evaluator, until you take it back.

    Example: spanwise bless flights/Trainer/model/42 --because "the threshold was wrong"
    """
    _decide(model, because, root, config, json=json, given=True)


@app.command()
def unbless(model: ModelName, because: Because, root: Root = None, config: Config = None, json: Json = False) -> None:
    """Take the blessing of a model back.

    The champion before it is compared with from now on. What serves is not changed: see `spanwise push`.

    Example: spanwise unbless flights/Trainer/model/42 --because "wrong for refunds"
    """
    _decide(model, because, root, config, json=json, given=False)


@app.command()
def push(
    model: Annotated[
        str, typer.Argument(metavar="MODEL|PIPELINE|FILE", help="The model; of a pipeline or its file, its champion.")
    ],
    because: Because,
    node: Annotated[str | None, typer.Option(metavar="NODE", help="The Pusher, where several read the model.")] = None,
    root: Root = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Push a model by name, to roll back.

    In a run of the pipeline's Pusher alone, which records who and why. The model becomes the version that serves.

    Example: spanwise push flights/Trainer/model/41 --because "42 is wrong for refunds"
    """
    from spanwise.scheduler.run import launch, models

    outcome, _, _ = models.push(model, read_settings(root, config), because=because, node=node, json=json)
    if json:
        print_document(launch.outcome_document(outcome))
    else:
        typer.echo(launch.format_run_outcome(outcome, location_options(root, config)))
    raise typer.Exit(launch.exit_code(outcome))


def _decide(model: str, because: str, root: Root, config: Config, *, json: bool, given: bool) -> None:
    from spanwise.scheduler.run import models

    with open_client(root, config) as client:
        found = (client.bless if given else client.unbless)(model, because=because)
    if json:
        verdict = found.verdict
        print_document(
            {
                "model": verdict.artifact,
                "blessed": verdict.given,
                "by": verdict.by,
                "because": verdict.because,
                "champion": found.champion and found.champion.name,
                "champions": {node: each and each.name for node, each in found.champions.items() if node},
                "serves": found.serves,
            }
        )
    else:
        echo(models.format_decision(found), root, config)
