"""Dense random sketches, Gaussian and Rademacher, and the orthonormal bases that tight ones are made of.

Their matrices are drawn by blocks of columns and never stored when large.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from isthmus.base import randomness, validate
from isthmus.base.matrix import Stored, code_room, columns, matmul
from isthmus.base.space import Space
from isthmus.gradients.rounding import exact_products
from isthmus.sketches import base
from isthmus.sketches.base import LiftsRanges, Random, Size, Sketch, _check_block, _check_vector, resolve, round_up

SIGNS_FROM = 256
"""From this length on, drawn rows are whitened signs, which cost a quarter of normals and a QR."""

SLIM = 16
"""Signs are used for at most a 1/16 of their length in rows: those are always well conditioned."""


def orthonormal(columns: Tensor) -> Tensor:
    """Orthonormal columns with the same span: the Q of a QR with positive diagonal, which is unique.

    It is computed in float64: reduced float32 products would not be orthonormal to rounding.

    >>> orthonormal(torch.tensor([[3.0], [4.0]]))
    tensor([[0.6000],
            [0.8000]])
    """
    q, r = torch.linalg.qr(columns.double())
    signs = torch.where(r.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(q)
    basis: Tensor = (q * signs[..., None, :]).to(columns.dtype).contiguous()
    return basis


def random_rows(rank: int, size: int, key: int) -> Tensor:
    """rank x size with orthonormal rows P, float64, and E[P'P] = (rank / size) I.

    Short ones are uniformly distributed (normals, QR).  Long ones span random sign vectors: their law does not change
    under sign flips and permutations of the columns, so E[P'P] is a multiple of the identity, as before.

    >>> rows = random_rows(2, 5000, key=1)
    >>> bool(torch.allclose(rows @ rows.T, torch.eye(2, dtype=torch.float64)))
    True
    """
    return frames([(rank, size, 1)], key)[0][0]


def frames(shapes: Sequence[tuple[int, int, int]], key: int, device: torch.device | None = None) -> list[Tensor]:
    """For each (rank, size, count) as many such matrices, independent of one another: a tensor (count, rank, size).

    All signs are drawn together and all matrices of one shape are whitened together: some thirty launches a shape on a
    device, where they are float32 (elsewhere float64).  Signs are the same on every machine, whitened up to rounding.

    >>> [tuple(x.shape) for x in frames([(2, 300, 3), (2, 2, 1)], key=1)]
    [(3, 2, 300), (1, 2, 2)]
    """
    where, dtype = torch.device("cpu"), torch.float64
    if device is not None:
        where, dtype = device, torch.float32
    lengths = [math.prod(shape) for shape in shapes if _long(*shape[:2])]
    drawn = iter(randomness.sign_range(key, 0, sum(lengths), where).split(lengths)) if lengths else iter(())
    made = []
    for number, (rank, size, count) in enumerate(shapes):
        if _long(rank, size):
            made.append(_whitened_signs(next(drawn).view(count, rank, size)).to(dtype))
        else:
            normals = randomness.generator(key, number).standard_normal((count, size, rank))
            made.append(orthonormal(torch.from_numpy(normals)).mT.to(where, dtype))
    return made


def _long(rank: int, size: int) -> bool:
    return size >= SIGNS_FROM and SLIM * rank <= size


def _whitened_signs(signs: Tensor) -> Tensor:
    """Orthonormal rows with the span of rows of signs, at least `SLIM` times as long as they are many.

    Their Gram matrices, size times the identity up to some sqrt(rank / size), are exact in float32 below 2^24 columns
    and never near singular (a pivot below a fifth has a probability below 2^-100).  On a device the inverse root comes
    from products alone.
    """
    rows, size = signs.to(torch.float32), signs.shape[-1]
    with exact_products(rows.device):
        gram = (rows @ rows.mT).double()
        if rows.is_cuda:
            on_device: Tensor = _inverse_root(gram / size).float() @ (rows * size**-0.5)
            return on_device
        factor: Tensor = torch.linalg.cholesky(gram)
        inverse: Tensor = torch.linalg.solve_triangular(factor, _eye(factor).expand_as(factor), upper=False)
        whitened: Tensor = inverse @ rows.double()
    return whitened


def _inverse_root(y: Tensor, steps: int = 9) -> Tensor:
    """y^(-1/2) by the coupled Newton-Schulz iteration, for matrices within a factor two of the identity.

    With e the largest |1 - eigenvalue|, a step leaves at most 3/4 e^2 + 1/4 e^3: from .8, eight leave 10^-18.

    >>> _inverse_root(torch.tensor([[[1.44]]], dtype=torch.float64)).item()
    0.8333333333333334
    """
    eye = _eye(y)
    z = eye.expand_as(y)
    for _ in range(steps):
        half = 1.5 * eye - 0.5 * (z @ y)
        y, z = y @ half, half @ z
    return z


def _eye(like: Tensor) -> Tensor:
    return torch.eye(like.shape[-1], dtype=torch.float64, device=like.device)


WIDTH = 128
"""Columns drawn from one key, whatever the chunks: part of what the map is."""

EIGEN_LIMIT = 4096
"""Up to this many rows a norm is certified through the eigenvalues of Phi Phi'."""

SMALLEST_PIVOT = 1e-13
"""Rows closer to dependence than this (squared, relative) are drawn again."""


@dataclass(frozen=True)
class _Scaled(Random):
    """A sketch that is scaled to be tight, or as Johnson and Lindenstrauss have it."""

    m: Size
    scaling: str = "tight"

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.one_of(("tight", "jl"), scaling=self.scaling)


@dataclass(frozen=True)
class _DenseSketch(_Scaled):
    def build(self, space: Space, key: int, t: int) -> Sketch:
        """The map of a key."""
        return _DenseMap(space, resolve(self.m, space.d, t), key, self.scaling == "tight", self.entries)

    @staticmethod
    @abstractmethod
    def entries(key: int, attempt: int, m: int, lo: int, hi: int) -> Tensor:
        """Raw entries of columns lo..hi-1, transposed: (hi - lo) x m, float64."""


@dataclass(frozen=True)
class GaussianSketch(_DenseSketch):
    """A Gaussian matrix G.

    `scaling="tight"`: sqrt(d/m) times orthonormal rows, uniformly distributed (G whitened by two Cholesky passes);
    Phi Phi' = (d/m) I, E||Phi v||^2 = ||v||^2 with variance 2 (d - m) / (m (d + 2)) ||v||^4.
    `scaling="jl"`: entries N(0, 1/m), variance 2/m ||v||^4; not tight, so clip after it.

    >>> phi = GaussianSketch(3).draw(12, seed=1).dense()
    >>> bool(torch.allclose(phi @ phi.T, 4 * torch.eye(3, dtype=phi.dtype)))
    True
    """

    @staticmethod
    def entries(key: int, attempt: int, m: int, lo: int, hi: int) -> Tensor:
        """N(0, 1) from one NumPy Philox stream for each `WIDTH` columns."""
        streams = [randomness.generator(key, attempt, i) for i in range(lo // WIDTH, (hi - 1) // WIDTH + 1)]
        blocks = [stream.standard_normal((WIDTH, m)) for stream in streams]
        return torch.from_numpy(np.concatenate(blocks))[lo % WIDTH :][: hi - lo]


@dataclass(frozen=True)
class RademacherSketch(_DenseSketch):
    """A matrix of independent signs.

    `scaling="tight"`: sqrt(d/m) times orthonormal rows that span those of the sign matrix.
    `scaling="jl"`: entries +-1/sqrt(m); E||Phi v||^2 = ||v||^2 with variance 2/m (||v||_2^4 - ||v||_4^4); not tight.

    >>> RademacherSketch(4, scaling="jl").draw(9).dense().abs().unique().tolist()
    [0.5]
    """

    @staticmethod
    def entries(key: int, attempt: int, m: int, lo: int, hi: int) -> Tensor:
        """Hashed signs of the places j m + i."""
        return randomness.sign_range(randomness.key(key, attempt), lo * m, hi * m).view(-1, m).to(torch.float64)


class _DenseMap(LiftsRanges):
    """A drawn dense map: `entries` gives raw columns, `dense` the scaled or whitened ones."""

    def __init__(self, space: Space, m: int, key: int, tight: bool, entries: Callable[..., Tensor]):
        self.space, self.d, self.m, self.tight = space, space.d, m, tight
        self.coverage = m / self.d
        self._key, self._attempt, self._entries = key, 0, entries

    def dense(self, dtype: torch.dtype = torch.float64) -> Tensor:
        """The m x d matrix, in the order in which it is drawn."""
        return self._columns(0, self.d).T.to(dtype)

    def _block(self, lo: int, hi: int) -> Tensor:
        return self._columns(lo, hi).T

    def _adjoint(self, y: Tensor, start: int, stop: int) -> Tensor:
        _check_vector(self, y, "y", self.m)
        return torch.cat([self._part(lo, hi, y.device, y.dtype) @ y for lo, hi in self._parts(start, stop)])

    def rows(self, x: Stored, lo: int = 0) -> Tensor:
        """X Phi[:, lo:hi]' accumulated over chunks of columns, dense or CSR."""
        hi = _check_block(self, x, lo)
        code = code_room(x, self.m)
        for left, right in self._parts(lo, hi):
            code += matmul(columns(x, left - lo, right - lo), self._part(left, right, code.device, code.dtype))
        return code

    def _chunks(self) -> list[tuple[int, int]]:
        width = max(WIDTH, base.CHUNK_BYTES // (8 * self.m) // WIDTH * WIDTH)
        return [(lo, min(lo + width, self.d)) for lo in range(0, self.d, width)]

    @cached_property
    def norm(self) -> float:
        """Tight: sqrt(d/m).  Else from the eigenvalues of Phi Phi', or for many rows the smaller of the Frobenius
        norm and sqrt(||Phi||_1 ||Phi||_inf)."""
        if self.tight:
            return round_up(math.sqrt(self.d / self.m), 1 << 12)
        blocks = (self._block(lo, hi) for lo, hi in self._chunks())
        if self.m <= EIGEN_LIMIT:
            return _largest_singular(sum((b @ b.T for b in blocks), torch.zeros(())), self.d)
        frobenius = math.sqrt(sum(float(b.square().sum()) for b in blocks))
        return min(round_up(frobenius, 64 + self.d), math.sqrt(self.gain(1) * self.gain(math.inf)))

    def _parts(self, lo: int, hi: int) -> list[tuple[int, int]]:
        if self._keeps:
            return [(lo, hi)]
        return [(max(lo, a), min(hi, b)) for a, b in self._chunks() if a < hi and b > lo]

    def _part(self, lo: int, hi: int, device: torch.device, dtype: torch.dtype) -> Tensor:
        """Phi[:, lo:hi]' in a dtype, from the working copy while there is one."""
        if not self._keeps:
            return self._columns(lo, hi).to(device, dtype)
        return self._memo.tensor("columns", lambda: self._columns(0, self.d), device, dtype)[lo:hi]

    @property
    def _keeps(self) -> bool:
        return self.m * self.d * 8 <= base.CACHE_BYTES

    def _columns(self, lo: int, hi: int) -> Tensor:
        if not self.tight:
            return self._whitened(lo, hi, ()) / math.sqrt(self.m)
        return self._whitened(lo, hi, self._factors) * math.sqrt(self.d / self.m)

    def _whitened(self, lo: int, hi: int, factors: Sequence[Tensor]) -> Tensor:
        """Drawn columns, transposed, less some triangular factors."""
        part = self._entries(self._key, self._attempt, self.m, lo, hi)
        for factor in factors:
            part = torch.linalg.solve_triangular(factor.T, part, upper=True, left=False)
        return part

    @cached_property
    def _factors(self) -> list[Tensor]:
        """Two Cholesky factors: after the first the rows are nearly orthonormal, after the second to rounding."""
        while True:
            factors: list[Tensor] = []
            for _ in range(2):
                gram = torch.zeros(self.m, self.m, dtype=torch.float64)
                for lo, hi in self._chunks():
                    part = self._whitened(lo, hi, factors)
                    gram += part.T @ part
                factor, failed = torch.linalg.cholesky_ex(gram)
                pivots = factor.diagonal().square()
                if int(failed) == 0 and float(pivots.min()) > SMALLEST_PIVOT * float(gram.diagonal().max()):
                    factors.append(factor)
            if len(factors) == 2:
                return factors
            self._attempt += 1


def _largest_singular(gram: Tensor, d: int) -> float:
    """A certified bound of ||Phi||_2 from a computed Phi Phi' (m x m, d terms an entry).

    The computed Gram matrix is off by at most d eps || |Phi| |Phi|' ||_F <= d eps tr(Phi Phi'), and its eigenvalues
    by a small multiple of m eps ||Phi||^2 more.
    """
    trace = float(gram.trace())
    margin = 2.0**-52 * (d + 16 * len(gram)) * trace
    return round_up(math.sqrt(float(torch.linalg.eigvalsh(gram)[-1]) + margin))
