"""The one interface of every constraint set: conversion and checks here, formulas in the subclasses."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor

from isthmus.base import storage
from isthmus.base.matrix import Array
from isthmus.base.validate import as_tensor, check, non_negative, positive, positive_int
from isthmus.sets.projections import Derivative, norm
from isthmus.sets.widths import Width, _monte_carlo

Point = TypeVar("Point", Tensor, np.ndarray)
Size = int | Sequence[int] | None

OPERATIONS = ("contains", "project", "lmo", "gauge", "support", "diameter", "gaussian_width")
_NEED_BOUNDED = frozenset({"lmo", "support", "diameter", "gaussian_width"})
_FORMULAS = {
    "lmo": ("_lmo",),
    "gauge": ("_gauge", "_scales"),
    "support": ("_support", "_lmo"),
    "diameter": ("_diameter",),
    "gaussian_width": ("_width", "_support", "_lmo"),
    "vertex_form": ("_vertex_form",),
}
"""The formulas that give an operation, any one of them; the others follow from the projection, which every set has."""


class UnsupportedOperation(TypeError):
    """A set was asked for something it cannot do: the message has the set, the operation and the remedy."""


@dataclass(frozen=True, eq=False)
class VertexForm:
    """The finitely many vertices of a polytope: `radius` times the rows, and minus them too where `signed`.

    rows  one vertex direction a row (l x d); None stands for the d coordinate axes, which are never built

    >>> VertexForm(2.0, signed=True).vertex(torch.tensor([0.0, -1.0, 0.0]))
    tensor([ 0., -2.,  0.])
    """

    radius: float = 1.0
    signed: bool = False
    rows: Tensor | None = None

    def scores(self, g: Tensor) -> Tensor:
        """-<row, g> of every row: the vertex that minimises <g, s> has the largest (signed: the largest in size)."""
        if self.rows is None:
            return -g
        return -(self.rows.to(g) @ g)

    def all(self) -> Tensor | None:
        """Every vertex as a row; None where they are coordinate axes."""
        if self.rows is None:
            return None
        whole = self.radius * self.rows
        if self.signed:
            return torch.cat([whole, -whole])
        return whole

    def vertex(self, choice: Tensor) -> Tensor:
        """The vertex of a chosen score: `choice` is +-1 in its place and 0 elsewhere."""
        if self.rows is None:
            return self.radius * choice
        return self.radius * (choice @ self.rows.to(choice))


class ConvexSet(ABC):
    """A closed set C of R^d with the operations that constrained optimisation asks for.

    Points are one flat vector of shape (d,), as a torch tensor (dtype and device are kept) or as anything NumPy
    reads (an array is returned).  Matrix sets also take and return their matrix shape.  NaN, infinity and wrong
    shapes are refused.  Results are new tensors outside the autograd graph; scalars are Python floats.

    A subclass writes the formulas `_project`, `_lmo`, `_gauge`, `_diameter` and, where a closed form exists, `_width`,
    `_support` and `_derivative`; a polytope with few vertices also `_vertex_form`.  `_support` works on the last
    dimension so that rows can be evaluated together.  What a set `can` do follows from the formulas its class writes.
    """

    convex: bool = True
    bounded: bool = True
    dim: int | None = None
    """The dimension d the set is tied to, or None when any dimension goes."""
    matrix_shape: tuple[int, int] | None = None
    """(p, q) for a set of matrices, else None."""
    _written: ClassVar[frozenset[str]] = frozenset()
    """What a class and its parents below this one define."""

    def __init_subclass__(cls, **more: object) -> None:
        super().__init_subclass__(**more)
        cls._written = frozenset().union(*(vars(kind) for kind in cls.__mro__ if kind not in ConvexSet.__mro__))

    def can(self, operation: str) -> bool:
        """Whether the set offers `operation`, one of `OPERATIONS` or, of polytopes, "vertex_form"."""
        operations = (*OPERATIONS, "vertex_form")
        check(operation in operations, "operation", operation, f"choose one of {list(operations)}")
        return self._refusal(operation) is None

    def require(self, *operations: str) -> None:
        """Raise `UnsupportedOperation` unless the set offers all of `operations`."""
        for operation in operations:
            if not self.can(operation):
                raise UnsupportedOperation(f"{type(self).__name__} has no {operation}: {self._refusal(operation)}")

    def contains(self, x: object, tol: float | None = None) -> bool:
        """Whether ||x - Px|| <= tol max(1, ||x||); tol defaults to eps^(2/3) of the dtype of x."""
        self.require("contains")
        point = self._read("x", x)
        if tol is None:
            tol = tolerance(point)
        non_negative(tol=tol)
        return self._distance(working(point)) <= tol * max(1.0, norm(point))

    def project(self, x: Point, warm: float | None = None) -> Point:
        """The nearest point Px = argmin_{s in C} ||x - s||_2.

        Args:
            x: the point.
            warm: a guess that may save time (a previous threshold, for the l1 ball and the simplex); it never
                changes the result, and other sets ignore it.

        Returns:
            Px, with gauge(Px) <= 1 + 8 eps of its dtype.
        """
        return self.project_with_threshold(x, warm)[0]

    def project_with_threshold(self, x: Point, warm: float | None = None) -> tuple[Point, float | None]:
        """(Px, tau): the threshold, where the projection has one, is a good `warm` for the next, nearby point."""
        self.require("project")
        point = self._read("x", x)
        result, tau = self._solve(working(point), warm)
        return self._write(result, point, x), tau

    def lmo(self, g: Point) -> Point:
        """A minimiser s of <g, s> over C; any one of them on ties."""
        self.require("lmo")
        point = self._read("g", g)
        return self._write(self._lmo(working(point)), point, g)

    def lmo_near(self, g: Point, error: float) -> tuple[Point, float]:
        """(s, e) with s in C and <g, s> <= min over C + e, e <= error proven: for sets whose exact minimiser is dear.

        Here the exact one and 0; `NuclearBall` takes a few Lanczos steps in place of a decomposition.
        """
        self.require("lmo")
        non_negative(error=error)
        point = self._read("g", g)
        vertex, missed = self._lmo_near(working(point), error)
        return self._write(vertex, point, g), missed

    def gauge(self, x: object) -> float:
        """The Minkowski functional inf{t >= 0 : x in t C}; +inf when no t does.

        For a set without the origin the same formula holds: it is +inf off the cone that C spans, and
        gauge(x) <= 1 then says that x lies in t C for some t <= 1, not that x lies in C.
        """
        self.require("gauge")
        point = working(self._read("x", x))
        value = self._gauge(point)  # in the precision of x, which says how far outside is rounding
        if math.isfinite(value) or point.dtype == torch.float64:
            return value
        return self._gauge(point.double())  # a float32 product may have overflowed

    def support(self, g: object) -> float:
        """The support function max_{s in C} <g, s>."""
        self.require("support")
        return float(self._support(working(self._read("g", g)).double()))

    def diameter(self, d: Size = None) -> float:
        """max ||s - s'||_2 over C; `d` (dimension or shape) may be left out when the set has one."""
        self.require("diameter")
        return float(self._diameter(self._size(d)))

    def gaussian_width(self, d: Size = None, samples: int = 10_000, seed: int = 0) -> Width:
        """w(C) = E max_{s in C} <g, s> with g ~ N(0, I_d).

        Exact (closed form or one-dimensional integral) where the set has one; else the mean of `samples` draws of
        the support function from a generator with `seed`, with its standard error.
        """
        self.require("gaussian_width")
        size = self._size(d)
        positive_int(samples=samples)
        exact = self._width(size, samples, seed)
        if exact is not None:
            return exact
        self.require("support")
        return _monte_carlo(self._support, size, samples, seed)

    def vertex_form(self) -> VertexForm:
        """The vertices of a polytope that has few of them, as private vertex selection asks for them."""
        self.require("vertex_form")
        return self._vertex_form()

    def linearised(self, z: Array) -> tuple[Array, Derivative]:
        """(Pz, J) for a float64 vector: the projection and its derivative x -> J x, for second-order solvers.

        J is one element of the projection's generalised Jacobian, symmetric with 0 <= J <= I; a set without a formula
        for it (`_derivative`) takes one more projection for each x.
        """
        w = self.project(torch.from_numpy(z)).numpy()
        return w, self._derivative(z, w)

    def _keep(self, **values: object) -> None:
        """Set attributes of a frozen set that is being made."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @abstractmethod
    def _project(self, x: Tensor) -> Tensor: ...

    def _solve(self, x: Tensor, warm: float | None) -> tuple[Tensor, float | None]:
        return self._project(x), None

    def _lmo(self, g: Tensor) -> Tensor:
        raise NotImplementedError

    def _lmo_near(self, g: Tensor, error: float) -> tuple[Tensor, float]:
        return self._lmo(g), 0.0

    def _gauge(self, x: Tensor) -> float:
        """The least t >= 0 with x in t C; a set that writes `_scales` need not write it."""
        low, high = self._scales(x)
        if low > high * (1 + tolerance(x)):
            return math.inf
        return low

    def _scales(self, x: Tensor) -> tuple[float, float]:
        """The interval of t >= 0 with x in t C: unbounded above whenever 0 is in C."""
        return self._gauge(x), math.inf

    def _support(self, g: Tensor) -> Tensor:
        """max <g, s> for each row: from a minimiser, where there is no formula."""
        rows = g.reshape(-1, g.shape[-1])
        return torch.stack([row @ self._lmo(-row) for row in rows]).reshape(g.shape[:-1])

    def _derivative(self, z: Array, w: Array) -> Derivative:
        """J at z, whose projection is w: exact on affine pieces, first order elsewhere."""
        size = 1e-5 * max(float(np.linalg.norm(z)), float(np.linalg.norm(w)))

        def derivative(x: Array) -> Array:
            length = float(np.linalg.norm(x))
            if length == 0 or size == 0:
                return x
            h = size / length
            return (self.project(torch.from_numpy(z + h * x)).numpy() - w) / h

        return derivative

    def _diameter(self, d: int) -> float:
        raise NotImplementedError

    def _width(self, d: int, samples: int, seed: int) -> Width | None:
        return None

    def _vertex_form(self) -> VertexForm:
        raise NotImplementedError

    def _distance(self, x: Tensor) -> float:
        return norm(x - self._project(x))

    def _refusal(self, operation: str) -> str | None:
        """Why `operation` cannot be had and what to use instead; None when it can."""
        if not self.bounded and operation in _NEED_BOUNDED:
            return "the set is unbounded; give it a radius or use a bounded set"
        formulas = _FORMULAS.get(operation, ("_project",))
        if self._written.isdisjoint(formulas):
            return f"its class has no formula for it; write {formulas[0]}, or use a set that has one"
        return None

    def _size(self, d: Size) -> int:
        if d is None:
            d = self.dim
            check(d is not None, "d", None, f"give the dimension d: a {type(self).__name__} exists in every dimension")
        size = _size_of("d", d)
        check(self.dim in (None, size), "d", d, f"give {self.dim}, which is the dimension of the set")
        return size

    def _read(self, name: str, value: object) -> Tensor:
        x = as_tensor(name, value).detach()
        if self.matrix_shape is not None and tuple(x.shape) == self.matrix_shape:
            return x
        allowed = "(d,) with d >= 1"
        if self.dim:
            allowed = f"({self.dim},)"
        if self.matrix_shape is not None:
            allowed = f"{self.matrix_shape} or {allowed}"
        ok = x.ndim == 1 and x.numel() > 0 and self.dim in (None, x.numel())
        check(ok, f"{name}.shape", tuple(x.shape), f"give one point of shape {allowed}")
        return x

    def _write(self, result: Tensor, point: Tensor, original: Point) -> Point:
        result = result.reshape(point.shape).to(point.dtype)
        narrow = point.dtype != torch.float64 and result.device.type == "cpu"  # on a device the host would wait for it
        if narrow and not math.isfinite(float(result.sum(dtype=torch.float64))):
            check(False, "dtype", point.dtype, "give float64: points of this set are too large for other numbers")
        if result.data_ptr() == point.data_ptr():
            result = result.clone()
        if isinstance(original, Tensor):
            return result
        return result.cpu().numpy()


class Ball(ConvexSet):
    """A ball of a norm about 0: a subclass writes `_norm`, which is float64 and neither overflows nor vanishes."""

    radius: float

    def __post_init__(self) -> None:
        positive(radius=self.radius)

    @abstractmethod
    def _norm(self, x: Tensor) -> float: ...

    def _gauge(self, x: Tensor) -> float:
        return self._norm(x) / self.radius

    def _diameter(self, d: int) -> float:
        return 2 * self.radius


def _size_of(name: str, shape: Size) -> int:
    """How many numbers a dimension or a shape stands for."""
    sides = np.atleast_1d(np.asarray(shape, dtype=object)).tolist()
    for side in sides:
        positive_int(**{name: side})
    return math.prod(sides)


def _of_length(x: Tensor, length: float) -> Tensor:
    """x scaled to this norm, a zero vector as it is."""
    size = norm(x) or 1.0
    factor = length / size
    if 1 / torch.finfo(x.dtype).max < abs(factor) < torch.finfo(x.dtype).max:
        return x * factor
    return x.double().div(size).mul_(length).to(x.dtype)  # the factor alone has no number in this precision


def inside(y: Tensor, gauge: float) -> Tensor:
    """Scale y back where rounding left gauge > 1; only for a set that is star-shaped about 0."""
    if gauge <= 1:
        return y
    return y * ((1 - 2 * torch.finfo(y.dtype).eps) / gauge)


def own(name: str, value: object, *, ndim: int | None = None) -> Tensor:
    """A private float64 copy, so that a frozen set does not change with its caller's array."""
    return as_tensor(name, value, ndim=ndim).detach().to(torch.float64, copy=True)


def working(x: Tensor) -> Tensor:
    """Flat, and float32 at least: half precision is for storage."""
    return x.to(torch.promote_types(x.dtype, torch.float32)).flatten()


def tolerance(x: Tensor) -> float:
    """eps^(2/3), the room that a test of equality leaves to rounding."""
    return float(torch.finfo(x.dtype).eps ** (2 / 3))


storage.register("set", ConvexSet)  # type: ignore[type-abstract]
