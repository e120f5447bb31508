"""Resources: amounts as people write them, what fits beside what, and what is refused."""

import pytest

from spanwise.orchestrator import Component, Output, Pipeline, PipelineError, Report, Resources
from spanwise.orchestrator.errors import ParameterError
from spanwise.orchestrator.local_executor import LocalExecutor
from spanwise.orchestrator.resources import Machine, format_memory, parse_memory, refuse_unknown_pools

HERE = Machine(cpus=4, memory_bytes=8 << 30, gpus=("0", "2"))


@pytest.mark.parametrize(
    ("text", "amount"),
    [("16GiB", 16 << 30), ("500MB", 500_000_000), ("1.5Gi", 3 << 29), ("1024", 1024), ("2 TiB", 2 << 40), ("7K", 7000)],
)
def test_memory_is_read_as_people_write_it(text, amount):
    """Powers of 1024 with an i, of 1000 without."""
    assert parse_memory(text) == amount


@pytest.mark.parametrize("text", ["", "much", "-1GiB", "0", "16 gigs", "1e9"])
def test_what_is_no_amount_of_memory_is_refused(text):
    """The message shows how to write one."""
    with pytest.raises(ParameterError, match="write 16GiB, 500MB or the number of bytes"):
        Resources(memory=text)


@pytest.mark.parametrize("wrong", [{"cpus": 0}, {"cpus": -1}, {"gpus": -1}, {"gpus": 0.5}, {"pool": "a pool"}])
def test_what_means_nothing_is_refused(wrong):
    """Where it is written, not where it is used."""
    with pytest.raises(ParameterError):
        Resources(**wrong)


def test_memory_is_shown_in_units():
    """What a message says can be read at a glance."""
    assert [format_memory(n) for n in (16 << 30, 3 << 29, 900, 1 << 20)] == ["16 GiB", "1.5 GiB", "900 bytes", "1 MiB"]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (Resources(cpus=5), "Train asks for 5 cpus, and this machine has 4."),
        (Resources(memory="9GiB"), "Train asks for 9GiB of memory, and this machine has 8 GiB."),
        (Resources(gpus=3), "Train asks for 3 gpus, and this machine has 2."),
        (Resources(image="trainer:7"), "Train asks for the image 'trainer:7'"),
    ],
)
def test_what_a_machine_cannot_give_is_refused_before_anything_starts(asked, message):
    """A node that could never start would wait for ever."""
    with pytest.raises(PipelineError, match=message):
        HERE.refuse("Train", asked)


@pytest.mark.parametrize(
    ("asked", "running", "fits"),
    [
        (Resources(cpus=2), [Resources(cpus=2)], True),
        (Resources(cpus=3), [Resources(cpus=2)], False),
        (Resources(cpus=4), [Resources()], False),
        (Resources(cpus=4), [], True),
        (Resources(), [Resources()] * 9, True),
        (Resources(memory="5GiB"), [Resources(memory="4GiB")], False),
        (Resources(memory="4GiB"), [Resources(memory="4GiB")], True),
        (Resources(gpus=1), [Resources(gpus=1)], True),
        (Resources(gpus=2), [Resources(gpus=1)], False),
    ],
)
def test_nodes_run_side_by_side_while_they_fit(asked, running, fits):
    """A node that says nothing counts as one processor beside one that does; among themselves they are not counted."""
    assert HERE.has_room(asked, running) is fits


def test_gpus_are_given_to_one_node_each():
    """By the names that CUDA knows them by."""
    assert HERE.choose_gpus(1, ["0"]) == ("2",)


def test_an_unknown_pool_is_refused_with_the_line_that_makes_it():
    """It would be a pool without a size, or a mistyped one."""
    with pytest.raises(PipelineError, match=r"there are: cpu\. .*\[executor\.pools\] gpu = 1"):
        refuse_unknown_pools({"Train": Resources(pool="gpu")}, {"cpu": 3})


class Make(Component):
    def run(self, report: Output[Report]) -> None: ...


def test_an_executor_refuses_a_node_that_it_cannot_run():
    """Before it forks anything."""
    with pytest.raises(PipelineError, match="Make asks for 5 cpus"):
        LocalExecutor(Pipeline("p", [Make(resources=Resources(cpus=5))]), HERE)


def test_resources_are_resources():
    """A number, or a dict, is refused where the node is made."""
    with pytest.raises(PipelineError, match="Make takes Resources"):
        Make(resources={"cpus": 5})
