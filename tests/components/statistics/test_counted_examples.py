"""Statistics and anomalies are of the examples that they decide about, or the pipeline is refused when it is built."""

import pytest

from spanwise import (
    AnomalyGate,
    Component,
    ExampleGen,
    Examples,
    ExampleValidator,
    Importer,
    Input,
    Latest,
    Output,
    Previous,
    SchemaGen,
    StatisticsGen,
    past,
)
from spanwise.orchestrator import Anomalies, PipelineError, Schema, Statistics


class Clean(Component):
    def run(self, examples: Input[Examples], cleaned: Output[Examples]) -> None: ...


class Count(Component):
    """Somebody's own statistics."""

    def run(self, examples: Input[Examples], statistics: Output[Statistics]) -> None: ...


class Validate(Component):
    """Somebody's own validator."""

    def run(self, statistics: Input[Statistics], anomalies: Output[Anomalies]) -> None: ...


CLICKS = ExampleGen(pattern="clicks/{SPAN}/*.csv", name="Clicks")["examples"]
PRICES = ExampleGen(pattern="prices/{SPAN}/*.csv", name="Prices")["examples"]
SCHEMA = Importer(uri="schema.toml", kind=Schema)["artifact"]


def count(examples, name):
    return StatisticsGen(examples=examples, name=name)["statistics"]


def validate(statistics, **inputs):
    return ExampleValidator(statistics=statistics, schema=SCHEMA, **inputs)["anomalies"]


OF_CLICKS, OF_PRICES = count(CLICKS, "CountClicks"), count(PRICES, "CountPrices")


def test_anomalies_of_other_examples_are_refused():
    """Else bad clicks would pass because the prices of the same span are good."""
    with pytest.raises(
        PipelineError, match=r"AnomalyGate judges Clicks\['examples'\] by .*, the anomalies of Prices\['examples'\]"
    ):
        AnomalyGate(examples=CLICKS, anomalies=validate(OF_PRICES))


def test_anomalies_of_examples_behind_a_gate_are_those_of_the_examples():
    """Gates are chained in any order; none changes what it passes on."""
    first = AnomalyGate(examples=CLICKS, anomalies=validate(OF_CLICKS), name="First")["examples"]

    AnomalyGate(examples=first, anomalies=validate(OF_CLICKS))
    AnomalyGate(examples=CLICKS, anomalies=validate(count(first, "CountAgain")))
    with pytest.raises(PipelineError, match=r"judges First\['examples'\] by .*, the anomalies of Prices\['examples'\]"):
        AnomalyGate(examples=first, anomalies=validate(OF_PRICES))


def test_anomalies_may_be_of_what_the_examples_are_made_of():
    """Or of what is made of them: a span that cannot be cleaned is refused as it came."""
    cleaned = Clean(examples=CLICKS)["cleaned"]

    AnomalyGate(examples=cleaned, anomalies=validate(OF_CLICKS))
    AnomalyGate(examples=CLICKS, anomalies=validate(count(cleaned, "CountCleaned")))


def test_nodes_of_somebody_s_own_are_believed():
    """What their statistics and anomalies are of is for them to know."""
    AnomalyGate(examples=CLICKS, anomalies=validate(Count(examples=PRICES)["statistics"]))
    AnomalyGate(examples=CLICKS, anomalies=Validate(statistics=OF_PRICES)["anomalies"])
    SchemaGen(statistics=OF_CLICKS, earlier=Latest(past("Elsewhere", "statistics", Statistics), n=28)["statistics"])


def test_a_span_is_not_compared_with_one_of_other_examples():
    """A drift from clicks to prices would say nothing."""
    validate(OF_CLICKS, previous=Previous(OF_CLICKS)["statistics"])

    with pytest.raises(
        PipelineError,
        match=r"takes the statistics CountClicks\['statistics'\], which are of Clicks\['examples'\], and 'previous' "
        r"from Previous\['statistics'\], which are of Prices\['examples'\]",
    ):
        validate(OF_CLICKS, previous=Previous(OF_PRICES)["statistics"])


def test_a_schema_is_not_inferred_from_earlier_spans_of_other_examples():
    """The first run would infer it from its own, and each later one from the others."""
    SchemaGen(statistics=OF_CLICKS, earlier=Previous(OF_CLICKS, n=28)["statistics"])

    with pytest.raises(PipelineError, match=r"SchemaGen takes .*'earlier' from .*, which are of Prices\['examples'\]"):
        SchemaGen(statistics=OF_CLICKS, earlier=Previous(OF_PRICES, n=28)["statistics"])
