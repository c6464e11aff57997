"""Sources: which per-example vectors a stage looks at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from isthmus.base.space import Space
from isthmus.gradients import Rows


class RowSource(Protocol):
    """Per-example vectors of the drawn records."""

    def __call__(self, problem: Any, w: Tensor, index: Tensor | None, held: Mapping[str, Any]) -> Any: ...


def current(problem: Any, w: Tensor, index: Tensor | None, held: Mapping[str, Any]) -> Any:
    """g_i(w): the gradients at the iterate."""
    return problem.rows(w, index)


current.own_records = True  # type: ignore[attr-defined]  # a vector of one record, whatever the others are


@dataclass(frozen=True)
class AgainstAnchor:
    """g_i(w) - g_i(anchor), with the anchor where a stage (released every K rounds) last looked: variance reduction."""

    stage: str
    own_records: ClassVar[bool] = True

    def __call__(self, problem: Any, w: Tensor, index: Tensor | None, held: Mapping[str, Any]) -> Any:
        """The differences of the drawn records."""
        return problem.rows(w, index).minus(problem.rows(held[self.stage].w, index))


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
