"""Count-sketch: one signed non-zero a column, with balanced buckets so that it is exactly tight."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from isthmus.base import randomness, validate
from isthmus.base.space import Space
from isthmus.geometry.sketches.base import Random, Size, Sketch, check_vector, resolve
from isthmus.geometry.sketches.bijections import Buckets
from isthmus.geometry.sketches.hashed import HashedMap
from isthmus.geometry.sketches.sparse_jl import SparseMap


@dataclass(frozen=True)
class CountSketch(Random):
    """(Phi v)_b = scale_b sum_{h(j) = b} sigma_j v_j, with random signs sigma and a bucket h(j) for each j.

    `scaling="tight"`: h(j) = pi(j) mod m with a keyed bijection pi of [0, d), so the bucket sizes n_b are floor
    or ceil of d/m, and scale_b^2 = (d/m) / n_b.  Then Phi Phi' = (d/m) I exactly, for every m <= d, and
    E||Phi v||^2 = ||v||^2 with variance 2 (||v||_2^4 - ||v||_4^4) (d/m - 1) / (d - 1) when m divides d.

    `scaling="jl"`: the classical one, independent uniform h(j) and scale 1: also an isometry on average (variance
    2 (||v||_2^4 - ||v||_4^4) / m), but some buckets are empty and it is not tight.

    >>> sketch = CountSketch(3).draw(10, seed=0)
    >>> phi = sketch.dense()
    >>> bool(torch.allclose(phi @ phi.T, 10 / 3 * torch.eye(3, dtype=phi.dtype)))
    True
    """

    m: Size
    scaling: str = "tight"

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.one_of(("tight", "jl"), scaling=self.scaling)

    def build(self, space: Space, key: int, t: int) -> Sketch:
        """The map of a key."""
        m = resolve(self.m, space.d, t)
        return BalancedMap(space, m, key) if self.scaling == "tight" else SparseMap(space, m, 1, key)


@lru_cache(maxsize=4)
def _row_scales(d: int, m: int) -> Tensor:
    """sqrt((d/m) / n_b): the same for every round, as bucket sizes do not depend on the key."""
    return torch.sqrt(d / m / Buckets.sizes(d, m).double())


class BalancedMap(HashedMap):
    """A drawn tight count-sketch."""

    tight = True

    def __init__(self, space: Space, m: int, key: int):
        self._buckets = Buckets(key, space.d, m)
        self._sign_key = randomness.key(key, "signs")
        super().__init__(space, m, 1, _row_scales(space.d, m))
        self.coverage = m / space.d
        self._signed: dict[torch.device, Tensor] = {}

    def forward(self, v: Tensor) -> Tensor:
        """Phi v; a short map adds the entries of sign -1 into buckets of their own and subtracts those."""
        if not self._keeps:
            return super().forward(v)
        check_vector(self, v, "v", self.d)
        code = v.new_zeros(2 * self.m).scatter_add_(0, self._signed_buckets(v.device), v)
        return (code[: self.m] - code[self.m :]).mul_(self.scales(code))

    def _adjoint(self, y: Tensor, start: int, stop: int) -> Tensor:
        """Phi' y in columns start..stop-1; a short map reads from y and -y."""
        if not self._keeps:
            return super()._adjoint(y, start, stop)
        check_vector(self, y, "y", self.m)
        signed = self.recent("signed", y, lambda: torch.cat([scaled := y * self.scales(y), -scaled]))
        return signed.index_select(0, self._signed_buckets(y.device)[start:stop])

    def _signed_buckets(self, device: torch.device) -> Tensor:
        """h(j), plus m where the sign is -1; kept for the round."""
        if device not in self._signed and device.type == "cpu" and self.d < 1 << 15:
            table = self._buckets.array(0, self.d)  # in NumPy, where short arrays cost less
            table += randomness.bit_range(self._sign_key, 0, self.d) * table.dtype.type(self.m)
            self._signed[device] = torch.from_numpy(table.astype(np.int64))
        elif device not in self._signed:
            bucket, sign = (table[0] for table in self.hashes(0, self.d, device))
            self._signed[device] = torch.where(sign < 0, bucket + self.m, bucket)
        return self._signed[device]

    def hashes(self, lo: int, hi: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Balanced buckets and signs, 1 x (hi - lo)."""
        bucket = self._buckets.range(lo, hi, device)
        return bucket.unsqueeze(0), randomness.sign_range(self._sign_key, lo, hi, device).unsqueeze(0)

    def _stream(self, lo: int, hi: int, like: Tensor) -> Iterator[tuple[int, int, Tensor, Tensor]]:
        """The same hashes in buffers that are used again."""
        ranges = self._ranges(lo, hi)
        width = ranges[0][1] - lo
        buckets = torch.empty(1, width, dtype=torch.int64, device=like.device)
        scratch = self._buckets.scratch(width, like.device)
        bits = torch.empty(width // 32 + 2, 32, dtype=torch.int32, device=like.device)
        signs = torch.empty(1, width, dtype=like.dtype, device=like.device)
        for left, right in ranges:
            bucket, sign = buckets[:, : right - left], signs[:, : right - left]
            self._buckets.fill(bucket[0], left, scratch)
            sign.copy_(randomness.sign_range(self._sign_key, left, right, like.device, bits))
            yield left, right, bucket, sign

    def _matrix_gain(self, ord: float) -> float:
        """A column holds one scale_b; row b has l1 norm n_b scale_b = sqrt(n_b d/m)."""
        counts = self._buckets.counts()
        return float(self.scale.max()) if ord == 1 else math.sqrt(float(counts.max()) * self.d / self.m)
