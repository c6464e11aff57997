"""Sparse sketches with s signed non-zeros a column, found by hashing: count-sketch and sparse JL share this map."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from isthmus.matrix import Matrix, dtype_of, is_sparse
from isthmus.sketches import base
from isthmus.sketches.base import Sketch, check_block, check_vector
from isthmus.space import Space

RANGE = 1 << 16
"""Hashes computed at once when they are not kept."""
KEEP = 1 << 23
"""Up to this many non-zeros a map keeps its hashes for its round."""
BLOCK = 1 << 20
"""Entries of dense rows that are signed and scattered at once."""


class HashedMap(Sketch):
    """Phi with `s` non-zeros +-scale[h_r(j)] in column j, r < s."""

    def __init__(self, space: Space, m: int, s: int, scale: Tensor):
        self.space, self.d, self.m, self.s = space, space.d, m, s
        self.scale = scale
        self._kept: dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor]] = {}

    @abstractmethod
    def hashes(self, lo: int, hi: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Rows h_r(j) in [0, m) (int64) and signs +-1 of columns lo..hi-1, both s x (hi - lo)."""

    def forward(self, v: Tensor) -> Tensor:
        """Phi v by one signed scatter-add of v."""
        check_vector(self, v, "v", self.d)
        code = v.new_zeros(self.m)
        for lo, hi in self._ranges():
            bucket, sign = self._table(lo, hi, v)
            code.scatter_add_(0, bucket.view(-1), (sign * v[lo:hi]).view(-1))
        return code * self.scale.to(code)

    def adjoint(self, y: Tensor) -> Tensor:
        """Phi' y by one signed gather from y."""
        check_vector(self, y, "y", self.m)
        scaled = y * self.scale.to(y)
        out = y.new_empty(self.d)
        for lo, hi in self._ranges():
            bucket, sign = self._table(lo, hi, y)
            read = torch.index_select(scaled, 0, bucket.view(-1)).view(sign.shape).mul_(sign)
            out[lo:hi] = read[0] if self.s == 1 else read.sum(0)
        return out

    def rows(self, x: Matrix, lo: int = 0) -> Tensor:
        """Codes of rows: CSR through a sparse product, dense by scatter-add in blocks that stay in cache."""
        hi = check_block(self, x, lo)
        if is_sparse(x):
            return self._sparse_rows(x, lo, hi)
        code = x.new_zeros(x.shape[0], self.m)
        for left, right in self._ranges(lo, hi):
            bucket, sign = self._table(left, right, x)
            step = max(1, BLOCK // (right - left))
            for start in range(0, x.shape[0], step):
                part = x[start : start + step, left - lo : right - lo]
                for r in range(self.s):
                    code[start : start + step].scatter_add_(1, bucket[r].expand(part.shape), part * sign[r])
        return code * self.scale.to(code)

    def transposed(self, lo: int, hi: int, dtype: torch.dtype = torch.float64) -> sp.csr_array:
        """Phi[:, lo:hi]' as a SciPy CSR matrix with s non-zeros a row."""
        bucket, sign = self._table(lo, hi, torch.empty(0, dtype=dtype))
        values = (sign * self.scale.to(dtype)[bucket]).T.reshape(-1).numpy()
        starts = np.arange(0, self.s * (hi - lo) + 1, self.s)
        return sp.csr_array((values, bucket.T.reshape(-1).numpy(), starts), shape=(hi - lo, self.m))

    def row_counts(self) -> Tensor:
        """How many non-zeros each row has (int64, m)."""
        counts = torch.zeros(self.m, dtype=torch.int64)
        for lo, hi in self._ranges():
            counts += torch.bincount(self.hashes(lo, hi, counts.device)[0].view(-1), minlength=self.m)
        return counts

    @cached_property
    def _whole_csr(self) -> dict[torch.dtype, sp.csr_array]:
        return {}

    def _sparse_rows(self, x: Matrix, lo: int, hi: int) -> Tensor:
        dtype = dtype_of(x)
        if self._keeps:
            if dtype not in self._whole_csr:
                self._whole_csr[dtype] = self.transposed(0, self.d, dtype)
            whole = self._whole_csr[dtype]
            return torch.from_numpy((x @ (whole if hi - lo == self.d else whole[lo:hi])).toarray())
        code = torch.zeros(x.shape[0], self.m, dtype=dtype)
        step = max(1, base.CHUNK_BYTES // (32 * self.s))
        for left in range(lo, hi, step):
            right = min(left + step, hi)
            code += torch.from_numpy((x[:, left - lo : right - lo] @ self.transposed(left, right, dtype)).toarray())
        return code

    @property
    def _keeps(self) -> bool:
        return self.s * self.d <= KEEP

    def _ranges(self, lo: int = 0, hi: int | None = None) -> list[tuple[int, int]]:
        hi = self.d if hi is None else hi
        step = max(1, hi - lo if self._keeps else RANGE // self.s)
        return [(left, min(left + step, hi)) for left in range(lo, hi, step)]

    def _table(self, lo: int, hi: int, like: Tensor) -> tuple[Tensor, Tensor]:
        if not self._keeps:
            bucket, sign = self.hashes(lo, hi, like.device)
            return bucket, sign.to(like.dtype)
        where = like.device, like.dtype
        if where not in self._kept:
            bucket, sign = self.hashes(0, self.d, like.device)
            self._kept[where] = bucket, sign.to(like.dtype)
        bucket, sign = self._kept[where]
        return (bucket, sign) if hi - lo == self.d else (bucket[:, lo:hi], sign[:, lo:hi])
