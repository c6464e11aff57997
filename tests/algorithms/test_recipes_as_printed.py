"""Recipes against the pages of the papers: picks, draws, widths, averages, schedules and stops (001, 000, 002)."""

import math
from functools import partial
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch

from isthmus import GaussianSketch, InvalidInput, LeastSquares, Pipeline, Release, Stage, algorithms, minimize, theory
from isthmus.algorithms import WidthRule
from isthmus.base.space import Space
from isthmus.core.minimize import Binding
from isthmus.core.parts import GapBelow, Uniform
from isthmus.core.wire import Keys
from isthmus.penalties import NoPenalty
from isthmus.privacy import Adjacency, Charge, Clip, PrivacyPlan, delta, epsilon, noise_multiplier
from isthmus.privacy.plan import default_delta
from isthmus.sets import Box, L1Ball, L2Ball, NuclearBall, Simplex
from lab import theory as theorems


def problem(n: int = 60, d: int = 10, seed: int = 0) -> LeastSquares:
    draws = np.random.default_rng(seed)
    X = draws.standard_normal((n, d)) / 4
    w = np.zeros(d)
    w[:2] = 0.6, -0.3
    return LeastSquares(X, X @ w + 0.05 * draws.standard_normal(n))


BUDGET: dict[str, Any] = {"epsilon": 1.0, "clip": 1.0, "n": "exact"}


def bound(recipe: Any, constraint: Any, d: int = 10, n: int = 200, steps: int | None = 50) -> Any:
    return recipe.bind(Binding(constraint, NoPenalty(), Space.flat(d), n, steps, None))


def path_of(recipe: Any, constraint: Any = None, **run: Any) -> tuple[np.ndarray, Any]:
    """w_1, ..., w_{T+1} and the result."""
    points: list[np.ndarray] = []
    keep = lambda record, state: points.append(state.w.numpy())  # noqa: E731
    result = minimize(problem(), recipe, constraint, record=1, callbacks=[keep], **run)
    return np.stack([np.zeros(10), *points]), result


# ---------------------------------------------------------------- 001: the lift of least gauge


def test_the_lift_of_least_gauge_is_that_of_the_paper() -> None:
    """theta = projection of Phi w - eta Phi g onto Phi C; then w+ = argmin ||w||_1 with Phi w = theta."""
    objective, ball, d, eta = problem(d=15), L1Ball(0.7), 15, 2.0
    points = {}
    for pick in ("min_gauge", "nearest"):
        recipe = algorithms.comp_gd(m=6, step=eta, pick=pick, sketch=GaussianSketch, tol=1e-10)
        points[pick] = minimize(objective, recipe, ball, steps=3, seed=4, record=None).x.numpy()
    w = np.zeros(d)
    for t in range(3):
        phi = GaussianSketch(6).draw(d, seed=4, t=t).dense(torch.float64).numpy()
        w = printed_round(objective, w, phi, eta)
    np.testing.assert_allclose(points["min_gauge"], w, atol=1e-4)
    assert np.abs(points["nearest"] - w).max() > 1e-2  # another point with the same sketch


def printed_round(objective: LeastSquares, w: np.ndarray, phi: np.ndarray, eta: float) -> np.ndarray:
    target = phi @ (w - eta * objective.gradient(torch.from_numpy(w)).numpy())
    point, lifted = cp.Variable(len(w)), cp.Variable(len(w))
    cp.Problem(cp.Minimize(cp.sum_squares(phi @ point - target)), [cp.norm1(point) <= 0.7]).solve(solver="CLARABEL")
    cp.Problem(cp.Minimize(cp.norm1(lifted)), [phi @ lifted == phi @ point.value]).solve(solver="CLARABEL")
    return np.asarray(lifted.value)


LIFTING = ("comp_sgd", "comp_gd", "comp_minibatch", "comp_dist_sgd", "priv_sgd", "dp_comp_minibatch")


@pytest.mark.parametrize("recipe", LIFTING)
def test_every_recipe_with_a_lift_takes_a_pick(recipe: str) -> None:
    private = BUDGET if recipe in ("priv_sgd", "dp_comp_minibatch") else {}
    more = {"batch_size": 20} if "minibatch" in recipe else {}
    made = getattr(algorithms, recipe)(m=5, step=0.1, pick="min_gauge", **private, **more)
    assert bound(made, L1Ball(1.0)).stages[0].releases[0].lift.pick == "min_gauge"
    with pytest.raises(InvalidInput, match="pick='farthest'"):
        getattr(algorithms, recipe)(m=5, step=0.1, pick="farthest", **private, **more)


