"""What a data set tells without being paid for, and the warnings that name the remedy."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from typing import Any

from sklearn.base import BaseEstimator
from sklearn.compose import TransformedTargetRegressor
from sklearn.pipeline import Pipeline

from isthmus.estimators.harmless import elementwise, learners
from isthmus.privacy.leaks import Leak, PrivacyBudgetWarning, PrivacyLeakWarning, leak

__all__ = ["PrivacyBudgetWarning", "PrivacyLeakWarning", "leak", "learned_before", "warn_of_repeated_fits"]

ONCE = ("", "pipeline", "base", "utils", "compose", "frozen", "_config", "externals")
"""Parts of scikit-learn that fit an estimator once; all others try it several times, or feed its errors back."""


def warn_of_repeated_fits(epsilon: float) -> None:
    """Warn when a fit is one of many of a model selection: each of them spends."""
    frame = sys._getframe(1)
    while frame is not None:
        if _part(frame) not in ONCE:
            warnings.warn(
                f"every fit of a search, cross-validation or ensemble spends epsilon={epsilon:g} on the rows it "
                "sees, and the scores that it is judged by are not private: choose with isthmus.PrivateSearch, "
                "choose on public data, or share a ledger= that refuses what exceeds it",
                PrivacyBudgetWarning,
                stacklevel=3,
            )
            return
        frame = frame.f_back  # type: ignore[assignment]


def learned_before() -> tuple[Leak, ...]:
    """Warn of whatever may have learned from the rows before this fit; what the statement says of it."""
    names: dict[str, None] = {}
    frame: Any = sys._getframe(1)
    while frame is not None:  # a Pipeline may be the last step of another
        names |= dict.fromkeys(_learners_around(frame))
        frame = frame.f_back
    remedy = (
        "scale by bounds=, target_bounds= or public rows, or use steps that look at one row at a time (encoders with "
        "declared words, Normalizer, FunctionTransformer of a numpy ufunc, or FrozenEstimator around one fitted to "
        "public rows)"
    )
    return tuple(leak(f"what {name} took from the rows was", remedy) for name in names)


def _learners_around(frame: Any) -> Iterator[str]:
    """What the estimator that a frame belongs to may hand on of the rows, in words."""
    around = frame.f_locals.get("self")
    if isinstance(around, Pipeline):
        for name, step in around.steps[:-1]:
            names = dict.fromkeys(learners(step))
            if names:
                yield f"the step {name!r} ({', '.join(names)}) before the model"
    elif isinstance(around, TransformedTargetRegressor):
        names = dict.fromkeys(learners(around.transformer))
        if names or not elementwise(around.func):
            yield f"the transformer of the target ({', '.join(names) or 'its function'})"
    elif isinstance(around, BaseEstimator) and not _is_harmless(type(around)):
        yield f"{type(around).__name__} around the model"  # not known to hand the rows on as they are


def _is_harmless(kind: type) -> bool:
    """Whether an estimator is the private one itself, a subclass of it, or one of scikit-learn's."""
    ours = any(base.__module__.startswith("isthmus.") for base in kind.__mro__)
    return ours or kind.__module__.split(".")[0] == "sklearn"


def _part(frame: Any) -> str:
    """Which part of scikit-learn a frame runs in."""
    words = str(frame.f_globals.get("__name__", "")).split(".")
    return words[1] if words[0] == "sklearn" and len(words) > 1 else ""
