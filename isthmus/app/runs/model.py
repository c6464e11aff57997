"""The model of a run: one safetensors file (see `isthmus.estimators.save`) beside its schema.  No pickle, no code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from isthmus import estimators
from isthmus.app.runs.encode import encode
from isthmus.app.runs.folder import MODEL, SCHEMA, FolderDamaged, RunFolder
from isthmus.app.runs.schema import Schema
from isthmus.app.runs.tables import Table, check_numbers
from isthmus.base import validate


@dataclass(frozen=True)
class Model:
    """A loaded model: its estimator, and the schema that encodes its rows (without columns for a matrix)."""

    estimator: Any
    schema: Schema

    def encode(self, table: Table) -> Any:
        """The rows of a table as this model takes them."""
        if self.schema.columns:
            remedy = "this model was trained on named columns: give a csv or parquet file"
            validate.check(table.frame is not None, "data", table.name, remedy)
            return encode(table.frame, self.schema)
        remedy = "this model was trained on a matrix: give an npz or libsvm file"
        validate.check(table.x is not None, "data", table.name, remedy)
        check_numbers(table)
        wide = self.estimator.n_features_in_
        validate.check(table.x.shape[1] == wide, "data", tuple(table.x.shape), f"give rows with {wide} columns")
        return table.x

    def predict(self, x: Any, proba: bool = False) -> dict[str, np.ndarray]:
        """The columns `prediction` and, if asked, `p(class)` of each class."""
        found = {"prediction": np.asarray(self.estimator.predict(x))}
        if proba:
            able = hasattr(self.estimator, "predict_proba")
            validate.check(able, "proba", proba, "this model has no probabilities: leave it out")
            shares = self.estimator.predict_proba(x)
            found |= {f"p({label})": shares[:, k] for k, label in enumerate(self.estimator.classes_)}
        return found


def save(folder: RunFolder, estimator: Any) -> None:
    """Write the model into its folder, whole or not at all."""
    estimators.save(estimator, folder.path / MODEL)


def load(folder: RunFolder) -> Model:
    """The model of a run; a cut or altered one is refused."""
    path = folder.path / MODEL
    validate.check(path.exists(), "run", str(folder.path), "it has no model yet: go on with train --resume")
    try:
        estimator = estimators.load(path)
    except validate.InvalidInput as error:
        raise FolderDamaged(f"{path} was cut or altered: restore it, or begin a new run ({error})") from None
    return Model(estimator, Schema.from_toml(folder.read(SCHEMA).decode(), SCHEMA))
