"""Every sketch and every clipping equals the plain loop with dense maps, on real Poisson batches."""

import math
from typing import Any

import engine_cases
import pytest
import torch
import torch.nn.functional as F
from engine_cases import BATCH, MODELS, C, Reference, Z, assert_same, clipped, data, private, step, train
from grids import pairs
from torch import Tensor

import isthmus
from isthmus import CountSketch, GaussianSketch, Identity, Kronecker, L1Ball, L2Ball, PublicSubspace

SLOT = "main/gradient"


def public(kind: str) -> tuple[Tensor, Tensor]:
    found = data(kind, 8, seed=77)
    return found.x, found.y


def names(kind: str) -> tuple[str, str]:
    return ("0", "2") if kind == "mlp" else ("0", "4")


SKETCHES = {
    "none": lambda kind: None,
    "identity": lambda kind: Identity(),
    "kronecker": lambda kind: Kronecker(4, 2),
    "kronecker-refresh": lambda kind: Kronecker(3, 2, refresh=3),
    "kronecker-public": lambda kind: isthmus.KroneckerSubspace(3, 2, refresh=2),
    "public": lambda kind: PublicSubspace(5, refresh=2),
    "public-data": lambda kind: PublicSubspace(5, data=public(kind), loss=F.cross_entropy, refresh=1),
    "gaussian": lambda kind: GaussianSketch(12),
    "gaussian-plain": lambda kind: GaussianSketch(12, scaling="jl"),
    "tensor": lambda kind: isthmus.TensorSketch(12),
    "count": lambda kind: CountSketch(12),
    "coordinates": lambda kind: isthmus.Coordinates(15),
    "nice": lambda kind: isthmus.Nice(15),
    "per-leaf": lambda kind: isthmus.PerLeaf(CountSketch(0.4)),
    "blocks": lambda kind: isthmus.Blocks(list(names(kind)) if kind == "mlp" else [["0", "2"], "4"]),
    "blocks-lists": lambda kind: isthmus.Blocks([list(names(kind))] if kind == "mlp" else [["4", "0"], ["2"]]),
    "progressive": lambda kind: isthmus.Progressive([(1, Kronecker(3, 2)), (9, Identity())]),
}


def plain_direction(reference: Reference, before: bool = False) -> Any:
    def direction(t: int, leaves: list[Tensor]) -> Tensor:
        phi = reference.run.maps[t][SLOT]
        sketch = reference.run.rounds[t].sketches[SLOT]
        g = torch.cat(leaves, 1)
        codes = clipped(g, C) @ phi.T if before else clipped(g @ phi.T, C)
        gain = float(torch.linalg.matrix_norm(phi, 2)) if before else 1.0
        assert not before or gain <= sketch.gain(2) <= gain * (1 + 1e-5)  # certified for float32 too
        return reference.up(t, SLOT, reference.released(t, SLOT, codes, C * (sketch.gain(2) if before else 1.0), Z))

    return direction


@pytest.mark.parametrize("kind", list(MODELS))
@pytest.mark.parametrize("name", list(SKETCHES))
def test_every_sketch_equals_the_plain_loop(name: str, kind: str) -> None:
    dataset = data(kind)
    run = train(private(MODELS[kind](), dataset, sketch=SKETCHES[name](kind), public=public(kind)))
    assert len(run.rounds) == 8
    reference = Reference(run, MODELS[kind](), dataset)
    assert_same(run.module, reference.loop(plain_direction(reference)))


@pytest.mark.parametrize("kind", list(MODELS))
def test_single_precision(kind: str) -> None:
    dataset = data(kind, dtype=torch.float32)
    run = train(private(MODELS[kind](torch.float32), dataset, sketch=Kronecker(4, 2)))
    reference = Reference(run, MODELS[kind](torch.float32), dataset)
    assert_same(run.module, reference.loop(plain_direction(reference)), 1e-5)


def test_a_public_subspace_clipped_before_it() -> None:
    dataset = data()
    run = train(
        private(MODELS["mlp"](), dataset, sketch=PublicSubspace(5, refresh=1, clip="before"), public=public("mlp"))
    )
    reference = Reference(run, MODELS["mlp"](), dataset)
    assert_same(run.module, reference.loop(plain_direction(reference, before=True)))


