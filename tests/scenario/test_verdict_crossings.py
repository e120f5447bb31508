"""Verdicts of people meet garbage collection: what a person may still accept is kept, and what is gone is refused."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from spanwise.orchestrator.verdict import is_given, read_verdicts
from tests.scenario.inline import run_inline
from tests.scenario.test_system import PIPELINE, Bench

CLEAN = """class Clean(Component):
    def run(self, examples: Input[Examples], clean: Output[Examples]) -> None:
        for name in ("span", "version", "split_names", "calendar"):
            setattr(clean, name, getattr(examples, name))
        shutil.copytree(examples.path, clean.path, dirs_exist_ok=True)


"""
COLLECT = ("--keep-last", "0", "--keep-younger", "0s")


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """One day has arrived, and nothing has run."""
    monkeypatch.chdir(tmp_path)
    run_inline(monkeypatch)
    bench = Bench(tmp_path)
    bench.arrive(1, 1, 1)
    return bench


@pytest.fixture
def bench(lake: Bench) -> Bench:
    """Three days are learned; the gate refuses the fourth, so that the fifth is not learned."""
    bench = lake
    for span, value in enumerate((1, 2, 3, -1, 5), start=1):
        bench.arrive(span, 1, value)
        bench.spanwise("run", "system.py", "--span", str(span))
    assert bench.failed() == ["Window"]
    return bench


def test_a_refused_span_that_a_window_wants_is_not_collected(bench, capsys):
    """A person accepts it after the collection, and the run that waited for it resumes without its input."""
    assert bench.spanwise("gc", "system.py", *COLLECT) == 0
    bench.vanish(4, 1)

    assert bench.spanwise("accept", "system.py", "--span", "4", "--because", "a refund") == 0
    assert bench.spanwise("resume", "system/5") == 0
    learned = bench.learned()

    assert learned is not None
    assert [edition.value for edition in learned.window] == [3, -1, 5]


@pytest.fixture
def cleaned(lake: Bench) -> Bench:
    """A node stands between the gate and the window."""
    text = PIPELINE.replace("class Learn(", CLEAN + "class Learn(").replace("check, window,", "check, clean, window,")
    text = text.replace("    window = ", '    clean = Clean(examples=check["examples"])\n    window = ')
    text = text.replace('Window(check["examples"]', 'Window(clean["clean"]').replace(
        'window["examples"]', 'window["clean"]'
    )
    (lake.folder / "system.py").write_text(f"import shutil\n{text}")
    return lake


def test_what_was_made_of_a_refused_span_that_a_window_wants_is_not_collected(cleaned):
    """A person accepts the span, and the window reads what a node had made of it."""
    for span in (1, 3):
        cleaned.arrive(span, 1, span)
        cleaned.spanwise("run", "system.py", "--span", str(span))
    cleaned.spanwise("refuse", "system.py", "--span", "3", "--because", "looked at")
    cleaned.arrive(2, 1, 2)
    cleaned.spanwise("run", "system.py", "--span", "2")
    assert cleaned.failed() == ["Window"]

    assert cleaned.spanwise("gc", "system.py", *COLLECT) == 0
    assert cleaned.spanwise("accept", "system.py", "--span", "3", "--because", "looked at again") == 0

    assert cleaned.spanwise("run", "system.py", "--span", "2") == 0
    assert [edition.value for edition in cleaned.learned().window] == [1, 2, 3]


def test_a_span_whose_files_were_collected_is_not_accepted(bench, capsys):
    """No window could read it: the message says how to ingest it again, and that works."""
    assert bench.spanwise("gc", "system", *COLLECT) == 0  # by name, so that no window says what it wants
    capsys.readouterr()

    assert bench.spanwise("accept", "system.py", "--span", "4", "--because", "a refund") == 2

    said = capsys.readouterr().err
    assert "system/Ingest/examples/4/1 was garbage-collected" in said
    assert "spanwise run system.py --span 4 --to Check" in said
    bench.spanwise("run", "system.py", "--span", "4", "--to", "Check")
    assert bench.spanwise("accept", "system.py", "--span", "4", "--because", "a refund") == 0
    assert bench.spanwise("run", "system.py", "--span", "5") == 0


def printed(text: str) -> list[str]:
    """The commands that a text says to type."""
    return re.findall(r":  spanwise (.*)$", text, re.MULTILINE)


@pytest.mark.parametrize("fix", ["run", "accept"])
def test_after_a_refusal_only_commands_are_printed_that_work(bench, capsys, fix):
    """Neither "Resume it" nor "Retry it": a new version or a person's verdict comes first, and is enough."""
    bench.arrive(6, 1, -2)
    capsys.readouterr()

    bench.spanwise("run", "system.py", "--span", "6", "--param", "code=2", "--root", "root")
    said = capsys.readouterr().out

    assert printed(said) == [
        "run system.py --span 6 --param code=2 --root root",
        "accept system.py --param code=2 --span 6 --because TEXT --root root",
    ]
    if fix == "run":
        bench.arrive(4, 2, 4)
        bench.arrive(6, 2, 6)
    else:
        assert bench.spanwise("accept", "system.py", "--span", "4", "--because", "a refund") == 0
    capsys.readouterr()
    for span in (4, 6):
        command = next(c for c in printed(said) if c.startswith(fix)).replace("--span 6", f"--span {span}")
        bench.spanwise(*shlex.split(command))
    (last,) = printed(capsys.readouterr().out)[-1:] or [""]
    if fix == "accept":
        assert last == "backfill system.py --param code=2 --span 6 --root root"
        assert bench.spanwise(*shlex.split(last)) == 0

    learned = bench.learned()
    assert learned is not None
    assert [edition.value for edition in learned.window] == ([4, 5, 6] if fix == "run" else [-1, 5, -2])


