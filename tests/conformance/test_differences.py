"""Differences of which `cases/tfx.json` has no case: each is run as a case of its own, so that it is true as well."""

import json

import pytest

from tests.conformance import document
from tests.conformance.apis import APIS
from tests.conformance.apis.resolver_ops import NONE
from tests.conformance.judge import DIFFERENCES, Case, Outcome, judge

ONE_SPLIT = [{"name": "s1", "pattern": "span{SPAN}/*"}]
DAYS = [{"name": "s1", "pattern": "{YYYY}{MM}{DD}/*"}]
GAP = [{"id": 1, "span": 1, "version": 1}, {"id": 2, "span": 2, "version": 1}, {"id": 3, "span": 4, "version": 1}]
TWICE = [{"id": 1, "span": 3, "version": 1}, {"id": 2, "span": 3, "version": 1}]
VERSIONS = [{"id": 1, "span": 3, "version": 1}, {"id": 2, "span": 3, "version": 2}]
THREE = {"start_span_number": 3, "end_span_number": 3}
ROLLING = {"rolling": {"num_spans": 2, "start": 0}}
NO_OPERATIONS = ("TrainingRange", "LatestPolicyModel", "Shuffle", "LatestPipelineRunOutputs", "EqualPropertyValues")
NO_FUNCTIONS = (
    "latest_pipeline_run_outputs",
    "filter_property_equal",
    "filter_custom_property_equal",
    "shuffle",
    "slice",
)
ONE = {"static": {"start": 1, "end": 1}}
RISES = {"name": "BinaryAccuracy", "change": {"absolute": 0.1, "direction": "HIGHER_IS_BETTER"}}

DIFFERING = {
    "c070": (
        "resolve",
        {"files": ["span01/a"], "splits": ONE_SPLIT, "range": ONE},
        {"error": "Cannot find matching for split"},
        {"span": 1, "version": None, "patterns": ["span01/*"]},
    ),
    "c090": (
        "resolve",
        {"files": [], "splits": [{"name": "s1", "pattern": "s/*"}], "range": None},
        {"span": 0},
        {"span": "refused with SpanNotFound"},
    ),
    "c189": (
        "op",
        {"op": "StaticSpanRange", "artifacts": TWICE, "params": {"start_span": 3, "end_span": 3}},
        {"ids": [1]},
        {"ids": [2]},
    ),
    "Retrieved date is invalid": (
        "resolve",
        {"files": ["20201301/a", "19700102/a"], "splits": DAYS, "range": None},
        {"error": "Retrieved date is invalid"},
        {"span": 1, "version": None, "patterns": ["19700102/*"]},
    ),
    "; missing: ": (
        "strategy",
        {"strategy": "SpanRange", "artifacts": GAP, "range": {"static": {"start": 1, "end": 4}}},
        {"ids": [3, 2, 1]},
        {"ids": "refused with WindowIncomplete"},
    ),
    "is missing: ": (
        "fn",
        {"fn": "rolling_range", "artifacts": GAP, "params": {"num_spans": 3}},
        {"ids": [1, 2, 3]},
        {"ids": "refused with WindowIncomplete"},
    ),
    "are missing: ": (
        "fn",
        {"fn": "rolling_range", "artifacts": [GAP[0], GAP[2]], "params": {"num_spans": 3}},
        {"ids": [1, 3]},
        {"ids": "refused with WindowIncomplete"},
    ),
    "found no span of ": (
        "op",
        {"op": "LatestSpan", "artifacts": [], "params": {}},
        {"ids": []},
        {"ids": "refused with WindowIncomplete"},
    ),
    "compares with a baseline, and none is connected": (
        "evaluator",
        {"metrics": [RISES], "baseline_configured": False, "baseline_given": False},
        {"blessed": 1},
        {"blessed": "refused with ParameterError"},
    ),
    " takes no 'num_spans'": (
        "resolve",
        {"files": ["span1/a"], "splits": ONE_SPLIT, "range": ROLLING},
        {"span": 1},
        {"span": "refused with PipelineError"},
    ),
    "takes either first= and last=": (
        "fn",
        {"fn": "static_range", "artifacts": GAP, "params": {"end_span_number": 4}},
        {"ids": [1, 2, 3]},
        {"ids": "refused with ParameterError"},
    ),
    "static_range of all versions": (
        "fn",
        {"fn": "static_range", "artifacts": VERSIONS, "params": {**THREE, "keep_all_versions": True}},
        {"ids": [1, 2]},
        {"ids": [2]},
    ),
    **{f"op/{name}": ("op", {"op": name, "artifacts": []}, {"ids": []}, {"ids": NONE}) for name in NO_OPERATIONS},
    **{f"fn/{name}": ("fn", {"fn": name, "artifacts": []}, {"ids": []}, {"ids": NONE}) for name in NO_FUNCTIONS},
}
"""By the entry of `differences.toml`: form, what is given, what TFX answers, what spanwise answers."""

KEY_CHANGES = {f"cache_key/{change}" for change in ("input_artifact_name", "input_artifact_timestamp", "module_path")}


@pytest.mark.parametrize("entry", DIFFERING)
def test_a_difference_is_as_stated(entry):
    """What we answer is what is stated, and it is excused by this entry."""
    api, given, theirs, ours = DIFFERING[entry]
    case = Case(id=entry, api=api, name="", given=given, expect=theirs)

    verdict = judge(case, DIFFERENCES, APIS)

    assert verdict.outcome is Outcome.DIFFERS, str(verdict)
    assert verdict.reason == _why(entry)
    assert _without_fingerprint(verdict.ours) == ours


@pytest.mark.parametrize("entry", [*sorted(KEY_CHANGES), "cache_key/output_type"])
def test_a_difference_in_the_key_is_as_stated(entry):
    """Where the reference changes the key, ours stays, and the other way round."""
    same = entry in KEY_CHANGES
    given = {"change": entry.partition("/")[2]}
    case = Case(id=entry, api="cache_key", name="", given=given, expect={"same_key": not same})

    verdict = judge(case, DIFFERENCES, APIS)

    assert verdict.outcome is Outcome.DIFFERS, str(verdict)
    assert verdict.ours == {"same_key": same}


def test_every_listed_difference_is_executed():
    """Every entry of differences.toml excuses a case of `cases/tfx.json`, or one of those here."""
    outcomes = json.loads(document.OUTCOMES.read_text())
    reasons = "\n".join(found["why"] for found in outcomes.values() if "why" in found)
    entries = {**DIFFERENCES.differs, **DIFFERENCES.answered, **DIFFERENCES.refused, **DIFFERENCES.skipped}
    fields = {f"{form}/{name}": one.why for form, listed in DIFFERENCES.fields.items() for name, one in listed.items()}
    here = {*DIFFERING, *KEY_CHANGES, "cache_key/output_type"}

    unexecuted = [entry for entry, why in {**entries, **fields}.items() if entry not in here and why not in reasons]

    assert unexecuted == []


def _why(entry):
    tables = (DIFFERENCES.differs, DIFFERENCES.answered, DIFFERENCES.refused)
    return next(table[entry] for table in tables if entry in table)


def _without_fingerprint(ours):
    """The answer to a case that the reference refuses, less what depends on the content of the files."""
    answer = ours.get("error", ours)
    return {name: value for name, value in answer.items() if name not in ("fingerprint", "executor_files")}
