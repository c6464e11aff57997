"""Wrong arguments: each is refused with its name and a remedy."""

import pytest
import torch
from refusals import refuses
from test_sketches_layers import Rounds

from isthmus import sketches
from isthmus.base.space import Space
from isthmus.gradients import Dense
from isthmus.sketches.hashed import Buckets
from isthmus.sketches.public import learned

SIZED = [sketches.GaussianSketch, sketches.RademacherSketch, sketches.SparseJL, sketches.CountSketch, sketches.SRHT]
SIZED += [sketches.Coordinates, sketches.TensorSketch]


@pytest.mark.parametrize("make", SIZED)
@pytest.mark.parametrize("m", [0, -3, 11, 1.5, 0.0, -0.5, "4", True, None, lambda t: 0])
def test_sizes(make, m):
    with pytest.raises(ValueError, match="m="):
        make(m).draw(10)


test_arguments = refuses(
    (lambda: sketches.GaussianSketch(3, scaling="loose"), "scaling"),
    (lambda: sketches.CountSketch(3, scaling="loose"), "scaling"),
    (lambda: sketches.CountSketch(3, refresh=0), "refresh"),
    (lambda: sketches.SparseJL(3, s=4).draw(10), "s=4"),
    (lambda: sketches.SparseJL(3, s=0), "s=0"),
    (lambda: sketches.SparseJL(3, s="rule"), "s='rule'"),
    (lambda: sketches.SparseJL(3, s="theorem", beta=0.0), "beta"),
    (lambda: sketches.CountSketch(3).draw(10, seed=1.5), "seed"),
    (lambda: sketches.CountSketch(3).draw(10, seed=None), "seed"),
    (lambda: sketches.CountSketch(3).draw(10, t=-1), "t=-1"),
    (lambda: sketches.CountSketch(3).draw(0), "d=0"),
    (lambda: Buckets(0, 1 << 46, 3), "d="),
    (lambda: sketches.CountSketch(3).draw(1 << 46), "d="),
    (lambda: sketches.CountSketch(3).draw(10).gain(3), "ord"),
    (lambda: sketches.Coordinates(3).draw(10).gain(3), "ord"),
    (lambda: sketches.GaussianSketch(3).draw(10).gain(3), "ord"),
    (lambda: sketches.Residual(sketches.CountSketch(5, scaling="jl")).bind(Rounds(), None), "tight"),
    (lambda: learned(Space.flat(4), Dense(torch.zeros(3, 4)), 1), "all zero"),
    (lambda: sketches.Nice(0), "tau"),
    (lambda: sketches.Nice(11).draw(10), "tau"),
    (lambda: sketches.Nice(2, bounds=[1.0, 0.0]).draw(2), "bounds"),
    (lambda: sketches.Nice(2, bounds=[1.0]).draw(2), "bounds"),
    (lambda: sketches.Blocks(0), "blocks"),
    (lambda: sketches.Blocks(11).draw(10), "blocks"),
    (lambda: sketches.Blocks([]), "blocks"),
    (lambda: sketches.Blocks([[0, 1], [1, 2, 1]]).draw(3), "once"),
    (lambda: sketches.Blocks([[0], [2]]).draw(3), "in one at least"),
    (lambda: sketches.Blocks([[0, 1], [2, 3]]).draw(3), "indices"),
    (lambda: sketches.Blocks([slice(0, 3), slice(3, 3)]).draw(3), "empty"),
    (lambda: sketches.Blocks(2, probs=[0.5, 0.4]), "probs"),
    (lambda: sketches.Blocks(2, probs=[1.5, -0.5]), "probs"),
    (lambda: sketches.Blocks(2, probs=[1.0]), "probs"),
    (lambda: sketches.Blocks(2, bounds=[1.0, -1.0]), "bounds"),
    (lambda: sketches.Blocks(2, bounds=[1.0]), "bounds"),
    (lambda: sketches.Blocks(2, bounds=[1.0, float("nan")]), "bounds"),
    (lambda: sketches.Kronecker(0, 2), "rank_in"),
    (lambda: sketches.Kronecker(2, -1), "rank_out"),
    (lambda: sketches.Kronecker(2, 2, ranks={"w": (0, 1)}), "ranks"),
    (lambda: sketches.KroneckerSubspace(2, 0, data=1), "rank_out"),
    (lambda: sketches.PublicSubspace(0, data=1), "k=0"),
    (lambda: sketches.PublicSubspace(2, data=1, refresh=0), "refresh"),
    (lambda: sketches.PublicSubspace(2, data=1, start_epoch=-1), "start_epoch"),
    (lambda: sketches.PublicSubspace(2, data=1, clip="never"), "clip"),
    (lambda: sketches.Progressive([]), "schedule"),
    (lambda: sketches.Progressive([(2, sketches.CountSketch(3)), (1, sketches.CountSketch(4))]), "schedule"),
)
