"""The work behind `isthmus train`: prepare, fit, keep the model, measure, and write the record.

A run has three stages, and each leaves a file that says it is done: `model.safetensors` (trained), `metrics.json`
(measured), `run.json` (recorded).  A killed run is resumed at the first stage that is not done; training itself goes on
from its checkpoint.  Whatever was released was charged to the ledger on the disk before: epsilon is never too low.

The record of a run, `run.json`: what was trained, what was measured, and what all of it cost by the ledger.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import scipy.sparse as sp

from isthmus import estimators
from isthmus.base import secret, shapes, validate
from isthmus.base.atomic import CannotWrite
from isthmus.core.group import ALONE, Group
from isthmus.core.wire import State
from isthmus.distributed.parts import joined
from isthmus.estimators import PrivacyBudgetWarning, PrivacyLeakWarning, PrivateClassifier, PrivateRegressor
from isthmus.objectives.linear import loss_for
from isthmus.planner import Plan, plan
from isthmus.privacy import Ledger, PrivacyStatement, event_json
from isthmus.privacy.plan import default_delta
from isthmus.report import Record
from isthmus.runs import folder as files
from isthmus.runs import measure
from isthmus.runs.budget import open_shared
from isthmus.runs.config import Settings, read_constraint
from isthmus.runs.folder import FolderDamaged, RunFolder, _next_folder
from isthmus.runs.measure import Measured
from isthmus.runs.prepare import PreparedRows, prepare
from isthmus.tables.schema import Schema

Say = Callable[[str], None]
_Fitted = PrivateClassifier | PrivateRegressor

HEADER = """# The public rules that turned the table into numbers. Columns with source = "data" were guessed from
# private rows. Review a copy and give it as --schema next time: that declares it public, and nothing is guessed.

"""


class Interrupted(RuntimeError):
    """A run was stopped from outside; the message says how to go on."""


@contextmanager
def together() -> Iterator[Group]:
    """The ranks that torchrun started, for as long as a command lasts; an error on one of them is one on all."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1 or "RANK" not in os.environ:
        yield ALONE
        return
    with joined("env://", int(os.environ["RANK"]), size):
        crew = Group.of(True)
        with crew.joined("fit"):
            yield crew


# ---------------------------------------------------------------- entries


def start(
    settings: Settings, declared: Schema, *, say: Say, warn: Say, progress: bool = False, crew: Group = ALONE
) -> Outcome | None:
    """Begin a run and carry it through; on ranks rank 0 has its folder, and what came out of it."""
    bare = crew.size > 1 and settings.test_fraction is not None and settings.measure_epsilon is None
    remedy = "leave it out for noisy figures, or give --test FILE: exact figures need all rows in one process"
    validate.check(not bare, "release_test_metrics", settings.release_test_metrics, remedy)
    shared = _shared(settings, crew)
    salt = str(crew.on_leader(lambda: secret.token_hex(16)))
    problem = prepare(settings, declared, salt=salt, crew=crew)
    target = problem.target  # with everything that was guessed, so that a resumed run guesses nothing
    known: dict[str, Any] = {"target": target.name, "task": target.task, "classes": target.classes}
    for name in ("data", "public", "test", "budget"):
        if vars(settings)[name] is not None:
            known[name] = str(Path(vars(settings)[name]).absolute())
    if problem.features is None:
        known["features"] = problem.d
    work = _Work(replace(settings, **known), problem, crew, shared)
    if crew.rank:
        return work.carry(warn, progress)
    for note in problem.notes:
        say(f"note: {note}")
    leaks = [f"{leak}." for leak in problem.leaks if settings.private]
    path = Path(settings.out or _next_folder(problem.name))
    stored = {"seed": secret.randbits(31), "settings": work.settings.to_dict(), "label": path.name, "leaks": leaks}
    if crew.size > 1:
        stored["ranks"] = crew.size
    if settings.test_fraction is None:
        salt = ""
    run = RunFolder.create(path, stored, schema=HEADER + problem.schema.to_toml(versioned=True), secret=salt)
    for leak in leaks:
        warn(leak)
    try:
        return replace(work, run=run).carry(warn, progress)
    except BaseException as error:
        ledger = run.path / files.LEDGER
        spent = run.has(files.CHECKPOINT) or (ledger.exists() and bool(Ledger(ledger).rounds()))
        if not spent:  # leave nothing behind
            shutil.rmtree(run.path)
            if isinstance(error, Interrupted):
                raise Interrupted("The run was stopped before anything was spent: start it again") from None
        raise


