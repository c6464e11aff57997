"""What is bought before the loop: one record moves it by at most its bound, its noise is what is stated."""

import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from scipy import stats
from torch import Tensor

import isthmus
from isthmus import InvalidInput, L2Ball, LeastSquares, Logistic, Poisson, algorithms, minimize
from isthmus.algorithms import purchases
from isthmus.algorithms.purchases import ClassCounts, Columns, Lambda, Moments, Ranges, Shapes, Statistics, SumPurchase
from isthmus.base.matrix import matmul, to_dense
from isthmus.base.space import Space
from isthmus.core.minimize import PrivateSide, Purchased
from isthmus.core.pipeline import Local, Promise, Release, measure
from isthmus.core.wire import State
from isthmus.gradients.rounding import KAPPA
from isthmus.privacy import Adjacency, Charge, Gaussian, Ledger, PrivacyPlan, epsilon_of
from isthmus.privacy.clips import Rounding
from isthmus.problems.scaling import RowMap, RowMaps, Scaled
from isthmus.sketches.compose import IdentityMap

D = 4
HALF_KNOWN = (torch.tensor([0.0, math.nan, -1.0, math.nan]), torch.tensor([1.0, math.nan, 1.0, 2.0]))
ITEMS: dict[str, SumPurchase] = {
    "ranges": Ranges(),
    "some ranges": Ranges(*HALF_KNOWN),
    "targets": purchases.TargetRange(),
    "classes": ClassCounts(),
    "columns": Columns(),
    "moments": Moments(),
    "lambda": Lambda(),
    "statistics": Statistics(),
    "shapes": Shapes(8, level=2),
    "target shape": purchases.TargetShape(),
    "class shares": purchases.TargetShape(),
    "target half": purchases.TargetHalf(0.01, "target half"),
    "target reach": purchases.TargetReach(0.01, "target reach", 2.0),
    "target mean": purchases.TargetMean(0.5),
}
VIEWS = ("raw", "csr", "mapped", "mapped csr", "float32")
BIG = 1e300
STRANGERS = [
    [1.0, 0, 0, 0], [0.5, 0.5, 0.5, 0.5], [0.0] * D, [BIG] * D, [BIG, -BIG, 0, 1], [-1.0, 0, 0, 0],
    [5e-324, 0, 0, 0], [1e-200, 1e200, 0, 0], [1e160] * D, [0.25, 0.1, -0.3, 1e-7], [1.0 + 1e-12, 0, 0, 0],
]  # fmt: skip


def table(n: int = 60, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, D)) * [0.3, 0.05, 0.2, 0.4] + [0.1, 0, 0, 0.2], rng.integers(0, 2, n)


def objective(name: str, X: np.ndarray, y: np.ndarray, view: str) -> Any:
    """The problem a purchase is made for, its rows seen in one of several ways."""
    seen: Any = sp.csr_matrix(X) if "csr" in view else torch.from_numpy(X)
    if view == "float32":
        seen = torch.from_numpy(np.clip(X, -1e30, 1e30)).float()
    if view.startswith("mapped"):
        shift = None if "csr" in view else torch.tensor([0.1, 0.0, 0.0, 0.2]).double()
        seen = RowMaps([RowMap(shift=shift, weight=torch.tensor([1.0, 5, 1, 1]), limit=1.0, bias=0.3)])(seen)
    if name in ("classes", "class shares"):
        return Logistic(seen, y, classes=(0, 1))
    return LeastSquares(seen, np.where(y > 0, 1.0, -1.0) if name in ("statistics", "target reach") else 3.0 * y - 1.0)


def measured(item: SumPurchase, problem: Any) -> Tensor:
    """What the item would release without its noise, as `measure` hands it to the mechanism."""
    clip = item.clip(problem)
    rows, rounding = item.rows(problem), Rounding(None)
    sketch = IdentityMap(Space.flat(rows.d))
    bounded = measure(Release(item.name, clip=clip), sketch, clip.init(), rows, rounding=rounding)
    assert bounded.bound == item.bound(problem) and bounded.value.shape == (rows.d,)
    return bounded.value.double()


