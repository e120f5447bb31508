"""Command: a program with paths in and out, its output in the log, its failures with the last that it printed."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from spanwise.components import Command
from spanwise.components.command import container_command
from spanwise.components.importer import Importer
from spanwise.orchestrator import (
    Component,
    Examples,
    Model,
    Output,
    Outputs,
    ParameterError,
    PipelineError,
    Report,
    State,
)
from tests.components.flow import Bench, Lake, only

COPY = "import sys, pathlib; pathlib.Path(sys.argv[2], 'n').write_text(pathlib.Path(sys.argv[1], 'n').read_text())"


class Number(Component):
    """Publishes a model with a number in it."""

    def run(self, *, model: Output[Model], number: int) -> None:
        (model.path / "n").write_text(str(number))
        model.spans = [number]


class Numbers(Component):
    """Publishes as many reports as asked for."""

    def run(self, *, report: Outputs[Report], count: int) -> None:
        for number in range(count):
            (report.new().path / "n").write_text(str(number))


class Nothing(Component):
    """Publishes no report."""

    def run(self, *, report: Output[Report | None]) -> None: ...


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path / "root")


def ran(bench, *nodes):
    return bench.run(*nodes).executions["Command"]


def text(execution, key="report", name="n"):
    return (only(execution, key).path / name).read_text()


def test_a_program_reads_and_writes_folders(bench):
    """Placeholders are the folders of inputs and outputs, and its output is an artifact of its kind."""
    number = Number(number=7)
    copy = Command(
        command=[sys.executable, "-c", COPY, "{first}", "{second}"],
        inputs={"first": number["model"]},
        outputs={"second": Model},
    )

    execution = ran(bench, number, copy)

    assert text(execution, "second") == "7"
    assert only(execution, "second").kind == "Model"


def test_its_outputs_are_read_by_others(bench):
    """A channel of it connects where its kind is wanted, and is refused where it is not."""
    made = Command(shell="echo 1 > {m}/n", outputs={"m": Model}, name="Make")
    read = Command(shell="cat {m}/n > {report}/n", inputs={"m": made["m"]}, outputs={"report": Report})

    assert text(ran(bench, made, read)) == "1\n"
    with pytest.raises(PipelineError, match="takes"):
        Lake(rows={}, splits=[], examples=made["m"])


def test_settings_are_arguments(bench):
    """A setting is one argument, whatever stands in it; doubled braces are single ones."""
    program = "import sys; open(sys.argv[1] + '/n', 'w').write(repr(sys.argv[2:]))"
    node = Command(
        command=[sys.executable, "-c", program, "{report}", "--depth={depth}", "{note}", "{{x}}", "${HOME}"],
        outputs={"report": Report},
        settings={"depth": 6, "note": "a b; $(touch x) 'q'"},
    )

    assert text(ran(bench, node)) == repr(["--depth=6", "a b; $(touch x) 'q'", "{x}", "${HOME}"])


def test_a_shell_line_has_its_values_quoted(bench):
    """A value is a value to the shell, too, whatever stands in it; pipes and variables work as ever."""
    node = Command(
        shell='word={note}; printf "%s" "${{#word}}" "${word}" {note} | cat > {report}/n',
        outputs={"report": Report},
        settings={"note": "a b; $(touch x) 'q'"},
    )

    assert text(ran(bench, node)) == "19" + "a b; $(touch x) 'q'" * 2


@pytest.mark.parametrize(
    "shell", ["cat '{m}/n' > {report}/n", 'cat "{m}/n" > {report}/n', """echo "it's" "a \\" {m}" > {report}/n"""]
)
def test_a_placeholder_inside_quotes_is_refused(shell):
    """Its value has quotes of its own: the two pairs would leave it bare."""
    model = Importer(uri="x", kind=Model)["artifact"]

    with pytest.raises(ParameterError, match=r"\{m\} stands inside quotes"):
        Command(shell=shell, inputs={"m": model}, outputs={"report": Report})


@pytest.mark.parametrize("end", ["END", "'END'", '"END"', "\\END", "-END", " END | tee x"])
def test_a_placeholder_in_a_here_document_is_refused(end):
    """The quotes of its value are no quotes there: variables in it would be filled in, and the quotes stay."""
    with pytest.raises(ParameterError, match=r"\{note\} stands in a here-document"):
        Command(
            shell=f"cat > {{report}}/n <<{end}\nall {{note}}\nEND\n",
            settings={"note": "$HOME"},
            outputs={"report": Report},
        )


