"""Whether our answer to a case is the reference's, differs on purpose, waits for something, or is wrong."""

import dataclasses
import json
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias

from spanwise.orchestrator.errors import SpanwiseError

HERE = Path(__file__).parent

NAMING = ("op", "fn", "strategy", "scenario", "change")
"""Fields of `given` that say what is asked for."""

REFUSED = "refused with "
"""How a refusal of ours is written, before the class of the error."""

ABSENT = "no such field"
"""What is written for a field that our answer does not have."""

STEPS = "per_step"
"""The field of `expect` that has an expectation for each of several steps."""

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


@dataclass(frozen=True)
class Apart:
    """One field that is another on purpose."""

    why: str
    ours: object = (
        None  #: what it has to be in every case, REFUSED with the class included; None when it is another in each
    )


@dataclass(frozen=True, kw_only=True)
class Differences:
    """Where we are not the reference; each with the reason. A kind is named in `given`: see `kinds`."""

    differs: Mapping[str, str]  #: by case id or `api/kind`: another answer on purpose
    fields: Mapping[str, Mapping[str, Apart]]  #: by api or `api/kind`, then field: this one is another on purpose
    answered: Mapping[str, str]  #: by a part of the reference's message: what it refuses and we answer on purpose
    refused: Mapping[str, str]  #: by a part of our message: what we refuse on purpose and the reference answers
    skipped: Mapping[str, str]  #: by our class of error: where the reference skips the rest in silence and we refuse
    not_done: Mapping[str, str]  #: by case id, api, or `api/kind`: what it waits for


@dataclass(frozen=True)
class _Wrong:
    field: str
    told: str
    excuse: str = ""  #: why it may be so
    found: object = None  #: ours; REFUSED with the class of the error when there is no answer; ABSENT when it says none


