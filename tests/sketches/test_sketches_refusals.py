"""Wrong arguments: each is refused with its name and a remedy."""

from __future__ import annotations

import pytest
import torch

from isthmus.sketches import (
    SRHT,
    Blocks,
    Coordinates,
    CountSketch,
    GaussianSketch,
    Kronecker,
    KroneckerSubspace,
    Nice,
    Progressive,
    PublicSubspace,
    RademacherSketch,
    SparseJL,
    TensorSketch,
)
from isthmus.sketches.bijections import Buckets

SIZED = [GaussianSketch, RademacherSketch, SparseJL, CountSketch, SRHT, Coordinates, TensorSketch]


@pytest.mark.parametrize("make", SIZED)
@pytest.mark.parametrize("m", [0, -3, 11, 1.5, 0.0, -0.5, "4", True, None, lambda t: 0])
def test_sizes(make, m):
    with pytest.raises(ValueError, match="m="):
        make(m).draw(10)


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: GaussianSketch(3, scaling="loose"), "scaling"),
        (lambda: CountSketch(3, scaling="loose"), "scaling"),
        (lambda: CountSketch(3, refresh=0), "refresh"),
        (lambda: SparseJL(3, s=4).draw(10), "s=4"),
        (lambda: SparseJL(3, s=0), "s=0"),
        (lambda: SparseJL(3, s="rule"), "s='rule'"),
        (lambda: SparseJL(3, s="theorem", beta=0.0), "beta"),
        (lambda: CountSketch(3).draw(10, seed=1.5), "seed"),
        (lambda: CountSketch(3).draw(10, seed=None), "seed"),
        (lambda: CountSketch(3).draw(10, t=-1), "t=-1"),
        (lambda: CountSketch(3).draw(0), "d=0"),
        (lambda: Buckets(0, 1 << 46, 3), "d="),
        (lambda: Nice(0), "tau"),
        (lambda: Nice(11).draw(10), "tau"),
        (lambda: Nice(2, bounds=[1.0, 0.0]).draw(2), "bounds"),
        (lambda: Nice(2, bounds=[1.0]).draw(2), "bounds"),
        (lambda: Blocks(0), "blocks"),
        (lambda: Blocks(11).draw(10), "blocks"),
        (lambda: Blocks([]), "blocks"),
        (lambda: Blocks([[0, 1], [1, 2, 1]]).draw(3), "once"),
        (lambda: Blocks([[0], [2]]).draw(3), "in one at least"),
        (lambda: Blocks([[0, 1], [2, 3]]).draw(3), "indices"),
        (lambda: Blocks([slice(0, 3), slice(3, 3)]).draw(3), "empty"),
        (lambda: Blocks(2, probs=[0.5, 0.4]), "probs"),
        (lambda: Blocks(2, probs=[1.5, -0.5]), "probs"),
        (lambda: Blocks(2, probs=[1.0]), "probs"),
        (lambda: Blocks(2, bounds=[1.0, -1.0]), "bounds"),
        (lambda: Blocks(2, bounds=[1.0]), "bounds"),
        (lambda: Blocks(2, bounds=[1.0, float("nan")]), "bounds"),
        (lambda: Kronecker(0, 2), "rank_in"),
        (lambda: Kronecker(2, -1), "rank_out"),
        (lambda: Kronecker(2, 2, ranks={"w": (0, 1)}), "ranks"),
        (lambda: KroneckerSubspace(2, 0, data=1), "rank_out"),
        (lambda: PublicSubspace(0, data=1), "k=0"),
        (lambda: PublicSubspace(2, data=1, refresh=0), "refresh"),
        (lambda: PublicSubspace(2, data=1, start_epoch=-1), "start_epoch"),
        (lambda: PublicSubspace(2, data=1, clip="never"), "clip"),
        (lambda: Progressive([]), "schedule"),
        (lambda: Progressive([(2, CountSketch(3)), (1, CountSketch(4))]), "schedule"),
    ],
)
def test_arguments(make, argument):
    with pytest.raises(ValueError, match=argument):
        make()


def test_unknown_norms_are_refused():
    for encoder in (CountSketch(3), Coordinates(3), GaussianSketch(3)):
        with pytest.raises(ValueError, match="ord"):
            encoder.draw(10).gain(3)


def test_unknown_leaf_is_named():
    with pytest.raises(KeyError, match="this space has"):
        Blocks(["nothing"]).draw(3)


def test_maps_do_not_keep_a_rejected_vector():
    sketch = CountSketch(3).draw(10)
    with pytest.raises(ValueError, match="give vectors"):
        sketch.forward(torch.zeros(10, 1))
