"""Products and orthonormal bases that are equal to the bit on every rank.

Matrix libraries add in an order that depends on the number of threads and on the processor, so that ranks which compute
the same product differ in its last bits.  Here entries are rounded to integers of so few bits that all sums are exact
in float64: then no order of the additions matters.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

WIDE = 53
"""Integers below 2^53 are float64 numbers."""


def exact_product(a: Tensor, b: Tensor) -> Tensor:
    """a b in float64, each factor rounded to half of 53 - log2(k) bits: the same bits in whatever order it is added.

    a keeps a scale for each row and b one for each column.

    >>> a = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> exact_product(a, a).tolist()
    [[7.0, 10.0], [15.0, 22.0]]
    """
    bits = (WIDE - math.ceil(math.log2(max(2, a.shape[1])))) // 2
    (left, rows), (right, columns) = _integers(a, bits, 1), _integers(b, bits, 0)
    return (left @ right) * rows * columns


def orthonormal(columns: Tensor) -> Tensor:
    """An orthonormal basis of what k linearly independent columns span, twice by R'R = X'X and X R^-1; float64.

    >>> basis = orthonormal(torch.tensor([[1.0, 1.0], [0.0, 1.0], [0.0, 1.0]]))
    >>> bool(torch.allclose(basis.T @ basis, torch.eye(2, dtype=torch.float64), atol=1e-6))
    True
    """
    for _ in range(2):  # the first leaves an error of the condition number's order, the second one of rounding's
        scales = _powers(columns, 0)
        columns = columns.double() / scales
        columns = exact_product(columns, _inverse_factor(exact_product(columns.T, columns)))
    return columns


def _inverse_factor(gram: Tensor) -> Tensor:
    """R^-1 for R'R = G, upper triangular, column by column: entries are added one after the other."""
    size = len(gram)
    rest, out = gram.cpu().clone(), torch.eye(size, dtype=torch.float64)
    for j in range(size):  # eliminate row and column j, and do to the identity what that does
        pivot = rest[j, j].clamp_min(torch.finfo(torch.float64).tiny)
        ratio = rest[j, j + 1 :] / pivot
        rest[j + 1 :, j + 1 :] -= ratio[:, None] * rest[j, j + 1 :]
        out[:, j + 1 :] -= out[:, j : j + 1] * ratio
        out[:, j] /= pivot.sqrt()
    return out.to(gram.device)


def _integers(x: Tensor, bits: int, dim: int) -> tuple[Tensor, Tensor]:
    """Integers of magnitude 2^bits at most, as float64, and the powers of two that they stand for."""
    unit = _powers(x, dim) * 2.0**-bits
    return torch.round(x.double() / unit), unit


def _powers(x: Tensor, dim: int) -> Tensor:
    """The least power of two above the largest entry along a dimension; 1 where all are 0."""
    top = x.abs().amax(dim, keepdim=True).double()
    return torch.where(top > 0, torch.exp2(torch.frexp(top).exponent.double()), 1.0)