def test_a_gap_behind_a_node_that_has_not_read_a_correction_says_so(cleaned, capsys):
    """A correction that the gate accepted has to be made, one that it refused is refused; each command works."""
    cleaned.spanwise("run", "system.py", "--span", "1")
    for value in (-2, 3):
        cleaned.arrive(1, 2 if value < 0 else 3, value)
        cleaned.spanwise("run", "system.py", "--span", "1", "--to", "Check")
        capsys.readouterr()
        assert cleaned.spanwise("run", "system.py", "--from", "Window") == 1
        said = capsys.readouterr().out
        if value < 0:
            assert "  1: refused by Check in run 2: a value is below zero" in said
            assert "accept system.py --span 1 --because TEXT" in printed(said)
    assert "  1: system/Ingest/examples/1/3 is accepted, but Clean has not read it. Make it from that:" in said
    assert cleaned.spanwise("window", "system.py") == 1
    assert "not made" in capsys.readouterr().out

    make, resume = printed(said)

    assert [cleaned.spanwise(*shlex.split(command)) for command in (make, resume)] == [0, 0]
    assert [edition.value for edition in cleaned.learned().window] == [3]


def test_a_refused_last_day_is_a_gap_of_a_window_behind_a_node(cleaned, capsys):
    """The window does not end at the day before, of which the node made something last; each command works."""
    for span, value in enumerate((1, 2, -3), start=1):
        cleaned.arrive(span, 1, value)
        cleaned.spanwise("run", "system.py", "--span", str(span))
    capsys.readouterr()

    assert cleaned.spanwise("window", "system.py") == 1
    assert re.search(r" 3 +refused ", capsys.readouterr().out)
    assert cleaned.spanwise("run", "system.py", "--from", "Window") == 1
    said = capsys.readouterr().out
    assert "  3: refused by Check in run 3: a value is below zero" in said
    accept = next(command for command in printed(said) if command.startswith("accept"))
    assert cleaned.spanwise(*shlex.split(accept)) == 0
    capsys.readouterr()
    assert cleaned.spanwise("run", "system.py", "--from", "Window") == 1
    said = capsys.readouterr().out
    assert "  3: system/Ingest/examples/3/1 is accepted, but Clean has not read it. Make it from that:" in said

    make, resume = printed(said)

    assert [cleaned.spanwise(*shlex.split(command)) for command in (make, resume)] == [0, 0]
    assert [edition.value for edition in cleaned.learned().window] == [1, 2, -3]


