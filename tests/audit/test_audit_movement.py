"""One record moves what a mechanism is handed by at most the stated bound, whatever the map and the neighbours."""

import math

import pytest
import torch
from refusals import refuses

from isthmus import sketches
from isthmus.audit import LinearRecords, Pair, Probe, known_bad, movement, movements, worst_pair
from isthmus.base.space import Space
from isthmus.core.pipeline import Pipeline, Promise, Release, Stage
from isthmus.gradients import Dense
from isthmus.gradients.rounding import KAPPA
from isthmus.privacy import Adjacency, Clip, FullBatch, Gaussian, Laplace, NoisyMax, PerLeafClip, TopK
from isthmus.theory.printed import OfTheSum

ADD, REPLACE = Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE
REACHED = 1 / (1 + KAPPA)  # the bound holds what rounding may add
PUBLIC = Dense(torch.randn(12, 120, generator=torch.Generator().manual_seed(1), dtype=torch.float64))
LAYERS = Space.of({"a": (6, 10), "b": (4, 15)})
ENCODERS = {
    "identity": sketches.Identity(),
    "gaussian": sketches.GaussianSketch(10),
    "gaussian-jl": sketches.GaussianSketch(10, scaling="jl"),
    "rademacher": sketches.RademacherSketch(10),
    "rademacher-jl": sketches.RademacherSketch(10, scaling="jl"),
    "sparse": sketches.SparseJL(10),
    "count": sketches.CountSketch(10),
    "count-jl": sketches.CountSketch(60, scaling="jl"),
    "srht": sketches.SRHT(10),
    "coordinates": sketches.Coordinates(10),
    "nice": sketches.Nice(10, bounds=[1.0 + i / 60 for i in range(120)]),
    "blocks": sketches.Blocks(6, bounds=[0.5, 1.0, 2.0, 3.0, 4.0, 5.0]),
    "kronecker": sketches.Kronecker(3, 2),
    "per-leaf": sketches.PerLeaf(sketches.CountSketch(0.2)),
    "progressive": sketches.Progressive([(0, sketches.GaussianSketch(5)), (2, sketches.GaussianSketch(10))]),
    "public": sketches.PublicSubspace(5, data=PUBLIC),
    "residual": sketches.Residual(sketches.PublicSubspace(5, data=PUBLIC)),
}
MECHANISMS = {1: Laplace(2.0), 2: Gaussian(4.0), math.inf: NoisyMax(1.0)}


def private(encode=None, clip=None, adjacency=ADD, mechanism=None) -> Pipeline:
    clip = Clip(1.5) if clip is None else clip
    mechanism = MECHANISMS[clip.ord] if mechanism is None else mechanism
    release = Release("gradient", sketches.Identity() if encode is None else encode, clip, mechanism)
    return Pipeline([Stage(FullBatch(), [release])], lambda t: 0.1, promise=Promise(1.0, 1e-5, adjacency))


@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("name", ENCODERS)
def test_no_pair_moves_a_sum_beyond_its_bound(name: str, before: bool, adjacency: Adjacency) -> None:
    space = LAYERS if name in ("kronecker", "per-leaf") else Space.flat(120)
    for ord in MECHANISMS:
        pipe = private(ENCODERS[name], Clip(1.5, ord, before), adjacency)
        moves = movements(pipe, space, 30, seed=4)
        names = {move.pair.name for move in moves}
        assert {"random", "generic", "top singular", "outlier", "axis", "tie"} <= names
        assert ("kernel" in names) == (name != "identity")
        assert all(move.ratio <= 1 for move in moves), [str(move) for move in moves]
        if not before:  # the bound of a clip after the map is attained
            assert max(move.ratio for move in moves) > REACHED - 1e-6


def test_the_published_map_breaks_its_bound_by_the_number_of_records() -> None:
    pipe = known_bad.published_privsgd(1000, 50)
    by_name = {each.pair.name: each for each in movements(pipe, 10_000, 1000)}
    assert by_name["kernel"].ratio == pytest.approx(999 * REACHED, rel=1e-4)
    assert 10 < by_name["top singular"].ratio < 20  # about sqrt(d / m)
    assert by_name["generic"].ratio < 1
    assert worst_pair(pipe, 10_000, 1000).pair.name == "kernel"


@pytest.mark.parametrize("ord", [1, 2, math.inf])
def test_a_clip_before_the_map_is_bounded_by_the_gain_and_no_less(ord: float) -> None:
    pipe = private(sketches.GaussianSketch(8, scaling="jl"), Clip(1.0, ord, before=True))
    worst = worst_pair(pipe, 60, 20)
    assert REACHED - 1e-6 < worst.ratio <= 1
    assert worst.pair.name == {1: "column", 2: "top singular", math.inf: "row"}[ord]