def resume(path: str | Path, *, say: Say, warn: Say, progress: bool = False, crew: Group = ALONE) -> Outcome | None:
    """Go on with a run that was stopped; one that is done is left as it is."""
    run = RunFolder.open(path) if crew.rank == 0 else None

    def stored() -> list[str]:
        """What ranks need of the folder, which rank 0 can read: done or not, settings, schema, salt."""
        assert run is not None
        begun, given, salt = run.settings.get("ranks", 1), run.settings["settings"], ""
        if not run.has(files.RUN):
            remedy = f"continue with {begun}, by which the run was begun, so that every rank has its own rows again"
            validate.check(begun == crew.size, "ranks", crew.size, remedy)
            if given.get("test_fraction") is not None:
                salt = run.read(files.SECRET).decode()
        return ["done" * run.has(files.RUN), json.dumps(given), run.read(files.SCHEMA).decode(), salt]

    done, given, rules, salt = crew.on_leader(stored)
    settings = Settings.from_dict(json.loads(given))
    if done:
        if run is None:
            return None
        say(f"{run.path} is finished: there is nothing left to do")
        _tidy(run)
        return _outcome_of(run, Ledger(run.path / files.LEDGER) if settings.private else None)
    problem = prepare(settings, Schema.from_toml(rules, files.SCHEMA), salt=salt, settled=True, crew=crew)
    shared = _shared(settings, crew)
    if run is not None:
        say(f"resuming {run.path}")
    return _Work(settings, problem, crew, shared, run).carry(warn, progress)


def _shared(settings: Settings, crew: Group = ALONE) -> Ledger | None:
    """The budget that is shared with other runs, where there is one."""
    if settings.budget is None or crew.rank:
        return None
    return open_shared(settings.budget)


def dry_run(settings: Settings, declared: Schema) -> tuple[PreparedRows, Plan]:
    """The schema and the plan of a run that is not made: nothing is spent, nothing is written."""
    _shared(settings)
    problem = prepare(settings, declared, salt=secret.token_hex(16))
    estimator, classes = _Work(settings, problem).estimator(), problem.target.classes
    facts: dict[str, Any] = {name: vars(estimator)[name] for name in ("epsilon", "loss", "constraint", "adjacency")}
    if classes is not None:
        facts |= {"loss": loss_for(estimator.loss, len(classes)), "classes": len(classes)}
    if settings.scale == "public":
        facts["scale"] = "none"
    if settings.algorithm != "auto":
        facts["algorithms"] = [settings.algorithm]
    planned = plan(
        n=settings.n or problem.n,
        d=problem.d,
        delta=settings.delta,
        sparse=sp.issparse(problem.x),
        features=settings.shape,
        penalty=bool(settings.l1 or settings.l2),
        **{"scale": settings.scale} | facts,
    )
    return problem, planned


# ---------------------------------------------------------------- the stages

_AS_GIVEN = ("algorithm", "l1", "l2", "clip", "step", "max_iter", "batch_size", "scale", "data_norm", "n", "adjacency")


