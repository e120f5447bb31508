"""The notebook of the docs runs from its first cell to its last, as a kernel runs it: inside an event loop."""

import ast
import asyncio
import json
from pathlib import Path

NOTEBOOK = Path(__file__).parents[3] / "docs" / "how-to" / "use-a-notebook.ipynb"


def test_the_notebook_runs_from_its_first_cell_to_its_last(folder, capsys):
    """Each cell has the names of those before it; what its last line is shows itself."""
    names, shown = {}, []

    async def run_cells():
        for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] == "code":
                body = ast.parse("".join(cell["source"])).body
                last = body.pop() if isinstance(body[-1], ast.Expr) else None
                exec(compile(ast.Module(body, []), str(NOTEBOOK), "exec"), names)
                if last is not None:
                    value = eval(compile(ast.Expression(last.value), str(NOTEBOOK), "eval"), names)
                    shown.append(value._repr_html_() if hasattr(value, "_repr_html_") else "")

    asyncio.run(run_cells())
    printed = capsys.readouterr().out

    assert printed.count("complete") == 2
    assert "ingested" in printed
    assert any("<table>" in html for html in shown)
