"""Makes the pictures of the web page: the demo's root, a server over it, and a headless Chromium: `make pictures`."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")
PICTURES = {
    "ui-overview": ("/", "light", 1280, 420),
    "ui-runs": ("/p/flights/runs", "light", 1280, 800),
    "ui-run": ("/runs/flights/9", "dark", 1280, 800),
    "ui-spans": ("/p/flights/spans", "light", 1280, 640),
    "ui-models": ("/p/flights/models", "light", 1280, 800),
    "ui-phone": ("/", "dark", 390, 700),
}


def main() -> None:
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as opened:
        demo = Path(folder) / "demo"
        subprocess.run([sys.executable, "-m", "spanwise.pipelines.flights_demo", "--folder", str(demo)], check=True)
        # A schedule that is late and a second pipeline would be there in practice; a span without data fails.
        spanwise = [sys.executable, "-m", "spanwise"]
        subprocess.run([*spanwise, "run", "flights.py", "--span", "2013-01-12"], cwd=demo, check=False)
        server = subprocess.Popen([*spanwise, "ui", "--port", "0"], cwd=demo, stdout=subprocess.PIPE, text=True)
        opened.callback(server.wait)
        opened.callback(server.terminate)
        assert server.stdout is not None
        found = re.search(r"http\S+(?=/ )", server.stdout.readline())
        assert found is not None
        playwright = opened.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for name, (path, scheme, width, height) in PICTURES.items():
            context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": height})
            page = context.new_page()
            page.goto(found[0] + path)
            page.wait_for_timeout(500)
            page.screenshot(path=HERE / "pictures" / f"{name}.png")
            context.close()
        browser.close()


if __name__ == "__main__":
    main()
