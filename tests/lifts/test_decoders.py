"""Basis pursuit, CoSaMP and the lift parts."""

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from sklearn.linear_model import orthogonal_mp

from isthmus.lifts import CoSaMP, ProjectAndLift, adjoint, basis_pursuit, cosamp, discard, pinv, unbiased
from isthmus.sets import L1Ball
from isthmus.sketches import SRHT, CountSketch, GaussianSketch


def least_l1(matrix: np.ndarray, y: np.ndarray) -> float:
    """The value of basis pursuit by a linear program."""
    d = matrix.shape[1]
    return float(linprog(np.ones(2 * d), A_eq=np.hstack([matrix, -matrix]), b_eq=y, method="highs").fun)


@pytest.mark.parametrize("kind", ["gaussian", "integers", "signs", "twins"])
@pytest.mark.parametrize("seed", range(5))
def test_basis_pursuit_value(kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    m, d = int(rng.integers(3, 12)), 30
    matrix = rng.standard_normal((m, d))
    if kind == "integers":
        matrix = np.round(matrix)
    elif kind == "signs":
        matrix = np.sign(matrix)
    elif kind == "twins":
        matrix[:, 1], matrix[:, 2] = matrix[:, 0], -matrix[:, 0]
    y = matrix @ (rng.standard_normal(d) * (rng.random(d) < 0.3))
    pursuit = basis_pursuit(matrix, y)
    assert pursuit.value == pytest.approx(least_l1(matrix, y), rel=1e-7, abs=1e-12)
    assert pursuit.gap <= 1e-7 * max(pursuit.value, 1e-12)
    np.testing.assert_allclose(matrix @ pursuit.point, y, atol=1e-7)
    assert np.abs(pursuit.dual @ matrix).max() <= 1 + 1e-12


def test_basis_pursuit_recovers_a_sparse_vector_on_the_path() -> None:
    rng = np.random.default_rng(0)
    matrix, w = rng.standard_normal((60, 200)), np.zeros(200)
    w[rng.permutation(200)[:8]] = rng.standard_normal(8)
    pursuit = basis_pursuit(matrix, matrix @ w)
    assert pursuit.method == "homotopy" and pursuit.iterations < 60
    np.testing.assert_allclose(pursuit.point, w, atol=1e-9)


@pytest.mark.parametrize("scale", [1e-8, 1e8])
def test_basis_pursuit_scales(scale: float) -> None:
    rng = np.random.default_rng(1)
    matrix, y = rng.standard_normal((8, 20)), rng.standard_normal(8)
    one = basis_pursuit(matrix, y).value
    assert basis_pursuit(scale * matrix, y).value * scale == pytest.approx(one, rel=1e-9)
    assert basis_pursuit(matrix, scale * y).value / scale == pytest.approx(one, rel=1e-9)


def test_basis_pursuit_edges(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    square, y = rng.standard_normal((7, 7)), rng.standard_normal(7)
    np.testing.assert_allclose(basis_pursuit(square, y).point, np.linalg.solve(square, y), atol=1e-8)
    zero = basis_pursuit(square, np.zeros(7))
    assert zero.value == 0 and not zero.point.any()
    deficient = np.vstack([square[:3], square[:1]])
    inside = deficient @ np.ones(7)
    assert basis_pursuit(deficient, inside).value == pytest.approx(least_l1(deficient, inside), rel=1e-7)
    with pytest.raises(ValueError, match="not in the range"):
        basis_pursuit(deficient, np.array([1.0, 0.0, 0.0, -1.0]))
    with pytest.raises(ValueError, match="y.shape"):
        basis_pursuit(square, np.ones(3))
    with pytest.raises(ValueError, match="tol"):
        basis_pursuit(square, y, tol=0.0)
    monkeypatch.setattr("isthmus.lifts.project_lift.DENSE_BYTES", 0)
    sketch = SRHT(8).draw(32, seed=1)
    code = sketch.forward(torch.from_numpy(rng.standard_normal(32)))
    large = basis_pursuit(sketch, code, tol=1e-5)
    assert large.method == "value function"
    assert large.value == pytest.approx(least_l1(sketch.dense().numpy(), code.numpy()), rel=1e-4)  # tol asked for


def test_basis_pursuit_of_a_count_sketch_is_closed_form() -> None:
    sketch = CountSketch(6, scaling="jl").draw(30, seed=3)
    y = sketch.forward(torch.randn(30, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    pursuit = basis_pursuit(sketch, y)
    assert pursuit.method == "closed form" and isinstance(pursuit.point, torch.Tensor)
    assert pursuit.value == pytest.approx(least_l1(sketch.dense().numpy(), y.numpy()), rel=1e-9)
    assert pursuit.gap <= 1e-12 * pursuit.value


def sparse(batch: int, d: int, k: int, seed: int = 0) -> torch.Tensor:
    """k-sparse rows."""
    rng = np.random.default_rng(seed)
    z = np.zeros((batch, d))
    for row in z:
        row[rng.permutation(d)[:k]] = rng.standard_normal(k) + np.sign(rng.standard_normal(k))
    return torch.from_numpy(z)


def gaussian(m: int, d: int, seed: int = 0) -> torch.Tensor:
    """An m x d matrix of N(0, 1/m)."""
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((m, d)) / np.sqrt(m))


@pytest.mark.parametrize(("d", "k"), [(200, 3), (400, 6)])
def test_cosamp_recovers_and_batch_equals_loop(d: int, k: int) -> None:
    matrix, z = gaussian(int(4 * k * np.log(d / k)), d), sparse(40, d, k)
    found = cosamp(matrix, z @ matrix.T, k)
    torch.testing.assert_close(found, z, atol=1e-9, rtol=0)
    loop = torch.stack([cosamp(matrix, matrix @ row, k) for row in z])
    torch.testing.assert_close(loop, found, atol=1e-12, rtol=0)
    greedy = orthogonal_mp(matrix.numpy(), (z @ matrix.T).numpy().T, n_nonzero_coefs=k).T
    exact = np.abs(greedy - z.numpy()).max(axis=1) < 1e-9
    assert exact.mean() > 0.9
    np.testing.assert_allclose(found.numpy()[exact], greedy[exact], atol=1e-9)


def test_cosamp_is_stable_under_noise() -> None:
    d, k = 200, 3
    matrix, z = gaussian(60, d), sparse(30, d, k)
    noise = 0.01 * torch.from_numpy(np.random.default_rng(1).standard_normal((30, 60)))
    error = torch.linalg.vector_norm(cosamp(matrix, z @ matrix.T + noise, k) - z, dim=1)
    assert bool((error <= 15 * torch.linalg.vector_norm(noise, dim=1)).all())  # the constant of the theorem


def test_cosamp_never_gets_worse() -> None:
    matrix = gaussian(12, 80)
    y = torch.from_numpy(np.random.default_rng(3).standard_normal((20, 12)))
    residuals = [
        torch.linalg.vector_norm(y - cosamp(matrix, y, 3, iterations=i) @ matrix.T, dim=1) for i in range(1, 25)
    ]
    assert all(bool((b <= a + 1e-12).all()) for a, b in zip(residuals, residuals[1:], strict=False))


def algorithm_1(matrix: np.ndarray, y: np.ndarray, k: int) -> list[np.ndarray]:
    """Algorithm 1 of paper 002, all its 6(k + 1) iterates."""
    z, u, iterates = np.zeros(matrix.shape[1]), y, []
    for _ in range(6 * (k + 1)):
        T = sorted(set(np.argsort(-np.abs(matrix.T @ u))[: 2 * k]) | set(np.nonzero(z)[0]))
        b = np.zeros(matrix.shape[1])
        b[T] = np.linalg.pinv(matrix[:, T]) @ y
        kept = np.argsort(-np.abs(b))[:k]
        z = np.zeros(matrix.shape[1])
        z[kept] = b[kept]
        u = y - matrix @ z
        iterates.append(z)
    return iterates


@pytest.mark.parametrize(("p", "d", "k", "noise"), [(20, 100, 5, 0.1), (30, 100, 8, 0.3)])
def test_cosamp_is_the_best_iterate_of_algorithm_1(p: int, d: int, k: int, noise: float) -> None:
    """A support that repeats is no fixed point: to stop there was worse in a third of the draws, up to 2.5 times."""
    rng = np.random.default_rng(2)
    matrix, codes, best, repeats = rng.standard_normal((p, d)) / np.sqrt(p), [], [], 0
    for _ in range(25):
        w = np.zeros(d)
        w[rng.permutation(d)[:k]] = rng.standard_normal(k)
        codes.append(matrix @ w + noise * rng.laplace(size=p))
        iterates = algorithm_1(matrix, codes[-1], k)
        best.append(min(iterates, key=lambda z: float(np.linalg.norm(codes[-1] - matrix @ z))))
        values = [frozenset(np.nonzero(z)[0]) for z in iterates]
        first = next((i for i in range(1, len(values)) if values[i] == values[i - 1]), 0)
        repeats += first > 0 and not np.allclose(iterates[first], best[-1])
    np.testing.assert_allclose(cosamp(matrix, np.array(codes), k), np.array(best), atol=1e-9)
    assert repeats > 0  # the draws hold such a support


def test_cosamp_edges() -> None:
    matrix = gaussian(6, 20)
    assert not cosamp(matrix, torch.zeros(6, dtype=torch.float64), 2).any()
    assert cosamp(matrix, torch.zeros(0, 6, dtype=torch.float64), 2).shape == (0, 20)
    y = matrix @ sparse(1, 20, 4)[0]
    wide = cosamp(matrix, y, 4)  # 3k > m
    assert int((wide != 0).sum()) <= 4 and bool(torch.isfinite(wide).all())
    twins = torch.cat([matrix, matrix], dim=1)
    tied = cosamp(twins, 2 * matrix[:, 3], 1)  # equal columns share the weight before pruning
    assert int((tied != 0).sum()) == 1
    assert float((twins @ tied - 2 * matrix[:, 3]).norm()) < float((2 * matrix[:, 3]).norm())
    everything = cosamp(matrix, y, 20)
    torch.testing.assert_close(matrix @ everything, y)
    single = cosamp(matrix.float(), y.float(), 4)
    assert single.dtype == torch.float32
    assert isinstance(cosamp(matrix.numpy(), y.numpy(), 4), np.ndarray)
    sketch = GaussianSketch(6, scaling="jl").draw(20)
    torch.testing.assert_close(cosamp(sketch, y, 2), cosamp(sketch.dense(), y, 2))
    for call, message in [
        (lambda: cosamp(matrix, y, 0), "k=0"),
        (lambda: cosamp(matrix, y, 21), "at most"),
        (lambda: cosamp(matrix, y[:5], 2), "codes of length 6"),
        (lambda: cosamp(matrix, y, 2, iterations=0), "iterations"),
        (lambda: cosamp(matrix, y[None, None], 2), "y.shape"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()


def test_parts() -> None:
    sketch = CountSketch(10).draw(40, seed=1)
    g, w = torch.randn(40, generator=torch.Generator().manual_seed(1)), torch.zeros(40)
    y = sketch.forward(g)
    torch.testing.assert_close(adjoint(sketch, y, w, 0.1).direction, sketch.adjoint(y))
    torch.testing.assert_close(pinv(sketch, y, w, 0.1).direction, sketch.pinv(y))
    torch.testing.assert_close(unbiased(sketch, y, w, 0.1).direction, 4 * sketch.pinv(y))
    assert discard(sketch, y, w, 0.1) is None
    assert int((CoSaMP(2)(sketch, y, w, 0.1).direction != 0).sum()) <= 2
    with pytest.raises(TypeError, match="tight"):
        pinv(GaussianSketch(10, scaling="jl").draw(40), y, w, 0.1)
    for bad in (
        lambda: CoSaMP(0),
        lambda: ProjectAndLift(L1Ball(1.0), tol=0),
        lambda: ProjectAndLift(L1Ball(1.0), "x"),
    ):
        with pytest.raises(ValueError, match="is not allowed"):
            bad()
