"""The slow way to per-example gradients: one backward pass an example, in float64, laid out as the flat space is."""

import copy
import math

import torch
from torch import nn

from isthmus.gradients import Stack
from isthmus.gradients.layers import Layers
from isthmus.gradients.layers.trial import look
from isthmus.gradients.rows import total
from isthmus.sketches import Coordinates, CountSketch, Kronecker
from isthmus.sketches.public import SubspaceMap

ORDS = (1, 2, math.inf)


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def places(*shape, vocabulary=7, seed=0):
    return torch.randint(vocabulary, shape, generator=torch.Generator().manual_seed(seed))


class Built(nn.Module):
    """A module of named children and parameters, which a function of it and the input computes with."""

    def __init__(self, function, **parts):
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args):
        return self.function(self, *args)


def squares(output, target):
    """A loss whose gradient differs at every output: half the sum of squared distances from the targets."""
    return 0.5 * (output - target).square().sum()


def truth(module, loss, x, y, batch_dim=0):
    """n x d float64: the gradient of the loss of each example alone, by `torch.autograd.grad`."""
    wide = copy.deepcopy(module).double()
    layers = Layers(wide, batch_first=batch_dim == 0)
    parameters = list(layers.parameters())
    x, y = (v.double() if v.is_floating_point() else v for v in (x, y))
    rows = []
    for i in range(x.shape[batch_dim]):
        one, target = x.narrow(batch_dim, i, 1), y.narrow(batch_dim if y.ndim > 1 else 0, i, 1)
        gradients = torch.autograd.grad(loss(wide(one), target), parameters, materialize_grads=True)
        table = dict(zip(map(id, parameters), gradients, strict=True))
        rows.append(torch.cat([binding.packed(table) for binding in layers.bindings.values()]))
    return torch.stack(rows) if rows else torch.zeros(0, layers.space.d, dtype=torch.float64)


def attached(module, **options):
    """Taps on a module itself."""
    layers = Layers(module, **options)
    layers.attach()
    return layers


def capture(module, loss, x, y, batch_dim=0, tried=False):
    """The layers of a copy of the module, and its rows: one forward and one backward pass of the whole batch."""
    layers = attached(copy.deepcopy(module), batch_first=batch_dim == 0)
    if tried:
        look(layers, (x,), {}, len(x))
    seen = {leaf.name: [] for leaf in layers.space.leaves}
    with layers.listening(lambda name, rows: seen[name].append(rows), x.shape[batch_dim]):
        loss(layers.module(x), y).backward()
    return layers, Stack([(name, total(pieces)) for name, pieces in seen.items()])


def agrees_in_bfloat16(module, x, y):
    """The rows under autocast have its precision."""
    exact = truth(module, squares, x, y)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, rows = capture(module, lambda output, target: squares(output.float(), target), x, y)
    assert float((rows.dense() - exact).norm() / exact.norm()) < 0.05  # bfloat16 has 8 bits


def agree(module, x, y, loss=squares, batch_dim=0, tolerance=None):
    """Norms, clipped sums and codes of the captured rows against the slow reference; returns the rows."""
    layers, rows = capture(module, loss, x, y, batch_dim)
    exact = truth(module, loss, x, y, batch_dim)
    dtype = next(layers.parameters()).dtype
    small = tolerance or (1e-10 if dtype == torch.float64 else 1e-5)
    assert (rows.n, rows.d) == tuple(exact.shape)
    size = float(exact.abs().max()) if exact.numel() else 1.0
    close = {"rtol": small, "atol": small * max(size, 1e-30)}
    torch.testing.assert_close(rows.dense().double(), exact, **close)
    check_norms(rows, exact, small)
    weights = 0.5 / rows.norms().double().clamp_min(1e-30)
    clipped, expected = rows.sum(weights).double(), weights @ exact
    torch.testing.assert_close(clipped, expected, rtol=10 * small, atol=small * max(len(x), 1))
    check_codes(layers.space, rows, exact, small)
    return rows


def check_norms(rows, exact, small):
    """Never below the norm of the rows themselves, and within `small` of the reference."""
    own = rows.dense().double()
    for ord in ORDS:
        norms, true = rows.norms(ord).double(), torch.linalg.vector_norm(exact, ord, dim=1)
        reached = torch.linalg.vector_norm(own, ord, dim=1)
        slack = 1e-14 if rows.dtype == torch.float64 else 2e-7  # own is itself rounded
        assert bool((norms >= reached * (1 - slack)).all())
        loose = 3 * small if ord == 1 else small  # ord 1 adds the errors of all entries
        assert bool((norms <= true * (1 + loose) + small * 1e-3).all()), (norms / true).max()


def sketches(space):
    """One sketch of every kind that treats leaves in its own way."""
    draws = torch.Generator().manual_seed(3)
    basis = torch.linalg.qr(torch.randn(space.d, min(4, space.d), generator=draws, dtype=torch.float64))[0].contiguous()
    m = max(1, space.d // 3)
    return [
        Kronecker(3, 2).draw(space),
        CountSketch(m).draw(space),
        Coordinates(m).draw(space),
        SubspaceMap(space, basis),
    ]


def check_codes(space, rows, exact, small):
    """The codes of a whole stack against the sketch of the reference rows."""
    for sketch in sketches(space):
        code, expected = sketch.encode(rows).dense().double(), sketch.rows(exact)
        size = float(expected.abs().max()) if expected.numel() else 1.0
        torch.testing.assert_close(code, expected, rtol=10 * small, atol=10 * small * max(size, 1e-30))