def test_placeholders_beside_a_here_document_are_filled_in(bench):
    """Before and after it, and where `<<` shifts numbers."""
    line = "cat > {report}/n <<END; printf %s {note} $((1<<2)) >> {report}/n\nall\nEND\nprintf %s {note} >> {report}/n"
    node = Command(shell=line, settings={"note": "$z"}, outputs={"report": Report})

    assert text(ran(bench, node)) == "all\n$z4$z"


def test_placeholders_between_quotes_are_not_inside_them(bench):
    """Quotes that end before the placeholder, a quoted quote, and a doubled brace inside quotes are as in any shell."""
    line = """printf '%s' 'a'{note}"b" \\' "${{#note}}" > {report}/n"""

    execution = ran(bench, Command(shell=f"note=x; {line}", settings={"note": "$z"}, outputs={"report": Report}))

    assert (only(execution, "report").path / "n").read_text() == "a$zb'1"


@pytest.mark.parametrize("shell", ["false; echo 1 > {report}/n", "echo $undefined > {report}/n"])
def test_a_shell_line_stops_at_the_first_failure(bench, shell):
    """What comes after a command that fails is not run, and a variable that is not set is a failure."""
    assert "exited with status" in ran(bench, Command(shell=shell, outputs={"report": Report})).error


def test_several_and_no_artifacts_are_several_and_no_arguments(bench):
    """A list is as many arguments as it has artifacts, an optional input that gave nothing none."""
    many, none = Numbers(count=3), Nothing()
    program = "import sys; open(sys.argv[1] + '/n', 'w').write(str(len(sys.argv)))"
    node = Command(
        command=[sys.executable, "-c", program, "{out}", "{many}", "{none}"],
        inputs={"many": many["report"], "none": none["report"]},
        outputs={"out": Report},
    )

    assert text(ran(bench, many, none, node), "out") == "5"


def test_properties_come_and_go_as_json(bench):
    """A program may read the properties of its inputs, and what it writes becomes those of its outputs."""
    number = Number(number=7)
    node = Command(
        shell="cp {model.properties} {copy.properties}; echo 1 > {copy}/n",
        inputs={"model": number["model"]},
        outputs={"copy": Model},
    )

    assert only(ran(bench, number, node), "copy").properties == {"spans": [7]}


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ('{"colour": 1}', "Model has no property 'colour'"),
        ('{"spans": 1}', "Model.spans takes list"),
        ("[1]", "expected an object, found list"),
        ("{", "wrote invalid properties"),
    ],
)
def test_properties_that_cannot_be_kept_are_told(bench, written, said):
    """What the kind does not have, and what is no JSON object."""
    node = Command(
        shell="printf '%s' {written} > {m.properties}; echo 1 > {m}/n",
        outputs={"m": Model},
        settings={"written": written},
    )

    error = ran(bench, node).error

    assert "Command wrote invalid properties of 'm'" in error
    assert said in error


def test_a_required_property_that_is_not_written_is_told(bench):
    """Examples need a span, whoever makes them."""
    node = Command(shell="echo 1 > {examples}/n", outputs={"examples": Examples})

    assert "without span" in ran(bench, node).error


def test_a_failure_has_the_last_that_was_printed(bench):
    """The exit status and the last lines are in the message, everything is in the log."""
    program = "import sys\nfor n in range(100): print('line', n)\nprint('oh no', file=sys.stderr); sys.exit(3)"

    failed = ran(bench, Command(command=[sys.executable, "-c", program, "{report}"], outputs={"report": Report}))

    assert "exited with status 3. Its last output:" in failed.error
    assert "line 99" in failed.error
    assert "oh no" in failed.error
    assert "line 50" not in failed.error
    assert "line 0\n" in Path(failed.log).read_text()
    assert not failed.outputs


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"command": ["no-such-program", "{report}"]}, "could not start 'no-such-program'"),
        ({"shell": "kill -9 $$ # {report}"}, "was killed by SIGKILL. It printed nothing."),
        ({"shell": "true {report}"}, "succeeded, but wrote nothing to {report}"),
        ({"shell": "true {report}", "reads": ["nowhere"]}, "there is nothing at nowhere"),
        ({"shell": "true {report}", "env_names": ["NOT_SET_ANYWHERE"]}, "NOT_SET_ANYWHERE is not set"),
    ],
)
def test_what_goes_wrong_is_told(bench, arguments, said):
    """A program that is not there, is killed, or does nothing."""
    assert said in ran(bench, Command(outputs={"report": Report}, **arguments)).error


