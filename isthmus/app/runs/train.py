"""The work behind `isthmus train`: prepare, fit, keep the model, measure, and write the record.

A run has three stages, and each leaves a file that says it is done: `model.safetensors` (trained), `metrics.json`
(measured), `run.json` (recorded).  A killed run is resumed at the first stage that is not done; training itself goes on
from its checkpoint.  Whatever was released was charged to the ledger on the disk before: epsilon is never too low.
"""

from __future__ import annotations

import secrets
import shutil
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from isthmus.app.runs import folder as files
from isthmus.app.runs import measure, model, record
from isthmus.app.runs.budget import open_shared
from isthmus.app.runs.config import Settings, read_constraint
from isthmus.app.runs.folder import FolderDamaged, RunFolder, next_folder
from isthmus.app.runs.measure import Measured
from isthmus.app.runs.prepare import PreparedRows, prepare
from isthmus.app.runs.record import Outcome
from isthmus.base import validate
from isthmus.estimators import PrivacyBudgetWarning, PrivacyLeakWarning, PrivateClassifier, PrivateRegressor
from isthmus.planner import plan
from isthmus.privacy import Ledger
from isthmus.privacy.budget import default_delta
from isthmus.problems.objectives.known import loss_for
from isthmus.round.state import State
from isthmus.tables.schema import Schema

Say = Callable[[str], None]
HEADER = """# The public rules that turned the table into numbers. Columns with source = "data" were guessed from
# private rows. Review a copy and give it as --schema next time: that declares it public, and nothing is guessed.

"""


class Interrupted(RuntimeError):
    """A run was stopped from outside; the message says how to go on."""


# ---------------------------------------------------------------- entries


def start(settings: Settings, declared: Schema, *, say: Say, warn: Say, progress: bool = False) -> Outcome:
    """Begin a run and carry it through."""
    shared = None if settings.budget is None else open_shared(settings.budget)
    salt = secrets.token_hex(16)
    problem = prepare(settings, declared, salt=salt)
    for note in problem.notes:
        say(f"note: {note}")
    leaks = [f"{leak}." for leak in problem.leaks] if settings.private else []
    settled = _settled(settings, problem)
    path = Path(settings.out) if settings.out else next_folder(problem.name)
    stored = {"seed": secrets.randbits(31), "settings": settled.to_dict(), "label": path.name, "leaks": leaks}
    secret = salt if settings.test_fraction is not None else None
    run = RunFolder.create(path, stored, schema=HEADER + problem.schema.to_toml(), plan=None, secret=secret)
    for leak in leaks:
        warn(leak)
    try:
        return _carry(run, settled, problem, shared, say=say, warn=warn, progress=progress)
    except BaseException as error:
        if not _begun(run):  # nothing was spent: leave nothing behind
            shutil.rmtree(run.path)
            if isinstance(error, Interrupted):
                raise Interrupted("stopped before anything was spent: begin again") from None
        raise


def resume(path: str | Path, *, say: Say, warn: Say, progress: bool = False) -> Outcome:
    """Go on with a run that was stopped; one that is done is left as it is."""
    run = RunFolder.open(path)
    settings = Settings.from_dict(run.settings["settings"])
    if run.has(files.RUN):
        say(f"{run.path} is done: there is nothing left to do")
        record.tidy(run)
        return record.outcome(run, settings, None if not settings.private else Ledger(run.path / files.LEDGER))
    schema = Schema.from_toml(run.read(files.SCHEMA).decode(), files.SCHEMA)
    shared = None if settings.budget is None else open_shared(settings.budget)
    say(f"going on with {run.path}")
    salt = "" if settings.test_fraction is None else run.read(files.SECRET).decode()
    problem = prepare(settings, schema, salt=salt, settled=True)
    return _carry(run, settings, problem, shared, say=say, warn=warn, progress=progress)


def _begun(run: RunFolder) -> bool:
    """Whether something was charged or kept."""
    ledger = run.path / files.LEDGER
    return run.has(files.CHECKPOINT) or (ledger.exists() and bool(Ledger(ledger).rounds()))


def dry_run(settings: Settings, declared: Schema) -> tuple[PreparedRows, Any]:
    """The schema and the plan of a run that is not made: nothing is spent, nothing is written."""
    if settings.budget is not None:
        open_shared(settings.budget)
    problem = prepare(settings, declared, salt=secrets.token_hex(16))
    estimator = _estimator(settings, problem, ledger=None, checkpoint=None, seed=0, verbose=0)
    classes = problem.target.classes
    found = plan(
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
        penalty=bool(settings.l1 or settings.l2),
        algorithms=None if settings.algorithm == "auto" else [settings.algorithm],
    )
    return problem, found


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
    run: RunFolder, settings: Settings, problem: PreparedRows, shared: Any, *, say: Say, warn: Say, progress: bool
) -> Outcome:
    """Every stage that is not done yet."""
    heard: list[str] = list(run.settings["leaks"])
    with run.locked():
        ledger = _ledger(run, settings, problem, shared)
        with _heard(heard, warn), _resumable(run):
            if not run.has(files.RUN):
                fitted = _train(run, settings, problem, ledger, progress)
                measured = _measured(run, settings, problem, fitted, ledger)
                record.write(run, settings, fitted, measured, ledger, heard)
        return record.outcome(run, settings, ledger)


