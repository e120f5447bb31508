"""Spans: which block of data a file belongs to, and which block a run ingests. Pure; the listing is an argument.

A pattern such as `data/{YYYY}-{MM}-{DD}/v{VERSION}/*.csv` says where spans and versions stand in the paths of files.
The placeholders `{SPAN}`, `{SPAN:width}`, `{VERSION}`, `{VERSION:width}`, `{YYYY}`, `{MM}`, `{DD}` mean what they mean
in TFX; `{HH}` is ours. The glob characters `*`, `**`, `?` and `[...]` are kept, all else is literal; a brace that is
meant literally is written `[{]`.
"""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from enum import Enum
from functools import cached_property
from typing import TypeAlias

from spanwise.orchestrator.errors import AmbiguousSpan, PatternError, SpanNotFound, UsageError

Listing: TypeAlias = Callable[[str], Iterable[str]]
"""Gives the paths of the files, not folders, that a glob finds, spelled the way the glob spells them."""

Version: TypeAlias = "int | None"  # None: the pattern has no {VERSION}

_DAY_ZERO = date(1970, 1, 1)
_HOURS = 24
_MOST_DIGITS = 18  # the metadata keeps a span in 64 bits
_MANY = 8  # more spans than this are summed up in a message
_ENDS = 3  # so many from each end then

_LABEL = {
    "DAY": re.compile(r"(?P<year>[0-9]{4})-(?P<month>[0-9]{2})-(?P<day>[0-9]{2})"),
    "HOUR": re.compile(r"(?P<year>[0-9]{4})-(?P<month>[0-9]{2})-(?P<day>[0-9]{2})T(?P<hour>[0-9]{2})"),
}


