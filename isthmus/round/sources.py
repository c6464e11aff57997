"""Sources: which per-example vectors a stage looks at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from torch import Tensor


class Source(Protocol):
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