def cases() -> list[tuple[str, str]]:
    sparse_free = {"ranges", "some ranges", "shapes"}
    return [(name, view) for name in ITEMS for view in VIEWS if not (name in sparse_free and "csr" in view)]


@pytest.mark.parametrize(("name", "view"), cases())
def test_no_record_moves_a_release_by_more_than_its_bound(name: str, view: str) -> None:
    """Adding a record, however strange, to a data set that holds strange ones already."""
    item, (X, y) = ITEMS[name], table()
    for others in (X, np.vstack([X, STRANGERS[3], STRANGERS[8]]), X[:1], np.vstack([X[:1]] * 50)):
        labels = np.resize(y, len(others))
        before = objective(name, others, labels, view)
        bound = item.bound(before)
        for stranger in STRANGERS:
            for label in (0, 1):
                after = objective(name, np.vstack([others, stranger]), np.append(labels, label), view)
                assert item.bound(after) == bound, "the bound is public: it must not depend on the records"
                moved = float((measured(item, after) - measured(item, before)).norm())
                assert moved <= bound


@pytest.mark.parametrize("name", ITEMS)
def test_the_bound_is_reached(name: str) -> None:
    """By a unit vector on an axis, or by any record where records are counted."""
    item, (X, y) = ITEMS[name], table(20)
    X[:, 1:] = 0  # so that the largest eigenvalue belongs to the stranger's axis
    before = objective(name, X, y, "raw")
    after = objective(name, np.vstack([X, [1.0, 0, 0, 0]]), np.append(y, 1), "raw")
    moved = float((measured(item, after) - measured(item, before)).norm())
    assert moved == pytest.approx(item.bound(before), rel=1.01 * KAPPA)
    assert moved <= item.bound(before)


@pytest.mark.parametrize("target", [1e300, -1e300, 0.0, 5e-324, 1.0])
def test_targets_of_any_size_move_one_count(target: float) -> None:
    X, y = table()
    for kind in (LeastSquares, Poisson) if target >= 0 else (LeastSquares,):
        before, after = kind(X, abs(y)), kind(np.vstack([X, X[:1]]), np.append(abs(y), target))
        moved = measured(purchases.TargetRange(), after) - measured(purchases.TargetRange(), before)
        assert float(moved.norm()) == 1 and float(moved.sum()) == 1
    X = X / 9  # rows inside the ball, targets anywhere
    pair = LeastSquares(X, y), LeastSquares(np.vstack([X, [1.0, 0, 0, 0]]), np.append(y, target))
    before, after = (measured(Statistics(), problem) for problem in pair)
    assert float((after - before).norm()) <= math.sqrt(2) * (1 + 1e-9)


def test_counts_of_classes_are_counts() -> None:
    X = table(5)[0]
    assert measured(ClassCounts(), isthmus.Softmax(X, [2, 0, 2, 2, 1], classes=4)).tolist() == [1, 1, 3, 0]
    assert measured(ClassCounts(), Logistic(X, [1, 0, 1, 1, 1])).tolist() == [1, 4]


# ---------------------------------------------------------------- noise


def bought(item: SumPurchase, problem: Any, ledger: Any, draws: int = 1) -> tuple[list[Tensor], PrivacyPlan]:
    """What `draws` purchases of one item give, one after the other from one source of noise."""
    plan = PrivacyPlan(1.0, 1e-5, items=[Charge(item.name, share=1.0)])
    side = PrivateSide(Promise(1.0, 1e-5, plan=plan), ledger, noise_seed=0)
    buy = purchases._Paid(item, plan.mechanism(item.name), purchases.Terms(problem.n, 10, 1.0, 0.3))
    buy.check(problem)
    stage, space = buy.stage(problem)
    return [side.look(stage, Local(problem), space) for _ in range(draws)], plan


class Uncounted(Ledger):
    """A ledger for a thousand draws."""

    def run(self, events: Any, *options: Any, **more: Any) -> Any:
        assert all(isinstance(event, type(Gaussian(1.0).event())) for event in events.values())
        return nullcontext(self)

    def charge(self, stage: Any, t: int) -> None:
        """Nothing is counted."""


