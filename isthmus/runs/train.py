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

from isthmus import estimators
from isthmus.base import secret, validate
from isthmus.base.atomic import CannotWrite
from isthmus.core.group import ALONE, Group
from isthmus.core.state import State
from isthmus.distributed.parts import joined
from isthmus.estimators import PrivacyBudgetWarning, PrivacyLeakWarning, PrivateClassifier, PrivateRegressor
from isthmus.estimators.figures import Figure
from isthmus.estimators.rank_group import shared_file
from isthmus.objectives.linear import loss_for
from isthmus.planner import plan
from isthmus.privacy import Ledger, PrivacyStatement, event_json
from isthmus.privacy.plan import default_delta
from isthmus.report import Record
from isthmus.runs import folder as files
from isthmus.runs import measure
from isthmus.runs.budget import open_shared
from isthmus.runs.config import Settings, read_constraint
from isthmus.runs.folder import FolderDamaged, RunFolder, next_folder
from isthmus.runs.measure import Measured
from isthmus.runs.prepare import PreparedRows, prepare
from isthmus.tables.schema import Schema

Say = Callable[[str], None]

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
    shared = None if settings.budget is None or crew.rank else open_shared(settings.budget)
    salt = str(crew.on_leader(lambda: secret.token_hex(16)))
    problem = prepare(settings, declared, salt=salt, crew=crew)
    settled = _settled(settings, problem)
    if crew.rank:
        _follow(settled, problem, crew)
        return None
    for note in problem.notes:
        say(f"note: {note}")
    leaks = [f"{leak}." for leak in problem.leaks] if settings.private else []
    path = Path(settings.out) if settings.out else next_folder(problem.name)
    stored = {"seed": secret.randbits(31), "settings": settled.to_dict(), "label": path.name, "leaks": leaks}
    stored |= {"ranks": crew.size} if crew.size > 1 else {}
    kept = salt if settings.test_fraction is not None else None
    run = RunFolder.create(path, stored, schema=HEADER + problem.schema.to_toml(versioned=True), plan=None, secret=kept)
    for leak in leaks:
        warn(leak)
    try:
        return _carry(run, settled, problem, shared, warn=warn, progress=progress, crew=crew)
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
    stored = crew.on_leader(lambda: _stored(run, crew))  # type: ignore[arg-type]
    settings = Settings.from_dict(json.loads(stored["settings"]))
    if stored["done"]:
        if run is None:
            return None
        say(f"{run.path} is finished: there is nothing left to do")
        tidy(run)
        return outcome_of(run, settings, None if not settings.private else Ledger(run.path / files.LEDGER))
    schema = Schema.from_toml(stored["schema"], files.SCHEMA)
    problem = prepare(settings, schema, salt=stored["salt"], settled=True, crew=crew)
    if run is None:
        _follow(settings, problem, crew)
        return None
    shared = None if settings.budget is None else open_shared(settings.budget)
    say(f"resuming {run.path}")
    return _carry(run, settings, problem, shared, warn=warn, progress=progress, crew=crew)


def _stored(run: RunFolder, crew: Group) -> dict[str, Any]:
    """What ranks need of a run folder that rank 0 can read."""
    begun, now = run.settings.get("ranks", 1), crew.size
    remedy = f"continue with {begun}, by which the run was begun, so that every rank has its own rows again"
    validate.check(run.has(files.RUN) or begun == now, "ranks", now, remedy)
    settings = run.settings["settings"]
    salt = "" if settings.get("test_fraction") is None or run.has(files.RUN) else run.read(files.SECRET).decode()
    text = json.dumps(settings)
    return {"settings": text, "done": run.has(files.RUN), "schema": run.read(files.SCHEMA).decode(), "salt": salt}


def dry_run(settings: Settings, declared: Schema) -> tuple[PreparedRows, Any]:
    """The schema and the plan of a run that is not made: nothing is spent, nothing is written."""
    if settings.budget is not None:
        open_shared(settings.budget)
    problem = prepare(settings, declared, salt=secret.token_hex(16))
    estimator = _estimator(settings, problem, ledger=None, checkpoint=None, seed=0, verbose=0)
    classes = problem.target.classes
    planned = plan(
        n=settings.n or problem.n,
        d=problem.d,
        epsilon=estimator.epsilon,
        delta=settings.delta,
        loss=estimator.loss if classes is None else loss_for(estimator.loss, len(classes)),
        classes=len(classes or (0, 1)),
        constraint=estimator.constraint,
        adjacency=settings.adjacency,
        sparse=problem.features is None and not hasattr(problem.x, "__array_interface__"),
        scale=settings.scale if settings.scale != "public" else "none",
        features=settings.shape,
        penalty=bool(settings.l1 or settings.l2),
        algorithms=None if settings.algorithm == "auto" else [settings.algorithm],
    )
    return problem, planned


