"""Mechanisms: what stands between a bounded sum and the world.

A mechanism's noise is always `multiplier * bound`: relative to the bound C of one record, whatever the adjacency.
`isthmus.privacy.accounting` is the one place that turns an adjacency into a sensitivity.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from isthmus.base import validate
from isthmus.privacy.adjacency import Adjacency
from isthmus.privacy.bounded import Bounded
from isthmus.privacy.library import dpa
from isthmus.privacy.noise import check_scale, pieces

_ADD = Adjacency.ADD_REMOVE


class Mechanism(Protocol):
    """Releases a bounded value; its noise scale is always a multiplier times the value's bound.

    For the privacy statement one may bring `describe()`, a release in words (an event knows what it cost, not what it
    was), and `source`, where its noise comes from if not from the run's own.
    """

    @property
    def ords(self) -> tuple[float, ...]:
        """The norms in which it takes clipped sums."""
        ...

    @property
    def private(self) -> bool:
        """Whether it hides what it releases."""
        ...

    @property
    def guarantee(self) -> str:
        """What it really gives, where it runs as a paper prints it; else nothing."""
        ...

    def release(self, bounded: Bounded, noise: Any) -> Tensor:
        """The value the world may see; `noise` is the run's secret source of randomness."""
        ...

    def event(self, adjacency: Adjacency = _ADD) -> Any:
        """What was released, for the accountant: relative to C, so the same for every adjacency."""
        ...


@dataclass(frozen=True)
class Exact:
    """No noise: the sum as it is.  Not private.

    >>> import torch
    >>> Exact().release(Bounded(torch.ones(2), 2, 1.0), None).tolist()
    [1.0, 1.0]
    """

    private: ClassVar[bool] = False
    guarantee: ClassVar[str] = ""
    ords: ClassVar[tuple[float, ...]] = (1.0, 2.0, float("inf"))

    def release(self, bounded: Bounded, noise: Any) -> Tensor:
        """The value itself."""
        return bounded.value

    def event(self, adjacency: Adjacency = _ADD) -> Any:
        """A release without any guarantee."""
        return dpa.NonPrivateDpEvent()

    def describe(self) -> str:
        """The release in words."""
        return "a value without noise"


@dataclass(frozen=True)
class Gaussian:
    """`value + N(0, (multiplier * C)^2 I)` for sums whose records have l2 norm at most C.

    Guarantee of one release: `1 / (2 multiplier^2)`-zCDP for add/remove, four times that for replace-one, for
    every value and dimension; the accountant composes it exactly.

    >>> import torch
    >>> from isthmus.privacy import SeededSource
    >>> Gaussian(2.0).release(Bounded(torch.zeros(3), 2, 1.0), SeededSource(0)).shape
    torch.Size([3])
    """

    multiplier: float
    private: ClassVar[bool] = True
    guarantee: ClassVar[str] = ""
    ords: ClassVar[tuple[float, ...]] = (2.0,)

    def __post_init__(self) -> None:
        validate.positive(noise_multiplier=self.multiplier)

    def release(self, bounded: Bounded, noise: Any) -> Tensor:
        """The noisy value, added in float64 and rounded to the value's dtype last."""
        _check(self, bounded, noise)
        check_scale(self.multiplier * bounded.bound, bounded.dtype or bounded.value.dtype)
        own = bounded.spare and bounded.value.is_contiguous()
        out = bounded.value if own else bounded.value.detach().clone(memory_format=torch.contiguous_format)
        noise.add_normal(out, self.multiplier * bounded.bound)
        return out

    def event(self, adjacency: Adjacency = _ADD) -> Any:
        """`GaussianDpEvent(sigma / C)`."""
        return dpa.GaussianDpEvent(float(self.multiplier))

    def describe(self) -> str:
        """The release in words."""
        return f"Gaussian noise of {self.multiplier:.4g} times the bound of one record"


@dataclass(frozen=True)
class Laplace:
    """`value + Lap(multiplier * C)` in each coordinate, for sums whose records have l1 norm at most C.

    Guarantee of one release: pure `1 / multiplier` differential privacy (add/remove), twice that (replace-one), so
    `T / multiplier` for T of them whatever the values are.  The tight accountant composes the one-dimensional Laplace
    pair, the worst way to spend an l1 bound in every numerical check made, but without a published proof for vectors.

    >>> Laplace(2.0).event()
    LaplaceDpEvent(noise_multiplier=2.0)
    """

    multiplier: float
    private: ClassVar[bool] = True
    guarantee: ClassVar[str] = ""
    ords: ClassVar[tuple[float, ...]] = (1.0,)

    def __post_init__(self) -> None:
        validate.positive(noise_multiplier=self.multiplier)

    def release(self, bounded: Bounded, noise: Any) -> Tensor:
        """The noisy value, added in float64 and rounded to the value's dtype last."""
        _check(self, bounded, noise)
        return _noisy(bounded.value, self.multiplier * bounded.bound, noise.laplace)

    def event(self, adjacency: Adjacency = _ADD) -> Any:
        """`LaplaceDpEvent(b / C)`."""
        return dpa.LaplaceDpEvent(float(self.multiplier))

    def describe(self) -> str:
        """The release in words."""
        return f"Laplace noise of {self.multiplier:.4g} times the bound of one record"


