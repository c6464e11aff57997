"""Objectives against autograd, torch.func, scikit-learn and SciPy."""

import math

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from reference import never_densified
from refusals import refuses
from scipy.special import logsumexp
from scipy.stats import poisson
from sklearn.metrics import accuracy_score, hinge_loss, log_loss, r2_score
from torch.func import grad, vmap

from isthmus import Hinge, Huber, InvalidInput, LeastSquares, Logistic, Poisson, SmoothHinge, Softmax, TorchObjective
from isthmus.base.space import Space
from isthmus.gradients import Dense, Lazy, Outer
from isthmus.objectives import Objective
from isthmus.penalties import ElasticNet, L1Penalty, NoPenalty

N, P, K = 23, 7, 4
F64 = torch.float64
KINDS = {
    "logistic": (Logistic, "signs"),
    "softmax": (Softmax, "labels"),
    "squares": (LeastSquares, "reals"),
    "hinge": (Hinge, "signs"),
    "smooth": (lambda X, y, **k: SmoothHinge(X, y, gamma=0.7, **k), "signs"),
    "huber": (lambda X, y, **k: Huber(X, y, delta=0.8, **k), "reals"),
    "poisson": (Poisson, "counts"),
}


def data(kind, n=N, sparse=False, dtype=np.float64):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(n, P)).astype(dtype)
    if sparse:
        X = sp.csr_array(X * (rng.random((n, P)) < 0.5))
    labels = rng.permutation(np.arange(n) % K)
    y = {"signs": np.where(labels % 2, 1, -1), "labels": labels, "reals": rng.normal(size=n), "counts": labels * 2}
    return X, y[kind]


def build(name, n=N, sparse=False, dtype=np.float64, **options):
    make, kind = KINDS[name]
    if name == "softmax":
        options["classes"] = K
    elif kind == "signs":
        options["classes"] = (-1, 1)
    model = make(*data(kind, n, sparse, dtype), **options)
    w = torch.randn(model.d, generator=torch.Generator().manual_seed(1), dtype=F64)
    return model, w


def formula(name):
    """The loss of one example, written out once more in plain torch."""

    def one(w, x, y):
        z = w.view(-1, P) @ x if name == "softmax" else w @ x
        match name:
            case "logistic":
                return torch.log1p(torch.exp(-y * z))
            case "softmax":
                return torch.logsumexp(z, 0) - (z * (torch.arange(K) == y)).sum()
            case "squares":
                return (z - y) ** 2 / 2
            case "hinge":
                return torch.relu(1 - y * z)
            case "smooth":
                m = 1 - y * z
                return torch.where(m <= 0, 0 * m, torch.where(m < 0.7, m**2 / 1.4, m - 0.35))
            case "huber":
                return torch.nn.functional.huber_loss(z, y, delta=0.8)
            case _:
                return torch.exp(z) - y * z + torch.lgamma(y + 1)

    return one


