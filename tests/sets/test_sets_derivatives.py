"""The derivative of a projection: that of its differences, symmetric and between 0 and I."""

from __future__ import annotations

import numpy as np
import pytest

from isthmus import sets

D = 12
RNG = np.random.default_rng(0)
SETS: dict[str, sets.ConvexSet] = {
    "box": sets.Box(-0.5, RNG.uniform(0.1, 1.0, D)),
    "linf": sets.LInfBall(0.7),
    "l1": sets.L1Ball(2.0),
    "simplex": sets.Simplex(1.5),
    "l2": sets.L2Ball(1.0),
    "l2 about a centre": sets.L2Ball(1.0, center=RNG.standard_normal(D)),
    "l3": sets.LpBall(3.0),
    "l1.5": sets.LpBall(1.5),
    "l1 as lp": sets.LpBall(1.0),
    "linf as lp": sets.LpBall(np.inf),
    "ellipsoid": sets.Ellipsoid(RNG.uniform(0.5, 2.0, D)),
    "subspace": sets.Subspace(RNG.standard_normal((4, D))),
    "disc": sets.Subspace(RNG.standard_normal((4, D)), radius=1.0),
    "group": sets.GroupBall(np.arange(D) // 3, radius=1.5),
    "nuclear": sets.NuclearBall(1.5, shape=(3, 4)),
    "tall": sets.NuclearBall(1.5, shape=(4, 3)),
    "product": sets.Product([(sets.L1Ball(1.0), 5), (sets.L2Ball(0.5), 7)]),
    "whole": sets.Whole(),
    "hull": sets.ConvexHull(RNG.standard_normal((6, D))),
}


@pytest.mark.parametrize("scale", [0.1, 2.0])
@pytest.mark.parametrize("name", SETS)
def test_derivative(name: str, scale: float) -> None:
    subject, rng = SETS[name], np.random.default_rng(1)
    z = scale * rng.standard_normal(D)
    w, derivative = subject.linearised(z)
    np.testing.assert_allclose(w, subject.project(z), atol=1e-9)
    x, y = rng.standard_normal((2, D))
    h = 1e-6
    change = (subject.project(z + h * x) - subject.project(z - h * x)) / (2 * h)
    np.testing.assert_allclose(derivative(x), change, atol=1e-4)
    assert float(y @ derivative(x)) == pytest.approx(float(x @ derivative(y)), abs=1e-4)
    assert -1e-6 <= float(x @ derivative(x)) <= float(x @ x) * (1 + 1e-4)
