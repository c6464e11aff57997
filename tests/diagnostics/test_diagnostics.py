"""Diagnostics against dense linear algebra, on every kind of rows, and what they refuse."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import matplotlib
import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp
import torch
from refusals import refuses
from torch import Tensor, nn

from isthmus import InvalidInput, diagnostics
from isthmus.gradients import Dense, Glm, Lazy, Outer, Rows, Stack
from isthmus.objectives.module import Layers, captured

matplotlib.use("Agg")


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    import matplotlib.pyplot as plt

    plt.close("all")


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def sparse(n: int, d: int, seed: int) -> sp.csr_array:
    return sp.csr_array(sp.random(n, d, density=0.4, random_state=np.random.default_rng(seed), format="csr"))


def mlp(n: int, seed: int) -> Stack:
    """Per-example gradients of a small network, factored, at fixed parameters."""
    torch.manual_seed(3)
    module = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)).double()
    layers = Layers(module)
    layers.attach()
    labels = torch.arange(n) % 3
    return captured(layers, nn.functional.cross_entropy, normal(n, 6, seed=seed), labels)


KINDS: dict[str, Callable[[int, int], Rows]] = {
    "dense": lambda n, seed: Dense(normal(n, 20, seed=seed)),
    "glm": lambda n, seed: Glm(normal(n, seed=seed), normal(n, 20, seed=seed + 1)),
    "sparse glm": lambda n, seed: Glm(normal(n, seed=seed), sparse(n, 20, seed)),
    "outer": lambda n, seed: Outer(normal(n, 5, seed=seed), normal(n, 4, seed=seed + 1)),
    "outer, many positions": lambda n, seed: Outer(normal(n, 7, 5, seed=seed), normal(n, 7, 4, seed=seed + 1)),
    "outer, few positions": lambda n, seed: Outer(normal(n, 2, 40, seed=seed), normal(n, 2, 30, seed=seed + 1)),
    "outer, ones": lambda n, seed: Outer(normal(n, 5, seed=seed), normal(n, 4, seed=seed + 1), ones=True),
    "positions, ones": lambda n, seed: Outer(normal(n, 2, 39, seed=seed), normal(n, 2, 30, seed=seed + 1), ones=True),
    "lazy": lambda n, seed: Lazy(lambda lo, hi: normal(n, 20, seed=seed)[lo:hi], n, 20, dtype=torch.float64),
    "network": mlp,
}
every_kind = pytest.mark.parametrize("kind", KINDS)


# ---------------------------------------------------------------- products


@every_kind
def test_products_are_dense_products(kind: str) -> None:
    first, second = KINDS[kind](9, 0), KINDS[kind](7, 10)
    expected = first.dense() @ second.dense().T
    torch.testing.assert_close(diagnostics._products(first, second), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(diagnostics._squares(first), first.dense().square().sum(1), rtol=1e-12, atol=1e-12)


def test_factored_rows_are_never_made_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gram matrices of a wide layer come from its factors: `dense` is not called."""

    def refuse(self: Rows) -> Tensor:
        raise AssertionError("made dense")

    monkeypatch.setattr(Outer, "dense", refuse)
    fit, rest = (Outer(normal(6, 3000, seed=s), normal(6, 2000, seed=s + 1)) for s in (0, 5))
    assert diagnostics.spectrum(fit).effective_rank > 1
    assert 0 < diagnostics.captured_energy(fit, rest, [3]).at(3) < 1


def test_products_of_different_kinds() -> None:
    dense, outer, lean = Dense(normal(4, 20)), KINDS["outer"](5, 0), KINDS["sparse glm"](3, 0)
    entries = [(KINDS["outer, ones"](3, 0), Outer(normal(4, 6), normal(4, 4)))]  # ones left out on one side only
    for first, second in [(dense, outer), (outer, dense), (lean, outer), (lean, KINDS["glm"](4, 9)), *entries]:
        torch.testing.assert_close(diagnostics._products(first, second), first.dense() @ second.dense().T)
    flat = Dense(mlp(4, 0).dense())  # leaves against one piece
    torch.testing.assert_close(diagnostics._products(mlp(5, 1), flat), mlp(5, 1).dense() @ flat.dense().T)


