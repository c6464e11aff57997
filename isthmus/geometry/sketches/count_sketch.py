"""Count-sketch: one signed non-zero a column, with balanced buckets so that it is exactly tight."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isthmus.base import randomness, validate
from isthmus.base.space import Space
from isthmus.geometry.sketches.base import Context, Random, Size, Sketch, State, check_vector, resolve
from isthmus.geometry.sketches.bijections import SHORT, Buckets, bucket_rows, check_dimension, next_prime
from isthmus.geometry.sketches.hashed import HashedMap
from isthmus.geometry.sketches.sparse_jl import SparseMap

Table = NDArray[np.uint16]
AHEAD = 8
"""Turns whose tables are made together in a loop: one call for several short rows costs little more than for one."""


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

    def bind(self, context: Context, state: State) -> tuple[Sketch, State]:
        """Draw the map of the context's round; tables of short maps are made for the next rounds, too."""
        seed, t = context.seed, context.t
        key = self._key(seed, t)
        sketch = self.build(context.space, key, t - t % self.refresh)
        if isinstance(sketch, BalancedMap) and sketch._made_of[0] == key and not callable(self.m):
            sketch._ahead = partial(_table_of, self, seed, t // self.refresh, sketch.d, sketch.m)
        return sketch, None


def signed_tables(keys: Sequence[int], d: int, m: int) -> Table:
    """A row for each key of a tight map: h(j) plus m where the sign is -1; for a prime p(d) < `SHORT`."""
    table = bucket_rows([Buckets(key, d, m) for key in keys])
    table += randomness.bit_rows([_sign_key(key) for key in keys], table.shape[1] // 32) * np.uint16(m)
    return table[:, :d]


def _sign_key(key: int) -> int:
    return randomness.key(key, "signs")


def _table_of(encoder: CountSketch, seed: int, turn: int, d: int, m: int) -> Table:
    """The table of a turn, one of `AHEAD` that were made together."""
    row: Table = _tables_of(encoder, seed, turn // AHEAD, d, m)[turn % AHEAD]
    return row


@lru_cache(maxsize=4)
def _tables_of(encoder: CountSketch, seed: int, block: int, d: int, m: int) -> Table:
    first = block * AHEAD * encoder.refresh
    keys = [encoder._key(seed, first + k * encoder.refresh) for k in range(AHEAD)]
    return signed_tables(keys, d, m)


@lru_cache(maxsize=4)
def _row_scales(d: int, m: int) -> Tensor:
    """sqrt((d/m) / n_b): the same for every round, as bucket sizes do not depend on the key."""
    with torch.inference_mode(False):  # it outlives whatever mode it is first asked for in
        return torch.sqrt(d / m / Buckets.sizes(d, m).double())


@lru_cache(maxsize=8)
def _signed_scales(d: int, m: int, dtype: torch.dtype) -> Tensor:
    with torch.inference_mode(False):
        scales = _row_scales(d, m).to(dtype)
        return torch.stack([scales, -scales])


class BalancedMap(HashedMap):
    """A drawn tight count-sketch."""

    tight = True

    def __init__(self, space: Space, m: int, key: int):
        check_dimension(space.d)
        self._sign_key, self._made_of = _sign_key(key), (key, space.d, m)
        super().__init__(space, m, 1, _row_scales(space.d, m))
        self.coverage = m / space.d
        self._ahead: Callable[[], Table] | None = None
        self._signed: dict[torch.device, Tensor] = {}

    @cached_property
    def _buckets(self) -> Buckets:
        return Buckets(*self._made_of)

    def forward(self, v: Tensor) -> Tensor:
        """Phi v; a short map adds the entries of sign -1 into buckets of their own and subtracts those."""
        if not self._keeps:
            return super().forward(v)
        check_vector(self, v, "v", self.d)
        both = v.new_zeros(2 * self.m).scatter_add_(0, self._signed_buckets(v.device), v)
        code = both[: self.m] - both[self.m :]
        return code if self._even else code.mul_(self.scales(code))

    def _adjoint(self, y: Tensor, start: int, stop: int) -> Tensor:
        """Phi' y in columns start..stop-1; a short map reads from y and -y."""
        if not self._keeps:
            return super()._adjoint(y, start, stop)
        check_vector(self, y, "y", self.m)
        signed = self.recent("signed", y, lambda: (y * self._both_scales(y)).view(-1))
        places = self._signed_buckets(y.device)
        return signed.index_select(0, places if stop - start == self.d else places[start:stop])

    def _both_scales(self, like: Tensor) -> Tensor:
        """The scales of the rows, and those of columns of sign -1: 2 x m."""
        return self.once("both", lambda: _signed_scales(self.d, self.m, like.dtype), like.device, like.dtype)

    @property
    def _even(self) -> bool:
        """Whether all buckets are equally long: every scale is 1 then."""
        return self.d % self.m == 0

    def _signed_buckets(self, device: torch.device) -> Tensor:
        """h(j), plus m where the sign is -1; kept for the round."""
        if device not in self._signed and device.type == "cpu" and next_prime(self.d) < SHORT:
            key, d, m = self._made_of
            table = signed_tables([key], d, m)[0] if self._ahead is None else self._ahead()
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
