"""The sparse Johnson-Lindenstrauss transform of Kane and Nelson (2014), block construction."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from isthmus.base import randomness, validate
from isthmus.base.space import Space
from isthmus.geometry.sketches import base
from isthmus.geometry.sketches.base import Random, Size, Sketch, resolve, round_up
from isthmus.geometry.sketches.dense import EIGEN_LIMIT, largest_singular
from isthmus.geometry.sketches.hashed import HashedMap


@dataclass(frozen=True)
class SparseJL(Random):
    """s non-zeros +-1/sqrt(s) a column: one in each of s blocks of rows, at an independent uniform place.

    When s does not divide m the blocks have B_r = floor or ceil of m/s rows.  E||Phi v||^2 = ||v||^2 with variance
    (2 / s^2) sum_r (1 / B_r) (||v||_2^4 - ||v||_4^4), which is 2/m (...) when s divides m.  It is not tight: clip
    after it and lift with the adjoint or project-and-lift.

    `s=None`: ceil(sqrt(m log d)), the Kane-Nelson sparsity s = beta m at the distortion beta = sqrt(log d / m)
    that m rows give d directions.  `s="theorem"`: ceil(log(d) / beta^2), the rule s = Omega(polylog / beta^2) of
    Theorem A.4 with constant and power 1.  Both are capped at m.

    >>> sketch = SparseJL(6, s=2).draw(10)
    >>> (sketch.dense() != 0).sum(0).unique().tolist()
    [2]
    >>> SparseJL(200, s="theorem", beta=0.5).sparsity(200, 10_000)
    37
    """

    m: Size
    s: int | str | None = None
    beta: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.s, str):
            validate.one_of(("theorem",), s=self.s)
        elif self.s is not None:
            validate.positive_int(s=self.s)
        validate.positive(beta=self.beta)

    def sparsity(self, m: int, d: int) -> int:
        """The number of non-zeros a column for m rows and d columns."""
        if isinstance(self.s, int):
            validate.at_most(m, "the number of rows m", s=self.s)
            return self.s
        log_d = math.log(max(d, 2))
        density = math.sqrt(m * log_d) if self.s is None else log_d / self.beta**2
        return min(m, math.ceil(density))

    def build(self, space: Space, key: int, t: int) -> Sketch:
        """The map of a key."""
        m = resolve(self.m, space.d, t)
        return SparseMap(space, m, self.sparsity(m, space.d), key)


class SparseMap(HashedMap):
    """A drawn sparse JL map; s = 1 is the classical count-sketch."""

    def __init__(self, space: Space, m: int, s: int, key: int):
        super().__init__(space, m, s, torch.full((m,), 1 / math.sqrt(s), dtype=torch.float64))
        self.coverage = m / space.d
        self._bucket_key, self._sign_key = randomness.key(key, "buckets"), randomness.key(key, "signs")
        self._starts = torch.arange(s + 1) * m // s

    def hashes(self, lo: int, hi: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """h_r(j) = the first row of block r + floor(u B_r / 2^32) for a 32-bit hash u of (r, j)."""
        index = torch.arange(self.s, device=device)[:, None] * self.d + torch.arange(lo, hi, device=device)
        starts = self._starts.to(device)[:, None]
        word = randomness.mix(self._bucket_key, index).to(torch.int64) & 0xFFFFFFFF
        return starts[:-1] + (word * (starts[1:] - starts[:-1]) >> 32), randomness.signs(self._sign_key, index)

    @cached_property
    def norm(self) -> float:
        """s = 1: sqrt of the largest row count, exactly.  Else the certified largest singular value, or for many
        rows sqrt(||Phi||_1 ||Phi||_inf) = sqrt(largest row count)."""
        coarse = round_up(math.sqrt(int(self.row_counts().max())))
        if self.s == 1 or self.m > EIGEN_LIMIT:
            return coarse
        gram = torch.zeros(self.m, self.m, dtype=torch.float64)
        step = max(1, base.CHUNK_BYTES // (32 * self.s))
        for lo in range(0, self.d, step):
            part = self.transposed(lo, min(lo + step, self.d))
            gram += torch.from_numpy((part.T @ part).toarray())
        return min(coarse, largest_singular(gram, self.d))

    def _matrix_gain(self, ord: float) -> float:
        return math.sqrt(self.s) if ord == 1 else int(self.row_counts().max()) / math.sqrt(self.s)
