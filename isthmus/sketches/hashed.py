"""Sparse sketches with s signed non-zeros a column, found by hashing: count-sketch and sparse JL share this map.

What they hash with: keyed permutations of [0, d) that are computed, never stored, exact integers, the same on every
device.

Count-sketch: one signed non-zero a column, with balanced buckets so that it is exactly tight.

The sparse Johnson-Lindenstrauss transform of Kane and Nelson (2014), block construction.

Tensor sketch: a count-sketch of matrices whose codes of outer products come from a fast Fourier transform.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from isthmus.base import randomness, validate
from isthmus.base.matrix import Stored, dtype_of, is_sparse
from isthmus.base.space import Space
from isthmus.sketches import base
from isthmus.sketches.dense import EIGEN_LIMIT, _largest_singular, _Scaled
from isthmus.sketches.kronecker import matrix_shape

RANGE = 1 << 15
"""Indices hashed at once: the buffers stay in a processor's cache."""
SHORT = 1 << 15
"""Below this prime p, sums of two numbers below p fit in 16 bits: `_bucket_rows`."""
SPAN = 128
"""Entries of the shorter table of `_bucket_rows`: a multiple of 32."""
LIMIT = 1 << 46
"""Beyond this dimension a product a * i of `Buckets` could leave 64 bits."""


class Permutation:
    """A keyed bijection of [0, d), close to a uniformly random one.

    Small ones sort a 64-bit hash of each index; large ones are a Feistel network with cycle walking.

    >>> sorted(Permutation(3, 10)(torch.arange(10)).tolist()) == list(range(10))
    True
    """

    ROUNDS = 6
    SMALL = 1 << 14

    def __init__(self, key: int, d: int):
        self.d, self._key = d, key
        bits = max(2, (d - 1).bit_length())
        self._low_bits = bits // 2
        self._low_mask, self._high_mask = (1 << self._low_bits) - 1, (1 << (bits - self._low_bits)) - 1

    def __call__(self, index: Tensor) -> Tensor:
        """The images of int64 indices in [0, d)."""
        if self.d <= self.SMALL:
            whole = torch.arange(self.d, dtype=torch.int32, device=index.device)
            high, low = (randomness.mix(randomness.key(self._key, i), whole).to(torch.int64) for i in range(2))
            return torch.argsort((high << 32) | (low & 0xFFFFFFFF), stable=True)[index]
        image = self._network(index)
        outside = (image >= self.d).nonzero().squeeze(1)
        while outside.numel():
            walked = self._network(image[outside])
            image[outside] = walked
            outside = outside[walked >= self.d]
        return image

    def first(self, m: int, device: torch.device | str | None = None) -> Tensor:
        """The images of 0, ..., m - 1, sorted: a random m-subset of [0, d)."""
        return self(torch.arange(m, device=device)).sort().values

    def _network(self, index: Tensor) -> Tensor:
        low, high = index & self._low_mask, index >> self._low_bits
        for r in range(self.ROUNDS):
            key = randomness.key(self._key, "feistel", r)
            if r % 2:
                high = high ^ (randomness.mix(key, low).to(torch.int64) & self._high_mask)
            else:
                low = low ^ (randomness.mix(key, high).to(torch.int64) & self._low_mask)
        return (high << self._low_bits) | low


