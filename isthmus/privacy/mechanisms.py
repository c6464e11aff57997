"""Mechanisms: what stands between a bounded sum and the world.

A mechanism's noise is always `multiplier * bound`: relative to the bound C of one record, whatever the adjacency.
`isthmus.privacy.accounting` is the one place that turns an adjacency into a sensitivity.  A mechanism brings all that
is known of it: how it releases, its event, its words, and how a budget sets its noise.  Adding one is one class.
"""

from __future__ import annotations

import importlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from isthmus.base import validate
from isthmus.privacy import event_json
from isthmus.privacy.accounting import Adjacency
from isthmus.privacy.clips import ClippedSum
from isthmus.privacy.event_json import DpEvent, dpa
from isthmus.privacy.noise import Source, check_scale, pieces

_ADD = Adjacency.ADD_REMOVE


class Mechanism(ABC):
    """Releases a bounded value; its noise scale is always a multiplier times the value's bound.

    A mechanism of one's own is a frozen dataclass of this class with `release` and `event`; a field `multiplier` is
    what a plan sets.

    ords       the norms in which it takes sums clipped
    private    whether it hides its data behind noise
    noise_parameter       the field with the one number that says how much noise
    selects    whether it chooses coordinates: its number is then an epsilon, larger for less noise
    source     where its noise comes from, if not from the run's own source
    guarantee  for a mechanism run as it was published: what it really gives

    >>> @dataclass(frozen=True)
    ... class Twice(Mechanism):
    ...     multiplier: float
    ...     def release(self, bounded, noise):
    ...         return Gaussian(2 * self.multiplier).release(bounded, noise)
    ...     def event(self, adjacency=_ADD):
    ...         return Gaussian(2 * self.multiplier).event(adjacency)
    >>> Twice(1.0).spending(0.5), Twice(1.0).describe()
    (Twice(multiplier=2.0), 'Gaussian noise of 2 times the most one record can add')
    """

    ords: ClassVar[tuple[float, ...]] = (2.0,)
    private: ClassVar[bool] = True
    noise_parameter: ClassVar[str] = "multiplier"
    selects: ClassVar[bool] = False
    source: str | None = None
    guarantee: str = ""

    @abstractmethod
    def release(self, bounded: ClippedSum, noise: Source | None) -> Tensor:
        """The value the world may see; `noise` is the run's secret source of randomness."""

    @abstractmethod
    def event(self, adjacency: Adjacency = _ADD) -> DpEvent:
        """What was released, for the accountant: relative to C, so the same for every adjacency."""

    def describe(self) -> str:
        """Its noise in words, here those of its event."""
        return ", ".join(event_json._words(leaf) for leaf, _ in event_json.flatten(event_json.to_json(self.event())))

    @property
    def number(self) -> float:
        """How much noise: the multiplier, or the epsilon of a selection."""
        value = getattr(self, self.noise_parameter, None)
        if value is None:
            remedy = f"give it a field {self.noise_parameter!r}, or `number` and `with_number`"
            validate.refuse("mechanism", self, f"{remedy}, by which a plan sets its noise")
        return float(value)

    def with_number(self, number: float) -> Self:
        """The same mechanism with another number."""
        mechanism: Any = self
        remedy = "make it a frozen dataclass, or override `with_number`, by which a plan sets its noise"
        validate.check(is_dataclass(mechanism), "mechanism", self, remedy)
        changed: Self = replace(mechanism, **{self.noise_parameter: number})
        return changed

    def spending(self, mu: float, rate: float = 1.0) -> Self:
        """The same mechanism with the noise at which a round at sampling rate `rate` spends mu^2, to first order."""
        return self.with_number(rate / mu)

    def check(self, bounded: ClippedSum, noise: Source | None) -> Source:
        """Refuse a value without a bound, a bound in another norm, and a missing source of noise; the source."""
        check_bounded(self, bounded)
        if noise is None:
            remedy = f"give a SecretSource as the noise of the run: {type(self).__name__} has no default generator"
            validate.refuse("noise", noise, remedy)
        return noise


def check_bounded(mechanism: Mechanism, bounded: ClippedSum) -> None:
    """Refuse a value without a bound, or with one in a norm that a mechanism does not take, whoever wrote it."""
    name = type(mechanism).__name__
    if not 0 < bounded.bound < math.inf:
        validate.refuse("bound", bounded.bound, f"give a clipped sum: {name} adds noise to nothing else")
    if bounded.ord not in mechanism.ords:
        validate.refuse("ord", bounded.ord, f"clip in one of the norms {mechanism.ords}, which {name} takes")


@dataclass(frozen=True)
class Exact(Mechanism):
    """No noise: the sum as it is.  Not private.

    >>> import torch
    >>> Exact().release(ClippedSum(torch.ones(2), 2, 1.0), None).tolist()
    [1.0, 1.0]
    """

    private: ClassVar[bool] = False
    ords: ClassVar[tuple[float, ...]] = (1.0, 2.0, float("inf"))

    def release(self, bounded: ClippedSum, noise: Source | None) -> Tensor:
        """The value itself."""
        return bounded.value

    def event(self, adjacency: Adjacency = _ADD) -> DpEvent:
        """A release without any guarantee."""
        return dpa.NonPrivateDpEvent()


