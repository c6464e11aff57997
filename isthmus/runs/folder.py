"""The folder of a run: it appears whole, its files are replaced whole, and what was damaged is refused.

A file is written beside its place, forced to the disk and renamed, so a kill leaves the old one or the new one.
`settings.json` states digests of itself and of the schema, the model has a seal of its own.

The model of a run: one safetensors file (see `isthmus.estimators.save`) beside its schema.  No pickle, no code.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from isthmus import estimators
from isthmus.base import validate
from isthmus.base.atomic import atomic_write, sync
from isthmus.tables.columns import as_written
from isthmus.tables.files import Table, check_numbers
from isthmus.tables.rows import numbers_of
from isthmus.tables.schema import Schema

SETTINGS, SCHEMA, PLAN, LEDGER, CHECKPOINT = "settings.json", "schema.toml", "plan.json", "ledger", "checkpoint"

MODEL, METRICS, RUN = "model.safetensors", "metrics.json", "run.json"

TRAINED, SECRET = "training.json", "split.secret"
"""Until the record is written only: what the record needs of the training, and the salt that tells test rows apart."""

FORMATS = {TRAINED: "isthmus-training-1", SETTINGS: "isthmus-settings-1", METRICS: "isthmus-metrics-1"}


class FolderDamaged(RuntimeError):
    """A run folder that lacks a file, or whose files were cut or altered: the message has the file and what to do."""


class RunFolder:
    """A folder that `create` made or `open` found and checked.

    >>> import tempfile
    >>> base = Path(tempfile.mkdtemp())
    >>> run = RunFolder.create(base / "census", {"epsilon": 1.0}, schema="")
    >>> RunFolder.open(base / "census").settings
    {'epsilon': 1.0}
    >>> _ = (base / "census" / "settings.json").write_text('{"epsilon": 9.0}')
    >>> RunFolder.open(base / "census")
    Traceback (most recent call last):
    isthmus.runs.folder.FolderDamaged: .../settings.json was cut or altered: ...
    """

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path, self.settings = path, settings

    # ------------------------------------------------------------ making and finding

    @staticmethod
    def create(path: Path, settings: Mapping[str, object], *, schema: str, secret: str = "") -> RunFolder:
        """A new folder with its settings, schema and secret: all of them or none."""
        remedy = "give another folder as --out, or continue that run with --resume"
        validate.require(not os.path.exists(path), f"Folder exists already: {path} ({remedy})")
        partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            partial.mkdir(parents=True)
            half = RunFolder(partial, dict(settings))
            half.write(SCHEMA, schema.encode())
            half.write_sealed(SETTINGS, {"settings": dict(settings), "schema_sha256": digest(schema.encode())})
            if secret:
                half.write(SECRET, secret.encode())
                (partial / SECRET).chmod(0o600)
            partial.rename(path)
        except OSError as error:
            shutil.rmtree(partial, ignore_errors=True)
            validate.refuse("out", str(path), f"give a folder that can be written to ({error.strerror or error})")
        sync(path.parent)
        return RunFolder(path, dict(settings))

    @staticmethod
    def open(path: str | Path) -> RunFolder:
        """An existing folder, its settings and schema verified."""
        folder = RunFolder(Path(path), {})
        validate.present(os.path.isdir(folder.path), path, "give the folder of a run", kind="Folder")
        lost = f"{folder.path} is not the folder of a run, or has lost its {SETTINGS}: check the path, or restore it"
        _damaged(not folder.has(SETTINGS), lost)
        sealed = folder.read_sealed(SETTINGS)
        settings = sealed.get("settings")
        _damaged(not isinstance(settings, dict), f"{folder.path / SETTINGS} has no settings: {_REMEDY}")
        folder.settings = dict(settings or {})
        same, path = digest(folder.read(SCHEMA)) == sealed.get("schema_sha256"), folder.path / SCHEMA
        _damaged(not same, f"{path} was changed after the run began: put it back, or begin a new run with a copy of it")
        return folder

    # ------------------------------------------------------------ files

    def has(self, name: str) -> bool:
        """Whether it has a file."""
        return (self.path / name).exists()

    def read(self, name: str) -> bytes:
        """A file's bytes; a missing one is damage."""
        try:
            return (self.path / name).read_bytes()
        except OSError as error:
            raise FolderDamaged(f"{self.path / name} cannot be read ({error.strerror}): {_REMEDY}") from None

    def write(self, name: str, data: bytes) -> None:
        """Replace a file by another, whole or not at all."""
        with atomic_write(self.path / name) as partial:
            partial.write_bytes(data)

    def read_sealed(self, name: str) -> dict[str, Any]:
        """A JSON file with its own digest."""
        data, raw = {}, self.read(name)
        with suppress(ValueError, RecursionError):
            data = json.loads(raw)
        whole = isinstance(data, dict) and data.pop("sha256", "") == digest(_json(data))
        _damaged(not whole, f"{self.path / name} was cut or altered: {_REMEDY}")
        form = data.get("format")
        reads = f"{self.path / name} has the format {form!r}, and this version of Isthmus reads {FORMATS[name]!r}"
        _damaged(form != FORMATS[name], f"{reads}: use the version of Isthmus that wrote it")
        return data

    def write_sealed(self, name: str, data: Mapping[str, object]) -> None:
        """A JSON file that states its own digest."""
        body = {"format": FORMATS[name], **data}
        self.write(name, _json({**body, "sha256": digest(_json(body))}))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the folder against other processes that would train in it."""
        import fcntl

        with (self.path / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                wait = "wait until it has finished, or stop it first"
                validate.require(False, f"Another process is working on the run {self.path}: {wait}")
            yield


def _next_folder(name: str, parent: str | Path = "runs") -> Path:
    """`runs/<name>-<k>` for the first k that is free."""
    safe = re.sub(r"[^\w.-]+", "-", name).strip("-.") or "run"
    paths = (Path(parent) / f"{safe}-{k}" for k in itertools.count(1))
    return next(path for path in paths if not path.exists())


def _damaged(wrong: bool, words: str) -> None:
    """Refuse a folder where something is wrong."""
    if wrong:
        raise FolderDamaged(words)


_REMEDY = "restore it, or begin a new run (what was spent stays spent: see the ledger)"


def digest(data: bytes) -> str:
    """SHA-256, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def _json(data: Mapping[str, object]) -> bytes:
    return (json.dumps(data, indent=1, allow_nan=False, ensure_ascii=False) + "\n").encode()


