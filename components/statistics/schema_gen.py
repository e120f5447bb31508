"""SchemaGen: what the examples should look like, as inferred from statistics or as people have written it."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from spanwise.orchestrator.artifact import Schema as SchemaArtifact
from spanwise.orchestrator.artifact import Statistics as StatisticsArtifact
from spanwise.orchestrator.component import Component, Input, Output

if TYPE_CHECKING:
    from spanwise.components.statistics.schema import Distance, FeatureSchema, Schema
    from spanwise.components.statistics.span_statistics import Feature, Numbers, Statistics


class SchemaGen(Component):
    """Publishes a schema: the one it is given, else one that it infers.

    What is inferred from a span always fits that span, so it says something only about later ones. Give the first
    one on, and it holds until somebody changes it:

        known = Latest(past("SchemaGen", "schema", Schema))
        schema = SchemaGen(statistics=statistics["statistics"], curated=known["schema"])

    or give one that is kept in git, `Importer(kind=Schema, uri="schema.toml")`: it wins, and is published as it is.

    `infer` says what is inferred; `max_values` is how many different texts may still be a list of allowed ones.
    """

    preload: ClassVar = ("spanwise.components.statistics.schema", "spanwise.components.statistics.span_statistics")

    def run(
        self,
        statistics: Input[list[StatisticsArtifact]],
        schema: Output[SchemaArtifact],
        curated: Input[SchemaArtifact | None],
        max_values: int = 100,
    ) -> None:
        from spanwise.components.statistics.schema import FILE, Schema
        from spanwise.components.statistics.span_statistics import Statistics, merge

        if curated is not None:
            Schema.load(curated.path)
            source = curated.path if curated.path.is_file() else next(curated.path.glob("*.toml"))
            shutil.copyfile(source, schema.path / FILE)
            return
        found = merge(Statistics.load(artifact.path) for artifact in statistics)
        (schema.path / FILE).write_text(infer(found, max_values=max_values).toml(), encoding="utf-8")


IDENTIFIERS = 100
"""So many whole numbers, 9 of 10 of them different, are taken for identifiers, which grow and never come back."""

ENOUGH = 10
"""A list of values is inferred where each occurs so often on average: rarer ones will have unseen companions."""

APART = 0.1
"""Divergence of numbers, in bits, that is inferred as too far."""

SHIFT = 0.2
"""Difference of a value's share that is inferred as too far."""


def infer(statistics: Statistics, *, max_values: int = 100) -> Schema:
    """The schema that these statistics suggest; features in the order of the columns.

    - type: as found.
    - present: twice the share that is missing, and 5 percent more, may be missing; in whole percent.
    - finite: unless there was NaN or an infinity.
    - values: of texts, where there are at most `max_values`, all are known and each occurs 10 times on average.
    - min, max: of numbers, as far again below and above as they lie apart, without crossing zero. A number that is
      always the same has no range, since it is most likely the date or the edition; nor has an identifier.
    - min_length, max_length: of lists; 1 where none is empty, and both where all are of one length.
    - drift, skew: 0.2 of any value's share for texts and booleans, 0.1 bits for numbers; none where all values are
      the same, for identifiers, and where texts differ in half of the rows.
    """
    from spanwise.components.statistics.schema import Schema

    return Schema(features={n: _infer(f, max_values) for n, f in statistics.whole().features.items()})


def _infer(feature: Feature, max_values: int) -> FeatureSchema:
    from spanwise.components.statistics.schema import FeatureSchema

    least, most = _range(feature)
    shortest, longest = _lengths(feature.lengths) if feature.kind == "list" else (None, None)
    apart = _distance(feature)
    return FeatureSchema(
        type=feature.type,
        present=max(0.0, math.floor(95 - 200 * feature.missing_share) / 100),
        finite=not (feature.nan or feature.infinite),
        values=_values(feature, max_values),
        min=least,
        max=most,
        min_length=shortest,
        max_length=longest,
        drift=apart,
        skew=apart,
    )


def _values(feature: Feature, most: int) -> tuple[str, ...] | None:
    if feature.kind != "text" or feature.frequent is None or not feature.frequent.complete:
        return None
    found = feature.frequent.top()
    if not found or len(found) > most or feature.present < ENOUGH * len(found):
        return None
    return tuple(sorted(o.value for o in found))


def _range(feature: Feature) -> tuple[float | None, float | None]:
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
    return _rounded(low, math.floor), _rounded(high, math.ceil)


def _is_identifier(feature: Feature) -> bool:
    integer = feature.type.startswith(("int", "uint"))
    return integer and feature.present >= IDENTIFIERS and (feature.unique or 0) > 0.9 * feature.present


def _rounded(bound: float, towards: Callable[[float], int]) -> float | None:
    """Outwards to two digits, which are read more easily; None where there is no such double."""
    if not bound or not math.isfinite(bound):
        return 0.0 if not bound else None
    unit = 10.0 ** (math.floor(math.log10(abs(bound))) - 1)
    rounded = towards(bound / unit) * unit if unit else bound
    return float(f"{rounded:.2g}") if math.isfinite(rounded) else None


def _lengths(lengths: Numbers | None) -> tuple[int | None, int | None]:
    if lengths is None or lengths.least is None or lengths.greatest is None:
        return None, None
    if lengths.least == lengths.greatest:
        return int(lengths.least), int(lengths.greatest)
    return (1 if lengths.least else None), None


def _distance(feature: Feature) -> Distance | None:
    from spanwise.components.statistics.schema import Distance

    unique = feature.unique or 0
    if unique <= 1 or _is_identifier(feature):
        return None
    if feature.kind == "number":
        return Distance(jensen_shannon=APART)
    if feature.kind == "boolean" or (feature.kind == "text" and unique < feature.present / 2):
        return Distance(l_infinity=SHIFT)
    return None