@pytest.mark.parametrize("name", ITEMS)
def test_the_noise_has_the_stated_scale_and_no_other(name: str) -> None:
    item, problem = ITEMS[name], objective(name, *table(8), "raw")
    exact = measured(item, problem)
    values, plan = bought(item, problem, Uncounted(), 1 + 1200 // exact.numel())
    draws = [value - exact for value in values]
    noise = torch.cat(draws).numpy() / (plan.multiplier(item.name) * item.bound(problem))
    assert stats.kstest(noise, "norm").pvalue > 1e-3
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(noise * wrong, "norm").pvalue < 1e-5
    assert epsilon_of(Gaussian(plan.multiplier(item.name)).event(), 1e-5) <= 1.0 + 1e-9


def test_everything_bought_is_charged_with_the_event_of_its_noise() -> None:
    X, y = table(200)
    ledger = Ledger(budget=(1.0, 1e-5), adjacency=Adjacency.ADD_REMOVE)
    recipe = algorithms.dp_gd(epsilon=1.0, delta=1e-5, clip=1.0, step="auto", scale="moments", n="exact")
    recipe = purchases.buying(recipe, [Ranges(), ClassCounts()])
    result = minimize(Logistic(X, y, classes=(0, 1)), recipe, steps=5, ledger=ledger, noise_seed=0)
    assert ledger.rounds() == {"ranges": 1, "classes": 1, "scale": 1, "lambda": 1, "main": 5}
    assert set(result.state.parts["prepare"]) == {"ranges", "classes", "scale", "lambda"}
    assert ledger.spent() == pytest.approx(1.0, rel=1e-3) and ledger.spent() <= 1.0
    assert result.privacy.nominal == pytest.approx(ledger.spent(), rel=1e-9)
    wide = [record["event"]["noise_multiplier"] for record in ledger.records() if record["kind"] == "charge"]
    share = [wide[-1] ** 2 / 5 / z**2 for z in wide[:2]]
    assert share[0] / share[1] == pytest.approx(Ranges().share / ClassCounts().share, rel=1e-6)


# ---------------------------------------------------------------- what follows from what was bought


def prepared(item: SumPurchase, problem: Any, noise: float = 1e-9) -> Purchased:
    return item.apply(Purchased(problem), measured(item, problem), noise, purchases.Terms(problem.n, 10, 1.0, 0.5))


def test_octaves_are_powers_of_two_on_either_side_of_zero() -> None:
    values = torch.tensor([0.0, -0.0, 1.0, 1.999, 2.0, -1.0, 1e-30, -1e300, 1e300], dtype=torch.float64)
    middle = purchases.BINS // 2
    assert (purchases.octaves(values) - middle).tolist() == [0, 0, 42, 42, 43, -42, 1, -105, 105]


def test_ranges_hold_what_most_records_have() -> None:
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.uniform(30, 60, 5000), rng.uniform(-3, 1, 5000), np.zeros(5000), rng.uniform(0, 1, 5000)])
    X[0] = 1e9  # one far record widens nothing
    counts = measured(Ranges(), LeastSquares(X, X[:, 0])).view(-1, purchases.BINS)
    low, high, second = purchases.ranges(counts, 5.0, 5000)
    assert (low[0], high[0]) == (16, 64) and low[1] == -4 and high[1] == 1
    assert (low[2], high[2]) == (-1, 1), "a column of zeros gets the range that is taken where nothing is known"
    assert 0 <= low[3] <= 0.02 and high[3] == 1
    shift, half = purchases._centre(low, high)
    truth = (((torch.from_numpy(X[1:]) - shift) / half) ** 2).mean(0)
    assert bool((second >= 0.5 * truth).all()) and bool((second <= 1.5 * truth).all())


