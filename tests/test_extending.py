"""examples/own_parts.py: five parts of somebody else's, defined outside the package, go through every door."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from engine.engine_cases import private, step

import isthmus
from isthmus import Logistic, PrivateClassifier, PrivateRegressor, algorithms, estimators, minimize
from isthmus.algorithms.purchases import ClassCounts, Ranges, buying
from isthmus.core.wire import State
from isthmus.privacy import Charge, Ledger, PrivacyPlan, PrivacyStatement

FILE = Path(__file__).parents[1] / "examples" / "own_parts.py"


@pytest.fixture(scope="module")
def parts() -> Any:
    """The example as a module of its own."""
    spec = importlib.util.spec_from_file_location(FILE.stem, FILE)
    assert spec is not None and spec.loader is not None
    module = sys.modules[FILE.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules[FILE.stem]


@pytest.fixture(scope="module")
def table() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (3000, 6))
    return X, (X @ [2.0, 1.0, 0.5, 0.0, 0.0, 0.0] > 0).astype(int)


def objective(parts: ModuleType, table: Any) -> Any:
    return parts.SquaredHinge(table[0] / np.sqrt(6), table[1], classes=(0, 1))


def test_the_example_runs(parts: Any, capsys: pytest.CaptureFixture[str]) -> None:
    parts.main()
    out = capsys.readouterr().out
    assert "rounded to a grid" in out and "folded_gd" in out and "epsilon=1" in out


@pytest.mark.parametrize("name", ["comp_sgd", "priv_sgd"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_sketch_goes_through_recipes_on_rows_of_every_precision(
    parts: Any, table: Any, name: str, dtype: torch.dtype
) -> None:
    more: dict[str, Any] = {} if name == "comp_sgd" else {"epsilon": 3.0, "delta": 1e-5, "clip": 1.0, "n": "exact"}
    recipe = getattr(algorithms, name)(m=3, step=0.5, sketch=parts.Folding, **more)
    X, y = torch.as_tensor(table[0]).to(dtype), table[1]
    x = minimize(Logistic(X, y, classes=(0, 1)), recipe, parts.Orthant(5.0), steps=30).x
    assert x is not None and x.dtype == dtype and parts.Orthant(5.0).contains(x)


def test_the_sketch_is_what_it_says(parts: Any) -> None:
    for d, m in ((12, 5), (10, 10), (7, 1)):
        sketch = parts.Folding(m).draw(d, seed=3, t=2)
        phi = sketch.dense()
        torch.testing.assert_close(phi @ phi.T, d / m * torch.eye(m, dtype=torch.float64))
        v = torch.arange(d, dtype=torch.float64)
        torch.testing.assert_close(sketch.forward(v), phi @ v)
        assert float(sketch.forward(v).norm()) <= sketch.gain(2) * float(v.norm())


def test_the_set_can_what_it_writes(parts: Any) -> None:
    cone = parts.Orthant(2.0)
    assert cone.can("project") and cone.can("lmo") and cone.can("diameter")
    assert cone.can("support") and not cone.can("gauge") and not cone.can("vertex_form")
    point = cone.project(torch.tensor([3.0, -1.0, 4.0]))
    assert cone.contains(point) and point.tolist() == pytest.approx([1.2, 0.0, 1.6])


def test_the_sketch_goes_through_the_engine(parts: Any) -> None:
    data = torch.utils.data.TensorDataset(torch.randn(60, 4), torch.randint(0, 2, (60,)))
    run = private(torch.nn.Linear(4, 2), data, batch=20, sketch=parts.Folding(5), noise_generator=None)
    for x, y in run.loader:
        step(run, x, y)
    assert run.engine.driver is not None and run.engine.driver.state.dims == 5 * len(run.loader)
    assumptions = run.engine.statement(1e-5).assumptions
    assert any("Folding, which is not of this library" in assumption for assumption in assumptions)


def test_the_recipe_runs_is_charged_stated_and_resumed(parts: Any, table: Any, tmp_path: Path) -> None:
    recipe = parts.folded_gd(epsilon=1.0, delta=1e-5, clip=0.5, step=2.0, n="exact")
    ledger = Ledger(tmp_path / "book", budget=(1.0, 1e-5))
    problem, cone = objective(parts, table), parts.Orthant(9.0)
    half = minimize(problem, recipe, cone, steps=20, ledger=ledger, record=1, callbacks=[lambda r, s: s.t == 8])
    half.state.save(tmp_path / "state")
    whole = minimize(problem, recipe, cone, steps=20, ledger=ledger, resume=State.load(tmp_path / "state"))
    assert ledger.rounds() == {"main": 20} and ledger.spent() == pytest.approx(1.0, rel=1e-3)
    words = whole.privacy.words()
    assert "20 times   Gaussian noise of" in words and "rounded to a grid" in words
    assert PrivacyStatement.from_json(whole.privacy.to_json()) == whole.privacy


def test_a_plan_sets_the_mechanism_and_is_stored(parts: Any) -> None:
    plan = PrivacyPlan(1.0, 1e-5, items=[Charge("a", parts.Coarse(1.0), rounds=4)])
    again = PrivacyPlan.from_json(plan.to_json())
    assert isinstance(again.mechanism("a"), parts.Coarse) and again.mechanism("a") == plan.mechanism("a")


def test_the_recipe_buys_what_is_not_declared(parts: Any, table: Any) -> None:
    recipe = parts.folded_gd(epsilon=1.0, delta=1e-5, clip=0.5, step=2.0, n="exact")
    ledger = Ledger(budget=(1.0, 1e-5))
    minimize(objective(parts, table), buying(recipe, [Ranges(), ClassCounts()]), steps=10, ledger=ledger)
    assert ledger.rounds() == {"ranges": 1, "classes": 1, "main": 10}
    model = PrivateClassifier(epsilon=1.0, algorithm=parts.folded_gd, classes=[0, 1], class_weight="balanced").fit(
        *table
    )
    assert model.privacy_.epsilon <= 1.0 and model.score(*table) > 0.7


def test_a_recipe_without_a_budget_of_ours_is_refused_by_name(table: Any) -> None:
    def own(binding: Any) -> Any:
        return algorithms.dp_gd(epsilon=1.0, delta=1e-5, clip=1.0, step=1.0, n="exact").build(
            isthmus.core.minimize.Binding(
                binding.constraint, binding.penalty, binding.space, binding.n, binding.steps, None
            )
        )

    with pytest.raises(isthmus.InvalidInput, match="own_gd.*Budget"):
        minimize(Logistic(*table, classes=(0, 1)), buying(isthmus.Recipe("own_gd", own), [Ranges()]), steps=3)


def test_a_half_written_loss_is_refused_by_name_and_breaks_no_other(table: Any) -> None:
    class Half(isthmus.objectives.LinearModel):
        name, reads = "half", None  # type: ignore[assignment]

        def losses(self, z: Any, y: Any) -> Any:
            return (z - y).square()

        def slopes(self, z: Any, y: Any) -> Any:
            return 2 * (z - y)

    tries = [
        lambda: Half(*table),
        lambda: PrivateClassifier(loss=Half, classes=[0, 1], bounds=(-1, 1)).fit(*table),
        lambda: isthmus.plan(n=3000, d=6, epsilon=1.0, loss=Half),
        lambda: isthmus.plan(n=3000, d=6, epsilon=1.0, loss="half"),
    ]
    for make in tries:
        with pytest.raises(isthmus.InvalidInput, match="Half.*(reads|how targets are read)"):
            make()
    assert isthmus.plan(n=3000, d=6, epsilon=1.0).choices
    PrivateClassifier(epsilon=1.0, classes=[0, 1], bounds=(-1, 1), max_iter=2).fit(*table)


def test_the_planner_ranks_the_recipe_and_the_loss(parts: Any) -> None:
    found = isthmus.plan(n=3000, d=6, epsilon=1.0, loss=parts.SquaredHinge, algorithms=["dp_gd", parts.folded_gd])
    choice = found.choice("folded_gd")
    assert choice.arguments["clip"] == 0.5 and choice.dims == 3 and "an example" in choice.evidence
    assert "folded_gd" in found.table() and "squared_hinge" in found.words()
    named = isthmus.plan(n=3000, d=6, epsilon=1.0, loss="squared_hinge")
    assert named.facts.of_loss is parts.SquaredHinge


def test_an_estimator_of_all_five_is_fitted_saved_and_loaded(parts: Any, table: Any, tmp_path: Path) -> None:
    model = PrivateClassifier(
        epsilon=2.0,
        algorithm=parts.folded_gd,
        loss=parts.SquaredHinge,
        constraint=parts.Orthant(10.0),
        classes=[0, 1],
        bounds=(-1, 1),
    ).fit(*table)
    assert model.score(*table) > 0.8 and parts.Orthant(10.0).contains(model._weights.reshape(-1))
    assert "rounded to a grid" in model.privacy_.words()
    estimators.save(model, tmp_path / "model.safetensors")
    again = estimators.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(again.predict(table[0]), model.predict(table[0]))
    assert again.constraint == model.constraint and again.loss is parts.SquaredHinge
    assert again.algorithm is parts.folded_gd and again.privacy_ == model.privacy_
    page = isthmus.report.Record.of(model, title="theirs", data={"name": "made up"}).to_dict()
    assert page["model"]["algorithm"] == "folded_gd"


def test_a_file_imports_nothing_by_itself(parts: Any, table: Any, tmp_path: Path) -> None:
    model = PrivateRegressor(
        epsilon=9.0, constraint=parts.Orthant(3.0), bounds=(-1, 1), target_bounds=(0, 1), algorithm="dp_gd"
    ).fit(*table)
    estimators.save(model, tmp_path / "model.safetensors")
    address = f"{parts.Orthant.__module__}:{parts.Orthant.__qualname__}"
    data = (tmp_path / "model.safetensors").read_bytes()
    assert address.encode() in data
    parts.Orthant.__qualname__ = "Gone"
    try:
        with pytest.raises(isthmus.InvalidInput, match="import the module that defines this"):
            estimators.load(tmp_path / "model.safetensors")
    finally:
        parts.Orthant.__qualname__ = "Orthant"