def test_a_part_that_begins_at_the_window_leaves_out_what_was_refused_since(lake):
    """As far as gaps are allowed; what the run before had given is not given by this one."""
    text = PIPELINE.replace("size=3,", "size=3, missing=1,")
    (lake.folder / "system.py").write_text(text)
    lake.arrive(2, 1, 2)
    for span in "12":
        lake.spanwise("run", "system.py", "--span", span)
    lake.spanwise("refuse", "system.py", "--span", "2", "--because", "looked at")

    assert lake.spanwise("window", "system.py") == 0
    assert lake.spanwise("run", "system.py", "--from", "Window") == 0

    assert [edition.value for edition in lake.learned().window] == [1]


def test_a_run_that_waits_for_another_span_is_resumed_after_the_fix(bench, capsys):
    """The gap says what to type first, and then the run is resumed, whichever way it was."""
    bench.arrive(4, 2, 4)
    capsys.readouterr()
    bench.spanwise("run", "system.py", "--span", "5")
    said = capsys.readouterr().out

    ingest, _, resume = printed(said)

    assert said.endswith(f"\n\nThen resume it:  spanwise {resume}\n")
    assert [bench.spanwise(*shlex.split(command)) for command in (ingest, resume)] == [0, 0]


def test_a_backfill_of_refused_spans_is_retried_after_the_fix(bench, capsys):
    """It does not promise that retrying works by itself."""
    capsys.readouterr()
    assert bench.spanwise("backfill", "system.py", "--span", "4..5", "--train-once") == 1
    said = capsys.readouterr().out

    ingest, accept, retry = printed(said)

    assert said.endswith(f"Once the causes are fixed, retry it:  spanwise {retry}\n")
    assert bench.spanwise(*shlex.split(ingest)) == 1
    assert [bench.spanwise(*shlex.split(command)) for command in (accept, retry)] == [0, 0]


def test_why_names_the_verdict_of_a_gate(bench, capsys):
    """Its own, a person's, or that of the window behind it, not whether something was in the cache."""
    bench.spanwise("accept", "system.py", "--span", "4", "--because", "a refund")
    bench.spanwise("run", "system.py", "--span", "4")
    bench.spanwise("refuse", "system.py", "--span", "4", "--because", "no refund")
    bench.spanwise("run", "system.py", "--span", "4")

    def why(run: int, node: str) -> str:
        capsys.readouterr()
        bench.spanwise("why", f"system/{run}", node)
        return capsys.readouterr().out

    assert "Check of system/4 was executed (no cached result matched) and failed: a value is below zero." in why(
        4, "Check"
    )
    assert "Window of system/5 failed: Window wants the 3 spans 3 to 5" in why(5, "Window")
    assert re.search(r"Check of system/6 did no work of its own: accepted by \S+: a refund\.", why(6, "Check"))
    assert "Window of system/6 did no work of its own: chose 3 to 5 v1." in why(6, "Window")
    assert re.search(r"Check of system/7 failed: span 4 was refused by \S+: no refund\.", why(7, "Check"))


@pytest.mark.parametrize("fix", ["accept", "refuse"])
def test_a_verdict_of_a_person_holds_for_the_same_data_published_again(bench, capsys, fix):
    """Whether it was ingested without the cache or by a node that has none; other data is judged anew."""
    span = "4" if fix == "accept" else "3"
    bench.spanwise(fix, "system.py", "--span", span, "--because", "looked at")

    done = [bench.spanwise("run", "system.py", "--span", span, "--no-cache") for _ in range(2)]

    assert done == ([0, 0] if fix == "accept" else [1, 1])
    capsys.readouterr()
    bench.spanwise("window", "system.py", "--json", "--at", span)
    (state,) = [s for w in json.loads(capsys.readouterr().out) for s in w["spans"] if str(s["span"]) == span]
    assert state["state"] == ("read" if fix == "accept" else "refused")
    bench.arrive(int(span), 1, -7)
    assert bench.spanwise("run", "system.py", "--span", span) == 1
    assert bench.failed() == ["Check"]