def test_noise_alone_shows_no_range() -> None:
    noise = 100 * torch.randn(50, purchases.BINS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    low, high, _ = purchases.ranges(noise, 100.0, 1000)
    assert low.tolist() == [-1.0] * 50 and high.tolist() == [1.0] * 50


def test_known_ranges_are_kept_and_only_the_others_are_bought() -> None:
    X, y = table(500)
    problem = objective("ranges", X, y, "raw")
    item = Ranges(*HALF_KNOWN, bias=1.0)
    assert measured(item, problem).numel() == 2 * purchases.BINS
    assert item.bound(problem) == pytest.approx(math.sqrt(2))
    found = prepared(item, problem).transform.maps[0]
    assert found.low[[0, 2]].tolist() == [0, -1] and found.high[[0, 2]].tolist() == [1, 1]
    assert not bool(found.low.isnan().any() | found.high.isnan().any())
    rows = prepared(item, problem).objective.X
    assert rows.shape == (500, D + 1) and bool((rows.upper <= 1).all())


def test_targets_are_mapped_to_the_bought_range() -> None:
    X = table(1000)[0]
    y = np.random.default_rng(1).uniform(3, 30, 1000)
    begun = prepared(purchases.TargetRange(), LeastSquares(X, y))
    assert begun.target == (2, 32)
    shift, width = purchases.target_map(*begun.target, False)
    torch.testing.assert_close(begun.objective.y, torch.from_numpy((y - shift) / width))
    counts = prepared(purchases.TargetRange(), Poisson(X, np.floor(y)))
    assert counts.target == (2, 32) and float(counts.objective.y.max()) <= 1
    torch.testing.assert_close(counts.objective.y, torch.from_numpy(np.floor(y) / 32))


@pytest.mark.parametrize("middle", [-0.83, 0.002, 0.4])
def test_targets_are_found_in_a_range_a_hundred_times_as_wide(middle: float) -> None:
    y = middle + 0.01 * np.random.default_rng(1).standard_normal(1000)
    begun = Purchased(LeastSquares(table(1000)[0], y))
    for item in purchases.place_of_targets(200.0, alone=False):
        begun = item.apply(begun, measured(item, begun.objective), 0.0, purchases.Terms(1000, 1, 1.0, 0.2))
    centre, reach = begun.centre
    assert abs(centre - middle) < 0.02 and 0.01 < reach < 0.1
    torch.testing.assert_close(
        centre + reach * begun.objective.y, torch.from_numpy(y).clamp(centre - reach, centre + reach)
    )


def test_balanced_classes_weigh_alike() -> None:
    X, y = table(400)
    y = (np.arange(400) < 40).astype(int)
    found = prepared(ClassCounts(), Logistic(X, y, classes=(0, 1))).objective
    assert float(found.weights.max()) == 1
    assert float(found.weights[:40].sum()) == pytest.approx(float(found.weights[40:].sum()))
    both = prepared(ClassCounts(), Logistic(X, y, classes=(0, 1), weights=np.full(400, 0.5))).objective
    torch.testing.assert_close(both.weights, 0.5 * found.weights)
    rare = prepared(ClassCounts(), Logistic(X, y, classes=(0, 1)), noise=1000.0).objective.weights
    assert rare.tolist() == [1.0] * 400, "what noise hides is not weighted"


@pytest.mark.parametrize("name", ["columns", "moments"])
def test_scales_bring_columns_to_one_size(name: str) -> None:
    X, y = table(4000)
    X = X / np.linalg.norm(X, axis=1).max()
    rows = prepared(ITEMS[name], objective(name, X, y, "raw")).objective.X
    size = to_dense(rows).square().mean(0)[:D]
    assert float(size.max() / size.min()) < 2 < (X**2).mean(0).max() / (X**2).mean(0).min()
    if name == "moments":
        assert float(to_dense(rows)[:, :D].mean(0).abs().max()) < 0.05 and rows.shape[1] == D + 1


def test_a_bought_eigenvalue_bounds_the_step() -> None:
    X, y = table(3000)
    problem = objective("lambda", X / np.linalg.norm(X, axis=1).max(), y, "raw")
    top = float(measured(Lambda(), problem))
    assert top == pytest.approx(float(torch.linalg.eigvalsh(problem.X.T @ problem.X)[-1]))
    step = prepared(Lambda(), problem).step
    assert step is not None and step(0) <= 1.8 / (top / 3000) * (1 + 1e-9)


def test_statistics_start_at_the_ridge_solution() -> None:
    X, y = table(5000)
    X = X / np.linalg.norm(X, axis=1).max()
    truth = np.array([0.3, -0.5, 0.2, 0.1])
    begun = prepared(Statistics(), LeastSquares(X, X @ truth))
    torch.testing.assert_close(begun.start, torch.from_numpy(truth), rtol=1e-4, atol=1e-4)
    rows = to_dense(begun.objective.X)
    step = torch.linalg.solve(rows.T @ rows / 5000, torch.ones(D).double())
    torch.testing.assert_close(begun.update.matrix @ torch.ones(D).double(), step, rtol=1e-4, atol=1e-4)


# ---------------------------------------------------------------- refusals


def test_what_cannot_be_bought_is_refused_before_anything_is_charged() -> None:
    X, y = table(50)
    many, words = np.ones((3, purchases.SMALL + 1)), f"at most {purchases.SMALL} columns"
    other = isthmus.TorchObjective(lambda w, x, t: (w[0] - t) ** 2, (torch.ones(3, 1), torch.ones(3)), torch.zeros(1))
    for item, problem, word in (
        (Ranges(), objective("ranges", X, y, "csr"), "data_norm"),
        (Moments(), LeastSquares(sp.csr_matrix(many), np.ones(3)), words),
        (Statistics(), LeastSquares(many, np.ones(3)), words),
        (Statistics(), isthmus.Softmax(X, y, classes=2), "one output"),
        (Lambda(), other, "linear model"),
    ):
        ledger = Ledger()
        with pytest.raises(InvalidInput, match=word):
            bought(item, problem, ledger)
        assert ledger.rounds() == {}


def test_only_a_private_recipe_buys() -> None:
    with pytest.raises(InvalidInput, match="recipe"):
        minimize(LeastSquares(*table()), purchases.buying(algorithms.gd(step=1.0), [Ranges()]), steps=3)


def test_rows_are_shortened_where_they_are_longer_than_promised() -> None:
    X, y = table()
    long = objective("moments", 100 * X, y, "raw")
    short = LeastSquares(torch.from_numpy(100 * X / np.linalg.norm(100 * X, axis=1, keepdims=True).clip(1)), long.y)
    torch.testing.assert_close(measured(Moments(), long), measured(Moments(), short), rtol=1e-9, atol=1e-9)
    assert isinstance(prepared(Moments(), long).objective.X, Scaled)


# ---------------------------------------------------------------- DP-GD, which buys moments, lambda_max or X'X first


COMMON: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-5, "clip": 0.3, "n": "exact", "output": "average"}
OPTIONS: dict[str, dict[str, Any]] = {
    "auto": {"step": "auto"},
    "moments": {"step": "auto", "scale": "moments"},
    "statistics": {"step": "auto", "scale": "moments", "precondition": True},
}


