"""The subsampled randomised Hadamard transform, exactly tight for every d and m."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from isthmus.base import randomness
from isthmus.base.matrix import Stored, code_room, to_dense
from isthmus.base.space import Space
from isthmus.sketches import base
from isthmus.sketches.base import Random, Size, Sketch, _check_block, _check_vector, resolve
from isthmus.sketches.bijections import Permutation

LARGEST = 1 << 20
SMALLEST = 1 << 9


@dataclass(frozen=True)
class SRHT(Random):
    """Phi = sqrt(d/m) R blockdiag(H_1, ..., H_b) D: random signs D, orthonormal transforms H, m random rows R.

    The blocks depend on d only: Walsh-Hadamard blocks of size 2^20, then powers of two >= 512, then one dense cosine
    transform of size 512 to 1023 for what is left (d < 1024: a single cosine transform).  No padding, so
    Phi Phi' = (d/m) I for every d and m, in O(d log d) work and memory of a few blocks.

    >>> phi = SRHT(4).draw(10).dense()
    >>> bool(torch.allclose(phi @ phi.T, 2.5 * torch.eye(4, dtype=phi.dtype)))
    True
    """

    m: Size

    def build(self, space: Space, key: int, t: int) -> Sketch:
        """The map of a key."""
        return _HadamardMap(space, resolve(self.m, space.d, t), key)


class _HadamardMap(Sketch):
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
        _check_vector(self, y, "y", self.m)
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
        hi = _check_block(self, x, lo)
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
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while len(matrix) < size:
        matrix = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64), matrix)
    return (matrix / math.sqrt(size)).to(device, dtype)


@lru_cache(maxsize=64)
def _cosine_matrix(size: int, dtype: torch.dtype = torch.float64, device: torch.device | str = "cpu") -> Tensor:
    """The orthonormal cosine transform (DCT-II): rows sqrt(2/size) cos(pi i (2j + 1) / (2 size)), row 0 constant."""
    i, j = torch.arange(size, dtype=torch.int64)[:, None], torch.arange(size, dtype=torch.int64)
    angle = (i * (2 * j + 1) % (4 * size)).to(torch.float64) * (math.pi / (2 * size))
    matrix = torch.cos(angle) * math.sqrt(2 / size)
    matrix[0] = 1 / math.sqrt(size)
    return matrix.to(device, dtype)
