"""Span patterns: which span and version the path of a file says it belongs to. Pure.

A pattern such as `data/{YYYY}-{MM}-{DD}/v{VERSION}/*.csv` marks where spans and versions occur in paths.
The placeholders `{SPAN}`, `{SPAN:width}`, `{VERSION}`, `{VERSION:width}`, `{YYYY}`, `{MM}`, `{DD}` mean what they mean
in TFX; `{HH}`, `{Q}`, `{GGGG}` and `{WW}` are ours, and so is a month, `{YYYY}-{MM}`. The glob characters `*`, `**`,
`?` and `[...]` keep their meaning, all else is literal; a literal brace is written `[{]`.
"""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from spanwise.orchestrator.calendar import DIGITS, MOST_DIGITS, Calendar, Version
from spanwise.orchestrator.errors import PatternError, UsageError


@dataclass(frozen=True)
class Wildcard:
    """`*`, `**`, `?` or `[...]` in a pattern."""

    text: str


@dataclass(frozen=True)
class Placeholder:
    """`{SPAN}`, `{SPAN:2}`, `{YYYY}`, ... in a pattern."""

    name: str
    width: int | None = None  #: digits, padded with zeros; None is any number of digits


Part: TypeAlias = "str | Wildcard | Placeholder"

_TOKEN = re.compile(
    r"(?P<wildcard>\*+|\?|\[!?[^/][^\]/]*\])|\{(?P<hole>[^{}/*?]*)\}|(?P<brace>[{}])|(?P<text>[^*?\[{}]+|\[)"
)
_NAMES = ("SPAN", "VERSION", *DIGITS)
_INSTEAD = {
    "DATE": "{YYYY}-{MM}-{DD}",
    "DAY": "{DD}",
    "HOUR": "{HH}",
    "MONTH": "{MM}",
    "QUARTER": "{YYYY}-Q{Q}",
    "WEEK": "{GGGG}-W{WW}",
    "YEAR": "{YYYY}",
}
EXAMPLE_PATTERN = "data/{YYYY}-{MM}-{DD}/*.csv"


@dataclass(frozen=True)
class SpanPattern:
    """Where spans and versions occur in the paths of the input files."""

    text: str  #: as the user wrote it
    parts: tuple[Part, ...]  #: as `parse` read it

    @classmethod
    def parse(cls, text: str) -> SpanPattern:
        """Reads a pattern.

        Raises:
            PatternError: it is not valid; the message shows one that is.
        """
        pattern = cls(text, tuple(_parts(text)))
        _check(pattern)
        return pattern

    @property
    def has_span(self) -> bool:
        """Whether files belong to different spans; without that, everything is span 0."""
        return bool({"SPAN", *DIGITS} & set(self.placeholders))

    @property
    def has_version(self) -> bool:
        return "VERSION" in self.placeholders

    @property
    def calendar(self) -> Calendar:
        return _calendar_of(self.placeholders) or Calendar.NUMBER

    def glob(self, span: int | None = None) -> str:
        """What to list: every file, or those that may belong to one span (`match` decides which do).

        Without a width, `{SPAN}` for span 7 lists `*7`: the folder may be named `7` or `0007`.

        Raises:
            UsageError: the pattern cannot express the span: it has too many digits, or no date.
        """
        filled = {} if span is None else self._filling(span)
        glob = ""
        for part in self.parts:
            piece = _glob_of(part, filled)
            # Two adjacent stars would become a `**`, which descends into folders.
            glob += piece.removeprefix("*") if glob.endswith("*") and piece.startswith("*") else piece
        return glob

    def match(self, path: str) -> tuple[int, Version] | None:
        """Span and version of a file, or None when the path does not match."""
        found = self._regex.fullmatch(path)
        if found is None:
            return None
        read = {name: int(text) for name, text in found.groupdict().items()}
        span = read.get("SPAN", 0) if self.calendar is Calendar.NUMBER else self.calendar.read_date(read)
        return None if span is None else (span, read.get("VERSION"))

    def may_hold(self, folder: str, depth: int, is_wanted: Callable[[int], bool]) -> bool:
        """Whether a folder that matches the first `depth` names of the pattern may have files of a wanted span."""
        names = "/".join(self.text.split("/")[:depth])  # no placeholder and no wildcard has a slash in it
        found = SpanPattern(names, tuple(_parts(names)))._regex.fullmatch(folder) if names else None  # noqa: SLF001
        if found is None:
            return not names
        read = {name: int(text) for name, text in found.groupdict().items()}
        if self.calendar is Calendar.NUMBER:
            return is_wanted(read["SPAN"]) if "SPAN" in read else True
        if not set(self.calendar.date_parts) <= read.keys():
            return True
        span = self.calendar.read_date(read)
        return span is not None and is_wanted(span)

    def fill(self, path: str) -> str:
        """The pattern with its placeholders replaced by the text in `path`, with its padding: `span02/v1/*`.

        Raises:
            PatternError: the path does not match.
        """
        found = self._regex.fullmatch(path)
        if found is None:
            raise PatternError(f"{path!r} does not match the pattern {self.text!r}.")
        return "".join(_text_of(part, found.groupdict()) for part in self.parts)

    @property
    def placeholders(self) -> tuple[str, ...]:
        return tuple(part.name for part in self.parts if isinstance(part, Placeholder))

    @cached_property
    def _regex(self) -> re.Pattern[str]:
        around = zip((None, *self.parts), self.parts, (*self.parts[1:], None), strict=False)
        return re.compile("".join(_regex_of(*three) for three in around), re.DOTALL)

    def _filling(self, span: int) -> dict[str, str]:
        if not self.has_span:
            raise _no_span(self, span)
        if self.calendar is not Calendar.NUMBER:
            texts = self.calendar.write_date(span)
            if texts is None:
                raise UsageError(f"span {span:,} is outside the years 1 to 9999. {self.calendar.hint}")
            return texts
        width = next(p.width for p in self.parts if isinstance(p, Placeholder) and p.name == "SPAN")
        if width is None:
            return {"SPAN": f"-*{-span}" if span < 0 else f"*{span}"}
        text = str(span).zfill(width)
        if len(text) > width:
            wider = re.sub(r"\{SPAN:[^}]*\}", f"{{SPAN:{len(text)}}}", self.text)
            raise UsageError(
                f"span {span} has {len(text)} digits, more than the width of {{SPAN:{width}}} in {self.text!r}, "
                f"so no file can belong to it. Ask for another span, or widen the pattern: {wider!r}"
            )
        return {"SPAN": text}


