"""What is on record of the cases: `outcomes.json`, and the part of docs/reference/conformance.md that is made of it.

python -m tests.conformance.document    runs the cases and writes both

`outcomes.json` has the outcome of every case and, where we differ, what we answer; the tests run each case against it.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tests.conformance.judge import DIFFERENCES, HERE, Case, Differences, Outcome, Verdict, judge, load

CASES = load(HERE / "cases" / "tfx.json")
OUTCOMES = HERE / "outcomes.json"
PAGE = HERE.parents[1] / "docs" / "reference" / "conformance.md"
BEGIN = (
    "<!-- made of tests/conformance/differences.toml and outcomes.json by `python -m tests.conformance.document` -->"
)
END = "<!-- end -->"

Recorded = Mapping[str, Mapping[str, object]]
"""By the id of a case: its outcome and our answer."""


def recorded(verdict: Verdict) -> dict[str, object]:
    """What is on record of a case: the outcome, and where it differs why, and our answer."""
    why = {"why": verdict.reason} if verdict.reason else {}
    ours = {"ours": dict(verdict.ours)} if verdict.ours else {}
    return {"outcome": verdict.outcome.value, **why, **ours}


def tables(differences: Differences, outcomes: Recorded, cases: Sequence[Case]) -> str:
    """How many cases there are of which outcome, every difference with its reason, and what we answer in each."""
    names = {case.id: case.name for case in cases}

    def of(listed: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        return ((f"{key}: {names[key]}" if key in names else f"`{key}`", why) for key, why in listed.items())

    fields = (
        (f"`{form}`, {field}", f"{apart.why}{'' if apart.ours is None else f' (ours: `{json.dumps(apart.ours)}`)'}")
        for form, listed in differences.fields.items()
        for field, apart in listed.items()
    )
    return "\n\n".join(
        [
            _counts(outcomes, cases),
            _table("Intentional differences", ("Case, or kind of a form", "Reason"), of(differences.differs)),
            _table("Intentional differences in one field", ("Form, field", "Reason"), fields),
            _table("TFX refuses, spanwise answers", ("Its message has", "Reason"), of(differences.answered)),
            _table("spanwise refuses, TFX answers", ("Our message has", "Reason"), of(differences.refused)),
            _table("spanwise refuses, TFX skips in silence", ("Our error", "Reason"), of(differences.skipped)),
            *([_table("Not done", ("Form", "Reason"), of(differences.not_done))] if differences.not_done else []),
            _answers(outcomes, cases),
        ]
    )


def _counts(outcomes: Recorded, cases: Sequence[Case]) -> str:
    columns = (Outcome.OK, Outcome.DIFFERS, Outcome.NOT_DONE)
    found = Counter((case.api, outcomes[case.id]["outcome"]) for case in cases)
    forms = dict.fromkeys(case.api for case in cases)
    rows = [(f"`{form}`", [found[form, column.value] for column in columns]) for form in forms]
    rows.append(("all", [sum(counts) for counts in zip(*(counts for _, counts in rows), strict=True)]))
    lines = (f"| {form} | {sum(counts)} | {' | '.join(map(str, counts))} |" for form, counts in rows)
    return "\n".join(
        ["### How many cases", "", "| Form | Cases | As TFX | Different | Not done |", "|---|---|---|---|---|", *lines]
    )


def _answers(outcomes: Recorded, cases: Iterable[Case]) -> str:
    lines = [
        "### What spanwise answers in each case that differs",
        "",
        "| Case | Field | TFX | spanwise |",
        "|---|---|---|---|",
    ]
    for case in cases:
        ours = outcomes[case.id].get("ours", {})
        assert isinstance(ours, dict)
        for field, answer in sorted(ours.items()):
            lines.append(f"| {case.id}: {case.name} | {field} | {_shown(_expected(case, field))} | {_shown(answer)} |")
    return "\n".join(lines)


def _expected(case: Case, field: str) -> object:
    name, bracket, place = field.rstrip("]").partition("[")
    wanted = case.expect[name]
    step = wanted[int(place)] if bracket else wanted
    return step["error"] if isinstance(step, dict) and "error" in step else step


def _shown(value: object) -> str:
    return f"`{json.dumps(value, ensure_ascii=False, sort_keys=True)}`".replace("|", "\\|")


def _table(title: str, heads: tuple[str, str], rows: Iterator[tuple[str, str]]) -> str:
    lines = [f"### {title}", "", f"| {heads[0]} | {heads[1]} |", "|---|---|"]
    return "\n".join([*lines, *(f"| {what} | {why} |" for what, why in rows)])


def written(page: str, outcomes: Recorded) -> str:
    """The page with the part between the marks made anew."""
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n\n{tables(DIFFERENCES, outcomes, CASES)}\n\n{END}{after}"


def main() -> None:
    from tests.conformance.apis import APIS

    outcomes = {case.id: recorded(judge(case, DIFFERENCES, APIS)) for case in CASES}
    lines = (f"  {json.dumps(case)}: {json.dumps(outcome, sort_keys=True)}" for case, outcome in outcomes.items())
    OUTCOMES.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    PAGE.write_text(written(PAGE.read_text(), outcomes))


if __name__ == "__main__":
    main()
