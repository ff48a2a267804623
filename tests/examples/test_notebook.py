"""The notebook: every cell runs, and what it ends with is shown as HTML."""

from __future__ import annotations

import ast
import json
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import plotly.io
import pytest
from plotly.io import renderers
from plotly.offline import get_plotlyjs

from ipuscope.profiler import open_report
from ipuscope.viewer.figures import theme
from tests.paths import ROOT
from tests.strangers import HTML
from tests.synthetic import synthetic_profile

NOTEBOOK = ROOT / "examples" / "notebook.ipynb"


def run_cell(source: str, names: dict[str, Any]) -> Any:
    """Run a cell as a kernel would; the value of its last expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, str(NOTEBOOK), "exec"), names)
    if last is None:
        return None
    assert isinstance(last, ast.Expr)
    return eval(compile(ast.Expression(last.value), str(NOTEBOOK), "eval"), names)


def test_every_cell_runs_and_shows_something(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Figures need no network: plotly.js is in what the notebook's first figure shows."""
    written: list[str] = []
    ipython = SimpleNamespace(display_html=lambda words, raw: written.append(words))
    monkeypatch.setattr(plotly.io._base_renderers, "ipython_display", ipython)
    monkeypatch.setattr(renderers, "default", "plotly_mimetype")
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    names: dict[str, Any] = {}
    shown = {}
    for cell in cells:
        assert not cell.get("outputs"), "the notebook is kept without outputs"
        if cell["cell_type"] != "code":
            continue
        source = "".join(cell["source"])
        value = run_cell(source, names)
        if hasattr(value, "_repr_html_"):
            shown[source.splitlines()[-1]] = value._repr_html_()
        if "report.figures" in source:  # whatever colour the notebook has
            assert value.layout.paper_bgcolor == theme.LIGHT.card
        if source.endswith("shown"):
            with urllib.request.urlopen(value.address) as answer:
                assert answer.status == 200
                assert "X-Frame-Options" not in answer.headers
                assert "http://localhost:*" in answer.headers["Content-Security-Policy"]
    names["shown"].close()
    assert "a weight update" in shown["report"]
    assert all("plotly" in words for line, words in shown.items() if line.startswith("report.fig"))
    assert not any("https://cdn.plot.ly" in words for words in shown.values())
    assert any(get_plotlyjs()[:1000] in words for words in written)
    assert sum(line.startswith("report.figures") for line in shown) == 3
    assert "<iframe src='http://127.0.0.1:" in shown["shown"]
    assert " x  half precision" in capsys.readouterr().out


def test_a_strangers_names_are_text_in_a_notebook(tmp_path: Path) -> None:
    folder = tmp_path / HTML.replace("/", "")
    folder.mkdir()
    with open_report(synthetic_profile(folder / "profile.pop")) as report:
        words = report._repr_html_()
    assert "samples a second" in words
    assert "<img" not in words
    assert "<script" not in words