@dataclass(frozen=True)
class _Work:
    """A run by this process, or by several ranks: rank 0 alone has its folder, its ledgers and its words."""

    settings: Settings
    problem: PreparedRows
    crew: Group = ALONE
    shared: Ledger | None = None
    run: RunFolder | None = None

    @property
    def delta(self) -> float:
        """As asked, or min(1e-5, n^-1.1) of the public number of rows."""
        return self.settings.delta or default_delta(self.settings.n or self.problem.n)

    def carry(self, warn: Say, progress: bool) -> Outcome | None:
        """Every stage that is not done yet."""
        run, settings = self.run, self.settings
        if run is None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # rank 0 passes them on
                self.measured(self.trained(None, False), None)
            return None
        heard: list[str] = list(run.settings["leaks"])
        with run.locked():
            ledger = self.ledger(run)
            with _heard(heard, warn), _resumable(run):
                fitted = self.trained(ledger, progress)
                measured = self.measured(fitted, ledger)
                _write_record(run, settings, fitted, measured, ledger, heard)
            return _outcome_of(run, ledger)

    def ledger(self, run: RunFolder) -> Ledger | None:
        """The run's own ledger, beside the shared one; None for a run that is not private."""
        settings, path = self.settings, run.path / files.LEDGER
        if not settings.private:
            return None
        begun = run.has(files.CHECKPOINT) or run.has(files.MODEL)
        if begun and not path.exists():
            raise FolderDamaged(f"{path} is missing, and with it what this run has spent: restore it")
        more = {"label": run.settings["label"], "adjacency": settings.adjacency}
        return Ledger(path, math.inf, shared=self.shared, planned=measure.planned(settings, self.delta), **more)

    def trained(self, ledger: Ledger | None, progress: bool) -> _Fitted:
        """The fitted estimator; already trained, the one in the folder."""
        run, crew = self.run, self.crew
        if crew.on_leader(lambda: run.has(files.MODEL)):  # type: ignore[union-attr]
            with tempfile.TemporaryDirectory() as folder:  # every rank reads the model in rank 0's folder
                path = (Path(folder) if run is None else run.path) / files.MODEL
                content = crew.on_leader(lambda: path.read_bytes().hex())
                if run is not None:
                    return files._load_model(run)[0]
                path.write_bytes(bytes.fromhex(content))
                return estimators.load(path)
        own: dict[str, Any] = {"ledger": ledger, "verbose": int(progress)}
        if run is not None:
            checkpoint = run.path / files.CHECKPOINT
            own |= {"checkpoint": checkpoint, "random_state": run.settings["seed"]}
            if checkpoint.exists():
                try:
                    State.load(checkpoint)
                except validate.InvalidInput:
                    remedy = "restore it, or remove it to train from the start (what was spent stays spent)"
                    raise FolderDamaged(f"{checkpoint} was cut or altered: {remedy}") from None
        estimator = self.estimator(**own)
        estimator.fit(self.problem.x, self.problem.y, group=crew)
        if run is not None:
            run.write(files.PLAN, estimator.plan_.to_json().encode())
            run.write_sealed(files.TRAINED, self.facts_of(estimator))
            estimators.save(estimator, run.path / files.MODEL)
        return estimator

    def estimator(self, **own: Any) -> _Fitted:
        """The estimator that the settings describe, not fitted."""
        settings, target = self.settings, self.problem.target
        options: dict[str, Any] = {name: vars(settings)[name] for name in _AS_GIVEN} | {
            "epsilon": measure._training_epsilon(settings, self.delta),
            "delta": self.delta,
            "constraint": read_constraint(settings.constraint),
            "features": settings.shape,
            "bounds": self.problem.bounds,
            "fit_intercept": settings.intercept,
            "public": self.problem.public,
            "options": shapes.plain(settings.options) or None,
            "random_state": 0,
            **own,
        }
        if settings.loss is not None:
            options["loss"] = settings.loss
        if target.task == "classification":
            classes = list(target.classes or ())
            return PrivateClassifier(**options, classes=classes, class_weight=shapes.plain(settings.class_weight))
        return PrivateRegressor(**options, target_bounds=target.bounds)

    def measured(self, fitted: _Fitted, ledger: Ledger | None) -> Measured:
        """The figures of the test rows; already measured, those in the folder."""
        run, problem, settings = self.run, self.problem, self.settings
        if self.crew.on_leader(lambda: run.has(files.METRICS)):  # type: ignore[union-attr]
            return Measured() if run is None else Measured.from_dict(run.read_sealed(files.METRICS))
        measured, noisy = Measured(), settings.measure_epsilon is not None
        if problem.test is not None and (self.crew.rank == 0 or noisy):  # rank 0 has the rows of exact figures whole
            rows = problem.test_rows or 0
            measured = measure.measure(settings, fitted, problem.test, self.delta, ledger, self.crew, rows)
        if run is not None:
            run.write_sealed(files.METRICS, measured.to_dict())
        return measured

    def facts_of(self, estimator: _Fitted) -> dict[str, object]:
        """What the record needs of the fitted estimator, for the stages after it."""
        settings, problem = self.settings, self.problem
        treatments = [{"name": column.name, "treatment": column.words()} for column in problem.schema.columns]
        data: dict[str, object] = {"name": problem.name, "target": problem.target.name, "fields": treatments or None}
        data |= {"features": problem.features, "test_rows": problem.test_rows}
        if settings.n is None:
            data["n"] = problem.n
        if problem.public is not None:
            rows, *_ = problem.public if isinstance(problem.public, tuple) else (problem.public,)
            data["public_rows"] = int(rows.shape[0])
        title = settings.title or f"{problem.target.name} from {problem.name}"
        record = Record.of(estimator, title=title, data=data, purpose=settings.purpose, owner=settings.owner).to_dict()
        curve = record["budget"]["curve"] or [list(point) for point in estimator.budget_curve()]
        record["budget"] |= {"epsilon": settings.to_dict()["epsilon"], "curve": curve, "shared": None}
        return {"record": record, "statement": estimator.privacy_ and estimator.privacy_.to_json()}