@dataclass(frozen=True)
class Gaussian(Mechanism):
    """`value + N(0, (multiplier * C)^2 I)` for sums whose records have l2 norm at most C.

    Guarantee of one release: `1 / (2 multiplier^2)`-zCDP for add/remove, four times that for replace-one, for
    every value and dimension; the accountant composes it exactly.

    >>> import torch
    >>> from isthmus.privacy import SeededSource
    >>> Gaussian(2.0).release(ClippedSum(torch.zeros(3), 2, 1.0), SeededSource(0)).shape
    torch.Size([3])
    """

    multiplier: float

    def __post_init__(self) -> None:
        validate.positive(noise_multiplier=self.multiplier)

    def release(self, bounded: ClippedSum, noise: Source | None) -> Tensor:
        """The noisy value, added in float64 and rounded to the value's dtype last."""
        noise = self.check(bounded, noise)
        check_scale(self.multiplier * bounded.bound, bounded.dtype or bounded.value.dtype)
        out = bounded.value
        if not (bounded.spare and out.is_contiguous()):
            out = out.detach().clone(memory_format=torch.contiguous_format)
        noise.add_normal(out, self.multiplier * bounded.bound)
        return out

    def event(self, adjacency: Adjacency = _ADD) -> DpEvent:
        """`GaussianDpEvent(sigma / C)`."""
        return dpa.GaussianDpEvent(float(self.multiplier))


@dataclass(frozen=True)
class Laplace(Mechanism):
    """`value + Lap(multiplier * C)` in each coordinate, for sums whose records have l1 norm at most C.

    Guarantee of one release: pure `1 / multiplier` differential privacy (add/remove), twice that (replace-one), so
    `T / multiplier` for T of them whatever the values are.  The tight accountant composes the one-dimensional Laplace
    pair, which is the worst way to spend an l1 bound (docs/privacy.md has the proof).

    >>> Laplace(2.0).event()
    LaplaceDpEvent(noise_multiplier=2.0)
    """

    multiplier: float
    ords: ClassVar[tuple[float, ...]] = (1.0,)

    def __post_init__(self) -> None:
        validate.positive(noise_multiplier=self.multiplier)

    def release(self, bounded: ClippedSum, noise: Source | None) -> Tensor:
        """The noisy value, added in float64 and rounded to the value's dtype last."""
        noise = self.check(bounded, noise)
        return _noisy(bounded.value, self.multiplier * bounded.bound, noise.laplace)

    def event(self, adjacency: Adjacency = _ADD) -> DpEvent:
        """`LaplaceDpEvent(b / C)`."""
        return dpa.LaplaceDpEvent(float(self.multiplier))


class _Choice(Mechanism):
    """Coordinates chosen by the exponential mechanism, k of them in a row; no values are released."""

    epsilon: float
    noise_parameter: ClassVar[str] = "epsilon"
    selects: ClassVar[bool] = True
    ords: ClassVar[tuple[float, ...]] = (math.inf,)

    @property
    def _choices(self) -> int:
        return 1

    def __post_init__(self) -> None:
        validate.positive_int(k=self._choices)
        validate.positive(epsilon=self.epsilon)

    def event(self, adjacency: Adjacency = _ADD) -> DpEvent:
        """`ZCDpEvent(k epsilon^2 / 8)`."""
        return dpa.ZCDpEvent(rho=self._choices * self.epsilon**2 / 8, xi=0.0)

    def spending(self, mu: float, rate: float = 1.0) -> Self:
        """`epsilon = 2 mu / sqrt(k)`: k choices spend `k epsilon^2 / 4` of mu^2, sampled or not."""
        return self.with_number(2 * mu / math.sqrt(self._choices))

    def describe(self) -> str:
        """The release in words."""
        what = "one coordinate"
        if self._choices > 1:
            what = f"{self._choices} coordinates"
        return f"random choice of {what}, which satisfies {self._choices * self.epsilon**2 / 8:.4g}-zCDP"


@dataclass(frozen=True)
class NoisyMax(_Choice):
    """One coordinate, and its sign, chosen by the exponential mechanism; the magnitude is not released.

    Of the 2d candidates `+s_j, -s_j` (of the d candidates `s_j` with `signed=False`) the largest after Gumbel noise
    of scale `2 C / epsilon` wins: candidate c with probability proportional to `exp(epsilon c / (2 C))`.  Released is
    `+e_j` or `-e_j`, what a linear minimisation over a norm ball needs of a gradient.  `C` bounds a record's share
    of every coordinate.  Guarantee: pure epsilon, and `epsilon^2 / 8`-zCDP by bounded range (add/remove).

    >>> import torch
    >>> from isthmus.privacy import SeededSource
    >>> NoisyMax(1.0).release(ClippedSum(torch.tensor([0.0, -99.0]), math.inf, 1.0), SeededSource(0)).tolist()
    [0.0, -1.0]
    """

    epsilon: float
    signed: bool = True

    def release(self, bounded: ClippedSum, noise: Source | None) -> Tensor:
        """A signed one-hot tensor of the value's shape."""
        noise = self.check(bounded, noise)
        candidates = scores = bounded.value.detach().double().cpu().reshape(-1)
        if self.signed:
            candidates = torch.cat([scores, -scores])
        sign, place = divmod(
            int(_noisy(candidates, 2 * bounded.bound / self.epsilon, noise.gumbel).argmax()), len(scores)
        )
        chosen = torch.zeros_like(bounded.value).reshape(-1)
        chosen[place] = 1.0 - 2 * sign
        return chosen.reshape(bounded.value.shape)