class Buckets:
    """h(j) = pi(j) mod m for the pairwise independent bijection pi(j) = (a j + c) mod p of [0, d).

    p is the first prime >= d; the few pi(j) >= d walk on along their cycle.  As pi is a bijection, bucket b
    has floor((d - b - 1) / m) + 1 members: balanced, with no empty bucket.  A table of a i mod p turns a range
    of pi into additions and comparisons.

    >>> buckets = Buckets(5, 10, 4)
    >>> torch.bincount(buckets.range(0, 10)).tolist()
    [3, 3, 2, 2]
    """

    def __init__(self, key: int, d: int, m: int):
        _check_dimension(d)
        self.d, self.m, self.p = d, m, _next_prime(d)
        self.a, self.c = 1 + randomness.key(key, "a") % (self.p - 1), randomness.key(key, "c") % self.p
        self.walks = []  # the j with pi(j) >= d, and the bucket where each walk ends
        inverse = pow(self.a, -1, self.p)
        for value in range(d, self.p):
            j = (value - self.c) * inverse % self.p
            if j < d:
                image = value
                while image >= d:
                    image = (self.a * image + self.c) % self.p
                self.walks.append((j, image % m))
        self.walks.sort()

    @staticmethod
    def sizes(d: int, m: int) -> Tensor:
        """How many j of [0, d) fall in each bucket (int64, m), whatever the key."""
        counts = torch.full((m,), d // m)
        counts[: d % m] += 1
        return counts

    def range(self, lo: int, hi: int, device: torch.device | str | None = None) -> Tensor:
        """h(lo), ..., h(hi - 1) as int64."""
        out = torch.empty(hi - lo, dtype=torch.int64, device=device)
        on_cpu = out.device.type == "cpu"
        step = (1 << 62) // self.p
        if on_cpu:
            step = RANGE
        for start in range(lo, hi, step):
            part, offset = out[start - lo : start - lo + step], (self.a * start + self.c) % self.p
            if on_cpu:  # NumPy divides by a constant several times faster than torch
                image = self._images[: len(part)] + (offset - self.p)
                image += (image < 0) * image.dtype.type(self.p)
                np.subtract(image, image // self.m * self.m, out=part.numpy())
            else:
                torch.remainder((torch.arange(len(part), device=device) * self.a + offset) % self.p, self.m, out=part)
        first, last = (bisect_left(self.walks, (j, 0)) for j in (lo, hi))
        for j, end in self.walks[first:last]:
            out[j - lo] = end
        return out

    @cached_property
    def _images(self) -> NDArray[np.integer]:
        """a i mod p for short i."""
        kind = np.int32 if self.p < 1 << 30 else np.int64
        return (np.arange(min(RANGE, self.d)) * self.a % self.p).astype(kind)


def _check_dimension(d: int) -> None:
    """Refuse a dimension that `Buckets` cannot hash."""
    validate.check(d < LIMIT, "d", d, f"give a dimension below {LIMIT}: bucket hashes are exact only there")


def _bucket_rows(buckets: Sequence[Buckets]) -> NDArray[np.uint16]:
    """A row h(0), h(1), ... for each of several `Buckets` of one d and m, p < `SHORT`, all in one go, which costs less.

    Rows are a multiple of `SPAN` long; what is beyond d means nothing.  For j = SPAN i + k, (a j + c) mod p is a sum of
    two entries of short tables or that less p, which in 16 bits is the smaller of the two.

    >>> _bucket_rows([Buckets(5, 10, 4)])[0, :10].tolist() == Buckets(5, 10, 4).range(0, 10).tolist()
    True
    """
    p, m, width = np.uint16(buckets[0].p), np.uint16(buckets[0].m), -(-buckets[0].d // SPAN) * SPAN
    factors = np.array([(bucket.a, bucket.c) for bucket in buckets], np.uint32)
    low = factors[:, :1] * np.arange(SPAN, dtype=np.uint32) % p
    high = (factors[:, :1] * np.arange(0, width, SPAN, dtype=np.uint32) + factors[:, 1:]) % p
    rows = low.astype(np.uint16)[:, None] + high.astype(np.uint16)[:, :, None]
    part = rows - p
    np.minimum(rows, part, out=rows)
    np.floor_divide(rows, m, out=part)
    part *= m
    rows -= part
    rows = rows.reshape(len(buckets), width)
    for row, bucket in zip(rows, buckets, strict=True):
        for j, end in bucket.walks:
            row[j] = end
    return rows


@cache
def _next_prime(d: int) -> int:
    """The first prime >= max(d, 3).

    >>> _next_prime(1), _next_prime(100), _next_prime(10**8)
    (3, 101, 100000007)
    """
    p = max(d, 3) | 1
    while not all(p % k for k in range(3, math.isqrt(p) + 1, 2)):
        p += 2
    return p


KEEP = 1 << 23
"""Up to this many non-zeros a map keeps its hashes for its round."""

STREAMED = 1 << 17
"""Non-zeros that are hashed at once where they are not kept."""

BLOCK = 1 << 20
"""Entries of dense rows that are signed and scattered at once."""


class _HashedMap(base.LiftsRanges):
    """Phi with `s` non-zeros +-scale[h_r(j)] in column j, r < s."""

    def __init__(self, space: Space, m: int, s: int, scale: Tensor):
        self.space, self.d, self.m, self.s = space, space.d, m, s
        self.scale = scale

    @abstractmethod
    def hashes(self, lo: int, hi: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Rows h_r(j) in [0, m) (int64) and signs +-1 of columns lo..hi-1, both s x (hi - lo)."""

    def forward(self, v: Tensor) -> Tensor:
        """Phi v by one signed scatter-add of v."""
        base._check_vector(self, v, "v", self.d)
        code = v.new_zeros(self.m)
        for lo, hi, bucket, sign in self.tables(0, self.d, v):
            code.scatter_add_(0, bucket.reshape(-1), (sign * v[lo:hi]).view(-1))
        return code * self.scales(code)

    def _adjoint(self, y: Tensor, start: int, stop: int) -> Tensor:
        """By one signed gather from y."""
        base._check_vector(self, y, "y", self.m)
        scaled, out = self._memo.latest("scaled", y, lambda: y * self.scales(y)), y.new_empty(stop - start)
        for lo, hi, bucket, sign in self.tables(start, stop, y):
            part = out[lo - start : hi - start]
            if self.s == 1:
                torch.index_select(scaled, 0, bucket[0], out=part).mul_(sign[0])
            else:
                torch.sum(scaled[bucket].mul_(sign), 0, out=part)
        return out

    def scales(self, like: Tensor) -> Tensor:
        """The scale of each row, in the dtype and on the device of `like`."""
        return self._memo.tensor("scale", lambda: self.scale, like.device, like.dtype)

    def rows(self, x: Stored, lo: int = 0) -> Tensor:
        """Codes of rows: CSR through a sparse product, dense by scatter-add in blocks that stay in cache."""
        hi = base._check_block(self, x, lo)
        if is_sparse(x):
            dtype = dtype_of(x)
            if self._keeps:
                whole = self._memo.keep(("csr", dtype), lambda: self.transposed(0, self.d, dtype))
                if hi - lo < self.d:
                    whole = whole[lo:hi]
                return torch.from_numpy((x @ whole).toarray())
            code, step = torch.zeros(x.shape[0], self.m, dtype=dtype), max(1, base.CHUNK_BYTES // (32 * self.s))
            for left in range(lo, hi, step):
                part = self.transposed(left, min(left + step, hi), dtype)
                code += torch.from_numpy((x[:, left - lo : left - lo + part.shape[0]] @ part).toarray())
            return code
        code = x.new_zeros(x.shape[0], self.m)
        for left, right, bucket, sign in self.tables(lo, hi, x):
            step = max(1, BLOCK // (right - left))
            for start in range(0, x.shape[0], step):
                part = x[start : start + step, left - lo : right - lo]
                for r in range(self.s):
                    code[start : start + step].scatter_add_(1, bucket[r].expand(part.shape), part * sign[r])
        return code * self.scales(code)

    def tables(self, lo: int, hi: int, like: Tensor) -> Iterator[tuple[int, int, Tensor, Tensor]]:
        """(left, right, rows, signs in the dtype of `like`) over ranges of columns."""

        def hashed(left: int, right: int) -> tuple[Tensor, Tensor]:
            bucket, sign = self.hashes(left, right, like.device)
            return bucket, sign.to(like.dtype)

        if self._keeps:
            bucket, sign = self._memo.keep(("hashes", like.device, like.dtype), lambda: hashed(0, self.d))
            yield lo, hi, bucket[:, lo:hi], sign[:, lo:hi]
        else:
            yield from ((left, right, *hashed(left, right)) for left, right in self._ranges(lo, hi))

    def transposed(self, lo: int, hi: int, dtype: torch.dtype = torch.float64) -> sp.csr_array:
        """Phi[:, lo:hi]' as a SciPy CSR matrix with s non-zeros a row."""
        bucket, sign = self.hashes(lo, hi, torch.device("cpu"))
        values = (sign * self.scale.to(dtype)[bucket]).T.reshape(-1).numpy()
        starts = np.arange(0, self.s * (hi - lo) + 1, self.s)
        return sp.csr_array((values, bucket.T.reshape(-1).numpy(), starts), shape=(hi - lo, self.m))

    def row_counts(self) -> Tensor:
        """How many non-zeros each row has (int64, m)."""
        counts = torch.zeros(self.m, dtype=torch.int64)
        for lo, hi in self._ranges(0, self.d):
            counts += torch.bincount(self.hashes(lo, hi, counts.device)[0].view(-1), minlength=self.m)
        return counts

    def _matrix_gain(self, ord: float) -> float:
        """A column holds s entries of one scale each, row b as many scale_b as it has columns."""
        if ord == 1:
            return self.s * float(self.scale.max())
        return float((self.row_counts() * self.scale).max())

    @property
    def _keeps(self) -> bool:
        return self.s * self.d <= KEEP

    def _ranges(self, lo: int, hi: int) -> list[tuple[int, int]]:
        step = max(1, STREAMED // self.s)
        return [(left, min(left + step, hi)) for left in range(lo, hi, step)]


Table = NDArray[np.uint16]

AHEAD = 8
"""Turns whose tables are made together in a loop: one call for several short rows costs little more than for one."""


@dataclass(frozen=True)
class CountSketch(_Scaled):
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

    def build(self, space: Space, key: int, t: int) -> base.Sketch:
        """The map of a key."""
        m = base.resolve(self.m, space.d, t)
        if self.scaling == "tight":
            return _BalancedMap(space, m, key)
        return _SparseMap(space, m, 1, key)

    def bind(self, context: base.Context, state: base.State) -> tuple[base.Sketch, base.State]:
        """Draw the map of the context's round; tables of short maps are made for the next rounds, too."""
        key = self._key(context.seed, context.t)
        sketch = self.build(context.space, key, context.t - context.t % self.refresh)
        if isinstance(sketch, _BalancedMap) and sketch._made_of[0] == key and not callable(self.m):
            block, place = divmod(context.t // self.refresh, AHEAD)
            sketch._ahead = lambda: _tables_of(self, context.seed, block, sketch.d, sketch.m)[place]
        return sketch, None


def _signed_tables(keys: Sequence[int], d: int, m: int) -> Table:
    """A row for each key of a tight map: h(j) plus m where the sign is -1; for a prime p(d) < `SHORT`."""
    table = _bucket_rows([Buckets(key, d, m) for key in keys])
    table += randomness.bit_rows([randomness.key(key, "signs") for key in keys], table.shape[1] // 32) * np.uint16(m)
    return table[:, :d]


@lru_cache(maxsize=4)
def _tables_of(encoder: CountSketch, seed: int, block: int, d: int, m: int) -> Table:
    """The tables of `AHEAD` turns."""
    first = block * AHEAD * encoder.refresh
    keys = [encoder._key(seed, first + k * encoder.refresh) for k in range(AHEAD)]
    return _signed_tables(keys, d, m)


@lru_cache(maxsize=4)
def _row_scales(d: int, m: int) -> Tensor:
    """sqrt((d/m) / n_b): the same for every round, as bucket sizes do not depend on the key."""
    with torch.inference_mode(False):  # it outlives whatever mode it is first asked for in
        return torch.sqrt(d / m / Buckets.sizes(d, m).double())


class _BalancedMap(_HashedMap):
    """A drawn tight count-sketch."""

    tight = True

    def __init__(self, space: Space, m: int, key: int):
        _check_dimension(space.d)
        self._sign_key, self._made_of = randomness.key(key, "signs"), (key, space.d, m)
        super().__init__(space, m, 1, _row_scales(space.d, m))
        self.coverage = m / space.d
        self._ahead: Callable[[], Table] | None = None

    def forward(self, v: Tensor) -> Tensor:
        """Phi v; a short map adds the entries of sign -1 into buckets of their own and subtracts those."""
        if not self._is_short(v):
            return super().forward(v)
        base._check_vector(self, v, "v", self.d)
        both = v.new_zeros(2 * self.m).scatter_add_(0, self._signed_buckets, v)
        code = both[: self.m] - both[self.m :]
        if self.d % self.m == 0:  # all buckets are equally long, and every scale is 1
            return code
        return code.mul_(self.scales(code))

    def _adjoint(self, y: Tensor, start: int, stop: int) -> Tensor:
        """Phi' y in columns start..stop-1; a short map reads from y and -y."""
        if not self._is_short(y):
            return super()._adjoint(y, start, stop)
        base._check_vector(self, y, "y", self.m)
        both = self._memo.tensor("both", lambda: torch.stack([self.scale, -self.scale]), y.device, y.dtype)
        signed = self._memo.latest("signed", y, lambda: (y * both).view(-1))
        places = self._signed_buckets
        if stop - start < self.d:
            places = places[start:stop]
        return signed.index_select(0, places)

    def _is_short(self, like: Tensor) -> bool:
        """Whether one table of signed buckets serves: elsewhere it costs more to make than it saves in a round."""
        return like.device.type == "cpu" and self._keeps and _next_prime(self.d) < SHORT

    @cached_property
    def _signed_buckets(self) -> Tensor:
        """h(j), plus m where the sign is -1, of a short map."""
        if self._ahead is not None:
            return torch.from_numpy(self._ahead().astype(np.int64))
        key, d, m = self._made_of
        return torch.from_numpy(_signed_tables([key], d, m)[0].astype(np.int64))

    def hashes(self, lo: int, hi: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Balanced buckets and signs, 1 x (hi - lo)."""
        buckets = self._memo.keep("buckets", lambda: Buckets(*self._made_of))
        return buckets.range(lo, hi, device)[None], randomness.sign_range(self._sign_key, lo, hi, device)[None]

    def row_counts(self) -> Tensor:
        """How many non-zeros each row has, whatever the key."""
        return Buckets.sizes(self.d, self.m)


@dataclass(frozen=True)
class SparseJL(base.Random):
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

    m: base.Size
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
        if self.s is None:
            return min(m, math.ceil(math.sqrt(m * log_d)))
        return min(m, math.ceil(log_d / self.beta**2))

    def build(self, space: Space, key: int, t: int) -> base.Sketch:
        """The map of a key."""
        m = base.resolve(self.m, space.d, t)
        return _SparseMap(space, m, self.sparsity(m, space.d), key)


class _SparseMap(_HashedMap):
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
        coarse = base.round_up(math.sqrt(int(self.row_counts().max())))
        if self.s == 1 or self.m > EIGEN_LIMIT:
            return coarse
        gram = torch.zeros(self.m, self.m, dtype=torch.float64)
        step = max(1, base.CHUNK_BYTES // (32 * self.s))
        for lo in range(0, self.d, step):
            part = self.transposed(lo, min(lo + step, self.d))
            gram += torch.from_numpy((part.T @ part).toarray())
        return min(coarse, _largest_singular(gram, self.d))


Shapes = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class TensorSketch(base.Random):
    """A count-sketch whose bucket of entry (i, j) is h_out(i) + h_in(j) mod m, its sign s_out(i) s_in(j).

    The code of an outer product is then a circular convolution of two short count-sketches (Pagh 2013):

        Phi vec(sum_t b_t a_t') = scale * irfft( sum_t rfft(S_out b_t) rfft(S_in a_t) ),

    in O(T (q + p + m log m)) work; the q x p product is never built.  All leaves share one code space.

    Hashes of a leaf of shape (q, p): h_in(j) = pi(j) and h_out(i) = c + s rho(i) mod m with keyed random permutations
    pi of [0, p) and rho of [0, q).  The stride s is the largest integer <= p that is prime to m, so that no two entries
    of a column meet as long as q <= m.  As s <= p, the buckets c + s x + y are a range of s (q - 1) + p numbers without
    a gap; the next leaf starts where it ends.  No bucket is empty when these ranges have m numbers or more; otherwise
    (m close to d) s = p, and they have d >= m.

    The number n_b of entries in bucket b depends on the shapes only; with scale_b^2 = (d/m) / n_b the rows are
    orthogonal and Phi Phi' = (d/m) I exactly.  All entries of a leaf have the same law, so that the coverage of a leaf
    is the mean of 1/n_b over its entries, known exactly.

    >>> sketch = TensorSketch(5).draw(Space.of({"hidden": (3, 4), "out": (2, 3)}))
    >>> phi = sketch.dense()
    >>> bool(torch.allclose(phi @ phi.T, 18 / 5 * torch.eye(5, dtype=phi.dtype)))
    True
    >>> a, b = torch.ones(1, 4), torch.tensor([[1.0, 2.0, 3.0]])
    >>> bool(torch.allclose(sketch.outer(a, b), sketch.rows((b.T @ a).reshape(1, 12)), atol=1e-5))
    True
    """

    m: base.Size

    def build(self, space: Space, key: int, t: int) -> base.Sketch:
        """The map of a key."""
        return _TensorMap(space, base.resolve(self.m, space.d, t), key)


@lru_cache(maxsize=8)
def _layout(shapes: Shapes, m: int) -> tuple[list[int], list[int], Tensor, list[float]]:
    """What shapes and m settle: a start c and a stride s for each leaf, bucket sizes, the mean of 1/n_b over a leaf."""
    strides = [next(s for s in range(p, 0, -1) if math.gcd(s, m) == 1) for _, p in shapes]  # the largest prime to m
    if sum(s * (q - 1) + p for (q, p), s in zip(shapes, strides, strict=True)) < m:
        strides = [p for _, p in shapes]
    starts, end = [], 0
    for (q, p), s in zip(shapes, strides, strict=True):
        starts.append(end % m)
        end += s * (q - 1) + p
    leaves = list(zip(shapes, starts, strides, strict=True))
    counts = sum((_counts(*shape, m, c, s) for shape, c, s in leaves), torch.zeros(m, dtype=torch.int64))
    shares = [float((_counts(*shape, m, c, s) / counts.double()).sum()) / math.prod(shape) for shape, c, s in leaves]
    if int(counts.min()) == int(counts.max()):
        shares = [1 / int(counts[0])] * len(shapes)
    return starts, strides, counts, shares


def _counts(q: int, p: int, m: int, start: int, stride: int) -> Tensor:
    """How often each bucket occurs among (start + stride x + y) mod m, x < q, y < p: q windows on a circle.

    >>> _counts(2, 3, 4, 1, 3).tolist()
    [1, 2, 2, 1]
    """
    first = (start + stride * torch.arange(q)) % m
    last = first + p % m
    edges = torch.bincount(first, minlength=m) - torch.bincount(last % m, minlength=m)
    return edges.cumsum(0) + (last >= m).sum() + q * (p // m)


class _TensorMap(_HashedMap):
    """A drawn tensor sketch."""

    tight = True

    def __init__(self, space: Space, m: int, key: int):
        shapes = [matrix_shape(leaf) for leaf in space.leaves]
        starts, strides, self.counts, self._shares = _layout(tuple(shapes), m)
        super().__init__(space, m, 1, torch.sqrt(space.d / m / self.counts.double()))
        self._shapes = {leaf.start: shape for leaf, shape in zip(space.leaves, shapes, strict=True)}
        self._sides: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        for leaf, (q, p), c, s in zip(space.leaves, shapes, starts, strides, strict=True):
            for side, size, start, stride in ((0, q, c, s), (1, p, 0, 1)):
                own = randomness.key(key, leaf.name, side)
                image = Permutation(randomness.key(own, "buckets"), size)(torch.arange(size))
                signs = randomness.sign_range(randomness.key(own, "signs"), 0, size)
                self._sides[leaf.start, side] = (start + stride * image) % m, signs

    @cached_property
    def coverage(self) -> float | Tensor:  # type: ignore[override]
        """E[Phi^+ Phi]: the mean of 1/n_b over the entries of each leaf."""
        return base._coverage_of_leaves(self.space, self._shares)

    def hashes(self, lo: int, hi: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Buckets and signs of columns lo..hi-1, from those of the two sides."""
        buckets, signs = [], []
        for leaf, left, right in self.space.overlaps(lo, hi):
            index = torch.arange(left - leaf.start, right - leaf.start, device=device)
            p = self._shapes[leaf.start][1]
            places = index // p, index % p
            first, second = ([x[at] for x in self._side(leaf.start, i, device)] for i, at in enumerate(places))
            buckets.append((first[0] + second[0]) % self.m)
            signs.append(first[1] * second[1])
        return torch.cat(buckets).unsqueeze(0), torch.cat(signs).unsqueeze(0)

    def outer(self, a: Stored, b: Tensor, lo: int = 0) -> Tensor:
        """Codes of the rows vec(sum_t b_t a_t') of a whole leaf, a few rows at a time: one inverse transform a row."""
        if self._shapes.get(lo) != (b.shape[-1], a.shape[-1]):
            return super().outer(a, b, lo)
        positions = 1 if b.ndim == 2 else b.shape[1]
        step = max(1, base.CHUNK_BYTES // (4 * b.element_size() * positions * self.m))
        codes = [b.new_zeros(0, self.m)]
        for start in range(0, b.shape[0], step):
            left = torch.fft.rfft(self._sketched(b[start : start + step], lo, 0, b.dtype))
            product = left.mul_(torch.fft.rfft(self._sketched(a[start : start + step], lo, 1, b.dtype)))
            if b.ndim == 3:
                product = product.sum(1)
            codes.append(torch.fft.irfft(product, n=self.m))
        return torch.cat(codes) * self.scales(b)

    def _sketched(self, x: Stored, start: int, side: int, dtype: torch.dtype) -> Tensor:
        """S x for the last axis of one side of a leaf: signed sums in m buckets."""
        if is_sparse(x):
            places, signs = (table.numpy() for table in self._side(start, side, torch.device("cpu")))
            size = len(places)
            table = sp.csr_array((signs.astype(x.dtype), places, np.arange(size + 1)), (size, self.m))
            return torch.from_numpy((x @ table).toarray()).to(dtype)
        bucket, sign = self._side(start, side, x.device, dtype)
        signed = x.to(dtype) * sign
        return signed.new_zeros(*x.shape[:-1], self.m).scatter_add_(-1, bucket.expand(x.shape), signed)

    def _side(
        self, start: int, side: int, device: torch.device, dtype: torch.dtype = torch.int8
    ) -> tuple[Tensor, Tensor]:
        """Buckets and signs of one side of the leaf that starts there."""
        bucket, sign = self._sides[start, side]
        buckets = self._memo.tensor((start, side, "buckets"), lambda: bucket, device)
        return buckets, self._memo.tensor((start, side, "signs"), lambda: sign, device, dtype)

    def row_counts(self) -> Tensor:
        """How many non-zeros each row has: the shapes and m settle it."""
        return self.counts
