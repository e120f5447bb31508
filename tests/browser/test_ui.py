"""The web page in a real browser: it looks right everywhere, says nothing to the console, and does what it shows."""

import os
import re
import subprocess
import sys
import time
from urllib.parse import quote

import pytest

from spanwise.orchestrator.mlmd import open_store
from tests.browser.conftest import FIRST, Server, record_spans
from tests.scheduler.web.certificates import make_certificate

PAGES = {
    "overview": "/",
    "runs": "/p/flights/runs",
    "spans": "/p/flights/spans",
    "span": "/p/flights/spans/2013-01-11",
    "run": "/runs/flights/12",
    "failed run": "/runs/flights/4",
    "models": "/p/flights/models",
    "slices of two models": "/p/flights/models?metric=auc&by=origin&a={first}&b={last}",
    "tainted": "/p/flights/tainted?span=2013-01-11",
    "waiting and publishing": "/runs/timed/1",
    "why": "/runs/flights/12/why/Trainer",
    "diff": "/runs/flights/12/diff",
    "data": "/data",
    "schedule": "/p/flights/schedule?from=2026-03-01&to=2026-03-15&duration=2h",
    "artifact": "/a/{newest}",
    "action": "/do/backfill?file=flights.py&first=2013-01-02",
    "activity": "/activity",
    "search": "/search?q=flights",
    "error": "/runs/flights/999",
}
EVERYWHERE = [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark"), (1920, "light"), (1920, "dark")]
LOOKS = EVERYWHERE if os.environ.get("SPANWISE_TEST_UI_EVERYWHERE") else [(1280, "light"), (390, "dark")]
"""In which axe looks for what a reader with other eyes, or without, cannot use; the width is checked in all."""


def address(server, path):
    import spanwise

    with spanwise.connect(server.folder / ".spanwise") as client:
        newest = client.artifacts("flights", kind="Examples", limit=2)[1].id
        models = [model.name for model in client.pipeline("flights").models(limit=2)]
        return server.url + path.format(newest=newest, first=models[1], last=models[0])


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_no_complaints_fits_and_is_accessible(server, tab, name):
    """At each width, light and dark: nothing in the console, nothing wider than the window, no serious finding of axe."""
    axe_of = pytest.importorskip("axe_playwright_python.sync_playwright")
    page = tab(address(server, PAGES[name]))
    page.wait_for_load_state("load")
    for width, scheme in EVERYWHERE:
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": width, "height": 800})
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, (width, scheme)
        if (width, scheme) not in LOOKS:
            continue
        page.wait_for_timeout(150)  # colours move from one theme to the other
        options = {"runOnly": ["wcag2a", "wcag2aa"], "iframes": False}
        violations = axe_of.Axe().run(page, options=options).response["violations"]
        serious = [
            (v["id"], [n["html"][:160] for n in v["nodes"][:3]])
            for v in violations
            if v["impact"] in ("serious", "critical")
        ]
        assert serious == [], (width, scheme)
    allowed = ("404",) if name == "error" else ("Blocked script execution",) if name == "artifact" else ()
    assert [c for c in page.complaints if not any(a in c for a in allowed)] == []


def test_the_keyboard_reaches_everything(server, tab):
    """The first key skips to the content, the key / goes to the search, and a cell of a span is a link."""
    page = tab(server.url + "/p/flights/spans")
    page.keyboard.press("Tab")
    skip = page.evaluate("document.activeElement.textContent")
    page.keyboard.press("Enter")
    page.keyboard.press("/")
    page.keyboard.type("2013-01-05")
    page.keyboard.press("Enter")
    page.wait_for_url("**/search*")

    assert skip == "Skip to content"
    assert "2013-01-05 of flights" in page.inner_text("main")


def test_a_range_of_spans_is_chosen_by_dragging(server, tab):
    """And leads to the plan of a backfill, with both ends filled in."""
    page = tab(server.url + "/p/flights/spans")
    first = page.locator("rect[data-span]").nth(2).bounding_box()
    last = page.locator("rect[data-span]").nth(6).bounding_box()
    page.mouse.move(first["x"] + 4, first["y"] + 4)
    page.mouse.down()
    page.mouse.move(last["x"] + 4, last["y"] + 4, steps=4)
    page.mouse.up()

    assert page.input_value("[name=first]") == "2013-01-03"
    assert page.input_value("[name=last]") == "2013-01-07"
    assert page.url.endswith("/spans")


def test_what_the_reader_has_chosen_and_selected_stays_while_the_page_changes(server, tab):
    """A range of spans and a selection of text outlive the next span, which appears by itself."""
    page = tab(server.url + "/p/daily/spans")
    cells = page.locator("rect[data-span]")
    first, last = cells.nth(2).bounding_box(), cells.nth(6).bounding_box()
    page.mouse.move(first["x"] + 4, first["y"] + 4)
    page.mouse.down()
    page.mouse.move(last["x"] + 4, last["y"] + 4, steps=4)
    page.mouse.up()
    marked = "[...document.querySelectorAll('.chosen')].map((cell) => Number(cell.dataset.span))"
    chosen = page.evaluate(marked)
    page.evaluate("getSelection().selectAllChildren(document.getElementById('span-2013-01-05'))")
    selected = page.evaluate("getSelection().toString()")
    store = open_store(str(server.folder / ".spanwise" / "metadata.db"), root=server.folder / ".spanwise")
    record_spans(store, "daily", "day", [FIRST + 9])
    store.close()
    page.wait_for_selector("#span-2013-01-10", timeout=120_000)

    assert chosen == list(range(FIRST + 2, FIRST + 7))
    assert page.evaluate(marked) == chosen
    assert page.evaluate("getSelection().toString()") == selected != ""
    assert page.complaints == []


def test_of_very_many_spans_a_range_is_chosen_and_one_is_opened(server, tab):
    """Where cells are too small to be links of their own, what is under the pointer is told from its place."""
    page = tab(server.url + "/p/hourly/spans")
    box = page.locator("rect[data-base]").bounding_box()
    assert page.locator("[data-span]").count() == 0
    hour = box["height"] / 24
    page.mouse.move(box["x"] + 1, box["y"] + 5.5 * hour)
    page.mouse.down()
    page.mouse.move(box["x"] + 1, box["y"] + 20.5 * hour, steps=3)
    page.mouse.up()
    chosen = page.input_value("[name=first]"), page.input_value("[name=last]")
    page.mouse.click(box["x"] + 1, box["y"] + 7.5 * hour)
    page.wait_for_url("**/spans/*")

    assert chosen == ("2013-01-01T05", "2013-01-01T20")
    assert page.inner_text("h1").startswith("2013-01-01T07")
    assert page.complaints == []


def test_a_run_is_watched_from_start_to_end_and_keeps_what_was_opened(server, tab):
    """The page of pipelines shows it by itself; what the reader has opened on the page of the run stays open."""
    overview = tab(server.url + "/")
    command = [sys.executable, "-P", "-m", "spanwise", "run", "flow.py", "--param", "sleep_s=4", "--no-cache"]
    running = subprocess.Popen(command, cwd=server.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    overview.wait_for_selector("#row-flow", timeout=120_000)
    page = tab(server.url + "/runs/flow/1", height=400)
    page.wait_for_selector("#node-First .state.complete", timeout=120_000)
    page.click("#more-First summary")
    page.fill("#q", "half typed")
    page.evaluate("scrollTo(0, 150)")
    assert page.evaluate("scrollY") == 150
    page.wait_for_selector("#node-Second .state.complete", timeout=120_000)
    page.wait_for_selector("#node-Third .state.complete", timeout=120_000)
    page.wait_for_selector(".lead .state.complete", timeout=120_000)
    running.wait()

    assert page.evaluate("document.getElementById('more-First').open")
    assert page.input_value("#q") == "half typed"
    assert page.evaluate("document.activeElement.id") == "q"
    assert page.evaluate("scrollY") == 150
    assert page.complaints == overview.complaints == []


def test_an_action_is_clicked_through_and_its_job_outlives_the_server(server, tab):
    """The form, the command, the job; the page says when the server is gone, and comes back by itself."""
    page = tab(server.url + "/do/run?file=flow.py")
    assert "spanwise run -- flow.py" in page.inner_text("main")
    page.click("button.primary")
    page.wait_for_url("**/jobs/*")
    server.stop()
    page.wait_for_selector("#offline:not([hidden])", timeout=120_000)
    server.start()
    page.wait_for_selector("#offline[hidden]", state="attached", timeout=120_000)
    page.wait_for_selector(".lead .state.complete", timeout=120_000)

    assert "exit code 0" in page.inner_text("main")
    assert re.search(r"asked for by \S+@\S+", page.inner_text("main"))


def test_a_report_made_by_users_has_no_rights(server, tab):
    """Its script does not run, and its frame is not of this site."""
    page = tab(address(server, PAGES["artifact"]))
    frame = page.locator("iframe").first
    frame.scroll_into_view_if_needed()
    page.wait_for_timeout(500)
    inside = page.frames[1]

    assert inside.evaluate("document.querySelector('h1').textContent") == "report"
    assert "a dialog" not in page.complaints
    assert frame.get_attribute("sandbox") == ""


MEASURED = """
    count = RowCount(examples=ingest["examples"], at_least=24)
    measured = StatisticsGen(examples=count["examples"])
    schema = SchemaGen(statistics=measured["statistics"])
    checked = ExampleValidator(statistics=measured["statistics"], schema=schema["schema"])
"""


def test_what_a_run_has_measured_shows_on_the_pages_of_its_artifacts(tmp_path, tab):
    """Statistics, schema, anomalies and evaluation of a run of the pipeline that `spanwise init` creates."""
    import spanwise

    command = [sys.executable, "-P", "-m", "spanwise"]
    subprocess.run([*command, "init", str(tmp_path / "rides")], check=True, stdout=subprocess.DEVNULL)
    file = tmp_path / "rides" / "rides.py"
    text = file.read_text().replace("Gate, ", "ExampleValidator, Gate, SchemaGen, StatisticsGen, ", 1)
    text = re.sub("\n    count = .*\n", MEASURED, text).replace(
        "[ingest, count, ", "[ingest, count, measured, schema, checked, "
    )
    file.write_text(text)
    run = subprocess.run(
        [*command, "run", "rides.py", "--span", "2024-05-01"], cwd=file.parent, capture_output=True, check=False
    )
    assert run.returncode == 0, run.stderr
    with spanwise.connect(file.parent / ".spanwise") as client:
        kinds = ("ExampleStatistics", "ExampleAnomalies", "ModelEvaluation", "Schema")
        made = {kind: client.artifacts("rides", kind=kind, limit=1)[0].id for kind in kinds}
    running = Server(file.parent)
    try:
        page = tab(running.url)
        inside = {}
        for kind, said in (
            ("ExampleStatistics", "temperature"),
            ("ExampleAnomalies", "Anomalies"),
            ("ModelEvaluation", "r2"),
        ):
            page.goto(f"{running.url}/a/{made[kind]}")
            frame = page.frame_locator("iframe[sandbox='']").first
            inside[kind] = frame.locator("body").inner_text(timeout=60_000)
            assert said in inside[kind]
        page.goto(f"{running.url}/a/{made['Schema']}")
        schema = page.inner_text("#text")
        page.goto(f"{running.url}/p/rides/spans/2024-05-01")
        page.click("text=statistics.html of")
        unfolded = page.frame_locator("iframe[sandbox='']").first.locator("body").inner_text(timeout=60_000)

        assert "temperature" in schema
        assert "2024-05-01" in inside["ExampleStatistics"]
        assert unfolded == inside["ExampleStatistics"]
        assert [c for c in page.complaints if "Blocked script execution" not in c] == []
    finally:
        running.stop()


def test_the_first_page_is_there_soon_and_assets_are_small(server, tab):
    """300 KiB in all."""
    page = tab(server.url + "/")
    sizes = page.evaluate("performance.getEntriesByType('resource').map(r => [r.name, r.decodedBodySize])")
    began = time.monotonic()
    page.goto(server.url + "/")

    assert sum(size for _, size in sizes) < 300 * 1024
    assert time.monotonic() - began < 10


def test_over_tls_with_a_token_the_page_lives_and_acts(root, tab, tmp_path):
    """The token leaves the address, its cookie is for TLS alone and no script's; events and forms come through."""
    certificate, key = make_certificate(tmp_path)
    token = "an operator, of this test"
    options = ("--certificate", str(certificate), "--key", str(key))
    running = Server(root, *options, env={"SPANWISE_UI_TOKEN": token})
    try:
        page = tab(f"{running.url}/do/gc?token={quote(token)}", ignore_https_errors=True)
        (cookie,) = page.context.cookies()
        page.click("button.primary")
        page.wait_for_url("**/jobs/*")
        page.wait_for_selector(".lead .state.complete", timeout=120_000)

        assert running.url.startswith("https://")
        assert "token" not in page.url
        assert (cookie["secure"], cookie["httpOnly"]) == (True, True)
        assert page.locator("#offline[hidden]").count() == 1
        assert page.complaints == []
    finally:
        running.stop()
