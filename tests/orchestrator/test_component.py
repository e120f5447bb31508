"""Components: the signature of `run` is the specification, and mistakes are found when a node is made."""

import pytest

from spanwise.orchestrator import (
    Attempt,
    Component,
    Examples,
    Input,
    Model,
    Output,
    Outputs,
    ParameterError,
    PipelineError,
    Report,
    Resolver,
    Retry,
    component,
    past,
)
from spanwise.orchestrator.component import list_defaults


class Ingest(Component):
    def run(self, examples: Output[Examples], extra: Output[Report | None], each: Outputs[Report]) -> None: ...


class Train(Component):
    def run(
        self,
        examples: Input[list[Examples]],
        base: Input[Model | None],
        model: Output[Model],
        attempt: Attempt,
        steps: int = 3,
    ) -> None: ...


class Count(Component):
    def run(self, examples: Input[Examples], report: Output[Report], at_least: int) -> None: ...


class Window(Resolver):
    def __init__(self, source, **options):
        super().__init__(source, many=True, **options)


@component
def tally(examples: Input[Examples], report: Output[Report], at_least: int = 1) -> None:
    """Counts."""


@pytest.fixture
def ingest():
    return Ingest()


def test_a_function_is_a_component(ingest):
    """A decorated function has the signature, name and docstring of its function."""
    node = tally(examples=ingest["examples"])

    assert node.name == "tally"
    assert node.parameters == {"at_least": 1}
    assert tally.__doc__ == "Counts."


def test_a_node_is_named_after_its_class(ingest):
    """Or as it is told."""
    assert Ingest().name == "Ingest"
    assert Ingest(name="Second").name == "Second"


@pytest.mark.parametrize("name", ["1st", "a/b", "a b", "x" * 65, "näme", "a#b"])
def test_a_name_that_would_break_a_path_is_refused(name):
    """Names are parts of folders and of records."""
    with pytest.raises(PipelineError, match="cannot name a node"):
        Ingest(name=name)


MISTAKES = {
    "Train takes no 'exampels'; it takes: examples, base, steps.": lambda i: Train(exampels=i["examples"]),
    "Train needs 'examples', a channel of Examples; connect one: examples=node['…'].": lambda i: Train(),
    "Train takes a channel as 'examples', not the node Ingest; name the output: examples=ingest['examples'].": lambda i: (
        Train(examples=i)
    ),
    "Train takes a channel of Examples as 'examples', not 3.": lambda i: Train(examples=3),
    "Train takes Examples as 'examples'; Ingest['extra'] is a channel of Report.": lambda i: Train(examples=i["extra"]),
    "Count takes one channel as 'examples', not 2.": lambda i: Count(examples=[i["examples"]] * 2, at_least=1),
    "Count needs the parameter 'at_least', int.": lambda i: Count(examples=i["examples"]),
    "Count.at_least takes int, not str '3'.": lambda i: Count(examples=i["examples"], at_least="3"),
    "Count takes 'at_least' as a parameter (int), not a channel.": lambda i: Count(
        examples=i["examples"], at_least=i["examples"]
    ),
    "Ingest has no output 'exmaples'; it has: examples, extra, each.": lambda i: i["exmaples"],
    "Window takes a channel, not Ingest(Ingest); name the output: node['…'].": Window,
    "Window chooses from the outputs of components; Window['examples'] is a resolver's choice.": lambda i: Window(
        Window(i["examples"])["examples"]
    ),
    "Train needs 'examples', a channel of Examples; connect at least one.": lambda i: Train(examples=[]),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_a_mistake_in_the_wiring_says_what_was_wanted(ingest, message):
    """Before anything runs, in words that name the node, the argument, and what to write."""
    with pytest.raises((PipelineError, ParameterError)) as mistake:
        MISTAKES[message](ingest)

    assert str(mistake.value) == message


def test_a_list_for_one_is_refused(ingest):
    """A channel of many does not go where one is taken; the message says how to take them all."""
    with pytest.raises(PipelineError, match=r"yields a list\. Annotate it Input\[list\[Examples\]\]"):
        Count(examples=Window(ingest["examples"])["examples"], at_least=1)


def test_a_perhaps_for_one_is_refused(ingest):
    """A channel that may stay empty does not go where one is needed."""
    latest = Window(ingest["examples"], optional=True)
    latest.outputs["examples"].__dict__["many"] = False

    with pytest.raises(PipelineError, match=r"may be empty\. Annotate it Input\[Examples \| None\]"):
        Count(examples=latest["examples"], at_least=1)


def test_the_past_is_read_through_a_resolver():
    """A channel of the past promises nothing of this run, so a resolver chooses from it."""
    with pytest.raises(PipelineError, match="cannot read the past channel Train\\['model'\\] directly"):
        Train(examples=Ingest()["examples"], base=past("Train", "model", Model))

    assert Window(past("Train", "model", Model))["model"].kind is Model


@pytest.mark.parametrize(("failures", "wait_s"), [(1, 1.0), (2, 3.0), (3, 9.0), (4, 10.0), (50, 10.0)])
def test_the_wait_between_tries_grows_to_its_limit(failures, wait_s):
    """Each wait is `factor` times the one before, up to `limit_s`."""
    assert Retry(times=9, backoff_s=1.0, factor=3.0, limit_s=10.0).wait_s(failures) == wait_s


def test_the_arguments_of_every_node(ingest):
    """`retry` is a number or a Retry; what has effects outside the store is never cached."""

    class Push(Component):
        cacheable = False

        def run(self, examples: Input[Examples]) -> None: ...

    assert Count(examples=ingest["examples"], at_least=1, retry=2, timeout_s=5.0).retry == Retry(times=2)
    assert Count(examples=ingest["examples"], at_least=1, cache=False).cache is False
    assert Push(examples=ingest["examples"]).cache is False


class Odd:
    """A value that cannot be compared, as arrays cannot."""

    def __eq__(self, other):
        raise ValueError("which of them?")

    __hash__ = None


class Choosing(Resolver):
    def __init__(self, source, *, n, gaps=0, name=None):
        super().__init__(source, name=name, many=True)
        self.parameters = {"n": n, "gaps": gaps}


def test_what_is_left_at_its_default_is_known():
    """By its value, whether it was given or not; of components and resolvers."""

    @component
    def Work(report: Output[Report], size: int, steps: int = 3, rate: float = 0.5, odd: object = 1) -> None: ...

    work = Work(size=3, steps=3, rate=0.1, odd=Odd())

    assert list_defaults(work) == ("steps",)
    assert list_defaults(Choosing(work["report"], n=0)) == ("gaps",)
    assert list_defaults(Choosing(work["report"], n=0, gaps=1)) == ()