def test_half_precision_is_multiplied_in_float64() -> None:
    a, b = normal(5, 30).bfloat16(), normal(5, 4, seed=1).bfloat16()
    exact = (a.double() @ a.double().T) * (b.double() @ b.double().T)
    torch.testing.assert_close(diagnostics._products(Outer(a, b), Outer(a, b)), exact, rtol=1e-13, atol=0)


# ---------------------------------------------------------------- spectra


@every_kind
@pytest.mark.parametrize("n", [5, 30])
def test_spectrum_is_that_of_the_second_moment(kind: str, n: int) -> None:
    rows = KINDS[kind](n, 0)
    g = rows.dense()
    seen = diagnostics.spectrum(rows)
    expected = torch.linalg.eigvalsh(g.T @ g / n).flip(0)[: min(n, rows.d)].clamp(min=0)
    torch.testing.assert_close(seen.values, expected, rtol=1e-9, atol=1e-12)
    assert (seen.n, seen.d, len(seen.values)) == (n, rows.d, min(n, rows.d))
    assert n >= rows.d or seen.gap(n + 1) == 0
    assert seen.total == pytest.approx(float(g.square().sum() / n))
    for k in (1, 3, min(n, rows.d)):
        below = float(expected[k]) if k < len(expected) else 0.0
        assert diagnostics.eigen_gap(rows, k) == pytest.approx(float(expected[k - 1]) - below, rel=1e-9, abs=1e-12)
        assert float(seen.shares[k - 1]) == pytest.approx(float(expected[:k].sum() / expected.sum()))


@pytest.mark.parametrize("r", [1, 2, 5])
def test_ranks_count_equal_directions(r: int) -> None:
    seen = diagnostics.spectrum(Dense(3 * torch.eye(5, dtype=torch.float64)[:r]))
    assert seen.effective_rank == pytest.approx(r)
    assert seen.stable_rank == pytest.approx(r)


def test_zero_gradients_have_no_rank() -> None:
    seen = diagnostics.spectrum(Dense(torch.zeros(3, 4)))
    assert (seen.total, seen.effective_rank, seen.stable_rank, seen.shares.tolist()) == (0, 0, 0, [1, 1, 1])
    seen.plot()


def test_spectra_collect_in_order() -> None:
    rows = [Dense(normal(4, 6, seed=s)) for s in range(3)]
    seen = diagnostics.Spectra()
    for step, each in zip((0, 5, 9), rows, strict=True):
        seen = seen.add(step, diagnostics.spectrum(each))
    assert seen.steps == (0, 5, 9)
    assert seen.gaps(2) == [diagnostics.eigen_gap(row, 2) for row in rows]
    table = seen.table()
    assert table["step"] == [0] * 4 + [5] * 4 + [9] * 4
    assert table["eigenvalue"][4:8] == diagnostics.spectrum(rows[1]).values.tolist()
    assert len(seen.plot().lines) == 3
    with pytest.raises(InvalidInput, match="step=9"):
        seen.add(9, diagnostics.spectrum(rows[0]))
    with pytest.raises(InvalidInput, match="spectrum"):
        seen.add(10, rows[0])  # type: ignore[arg-type]


@every_kind
def test_sorted_components(kind: str) -> None:
    rows = KINDS[kind](8, 0)
    mean = rows.dense().mean(0)
    expected = mean.abs().sort(descending=True).values
    torch.testing.assert_close(diagnostics.sorted_components(rows).values, expected)
    torch.testing.assert_close(diagnostics.sorted_components(mean).values, expected)
    seen = diagnostics.sorted_components(mean)
    order = torch.arange(1, rows.d + 1).double()
    assert bool((seen.values <= seen.envelope / order.sqrt() * (1 + 1e-12)).all())
    assert not bool((seen.values <= 0.999 * seen.envelope / order.sqrt()).all())


