"""Figures as pages write them."""

from __future__ import annotations

from typing import Any


def number(value: Any) -> str:
    """Three digits; no exponent where it can be read without.

    >>> [number(value) for value in (0.98765, 12.345, 1234.5, 3e-9, 0.0, "True")]
    ['0.988', '12.3', '1234', '3e-09', '0', 'True']
    """
    if isinstance(value, str):
        return value
    return f"{value:.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.3g}"


def spread(values: tuple[float, float, float]) -> str:
    """Median and quartiles.

    >>> spread((2.0, 1.5, 2.25))
    '2 (1.5 - 2.25)'
    """
    if values[0] == values[1] == values[2]:
        return number(values[0])
    return f"{number(values[0])} ({number(values[1])} - {number(values[2])})"
