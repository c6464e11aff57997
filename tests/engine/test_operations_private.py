"""Layers of one's own, without a rule: as exact and as lean as layers that have one."""

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
