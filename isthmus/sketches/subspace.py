"""Maps on the span of public gradients: from the basis V itself, or from the factors of the rows that span it.

With public rows G = (g_1, ..., g_n)' and their Gram matrix K = G G' the basis is V = G'U, U = E Lambda^(-1/2) from
K E = E Lambda.  A code V'h = U'(G h) asks for the inner products of h with n public rows, and a lift V y = G'(U y) is
one weighted sum of them: where the public rows of a leaf are held as factors, V is never built.

The columns of U grow like lambda^(-1/2), and what U'(G h) loses to cancellation grows with them.  Products with factors
are therefore done in float64 and only their results are rounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import scipy.sparse as sp
import torch
from torch import Tensor

from isthmus.base.matrix import Stored, as_dtype, code_room, columns, device_of, dtype_of, is_sparse, matmul, rmatmul
from isthmus.base.space import Space
from isthmus.sketches import base
from isthmus.sketches.base import (
    CodeRows,
    CodesLeaves,
    CodesOuter,
    LiftsLeaves,
    Mate,
    OuterForm,
    R,
    Sketch,
    TableForm,
    Tree,
    adjoint_columns,
    check_block,
    check_vector,
    leaf_code,
    outer_codes,
    outer_in_chunks,
    read,
    round_up,
)


class OuterFactors:
    """Public rows g_j = vec(b_j a_j') of one leaf: a (n, p), dense or CSR, with its column of ones; b (n, q).

    >>> OuterFactors(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]])).sum(torch.tensor([2.0]))
    tensor([ 6., 12.,  8., 16.])
    """

    def __init__(self, a: Stored, b: Tensor) -> None:
        self.a, self.b, self.dtype, self.device = a, b, b.dtype, b.device
        (self.n, self.p), self.q = a.shape, b.shape[1]
        self.d = self.p * self.q

    @property
    def numbers(self) -> int:
        """How many are kept."""
        return self.b.numel() + (self.a.nnz if is_sparse(self.a) else self.a.numel())

    def leaves(self) -> Sequence[tuple[str, Mate]]:
        """One whole."""
        return [("w", self)]

    def outer_form(self) -> OuterForm:
        """The factors."""
        return OuterForm(self.a, self.b)

    def table_form(self) -> None:
        """None: they are no places of a table."""
        return None

    def to(self, device: torch.device, dtype: torch.dtype, copy: bool = False) -> OuterFactors:
        """The factors in a dtype, on a device (a CSR factor stays where it is)."""
        a = as_dtype(self.a, dtype) if is_sparse(self.a) else self.a.to(device, dtype, copy=copy)
        return OuterFactors(a, self.b.to(device, dtype, copy=copy))

    def tensors(self) -> dict[str, Tree]:
        """Plain tensors and numbers, for a state."""
        if not is_sparse(self.a):
            return {"a": self.a, "b": self.b}
        parts = {"data": self.a.data, "indices": self.a.indices, "indptr": self.a.indptr}
        return {**{key: torch.from_numpy(part) for key, part in parts.items()}, "p": self.p, "b": self.b}

    def sum(self, c: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """sum_j c_j g_j in a dtype, some rows of the leaf's matrix at a time."""
        out = torch.empty(self.q, self.p, dtype=dtype or self.dtype, device=self.device)
        step = max(1, base.CHUNK_BYTES // (8 * self.p))
        for lo in range(0, self.q, step):
            out[lo : lo + step] = rmatmul(self.a, self.b[:, lo : lo + step] * c[:, None]).T
        return out.view(-1)

    def products(self, x: Tensor) -> Tensor:
        """<x_i, g_j> = b_j' X_i a_j for dense rows x (r, q p)."""
        r, parts = len(x), []
        step = max(1, base.CHUNK_BYTES // (8 * self.q * (self.n + self.p)))
        for lo in range(0, r, step):
            half = matmul(self.a, x[lo : lo + step].to(self.dtype).reshape(-1, self.p).T)
            parts.append((half.view(self.n, -1, self.q) * self.b[:, None, :]).sum(2).T)
        return torch.cat(parts) if parts else x.new_zeros(0, self.n, dtype=self.dtype)

    def window(self, lo: int, hi: int) -> Tensor:
        """The columns lo..hi-1 of the n x d matrix."""
        first, last = lo // self.p, -(-hi // self.p)
        a = torch.from_numpy(self.a.toarray()).to(self.b) if is_sparse(self.a) else self.a
        whole = self.b[:, first:last, None] * a[:, None, :]
        return whole.reshape(self.n, -1)[:, lo - first * self.p : hi - first * self.p]

    def part(self, lo: int, hi: int) -> OuterFactors:
        """Some of the rows."""
        return OuterFactors(self.a[lo:hi], self.b[lo:hi])

    def dense(self) -> Tensor:
        """The n x d matrix."""
        return self.window(0, self.d)

    def sizes(self) -> Tensor:
        """||a_j|| ||b_j||, float64."""
        if is_sparse(self.a):
            squares = torch.as_tensor(self.a.multiply(self.a).sum(1)).double()
        else:
            squares = self.a.double().square().sum(1)
        lengths: Tensor = self.b.double().norm(dim=1)
        return squares.sqrt().to(self.device) * lengths

    def gram(self) -> tuple[Tensor, int]:
        """The n x n inner products in float64, and how many roundings a product of sizes is off by at most."""
        if is_sparse(self.a):
            left, roundings = torch.from_numpy((self.a @ self.a.T).toarray()).to(self.device), self.p
        else:
            left, roundings = _gram(self.a)
        right, more = _gram(self.b)
        return left * right, roundings + more + 4


class TableFactors:
    """Public rows g_j = vec(sum_t e_{k_jt} c_jt') of a V x D table: index (n, T) and values (n, T, D)."""

    def __init__(self, index: Tensor, values: Tensor, vocabulary: int) -> None:
        self.index, self.values, self.vocabulary = index, values, vocabulary
        self.n, self.positions, self.width = values.shape
        self.d, self.dtype, self.device = vocabulary * self.width, values.dtype, values.device

    @property
    def numbers(self) -> int:
        """How many are kept."""
        return self.values.numel() + self.index.numel()

    def leaves(self) -> Sequence[tuple[str, Mate]]:
        """One whole."""
        return [("w", self)]

    def outer_form(self) -> None:
        """None: they are no outer products."""
        return None

    def table_form(self) -> TableForm:
        """The places and what is there."""
        return TableForm(self.index, self.values, self.vocabulary)

    def to(self, device: torch.device, dtype: torch.dtype, copy: bool = False) -> TableFactors:
        """The factors in a dtype, on a device."""
        index, values = self.index.to(device, copy=copy), self.values.to(device, dtype, copy=copy)
        return TableFactors(index, values, self.vocabulary)

    def tensors(self) -> dict[str, Tree]:
        """Plain tensors and numbers, for a state."""
        return {"index": self.index, "values": self.values, "vocabulary": self.vocabulary}

    def sum(self, c: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """sum_j c_j g_j in a dtype: places that public rows share are added in the dtype of the factors."""
        places, slots = self._places
        total = torch.zeros(len(places), self.width, dtype=self.dtype, device=self.device)
        total.index_add_(0, slots.flatten(), (self.values * c[:, None, None]).flatten(0, 1))
        out = torch.zeros(self.vocabulary, self.width, dtype=dtype or self.dtype, device=self.device)
        out[places] = total.to(out.dtype)
        return out.view(-1)

    def products(self, x: Tensor) -> Tensor:
        """<x_i, g_j> = sum_t <X_i[k_jt], c_jt> for dense rows x (r, V D)."""
        parts, step = [], max(1, base.CHUNK_BYTES // (16 * max(1, self.values.numel())))
        for lo in range(0, len(x), step):
            read = x[lo : lo + step].reshape(-1, self.vocabulary, self.width)[:, self.index].to(self.dtype)
            parts.append((read * self.values).sum((2, 3)))
        return torch.cat(parts) if parts else x.new_zeros(0, self.n, dtype=self.dtype)

    def window(self, lo: int, hi: int) -> Tensor:
        """The columns lo..hi-1 of the n x d matrix."""
        first, last = lo // self.width, -(-hi // self.width)
        inside = (self.index >= first) & (self.index < last)
        places = (self.index - first).clamp(0, last - first - 1)
        places += torch.arange(self.n, device=self.device)[:, None] * (last - first)
        whole = torch.zeros(self.n * (last - first), self.width, dtype=self.dtype, device=self.device)
        whole.index_add_(0, places.flatten(), (self.values * inside[:, :, None]).flatten(0, 1))
        return whole.view(self.n, -1)[:, lo - first * self.width : hi - first * self.width]

    def part(self, lo: int, hi: int) -> TableFactors:
        """Some of the rows."""
        return TableFactors(self.index[lo:hi], self.values[lo:hi], self.vocabulary)

    def dense(self) -> Tensor:
        """The n x d matrix."""
        return self.window(0, self.d)

    @cached_property
    def _places(self) -> tuple[Tensor, Tensor]:
        """The places that occur, and where each of them is among these."""
        places, slots = self.index.unique(return_inverse=True)
        return places, slots

    def sizes(self) -> Tensor:
        """sum_t ||c_jt||, float64: values of equal places may cancel."""
        sizes: Tensor = torch.linalg.vector_norm(self.values, dim=2, dtype=torch.float64)
        return sizes.sum(1)


Factors = OuterFactors | TableFactors


def factors_of(tensors: Mapping[str, Tree]) -> Factors:
    """The factors that a state holds as `tensors()`."""
    if "values" in tensors:
        values, index = read(tensors, "values", Tensor), read(tensors, "index", Tensor)
        return TableFactors(index, values, read(tensors, "vocabulary", int))
    b = read(tensors, "b", Tensor)
    if "a" in tensors:
        return OuterFactors(read(tensors, "a", Tensor), b)
    data, indices, indptr = (read(tensors, key, Tensor).cpu().numpy() for key in ("data", "indices", "indptr"))
    return OuterFactors(sp.csr_array((data, indices, indptr), shape=(len(indptr) - 1, read(tensors, "p", int))), b)


def map_of(space: Space, state: Mapping[str, Tree]) -> Sketch:
    """The map that `principal.learned` describes."""
    if "basis" in state:
        return SubspaceMap(space, read(state, "basis", Tensor), read(state, "norm", float) if "norm" in state else None)
    norm = read(state, "norm", float)
    weights, leaves = read(state, "weights", Tensor), read(state, "leaves", dict)
    blocks: dict[str, Sketch] = {}
    for leaf in space.leaves:
        own, stored = Space.of({leaf.name: leaf.shape}), leaves[leaf.name]
        if "basis" in stored:
            blocks[leaf.name] = SubspaceMap(own, read(stored, "basis", Tensor), norm)
        else:
            blocks[leaf.name] = FactoredMap(own, factors_of(stored), weights, norm)
    return JoinedMap(space, blocks, norm)


class PublicMap(Sketch):
    """What the maps on public directions share; tight with norm 1."""

    tight = True

    def describe(self) -> str:
        """One sentence for reports."""
        return f"the top {self.m} directions of public gradients, of {self.d} parameters"

    def captured(self, rows: CodeRows) -> float:
        """The share sum ||V' g_i||^2 / sum ||g_i||^2 of energy in the subspace (public rows: it is not noised)."""
        inside, whole = (float(r.norms(2).double().square().sum()) for r in (self.encode(rows), rows))
        return inside / whole if whole else 1.0


class SubspaceMap(PublicMap, CodesOuter, LiftsLeaves):
    """Phi = V' for a basis V (d x k) with orthonormal columns.

    `norm` is a certified bound of ||V||_2; without it the basis counts as orthonormal to 64 roundings.
    """

    def __init__(self, space: Space, basis: Tensor, norm: float | None = None):
        self.space, self.d, self.m, self.basis = space, space.d, basis.shape[1], basis
        self.norm = round_up(1.0) * (1 + 64 * torch.finfo(basis.dtype).eps) if norm is None else norm

    def forward(self, v: Tensor) -> Tensor:
        """V' v."""
        check_vector(self, v, "v", self.d)
        return self._basis(v.device, v.dtype).T @ v

    def adjoint(self, y: Tensor) -> Tensor:
        """V y."""
        check_vector(self, y, "y", self.m)
        return self._basis(y.device, y.dtype) @ y

    def adjoint_leaf(self, name: str, y: Tensor) -> Tensor:
        """The rows of V of one leaf, times y."""
        check_vector(self, y, "y", self.m)
        return self._basis(y.device, y.dtype)[self.space.slice(name)] @ y

    def rows(self, x: Stored, lo: int = 0) -> Tensor:
        """X V[lo:hi]."""
        hi = check_block(self, x, lo)
        device = device_of(x)
        return matmul(x, self._basis(device, dtype_of(x))[lo:hi])

    def outer(self, a: Stored, b: Tensor, lo: int = 0) -> Tensor:
        """sum_{ij} b_i a_j V_ij, without a copy of V: the shorter side stays to the end, in chunks of rows.

        With T > 1 positions the q x p products come first: 2 n q p (T + k) operations, against 2 n q p T k.
        """
        if isinstance(a, Tensor) and a.ndim == 3 and a.shape[1] == 1:
            a, b = a[:, 0], b[:, 0]
        if is_sparse(a) or a.ndim == 3:
            return outer_in_chunks(self, a, b, lo)
        (n, p), q, k = a.shape, b.shape[1], self.m
        flat = self._basis(b.device, b.dtype)[lo : lo + q * p]
        step = max(1, base.CHUNK_BYTES // (8 * min(p, q) * k))
        codes = [b.new_zeros(0, k)]
        for start in range(0, n, step):
            left, right = b[start : start + step], a[start : start + step].to(b.dtype)
            if p <= q:
                half = (left @ flat.view(q, p * k)).view(-1, p, k)
                codes.append((right.unsqueeze(1) @ half).squeeze(1))
            else:
                half = right @ flat.view(q, p, k)
                codes.append((left.T.unsqueeze(2) * half).sum(0))
        return torch.cat(codes)

    def _basis(self, device: torch.device, dtype: torch.dtype) -> Tensor:
        return self._memo.tensor("basis", self.basis.contiguous, device, dtype)

    def _matrix_gain(self, ord: float) -> float:
        return float(self.basis.double().abs().sum(1 if ord == 1 else 0).max())


class FactoredMap(PublicMap, CodesLeaves, LiftsLeaves):
    """Phi = V' on one leaf with V = G'U, from the factors of the public rows G and the n x k weights U.

    A code costs n_public (p + q) operations for a row b a', against q p k with V, and nothing of size d x k is kept.

    >>> factors = OuterFactors(torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0, 0.0]]))
    >>> FactoredMap(Space.of({"w": (2, 2)}), factors, torch.tensor([[0.2]])).adjoint(torch.ones(1))
    tensor([0.6000, 0.8000, 0.0000, 0.0000])
    """

    def __init__(self, space: Space, factors: Factors, weights: Tensor, norm: float = round_up(1.0)):
        self.space, self.d, self.m = space, space.d, weights.shape[1]
        self.factors, self.weights, self.norm = factors, weights, norm

    def adjoint(self, y: Tensor) -> Tensor:
        """G'(U y)."""
        check_vector(self, y, "y", self.m)
        return self._wide(y.device).sum(self._weights(y.device) @ y.double(), y.dtype)

    def adjoint_leaf(self, name: str, y: Tensor) -> Tensor:
        """The same: there is one leaf."""
        return self.adjoint(y)

    def adjoint_columns(self, name: str, y: Tensor, lo: int, hi: int) -> Tensor:
        """Some columns of the leaf's matrix, without the others where the public rows are outer products."""
        wide = self._wide(y.device)
        if isinstance(wide, TableFactors):
            return super().adjoint_columns(name, y, lo, hi)
        some = OuterFactors(wide.a[:, lo:hi], wide.b)
        return some.sum(self._weights(y.device) @ y.double(), y.dtype).view(some.q, some.p)

    def rows(self, x: Stored, lo: int = 0) -> Tensor:
        """(X G') U of whole dense rows, or X V[lo:hi] from a chunk of V at a time."""
        hi = check_block(self, x, lo)
        dtype, device = dtype_of(x), device_of(x)
        if isinstance(x, Tensor) and hi - lo == self.d:
            return (self._wide(device).products(x) @ self._weights(device)).to(dtype)
        total = torch.zeros(x.shape[0], self.m, dtype=torch.float64, device=device)
        for left, right in self._spans(lo, hi):
            total += matmul(
                columns(x, left - lo, right - lo), (self._weights(device).T @ self._wide(device).window(left, right)).T
            )
        return total.to(dtype)

    def leaf(self, name: str, rows: R) -> R:
        """The codes of rows from their inner products with the public ones."""
        codes = (rows.inner(self._wide(rows.device)) @ self._weights(rows.device)).to(rows.dtype)
        return rows.with_factors(codes, torch.ones_like(codes[:, :1]))

    def _spans(self, lo: int, hi: int) -> Iterator[tuple[int, int]]:
        step = max(1, base.CHUNK_BYTES // (8 * (self.factors.n + self.m)))
        return ((left, min(left + step, hi)) for left in range(lo, hi, step))

    def _weights(self, device: torch.device) -> Tensor:
        return self._memo.tensor("weights", lambda: self.weights, device, torch.float64)

    def _wide(self, device: torch.device) -> Factors:
        """The factors in float64."""
        return self._memo.keep(("factors", device), lambda: self.factors.to(device, torch.float64))


class JoinedMap(PublicMap, CodesLeaves, CodesOuter, LiftsLeaves):
    """Phi = [Phi_1, ..., Phi_L]: the codes of the leaves add up, each through a map of its own into one code space."""

    def __init__(self, space: Space, blocks: Mapping[str, Sketch], norm: float):
        self.space, self.d, self.blocks, self.norm = space, space.d, dict(blocks), norm
        self.m = next(iter(self.blocks.values())).m

    def forward(self, v: Tensor) -> Tensor:
        """The sum of the codes of the leaves."""
        check_vector(self, v, "v", self.d)
        first, *rest = (block.forward(v[self.space.slice(name)]) for name, block in self.blocks.items())
        return sum(rest, first)

    def adjoint_leaf(self, name: str, y: Tensor) -> Tensor:
        """One leaf of V y."""
        return self.blocks[name].adjoint(y)

    def adjoint_columns(self, name: str, y: Tensor, lo: int, hi: int) -> Tensor:
        """Some columns of one leaf of V y."""
        return adjoint_columns(self.blocks[name], name, y, lo, hi)

    def rows(self, x: Stored, lo: int = 0) -> Tensor:
        """Codes of rows; columns may cover leaves in part."""
        hi = check_block(self, x, lo)
        total = code_room(x, self.m)
        for leaf, left, right in self.space.overlaps(lo, hi):
            total += self.blocks[leaf.name].rows(columns(x, left - lo, right - lo), left - leaf.start)
        return total

    def outer(self, a: Stored, b: Tensor, lo: int = 0) -> Tensor:
        """Codes of outer products; those of one leaf go to its map."""
        hi = lo + a.shape[-1] * b.shape[-1]
        leaf, left, right = next(self.space.overlaps(lo, hi))
        if (left, right) != (lo, hi):
            return outer_in_chunks(self, a, b, lo)
        return outer_codes(self.blocks[leaf.name], a, b, lo - leaf.start)

    def leaf(self, name: str, rows: R) -> R | None:
        """The code of one leaf, from its own map."""
        return leaf_code(self.blocks[name], name, rows)


BLOCK = 64
"""Columns of one inner product of a Gram matrix; the blocks are added up, so that roundings grow with p / BLOCK."""


def _gram(x: Tensor) -> tuple[Tensor, int]:
    """x x' in float64, and how many roundings an entry is off by at most."""
    n, p = x.shape
    total = torch.zeros(n, n, dtype=torch.float64, device=x.device)
    step = BLOCK * max(1, base.CHUNK_BYTES // (8 * n * (n + BLOCK)))
    for lo in range(0, p, step):
        part = x[:, lo : lo + step].double()
        part = torch.nn.functional.pad(part, (0, -part.shape[1] % BLOCK)).view(n, -1, BLOCK).transpose(0, 1)
        total += (part @ part.mT).sum(0)
    return total, min(p, BLOCK) + -(-p // BLOCK) + 2
