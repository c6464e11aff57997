"""Public maps of rows into the unit ball, and matrices seen through them without a copy.

A `RowMap` centres, scales and shortens rows; `Scaled` is a dense or CSR matrix seen through any number of such maps:

    row_i = r_i (x_i * weight) + U_i B,

a diagonal and a few outer products away from X, so that products with it cost those with X, sparse data can be
centred, and no n x d copy is made.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from isthmus.base import matrix, validate
from isthmus.base.matrix import Array, Csr, Matrix, Stored, View, as_matrix, is_sparse
from isthmus.base.streamed import DerivedRows, Streamed

UP = 1 + 2.0**-48
"""Rounds a few float64 operations up."""
STEP, MANY = 1 << 14, 1 << 20
"""Rows whose terms are added up in one go, and from how many on the sums of these are compensated (`matrix.Total`)."""
FAR = 1e150
"""The square of a longer row is no number any more: such a row counts as zeros, whatever the others are."""


@dataclass(eq=False, repr=False)
class Scaled(View):
    """X seen through public maps of its rows; products are done in float64.

    `upper` bounds the l2 norm of each row from above, in floating point too; `far` says that rows are small differences
    of long vectors, `unit` that a map made them no longer than 1; `bias` is the constant that the last column holds in
    every row, 0 where there is none; `reach` is a public bound of the other entries, where a map gave one.

    >>> centred = RowMap(shift=torch.tensor([1.0, 0.0]), weight=torch.tensor([2.0, 1.0]), limit=2.0, bias=1.0)
    >>> centred([[2.0, 0.0]]).dense()
    tensor([[0.8944, 0.0000, 0.4472]], dtype=torch.float64)
    """

    X: Stored | Streamed
    weight: Tensor
    r: Tensor
    U: Tensor
    B: Tensor
    _upper: Tensor | None = None
    far: bool = False
    unit: bool = False
    bias: float = 0.0
    reach: float = 1.0

    def __post_init__(self) -> None:
        self.shape = (self.X.shape[0], self.B.shape[1])
        if is_sparse(self.X):
            self.X = matrix.canonical(self.X)

    @staticmethod
    def of(X: Matrix) -> Scaled:
        """X itself, seen through no map."""
        if isinstance(X, Scaled):
            return X
        if isinstance(X, View) and not isinstance(X, Streamed):
            validate.refuse("X", type(X).__name__, "give a dense or CSR matrix, or a `Scaled` view of one")
        n, p = X.shape
        weight, r, U, B = (torch.ones(size, dtype=torch.float64) for size in ((p,), (n,), (n, 0), (0, p)))
        return Scaled(X, weight, r, U, B)

    def forget(self) -> None:
        """Also that rows have norm at most 1, where that is no longer so: the map shortened them as they were."""
        super().forget()
        self.unit = self.unit and bool((self.upper <= 1 + 1e-6).all())

    def with_constant(self, value: float = 1.0) -> Scaled:
        """The same rows with one more column, a constant."""
        B = torch.nn.functional.pad(self.B, (0, 1, 0, 1))
        B[-1, -1] = value
        U = torch.nn.functional.pad(self.U, (0, 1), value=1.0)
        return Scaled(self.X, self.weight, self.r, U, B, far=self.far, bias=value)

    def without_constant(self) -> Scaled:
        """The same rows without the constant column that a map gave them."""
        if not self.bias:
            return self
        B = self.B[:, :-1]
        used = B.abs().sum(1) > 0
        return Scaled(self.X, self.weight, self.r, self.U[:, used], B[used], far=self.far, reach=self.reach)

    @property
    def upper(self) -> Tensor:
        """An upper bound of each row's norm."""
        if self._upper is None:
            with np.errstate(over="ignore", invalid="ignore"):
                self._upper = self._norms() + 1e-150  # squares of what is smaller vanish
        return self._upper

    @property
    def sparse(self) -> bool:
        """Whether X is CSR."""
        return is_sparse(self.X)

    @property
    def centred(self) -> bool:
        """Whether a map moved the columns of X: a row is then as dense as what was subtracted."""
        return bool(self.B[:, : len(self.weight)].any())

    @property
    def roundings(self) -> int:  # type: ignore[override]
        """How many roundings an entry has of its own, at most."""
        return 2 * self.U.shape[1] + 16

    def mass(self) -> Tensor | None:
        """An upper bound of || |r x * weight| + |U||B| ||, what the terms of a row do to a sum; None: its own norm.

        Rows that are `far` are built before they are added, and a constant in a column of its own cancels nothing.
        """
        if self.far or not self.centred:
            return None
        return (self.upper + 2 * self._shifts()) * (1 + 2.0**-40)

    def times(self, w: Tensor) -> Tensor:
        """S w for a vector or a matrix w."""
        wide = w.to(torch.float64)
        if self.far:
            parts = [matrix.margins(rows, wide) for _, _, rows in self.chunks()]
            return torch.cat([wide.new_zeros(0, *wide.shape[1:]), *parts]).to(w.dtype)
        z = _rows(self.r, matrix.margins(self.X, _rows(self.weight, wide[: self.weight.shape[0]])))
        for u, moved in zip(self.U.unbind(1), self.B @ wide, strict=True):
            z += _rows(u, moved.expand_as(z))  # entry by entry: a product rounds a row by its place
        return z.to(w.dtype)

    def transposed_times(self, v: Tensor) -> Tensor:
        """S' v for a vector or a matrix v."""
        wide = v.to(torch.float64)
        if self.far:  # the parts of rows are much longer than rows: their sums would round away what is left
            return super().transposed_times(v)
        total = self.B.T @ (self.U.T @ wide)
        total[: len(self.weight)] += _rows(self.weight, matrix.rmatmul(self.X, _rows(self.r, wide)))
        return total.to(v.dtype)

    def take(self, index: Tensor) -> Scaled:
        """Some rows, in the given order."""
        X = matrix.take(self.X, index)
        assert not isinstance(X, View)  # rows of a table are in memory once they are taken
        return replace(self, X=X, r=self.r[index], U=self.U[index], _upper=self.upper[index])

    def __getitem__(self, span: slice) -> Scaled:
        upper = None if self._upper is None else self._upper[span]
        return replace(self, X=self.X[span], r=self.r[span], U=self.U[span], _upper=upper)

    def dense(self) -> Tensor:
        """The rows themselves: for chunks and small data."""
        inner = (matrix.to_dense(self.X, torch.float64) * self.weight).mul_(self.r[:, None])
        if inner.shape[1] < self.shape[1]:
            inner = torch.nn.functional.pad(inner, (0, self.shape[1] - inner.shape[1]))
        for u, b in zip(self.U.T, self.B, strict=True):  # entry by entry: a product rounds a row by its place
            inner += torch.outer(u, b)
        return inner

    def chunks(self) -> Iterator[tuple[int, int, Tensor]]:
        """`(lo, hi, rows)`: small enough to stay in a cache while they are looked at."""
        if isinstance(self.X, Streamed):
            for lo, hi, part in self.X.chunks():
                view = Scaled(part, self.weight, self.r[lo:hi], self.U[lo:hi], self.B)
                yield from ((lo + left, lo + right, rows) for left, right, rows in view.chunks())
            return
        step = min(STEP, max(1, matrix.CACHE_BYTES // (8 * self.shape[1])))
        for lo in range(0, self.shape[0], step):
            hi = min(lo + step, self.shape[0])
            yield lo, hi, self[lo:hi].dense()

    def spans(self) -> list[tuple[int, int]] | None:
        """Those of X."""
        return matrix.spans_of(self.X)

    def plain(self) -> Matrix:
        """A copy: CSR where X is CSR and is not centred, else dense; rows of a table are computed as they are read."""
        if isinstance(self.X, Streamed):
            return DerivedRows(self, lambda part, where: part.dense(), self.shape[1], torch.float64)
        if not is_sparse(self.X):
            return self.dense()
        if self._csr is None:
            validate.refuse("X", "CSR, centred", 'use scale="columns": a centred copy of sparse data would be dense')
        return self._csr

    def square_norms(self) -> Tensor:
        """||x_i^2|| of every row."""
        if (csr := self._csr) is not None:
            return matrix.row_norms(csr.multiply(csr))
        parts = [np.sqrt(lengths(np.square(rows.numpy()))) for _, _, rows in self.chunks()]
        return torch.from_numpy(np.concatenate([np.zeros(0), *parts]))

    def square_sum(self, c: Tensor) -> Tensor:
        """sum_i c_i x_i^2."""
        if (csr := self._csr) is not None:
            return torch.from_numpy(csr.multiply(csr).T @ c.numpy())
        total = torch.zeros(self.shape[1], dtype=torch.float64)
        for lo, hi, rows in self.chunks():
            squares = rows.numpy()
            np.square(squares, out=squares)
            total += torch.from_numpy(c[lo:hi].numpy() @ squares)
        return total

    def gram(self, c: Tensor | None = None) -> Tensor:
        """sum_i c_i x_i x_i' (c = 1 where it is not given), in float64.

        Off by at most n^2 u, u = 2^-53, for rows of norm 1, and for more than `MANY` rows by n `STEP` u: by less than
        2^-11 up to 2^27 rows.
        """
        d = self.shape[1]
        total = matrix.Total((d, d), exact=self.shape[0] > MANY)
        if c is None:
            c = torch.ones(self.shape[0], dtype=torch.float64)
        if self._csr is None:
            for lo, hi, rows in self.chunks():
                total.add_product(rows * c[lo:hi, None], rows)
            return total.result()
        for lo in range(0, self.shape[0], STEP):
            part = self[lo : lo + STEP]._csr
            assert part is not None
            shares = _weighted(part, torch.ones(d).double(), c[lo : lo + STEP])
            total.add(torch.from_numpy((shares.T @ part) @ np.eye(d)))
        return total.result()

    @property
    def _csr(self) -> Csr | None:
        """The rows as CSR where they are as sparse as X: no column is centred."""
        if not is_sparse(self.X) or self.centred:
            return None
        p, rows = len(self.weight), _weighted(self.X, self.weight, self.r)
        if self.shape[1] > p:
            rows = sp.hstack([rows, sp.csr_array((self.U @ self.B[:, p:]).numpy())])
        seen: Csr = sp.csr_matrix(rows)
        return seen

    def _norms(self) -> Tensor:
        slack = 1 + (self.shape[1] + 64) * 2.0**-52
        if (rows := self._csr) is not None:
            return matrix.row_norms(rows) * slack
        parts = [np.sqrt(lengths(rows.numpy())) * slack for _, _, rows in self.chunks()]
        norms = torch.from_numpy(np.concatenate([np.zeros(0), *parts]))
        if self.centred:
            # What rounding may have hidden in the entries of a row, whose parts can be longer than it is:
            # |r x * weight| <= |row| + |U B|, so that what cancelled is at most twice the second.
            norms += self._shifts() * 2.0**-48
        return norms

    def _shifts(self) -> Tensor:
        """|U_i| (||B_1||, ..., ||B_k||): what the maps have added to each row, at most."""
        lengths: Tensor = torch.linalg.vector_norm(self.B, dim=1)
        return self.U.abs() @ lengths


@dataclass(frozen=True, eq=False)
class RowMap:
    """A public map of rows: f = (x - shift) * weight, shortened to norm `limit`; then (f, bias) / hypot(limit, bias).

    low, high  entries are first clipped to this range, where it is given (X is copied only if one lies outside)
    limit      None gives every f length 1
    bias       the constant of the last column; 0 keeps the constant of the rows, where they have one

    Features alone are shortened, never the bias: a long row keeps its intercept.  Whatever the row, its image has norm
    at most 1; one longer than 1e150 is taken for zeros.
    """

    low: Tensor | None = None
    high: Tensor | None = None
    shift: Tensor | None = None
    weight: Tensor | None = None
    limit: float | None = 1.0
    bias: float = 0.0

    def __post_init__(self) -> None:
        both = (self.low is None) == (self.high is None)
        validate.check(both, "high", self.high, "give low and high, or neither")

    def __call__(self, X: object) -> Scaled:
        """The rows of X, seen through the map."""
        base = Scaled.of(as_matrix("X", X))
        if self.low is not None:
            base = Scaled.of(self._clipped(base))
        if self.weight is not None and len(self.weight) != base.shape[1]:
            validate.refuse("X.shape", tuple(base.shape), f"give {len(self.weight)} columns")
        bias = self.constant(base.bias)
        view = self._features(base)
        length = view.upper.clamp(min=self.limit or 1e-150)
        whole = math.hypot(self.limit or 1.0, bias)
        factor = (self.limit or 1.0) / (length * whole * UP)
        constant = torch.tensor(bias / whole, dtype=torch.float64)
        upper = (torch.hypot(view.upper * factor, constant) * UP).clamp(max=1.0)
        seen = replace(view, r=view.r * factor, U=view.U * factor[:, None])
        if bias:
            seen = seen.with_constant(bias / (whole * UP))
        return replace(seen, _upper=upper, unit=True, reach=self._reach(whole))

    def _reach(self, whole: float) -> float:
        """A bound of the entries: that of their ranges, or of the row."""
        if self.low is None or self.high is None:
            return 1.0
        ends = torch.stack([self.low, self.high]).double()
        shift, weight = self._columns(ends.shape[1])
        ends = (ends - shift) * weight
        return min(1.0, float(ends.abs().max()) / whole * (1 + 2.0**-40))

    def constant(self, before: float) -> float:
        """The constant of the last column before all is divided, for rows that had `before`."""
        if self.bias or not before:
            return self.bias
        shift, weight = self._columns(None)
        return (before - float(shift[-1])) * float(weight[-1])

    def _columns(self, p: int | None) -> tuple[Tensor, Tensor]:
        """The shift and the weight of the first p columns: 0 and 1 where there are none."""
        none = torch.zeros(p or 1, dtype=torch.float64)
        shift = none if self.shift is None else self.shift.double()[:p]
        return shift, none + 1 if self.weight is None else self.weight.double()[:p]

    def _features(self, base: Scaled) -> Scaled:
        """(x - shift) * weight, without the constant column."""
        view = base.without_constant()
        shift, weight = self._columns(view.shape[1])
        inner, U, B = view.weight * weight[: len(view.weight)], view.U, view.B * weight
        if self.shift is not None:
            U, B = torch.nn.functional.pad(U, (0, 1), value=1.0), torch.cat([B, -(shift * weight)[None]])
        # whether what is subtracted is much longer than what is left: a public fact
        far = view.far or float(torch.linalg.vector_norm(shift * weight)) > 2.0**8 * (self.limit or 1.0)
        scaled = Scaled(view.X, inner, view.r, U, B, far=far)
        if bool((endless := ~(scaled.upper < FAR)).any()):
            scaled = Scaled(_without(view.X, endless), inner, view.r, U, B, far=far)
        return scaled

    def follow(self, weight: Tensor, offset: Tensor, bias: float) -> tuple[Tensor, Tensor, float]:
        """The affine map of features so far, and the constant beside them, taken through this map (see `RowMaps`)."""
        constant, (shift, own) = self.constant(bias), self._columns(len(offset))
        weight, offset = weight * own[: len(weight)], (offset - shift) * own
        whole = math.hypot(self.limit or 1.0, constant)
        last = torch.tensor([constant / whole] if constant else [], dtype=torch.float64)
        return weight / whole, torch.cat([offset / whole, last]), constant / whole

    def _clipped(self, base: Scaled) -> Tensor | Streamed:
        """Entries within [low, high]; the matrix itself where they all are."""
        assert self.low is not None and self.high is not None
        X = base.X
        if base.U.shape[1] or is_sparse(X):
            validate.refuse("bounds", "of CSR data", "give data_norm= for sparse rows: ranges would fill the zeros")
        low, high = self.low.to(X.dtype), self.high.to(X.dtype)
        if isinstance(X, Streamed):
            return X.mapped(lambda rows, where: torch.minimum(torch.maximum(rows, low), high))
        parts = X.split(max(1, matrix.CHUNK_BYTES // (8 * X.shape[1])))
        if all(bool(((part >= low) & (part <= high)).all()) for part in parts):
            return X
        return torch.minimum(torch.maximum(X, low), high)


class Map(Protocol):
    """A public map of rows into the unit ball."""

    def __call__(self, X: object) -> Scaled:
        """The rows of X, seen through the map."""
        ...

    def follow(self, weight: Tensor, offset: Tensor, bias: float) -> tuple[Tensor, Tensor, float]:
        """The affine map of features so far, and the constant beside them, taken through this map."""
        ...


@dataclass(frozen=True, eq=False)
class RowMaps:
    """Maps one after the other."""

    maps: Sequence[Map]

    def __call__(self, X: object) -> Scaled:
        """The rows of X, seen through all of them."""
        view = Scaled.of(as_matrix("X", X))
        for row_map in self.maps:
            view = row_map(view)
        return view

    def affine(self, p: int) -> tuple[Tensor, Tensor]:
        """(weight, offset) with image = (x * weight, 0) + offset, for rows that no map clips or shortens.

        Where a map gives every row length 1, for rows that have it already.

        >>> RowMaps([RowMap(shift=torch.tensor([1.0]), weight=torch.tensor([3.0]), limit=2.0, bias=1.0)]).affine(1)
        (tensor([1.3416], dtype=torch.float64), tensor([-1.3416,  0.4472], dtype=torch.float64))
        """
        weight, offset, bias = torch.ones(p, dtype=torch.float64), torch.zeros(p, dtype=torch.float64), 0.0
        for row_map in self.maps:
            weight, offset, bias = row_map.follow(weight, offset[:-1] if bias else offset, bias)
        return weight, offset


def unit_rows(X: object) -> Scaled:
    """X with rows of norm at most 1: itself where a map made them so, else shortened rows."""
    view = X if isinstance(X, Scaled) else Scaled.of(as_matrix("X", X))
    if view.unit:
        return view
    return RowMap()(view)


def lengths(rows: Array) -> Array:
    """Squared norms of rows."""
    squares: Array = np.einsum("ij,ij->i", rows, rows)
    return squares


def _weighted(X: Csr, weight: Tensor, r: Tensor) -> Csr:
    """diag(r) X diag(weight) for CSR: its numbers anew, its pattern shared."""
    data = X.data * weight.numpy()[X.indices] * np.repeat(r.numpy(), np.diff(X.indptr))
    scaled = matrix.with_data(X, data)
    scaled.has_canonical_format = True  # that of X, which was made so
    return scaled


def _without(X: Stored | Streamed, rows: Tensor) -> Stored | Streamed:
    """A copy of X with zeros in some rows."""
    if isinstance(X, Streamed):
        return X.mapped(lambda part, where: torch.where(rows[where][:, None], torch.zeros_like(part), part))
    if not is_sparse(X):
        return torch.where(rows[:, None], torch.zeros_like(X), X)
    return matrix.with_data(X, np.where(np.repeat(rows.numpy(), np.diff(X.indptr)), 0, X.data))


def _rows(factors: Tensor, values: Tensor) -> Tensor:
    """diag(factors) values."""
    return factors.view(-1, *[1] * (values.ndim - 1)) * values
