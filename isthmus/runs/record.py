"""The record of a run, `run.json`: what was trained, what was measured, and what all of it cost by the ledger."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from isthmus.estimators.figures import Figure
from isthmus.privacy import Ledger, PrivacyStatement, event_json
from isthmus.report import Record
from isthmus.runs import folder as files
from isthmus.runs import model
from isthmus.runs.config import Settings
from isthmus.runs.folder import RunFolder
from isthmus.runs.measure import Measured
from isthmus.runs.prepare import PreparedRows


@dataclass(frozen=True)
class Outcome:
    """What a run left behind."""

    folder: Path
    record: Any
    figures: tuple[Figure, ...]
    epsilon: float
    delta: float | None
    warnings: list[str]
    bought: int = 0

    @property
    def leaks(self) -> list[str]:
        """What epsilon does not cover."""
        return [] if self.record.privacy is None else list(self.record.privacy["leaks"])

    @property
    def charged_test(self) -> bool:
        """Whether figures of test rows were bought from epsilon."""
        return self.bought > 0

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "run": str(self.folder),
            "epsilon": self.epsilon,
            "delta": self.delta,
            "algorithm": self.record.model["algorithm"],
            "rounds": self.record.model["rounds"],
            "metrics": [vars(figure) for figure in self.figures],
            "warnings": self.warnings,
            "leaks": self.leaks,
            "words": self.record.words,
        }


def trained(estimator: Any, settings: Settings, problem: PreparedRows) -> dict[str, Any]:
    """What the record needs of the fitted estimator, for the stages after it."""
    data = {
        "name": problem.name,
        "n": problem.n if settings.n is None else None,
        "target": problem.target.name,
        "features": problem.features,
        "fields": [{"name": column.name, "treatment": column.words()} for column in problem.schema.columns] or None,
        "test_rows": problem.test_rows,
        "public_rows": None if problem.public is None else _rows(problem.public),
    }
    title = settings.title or f"{problem.target.name} from {problem.name}"
    record = Record.of(estimator, title=title, data=data, purpose=settings.purpose, owner=settings.owner).to_dict()
    epsilon = settings.epsilon if settings.private else "inf"
    curve = record["budget"]["curve"] or [list(point) for point in estimator.budget_curve()]
    statement = estimator.privacy_
    return {
        "record": record | {"budget": record["budget"] | {"epsilon": epsilon, "curve": curve, "shared": None}},
        "statement": None if statement is None else statement.to_json(),
    }


def write(
    run: RunFolder,
    settings: Settings,
    fitted: Any,
    measured: Measured,
    ledger: Ledger | None,
    heard: list[str],
) -> None:
    """Write `run.json`: the record of the training, the figures, and the statement of everything in the ledger.

    The model is written again with that statement: whoever gets the model alone gets the whole of it.
    """
    trained = run.read_sealed(files.TRAINED)
    record, bare = trained["record"], []
    if settings.test_fraction is not None and settings.release_test_metrics and settings.private:
        bare = ["The figures of the held-out rows were published without noise: epsilon does not cover them."]
    warnings = [*heard, *bare]
    if ledger is not None and trained["statement"] is not None:
        statement, lost = _statement(ledger, trained["statement"], [*run.settings["leaks"], *bare], measured)
        record |= {"privacy": json.loads(statement.to_json()), "words": statement.words()}
        fitted.privacy_ = statement
        model.save(run, fitted)
        warnings += (
            [f"The run was interrupted: epsilon counts {lost} releases that were paid for and lost."] if lost else []
        )
        if ledger.shared is not None and ledger.shared.budget is not None:
            spent = {"epsilon": ledger.shared.budget[0], "spent": ledger.shared.spent()}
            record["budget"] |= {"shared": {"file": Path(settings.budget or "").name, **spent}}
    record |= {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "warnings": list(dict.fromkeys(warnings)),
        "metrics": [figure.to_dict() for figure in measured.figures],
        "curves": list(measured.curves),
    }
    run.write(files.RUN, Record.from_dict(record).to_json().encode())
    tidy(run)


def tidy(run: RunFolder) -> None:
    """Remove what only an unfinished run needs; the secret first."""
    for name in (files.SECRET, files.TRAINED, files.CHECKPOINT):
        for file in (run.path / name, *run.path.glob(f"{name}.*.part")):  # a killed process may leave half a file
            file.unlink(missing_ok=True)


def _statement(ledger: Ledger, text: str, leaks: list[str], measured: Measured) -> tuple[Any, int]:
    """What the ledger says was released, in the words of the training's statement; and how much of it was lost."""
    own = PrivacyStatement.from_json(text)
    lost = _releases(event_json.to_json(ledger.event())) - _releases(own.event) - measured.releases
    assumptions = [
        *own.assumptions,
        "the names of the columns, and the rules that turn the table into numbers, are public",
    ]
    if own.n is not None:
        assumptions.append("how many rows have a target is public")
    assumptions += measured.assumptions
    own = replace(own, leaks=tuple(dict.fromkeys([*own.leaks, *leaks])))
    if not own.private:
        return own, 0
    statement = replace(own, assumptions=tuple(dict.fromkeys(assumptions))).with_all_of(ledger)
    if lost:
        statement = replace(statement, releases=())  # drawn from the event: whose rounds were lost is not known
    return statement, lost


def _releases(event: Any) -> int:
    """How many single releases an event is made of."""
    return sum(count for _, count in event_json.flatten(event))


def outcome(run: RunFolder, settings: Settings, ledger: Ledger | None) -> Outcome:
    """What a finished run left behind; epsilon is what its ledger says."""
    record = Record.from_file(run.path)
    measured = Measured.from_dict(run.read_sealed(files.METRICS))
    delta = None if record.privacy is None else float(record.privacy["delta"])
    spent = math.inf if ledger is None or delta is None else ledger.spent(delta)
    return Outcome(run.path, record, measured.figures, spent, delta, list(record.warnings), measured.releases)


def _rows(public: Any) -> int:
    return int((public[0] if isinstance(public, tuple) else public).shape[0])
