"""Pages: what a view returns, and how a template makes HTML of it. Times and states look alike everywhere."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from markupsafe import Markup, escape

from spanwise.scheduler.formatting import add_options, format_duration, format_size, iso_time
from spanwise.scheduler.web.access import Visit
from spanwise.scheduler.web.pictures.spans import draw_swatch

HERE = Path(__file__).parent
ASSETS = HERE / "assets"

SIGNS: Mapping[str, str] = {
    "complete": "✓", "ingested": "✓", "read": "✓", "accepted": "✓", "blessed": "✓", "ran": "✓", "on time": "✓",
    "reused": "↺", "cached": "↺", "chosen": "◇", "running": "▸", "failed": "✗", "refused": "✗", "not blessed": "✗",
    "failing": "✗", "canceled": "■", "killed": "■", "skipped": "»", "missed": "○", "missing": "○", "late": "!",
    "overrunning": "!", "no scheduler": "!", "paused": "‖", "waiting": "…", "open": "▸", "tainted": "▲",
    "newer version waiting": "↑", "starved": "!", "whole": "✓", "pending": "▸", "leftovers": "·",
}  # fmt: skip
"""What a state looks like beside its colour and its word."""


@dataclass(frozen=True)
class Page:
    """What a view has found."""

    template: str
    title: str
    facts: Mapping[str, object] = field(default_factory=dict)
    pipeline: str = ""  #: whose tabs are shown
    tab: str = ""
    status: int = 200
    whole: bool = True  #: nothing that it shows is still being read
    zone: tzinfo = UTC  #: in which its times are shown
    twin: str = ""  #: the address of the same as a document


class Renderer:
    """Makes HTML of pages; the environment is made once.

    `elsewhere` is --root and --config, where the commands on the pages need them.
    """

    def __init__(self, elsewhere: Sequence[str] = ()) -> None:
        import jinja2

        self._environment: Any = jinja2.Environment(
            loader=jinja2.FileSystemLoader(HERE / "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters.update(
            duration=format_duration, size=format_size, number=format_figure, age=format_age, count="{:,}".format,
            moment=jinja2.pass_context(format_moment), quoted=shlex.quote,
            pasted=lambda text: add_options(text, elsewhere),
        )  # fmt: skip
        self._environment.globals.update(state=draw_state, url=make_url, asset=asset_url, swatch=draw_swatch_of)
        self._environment.globals["m"] = self._environment.get_template("macros.html").module

    def render(self, page: Page, visit: Visit | None, path: str, form_token: str = "") -> str:
        """The whole page."""
        here = {"page": page, "visit": visit, "path": path, "form_token": form_token, "now": datetime.now(UTC)}
        html: str = self._environment.get_template(page.template).render(**here, **page.facts)
        return html

    def render_live(self, page: Page) -> str:
        """The part of the page that changes by itself; the same for every reader."""
        template = self._environment.get_template(page.template)
        block = template.blocks.get("live")
        if block is None:
            return ""
        facts = {"page": page, "visit": None, "path": "", "form_token": "", "now": datetime.now(UTC), **page.facts}
        return "".join(block(template.new_context(facts)))


def make_url(*parts: object, **query: object) -> str:
    """A path of these parts, and a query of what is not empty."""
    path = "/" + "/".join(quote(str(part), safe="") for part in parts)
    named = {name.rstrip("_"): value for name, value in query.items() if value not in (None, "", False)}
    return f"{path}?{urlencode(named)}" if named else path


def artifact_url(artifact: int) -> str:
    return make_url("a", artifact)


def run_url(pipeline: str, number: int) -> str:
    return make_url("runs", pipeline, number)


def asset_url(name: str) -> str:
    """An asset by its content, so that it can be kept for ever."""
    digest = hashlib.sha256((ASSETS / name).read_bytes()).hexdigest()[:12]
    return f"/assets/{name}?{digest}"


def style_of(state: str) -> str:
    """The class of a state in the style sheet."""
    return state.replace(" ", "-")


def draw_swatch_of(state: str) -> Markup:
    """A cell of a span in this state."""
    return draw_swatch(style_of(state))


def draw_state(state: str, title: str = "") -> Markup:
    """A state as a sign, a colour and a word."""
    return Markup('<span class="state {}" title="{}"><i aria-hidden="true">{}</i>{}</span>').format(
        style_of(state), title, SIGNS.get(state, "·"), state
    )


def format_moment(context: Mapping[str, Any], moment: datetime | None, zone: tzinfo | None = None) -> Markup:
    """A moment in a zone, by default that of the page; the reader's own is shown on hover."""
    if moment is None:
        return Markup('<span class="none">-</span>')
    text = f"{moment.astimezone(zone or context['page'].zone):%Y-%m-%d %H:%M:%S %Z}"
    return Markup('<time datetime="{}" title="{}">{}</time>').format(iso_time(moment), iso_time(moment), text)


def format_figure(value: float) -> str:
    """A figure as people compare it: four significant digits; the documents have all of them."""
    return f"{value:.4g}" if abs(value) < 10_000 else f"{value:,.0f}"  # noqa: PLR2004


def format_age(moment: datetime | None) -> Markup:
    """How long ago a moment was, or how far ahead it is; the page counts on."""
    if moment is None:
        return Markup('<span class="none">-</span>')
    ahead = (moment - datetime.now(UTC)).total_seconds()
    text = _length(abs(ahead))
    text = f"in {text}" if ahead > 0 else f"{text} ago"
    return Markup('<time class="age" datetime="{}" title="{}">{}</time>').format(
        iso_time(moment), iso_time(moment), escape(text)
    )


def _length(length_s: float) -> str:
    for unit, unit_s in (("d", 86400), ("h", 3600), ("min", 60)):
        if length_s >= 2 * unit_s:
            return f"{length_s / unit_s:.0f} {unit}"
    return f"{length_s:.0f} s"