def test_the_public_subspace_is_that_of_the_public_gradients_at_the_iterate() -> None:
    run = private(MODELS["mlp"](), data(), sketch=PublicSubspace(4, refresh=1), public=public("mlp"))
    projectors = []
    for _, x, y in run.loader:
        rows = torch.cat(engine_cases.flat(engine_cases.per_example(run.module, *public("mlp")), ["0", "2"]), 1)
        v = torch.linalg.svd(rows, full_matrices=False).Vh[:4]
        projectors.append(v.T @ v)
        step(run, x, y)
    for maps, projector in zip(run.maps, projectors, strict=True):
        torch.testing.assert_close(maps[SLOT].T @ maps[SLOT], projector, rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", list(MODELS))
def test_random_maps_are_those_of_the_engines_seed(kind: str) -> None:
    run = train(private(MODELS[kind](), data(kind), sketch=Kronecker(4, 2)), 1)
    space = run.engine.driver.layers.space
    for t, maps in enumerate(run.maps):
        torch.testing.assert_close(maps[SLOT], Kronecker(4, 2).draw(space, seed=3, t=t).dense())


def test_a_gradient_embedding() -> None:
    dataset, sketch = data(), isthmus.GradientEmbedding(PublicSubspace(4, refresh=1), clip_rest=0.1, share=0.3)
    run = train(private(MODELS["mlp"](), dataset, sketch=sketch, public=public("mlp")))
    reference = Reference(run, MODELS["mlp"](), dataset)

    def direction(t: int, leaves: list[Tensor]) -> Tensor:
        phi, g = run.maps[t]["main/code"], torch.cat(leaves, 1)
        code = reference.released(t, "main/code", clipped(g @ phi.T, C), C, Z / math.sqrt(0.3))
        rest = reference.released(t, "main/rest", clipped(g - g @ phi.T @ phi, 0.1), 0.1, Z / math.sqrt(0.7))
        return phi.T @ code + rest - phi.T @ (phi @ rest)

    assert_same(run.module, reference.loop(direction))


BOUNDS: dict[str, Any] = {"one": 0.4, "list": [0.3, 0.1], "dict": {"2": 0.1, "0": 0.3}}


@pytest.mark.parametrize("sketch", [None, Kronecker(4, 2)])
@pytest.mark.parametrize("given", list(BOUNDS))
def test_per_layer_clipping(given: str, sketch: Any) -> None:
    dataset = data()
    run = train(private(MODELS["mlp"](), dataset, clipping="per_layer", max_grad_norm=BOUNDS[given], sketch=sketch))
    each = [0.4 / math.sqrt(2)] * 2 if given == "one" else [0.3, 0.1]
    reference = Reference(run, MODELS["mlp"](), dataset)

    def direction(t: int, leaves: list[Tensor]) -> Tensor:
        phi, start, codes = run.maps[t][SLOT], 0, []
        for leaf, bound in zip(leaves, each, strict=True):
            codes.append(clipped(leaf @ _own(phi[:, start : start + leaf.shape[1]]).T, bound))
            start += leaf.shape[1]
        return reference.up(t, SLOT, reference.released(t, SLOT, torch.cat(codes, 1), math.hypot(*each), Z))

    assert_same(run.module, reference.loop(direction))


def _own(block: Tensor) -> Tensor:
    """The rows of a block-diagonal map that a leaf feeds."""
    return block[block.abs().sum(1) > 0]


@pytest.mark.parametrize("sketch", [None, Kronecker(4, 2)])
def test_adaptive_clipping_moves_only_by_the_released_count(sketch: Any) -> None:
    dataset = data()
    options = {"target_unclipped_quantile": 0.7, "clipbound_learning_rate": 0.5}
    run = train(private(MODELS["mlp"](), dataset, clipping="adaptive", sketch=sketch, **options))
    reference, bounds = Reference(run, MODELS["mlp"](), dataset), [C]

    def direction(t: int, leaves: list[Tensor]) -> Tensor:
        bound, codes = bounds[-1], torch.cat(leaves, 1) @ run.maps[t][SLOT].T
        y = reference.released(t, SLOT, clipped(codes, bound), bound, Z / math.sqrt(0.95))
        below = (32 * (1 - codes.norm(dim=1) / bound)).clamp(-0.5, 0.5)  # over 1/64 of the bound on either side
        count = (below.sum() + reference.noise(1, 0.5 * Z / math.sqrt(0.05))) / BATCH
        bounds.append(bound * math.exp(-0.5 * (min(1.0, max(0.0, float(count) + 0.5)) - 0.7)))
        return reference.up(t, SLOT, y)

    assert_same(run.module, reference.loop(direction))
    assert [round.bounds[SLOT] for round in run.rounds] == pytest.approx(bounds[:-1])
    assert len(set(bounds)) == len(bounds)


@pytest.mark.parametrize("sketch", [None, Kronecker(4, 2), PublicSubspace(5, refresh=1)])
@pytest.mark.parametrize("micro", [2, 5])
def test_micro_batches_are_clipped_means_of_random_groups_accounted_at_twice_the_bound(micro: int, sketch: Any) -> None:
    dataset = data()
    run = train(private(MODELS["mlp"](), dataset, micro_batch_size=micro, sketch=sketch, public=public("mlp")))
    reference = Reference(run, MODELS["mlp"](), dataset)
    count = BATCH // micro
    draw, groups = reference.draw, []

    def drawn() -> Tensor:
        index = draw()
        groups.append(reference.source.integers(count, len(index)))
        return index

    reference.draw = drawn  # type: ignore[method-assign]

    def direction(t: int, leaves: list[Tensor]) -> Tensor:
        g, means = torch.cat(leaves, 1) @ run.maps[t][SLOT].T, []
        for j in range(count):
            mine = g[groups[-1] == j]
            means.append(mine.mean(0) if len(mine) else torch.zeros_like(g[0] if len(g) else run.maps[t][SLOT][:, 0]))
        total = clipped(torch.stack(means), C).sum(0)
        return reference.up(t, SLOT, (total + reference.noise(len(total), Z * 2 * C)) / count)

    assert_same(run.module, reference.loop(direction))


SOME, OPTIMIZERS = [None, CountSketch(20), Kronecker(4, 2)], [torch.optim.SGD, torch.optim.Adam]
SETS = {"one": L2Ball(0.6), "layer": {"0": L1Ball(1.5)}, "both": {"0": L1Ball(1.5), "2": L2Ball(0.4)}}


@pytest.mark.parametrize("which, sketch, optimizer", pairs(SETS, SOME, OPTIMIZERS), ids=str)
def test_layers_stay_in_their_sets_after_every_step(which: str, sketch: Any, optimizer: Any) -> None:
    run = private(
        MODELS["mlp"](), data(), constraint=SETS[which], sketch=sketch, optimizer=lambda p: optimizer(p, lr=0.2)
    )
    bindings = run.engine.driver.layers.bindings
    given = SETS[which] if isinstance(SETS[which], dict) else dict.fromkeys(("0", "2"), SETS[which])
    start = {name: binding.read().clone() for name, binding in bindings.items()}
    for _, x, y in run.loader:
        step(run, x, y)
        for name, each in given.items():
            leaf = bindings[name].read().reshape(-1)
            assert each.contains(leaf), name
            torch.testing.assert_close(each.project(leaf), leaf, rtol=0, atol=1e-9)
    assert all(not torch.equal(start[name], binding.read()) for name, binding in bindings.items())


def test_a_constraint_without_a_sketch_is_a_step_and_a_projection() -> None:
    dataset, ball = data(), L2Ball(0.6)
    run = train(private(MODELS["mlp"](), dataset, constraint={"0": ball}))
    reference = Reference(run, MODELS["mlp"](), dataset)
    inner, step = plain_direction(reference), reference.optimizer.step

    def projected() -> None:
        step()
        first = reference.module[0]
        leaf = ball.project(torch.cat([first.weight, first.bias[:, None]], 1).detach().reshape(-1)).view(5, 7)
        with torch.no_grad():
            first.weight.copy_(leaf[:, :6])
            first.bias.copy_(leaf[:, 6])

    reference.optimizer.step = projected  # type: ignore[method-assign]
    assert_same(run.module, reference.loop(inner))


def test_a_warm_up_from_a_rate_of_nought_moves_nothing_at_first() -> None:
    run = private(MODELS["mlp"](), data(), constraint=L2Ball(3.0), sketch=CountSketch(20))
    scheduler = torch.optim.lr_scheduler.LambdaLR(run.optimizer, lambda t: min(1.0, t / 2))
    moved = []
    for _, x, y in run.loader:
        before = run.module[0].weight.clone()
        step(run, x, y)
        scheduler.step()
        moved.append(not torch.equal(before, run.module[0].weight))
    assert moved == [False, True, True, True]
    assert bool(torch.isfinite(run.module[0].weight).all())