# ---------------------------------------------------------------- warnings and interrupts


@contextmanager
def _heard(remembered: list[str], warn: Say) -> Iterator[None]:
    """Pass every warning on once, and remember those about privacy."""
    heard = set(remembered)

    def show(message: Warning | str, category: type[Warning], *rest: object) -> None:
        words = str(message)
        if words not in heard:
            heard.add(words)
            warn(words)
            if issubclass(category, PrivacyBudgetWarning | PrivacyLeakWarning):
                remembered.append(words)

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show  # type: ignore[assignment]
        yield


@contextmanager
def _resumable(run: RunFolder) -> Iterator[None]:
    """Turn an interrupt (also SIGTERM) into words that say how to go on."""

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    again = f"isthmus train --resume {run.path}"
    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, stop) if main else None
    try:
        yield
    except CannotWrite as error:
        raise Interrupted(f"The run was stopped: {error}. Then continue with: {again}") from error
    except KeyboardInterrupt:
        words = f"The run was stopped. What was released is in the ledger. Continue with: {again}"
        raise Interrupted(words) from None
    finally:
        if main:
            signal.signal(signal.SIGTERM, before)


@dataclass(frozen=True)
class Outcome:
    """What a run left behind."""

    folder: Path
    record: Record
    measured: Measured
    epsilon: float

    @property
    def leaks(self) -> list[str]:
        """What epsilon does not cover."""
        return list((self.record.privacy or {}).get("leaks", ()))

    def to_dict(self) -> dict[str, object]:
        """For `--json`."""
        record = self.record
        delta = (record.privacy or {}).get("delta")
        told = {"run": str(self.folder), "epsilon": self.epsilon, "delta": delta, "leaks": self.leaks}
        told |= {"algorithm": record.model["algorithm"], "rounds": record.model["rounds"], "words": record.words}
        return told | {"metrics": [vars(figure) for figure in self.measured.figures], "warnings": list(record.warnings)}


def _write_record(
    run: RunFolder, settings: Settings, fitted: _Fitted, measured: Measured, ledger: Ledger | None, heard: list[str]
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
        statement, lost = _whole_statement(ledger, trained["statement"], [*run.settings["leaks"], *bare], measured)
        record |= {"privacy": json.loads(statement.to_json()), "words": statement.words()}
        fitted.privacy_ = statement
        estimators.save(fitted, run.path / files.MODEL)
        if lost:
            warnings.append(f"The run was interrupted: epsilon counts {lost} releases that were paid for and lost.")
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
    _tidy(run)


def _tidy(run: RunFolder) -> None:
    """Remove what only an unfinished run needs; the secret first."""
    for name in (files.SECRET, files.TRAINED, files.CHECKPOINT):
        for file in (run.path / name, *run.path.glob(f"{name}.*.part")):  # a killed process may leave half a file
            file.unlink(missing_ok=True)


def _whole_statement(ledger: Ledger, text: str, leaks: list[str], measured: Measured) -> tuple[PrivacyStatement, int]:
    """What the ledger says was released, in the words of the training's statement; and how much of it was lost."""
    own = PrivacyStatement.from_json(text)
    lost = _releases(event_json.to_json(ledger.event())) - _releases(own.event) - measured.releases
    assumptions = list(own.assumptions)
    assumptions.append("the names of the columns, and the rules that turn the table into numbers, are public")
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


def _releases(event: dict[str, Any]) -> int:
    """How many single releases an event is made of."""
    return sum(count for _, count in event_json.flatten(event))


def _outcome_of(run: RunFolder, ledger: Ledger | None) -> Outcome:
    """What a finished run left behind; epsilon is what its ledger says."""
    record, spent = Record.from_file(run.path), math.inf
    if record.privacy is not None and ledger is not None:
        spent = ledger.spent(float(record.privacy["delta"]))
    return Outcome(run.path, record, Measured.from_dict(run.read_sealed(files.METRICS)), spent)