class Outcome(Enum):
    """What became of a case."""

    OK = "ok"
    DIFFERS = "differs"
    NOT_DONE = "not done"
    FAILED = "FAILED"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One line of the report."""

    case: Case
    outcome: Outcome
    reason: str = ""
    ours: Mapping[str, object] = dataclasses.field(default_factory=dict)  #: where it differs: by field, what we answer

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
    found["fields"] = {
        form: {name: Apart(apart) if isinstance(apart, str) else Apart(**apart) for name, apart in fields.items()}
        for form, fields in found["fields"].items()
    }
    return Differences(**{table.name: found.get(table.name, {}) for table in dataclasses.fields(Differences)})


DIFFERENCES = read_differences(HERE / "differences.toml")


def kinds(case: Case) -> tuple[str, ...]:
    """What kind of its form a case is: `api/<operation>` for what is asked for, `api/<field>` for what is given."""
    asked = [case.given[field] for field in NAMING if isinstance(case.given.get(field), str)]
    return tuple(f"{case.api}/{kind}" for kind in (*asked, *(name for name, value in case.given.items() if value)))


def judge(case: Case, differences: Differences, apis: Mapping[str, Answer]) -> Verdict:
    """Runs one case. What is listed as different or as not there yet must be so."""
    waits = differences.not_done.get(case.id) or differences.not_done.get(case.api)
    if case.api not in apis:
        return _waiting(case, waits, f"nothing answers the form {case.api!r}")
    try:
        wrong = _compare(case.expect, apis[case.api](case.given), differences)
    except SpanwiseError as error:
        wrong = _compare_refusal(case.expect, error, differences)
    except NotMapped as kind:
        waits = waits or differences.not_done.get(f"{case.api}/{kind}")
        return _waiting(case, waits, f"nothing answers {kind} of the form {case.api!r}")
    except Exception as crash:  # noqa: BLE001  whatever is not ours is a failure, and the other cases still run
        said = f"crashed with {type(crash).__name__}: {crash}"
        return Verdict(case=case, outcome=Outcome.FAILED, reason=f"expected {_shown(case.expect)}, {said}")
    outcome, reason = _weigh(case, wrong, differences, waits)
    ours = {one.field: one.found for one in wrong} if outcome is Outcome.DIFFERS else {}
    return Verdict(case=case, outcome=outcome, reason=reason, ours=ours)


def _weigh(case: Case, wrong: Sequence[_Wrong], differences: Differences, waits: str | None) -> tuple[Outcome, str]:
    listed = [differences.differs[key] for key in (case.id, *kinds(case)) if key in differences.differs]
    if excuse := (listed[0] if listed else waits):
        if not wrong:
            return Outcome.FAILED, f"listed as different or not done ({excuse}), but it passes; take it off the list"
        return (Outcome.DIFFERS if listed else Outcome.NOT_DONE), excuse
    apart = {
        field: found
        for key in (case.api, *kinds(case))
        for field, found in differences.fields.get(key, {}).items()
        if field in case.expect
    }
    if agreeing := sorted(apart.keys() - {one.field for one in wrong}):
        told = f"{', '.join(agreeing)} is listed as a field that differs, but agrees; take it off the list"
        return Outcome.FAILED, told
    if rest := [one.told for one in wrong if not (one.excuse or _is_listed(one, apart.get(one.field)))]:
        return Outcome.FAILED, "; ".join(rest)
    excuses = [f"{field}: {found.why}" for field, found in apart.items()] + [one.excuse for one in wrong if one.excuse]
    return (Outcome.DIFFERS if excuses else Outcome.OK), "; ".join(dict.fromkeys(excuses))


def _is_listed(wrong: _Wrong, apart: Apart | None) -> bool:
    return apart is not None and apart.ours in (None, wrong.found)


def _waiting(case: Case, waits: str | None, problem: str) -> Verdict:
    if waits:
        return Verdict(case=case, outcome=Outcome.NOT_DONE, reason=waits)
    return Verdict(case=case, outcome=Outcome.FAILED, reason=problem)


def _compare(expect: Mapping[str, Any], found: Mapping[str, Any], differences: Differences) -> list[_Wrong]:
    plain = json.loads(json.dumps(found))
    if "error" in expect:
        return [_answered(expect, plain, differences)]
    wrong: list[_Wrong] = []
    for field, wanted in expect.items():
        if field == STEPS:
            wrong += _compare_steps(wanted, plain[field], differences)
        elif field not in plain or plain[field] != wanted:
            said = _shown(plain[field]) if field in plain else "nothing"
            wrong.append(
                _Wrong(field, f"{field}: expected {_shown(wanted)}, found {said}", found=plain.get(field, ABSENT))
            )
    return wrong


def _compare_steps(
    wanted: Sequence[Mapping[str, Any]], found: Sequence[Mapping[str, Any]], differences: Differences
) -> Iterator[_Wrong]:
    """Step by step; a step that we refused has our message as its `error`."""
    for place, (step, ours) in enumerate(zip(wanted, found, strict=True)):
        where = f"{STEPS}[{place}]"
        if "error" in step and "error" not in ours:
            yield _answered(step, ours, differences, where)
        elif "error" in ours and "error" not in step:
            said = f"{where}: expected {_shown(step)}, refused with {ours['error']}"
            yield _Wrong(where, said, _part(differences.refused, ours["error"]), _refused_step(ours))
        elif "error" not in step and any(ours.get(name) != value for name, value in step.items()):
            yield _Wrong(where, f"{where}: expected {_shown(step)}, found {_shown(ours)}", found=ours)


def _refused_step(ours: Mapping[str, Any]) -> str:
    return REFUSED + str(ours["error"]).partition(":")[0]


def _answered(
    expect: Mapping[str, Any], found: Mapping[str, Any], differences: Differences, where: str = "error"
) -> _Wrong:
    said = f"{where}: expected to be refused ({expect['error']}), found {_shown(found)}"
    return _Wrong(where, said, _part(differences.answered, expect["error"]), found)


def _compare_refusal(expect: Mapping[str, Any], error: SpanwiseError, differences: Differences) -> list[_Wrong]:
    if "error" in expect:
        return []
    refused = REFUSED + type(error).__name__
    said = f"{refused}: {error}"
    quietly = expect.get("skip") is True or expect.get("none") is True
    excuse = _part(differences.refused, said) or (_part(differences.skipped, refused) if quietly else "")
    return [
        _Wrong(field, f"{field}: expected {_shown(wanted)}, {said}", excuse, refused)
        for field, wanted in expect.items()
    ]


def _part(listed: Mapping[str, str], message: str) -> str:
    """Why what has this message is listed; empty when it is not."""
    return next((why for part, why in listed.items() if part in message), "")


def _shown(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
