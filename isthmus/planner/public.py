"""Reading public rows: how many there are, whether they have labels, and the energy curve of their gradients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from isthmus.algorithms.facts import PublicFacts
from isthmus.base import validate
from isthmus.base.matrix import Matrix, as_matrix, is_sparse, take, to_dense
from isthmus.diagnostics import captured_energy
from isthmus.gradients import Glm, Outer, Rows
from isthmus.objectives.linear import Loss, loss_of

LEAST = 4
"""Fewer public rows cannot be split into a half that learns a subspace and a half that judges it."""


def read_public(public: Any, loss: str | Loss, classes: int) -> PublicFacts | None:
    """The facts of public rows X, or (X, y).

    At w = 0 the gradient of a record is slope times x; with one output all slopes have one size (classifiers), so the
    curve needs no labels.  For several outputs it does.

    >>> public = read_public(np.eye(8)[[0, 1] * 4], "logistic", 2)
    >>> public.rows, public.labelled, round(public.share(2), 6)
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
    facts = PublicFacts(rows, columns, labelled, None, _moments(X))
    outputs = loss_of(loss).outputs(classes)
    if rows < LEAST or (outputs > 1 and y is None):
        return facts
    order = np.random.default_rng(0).permutation(rows)  # rows may be sorted by label
    halves = (order[: rows // 2], order[rows // 2 :])
    fit, rest = (_gradients(X, y, half, outputs) for half in halves)
    if not _alive(fit) or not _alive(rest):
        return facts
    return replace(facts, curve=captured_energy(fit, rest))


def _moments(X: Matrix) -> tuple[float, ...]:
    squares = X.multiply(X).mean(0) if is_sparse(X) else to_dense(X).double().square().mean(0)
    return tuple(np.asarray(squares, dtype=float).reshape(-1).tolist())


def _gradients(X: Matrix, y: Any, half: Any, classes: int) -> Rows:
    """Gradients at w = 0 up to a common factor."""
    part = take(X, torch.from_numpy(half))
    if classes > 1:
        codes = torch.from_numpy(np.unique(np.asarray(y), return_inverse=True)[1].reshape(-1)[half])
        validate.check(
            int(codes.max()) < classes, "classes", classes, "give at least as many as the public labels have"
        )
        slopes = torch.full((len(half), classes), 1 / classes, dtype=torch.float64)
        slopes[torch.arange(len(half)), codes] -= 1
        return Outer(part, slopes)
    return Glm(torch.ones(len(half), dtype=torch.float64), part)


def _alive(rows: Rows) -> bool:
    return bool(torch.as_tensor(rows.norms()).max() > 0)
