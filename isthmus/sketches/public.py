"""Subspaces learned from public gradients: one for the whole vector, or one for each side of every layer.

With public rows G = (g_1, ..., g_n)' and their Gram matrix K = G G' the basis is V = G'U, U = E Lambda^(-1/2) from
K E = E Lambda.  A code V'h = U'(G h) asks for the inner products of h with n public rows, and a lift V y = G'(U y) is
one weighted sum of them: where the public rows of a leaf are held as factors, V is never built.

The columns of U grow like lambda^(-1/2), and what U'(G h) loses to cancellation grows with them.  Gram matrices and
products with factors are therefore float64, and only their results are rounded.  Rows held as outer products are read
in blocks of columns, so that no n x d matrix is ever built.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import torch
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor

from isthmus.base import matrix, randomness, validate
from isthmus.base.space import Leaf, Space
from isthmus.gradients.rounding import exact_products
from isthmus.gradients.rows import Dense, Lookup, Outer, Rows, inner, outer_of
from isthmus.sketches import base
from isthmus.sketches.compose import IdentityMap, _BlockMap
from isthmus.sketches.dense import orthonormal
from isthmus.sketches.kronecker import KroneckerMap, Ranks, _check_ranks, _leaf_ranks, matrix_shape

Factors = Outer | Lookup
"""Public rows of one leaf that are held as factors: outer products with one term, or places of a table."""


def _stored(factors: Factors) -> dict[str, base.Tree]:
    """Factors as plain tensors and numbers, for a state."""
    if isinstance(factors, Lookup):
        return {"index": factors.index, "values": factors.values, "vocabulary": factors.q}
    a = factors.whole_a()
    if not matrix.is_sparse(a):
        return {"a": a, "b": factors.b}
    parts = {"data": a.data, "indices": a.indices, "indptr": a.indptr}
    return {**{key: torch.from_numpy(part) for key, part in parts.items()}, "p": factors.p, "b": factors.b}


def _factors_of(state: Mapping[str, base.Tree]) -> Factors:
    """The factors that a state holds as `stored`."""

    def tensor(key: str) -> Tensor:
        return base._state_entry(state, key, Tensor)

    if "values" in state:
        return Lookup(tensor("index"), tensor("values"), base._state_entry(state, "vocabulary", int))
    if "a" in state:
        return Outer(tensor("a"), tensor("b"))
    data, indices, indptr = (tensor(key).cpu().numpy() for key in ("data", "indices", "indptr"))
    shape = len(indptr) - 1, base._state_entry(state, "p", int)
    return Outer(sp.csr_array((data, indices, indptr), shape=shape), tensor("b"))


def _copied(factors: Factors, device: torch.device, dtype: torch.dtype) -> Factors:
    """The factors again, in a dtype and on a device (a CSR factor stays where it is); equal places are added up."""
    if isinstance(factors, Lookup):
        index, values = factors.index.to(device, copy=True), factors.values.to(device, dtype, copy=True)
        return Lookup(index, values, factors.q).distinct
    a, b = factors.whole_a(), factors.b.to(device, dtype, copy=True)
    return Outer(matrix.as_dtype(a, dtype) if matrix.is_sparse(a) else a.to(device, dtype, copy=True), b)


def _products(x: Tensor, factors: Factors) -> Tensor:
    """<x_i, g_j> for dense rows x_i and public ones g_j: b_j' X_i a_j, or sum_t <X_i[k_jt], c_jt>."""
    x = x.to(factors.dtype)
    if isinstance(factors, Lookup):
        read = x.reshape(-1, factors.q, factors.p)[:, factors.index]
        return (read * factors.values).sum((2, 3))
    half = matrix.matmul(factors.whole_a(), x.reshape(-1, factors.p).T)
    return (half.view(factors.n, -1, factors.q) * factors.b[:, None, :]).sum(2).T


def _map_of(space: Space, state: Mapping[str, base.Tree]) -> base.Sketch:
    """The map that `learned` describes."""
    if "basis" in state:
        norm = base._state_entry(state, "norm", float) if "norm" in state else None
        return SubspaceMap(space, base._state_entry(state, "basis", Tensor), norm)
    norm = base._state_entry(state, "norm", float)
    weights, leaves = base._state_entry(state, "weights", Tensor), base._state_entry(state, "leaves", dict)
    blocks: dict[str, base.Sketch] = {}
    for leaf in space.leaves:
        own, held = Space.of({leaf.name: leaf.shape}), leaves[leaf.name]
        if "basis" in held:
            blocks[leaf.name] = SubspaceMap(own, base._state_entry(held, "basis", Tensor), norm)
        else:
            blocks[leaf.name] = _FactoredMap(own, _factors_of(held), weights, norm)
    return _BlockMap(space, blocks, norm)