# ---------------------------------------------------------------- captured energy


@every_kind
def test_captured_energy_is_that_of_the_dense_subspace(kind: str) -> None:
    fit, rest = KINDS[kind](8, 0), KINDS[kind](11, 20)
    curve = diagnostics.captured_energy(fit, rest)
    g, h = fit.dense(), rest.dense()
    right = torch.linalg.svd(g, full_matrices=False)[2]
    rank = int(torch.linalg.matrix_rank(g))
    expected = [float((h @ right[:k].T).square().sum() / h.square().sum()) for k in range(1, rank + 1)]
    assert curve.ks == tuple(range(1, rank + 1))
    assert curve.shares == pytest.approx(expected, abs=1e-9)
    assert (curve.rank, curve.n_fit, curve.n_holdout) == (rank, 8, 11)
    assert list(curve.shares) == sorted(curve.shares)


def test_more_than_the_rank_is_the_rank() -> None:
    fit = Dense(torch.cat([normal(3, 20), normal(3, 20)]))  # six rows, three directions
    curve = diagnostics.captured_energy(fit, Dense(normal(5, 20, seed=9)), [3, 4, 20])
    assert curve.rank == 3
    assert curve.shares[0] == curve.shares[1] == curve.shares[2] < 1


def test_the_fitted_examples_are_no_holdout() -> None:
    rows = mlp(6, 0)
    for again in (rows, Stack(rows.leaves())):
        with pytest.raises(InvalidInput, match="public_holdout.*not learned from"):
            diagnostics.captured_energy(rows, again)


def test_choose_k() -> None:
    curve = diagnostics.EnergyCurve(ks=(2, 5, 9), shares=(0.4, 0.9, 0.93), rank=9, n_fit=9, n_holdout=4)
    assert [diagnostics.choose_k(curve, share) for share in (0.1, 0.4, 0.5, 0.9, 0.93)] == [2, 2, 5, 5, 9]
    assert diagnostics.choose_k(curve) == 5
    with pytest.raises(InvalidInput, match=r"share=0.95.*reaches 0.93"):
        diagnostics.choose_k(curve, 0.95)


# ---------------------------------------------------------------- subspaces


@pytest.mark.parametrize("sizes", [(1, 1), (3, 3), (3, 2), (2, 5)])
def test_angles_against_scipy_and_projectors(sizes: tuple[int, int]) -> None:
    v, w = (torch.linalg.qr(normal(10, k, seed=seed))[0] for seed, k in enumerate(sizes))
    seen = diagnostics.principal_angles(v, w)
    expected = np.sort(scipy.linalg.subspace_angles(v.numpy(), w.numpy()))
    assert seen.values == pytest.approx(expected, abs=1e-12)
    spectral = float(torch.linalg.matrix_norm(v @ v.T - w @ w.T, 2))
    assert seen.distance == diagnostics.subspace_distance(v, w) == pytest.approx(spectral, abs=1e-12)


@pytest.mark.parametrize("theta", [0.0, 1e-9, 1e-3, 1.0, math.pi / 2])
def test_small_and_right_angles_are_exact(theta: float) -> None:
    v = torch.tensor([[1.0], [0.0]], dtype=torch.float64)
    w = torch.tensor([[math.cos(theta)], [math.sin(theta)]], dtype=torch.float64)
    assert diagnostics.principal_angles(v, w).values[0] == pytest.approx(theta, rel=1e-7, abs=1e-15)
    assert diagnostics.subspace_distance(v, w) == pytest.approx(math.sin(theta), rel=1e-7, abs=1e-15)


