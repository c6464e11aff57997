"""A module whose parameters are used in every way that is tapped: its private sum is that of the records alone."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from engine_cases import per_example
from mixing_cases import clipped_sum, private
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from isthmus.gradients.layers import Layers

P, T = 8, 5


class Norm(nn.Module):
    """A norm of one's own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(1 + 0.1 * torch.randn(P))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6))


class Every(nn.Module):
    """A class token, shared positions, a bias that all examples share, flattened tokens, and a tied output."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.place, self.bias = nn.Embedding(9, P), nn.Embedding(T, P), nn.Embedding(4, 1)
        self.start, self.norm, self.mix, self.out = nn.Parameter(torch.randn(1, 1, P)), Norm(), nn.Linear(P, P), Norm()

    def forward(self, index: Tensor) -> Tensor:
        x = self.token(index) + self.place(torch.arange(index.shape[1]))
        x = self.norm(torch.cat([self.start.expand(len(x), -1, -1), x], 1))
        places = (torch.arange(T + 1)[:, None] - torch.arange(T + 1)[None]).clamp(0, 3)
        x = x + F.scaled_dot_product_attention(x, x, x, self.bias(places).permute(2, 0, 1))
        x = x + self.mix(x.reshape(-1, P)).view_as(x).tanh()
        return F.linear(self.out(x[:, 0]), self.token.weight)


class ScaledLinear(nn.Module):
    """y = s (W x + b), or the same of a weight s W that was computed before."""

    def __init__(self, p: int, q: int, weight_first: bool = False) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(q, p) / p), nn.Parameter(torch.randn(q))
        self.scale, self.weight_first = nn.Parameter(torch.tensor(0.7)), weight_first

    def forward(self, x: Tensor) -> Tensor:
        if self.weight_first:
            return F.linear(x, self.scale * self.weight, self.scale * self.bias)
        return self.scale * F.linear(x, self.weight, self.bias)


class Largest(TorchDispatchMode):
    """How many numbers the largest tensor has that is computed meanwhile."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        self.numel = max([self.numel, *(x.numel() for x in tree_leaves(out) if isinstance(x, Tensor))])
        return out


LINEAR = {
    "linear": nn.Linear,
    "scaled": ScaledLinear,
    "weight first": lambda p, q: ScaledLinear(p, q, weight_first=True),
}


@pytest.mark.parametrize("places", [(), (3,)])
def test_a_scaled_linear_layer_keeps_factors_and_agrees_with_vmap(places: tuple[int, ...]) -> None:
    """No rule is needed; only a weight that is computed before it meets examples has rows as long as itself."""
    torch.manual_seed(0)
    n, p, q = 10, 400, 500  # smaller products at places are multiplied out for their norms, a chunk at a time
    x, y = torch.randn(n, *places, p, dtype=torch.float64), torch.randint(0, 3, (n,))
    largest = {}
    for name, kind in LINEAR.items():
        module = nn.Sequential(kind(p, q), nn.Tanh(), nn.Flatten(), nn.Linear(q * (3 if places else 1), 3)).double()
        plain = copy.deepcopy(module)
        module, engine = private(module, n, max_grad_norm=0.5)
        clipped_sum(module, engine, x, y)  # the first batch is tried out too
        with Largest() as seen:
            found = clipped_sum(module, engine, x, y)
        largest[name] = seen.numel
        rows = per_example(plain, x, y)
        shares = (0.5 / torch.cat([row.view(n, -1) for row in rows.values()], 1).norm(dim=1)).clamp(max=1)
        assert float(shares.min()) < 1
        by_id = {id(w): torch.tensordot(shares, rows[own], 1) for own, w in plain.named_parameters()}
        exact = torch.cat([binding.packed(by_id) for binding in Layers(plain).bindings.values()])
        torch.testing.assert_close(found, exact, rtol=1e-9, atol=1e-9)
    assert max(largest["linear"], largest["scaled"]) < n * p * q <= largest["weight first"]


@pytest.mark.parametrize("n", [T, T + 1, 9, 12])
@pytest.mark.parametrize("clipping", ["flat", "per_layer"])
def test_the_clipped_sum_is_that_of_the_records_alone(n: int, clipping: str) -> None:
    torch.manual_seed(n)
    module = Every().double()
    plain = copy.deepcopy(module)
    index, y = torch.randint(0, 9, (n, T)), torch.randint(0, 9, (n,))
    module, engine = private(module, n, clipping=clipping)
    found = clipped_sum(module, engine, index, y)
    assert engine.driver is not None
    layers = Layers(plain)
    total = torch.zeros(layers.space.d, dtype=torch.float64)
    bounds = [1.0] if clipping == "flat" else [len(layers.space.leaves) ** -0.5] * len(layers.space.leaves)
    for i in range(n):
        loss = F.cross_entropy(plain(index[i : i + 1]), y[i : i + 1], reduction="sum")
        grads = torch.autograd.grad(loss, list(plain.parameters()))
        by_id = {id(p): g for p, g in zip(plain.parameters(), grads, strict=True)}
        leaves = [binding.packed(by_id) for binding in layers.bindings.values()]
        pieces = [torch.cat(leaves)] if clipping == "flat" else leaves
        total += torch.cat([x * min(1.0, c / max(float(x.norm()), 1e-30)) for x, c in zip(pieces, bounds, strict=True)])
    torch.testing.assert_close(found, total, rtol=1e-5, atol=1e-5)
