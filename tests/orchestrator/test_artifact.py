"""Artifacts: typed properties, drafts that can be filled, and published ones that never change."""

import pickle
from datetime import UTC, datetime
from typing import ClassVar

import pytest

from spanwise.orchestrator import (
    Artifact,
    Blessing,
    Examples,
    MissingProperty,
    Model,
    ParameterError,
    Statistics,
)
from spanwise.orchestrator.artifact import (
    Judgement,
    Property,
    SpanRows,
    missing_properties,
    normalize_draft,
    properties_of,
)


class Forecast(Artifact):
    horizon_days: int
    error: float | None
    note: str | None
    final: bool | None
    steps: list[int] | None
    by_city: dict[str, float] | None
    unit: ClassVar[str] = "days"


def published(**properties):
    return Forecast(
        "/f", id=7, name="p/Forecaster/forecast/1", created=datetime(2024, 1, 1, tzinfo=UTC), properties=properties
    )


def test_annotations_are_properties():
    """Each annotation is a property, required unless it may be None; class variables are none."""
    declared = properties_of(Forecast)

    assert list(declared) == ["horizon_days", "error", "note", "final", "steps", "by_city"]
    assert declared["horizon_days"] == Property((int,), required=True)
    assert declared["error"] == Property((float, int), required=False)


def test_a_kind_inherits_properties():
    """A kind that extends another has what both declare."""

    class Local(Forecast):
        city: str

    assert set(properties_of(Local)) == {*properties_of(Forecast), "city"}


def test_a_property_of_another_type_is_refused_when_it_is_read():
    """A kind may only declare what the metadata can keep."""

    class Odd(Artifact):
        when: datetime

    with pytest.raises(ParameterError, match=r"Odd\.when is .*; a property is bool, int, float, str, list or dict"):
        properties_of(Odd)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("horizon_days", 3), ("error", 0.5), ("error", 1), ("error", None), ("note", "x"), ("final", True),
        ("steps", [1]), ("by_city", {"a": 0.5}), ("note", None),
    ],
)  # fmt: skip
def test_a_draft_takes_what_is_declared(name, value):
    """Setting an attribute sets the property, and it reads back."""
    draft = Forecast("/f")
    setattr(draft, name, value)

    assert getattr(draft, name) == value


@pytest.mark.parametrize(
    ("name", "value"),
    [("horizon_days", "3"), ("horizon_days", 3.0), ("horizon_days", True), ("horizon_days", None), ("error", True),
     ("note", 3), ("final", 1), ("steps", (1,))],
)  # fmt: skip
def test_a_draft_refuses_other_types(name, value):
    """Nothing is converted, and True is no number."""
    with pytest.raises(ParameterError, match=rf"Forecast\.{name} takes"):
        setattr(Forecast("/f"), name, value)


def test_an_undeclared_property_is_refused_with_those_there_are():
    """A slip of the pen is found at once, in setting and in reading."""
    with pytest.raises(AttributeError, match="no property 'horizon'; it has: horizon_days, error"):
        Forecast("/f").horizon = 3
    with pytest.raises(AttributeError, match="no property 'horizon'; it has: horizon_days, error"):
        _ = Forecast("/f").horizon


def test_an_absent_required_property_cannot_be_read():
    """Absence never reads as a value; an optional one reads as None."""
    draft = Forecast("/f")

    assert draft.note is None
    with pytest.raises(MissingProperty, match="has no 'horizon_days', which Forecast requires"):
        _ = draft.horizon_days


def test_a_published_artifact_never_changes():
    """What the store gives back cannot be set."""
    with pytest.raises(
        AttributeError, match=r"Forecast\('p/Forecaster/forecast/1'\) is published; an artifact never changes"
    ):
        published(horizon_days=3).horizon_days = 4


def test_missing_properties_are_the_required_ones_that_are_absent():
    """Zero, False and empty are values."""

    class All(Artifact):
        a: int
        b: bool
        c: list[int]
        d: str

    draft = All("/a")
    draft.a, draft.b, draft.c = 0, False, []

    assert missing_properties(draft) == ("d",)


def test_reading_as_a_kind_keeps_everything():
    """An artifact from the store is read as what an executor asked for."""
    plain = Artifact("/f", id=7, name="n", kind="Forecast", content="c", size_bytes=5, properties={"horizon_days": 3})
    forecast = plain.as_kind(Forecast)

    assert (forecast.horizon_days, forecast.id, forecast.content, forecast.size_bytes) == (3, 7, "c", 5)
    assert (plain.kind, forecast.kind) == ("Forecast", "Forecast")