def test_what_it_leaves_running_does_not_hold_it_up(bench):
    """A process in the background that keeps the output open ends with the node."""
    node = Command(shell="sleep 300 & echo 1 > {report}/n", outputs={"report": Report}, timeout_s=30)

    assert text(ran(bench, node)) == "1\n"


def test_the_environment_is_what_was_asked_for(bench, monkeypatch):
    """Secrets of ours are not the program's; what is set or let through is."""
    monkeypatch.setenv("OUR_SECRET", "hush")
    monkeypatch.setenv("ITS_TOKEN", "for it")
    node = Command(shell="env > {report}/n", outputs={"report": Report}, env={"MODE": "fast"}, env_names=["ITS_TOKEN"])

    execution = ran(bench, node)

    assert "OUR_SECRET" not in text(execution)
    assert {"MODE=fast", "ITS_TOKEN=for it"} <= set(text(execution).splitlines())
    assert "for it" not in json.dumps(dict(execution.parameters))


def test_the_content_of_what_it_runs_is_part_of_the_key(bench, tmp_path):
    """An unchanged script is served from the cache; a changed one, or a changed file that it reads, is run."""
    script, data = tmp_path / "script.py", tmp_path / "data"
    script.write_text("import sys; open(sys.argv[1] + '/n', 'w').write('1')")
    data.write_text("a")

    def run():
        return ran(
            bench,
            Command(command=[sys.executable, str(script), "{report}"], outputs={"report": Report}, reads=[str(data)]),
        )

    first, again = run(), run()
    script.write_text(script.read_text().replace("'1'", "'2'"))
    changed = run()
    data.write_text("b")
    other = run()

    assert again.reused == first.id
    assert changed.reused is None
    assert text(changed) == "2"
    assert other.reused is None


@pytest.mark.parametrize(
    ("argument", "settings"),
    [
        ("{conf}", {"conf": "a{1}.toml"}),
        ("a{{1}}{end}", {"end": ".toml"}),
        ("a{{1}}.toml", {}),
        ("--in=a{{1}}.toml", {}),
        ("in=a{{1}}.toml", {}),
        ("@a{{1}}.toml", {}),
        ("--in=@{conf}", {"conf": "a{1}.toml"}),
    ],
)
def test_a_file_is_part_of_the_key_however_an_argument_names_it(bench, tmp_path, monkeypatch, argument, settings):
    """By a setting, with doubled braces, or as the value of an option: after a change the program runs again."""
    monkeypatch.chdir(tmp_path)
    read = "import sys, shutil; shutil.copy(sys.argv[1].split('=')[-1].lstrip('@'), sys.argv[2] + '/n')"
    node = Command(
        command=[sys.executable, "-c", read, argument, "{report}"], outputs={"report": Report}, settings=settings
    )
    found = []
    for content in ("first", "first", "second"):
        Path("a{1}.toml").write_text(content)
        found.append(ran(bench, node))

    assert [execution.state for execution in found] == [State.COMPLETE, State.CACHED, State.COMPLETE]
    assert text(found[-1]) == "second"


@pytest.mark.parametrize(
    ("line", "settings"),
    [
        ("cat conf.txt > {report}/n", {}),
        ("cat {conf} > {report}/n", {"conf": "conf.txt"}),
        ("conf=conf.txt; cat $conf > {report}/n", {}),
        ("cat <conf.txt >{report}/n", {}),
        ("text=$(cat conf.txt); printf %s $text > {report}/n", {}),
        ("cat conf.txt > {report}/n; cat <<END\nit's\nEND\n", {}),
    ],
)
def test_a_file_that_a_shell_line_names_is_part_of_the_key(bench, tmp_path, monkeypatch, line, settings):
    """A line is edited less often than what it reads: after a change of that, it runs again."""
    monkeypatch.chdir(tmp_path)
    node = Command(shell=line, outputs={"report": Report}, settings=settings)
    found = []
    for content in ("first", "first", "second"):
        Path("conf.txt").write_text(content)
        found.append(ran(bench, node))

    assert [execution.state for execution in found] == [State.COMPLETE, State.CACHED, State.COMPLETE]
    assert text(found[-1]) == "second"


