"""Every case that comes with the project, and that the list of differences stays true."""

import dataclasses
import json
import subprocess
import sys

import pytest

from spanwise.components.evaluation.threshold import Threshold
from spanwise.orchestrator.errors import ResolutionError, UsageError
from spanwise.resolvers import Fixed, Latest, LatestBlessed, LatestSpans, RollingWindow, UnseenSpans
from tests.conformance import document
from tests.conformance.apis import APIS
from tests.conformance.apis.verdicts import threshold_of
from tests.conformance.judge import (
    DIFFERENCES,
    HERE,
    Apart,
    Case,
    Differences,
    NotACase,
    NotMapped,
    Outcome,
    judge,
    load,
)

CASES = document.CASES
OUTCOMES = json.loads(document.OUTCOMES.read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.id}-{case.api}")
def test_case(case):
    """We answer as the reference does, or differ for a stated reason, and then as is on record."""
    verdict = judge(case, DIFFERENCES, APIS)

    assert verdict.outcome is not Outcome.FAILED, str(verdict)
    assert document.recorded(verdict) == OUTCOMES[case.id], "if this is intended: python -m tests.conformance.document"
    if verdict.outcome is Outcome.NOT_DONE:
        pytest.skip(f"waits for: {verdict.reason}")


CHOOSING = tuple(case for case in CASES if case.api in ("op", "fn", "strategy", "span_driven_eval"))
"""The cases of what is chosen among published artifacts."""


@pytest.mark.parametrize("resolver", [RollingWindow, LatestSpans, Fixed, Latest, LatestBlessed, UnseenSpans])
def test_every_resolver_is_driven(monkeypatch, resolver):
    """A resolver that chooses nothing fails at least one case, so the cases drive it."""
    monkeypatch.setattr(resolver, "resolve", lambda self, history: ())
    if resolver is UnseenSpans:
        monkeypatch.setattr(resolver, "choose", lambda self, histories: {})

    outcomes = {judge(case, DIFFERENCES, APIS).outcome for case in CHOOSING}

    assert Outcome.FAILED in outcomes


def told(expect, answer, given=None, **listed):
    """The outcome of one case of the form `form`, answered by `answer`."""
    lists = {field.name: {} for field in dataclasses.fields(Differences)} | listed
    case = Case(id="x1", api="form", name="a case", given=given or {}, expect=expect)
    return judge(case, Differences(**lists), {} if answer is None else {"form": answer}).outcome


def raising(error):
    def answer(given):
        raise error

    return answer


def found(**fields):
    return lambda given: fields


@pytest.mark.parametrize(
    ("expect", "answer", "outcome"),
    [
        ({"a": 1}, found(a=1, more=2), Outcome.OK),
        ({"a": [1, 2]}, found(a=(1, 2)), Outcome.OK),
        ({"a": 1}, found(a=2), Outcome.FAILED),
        ({"a": None}, found(), Outcome.FAILED),
        ({"a": 1}, raising(UsageError("no")), Outcome.FAILED),
        ({"error": "any words", "error_kind": "X"}, raising(UsageError("no")), Outcome.OK),
        ({"error": "any words"}, raising(KeyError("no")), Outcome.FAILED),
        ({"error": "any words"}, found(a=1), Outcome.FAILED),
        ({"skip": True}, raising(ResolutionError("too few")), Outcome.FAILED),
        ({"none": True}, raising(ResolutionError("too few")), Outcome.FAILED),
        ({"skip": True}, raising(UsageError("no")), Outcome.FAILED),
        ({"a": 1}, raising(NotMapped("kind")), Outcome.FAILED),
        ({"a": 1}, None, Outcome.FAILED),
    ],
)
def test_an_answer_is_judged_by_what_is_expected(expect, answer, outcome):
    """Fields must be equal, a refusal must be one of our errors, and an unanswered form is a failure."""
    assert told(expect, answer) is outcome