def scaled_table(n: int = 8000, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Columns of very different scale, rows inside the unit ball."""
    rng = np.random.default_rng(seed)
    raw = rng.standard_normal((n, 6)) * np.geomspace(1, 0.02, 6) + 0.3
    X = raw / max(1.0, float(np.linalg.norm(raw, axis=1).max()))
    z = (X - X.mean(0)) / X.std(0)
    y = np.clip(z @ np.array([0.1, -0.1, 0.1, 0.1, -0.1, 0.1]) + 0.02 * rng.standard_normal(n), -1, 1)
    return X, y


@pytest.mark.parametrize("name", OPTIONS)
def test_what_is_bought_is_paid_for(name: str) -> None:
    ledger = Ledger(budget=(1.0, 1e-5))
    recipe = algorithms.dp_gd(**COMMON, **OPTIONS[name])
    result = minimize(LeastSquares(*scaled_table()), recipe, steps=20, ledger=ledger)
    expected = {"auto": ["lambda"], "moments": ["scale", "lambda"], "statistics": ["scale", "statistics"]}
    assert ledger.rounds() == dict.fromkeys(expected[name], 1) | {"main": 20}
    assert 0.99 < result.privacy.epsilon <= 1.0
    assert result.privacy.epsilon == pytest.approx(ledger.spent(), rel=1e-9)


def test_buying_beats_plain_gradient_descent_on_badly_scaled_columns() -> None:
    X, y = scaled_table()
    held, truth = scaled_table(seed=1)
    scores = {}
    for name, options in {"plain": {"step": 1.0}, **OPTIONS}.items():
        recipe, steps = algorithms.dp_gd(**COMMON, **options), 20 if "precondition" in options else 60
        result = minimize(LeastSquares(X, y), recipe, steps=steps, record=None, noise_seed=0)
        rows = torch.from_numpy(held) if result.transform is None else result.transform(torch.from_numpy(held))
        rest = truth - matmul(rows, result.x).numpy()
        scores[name] = 1 - float((rest**2).mean() / truth.var())
    assert scores["moments"] > scores["plain"] + 0.2
    assert scores["statistics"] > scores["plain"] + 0.2


def test_sparse_columns_stay_sparse(monkeypatch: pytest.MonkeyPatch) -> None:
    X = sp.random(3000, 500, density=0.02, format="csr", random_state=0)
    X.data[:] = 1.0
    X = sp.csr_matrix(sp.diags_array(1 / np.sqrt(np.maximum(np.asarray(X.sum(1)).ravel(), 1))) @ X)
    y = np.where(np.asarray(X[:, :50].sum(1)).ravel() > 0, 1, -1)
    for kind in (sp.csr_matrix, sp.csr_array):
        monkeypatch.setattr(kind, "toarray", lambda self: pytest.fail("densified"))
    recipe = algorithms.dp_gd(**(COMMON | {"clip": 0.5}), step="auto", scale="columns")
    result = minimize(Logistic(X, y, classes=(-1, 1)), recipe, steps=20, record=None)
    assert result.privacy.private and result.x.shape == (500,)
    again = result.transform(X).plain()
    full = np.diff(X.indptr) > 0
    lengths = np.sqrt(np.asarray(again.multiply(again).sum(1))).ravel()
    assert sp.issparse(again) and float(np.abs(lengths - full).max()) < 1e-9


@pytest.mark.parametrize("size", [(500, 6), (2600, 2500)], ids=["gram", "lanczos"])
def test_one_record_moves_the_bought_lambda_max_by_at_most_one(size: tuple[int, int]) -> None:
    """Small and large data, and records that would move the cheap bounds of lambda_max by far more than 1."""
    n, d = size
    X = sp.random(n, d, density=min(1.0, 20 / d), format="csr", random_state=0)
    X = sp.csr_matrix(sp.diags_array(1 / np.sqrt(np.maximum(np.asarray(X.multiply(X).sum(1)).ravel(), 1e-9))) @ X)
    top = float(measured(Lambda(), LeastSquares(X, np.zeros(n))))
    assert top == pytest.approx(float(np.linalg.norm(X.toarray(), 2)) ** 2, rel=1e-9)
    for record in (np.full((1, d), 1 / math.sqrt(d)), np.eye(1, d)):
        more = sp.vstack([X, sp.csr_matrix(record)]).tocsr()
        assert abs(float(measured(Lambda(), LeastSquares(more, np.zeros(n + 1)))) - top) <= 1 + 1e-6


def test_a_resumed_run_does_not_buy_again(tmp_path: Path) -> None:
    objective, ledger = LeastSquares(*scaled_table()), Ledger(budget=(1.0, 1e-5))
    recipe = algorithms.dp_gd(**COMMON, **OPTIONS["moments"])
    half = minimize(objective, recipe, steps=20, ledger=ledger, record=1, callbacks=[lambda r, s: s.t == 8])
    half.state.save(tmp_path / "s")
    whole = minimize(objective, recipe, steps=20, ledger=ledger, resume=State.load(tmp_path / "s"))
    assert ledger.rounds() == {"scale": 1, "lambda": 1, "main": 20}
    assert whole.state.t == 20 and whole.transform is not None
    assert whole.privacy.epsilon == pytest.approx(ledger.spent(), rel=1e-9)


REFUSED = [
    ({"step": "fast"}, None, "step='fast'"),
    ({"step": "auto", "scale": "rows"}, None, "scale='rows'"),
    ({"step": "auto", "tau": 0.0}, None, "tau=0.0"),
    ({"step": "auto", "momentum": 0.5}, None, "momentum=0.5"),
    ({"step": "auto", "output": "random"}, None, "output='random'"),
    ({"step": "auto", "precondition": True}, L2Ball(1.0), "no proximal map"),
    ({"step": "auto", "scale": "moments"}, L2Ball(1.0), "scaled columns"),
]


@pytest.mark.parametrize("options, constraint, text", REFUSED)
def test_dp_gd_refuses(options: dict[str, Any], constraint: Any, text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        minimize(LeastSquares(*scaled_table(50)), algorithms.dp_gd(**(COMMON | options)), constraint, steps=5)


def test_long_rows_are_clipped_by_the_public_map_not_refused() -> None:
    """An error that depends on one private row would say something about it."""
    X, y = scaled_table(50)
    result = minimize(LeastSquares(10 * X, y), algorithms.dp_gd(**COMMON, step="auto"), steps=5)
    assert result.privacy.private and float(result.transform(10 * X).dense().norm(dim=1).max()) <= 1 + 1e-12


def test_losses_without_curvature_cannot_be_preconditioned() -> None:
    X, y = scaled_table(50)
    ledger, hinge = Ledger(budget=(1.0, 1e-5)), isthmus.Hinge(X, np.sign(y + 1e-9), classes=(-1, 1))
    with pytest.raises(InvalidInput, match="smooth loss"):
        minimize(hinge, algorithms.dp_gd(**COMMON, precondition=True), steps=5, ledger=ledger)
    assert ledger.rounds() == {}
    assert minimize(hinge, algorithms.dp_gd(**COMMON, step="auto"), steps=5, ledger=ledger).privacy.private


@pytest.mark.parametrize("options", [{"scale": "moments"}, {"scale": "moments", "precondition": True}])
def test_sparse_columns_are_centred_like_dense_ones(options: dict[str, Any]) -> None:
    X, y = scaled_table(400)
    X = np.where(np.random.default_rng(0).random(X.shape) < 0.6, X, 0.0)
    recipe = algorithms.dp_gd(**COMMON, step="auto", **options)
    dense, sparse = (minimize(LeastSquares(each, y), recipe, steps=5, noise_seed=1) for each in (X, sp.csr_matrix(X)))
    assert torch.allclose(dense.x, sparse.x, atol=1e-9)


def test_a_start_is_refused_before_anything_is_bought() -> None:
    X, y = scaled_table(50)
    ledger = Ledger(budget=(1.0, 1e-5))
    with pytest.raises(InvalidInput, match="finds its own start"):
        recipe = algorithms.dp_gd(**COMMON, step="auto")
        minimize(LeastSquares(X, y), recipe, steps=5, x0=np.zeros(6), ledger=ledger)
    assert ledger.rounds() == {}


def test_steps_are_shorter_along_columns_that_may_be_noise_alone() -> None:
    rare = RowMap(None, None, torch.zeros(4), torch.tensor([1.0, 9.0, 9.0, 1.0]), 2.0, 1.0)
    X = torch.eye(4).double() / 2
    problem = Purchased(LeastSquares(X, torch.ones(4).double()).with_inputs(rare(X)), transform=RowMaps((rare,)))
    bought = torch.cat([torch.eye(5).double().mul(torch.tensor([1, 0, 40, 1, 40])).flatten(), torch.ones(5).double()])
    assert purchases._unseen(problem, torch.tensor([1.0, 0.0, 40.0, 1.0, 40.0]), 1.0).tolist() == [0, 1, 0, 0, 0]
    assert not purchases._unseen(Purchased(problem.objective), torch.zeros(5), 1.0).any()
    start = Statistics().apply(problem, bought, 1.0, purchases.Terms(100, 10, 1.0, 1.0)).start
    assert start is not None and float(start[1]) == pytest.approx(0.5 / math.sqrt(5))
    assert float(start[0]) == pytest.approx(1 / (1 + math.sqrt(5)))
