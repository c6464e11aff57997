"""Sets given by a projection or a linear minimiser from elsewhere; what follows from it is derived."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from isthmus.base.validate import non_negative, positive, positive_int, refuse, shape
from isthmus.sets.base import ConvexSet, own
from isthmus.sets.projections import nearest, norm

Oracle = Callable[[Tensor], object]
"""Takes a tensor and returns a tensor or anything that is read as an array."""


@runtime_checkable
class _Proximal(Protocol):
    """A projection by the convention of proximal operators."""

    def prox(self, x: np.ndarray, step: float) -> object: ...


@runtime_checkable
class _Maximiser(Protocol):
    """`lmo(u, x)` returns s - x (or a tuple that begins with it) with s a maximiser of <u, s>."""

    def lmo(self, u: np.ndarray, x: np.ndarray) -> object: ...


Projection = ConvexSet | _Proximal | Oracle
Minimiser = ConvexSet | _Maximiser | Oracle


class _Adapter(ConvexSet):
    """The dimension and the diameter are the caller's word; oracles get tensors and may return arrays."""

    def __init__(self, minimiser: Oracle | None, d: int | None, bound: float | None) -> None:
        if d is not None:
            positive_int(d=d)
        if bound is not None:
            non_negative(bound=bound)
        self.d, self.dim, self.bound, self.minimiser = d, d, bound, minimiser

    def _call(self, oracle: Oracle, x: Tensor, name: str) -> Tensor:
        result = own(f"the result of {name}", oracle(x.clone()))
        shape(tuple(x.shape), **{f"{name}(x)": result})
        return result.to(x)

    def _lmo(self, g: Tensor) -> Tensor:
        assert self.minimiser is not None  # else it was refused
        return self._call(self.minimiser, g, "lmo")

    def _diameter(self, d: int) -> float:
        return self.bound or 0.0

    def _refusal(self, operation: str) -> str | None:
        if operation == "diameter" and self.bound is None:
            return "give its value as bound= when you build the adapter"
        if operation in ("lmo", "support", "gaussian_width") and self.minimiser is None:
            return "a projection does not give it; pass lmo= or use FromLMO"
        if operation == "gauge":
            return "neither a projection nor a linear minimiser gives it; use contains, or a set with a formula"
        return super()._refusal(operation)


class FromProjection(_Adapter):
    """The convex set whose nearest-point map is `project`, a callable x -> Px or an object with `.prox(x, step)`.

    Membership follows from the projection.  The linear minimiser and support function need `lmo` (a callable
    g -> argmin <g, s>; an object's own `.lmo(u, x)` is used when it has one); the diameter needs `bound`.

    >>> import torch
    >>> ball = FromProjection(lambda x: x.clamp(-1, 1))
    >>> ball.project(torch.tensor([3.0, 0.5]))
    tensor([1.0000, 0.5000])
    >>> ball.contains([2.0, 0.0])
    False
    """

    def __init__(
        self, project: Projection, *, lmo: Minimiser | None = None, d: int | None = None, bound: float | None = None
    ) -> None:
        if lmo is None and isinstance(project, (ConvexSet, _Maximiser)):
            lmo = project
        minimiser = None
        if lmo is not None:
            minimiser = _minimiser_of(lmo)
        super().__init__(minimiser, d, bound)
        self.projection: Oracle
        if isinstance(project, ConvexSet):
            self.projection = project.project
        elif isinstance(project, _Proximal):
            self.projection = lambda x: project.prox(x.cpu().numpy(), 1.0)
        elif callable(project):
            self.projection = project
        else:
            refuse("project", project, "give a callable x -> Px or an object with .prox(x, step)")

    def _project(self, x: Tensor) -> Tensor:
        return self._call(self.projection, x, "project")


class FromLMO(_Adapter):
    """The compact convex set whose linear minimiser is `lmo`, a callable g -> argmin <g, s> or an object with `.lmo`.

    The support function follows; the projection is found by Wolfe's nearest-point method to an optimality gap of
    `tol` max(1, ||x||) max(1, ||Px||), so ||p - Px||^2 is at most that; the diameter needs `bound`.

    >>> import torch
    >>> def corner(g):
    ...     return -torch.sign(g)
    >>> FromLMO(corner).support([1.0, -2.0])
    3.0
    >>> FromLMO(corner).project(torch.tensor([3.0, 0.5], dtype=torch.float64)).numpy().round(6)
    array([1. , 0.5])
    """

    def __init__(
        self,
        lmo: Minimiser,
        *,
        d: int | None = None,
        bound: float | None = None,
        tol: float = 1e-10,
        max_iterations: int = 10_000,
    ) -> None:
        positive(tol=tol)
        positive_int(max_iterations=max_iterations)
        super().__init__(_minimiser_of(lmo), d, bound)
        self.tol, self.max_iterations = tol, max_iterations

    def _project(self, x: Tensor) -> Tensor:
        p, gap = nearest(x.double(), lambda g: self._lmo(-g), self.tol / 16, self.max_iterations)
        if gap > self.tol * max(1.0, norm(x)) * max(1.0, norm(p)):
            raise ArithmeticError(f"FromLMO.project ended with gap {gap:.1e}: raise max_iterations or tol={self.tol}")
        return p.to(x.dtype)

    def _distance(self, x: Tensor) -> float:
        # The solver's point is within sqrt(gap); less than that cannot be told apart from membership.
        distance = super()._distance(x)
        if distance <= self.tol**0.5:
            return 0.0
        return distance


def _minimiser_of(source: Minimiser) -> Oracle:
    if isinstance(source, ConvexSet):
        return source.lmo
    if isinstance(source, _Maximiser):

        def at_the_origin(g: Tensor) -> object:
            u = -g.cpu().numpy()
            answer = source.lmo(u, np.zeros_like(u))  # s - x at x = 0, which is s itself
            return answer[0] if isinstance(answer, tuple) else answer

        return at_the_origin
    if not callable(source):
        refuse("lmo", source, "give a callable g -> argmin <g, s> or an object with .lmo")
    return source