def _settled(settings: Settings, problem: PreparedRows) -> Settings:
    """The settings with everything that was guessed, so that a resumed run guesses nothing."""
    target = problem.target
    paths = {name: getattr(settings, name) for name in ("data", "public", "test", "budget")}
    absolute: dict[str, Any] = {name: str(Path(path).absolute()) for name, path in paths.items() if path is not None}
    return replace(
        settings,
        target=target.name,
        task=target.task,
        classes=target.classes,
        features=problem.d if problem.features is None else settings.features,
        **absolute,
    )


# ---------------------------------------------------------------- the stages


def _carry(
    run: RunFolder,
    settings: Settings,
    problem: PreparedRows,
    shared: Any,
    *,
    warn: Say,
    progress: bool,
    crew: Group,
) -> Outcome:
    """Every stage that is not done yet."""
    heard: list[str] = list(run.settings["leaks"])
    with run.locked():
        ledger = _ledger(run, settings, problem, shared)
        with _heard(heard, warn), _resumable(run):
            fitted = _train(run, settings, problem, ledger, progress, crew)
            measured = _measured(run, settings, problem, fitted, ledger, crew)
            write_record(run, settings, fitted, measured, ledger, heard)
        return outcome_of(run, settings, ledger)


def _follow(settings: Settings, problem: PreparedRows, crew: Group) -> None:
    """The stages on a rank that has no folder: it trains and measures with rank 0."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # rank 0 passes them on
        fitted = _train(None, settings, problem, None, False, crew)
        _measured(None, settings, problem, fitted, None, crew)


def _ledger(run: RunFolder, settings: Settings, problem: PreparedRows, shared: Any) -> Ledger | None:
    """The run's own ledger, beside the shared one; None for a run that is not private."""
    if not settings.private:
        return None
    planned = measure.planned(settings, _delta(settings, problem))
    path, label = run.path / files.LEDGER, run.settings["label"]
    begun = run.has(files.CHECKPOINT) or run.has(files.MODEL)
    if begun and not path.exists():
        raise FolderDamaged(f"{path} is missing, and with it what this run has spent: restore it")
    return Ledger(path, math.inf, shared=shared, label=label, adjacency=settings.adjacency, planned=planned)


def _train(
    run: RunFolder | None, settings: Settings, problem: PreparedRows, ledger: Any, progress: bool, crew: Group
) -> Any:
    """The fitted estimator; already trained, the one in the folder."""
    if crew.on_leader(lambda: run.has(files.MODEL)):  # type: ignore[union-attr]
        with tempfile.TemporaryDirectory() as folder:  # every rank reads the model in rank 0's folder
            path = shared_file(crew, (Path(folder) if run is None else run.path) / files.MODEL)
            if run is not None:
                return files.load_model(run).estimator
            return estimators.load(path)  # type: ignore[arg-type]
    checkpoint = None if run is None else run.path / files.CHECKPOINT
    if checkpoint is not None and checkpoint.exists():
        try:
            State.load(checkpoint)
        except validate.InvalidInput:
            raise FolderDamaged(
                f"{checkpoint} was cut or altered: restore it, or remove it to train from the start on the same "
                "ledger (what was spent stays spent)"
            ) from None
    seed = 0 if run is None else run.settings["seed"]
    options: dict[str, Any] = {"ledger": ledger, "checkpoint": checkpoint, "seed": seed, "verbose": int(progress)}
    estimator = _estimator(settings, problem, **options)
    estimator.fit(problem.x, problem.y, group=crew)
    if run is not None:
        run.write(files.PLAN, estimator.plan_.to_json().encode())
        run.write_sealed(files.TRAINED, facts_of(estimator, settings, problem))
        estimators.save(estimator, run.path / files.MODEL)
    return estimator


_AS_GIVEN = ("algorithm", "l1", "l2", "clip", "step", "max_iter", "batch_size", "scale", "data_norm", "n", "adjacency")