@dataclass(frozen=True)
class TopK(_Choice):
    """The places of the k largest `|s_j|`, chosen one after the other by the exponential mechanism; no values.

    One-shot: Gumbel noise of scale `2 C / epsilon` on every `|s_j|`, the k largest win, which is k exponential
    mechanisms of parameter epsilon in a row.  Released is a 0/1 tensor.  Guarantee: `k epsilon^2 / 8`-zCDP
    (add/remove).

    >>> import torch
    >>> from isthmus.privacy import SeededSource
    >>> TopK(2, 1.0).release(ClippedSum(torch.tensor([99.0, 0.0, -99.0]), math.inf, 1.0), SeededSource(0)).tolist()
    [1.0, 0.0, 1.0]
    """

    k: int
    epsilon: float

    @property
    def _choices(self) -> int:
        return self.k

    def release(self, bounded: ClippedSum, noise: Source | None) -> Tensor:
        """A 0/1 tensor of the value's shape with k ones."""
        noise = self.check(bounded, noise)
        scores = bounded.value.detach().double().cpu().reshape(-1).abs()
        validate.at_most(len(scores), "the number of coordinates", k=self.k)
        noisy = _noisy(scores, 2 * bounded.bound / self.epsilon, noise.gumbel)
        chosen = torch.zeros_like(bounded.value).reshape(-1)
        chosen[noisy.topk(self.k).indices.to(chosen.device)] = 1.0
        return chosen.reshape(bounded.value.shape)


class _OnGrid(Mechanism):
    """Integer noise on a grid: exact noise, whose low bits can betray nothing about the value.

    The value is rounded to multiples of `grid`, which moves neighbours apart by at most `sqrt(m) * grid` more.
    """

    multiplier: float
    grid: float

    def __post_init__(self) -> None:
        validate.positive(noise_multiplier=self.multiplier, grid=self.grid)

    @abstractmethod
    def noised(self, steps: Tensor, bound: float, noise: Source) -> Tensor:
        """These whole numbers of steps (float64), where one record of the unrounded ones has this bound, with noise."""

    def release(self, bounded: ClippedSum, noise: Source | None) -> Tensor:
        """The rounded value plus noise: multiples of the grid, before rounding to the value's dtype."""
        noise = self.check(bounded, noise)
        steps = (bounded.value.detach().double().cpu().reshape(-1) / self.grid).round().nan_to_num(0.0)
        noisy = self.noised(steps, bounded.bound, noise).double() * self.grid
        return noisy.reshape(bounded.value.shape).to(bounded.value)


@dataclass(frozen=True)
class DiscreteGaussian(_OnGrid):
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
    source = "secret noise from opendp's own cryptographic generator"

    def noised(self, steps: Tensor, bound: float, noise: Source) -> Tensor:
        """Discrete Gaussian noise, by opendp."""
        scale = self.scale(bound, len(steps)) / self.grid
        reach = 2.0**53 - 40 * scale
        remedy = f"take a coarser grid: the noise is {scale:.3g} steps of this one wide"
        validate.check(reach > 0, "grid", self.grid, remedy)
        # saturation is a contraction: it never moves two neighbours further apart
        integers = steps.clamp(-reach, reach).long()
        return torch.tensor(_discrete_gaussian(integers.tolist(), scale), dtype=torch.float64)

    def scale(self, bound: float, m: int) -> float:
        """The noise scale for m numbers of bound C."""
        return self.multiplier * (bound + math.sqrt(m) * self.grid)

    def event(self, adjacency: Adjacency = _ADD) -> DpEvent:
        """`ZCDpEvent(1 / (2 multiplier^2))`."""
        return dpa.ZCDpEvent(rho=0.5 / self.multiplier**2, xi=0.0)

    def describe(self) -> str:
        """The release in words."""
        return f"discrete Gaussian noise of {event_json.multiples(self.multiplier)}, in steps of {self.grid:g}"


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
        raise ImportError(f"DiscreteGaussian needs opendp; {validate.extra('secure')}") from error
    prelude.enable_features("contrib")
    space = prelude.vector_domain(prelude.atom_domain(T="i64")), prelude.l2_distance(T="f64")
    return list(prelude.m.make_gaussian(*space, scale=scale)(values))
