"""Names that are set anew between `.snapshot()` and its pass: nothing is stored under what functions did before."""

import types

import pytest

from spanwise.orchestrator.errors import DatasetError, ParameterError
from spanwise.orchestrator.user_code import ship, unpack
from spanwise.pipelines import input as inputs

#: code that defines `f` with 1 for N, and then code that changes what `f` gives
REBOUND = {
    "a global": ("n = 1\ndef f(x): return x * n", "n = 2"),
    "a global of a callee": ("n = 1\ndef h(x): return x * n\ndef f(x): return h(x)", "n = 2"),
    "a callee": ("def h(x): return x\ndef f(x): return h(x)", "def h(x): return x * 2"),
    "a global in a comprehension": ("n = 1\ndef f(x): return [y * n for y in [x]][0]", "n = 2"),
    "a name without a meaning": ("def f(x): return x * n", "n = 2"),
    "an attribute of a module": ("def f(x): return x * module.n", "module.n = 2"),
    "an attribute of a function": ("def h(x): return x * h.n\nh.n = 1\ndef f(x): return h(x)", "h.n = 2"),
    "a class attribute": ("class A: n = 1\ndef f(x): return x * A.n", "A.n = 2"),
    "a method": ("class A:\n    def m(self): return 1\ndef f(x): return x * A().m()", "A.m = lambda self: 2"),
    "a closure": (
        "def make(n):\n    def f(x): return x * n\n    def to(m):\n        nonlocal n\n        n = m\n    return f, to\nf, to = make(1)",
        "to(2)",
    ),
    "the variable of a loop": ("f = [lambda x: x * n for n in (1,)][0]", "f.__closure__[0].cell_contents = 2"),
}

UNCHANGED = {
    "the same value again": ("n = 1.5\ndef f(x): return x * n", "n = 3 / 2"),
    "the same function again": ("def h(x): return x\ndef f(x): return h(x)", "def h(y): return y"),
    "what the function sets itself": (
        "n = None\ndef f(x):\n    global n\n    n = n or (lambda x: x)\n    return n(x)",
        "f(1)",
    ),
    "what it fills": ("memo = {}\ndef f(x):\n    memo[x] = x\n    return memo[x]", "f(1)"),
    "another name": ("n = m = 1\ndef f(x): return x * n", "m = 2"),
}


@pytest.fixture
def project(monkeypatch):
    """A project's module, and another one that it has imported."""
    monkeypatch.setattr(module := types.ModuleType("project"), "__file__", "/project/project.py", raising=False)
    other = types.ModuleType("other")
    other.__file__, other.n = "/project/other.py", 1
    module.module = other
    return vars(module)


@pytest.mark.parametrize("what", REBOUND)
def test_a_name_that_is_set_anew_before_the_pass_is_refused(project, tmp_path, what):
    """Its elements would be stored under the fingerprint of others, and found by whoever makes those."""
    code, change = REBOUND[what]
    exec(code, project)
    stale = inputs.range(4).map(project["f"]).snapshot(tmp_path)
    exec(change, project)

    with pytest.raises(DatasetError, match="has been set anew since the dataset was created"):
        list(stale)

    fresh = inputs.range(4).map(project["f"]).snapshot(tmp_path)
    assert list(fresh) == list(fresh) == [0, 2, 4, 6]


def test_nor_are_such_functions_sent_to_another_process(project, tmp_path):
    """Where nobody could know any more what its names have meant."""
    code, change = REBOUND["a closure"]
    exec(code, project)
    stale = inputs.range(4).map(project["f"]).snapshot(tmp_path)
    unpack(ship(stale.op, by_value=True))
    exec(change, project)

    with pytest.raises(ParameterError, match="'n', which a function before it uses, has been set anew"):
        ship(stale.op, by_value=True)


@pytest.mark.parametrize("what", UNCHANGED)
def test_names_that_mean_the_same_are_not(project, tmp_path, what):
    """Nor those that the function sets itself, such as what it loads once."""
    code, change = UNCHANGED[what]
    exec(code, project)
    dataset = inputs.range(4).map(project["f"]).snapshot(tmp_path)
    exec(change, project)

    assert list(dataset) == list(dataset)
    assert len(list(tmp_path.glob("*/metadata.final"))) == 1
