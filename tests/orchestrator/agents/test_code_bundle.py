"""Code bundles: what a pipeline needs of the user's files, and whether another environment is the same."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from spanwise.orchestrator.agents.code_bundle import Environment, differences, environment, pack
from tests.forked import in_fork

HERE = Environment(python="3.12.4", spanwise="0.1.0 (abc)", libraries={"numpy": "2.1.0", "absent": ""})


@pytest.mark.parametrize(
    ("there", "says"),
    [
        ({}, []),
        ({"python": "3.12.9"}, []),
        ({"python": "3.11.4"}, ["Python 3.11.4, not 3.12.4"]),
        ({"spanwise": "0.1.0 (abd)"}, ["spanwise 0.1.0 (abd), not 0.1.0 (abc)"]),
        ({"libraries": {"numpy": "2.2.0"}}, ["numpy 2.2.0, not 2.1.0"]),
        ({"libraries": {"numpy": ""}}, ["no numpy, which is 2.1.0 here"]),
    ],
)
def test_another_environment_is_named(there, says):
    """What would make other results, or none, is said before work starts; a patch release of Python is not."""
    assert differences(HERE, replace(HERE, **there)) == says


def test_this_environment_is_the_same_as_itself():
    """Nothing that changes between two looks is part of it."""
    assert differences(environment(["numpy"]), environment(["numpy"])) == []


SCRIPT = """\
import pickle, sys
sys.path.insert(0, sys.argv[1])
import flow
from spanwise.orchestrator.agents.code_bundle import pack
pickle.dump(pack(flow.pipeline), open(sys.argv[2], "wb"))
"""
READER = """\
import pickle, sys
from pathlib import Path
from spanwise.orchestrator.agents.code_bundle import unpack
pipeline = unpack(pickle.load(open(sys.argv[1], "rb")), Path(sys.argv[2]))
print(pipeline.nodes["Make"].run.__globals__["work"]())
"""


@pytest.fixture
def project(tmp_path):
    """A pipeline file, a module beside it, a package, and a file that nothing uses."""
    home = tmp_path / "project"
    (home / "parts" / "deep").mkdir(parents=True)
    (home / "flow.py").write_text(
        "import beside\n"
        "from spanwise.orchestrator import Component, Output, Pipeline, Report\n"
        "def work():\n    from parts.deep import late\n    return beside.ONE + late.two()\n"
        "class Make(Component):\n    def run(self, report: Output[Report]) -> None: work()\n"
        "pipeline = Pipeline('flow', [Make()])\n"
    )
    (home / "beside.py").write_text("ONE = 1\n")
    (home / "parts" / "__init__.py").write_text("")
    (home / "parts" / "deep" / "__init__.py").write_text("")
    (home / "parts" / "deep" / "late.py").write_text("from ..sibling import TWO\ndef two(): return TWO\n")
    (home / "parts" / "sibling.py").write_text("TWO = 2\n")
    (home / "unused.py").write_text("raise SystemExit\n")
    return home


def test_code_runs_where_its_files_are_not(project, tmp_path):
    """What is imported late, and by a relative import, is there too; what nothing uses is not."""
    packed, elsewhere = tmp_path / "packed", tmp_path / "elsewhere"
    subprocess.run([sys.executable, "-c", SCRIPT, project, packed], check=True)
    project.rename(tmp_path / "gone")

    said = subprocess.run(
        [sys.executable, "-c", READER, packed, elsewhere], check=True, capture_output=True, text=True
    ).stdout

    assert said == "3\n"
    files = sorted(str(path.relative_to(elsewhere)) for path in Path(elsewhere).rglob("*.py"))
    assert files == [
        "beside.py", "flow.py", "parts/__init__.py", "parts/deep/__init__.py", "parts/deep/late.py", "parts/sibling.py",
    ]  # fmt: skip


EDITED_SCRIPT = """\
import pickle, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import flow
from spanwise.orchestrator.agents.code_bundle import pack
Path(flow.__file__).write_text(sys.argv[3])
pickle.dump(pack(flow.pipeline), open(sys.argv[2], "wb"))
"""
CHECKER = """\
import pickle, sys
from pathlib import Path
from spanwise.orchestrator.agents.code_bundle import refuse_other_meaning, unpack
from spanwise.orchestrator.errors import SpanwiseError
from spanwise.orchestrator.signature import read_signature
bundle = pickle.load(open(sys.argv[1], "rb"))
pipeline = unpack(bundle, Path(sys.argv[2]))
for node in pipeline:
    try:
        refuse_other_meaning(bundle, node)
        read_signature(type(node))
        print(node.name, "fits")
    except SpanwiseError as error:
        print(error)
"""


@pytest.fixture
def sent(tmp_path):
    """Packs a pipeline file with a variable of the environment, and says what becomes of its nodes elsewhere.

    There the file is gone, or what is `left` at its place.
    """

    def send(here, there, text, edited=None, left=None):
        file, packed = tmp_path / "flow.py", tmp_path / "packed"
        file.write_text(text)
        command = [sys.executable, "-c", EDITED_SCRIPT, tmp_path, packed, edited or text]
        subprocess.run(command, check=True, env=os.environ | here)
        if left is None:
            file.unlink()
        else:
            file.write_text(left)
        checking = [sys.executable, "-c", CHECKER, packed, tmp_path / "elsewhere"]
        return subprocess.run(
            checking, check=True, capture_output=True, text=True, env=os.environ | there
        ).stdout.splitlines()

    return send


READS_ENVIRONMENT = """\
import os
from spanwise.orchestrator import Component, Output, Pipeline, Report
AT_LEAST = int(os.environ["AT_LEAST"])
LOADED = None
def count(): return AT_LEAST
class Make(Component):
    def run(self, report: Output[Report]) -> None:
        global LOADED
        LOADED = count()