# ---------------------------------------------------------------- widths, draws


@pytest.mark.parametrize("ball", [L1Ball, L2Ball, Simplex, lambda radius: NuclearBall(radius, (8, 8))])
def test_width_rules_do_not_depend_on_the_radius(ball: Any) -> None:
    sizes = [[WidthRule(constant=0.1).rule(ball(radius), 64, 1)(t) for t in range(3)] for radius in (0.01, 1.0, 150.0)]
    assert sizes[0] == sizes[1] == sizes[2]
    assert [WidthRule().rule(L1Ball(150.0), 10_000, 1)(t) for t in range(3)] == [17, 65, 146]


def test_theorem_2_4_may_draw_more_often_than_there_are_records() -> None:
    objective = problem()
    facts = {"smoothness": objective.smoothness(), "diameter": 2.0, "gradient_bound": 3.0}
    schedule = theory.stationary_schedule(0.5, **facts, noise=1.0, gap=1.0, failure=0.1)
    assert schedule.batch_size() > 1000 * objective.n
    result = minimize(objective, algorithms.comp_minibatch(schedule=schedule), L2Ball(1.0), record=None)
    assert result.status == "stopped" and result.certificate["gap"] <= 0.5


@pytest.mark.parametrize("batch", [7, 500])
def test_independent_draws_are_those_of_the_oracle(batch: int) -> None:
    """Each of b records is drawn by itself; one that comes k times counts k times."""
    objective, w = problem(), torch.zeros(10, dtype=torch.float64)
    points, _ = path_of(algorithms.sgd(step=0.3, batch_size=batch, draw="independent"), steps=3, seed=9)
    for t in range(3):
        index = Uniform(batch).draw(objective.n, t, Keys(9), "0")
        assert batch < objective.n or len(set(index.tolist())) < batch
        w = w - 0.3 * objective.rows(w, index).dense().mean(0)
        np.testing.assert_allclose(points[t + 1], w.numpy(), atol=1e-12)
    with pytest.raises(InvalidInput, match="draw='subset'"):
        algorithms.comp_sgd(m=5, step=0.1, draw="subset")


def test_copies_of_a_record_are_clipped_one_by_one() -> None:
    objective = LeastSquares(np.eye(2), np.full(2, 100.0))
    for draws in (2, 3, 64):
        pipe = Pipeline([Stage(Uniform(draws), [Release(clip=Clip(1.0))])], lambda t: 1.0)
        result = minimize(objective, pipe, steps=1, record=None)
        assert float(result.x.sum()) == pytest.approx(1.0, abs=1e-3)  # a mean of unit vectors with entries >= 0


# ---------------------------------------------------------------- outputs


def test_outputs_are_those_of_section_2_2() -> None:
    """w_bar = sum eta_t w_t / sum eta_t over the points that steps were taken from; or the last K; or one at random."""
    rule = theory.Rule(2.0, power=1.0)
    points, found = path_of(algorithms.gd(step=rule, output="average"), steps=12)
    expected = theorems.weighted_average(points[:-1], [rule(t) for t in range(12)])
    np.testing.assert_allclose(found.x.numpy(), expected, atol=1e-12)
    _, last = path_of(algorithms.gd(step=rule, output="last 5"), steps=12)
    np.testing.assert_allclose(last.x.numpy(), points[-5:].mean(0), atol=1e-12)
    _, start = path_of(algorithms.gd(step=rule, output="random"), steps=1)
    assert not start.x.any()  # w_1 is the only point of a run of one round
    private = algorithms.priv_sgd(epsilon=1.0, m=4, clip=1.0, step=rule, n="exact", output="last 3")
    points, found = path_of(private, L2Ball(1.0), steps=6)
    np.testing.assert_allclose(found.x.numpy(), points[-3:].mean(0), atol=1e-12)
    for wrong in ("first", "last 0", "last ten", 3):
        with pytest.raises(InvalidInput, match="output="):
            algorithms.gd(step=0.1, output=wrong)  # type: ignore[arg-type]


# ---------------------------------------------------------------- private schedules, stops, steps