class SubspaceMap(base.LiftsRanges):
    """Phi = V' for a basis V (d x k) with orthonormal columns.

    `norm` is a certified bound of ||V||_2; without it the basis counts as orthonormal to 64 roundings.
    """

    tight = True

    def __init__(self, space: Space, basis: Tensor, norm: float | None = None):
        self.space, self.d, self.m, self.basis = space, space.d, basis.shape[1], basis
        if norm is None:
            norm = base.round_up(1.0) * (1 + 64 * torch.finfo(basis.dtype).eps)
        self.norm = norm

    def _adjoint(self, y: Tensor, start: int, stop: int) -> Tensor:
        base._check_vector(self, y, "y", self.m)
        return self._basis(y.device, y.dtype)[start:stop] @ y

    def rows(self, x: matrix.Stored, lo: int = 0) -> Tensor:
        """X V[lo:hi]."""
        hi = base._check_block(self, x, lo)
        device = matrix.device_of(x)
        return matrix.matmul(x, self._basis(device, matrix.dtype_of(x))[lo:hi])

    def outer(self, a: matrix.Stored, b: Tensor, lo: int = 0) -> Tensor:
        """sum_{ij} b_i a_j V_ij, without a copy of V: the shorter side stays to the end, in chunks of rows.

        With T > 1 positions the q x p products come first: 2 n q p (T + k) operations, against 2 n q p T k.
        """
        if isinstance(a, Tensor) and a.ndim == 3 and a.shape[1] == 1:
            a, b = a[:, 0], b[:, 0]
        if matrix.is_sparse(a) or a.ndim == 3:
            return super().outer(a, b, lo)
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


