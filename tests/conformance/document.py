"""The page of the differences: the part of docs/reference/conformance.md that is made of `differences.toml`.

python -m tests.conformance.document    writes it
"""

import json
from collections.abc import Iterator, Mapping

from tests.conformance.judge import DIFFERENCES, HERE, Differences

PAGE = HERE.parents[1] / "docs" / "reference" / "conformance.md"
BEGIN = "<!-- made of tests/conformance/differences.toml by `python -m tests.conformance.document` -->"
END = "<!-- end -->"


def tables(differences: Differences, names: Mapping[str, str]) -> str:
    """Every difference with its reason; `names` has what the cases are about, by id."""

    def of(listed: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        return ((f"{key}: {names[key]}" if key in names else f"`{key}`", why) for key, why in listed.items())

    fields = (
        (f"`{form}`, {field}", f"{apart.why}{'' if apart.ours is None else f' (ours: `{json.dumps(apart.ours)}`)'}")
        for form, listed in differences.fields.items()
        for field, apart in listed.items()
    )
    return "\n\n".join(
        [
            _table("Intentional differences", ("Case, or kind of a form", "Reason"), of(differences.differs)),
            _table("Intentional differences in one field", ("Form, field", "Reason"), fields),
            _table("TFX refuses, spanwise answers", ("Its message has", "Reason"), of(differences.answered)),
            _table("spanwise refuses, TFX answers", ("Our message has", "Reason"), of(differences.refused)),
            _table("Not implemented", ("Form, or kind of a form", "What it waits for"), of(differences.not_yet)),
        ]
    )


def _table(title: str, heads: tuple[str, str], rows: Iterator[tuple[str, str]]) -> str:
    lines = [f"### {title}", "", f"| {heads[0]} | {heads[1]} |", "|---|---|"]
    return "\n".join([*lines, *(f"| {what} | {why} |" for what, why in rows)])


def written(page: str, names: Mapping[str, str]) -> str:
    """The page with the part between the marks made anew."""
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n\n{tables(DIFFERENCES, names)}\n\n{END}{after}"


def main() -> None:
    from tests.conformance.judge import load

    names = {case.id: case.name for case in load(HERE / "cases" / "tfx.json")}
    PAGE.write_text(written(PAGE.read_text(), names))


if __name__ == "__main__":
    main()
