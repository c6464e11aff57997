"""Adversarial numbers: sums that round badly, magnitudes at the ends of the floats, records that cancel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Rng = np.random.Generator


@dataclass(frozen=True)
class Series:
    """One number for each record, the one that comes and goes among them at the place `at`; mostly within [-1, 1]."""

    values: np.ndarray
    at: int

    def times(self, factor: float) -> Series:
        """In other units."""
        return Series(self.values * factor, self.at)


def place(rng: Rng, n: int) -> int:
    """Where the record comes and goes: anywhere, often at an end."""
    return int(rng.choice([0, n, int(rng.integers(n + 1)), int(rng.integers(n + 1))]))


def power_of_two(rng: Rng, n: int) -> Series:
    """S - 1 whole steps and a half one, then small ones: the record decides on which side of S these are added.

    Below S they are rounded away (or up), above S in steps twice as large.
    """
    S = 1 << int(np.floor(np.log2(max(2, n // 2))))
    bits = rng.choice([23, 24, 25, 52, 53], p=[0.1, 0.5, 0.1, 0.1, 0.2])
    small = S * 2.0**-bits * rng.choice([0.49, 0.51, 0.99, 0.99, 0.75])
    tail = max(0, n - S)
    values = np.concatenate([-np.ones(S - 1), [-0.5, -1.0], np.full(tail, small)])
    if rng.random() < 0.3:  # many small numbers first, in the same direction or against it
        values[S + 1 :] *= -1
    return Series(values[: n + 1] * rng.choice([-1.0, 1.0]), min(S, n))


def carried(rng: Rng, n: int) -> Series:
    """Equal numbers whose partial sums cross many powers of two, with one more of them somewhere."""
    value = rng.choice([1 / 3, 0.1, 0.7, 1 - 2.0**-24, 2.0**-12 + 2.0**-23, 0.9999999])
    return Series(np.full(n + 1, value) * rng.choice([-1.0, 1.0]), place(rng, n))


def ties(rng: Rng, n: int) -> Series:
    """A large number, then halves of its last place: each addition is a tie, and one record shifts them all."""
    big = 2.0 ** rng.integers(-3, 4)
    ulp = big * 2.0 ** -rng.choice([23, 24, 52, 53])
    values = np.full(n + 1, ulp * rng.choice([0.5, 0.50001, 1.5])) * rng.choice([-1, 1])
    values[: max(1, n // 8)] = min(1.0, big)
    at = int(rng.integers(max(1, n // 8)))
    values[at] = rng.choice([1.0, ulp, -1.0])
    return Series(values, at)


def cancelling(rng: Rng, n: int) -> Series:
    """Whole steps up, then down again: the sum is small, its way is not."""
    values = np.where(np.arange(n + 1) % 2 == 0, 1.0, -1.0) * (1 - rng.random(n + 1) * 1e-3)
    if rng.random() < 0.5:
        values = np.sort(values)
    return Series(values, place(rng, n))


def magnitudes(rng: Rng, n: int) -> Series:
    """From the smallest denormal to the largest float32."""
    values = 10.0 ** rng.uniform(-45, 38, n + 1) * rng.choice([-1, 1], n + 1)
    return Series(values, place(rng, n))


def few_large(rng: Rng, n: int) -> Series:
    """A few long records among many short ones; the one that comes and goes is long."""
    values = rng.standard_normal(n + 1) * 10.0 ** rng.uniform(-12, -2)
    at = place(rng, n)
    values[rng.integers(n + 1, size=max(1, n // 50))] = 1.0
    values[at] = rng.choice([1.0, -1.0, 1e6, 3e38])
    return Series(values, at)


def ordinary(rng: Rng, n: int) -> Series:
    """Normal numbers."""
    return Series(rng.standard_normal(n + 1), place(rng, n))


def signs(rng: Rng, n: int) -> Series:
    """+1 and -1."""
    return Series(rng.choice([-1.0, 1.0], n + 1), place(rng, n))


SERIES: dict[str, Callable[[Rng, int], Series]] = {
    make.__name__: make for make in (power_of_two, carried, ties, cancelling, magnitudes, few_large, ordinary, signs)
}


def table(rng: Rng, series: Series, d: int) -> np.ndarray:
    """(n + 1) x d numbers whose columns follow the series."""
    n, kind = len(series.values), rng.integers(6)
    if kind == 0:  # every column the same, rows about as long as their number
        return np.repeat(series.values[:, None], d, 1) / np.sqrt(d)
    if kind == 1:  # one column
        out = np.zeros((n, d))
        out[:, rng.integers(d)] = series.values
        return out
    if kind == 2:  # one-hot rows
        out = np.zeros((n, d))
        out[np.arange(n), rng.integers(0, d, n)] = series.values
        return out
    if kind == 3:  # columns of different scales
        return series.values[:, None] * 10.0 ** rng.uniform(-6, 3, d)
    if kind == 4:  # pairs of columns that cancel
        return series.values[:, None] * np.where(np.arange(d) % 2, -1.0, 1.0) * (1 + 1e-6 * rng.standard_normal(d))
    return series.values[:, None] * rng.standard_normal((n, d))


def spoilt(rng: Rng, values: np.ndarray, at: int) -> np.ndarray:
    """A few entries that are no numbers, or hardly; often those of the record that comes and goes."""
    out = values.copy()
    bad = np.array([np.inf, -np.inf, np.nan, 3e38, -3e38, 1e-45, 1e300])
    rows = [at] if rng.random() < 0.6 else rng.integers(len(out), size=rng.integers(1, 4))
    for row in rows:
        flat = out[row].reshape(-1)
        flat[rng.integers(flat.size, size=rng.integers(1, flat.size + 1))] = rng.choice(bad)
        out[row] = flat.reshape(out[row].shape)
    return out


def mutated(rng: Rng, values: np.ndarray, at: int) -> np.ndarray:
    """A small change: of some entries, of their scale, of the record that comes and goes, of the order."""
    out, kind = values.copy(), rng.integers(6)
    n = len(out)
    rows = rng.integers(n, size=max(1, n // rng.choice([1, 4, 16, 64]))) if n else np.zeros(0, int)
    if kind == 0:
        out[rows] = out[rows] * (1 + rng.choice([1e-7, 1e-3, 0.1]) * rng.standard_normal(out[rows].shape))
    elif kind == 1:
        out *= rng.choice([0.5, 2.0, 0.99, 1.01, 10.0, 0.1])
    elif kind == 2:
        out[at] = out[at] * rng.choice([-1.0, 0.5, 2.0, 100.0])
    elif kind == 3:
        order = np.delete(np.arange(n), at)
        rest = out[rng.permutation(order)]
        out = np.insert(rest, at, out[at], 0)
    elif kind == 4:
        out[rows] = np.round(out[rows] * 2.0**20) * 2.0**-20
    else:
        out[rows] = -out[rows]
    return out
