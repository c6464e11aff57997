"""Two ledgers for one run: a shared one, and the run's own tally of what it paid, lost rounds among it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from isthmus.privacy import Adjacency, Ledger


class Tally:
    """Charges a shared ledger first, which may refuse, then the run's own.

    >>> from dp_accounting import dp_event
    >>> shared, own = Ledger(), Ledger()
    >>> Tally(shared, own).pay("release", dp_event.GaussianDpEvent(2.0))
    >>> shared.rounds() == own.rounds() == {"release": 1}
    True
    """

    def __init__(self, shared: Ledger, own: Ledger) -> None:
        self.shared, self.own = shared, own

    @property
    def adjacency(self) -> Adjacency:
        """That of the shared ledger."""
        return self.shared.adjacency

    def require(self, event: Any) -> None:
        """Refuse what the shared budget does not hold."""
        self.shared.require(event)

    def pay(self, what: str, event: Any) -> None:
        """Charge both."""
        self.shared.pay(what, event)
        self.own.pay(what, event)

    def run(self, events: Mapping[str, Any], reserve: Any = 1) -> _Runs:
        """Begin a run in both."""
        return _Runs(self.shared.run(events, reserve), self.own.run(events, reserve))


class _Runs:
    """A run's hold on both ledgers."""

    def __init__(self, shared: Any, own: Any) -> None:
        self.parts = shared, own

    def charge(self, stage: Any, t: int = 0) -> None:
        """Pay for one round, in both."""
        for part in self.parts:
            part.charge(stage, t)

    def close(self) -> None:
        """End the run in both."""
        for part in self.parts:
            part.close()
