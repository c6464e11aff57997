"""What public rows say: how many there are, whether they have labels, and the energy curve of their gradients."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from isthmus.base import validate
from isthmus.base.matrix import Matrix, as_matrix, is_sparse, take, to_dense
from isthmus.diagnostics import EnergyCurve, captured_energy
from isthmus.gradients import Glm, Outer, Rows

LEAST = 4
"""Fewer public rows cannot be split into a half that learns a subspace and a half that judges it."""


@dataclass(frozen=True)
class PublicFacts:
    """Rows that were declared public: their number, whether they have labels, what their subspaces capture.

    curve  share of the energy of one half's gradients (at w = 0) in the top-k subspace of the other half; None for
           too few rows, or for several outputs without labels
    moments  mean x_j^2 of every column
    """

    rows: int
    columns: int
    labelled: bool
    curve: EnergyCurve | None = None
    moments: tuple[float, ...] | None = None

    def share(self, k: int) -> float:
        """Captured energy at k; 0 without a curve."""
        if self.curve is None:
            return 0.0
        return self.curve.shares[min(k, len(self.curve.shares)) - 1]

    def beyond(self, k: int, parameters: int) -> float:
        """Captured energy beyond that of k random directions: 1 is a subspace that holds everything."""
        return max(0.0, (self.share(k) - k / parameters) / (1 - k / parameters)) if k < parameters else 1.0

    def directions(self, limit: int, parameters: int) -> int:
        """The k <= limit that captures most beyond what k random directions would: argmax of share - k / d."""
        if self.curve is None:
            return min(limit, self.rows)
        gains = np.array(self.curve.shares[:limit]) - np.arange(1, min(limit, len(self.curve.shares)) + 1) / parameters
        return int(gains.argmax()) + 1

    def to_dict(self) -> dict[str, Any]:
        """Plain values, the curve as two columns."""
        curve = None if self.curve is None else {"k": list(self.curve.ks), "captured": list(self.curve.shares)}
        return {"rows": self.rows, "columns": self.columns, "labelled": self.labelled, "energy": curve}


def read_public(public: Any, loss: str, classes: int) -> PublicFacts | None:
    """The facts of public rows X, or (X, y).

    At w = 0 the gradient of a record is slope times x; with one output all slopes have one size (classifiers), so the
    curve needs no labels.  For several outputs it does.

    >>> seen = read_public(np.eye(8)[[0, 1] * 4], "logistic", 2)
    >>> seen.rows, seen.labelled, round(seen.share(2), 6)
    (8, False, 1.0)
    """
    if public is None or isinstance(public, PublicFacts):
        return public
    labelled = isinstance(public, tuple)
    if labelled:
        validate.check(len(public) == 2, "public", f"{len(public)} parts", "give X, or (X, y)")
    X = as_matrix("public", public[0] if labelled else public)
    y = public[1] if labelled else None
    rows, columns = X.shape
    if y is not None:
        validate.check(len(y) == rows, "len(public[1])", len(y), f"give one target for each of the {rows} public rows")
    found = PublicFacts(rows, columns, labelled, None, _moments(X))
    if rows < LEAST or (loss == "softmax" and y is None):
        return found
    order = np.random.default_rng(0).permutation(rows)  # rows may be sorted by label
    halves = (order[: rows // 2], order[rows // 2 :])
    fit, rest = (_gradients(X, y, half, loss, classes) for half in halves)
    if not _alive(fit) or not _alive(rest):
        return found
    return replace(found, curve=captured_energy(fit, rest))


def _moments(X: Matrix) -> tuple[float, ...]:
    squares = X.multiply(X).mean(0) if is_sparse(X) else to_dense(X).double().square().mean(0)
    return tuple(np.asarray(squares, dtype=float).reshape(-1).tolist())


def _gradients(X: Matrix, y: Any, half: Any, loss: str, classes: int) -> Rows:
    """Gradients at w = 0 up to a common factor."""
    part = take(X, torch.from_numpy(half))
    if loss == "softmax":
        codes = torch.from_numpy(np.unique(np.asarray(y), return_inverse=True)[1].reshape(-1)[half])
        validate.check(int(codes.max()) < classes, "classes", classes, "the public labels have more")
        slopes = torch.full((len(half), classes), 1 / classes, dtype=torch.float64)
        slopes[torch.arange(len(half)), codes] -= 1
        return Outer(part, slopes)
    return Glm(torch.ones(len(half), dtype=torch.float64), part)


def _alive(rows: Rows) -> bool:
    return bool(torch.as_tensor(rows.norms()).max() > 0)
