"""An attack of its own: one more record changes the shape of a batch, and so how the OTHERS are rounded.

Libraries of matrix products choose their kernels by the shape of a batch, its layout and the number of threads, and
treat the last few rows apart.  A record's margin or activation then has other last bits when another record comes.
Records that lie on the edge of a hinge or a ReLU take them over that edge, all of them at once, each moving the
sum by the bound.  And a loss that is a mean divides every record's gradient by the size of the batch, before sums that
cancel: what is left of them is rounding, which changes with that size for all records.

`python -m attack.shapes [threads]` prints what this reaches, by kind of data and number of records.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from attack.cases import Case
from attack.probes import Arrays
from isthmus import Hinge, PrivacyEngine, algorithms, minimize

DRAWS, NUDGES = 60, 6


def on_edge(product: Callable[[Tensor], Tensor], w: Tensor, n: int, edge: float) -> tuple[Tensor, int]:
    """A record for which n copies are on one side of the edge, and most of n + 1 copies on the other.

    The last weight is 1: the last entry is chosen so that the exact product lies at the edge, then nudged.
    """
    rng, best, most = torch.Generator().manual_seed(n), torch.zeros_like(w), -1
    for _ in range(DRAWS):
        x = (1e3 * torch.randn(len(w), generator=rng, dtype=torch.float64)).to(w.dtype)
        x[-1] = edge - float(x[:-1].double() @ w[:-1].double())
        for nudge in range(-NUDGES, NUDGES + 1):
            other = x.clone()
            other[-1] *= 1 + nudge * torch.finfo(w.dtype).eps
            few, many = product(other.expand(n, -1)), product(other.expand(n + 1, -1))
            flips = int(((few < edge) != (many[:n] < edge)).sum())
            if flips > most:
                best, most = other, flips
    return best, most


def linear(n: int, dtype: torch.dtype, order: str, d: int = 64) -> Case:
    """Hinge on all records, at a public start, rows stored row by row ("C") or column by column ("F")."""
    w = torch.randn(d, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)
    w[-1] = 1.0

    def stored(x: Tensor) -> Tensor:
        return x.contiguous() if order == "C" else x.T.contiguous().T

    x, _ = on_edge(lambda x: stored(x) @ w, w, n, 1.0)

    def train(arrays: Arrays) -> None:
        X = stored(torch.from_numpy(arrays["x"]).to(dtype))
        problem = Hinge(X, np.ones(len(X)), classes=(-1, 1))
        recipe = algorithms.dp_gd(epsilon=1.0, delta=1e-6, clip=1.0, step=1.0, n="exact")
        minimize(problem, recipe, x0=w, steps=1, noise_seed=0, record=None, progress=False)

    rows = x.double().expand(n + 1, -1).numpy().copy()
    return Case("shapes", f"Hinge, {dtype}, order {order}, n={n}, d={d}", {"x": rows}, n, train, (), 0)


class Corner(nn.Module):
    """One hidden layer of ReLU."""

    def __init__(self, w: Tensor, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(len(w), width, bias=False, dtype=w.dtype)
        self.outer = nn.Linear(width, 1, bias=False, dtype=w.dtype)
        with torch.no_grad():
            self.inner.weight.copy_(w.expand(width, -1))
            self.outer.weight.fill_(1.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(torch.relu(self.inner(x)))


def network(n: int, dtype: torch.dtype, d: int = 784, width: int = 256) -> Case:
    """A ReLU network through the engine: equal hidden units, equal records, all on the corner."""
    w = torch.randn(d, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)
    w[-1] = 1.0
    weight = w.expand(width, -1).contiguous()
    x, _ = on_edge(lambda x: 0.0 - F.linear(x.contiguous(), weight)[:, 0], w, n, 0.0)

    def train(arrays: Arrays) -> None:
        module, engine = Corner(w, width), PrivacyEngine()
        inputs, targets = torch.from_numpy(arrays["x"]).to(dtype), torch.full((len(arrays["x"]), 1), 1e3, dtype=dtype)
        _step(engine, module, inputs, targets, F.mse_loss, "mean")

    rows = x.double().expand(n + 1, -1).numpy().copy()
    return Case("shapes", f"ReLU network, {dtype}, n={n}, {d} x {width}", {"x": rows}, n, train, (), 0)


def averaged(n: int, dtype: torch.dtype, reduction: str, last: tuple[float, ...] = (0.3, 0.1, 0.5)) -> Case:
    """Two linear layers whose backward sum over the classes cancels, on long inputs: its sign is that of rounding."""

    def train(arrays: Arrays) -> None:
        layers = nn.Linear(1, 1, bias=False, dtype=dtype), nn.Linear(1, len(last), bias=False, dtype=dtype)
        with torch.no_grad():
            layers[0].weight.zero_()
            layers[1].weight.copy_(torch.tensor(last, dtype=dtype)[:, None])
        inputs, targets = torch.from_numpy(arrays["x"]).to(dtype), torch.zeros(len(arrays["x"]), dtype=torch.long)
        loss = partial(F.cross_entropy, reduction=reduction)
        _step(PrivacyEngine(), nn.Sequential(*layers), inputs, targets, loss, reduction)

    rows = np.full((n + 1, 1), 1e18)
    return Case("shapes", f"{reduction} of a loss, {dtype}, n={n}, last layer {last}", {"x": rows}, n, train, (), 0)


def _step(
    engine: PrivacyEngine, module: nn.Module, inputs: Tensor, targets: Tensor, loss: Callable[..., Tensor], kind: str
) -> None:
    """One private step on all records."""
    module, optimizer, loader = engine.make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
        data_loader=DataLoader(TensorDataset(inputs, targets), batch_size=len(inputs)),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        loss_reduction=kind,
        normaliser=64.0,
        noise_generator=torch.Generator().manual_seed(0),
    )
    for x, y in loader:
        loss(module(x), y).backward()
        optimizer.step()
    engine.detach()


def main() -> None:
    """The table."""
    torch.set_num_threads(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
    both, single = (torch.float32, torch.float64), torch.float32
    cases: list[Callable[[], Case]] = [
        partial(averaged, n, t, kind, last)
        for t in both
        for kind in ("mean", "sum")
        for last in ((0.3, 0.1, 0.5), (0.7, 0.7, 0.7))
        for n in (12, 48, 64, 256, 1023, 4096)
    ]
    cases += [partial(network, n, t) for t in both for n in (3, 15, 16, 63, 98, 255, 1024)]
    cases += [partial(network, n, single, 784, 10) for n in (24, 378)]
    cases += [partial(linear, n, t, "F", 784) for t in both for n in (40, 69)]
    cases += [partial(linear, n, t, o) for t in both for o in "CF" for n in (15, 16, 63, 95, 255, 4095)]
    for build in cases:
        case = build()
        moved = case.moved()
        assert moved is not None
        print(f"{moved.ratio:10.4f} x the bound   {case.label}", flush=True)


if __name__ == "__main__":
    main()
