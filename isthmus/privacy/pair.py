"""A run's own ledger beside one that it shares with others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from isthmus.base import validate
from isthmus.privacy.ledger import Ledger
from isthmus.privacy.library import dpa


class RunLedgers(Ledger):
    """The ledger of one run that also charges a shared one, under its label: first the shared one, then its own.

    `planned` are events that the run will release after its training; they count when it asks whether it will fit.

    >>> shared = Ledger(budget=(1.0, 1e-5))
    >>> own = RunLedgers(None, shared=shared, label="census-1")
    >>> own.pay("test", dpa.GaussianDpEvent(5.0))
    >>> own.rounds(), shared.rounds()
    ({'test': 1}, {'census-1/test': 1})
    """

    def __init__(
        self,
        path: str | Path | None,
        *,
        shared: Ledger | None = None,
        label: str = "",
        adjacency: Any = None,
        planned: Sequence[Any] = (),
    ) -> None:
        super().__init__(path, adjacency=adjacency)
        self.shared, self.label, self.planned = shared, label, tuple(planned)
        if shared is not None:
            same = shared.adjacency is self.adjacency
            remedy = f"the shared budget counts {shared.adjacency.value}: give the same --adjacency"
            validate.check(same, "adjacency", self.adjacency.value, remedy)

    def require(self, event: Any, what: str = "run") -> None:
        """Refuse a run that the shared budget does not hold, with what it will release afterwards; charges nothing."""
        if self.shared is not None:
            self.shared.require(dpa.ComposedDpEvent([event, *self.planned]), self.label)

    def _begin(self, run: str, announced: Any) -> None:
        if self.shared is not None:
            self.shared._begin(run, {self._labelled(what): offer for what, offer in announced.items()})
        super()._begin(run, announced)

    def taint(self) -> None:
        """Write down in both, for good, that noise of a seed was released."""
        if self.shared is not None:
            self.shared.taint()
        super().taint()

    def _reserve(self, run: str, what: str, t: int, event: Any, rounds: int, least: int, seeded: bool = False) -> int:
        if self.shared is not None:
            rounds = self.shared._reserve(run, self._labelled(what), t, event, rounds, least, seeded)
        return super()._reserve(run, what, t, event, rounds, least, seeded)

    def _write(self, bodies: list[Any]) -> None:
        super()._write(bodies)  # the other way round than a charge: a refund that is lost in between is no loss
        if self.shared is not None:
            self.shared._write(
                [body | {"what": self._labelled(body["what"])} if "what" in body else body for body in bodies]
            )

    def _labelled(self, what: str) -> str:
        return f"{self.label}/{what}"