def test_corollary_c_2_returns_the_first_such_point_or_none() -> None:
    """PrivSGD on the schedule of the corollary: T, eta, m_t and the stop are its own, and all T rounds are stated."""
    objective = problem()
    facts: dict[str, Any] = {"smoothness": objective.smoothness(), "diameter": 2.0, "lipschitz": 1.0}
    schedule = theory.private_stationary_schedule(0.5, **facts, gap=0.05)
    assert schedule.rounds is not None and schedule.threshold is not None
    quiet = algorithms.priv_sgd(epsilon=1e4, clip=1.0, schedule=schedule, n="exact")
    result = minimize(objective, quiet, L2Ball(1.0), record=None)
    assert result.status == "stopped" and result.state.t < schedule.rounds
    assert result.privacy is not None and f"of {schedule.rounds} planned rounds" in result.privacy.words()
    again = minimize(objective, quiet, L2Ball(1.0), steps=schedule.rounds, record=None, noise_seed=0)
    assert again.privacy is not None and again.privacy.nominal == pytest.approx(result.privacy.nominal)
    loud = algorithms.priv_sgd(epsilon=0.01, clip=1.0, schedule=schedule, n="exact")
    none = minimize(objective, loud, L2Ball(1.0), record=None)
    assert none.status == "none found" and none.x is None


@pytest.mark.parametrize("recipe", ["dp_sgd", "dp_gd", "dp_comp_minibatch", "priv_sgd", "compressive_dp_sgd"])
def test_private_recipes_take_schedules(recipe: str) -> None:
    schedule = theory.private_generalisation_schedule(6, scale=2.0)
    more = {"p": 4, "kappa": 2} if recipe == "compressive_dp_sgd" else {}
    made = getattr(algorithms, recipe)(epsilon=1.0, clip=1.0, schedule=schedule, n="exact", **more)
    pipe = bound(made, L2Ball(1.0), n=300, steps=None)
    assert pipe.rounds == 36 and pipe.step(3) == schedule.step(3)
    if recipe in ("dp_comp_minibatch", "priv_sgd"):
        size = pipe.stages[0].releases[0].encode.m
        assert [size(t) for t in (0, 1)] == [10, 10]  # beta_0 = 1/2 and the width of the ball


def test_theorems_of_papers_003_and_004_fill_their_recipes() -> None:
    loops = theory.convex_block_loops(200, noise=2.0, radius=3.0, epsilon=0.5, delta=1e-4)
    made = algorithms.dp_skgd(epsilon=0.5, delta=1e-4, smoothness=1.0, clip=0.1, blocks=5, n="exact", schedule=loops)
    pipe = bound(made, L2Ball(1.0), steps=None)
    assert pipe.rounds == loops.steps and pipe.average.rounds == loops.inner
    with pytest.raises(InvalidInput, match="inner=3"):
        algorithms.dp_skgd(epsilon=0.5, smoothness=1.0, clip=0.1, n="exact", schedule=loops, inner=3)
    schedule = theory.subspace_schedule(20, 0.5)
    public = (torch.ones(3, 10).double(), torch.ones(3).double())
    private: dict[str, Any] = {"epsilon": 0.5, "clip": 1.0, "n": "exact", "schedule": schedule, "output": "random"}
    for made in (algorithms.pdp_sgd(k=2, data=public, **private), algorithms.rpdp_sgd(k=2, **private)):
        pipe = bound(made, L2Ball(1.0), n=300, steps=None)
        assert pipe.rounds == 100 and pipe.step(7) == pytest.approx(0.1)


def test_the_default_private_step_is_that_of_theorem_11() -> None:
    """||C|| / sqrt(t (L^2 + m_T sigma^2)) with the largest m_t, which a width rule reaches at the end."""
    steps, n, d = 30, 200, 1000
    pipe = bound(algorithms.priv_sgd(epsilon=1.0, clip=1.0, m=WidthRule(), n="exact"), L1Ball(1.0), d, n, steps)
    plan = PrivacyPlan(1.0, default_delta(n), items=[Charge("gradient", rounds=steps)])
    sizes = [WidthRule().rule(L1Ball(1.0), d, 1)(t) for t in range(steps)]
    facts = {"diameter": 2.0, "lipschitz": 1.0, "noise": plan.multiplier("gradient") / n}
    expected = theory.private_optimisation_schedule("dp_comp_gd", dimension=max(sizes), **facts)
    assert sizes[-1] > 20 * sizes[0]
    assert [pipe.step(t) for t in (0, 7)] == pytest.approx([expected.step(t) for t in (0, 7)], rel=1e-3)


