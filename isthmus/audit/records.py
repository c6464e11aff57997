"""Records an adversary plants: linear losses, and two datasets that differ in one of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from isthmus.base import validate
from isthmus.base.space import Space, as_space
from isthmus.gradients import Dense, Lookup, Rows, Stack
from isthmus.objectives.base import Index, Objective, as_index
from isthmus.privacy.accounting import Adjacency


class LinearRecords(Objective):
    """`l_i(w) = <v_i, w>`: the gradient of record i is the vector v_i, wherever the iterate is.

    With these an adversary hands any vectors to any pipeline.  Whole numbers k in place of vectors are the unit vectors
    e_k of the space, and never written out.

    >>> f = LinearRecords([[1.0, 0.0], [0.0, 3.0]])
    >>> f.n, f.rows(torch.zeros(2)).dense().tolist(), f.loss(torch.ones(2))
    (2, [[1.0, 0.0], [0.0, 3.0]], 2.0)
    """

    def __init__(self, vectors: object, space: Space | int | None = None) -> None:
        if space is not None and isinstance(vectors, Tensor) and vectors.ndim == 1:
            self.vectors, self.dtype, self.space = vectors, torch.float64, as_space(space)
        else:
            self.vectors = validate.as_tensor("vectors", vectors, ndim=2)
            self.dtype, self.space = self.vectors.dtype, as_space(space or self.vectors.shape[1])
            validate.shape((len(self.vectors), self.space.d), vectors=self.vectors)
        self.n = len(self.vectors)

    def data_loss(self, w: Tensor, index: Index = None) -> float:
        """The mean of the `<v_i, w>`; 0 for an empty batch."""
        rows = self.rows(w, index)
        return float(rows.sum() @ w.to(rows.dtype)) / max(1, rows.n)

    def rows(self, w: Tensor, index: Index = None) -> Rows:
        """The vectors themselves, in the leaves of the space."""
        places, chosen = as_index(index, self.n), self.vectors
        if places is not None:
            chosen = chosen[places]
        if chosen.ndim == 1:
            ones = torch.ones(len(chosen), 1, 1, dtype=self.dtype)
            return Lookup(chosen[:, None], ones, self.space.d, apart=True)
        if len(self.space.leaves) == 1:
            return Dense(chosen)
        return Stack([(leaf.name, Dense(chosen[:, self.space.slice(leaf.name)])) for leaf in self.space.leaves])

    def on(self, data: object) -> LinearRecords:
        """The same losses on other (public) vectors."""
        return LinearRecords(data, self.space)


@dataclass(frozen=True, eq=False)
class Pair:
    """Neighbouring datasets: `common` (n - 1 records) with `left`, and with `right` in its place (None: nobody).

    `seed` and `t` are the public seed and the round whose maps the pair was built against.

    >>> pair = Pair("one more", torch.zeros(3, 2), torch.ones(2), None)
    >>> pair.records(left=True).n, pair.records(left=False).n, pair.adjacency.value
    (4, 3, 'add-remove')
    """

    name: str
    common: Tensor
    left: Tensor
    right: Tensor | None
    space: Space | None = None
    seed: int = 0
    t: int = 0

    def __post_init__(self) -> None:
        validate.check(self.common.ndim == 2, "common.shape", tuple(self.common.shape), "give an (n - 1) x d tensor")
        validate.non_negative_int(seed=self.seed, t=self.t)
        for name, record in (("left", self.left), ("right", self.right)):
            if record is not None:
                validate.shape((self.d,), **{name: record})

    @property
    def d(self) -> int:
        """The dimension of the records."""
        return int(self.common.shape[1])

    @property
    def n(self) -> int:
        """The number of records of the left dataset."""
        return int(self.common.shape[0]) + 1

    @property
    def adjacency(self) -> Adjacency:
        """What the two datasets are neighbours in."""
        if self.right is None:
            return Adjacency.ADD_REMOVE
        return Adjacency.REPLACE_ONE

    def records(self, left: bool) -> LinearRecords:
        """One of the two datasets; the record that differs comes last."""
        rows, last = self.common, {True: self.left, False: self.right}[left]
        if last is not None:
            rows = torch.cat([rows, last[None]])
        return LinearRecords(rows, self.space)
