"""Whether our answer to a case is the reference's, differs on purpose, waits for something, or is wrong."""

import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias

from orchestrator.errors import ResolutionError, SpanwiseError

HERE = Path(__file__).parent

Answer: TypeAlias = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Answers a form of question: what a case gives -> what we find. Refuses with one of our errors, as a user would see."""


class NotACase(Exception):
    """A file, or something in it, that is no case of a form; the message says what is missing."""


class NotMapped(Exception):
    """The form is known, but not this kind of it: an operation or strategy that we have no counterpart for."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One question with the reference's answer."""

    id: str
    api: str  #: the form
    name: str
    given: Mapping[str, Any]
    expect: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Differences:
    """Where we are not the reference; each with the reason."""

    differs: Mapping[str, str]  #: by case id: another answer on purpose
    fields: Mapping[str, Mapping[str, str]]  #: by api, then field: this one field is another on purpose
    refusals: Mapping[str, str]  #: by a part of the reference's message: what it refuses and we answer on purpose
    not_yet: Mapping[str, str]  #: by case id, api, or `api/kind`: what it waits for


class Outcome(Enum):
    """What became of a case."""

    OK = "ok"
    DIFFERS = "differs"
    NOT_YET = "not yet"
    FAILED = "FAILED"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One line of the report."""

    case: Case
    outcome: Outcome
    reason: str = ""

    def __str__(self) -> str:
        said = f"{self.outcome.value} {self.case.id} {self.case.api}: {self.case.name}"
        return f"{said} -- {self.reason}" if self.reason else said


def load(file: Path) -> list[Case]:
    """The cases of a JSON file."""
    try:
        found = json.loads(file.read_text())
    except ValueError as error:
        raise NotACase(f"{file} is no JSON: {error}") from error
    cases = found["cases"] if isinstance(found, dict) and "cases" in found else found
    fields = ("id", "api", "name", "given", "expect")
    for place, case in enumerate(cases):
        missing = [field for field in fields if not isinstance(case, dict) or field not in case]
        if missing:
            raise NotACase(f"case {place + 1} of {file} has no {', '.join(missing)}; a case has {', '.join(fields)}.")
    return [Case(**{field: case[field] for field in fields}) for case in cases]


def read_differences(file: Path) -> Differences:
    found = tomllib.loads(file.read_text())
    return Differences(**{table: found.get(table, {}) for table in ("differs", "fields", "refusals", "not_yet")})


DIFFERENCES = read_differences(HERE / "differences.toml")


def judge(case: Case, differences: Differences, apis: Mapping[str, Answer]) -> Verdict:
    """Runs one case. What is listed as different or as not there yet must be so."""
    waits = differences.not_yet.get(case.id) or differences.not_yet.get(case.api)
    if case.api not in apis:
        return _waiting(case, waits, f"nothing answers the form {case.api!r}")
    try:
        wrong = _compare(case.expect, apis[case.api](case.given))
    except SpanwiseError as error:
        wrong = _compare_refusal(case.expect, error)
    except NotMapped as kind:
        waits = waits or differences.not_yet.get(f"{case.api}/{kind}")
        return _waiting(case, waits, f"nothing answers {kind} of the form {case.api!r}")
    except Exception as crash:  # noqa: BLE001  whatever is not ours is a failure, and the other cases still run
        said = f"crashed with {type(crash).__name__}: {crash}"
        return Verdict(case=case, outcome=Outcome.FAILED, reason=f"expected {_shown(case.expect)}, {said}")
    return _weigh(case, wrong, differences, waits)


def _weigh(case: Case, wrong: Mapping[str, str], differences: Differences, waits: str | None) -> Verdict:
    outcome, reason = _weigh_case(case, wrong, differences, waits) or _weigh_fields(case, wrong, differences)
    return Verdict(case=case, outcome=outcome, reason=reason)


def _weigh_case(
    case: Case, wrong: Mapping[str, str], differences: Differences, waits: str | None
) -> tuple[Outcome, str] | None:
    """When the case as a whole is listed, or its refusal is."""
    differs = differences.differs.get(case.id)
    if listed := differs or waits:
        if not wrong:
            return Outcome.FAILED, f"listed as different or not yet ({listed}), but it passes; take it off the list"
        return (Outcome.DIFFERS if differs else Outcome.NOT_YET), listed
    answered = [why for part, why in differences.refusals.items() if part in case.expect.get("error", "")]
    return (Outcome.DIFFERS, answered[0]) if wrong and answered else None


def _weigh_fields(case: Case, wrong: Mapping[str, str], differences: Differences) -> tuple[Outcome, str]:
    apart = {field: why for field, why in differences.fields.get(case.api, {}).items() if field in case.expect}
    if agreeing := sorted(apart.keys() - wrong.keys()):
        return (
            Outcome.FAILED,
            f"{', '.join(agreeing)} is listed as a field that differs, but agrees; take it off the list",
        )
    if rest := [said for field, said in wrong.items() if field not in apart]:
        return Outcome.FAILED, "; ".join(rest)
    told = "; ".join(f"{field}: {why}" for field, why in apart.items())
    return (Outcome.DIFFERS if apart else Outcome.OK), told


def _waiting(case: Case, waits: str | None, problem: str) -> Verdict:
    if waits:
        return Verdict(case=case, outcome=Outcome.NOT_YET, reason=waits)
    return Verdict(case=case, outcome=Outcome.FAILED, reason=problem)


def _compare(expect: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, str]:
    """What is wrong, by field."""
    plain = json.loads(json.dumps(found))
    if "error" in expect:
        return {"error": f"expected to be refused ({expect['error']}), found {_shown(plain)}"}
    return {
        field: f"{field}: expected {_shown(wanted)}, found {_shown(plain[field]) if field in plain else 'nothing'}"
        for field, wanted in expect.items()
        if field not in plain or plain[field] != wanted
    }


def _compare_refusal(expect: Mapping[str, Any], error: SpanwiseError) -> dict[str, str]:
    # Where the reference skips the rest of the pipeline, or resolves to nothing, our resolvers say what is missing.
    quietly = expect.get("skip") is True or expect.get("none") is True
    if "error" in expect or (quietly and isinstance(error, ResolutionError)):
        return {}
    said = f"refused with {type(error).__name__}: {error}"
    return {field: f"{field}: expected {_shown(wanted)}, {said}" for field, wanted in expect.items()}


def _shown(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
