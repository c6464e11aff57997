"""What a fit finds of the rows of all ranks of a group, each of which has its own; of one process alone it is its own.

Rank 0 has the ledger, the checkpoint and the noise.  What a fit reads off rows that are not private, or off private
ones with a warning (classes that nobody declared, ranges of "data"), every rank finds for its own, and it is combined.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from isthmus.base import storage, validate
from isthmus.base.matrix import Matrix, is_sparse
from isthmus.base.streamed import dense_parts
from isthmus.core.group import Group
from isthmus.core.wire import State
from isthmus.objectives.linear import top_eigenvalue
from isthmus.privacy import PrivacyStatement
from isthmus.problems.queries import TopEigenvalue


def _shared_rows(group: Group, X: Matrix, names: list[str]) -> tuple[Matrix, int]:
    """Rows of one kind on all ranks, and how many they have together; a rank may have none."""
    layouts = group.all([*X.shape, is_sparse(X), str(X.dtype), names])
    n, kinds = sum(layout[0] for layout in layouts), [layout[1:] for layout in layouts if layout[0]]
    validate.check(n > 0, "X", f"{n} rows", "give at least one rank some rows")
    remedy = "give all ranks rows with the same columns, names and dtype, all sparse or all dense"
    validate.check(all(kind == kinds[0] for kind in kinds), "X", kinds, remedy)
    d, sparse, dtype, _ = kinds[0]
    if not X.shape[0] and sparse:  # an empty part is of whatever kind the others are
        X = sp.csr_matrix((0, d))
    elif not X.shape[0]:
        X = torch.zeros(0, d, dtype=storage.DTYPES[dtype.split(".")[-1]])
    return X, n


def _moments(group: Group, X: Matrix) -> tuple[Tensor, Tensor]:
    """Means and standard deviations of the columns of all rows."""
    n, zero = X.shape[0], torch.zeros(X.shape[1], dtype=torch.float64)
    own = sum((part.sum(0) for part in dense_parts(X)), zero) / max(n, 1)
    var = sum(((part - own).square().sum(0) for part in dense_parts(X)), zero) / max(n, 1)
    if group.size == 1:
        return own, var.sqrt()
    counts, means, variances = (torch.stack(parts) for parts in zip(*group.all([zero[:1] + n, own, var]), strict=True))
    mean = (counts * means).sum(0) / counts.sum()
    return mean, ((counts * (variances + (means - mean) ** 2)).sum(0) / counts.sum()).sqrt()


def _labels(group: Group, y: np.ndarray) -> np.ndarray:
    """The labels that occur on any rank."""
    own = np.unique(y)
    if group.size == 1:
        return own
    parts = [part for part in group.all({"kind": own.dtype.kind, "labels": own.tolist()}) if part["labels"]]
    kinds = {part["kind"] for part in parts}
    remedy = "give all ranks labels of one kind: all of them numbers, or all of them text"
    validate.check(len(kinds) < 2, "y", sorted(kinds), remedy)
    every = [label for part in parts for label in part["labels"]]
    return np.unique(np.array(every, dtype=object if kinds == {"O"} else None))


def _largest_eigenvalue(group: Group, X: Matrix) -> float:
    """lambda_max(X'X) of all rows as they are: of fits that are not private."""
    if group.size == 1:
        return top_eigenvalue(X)
    eigenvalue = group.answer(_Plain(X))
    return float(group.on_leader(lambda: eigenvalue))


def _shared_state(group: Group, load: Callable[[], State | None]) -> State | None:
    """The checkpoint that rank 0 has, on every rank."""
    if group.size == 1:
        return load()
    state = load() if group.rank == 0 else None
    remedy = "leave the checkpoint out: every rank remembers what it left out, and it has the memory of rank 0 only"
    validate.check(state is None or not state.memory, "checkpoint", "with error feedback", remedy)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "state")
        if state is not None:
            state.save(path)
        if shared_file(group, path) is None or group.rank == 0:
            return state
        return State.load(path)


def shared_file(group: Group, path: Path) -> Path | None:
    """A file that rank 0 has, written to this path on every other rank; None where rank 0 has none."""

    def read() -> Tensor | None:
        return torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8) if path.exists() else None

    if group.size > 1:
        data = group.on_leader(read)
        if data is not None and group.rank:
            path.write_bytes(data.numpy().tobytes())
    return path if path.exists() else None


def _shared_statement(group: Group, make: Callable[[], PrivacyStatement]) -> PrivacyStatement:
    """The statement of rank 0, whose ledger knows what was charged, on every rank."""
    if group.size == 1:
        return make()
    return PrivacyStatement.from_json(group.on_leader(lambda: make().to_json()), recompute=False)


class _Plain(TopEigenvalue):
    """Of rows of any length: nothing that is released."""

    def __init__(self, X: Matrix) -> None:
        self.X = X  # type: ignore[assignment]
