"""What `engine.accountant` shows: the ledger, with the names Opacus users know."""

from __future__ import annotations

from isthmus import _validate
from isthmus.privacy import _events
from isthmus.privacy._library import dpa
from isthmus.privacy.adjacency import Adjacency
from isthmus.privacy.ledger import Ledger

ACCOUNTANTS = ("pld", "prv", "rdp")


class Accountant:
    """Epsilon of everything the ledger holds.

    "pld" (and "prv", the same distribution composed numerically) is tight; "rdp" is looser.

    >>> Accountant(Ledger()).get_epsilon(1e-5)
    0.0
    """

    def __init__(self, ledger: Ledger, kind: str = "pld") -> None:
        _validate.check(
            kind != "gdp", "accountant", kind, 'its central limit is no upper bound and under-reports: take "pld"'
        )
        _validate.one_of(ACCOUNTANTS, accountant=kind)
        self.ledger, self.kind = ledger, kind

    @classmethod
    def mechanism(cls) -> str:
        """The name of the default accountant."""
        return "pld"

    def get_epsilon(self, delta: float) -> float:
        """Epsilon at delta of everything released so far."""
        _validate.open_unit(delta=delta)
        if self.kind != "rdp" or not self.ledger.rounds():
            return self.ledger.spent(delta)
        if self.ledger.adjacency is not Adjacency.ADD_REMOVE:
            return self.ledger.spent(delta)  # already by the Renyi accountant, or by the tight one where it can
        return float(dpa.rdp.RdpAccountant().compose(self.ledger.event()).get_epsilon(delta))

    @property
    def history(self) -> list[tuple[float, float, int]]:
        """(noise multiplier, sampling rate, steps) for each kind of round that is a sampled Gaussian."""
        found = []
        for record, count in _events.flatten(_events.to_json(self.ledger.event()), 1) if len(self) else []:
            event = _events.from_json(record)
            rate = getattr(event, "sampling_probability", 1.0)
            inner = getattr(event, "event", event)
            found.append((float(getattr(inner, "noise_multiplier", float("nan"))), float(rate), int(count)))
        return found

    def __len__(self) -> int:
        return sum(self.ledger.rounds().values())
