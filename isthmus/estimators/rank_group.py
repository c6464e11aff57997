"""Who fits a model together: this process alone, or the ranks of a process group, each with its own rows.

Rank 0 has the ledger, the checkpoint and the noise.  What a fit reads off rows that are not private, or off private
ones with a warning (classes that nobody declared, ranges of "data"), every rank finds for its own, and it is combined.
One process is a group of one: everything here is then the identity.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from isthmus.base import validate
from isthmus.base.matrix import is_sparse
from isthmus.base.streamed import dense_parts
from isthmus.core.group import ALONE as ONE
from isthmus.core.group import Aggregator, Group, Local
from isthmus.core.wire import State
from isthmus.objectives.linear import top_eigenvalue
from isthmus.privacy import PrivacyStatement
from isthmus.problems.queries import TopEigenvalue

EACH = (
    "leave the checkpoint out: every rank keeps its own memory of what it left out, and a checkpoint has that "
    "of rank 0 only"
)


@dataclass(frozen=True)
class RankGroup:
    """The ranks of a group; None is this process alone.

    >>> alone = RankGroup()
    >>> alone.all(3), alone.lead(lambda: 4), alone.labels(np.array([1, 0, 1])).tolist()
    ([3], 4, [0, 1])
    """

    ranks: Group = ONE
    whole: int | None = None
    """How many rows all ranks have, once it is known."""

    @staticmethod
    def of(group: Any) -> RankGroup:
        """None or False: this process; True: all ranks of the default group; or a process group."""
        return RankGroup(Group.of(group))

    @property
    def group(self) -> Any:
        """What `fit(group=)` takes."""
        return self.ranks if self.several else None

    @property
    def leads(self) -> bool:
        """Whether the ledger, the checkpoint and the noise are in this process."""
        return self.ranks.rank == 0

    @property
    def place(self) -> tuple[int, int]:
        """(number of this process, number of processes)."""
        return self.ranks.rank, self.ranks.size

    @property
    def several(self) -> bool:
        """Whether there are other processes."""
        return self.ranks.size > 1

    def joined(self, place: str) -> AbstractContextManager[None]:
        """What all do together; an error on one rank is one on all."""
        return self.ranks.joined(place)

    def lead(self, make: Callable[[], Any]) -> Any:
        """What `make` returns on rank 0, on every rank: plain values and tensors."""
        return self.ranks.on_leader(make)

    def all(self, mine: Any) -> list[Any]:
        """Everybody's value, in the order of the ranks: plain values and tensors."""
        return self.ranks.all(mine)

    def holding(self, problem: Any) -> Aggregator:
        """The holders of records of a run: this process has those of `problem`."""
        return Local(problem, self.ranks)

    # ------------------------------------------------------------ of all rows together

    def count(self, n: int) -> int:
        """How many rows all have."""
        return sum(self.all(n))

    def rows(self, X: Any, names: list[str] | None) -> tuple[Any, RankGroup]:
        """Rows of one kind on all ranks, and the group that knows how many they are; a rank may have none."""
        if not self.several:
            return X, self
        layouts = self.all([*X.shape, is_sparse(X), str(X.dtype), names])
        n, kinds = sum(layout[0] for layout in layouts), [layout[1:] for layout in layouts if layout[0]]
        validate.check(n > 0, "X", f"{n} rows", "give at least one rank some rows")
        remedy = "give all ranks rows with the same columns, names and dtype, all sparse or all dense"
        validate.check(all(kind == kinds[0] for kind in kinds), "X", kinds, remedy)
        if not X.shape[0]:  # an empty part is of whatever kind the others are
            d, sparse, dtype, _ = kinds[0]
            X = sp.csr_matrix((0, d)) if sparse else torch.zeros(0, d, dtype=getattr(torch, dtype.split(".")[-1]))
        return X, replace(self, whole=n)

    def moments(self, X: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Means and standard deviations of the columns of all rows."""
        n, zero = X.shape[0], torch.zeros(X.shape[1], dtype=torch.float64)
        mine = sum((part.sum(0) for part in dense_parts(X)), zero) / max(n, 1)
        var = sum(((part - mine).square().sum(0) for part in dense_parts(X)), zero) / max(n, 1)
        if not self.several:
            return mine, var.sqrt()
        moments = self.all([n, mine, var])
        whole = sum(moment[0] for moment in moments)
        mean = sum(count * mean for count, mean, _ in moments) / whole
        return mean, (sum(count * (var + (own - mean) ** 2) for count, own, var in moments) / whole).sqrt()

    def extremes(self, low: torch.Tensor, high: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The smallest of everybody's lows and the largest of their highs."""
        lows, highs = zip(*self.all([low, high]), strict=True)
        return torch.stack(lows).amin(0), torch.stack(highs).amax(0)

    def total(self, value: torch.Tensor) -> torch.Tensor:
        """The sum of everybody's tensor."""
        return torch.stack(self.all(value)).sum(0)

    def labels(self, y: Any) -> np.ndarray:
        """The labels that occur on any rank."""
        own = np.unique(y)
        if not self.several:
            return own
        parts = [part for part in self.all({"kind": own.dtype.kind, "labels": own.tolist()}) if part["labels"]]
        kinds = {part["kind"] for part in parts}
        validate.check(
            len(kinds) < 2,
            "y",
            sorted(kinds),
            "give all ranks labels of one kind: all of them numbers, or all of them text",
        )
        all_labels = [label for part in parts for label in part["labels"]]
        return np.unique(np.array(all_labels, dtype=object if kinds == {"O"} else None))

    def top_eigenvalue(self, X: Any) -> float:
        """lambda_max(X'X) of all rows as they are: of fits that are not private."""
        if not self.several:
            return top_eigenvalue(X)
        eigenvalue = self.ranks.answer(_Plain(X))
        return float(self.lead(lambda: eigenvalue))

    # ------------------------------------------------------------ what rank 0 keeps

    def state(self, load: Callable[[], State | None]) -> State | None:
        """The checkpoint that rank 0 has, on every rank."""
        if not self.several:
            return load()
        own_state = load() if self.leads else None
        validate.check(own_state is None or not own_state.memory, "checkpoint", "with error feedback", EACH)
        with tempfile.TemporaryDirectory() as folder:
            if own_state is not None:
                own_state.save(Path(folder, "state"))
            path = self.file(Path(folder, "state"))
            return own_state if self.leads or path is None else State.load(path)

    def file(self, path: Path) -> Path | None:
        """A file that rank 0 has, written to this path on every other rank; None where rank 0 has none."""
        if not self.several:
            return path if path.exists() else None

        def read() -> torch.Tensor | None:
            return torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8) if path.exists() else None

        data = self.lead(read)
        if data is not None and not self.leads:
            path.write_bytes(data.numpy().tobytes())
        return None if data is None else path

    def statement(self, make: Callable[[], PrivacyStatement]) -> PrivacyStatement:
        """The statement of rank 0, whose ledger knows what was charged, on every rank."""
        if not self.several:
            return make()
        return PrivacyStatement.from_json(self.lead(lambda: make().to_json()), recompute=False)


ALONE = RankGroup()
"""This process, which has all rows."""


class _Plain(TopEigenvalue):
    """Of rows of any length: nothing that is released."""

    def __init__(self, X: Any) -> None:
        self.X = X
