"""Inner products <g_i, h_j> of two sets of rows, from their factors where they have them, in float64."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from isthmus.base import validate
from isthmus.base.matrix import is_sparse, to_dense
from isthmus.gradients import Outer, Rows
from isthmus.gradients.base import row_spans

BLOCK_BYTES = 1 << 26
SQUARES_AT_ONCE = 32


def check_public(name: str, rows: Any) -> None:
    """Rows, with at least one of them; loaders, tuples and tensors are refused, without a word of what they hold."""
    remedy = "give the per-example gradients of public examples, as isthmus.gradients.Rows"
    validate.check(isinstance(rows, Rows), name, type(rows).__name__, remedy)
    validate.check(rows.n > 0, f"{name}.n", rows.n, "give at least one public example")


def products(left: Rows, right: Rows) -> Tensor:
    """The left.n x right.n matrix of <g_i, h_j>: leaf by leaf, n x d only where a kind has no factors, in blocks."""
    ours, theirs = left.leaves(), right.leaves()
    if [piece.d for _, piece in ours] != [piece.d for _, piece in theirs]:
        ours, theirs = [("w", left)], [("w", right)]
    total = torch.zeros(left.n, right.n, dtype=torch.float64, device=left.device)
    for (_, one), (_, two) in zip(ours, theirs, strict=True):
        total += _of_leaves(one, two).to(total.device)
    validate.finite(gradients=total)
    return total


def squares(rows: Rows) -> Tensor:
    """||g_i||^2 in float64, not rounded up: the diagonal of the products, a few rows at a time."""
    spans = row_spans(rows.n, 1, SQUARES_AT_ONCE)
    return torch.cat([products(part, part).diagonal() for part in (rows.part(*span) for span in spans)])


def _of_leaves(one: Rows, two: Rows) -> Tensor:
    if not (isinstance(one, Outer) and isinstance(two, Outer) and (one.p, one.q) == (two.p, two.q)):
        return _in_blocks(one, two)
    if is_sparse(one.a) != is_sparse(two.a) or one.ones != two.ones:
        return _in_blocks(one, two)
    if one.positions == two.positions == 1:
        return _inputs(one, two).to(one.b.device) * (_flat(one.b) @ _flat(two.b).T)
    # T^2 (p + q) numbers a pair against p q of the dense rows
    if one.positions * two.positions * (one.p + one.q) > one.p * one.q:
        return _in_blocks(one, two)
    return _ghost(one, two)


def _ghost(one: Outer, two: Outer) -> Tensor:
    """sum over positions t, s of <a_it, a_js> <b_it, b_js>, without the p q sums."""
    out = torch.zeros(one.n, two.n, dtype=torch.float64, device=one.device)
    for lo, hi in row_spans(one.n, 8 * one.positions * two.n * two.positions, BLOCK_BYTES):
        part = one.part(lo, hi)
        pairs = _inputs(part, two) * (_flat(part.b) @ _flat(two.b).T)
        out[lo:hi] = pairs.view(hi - lo, one.positions, two.n, two.positions).sum((1, 3))
    return out


def _in_blocks(one: Rows, two: Rows) -> Tensor:
    """Dense rows, a block of each side at a time."""
    out = torch.zeros(one.n, two.n, dtype=torch.float64, device=one.device)
    for lo, hi in row_spans(one.n, 8 * one.d, BLOCK_BYTES):
        left = one.part(lo, hi).dense().double()
        for start, stop in row_spans(two.n, 8 * two.d, BLOCK_BYTES):
            out[lo:hi, start:stop] = left @ two.part(start, stop).dense().double().T
    return out


def _inputs(one: Outer, two: Outer) -> Tensor:
    """<a_it, a_js> for every pair of positions; a column of ones that both leave out adds 1."""
    return to_dense(_flat(one.a) @ _flat(two.a).T) + float(one.ones)


def _flat(x: Any) -> Any:
    return x.astype("float64") if is_sparse(x) else x.double().reshape(-1, x.shape[-1])
