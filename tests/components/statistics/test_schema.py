"""Schemas: a TOML file that people edit; what is wrong with it is told in its own words."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanwise.components.statistics.schema import SEVERITY, AnomalyCheck, DataSchema, Distance, FeatureSchema, Severity
from spanwise.orchestrator.errors import ParameterError

EVERYTHING = DataSchema(
    severity={AnomalyCheck.NEW_COLUMN: Severity.WARNING},
    features={
        "delay": FeatureSchema(
            type="double",
            present=0.9,
            finite=False,
            min=-60,
            max=1500.5,
            outside=0.01,
            drift=Distance(jensen_shannon=0.2),
        ),
        "carrier": FeatureSchema(type="string", values=("AA", "DL"), skew=Distance(l_infinity=0.1)),
        "tags[]": FeatureSchema(type="list<element: string>", column=False, min_length=1, max_length=3),
    },
)

TEXT = """\
# What the examples of this pipeline should look like. Edit it, keep it in git, and give it to the pipeline with
# Importer(kind=Schema). Every key is described in docs/reference/schema.md.
format = 1

[severity]
new_column = "warning"

[features.delay]
type = "double"
present = 0.9
finite = false
outside = 0.01
min = -60
max = 1500.5
drift = { jensen_shannon = 0.2 }

[features.carrier]
type = "string"
values = ["AA", "DL"]
skew = { l_infinity = 0.1 }

[features."tags[]"]
type = "list<element: string>"
column = false
min_length = 1
max_length = 3
"""


def loaded(tmp_path, text):
    """The schema of a file with this text."""
    (tmp_path / "schema.toml").write_text(text, encoding="utf-8")
    return DataSchema.load(tmp_path)


def test_the_file_is_written_as_documented():
    """The text is stable: features in their order, keys in theirs, defaults left out."""
    assert EVERYTHING.toml() == TEXT


def test_what_was_written_loads_as_the_same(tmp_path):
    """A schema that was written and read is the same schema."""
    assert loaded(tmp_path, TEXT) == EVERYTHING


@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8"), max_size=8),
        st.lists(st.text(st.characters(codec="utf-8"), max_size=8), max_size=30),
        max_size=3,
    )
)
def test_any_names_and_values_survive(tmp_path_factory, named):
    """Names and values of any characters are read as they were written."""
    schema = DataSchema(features={n: FeatureSchema(type="string", values=tuple(v)) for n, v in named.items()})

    assert loaded(tmp_path_factory.mktemp("schema"), schema.toml()) == schema


def test_a_long_list_has_a_line_for_each_value():
    """A list of values that would not fit on a line can be read and compared line by line."""
    schema = DataSchema(features={"x": FeatureSchema(type="string", values=tuple(f"value {i:03}" for i in range(20)))})

    assert '    "value 007",\n' in schema.toml()


def test_a_schema_may_be_a_file_of_any_name(tmp_path):
    """A file is read by its path, and in a folder with one .toml file, that one."""
    (tmp_path / "flights.toml").write_text(TEXT)

    assert DataSchema.load(tmp_path / "flights.toml") == DataSchema.load(tmp_path) == EVERYTHING


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[features.x]", r"features\.x\.type: Field required"),
        ("[features.x]\ntype = 'int64'\npresence = 1", r"features\.x\.presence: Extra inputs"),
        ("[features.x]\ntype = 'int64'\npresent = 2", r"features\.x\.present: .* less than or equal to 1"),
        ("[features.x]\ntype = 'int64'\nmin = 5\nmax = 3", "min is 5 and max is 3"),
        ("[features.x]\ntype = 'list'\nmin_length = 5\nmax_length = 3", "min_length is 5 and max_length is 3"),
        ("[severity]\ndrif = 'error'\n[features]", "severity.drif"),
        ("[features.x]\ntype = 'int64'\nmin = nan", r"features\.x\.min"),
        ("format = 2\n[features]", "format: Input should be 1"),
        ("[features.x\n", "t TOML: .*line 1"),
        ("[features.x]\ntype='a'\n[features.x]\ntype='b'", "t TOML: Cannot declare"),
    ],
)
def test_a_fault_is_told_with_its_place(tmp_path, text, told):
    """A key that is unknown, missing or wrong is named, with the file."""
    with pytest.raises(ParameterError, match=rf"schema\.toml is no.*{told}"):
        loaded(tmp_path, text)


def test_a_folder_of_several_files_is_refused(tmp_path):
    """Of several files none is guessed."""
    for name in ("a.toml", "b.toml"):
        (tmp_path / name).write_text(TEXT)

    with pytest.raises(ParameterError, match=r"has 2 \.toml files"):
        DataSchema.load(tmp_path)


def test_a_schema_that_is_not_there_is_named(tmp_path):
    """A path that leads nowhere is told."""
    with pytest.raises(ParameterError, match=r"gone\.toml: the schema cannot be read"):
        DataSchema.load(tmp_path / "gone.toml")


def test_every_key_and_check_is_documented():
    """The reference has a row for each key of a feature, and for each check with its severity."""
    text = (Path(__file__).parents[3] / "docs" / "reference" / "schema.md").read_text()
    rows = [re.findall(r"`(\w+)`", row) for row in re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)]

    assert set(FeatureSchema.model_fields) | {check.value for check in AnomalyCheck} <= {
        name for row in rows for name in row
    }
    assert all(f"| `{check.value}` | {severity.value} |" in text for check, severity in SEVERITY.items())


def test_the_severity_of_a_check_can_be_changed():
    """A schema says how bad a departure is; what it does not say is as documented."""
    assert EVERYTHING.severity_of(AnomalyCheck.NEW_COLUMN) is Severity.WARNING
    assert EVERYTHING.severity_of(AnomalyCheck.TYPE) is Severity.ERROR
