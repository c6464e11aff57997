"""Sets given by a projection or a linear minimiser from elsewhere; what follows from it is derived."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isthmus.base.validate import non_negative, positive, positive_int, refuse
from isthmus.base.validate import shape as check_shape
from isthmus.sets.base import ConvexSet, own
from isthmus.sets.projections import nearest, norm

Oracle = Callable[[Any], Any]


@dataclass(frozen=True, eq=False)
class _Adapter(ConvexSet):
    """The dimension and the diameter are the caller's word; oracles get tensors and may return arrays."""

    d: int | None = None
    bound: float | None = None

    def __post_init__(self) -> None:
        if self.d is not None:
            positive_int(d=self.d)
        if self.bound is not None:
            non_negative(bound=self.bound)

    @property
    def dim(self) -> int | None:
        """The dimension given by the caller, or None."""
        return self.d

    def _call(self, oracle: Oracle, x: Tensor, name: str) -> Tensor:
        result = own(f"the result of {name}", oracle(x.clone()))
        check_shape(tuple(x.shape), **{f"{name}(x)": result})
        return result.to(x)

    def _diameter(self, d: int) -> float:
        return self.bound or 0.0

    def _refusal(self, operation: str) -> str | None:
        if operation == "diameter" and self.bound is None:
            return "give its value as bound= when you build the adapter"
        return super()._refusal(operation)


@dataclass(frozen=True, eq=False)
class FromProjection(_Adapter):
    """The convex set whose nearest-point map is `project`, a callable x -> Px or an object with `.prox(x, step)`.

    Membership follows from the projection.  The linear minimiser and support function need `lmo` (a callable
    g -> argmin <g, s>; an object's own `.lmo(u, x)` is used when it has one); the diameter needs `bound`.

    >>> ball = FromProjection(lambda x: x.clamp(-1, 1))
    >>> ball.project(torch.tensor([3.0, 0.5]))
    tensor([1.0000, 0.5000])
    >>> ball.contains([2.0, 0.0])
    False
    """

    projection: Any = None
    minimiser: Any = None

    def __init__(self, project: Any, *, lmo: Any = None, d: int | None = None, bound: float | None = None) -> None:
        oracle = lmo if lmo is not None else project if hasattr(project, "lmo") else None
        _fill(self, d=d, bound=bound, projection=_projection_of(project))
        _fill(self, minimiser=None if oracle is None else _minimiser_of(oracle))

    def _refusal(self, operation: str) -> str | None:
        if operation in ("lmo", "support", "gaussian_width") and self.minimiser is None:
            return "a projection does not give it; pass lmo= or use FromLMO"
        if operation == "gauge":
            return "a projection does not give it; use contains, or a set with a formula"
        return super()._refusal(operation)

    def _project(self, x: Tensor) -> Tensor:
        return self._call(self.projection, x, "project")

    def _lmo(self, g: Tensor) -> Tensor:
        return self._call(self.minimiser, g, "lmo")

    def _support(self, g: Tensor) -> Tensor:
        return _support_by_rows(self._lmo, g)


@dataclass(frozen=True, eq=False)
class FromLMO(_Adapter):
    """The compact convex set whose linear minimiser is `lmo`, a callable g -> argmin <g, s> or an object with `.lmo`.

    The support function follows; the projection is found by Wolfe's nearest-point method to an optimality gap of
    `tol` max(1, ||x||) max(1, ||Px||), so ||p - Px||^2 is at most that; the diameter needs `bound`.

    >>> def corner(g):
    ...     return -torch.sign(g)
    >>> FromLMO(corner).support(torch.tensor([1.0, -2.0]))
    3.0
    >>> FromLMO(corner).project(torch.tensor([3.0, 0.5], dtype=torch.float64)).numpy().round(6)
    array([1. , 0.5])
    """

    minimiser: Any = None
    tol: float = 1e-10
    max_iterations: int = 10_000

    def __init__(
        self,
        lmo: Any,
        *,
        d: int | None = None,
        bound: float | None = None,
        tol: float = 1e-10,
        max_iterations: int = 10_000,
    ) -> None:
        positive(tol=tol)
        positive_int(max_iterations=max_iterations)
        _fill(self, d=d, bound=bound, minimiser=_minimiser_of(lmo), tol=tol, max_iterations=max_iterations)

    def _refusal(self, operation: str) -> str | None:
        if operation == "gauge":
            return "a linear minimiser does not give it; use contains, or a set with a formula"
        return super()._refusal(operation)

    def _project(self, x: Tensor) -> Tensor:
        p, gap = nearest(x.double(), lambda g: self._lmo(-g), self.tol / 16, self.max_iterations)
        if gap > self.tol * max(1.0, norm(x)) * max(1.0, norm(p)):
            raise ArithmeticError(f"FromLMO.project ended with gap {gap:.1e}: raise max_iterations or tol={self.tol}")
        return p.to(x.dtype)

    def _distance(self, x: Tensor) -> float:
        # The solver's point is within sqrt(gap); less than that cannot be told apart from membership.
        distance = norm(x - self._project(x))
        return 0.0 if distance <= self.tol**0.5 else distance

    def _lmo(self, g: Tensor) -> Tensor:
        return self._call(self.minimiser, g, "lmo")

    def _support(self, g: Tensor) -> Tensor:
        return _support_by_rows(self._lmo, g)


def _support_by_rows(lmo: Oracle, g: Tensor) -> Tensor:
    rows = g.reshape(-1, g.shape[-1])
    return torch.stack([row @ lmo(-row) for row in rows]).reshape(g.shape[:-1])


def _projection_of(source: Any) -> Oracle:
    if isinstance(source, ConvexSet):
        return source.project
    if hasattr(source, "prox"):
        return lambda x: source.prox(x.cpu().numpy(), 1.0)
    if not callable(source):
        refuse("project", source, "give a callable x -> Px or an object with .prox(x, step)")
    oracle: Oracle = source
    return oracle


def _minimiser_of(source: Any) -> Oracle:
    if isinstance(source, ConvexSet):
        return source.lmo
    if hasattr(source, "lmo"):
        return lambda g: _maximiser(source, -g.cpu().numpy())
    if not callable(source):
        refuse("lmo", source, "give a callable g -> argmin <g, s> or an object with .lmo")
    oracle: Oracle = source
    return oracle


def _maximiser(oracle: Any, u: np.ndarray) -> np.ndarray:
    """The `.lmo(u, x)` convention returns s - x (first of a tuple) with s a maximiser of <u, s>: x = 0 gives s."""
    answer = oracle.lmo(u, np.zeros_like(u))
    return np.asarray(answer[0] if isinstance(answer, tuple) else answer)


def _fill(adapter: _Adapter, **values: Any) -> None:
    """Set fields of a frozen adapter and check them."""
    for name, value in values.items():
        object.__setattr__(adapter, name, value)
    adapter.__post_init__()
