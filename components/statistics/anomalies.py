"""Anomalies: how the statistics of a span depart from a schema, from the span before, and between splits. Pure."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from spanwise.components.bounds import format_apart, is_at_most
from spanwise.components.statistics.accumulators.frequent import abbreviate, cut, is_cut
from spanwise.components.statistics.distances import jensen_shannon, l_infinity
from spanwise.components.statistics.feature_type import agree
from spanwise.components.statistics.schema import AnomalyCheck, DataSchema, Distance, FeatureSchema, Severity
from spanwise.components.statistics.span_statistics import (
    FeatureStatistics,
    NumberStatistics,
    SpanStatistics,
    SplitCounts,
)
from spanwise.orchestrator.errors import InputError, ParameterError

FILE = "anomalies.json"
PAGE = "anomalies.html"

ENOUGH = 100
"""Distributions of fewer values are not compared: chance alone would set them apart."""

_SHOWN = 5  # values that a message names


@dataclass(frozen=True, kw_only=True)
class Anomaly:
    """One departure."""

    check: AnomalyCheck
    severity: Severity
    feature: str = ""  #: empty when it concerns a whole split
    split: str = ""  #: empty when it concerns the span, or two splits
    message: str  #: a sentence, without feature and split
    figures: Mapping[str, float | str] = field(default_factory=dict)  #: what was found, and what is allowed

    def __str__(self) -> str:
        where = " of ".join(part for part in (self.feature, self.split and f"split {self.split}") if part)
        return f"{self.severity.value}: {where or 'span'}: {self.message}"


def worst(anomalies: Iterable[Anomaly]) -> Severity | None:
    """The worst severity; None when there are no anomalies."""
    return max((a.severity for a in anomalies), key=lambda s: s.rank, default=None)


def validate(
    statistics: SpanStatistics, schema: DataSchema, previous: SpanStatistics | None = None
) -> tuple[Anomaly, ...]:
    """All anomalies, the worst first, then in the order of the columns.

    Raises:
        ParameterError: the schema has a key for a feature that does not apply to its type, such as the range of texts.
    """
    found = [*_splits(statistics, schema), *_skews(statistics, schema)]
    if previous is not None:
        found += _drifts(statistics, schema, previous)
    return tuple(sorted(found, key=lambda anomaly: -anomaly.severity.rank))


def write(anomalies: Iterable[Anomaly], file: Path) -> None:
    """Writes anomalies as JSON."""
    lines = [{**asdict(a), "check": a.check.value, "severity": a.severity.value} for a in anomalies]
    file.write_text(json.dumps({"anomalies": lines}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read(file: Path) -> tuple[Anomaly, ...]:
    """Reads what `write` wrote.

    Raises:
        InputError: the file does not exist, or has no anomalies.
    """
    try:
        found = json.loads(file.read_text(encoding="utf-8"))["anomalies"]
        return tuple(
            Anomaly(**{**a, "check": AnomalyCheck(a["check"]), "severity": Severity(a["severity"])}) for a in found
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{file}: could not read the anomalies ({error}); run ExampleValidator again.") from error


def _splits(statistics: SpanStatistics, schema: DataSchema) -> Iterator[Anomaly]:
    if not statistics.splits:
        yield _anomaly(schema, AnomalyCheck.EMPTY_SPLIT, "", "", "it has no splits.")
    for split in statistics.splits.values():
        if not split.rows:
            yield _anomaly(schema, AnomalyCheck.EMPTY_SPLIT, "", split.name, "it has no rows.")
            continue
        for name, wanted in schema.features.items():
            feature = split.features.get(name)
            if feature is not None:
                yield from _feature(feature, wanted, split, schema)
            elif wanted.column and _within_known(name, split, schema):
                yield _anomaly(
                    schema,
                    AnomalyCheck.MISSING_COLUMN,
                    name,
                    split.name,
                    f"the column is missing; its type was {wanted.type}.",
                )
        for name, feature in split.features.items():
            if name not in schema.features:
                message = f"the column is not in the schema; its type is {feature.type}."
                yield _anomaly(schema, AnomalyCheck.NEW_COLUMN, name, split.name, message)


def _within_known(name: str, split: SplitCounts, schema: DataSchema) -> bool:
    """Whether all that a feature lies in is present with its type, so that its absence is an anomaly of its own."""
    # Arrow writes what a struct or list holds in angle brackets; any other column may have a dot in its name
    parents = [p for p, f in schema.features.items() if "<" in f.type and name.startswith((f"{p}.", f"{p}[]"))]
    return all(p in split.features and _holds_the_same(split.features[p], schema.features[p]) for p in parents)


def _holds_the_same(feature: FeatureStatistics, wanted: FeatureSchema) -> bool:
    return feature.kind != "null" and agree(feature.type, wanted.type) is not None


def _feature(
    feature: FeatureStatistics, wanted: FeatureSchema, split: SplitCounts, schema: DataSchema
) -> Iterator[Anomaly]:
    def anomaly(check: AnomalyCheck, message: str, **figures: float | str) -> Anomaly:
        return _anomaly(schema, check, feature.name, split.name, message, **figures)

    yield from _absence(feature, wanted, anomaly)
    if not feature.present:
        return  # a column without values has nothing else to check, not even a type
    if agree(feature.type, wanted.type) is None:
        yield anomaly(
            AnomalyCheck.TYPE, f"its type is {feature.type}; the schema says {wanted.type}.", found=feature.type
        )
        return
    _refuse_unfit(feature, wanted)
    if wanted.finite and (feature.nan or feature.infinite):
        message = f"it has {feature.nan:,} NaN and {feature.infinite:,} infinite values."
        yield anomaly(AnomalyCheck.NOT_FINITE, message, nan=feature.nan, infinite=feature.infinite)
    if wanted.values is not None:
        yield from _outside(feature, wanted, anomaly)
    yield from _out_of_range(feature, wanted, anomaly)
    if feature.lengths is not None and feature.lengths.least is not None and feature.lengths.greatest is not None:
        shortest, longest = int(feature.lengths.least), int(feature.lengths.greatest)
        if wanted.min_length is not None and shortest < wanted.min_length:
            message = f"the shortest has length {shortest}; the minimum is {wanted.min_length}."
            yield anomaly(AnomalyCheck.LENGTH, message, shortest=shortest, allowed=wanted.min_length)
        if wanted.max_length is not None and longest > wanted.max_length:
            message = f"the longest has length {longest}; the maximum is {wanted.max_length}."
            yield anomaly(AnomalyCheck.LENGTH, message, longest=longest, allowed=wanted.max_length)


def _refuse_unfit(feature: FeatureStatistics, wanted: FeatureSchema) -> None:
    """Refuses a key that would check nothing: it is a mistake in the schema, not a valid feature."""
    apart = [distance for distance in (wanted.drift, wanted.skew) if distance is not None]
    unfit = {
        "values": wanted.values is not None and feature.frequent is None,
        "l_infinity": any(d.l_infinity is not None for d in apart) and feature.frequent is None,
        "jensen_shannon": any(d.jensen_shannon is not None for d in apart) and feature.numbers is None,
        "min and max": (wanted.min is not None or wanted.max is not None) and feature.numbers is None,
        "min_length and max_length": bool(wanted.min_length or wanted.max_length) and feature.lengths is None,
    }
    for key, wrong in unfit.items():
        if wrong:
            raise ParameterError(
                f"the schema has {key} for '{feature.name}', which is {feature.type}; the key does not apply to "
                "such features. Remove it from the schema: docs/reference/schema.md says which keys fit which types."
            )


def _absence(feature: FeatureStatistics, wanted: FeatureSchema, anomaly: AnomalyMaker) -> Iterator[Anomaly]:
    """Too few values; a column without any is as good as missing."""
    allowed = 1 - wanted.present
    if not feature.present and feature.count and wanted.present > 0:
        message = f"the column has no values in {feature.count:,} rows; its type was {wanted.type}."
        yield anomaly(AnomalyCheck.MISSING_COLUMN, message, missing=1.0, allowed=allowed)
    elif _is_too_many(feature.missing, feature.count, allowed):
        found, most = format_apart(feature.missing_share, allowed, 2, "%")
        message = f"{found} of {feature.count:,} are missing; {most} may be."
        yield anomaly(AnomalyCheck.MISSING_VALUES, message, missing=feature.missing_share, allowed=allowed)


def _is_too_many(count: int, places: int, allowed: float) -> bool:
    """Whether it is more than the allowed share of the places; where that is 0, one of any number is."""
    return count > 0 and not (allowed and is_at_most(count / places, allowed, scale=1))


def _outside(feature: FeatureStatistics, wanted: FeatureSchema, anomaly: AnomalyMaker) -> Iterator[Anomaly]:
    # what was inferred of a long text is cut already
    allowed = {value if is_cut(value) else cut(value) for value in wanted.values or ()}
    others = [o for o in feature.top(None) if o.value not in allowed]
    complete = feature.frequent is not None and feature.frequent.complete
    outside = sum(o.count for o in others) if complete else _estimate_outside(feature, allowed)
    share = outside / feature.present
    listed = f"the {len(allowed)} allowed"
    if not complete and not outside and not wanted.outside:
        message = (
            f"it has more than 1,536 different values, so rare ones that are not among {listed} may have been "
            "overlooked; allow a share of them: outside = 0.01."
        )
        yield anomaly(AnomalyCheck.VALUES, message, outside=0, share=0.0, allowed=wanted.outside, values="")
    if not _is_too_many(outside, feature.present, wanted.outside):
        return
    named = ", ".join(f"{abbreviate(o.value)!r} ({o.count:,})" for o in others[:_SHOWN])
    more = f" and {len(others) - _SHOWN:,} more" if len(others) > _SHOWN else ""
    about = "" if complete else "about "
    message = f"{about}{outside:,} values ({share:.2%}) are not among {listed}: {named or 'rare ones'}{more}."
    yield anomaly(AnomalyCheck.VALUES, message, outside=outside, share=share, allowed=wanted.outside, values=named)


def _estimate_outside(feature: FeatureStatistics, allowed: set[str]) -> int:
    """About how many values are not allowed, where rare ones are not counted one by one, and never too few for sure.

    As large a share of all as of the values that were surely seen; or all that the allowed ones cannot be, where these
    occurred as often as they may have.
    """
    found = feature.top(None)
    seen = {o.value: o.count - o.error for o in found}
    strange = sum(count for value, count in seen.items() if value not in allowed)
    at_most = {o.value: o.count for o in found}
    error = 0 if feature.frequent is None else feature.frequent.error
    certain = feature.present - sum(at_most.get(value, error) for value in allowed)
    return max(strange, certain, round(feature.present * strange / max(sum(seen.values()), 1)))


def _out_of_range(feature: FeatureStatistics, wanted: FeatureSchema, anomaly: AnomalyMaker) -> Iterator[Anomaly]:
    numbers = feature.numbers
    if numbers is None or numbers.least is None or numbers.greatest is None:
        return
    lowest, highest = (None if b is None else _in_type_of(feature, b) for b in (wanted.min, wanted.max))
    below = lowest is not None and numbers.least < lowest
    above = highest is not None and numbers.greatest > highest
    if not (below or above):
        return
    share = _share_out_of_range(feature, numbers, lowest, highest)
    if wanted.outside and is_at_most(share, wanted.outside, scale=1):
        return
    least, most, *bounds = (
        "any" if value is None else feature.format(value)
        for value in (numbers.least, numbers.greatest, wanted.min, wanted.max)
    )
    if feature.kind == "number":  # with as many digits as it takes to tell the two apart
        if below and wanted.min is not None and least == bounds[0]:
            least, bounds[0] = format_apart(numbers.least, wanted.min, 5, "g")
        if above and wanted.max is not None and most == bounds[1]:
            most, bounds[1] = format_apart(numbers.greatest, wanted.max, 5, "g")
    message = (
        f"values range from {least} to {most}; {' to '.join(bounds)} is allowed. About {share:.2%} of them are outside."
    )
    yield anomaly(AnomalyCheck.RANGE, message, least=numbers.least, greatest=numbers.greatest, share=share)


def _in_type_of(feature: FeatureStatistics, bound: float) -> float:
    """The bound as the feature holds it: 0.1 in 32 bits is 0.10000000149011612, which is not above 0.1."""
    narrow = {"float": np.float32, "halffloat": np.float16}.get(feature.type)
    return bound if narrow is None else float(np.asarray(bound, np.float64).astype(narrow))


def _share_out_of_range(
    feature: FeatureStatistics, numbers: NumberStatistics, lowest: float | None, highest: float | None
) -> float:
    least, most = (-math.inf if lowest is None else lowest), (math.inf if highest is None else highest)
    if feature.is_integer and feature.frequent is not None and feature.frequent.complete:
        # to the last digit, which the doubles of quantiles do not have beyond 2^53
        return sum(o.count for o in feature.top(None) if not least <= int(o.value) <= most) / feature.present
    below, up_to_most = numbers.quantiles.share_up_to([np.nextafter(float(least), -np.inf), most])
    return float(below + (1 - up_to_most))


def _skews(statistics: SpanStatistics, schema: DataSchema) -> Iterator[Anomaly]:
    for name, wanted in schema.features.items():
        if wanted.skew is None:
            continue
        for one, other in itertools.combinations(statistics.splits.values(), 2):
            a, b = one.features.get(name), other.features.get(name)
            where = f"between the splits {one.name} and {other.name}"
            if a is not None and b is not None:
                yield from _apart(schema, AnomalyCheck.SKEW, wanted.skew, a, b, where)


def _drifts(statistics: SpanStatistics, schema: DataSchema, previous: SpanStatistics) -> Iterator[Anomaly]:
    now, before = statistics.whole(), previous.whole()
    for name, wanted in schema.features.items():
        a, b = now.features.get(name), before.features.get(name)
        if wanted.drift is not None and a is not None and b is not None:
            yield from _apart(schema, AnomalyCheck.DRIFT, wanted.drift, a, b, "from the span before")


def _apart(
    schema: DataSchema, check: AnomalyCheck, limit: Distance, a: FeatureStatistics, b: FeatureStatistics, where: str
) -> Iterator[Anomaly]:
    if not a.is_comparable(b):
        return  # that its type has changed is an anomaly of its own
    enough = min(a.present, b.present) >= ENOUGH
    if enough and limit.l_infinity is not None and a.frequent is not None and b.frequent is not None:
        distance, found_in = l_infinity(a, b)
        value = abbreviate(found_in)
        if not is_at_most(distance, limit.l_infinity, scale=1):
            found, most = format_apart(distance, limit.l_infinity, 3, "f")
            message = f"the share of {value!r} differs by {found} {where}; {most} is allowed."
            yield _anomaly(schema, check, a.name, "", message, distance=distance, allowed=limit.l_infinity, value=value)
    enough = min(a.count, b.count) >= ENOUGH  # a missing value counts as one
    if enough and limit.jensen_shannon is not None and a.numbers is not None and b.numbers is not None:
        distance = jensen_shannon(a, b)
        if not is_at_most(distance, limit.jensen_shannon, scale=1):
            found, most = format_apart(distance, limit.jensen_shannon, 3, "f")
            message = f"the distribution differs by {found} bits {where}; {most} is allowed."
            yield _anomaly(schema, check, a.name, "", message, distance=distance, allowed=limit.jensen_shannon)


class AnomalyMaker(Protocol):
    def __call__(self, check: AnomalyCheck, message: str, **figures: float | str) -> Anomaly: ...


def _anomaly(
    schema: DataSchema, check: AnomalyCheck, feature: str, split: str, message: str, **figures: float | str
) -> Anomaly:
    return Anomaly(
        check=check,
        severity=schema.severity_of(check),
        feature=feature,
        split=split,
        message=message,
        figures=figures,
    )