@pytest.mark.parametrize(
    ("answer", "listed", "outcome"),
    [
        (found(a=2), {"differs": {"x1": "why"}}, Outcome.DIFFERS),
        (raising(UsageError("no")), {"differs": {"x1": "why"}}, Outcome.DIFFERS),
        (raising(KeyError("no")), {"differs": {"x1": "why"}}, Outcome.FAILED),
        (found(a=1), {"differs": {"x1": "why"}}, Outcome.FAILED),
        (found(a=1), {"not_done": {"form": "a part"}}, Outcome.FAILED),
        (found(a=2), {"not_done": {"form": "a part"}}, Outcome.NOT_DONE),
        (found(a=2), {"not_done": {"x1": "a part"}}, Outcome.NOT_DONE),
        (raising(NotMapped("kind")), {"not_done": {"form/kind": "a part"}}, Outcome.NOT_DONE),
        (None, {"not_done": {"form": "a part"}}, Outcome.NOT_DONE),
        (found(a=2), {"fields": {"form": {"a": Apart("why")}}}, Outcome.DIFFERS),
        (found(a=2), {"fields": {"form": {"a": Apart("why", 2)}}}, Outcome.DIFFERS),
        (found(a=3), {"fields": {"form": {"a": Apart("why", 2)}}}, Outcome.FAILED),
        (
            raising(UsageError("no")),
            {"fields": {"form": {"a": Apart("why", "refused with UsageError")}}},
            Outcome.DIFFERS,
        ),
        (raising(UsageError("no")), {"fields": {"form": {"a": Apart("why", 2)}}}, Outcome.FAILED),
        (found(a=1), {"fields": {"form": {"a": Apart("why")}}}, Outcome.FAILED),
        (found(a=1), {"fields": {"form": {"b": Apart("why")}}}, Outcome.OK),
    ],
)
def test_a_listed_difference_must_be_one(answer, listed, outcome):
    """What is listed is still run; when it would pass, the list is wrong, and a crash is never a difference."""
    assert told({"a": 1}, answer, **listed) is outcome


def test_the_other_fields_of_a_listed_field_must_agree():
    """A field that differs on purpose excuses no other."""
    assert told({"a": 1, "b": 2}, found(a=1, b=3), fields={"form": {"a": Apart("why")}}) is Outcome.FAILED
    assert told({"a": 1, "b": 2}, found(b=3), fields={"form": {"a": Apart("why")}}) is Outcome.FAILED


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [(found(a=1), Outcome.DIFFERS), (raising(UsageError("no")), Outcome.OK), (raising(KeyError("no")), Outcome.FAILED)],
)
def test_a_listed_refusal_may_be_answered(answer, outcome):
    """What the reference refuses for a reason we do not share may get an answer, or our own refusal, but no crash."""
    assert told({"error": "there is a stray: x"}, answer, answered={"a stray": "why"}) is outcome


@pytest.mark.parametrize(
    ("listed", "outcome"),
    [
        ({"differs": {"form/touch": "why"}}, Outcome.DIFFERS),
        ({"differs": {"form/at_once": "why"}}, Outcome.DIFFERS),
        ({"differs": {"form/later": "why"}}, Outcome.FAILED),
        ({"differs": {"touch": "why"}}, Outcome.FAILED),
        ({"fields": {"form/touch": {"a": Apart("why")}}}, Outcome.DIFFERS),
        ({"fields": {"form/later": {"a": Apart("why")}}}, Outcome.FAILED),
    ],
)
def test_a_difference_may_be_one_of_a_kind(listed, outcome):
    """A kind is what is asked for, or something that is given; of fields that are given as nothing there is none."""
    assert told({"a": 1}, found(a=2), {"change": "touch", "at_once": True, "later": None}, **listed) is outcome


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [(raising(UsageError("no part of it")), Outcome.DIFFERS), (raising(UsageError("other")), Outcome.FAILED)],
)
def test_a_listed_refusal_of_ours_is_a_difference(answer, outcome):
    """What we refuse for a reason of our own is told apart by our message."""
    assert told({"a": 1}, answer, refused={"no part": "why"}) is outcome


@pytest.mark.parametrize("quiet", ["skip", "none"])
def test_a_quiet_skip_that_we_refuse_is_a_difference(quiet):
    """The reference goes on as if nothing were; ours fails the run, for a listed reason."""
    skipped = {"ResolutionError": "why"}

    assert told({quiet: True}, raising(ResolutionError("too few")), skipped=skipped) is Outcome.DIFFERS
    assert told({quiet: True}, raising(UsageError("no")), skipped=skipped) is Outcome.FAILED
    assert told({"ids": []}, raising(ResolutionError("too few")), skipped=skipped) is Outcome.FAILED


