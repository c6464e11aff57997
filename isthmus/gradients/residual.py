"""What a tight sketch loses of each row."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from isthmus.base import validate
from isthmus.gradients import rounding
from isthmus.gradients.base import KINDS, Rows
from isthmus.gradients.rounding import Bounds
from isthmus.sketches.base import Sketch


class ResidualRows(Rows):
    """Rows r_i = g_i - Phi^+ c_i for a tight sketch (Phi Phi' = norm^2 I) and codes c_i = Phi g_i.

    Phi^+ Phi is an orthogonal projector, so by Pythagoras ||r||^2 = ||g||^2 - ||c||^2 / norm^2, and no
    n x d matrix is needed.  In floating point the difference cancels.  Let the computed code be
    c = Phi g + e with ||e|| <= eta norm ||g||.  The row that `sum` adds is g - Phi^+ c, and

        ||g - Phi^+ c||^2 = ||g||^2 - ||c||^2 / norm^2 + 2 <Phi g, e> / norm^2 + 2 ||e||^2 / norm^2
                         <= ||g||^2 - ||c||^2 / norm^2 + (2 eta + 2 eta^2) ||g||^2.

    The two norms enter as certified bounds (||g|| from above, ||c|| from below).  The codes' own error is
    covered by a guard of 2 eps (4 + log2 d) ||g||^2 under the root, eps of the coarser dtype of rows and
    codes: more than the 8 eps that measurements ask for, and enough for eta <= (3 + log2 d) eps, that is for
    codes summed pairwise, with 2 eps left for a sketch that is not tight to the last bit.  (The worst case of
    a code summed in plain order is d eps / 2; signs of rounding errors would all have to agree.)  The guard is
    at least (8 eps)^(1/2) of ||g||, 0.1 % in float32: no residual is found smaller than that.

    >>> from isthmus.gradients import Dense
    >>> class Half(Sketch):
    ...     d, m, tight, norm = 2, 1, True, 1.0
    ...     def rows(self, x, lo=0):
    ...         return x[:, :1]
    ...     def adjoint(self, y):
    ...         return torch.cat([y, 0 * y])
    >>> g = Dense(torch.tensor([[3.0, 4.0]], dtype=torch.float64))
    >>> r = ResidualRows(g, g.through(Half()), Half())
    >>> r.norms(), r.sum()
    (tensor([4.0000], dtype=torch.float64), tensor([0., 4.], dtype=torch.float64))
    """

    def __init__(self, rows: Rows, codes: Rows, sketch: Sketch) -> None:
        validate.check(sketch.tight, "sketch", sketch, "give a tight sketch: other ones have no cheap pseudo-inverse")
        expected = (rows.n, sketch.m)
        shape = (codes.n, codes.d)
        validate.check(shape == expected, "codes (n, d)", shape, f"give the codes of these rows: {expected}")
        self.rows, self.codes, self.sketch = rows, codes, sketch
        self.n, self.d, self.dtype, self.device = rows.n, rows.d, rows.dtype, rows.device

    def norm_bounds(self, ord: float = 2) -> Bounds:
        rounding.check_ord(ord)
        if ord != 2:
            return self._chunkwise(lambda lo, hi: self.part(lo, hi).dense()).norm_bounds(ord)
        (rows_low, rows_high), (codes_low, codes_high) = self.rows.norm_bounds(), self.codes.norm_bounds()
        norm = self.sketch.norm
        low = rows_low * _left(codes_high / norm / rows_low, -self.guard())
        high = rows_high * _left(codes_low / norm / rows_high, self.guard()) * (1 + 2.0**-48)
        finite = torch.isfinite(rows_high) & torch.isfinite(codes_high)  # what overflows has no length to subtract
        high = torch.where(finite, high, math.inf)
        return torch.where(rows_low == 0, 0.0, low), torch.where(rows_high == 0, 0.0, high)

    def guard(self) -> float:
        """The share of ||g||^2 added under the root."""
        eps = max(torch.finfo(rows.dtype).eps for rows in (self.rows, self.codes))
        return 2 * eps * (4 + math.log2(max(self.d, 2)))

    def underflow(self) -> Tensor:
        """That of the rows, and that of the codes through Phi^+, whose l1 norm is at most sqrt(d) / norm."""
        lifted = self.codes.underflow().to(self.device) * (math.sqrt(self.d) / self.sketch.norm)
        return self.rows.underflow() + lifted

    def sum(self, weights: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        total = self.rows.sum(weights, out)
        return total.sub_(self.sketch.pinv(self.codes.sum(weights)).to(self.dtype))

    def mass(self, ord: float = 2) -> Tensor:
        """A residual is small beside what it is the difference of: M(g) + 2 M(c) / norm (and more in other norms)."""
        wide = 1.0 if ord == 2 else max(1.0, self.d**0.5)
        sizes = (piece.norm_upper() if (size := piece.mass()) is None else size for piece in (self.rows, self.codes))
        rows, codes = sizes
        return (rows + 2 * codes / self.sketch.norm) * (wide * (1 + 2.0**-40))

    def sum_to(self, weights: Tensor, rho: float, out: Tensor | None = None) -> Tensor:
        """The rounding of the lift, in float64, is within rho too: sqrt(m) gamma_m of the codes' sum."""
        lift = math.sqrt(self.sketch.m) * rounding.gamma(self.sketch.m + 64, torch.float64)
        if lift > rho:
            return super().sum_to(weights, rho, out)
        lifted = self.sketch.pinv(self.codes.sum_to(weights, rho).to(torch.float64))
        total = self.rows.sum_to(weights, rho, out)
        return total.copy_(lifted.neg_().add_(total)) if total.dtype != torch.float64 else total.sub_(lifted)

    def masked(self, keep: Tensor) -> ResidualRows:
        return ResidualRows(self.rows.masked(keep), self.codes.masked(keep), self.sketch)

    def part(self, lo: int, hi: int) -> ResidualRows:
        return ResidualRows(self.rows.part(lo, hi), self.codes.part(lo, hi), self.sketch)

    def dense(self) -> Tensor:
        if self.n == 0:
            return self._zeros(0, self.d)
        lifted = torch.stack([self.sketch.pinv(code) for code in self.codes.dense()])
        return self.rows.dense() - lifted.to(self.dtype)

    def take(self, index: Tensor, factors: Tensor) -> ResidualRows:
        return ResidualRows(self.rows.take(index, factors), self.codes.take(index, factors), self.sketch)

    def scaled(self, factor: float) -> ResidualRows:
        return ResidualRows(self.rows.scaled(factor), self.codes.scaled(factor), self.sketch)

    def grouped(self, size: int) -> ResidualRows:
        return ResidualRows(self.rows.grouped(size), self.codes.grouped(size), self.sketch)


def _left(share: Tensor, guard: float) -> Tensor:
    """sqrt(1 - share^2 + guard), the part of a unit vector outside the captured share, not below 0."""
    return ((1 - share) * (1 + share) + guard).clamp_min(0.0).sqrt()


KINDS["residual"] = ResidualRows