# --- reading patterns ---------------------------------------------------------------------------------------------


def _parts(text: str) -> Iterator[Part]:
    if not text.strip():
        raise PatternError(f"the pattern is empty; say where the input files are, for example {EXAMPLE_PATTERN!r}")
    for token in _TOKEN.finditer(text):
        if token["wildcard"]:
            yield _wildcard(text, token)
        elif token["hole"] is not None:
            yield _placeholder(text, token["hole"])
        elif token["brace"]:
            raise _invalid(
                text,
                f"the {token['brace']!r} at position {token.start() + 1} is unmatched; "
                "a literal brace is written '[{]' or '[}]'",
                EXAMPLE_PATTERN,
            )
        else:
            yield token["text"]


def _wildcard(text: str, token: re.Match[str]) -> Wildcard:
    stars = token["wildcard"].startswith("**")
    alone = text[: token.start()][-1:] in ("", "/") and text[token.end() :][:1] in ("", "/")
    if stars and not (alone and token["wildcard"] == "**"):
        once = text[: token.start()] + "*" + text[token.end() :]
        raise _invalid(text, f"{token['wildcard']!r} is not a whole folder; '**' must be alone between slashes", once)
    return Wildcard(token["wildcard"])


def _placeholder(text: str, hole: str) -> Placeholder:
    name, colon, width = hole.partition(":")
    written = f"{{{hole}}}"
    if name not in _NAMES:
        close = difflib.get_close_matches(name.upper(), _NAMES, n=1, cutoff=0.7)
        known = ", ".join(f"{{{n}}}" for n in _NAMES)
        example = _INSTEAD.get(name.upper(), f"{{{close[0]}}}" if close else None)
        hint = f"write {example}" if example else f"for example {EXAMPLE_PATTERN!r}"
        raise PatternError(f"pattern {text!r}: unknown placeholder {written}; valid ones are {known}; {hint}")
    if not colon or (not width and name in ("SPAN", "VERSION")):
        return Placeholder(name)
    if name in DIGITS:
        raise _invalid(text, f"{written} takes no width", text.replace(written, f"{{{name}}}"))
    if not re.fullmatch(r"0*[0-9]{1,4}", width) or int(width) == 0:
        raise _invalid(text, f"the width in {written} is not a positive number", text.replace(written, f"{{{name}:2}}"))
    if int(width) > MOST_DIGITS:
        narrow = text.replace(written, f"{{{name}:{MOST_DIGITS}}}")
        raise _invalid(text, f"the width in {written} is more than {MOST_DIGITS} digits", narrow)
    return Placeholder(name, int(width))


def _check(pattern: SpanPattern) -> None:
    text, names = pattern.text, pattern.placeholders
    dated = [name for name in names if name in DIGITS]
    if "SPAN" in names and dated:
        raise _invalid(
            text,
            "it has both {SPAN} and a date; use one of them",
            re.sub(r"\{SPAN(:[^}]*)?\}", "*", text) if _calendar_of(dated) else EXAMPLE_PATTERN,
        )
    for name in ("SPAN", "VERSION", "HH"):
        if names.count(name) > 1:
            raise _invalid(text, f"{{{name}}} occurs {names.count(name)} times", _once(text, name))
    if dated and _calendar_of(dated) is None:
        raise _no_calendar(text, dated)
    if "VERSION" in names and not pattern.has_span:
        at = text.rfind("/", 0, text.index("{VERSION")) + 1
        raise _invalid(text, "{VERSION} needs a span", f"{text[:at]}{{SPAN}}/{text[at:]}")
    for left, right in zip(pattern.parts, pattern.parts[1:], strict=False):
        if isinstance(left, Placeholder) and isinstance(right, Placeholder) and not (_width(left) or _width(right)):
            together = f"{{{left.name}}}{{{right.name}}}"
            what = f"{together} is ambiguous, because nothing separates the two numbers"
            raise _invalid(text, what, _unwidened(text).replace(together, f"{{{left.name}}}-{{{right.name}}}"))