@pytest.mark.parametrize("to", [">log.txt", ">> log.txt", "2>log.txt", ">|log.txt", ">log.txt \\'"])
def test_a_file_that_a_shell_line_writes_is_not_part_of_the_key(bench, tmp_path, monkeypatch, to):
    """A log beside the outputs is overwritten in each run."""
    monkeypatch.chdir(tmp_path)
    Path("log.txt").touch()

    made = ran(bench, Command(shell=f"echo 1 {to}; echo 1 > {{report}}/n", outputs={"report": Report}))

    assert made.state is State.COMPLETE


def test_another_output_is_another_key(bench):
    """Two nodes of one name that make other things share no result."""
    first = ran(bench, Command(shell="echo 1 > {a}/n", outputs={"a": Report}))

    assert ran(bench, Command(shell="echo 1 > {a}/n", outputs={"a": Model})).reused is None
    assert ran(bench, Command(shell="echo 1 > {a}/n", outputs={"a": Report})).reused == first.id


LOOSE = Numbers(count=2)["report"]


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"outputs": {"r": Report}}, ParameterError, "needs either a command or a shell line"),
        (
            {"command": ["x"], "shell": "x", "outputs": {"r": Report}},
            ParameterError,
            "needs either a command or a shell line",
        ),
        ({"command": [], "outputs": {"r": Report}}, ParameterError, "command is empty"),
        ({"command": "x {r}", "outputs": {"r": Report}}, ParameterError, "Command.command takes"),
        (
            {"command": ["x", "{rr}"], "outputs": {"r": Report}},
            ParameterError,
            r"\{rr\} is not an input, output or setting",
        ),
        (
            {"command": ["x", "{n.properties}"], "outputs": {"r": Report}, "settings": {"n": 1}},
            ParameterError,
            "is not an input",
        ),
        ({"command": ["x"], "outputs": {}}, PipelineError, "has no outputs"),
        ({"command": ["x"], "outputs": {"r": "Report"}}, PipelineError, "name an artifact type"),
        ({"command": ["x"], "outputs": {"r": Report}, "inputs": {"a": 1}}, PipelineError, "inputs must be channels"),
        ({"command": ["x"], "outputs": {"shell": Report}}, PipelineError, "cannot name an input or output"),
        ({"command": ["x"], "outputs": {"a b": Report}}, PipelineError, "cannot name an input or output"),
        (
            {"command": ["x"], "outputs": {"r": Report}, "inputs": {"r": LOOSE}},
            PipelineError,
            "'r' is both an input and an output",
        ),
        ({"command": ["x"], "outputs": {"r": Report}, "settings": {"r": 1}}, ParameterError, "rename one"),
        (
            {"command": ["x", "-i={a}"], "outputs": {"r": Report}, "inputs": {"a": LOOSE}},
            ParameterError,
            "an argument of its own",
        ),
        ({"command": ["x"], "outputs": {"r": Report}, "engine": "docker"}, ParameterError, "needs an image"),
        ({"command": ["x"], "outputs": {"r": Report}, "engine": "lxc", "image": "i"}, ParameterError, "engine"),
        ({"command": ["x"], "outputs": {"r": Report}, "speed": 1}, PipelineError, "takes no 'speed'"),
    ],
)
def test_what_is_wrong_is_told_when_the_pipeline_is_made(arguments, error, said):
    """Nothing is started with a command that cannot be meant."""
    with pytest.raises(error, match=said):
        Command(**arguments)


@pytest.mark.parametrize(("engine", "rights"), [("docker", "--user=1000:100"), ("podman", "--userns=keep-id")])
def test_a_container_has_the_same_paths(engine, rights):
    """Inputs are mounted to be read only, outputs to be written; of variables only the names are on the line."""
    line = container_command(
        engine,
        "train:1",
        ["train", "/in"],
        name="n",
        reads=["/in"],
        writes=["/out", "/tmp/s"],
        env=["A"],
        user="1000:100",
    )

    assert line == [
        *(engine, "run", "--rm", "--init", "--name=n", rights),
        *("--volume=/in:/in:ro", "--volume=/out:/out", "--volume=/tmp/s:/tmp/s", "--env=A"),
        *("train:1", "train", "/in"),
    ]