def predictions(
    run: RunFolder, table: Table, ids: Sequence[str] = (), proba: bool = False, decimal: str | None = None
) -> dict[str, np.ndarray]:
    """The columns that tell rows apart, then `prediction` and, if asked, `p(class)` of each class.

    ids       columns to carry along beside those of the schema's type "id" that the table has
    decimal   where the file has a sign of its own
    """
    estimator, schema = _load_model(run)
    rows, own = table.x, []
    if schema.columns:
        remedy = "give a csv or parquet file: this model was trained on named columns"
        validate.check(table.frame is not None, "data", table.name, remedy)
        rows = numbers_of(table.frame, schema.read_by(table.separator, decimal))
    else:
        remedy = "give an npz or libsvm file: this model was trained on a matrix"
        validate.check(rows is not None, "data", table.name, remedy)
        check_numbers(table)
        wide = estimator.n_features_in_
        validate.check(rows.shape[1] == wide, "data", tuple(rows.shape), f"give rows with {wide} columns")
    if table.frame is None:
        validate.check(not ids, "id", list(ids), "leave it out: this file has no named columns")
    else:
        have = list(table.frame.columns)
        for name in ids:
            validate.check(name in have, "id", name, f"name a column of the file, which has {have[:20]}")
        own = [column.name for column in schema.columns if column.type == "id" and column.name in have]
    carried = {name: as_written(table.frame[name]) for name in dict.fromkeys([*ids, *own])}
    able = hasattr(estimator, "predict_proba")
    validate.check(able or not proba, "proba", proba, "leave it out: this model has no probabilities")
    classes, labels = vars(estimator).get("classes_", np.empty(0)), []
    if proba:
        labels = [f"p({label})" for label in classes]
    if rows.shape[0]:
        columns = {"prediction": np.asarray(estimator.predict(rows))}
        if proba:
            columns |= zip(labels, estimator.predict_proba(rows).T, strict=True)
    else:  # an estimator refuses to predict for nobody
        columns = {"prediction": np.empty(0, classes.dtype)} | dict.fromkeys(labels, np.empty(0))
    twice = sorted(set(carried) & set(columns))
    validate.check(not twice, "id", twice, "rename the column first: a column of the predictions has that name")
    return carried | columns


def _load_model(folder: RunFolder) -> tuple[estimators.PrivateClassifier | estimators.PrivateRegressor, Schema]:
    """The model of a run, and the schema that encodes its rows (without columns for a matrix); refused where cut."""
    path = folder.path / MODEL
    resume = f"isthmus train --resume {folder.path}"
    validate.require(path.exists(), f"The run {folder.path} has no model yet: continue it with {resume}")
    try:
        estimator = estimators.load(path)
    except validate.InvalidInput as error:
        raise FolderDamaged(f"{path} was cut or altered: restore it, or begin a new run ({error})") from None
    return estimator, Schema.from_toml(folder.read(SCHEMA).decode(), SCHEMA)
