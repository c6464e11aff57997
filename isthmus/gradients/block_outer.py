"""Factored rows in blocks: the per-example gradient of a grouped convolution."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from isthmus.base import validate
from isthmus.base.matrix import exact_products
from isthmus.gradients import adding, rounding
from isthmus.gradients.base import KINDS, Dense, Rows
from isthmus.gradients.outer import Outer
from isthmus.gradients.rounding import CHUNK_BYTES, Bounds
from isthmus.sketches.base import Sketch
from isthmus.sketches.kronecker import KroneckerMap


class BlockOuter(Rows):
    """Rows whose (g q) x p matrix is g blocks under one another, block j being sum_t b_itj a_itj'.

    A convolution with g groups has these gradients: output channels of group j see the input channels of group j
    only.  Blocks of an example share no entry, so that norms combine over blocks; all else is one batched product.

    Args:
        inputs: (n, T, g, p) tensor, the a_itj.
        outputs: (n, T, g, q) tensor, the b_itj; its dtype, raised to float32 at least, is that of the results.
        ones: a has one more column than it shows, of ones; p counts it.

    >>> rows = BlockOuter(torch.tensor([[[[1.0], [2.0]]]]), torch.tensor([[[[3.0], [4.0]]]]))
    >>> rows.dense(), rows.norms(1)
    (tensor([[3., 8.]]), tensor([11.0000]))
    """

    def __init__(self, inputs: Tensor, outputs: Tensor, ones: bool = False) -> None:
        validate.check(inputs.ndim == 4, "inputs.shape", tuple(inputs.shape), "give (n, T, g, p)")
        same = outputs.ndim == 4 and outputs.shape[:3] == inputs.shape[:3]
        remedy = f"give {(*inputs.shape[:3], 'q')} to match inputs of shape {tuple(inputs.shape)}"
        validate.check(same, "outputs.shape", tuple(outputs.shape), remedy)
        self.inputs, self.outputs, self.ones = inputs.detach(), outputs.detach(), ones
        self.n, self.positions, self.blocks, self.q = outputs.shape
        self.p = inputs.shape[-1] + ones
        self.d = self.blocks * self.q * self.p
        self.dtype, self.device = rounding.working(outputs.dtype), outputs.device

    def norm_bounds(self, ord: float = 2) -> Bounds:
        low, high = self._each().norm_bounds(ord)
        shape = (self.n, self.blocks)
        return rounding.matrix_bounds(low.view(shape), ord)[0], rounding.matrix_bounds(high.view(shape), ord)[1]

    def underflow(self) -> Tensor:
        return self._each().underflow().view(self.n, self.blocks).sum(1)

    def sum(self, weights: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        b = self.outputs.to(self.dtype)
        if weights is not None:
            b = b * self._weights(weights).view(-1, 1, 1, 1)
        total = self._empty(self.d) if out is None else out
        matrix = total.view(self.blocks, self.q, self.p)
        with exact_products(self.device):
            a = self.inputs.to(self.dtype).flatten(0, 1).transpose(0, 1)
            matrix[..., : a.shape[2]] = b.flatten(0, 1).permute(1, 2, 0) @ a
        if self.ones:
            matrix[..., -1] = b.sum((0, 1))
        return total

    def mass(self, ord: float = 2) -> Tensor | None:
        """That of every block, combined."""
        sizes = self._each().mass(ord)
        return None if sizes is None else rounding.matrix_bounds(sizes.view(self.n, self.blocks), ord)[1]

    def sum_to(self, weights: Tensor, rho: float, out: Tensor | None = None) -> Tensor:
        room, (n, positions) = self._room(rho, out), (self.n, max(1, self.positions))
        few = (adding.roundings(rho, self.dtype) - adding.SPARE) // positions
        if n <= few:
            return room.copy_(self.sum(weights))
        c, single = self._weights(weights), self.dtype == torch.float32 and few * positions >= adding.LEAST
        work, most = (self.dtype, max(1, few)) if single else (torch.float64, max(1, CHUNK_BYTES // (8 * self._size())))

        def add(lo: int, hi: int) -> Tensor:
            part = BlockOuter(self.inputs[lo:hi].to(work), self.outputs[lo:hi].to(work), self.ones)
            return part.sum(c[lo:hi])

        return room.copy_(adding.in_float64(n, rho, (self.d,), self.device, add, most, 1 if single else positions))

    def _size(self) -> int:
        """The numbers that the factors of one row hold."""
        return max(1, self.positions * self.blocks * (self.p + self.q))

    def part(self, lo: int, hi: int) -> BlockOuter:
        return BlockOuter(self.inputs[lo:hi], self.outputs[lo:hi], self.ones)

    def dense(self) -> Tensor:
        return self._each().dense().view(self.n, self.d)

    def masked(self, keep: Tensor) -> BlockOuter:
        keep, zero = keep.view(-1, 1, 1, 1), torch.zeros((), device=self.device)
        a, b = (torch.where(keep, x, zero.to(x.dtype)) for x in (self.inputs, self.outputs))
        return BlockOuter(a, b, self.ones)

    def take(self, index: Tensor, factors: Tensor) -> BlockOuter:
        index, factors = index.to(self.device), factors.to(self.device, self.dtype)
        outputs = self.outputs.to(self.dtype)[index] * factors[:, None, None, None]
        return BlockOuter(self.inputs[index], outputs, self.ones)

    def scaled(self, factor: float) -> BlockOuter:
        return BlockOuter(self.inputs, self.outputs.to(self.dtype) * factor, self.ones)

    def grouped(self, size: int) -> Rows:
        validate.positive_int(size=size)
        folded = Outer(self.inputs.flatten(2), self.outputs.flatten(2)).grouped(size)
        assert isinstance(folded, Outer) and isinstance(folded.a, Tensor)
        a, b = (x.unflatten(2, (self.blocks, -1)) for x in (folded.a, folded.b))
        return BlockOuter(a, b, self.ones)

    def through(self, sketch: Sketch, lo: int = 0) -> Rows:
        pair = one_leaf_factors(sketch, (self.blocks * self.q, self.p))
        if pair is None:
            return super().through(sketch, lo)
        left, right, scale = pair
        a, b = self._shown().to(self.dtype), self.outputs.to(self.dtype)
        with exact_products(self.device):
            a = a @ right.to(a).T
            b = torch.einsum("ntgq,rgq->ntgr", b, (scale * left).to(b).unflatten(1, (self.blocks, self.q)))
        return Rows.with_factors(a.flatten(1, 2), b.flatten(1, 2))

    def compact(self) -> Rows:
        """The products themselves where they are smaller than their factors (and below `CHUNK_BYTES`)."""
        smaller = self.q * self.p <= self.positions * (self.p + self.q)
        return Dense(self.dense()) if smaller and self.n * self.d * self.dtype.itemsize <= CHUNK_BYTES else self

    def plus(self, others: Sequence[Rows]) -> Rows:
        return KINDS["sum"]([self, *others])

    def _shown(self) -> Tensor:
        """The inputs with their column of ones."""
        a = self.inputs
        return torch.cat([a, a.new_ones(*a.shape[:-1], 1)], -1) if self.ones else a

    def _each(self) -> Outer:
        """Every block as a row of its own."""
        a, b = (x.transpose(1, 2).flatten(0, 1) for x in (self.inputs, self.outputs))
        return Outer(a, b, self.ones)


def one_leaf_factors(sketch: Sketch, shape: tuple[int, int]) -> tuple[Tensor, Tensor, float] | None:
    """(P_out, P_in, scale) of a sketch that is scale * P_out (x) P_in on one leaf of this shape, else None."""
    if not isinstance(sketch, KroneckerMap) or len(sketch.factors) != 1:
        return None
    (left, right) = next(iter(sketch.factors.values()))
    if (left.shape[1], right.shape[1]) != shape:
        return None
    return left, right, sketch.scale