class Apply(Component):
    def run(self, report: Output[Report], function: object) -> None: function()
class Other(Component):
    def run(self, report: Output[Report]) -> None: ...
pipeline = Pipeline('flow', [Make(), Apply(function=count), Other()])
"""


def test_code_that_means_something_else_there_is_refused(sent):
    """A value that was read from the environment would have made another result than the cache key says."""
    said = sent({"AT_LEAST": "5"}, {"AT_LEAST": "3"}, READS_ENVIRONMENT)

    assert ["flow.AT_LEAST is not what was sent" in line for line in said] == [True, True, False]
    assert said[2] == "Other fits"


def test_code_that_means_the_same_there_is_started(sent):
    """Wherever its files are."""
    said = sent({"AT_LEAST": "5"}, {"AT_LEAST": "5"}, READS_ENVIRONMENT)

    assert said == ["Make fits", "Apply fits", "Other fits"]


def test_code_that_was_edited_after_it_was_loaded_is_refused(sent):
    """The files that are sent are not what the cache key was made of."""
    edited = READS_ENVIRONMENT.replace("return AT_LEAST", "return AT_LEAST + 1")

    said = sent({"AT_LEAST": "5"}, {"AT_LEAST": "5"}, READS_ENVIRONMENT, edited)

    assert "the code of Make is not what was sent" in said[0]
    assert "function= is not what was sent" in said[1]
    assert said[2] == "Other fits"


MADE_IN_FUNCTIONS = """\
from __future__ import annotations
from spanwise.components import Importer
from spanwise.orchestrator import Component, Input, Model, Output, Pipeline, Report
STEP = 2
def make(n):
    class Size:
        def __init__(self): self.n = n
    class Make(Component):
        def run(self, model: Input[Model], report: Output[Report], size: object) -> None:
            return STEP + n
    return Make, Size()
def flow():
    model = Importer(uri="/nowhere", kind=Model)
    component, size = make(3)
    return Pipeline("flow", [model, component(model=model["artifact"], size=size)])
pipeline = flow()
"""


def test_nodes_of_classes_that_are_made_in_functions_can_be_sent(sent):
    """Their code goes by value, without the names that the annotations of `run` are made of: an Importer failed."""
    assert sent({}, {}, MADE_IN_FUNCTIONS) == ["Importer fits", "Make fits"]


SETS_SOMETHING = """\
import os
from spanwise.orchestrator import Component, Output, Pipeline, Report
os.environ["OMP_NUM_THREADS"] = "1"
def more_than(least):
    return lambda value: value > least
def make(n):
    class Make(Component):
        def run(self, report: Output[Report]) -> None:
            return n
    return Make
class Apply(Component):
    def run(self, report: Output[Report], function: object) -> None: function()
pipeline = Pipeline("flow", [make(3)(), Apply(function=more_than(3))])
"""


def test_what_functions_make_can_be_sent_from_a_module_that_sets_something(sent):
    """Its code goes by value, and its module is loaded there too, so what that sets in libraries is set."""
    assert sent({}, {}, SETS_SOMETHING) == ["Make fits", "Apply fits"]


FINDS_ITS_FOLDER = """\
from pathlib import Path
from spanwise.orchestrator import Component, Output, Pipeline, Report
HERE = Path(__file__).parent
class Make(Component):
    def run(self, report: Output[Report]) -> None: (HERE / "words.txt").read_text()
pipeline = Pipeline("flow", [Make()])
"""


def test_code_that_lies_at_the_same_place_there_is_loaded_from_it(sent):
    """Most clusters share a file system: files beside it were not found, and `HERE` was refused as another value."""
    assert sent({}, {}, FINDS_ITS_FOLDER, left=FINDS_ITS_FOLDER) == ["Make fits"]


@pytest.mark.parametrize("left", [None, FINDS_ITS_FOLDER + "HERE = None\n"], ids=["nothing", "another"])
def test_code_that_needs_its_folder_is_refused_where_it_does_not_lie_there(sent, left):
    """What lies at its place has to be what was sent, byte for byte."""
    assert "flow.HERE is not what was sent" in sent({}, {}, FINDS_ITS_FOLDER, left=left)[0]


def test_a_pipeline_of_libraries_alone_has_no_files():
    """Nodes of spanwise are there already."""
    from spanwise.components import Importer
    from spanwise.orchestrator import Model, Pipeline

    assert pack(Pipeline("p", [Importer(kind=Model, uri="/nowhere", name="Take")])).files == {}


def test_the_flights_pipeline_can_be_sent():
    """The worked example goes to another machine as it is."""
    modules, libraries = in_fork(_pack_flights)

    assert modules <= {"spanwise.pipelines.flights"}
    assert libraries["scikit-learn"]


def _pack_flights():
    from spanwise.pipelines.flights import flights

    bundle = pack(flights("/data", "/serving"))
    return {name for name, _ in bundle.shipment.modules}, bundle.environment.libraries