class _FactoredMap(base.LiftsLeaves):
    """Phi = V' on one leaf with V = G'U, from the factors of the public rows G and the n x k weights U.

    A code costs n_public (p + q) operations for a row b a', against q p k with V, and nothing of size d x k is kept.

    >>> factors = Outer(torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0, 0.0]]))
    >>> _FactoredMap(Space.of({"w": (2, 2)}), factors, torch.tensor([[0.2]])).adjoint(torch.ones(1))
    tensor([0.6000, 0.8000, 0.0000, 0.0000])
    """

    tight = True

    def __init__(self, space: Space, factors: Factors, weights: Tensor, norm: float = base.round_up(1.0)):
        self.space, self.d, self.m = space, space.d, weights.shape[1]
        self.factors, self.weights, self.norm = factors, weights, norm

    def adjoint_leaf(self, name: str, y: Tensor) -> Tensor:
        """G'(U y)."""
        return self._lifted(self._wide(y.device), y)

    def adjoint_columns(self, name: str, y: Tensor, lo: int, hi: int) -> Tensor:
        """Some columns of the leaf's matrix, without the others where the public rows are outer products."""
        wide = self._wide(y.device)
        if isinstance(wide, Lookup):
            return super().adjoint_columns(name, y, lo, hi)
        return self._lifted(Outer(wide.whole_a()[:, lo:hi], wide.b), y).view(wide.q, -1)

    def _lifted(self, wide: Factors, y: Tensor) -> Tensor:
        base._check_vector(self, y, "y", self.m)
        return wide.sum_to(self._weights(y.device) @ y.double(), 1.0, y.new_empty(wide.d))

    def rows(self, x: matrix.Stored, lo: int = 0) -> Tensor:
        """(X G') U, some rows of X at a time."""
        hi, codes = base._check_block(self, x, lo), matrix.code_room(x, self.m)
        wide, weights = self._wide(codes.device), self._weights(codes.device)
        step = max(1, base.CHUNK_BYTES // (16 * max(self.d, _size(wide))))
        for start in range(0, x.shape[0], step):
            whole = torch.nn.functional.pad(matrix.to_dense(x[start : start + step]), (lo, self.d - hi))
            codes[start : start + step] = (_products(whole, wide) @ weights).to(codes.dtype)
        return codes

    def leaf(self, name: str, rows: Rows) -> Rows:
        """The codes of rows from their inner products with the public ones."""
        codes = (inner(rows, self._wide(rows.device)) @ self._weights(rows.device)).to(rows.dtype)
        return Outer(codes, torch.ones_like(codes[:, :1]))

    def _weights(self, device: torch.device) -> Tensor:
        return self._memo.tensor("weights", lambda: self.weights, device, torch.float64)

    def _wide(self, device: torch.device) -> Factors:
        """The factors in float64."""
        return self._memo.keep(("factors", device), lambda: _copied(self.factors, device, torch.float64))


@dataclass(frozen=True, eq=False)
class PublicSubspace(base.Encoder):
    """Phi = V_k': the top-k eigenvectors of the second moment sum_i g_i g_i' of per-example public gradients.

    V_k comes from the n x n Gram matrix of the public gradients at the current point, anew every `refresh` rounds;
    `method="lanczos"` finds its top k eigenvectors only, which pays from some hundred public examples on.  Before
    `start_epoch` the map is the identity.  Tight with norm 1 and coverage 1.  If fewer than k directions
    carry energy, k shrinks to their number (see `learned`).  Large linear layers and embeddings keep the factors of
    the public rows in place of their part of V_k: memory about that of the public activations.

    `data` (and `loss`) go to the context, which turns public data into rows; without `data` it uses the public data it
    was given itself.  `clip` says whether private gradients are clipped after the projection or before it.

    >>> import torch
    >>> from types import SimpleNamespace
    >>> from isthmus.base.space import Space
    >>> from isthmus.gradients import Dense
    >>> public = Dense(torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]]))
    >>> context = SimpleNamespace(space=Space.flat(3), t=0, epoch=0, seed=0, w=torch.zeros(3), rows=lambda data: data)
    >>> sketch, state = PublicSubspace(1, data=public).bind(context, None)
    >>> sketch.dense().abs().round().tolist()
    [[1.0, 0.0, 0.0]]
    """

    k: int
    data: object = None
    loss: object = None
    refresh: int = 10
    start_epoch: int = 0
    clip: str = "after"
    method: str = "gram"

    public = True

    @property
    def clips_before(self) -> bool:  # type: ignore[override]
        """As `clip` says."""
        return self.clip == "before"

    def __post_init__(self) -> None:
        validate.positive_int(k=self.k, refresh=self.refresh)
        validate.non_negative_int(start_epoch=self.start_epoch)
        validate.one_of(("after", "before"), clip=self.clip)
        validate.one_of(METHODS, method=self.method)

    def bind(self, context: base.Context, state: base.State) -> tuple[base.Sketch, base.State]:
        """The map of the round and its basis, kept until the next refresh."""
        validate.at_most(context.space.d, "the dimension d", k=self.k)
        if context.epoch < self.start_epoch:
            return IdentityMap(context.space), None
        if state is None or context.t - base._state_entry(state, "t", int) >= self.refresh:
            rows = _public_rows(context, self.data, self.loss)
            state = {**learned(context.space, rows, self.k, context.w.dtype, self.method), "t": context.t}
        return _map_of(context.space, state), state


@dataclass(frozen=True, eq=False)
class KroneckerSubspace(base.Encoder):
    """Phi = blockdiag(P_out (x) P_in) with the top public eigenvectors on each side of every layer.

    For the public gradients G_i of a leaf, the rows of P_in are the top eigenvectors of sum_i G_i' G_i and those of
    P_out the top ones of sum_i G_i G_i'.  When fewer directions than the rank carry energy, seeded random ones
    complete them, so that full ranks are always a rotation of the whole space.  Tight, norm 1, coverage 1;
    learned anew every `refresh` rounds.  Without `data` the context uses the public data it was given itself.

    >>> import torch
    >>> from types import SimpleNamespace
    >>> from isthmus.base.space import Space
    >>> from isthmus.gradients import Dense
    >>> public, space = Dense(torch.tensor([[0.0, 3.0, 0.0, 0.0]])), Space.of({"w": (2, 2)})
    >>> context = SimpleNamespace(space=space, t=0, epoch=0, seed=0, w=torch.zeros(4), rows=lambda data: data)
    >>> KroneckerSubspace(1, 1, data=public).bind(context, None)[0].dense().abs().round().tolist()
    [[0.0, 1.0, 0.0, 0.0]]
    """

    rank_in: int
    rank_out: int
    data: object = None
    loss: object = None
    refresh: int = 20
    ranks: Ranks | None = None

    keeps_layers = public = True

    def __post_init__(self) -> None:
        _check_ranks(self.rank_in, self.rank_out, self.ranks)
        validate.positive_int(refresh=self.refresh)

    def bind(self, context: base.Context, state: base.State) -> tuple[base.Sketch, base.State]:
        """The map of the round and its factors, kept until the next refresh."""
        if state is None or context.t - base._state_entry(state, "t", int) >= self.refresh:
            rows = _public_rows(context, self.data, self.loss)
            pieces = _leaf_pieces(context.space, rows)
            factors = {leaf.name: self._factors(context, leaf, pieces[leaf.name]) for leaf in context.space.leaves}
            state = {"factors": factors, "t": context.t}
        return KroneckerMap(context.space, base._state_entry(state, "factors", dict)), state

    def _factors(self, context: base.Context, leaf: Leaf, rows: Rows) -> tuple[Tensor, Tensor]:
        ranks = _leaf_ranks(leaf, self.rank_in, self.rank_out, self.ranks)
        key = randomness.key(context.seed, context.t, type(self).__name__, leaf.name)
        sides = _side_directions(rows, matrix_shape(leaf), ranks)
        left, right = (
            _completed(top, rank, randomness.key(key, i)).T.contiguous().to(context.w)
            for i, (top, rank) in enumerate(zip(sides, ranks, strict=True))
        )
        return left, right


def _public_rows(context: base.Context, data: object, loss: object) -> Rows:
    if loss is not None:
        data = data, loss
    rows = context.rows(data)
    validate.check(rows.n > 0, "data", rows.n, "give at least one public example")
    return rows


NEGLIGIBLE = 1e-12
"""Directions with less than this share of the largest eigenvalue carry no energy."""

FACTORED_FROM = 1 << 15
"""Leaves from this size on may be held as factors."""

WORTH = 2
"""They are where this times the numbers in the factors is no more than those in the leaf's part of the basis."""

TOLERANCE = {torch.float64: 1e-10}
"""How far V'V may be from I where V is held as factors; 1e-6 for other dtypes than these."""

METHODS = ("gram", "lanczos")
"""All eigenvectors of the Gram matrix, or its top ones by Lanczos."""

BUILT = 4096
"""Up to so many public rows Lanczos works on their Gram matrix, which one product builds; beyond, on the rows."""


def learned(
    space: Space, rows: Rows, k: int, dtype: torch.dtype = torch.float64, method: str = "gram"
) -> dict[str, base.Tree]:
    """The top directions V = G'U of public rows as tensors and numbers, with a certified bound `norm` of ||V||_2.

    Either `basis` (d x k), or `weights` U (n x k) and `leaves`: the factors of the public rows of a leaf where they are
    outer products with one term or places of a table, else its rows of V.  One Gram matrix gives U for all leaves.

    With factors an error of a few eps in K is one of eps ||D u||^2 in V'V, D = diag(||g_i||), and no later step can
    mend it: a direction with 8 eps ||D u||^2 above `TOLERANCE` is left out as one that carries no energy.

    method  "gram" decomposes K; "lanczos" finds its top k eigenvectors from products K c.  Of more than `BUILT` rows
            without factors these are G (G'c), and K is not built either

    >>> from isthmus.gradients import Dense
    >>> learned(Space.flat(2), Dense(torch.tensor([[0.0, 2.0], [0.0, 1.0]])), 2)["basis"].abs().round().tolist()
    [[0.0], [1.0]]
    """
    pieces = _leaf_pieces(space, rows)
    held = {name: factors for name, piece in pieces.items() if (factors := _worth_holding(piece, k)) is not None}
    wide = {name: _copied(factors, factors.device, torch.float64) for name, factors in held.items()}
    inside, most = torch.zeros(()), math.inf
    if held:  # of the factors in float64, never of the rows: what those round is not in `roundings`
        inside = sum((inner(factors, factors) for factors in wide.values()), inside)
        inside, most = (inside + inside.T) / 2, TOLERANCE.get(dtype, 1e-6) / (8 * 2.0**-52)
    built = {name: piece for name, piece in pieces.items() if name not in held}
    gram: Tensor | _Products = _Products(list(built.values()))
    if held or method == "gram" or k >= rows.n - 1 or rows.n <= BUILT:
        gram = sum((_gram(piece) for piece in built.values()), inside)
    weights = _weights(gram.diagonal(), gram, k, method, most)
    basis = _filled(list(built.values()), weights, dtype)
    moment, error = _moment(basis)
    if not held:
        close = max(4 * torch.finfo(dtype).eps, 64 * 2.0**-52)
        if float((moment - torch.eye(len(moment)).to(moment)).abs().max()) > close:
            basis = orthonormal(basis)
            moment, error = _moment(basis)
        return {"basis": basis, "norm": _certified(moment, error, dtype)}
    moment = moment + weights.T @ inside @ weights
    error += sum(_product_error(factors, weights) for factors in wide.values())
    leaves = {name: _stored(factors) for name, factors in held.items()}
    for name, part in zip(built, basis.split([piece.d for piece in built.values()]), strict=True):
        leaves[name] = {"basis": part.clone()}
    return {"weights": weights, "leaves": leaves, "norm": _certified(moment, error, dtype)}


def _side_directions(rows: Rows, shape: tuple[int, int], ranks: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """The top eigenvectors (as columns) of sum_i G_i G_i' and of sum_i G_i' G_i, for gradients G_i of a shape."""
    form = outer_of(rows)
    if form is not None and form.positions == 1:
        a, b = _factors(form)
        b_norm = b.norm(dim=1, keepdim=True)
        weighted: matrix.Stored
        if matrix.is_sparse(a):
            squares, weighted = torch.as_tensor(a.multiply(a).sum(1)), a.multiply(b_norm.numpy()).tocsr()
        else:
            squares, weighted = a.square().sum(1), a * b_norm
        a_norm = squares.view(-1, 1).sqrt()
        return _top_right(b * a_norm, ranks[0]), _top_right(weighted, ranks[1])
    if form is not None and len(form.b) * form.b.shape[1] >= max(shape):  # G = B'A: B'(AA')B and A'(BB')A
        a, b = _factors(form)
        assert isinstance(a, Tensor)  # CSR factors have one term
        moments = (side.flatten(0, 1).T @ (other @ other.mT @ side).flatten(0, 1) for side, other in ((b, a), (a, b)))
        left, right = (_top(moment, rank)[1] for moment, rank in zip(moments, ranks, strict=True))
        return left, right
    return _side_top(rows, shape, 0, ranks[0]), _side_top(rows, shape, 1, ranks[1])


def _completed(columns: Tensor, rank: int, key: int) -> Tensor:
    """`rank` orthonormal columns that start with the given ones; keyed random directions fill up."""
    missing = rank - columns.shape[1]
    if missing <= 0:
        return columns
    extra = torch.from_numpy(randomness.generator(key).standard_normal((len(columns), missing))).to(columns)
    for _ in range(2):
        extra = orthonormal(extra - columns @ (columns.T @ extra))
    return torch.cat([columns, extra], 1)


def _leaf_pieces(space: Space, rows: Rows) -> Mapping[str, Rows]:
    """The rows of each leaf; rows without leaves are cut (they are public, so their matrix may be built)."""
    leaves = rows.leaves()
    if len(leaves) > 1 or rows.d != space.d:
        return dict(leaves)
    if len(space.leaves) == 1:
        return {space.leaves[0].name: leaves[0][1]}
    whole = rows.dense()
    return {leaf.name: Dense(whole[:, space.slice(leaf.name)]) for leaf in space.leaves}


def _top_right(x: matrix.Stored, rank: int) -> Tensor:
    """The top right singular vectors of x as columns (at most `rank`), from its smaller Gram matrix."""
    if x.shape[0] >= x.shape[1]:
        return _top(_square(x.T), rank)[1]
    values, top = _top(_square(x), rank)
    return orthonormal(matrix.rmatmul(x, top) / values.sqrt())


def _square(x: matrix.Stored) -> Tensor:
    """x x', dense."""
    if matrix.is_sparse(x):
        return matrix.to_dense(x @ x.T)
    return x @ x.T


def _top(moment: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """The largest eigenvalues that carry energy, descending, and their eigenvectors."""
    values, vectors = torch.linalg.eigh(moment)
    keep = _energetic(values)[-rank:].flip(0)
    return values[keep], vectors[:, keep]


def _side_top(rows: Rows, shape: tuple[int, int], side: int, rank: int) -> Tensor:
    """The top directions of one side of dense gradients, read a chunk of rows at a time.

    The unfolding has n q (or n p) rows of the side's length: its second moment is summed up when that is the smaller
    matrix, else the unfolding itself is kept.
    """
    n, step = rows.n, max(1, base.CHUNK_BYTES // (8 * math.prod(shape)))
    chunks = (rows.part(lo, min(lo + step, n)).dense() for lo in range(0, n, step))
    cubes = (chunk.double().reshape(-1, *shape) for chunk in chunks)
    parts = (cube.movedim(1 + side, 2).reshape(-1, shape[side]) for cube in cubes)
    if n * shape[1 - side] < shape[side]:
        return _top_right(torch.cat(list(parts)), rank)
    return _top(sum((part.T @ part for part in parts), torch.zeros(())), rank)[1]


class _Products:
    """K = G G' of leaves side by side, by products G (G'c) alone."""

    def __init__(self, pieces: Sequence[Rows]) -> None:
        self.pieces = pieces

    def diagonal(self) -> Tensor:
        """The squared lengths of the rows."""
        return sum((part.square().sum(1) for piece in self.pieces for part in _blocks(piece)), torch.zeros(()))

    def __matmul__(self, c: Tensor) -> Tensor:
        return sum((part @ (part.T @ c) for piece in self.pieces for part in _blocks(piece)), torch.zeros(()))


def _weights(squares: Tensor, gram: Tensor | _Products, k: int, method: str, most: float = math.inf) -> Tensor:
    """U (n x k) with U' K U = I on the top eigenvectors, float64; only those with sum_i K_ii u_i^2 <= most.

    The eigenvectors are all of them, or the top k by implicitly restarted Lanczos.
    """
    n, device = len(squares), squares.device
    if isinstance(gram, Tensor) and (method == "gram" or k >= n - 1):
        values, vectors = torch.linalg.eigh(gram)
    elif not bool(squares.any()):  # Lanczos has nothing to start from: no direction has any energy
        values, vectors = torch.zeros(k).double().to(device), torch.eye(n, k).double().to(device)
    else:

        def times(c: np.ndarray) -> np.ndarray:
            return (gram @ torch.from_numpy(np.ascontiguousarray(c)).to(device)).cpu().numpy()

        operator = LinearOperator((n, n), matvec=times, matmat=times, dtype=np.float64)
        start = randomness.generator(randomness.key(0, n, "lanczos")).standard_normal(n)
        found = eigsh(operator, k=k, which="LA", v0=start)
        values, vectors = (torch.from_numpy(part[..., np.argsort(found[0])]).to(device) for part in found)
    keep = _energetic(values)[-k:].flip(0)
    weights = vectors[:, keep] / values[keep].sqrt()
    weights = weights[:, squares @ weights.square() <= most]
    return _whitened(weights, weights.T @ (gram @ weights))


def _whitened(x: Tensor, moment: Tensor) -> Tensor:
    """x R^-1 for the Cholesky factor R'R = moment."""
    solved: Tensor = torch.linalg.solve_triangular(torch.linalg.cholesky(moment).T, x, upper=True, left=False)
    return solved


def _filled(pieces: Sequence[Rows], weights: Tensor, dtype: torch.dtype) -> Tensor:
    """G' weights of leaves one under the other, straight in a dtype."""
    basis, start = torch.empty(sum(x.d for x in pieces), weights.shape[1], dtype=dtype, device=weights.device), 0
    for piece in pieces:
        form = outer_of(piece)
        parts = (part.T @ weights for part in _blocks(piece, weights.dtype))
        if form is not None and matrix.is_sparse(form.a):
            a, b = _factors(form, weights.dtype)
            parts = (matrix.rmatmul(a, b[:, j : j + 1] * weights) for j in range(b.shape[1]))
        for part in parts:
            basis[start : start + len(part)] = part
            start += len(part)
    return basis


def _moment(basis: Tensor) -> tuple[Tensor, float]:
    """V'V in float64, and a bound of its error in the spectral norm: d roundings of sum_ij V_ij^2 at most."""
    parts = (part.double() for part in basis.split(max(1, base.CHUNK_BYTES // (16 * basis.shape[1]))))
    none = basis.new_zeros(basis.shape[1], basis.shape[1], dtype=torch.float64)
    moment = sum((part.T @ part for part in parts), none)
    return moment, (len(basis) + 8) * 2.0**-52 * float(moment.trace())


def _certified(moment: Tensor, error: float, dtype: torch.dtype) -> float:
    """An upper bound of ||V||_2 from V'V, known up to an error; codes may be rounded to a dtype, twice."""
    off = torch.linalg.matrix_norm(moment - torch.eye(len(moment)).to(moment))
    bound = math.sqrt(1 + float(off) * (1 + 2.0**-40) + error) * (1 + 2 * torch.finfo(dtype).eps)
    return base.round_up(bound, 64 + len(moment))


def _product_error(factors: Factors, weights: Tensor) -> float:
    """A bound of |x'(U'KU)x - computed| for unit x, when K_ij is off by some roundings of ||g_i|| ||g_j||.

    It is gamma (sum_i ||g_i|| |(Ux)_i|)^2 <= gamma n ||D U||_2^2; the two products with U add 2n roundings of the same.
    """
    n = factors.n
    if isinstance(factors, Lookup):
        roundings = factors.positions * (factors.p + 2) + 4
    else:
        roundings = factors.p + factors.q + 8
    spread = float(torch.linalg.matrix_norm(factors.norm_upper()[:, None] * weights, 2))
    return (roundings + 2 * n + 8) * 2.0**-52 * n * spread**2


def _worth_holding(rows: Rows, k: int) -> Factors | None:
    """The factors of a leaf, copied, where they are worth it."""
    if rows.d < FACTORED_FROM:
        return None
    form, table = outer_of(rows), rows.plain()
    factors: Factors
    if form is not None and form.positions == 1:
        factors = Outer(*_factors(form, form.dtype))
    elif isinstance(table, Lookup):
        factors = table
    else:
        return None
    if WORTH * _size(factors) > rows.d * k:
        return None
    return _copied(factors, factors.device, factors.dtype)


def _size(factors: Factors) -> int:
    """How many numbers the factors hold."""
    if isinstance(factors, Lookup):
        return factors.index.numel() + factors.values.numel()
    a = factors.whole_a()
    return factors.b.numel() + (a.nnz if matrix.is_sparse(a) else a.numel())


def _gram(rows: Rows) -> Tensor:
    """<g_i, g_j> in float64; an outer product with one term needs its factors only."""
    form = outer_of(rows)
    if form is not None and form.positions == 1:
        a, b = _factors(form)
        return _square(a) * (b @ b.T)
    return sum((part @ part.T for part in _blocks(rows)), torch.zeros(()))


def _blocks(rows: Rows, dtype: torch.dtype = torch.float64) -> Iterator[Tensor]:
    """The n x d matrix of dense rows, some columns at a time; outer products build those columns only.

    Sums of several products are rounded to the dtype of the rows, in the same way at every call: the Gram matrix and
    the directions belong to the same numbers.
    """
    form = outer_of(rows)
    if form is None:
        whole = rows.dense()
        step = max(1, base.CHUNK_BYTES // (16 * max(1, rows.n)))
        yield from (whole[:, lo : lo + step].to(dtype) for lo in range(0, rows.d, step))
        return
    kind = rows.dtype
    if form.positions == 1:
        kind = dtype
    a, b = _factors(form, kind)
    step = max(1, base.CHUNK_BYTES // (24 * max(1, rows.n) * a.shape[-1]))
    equation = "nq,np->nqp" if a.ndim == 2 else "ntq,ntp->nqp"
    for lo in range(0, b.shape[-1], step):
        with exact_products(b.device):
            part = torch.einsum(equation, b[..., lo : lo + step], matrix.to_dense(a))
        yield part.reshape(rows.n, -1).to(dtype)


def _factors(form: Outer, dtype: torch.dtype = torch.float64) -> tuple[matrix.Stored, Tensor]:
    """The factors of outer products in a dtype, a column of ones shown; those of a single term as n x p and n x q."""
    b, a, n = form.b.to(dtype), form.whole_a(), len(form.b)
    if matrix.is_sparse(a):
        return matrix.as_dtype(a, dtype), b.reshape(n, -1)
    a = a.to(dtype)
    if form.positions == 1:
        return a.reshape(n, -1), b.reshape(n, -1)
    return a, b


def _energetic(values: Tensor) -> Tensor:
    """Indices (ascending) of the eigenvalues that are not rounding noise; at least one."""
    largest = float(values[-1])
    remedy = "give public examples whose gradients are finite and not all zero"
    validate.check(math.isfinite(largest) and largest > 0, "largest eigenvalue", largest, remedy)
    return (values > NEGLIGIBLE * largest).nonzero().squeeze(1)
