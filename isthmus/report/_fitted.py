"""What a fitted estimator may show of itself: its attributes, as the parts of a record."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import isthmus
from isthmus.report._shape import need

PACKAGES = ("isthmus", "torch", "numpy", "scipy", "scikit-learn", "dp-accounting")
_POINTS = 10
"""Points of the budget's curve: each asks the accountant."""


UNCOUNTED = (
    "Some figures have noise, and the statement may not count what they cost: it is not known where that was paid. "
    "Give metrics=scores as private_score returned them, or the ledger that they were charged to"
)


def told(entries: Any) -> tuple[list[Any], Any]:
    """Figures or curves as a record holds them, and the scores that they are of where those say what they cost."""
    if isinstance(entries, isthmus.estimators.Scores):
        return [figure.to_dict() for figure in entries.figures], entries if entries.privacy is not None else None
    return [entry.to_dict() if hasattr(entry, "to_dict") else entry for entry in entries], None


def described(
    estimator: Any,
    data: Mapping[str, Any],
    warnings: tuple[str, ...],
    ledger: Any = None,
    scores: Any = None,
    noisy: bool = False,
) -> dict[str, Any]:
    """All parts of a record that the estimator, the ledger and the statement of its scores know.

    What was paid for by another ledger than this one, or nobody knows by which, is counted besides what this one holds.
    `noisy` says that there are figures with noise which bring no statement.
    """
    fitted = all(hasattr(estimator, name) for name in ("result_", "privacy_", "plan_", "choice_", "history_"))
    need(fitted, "estimator", type(estimator).__name__, "give an isthmus estimator, and fit it first")
    need("name" in data, "data", dict(data), "give at least its public name: data={'name': ...}")
    statement, plan = estimator.privacy_, estimator.plan_
    given = estimator.ledger if ledger is None else ledger
    file = Path(given).name if isinstance(given, str | os.PathLike) else None
    ledger = isthmus.privacy.Ledger.open(given) if file is not None else given
    if not isinstance(ledger, isthmus.privacy.Ledger):  # none, or one of the user's own, which cannot be read
        ledger = None
    if statement is not None:
        own = set() if ledger is None else set(isthmus.estimators.turns.identities(ledger))
        costs = [(statement, getattr(estimator, "_paid", ()))]
        costs += [] if scores is None else [(scores.privacy, scores.paid)]
        apart = [cost for cost, paid in costs if not own & set(paid)]
        statement = statement.with_all_of(ledger, *(cost for cost, _ in costs[1:]), apart=apart)
        charged = [] if ledger is None else ledger.rounds()
        if noisy and not any(name.endswith(isthmus.estimators.scoring.FIGURES) for name in charged):
            warnings = (*warnings, UNCOUNTED)
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "data": _data(estimator, data),
        "model": _model(estimator),
        "privacy": None if statement is None else json.loads(statement.to_json()),
        "words": "" if statement is None else statement.words(),
        "warnings": warnings,
        "budget": _budget(estimator, ledger, file),
        "history": _history(estimator.history_, estimator.choice_),
        "energy": _energy(plan, estimator.choice_, estimator.options),
        "plan": plan.to_dict(),
    }


def versions() -> dict[str, str]:
    """The versions of the packages that a result depends on."""
    installed = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            installed[name] = version(name)
        except PackageNotFoundError:  # used from a folder, not installed
            continue
    return installed


def _data(estimator: Any, declared: Mapping[str, Any]) -> dict[str, Any]:
    """What was said of the data, with the number of records only where it is public."""
    names = getattr(estimator, "feature_names_in_", None)
    classes = getattr(estimator, "classes_", None)
    fitted = {
        "d": int(estimator.n_features_in_),
        "features": None if names is None else [str(name) for name in names],
        "classes": None if classes is None else [str(label) for label in classes],
    }
    facts = {**fitted, **declared}
    if estimator.privacy_ is not None:
        facts["n"] = estimator.privacy_.n
    return facts


def _history(rows: Sequence[Mapping[str, Any]], choice: Any) -> list[dict[str, Any]]:
    """How far each round moved and the expected length of its noise, where that is the step times the release's."""
    scaled = not choice.arguments.get(
        "precondition"
    )  # else the noise goes through a matrix that the round does not tell
    return [
        {"t": row["t"], "moved": _finite(row.get("moved")), "noise": _finite(row.get("noise")) if scaled else None}
        for row in rows
    ]


def _energy(plan: Any, choice: Any, options: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
    """The energy curve of public rows, and the number of directions where the run kept only so many."""
    public = plan.facts.public
    if public is None or public.curve is None:
        return None
    chosen = (options or {}).get("k", choice.arguments["k"]) if "data" in choice.of.parameters else None
    source = f"{public.rows:,} public records, half of them to learn from and half to judge"
    return {"k": public.curve.ks, "captured": public.curve.shares, "chosen": chosen, "source": source}


def _model(estimator: Any) -> dict[str, Any]:
    result, choice = estimator.result_, estimator.choice_
    fixed = dict(estimator.options or {}) | ({"as_published": True} if estimator.as_published else {})
    if estimator.clip is not None:
        fixed["clip"] = estimator.clip
    penalties = {"l1": estimator.l1, "l2": estimator.l2}
    constraint, facts = estimator.constraint, estimator.plan_.facts
    return {
        "task": "classification" if hasattr(estimator, "classes_") else "regression",
        "loss": estimator.plan_.facts.loss_name,
        "algorithm": choice.algorithm,
        "how": choice.of.words or None,
        "choice": choice.name,
        "arguments": choice.to_dict()["arguments"] | json.loads(json.dumps(fixed, default=str)),
        "rounds": int(estimator.n_iter_),
        "constraint": None if constraint is None else str(constraint),
        "penalty": " + ".join(f"{name} {value:g}" for name, value in penalties.items() if value) or None,
        "seconds": float(estimator.seconds_),
        "strength": float(facts.b) if facts.private else None,
        "dims": int(result.dims),
        "bytes": int(result.bytes),
    }


def _budget(estimator: Any, ledger: Any, file: str | None) -> dict[str, Any]:
    """What was asked for, the curve of the fit, and the budget that it drew on together with others."""
    statement, shared = estimator.privacy_, None
    if statement is not None and ledger is not None and ledger.budget is not None:
        shared = {"file": file, "epsilon": ledger.budget[0], "spent": ledger.spent()}
    return {
        "epsilon": float(estimator.epsilon),
        "delta": None if statement is None else statement.delta,
        "curve": [] if statement is None else estimator.budget_curve(_POINTS),
        "shared": shared,
    }


def _finite(value: Any) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None
