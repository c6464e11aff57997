"""The derivative of a projection: that of its differences, symmetric and between 0 and I."""

import numpy as np
import pytest

from isthmus import sets

D = 12
RNG = np.random.default_rng(0)
OTHERS: dict[str, sets.ConvexSet] = {
    "l2 about a centre": sets.L2Ball(1.0, center=RNG.standard_normal(D)),
    "subspace": sets.Subspace(RNG.standard_normal((4, D))),
    "groups": sets.GroupBall(np.arange(D) // 3, radius=1.5),
    "tall": sets.NuclearBall(1.5, shape=(4, 3)),
    "wide": sets.NuclearBall(1.5, shape=(3, 4)),
    "whole": sets.Whole(),
}


def check(subject: sets.ConvexSet, d: int, scale: float) -> None:
    rng = np.random.default_rng(1)
    z = scale * rng.standard_normal(d)
    w, derivative = subject.linearised(z)
    np.testing.assert_allclose(w, subject.project(z), atol=1e-9)
    x, y = rng.standard_normal((2, d))
    h = 1e-6
    change = (subject.project(z + h * x) - subject.project(z - h * x)) / (2 * h)
    np.testing.assert_allclose(derivative(x), change, atol=1e-4)
    assert float(y @ derivative(x)) == pytest.approx(float(x @ derivative(y)), abs=1e-4)
    assert -1e-6 <= float(x @ derivative(x)) <= float(x @ x) * (1 + 1e-4)


@pytest.mark.parametrize("scale", [0.1, 2.0])
def test_the_derivative_of_every_set(case, scale: float) -> None:
    check(case.set, case.d, scale)


@pytest.mark.parametrize("scale", [0.1, 2.0])
@pytest.mark.parametrize("name", OTHERS)
def test_the_derivative_of_others(name: str, scale: float) -> None:
    check(OTHERS[name], D, scale)
