"""Signatures: `run` declares inputs, outputs and parameters, and mistakes in it are found when a node is created."""

import functools
import re
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import Literal

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
)
from spanwise.orchestrator.signature import (
    InputSpec,
    OutputSpec,
    ParameterSpec,
    check_call,
    check_value,
    format_annotation,
    parse_value,
    read_signature,
)


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


def test_the_signature_is_read():
    """Inputs, outputs, parameters and the attempt, with how many of each."""
    train, made = read_signature(Train), read_signature(Ingest)

    assert train.inputs == {"examples": InputSpec(Examples, many=True), "base": InputSpec(Model, optional=True)}
    assert train.outputs == {"model": OutputSpec(Model)}
    assert train.parameters == {"steps": ParameterSpec(int, 3)}
    assert train.attempt == "attempt"
    assert made.outputs["extra"] == OutputSpec(Report, optional=True)
    assert made.outputs["each"] == OutputSpec(Report, many=True)


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (lambda self, x: None, "Odd.run(x) has no annotation; add Input[…], Output[…] or the type of a parameter."),
        (
            lambda self, *x: None,
            "Odd.run(x): every argument is passed by name; remove '*', '**' and '/'.",
        ),
    ],
)
def test_a_signature_that_says_too_little_is_refused(run, message):
    """Every argument has an annotation and a name."""
    odd = type("Odd", (Component,), {"run": run})

    with pytest.raises(PipelineError) as mistake:
        odd()

    assert str(mistake.value) == message


def test_the_arguments_that_every_node_takes_are_reserved():
    """A parameter cannot be called like an argument of all nodes."""

    class Odd(Component):
        def run(self, timeout_s: float) -> None: ...

    with pytest.raises(PipelineError, match="every node already takes 'timeout_s'"):
        Odd(timeout_s=1.0)


def test_several_artifacts_are_asked_for_with_outputs():
    """`Output[list[X]]` is written `Outputs[X]`."""

    class Odd(Component):
        def run(self, reports: Output[list[Report]]) -> None: ...

    with pytest.raises(PipelineError, match=r"several artifacts as Outputs\[Report\]"):
        Odd()


def test_a_component_without_run_is_refused():
    """There is nothing to read a specification from."""

    class Odd(Component): ...

    with pytest.raises(PipelineError, match="Odd has no `run`; define it"):
        Odd()


def test_a_name_that_was_not_imported_is_refused():
    """Annotations are read, so what they name must be there."""

    class Odd(Component):
        def run(self, model: "Output[Modle]") -> None: ...  # noqa: F821  that is the mistake

    with pytest.raises(PipelineError, match="import the names that they use"):
        Odd()


class Colour(Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("annotation", "value"),
    [(int, 3), (float, 3), (str, "x"), (bool, False), (list[int], [1]), (dict[str, int], {"a": 1}), (int | None, None),
     (Colour, Colour.RED), (Path, Path("x")), (Callable[[int], int], abs), (object, 3)],
)  # fmt: skip
def test_a_parameter_of_its_type_is_taken(annotation, value):
    """Nothing is converted but a whole number where a float is taken."""
    assert check_value("n.p", annotation, value) == value


@pytest.mark.parametrize(
    ("annotation", "value"),
    [(int, "3"), (int, 3.5), (int, True), (str, 3), (bool, 1), (list[int], ["1"]), (dict[str, int], {"a": "b"}), (Colour, "red"), (int, None)],
)  # fmt: skip
def test_a_parameter_of_another_type_is_refused(annotation, value):
    """The message names the parameter, its type, and what was given."""
    with pytest.raises(ParameterError, match=r"n\.p takes .* not "):
        check_value("n.p", annotation, value)


@pytest.mark.parametrize(
    ("annotation", "text", "value"),
    [(int, "3", 3), (float, "0.5", 0.5), (str, "3", "3"), (bool, "true", True), (list[int], "[1, 2]", [1, 2]),
     (dict[str, int], '{"a": 1}', {"a": 1}), (int | None, "3", 3), (Colour, "red", Colour.RED), (Path, "x/y", Path("x/y")),
     (int | None, "null", None), (str | None, "null", "null"), (list[float], "[1, 0.5]", [1.0, 0.5]), (tuple[Colour, ...], '["red"]', (Colour.RED,))],
)  # fmt: skip
def test_a_value_from_the_command_line_is_read_as_its_type(annotation, text, value):
    """What was typed is a text; lists and dicts are JSON."""
    assert parse_value("--param p", annotation, text) == value


@pytest.mark.parametrize(
    ("annotation", "text"),
    [(int, "many"), (int, "true"), (float, "true"), (int | None, "false"), (list[int], "[1, true]"), (dict[str, int], '{"a": true}')],
)  # fmt: skip
def test_a_value_from_the_command_line_that_cannot_be_read_is_refused(annotation, text):
    """The message names the option, the type and the text; `true` is no number, as in a pipeline file."""
    said = f"--param steps takes {format_annotation(annotation)}, not str {text!r}"
    with pytest.raises(ParameterError, match=re.escape(said)):
        parse_value("--param steps", annotation, text)


def test_drafts_of_outputs_have_folders_of_their_own(tmp_path):
    """Each draft that is asked for is one more empty folder."""
    outputs = Outputs(Report, str(tmp_path / "reports"))
    first, second = outputs.new(), outputs.new()

    assert [first, second] == outputs.drafts
    assert sorted(p.name for p in (tmp_path / "reports").iterdir()) == ["0", "1"]


def test_annotations_are_shown_as_written():
    """A type by its name, anything else as Python writes it."""
    assert format_annotation(int) == "int"
    assert format_annotation(int | None) == "int | None"
    assert format_annotation(Mapping[str, Report | None]) == "Mapping[str, Report | None]"
    assert format_annotation(Literal["a.b", 'c."d']) == """Literal['a.b', 'c."d']"""


def wrapped(function):
    @functools.wraps(function)
    def call(*arguments):
        return function(*arguments, "more")

    return call


@pytest.mark.parametrize(
    "function",
    [
        lambda task: None,
        lambda *tasks: None,
        lambda task, seed=1: None,
        functools.partial(lambda seed, task: None, 1),
        wrapped(lambda task, more: None),
        int,
        min,
        "no function",
    ],
)
def test_a_function_that_takes_the_arguments_is_accepted(function):
    """However it takes them; one that has no signature may."""
    check_call("Trainer.run_fn", function, "task")


def test_a_function_that_does_not_take_the_arguments_is_refused_with_the_call():
    """When the pipeline is built, and not after its data were ingested."""

    def learn(examples, model): ...

    with pytest.raises(ParameterError) as refused:
        check_call("Trainer.run_fn", learn, "task")

    assert str(refused.value) == (
        "Trainer.run_fn is called as learn(task), but learn has the signature learn(examples, model): "
        "missing a required argument: 'model'."
    )
