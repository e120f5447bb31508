import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from spanwise.orchestrator.errors import SettingsError
from spanwise.orchestrator.mlmd.location import SqliteFile, parse_location
from spanwise.orchestrator.storage import forget_buckets, open_bucket, parse_url
from spanwise.scheduler.project import settings


def test_nothing_has_to_be_set(folder: Path) -> None:
    """Without a file and variables, all is in `.spanwise` in the current folder."""
    read = settings.read()

    assert read.root == folder / ".spanwise"
    assert read.metadata == str(folder / ".spanwise" / "metadata.db")
    assert (read.jobs, read.grace_s, dict(read.params), read.file) == (None, 10.0, {}, None)


def test_the_file_is_found_upward_and_its_paths_count_from_it(folder: Path) -> None:
    """A command typed in a folder below the project uses the project's settings."""
    (folder / "spanwise.toml").write_text('root = "store"\njobs = 3\ngrace_s = 2\n[params.flow]\nwindow = 7\n')
    below = folder / "a" / "b"
    below.mkdir(parents=True)

    read = settings.read(folder=below)

    assert read.root == folder / "store"
    assert read.metadata == str(folder / "store" / "metadata.db")
    assert (read.jobs, read.grace_s, read.params) == (3, 2.0, {"flow": {"window": 7}})


def test_a_variable_wins_over_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`SPANWISE_JOBS` replaces `jobs`; what no variable names is the file's."""
    (folder / "spanwise.toml").write_text("jobs = 3\ngrace_s = 2\n")
    monkeypatch.setenv("SPANWISE_JOBS", "5")
    monkeypatch.setenv("SPANWISE_PARAMS", '{"flow": {"window": 9}}')

    read = settings.read()

    assert (read.jobs, read.grace_s, read.params) == (5, 2.0, {"flow": {"window": 9}})


@pytest.mark.parametrize("written", ["meta.db", "sqlite:///meta.db"])
def test_the_metadata_of_a_file_is_relative_to_that_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    """As a path or as a URL; in a folder below, the URL named another database, in which nothing had run."""
    (folder / "spanwise.toml").write_text(f'metadata = "{written}"\n')
    (folder / "below").mkdir()
    monkeypatch.chdir(folder / "below")

    assert parse_location(settings.read().metadata) == SqliteFile(folder / "meta.db")