@pytest.mark.parametrize("again", ["without the cache", "since its files are gone"])
@pytest.mark.parametrize(("kind", "code"), [("unbless", 3), ("bless", 1)])
def test_what_a_person_said_of_a_model_holds_when_the_same_model_is_trained_again(lake, kind, code, again):
    """Under its new name too it is not pushed, or it is pushed although its Evaluator refuses it."""
    for each in (2, code):
        lake.spanwise("run", "system.py", "--span", "1", "--param", f"code={each}")
    lake.spanwise(kind, "system/Learn/model/2", "--because", "looked at")
    lake.spanwise("push", "system/Learn/model/1", "--because", "the one before")
    lake.spanwise("run", "system.py", "--span", "1", "--param", "code=2")
    if again == "since its files are gone":
        with lake._opened() as store:
            shutil.rmtree(store.artifact("system/Learn/model/2").path)

    options = ["--no-cache"] if again == "without the cache" else []
    lake.spanwise("run", "system.py", "--span", "1", "--param", f"code={code}", *options)

    assert lake.spanwise("lineage", "system/Learn/model/3") == 0, "it was trained again"
    assert lake.serves().code == (2 if kind == "unbless" else code)


def test_a_reused_evaluation_is_the_newest_verdict(lake):
    """The Evaluator finds both of its judgements in the cache; the last one counts, whichever was made first."""
    for code in (1, 2, 1):
        lake.spanwise("run", "system.py", "--span", "1", "--param", f"code={code}")
    blessed = []
    for kind in ("unbless", "bless", "unbless"):
        lake.spanwise(kind, "system/Learn/model/2", "--because", "looked at")
        lake.spanwise("push", "system/Learn/model/2", "--because", "it serves")
        lake.spanwise("run", "system.py", "--span", "1", "--param", "code=1")
        with lake._opened() as store:
            blessed.append(is_given(store, "blessed", store.artifact("system/Learn/model/1")))

    assert blessed == [True, False, True]


def test_a_reused_evaluation_is_of_the_model_of_its_run(lake):
    """The model was trained again, since its files were gone; the verdict on the same model is reused."""
    for code in (1, 2):
        lake.spanwise("run", "system.py", "--span", "1", "--param", f"code={code}")
    lake.spanwise("push", "system/Learn/model/1", "--because", "the one before")
    with lake._opened() as store:
        shutil.rmtree(store.artifact("system/Learn/model/2").path)

    lake.spanwise("run", "system.py", "--span", "1", "--param", "code=2")

    with lake._opened() as store:
        assert [verdict.judge for verdict in read_verdicts(store, "blessed", "system/Learn/model/3")] == ["Judge"]


def test_a_champion_whose_files_were_collected_is_named_and_can_be_passed_over(lake, capsys):
    """Nobody is told to push it or may bless it, and what the failed run prints leads on."""
    for code in (1, 2, 3):
        lake.spanwise("run", "system.py", "--span", "1", "--param", f"code={code}")
    lake.spanwise("gc", "system.py", *COLLECT, "--keep-last-of", "Examples=9", "--keep-marked", "none")
    lake.spanwise("unbless", "system/Learn/model/3", "--because", "wrong")
    capsys.readouterr()

    lake.spanwise("unbless", "system/Learn/model/2", "--because", "wrong")

    said = capsys.readouterr().out
    assert "The champion is system/Learn/model/1.\nIts files were garbage-collected" in said
    assert printed(said) == ["unbless system/Learn/model/1 --because TEXT"]
    assert lake.spanwise("run", "system.py", "--span", "1", "--param", "code=4") == 1
    *_, unbless, resume = printed(capsys.readouterr().out)
    assert [lake.spanwise(*shlex.split(command)) for command in (unbless, resume)] == [0, 0]
    assert lake.serves().code == 4
    assert lake.spanwise("bless", "system/Learn/model/1", "--because", "right after all") == 2
    assert "was garbage-collected, so it cannot be blessed" in capsys.readouterr().err