class Calendar(Enum):
    """How spans are counted, and so how they are shown and typed."""

    NUMBER = "number"  #: a span is whatever number the pattern's {SPAN} reads
    DAY = "day"  #: days since 1970-01-01; earlier days are negative
    HOUR = "hour"  #: hours since 1970-01-01T00

    @classmethod
    def called(cls, name: object) -> Calendar:
        """The calendar of that name; NUMBER when none has it."""
        return next((calendar for calendar in cls if calendar.value == name), cls.NUMBER)

    def label(self, span: int) -> str:
        """The span as people write it: `7`, `2013-01-05`, `2013-01-05T13`.

        A span that is outside the years 1 to 9999 has no date and is shown as its number.
        """
        days, hour = divmod(span, _HOURS) if self is Calendar.HOUR else (span, 0)
        day = _day(days)
        if self is Calendar.NUMBER or day is None:
            return str(span)
        return f"{day}T{hour:02}" if self is Calendar.HOUR else str(day)

    def parse(self, text: str) -> int:
        """The span that `text` names: its label or its plain number.

        Raises:
            UsageError: neither; or a number that is no date, as `20130105` is (the day 57,000 years from now).
        """
        text = text.strip()
        if re.fullmatch(rf"[+-]?[0-9]{{1,{_MOST_DIGITS}}}", text):
            return self._number(text)
        if self is not Calendar.NUMBER and (found := _LABEL[self.name].fullmatch(text)):
            span = _count(found)
            if span is not None:
                return span
        raise UsageError(f"{text!r} is no span. {self.hint}")

    def parse_range(self, text: str) -> tuple[int, int]:
        """First and last span of `A..B`, both included; `A` alone is the range from A to A."""
        first, dots, last = text.partition("..")
        if dots and not (first.strip() and last.strip()):
            raise UsageError(f"{text!r} is a range with an open end; write both, for example {self._example_range}.")
        start = self.parse(first)
        end = self.parse(last) if dots else start
        if end < start:
            raise UsageError(
                f"{text!r} is an empty range: {self.label(end)} is before {self.label(start)}. "
                f"Write the earlier span first: {self.label(end)}..{self.label(start)}"
            )
        return start, end

    def _number(self, text: str) -> int:
        span = int(text)
        if self is Calendar.NUMBER or _day(span // _HOURS if self is Calendar.HOUR else span) is not None:
            return span
        raise UsageError(
            f"{text!r} is no span: {span:,} {self.value}s from 1970-01-01 is no date in the years 1 to 9999. "
            f"{self.hint}"
        )

    @property
    def hint(self) -> str:
        """A sentence for messages: what a span is here, with an example."""
        if self is Calendar.NUMBER:
            return "A span is a whole number here, for example 7."
        example = self.parse(self._example)
        article = "an" if self is Calendar.HOUR else "a"
        return f"A span is {article} {self.value} here, for example {self._example} (or its number, {example})."

    @property
    def _example(self) -> str:
        return {"NUMBER": "7", "DAY": "2013-01-05", "HOUR": "2013-01-05T13"}[self.name]

    @property
    def _example_range(self) -> str:
        return {
            "NUMBER": "7..9",
            "DAY": "2013-01-05..2013-01-09",
            "HOUR": "2013-01-05T13..2013-01-05T18",
        }[self.name]


@dataclass(frozen=True)
class Wildcard:
    """`*`, `**`, `?` or `[...]` in a pattern."""

    text: str


@dataclass(frozen=True)
class Placeholder:
    """`{SPAN}`, `{SPAN:2}`, `{YYYY}`, ... in a pattern."""

    name: str
    width: int | None = None  #: digits, filled with zeros; None: as many as there are


Part: TypeAlias = "str | Wildcard | Placeholder"

_TOKEN = re.compile(
    r"(?P<wildcard>\*+|\?|\[!?[^/][^\]/]*\])|\{(?P<hole>[^{}/*?]*)\}|(?P<brace>[{}])|(?P<text>[^*?\[{}]+|\[)"
)
_DATE = ("YYYY", "MM", "DD")
_NAMES = ("SPAN", "VERSION", *_DATE, "HH")
_DIGITS = {"YYYY": 4, "MM": 2, "DD": 2, "HH": 2}
_GROUPS = {"SPAN": "span", "VERSION": "version", "YYYY": "year", "MM": "month", "DD": "day", "HH": "hour"}
_DAY_EXAMPLE = "data/{YYYY}-{MM}-{DD}/*.csv"


@dataclass(frozen=True)
class SpanPattern:
    """Where spans and versions stand in the paths of the input files."""

    text: str  #: as the user wrote it
    parts: tuple[Part, ...]  #: what `parse` read in it

    @classmethod
    def parse(cls, text: str) -> SpanPattern:
        """Reads a pattern.

        Raises:
            PatternError: it cannot mean anything; the message shows one that can.
        """
        pattern = cls(text, tuple(_parts(text)))
        _check(pattern)
        return pattern

    @property
    def has_span(self) -> bool:
        """Whether files belong to different spans; without, everything is span 0."""
        return bool({"SPAN", "YYYY"} & set(self.placeholders))

    @property
    def has_version(self) -> bool:
        return "VERSION" in self.placeholders

    @property
    def calendar(self) -> Calendar:
        if "HH" in self.placeholders:
            return Calendar.HOUR
        return Calendar.DAY if "YYYY" in self.placeholders else Calendar.NUMBER

    def glob(self, span: int | None = None) -> str:
        """What to list: every file, or those that may belong to one span (`match` then tells which do).

        Without a width, `{SPAN}` for span 7 lists `*7`: the folder may be named `7` or `0007`.

        Raises:
            UsageError: the span cannot stand in this pattern: too many digits, or no date.
        """
        filled = {} if span is None else self._filling(span)
        glob = ""
        for part in self.parts:
            piece = _glob_of(part, filled)
            # Two stars side by side would make the `**` that descends into folders, which nobody wrote.
            glob += piece.removeprefix("*") if glob.endswith("*") and piece.startswith("*") else piece
        return glob

    def match(self, path: str) -> tuple[int, Version] | None:
        """Span and version of a file, or None when the whole path does not say them."""
        found = self._regex.fullmatch(path)
        if found is None:
            return None
        texts = found.groupdict()
        span = int(texts["span"]) if "span" in texts else _count(found) if "year" in texts else 0
        if span is None:
            return None
        return span, int(texts["version"]) if "version" in texts else None

    def fill(self, path: str) -> str:
        """The pattern with its placeholders replaced by what stands in `path`, padding and all: `span02/v1/*`.

        Raises:
            PatternError: the path does not match.
        """
        found = self._regex.fullmatch(path)
        if found is None:
            raise PatternError(f"{path!r} does not match the pattern {self.text!r}.")
        texts = {name: found[group] for name, group in _GROUPS.items() if name in self.placeholders}
        return "".join(_text_of(part, texts) for part in self.parts)

    @property
    def placeholders(self) -> tuple[str, ...]:
        return tuple(part.name for part in self.parts if isinstance(part, Placeholder))

    @cached_property
    def _regex(self) -> re.Pattern[str]:
        around = zip((None, *self.parts), self.parts, (*self.parts[1:], None), strict=False)
        return re.compile("".join(_regex_of(*three) for three in around), re.DOTALL)

    def _filling(self, span: int) -> dict[str, str]:
        if not self.has_span:
            raise _spanless(self, span)
        hours = self.calendar is Calendar.HOUR
        if self.calendar is not Calendar.NUMBER:
            days, hour = divmod(span, _HOURS) if hours else (span, 0)
            day = _day(days)
            if day is None:
                raise UsageError(
                    f"span {span:,} is no {self.calendar.value} in the years 1 to 9999. {self.calendar.hint}"
                )
            return {"YYYY": f"{day.year:04}", "MM": f"{day.month:02}", "DD": f"{day.day:02}", "HH": f"{hour:02}"}
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


@dataclass(frozen=True, kw_only=True)
class Block:
    """One block of input data: the files of one version of one span."""

    span: int
    version: Version  #: None when the pattern has none
    files: Mapping[str, tuple[str, ...]]  #: paths by split, sorted
    calendar: Calendar
    strays: tuple[str, ...]  #: listed paths that belong to no span: told, not ingested


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """Everything that was listed."""

    spans: Mapping[int, Mapping[Version, Mapping[str, tuple[str, ...]]]]  #: paths by span, version and split; ascending
    calendar: Calendar
    strays: tuple[str, ...]  #: listed paths that belong to no span, sorted


def blocks(patterns: Mapping[str, SpanPattern], listing: Listing, span: int | None = None) -> Inventory:
    """All blocks that are there, or those of one span. `patterns` are by split.

    Raises:
        PatternError: the splits do not count in the same way: dates here, numbers or no versions there.
    """
    calendar = _agreed_calendar(patterns)
    found = _inventory(patterns, calendar, {name: listing(pattern.glob(span)) for name, pattern in patterns.items()})
    if span is None:
        return found
    return replace(found, spans={s: versions for s, versions in found.spans.items() if s == span})


def choose(patterns: Mapping[str, SpanPattern], listing: Listing, span: int | None = None) -> Block:
    """The newest version of the named span, or of the newest span there is; newest is the highest number.

    An older span is never chosen because the newest is incomplete: that would train on old data without a word.
    A named span is listed by a narrow glob, the rest only for the message that it is not there.

    Raises:
        PatternError: the splits do not count in the same way, or a span is named and the pattern has none.
        SpanNotFound: nothing, or not in every split.
        AmbiguousSpan: the splits differ in the newest span or version, or one span stands under two names (`7`, `07`).
    """
    calendar = _agreed_calendar(patterns)
    if span is None:
        found = blocks(patterns, listing)
        span = _newest_span(patterns, found)
    else:
        paths = {name: listing(pattern.glob(span)) for name, pattern in patterns.items()}
        found = _inventory(patterns, calendar, paths)
        _check_complete(patterns, found, span, lambda: blocks(patterns, listing))
    version = _newest_version(found, span, lambda: blocks(patterns, listing))
    files = found.spans[span][version]
    for name, pattern in patterns.items():
        _check_one_spelling(name, pattern, files[name], calendar.label(span))
    return Block(span=span, version=version, files=files, calendar=calendar, strays=found.strays)


# --- reading patterns ---------------------------------------------------------------------------------------------


def _parts(text: str) -> Iterator[Part]:
    if not text.strip():
        raise PatternError(f"the pattern is empty; write where the input files are, for example {_DAY_EXAMPLE!r}")
    for token in _TOKEN.finditer(text):
        if token["wildcard"]:
            yield _wildcard(text, token)
        elif token["hole"] is not None:
            yield _placeholder(text, token["hole"])
        elif token["brace"]:
            raise _unreadable(
                text,
                f"the {token['brace']!r} at position {token.start() + 1} has no partner; "
                "a brace that is meant literally is written '[{]' or '[}]'",
                _DAY_EXAMPLE,
            )
        else:
            yield token["text"]


def _wildcard(text: str, token: re.Match[str]) -> Wildcard:
    stars = token["wildcard"].startswith("**")
    alone = text[: token.start()][-1:] in ("", "/") and text[token.end() :][:1] in ("", "/")
    if stars and not (alone and token["wildcard"] == "**"):
        once = text[: token.start()] + "*" + text[token.end() :]
        raise _unreadable(text, f"{token['wildcard']!r} is no whole folder; '**' stands alone between slashes", once)
    return Wildcard(token["wildcard"])


def _placeholder(text: str, hole: str) -> Placeholder:
    name, colon, width = hole.partition(":")
    written = f"{{{hole}}}"
    if name not in _NAMES:
        close = difflib.get_close_matches(name.upper(), _NAMES, n=1, cutoff=0.7)
        known = ", ".join(f"{{{n}}}" for n in _NAMES)
        example = {"DAY": "{DD}", "MONTH": "{MM}", "YEAR": "{YYYY}", "HOUR": "{HH}", "DATE": "{YYYY}-{MM}-{DD}"}.get(
            name.upper(), f"{{{close[0]}}}" if close else None
        )
        hint = f"write {example}" if example else f"for example {_DAY_EXAMPLE!r}"
        raise PatternError(f"pattern {text!r}: unknown placeholder {written}; there are {known}; {hint}")
    if not colon or (not width and name in ("SPAN", "VERSION")):
        return Placeholder(name)
    if name in _DIGITS:
        raise _unreadable(text, f"{written} takes no width", text.replace(written, f"{{{name}}}"))
    if not re.fullmatch(r"0*[0-9]{1,4}", width) or int(width) == 0:
        raise _unreadable(text, f"the width in {written} is no positive number", text.replace(written, f"{{{name}:2}}"))
    if int(width) > _MOST_DIGITS:
        narrow = text.replace(written, f"{{{name}:{_MOST_DIGITS}}}")
        raise _unreadable(text, f"the width in {written} is more than {_MOST_DIGITS} digits", narrow)
    return Placeholder(name, int(width))


def _check(pattern: SpanPattern) -> None:
    text, names = pattern.text, pattern.placeholders
    dated = [name for name in names if name in _DATE]
    if "SPAN" in names and (dated or "HH" in names):
        raise _unreadable(
            text,
            "it has both {SPAN} and a date; a span is the one or the other",
            re.sub(r"\{SPAN(:[^}]*)?\}", "*", text) if sorted(dated) == sorted(_DATE) else _DAY_EXAMPLE,
        )
    for name in ("SPAN", "VERSION", "HH"):
        if names.count(name) > 1:
            raise _unreadable(text, f"{{{name}}} stands in it {names.count(name)} times", _once(text, name))
    if dated and sorted(dated) != sorted(_DATE):
        raise _unreadable(text, "a date is exactly one of each of {YYYY}, {MM} and {DD}", _DAY_EXAMPLE)
    if "HH" in names and not dated:
        raise _unreadable(text, "{HH} needs the date it is an hour of", "data/{YYYY}-{MM}-{DD}T{HH}/*.csv")
    if "VERSION" in names and not pattern.has_span:
        at = text.rfind("/", 0, text.index("{VERSION")) + 1
        raise _unreadable(text, "{VERSION} needs a span it is a version of", f"{text[:at]}{{SPAN}}/{text[at:]}")
    for left, right in zip(pattern.parts, pattern.parts[1:], strict=False):
        if isinstance(left, Placeholder) and isinstance(right, Placeholder) and not (_width(left) or _width(right)):
            together = f"{{{left.name}}}{{{right.name}}}"
            what = f"{together} leaves open where the one number ends and the other begins"
            raise _unreadable(text, what, _unwidened(text).replace(together, f"{{{left.name}}}-{{{right.name}}}"))


def _width(part: Placeholder) -> int | None:
    return part.width or _DIGITS.get(part.name)


def _once(text: str, name: str) -> str:
    first = re.search(rf"\{{{name}(:[^}}]*)?\}}", text)
    assert first is not None
    return text[: first.end()] + re.sub(rf"\{{{name}(:[^}}]*)?\}}", "*", text[first.end() :])


def _unwidened(text: str) -> str:
    return re.sub(r"\{(SPAN|VERSION):\}", r"{\1}", text)


def _unreadable(text: str, wrong: str, example: str) -> PatternError:
    return PatternError(f"pattern {text!r}: {wrong}; for example {example!r}")


def _spanless(pattern: SpanPattern, span: int) -> PatternError:
    return PatternError(
        f"pattern {pattern.text!r} has neither {{SPAN}} nor a date, so span {span} cannot be asked for; "
        f"name no span, or say where it stands, for example {_DAY_EXAMPLE!r}"
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
        # `**/` stands for no folder as well: the slash belongs to the folders and was taken with them.
        return re.escape(part.removeprefix("/") if _descends(before) and part.startswith("/") else part)
    if isinstance(part, Wildcard):
        return _wildcard_regex(part, followed_by_slash=isinstance(after, str) and after.startswith("/"))
    digits = _width(part)
    if digits is None:
        # Beside `*` or `?` a number is all the digits there are, so that `*` does not eat some of them.
        start = "(?<![0-9])" if _eats(before) else ""
        end = "(?![0-9])" if _eats(after) else ""
        return f"{start}(?P<{_GROUPS[part.name]}>-?[0-9]{{1,{_MOST_DIGITS}}}){end}"
    negative = f"|-[0-9]{{{digits - 1}}}" if digits > 1 and part.name in ("SPAN", "VERSION") else ""
    return f"(?P<{_GROUPS[part.name]}>[0-9]{{{digits}}}{negative})"


def _descends(part: Part | None) -> bool:
    return part == Wildcard("**")


def _eats(part: Part | None) -> bool:
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


# --- dates --------------------------------------------------------------------------------------------------------


def _day(days: int) -> date | None:
    try:
        return _DAY_ZERO + timedelta(days=days)
    except OverflowError:
        return None


def _count(found: re.Match[str]) -> int | None:
    """Days, or hours when there is a group for them, since 1970-01-01; None when it is no date."""
    texts = found.groupdict()
    try:
        at = datetime(int(texts["year"]), int(texts["month"]), int(texts["day"]), int(texts.get("hour", 0)))  # noqa: DTZ001  a name, not a moment
    except ValueError:
        return None
    days = (at.date() - _DAY_ZERO).days
    return days * _HOURS + at.hour if "hour" in texts else days


# --- choosing -----------------------------------------------------------------------------------------------------


def _agreed_calendar(patterns: Mapping[str, SpanPattern]) -> Calendar:
    if not patterns:
        raise PatternError(f"no input: give at least one split a pattern, for example {_DAY_EXAMPLE!r}")
    kinds = {(p.has_span, p.calendar, p.has_version) for p in patterns.values()}
    if len(kinds) > 1:
        shown = ", ".join(f"{name} {pattern.text!r}" for name, pattern in patterns.items())
        raise PatternError(
            f"the patterns of the splits must have the same kinds of placeholders, and these do not: {shown}; "
            "for example train 'train/{SPAN}/*' with eval 'eval/{SPAN}/*'"
        )
    return next(iter(patterns.values())).calendar


def _inventory(
    patterns: Mapping[str, SpanPattern], calendar: Calendar, paths: Mapping[str, Iterable[str]]
) -> Inventory:
    spans: dict[int, dict[Version, dict[str, list[str]]]] = {}
    strays: set[str] = set()
    for name, pattern in patterns.items():
        for path in sorted(set(paths[name])):
            if (found := pattern.match(path)) is None:
                strays.add(path)
                continue
            span, version = found
            spans.setdefault(span, {}).setdefault(version, {}).setdefault(name, []).append(path)
    sorted_spans = {
        span: {
            version: {name: tuple(splits[name]) for name in patterns if name in splits}
            for version, splits in sorted(versions.items(), key=lambda item: (item[0] is not None, item[0]))
        }
        for span, versions in sorted(spans.items())
    }
    return Inventory(spans=sorted_spans, calendar=calendar, strays=tuple(sorted(strays)))


def _newest_span(patterns: Mapping[str, SpanPattern], found: Inventory) -> int:
    by_split = {
        name: [span for span, versions in found.spans.items() if any(name in splits for splits in versions.values())]
        for name in patterns
    }
    for name, spans in by_split.items():
        if not spans:
            raise _not_found(name, patterns[name], None, found)
    newest = {name: max(spans) for name, spans in by_split.items()}
    if len(set(newest.values())) > 1:
        raise _ambiguous("span", {name: found.calendar.label(span) for name, span in newest.items()}, found, patterns)
    return next(iter(newest.values()))


def _check_complete(
    patterns: Mapping[str, SpanPattern], found: Inventory, span: int, everything: Callable[[], Inventory]
) -> None:
    present = {name for splits in found.spans.get(span, {}).values() for name in splits}
    for name, pattern in patterns.items():
        if name not in present:
            raise _not_found(name, pattern, span, everything())


def _newest_version(found: Inventory, span: int, everything: Callable[[], Inventory]) -> Version:
    newest = _newest_versions(found.spans[span])
    if len(set(newest.values())) > 1:
        answers = {name: str(version) for name, version in newest.items()}
        raise _ambiguous(f"version of span {found.calendar.label(span)}", answers, everything(), newest)
    return next(iter(newest.values()))


def _newest_versions(versions: Mapping[Version, Mapping[str, object]]) -> dict[str, Version]:
    """By split; the versions come in ascending order, so the last one stays."""
    return {name: version for version, splits in versions.items() for name in splits}


def _check_one_spelling(name: str, pattern: SpanPattern, paths: Sequence[str], label: str) -> None:
    spellings = sorted({pattern.fill(path) for path in paths})
    if len(spellings) > 1:
        raise AmbiguousSpan(
            f"split {name!r}: the same version of span {label} stands in several places: "
            f"{', '.join(map(repr, spellings))}; reading all could read the same rows twice. Move all but one away."
        )


def ranges(editions: Iterable[tuple[int, Version]], calendar: Calendar) -> str:
    """Spans with their versions, neighbours of one version summed up: `2013-01-02 v2, 2013-01-03 to 2013-01-05 v1`."""
    groups: list[list[tuple[int, Version]]] = []
    for span, version in editions:
        if groups and groups[-1][-1] == (span - 1, version):
            groups[-1].append((span, version))
        else:
            groups.append([(span, version)])
    if len(groups) > _MANY:
        spans = [span for group in groups for span, _ in group]
        return f"{len(spans)} spans, {calendar.label(min(spans))} to {calendar.label(max(spans))}"
    return ", ".join(_range(group, calendar) for group in groups)


def _range(group: Sequence[tuple[int, Version]], calendar: Calendar) -> str:
    (first, version), (last, _) = group[0], group[-1]
    edition = "" if version is None else f" v{version}"
    return f"{calendar.label(first)}{f' to {calendar.label(last)}' if last != first else ''}{edition}"


# --- saying what is there -----------------------------------------------------------------------------------------


def _ambiguous(what: str, answers: Mapping[str, str], found: Inventory, splits: Collection[str]) -> AmbiguousSpan:
    complete = [
        span
        for span, versions in found.spans.items()
        if len(newest := _newest_versions(versions)) == len(splits) and len(set(newest.values())) == 1
    ]
    shown = ", ".join(f"{name} has {answer}" for name, answer in answers.items())
    return AmbiguousSpan(
        f"the splits disagree on the newest {what}: {shown}. "
        + (
            f"Complete in all splits: {_summed_up(complete, found.calendar)}. "
            f"Add the missing files, or name a complete span: --span {found.calendar.label(complete[-1])}"
            if complete
            else "No span is complete in all splits. Add the missing files."
        )
    )


def _not_found(name: str, pattern: SpanPattern, span: int | None, found: Inventory) -> SpanNotFound:
    calendar = found.calendar
    there = [s for s, versions in found.spans.items() if any(name in splits for splits in versions.values())]
    wanted = "no file" if span is None else f"no file of span {calendar.label(span)}"
    told = [f"split {name!r}: {wanted} matches {pattern.text!r} (looked for {pattern.glob(span)!r})."]
    if found.strays:
        count = len(found.strays)
        told.append(
            f"{count} {'path was' if count == 1 else 'paths were'} passed over because no span can be read there, "
            f"for example {found.strays[0]!r}."
        )
    if not there:
        told.append("No span is there at all; check the path, or wait until the data arrives.")
    else:
        told.append(f"Spans that are there: {_summed_up(there, calendar)}.")
        if span is not None:
            near = [calendar.label(s) for s in _nearest(there, span)]
            told.append(f"Nearest: {', '.join(near)}. Wait for the data, or name one that is there: --span {near[0]}")
    return SpanNotFound(" ".join(told))


def _summed_up(spans: Sequence[int], calendar: Calendar) -> str:
    labels = [calendar.label(span) for span in spans]
    if len(labels) <= _MANY:
        return ", ".join(labels)
    return f"{', '.join(labels[:_ENDS])} ... {', '.join(labels[-_ENDS:])} ({len(labels)} in all)"


def _nearest(spans: Sequence[int], wanted: int) -> list[int]:
    before = max((span for span in spans if span < wanted), default=None)
    after = min((span for span in spans if span > wanted), default=None)
    return sorted(span for span in (before, after) if span is not None)
