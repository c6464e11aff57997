"""Certified gains hold for the maps as they are applied, in float32 and in float64."""

import math

import pytest
import torch
from sketch_cases import CASES, draw

from isthmus.base.space import Space
from isthmus.sketches.compose import _ResidualMap
from isthmus.sketches.kronecker import KroneckerMap
from isthmus.sketches.public import SubspaceMap

ORDS = (1, 2, math.inf)
FOUND = ["subspace", "kronecker-subspace", "residual"]


def found(name: str):
    """Maps that are not drawn: learned bases, and what a map loses."""
    draws = torch.Generator().manual_seed(1)
    if name == "subspace":
        basis = torch.linalg.qr(torch.randn(300, 40, generator=draws, dtype=torch.float64))[0]
        return SubspaceMap(Space.flat(300), basis.float())
    if name == "kronecker-subspace":
        shapes = {"hidden": (7, 20), "bias": (9, 1), "out": (3, 8)}
        sides = {
            leaf: tuple(torch.linalg.qr(torch.randn(size, 2, generator=draws).double())[0].T.float() for size in shape)
            for leaf, shape in shapes.items()
            if min(shape) > 1
        }
        space = Space.of({leaf: shapes[leaf] for leaf in sides})
        return KroneckerMap(space, sides)
    return _ResidualMap(draw("count-layers"))


def matrices(sketch, dtype: torch.dtype):
    """The m x d matrix as `rows` and, where that is quick, as `forward` applies it."""
    units = torch.eye(sketch.d, dtype=dtype)
    one_by_one = [torch.stack([sketch.forward(e) for e in units], 1).double()] if sketch.d <= 400 else []
    return [sketch.rows(units).T.double(), *one_by_one]


def worst(phi: torch.Tensor) -> dict[float, torch.Tensor]:
    """For each norm, a vector of length 1 that the map stretches most."""
    top = torch.linalg.svd(phi, full_matrices=False)[2][0]
    column = torch.zeros(phi.shape[1], dtype=phi.dtype)
    column[int(phi.abs().sum(0).argmax())] = 1.0
    signs = phi[int(phi.abs().sum(1).argmax())].sign()
    return {1: column, 2: top, math.inf: signs}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", [*CASES, *FOUND])
def test_no_map_exceeds_its_gain_as_it_is_applied(name: str, dtype: torch.dtype) -> None:
    sketch = found(name) if name in FOUND else draw(name)
    if sketch.d > 1600:
        return
    for phi in matrices(sketch, dtype):
        true = {1: phi.abs().sum(0).max(), 2: torch.linalg.matrix_norm(phi, 2), math.inf: phi.abs().sum(1).max()}
        for ord, value in true.items():
            assert float(value) <= sketch.gain(ord), (ord, float(value) / sketch.gain(ord) - 1)
    for ord, vector in worst(matrices(sketch, torch.float64)[0]).items():
        v = vector.to(dtype)
        # the terms of a code are added in float64, and the code is rounded once
        code = sketch.forward(v.double()).to(dtype)
        lengths = [torch.linalg.vector_norm(x.double(), ord) for x in (code, v)]
        assert float(lengths[0]) <= sketch.gain(ord) * float(lengths[1])


def test_the_reserve_is_needed() -> None:
    """Of the norm alone the float32 maps are above it."""
    above = 0
    for name in ("gaussian-997-100", "rademacher-10-10", "count-997-100", "coordinates-997-100", "kronecker"):
        sketch = draw(name)
        phi = matrices(sketch, torch.float32)[0]
        above += float(torch.linalg.matrix_norm(phi, 2)) > sketch.norm
    assert above >= 3
