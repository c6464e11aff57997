"""Dense random sketches, Gaussian and Rademacher, drawn by column blocks and never stored when large."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from isthmus.base import randomness, validate
from isthmus.base.matrix import Stored, code_room, columns, matmul
from isthmus.base.space import Space
from isthmus.sketches import base
from isthmus.sketches.base import LiftsLeaves, Random, Size, Sketch, check_block, check_vector, resolve, round_up

WIDTH = 128
"""Columns drawn from one key, whatever the chunks: part of what the map is."""
EIGEN_LIMIT = 4096
"""Up to this many rows a norm is certified through the eigenvalues of Phi Phi'."""
SMALLEST_PIVOT = 1e-13
"""Rows closer to dependence than this (squared, relative) are drawn again."""


@dataclass(frozen=True)
class _DenseSketch(Random):
    m: Size
    scaling: str = "tight"

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.one_of(("tight", "jl"), scaling=self.scaling)


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

    def build(self, space: Space, key: int, t: int) -> Sketch:
        """The map of a key."""
        return GaussianMap(space, resolve(self.m, space.d, t), key, self.scaling == "tight")


@dataclass(frozen=True)
class RademacherSketch(_DenseSketch):
    """A matrix of independent signs.

    `scaling="tight"`: sqrt(d/m) times orthonormal rows that span those of the sign matrix.
    `scaling="jl"`: entries +-1/sqrt(m); E||Phi v||^2 = ||v||^2 with variance 2/m (||v||_2^4 - ||v||_4^4); not tight.

    >>> RademacherSketch(4, scaling="jl").draw(9).dense().abs().unique().tolist()
    [0.5]
    """

    def build(self, space: Space, key: int, t: int) -> Sketch:
        """The map of a key."""
        return RademacherMap(space, resolve(self.m, space.d, t), key, self.scaling == "tight")


class DenseMap(LiftsLeaves):
    """A drawn dense map: `entries` gives raw columns, `dense` the scaled or whitened ones."""

    def __init__(self, space: Space, m: int, key: int, tight: bool):
        self.space, self.d, self.m, self.tight = space, space.d, m, tight
        self.coverage = m / self.d
        self._key, self._attempt = key, 0

    @abstractmethod
    def entries(self, lo: int, hi: int) -> Tensor:
        """Raw entries of columns lo..hi-1, transposed: (hi - lo) x m, float64."""

    def dense(self, dtype: torch.dtype = torch.float64) -> Tensor:
        """The m x d matrix, in the order in which it is drawn."""
        return self._columns(0, self.d).T.to(dtype)

    def _block(self, lo: int, hi: int) -> Tensor:
        return self._columns(lo, hi).T

    def adjoint(self, y: Tensor) -> Tensor:
        """Phi' y, a chunk of columns at a time."""
        return self._adjoint(y, 0, self.d)

    def adjoint_leaf(self, name: str, y: Tensor) -> Tensor:
        """The columns of one leaf only."""
        where = self.space.slice(name)
        return self._adjoint(y, where.start, where.stop)

    def _adjoint(self, y: Tensor, start: int, stop: int) -> Tensor:
        check_vector(self, y, "y", self.m)
        return torch.cat([self._part(lo, hi, y.device, y.dtype) @ y for lo, hi in self._parts(start, stop)])

    def rows(self, x: Stored, lo: int = 0) -> Tensor:
        """X Phi[:, lo:hi]' accumulated over chunks of columns, dense or CSR."""
        hi = check_block(self, x, lo)
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
        if self.m <= EIGEN_LIMIT:
            return largest_singular(sum((b @ b.T for b in self._blocks()), torch.zeros(())), self.d)
        frobenius = math.sqrt(sum(float(b.square().sum()) for b in self._blocks()))
        return min(round_up(frobenius, 64 + self.d), math.sqrt(self.gain(1) * self.gain(math.inf)))

    def _blocks(self) -> Iterator[Tensor]:
        return (self._block(lo, hi) for lo, hi in self._chunks())

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
            return self.entries(lo, hi) / math.sqrt(self.m)
        factors = self._factors
        return self._whitened(self.entries(lo, hi), factors) * math.sqrt(self.d / self.m)

    @staticmethod
    def _whitened(part: Tensor, factors: list[Tensor]) -> Tensor:
        for factor in factors:
            part = torch.linalg.solve_triangular(factor.T, part, upper=True, left=False)
        return part

    @cached_property
    def _factors(self) -> list[Tensor]:
        """Two Cholesky factors: after the first the rows are nearly orthonormal, after the second to rounding."""
        while True:
            factors: list[Tensor] = []
            for _ in range(2):
                factor = self._cholesky(factors)
                if factor is None:
                    break
                factors.append(factor)
            if len(factors) == 2:
                return factors
            self._attempt += 1

    def _cholesky(self, factors: list[Tensor]) -> Tensor | None:
        gram = torch.zeros(self.m, self.m, dtype=torch.float64)
        for lo, hi in self._chunks():
            part = self._whitened(self.entries(lo, hi), factors)
            gram += part.T @ part
        factor, failed = torch.linalg.cholesky_ex(gram)
        pivots = factor.diagonal().square()
        usable = int(failed) == 0 and float(pivots.min()) > SMALLEST_PIVOT * float(gram.diagonal().max())
        return factor if usable else None


class GaussianMap(DenseMap):
    """A drawn Gaussian map."""

    def entries(self, lo: int, hi: int) -> Tensor:
        """N(0, 1) from one NumPy Philox stream for each `WIDTH` columns."""
        first = lo // WIDTH
        blocks = [self._stream(i).standard_normal((WIDTH, self.m)) for i in range(first, (hi - 1) // WIDTH + 1)]
        return torch.from_numpy(np.concatenate(blocks))[lo - first * WIDTH : hi - first * WIDTH]

    def _stream(self, i: int) -> np.random.Generator:
        return randomness.generator(self._key, self._attempt, i)


class RademacherMap(DenseMap):
    """A drawn sign map."""

    def entries(self, lo: int, hi: int) -> Tensor:
        """Hashed signs of the places j m + i."""
        key = randomness.key(self._key, self._attempt)
        return randomness.sign_range(key, lo * self.m, hi * self.m).view(-1, self.m).to(torch.float64)


def largest_singular(gram: Tensor, d: int) -> float:
    """A certified bound of ||Phi||_2 from a computed Phi Phi' (m x m, d terms an entry).

    The computed Gram matrix is off by at most d eps || |Phi| |Phi|' ||_F <= d eps tr(Phi Phi'), and its eigenvalues
    by a small multiple of m eps ||Phi||^2 more.
    """
    trace = float(gram.trace())
    margin = 2.0**-52 * (d + 16 * len(gram)) * trace
    return round_up(math.sqrt(float(torch.linalg.eigvalsh(gram)[-1]) + margin))
