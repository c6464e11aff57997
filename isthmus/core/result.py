"""What a run gives back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from isthmus.base import notebook
from isthmus.core.state import State
from isthmus.privacy.statement import PrivacyStatement
from isthmus.problems.scaling import RowMaps


@dataclass(frozen=True)
class Result:
    """The outcome of `minimize`.

    x         the point found; None when a stop rule was asked for and never fired
    average   the averaged point of the pipeline's average slot
    status    "finished", "stopped" (a stop rule fired), "none found", or "interrupted" (a callback asked)
    history   one record for each time the run was looked at
    privacy   the privacy statement of a private run, else None
    dims      gradient numbers used: the narrow dimension, added over rounds and senders
    bytes     what those numbers weigh on the wire
    seconds   time in the loop, records not counted
    certificate  for a stop rule: what it promised, checked on one full gradient
    transform  for a run that scaled its columns first: the public map from given rows to those x belongs to
    target    for a run that bought the range of its targets: that range
    centre    for a run that bought how they are distributed: (shift, width), learned was (y - shift) / width
    state     everything needed to go on: `minimize(..., resume=result.state)`
    """

    x: Tensor | None
    average: Tensor
    status: str
    history: Sequence[dict[str, Any]]
    privacy: PrivacyStatement | None
    dims: int
    bytes: int
    seconds: float
    state: State
    certificate: Mapping[str, float] = field(default_factory=dict)
    transform: RowMaps | None = None
    target: tuple[float, float] | None = None
    centre: tuple[float, float] | None = None

    def _repr_html_(self) -> str:
        """The run as a card of a notebook: what came out, what it took, and what it guarantees."""
        losses = self.curve()[1]
        rows = [
            ("outcome", self.status),
            ("rounds", f"{self.state.t:,}"),
            ("parameters", f"{len(self.average):,}"),
            ("last loss", f"{losses[-1]:.6g}" if losses else None),
            ("gradient numbers used", f"{self.dims:,}"),
            ("bytes sent", f"{self.bytes:,}"),
            ("seconds", f"{self.seconds:.3g}"),
        ]
        if self.privacy is not None:
            return notebook.card("Result of a run", notebook.facts(rows)) + self.privacy._repr_html_()
        return notebook.card("Result of a run without privacy: nothing is guaranteed", notebook.facts(rows))

    def curve(self, name: str = "loss", against: str = "t") -> tuple[list[float], list[float]]:
        """Two columns of the history, for plotting."""
        rows = [record for record in self.history if name in record]
        return [record[against] for record in rows], [record[name] for record in rows]

    def plot(self, name: str = "loss", against: str = "dims", ax: Any = None, label: str | None = None) -> Any:
        """Draw a column of the history with matplotlib; returns the axes."""
        import matplotlib.pyplot as plt

        ax = plt.subplots()[1] if ax is None else ax
        ax.plot(*self.curve(name, against), label=label)
        ax.set_xlabel({"dims": "gradient numbers used", "bytes": "bytes sent", "t": "round"}.get(against, against))
        ax.set_ylabel(name)
        return ax
