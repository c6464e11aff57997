"""Sketches that pick: random subsets and blocks of coordinates, and rows of an orthonormal transform.

The subsampled randomised Hadamard transform is exactly tight for every d and m.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
import torch
from scipy.fft import dct
from scipy.linalg import hadamard
from torch import Tensor

from isthmus.base import randomness, validate
from isthmus.base.matrix import Stored, code_room, is_sparse, to_dense
from isthmus.base.space import Space
from isthmus.gradients.rows import Rows
from isthmus.sketches import base
from isthmus.sketches.hashed import Permutation


class SelectionMap(base.Sketch):
    """x -> scale * x[index] for distinct sorted indices: Phi Phi' = scale^2 I.

    Codes are chosen coordinates: the others are missing, so that a lift divides by the coverage.
    """

    tight = apart = True

    def __init__(self, space: Space, index: Tensor, scale: float, coverage: float | Tensor):
        self.space, self.d, self.m = space, space.d, len(index)
        self.index, self.scale, self.coverage = index.cpu(), scale, coverage
        self.norm = scale
        if scale != 1.0:
            self.norm = base.round_up(scale, 4)

    def adjoint(self, y: Tensor) -> Tensor:
        """y * scale in its places, zero elsewhere."""
        base._check_vector(self, y, "y", self.m)
        out = y.new_zeros(self.d)
        out[self._at(y.device)] = y * self.scale
        return out

    def adjoint_leaf(self, name: str, y: Tensor) -> Tensor:
        """One leaf, from the part of the code that it owns."""
        base._check_vector(self, y, "y", self.m)
        places = self._owned(name)
        if places.start == places.stop:
            return y.new_zeros(self.space[name].size)
        return self._single(name).adjoint(y[places])

    def rows(self, x: Stored, lo: int = 0) -> Tensor:
        """The chosen columns of the block."""
        places, local = self._inside(lo, base._check_block(self, x, lo))
        code = code_room(x, self.m)
        if is_sparse(x):
            read = to_dense(x[:, local.numpy()])
        else:
            read = x[:, self._memo.tensor((lo, places.stop), lambda: local, code.device)]
        code[:, places] = read * self.scale
        return code

    def outer(self, a: Stored, b: Tensor, lo: int = 0) -> Tensor:
        """sum_t b_t[j // p] a_t[j % p] for the chosen j only: the products are never built."""
        p = a.shape[-1]
        places, local = self._inside(lo, lo + p * b.shape[-1])
        left = self._memo.tensor((lo, places.stop, p, 0), lambda: local // p, b.device)
        right = self._memo.tensor((lo, places.stop, p, 1), lambda: local % p, b.device)
        code = b.new_zeros(b.shape[0], self.m)
        step = max(1, base.CHUNK_BYTES // (16 * max(1, len(local)) * (1 if b.ndim == 2 else b.shape[1])))
        for start in range(0, b.shape[0], step):
            rows = slice(start, start + step)
            read = to_dense(a[rows][:, right.cpu().numpy()]) if is_sparse(a) else a[rows][..., right]
            product = b[rows][..., left] * read.to(b.dtype)
            code[rows, places] = (product if product.ndim == 2 else product.sum(1)) * self.scale
        return code

    def leaf(self, name: str, rows: Rows) -> Rows | None:
        """A leaf owns a part of the code: a whole one the scaled rows themselves, one outside the subset None."""
        places = self._owned(name)
        if places.start == places.stop:
            return None
        if places.stop - places.start == self.space[name].size:
            if self.scale == 1.0:
                return rows
            return rows.scaled(self.scale)
        return rows.through(self._single(name), 0)

    def stretch(self, like: Tensor) -> Tensor:
        """The diagonal of Phi^+ Phi / coverage: 1 / p_j on the chosen coordinates, 0 on the others."""
        at, out = self._at(like.device), like.new_zeros(self.d)
        share = self.coverage
        if isinstance(share, Tensor):
            share = share.to(like)[at]
        out[at] = 1 / share
        return out

    def _at(self, device: torch.device) -> slice | Tensor:
        """The index, as a slice where it is one: a slice is read without a gather."""
        if self._range is not None:
            return self._range
        return self._memo.tensor("index", lambda: self.index, device)

    @cached_property
    def _range(self) -> slice | None:
        first, last = (int(self.index[i]) for i in (0, -1))
        if last - first + 1 != self.m:
            return None
        return slice(first, last + 1)

    def _owned(self, name: str) -> slice:
        """The places of the code that a leaf feeds."""
        where = self.space.slice(name)
        return self._inside(where.start, where.stop)[0]

    def _single(self, name: str) -> SelectionMap:
        """The part of one leaf, as a map of its own."""
        if len(self.space.leaves) == 1:
            return self
        where, own = self.space.slice(name), Space.of({name: self.space.shape(name)})
        local = self._inside(where.start, where.stop)[1]
        return self._memo.keep(("one", name), lambda: SelectionMap(own, local, self.scale, 1.0))

    def _inside(self, lo: int, hi: int) -> tuple[slice, Tensor]:
        """Which codes columns lo..hi-1 feed, and from which of them; the search runs on the CPU."""
        first, last = torch.searchsorted(self.index, torch.tensor([lo, hi])).tolist()
        return slice(first, last), self.index[first:last] - lo

    def gain(self, ord: float) -> float:
        """The scale, for every norm."""
        validate.one_of((1, 2, math.inf), ord=ord)
        if self.scale == 1.0:
            return self.norm
        return base._as_applied(self.norm, 1, 1)


@dataclass(frozen=True)
class Coordinates(base.Random):
    """m random coordinates times sqrt(d/m): Phi Phi' = (d/m) I and E[Phi' Phi] = I.

    >>> sorted(Coordinates(4).draw(4).forward(torch.arange(4.0)).tolist())
    [0.0, 1.0, 2.0, 3.0]
    """

    m: base.Size

    def build(self, space: Space, key: int, t: int) -> base.Sketch:
        """The map of a key."""
        m = base.resolve(self.m, space.d, t)
        return SelectionMap(space, Permutation(key, space.d).first(m), math.sqrt(space.d / m), m / space.d)


@dataclass(frozen=True, eq=False)
class Nice(base.Random):
    """x -> x[U] / C_U for a uniformly random tau-subset U: the tau-nice sampling.

    `bounds` are per-coordinate bounds c_j and C_U = sqrt(sum_{j in U} c_j^2), so that a gradient with
    |g_j| <= c_j has a code of length at most 1; without them C_U = 1.  Coverage is tau / d.

    >>> sketch = Nice(2, bounds=[3.0, 3.0, 3.0]).draw(3)
    >>> sketch.m, round(sketch.norm * 18**0.5, 9), round(sketch.coverage, 3)
    (2, 1.0, 0.667)
    """

    tau: int
    bounds: object = None

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.positive_int(tau=self.tau)

    def build(self, space: Space, key: int, t: int) -> base.Sketch:
        """The subset of a key."""
        validate.at_most(space.d, "the dimension d", tau=self.tau)
        chosen = Permutation(key, space.d).first(self.tau)
        bound = 1.0
        if self.bounds is not None:
            bound = float(_positive("bounds", self.bounds, space.d)[chosen].square().sum().sqrt())
        return SelectionMap(space, chosen, 1 / bound, self.tau / space.d)


@dataclass(frozen=True, eq=False)
class Blocks(base.Random):
    """x -> x[S] / C_S for one of several subsets S of [0, d), drawn with probability p_S.

    `blocks` is a number of (nearly) equal blocks, or a list of index tensors, slices, leaf names and lists of leaf
    names that together hold every coordinate; they may overlap.  A block of whole leaves keeps their rows factored.
    `bounds` are the C_S (default 1), `probs` the p_S (default uniform); both are public.  The map is tight with norm
    1/C_S, and the coverage of a coordinate is the sum of p_S over its blocks, so that pinv / coverage is unbiased.

    >>> sketch = Blocks([slice(0, 2), slice(2, 6)], bounds=[1.0, 2.0], probs=[0.0001, 0.9999]).draw(6)
    >>> sketch.m, sketch.norm * 2 > 1 - 1e-9, sketch.coverage.tolist()[0]
    (4, True, 0.0001)
    """

    blocks: int | Sequence[object]
    bounds: object = None
    probs: object = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.blocks, (int, np.integer)):
            validate.positive_int(blocks=self.blocks)
        count = self.count
        validate.check(count > 0, "blocks", self.blocks, "give at least one block")
        if self.bounds is not None:
            _positive("bounds", self.bounds, count)
        if self.probs is not None:
            total = float(_positive("probs", self.probs, count).sum())
            validate.check(abs(total - 1) < 1e-6, "sum(probs)", total, "give probabilities that sum to 1")

    @property
    def count(self) -> int:
        """The number of blocks."""
        if isinstance(self.blocks, (int, np.integer)):
            return int(self.blocks)
        return len(self.blocks)

    def build(self, space: Space, key: int, t: int) -> base.Sketch:
        """The block of a key."""
        partition, uniform = _partition(self, space), key / 2.0**64
        drawn = int(uniform * self.count)
        if partition.cumulative is not None:
            drawn = int(torch.searchsorted(partition.cumulative, uniform, right=True))
        drawn = min(drawn, self.count - 1)
        bound = 1.0
        if self.bounds is not None:
            bound = float(_positive("bounds", self.bounds, self.count)[drawn])
        return SelectionMap(space, partition.block(drawn), 1 / bound, partition.coverage)


class _Partition(NamedTuple):
    """Blocks of a space: the i-th, the sums of their probabilities where these differ, and how often each is drawn."""

    block: Callable[[int], Tensor]
    cumulative: Tensor | None
    coverage: float | Tensor


@lru_cache(maxsize=8)
def _partition(recipe: Blocks, space: Space) -> _Partition:
    d, count, apart = space.d, recipe.count, True
    if isinstance(recipe.blocks, (int, np.integer)):
        validate.at_most(d, "the dimension d", blocks=count)

        def block(i: int) -> Tensor:
            return torch.arange(i * d // count, (i + 1) * d // count)
    else:
        blocks = [_indices(space, given) for given in recipe.blocks]
        whole = torch.cat(blocks)

        def block(i: int) -> Tensor:
            return blocks[i]

        apart = len(whole) == d
        covers = all(map(len, blocks)) and torch.equal(whole.unique(), torch.arange(d))
        once = all(len(part.unique()) == len(part) for part in blocks)
        remedy = f"give blocks of the indices 0 to {d - 1}: none empty, each index once in a block and in one at least"
        validate.check(covers and once, "blocks", recipe.blocks, remedy)
    if recipe.probs is None and apart:
        return _Partition(block, None, 1 / count)
    probs = torch.ones(count).double()
    if recipe.probs is not None:
        probs = _positive("probs", recipe.probs, count)
    coverage = torch.zeros(d, dtype=torch.float64)
    for i, share in enumerate(probs / probs.sum()):
        coverage[block(i)] += share
    return _Partition(block, (probs / probs.sum()).cumsum(0), coverage)


def _indices(space: Space, block: object) -> Tensor:
    """The sorted indices of a block: a slice, the name of a leaf, a list of names, or indices."""
    if isinstance(block, slice):
        return torch.arange(space.d)[block]
    if isinstance(block, str):
        block = [block]
    if isinstance(block, (list, tuple)) and any(isinstance(entry, str) for entry in block):
        named = all(isinstance(entry, str) for entry in block)
        validate.check(named, "blocks", block, "give a block as names of leaves or as indices, not as both")
        block = torch.cat([torch.arange(where.start, where.stop) for where in map(space.slice, block)])
    return torch.as_tensor(block, dtype=torch.int64).reshape(-1).sort().values


def _positive(name: str, values: object, count: int) -> Tensor:
    """A float64 vector of `count` positive numbers."""
    tensor = validate.as_tensor(name, values, ndim=1).to(torch.float64)
    validate.check(len(tensor) == count, f"len({name})", len(tensor), f"give {count} numbers, one for each block")
    validate.check(bool((tensor > 0).all()), name, values, "give numbers above 0")
    return tensor


LARGEST = 1 << 20
SMALLEST = 1 << 9


@dataclass(frozen=True)
class SRHT(base.Random):
    """Phi = sqrt(d/m) R blockdiag(H_1, ..., H_b) D: random signs D, orthonormal transforms H, m random rows R.

    The blocks depend on d only: Walsh-Hadamard blocks of size 2^20, then powers of two >= 512, then one dense cosine
    transform of size 512 to 1023 for what is left (d < 1024: a single cosine transform).  No padding, so
    Phi Phi' = (d/m) I for every d and m, in O(d log d) work and memory of a few blocks.

    >>> phi = SRHT(4).draw(10).dense()
    >>> bool(torch.allclose(phi @ phi.T, 2.5 * torch.eye(4, dtype=phi.dtype)))
    True
    """

    m: base.Size

    def build(self, space: Space, key: int, t: int) -> base.Sketch:
        """The map of a key."""
        return _HadamardMap(space, base.resolve(self.m, space.d, t), key)


class _HadamardMap(base.Sketch):
    """A drawn SRHT."""

    tight = True

    def __init__(self, space: Space, m: int, key: int):
        self.space, self.d, self.m = space, space.d, m
        self.coverage = m / self.d
        self._sign_key = randomness.key(key, "signs")
        chosen = Permutation(randomness.key(key, "rows"), self.d).first(m)
        self._blocks, start = [], 0
        for size in _block_sizes(self.d):
            first, last = torch.searchsorted(chosen, torch.tensor([start, start + size])).tolist()
            self._blocks.append(_Block(start, size, slice(first, last), chosen[first:last] - start))
            start += size

    def adjoint(self, y: Tensor) -> Tensor:
        """Phi' y, block by block."""
        base._check_vector(self, y, "y", self.m)
        out, scaled = y.new_zeros(self.d), y * math.sqrt(self.d / self.m)
        for block in self._blocks:
            if len(block.chosen):
                part = y.new_zeros(1, block.size)
                part[0, self._chosen(block, y.device)] = scaled[block.code]
                where = slice(block.start, block.start + block.size)
                torch.mul(block.transform(part, adjoint=True)[0], self._signs(block, y), out=out[where])
        return out

    def rows(self, x: Stored, lo: int = 0) -> Tensor:
        """Codes of rows, a block of columns and about `CHUNK_BYTES` at a time."""
        hi = base._check_block(self, x, lo)
        code = code_room(x, self.m)
        for block in self._blocks:
            left, right = max(lo, block.start), min(hi, block.start + block.size)
            if left >= right or not len(block.chosen):
                continue
            chosen = self._chosen(block, code.device)
            signs = self._signs(block, code)[left - block.start : right - block.start]
            step = max(1, base.CHUNK_BYTES // (32 * block.size))
            for start in range(0, x.shape[0], step):
                signed = to_dense(x[start : start + step, left - lo : right - lo]) * signs
                if right - left < block.size:
                    signed = torch.nn.functional.pad(signed, (left - block.start, block.start + block.size - right))
                code[start : start + step, block.code] = block.transform(signed)[:, chosen]
        return code.mul_(math.sqrt(self.d / self.m))

    def _signs(self, block: _Block, like: Tensor) -> Tensor:
        return randomness.sign_range(self._sign_key, block.start, block.start + block.size, like.device).to(like.dtype)

    def _chosen(self, block: _Block, device: torch.device) -> Tensor:
        return self._memo.tensor(block.start, lambda: block.chosen, device)

    def _matrix_gain(self, ord: float) -> float:
        """Exact: entries are +-1/sqrt(B) in a Hadamard block of size B, and a cosine block is small."""
        return math.sqrt(self.d / self.m) * max(block.gain(ord) for block in self._blocks if len(block.chosen))


@dataclass(frozen=True)
class _Block:
    """Columns start..start+size-1 and the rows that were chosen among theirs."""

    start: int
    size: int
    code: slice
    chosen: Tensor

    @property
    def is_hadamard(self) -> bool:
        return self.size >= SMALLEST and self.size & (self.size - 1) == 0

    def gain(self, ord: float) -> float:
        """The largest column sum (ord 1) or row sum (ord inf) of the chosen rows' absolute values."""
        if not self.is_hadamard:
            sums = _cosine_matrix(self.size)[self.chosen].abs().sum({1: 0, math.inf: 1}[ord])
            return float(sums.max())
        if ord == 1:
            return len(self.chosen) / math.sqrt(self.size)
        return math.sqrt(self.size)

    def transform(self, x: Tensor, adjoint: bool = False) -> Tensor:
        """The orthonormal transform (or its transpose) of each row of x."""
        if self.is_hadamard:
            return _walsh_hadamard(x)
        matrix = _cosine_matrix(self.size, x.dtype, x.device)
        if adjoint:
            return x @ matrix
        return x @ matrix.T


def _block_sizes(d: int) -> list[int]:
    """The sizes of the transforms for dimension d.

    >>> _block_sizes(997), _block_sizes(1500), _block_sizes(2**20 + 1), _block_sizes(2**12)
    ([997], [512, 988], [524288, 262144, 131072, 65536, 32768, 16384, 8192, 4096, 2048, 1024, 512, 513], [4096])
    """
    if d < 2 * SMALLEST:
        return [d]
    rest = d % (2 * SMALLEST)
    powers = [LARGEST] * (d // LARGEST)
    powers += [1 << bit for bit in range(19, 9, -1) if d % LARGEST >> bit & 1]
    if 0 < rest < SMALLEST:
        last, rest = powers.pop(), rest + SMALLEST
        while last > SMALLEST:
            last //= 2
            powers.append(last)
    return powers + [rest] * (rest > 0)


def _walsh_hadamard(x: Tensor) -> Tensor:
    """The orthonormal Walsh-Hadamard transform of each row (length a power of two), as products with 32 x 32 factors.

    Each product also rotates one digit of the index to the end, so that after all of them the order is natural.

    >>> _walsh_hadamard(torch.tensor([[1.0, 0.0, 0.0, 0.0], [1.0, 2.0, 0.0, 0.0]])).tolist()
    [[0.5, 0.5, 0.5, 0.5], [1.5, -0.5, 1.5, -0.5]]
    """
    n, size = x.shape
    source, target, spare = x.contiguous(), torch.empty_like(x), torch.empty_like(x)
    left = size
    while left > 1:
        width = min(32, left)
        digits = source.view(n, width, size // width).transpose(1, 2)
        torch.matmul(digits, _hadamard_matrix(width, x.dtype, x.device), out=target.view(n, size // width, width))
        source, target, spare = target, spare, target
        left //= width
    return source


@lru_cache(maxsize=64)
def _hadamard_matrix(size: int, dtype: torch.dtype = torch.float64, device: torch.device | str = "cpu") -> Tensor:
    """The orthonormal Sylvester-Hadamard matrix."""
    return torch.from_numpy(hadamard(size) / math.sqrt(size)).to(device, dtype)


@lru_cache(maxsize=64)
def _cosine_matrix(size: int, dtype: torch.dtype = torch.float64, device: torch.device | str = "cpu") -> Tensor:
    """The orthonormal cosine transform (DCT-II): rows sqrt(2/size) cos(pi i (2j + 1) / (2 size)), row 0 constant."""
    return torch.from_numpy(dct(np.eye(size), axis=0, norm="ortho")).to(device, dtype)