def _estimator(
    settings: Settings, problem: PreparedRows, *, ledger: Any, checkpoint: Any, seed: int, verbose: int
) -> Any:
    """The estimator that the settings describe, not fitted."""
    target = problem.target
    given = vars(settings)
    options: dict[str, Any] = {name: given[name] for name in _AS_GIVEN} | {
        "epsilon": measure.training_epsilon(settings, _delta(settings, problem)),
        "delta": _delta(settings, problem),
        "constraint": read_constraint(settings.constraint),
        "features": settings.shape,
        "bounds": problem.bounds,
        "fit_intercept": settings.intercept,
        "public": problem.public,
        "ledger": ledger,
        "checkpoint": checkpoint,
        "options": settings.options or None,
        "random_state": seed,
        "verbose": verbose,
    }
    if settings.loss is not None:
        options["loss"] = settings.loss
    if target.task == "classification":
        options |= {"classes": list(target.classes or ()), "class_weight": settings.class_weight}
        return PrivateClassifier(**options)
    return PrivateRegressor(**options, target_bounds=target.bounds)


def _measured(
    run: RunFolder | None, settings: Settings, problem: PreparedRows, fitted: Any, ledger: Any, crew: Group
) -> Measured:
    """The figures of the test rows; already measured, those in the folder."""
    if crew.on_leader(lambda: run.has(files.METRICS)):  # type: ignore[union-attr]
        return Measured() if run is None else Measured.from_dict(run.read_sealed(files.METRICS))
    measured, apart = Measured(), settings.measure_epsilon is None or not settings.private
    if problem.test is not None and (crew.rank == 0 or not apart):  # exact figures are of rows that rank 0 has whole
        rows = problem.test_rows or 0
        measured = measure.measure(settings, fitted, *problem.test, _delta(settings, problem), ledger, crew, rows)
    if run is not None:
        run.write_sealed(files.METRICS, measured.to_dict())
    return measured


def _delta(settings: Settings, problem: PreparedRows) -> float:
    """As asked, or min(1e-5, n^-1.1) of the public number of rows."""
    return settings.delta if settings.delta is not None else default_delta(settings.n or problem.n)


# ---------------------------------------------------------------- warnings and interrupts


@contextmanager
def _heard(remembered: list[str], warn: Say) -> Iterator[None]:
    """Pass every warning on once, and remember those about privacy."""
    heard = set(remembered)

    def show(message: Any, category: type[Warning], *rest: Any) -> None:
        words = str(message)
        if words not in heard:
            heard.add(words)
            warn(words)
            remembered.extend([words] if issubclass(category, PrivacyBudgetWarning | PrivacyLeakWarning) else [])

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show  # type: ignore[assignment]
        yield


@contextmanager
def _resumable(run: RunFolder) -> Iterator[None]:
    """Turn an interrupt (also SIGTERM) into words that say how to go on."""

    def stop(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, stop) if main else None
    try:
        yield
    except CannotWrite as error:
        raise Interrupted(
            f"The run was stopped: {error}. Then continue with: isthmus train --resume {run.path}"
        ) from error
    except KeyboardInterrupt:
        raise Interrupted(
            f"The run was stopped. What was released is in the ledger. Continue with: isthmus train --resume {run.path}"
        ) from None
    finally:
        if main:
            signal.signal(signal.SIGTERM, before)


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


def facts_of(estimator: Any, settings: Settings, problem: PreparedRows) -> dict[str, Any]:
    """What the record needs of the fitted estimator, for the stages after it."""
    public_rows = None
    if problem.public is not None:
        public_rows = int((problem.public[0] if isinstance(problem.public, tuple) else problem.public).shape[0])
    data = {
        "name": problem.name,
        "n": problem.n if settings.n is None else None,
        "target": problem.target.name,
        "features": problem.features,
        "fields": [{"name": column.name, "treatment": column.words()} for column in problem.schema.columns] or None,
        "test_rows": problem.test_rows,
        "public_rows": public_rows,
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


def write_record(
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
    tidy(run)


def tidy(run: RunFolder) -> None:
    """Remove what only an unfinished run needs; the secret first."""
    for name in (files.SECRET, files.TRAINED, files.CHECKPOINT):
        for file in (run.path / name, *run.path.glob(f"{name}.*.part")):  # a killed process may leave half a file
            file.unlink(missing_ok=True)


def _whole_statement(ledger: Ledger, text: str, leaks: list[str], measured: Measured) -> tuple[Any, int]:
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


def outcome_of(run: RunFolder, settings: Settings, ledger: Ledger | None) -> Outcome:
    """What a finished run left behind; epsilon is what its ledger says."""
    record = Record.from_file(run.path)
    measured = Measured.from_dict(run.read_sealed(files.METRICS))
    delta = None if record.privacy is None else float(record.privacy["delta"])
    spent = math.inf if ledger is None or delta is None else ledger.spent(delta)
    return Outcome(run.path, record, measured.figures, spent, delta, list(record.warnings), measured.releases)
