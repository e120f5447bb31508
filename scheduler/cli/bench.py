"""Commands that measure this machine: what a change to a training loop brings on it.

All of the scheduler that imports `components` (docs/decisions/0061-elastic-training.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from spanwise.scheduler.cli.app import Json, app, print_document

if TYPE_CHECKING:
    from spanwise.components.training.elastic.breakdown import Breakdown, Form
    from spanwise.scheduler.inspect.formatting import Document

bench = typer.Typer(
    name="bench", help="Measure what a change brings on this machine.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(bench)


@bench.callback()
def _group() -> None:
    """With one command only, the group would be that command."""


@bench.command()
def elastic(
    seconds: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.01, help="How long each form of the loop runs, twice.")
    ] = 0.5,
    json: Json = False,
) -> None:
    """Measure what makes a training loop faster.

    The loop is an elastic worker's: it reads and prepares a batch, fetches the model, computes and reports a gradient.

    Example: spanwise bench elastic --seconds 1
    """
    from spanwise.components.training.elastic.breakdown import measured

    found = measured(seconds)
    if json:
        print_document(document(found))
    else:
        typer.echo(told(found))
    raise typer.Exit(1 if found.missed else 0)


def told(found: Breakdown) -> str:
    """The table, and below it what it comes to."""
    from spanwise.components.training.elastic.breakdown import TOLERANCE, WANTED, document_shares
    from spanwise.scheduler.inspect.formatting import table

    wanted = document_shares()
    phases = tuple(wanted)
    rows = [
        [form.name, f"{form.step_s * 1e3:.2f}", f"{found.speedup(form):.2f}", *_milliseconds(form, phases)]
        for form in found.forms
    ]
    shares = [f"{name} {found.shares[name]:.1%} ({share:.1%})" for name, share in wanted.items()]
    lines = [
        table(["form of the loop", "ms a step", "times", *phases], rows),
        "",
        f"shares of the first, and the document's: {', '.join(shares)}",
        f"They differ by {found.off * 100:.1f} points at most; up to {TOLERANCE * 100:.0f} are allowed.",
        f"Full overlap would take {found.full_overlap_s * 1e3:.2f} ms a step; {found.overlap:.0%} of that is reached.",
        f"All together: {found.speedup(found.together):.2f} times faster; the document has {WANTED:.2f}.",
    ]
    if not found.is_idle:
        lines.append(
            "Shares and overlap are not judged: "
            f"a thread that computes had a core for {found.core_share:.0%} of the time only."
        )
    lines += [f"Missed: {goal}." for goal in found.missed]
    return "\n".join(lines)


def document(found: Breakdown) -> Document:
    """The same for programs; times in seconds."""
    return {
        "forms": [
            {
                "name": form.name,
                "change": form.change,
                "step_s": form.step_s,
                "speedup": found.speedup(form),
                "seconds": dict(form.seconds),
            }
            for form in found.forms
        ],
        "shares": dict(found.shares),
        "off": found.off,
        "full_overlap_s": found.full_overlap_s,
        "overlap": found.overlap,
        "core_share": found.core_share,
        "is_idle": found.is_idle,
        "missed": list(found.missed),
    }


def _milliseconds(form: Form, phases: tuple[str, ...]) -> list[str]:
    return [f"{form.seconds[name] * 1e3:.2f}" for name in phases]
