"""SchemaGen: publishes a schema, inferred from statistics or written by hand."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import TYPE_CHECKING, ClassVar

from spanwise.components.statistics.counted_examples import refuse_other_statistics
from spanwise.orchestrator.artifact import Schema, Statistics
from spanwise.orchestrator.component import Component
from spanwise.orchestrator.errors import ColumnsChanged
from spanwise.orchestrator.signature import Input, Output

if TYPE_CHECKING:
    from spanwise.components.statistics.schema import DataSchema, Distance, FeatureSchema
    from spanwise.components.statistics.span_statistics import FeatureStatistics, NumberStatistics, SpanStatistics


SETTLED_AFTER = 14
"""Ranges, presence and lengths that fewer spans suggest only warn: each day of the week was seen twice by then."""

UNSETTLED = ("missing_values", "not_finite", "range", "length")
"""What a few spans cannot know, by its name in the table `severity`."""


class SchemaGen(Component):
    """Publishes the curated schema, or infers one if there is none.

    A schema inferred from a span fits it, so infer from the accepted spans before it:

        earlier = Previous(statistics["statistics"], n=28, name="Earlier")
        schema = SchemaGen(statistics=statistics["statistics"], earlier=earlier["statistics"])

    Only the first run, which has none, infers from its own span. A schema from fewer than `settled_after` spans is not
    a law: what lies outside its ranges, or is missing more often, warns. Types and missing columns are errors at once.

    A schema from git, `curated=Importer(kind=Schema, uri="schema.toml")["artifact"]`, takes precedence, and is
    published unchanged: what a person has written is an error from the first span on.

    `infer` describes what is inferred. Up to `max_values` different texts become a list of allowed values.
    """

    preload: ClassVar = ("spanwise.components.statistics.schema", "spanwise.components.statistics.span_statistics")

    def check(self) -> None:
        refuse_other_statistics(self, "earlier")

    def run(
        self,
        statistics: Input[list[Statistics]],
        schema: Output[Schema],
        curated: Input[Schema | None],
        earlier: Input[list[Statistics] | None],
        max_values: int = 100,
        settled_after: int = SETTLED_AFTER,
    ) -> None:
        from spanwise.components.statistics.schema import FILE, DataSchema
        from spanwise.components.statistics.span_statistics import SpanStatistics

        if curated is not None:
            DataSchema.load(curated.path)
            source = curated.path if curated.path.is_file() else next(curated.path.glob("*.toml"))
            shutil.copyfile(source, schema.path / FILE)
            return
        basis = sorted(earlier or statistics, key=lambda artifact: artifact.span)
        merged, spans = merge_newest([SpanStatistics.load(artifact.path) for artifact in basis])
        inferred = infer(merged, max_values=max_values, spans=spans, settled=len(spans) >= settled_after)
        (schema.path / FILE).write_text(inferred.toml() + _note(len(spans), settled_after), encoding="utf-8")


def merge_newest(spans: Sequence[SpanStatistics]) -> tuple[SpanStatistics, Sequence[SpanStatistics]]:
    """Merges spans, from the newest (the last) back to where a type changed; returns it and these spans."""
    from spanwise.components.statistics.span_statistics import merge

    merged = spans[-1]
    first = len(spans) - 1
    for older in reversed(spans[:-1]):
        try:
            both = merge([older, merged])
            both.whole()  # also of splits that only one of them has
        except ColumnsChanged:
            break
        merged = both
        first -= 1
    return merged, spans[first:]


def _note(spans: int, settled_after: int) -> str:
    if spans >= settled_after:
        return ""
    return (
        f"\n# Inferred from {_format_count(spans)}, fewer than settled_after={settled_after}: what [severity] lists "
        "only warns until then.\n# Before you keep this file in git, check the rest and remove [severity].\n"
    )


def _format_count(spans: int) -> str:
    return "1 span" if spans == 1 else f"{spans} spans"


IDENTIFIERS = 100
"""At least this many whole numbers, 9 of 10 of them different, are identifiers, which grow and never repeat."""

ENOUGH = 10
"""A list of values is inferred where each occurs so often on average: rarer ones will have unseen companions."""

REGULAR = 10
"""A column with at least so many values in each split of each span has none in the next by a chance of 1 in 20,000."""

APART = 0.1
"""The limit that is inferred for the divergence of numbers, in bits."""

SHIFT = 0.2
"""The limit that is inferred for the difference of a value's share."""