def test_a_layerwise_clip() -> None:
    pipe = private(sketches.Identity(), PerLeafClip({"a": 1.0, "b": 2.0}))
    moves = movements(pipe, LAYERS, 20)
    assert all(move.ratio <= 1 for move in moves)
    assert max(move.ratio for move in moves) == pytest.approx(REACHED)


def test_ties_are_the_worst_neighbours_of_a_selection() -> None:
    assert worst_pair(private(clip=Clip(1.0, math.inf)), 20, 50).pair.name == "tie"
    pipe = private(clip=Clip(1.0, math.inf), mechanism=TopK(3, 1.0))
    assert worst_pair(pipe, 20, 50).pair.name == "tie"


def test_every_release_and_stage_is_measured() -> None:
    two = [
        Release("small", clip=Clip(1.0), mechanism=Gaussian(4.0)),
        Release("large", sketches.GaussianSketch(4), Clip(5.0), mechanism=Gaussian(4.0)),
    ]
    stages = [Stage(FullBatch(), two), Stage(FullBatch(), [Release(clip=Clip(2.0), mechanism=Gaussian(3.0))], "later")]
    pipe = Pipeline(stages, lambda t: 0.1, promise=Promise(1.0, 1e-5))
    probe = Probe(pipe, 10)
    assert [stage.name for stage in probe.stages] == ["main", "later"]
    values = probe.values(stages[0], LinearRecords(torch.full((3, 10), 9.0, dtype=torch.float64)))
    stated = {slot: bounded.bound for slot, bounded in values.items()}
    assert stated == pytest.approx({"main/small": 1 + KAPPA, "main/large": 5 * (1 + KAPPA)})
    assert all(each.ratio <= 1 for each in movements(pipe, 10, 20))


def test_the_maps_are_those_of_the_seed_and_the_round() -> None:
    pipe = private(sketches.GaussianSketch(3))
    worst = worst_pair(pipe, 12, 5, seed=3, t=2)
    assert (worst.pair.seed, worst.pair.t) == (3, 2)
    expected = sketches.GaussianSketch(3).draw(12, seed=3, t=2).dense()
    assert torch.equal(Probe(pipe, 12, seed=3, t=2).sketch("main/gradient").dense(), expected)
    assert movement(pipe, worst.pair).ratio == worst.ratio


def test_a_bound_that_looks_at_the_data_bounds_nothing() -> None:
    class Leaky(OfTheSum):
        def change(self, value, ord, bound, sketch):
            return value, ord, 1.0 + float(value.norm())

    pipe = private(Leaky(sketches.Identity()), clip=Clip(1.0))
    assert worst_pair(pipe, 5, 4).ratio == math.inf


def test_linear_records_have_the_gradients_they_are_given() -> None:
    rows = torch.arange(120.0).reshape(4, 30).double()
    f = LinearRecords(rows, Space.of({"a": (2, 5), "b": (20,)}))
    w = torch.linspace(0, 1, 30, dtype=torch.float64)
    assert torch.equal(f.rows(w, [2, 0]).dense(), rows[[2, 0]])
    assert [name for name, _ in f.rows(w).leaves()] == ["a", "b"]
    assert f.loss(w) == pytest.approx(float((rows @ w).mean()))
    assert torch.allclose(f.gradient(w), rows.mean(0)) and f.data_loss(w, []) == 0
    assert f.on(rows[:1]).n == 1


PLAIN = Pipeline([Stage(FullBatch())], lambda t: 0.1)


test_bad_input_is_refused = refuses(
    (lambda: worst_pair(PLAIN, 3, 4), "private pipeline"),
    (lambda: worst_pair(private(), 3, 1), "at least 2"),
    (lambda: known_bad.halved(PLAIN), "private pipeline"),
    (lambda: movement(private(), Pair("swap", torch.zeros(2, 3), torch.ones(3), -torch.ones(3))), "adding or removing"),
    (lambda: Pair("odd", torch.zeros(2, 3), torch.ones(3), torch.ones(4)), "right.shape"),
    (lambda: Pair("odd", torch.zeros(3), torch.ones(3), None), "common.shape"),
    (lambda: LinearRecords([[math.nan]]), "vectors"),
    (lambda: LinearRecords(torch.zeros(2, 3), 4), "vectors.shape"),
)