SOURCES = '''
"""Clicks of a day and prices of a month, each behind a gate."""

from spanwise import Component, ExampleGen, Examples, Gate, Input, Model, Output, Pipeline, Refused, RollingWindow


class Big(Gate):
    def run(self, examples: Input[Examples]) -> None:
        rows = sum((examples.rows or {}).values())
        if rows < 5:
            raise Refused(f"{rows} rows")


class Learn(Component):
    def run(self, clicks: Input[list[Examples]], prices: Input[list[Examples]], model: Output[Model]) -> None:
        model.spans = [e.span for e in clicks]


def shop() -> Pipeline:
    clicks = ExampleGen(pattern="clicks/{YYYY}-{MM}-{DD}/*.csv", name="Clicks")
    prices = ExampleGen(pattern="prices/{YYYY}-{MM}/*.csv", name="Prices")
    many, dear = Big(examples=clicks["examples"], name="Many"), Big(examples=prices["examples"], name="Dear")
    days = RollingWindow(many["examples"], size=2, since="2026-11-21", name="Days")
    months = RollingWindow(dear["examples"], size=1, name="Months")
    learn = Learn(clicks=days["examples"], prices=months["examples"])
    return Pipeline("shop", [clicks, prices, many, dear, days, months, learn])
'''


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """One day and one month, each too small for its gate."""
    monkeypatch.chdir(tmp_path)
    run_inline(monkeypatch)
    bench = Bench(tmp_path)
    (tmp_path / "shop.py").write_text(SOURCES)
    for place in ("clicks/2026-11-21", "prices/2026-11"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "rows.csv").write_text("x\n1\n2\n")
    return bench


def test_a_person_accepts_spans_of_each_calendar(shop, capsys):
    """A refusal names its node where several are judged; the command judges that node's span, and no other."""
    shop.spanwise("run", "shop.py", "--span", "Clicks=2026-11-21", "--span", "Prices=2026-11")
    accepts = [c for c in printed(capsys.readouterr().out) if c.startswith("accept")]

    assert accepts == [
        "accept shop.py --span Clicks=2026-11-21 --because TEXT",
        "accept shop.py --span Prices=2026-11 --because TEXT",
    ]
    for command in accepts:
        assert shop.spanwise(*shlex.split(command)) == 0
        said = capsys.readouterr().out
        assert said.count("Accepted") == 1
    assert shop.spanwise(*shlex.split(printed(said)[0])) == 0
    assert shop.spanwise("refuse", "shop.py", "--span", "Prices=2026-11", "--because", "too dear") == 0


def test_a_refused_span_of_a_part_is_corrected_and_run_by_the_printed_command(shop, capsys, tmp_path):
    """It begins where the part began, since the run names no span for the nodes before."""
    clicks, prices = (tmp_path / place / "rows.csv" for place in ("clicks/2026-11-21", "prices/2026-11"))
    for file in (clicks, prices):
        file.write_text("x\n" + "1\n" * 9)
    assert shop.spanwise("run", "shop.py", "--span", "Clicks=2026-11-21", "--span", "Prices=2026-11") == 0
    prices.write_text("x\n1\n")
    capsys.readouterr()
    shop.spanwise("run", "shop.py", "--from", "Prices", "--span", "Prices=2026-11")
    again = next(c for c in printed(capsys.readouterr().out) if c.startswith("run"))
    prices.write_text("x\n" + "2\n" * 9)

    assert again == "run shop.py --span Prices=2026-11 --from Prices"
    assert shop.spanwise(*shlex.split(again)) == 0


def test_what_a_complete_part_prints_can_be_pasted(shop, capsys):
    """Nothing, where its nodes have spans of their own and it had left some out."""
    shop.spanwise("run", "shop.py", "--only", "Prices", "--span", "Prices=2026-11")
    capsys.readouterr()

    assert shop.spanwise("resume", "shop/1") == 2

    assert capsys.readouterr().err.rstrip().endswith("is complete, so there is nothing to resume.")


@pytest.mark.parametrize(
    ("span", "why"),
    [
        ("2026-11-21", "use different calendars"),
        ("Ads=2026-11", "no gate judges spans of 'Ads'"),
        ("Prices=2026-10", "has published nothing for span 2026-10"),
    ],
)
def test_what_is_no_span_of_a_judged_node_is_refused(shop, capsys, span, why):
    """The message shows what to type."""
    shop.spanwise("run", "shop.py")
    capsys.readouterr()

    assert shop.spanwise("accept", "shop.py", "--span", span, "--because", "a sale") == 2

    assert why in capsys.readouterr().err