def test_the_command_line_wins_over_a_variable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--root` replaces `SPANWISE_ROOT`, and the metadata goes with it."""
    monkeypatch.setenv("SPANWISE_ROOT", "elsewhere")

    read = settings.read(root=Path("here"))

    assert (read.root, read.metadata) == (folder / "here", str(folder / "here" / "metadata.db"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('metadat = "x.db"', "'metadat' is not a setting. Did you mean 'metadata'?"),
        ("jobs = 0", "jobs: input should be greater than or equal to 1"),
        ('jobs = "many"', "jobs: input should be a valid integer"),
        ("grace_s = -1", "grace_s: "),
        ("jobs = ", "is not valid TOML"),
        ("[params]\nflow = 3", "params.flow: "),
    ],
)
def test_a_wrong_file_is_refused_with_its_name(folder: Path, text: str, says: str) -> None:
    """The message names the file, the setting, and what is wrong with it."""
    (folder / "spanwise.toml").write_text(text)

    with pytest.raises(SettingsError) as refused:
        settings.read()

    assert says in str(refused.value)
    assert str(folder / "spanwise.toml") in str(refused.value)


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("SPANWISE_JOBS", "many", "SPANWISE_JOBS: input should be a valid integer"),
        ("SPANWISE_METADTA", "x.db", "SPANWISE_METADTA is not a setting. Did you mean 'metadata'?"),
        ("SPANWISE_PARAMS", "{", "SPANWISE_PARAMS is not JSON"),
        ("SPANWISE_ALERTS", "{", "SPANWISE_ALERTS is not JSON"),
    ],
)
def test_a_wrong_variable_is_refused_by_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, says: str
) -> None:
    """A mistyped variable is not passed over in silence."""
    monkeypatch.setenv(variable, value)

    with pytest.raises(SettingsError, match="SPANWISE_") as refused:
        settings.read()

    assert says in str(refused.value)


def test_alerts_of_a_pipeline_are_those_of_all_unless_it_has_its_own(folder: Path) -> None:
    """What a table `[alerts.pipelines.<name>]` leaves out is as in `[alerts]`."""
    (folder / "spanwise.toml").write_text(
        '[alerts]\nurls = ["json://all"]\nfrom = "night watch"\n'
        '[alerts.pipelines.taxi]\nurls = ["json://${TAXI}"]\non = ["failure"]\ngroup_s = 60\n'
    )

    alerts = settings.read().alerts

    assert (alerts.urls, alerts.on, alerts.group_s) == (("json://all",), None, 3600.0)
    assert alerts.pipelines["taxi"] == settings.AlertSettings(
        urls=("json://${TAXI}",), on=("failure",), group_s=60.0, from_name="night watch"
    )
    assert [alerts.of(key) for key in ("taxi", "taxi:train", "taxi:data")] == [alerts.pipelines["taxi"]] * 3
    assert alerts.of("taxis") is alerts


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('urls = ["hunter2"]', "alerts.urls.0: expected scheme://…"),
        ('urls = "json://hunter2"', "alerts.urls: input should be a valid list"),
        ('url = ["json://hunter2"]', "alerts.url: is not a setting"),
        ('on = ["failures"]', "alerts.on.0: input should be 'failure', 'overrun'"),
        ("group_s = -1", "alerts.group_s: input should be greater than or equal to 0"),
        ('pipelines.taxi.urls = ["hunter2"]', "alerts.pipelines.taxi.urls.0: expected scheme"),
    ],
)
def test_wrong_alerts_are_refused_without_what_may_be_secret(folder: Path, text: str, says: str) -> None:
    """Which setting, and what is wanted; never what was found."""
    (folder / "spanwise.toml").write_text(f"[alerts]\n{text}\n")

    with pytest.raises(SettingsError) as refused:
        settings.read()

    assert says in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_channels_can_be_a_variable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As JSON, which replaces the file's; what may be secret is not in the settings' own text."""
    (folder / "spanwise.toml").write_text('[alerts]\nurls = ["json://file"]\ngroup_s = 60\n')
    monkeypatch.setenv("SPANWISE_ALERTS", '{"urls": ["json://hunter2"]}')

    read = settings.read()

    assert (read.alerts.urls, read.alerts.group_s) == (("json://hunter2",), 60.0)
    assert "hunter2" not in repr(read)


def test_a_variable_of_something_else_is_left_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others may use the prefix for names that are not like ours."""
    monkeypatch.setenv("SPANWISE_TEST_MYSQL", "mysql://…")

    assert settings.read().root == folder / ".spanwise"


def test_a_named_file_must_be_there(folder: Path) -> None:
    """`--config` names one file, and none other is looked for."""
    with pytest.raises(SettingsError, match=r"no settings file other\.toml"):
        settings.read(config=Path("other.toml"))


def test_the_password_is_never_shown(folder: Path) -> None:
    """Neither the settings' own text nor the place of the metadata holds it."""
    (folder / "spanwise.toml").write_text('metadata = "mysql://me:hidden@db.example:3306/spanwise"')

    read = settings.read()

    assert "hidden" in read.metadata
    assert read.redacted_metadata == "mysql://me@db.example:3306/spanwise"
    assert "hidden" not in repr(read)


def test_the_password_is_not_in_a_refusal(folder: Path) -> None:
    """A file with a password and a mistake is refused without showing the former."""
    (folder / "spanwise.toml").write_text('metadata = ["mysql://me:hidden@db.example/spanwise"]')

    with pytest.raises(SettingsError) as refused:
        settings.read()

    assert "metadata: " in str(refused.value)
    assert "hidden" not in str(refused.value)


def test_beam_is_a_table_of_its_own_names(folder: Path) -> None:
    """The runner and Beam's options, with their types; `${NAME}` stays as it is, for the nodes to fill in."""
    (folder / "spanwise.toml").write_text(
        '[beam]\nrunner = "PrismRunner"\nparallelism = 2\nstreaming = false\nexperiments = ["one"]\n'
        's3_secret_access_key = "${SECRET}"\n'
    )

    assert settings.read().beam == {
        "runner": "PrismRunner",
        "parallelism": 2,
        "streaming": False,
        "experiments": ["one"],
        "s3_secret_access_key": "${SECRET}",
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('runner = "DaskRunner"', "beam: Beam's DaskRunner loses windows"),
        ('runner = "DirectRunner"', "write 'unverified:DirectRunner'"),
        ("paralelism = 2", "beam: 'paralelism' is not an option of Beam. Did you mean 'parallelism'?"),
        ("environment_config = {command = 1}", "beam: 'environment_config' takes a text, a number"),
        ('s3_secret_access_key = "hidden"', "beam: s3_secret_access_key holds a secret"),
    ],
)
def test_wrong_settings_of_beam_are_refused(folder: Path, text: str, says: str) -> None:
    """Before anything runs, in a sentence, and without the text of a secret."""
    (folder / "spanwise.toml").write_text(f"[beam]\n{text}\n")

    with pytest.raises(SettingsError, match=re.escape(says)) as refused:
        settings.read()

    assert "hidden" not in str(refused.value)


def test_the_executor_is_a_table(folder: Path) -> None:
    """Its name, and that of single pipelines; what this machine has; the sizes of pools."""
    (folder / "spanwise.toml").write_text(
        '[executor]\nname = "ray"\naddress = "10.0.0.5:6379"\ncpus = 2\nmemory = "4GiB"\ngpus = ["0"]\n'
        'page_url = "https://cluster/actors/{agent}"\n'
        '[executor.pools]\ngpu = 1\n[executor.pipelines]\nsmall = "local"\n'
    )

    executor = settings.read().executor

    assert (executor.name, executor.address, dict(executor.pools)) == ("ray", "10.0.0.5:6379", {"gpu": 1})
    assert executor.page_url == "https://cluster/actors/{agent}"
    assert (executor.name_of("small"), executor.name_of("large")) == ("local", "ray")
    assert (executor.machine.cpus, executor.machine.memory_bytes, executor.machine.gpus) == (2, 4 << 30, ("0",))


def test_pods_have_settings_of_their_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Templates lie beside the settings; variables of object storage that are no secrets go to the pods."""
    monkeypatch.setenv("AWS_REGION", "eu-west-1")  # reading settings sets it where it is missing
    (folder / "spanwise.toml").write_text(
        '[executor]\nname = "kubernetes"\naddress = "rides"\n'
        '[executor.kubernetes]\nimage = "rides:1"\ntemplate = "pod.yaml"\nsecrets = ["keys"]\n'
        '[executor.kubernetes.pools]\ngpu = "gpu.yaml"\n[storage.environment]\nAWS_REGION = "eu-west-1"\n'
    )

    pods = settings.read().executor.pods

    assert pods is not None
    assert (pods.image, pods.template, dict(pods.pools)) == (
        "rides:1",
        folder / "pod.yaml",
        {"gpu": folder / "gpu.yaml"},
    )
    assert (pods.secrets, pods.gpu, dict(pods.environment)) == (
        ("keys",),
        "nvidia.com/gpu",
        {"AWS_REGION": "eu-west-1"},
    )


def test_pods_are_described_also_where_nodes_run_here_by_default(folder: Path) -> None:
    """A single node, or workers of the data service, may go to Kubernetes."""
    (folder / "spanwise.toml").write_text('[executor.kubernetes]\nimage = "rides:1"\n')

    pods = settings.read().executor.pods

    assert pods is not None
    assert pods.image == "rides:1"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('name = "nomad"', "executor.name: input should be 'local', 'kubernetes', 'ray' or 'slurm'"),
        ('kubernetes = {images = "rides:1"}', "executor.kubernetes.images: is not a setting"),
        ('memory = "much"', "'much' is not an amount of memory"),
        ("pools = {gpu = 0}", "executor.pools.gpu: input should be greater than or equal to 1"),
        ("cpu = 3", "executor.cpu: is not a setting"),
        ('page_url = "https://cluster/pods"', "executor.page_url: it is no URL with {agent} in it"),
        ('page_url = "file:///{agent}"', "executor.page_url: it is no URL with {agent} in it"),
    ],
)
def test_a_wrong_executor_is_refused(folder: Path, text: str, says: str) -> None:
    """Where it is written, and with what is allowed."""
    (folder / "spanwise.toml").write_text(f"[executor]\n{text}\n")

    with pytest.raises(SettingsError, match=re.escape(says)):
        settings.read()


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The environment of a process, without variables of object storage."""
    own = {name: value for name, value in os.environ.items() if "AWS_" not in name and "_STORAGE_" not in name}
    monkeypatch.setattr(os, "environ", own)
    yield own
    forget_buckets()


def _write_environment(file: Path, text: str) -> Path:
    file.write_text(f"[storage.environment]\n{text}\n")
    return file


def test_settings_of_storage_that_were_edited_replace_those_of_before(
    folder: Path, environment: dict[str, str]
) -> None:
    """In the processes of a scheduler too, which inherit what it had set: they went on with the old endpoint."""
    pytest.importorskip("obstore")
    _write_environment(folder / "spanwise.toml", 'AWS_ENDPOINT_URL = "http://old:1"\nAWS_REGION = "eu-west-1"')
    settings.read()
    before = open_bucket(parse_url("memory://lake/x").home)
    _write_environment(folder / "spanwise.toml", 'AWS_ENDPOINT_URL = "http://new:1"')

    settings.read()

    assert environment["AWS_ENDPOINT_URL"] == "http://new:1"
    assert "AWS_REGION" not in environment
    assert open_bucket(parse_url("memory://lake/x").home) is not before


def test_a_variable_of_the_environment_is_never_replaced_by_settings_of_storage(
    folder: Path, environment: dict[str, str]
) -> None:
    """Nor one that was set after the settings were read, although a file had set it then."""
    environment["AWS_REGION"] = "us-east-1"
    _write_environment(folder / "spanwise.toml", 'AWS_REGION = "eu-west-1"\nAWS_ENDPOINT_URL = "http://file:1"')
    settings.read()
    environment["AWS_ENDPOINT_URL"] = "http://mine:1"

    settings.read()

    assert (environment["AWS_REGION"], environment["AWS_ENDPOINT_URL"]) == ("us-east-1", "http://mine:1")


def test_two_projects_in_one_process_have_their_own_storage(folder: Path, environment: dict[str, str]) -> None:
    """The second one read its root at the endpoint of the first."""
    settings.read(config=_write_environment(folder / "one.toml", 'AWS_ENDPOINT_URL = "http://one:1"'))

    settings.read(config=_write_environment(folder / "two.toml", 'AWS_ENDPOINT_URL = "http://two:1"'))

    assert environment["AWS_ENDPOINT_URL"] == "http://two:1"
