"""Sources: which per-example vectors a stage looks at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from isthmus.base.space import Space
from isthmus.core.state import Held
from isthmus.gradients import Rows
from isthmus.problems.queries import Query

Chosen = Tensor | slice | None
"""Drawn records: their positions, a range of them, or all."""


class Records(Protocol):
    """Who holds records: how many, and a vector of each at a point.

    A problem may say by `spans()` which records it looks at together; `rows` then takes ranges (`slice`) too.
    """

    @property
    def n(self) -> int: ...
    def rows(self, w: Tensor, index: Any = None) -> Rows: ...


class RowSource(Protocol):
    """Per-example vectors of the drawn records."""

    def __call__(self, problem: Any, w: Tensor, index: Chosen, held: Mapping[str, Held]) -> Rows | Query: ...


def current(problem: Records, w: Tensor, index: Chosen, held: Mapping[str, Held]) -> Rows:
    """g_i(w): the gradients at the iterate."""
    return problem.rows(w, index)


current.own_records = True  # type: ignore[attr-defined]  # a vector of one record, whatever the others are


@dataclass(frozen=True)
class AgainstAnchor:
    """g_i(w) - g_i(anchor), with the anchor where a stage (released every K rounds) last looked: variance reduction."""

    stage: str
    own_records: ClassVar[bool] = True

    def __call__(self, problem: Records, w: Tensor, index: Chosen, held: Mapping[str, Held]) -> Rows:
        """The differences of the drawn records."""
        anchor = held[self.stage].w
        assert anchor is not None
        return problem.rows(w, index).minus(problem.rows(anchor, index))


@dataclass(frozen=True, eq=False)
class Sheet:
    """A problem that is nothing but its rows: scores, figures of test rows, whatever is to be added up once.

    >>> import torch
    >>> from isthmus.gradients import Dense
    >>> Sheet(Dense(torch.ones(3, 2))).n
    3
    """

    vectors: Rows
    linear: ClassVar[bool] = True

    @property
    def n(self) -> int:
        """How many records."""
        return self.vectors.n

    @property
    def space(self) -> Space:
        """That of a row."""
        return Space.flat(self.vectors.d)

    def rows(self, w: Tensor, index: Tensor | None = None) -> Rows:
        """The row of each record, whatever the point."""
        return self.vectors if index is None else self.vectors.take(index, torch.ones(len(index)))
