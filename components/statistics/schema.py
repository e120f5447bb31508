"""Schemas: what examples should look like, as a TOML file that people edit and keep in git.

    [features.carrier]
    type = "string"
    values = ["AA", "DL", "UA"]

docs/reference/schema.md describes every key.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Annotated, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from spanwise.orchestrator.errors import ParameterError

FILE = "schema.toml"

Share: TypeAlias = Annotated[float, Field(ge=0, le=1)]
Count: TypeAlias = Annotated[int, Field(ge=0)]


class Severity(Enum):
    """How bad an anomaly is, from the least."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    @property
    def rank(self) -> int:
        """0 for the least."""
        return list(Severity).index(self)


class AnomalyCheck(Enum):
    """What is checked of a span; the values are the keys of the table `severity`."""

    MISSING_COLUMN = "missing_column"
    NEW_COLUMN = "new_column"
    TYPE = "type"
    MISSING_VALUES = "missing_values"
    NOT_FINITE = "not_finite"
    VALUES = "values"
    RANGE = "range"
    LENGTH = "length"
    EMPTY_SPLIT = "empty_split"
    DRIFT = "drift"
    SKEW = "skew"


#: What would spoil a training, or cannot have been meant, is an error; what the world may have done is a warning.
SEVERITY: Mapping[AnomalyCheck, Severity] = {
    AnomalyCheck.MISSING_COLUMN: Severity.ERROR,
    AnomalyCheck.NEW_COLUMN: Severity.INFO,
    AnomalyCheck.TYPE: Severity.ERROR,
    AnomalyCheck.MISSING_VALUES: Severity.ERROR,
    AnomalyCheck.NOT_FINITE: Severity.ERROR,
    AnomalyCheck.VALUES: Severity.WARNING,
    AnomalyCheck.RANGE: Severity.ERROR,
    AnomalyCheck.LENGTH: Severity.ERROR,
    AnomalyCheck.EMPTY_SPLIT: Severity.ERROR,
    AnomalyCheck.DRIFT: Severity.WARNING,
    AnomalyCheck.SKEW: Severity.WARNING,
}


class StrictModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Distance(StrictModel):
    """How far two distributions of a feature may be apart."""

    l_infinity: Share | None = None  #: greatest difference of the share of any one value
    jensen_shannon: Share | None = None  #: divergence of the distributions of numbers, in bits


class FeatureSchema(StrictModel):
    """What one feature should look like. What is left out is not checked."""

    type: str  #: Arrow's name of the type
    column: bool = True  #: false: the column may be absent
    present: Share = 1.0  #: at least this share of values is there
    finite: bool = True  #: false: NaN and infinities are allowed
    values: tuple[str, ...] | None = None  #: the values there may be, as text
    outside: Share = 0.0  #: at most this share of values is none of those, or is out of range
    min: int | float | None = None
    max: int | float | None = None
    min_length: Count | None = None  #: of texts in characters, of lists in elements
    max_length: Count | None = None
    drift: Distance | None = None  #: from the span before
    skew: Distance | None = None  #: between any two splits

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        for least, most, name in ((self.min, self.max, ""), (self.min_length, self.max_length, "_length")):
            if least is not None and most is not None and least > most:
                raise ValueError(f"min{name} is {least} and max{name} is {most}")
        return self


class DataSchema(StrictModel):
    """What the examples of a pipeline should look like."""

    format: Literal[1] = 1
    severity: Mapping[AnomalyCheck, Severity] = Field(default_factory=dict)  #: instead of the ones in SEVERITY
    features: Mapping[str, FeatureSchema]

    def severity_of(self, check: AnomalyCheck) -> Severity:
        """How bad a departure is."""
        return self.severity.get(check, SEVERITY[check])

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Reads a schema: a file, or a folder with one.

        Raises:
            ParameterError: it is not there or not a schema; the message names file, place and reason.
        """
        file = _file(Path(path))
        try:
            return cls.model_validate(tomllib.loads(file.read_text(encoding="utf-8")))
        except (OSError, UnicodeDecodeError) as error:
            raise ParameterError(f"{file}: the schema cannot be read ({error}).") from error
        except tomllib.TOMLDecodeError as error:
            raise ParameterError(f"{file} is not TOML: {error}. See docs/reference/schema.md.") from error
        except ValidationError as error:
            faults = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
            raise ParameterError(f"{file} is no schema: {faults}. See docs/reference/schema.md.") from error

    def toml(self) -> str:
        """The file's text: features in their order, keys in that of the model, defaults left out."""
        return "\n".join([*_HEAD, *self._lines()]) + "\n"

    def _lines(self) -> Iterator[str]:
        yield f"format = {self.format}"
        if self.severity:
            yield "\n[severity]"
            yield from (f"{check.value} = {_toml(severity.value)}" for check, severity in self.severity.items())
        if not self.features:
            yield "\n[features]"
        for name, feature in self.features.items():
            yield f"\n[features.{_key(name)}]"
            for key, value in feature.model_dump(exclude_defaults=True).items():
                yield f"{key} = {_toml(value)}"


_HEAD = (
    "# What the examples of this pipeline should look like. Edit it, keep it in git, and give it to the pipeline with",
    "# Importer(kind=Schema). Every key is described in docs/reference/schema.md.",
)

_LINE = 110


def _file(path: Path) -> Path:
    if not path.is_dir():
        return path
    found = [path / FILE] if (path / FILE).exists() else sorted(path.glob("*.toml"))
    if len(found) != 1:
        raise ParameterError(f"{path} has {len(found) or 'no'} .toml files; a schema is one file, called {FILE}.")
    return found[0]


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml(name)


def _toml(value: object) -> str:
    """A value as TOML; its strings are those of JSON, with DEL escaped too."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        items = [_toml(item) for item in value]
        flat = f"[{', '.join(items)}]"
        return flat if len(flat) < _LINE else "[\n" + "".join(f"    {item},\n" for item in items) + "]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{k} = {_toml(v)}" for k, v in value.items() if v is not None) + " }"
    return repr(value)