@pytest.fixture(params=list(KINDS))
def name(request):
    return request.param


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("n", [1, N])
def test_rows_losses_and_gradients_against_torch_func(name, sparse, n):
    f, w = build(name, n, sparse, l2=0.3, l1=0.2)
    X = torch.as_tensor(f.X.toarray() if sparse else f.X)
    one, y = formula(name), f.y.to(F64)
    wanted = vmap(grad(one), in_dims=(None, 0, 0))(w, X, y)
    torch.testing.assert_close(f.rows(w).dense(), wanted, rtol=1e-10, atol=1e-10)
    value = vmap(one, in_dims=(None, 0, 0))(w, X, y).mean()
    assert f.data_loss(w) == pytest.approx(float(value), rel=1e-12)
    assert f.loss(w) == pytest.approx(float(value + 0.15 * w.square().sum() + 0.2 * w.abs().sum()), rel=1e-12)
    torch.testing.assert_close(f.gradient(w), wanted.mean(0) + 0.3 * w, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("sparse", [False, True])
def test_batches(name, sparse):
    f, w = build(name, sparse=sparse)
    index = torch.tensor([3, 3, 0, 9])
    whole = f.rows(w).dense()
    torch.testing.assert_close(f.rows(w, index).dense(), whole[index])
    torch.testing.assert_close(f.gradient(w, index), whole[index].mean(0))
    torch.testing.assert_close(f.gradient(w, index), f.rows(w, index.numpy()).sum() / 4)
    assert f.data_loss(w, [5]) == pytest.approx(f.on((f.X[5:6], _labels_back(f, slice(5, 6)))).loss(w))
    empty = f.rows(w, [])
    assert empty.n == 0 and empty.norms().shape == (0,) and not empty.sum().any()
    assert f.data_loss(w, []) == 0.0 and not f.gradient(w, []).any()


def _labels_back(f, rows=slice(None)):
    y = f.y[rows].numpy()
    return y if f.classes is None or -1 in f.classes else np.asarray(f.classes)[y.astype(int)]


def test_losses_against_sklearn_and_scipy():
    f, w = build("logistic")
    z = f.X.numpy() @ w.numpy()
    assert f.loss(w) == pytest.approx(log_loss(f.y.numpy(), 1 / (1 + np.exp(-z))), rel=1e-12)
    assert f.score(w) == accuracy_score(f.y.numpy(), np.sign(z)) == np.mean(f.predict(w) == f.y.numpy())
    f, w = build("hinge")
    assert f.loss(w) == pytest.approx(hinge_loss(f.y.numpy(), f.X.numpy() @ w.numpy()), rel=1e-12)
    f, w = build("softmax")
    z = f.X.numpy() @ w.numpy().reshape(K, P).T
    probabilities = np.exp(z - logsumexp(z, axis=1, keepdims=True))
    assert f.loss(w) == pytest.approx(log_loss(f.y.numpy(), probabilities), rel=1e-12)
    assert f.score(w) == accuracy_score(f.y.numpy(), z.argmax(1))
    f, w = build("poisson")
    z = f.X.numpy() @ w.numpy()
    assert f.loss(w) == pytest.approx(-poisson.logpmf(f.y.numpy(), np.exp(z)).mean(), rel=1e-12)
    assert f.score(w) == pytest.approx(r2_score(f.y.numpy(), np.exp(z)))
    f, w = build("squares")
    assert f.score(w, f.X, f.y) == pytest.approx(r2_score(f.y.numpy(), f.X.numpy() @ w.numpy()))


@pytest.mark.parametrize("size", [1e2, 1e4, 1e8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_huge_margins_stay_finite(name, size, dtype):
    f, w = build(name)
    w = (w * size).to(dtype)
    assert math.isfinite(f.loss(w))
    for tensor in (f.gradient(w), f.rows(w).sum(), f.rows(w).norms()):
        assert bool(torch.isfinite(tensor).all()) and tensor.dtype == dtype


def test_poisson_is_the_plain_loss_up_to_its_cap_and_convex_beyond():
    f = Poisson([[1.0]], [3], max_log=5.0)
    z = torch.linspace(-4, 12, 200, dtype=F64)
    losses, slopes = f.losses(z, torch.full_like(z, 3.0)), f.slopes(z, torch.full_like(z, 3.0))
    plain = z < 5
    torch.testing.assert_close(losses[plain], (z.exp() - 3 * z + math.lgamma(4))[plain])
    assert bool((slopes.diff() >= 0).all()) and bool((losses.diff().diff() >= -1e-9).all())


def test_float32_csr_with_float64_weights(name):
    f, w = build(name, sparse=True, dtype=np.float32)
    g, _ = build(name, sparse=True)
    assert f.X.dtype == np.float32 and f.gradient(w).dtype == F64 == f.rows(w).sum().dtype
    torch.testing.assert_close(f.gradient(w), g.on((sp.csr_array(f.X, dtype=np.float64), _labels_back(f))).gradient(w))


def test_data_is_neither_copied_nor_densified(monkeypatch):
    X, y = data("signs")
    f = Logistic(X, y)
    assert f.X.data_ptr() == X.ctypes.data
    assert f.rows(torch.zeros(P, dtype=F64)).a.data_ptr() == X.ctypes.data
    tensor = torch.as_tensor(X)
    assert Logistic(tensor, y).X is tensor
    csr = sp.csr_array(X)
    never_densified(csr, monkeypatch)
    for name, (make, kind) in KINDS.items():
        f = make(csr, data(kind)[1])
        assert f.X is csr and f.rows(torch.zeros(f.d, dtype=F64)).a is csr, name
        w = torch.ones(f.d, dtype=F64)
        f.loss(w), f.gradient(w), f.rows(w, [1, 2]).norms(), f.predict(w), f.score(w), f.smoothness()


LABELS = [
    ([-1, 1, 1], None),
    ([0, 1, 1], None),
    ([0.0, 1.0, 1.0], None),
    ([False, True, True], None),
    (["no", "yes", "yes"], ("no", "yes")),
    ([7, 3, 3], (7, 3)),
    (torch.tensor([0, 1, 1]), None),
]


@pytest.mark.parametrize(("y", "classes"), LABELS)
def test_two_labels_in_many_forms(y, classes):
    f = Logistic(np.eye(3), y, classes=classes)
    assert f.y.tolist() == [-1, 1, 1]
    predicted = f.predict(torch.tensor([-1.0, 1.0, 1.0], dtype=F64)).tolist()
    assert predicted == list(y.tolist() if isinstance(y, torch.Tensor) else y)


def test_one_class_is_fine_when_declared():
    assert Logistic(np.eye(2), [1, 1], classes=(-1, 1)).y.tolist() == [1, 1]
    assert Softmax(np.eye(2), [1, 1], classes=3).d == 6
    assert Softmax(np.eye(2), ["a", "b"]).classes == ("a", "b")
    for build_one in (lambda: Logistic(np.eye(2), [1, 1]), lambda: Softmax(np.eye(2), [1, 1])):
        with pytest.raises(InvalidInput, match="classes="):
            build_one()


def test_constants_of_the_theory(name):
    f, w = build(name, l2=0.1)
    rows, X = f.rows(w), f.X
    most = math.inf if f.slope_bound is None else float(torch.linalg.vector_norm(X, dim=1).max()) * f.slope_bound
    assert float(torch.linalg.vector_norm(rows.dense(), dim=1).max()) <= most * (1 + 1e-12)
    if f.curvature is None:
        assert f.smoothness() == math.inf
        return
    assert f.smoothness() == pytest.approx(f.curvature * float(torch.linalg.matrix_norm(X, 2)) ** 2 / N + 0.1)
    other = w + 0.1 * torch.ones_like(w)
    moved = torch.linalg.vector_norm(f.gradient(w) - f.gradient(other))
    assert float(moved) <= f.smoothness() * float(torch.linalg.vector_norm(w - other)) * (1 + 1e-12)


test_wrong_arguments_are_refused = refuses(
    (lambda: Logistic([[math.nan]], [1], classes=(0, 1)), "X holds 1 NaN"),
    (lambda: Logistic(sp.csr_array([[math.inf]]), [1], classes=(0, 1)), "X holds 1 NaN"),
    (lambda: LeastSquares(np.eye(2), [1.0, math.nan]), "y holds 1 NaN"),
    (lambda: LeastSquares(np.zeros((0, 2)), []), "at least one row"),
    (lambda: LeastSquares(np.zeros((2, 0)), [1.0, 2.0]), "one column"),
    (lambda: LeastSquares([1.0, 2.0], [1.0, 2.0]), "X.shape"),
    (lambda: Logistic(np.eye(2), [[0], [1]]), "y.shape"),
    (lambda: Logistic(np.eye(2), sp.csr_array([[0, 1]])), "dense 1-d"),
    (lambda: LeastSquares(torch.eye(2).to_sparse(), [1.0, 2.0]), "layout"),
    (lambda: Logistic(np.eye(3), [0, 1, 2]), "y holds 3 labels, and not both"),
    (lambda: Logistic(np.eye(2), [0, 5], classes=(0, 1)), r"a label that is not among classes=\[0, 1\]"),
    (lambda: Logistic(np.eye(2), [0, 1], classes=(0, 1, 2)), "give two"),
    (lambda: Softmax(np.eye(2), [0, 3], classes=3), r"a label that is not among classes=\[0, 1, 2\]"),
    (lambda: Softmax(np.eye(2), [0, 1], classes=[1, 1]), "distinct"),
    (lambda: Poisson(np.eye(2), [1, -1]), "give counts"),
    (lambda: Huber(np.eye(2), [1, 2], delta=0.0), "delta=0.0"),
    (lambda: SmoothHinge(np.eye(2), [0, 1], gamma=-1.0), "gamma=-1.0"),
    (lambda: Logistic(np.eye(2), [0, 1], l2=-1.0), "l2=-1.0"),
    (lambda: Logistic(np.eye(2), [0, 1], l2=1.0, penalty=L1Penalty(1.0)), "either penalty"),
    (lambda: Logistic(np.eye(2), [0, 1], penalty=0.1), "Penalty"),
    (lambda: Logistic(np.eye(2), [0, 1]).loss(torch.zeros(3)), r"shape \(2,\)"),
    (lambda: Logistic(np.eye(2), [0, 1]).loss(np.zeros(2)), "torch tensor"),
    (lambda: Logistic(np.eye(2), [0, 1]).loss(torch.zeros(2, dtype=torch.int64)), "floating torch tensor"),
    (lambda: Logistic(np.eye(2), [0, 1]).rows(torch.zeros(2), [2]), "0 to n - 1"),
    (lambda: Logistic(np.eye(2), [0, 1]).rows(torch.zeros(2), torch.tensor([True, False])), "mask"),
    (lambda: Logistic(np.eye(2), [0, 1]).predict(torch.zeros(2), np.eye(3)), "2 columns"),
    (lambda: Logistic(np.eye(2), [0, 1]).score(torch.zeros(2), np.eye(2)), "both X and y"),
    (lambda: Logistic(np.eye(2), [0, 1]).on((np.eye(3), [0, 1, 1])), "2 columns"),
    (lambda: TorchObjective(None, torch.eye(2), 2), "fn=None"),
    (lambda: TorchObjective(torch.dot, (torch.eye(2), torch.ones(3)), 2), "as many examples"),
    (lambda: TorchObjective(torch.dot, torch.zeros(0, 2), 2), "give at least one example"),
    (lambda: TorchObjective(torch.dot, torch.tensor([[math.nan]]), 1), "NaN"),
    (lambda: TorchObjective(torch.dot, torch.eye(2), 0), "d=0"),
    (lambda: TorchObjective(torch.dot, torch.eye(2), {}), "at least one named"),
    (lambda: TorchObjective(torch.dot, torch.eye(2), torch.eye(2)), "flat tensor"),
    (lambda: TorchObjective(torch.mul, torch.eye(2), 2).loss(torch.zeros(2)), "losses.shape"),
)


def test_penalties_reach_the_objective():
    X, y = np.eye(2), [0, 1]
    assert Logistic(X, y).penalty == NoPenalty()
    assert Logistic(X, y, l1=0.1, l2=0.2).penalty == ElasticNet(0.1, 0.2)


def test_torch_objective_equals_the_linear_model(name):
    f, w = build(name, l2=0.1)
    g = TorchObjective(formula(name), (f.X, f.y.to(F64)), f.d, l2=0.1)
    rows = g.rows(w)
    assert isinstance(rows, Lazy)
    torch.testing.assert_close(rows.dense(), f.rows(w).dense(), rtol=1e-10, atol=1e-10)
    index = torch.tensor([4, 1, 1])
    torch.testing.assert_close(g.rows(w, index).dense(), rows.dense()[index])
    torch.testing.assert_close(g.gradient(w), f.gradient(w))
    torch.testing.assert_close(g.gradient(w, index), f.gradient(w, index))
    assert g.loss(w) == pytest.approx(f.loss(w)) and g.data_loss(w, []) == 0.0
    assert g.rows(w, []).norms().shape == (0,)


def test_torch_objective_with_named_parameters(draws):
    X, y = torch.randn(6, 3, generator=draws), torch.arange(6) % 2

    def fn(p, x, y):
        return torch.nn.functional.cross_entropy(p["out"] @ torch.tanh(p["hidden"] @ x + p["bias"]), y)

    f = TorchObjective(fn, (X, y), {"hidden": (4, 3), "bias": (4,), "out": torch.zeros(2, 4)})
    assert [leaf.name for leaf in f.space.leaves] == ["hidden", "bias", "out"] and f.d == 24
    w = torch.randn(24, generator=draws)
    rows = f.rows(w)
    assert [name for name, _ in rows.leaves()] == ["hidden", "bias", "out"]
    torch.testing.assert_close(torch.cat([piece.sum() for _, piece in rows.leaves()]) / 6, f.gradient(w))
    v = w.clone().requires_grad_()
    parts = {leaf.name: f.space.view(v, leaf.name) for leaf in f.space.leaves}
    total = sum(fn(parts, *example) for example in zip(X, y, strict=True)) / 6
    torch.testing.assert_close(torch.autograd.grad(total, v)[0], f.gradient(w))
    assert f.on((X[:2], y[:2])).n == 2
    kept = f.rows(w)
    before = kept.sum()
    w.zero_()
    kept._last = None
    assert torch.equal(kept.sum(), before)


class Medians(Objective):
    """A user's objective: n, space, data_loss and rows."""

    def __init__(self, points):
        self.points, self.n, self.space = points, len(points), Space.flat(points.shape[1])

    def data_loss(self, w, index=None):
        return float((w - self._points(index)).abs().sum(1).mean())

    def rows(self, w, index=None):
        return Dense(torch.sign(w - self._points(index)))

    def _points(self, index):
        return self.points if index is None else self.points[index]


def test_a_user_defined_objective_needs_little():
    f, w = Medians(torch.tensor([[1.0, 2.0], [3.0, -1.0], [0.5, 0.5]])), torch.zeros(2)
    assert isinstance(f, Objective) and f.d == 2 and f.loss(w) == pytest.approx(8 / 3)
    torch.testing.assert_close(f.gradient(w), torch.tensor([-1.0, -1 / 3]))
    for g, _ in map(build, KINDS):
        assert isinstance(g, Objective)
    assert isinstance(build("softmax")[0].rows(build("softmax")[1]), Outer)


@pytest.mark.parametrize(
    "build", [lambda: Logistic(np.eye(2), ["flu", "hiv"]), lambda: Softmax(np.eye(2), ["hiv", "hiv"])]
)
def test_no_message_repeats_a_label_of_the_data(build):
    with pytest.raises(InvalidInput, match="^y holds .*: declare") as refused:
        build()
    assert "hiv" not in str(refused.value)
