"""Private recipes: what is accounted is what runs, bounds hold, nothing leaks beside the releases."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from private_cases import COMMON, RECIPES, build, one_release, problem

import isthmus
from isthmus import SRHT, GaussianSketch, Identity, L1Ball, L2Ball, LeastSquares, Logistic, algorithms, minimize
from isthmus.gradients import Dense
from isthmus.privacy import Ledger, SeededSource
from isthmus.privacy.clips import _WIDTH, _CountMap


@pytest.mark.parametrize("name", RECIPES)
def test_what_is_accounted_is_what_ran(name: str) -> None:
    """The ledger, the plan and the statement agree; a run that stops early has spent less, and states its plan."""
    objective, ledger = problem(), Ledger(budget=(1.0, 1e-5))
    stop = lambda record, state: state.t == 10  # noqa: E731
    result = minimize(objective, RECIPES[name](), L2Ball(5.0), steps=40, record=1, callbacks=[stop], ledger=ledger)
    assert ledger.rounds() == {"main": 10}
    assert ledger.spent() < 0.7 and 0.999 < result.privacy.epsilon <= 1.0
    assert "10 of 40 planned rounds" in result.privacy.words()
    whole = minimize(objective, RECIPES[name](), L2Ball(5.0), steps=40, resume=result.state)
    assert whole.privacy.epsilon == result.privacy.epsilon and "planned" not in whole.privacy.words()
    with pytest.raises(isthmus.privacy.BudgetExceeded):
        minimize(objective, RECIPES[name](), L2Ball(5.0), steps=40, ledger=ledger)


def test_adjacency_and_sampling_change_the_noise() -> None:
    objective, ball = problem(), L2Ball(5.0)

    def noise(name: str, adjacency: str) -> float:
        pipe = build(RECIPES[name](adjacency=adjacency), objective, ball, 40)
        return pipe.stages[0].releases[0].mechanism.multiplier

    assert noise("dp_gd", "replace-one") == pytest.approx(2 * noise("dp_gd", "add-remove"), rel=1e-3)
    assert noise("dp_sgd", "add-remove") < noise("dp_gd", "add-remove")


def test_seeded_noise_is_marked_and_reproducible() -> None:
    objective = problem()
    first, second = (minimize(objective, RECIPES["dp_sgd"](), steps=10, noise_seed=3) for _ in range(2))
    assert torch.equal(first.x, second.x)
    assert not first.privacy.private and math.isinf(first.privacy.epsilon) and "not private" in str(first.privacy)
    free = [minimize(objective, RECIPES["dp_sgd"](), steps=10, seed=0) for _ in range(2)]
    assert not torch.equal(free[0].x, free[1].x)  # the public seed does not seed the noise


def test_a_private_number_of_records() -> None:
    """With an estimate of n the divisor and the rate are its own, and the true number is not stated."""
    objective = problem(n=300)
    result = minimize(objective, RECIPES["dp_sgd"](n=250), steps=5)
    assert result.privacy.n is None and "300" not in result.privacy.words()
    pipe = build(RECIPES["dp_gd"](n=250), objective, isthmus.Whole(), 5)
    assert pipe.stages[0].sampler.divisor(300) == 250.0


def test_the_published_map_is_different_and_promises_nothing() -> None:
    """PrivSGD as printed: n - 1 records in the kernel of Phi and one that moves show sensitivity 2L, not 2L/n."""
    from isthmus.audit import LinearRecords

    d, m, n = 400, 10, 1000

    recipe = algorithms.priv_sgd(m=m, as_published=True, **(COMMON | {"clip": 1.0}))
    default = algorithms.priv_sgd(m=m, **(COMMON | {"clip": 1.0}))
    phi = isthmus.GaussianSketch(m).draw(d, seed=0, t=0).dense()
    basis = torch.linalg.svd(phi, full_matrices=True).Vh
    kernel, top = basis[-1], basis[0]
    pairs = [LinearRecords(torch.cat([kernel.repeat(n - 1, 1), sign * top[None]])) for sign in (1.0, -1.0)]
    moved = {}
    for name, one in {"published": recipe, "default": default}.items():
        pipe = build(one, pairs[0], isthmus.Whole(), 1)
        values = []
        for records in pairs:
            message, _ = one_release(pipe, records, SeededSource(0))
            bounded = message.values["gradient"]
            encode, sketch = pipe.stages[0].releases[0].encode, isthmus.GaussianSketch(m).draw(d, seed=0, t=0)
            if name == "default":
                values.append(bounded.value)
            else:
                values.append(phi @ encode.change(bounded.value, 2, bounded.bound, sketch)[0])
        moved[name] = float((values[0] - values[1]).norm())
    assert moved["published"] > 900 * 2.0  # 2L/n on the mean is 2L on the sum
    assert moved["default"] <= 2.0 * (1 + 1e-12)
    result = minimize(pairs[0], recipe, steps=1)
    assert not result.privacy.private and math.isinf(result.privacy.epsilon)
    assert "moves by up to 2L" in result.privacy.words()


WRONG = [
    ({"epsilon": 0.0}, "epsilon=0.0"),
    ({"epsilon": -1.0}, "epsilon=-1.0"),
    ({"epsilon": math.nan}, "epsilon=nan"),
    ({"delta": 0.0}, "delta=0.0"),
    ({"delta": 1.0}, "delta=1.0"),
    ({"clip": 0.0}, "clip=0.0"),
    ({"clip": math.inf}, "clip=inf"),
    ({"step": 0.0}, "step=0.0"),
    ({"n": None}, "n=None.*declare the number of records"),
    ({"n": 0}, "n=0"),
    ({"n": "many"}, "n='many'"),
    ({"adjacency": "friends"}, "adjacency='friends'"),
    ({"output": "best"}, "output='best'"),
]


@pytest.mark.parametrize("options, text", WRONG)
@pytest.mark.parametrize("name", RECIPES)
def test_bad_arguments_are_refused_before_any_data_is_read(name: str, options: dict[str, Any], text: str) -> None:
    with pytest.raises(isthmus.InvalidInput, match=text):
        RECIPES[name](**options)


def test_the_budget_is_checked_before_the_first_release() -> None:
    ledger = Ledger(budget=(0.1, 1e-5))
    with pytest.raises(isthmus.privacy.BudgetExceeded):
        minimize(problem(), RECIPES["dp_gd"](), steps=1, ledger=ledger)
    assert ledger.rounds() == {}


@pytest.mark.parametrize("name", ["dp_sgd", "dp_gd", "priv_sgd"])
def test_an_adaptive_clip_is_paid_for_and_moves_to_its_quantile(name: str) -> None:
    """The bound starts far too high, and ends near the median of the norms; the count is part of the budget."""
    objective = problem(n=4000)
    clip = isthmus.privacy.AdaptiveClip(8.0, quantile=0.5, rate=0.5)
    options = {"clip": clip, "step": 1e-6, "epsilon": 4.0}
    result = minimize(objective, RECIPES[name](**options), isthmus.Whole(), steps=40)
    assert 3.9 < result.privacy.epsilon <= 4.0
    pipe = build(RECIPES[name](**options), objective, isthmus.Whole(), 40)
    assert [release.name for release in pipe.stages[0].releases] == ["gradient", "below"]
    sketch = isthmus.CountSketch(10).draw(30)
    rows = objective.rows(torch.zeros(30, dtype=torch.float64))
    median = float((sketch.encode(rows) if name == "priv_sgd" else rows).norms().median())
    assert 0.6 * median < result.state.parts["main/gradient/clip"] < 1.7 * median
    assert result.x.norm() < 1e-2  # the step was tiny, so the norms stayed those of the start


@pytest.mark.parametrize("penalty", ["l1", "l2", "elastic", "group", "largest"])
def test_regularisers_enter_after_the_noise_and_cost_nothing(penalty: str) -> None:
    from isthmus.penalties import ElasticNet, GroupPenalty, L1Penalty, L2Penalty, ProxPenalty

    kinds = {
        "l1": L1Penalty(0.02),
        "l2": L2Penalty(0.1),
        "elastic": ElasticNet(0.02, 0.1),
        "group": GroupPenalty([j // 3 for j in range(30)], 0.02),
        "largest": ProxPenalty(lambda w: float(w.abs().max()), lambda w, eta: w - L1Ball(0.02 * eta).project(w)),
    }
    plain = problem()
    objective = Logistic(plain.X, np.asarray(plain.y), classes=(-1, 1), penalty=kinds[penalty])
    result = minimize(objective, RECIPES["dp_gd"](), steps=20, noise_seed=2)
    free = minimize(plain, RECIPES["dp_gd"](), steps=20, noise_seed=2)
    assert result.privacy.nominal == free.privacy.nominal
    assert float(result.x.norm()) < float(free.x.norm())
    if penalty in ("l1", "group", "elastic"):
        assert int((result.x == 0).sum()) >= int((free.x == 0).sum())


def test_the_default_step_is_the_theorems() -> None:
    """||C|| / sqrt(t (L^2 + m sigma^2)); without a bounded set there is none."""
    objective, ball = problem(), L2Ball(3.0)
    for name, m in (("dp_gd", 30), ("priv_sgd", 10), ("dp_sgd", 30)):
        pipe = build(RECIPES[name](step=None), objective, ball, 20)
        divisor = pipe.stages[0].sampler.divisor(300)
        sigma = pipe.stages[0].releases[0].mechanism.multiplier * 0.5 / divisor
        assert pipe.step(3) == pytest.approx(6.0 / math.sqrt(4 * (0.25 + m * sigma**2)))
        with pytest.raises(isthmus.InvalidInput, match="bounded set"):
            build(RECIPES[name](step=None), objective, isthmus.Whole(), 20)
    result = minimize(problem(n=20_000), RECIPES["dp_sgd"](step=None, epsilon=8.0), ball, steps=60, noise_seed=0)
    assert problem(n=20_000).loss(result.x) < math.log(2) - 0.005


def test_a_private_run_resumes_on_its_own_terms_only() -> None:
    """Other noise after the interruption would make the statement of the whole run wrong."""
    objective, ball = problem(), L2Ball(5.0)
    half = minimize(objective, RECIPES["dp_gd"](), ball, steps=40, record=1, callbacks=[lambda r, s: s.t == 20])
    whole = minimize(objective, RECIPES["dp_gd"](), ball, steps=40, resume=half.state)
    assert whole.state.t == 40 and 0.99 < whole.privacy.epsilon <= 1.0
    for recipe, steps in ((RECIPES["dp_gd"](), 80), (RECIPES["dp_gd"](epsilon=2.0), 40), (algorithms.gd(step=1.0), 40)):
        with pytest.raises(isthmus.InvalidInput, match="begun with"):
            minimize(objective, recipe, ball, steps=steps, resume=half.state)


def test_private_runs_over_clients_drawn_with_replacement_are_refused() -> None:
    shards = isthmus.Clients([problem(n=100, seed=seed) for seed in range(3)], per_round=2)
    with pytest.raises(isthmus.InvalidInput, match="asked twice"):
        minimize(problem(), RECIPES["dp_gd"](), L2Ball(5.0), steps=4, clients=shards)


# ---------------------------------------------------------------- records whose gradients overflow: nothing of them


N = 40
LARGE = {torch.float32: 3e38, torch.float64: 1.5e308}


def fitted(objective: Any, X: torch.Tensor, y: torch.Tensor, physical: int | None) -> torch.Tensor:
    recipe = algorithms.dp_gd(epsilon=1.0, delta=1e-5, clip=1.0, step=0.1, n="exact")
    given = objective(X, y, classes=(-1, 1)) if objective is Logistic else objective(X, y)
    options: dict[str, Any] = {"steps": 2, "record": None, "progress": False, "noise_seed": 1}
    return minimize(given, recipe, physical_batch_size=physical, **options).x


@pytest.mark.parametrize("at", [0, N - 1])
@pytest.mark.parametrize("physical", [None, 7])
@pytest.mark.parametrize("dtype", list(LARGE))
@pytest.mark.parametrize("objective", [LeastSquares, Logistic])
def test_a_record_that_overflows_is_left_out(objective: Any, dtype: torch.dtype, physical: int | None, at: int) -> None:
    g = torch.Generator().manual_seed(0)
    X = torch.randn(N, 30, generator=g).to(dtype)
    y = X.sum(1) if objective is LeastSquares else torch.sign(X.sum(1))
    X[at], nobody = LARGE[dtype], X.clone()
    nobody[at] = 0.0
    if objective is LeastSquares:
        y[at] = LARGE[dtype]
    point = fitted(objective, X, y, physical)
    assert bool(torch.isfinite(point).all())
    assert torch.equal(point, fitted(objective, nobody, y, physical))


# ---------------------------------------------------------------- the count that moves an adaptive clip is continuous


SKETCHES = {"none": Identity(), "gaussian": GaussianSketch(8), "srht": SRHT(8)}


@pytest.mark.parametrize("name", SKETCHES)
def test_records_on_the_border_stay_where_they_are(name: str) -> None:
    """The last digit of a norm may depend on the number of records; that of a count of a thousand may not follow it."""
    g, d, worst = torch.Generator().manual_seed(0), 64, 0.0
    sketch = SKETCHES[name].draw(d, seed=0)
    for n in (15, 16, 31, 1000):
        for _ in range(20):
            X = torch.randn(1, d, dtype=torch.float64, generator=g).expand(n, d).contiguous()
            w = torch.randn(d, dtype=torch.float64, generator=g)
            rows, less = (Logistic(x, torch.ones(len(x)), classes=(-1, 1)).rows(w) for x in (X, X[1:]))
            for bound in {float(norm) for norm in sketch.encode(rows).norms(2)}:
                count = _CountMap(sketch, 2, bound, False)
                moved = count.encode(rows).sum() - count.encode(less).sum()
                worst = max(worst, float(moved.abs()))
    assert worst <= 0.5 + 1e-9  # one record adds a half at most


def test_a_record_away_from_the_border_counts_as_below_or_above() -> None:
    sketch = Identity().draw(1)
    norms = torch.tensor([0.0, 1 - 2 * _WIDTH, 1.0, 1 + 2 * _WIDTH, 1e30, float("inf"), float("nan")]).double()
    counts = _CountMap(sketch, 2, 1.0, False).encode(Dense(norms[:, None])).dense()[:, 0]
    assert counts[:2].tolist() == [0.5, 0.5] and abs(float(counts[2])) < 1e-9 and counts[3:].tolist() == [-0.5] * 4
    assert float(counts.abs().max()) <= 0.5
