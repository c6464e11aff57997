"""What a guarantee does not cover: the warnings of it, and what a statement then says.

A fact that is read off private data and not paid for is a leak: the caller is warned, and the run's statement names
it among `PrivacyStatement.leaks`.  A delta of 1/n or more would allow publishing whole records; one of .01 or more is
the probability of anything at all.
"""

from __future__ import annotations

import sys
import warnings


class PrivacyLeakWarning(RuntimeWarning):
    """Something was read off private data and counts as public: the guarantee holds only if it may be."""


class PrivacyBudgetWarning(RuntimeWarning):
    """More is being spent than one fit looks like."""


class Leak(str):
    """What a statement says of something that was read from the data: no assumption, but not covered by epsilon."""


_WITHIN = ("isthmus.", "contextlib")
"""How the names of modules begin whose frames no warning points at: ours, and that of a `with` which enters ours."""


def warn(text: str, category: type[Warning]) -> None:
    """A warning that points at the line outside this package from which it was called."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).startswith(_WITHIN):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=level)


def leak(what: str, remedy: str) -> Leak:
    """Warn the caller that `what` was read from the data; returns what the statement says of it.

    >>> with warnings.catch_warnings(action="ignore"):
    ...     leak("the labels (classes) were", "give classes=[...]")
    'the labels (classes) were read from the data and treated as public; give classes=[...]'
    """
    warn(f"{what} read from the private data, which epsilon does not cover: {remedy}", PrivacyLeakWarning)
    return Leak(f"{what} read from the data and treated as public; {remedy}")


_LARGE = 0.01


def large_delta(delta: float, n: int | None) -> str:
    """What is wrong with a delta for a public number of records; nothing is said of one below 1/n and .01.

    >>> large_delta(1e-5, 1000), large_delta(0.5, 64)[:25]
    ('', 'delta=0.5 is at least 1/n')
    """
    if not 0 < delta < 1:  # what is no delta is refused elsewhere
        return ""
    if n is None or delta < 1 / n:
        return (
            delta >= _LARGE
        ) * f"delta={delta:g} is the probability that nothing is promised: give one far below .01"
    return (
        f"delta={delta:g} is at least 1/n, which would allow publishing one of the {n} records; give a delta far below "
        f"1/n = {1 / n:.2g}"
    )


def warn_of_large_delta(delta: float, n: int | None) -> None:
    """Warn of a delta that allows publishing whole records."""
    caution = large_delta(delta, n)
    if caution:
        warn(caution, PrivacyBudgetWarning)
