"""SVG elements as text that templates take as it is; everything that is put in is escaped. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from markupsafe import Markup, escape


def element(tag: str, *inside: str | Markup, **attributes: object) -> Markup:
    """One element; `class_` is the attribute class, and underscores are hyphens. None leaves an attribute out."""
    written = Markup("").join(
        Markup(' {}="{}"').format(name.rstrip("_").replace("_", "-"), _text(value))
        for name, value in attributes.items()
        if value is not None
    )
    body = Markup("").join(escape(part) for part in inside)
    return Markup("<{0}{1}>{2}</{0}>").format(tag, written, body)


def picture(width: float, height: float, title: str, *inside: Markup, class_: str = "", scale: bool = False) -> Markup:
    """A picture with its title, which a screen reader reads; with `scale` it is as wide as what it is in."""
    return element(
        "svg",
        element("title", title),
        *inside,
        xmlns="http://www.w3.org/2000/svg",
        class_=class_ or None,
        viewBox=f"0 0 {_text(width)} {_text(height)}",
        width="100%" if scale else width,
        height=None if scale else height,
        role="group" if any("<a " in part for part in inside) else "img",  # links are reached one by one
        aria_label=title,
    )


def join(parts: Iterable[Markup]) -> Markup:
    """Elements one after the other."""
    return Markup("").join(parts)


def link(href: str, *inside: Markup, label: str) -> Markup:
    """A link around elements, with what it leads to."""
    return element("a", *inside, element("title", label), href=href, aria_label=label)


def _text(value: object) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)
