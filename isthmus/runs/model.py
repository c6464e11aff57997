"""The model of a run: one safetensors file (see `isthmus.estimators.save`) beside its schema.  No pickle, no code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from isthmus import estimators
from isthmus.base import validate
from isthmus.runs.folder import MODEL, SCHEMA, FolderDamaged, RunFolder
from isthmus.tables.files import Table, check_numbers
from isthmus.tables.folders import numbers_of
from isthmus.tables.schema import Schema


@dataclass(frozen=True)
class Model:
    """A loaded model: its estimator, and the schema that encodes its rows (without columns for a matrix)."""

    estimator: Any
    schema: Schema

    def encode(self, table: Table, decimal: str | None = None) -> Any:
        """The rows of a table as this model takes them; `decimal` where its file has a sign of its own."""
        if self.schema.columns:
            remedy = "give a csv or parquet file: this model was trained on named columns"
            validate.check(table.frame is not None, "data", table.name, remedy)
            return numbers_of(table.frame, self.schema.read_by(table.separator, decimal))
        remedy = "give an npz or libsvm file: this model was trained on a matrix"
        validate.check(table.x is not None, "data", table.name, remedy)
        check_numbers(table)
        wide = self.estimator.n_features_in_
        validate.check(table.x.shape[1] == wide, "data", tuple(table.x.shape), f"give rows with {wide} columns")
        return table.x

    def ids(self, table: Table, names: Sequence[str] = ()) -> dict[str, np.ndarray]:
        """The columns that identify rows: those named, and those of the schema's type "id" that the table has."""
        if table.frame is None:
            validate.check(not names, "id", list(names), "leave it out: this file has no named columns")
            return {}
        have = list(table.frame.columns)
        for name in names:
            validate.check(name in have, "id", name, f"name a column of the file, which has {have[:20]}")
        own = [column.name for column in self.schema.columns if column.type == "id" and column.name in have]
        return {name: _entries(table.frame[name]) for name in dict.fromkeys([*names, *own])}

    def predict(self, x: Any, proba: bool = False) -> dict[str, np.ndarray]:
        """The columns `prediction` and, if asked, `p(class)` of each class; without rows, empty ones."""
        able = hasattr(self.estimator, "predict_proba")
        validate.check(able or not proba, "proba", proba, "leave it out: this model has no probabilities")
        labels = list(self.estimator.classes_) if proba else []
        if not x.shape[0]:  # an estimator refuses to predict for nobody
            kind = self.estimator.classes_.dtype if hasattr(self.estimator, "classes_") else np.dtype(np.float64)
            return {"prediction": np.empty(0, kind), **{f"p({label})": np.empty(0) for label in labels}}
        predictions = {"prediction": np.asarray(self.estimator.predict(x))}
        shares = self.estimator.predict_proba(x).T if proba else []
        return predictions | {f"p({label})": column for label, column in zip(labels, shares, strict=True)}


def _entries(values: Any) -> np.ndarray:
    """Identifiers as they were read; text where nothing is "" ."""
    kind = getattr(values.dtype, "kind", "O")
    return (
        values.to_numpy() if kind in "iufb" else values.astype(object).where(values.notna(), "").to_numpy().astype(str)
    )


def save(folder: RunFolder, estimator: Any) -> None:
    """Write the model into its folder, whole or not at all."""
    estimators.save(estimator, folder.path / MODEL)


def load(folder: RunFolder) -> Model:
    """The model of a run; a cut or altered one is refused."""
    path = folder.path / MODEL
    resume = f"isthmus train --resume {folder.path}"
    validate.require(path.exists(), f"The run {folder.path} has no model yet: continue it with {resume}")
    try:
        estimator = estimators.load(path)
    except validate.InvalidInput as error:
        raise FolderDamaged(f"{path} was cut or altered: restore it, or begin a new run ({error})") from None
    return Model(estimator, Schema.from_toml(folder.read(SCHEMA).decode(), SCHEMA))