def test_principal_residual_ratio() -> None:
    rows, v = mlp(7, 0), torch.linalg.qr(normal(53, 6))[0]
    g = rows.dense().mean(0)
    inside = v @ (v.T @ g)
    expected = float(inside.square().sum() / (g - inside).square().sum())
    assert diagnostics.principal_residual_ratio(rows, v) == pytest.approx(expected)
    assert diagnostics.principal_residual_ratio(g, v) == pytest.approx(expected)
    axis = torch.eye(3)[:, :1]
    assert diagnostics.principal_residual_ratio(torch.tensor([2.0, 0.0, 0.0]), axis) == math.inf
    assert diagnostics.principal_residual_ratio(torch.tensor([0.0, 2.0, 0.0]), axis) == 0


# ---------------------------------------------------------------- released values


def test_signal_estimate_is_unbiased_in_the_square(draws: torch.Generator) -> None:
    """E ||y||^2 - m sigma^2 = ||s||^2: right for the true sigma, wrong for 2/3 and 3/2 of it."""
    m, sigma, signal = 400, 0.5, 8.0
    s = torch.zeros(m, dtype=torch.float64)
    s[0] = signal
    noisy = [s + sigma * torch.randn(m, generator=draws, dtype=torch.float64) for _ in range(400)]

    def mean_square(std: float) -> float:
        return sum(diagnostics.noise_to_signal(y, std).signal ** 2 for y in noisy) / len(noisy)

    assert mean_square(sigma) == pytest.approx(signal**2, rel=0.03)  # four standard errors
    assert mean_square(2 / 3 * sigma) > 1.5 * signal**2
    assert mean_square(1.5 * sigma) < 0.5 * signal**2


