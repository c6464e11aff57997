"""What a data set tells without being paid for, and the warnings that name the remedy."""

from __future__ import annotations

import sys
import warnings


class PrivacyLeakWarning(RuntimeWarning):
    """Something was read off private data and counts as public: the guarantee holds only if it may be."""


class PrivacyBudgetWarning(RuntimeWarning):
    """More is being spent than one fit looks like."""


def leak(what: str, remedy: str) -> str:
    """Warn the caller of the estimator that `what` was read off the data; returns what the statement then rests on."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).startswith("isthmus."):
        level, frame = level + 1, frame.f_back
    warnings.warn(f"{what} read off the private data: {remedy}", PrivacyLeakWarning, stacklevel=level)
    return f"{what} read off the data and taken to be public; {remedy}"


def warn_of_repeated_fits(epsilon: float) -> None:
    """Warn when a fit is one of many of a model selection: each of them spends."""
    frame = sys._getframe(1)
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith("sklearn.model_selection"):
            warnings.warn(
                f"each fit of a search or cross-validation spends epsilon={epsilon:g} on the rows it sees, and the "
                "scores it is judged by are not private: choose with isthmus.PrivateSearch, on public data, or share "
                "a ledger= that refuses what exceeds it",
                PrivacyBudgetWarning,
                stacklevel=3,
            )
            return
        frame = frame.f_back  # type: ignore[assignment]
