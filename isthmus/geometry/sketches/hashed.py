"""Sparse sketches with s signed non-zeros a column, found by hashing: count-sketch and sparse JL share this map."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from functools import cached_property

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from isthmus.base.matrix import Stored, dtype_of, is_sparse
from isthmus.base.space import Space
from isthmus.geometry.sketches import base, bijections
from isthmus.geometry.sketches.base import Sketch, check_block, check_vector

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
        code, signed = v.new_zeros(self.m), v.new_empty(0)
        for lo, hi, bucket, sign in self.tables(0, self.d, v):
            signed = signed if signed.shape == sign.shape else torch.empty_like(sign)
            torch.mul(sign, v[lo:hi], out=signed)
            code.scatter_add_(0, bucket.reshape(-1), signed.view(-1))
        return code * self.scales(code)

    def adjoint(self, y: Tensor) -> Tensor:
        """Phi' y by one signed gather from y."""
        return self._adjoint(y, 0, self.d)

    def adjoint_leaf(self, name: str, y: Tensor) -> Tensor:
        """The gather of one leaf's columns."""
        where = self.space.slice(name)
        return self._adjoint(y, where.start, where.stop)

    def _adjoint(self, y: Tensor, start: int, stop: int) -> Tensor:
        check_vector(self, y, "y", self.m)
        scaled, out = self.recent("scaled", y, lambda: y * self.scales(y)), y.new_empty(stop - start)
        for lo, hi, bucket, sign in self.tables(start, stop, y):
            part = out[lo - start : hi - start]
            if self.s == 1:
                torch.index_select(scaled, 0, bucket[0], out=part).mul_(sign[0])
            else:
                torch.sum(scaled[bucket].mul_(sign), 0, out=part)
        return out

    def scales(self, like: Tensor) -> Tensor:
        """The scale of each row, in the dtype and on the device of `like`."""
        return self.once("scale", lambda: self.scale, like.device, like.dtype)

    def rows(self, x: Stored, lo: int = 0) -> Tensor:
        """Codes of rows: CSR through a sparse product, dense by scatter-add in blocks that stay in cache."""
        hi = check_block(self, x, lo)
        if is_sparse(x):
            return self._sparse_rows(x, lo, hi)
        code = x.new_zeros(x.shape[0], self.m)
        for left, right, bucket, sign in self.tables(lo, hi, x):
            step = max(1, BLOCK // (right - left))
            for start in range(0, x.shape[0], step):
                part = x[start : start + step, left - lo : right - lo]
                for r in range(self.s):
                    code[start : start + step].scatter_add_(1, bucket[r].expand(part.shape), part * sign[r])
        return code * self.scales(code)

    def tables(self, lo: int, hi: int, like: Tensor) -> Iterator[tuple[int, int, Tensor, Tensor]]:
        """(left, right, rows, signs in the dtype of `like`) over ranges of columns; valid until the next is asked."""
        if self._keeps:
            bucket, sign = self._whole(like)
            yield lo, hi, bucket[:, lo:hi], sign[:, lo:hi]
        else:
            yield from self._stream(lo, hi, like)

    def _stream(self, lo: int, hi: int, like: Tensor) -> Iterator[tuple[int, int, Tensor, Tensor]]:
        for left, right in self._ranges(lo, hi):
            bucket, sign = self.hashes(left, right, like.device)
            yield left, right, bucket, sign.to(like.dtype)

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

    @cached_property
    def _whole_csr(self) -> dict[torch.dtype, sp.csr_array]:
        return {}

    def _sparse_rows(self, x: Stored, lo: int, hi: int) -> Tensor:
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

    def _ranges(self, lo: int, hi: int) -> list[tuple[int, int]]:
        step = max(1, bijections.RANGE // self.s)
        return [(left, min(left + step, hi)) for left in range(lo, hi, step)]

    def _whole(self, like: Tensor) -> tuple[Tensor, Tensor]:
        where = like.device, like.dtype
        if where not in self._kept:
            bucket, sign = self.hashes(0, self.d, like.device)
            self._kept[where] = bucket, sign.to(like.dtype)
        return self._kept[where]
