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
    for (_, first), (_, second) in zip(ours, theirs, strict=True):
        total += _of_leaves(first, second).to(total.device)
    validate.finite(gradients=total)
    return total


def squares(rows: Rows) -> Tensor:
    """||g_i||^2 in float64, not rounded up: the diagonal of the products, a few rows at a time."""
    spans = row_spans(rows.n, 1, SQUARES_AT_ONCE)
    return torch.cat([products(part, part).diagonal() for part in (rows.part(*span) for span in spans)])


def _of_leaves(first: Rows, second: Rows) -> Tensor:
    if not (isinstance(first, Outer) and isinstance(second, Outer) and (first.p, first.q) == (second.p, second.q)):
        return _in_blocks(first, second)
    if is_sparse(first.a) != is_sparse(second.a) or first.ones != second.ones:
        return _in_blocks(first, second)
    if first.positions == second.positions == 1:
        return _inputs(first, second).to(first.b.device) * (_flat(first.b) @ _flat(second.b).T)
    # T^2 (p + q) numbers a pair against p q of the dense rows
    if first.positions * second.positions * (first.p + first.q) > first.p * first.q:
        return _in_blocks(first, second)
    return _ghost(first, second)


def _ghost(first: Outer, second: Outer) -> Tensor:
    """sum over positions t, s of <a_it, a_js> <b_it, b_js>, without the p q sums."""
    out = torch.zeros(first.n, second.n, dtype=torch.float64, device=first.device)
    for lo, hi in row_spans(first.n, 8 * first.positions * second.n * second.positions, BLOCK_BYTES):
        part = first.part(lo, hi)
        pairs = _inputs(part, second) * (_flat(part.b) @ _flat(second.b).T)
        out[lo:hi] = pairs.view(hi - lo, first.positions, second.n, second.positions).sum((1, 3))
    return out


def _in_blocks(first: Rows, second: Rows) -> Tensor:
    """Dense rows, a block of each side at a time."""
    out = torch.zeros(first.n, second.n, dtype=torch.float64, device=first.device)
    for lo, hi in row_spans(first.n, 8 * first.d, BLOCK_BYTES):
        block = first.part(lo, hi).dense().double()
        for start, stop in row_spans(second.n, 8 * second.d, BLOCK_BYTES):
            out[lo:hi, start:stop] = block @ second.part(start, stop).dense().double().T
    return out


def _inputs(first: Outer, second: Outer) -> Tensor:
    """<a_it, a_js> for every pair of positions; a column of ones that both leave out adds 1."""
    return to_dense(_flat(first.a) @ _flat(second.a).T) + float(first.ones)


def _flat(x: Any) -> Any:
    return x.astype("float64") if is_sparse(x) else x.double().reshape(-1, x.shape[-1])