def _ledger(run: RunFolder, settings: Settings, problem: PreparedRows, shared: Any) -> Ledger | None:
    """The run's own ledger, beside the shared one; None for a run that is not private."""
    if not settings.private:
        return None
    planned = measure.planned(settings, _delta(settings, problem))
    path, label = run.path / files.LEDGER, run.settings["label"]
    begun = run.has(files.CHECKPOINT) or run.has(files.MODEL)
    if begun and not path.exists():
        raise FolderDamaged(f"{path} is missing: what this run has spent cannot be told; restore it")
    return Ledger(path, shared=shared, label=label, adjacency=settings.adjacency, planned=planned)


def _train(run: RunFolder, settings: Settings, problem: PreparedRows, ledger: Any, progress: bool) -> Any:
    """The fitted estimator; already trained, the one in the folder."""
    if run.has(files.MODEL):
        return model.load(run).estimator
    checkpoint = run.path / files.CHECKPOINT
    _check_readable(checkpoint)
    estimator = _estimator(
        settings, problem, ledger=ledger, checkpoint=checkpoint, seed=run.settings["seed"], verbose=int(progress)
    )
    estimator.fit(problem.x, problem.y)
    run.write(files.PLAN, estimator.plan_.to_json().encode())
    run.write_sealed(files.TRAINED, record.trained(estimator, settings, problem))
    model.save(run, estimator)
    return estimator


def _check_readable(checkpoint: Path) -> None:
    """Refuse a checkpoint that was cut or altered."""
    if not checkpoint.exists():
        return
    try:
        State.load(checkpoint)
    except validate.InvalidInput:
        raise FolderDamaged(
            f"{checkpoint} was cut or altered: restore it, or remove it to train from the start on the same ledger "
            "(what was spent stays spent)"
        ) from None


def _estimator(
    settings: Settings, problem: PreparedRows, *, ledger: Any, checkpoint: Any, seed: int, verbose: int
) -> Any:
    """The estimator that the settings describe, not fitted."""
    target = problem.target
    given: dict[str, Any] = {
        "epsilon": measure.training_epsilon(settings, _delta(settings, problem)),
        "delta": _delta(settings, problem),
        "algorithm": settings.algorithm,
        "constraint": read_constraint(settings.constraint),
        "l1": settings.l1,
        "l2": settings.l2,
        "clip": settings.clip,
        "step": settings.step,
        "max_iter": settings.max_iter,
        "batch_size": settings.batch_size,
        "scale": settings.scale,
        "bounds": problem.bounds,
        "data_norm": settings.data_norm,
        "fit_intercept": settings.intercept,
        "public": problem.public,
        "n": settings.n,
        "adjacency": settings.adjacency,
        "ledger": ledger,
        "checkpoint": checkpoint,
        "options": settings.options or None,
        "random_state": seed,
        "verbose": verbose,
        **({} if settings.loss is None else {"loss": settings.loss}),
    }
    if target.task == "classification":
        given |= {"classes": list(target.classes or ()), "class_weight": settings.class_weight}
        return PrivateClassifier(**given)
    return PrivateRegressor(**given, target_bounds=target.bounds)


def _measured(run: RunFolder, settings: Settings, problem: PreparedRows, fitted: Any, ledger: Any) -> Measured:
    """The figures of the test rows; already measured, those in the folder."""
    if run.has(files.METRICS):
        return Measured.from_dict(run.read_sealed(files.METRICS))
    found = Measured()
    if problem.test is not None:
        found = measure.measure(settings, fitted, *problem.test, _delta(settings, problem), ledger)
    run.write_sealed(files.METRICS, found.to_dict())
    return found


def _delta(settings: Settings, problem: PreparedRows) -> float:
    """As asked, or min(1e-5, n^-1.1) of the public number of rows."""
    return settings.delta if settings.delta is not None else default_delta(settings.n or problem.n)


# ---------------------------------------------------------------- warnings and interrupts


@contextmanager
def _heard(told: list[str], warn: Say) -> Iterator[None]:
    """Pass every warning on once, and remember those about privacy."""
    seen = set(told)

    def show(message: Any, category: type[Warning], *rest: Any) -> None:
        words = str(message)
        if words not in seen:
            seen.add(words)
            warn(words)
            told.extend([words] if issubclass(category, PrivacyBudgetWarning | PrivacyLeakWarning) else [])

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
    except KeyboardInterrupt:
        raise Interrupted(
            f"stopped; what was released is in the ledger. Go on with: isthmus train --resume {run.path}"
        ) from None
    finally:
        if main:
            signal.signal(signal.SIGTERM, before)