def _calendar_of(names: Collection[str]) -> Calendar | None:
    """The calendar whose dates have these parts, each once."""
    dated = sorted(name for name in names if name in DIGITS)
    return next((calendar for calendar in Calendar if dated and sorted(calendar.date_parts) == dated), None)


def _no_calendar(text: str, dated: Sequence[str]) -> PatternError:
    if {"GGGG", "WW"} & set(dated):
        what = "an ISO week needs {GGGG}, the year that the week is in, and {WW}, exactly once each, and no other date"
        return _invalid(text, what, "data/{GGGG}-W{WW}/*.csv")
    if "Q" in dated:
        what = "a quarter needs {YYYY} and {Q}, exactly once each, and no other date"
        return _invalid(text, what, "data/{YYYY}-Q{Q}/*.csv")
    if "HH" in dated:
        what = "{HH} needs a date" if dated == ["HH"] else "{HH} needs {YYYY}, {MM} and {DD}, exactly once each"
        return _invalid(text, what, "data/{YYYY}-{MM}-{DD}T{HH}/*.csv")
    if dated == ["YYYY"]:
        what = "a date needs {YYYY}, {MM} and {DD}, and a month {YYYY} and {MM}; a year is a number"
        return _invalid(text, what, text.replace("{YYYY}", "{SPAN:4}"))
    what = "a date needs {YYYY}, {MM} and {DD}, exactly once each; a month {YYYY} and {MM}"
    return _invalid(text, what, EXAMPLE_PATTERN)


def _width(part: Placeholder) -> int | None:
    return part.width or DIGITS.get(part.name)


def _once(text: str, name: str) -> str:
    first = re.search(rf"\{{{name}(:[^}}]*)?\}}", text)
    assert first is not None
    return text[: first.end()] + re.sub(rf"\{{{name}(:[^}}]*)?\}}", "*", text[first.end() :])


def _unwidened(text: str) -> str:
    return re.sub(r"\{(SPAN|VERSION):\}", r"{\1}", text)


def _invalid(text: str, problem: str, example: str) -> PatternError:
    return PatternError(f"pattern {text!r}: {problem}; for example {example!r}")


def _no_span(pattern: SpanPattern, span: int) -> PatternError:
    return PatternError(
        f"pattern {pattern.text!r} has neither {{SPAN}} nor a date, so span {span} cannot be selected; "
        f"omit --span, or add a placeholder, for example {EXAMPLE_PATTERN!r}"
    )


# --- globs and regular expressions --------------------------------------------------------------------------------


def _glob_of(part: Part, filled: Mapping[str, str]) -> str:
    if isinstance(part, Placeholder):
        return filled.get(part.name, "*")
    return part.text if isinstance(part, Wildcard) else part


def _text_of(part: Part, texts: Mapping[str, str]) -> str:
    if isinstance(part, Placeholder):
        return texts[part.name]
    return part.text if isinstance(part, Wildcard) else part


def _regex_of(before: Part | None, part: Part, after: Part | None) -> str:
    if isinstance(part, str):
        # `**/` also matches no folder: its regex has consumed the slash.
        return re.escape(part.removeprefix("/") if _is_recursive(before) and part.startswith("/") else part)
    if isinstance(part, Wildcard):
        return _wildcard_regex(part, followed_by_slash=isinstance(after, str) and after.startswith("/"))
    digits = _width(part)
    if digits is None:
        # Next to `*` or `?` a number takes all digits, so that `*` matches none of them.
        start = "(?<![0-9])" if _may_match_digits(before) else ""
        end = "(?![0-9])" if _may_match_digits(after) else ""
        return f"{start}(?P<{part.name}>-?[0-9]{{1,{MOST_DIGITS}}}){end}"
    negative = f"|-[0-9]{{{digits - 1}}}" if digits > 1 and part.name in ("SPAN", "VERSION") else ""
    return f"(?P<{part.name}>[0-9]{{{digits}}}{negative})"


def _is_recursive(part: Part | None) -> bool:
    return part == Wildcard("**")


def _may_match_digits(part: Part | None) -> bool:
    return isinstance(part, Wildcard) and not part.text.startswith("[")


def _wildcard_regex(part: Wildcard, *, followed_by_slash: bool) -> str:
    if part.text == "**":
        return "(?:[^/]*/)*" if followed_by_slash else ".*"
    if part.text == "*":
        return "[^/]*"
    if part.text == "?":
        return "[^/]"
    whole = re.fullmatch(r"\(\?s:(.*)\)\\[Zz]", fnmatch.translate(part.text), re.DOTALL)
    assert whole is not None
    return f"(?!/)(?:{whole[1]})"