class Collected:
    """A sink that remembers."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, dict[str, Any]]] = []

    def scalars(self, step: int, values: Any) -> None:
        self.seen.append((step, dict(values)))


def test_tracker_collects_and_sends() -> None:
    sink = Collected()
    tracker = diagnostics.Tracker(sink)
    ys = [normal(30, seed=s) for s in range(3)]
    for t, (y, fraction) in enumerate(zip(ys, (None, 0.25, -0.01), strict=True)):
        tracker.observe(10 * t, y, 0.3, fraction)
    table = tracker.table()
    assert len(tracker) == 3
    assert table["step"] == [0, 10, 20]
    assert table["clip_fraction"] == [None, 0.25, -0.01]
    for i, y in enumerate(ys):
        one = diagnostics.noise_to_signal(y, 0.3).table()
        assert {name: table[name][i] for name in one} == one
        assert sink.seen[i] == (10 * i, {**one, "clip_fraction": table["clip_fraction"][i]})
    assert [line.get_label() for line in tracker.plot().lines] == ["released", "noise", "signal"]


# ---------------------------------------------------------------- records


def records() -> dict[str, Any]:
    fit, rest = Dense(normal(6, 9)), Dense(normal(4, 9, seed=1))
    v, w = (torch.linalg.qr(normal(9, 3, seed=s))[0] for s in (0, 1))
    tracker = diagnostics.Tracker()
    tracker.observe(0, torch.ones(3), 0.1)
    return {
        "spectrum": diagnostics.spectrum(fit),
        "spectra": diagnostics.Spectra().add(0, diagnostics.spectrum(fit)),
        "components": diagnostics.Components(torch.tensor([2.0, 1.0])),
        "curve": diagnostics.captured_energy(fit, rest),
        "angles": diagnostics.principal_angles(v, w),
        "noise": diagnostics.NoiseToSignal(5.0, 3.0, 2),
        "tracker": tracker,
    }


@pytest.mark.parametrize("name", records())
def test_records_draw_and_tell(name: str) -> None:
    import matplotlib.pyplot as plt

    record = records()[name]
    table = record.table()
    columns = [column for column in table.values() if isinstance(column, list)]
    assert table and len({len(column) for column in columns}) <= 1
    ax = plt.subplots()[1]
    assert record.plot(ax) is ax
    assert ax.lines or ax.patches
    assert record.plot().get_ylabel()
    ax.figure.canvas.draw()


def test_every_name_is_in_the_docstring() -> None:
    text = diagnostics.__doc__ or ""
    own = [value for value in vars(diagnostics).values() if getattr(value, "__module__", "") == diagnostics.__name__]
    names = {value.__name__ for value in own if not value.__name__.startswith("_")}
    assert len(names) > 10 and not [name for name in names if name not in text and name != "Sink"]


# ---------------------------------------------------------------- bad input

ROWS = Dense(normal(4, 5))
V = torch.eye(5)[:, :2]


test_bad_input_is_refused = refuses(
    (lambda: diagnostics.spectrum(normal(4, 5)), "public='Tensor'.*isthmus.gradients.Rows"),  # type: ignore[arg-type]
    (lambda: diagnostics.spectrum([(normal(4, 5), 0)]), "public='list'.*public examples"),  # type: ignore[arg-type]
    (lambda: diagnostics.spectrum(Dense(torch.zeros(0, 5))), "public.n=0"),
    (lambda: diagnostics.eigen_gap(ROWS, 6), "k=6.*give at most 5, which is the dimension d"),
    (lambda: diagnostics.sorted_components(normal(4, 5)), "public.shape"),
    (lambda: diagnostics.sorted_components(torch.zeros(0)), "public.shape"),
    (lambda: diagnostics.captured_energy(ROWS, normal(4, 5)), "public_holdout"),  # type: ignore[arg-type]
    (lambda: diagnostics.captured_energy(ROWS, Dense(normal(4, 6))), r"public_holdout.d=6.*d = 5"),
    (lambda: diagnostics.captured_energy(ROWS, Dense(torch.zeros(2, 5))), "public_holdout.*zero"),
    (lambda: diagnostics.captured_energy(Dense(torch.zeros(2, 5)), ROWS), "public=.*zero"),
    (lambda: diagnostics.captured_energy(ROWS, Dense(normal(2, 5)), []), "ks"),
    (lambda: diagnostics.captured_energy(ROWS, Dense(normal(2, 5)), [0]), "k=0"),
    (lambda: diagnostics.captured_energy(ROWS, Dense(normal(2, 5)), [1]).at(2), "k=2"),
    (lambda: diagnostics.choose_k(diagnostics.captured_energy(ROWS, Dense(normal(2, 5))), 1.5), "share"),
    (lambda: diagnostics.principal_angles(2 * V, V), "V=.*orthonormal"),
    (lambda: diagnostics.principal_angles(V, V[:4]), "W"),
    (lambda: diagnostics.principal_angles(V.T, V.T), "V.shape"),
    (lambda: diagnostics.principal_residual_ratio(ROWS, torch.eye(6)[:, :2]), "public.shape"),
    (lambda: diagnostics.principal_residual_ratio(torch.zeros(5), V), "public.*not zero"),
    (lambda: diagnostics.noise_to_signal(torch.ones(3), 0.0), "sigma_per_coordinate=0.0"),
    (lambda: diagnostics.noise_to_signal(torch.ones(0), 1.0), "released"),
    (lambda: diagnostics.noise_to_signal(torch.tensor([math.nan]), 1.0), "released"),
    (lambda: diagnostics.Tracker().observe(-1, torch.ones(3), 1.0), "t=-1"),
    (lambda: diagnostics.Tracker().observe(0, torch.ones(3), 0.0), "noise_std=0.0"),
    (lambda: diagnostics.Tracker().observe(0, [1.0], 1.0), "released"),  # type: ignore[arg-type]
    (lambda: diagnostics.Tracker().observe(0, torch.ones(3), 1.0, math.nan), "clip_fraction"),
)


def test_gradients_that_are_not_finite_are_refused() -> None:
    with pytest.raises(InvalidInput, match="gradients holds"):
        diagnostics.spectrum(Dense(torch.tensor([[1.0, math.inf]])))


def test_rounds_are_observed_once() -> None:
    tracker = diagnostics.Tracker()
    tracker.observe(3, torch.ones(2), 1.0)
    with pytest.raises(InvalidInput, match="t=3"):
        tracker.observe(3, torch.ones(2), 1.0)
