"""Sets from callables and from objects with `.prox` and `.lmo`."""

import numpy as np
import pytest
import torch

from isthmus.base.validate import InvalidInput
from isthmus.sets import Ellipsoid, FromLMO, FromProjection, L1Ball, L2Ball, Simplex

X = torch.randn(6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


class Constraint:
    """An l-infinity ball in the style of other libraries: arrays, `prox(x, step)` and `lmo(u, x)` = s - x."""

    def __call__(self, x):
        return 0.0

    def prox(self, x, step_size):
        return np.clip(x, -1, 1)

    def lmo(self, u, x):
        return np.sign(u) - x, None, None, 1.0


def test_from_projection_derives_membership():
    ball = FromProjection(lambda x: L1Ball()._project(x), d=6, bound=2.0)
    assert torch.equal(ball.project(X), L1Ball().project(X))
    assert ball.contains(L1Ball().project(X)) and not ball.contains(X)
    assert ball.dim == 6 and ball.diameter() == 2.0
    assert isinstance(ball.project(X.numpy()), np.ndarray)


def test_from_projection_with_an_lmo_has_support_and_width():
    ball = FromProjection(L2Ball().project, lmo=L2Ball().lmo)
    assert ball.support(X) == pytest.approx(float(X.norm()))
    width = ball.gaussian_width(6, samples=2000)
    assert float(width) == pytest.approx(float(L2Ball().gaussian_width(6)), abs=5 * width.standard_error)


@pytest.mark.parametrize("subject", [FromProjection(Constraint()), FromLMO(Constraint())])
def test_objects_with_prox_and_lmo(subject):
    torch.testing.assert_close(subject.project(2 * X), (2 * X).clamp(-1, 1))
    assert torch.equal(subject.lmo(X), -X.sign())
    assert subject.support(X) == pytest.approx(float(X.abs().sum()))


@pytest.mark.parametrize("exact", [L1Ball(), Simplex(), L2Ball(0.8), Ellipsoid(torch.linspace(0.3, 1.0, 6))])
@pytest.mark.parametrize("given", ["method", "set"])
def test_projection_from_an_lmo(exact, given):
    subject = FromLMO(exact.lmo if given == "method" else exact)
    for x in (2 * X, 0.01 * X, torch.zeros_like(X)):
        # the gap of 1e-10 bounds the squared distance
        assert float((subject.project(x) - exact.project(x)).norm()) <= 1e-5 * max(1.0, float(x.norm()))
    assert subject.contains(exact.project(X)) and not subject.contains(exact.project(X) + 0.1)


def test_from_a_set_is_that_set():
    assert torch.equal(FromProjection(L1Ball()).project(X), L1Ball().project(X))
    assert torch.equal(FromProjection(L1Ball()).lmo(X), L1Ball().lmo(X))


def test_wrong_results_of_a_callable_are_refused():
    with pytest.raises(InvalidInput, match="shape"):
        FromProjection(lambda x: x[:2]).project(X)
    with pytest.raises(InvalidInput, match="NaN"):
        FromLMO(lambda g: g * float("nan")).lmo(X)


def test_too_few_iterations_are_reported():
    with pytest.raises(ArithmeticError, match="max_iterations"):
        FromLMO(Ellipsoid(torch.linspace(0.1, 1.0, 6)).lmo, max_iterations=3).project(X)


def test_the_callable_cannot_change_the_input():
    before = X.clone()
    FromProjection(lambda x: x.zero_()).project(X)
    assert torch.equal(X, before)
