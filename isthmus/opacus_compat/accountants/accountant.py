"""Accountants under Opacus' names.  What one of them was told, or an engine has released, is in its ledger."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from isthmus.base import validate
from isthmus.engine import checkpoint
from isthmus.engine.accountant import Accountant
from isthmus.opacus_compat.refused import refused
from isthmus.privacy import Ledger, Poisson
from isthmus.privacy.accounting import Adjacency
from isthmus.privacy.event_json import dpa


class IAccountant(Accountant):
    """Epsilon of a ledger, and a way to charge it for what was released elsewhere.

    >>> accountant = create_accountant("rdp")
    >>> for _ in range(10):
    ...     accountant.step(noise_multiplier=1.0, sample_rate=0.01)
    >>> len(accountant), accountant.history
    (10, [(1.0, 0.01, 10)])
    >>> accountant.get_epsilon(1e-5, alphas=[2.0, 8.0]) >= accountant.get_epsilon(1e-5)
    True
    """

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Charge for one release of Gaussian noise on a Poisson batch.

        An engine charges its own releases: a step that is told here is one more.
        """
        self._charge(noise_multiplier, sample_rate, 1)

    def get_epsilon(self, delta: float, alphas: Sequence[float] | None = None, **kwargs: Any) -> float:
        """Epsilon at delta; "rdp" takes the orders `alphas`, and the tight accountant needs none."""
        if alphas is None or self.kind != "rdp" or not len(self):
            return super().get_epsilon(delta)
        return self._renyi(delta, alphas)[0]

    def get_privacy_spent(self, *, delta: float, alphas: Sequence[float] | None = None) -> tuple[float, float]:
        """(epsilon, the order it was found at) of the "rdp" accountant."""
        validate.check(self.kind == "rdp", "accountant", self.kind, 'call get_epsilon: only "rdp" has orders')
        return self._renyi(delta, alphas)

    def state_dict(self, destination: dict[str, Any] | None = None) -> dict[str, Any]:
        """What was charged, by the run that charged it."""
        state = {} if destination is None else destination
        own = {"spent": checkpoint.spent_by_run(self.ledger), "seeded": self.ledger.seeded}
        return state | {"history": self.history, "mechanism": self.kind, **own}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Charge for what a state holds and the ledger does not show: epsilon never falls.

        A state of Opacus does not say whose its steps were, and is charged whole.
        """
        remedy = "give what state_dict() returned"
        validate.check("history" in state_dict, "state_dict", sorted(state_dict), remedy)
        if state_dict.get("seeded"):
            self.ledger.taint()
        if "spent" in state_dict:
            checkpoint.charge_again(self.ledger, state_dict["spent"])
            return
        for noise_multiplier, sample_rate, steps in state_dict["history"]:
            self._charge(noise_multiplier, sample_rate, int(steps))

    def get_optimizer_hook_fn(self, sample_rate: float) -> Callable[[Any], None]:
        """What `optimizer.attach_step_hook` takes, for a second account of the same training."""

        return lambda optimizer: self.step(noise_multiplier=optimizer.noise_multiplier, sample_rate=sample_rate)

    def _charge(self, noise_multiplier: float, sample_rate: float, steps: int) -> None:
        validate.non_negative(noise_multiplier=noise_multiplier)
        event = dpa.GaussianDpEvent(float(noise_multiplier)) if noise_multiplier else dpa.NonPrivateDpEvent()
        self.ledger.pay("step", Poisson(sample_rate).event(event), steps)

    def _renyi(self, delta: float, alphas: Sequence[float] | None) -> tuple[float, float]:
        validate.open_unit(delta=delta)
        remedy = "leave alphas out: orders are for add-or-remove neighbours"
        validate.check(self.ledger.adjacency is Adjacency.ADD_REMOVE, "alphas", alphas, remedy)
        accountant = dpa.rdp.RdpAccountant(None if alphas is None else [float(alpha) for alpha in alphas])
        epsilon, order = accountant.compose(self.ledger.event()).get_epsilon_and_optimal_order(delta)
        return float(epsilon), float(order)


class RDPAccountant(IAccountant):
    """Renyi differential privacy: looser."""

    name = "rdp"

    def __init__(self) -> None:
        super().__init__(Ledger(), self.name)

    @classmethod
    def mechanism(cls) -> str:
        """Its name."""
        return cls.name


class PRVAccountant(RDPAccountant):
    """Privacy-loss distributions: tight."""

    name = "prv"


GaussianAccountant = refused(
    "GaussianAccountant",
    'use "prv" or "rdp": the central limit theorem of this one is no upper bound, and reports too little',
)


def create_accountant(mechanism: str) -> IAccountant:
    """An accountant with a ledger of its own, by its name."""
    return IAccountant(Ledger(), mechanism)