def test_without_an_engine_a_container_is_refused(bench, monkeypatch):
    """The message says what is missing."""
    monkeypatch.setattr(shutil, "which", lambda _: None)
    node = Command(command=["true", "{r}"], outputs={"r": Report}, image="alpine")

    assert "neither docker nor podman is on the PATH" in ran(bench, node).error


def test_the_engine_gets_the_line_that_was_built(bench, tmp_path, monkeypatch):
    """What is started is the engine, with the command, its mounts and its variables."""
    engine = tmp_path / "bin" / "podman"
    engine.parent.mkdir()
    engine.write_text('#!/bin/sh\nfor last; do :; done\necho "$MODE $*" > "$last/n"\n')
    engine.chmod(0o755)
    monkeypatch.setenv("PATH", f"{engine.parent}:/usr/bin:/bin")
    node = Command(
        command=["train", "{r}"], outputs={"r": Report}, image="train:1", engine="podman", env={"MODE": "fast"}
    )

    execution = ran(bench, node)

    place = only(execution, "r").path.absolute()
    said = text(execution, "r")
    assert said.startswith("fast run --rm --init --name=spanwise-p-1-Command-1-")
    assert f"--volume={place}:{place}" in said
    assert "--env=MODE" in said
    assert said.endswith(f"train:1 train {place}\n")


def test_a_container_is_removed_when_its_node_is_stopped(bench, tmp_path, monkeypatch):
    """It is no process of ours, so what stops the node removes it by its name."""
    engine = tmp_path / "bin" / "podman"
    engine.parent.mkdir()
    engine.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/said\n[ "$1" = rm ] || exec sleep 300\n')
    engine.chmod(0o755)
    monkeypatch.setenv("PATH", f"{engine.parent}:/usr/bin:/bin")
    node = Command(command=["train", "{r}"], outputs={"r": Report}, image="train:1", engine="podman", timeout_s=1)

    assert not ran(bench, node).state.succeeded

    started, removed = (tmp_path / "said").read_text().splitlines()
    name = removed.removeprefix("rm --force ")
    assert name.startswith("spanwise-p-1-Command-1-")
    assert f"--name={name} " in started


def has_engine():
    docker = shutil.which("docker")
    return (
        docker is not None
        and subprocess.run([docker, "image", "inspect", "busybox"], capture_output=True, check=False).returncode == 0
    )


@pytest.mark.skipif(not has_engine(), reason="no docker with an image busybox here")
def test_a_container_runs(bench):
    """The real engine runs the command, and what it writes is ours."""
    node = Command(command=["sh", "-c", "echo 1 > {r}/n"], outputs={"r": Report}, image="busybox", engine="docker")

    assert text(ran(bench, node), "r") == "1\n"


@pytest.mark.parametrize("back", [False, True])
def test_a_file_that_changes_while_the_program_runs_fails_it(bench, tmp_path, back):
    """Outputs made of another file are not published under the key of the first, even if that is back at the end."""
    data = tmp_path / "rates.csv"
    data.write_text("old")
    change = f"echo -n new > {data}; cat {data} > {{report}}/n;" + (f" echo -n old > {data}" if back else "")
    node = Command(shell=change, outputs={"report": Report}, reads=[str(data)])

    execution = ran(bench, node)

    assert not execution.outputs
    assert f"{data} changed while the program ran" in execution.error


def test_what_python_compiles_of_a_folder_is_no_change(bench, tmp_path):
    """A program may be run from the folder that it reads."""
    folder = tmp_path / "src"
    folder.mkdir()
    (folder / "rates.py").write_text("RATE = 7")
    (folder / "main.py").write_text("import rates, sys, pathlib; pathlib.Path(sys.argv[1], 'n').write_text('7')")
    node = Command(
        command=[sys.executable, str(folder / "main.py"), "{report}"],
        outputs={"report": Report},
        env={"PYTHONDONTWRITEBYTECODE": ""},
        reads=[str(folder)],
    )

    assert text(ran(bench, node)) == "7"
    assert (folder / "__pycache__").is_dir()
