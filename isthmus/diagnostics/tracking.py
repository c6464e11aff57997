"""How much of what was released is noise: from released values only, so it costs no privacy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from isthmus.base import validate
from isthmus.diagnostics.spectra import axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Sink(Protocol):
    """Where a `Tracker` sends its numbers as they come: `isthmus.tensorboard.TensorBoardWriter`, say."""

    def scalars(self, step: int, values: Mapping[str, float | None]) -> None:
        """Take the named numbers of a step."""


@dataclass(frozen=True)
class NoiseToSignal:
    """The sizes in a released y = s + N(0, sigma^2 I_m): the norm of y, of the noise (public), of s (estimated).

    >>> NoiseToSignal(released=5.0, noise=4.0, m=16).table()
    {'released': 5.0, 'noise': 4.0, 'signal': 3.0, 'noise_to_signal': 1.3333333333333333}
    """

    released: float
    noise: float
    m: int

    @property
    def signal(self) -> float:
        """sqrt(max(0, ||y||^2 - m sigma^2)): its square is unbiased before it is cut at 0."""
        return math.sqrt(max(0.0, (self.released - self.noise) * (self.released + self.noise)))

    @property
    def ratio(self) -> float:
        """noise / signal, infinite when no signal is seen."""
        if self.signal == 0:
            return math.inf
        return self.noise / self.signal

    def table(self) -> dict[str, float]:
        """released, noise, signal and noise_to_signal."""
        return {
            "released": self.released,
            "noise": self.noise,
            "signal": self.signal,
            "noise_to_signal": self.ratio,
        }

    def plot(self, ax: Axes | None = None) -> Axes:
        """The three norms as bars."""
        ax = axes(ax, "", "norm")
        ax.bar(["released", "noise", "signal"], [self.released, self.noise, self.signal])
        return ax


def noise_to_signal(released: Tensor, sigma_per_coordinate: float) -> NoiseToSignal:
    """Noise against signal in a RELEASED noisy value: sqrt(m) sigma against sqrt(max(0, ||y||^2 - m sigma^2)).

    Post-processing: it costs nothing.  sigma = 0 is refused, for then the value was not noised.  One release at a low
    signal says little: ||y||^2 varies by about sqrt(2 m) sigma^2.

    released              the noisy value, in the space the noise was added in (R^m, before the lift)
    sigma_per_coordinate  the standard deviation of its noise, in the same units

    >>> import torch
    >>> round(noise_to_signal(torch.tensor([3.0, 4.0]), 2.0).signal ** 2, 12)
    17.0
    """
    _check_released(released)
    validate.positive(sigma_per_coordinate=sigma_per_coordinate)
    validate.finite(released=released)
    return _measured(_square(released), released.numel(), sigma_per_coordinate)


class Tracker:
    """Collects released norms, noise to signal and paid-for clip fractions over training.

    `observe` takes what was RELEASED and keeps one number of it; nothing is copied off an accelerator until `table` or
    `plot` asks, unless there is a sink.  A pipeline with several releases a round takes a tracker for each.

    sink  has `.scalars(step, mapping)`; gets every observation as it comes

    >>> import torch
    >>> tracker = Tracker()
    >>> tracker.observe(0, torch.tensor([3.0, 4.0]), noise_std=2.0)
    >>> tracker.observe(1, torch.tensor([0.0, 1.0]), noise_std=2.0, clip_fraction=0.25)
    >>> tracker.table()["noise_to_signal"][1], tracker.table()["clip_fraction"]
    (inf, [None, 0.25])
    """

    def __init__(self, sink: Sink | None = None) -> None:
        self.sink = sink
        self._seen: list[tuple[int, Tensor, int, float, float | None]] = []

    def __len__(self) -> int:
        return len(self._seen)

    def observe(self, t: int, released: Tensor, noise_std: float, clip_fraction: float | None = None) -> None:
        """Take in the release of round t.

        released       the noisy value, in the space the noise was added in
        noise_std      of each of its coordinates, > 0
        clip_fraction  the share of clipped records where it was itself released with noise; None where it was not
        """
        validate.non_negative_int(t=t)
        validate.check(
            not self._seen or t > self._seen[-1][0], "t", t, "observe each round once, in the order of rounds"
        )
        _check_released(released)
        validate.positive(noise_std=noise_std)
        if clip_fraction is not None:  # noise may carry it out of [0, 1]
            validate.check(math.isfinite(clip_fraction), "clip_fraction", clip_fraction, "give a number, or None")
        self._seen.append((t, _square(released), released.numel(), noise_std, clip_fraction))
        if self.sink is not None:
            self.sink.scalars(t, self._record(-1))

    def table(self) -> dict[str, list[Any]]:
        """Columns step, released, noise, signal, noise_to_signal and clip_fraction (None where it was not paid for)."""
        columns: dict[str, list[Any]] = {"step": [entry[0] for entry in self._seen]}
        records = [self._record(i) for i in range(len(self))]
        for name in ("released", "noise", "signal", "noise_to_signal", "clip_fraction"):
            columns[name] = [record[name] for record in records]
        return columns

    def plot(self, ax: Axes | None = None) -> Axes:
        """The norms of what was released, of the noise and of the signal, over training."""
        ax = axes(ax, "round", "norm")
        table = self.table()
        for name in ("released", "noise", "signal"):
            ax.plot(table["step"], table[name], label=name)
        ax.legend()
        return ax

    def _record(self, index: int) -> dict[str, float | None]:
        _, square, m, noise_std, clip_fraction = self._seen[index]
        return {**_measured(square, m, noise_std).table(), "clip_fraction": clip_fraction}


def _measured(square: Tensor, m: int, sigma: float) -> NoiseToSignal:
    return NoiseToSignal(math.sqrt(float(square)), math.sqrt(m) * sigma, m)


def _square(released: Tensor) -> Tensor:
    """||y||^2 as a tensor with no dimensions, where y is."""
    return released.detach().double().square().sum()


def _check_released(released: Tensor) -> None:
    remedy = "give the released noisy value, a floating tensor that is not empty"
    validate.check(isinstance(released, Tensor), "released", type(released).__name__, remedy)
    good = released.is_floating_point() and released.numel() > 0
    validate.check(good, "released", (released.dtype, tuple(released.shape)), remedy)
