"""One core, two drivers: our loop and a user's torch loop equal a direct vmap loop to 1e-10."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from gradients.layers.layer_reference import Built
from refusals import refuses
from torch import Tensor, nn
from torch.func import grad, vmap

import isthmus
from isthmus.base.space import Space
from isthmus.core.pipeline import Pipeline, Release, Stage
from isthmus.objectives.module import ModuleObjective
from isthmus.parts import Full, Shuffle, Step
from isthmus.privacy import Clip, PerLeafClip
from isthmus.sketches import CountSketch, Identity, Kronecker, PublicSubspace, Residual

SPACE = Space.of({"0": (6, 8), "2": (3, 7)})
LR, STEPS, BATCH = 0.3, 6, 20


def mlp() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(7, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def data(n: int, seed: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, 7, generator=g, dtype=torch.float64), torch.randint(0, 3, (n,), generator=g)


def flat_loss(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The MLP written out over the flat vector, one example at a time: the slow, obvious reference."""
    first, second = SPACE.view(w, "0"), SPACE.view(w, "2")
    hidden = torch.tanh(first[:, :7] @ x + first[:, 7])
    return nn.functional.cross_entropy((second[:, :6] @ hidden + second[:, 6])[None], y[None])


def per_example(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return vmap(grad(flat_loss), (None, 0, 0))(w, x, y)


def clipped(codes: Tensor, bound: float) -> Tensor:
    return (codes * (bound / codes.norm(dim=1)).clamp(max=1)[:, None]).sum(0)


def batches(seed: int) -> list[tuple[Tensor, Tensor]]:
    return [data(BATCH, seed + t) for t in range(STEPS)]


def drive(pipe: Pipeline, module: nn.Module, physical: int = 2, **options: Any) -> Tensor:
    """A user's loop: every batch in `physical` pieces, then one step."""
    optimizer = torch.optim.SGD(module.parameters(), lr=LR)
    driver = isthmus.TorchDriver(pipe, module, optimizer, n=100, loss=nn.functional.cross_entropy, **options)
    for x, y in batches(50):
        for part in torch.arange(BATCH).chunk(physical):
            nn.functional.cross_entropy(module(x[part]), y[part]).backward()
        driver.step()
    assert driver.state.t == STEPS
    return driver.layers.pack()


def reference(direction: Callable[[int, Tensor, Tensor], Tensor]) -> Tensor:
    """w <- w - lr * direction(t, w, per-example gradients): the direct loop."""
    w = ModuleObjective(mlp(), nn.functional.cross_entropy, data(1, 0)).start()
    for t, (x, y) in enumerate(batches(50)):
        w = w - LR * direction(t, w, per_example(w, x, y))
    return w


def pipeline(*releases: Release) -> Pipeline:
    return Pipeline([Stage(Shuffle(BATCH), list(releases))], step=lambda t: LR)


SEED, KRONECKER, BOUND = 5, Kronecker(rank_in=3, rank_out=2), 0.7
PUBLIC, SUBSPACE = data(12, 900), PublicSubspace(4, data(12, 900), refresh=1)


def kronecker_direction(t: int, w: Tensor, g: Tensor) -> Tensor:
    sketch = KRONECKER.draw(SPACE, seed=SEED, t=t)
    phi = sketch.dense()
    return phi.T @ clipped(g @ phi.T, BOUND) / sketch.norm**2 / BATCH


def embedding_direction(t: int, w: Tensor, g: Tensor) -> Tensor:
    """Gradient embedding: the clipped part in the public subspace plus the clipped rest."""
    v = torch.linalg.svd(per_example(w, *PUBLIC), full_matrices=False).Vh[:4]
    return (v.T @ clipped(g @ v.T, 0.5) + clipped(g - g @ v.T @ v, 0.2)) / BATCH


def layered(t: int, w: Tensor, g: Tensor) -> Tensor:
    return torch.cat([clipped(g[:, :48], 0.3), clipped(g[:, 48:], 0.1)]) / BATCH


def sketched(t: int, w: Tensor, g: Tensor) -> Tensor:
    phi = CountSketch(20).draw(SPACE, seed=SEED, t=t).dense()
    return torch.linalg.pinv(phi) @ (phi @ clipped(g, 0.4)) / BATCH


CASES: dict[str, tuple[list[Release], Callable[[int, Tensor, Tensor], Tensor]]] = {
    "plain": ([Release()], lambda t, w, g: g.sum(0) / BATCH),
    "clipped": ([Release(encode=Identity(), clip=Clip(0.4))], lambda t, w, g: clipped(g, 0.4) / BATCH),
    "layers": ([Release(clip=PerLeafClip({"0": 0.3, "2": 0.1}))], layered),
    "clipped before": ([Release(encode=CountSketch(20), clip=Clip(0.4, before=True))], sketched),
    "kronecker": ([Release(encode=KRONECKER, clip=Clip(BOUND))], kronecker_direction),
    "embedding": (
        [Release("code", SUBSPACE, Clip(0.5)), Release("rest", Residual(SUBSPACE), Clip(0.2))],
        embedding_direction,
    ),
}


@pytest.mark.parametrize("physical", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_a_torch_loop_is_the_direct_loop(name: str, physical: int) -> None:
    releases, direction = CASES[name]
    driven = drive(pipeline(*releases), mlp(), physical, seed=SEED)
    torch.testing.assert_close(driven, reference(direction), rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", CASES)
def test_the_same_pipelines_through_our_loop(name: str) -> None:
    """`minimize` on all the records, in physical batches, equals the direct loop on all the records."""
    (x, y), (releases, direction) = data(BATCH, 50), CASES[name]
    objective = ModuleObjective(mlp(), nn.functional.cross_entropy, (x, y))
    w = start = objective.start()
    pipe = Pipeline([Stage(Full(), releases)], step=lambda t: LR, update=Step())
    result = isthmus.minimize(objective, pipe, steps=STEPS, seed=SEED, x0=start, physical_batch_size=7)
    for t in range(STEPS):
        w = w - LR * direction(t, w, per_example(w, x, y))
    torch.testing.assert_close(result.x, w, rtol=0, atol=1e-10)


@pytest.mark.parametrize("physical", [None, 11])
def test_a_glm_on_csr_through_our_loop(physical: int | None, rng: np.random.Generator) -> None:
    X = sp.random(40, 30, density=0.3, format="csr", random_state=1)
    y = rng.choice([-1.0, 1.0], 40)
    encode = CountSketch(9)
    pipe = Pipeline([Stage(Full(), [Release(encode=encode, clip=Clip(0.05))])], step=lambda t: LR)
    result = isthmus.minimize(isthmus.Logistic(X, y), pipe, steps=STEPS, seed=4, physical_batch_size=physical)
    dense, labels, w = torch.from_numpy(X.toarray()), torch.from_numpy(y), torch.zeros(30, dtype=torch.float64)

    def one(w: Tensor, x: Tensor, label: Tensor) -> Tensor:
        return nn.functional.softplus(-label * (x @ w))

    for t in range(STEPS):
        sketch = encode.draw(30, seed=4, t=t)
        phi = sketch.dense()
        g = vmap(grad(one), (None, 0, 0))(w, dense, labels)
        w = w - LR * phi.T @ clipped(g @ phi.T, 0.05) / sketch.norm**2 / 40
    torch.testing.assert_close(result.x, w, rtol=0, atol=1e-10)


def test_an_empty_batch_takes_its_round_and_an_evaluation_opens_none() -> None:
    module = mlp()
    optimizer = torch.optim.SGD(module.parameters(), lr=LR)
    driver = isthmus.TorchDriver(pipeline(Release(encode=KRONECKER, clip=Clip(1.0))), module, optimizer, n=10)
    before = driver.layers.pack()
    module.eval()(data(4, 0)[0])
    with torch.no_grad():
        module.train()(data(4, 0)[0])
    assert driver._round is None
    driver.step()
    assert driver.state.t == 1
    assert torch.equal(driver.layers.pack(), before)


test_modules_it_cannot_take_are_refused = refuses(
    (nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3, affine=False)), "BatchNorm1d"),
    (nn.LSTM(3, 3), "LSTM"),
    (nn.ReLU(), "at least one trainable"),
    by=lambda module: ModuleObjective(module, nn.functional.mse_loss, (torch.ones(1, 3), torch.ones(1, 3))),
)


def test_what_a_torch_loop_cannot_hold_is_refused() -> None:
    two = Pipeline([Stage(Full(), name="a"), Stage(Full(), name="b")], step=lambda t: LR)
    module = mlp()
    with pytest.raises(isthmus.InvalidInput, match="minimize"):
        isthmus.TorchDriver(two, module, torch.optim.SGD(module.parameters(), lr=LR), n=10)


def test_a_layer_without_a_part_in_the_loss_has_rows_of_zeros() -> None:
    module = Built(lambda m, x: m.net(x), net=mlp(), idle=nn.Linear(7, 2).double())
    x, y = data(5, 1)
    objective = ModuleObjective(module, nn.functional.cross_entropy, (x, y))
    plain = ModuleObjective(mlp(), nn.functional.cross_entropy, (x, y))
    with pytest.warns(UserWarning, match=r"\['idle'\] took no part"):
        rows = objective.rows(objective.start()).dense()
    torch.testing.assert_close(rows[:, : plain.d], plain.rows(plain.start()).dense())
    assert rows.shape == (5, plain.d + 16) and bool((rows[:, plain.d :] == 0).all())