@pytest.mark.parametrize("variant", ["gaussian", "laplace", "selection", "dense"])
def test_the_default_step_of_paper_002_counts_the_noise(variant: str) -> None:
    """||C|| / (G sqrt(2 t)): at little noise G is the bound of a record, at much noise the noise."""
    more = {} if variant == "dense" else {"kappa": 2} if variant == "selection" else {"p": 4, "kappa": 2}
    length, dims = 0.5 * math.sqrt(2) if variant == "selection" else 0.5, {"selection": 2, "dense": 10}.get(variant, 4)
    made = partial(algorithms.compressive_dp_sgd, clip=0.5, variant=variant, n="exact", **more)  # type: ignore[arg-type]
    for budget in (1e6, 1e-3):
        pipe = bound(made(epsilon=budget), L2Ball(1.0))
        spread = pipe.stages[-1].releases[0].mechanism.number * length / 200
        noise = spread * math.sqrt(dims * (2 if variant in ("laplace", "dense") else 1))
        assert (noise < 0.1 * length) == (budget > 1) and (noise > 10 * length) == (budget < 1)
        assert pipe.step(0) == pytest.approx(2 / (math.sqrt(2) * math.hypot(length, noise)))
    printed = {
        "gaussian": (2, 4, theory.compressive_scale(4, 1.0, k=2, bound=0.5)),
        "dense": (10, 10, theory.dense_scale(10, 1.0, bound=0.5, n=200)),
    }
    if variant in printed:
        kept, noisy, scale = printed[variant]
        length = math.sqrt(kept * 0.25 + theory.laplace_noise(noisy, scale))
        pipe = bound(made(epsilon=50.0, as_published=True), L2Ball(1.0))
        assert pipe.step(0) == pytest.approx(2 / (math.sqrt(2) * length))


def test_the_dense_baseline_falls_with_the_number_of_records() -> None:
    """Noise of scale 2 Xi d T / (n epsilon) on the mean: the same bound, n times as many records, n times less."""
    made = algorithms.compressive_dp_sgd(**(BUDGET | {"clip": 0.5}), variant="dense", step=0.1, as_published=True)
    for n in (100, 1000):
        pipe = bound(made, L2Ball(1.0), n=n)
        (release,) = pipe.stages[0].releases
        scale = release.mechanism.inner.multiplier * release.clip.bound / pipe.stages[0].sampler.divisor(n)
        assert scale == pytest.approx(theory.dense_scale(10, 1.0 / 50, bound=0.5, n=n))


# ---------------------------------------------------------------- arguments


def test_an_adjacency_may_be_named_wherever_it_is_asked_for() -> None:
    for find, given in (
        (epsilon, {"noise_multiplier": 2.0, "delta": 1e-5}),
        (delta, {"noise_multiplier": 2.0, "epsilon": 1.0}),
        (noise_multiplier, {"epsilon": 1.0, "delta": 1e-5}),
    ):
        assert find(**given, adjacency="replace-one") == find(**given, adjacency=Adjacency.REPLACE_ONE)  # type: ignore[operator]
    with pytest.raises(InvalidInput, match="adjacency='neighbours'"):
        epsilon(noise_multiplier=2.0, delta=1e-5, adjacency="neighbours")


def test_arguments_that_would_be_dropped_are_refused() -> None:
    convex, step = theory.convex_schedule(2.0, 1.0), {"step": 0.1}
    for words, recipe, options in (
        (r"step=0\.123.*length 1", algorithms.dp_gd, {**BUDGET, "precondition": True, "step": 0.123}),
        ("schedule=", algorithms.dp_gd, {**BUDGET, "scale": "moments", "schedule": convex}),
        ("p=None", algorithms.compressive_dp_sgd, {**BUDGET, **step, "kappa": 3}),
        ("kappa=None", algorithms.compressive_dp_sgd, {**BUDGET, **step, "variant": "selection"}),
        ("pick=.*error feedback", algorithms.comp_sgd, {**step, "m": 5, "pick": "min_gauge", "error_feedback": True}),
        ("m=None", algorithms.priv_sgd, {**BUDGET, **step}),
    ):
        with pytest.raises(InvalidInput, match=words):
            recipe(**options)


def test_stops_of_others_are_named_and_misplaced_ones_refused() -> None:
    budget = {**BUDGET, "step": 0.1}
    result = minimize(problem(), algorithms.dp_gd(**budget, stop=lambda round, old, new: False), steps=2, record=None)
    assert result.privacy is not None and "which is not of this library, reads released" in result.privacy.words()
    with pytest.raises(InvalidInput, match="stop='GapBelow'.*Frank-Wolfe"):
        bound(algorithms.dp_gd(**budget, stop=GapBelow(0.1, L2Ball(1.0))), L2Ball(1.0))
    with pytest.raises(InvalidInput, match="more than one point"):
        WidthRule().rule(Box(torch.zeros(3), torch.zeros(3)), 3, 1)