@dataclass(frozen=True)
class NoisyMax:
    """One coordinate, and its sign, chosen by the exponential mechanism; the magnitude is not released.

    Of the 2d candidates `+s_j, -s_j` (of the d candidates `s_j` with `signed=False`) the largest after Gumbel noise
    of scale `2 C / epsilon` wins: candidate c with probability proportional to `exp(epsilon c / (2 C))`.  Released is
    `+e_j` or `-e_j`, what a linear minimisation over a norm ball needs of a gradient.  `C` bounds a record's share
    of every coordinate.  Guarantee: pure epsilon, and `epsilon^2 / 8`-zCDP by bounded range (add/remove).

    >>> import torch
    >>> from isthmus.privacy import SeededSource
    >>> NoisyMax(1.0).release(Bounded(torch.tensor([0.0, -99.0]), math.inf, 1.0), SeededSource(0)).tolist()
    [0.0, -1.0]
    """

    epsilon: float
    signed: bool = True
    private: ClassVar[bool] = True
    guarantee: ClassVar[str] = ""
    ords: ClassVar[tuple[float, ...]] = (math.inf,)

    def __post_init__(self) -> None:
        validate.positive(epsilon=self.epsilon)

    def release(self, bounded: Bounded, noise: Any) -> Tensor:
        """A signed one-hot tensor of the value's shape."""
        _check(self, bounded, noise)
        scores = bounded.value.detach().double().cpu().reshape(-1)
        candidates = torch.cat([scores, -scores]) if self.signed else scores
        winner = int(_noisy(candidates, 2 * bounded.bound / self.epsilon, noise.gumbel).argmax())
        chosen = torch.zeros_like(bounded.value).reshape(-1)
        chosen[winner % len(scores)] = 1.0 if winner < len(scores) else -1.0
        return chosen.reshape(bounded.value.shape)

    def event(self, adjacency: Adjacency = _ADD) -> Any:
        """`ZCDpEvent(epsilon^2 / 8)`."""
        return dpa.ZCDpEvent(rho=self.epsilon**2 / 8, xi=0.0)

    def describe(self) -> str:
        """The release in words."""
        return f"a selection of one coordinate of {self.epsilon**2 / 8:.4g}-zCDP"


@dataclass(frozen=True)
class TopK:
    """The places of the k largest `|s_j|`, chosen one after the other by the exponential mechanism; no values.

    One-shot: Gumbel noise of scale `2 C / epsilon` on every `|s_j|`, the k largest win, which is k exponential
    mechanisms of parameter epsilon in a row.  Released is a 0/1 tensor.  Guarantee: `k epsilon^2 / 8`-zCDP
    (add/remove).

    >>> import torch
    >>> from isthmus.privacy import SeededSource
    >>> TopK(2, 1.0).release(Bounded(torch.tensor([99.0, 0.0, -99.0]), math.inf, 1.0), SeededSource(0)).tolist()
    [1.0, 0.0, 1.0]
    """

    k: int
    epsilon: float
    private: ClassVar[bool] = True
    guarantee: ClassVar[str] = ""
    ords: ClassVar[tuple[float, ...]] = (math.inf,)

    def __post_init__(self) -> None:
        validate.positive_int(k=self.k)
        validate.positive(epsilon=self.epsilon)

    def release(self, bounded: Bounded, noise: Any) -> Tensor:
        """A 0/1 tensor of the value's shape with k ones."""
        _check(self, bounded, noise)
        scores = bounded.value.detach().double().cpu().reshape(-1).abs()
        validate.at_most(len(scores), "the number of coordinates", k=self.k)
        noisy = _noisy(scores, 2 * bounded.bound / self.epsilon, noise.gumbel)
        chosen = torch.zeros_like(bounded.value).reshape(-1)
        chosen[noisy.topk(self.k).indices.to(chosen.device)] = 1.0
        return chosen.reshape(bounded.value.shape)

    def event(self, adjacency: Adjacency = _ADD) -> Any:
        """`ZCDpEvent(k epsilon^2 / 8)`."""
        return dpa.ZCDpEvent(rho=self.k * self.epsilon**2 / 8, xi=0.0)

    def describe(self) -> str:
        """The release in words."""
        return f"a selection of {self.k} coordinates of {self.k * self.epsilon**2 / 8:.4g}-zCDP"