def infer(
    statistics: SpanStatistics,
    *,
    max_values: int = 100,
    spans: Sequence[SpanStatistics] | None = None,
    settled: bool = True,
) -> DataSchema:
    """The schema that these statistics suggest; features in the order of the columns.

    `spans` are those that were merged, if several, the newest last. Columns that the newest no longer has may be
    absent. Unless `settled`, what a few spans cannot know only warns.

    - type: as found.
    - present: twice the share that is missing, in the split that lacks most, and 5 percent more, may be missing; in
      whole percent. At least a tenth of the least share that a split of a span had, where each had 10 values or
      more, so that a column without any is an anomaly. Spans that lack the column do not count.
    - finite: unless there was NaN or an infinity.
    - values: of texts, where there are at most `max_values`, all are known and each occurs 10 times on average.
    - min, max: of numbers, as far again below and above as they lie apart, without crossing zero. A number that is
      always the same has no range, since it is most likely the date or the version; nor has an identifier.
    - min_length, max_length: of lists; 1 where none is empty, and both where all are of one length above 0.
    - drift, skew: 0.2 of any value's share for texts and booleans, 0.1 bits for numbers; none where all values are
      the same, for identifiers, and where texts differ in half of the rows.
    """
    from spanwise.components.statistics.schema import AnomalyCheck, DataSchema, Severity

    spans = [statistics] if spans is None else spans
    there = spans[-1].whole().features.keys()
    features = {
        name: _infer(feature, max_values, present=_present(name, spans))
        for name, feature in statistics.whole().features.items()
    }
    return DataSchema(
        severity={} if settled else {AnomalyCheck(name): Severity.WARNING for name in UNSETTLED},
        features={n: f if n in there else f.model_copy(update={"column": False}) for n, f in features.items()},
    )


def _present(name: str, spans: Sequence[SpanStatistics]) -> float:
    """Each split is held against the schema by itself, so what one of them lacks says what any may lack."""
    found: dict[str, list[FeatureStatistics]] = {}
    for split in (split for span in spans for split in span.splits.values()):
        feature = split.features.get(name)
        if feature is not None and feature.count:
            found.setdefault(split.name, []).append(feature)
    if not found:
        return 0.0  # of no place it is known whether it would have a value
    missing = max(sum(f.missing for f in each) / sum(f.count for f in each) for each in found.values())
    usual = max(0.0, math.floor(95 - 200 * missing) / 100)
    every = [f for each in found.values() for f in each]
    if min(f.present for f in every) < REGULAR:
        return usual
    return max(usual, float(f"{min(f.present / f.count for f in every) / 10:.1g}"))


def _infer(feature: FeatureStatistics, max_values: int, *, present: float) -> FeatureSchema:
    from spanwise.components.statistics.schema import FeatureSchema

    least, most = _range(feature)
    shortest, longest = _lengths(feature.lengths) if feature.kind == "list" else (None, None)
    apart = _distance(feature)
    return FeatureSchema(
        type=feature.type,
        present=present,
        finite=not (feature.nan or feature.infinite),
        values=_values(feature, max_values),
        min=least,
        max=most,
        min_length=shortest,
        max_length=longest,
        drift=apart,
        skew=apart,
    )


def _values(feature: FeatureStatistics, most: int) -> tuple[str, ...] | None:
    if feature.kind != "text" or feature.frequent is None or not feature.frequent.complete:
        return None
    found = feature.frequent.top()
    if not found or len(found) > most or feature.present < ENOUGH * len(found):
        return None
    return tuple(sorted(o.value for o in found))


def _range(feature: FeatureStatistics) -> tuple[float | None, float | None]:
    numbers = feature.numbers
    if feature.kind != "number" or numbers is None or numbers.least is None or numbers.greatest is None:
        return None, None
    least, most = numbers.least, numbers.greatest
    if least == most or _is_identifier(feature):
        return None, None
    low, high = least - (most - least), most + (most - least)
    low, high = (max(low, 0) if least >= 0 else low), (min(high, 0) if most <= 0 else high)
    if isinstance(least, int):
        return low, high
    width = most - least
    return _round_outwards(low, width, ROUND_FLOOR), _round_outwards(high, width, ROUND_CEILING)


def _is_identifier(feature: FeatureStatistics) -> bool:
    return feature.is_integer and feature.present >= IDENTIFIERS and (feature.unique or 0) > 0.9 * feature.present


def _round_outwards(bound: float, width: float, rounding: str) -> float | None:
    """Outwards to two digits of the width of the range, which are read more easily; None where there is no such double.

    Digits of the bound would widen a narrow range of great numbers by many times its width.
    """
    if not (math.isfinite(bound) and math.isfinite(width)):
        return None
    unit = Decimal(1).scaleb(math.floor(math.log10(width)) - 1)
    rounded = float(Decimal(bound).quantize(unit, rounding))
    return rounded if math.isfinite(rounded) else None


def _lengths(lengths: NumberStatistics | None) -> tuple[int | None, int | None]:
    if lengths is None or lengths.least is None or lengths.greatest is None:
        return None, None
    if lengths.least == lengths.greatest != 0:
        return int(lengths.least), int(lengths.greatest)
    return (1 if lengths.least else None), None


def _distance(feature: FeatureStatistics) -> Distance | None:
    from spanwise.components.statistics.schema import Distance

    unique = feature.unique or 0
    if unique <= 1 or _is_identifier(feature):
        return None
    if feature.kind == "number":
        return Distance(jensen_shannon=APART)
    if feature.kind == "boolean" or (feature.kind == "text" and unique < feature.present / 2):
        return Distance(l_infinity=SHIFT)
    return None
