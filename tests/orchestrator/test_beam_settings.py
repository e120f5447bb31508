"""Beam settings: what wins, what is refused before any work, and what a cache key sees of it."""

from __future__ import annotations

import pytest

from spanwise.orchestrator import beam_settings
from spanwise.orchestrator.beam_settings import (
    HERE,
    UNVERIFIED,
    BeamSettings,
    check_beam,
    check_given,
    choose_beam,
    unverified_part,
)
from spanwise.orchestrator.errors import ParameterError
from spanwise.orchestrator.run import Run

RUN = Run(pipeline="flights", beam={"runner": "PrismRunner", "parallelism": 2, "experiments": ["one"]})


def test_what_a_node_was_given_wins():
    """Its options replace those of the settings one by one; with a runner of its own they are all it has."""
    assert choose_beam(Run(pipeline="flights"), None, None) == HERE
    assert choose_beam(RUN, None, {"parallelism": 3}) == BeamSettings(
        runner="PrismRunner", options={"parallelism": 3, "experiments": ["one"]}
    )
    assert choose_beam(RUN, "FnApiRunner", {"direct_num_workers": 2}) == BeamSettings(
        runner="FnApiRunner", options={"direct_num_workers": 2}
    )


@pytest.mark.parametrize(
    "name", ["DaskRunner", "daskrunner", "Dask", "apache_beam.runners.dask.dask_runner.DaskRunner"]
)
def test_a_runner_that_loses_results_is_refused(name):
    """Dask's loses windows and tagged outputs without an error; whichever way it is named, also as unverified."""
    for given in (name, UNVERIFIED + name):
        with pytest.raises(ParameterError, match="DaskRunner loses windows and tagged outputs"):
            check_beam(BeamSettings(runner=given))


def test_a_runner_whose_workers_see_no_file_of_a_node_is_refused():
    """Those of Dataflow are Google's machines, wherever the root is; a job would fail there after minutes."""
    others = ("dataflow", "TestDataflowRunner", "apache_beam.runners.dataflow.DataflowRunner")  # names that Beam takes
    for given in ("DataflowRunner", UNVERIFIED + "DataflowRunner", *(UNVERIFIED + other for other in others)):
        with pytest.raises(ParameterError, match="see neither a local root nor the copies"):
            check_beam(BeamSettings(runner=given, options={"project": "p", "temp_location": "gs://b/tmp"}))


def test_a_runner_that_nobody_verified_takes_a_word():
    """Nobody knows whether it makes the same bytes, so a person has to say that it may be used all the same."""
    with pytest.raises(ParameterError, match=r"write 'unverified:DirectRunner'"):
        check_given("StatisticsGen", {"beam_runner": "DirectRunner"})
    with pytest.raises(ParameterError, match=r"Did you mean 'PrismRunner'"):
        check_beam(BeamSettings(runner="PrismRuner"))
    with pytest.raises(ParameterError, match=r"verified that mine\.PrismRunner"):
        check_beam(BeamSettings(runner="mine.PrismRunner"))

    check_beam(BeamSettings(runner="unverified:DirectRunner"))
    check_beam(BeamSettings(runner="apache_beam.runners.portability.prism_runner.PrismRunner"))


def test_only_an_unverified_runner_is_in_the_cache_key():
    """All others make the same bytes, so moving to another one computes nothing again."""
    assert unverified_part({"beam_runner": "PrismRunner"}, {}) == {}
    assert unverified_part({"beam_runner": None}, {"runner": "PrismRunner"}) == {}
    assert unverified_part({"beam_runner": None}, {"runner": "unverified:DirectRunner"}) == {"beam": "DirectRunner"}
    assert unverified_part({"beam_runner": "FnApiRunner"}, {"runner": "unverified:DirectRunner"}) == {}
    assert unverified_part({"size": 3}, {"runner": "unverified:DirectRunner"}) == {}


def test_an_option_that_beam_does_not_have_is_refused():
    """Beam itself would leave it out with a warning in a log."""
    with pytest.raises(ParameterError, match=r"'paralelism' is not an option of Beam\. Did you mean 'parallelism'\?"):
        check_beam(BeamSettings(options={"paralelism": 2}))


def test_the_options_are_those_of_beam():
    """They are read from its source, which takes no import, and are those that its parsers store."""
    from apache_beam.options import pipeline_options

    parser = pipeline_options._BeamArgumentParser(allow_abbrev=False)
    of_beam = [
        each
        for each in pipeline_options.PipelineOptions.__subclasses__()
        if each.__module__.startswith("apache_beam.options")
    ]
    for each in of_beam:
        each._add_argparse_args(parser)
    stored = {action.dest for action in parser._actions} - {"help", "runner"}

    assert beam_settings.option_names() - beam_settings.JOB_SERVER_OPTIONS == stored


@pytest.mark.parametrize(
    ("name", "value", "variable"),
    [
        ("s3_secret_access_key", "hidden", "S3_SECRET_ACCESS_KEY"),
        (
            "environment_options",
            ["process_command=/boot", "process_variables=AWS_SESSION_TOKEN=hidden"],
            "AWS_SESSION_TOKEN",
        ),
        ("environment_config", '{"command": "/boot", "env": {"DB_PASSWORD": "hidden"}}', "DB_PASSWORD"),
    ],
)
def test_a_secret_is_named_not_written(name, value, variable):
    """Settings are recorded with each run, so a secret is refused, and its text not repeated."""
    with pytest.raises(ParameterError) as refused:
        check_beam(BeamSettings(options={name: value}))

    assert f"${{{variable}}}" in str(refused.value)
    assert "hidden" not in str(refused.value)


def test_variables_are_filled_in_where_the_node_runs(monkeypatch):
    """What is recorded names them; what Beam gets has their values."""
    written = BeamSettings(
        options={
            "s3_secret_access_key": "${SECRET_ONE}",
            "environment_options": ["process_variables=A_TOKEN=${SECRET_ONE}"],
        }
    )
    check_beam(written)

    with pytest.raises(ParameterError, match="SECRET_ONE, which is not set"):
        written.fill()
    monkeypatch.setenv("SECRET_ONE", "hidden")
    assert written.fill() == {
        "s3_secret_access_key": "hidden",
        "environment_options": ["process_variables=A_TOKEN=hidden"],
    }


@pytest.mark.parametrize(
    ("runner", "options", "here"),
    [
        (None, {}, True),
        ("FnApiRunner", {}, True),
        ("PrismRunner", {}, True),
        ("PrismRunner", {"environment_type": "EXTERNAL"}, False),
        ("FlinkRunner", {"flink_master": "[local]"}, True),
        ("FlinkRunner", {"flink_master": "example:8081"}, False),
        ("FlinkRunner", {"flink_master": "example:8081", "environment_type": "LOOPBACK"}, True),
        ("SparkRunner", {"spark_master_url": "local[2]"}, True),
        ("SparkRunner", {"spark_master_url": "spark://example:7077"}, False),
        ("unverified:DirectRunner", {}, False),
    ],
)
def test_where_the_workers_are(runner, options, here):
    """In the process of the node, where they see its files; or anywhere."""
    assert BeamSettings(runner=runner, options=options).has_workers_here is here
