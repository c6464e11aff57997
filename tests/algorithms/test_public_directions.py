"""Paper 004 in the recipes: when projection starts, Lanczos for V_k, micro-batches and where gradients are clipped."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from private_cases import COMMON, build, one_release, problem
from refusals import refuses

import isthmus
from isthmus import L2Ball, PublicSubspace, algorithms, minimize
from isthmus.base.space import Space
from isthmus.core.minimize import Binding
from isthmus.core.pipeline import Pipeline, Promise, Release, Stage
from isthmus.gradients import Dense, Outer
from isthmus.parts import Full
from isthmus.penalties import NoPenalty
from isthmus.privacy import AdaptiveClip, Clip, FullBatch, Gaussian, GroupClip, Poisson, SeededSource
from isthmus.privacy.accounting import Adjacency
from isthmus.privacy.mechanisms import Exact
from isthmus.sketches.public import SubspaceMap, _map_of, learned


def noiseless(pipe: Any) -> Any:
    release = replace(pipe.stages[0].releases[0], mechanism=Exact())
    return replace(pipe, stages=[replace(pipe.stages[0], sampler=Full(), releases=[release])], promise=None)


@pytest.mark.parametrize("clipped", ["after", "before"])
def test_rpdp_projects_from_its_start_epoch_on(clipped: str) -> None:
    """The loop of paper 004 without its noise: clipped gradients, projected on k random directions from epoch 2 on."""
    objective, rounds = problem(), 4
    recipe = algorithms.rpdp_sgd(k=5, refresh=1, start_epoch=2, batch_size=None, clipped=clipped, **COMMON)
    pipe = noiseless(build(recipe, objective, isthmus.Whole(), rounds))
    point = minimize(objective, pipe, steps=rounds, seed=3, record=None).x
    (_, _), (_, directions) = pipe.stages[0].releases[0].encode.schedule
    w = torch.zeros(30, dtype=torch.float64)
    for t in range(rounds):
        rows = objective.rows(w).dense()
        V = directions.draw(30, seed=3, t=t).dense().T * math.sqrt(5 / 30)
        torch.testing.assert_close(V.T @ V, torch.eye(5, dtype=torch.float64))
        codes = rows if t < 2 or clipped == "before" else rows @ V * math.sqrt(30 / 5)
        cut = (COMMON["clip"] / codes.norm(dim=1)).clamp(max=1)
        mean = (rows * cut[:, None]).mean(0)
        w = w - COMMON["step"] * (mean if t < 2 else V @ (V.T @ mean))
    torch.testing.assert_close(point, w, rtol=1e-9, atol=1e-12)


# ---------------------------------------------------------------- Lanczos


def rows_of(kind: str) -> Any:
    g = torch.Generator().manual_seed(0)
    spectrum = 0.6 ** torch.arange(40.0, dtype=torch.float64)
    if kind == "outer":
        a, b = (torch.randn(200, side, dtype=torch.float64, generator=g) * spectrum[:side] for side in (12, 9))
        return Outer(a, b)
    wide = torch.randn(200, 40, dtype=torch.float64, generator=g) * spectrum
    wide[:, 3:] *= kind != "rank 3"
    return Dense(wide)


@pytest.mark.parametrize("kind", ["dense", "outer", "rank 3"])
@pytest.mark.parametrize("built", [4096, 0])
def test_lanczos_finds_the_same_directions(kind: str, built: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """V V' of both methods against numpy's eigenvectors of the d x d second moment, which neither ever builds."""
    monkeypatch.setattr("isthmus.sketches.public.BUILT", built)
    rows = rows_of(kind)
    G = rows.dense().numpy()
    V = np.linalg.eigh(G.T @ G)[1][:, -(3 if kind == "rank 3" else 6) :]
    for method in ("gram", "lanczos"):
        space = Space.flat(G.shape[1])
        state = learned(space, rows, 6, method=method)
        directions = state["basis"]
        assert directions.shape == V.shape
        np.testing.assert_allclose(directions @ directions.T, V @ V.T, atol=1e-7)
        sketch = _map_of(space, state)
        assert isinstance(sketch, SubspaceMap) and 1 <= sketch.norm < 1 + 1e-9


def test_lanczos_holds_factors_of_large_layers_too() -> None:
    g = torch.Generator().manual_seed(1)
    rows = Outer(torch.randn(60, 300, generator=g), torch.randn(60, 200, generator=g))
    space = Space.of({"w": (200, 300)})
    sketches = [_map_of(space, learned(space, rows, 8, torch.float32, method)) for method in ("gram", "lanczos")]
    first, second = (sketch.dense(torch.float64) for sketch in sketches)
    assert type(sketches[1]).__name__ == type(sketches[0]).__name__ != "SubspaceMap"
    assert float(torch.linalg.svdvals(first @ second.T).min()) > 1 - 1e-5
    with pytest.raises(isthmus.InvalidInput, match="method='power'"):
        PublicSubspace(3, method="power")


# ---------------------------------------------------------------- micro-batches


class Vectors:
    """Records that are their own gradients."""

    def __init__(self, rows: torch.Tensor) -> None:
        self.values, self.n, self.space, self.penalty = rows.double(), len(rows), Space.flat(rows.shape[1]), NoPenalty()

    def rows(self, w: torch.Tensor, index: Any = None) -> Any:
        return Dense(self.values if index is None else self.values[index])

    def loss(self, w: torch.Tensor) -> float:
        return float(self.values.mean(0) @ w)


def released(pipe: Any, objective: Any) -> Any:
    """What one round hands to the mechanism."""
    return one_release(pipe, objective, SeededSource(7))[0].values["gradient"]


def micro(adjacency: str, n: int, d: int, **options: Any) -> Any:
    facts = {"epsilon": 1.0, "delta": 1e-5, "clip": 1.0, "step": 0.1, "n": n, "batch_size": None, "micro_batch": 4}
    recipe = algorithms.dp_sgd(**(facts | {"adjacency": adjacency} | options))
    return recipe.bind(Binding(isthmus.Whole(), NoPenalty(), Space.flat(d), n, 10, None))


def test_the_sum_is_that_of_clipped_means_of_micro_batches() -> None:
    """Every record in one group, drawn for it alone; the mean of each group is clipped; divided by how many groups."""
    objective = Vectors(torch.randn(40, 3, generator=torch.Generator().manual_seed(2)) * 3)
    pipe = micro("add-remove", 40, 3)
    bounded = released(pipe, objective)
    source = SeededSource(7)
    source.mask(40, 1.0)
    groups = source.integers(10, 40)
    expected = torch.zeros(3, dtype=torch.float64)
    for j in range(10):
        members = objective.values[groups == j]
        if len(members):
            expected += members.mean(0) * min(1.0, 1.0 / float(members.mean(0).norm()))
    torch.testing.assert_close(bounded.value, expected, rtol=0, atol=1e-9)
    assert pipe.stages[0].groups == 10 and pipe.stages[0].sampler.divisor(40) == 10


@pytest.mark.parametrize(
    ("adjacency", "batch", "counts"),
    [("add-remove", None, 2.0), ("add-remove", 20, 2.0), ("replace-one", None, 1.0), ("replace-one", 20, 2.0)],
)
def test_one_record_moves_one_mean_by_what_is_noised_for(adjacency: str, batch: int | None, counts: float) -> None:
    """The worst neighbour turns the mean of its group around: 2C, the stated sensitivity and no less."""
    relation = Adjacency(adjacency)
    pipe = micro(adjacency, 40, 2, batch_size=batch)
    clip = pipe.stages[0].releases[0].clip
    assert clip.total(1.0) == counts
    plain = micro(adjacency, 40, 2, batch_size=batch, micro_batch=1)
    assert pipe.stages[0].releases[0].mechanism == plain.stages[0].releases[0].mechanism  # times a bound of 2C, or C
    if batch is not None:
        return
    rows = torch.zeros(40, 2)
    rows[:, 0] = 50.0
    worst, bounds = 0.0, set()
    for last in ([-1e5, 0.0], [1e5, 0.0], [0.0, 1e5], [math.nan, 0.0]):
        other = rows.clone()
        other[-1] = torch.tensor(last)
        pair = (rows, other) if relation is Adjacency.REPLACE_ONE else (rows[:-1], other)
        first, second = (released(pipe, Vectors(x)) for x in pair)
        worst, bounds = max(worst, float((first.value - second.value).norm())), bounds | {first.bound}
    stated = relation.sensitivity(bounds.pop())
    assert 0.999 * stated < worst <= stated


def test_micro_batches_run_and_state_their_budget() -> None:
    objective = problem()
    for recipe in (
        algorithms.dp_sgd(batch_size=60, micro_batch=5, **COMMON),
        algorithms.rpdp_sgd(k=5, batch_size=60, micro_batch=5, **COMMON),
        algorithms.priv_sgd(m=10, micro_batch=5, clipped="before", **COMMON),
        algorithms.dp_comp_minibatch(m=10, batch_size=60, micro_batch=5, **COMMON),
    ):
        result = minimize(objective, recipe, L2Ball(5.0), steps=6)
        assert result.privacy.private and 0.9 < result.privacy.epsilon <= 1.0


MICRO = algorithms.dp_sgd(micro_batch=2, **COMMON)


test_refusals = refuses(
    (lambda: algorithms.dp_sgd(micro_batch=0, **COMMON), "micro_batch=0"),
    (lambda: algorithms.dp_sgd(micro_batch=2, **(COMMON | {"clip": AdaptiveClip(1.0)})), "a fixed clip"),
    (lambda: algorithms.rpdp_sgd(clipped="twice", **COMMON), "clipped='twice'"),
    (lambda: algorithms.rpdp_sgd(start_epoch=-1, **COMMON), "start_epoch=-1"),
    (lambda: grouped(Clip(1.0)), "give a GroupClip"),
    (lambda: grouped(GroupClip(1.0, replaced=True)), "leave it out"),
    (lambda: grouped(GroupClip(1.0, replaced=True), Poisson(0.5), Adjacency.REPLACE_ONE), "leave it out"),
    (lambda: minimize(problem(), MICRO, steps=2, physical_batch_size=8), "clipped whole"),
)


def grouped(clip: Any, sampler: Any = None, adjacency: Adjacency = Adjacency.ADD_REMOVE) -> Pipeline:
    release = Release(clip=clip, mechanism=Gaussian(1.0))
    stage = Stage(sampler or FullBatch(), [release], groups=4)
    return Pipeline([stage], lambda t: 1.0, promise=Promise(1.0, 1e-5, adjacency))
