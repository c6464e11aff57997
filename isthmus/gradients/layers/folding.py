"""Examples that a layer sees in several pieces: windows of a picture, or all tokens of a batch in one dimension."""

from __future__ import annotations

from torch import Tensor

from isthmus.gradients.rows import Dense, Lazy, Lookup, Outer, Rows, Stack


def _pieces_of(count: int, n: int | None) -> int:
    """How many pieces of every one of n examples there are in `count` (0 where that is no whole number).

    >>> _pieces_of(12, 4), _pieces_of(12, 5), _pieces_of(4, 4)
    (3, 0, 1)
    """
    return count // n if n and count and count % n == 0 else 0


def _folded(rows: Rows, n: int) -> Rows:
    """The rows of n examples from the rows of their pieces, those of an example side by side: their sums.

    >>> import torch
    >>> _folded(Dense(torch.tensor([[1.0], [2.0], [3.0], [4.0]])), 2).dense()
    tensor([[3.],
            [7.]])
    """
    if rows.n == n:
        return rows
    k = rows.n // n
    if isinstance(rows, Outer) and isinstance(rows.a, Tensor):
        return Outer(_joined(rows.a, n), _joined(rows.b, n), rows.ones)
    if isinstance(rows, Lookup):
        return Lookup(rows.index.reshape(n, -1), rows.values.reshape(n, -1, rows.width), rows.vocabulary)
    if isinstance(rows, Stack):
        return Stack([(name, _folded(piece, n)) for name, piece in rows.items], rows.factor)
    if isinstance(rows, Dense):
        return Dense(rows.values.view(n, k, rows.d).sum(1, dtype=rows.dtype))

    def sums(lo: int, hi: int) -> Tensor:
        return rows.part(lo * k, hi * k).dense().view(hi - lo, k, rows.d).sum(1)

    return Lazy(sums, n, rows.d, dtype=rows.dtype, device=rows.device)


def _joined(x: Tensor, n: int) -> Tensor:
    return x.reshape(n, -1, x.shape[-1])