@pytest.mark.parametrize(
    ("steps", "outcome"),
    [
        ([{"a": 1, "more": 2}, {"error": "any words"}], Outcome.OK),
        ([{"a": 2}, {"error": "any words"}], Outcome.FAILED),
        ([{"error": "any words"}, {"error": "any words"}], Outcome.FAILED),
        ([{"a": 1}, {"a": 1}], Outcome.DIFFERS),
        ([{"a": 2}, {"a": 1}], Outcome.FAILED),
    ],
)
def test_steps_are_judged_one_by_one(steps, outcome):
    """Each step has its own expectation, and a listed answer in one of them excuses no other."""
    expect = {"per_step": [{"a": 1}, {"error": "there is a stray"}]}

    assert told(expect, found(per_step=steps), answered={"a stray": "why"}) is outcome


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ("executor_spec", False),
        ("executor_class", False),
        ("parameter_order", True),
        ("module_path", True),
        ("input_order", False),
        ("input_artifact_order", False),
        ("input_artifact_name", True),
        ("input_artifact_timestamp", True),
        ("input_artifact_custom_property", False),
        ("output_key", False),
        ("output_type", False),
        ("output_uri", True),
    ],
)
def test_what_else_may_change_has_an_answer(change, same):
    """A cache key covers code, parameters, and inputs by order and content, not places, times or names (law 9)."""
    assert APIS["cache_key"]({"change": change}) == {"same_key": same}


@pytest.mark.parametrize(
    ("scenario", "states"),
    [("nocache_then_cache", ["CACHED", "CACHED"]), ("cache_then_nocache", ["COMPLETE", "COMPLETE"])],
)
def test_a_cache_that_is_switched(scenario, states):
    """What was made with the cache off is found when it is on; switched off, nothing is served from it."""
    assert APIS["life"]({"scenario": scenario})["second_run_states"] == states


def test_a_parameter_with_a_default():
    """A pipeline function is called with its defaults."""
    assert APIS["life"]({"scenario": "runtime_default"})["value"] == 3


@pytest.mark.parametrize(
    ("metric", "threshold"),
    [
        ({"value": {"lower": 0.5, "upper": 0.9}}, Threshold(at_least=0.5, at_most=0.9)),
        ({"change": {"absolute": -0.1, "direction": "HIGHER_IS_BETTER"}}, Threshold(max_drop=0.1)),
        ({"change": {"absolute": 0.1, "direction": "LOWER_IS_BETTER"}}, Threshold(max_rise=0.1)),
        ({"change": {"relative": 0.1, "direction": "HIGHER_IS_BETTER"}}, Threshold(max_drop_ratio=-0.1)),
        ({"change": {"relative": 0.1, "direction": "LOWER_IS_BETTER"}}, Threshold(max_rise_ratio=0.1)),
    ],
)
def test_a_threshold_means_the_same(metric, threshold):
    """The reference bounds the change from below where more is better, and from above where less is."""
    assert threshold_of(metric) == threshold


def test_the_page_shows_the_differences():
    """docs/reference/conformance.md is up to date; if not: python -m tests.conformance.document"""
    page = document.PAGE.read_text()

    assert page == document.written(page, OUTCOMES)


def test_every_difference_says_what_ours_is():
    """Of each case that differs, our answer is on record, field by field."""
    differing = {case: found for case, found in OUTCOMES.items() if found["outcome"] == Outcome.DIFFERS.value}

    assert differing
    assert all(found["ours"] for found in differing.values())


@pytest.mark.parametrize("text", ["{", '[{"id": "x"}]', "[1]"])
def test_a_file_of_something_else_is_refused(tmp_path, text):
    """What is no case is told, not passed over."""
    (tmp_path / "f.json").write_text(text)

    with pytest.raises(NotACase, match=r"f\.json"):
        load(tmp_path / "f.json")


def test_the_command_counts_and_fails(tmp_path):
    """One line per case, a count at the end, exit 1 when a case fails."""
    (tmp_path / "f.json").write_text(
        '[{"id": "a", "api": "date", "name": "n", "given": {"date": [1970, 1, 2]}, "expect": {"span": 1}},'
        ' {"id": "b", "api": "date", "name": "n", "given": {"date": [1970, 1, 2]}, "expect": {"span": 2}}]'
    )

    ran = subprocess.run(
        [sys.executable, "-m", "tests.conformance", str(tmp_path / "f.json")],
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.returncode == 1
    assert ran.stdout.splitlines() == [
        "ok a date: n",
        "FAILED b date: n -- span: expected 2, found 1",
        "1 passed, 1 failed, 0 differ intentionally, 0 not done",
    ]