def test_a_copy_shares_no_properties():
    """Filling one draft does not fill another."""
    draft = Forecast("/f")
    copy = draft.as_kind(Forecast)
    copy.horizon_days = 3

    assert draft.properties == {}


def test_content_is_given_to_a_copy():
    """Sealing a draft leaves the draft as it was."""
    draft = Forecast("/f")
    sealed = draft.with_content("digest", 12)

    assert (sealed.content, sealed.size_bytes, draft.content) == ("digest", 12, "")


def test_an_artifact_goes_through_a_pipe():
    """Drafts and published ones survive pickling, with their class."""
    draft = Forecast("/f")
    draft.horizon_days = 3
    back = pickle.loads(pickle.dumps([draft, published(horizon_days=4)]))

    assert [a.horizon_days for a in back] == [3, 4]
    assert [type(a) for a in back] == [Forecast, Forecast]


def test_a_draft_is_recorded_as_it_will_be_read():
    """Values become what JSON makes of them, so that a run sees what the next run will see."""
    draft = Forecast("/f")
    draft.steps, draft.by_city = [1, 2], {"a": 1.0}
    draft.properties["by_city"] = {"a": (1, 2)}

    assert normalize_draft(draft).by_city == {"a": [1, 2]}


@pytest.mark.parametrize("value", [{"a": object()}, {"a": {1, 2}}, {"a": datetime(2024, 1, 1, tzinfo=UTC)}])
def test_a_value_that_json_cannot_say_is_refused(value):
    """The message names the property and the value."""
    draft = Forecast("/f")
    draft.by_city = value

    with pytest.raises(ParameterError, match=r"Forecast\.by_city takes a JSON value"):
        normalize_draft(draft)


def test_kinds_have_the_names_that_the_metadata_shows():
    """A kind is named like its class, or as it says."""
    assert (Forecast.kind, Statistics.kind, Blessing.kind) == ("Forecast", "ExampleStatistics", "ModelBlessing")


class Local(Forecast):
    """One that extends another kind of the same project."""


class Boosted(Model):
    """One that extends a kind of the product."""


@pytest.mark.parametrize(
    ("made_as", "kinds", "others"),
    [
        (Model, [Model], [Examples, Boosted]),
        (Boosted, [Model, Boosted], [Examples, SpanRows]),
        (Local, [Forecast, Local], [Model]),
        (Examples, [SpanRows, Examples], [Model]),
    ],
)
def test_what_extends_a_kind_is_of_that_kind(made_as, kinds, others):
    """Also in a process that knows only what is recorded; every artifact is an Artifact."""
    recorded = Artifact("/a", id=7, kind=made_as.kind, base_kinds=made_as.base_kinds)

    for each in (made_as("/a"), recorded, recorded.as_kind(Artifact), recorded.with_content("c0ffee", 1)):
        assert all(each.is_a(kind) for kind in (*kinds, Artifact))
        assert not any(each.is_a(kind) for kind in others)
        assert each.is_a(*others, *kinds)


def test_of_an_older_record_only_the_name_of_its_kind_counts():
    """It says nothing of what the kind extends."""
    assert Artifact("/a", id=7, kind="Model").is_a(Model)
    assert not Artifact("/a", id=7, kind="Boosted").is_a(Model)


def test_a_split_is_a_folder_of_examples(tmp_path):
    """A split that is not there is refused with those that are."""
    examples = Examples(str(tmp_path))
    examples.split_names = ["train", "eval"]

    assert examples.split("eval") == tmp_path / "Split-eval"
    with pytest.raises(ParameterError, match="has no split 'test'; it has: train, eval"):
        examples.split("test")


@pytest.mark.parametrize(("blessed", "because"), [(1, ""), (0, "auc fell\nmae rose")])
def test_a_blessing_judges_its_model(blessed, because):
    """It blesses the model, or says why not, a line for each reason."""
    reasons = because.splitlines()
    blessing = Blessing("/b", properties={"blessed": blessed, "current_model": "m/1", "reasons": reasons})

    (judgement,) = blessing.judgements()

    assert judgement == Judgement(mark="blessed", artifact="m/1", given=bool(blessed), because=because)


def test_most_artifacts_say_nothing_of_others():
    """Publishing a model judges nothing."""
    assert Model("/m").judgements() == ()
