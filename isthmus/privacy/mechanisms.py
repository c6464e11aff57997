"""Mechanisms: what stands between a bounded sum and the world."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from torch import Tensor

from isthmus.bounded import Bounded


class Mechanism(Protocol):
    """Releases a bounded value; its noise scale is always a multiplier times the value's bound."""

    ords: ClassVar[tuple[float, ...]]
    private: ClassVar[bool]

    def release(self, bounded: Bounded, noise: Any) -> Tensor:
        """The value the world may see; `noise` is the run's secret source of randomness."""
        ...

    def event(self) -> Any:
        """What was released, for the accountant."""
        ...


@dataclass(frozen=True)
class Exact:
    """No noise: the sum as it is.  Not private.

    >>> import torch
    >>> Exact().release(Bounded(torch.ones(2), 2, 1.0), None).tolist()
    [1.0, 1.0]
    """

    private: ClassVar[bool] = False
    ords: ClassVar[tuple[float, ...]] = (1.0, 2.0, float("inf"))

    def release(self, bounded: Bounded, noise: Any) -> Tensor:
        """The value itself."""
        return bounded.value

    def event(self) -> None:
        """Nothing is accounted: nothing is hidden."""
        return None
