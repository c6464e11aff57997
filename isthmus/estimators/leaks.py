"""What a data set tells without being paid for, and the warnings that name the remedy."""

from __future__ import annotations

import sys
import warnings
from typing import Any

from sklearn.compose import TransformedTargetRegressor
from sklearn.frozen import FrozenEstimator
from sklearn.utils import get_tags

ONCE = ("", "pipeline", "base", "utils", "compose", "frozen", "_config", "externals")
"""Parts of scikit-learn that fit an estimator once; all others try it several times, or feed its errors back."""


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
        if _part(frame) not in ONCE:
            warnings.warn(
                f"each fit of a search, cross-validation or ensemble spends epsilon={epsilon:g} on the rows it sees, "
                "and scores that it is judged by are not private: choose with isthmus.PrivateSearch, on public data, "
                "or share a ledger= that refuses what exceeds it",
                PrivacyBudgetWarning,
                stacklevel=3,
            )
            return
        frame = frame.f_back  # type: ignore[assignment]


def warn_of_large_delta(delta: float, n: int) -> None:
    """Warn of a delta that allows publishing whole records."""
    if delta * n >= 1:
        text = f"delta={delta:g} is at least 1/n: it would allow publishing a record of {n}; give far less than 1/n"
        warnings.warn(text, PrivacyBudgetWarning, stacklevel=2)


def learned_before() -> tuple[str, ...]:
    """Warn of steps of a Pipeline around this fit that learn from the rows; what the statement then rests on."""
    names: dict[str, None] = {}
    frame: Any = sys._getframe(1)
    while frame is not None:  # a Pipeline may be the last step of another
        around = frame.f_locals.get("self")
        if _part(frame) == "pipeline" and hasattr(around, "steps"):
            names |= dict.fromkeys(f"the step {name!r}" for name, step in around.steps[:-1] if _learns(step))
        if isinstance(around, TransformedTargetRegressor) and _learns(around.transformer):
            names["the transformer of the target"] = None
        frame = frame.f_back
    remedy = "scale by bounds=, target_bounds= or public rows, or use steps that look at one row at a time"
    return tuple(leak(f"what {name} before the model learned was", remedy) for name in names)


def _part(frame: Any) -> str:
    """Which part of scikit-learn a frame runs in."""
    words = str(frame.f_globals.get("__name__", "")).split(".")
    return words[1] if words[0] == "sklearn" and len(words) > 1 else ""


def _learns(step: Any) -> bool:
    """Whether a transformer takes something from the rows it is fitted on."""
    if step is None or isinstance(step, (str, FrozenEstimator)):  # "passthrough", "drop", or fitted elsewhere
        return False
    for inner in ("transformers", "transformer_list", "steps"):  # ColumnTransformer, FeatureUnion, Pipeline
        if hasattr(step, inner):
            return any(_learns(each[1]) for each in getattr(step, inner))
    if hasattr(step, "categories"):  # an encoder with given words learns nothing
        return isinstance(step.categories, str)
    return bool(get_tags(step).requires_fit)
