"""Cards of notebooks, bars in them, and the two executed notebooks: their code runs, and what they show is whole."""

import json
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import sklearn

from isthmus import LeastSquares, PrivateClassifier, algorithms, minimize, plan
from isthmus.base import notebook

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = ("private_table.ipynb", "torch_training.ipynb")
X = np.random.default_rng(0).uniform(-1, 1, (200, 2))
QUICK: dict[str, Any] = {"algorithm": "dp_gd", "bounds": (-1, 1), "max_iter": 2, "classes": ["<a>", "b"]}


def cells(name: str, kind: str) -> list[dict[str, Any]]:
    data = json.loads((EXAMPLES / name).read_text(encoding="utf-8"))
    return [cell for cell in data["cells"] if cell["cell_type"] == kind]


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_small_and_was_executed_as_it_is_written(name: str) -> None:
    assert (EXAMPLES / name).stat().st_size < 200_000
    code = cells(name, "code")
    made = runpy.run_path(str(EXAMPLES / "make_notebooks.py"))
    sources = [source for kind, source in made["cells_of"](made["NOTEBOOKS"][name]) if kind == "code"]
    assert ["".join(cell["source"]) for cell in code] == sources
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} <= {"stream", "execute_result", "display_data"}
    assert all(output.get("name") != "stderr" for output in outputs)
    assert any("What was released" in json.dumps(output) or "how often" in json.dumps(output) for output in outputs)


@pytest.mark.parametrize("name", NAMES)
def test_the_code_of_a_notebook_runs(name: str) -> None:
    pytest.importorskip("pandas")
    space: dict[str, Any] = {}
    for cell in cells(name, "code"):
        source = "".join(cell["source"]).replace("EPOCHS, DELTA = 30", "EPOCHS, DELTA = 2")
        exec(compile(source, name, "exec"), space)
    if name == "torch_training.ipynb":
        space["plt"].close("all")
        assert space["engine"].get_epsilon(1e-5) <= 4.0 + 1e-6
    else:
        assert space["model"].privacy_.epsilon <= 3.0


def test_a_fitted_estimator_shows_its_guarantee_below_the_diagram() -> None:
    model = PrivateClassifier(epsilon=1.0, **QUICK)
    assert "a fit will spend epsilon = 1.0" in model._repr_html_()
    y = np.where(X[:, 0] > 0, "<a>", "b")
    model.fit(X, y)
    card = model.privacy_._repr_html_()
    assert model._repr_html_().endswith(card) and "sk-" in model._repr_html_()
    assert model._repr_mimebundle_()["text/html"].endswith(card)
    with sklearn.config_context(display="text"):
        assert list(model._repr_mimebundle_()) == ["text/plain"] and not hasattr(model, "_repr_html_")
    bare = PrivateClassifier(epsilon=float("inf"), **QUICK | {"algorithm": "gd"}).fit(
        X, np.where(X[:, 0] > 0, "<a>", "b")
    )
    assert "NOT private" in bare._repr_html_()


def test_results_and_plans_are_cards() -> None:
    recipe = algorithms.dp_gd(epsilon=1.0, delta=1e-5, clip=1.0, step=0.1, n="exact")
    private = minimize(LeastSquares(X, X[:, 0]), recipe, steps=2)
    assert private.privacy is not None and private._repr_html_().endswith(private.privacy._repr_html_())
    plain = minimize(LeastSquares(X, X[:, 0]), algorithms.gd(step=0.1), steps=2)
    assert "nothing is guaranteed" in plain._repr_html_() and "last loss" in plain._repr_html_()
    ranked = plan(n=30_000, d=20, epsilon=1.0, exact=False)
    card = ranked._repr_html_()
    assert f"Use {ranked.best.name}" in card and card.count("<tr>") == len(ranked.choices) + 1
    assert all("<script" not in text for text in (card, private._repr_html_()))


def test_text_is_escaped_and_colours_are_the_pages() -> None:
    evil = "<script>alert(1)</script>"
    pieces = (
        notebook.table([evil], [[evil]])
        + notebook.facts([(evil, evil)])
        + notebook.paragraph(evil)
        + notebook.items([evil])
    )
    card = notebook.card(evil, pieces, notebook.details(evil), tone="bad")
    assert "<script" not in card and card.count("&lt;script&gt;") == 8
    assert "color:" not in card.replace("border-left:4px solid", "") and "background:none" in card


def test_bars_are_shown_in_a_notebook_and_not_in_a_file(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    assert notebook.bar(3).disable
    shell = SimpleNamespace(config={"IPKernelApp": {}})
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    with notebook.bar(3, unit="round") as bar:
        assert not bar.disable
        bar.update(3)
    assert "3/3" in capsys.readouterr().err
