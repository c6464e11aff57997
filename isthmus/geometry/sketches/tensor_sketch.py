"""Tensor sketch: a count-sketch of matrices whose codes of outer products come from a fast Fourier transform."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from isthmus.base import randomness
from isthmus.base.matrix import Stored, is_sparse
from isthmus.base.space import Space
from isthmus.geometry.sketches import base
from isthmus.geometry.sketches.base import Random, Size, Sketch, resolve, spread
from isthmus.geometry.sketches.bijections import Permutation
from isthmus.geometry.sketches.hashed import HashedMap
from isthmus.geometry.sketches.kronecker import matrix_shape

Shapes = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class TensorSketch(Random):
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

    m: Size

    def build(self, space: Space, key: int, t: int) -> Sketch:
        """The map of a key."""
        return TensorMap(space, resolve(self.m, space.d, t), key)


@dataclass(frozen=True)
class _Layout:
    """What the shapes of the leaves and m settle: a start c and a stride s for each leaf, and the bucket sizes."""

    starts: tuple[int, ...]
    strides: tuple[int, ...]
    counts: Tensor
    shares: tuple[float, ...]


@lru_cache(maxsize=8)
def _layout(shapes: Shapes, m: int) -> _Layout:
    strides = [_coprime(p, m) for _, p in shapes]
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
    return _Layout(tuple(starts), tuple(strides), counts, tuple(shares))


def _coprime(p: int, m: int) -> int:
    """The largest integer in [1, p] that is prime to m."""
    return next(s for s in range(p, 0, -1) if math.gcd(s, m) == 1)


def _counts(q: int, p: int, m: int, start: int, stride: int) -> Tensor:
    """How often each bucket occurs among (start + stride x + y) mod m, x < q, y < p: q windows on a circle.

    >>> _counts(2, 3, 4, 1, 3).tolist()
    [1, 2, 2, 1]
    """
    first = (start + stride * torch.arange(q)) % m
    last = first + p % m
    edges = torch.bincount(first, minlength=m) - torch.bincount(last % m, minlength=m)
    return edges.cumsum(0) + (last >= m).sum() + q * (p // m)


class TensorMap(HashedMap):
    """A drawn tensor sketch."""

    tight = True

    def __init__(self, space: Space, m: int, key: int):
        shapes = [matrix_shape(leaf) for leaf in space.leaves]
        self.layout = _layout(tuple(shapes), m)
        super().__init__(space, m, 1, torch.sqrt(space.d / m / self.layout.counts.double()))
        self._shapes = {leaf.start: shape for leaf, shape in zip(space.leaves, shapes, strict=True)}
        self._sides: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        for leaf, (q, p), c, s in zip(space.leaves, shapes, self.layout.starts, self.layout.strides, strict=True):
            for side, size, start, stride in ((0, q, c, s), (1, p, 0, 1)):
                own = randomness.key(key, leaf.name, side)
                image = Permutation(randomness.key(own, "buckets"), size)(torch.arange(size))
                signs = randomness.sign_range(randomness.key(own, "signs"), 0, size)
                self._sides[leaf.start, side] = (start + stride * image) % m, signs

    @cached_property
    def coverage(self) -> float | Tensor:  # type: ignore[override]
        """E[Phi^+ Phi]: the mean of 1/n_b over the entries of each leaf."""
        return spread(self.space, self.layout.shares)

    def hashes(self, lo: int, hi: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Buckets and signs of columns lo..hi-1, from those of the two sides."""
        buckets, signs = [], []
        for leaf in self.space.leaves:
            left, right = max(lo, leaf.start), min(hi, leaf.start + leaf.size)
            if left < right:
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
            codes.append(torch.fft.irfft(product if b.ndim == 2 else product.sum(1), n=self.m))
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
        buckets = self.once((start, side, "buckets"), lambda: bucket, device)
        return buckets, self.once((start, side, "signs"), lambda: sign, device, dtype)

    def _matrix_gain(self, ord: float) -> float:
        """A column holds one scale_b; row b has l1 norm n_b scale_b = sqrt(n_b d/m)."""
        if ord == 1:
            return float(self.scale.max())
        return math.sqrt(int(self.layout.counts.max()) * self.d / self.m)

    def describe(self) -> str:
        """One sentence for reports."""
        return f"a tensor sketch of {len(self._shapes)} leaves: {self.m} numbers for {self.d} parameters"