@dataclass(frozen=True)
class DiscreteGaussian:
    """Integer discrete Gaussian noise on a grid: exact noise, whose low bits can betray nothing about the value.

    The value is rounded to multiples of `grid`, which moves neighbours apart by at most `sqrt(m) * grid` more, and
    integer noise of scale `multiplier * (C + sqrt(m) grid)` is added (Canonne, Kamath and Steinke 2020).
    Guarantee: `1 / (2 multiplier^2)`-zCDP (add/remove).  Needs the extra `secure`; the noise comes from opendp's
    own cryptographic generator and cannot be seeded.

    >>> DiscreteGaussian(2.0, grid=1e-6).event()
    ZCDpEvent(rho=0.125, xi=0.0)
    """

    multiplier: float
    grid: float
    source: ClassVar[str] = "secret noise from opendp's own cryptographic generator"
    private: ClassVar[bool] = True
    guarantee: ClassVar[str] = ""
    ords: ClassVar[tuple[float, ...]] = (2.0,)

    def __post_init__(self) -> None:
        validate.positive(noise_multiplier=self.multiplier, grid=self.grid)

    def release(self, bounded: Bounded, noise: Any) -> Tensor:
        """The rounded value plus noise: multiples of the grid, before rounding to the value's dtype."""
        _check(self, bounded, noise)
        steps = (bounded.value.detach().double().cpu().reshape(-1) / self.grid).round()
        scale = self.scale(bounded.bound, len(steps)) / self.grid
        reach = 2.0**53 - 40 * scale
        validate.check(reach > 0, "grid", self.grid, f"the noise is {scale:.3g} grid steps wide: take a coarser grid")
        # saturation is a contraction: it never moves two neighbours further apart
        integers = steps.nan_to_num(0.0).clamp(-reach, reach).long()
        noisy = _discrete_gaussian(integers.tolist(), scale)
        out = torch.tensor(noisy, dtype=torch.float64) * self.grid
        return out.reshape(bounded.value.shape).to(bounded.value)

    def scale(self, bound: float, m: int) -> float:
        """The noise scale for m numbers of bound C."""
        return self.multiplier * (bound + math.sqrt(m) * self.grid)

    def event(self, adjacency: Adjacency = _ADD) -> Any:
        """`ZCDpEvent(1 / (2 multiplier^2))`."""
        return dpa.ZCDpEvent(rho=0.5 / self.multiplier**2, xi=0.0)

    def describe(self) -> str:
        """The release in words."""
        much = f"{self.multiplier:.4g} times the bound of one record"
        return f"discrete Gaussian noise of {much}, on multiples of {self.grid:g}"


def guarantee_of(mechanism: Any) -> str:
    """What a mechanism that runs as its paper prints it says that it really gives; nothing of others.

    >>> guarantee_of(Gaussian(1.0))
    ''
    """
    return str(getattr(mechanism, "guarantee", ""))


def _check(mechanism: Any, bounded: Bounded, noise: Any) -> None:
    """Refuse a value without a bound, a bound in another norm, and a missing source of noise."""
    name = type(mechanism).__name__
    validate.check(
        math.isfinite(bounded.bound) and bounded.bound > 0, "bound", bounded.bound, f"{name} noises clipped sums only"
    )
    validate.check(
        bounded.ord in mechanism.ords, "ord", bounded.ord, f"{name} takes sums clipped in one of {mechanism.ords}"
    )
    validate.check(
        noise is not None, "noise", noise, f"{name} has no default generator: give a SecretSource as the run's noise"
    )


def _noisy(value: Tensor, scale: float, draw: Callable[..., Tensor]) -> Tensor:
    """value + scale * noise in float64, then the value's dtype: one new tensor, filled a chunk at a time."""
    check_scale(scale, value.dtype)
    out = value.detach().clone(memory_format=torch.contiguous_format)
    for part in pieces(out):
        part.copy_(draw(len(part), device=part.device).mul_(scale).add_(part))
    return out


def _discrete_gaussian(values: list[int], scale: float) -> list[int]:
    """Integers plus discrete Gaussian noise, by opendp."""
    try:
        prelude = importlib.import_module("opendp.prelude")
    except ImportError as error:
        raise ImportError("DiscreteGaussian needs opendp: pip install 'isthmus[secure]'") from error
    prelude.enable_features("contrib")
    space = prelude.vector_domain(prelude.atom_domain(T="i64")), prelude.l2_distance(T="f64")
    return list(prelude.m.make_gaussian(*space, scale=scale)(values))
