"""DP-SkGD against the loop of paper 003: penalties on drawn coordinates, any law over subsets, matrix smoothness."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import isthmus
from isthmus import LeastSquares, algorithms, minimize
from isthmus.base.space import Space
from isthmus.core.minimize import Binding
from isthmus.penalties import ElasticNet, GroupPenalty, L1Penalty, NoPenalty, Penalty, ProxPenalty
from isthmus.privacy.mechanisms import Exact
from isthmus.theory import expected_smoothness, sampling_probabilities
from lab.theory import diagonal_majorant

N, D = 60, 8
OVERLAPPING = [[0, 1, 2], [2, 3], [4, 5, 6, 7], [0, 7]]
LAW = [0.4, 0.3, 0.2, 0.1]


def problem(penalty: Penalty | None = None) -> LeastSquares:
    rng = np.random.default_rng(3)
    X = rng.uniform(-1, 1, (N, D)) * np.geomspace(0.7, 1, D)
    truth = np.array([2.0, -1.0, 0.0, 0.0, 0.0, 0.0, 0.5, 0.0])
    y = X @ truth + 0.01 * rng.standard_normal(N)
    return LeastSquares(torch.tensor(X), torch.tensor(y), penalty=penalty or NoPenalty())


def recipe(**options: Any) -> Any:
    bounds = {"smoothness": 1.0, "clip": 50.0, "epsilon": 1.0, "delta": 1e-5, "n": "exact"}
    return algorithms.dp_skgd(**(bounds | options))


def bound(one: Any, penalty: Penalty, steps: int) -> Any:
    return one.bind(Binding(isthmus.Whole(), penalty, Space.flat(D), N, steps, None))


def noiseless(one: Any, objective: LeastSquares, steps: int) -> Any:
    """The pipeline of a recipe without its noise: what the iteration itself converges to."""
    pipe = bound(one, objective.penalty, steps)
    release = replace(pipe.stages[0].releases[0], mechanism=Exact())
    return replace(pipe, stages=[replace(pipe.stages[0], releases=[release])], promise=None)


def papers_loop(objective: LeastSquares, drawn: Any, M: np.ndarray, p: np.ndarray, inner: int) -> np.ndarray:
    """Algorithm 1 of 003 coordinate by coordinate, the proximal map at the step gamma_j / p_j = 1 / M_j."""
    X, y = np.asarray(objective.X), np.asarray(objective.y)
    gamma = p / M
    l1, l2 = objective.penalty.l1, objective.penalty.l2  # type: ignore[attr-defined]
    theta, total = np.zeros(D), np.zeros(D)
    for k, S in enumerate(drawn, start=1):
        gradient = X.T @ (X @ theta - y) / N
        for j in S:
            moved = theta[j] - gamma[j] / p[j] * gradient[j]
            step = gamma[j] / p[j]
            theta[j] = np.sign(moved) * max(abs(moved) - step * l1, 0.0) / (1 + step * l2)
        total += theta
        if k % inner == 0:
            theta, total = total / inner, np.zeros(D)
    return theta


SAMPLINGS = {
    "single": {"sampling": "single"},
    "importance": {"sampling": "single", "probabilities": "importance"},
    "blocks": {"sampling": "block", "blocks": 3, "probabilities": [0.2, 0.5, 0.3]},
    "overlapping": {"sampling": "block", "blocks": OVERLAPPING, "probabilities": LAW},
    "overlapping-uniform": {"sampling": "block", "blocks": OVERLAPPING},
    "nice": {"sampling": "nice", "tau": 3},
}


@pytest.mark.parametrize("name", SAMPLINGS)
def test_the_iterates_are_those_of_the_papers_loop(name: str) -> None:
    penalty = L1Penalty(0.02) if name == "single" else ElasticNet(0.02, 0.1)
    objective, steps, M = problem(penalty), 40, np.geomspace(0.5, 2.0, D)
    pipe = noiseless(recipe(smoothness=M.tolist(), inner=10, **SAMPLINGS[name]), objective, steps)
    encode = pipe.stages[0].releases[0].encode
    drawn = [encode.draw(D, seed=5, t=t).index.tolist() for t in range(steps)]
    coverage = torch.as_tensor(encode.draw(D).coverage).double().expand(D).numpy()
    point = minimize(objective, pipe, steps=steps, seed=5, record=None).x
    np.testing.assert_allclose(point.numpy(), papers_loop(objective, drawn, M, coverage, 10), rtol=1e-12, atol=1e-14)
    overlaps = any(set(a) & set(b) and a != b for a, b in itertools.combinations(drawn, 2))
    assert overlaps == ("overlapping" in name or name == "nice")


@pytest.mark.parametrize("name", ["single", "overlapping"])
def test_with_a_penalty_it_converges_to_the_minimum_and_its_zeros(name: str) -> None:
    """Prox on all coordinates every round stopped at 5e-4 and had no zeros: the fixed point was another one."""
    objective = problem(L1Penalty(0.02))
    M = np.asarray(objective.X).T @ np.asarray(objective.X) / N
    options = SAMPLINGS[name] | {"smoothness": M, "inner": 1}
    point = minimize(objective, noiseless(recipe(**options), objective, 400), steps=400, record=None).x.numpy()
    best = np.zeros(D)
    gradient = lambda w: M @ w - np.asarray(objective.X).T @ np.asarray(objective.y) / N  # noqa: E731
    for _ in range(200):
        for j in range(D):
            moved = best[j] - gradient(best)[j] / M[j, j]
            best[j] = np.sign(moved) * max(abs(moved) - 0.02 / M[j, j], 0.0)
    np.testing.assert_allclose(point, best, atol=1e-12)
    assert 3 <= (best == 0).sum() < D and ((point == 0) == (best == 0)).all()


def test_a_group_that_no_block_cuts_is_kept_whole() -> None:
    """Steps that differ within a group have their own proximal map; a cut group has none that descends."""
    groups, M = [0, 0, 1, 1, 2, 2, 2, 3], np.linspace(0.4, 0.7, D)
    objective = problem(GroupPenalty(groups, 0.05))
    whole = recipe(smoothness=M.tolist(), inner=1, blocks=[[0, 1], [2, 3, 7], [4, 5, 6]])
    point = minimize(objective, noiseless(whole, objective, 300), steps=300, record=None).x
    gradient = objective.gradient(point)
    for own in ([0, 1], [2, 3], [4, 5, 6], [7]):
        size = float(point[own].norm())
        if size:  # grad + lam w_g / ||w_g|| = 0, else ||grad|| <= lam
            torch.testing.assert_close(gradient[own], -0.05 * point[own] / size, rtol=0, atol=1e-10)
        assert size or float(gradient[own].norm()) <= 0.05
    assert (point[2:4] == 0).all() and point[0] != 0
    for refused, law in (
        (GroupPenalty(groups, 0.1), {"blocks": 3}),
        (GroupPenalty(groups, 0.1), {"sampling": "nice", "tau": 2}),
        (ProxPenalty(lambda w: 0.0, lambda w, eta: w), {"sampling": "single"}),
    ):
        with pytest.raises(isthmus.InvalidInput, match="mixes coordinates of different blocks"):
            bound(recipe(**law), refused, 5)


def test_a_law_over_overlapping_subsets_keeps_bounds_and_cost() -> None:
    """C_S is the l2 norm of the bounds on S whatever other subsets hold them; one noise multiplier; unbiased."""
    c = np.linspace(0.5, 2.0, D)
    pipe = bound(recipe(clip=c.tolist(), blocks=OVERLAPPING, probabilities=LAW), NoPenalty(), 30)
    apart = bound(recipe(clip=c.tolist(), blocks=4), NoPenalty(), 30)
    release = pipe.stages[0].releases[0]
    assert release.mechanism.multiplier == apart.stages[0].releases[0].mechanism.multiplier
    p = sampling_probabilities("block", D, blocks=OVERLAPPING, chances=LAW)
    np.testing.assert_allclose(p, [0.5, 0.4, 0.7, 0.3, 0.2, 0.2, 0.2, 0.3])
    counts, mean, v = np.zeros(4), torch.zeros(D).double(), torch.arange(1.0, D + 1).double()
    for t in range(4000):
        sketch = release.encode.draw(D, t=t)
        S = sketch.index.tolist()
        counts[OVERLAPPING.index(S)] += 1
        assert sketch.scale == pytest.approx(1 / np.linalg.norm(c[S]))
        mean += release.lift(sketch, sketch.forward(v), None, 1.0).direction / 4000
    np.testing.assert_allclose(counts / 4000, LAW, atol=4 * 0.5 / 4000**0.5)
    np.testing.assert_allclose(mean.numpy(), v.numpy(), rtol=5 * (1 / 0.2 / 4000) ** 0.5)


# ---------------------------------------------------------------- a matrix M


def matrix(rng: np.random.Generator, d: int = 5) -> np.ndarray:
    root = rng.standard_normal((d, d)) * np.geomspace(0.3, 2.0, d)
    return np.asarray(root.T @ root / d)


LAWS: dict[str, tuple[list[list[int]], list[float]]] = {
    "single": ([[0], [1], [2], [3], [4]], [0.2] * 5),
    "overlapping": ([[0, 1, 2], [2, 3], [3, 4], [0, 4]], LAW),
    "nice": ([list(s) for s in itertools.combinations(range(5), 3)], [0.1] * 10),
    "full": ([[0, 1, 2, 3, 4]], [1.0]),
}


@pytest.mark.parametrize("name", LAWS)
def test_a_matrix_allows_the_steps_that_descend(name: str, rng: np.random.Generator) -> None:
    """sum_S q_S I_S M I_S <= Diag(p v), subset by subset; single coordinates step by 1 / M_jj, all need M <= V."""
    subsets, q = LAWS[name]
    for _ in range(20):
        M = matrix(rng)
        v = expected_smoothness(M, subsets, q) if name != "nice" else expected_smoothness(M, tau=3)
        mean, p = np.zeros((5, 5)), np.zeros(5)
        for S, chance in zip(subsets, q, strict=True):
            mean[np.ix_(S, S)] += chance * M[np.ix_(S, S)]
            p[S] += chance
        assert np.linalg.eigvalsh(np.diag(p * v) - mean)[0] > -1e-12
        assert np.linalg.eigvalsh(np.diag(diagonal_majorant(M)) - M)[0] > -1e-12
        if name == "single":
            np.testing.assert_allclose(v, np.diagonal(M))
        if name == "full":
            assert np.linalg.eigvalsh(np.diag(v * 0.999) - M)[0] < 0  # no step is given away


NO_MATRICES = [
    ([[1.0, 2.0], [2.0, 1.0]], "eigenvalue -1"),
    ([[1.0, 0.5], [0.0, 1.0]], "not symmetric"),
    ([[0.0, 0.0], [0.0, 1.0]], "diagonal"),
    ([[1.0, 0.0]], "d x d"),
]


@pytest.mark.parametrize(("bad", "text"), NO_MATRICES)
def test_what_is_no_smoothness_matrix_is_refused(bad: Any, text: str) -> None:
    with pytest.raises(isthmus.InvalidInput, match=text):
        recipe(smoothness=bad)
    with pytest.raises(isthmus.InvalidInput, match=r"smoothness.shape"):
        bound(recipe(smoothness=[[1.0, 0.0], [0.0, 1.0]], blocks=2), NoPenalty(), 5)
