"""Secure aggregation over Flower: clients add the noise, and the server sees one noisy total (docs/secagg.md).

A stage is four messages to every client: keys, letters, the masked vector, shares.  Flower may start a process for
every message, so what a client must remember in between (its keys) is kept in its `context.state`, which never leaves
its node.  Whether a client takes part is its own secret coin: one that the coin leaves out sends a vector of zeros,
masked and with its share of the noise, and not even the server knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from isthmus.base import validate
from isthmus.core.pipeline import Release, Round, Stage, pay
from isthmus.distributed.flower.records import flower
from isthmus.distributed.secagg import BadMessage, SecureClient, SecurePlan
from isthmus.distributed.secagg.wire import Kind, read
from isthmus.privacy.accounting import Adjacency
from isthmus.privacy.clips import ClippedSum
from isthmus.privacy.event_json import DpEvent, SkellamDpEvent
from isthmus.privacy.ledger import Chargeable
from isthmus.privacy.mechanisms import Gaussian, Mechanism
from isthmus.privacy.noise import Noise

_SECURE = "isthmus.secure"
_STEPS = ("keys", "letters", "vector", "shares")


class NoisedSum(ClippedSum):
    """A sum that came with its noise, from clients whose vectors nobody saw."""


@dataclass(frozen=True)
class AtClients(Mechanism):
    """Skellam noise that the clients added, in shares: no worse than Gaussian noise of `multiplier` times the bound.

    It takes sums of secure aggregation (`NoisedSum`) and nothing else: it adds no noise itself.
    """

    multiplier: float
    source: str = "exact whole-number noise, which every client draws from its operating system's generator"

    def release(self, bounded: ClippedSum, noise: Noise | None) -> Tensor:
        """The sum as it came."""
        noised = isinstance(bounded, NoisedSum)
        remedy = "run it over FlowerClients: noise of clients comes with secure aggregation only"
        validate.check(noised, "mechanism", type(self).__name__, remedy)
        return bounded.value

    def event(self, adjacency: Adjacency = Adjacency.ADD_REMOVE) -> DpEvent:
        """`SkellamDpEvent(multiplier)`."""
        return SkellamDpEvent(float(self.multiplier))


def with_noise_at_clients(stage: Stage) -> Stage:
    """The stage with its Gaussian noise added at the clients; other noise, and several releases, are refused."""
    (release, *more) = stage.releases
    fits = isinstance(release.mechanism, Gaussian) and not more
    remedy = "use one release with Gaussian noise and a fixed clip, which is what secure aggregation takes"
    validate.check(fits, "dropouts", f"stage {stage.name!r}", remedy)
    assert isinstance(release.mechanism, Gaussian)
    return replace(stage, releases=[replace(release, mechanism=AtClients(release.mechanism.multiplier))])


def secure_plan(clients: int, dropouts: float, m: int, bound: float, release: Release, peak: float) -> SecurePlan:
    """What follows for one stage from public numbers: every client computes it, and takes nobody's word for it."""
    assert isinstance(release.mechanism, AtClients)
    lost = int(dropouts * clients)
    return SecurePlan(clients, m, bound, release.mechanism.multiplier, dropouts=lost, peak=min(1.0, peak))


@dataclass(frozen=True)
class ForStage:
    """The loop's ledger, as what a round of secure aggregation is paid from."""

    round: Round
    stage: Stage
    ledger: Chargeable | None

    def require(self, event: DpEvent, what: str) -> None:
        """Nothing: the loop has asked for all its rounds before the first."""

    def pay(self, what: str, event: DpEvent, rounds: int = 1, *, seeded: bool = False) -> None:
        """Charge the stage."""
        pay(self.round, self.stage, self.ledger)


def secure_step(
    config: Mapping[str, Any],
    state: Any,
    plan: SecurePlan,
    rounds: int,
    vector: Callable[[], Tensor],
    noise: Noise | None,
) -> bytes:
    """A client's answer to one step; `vector` makes what it adds, and is called when it is due.

    Of a run of so many rounds a client sends so many vectors and no more, whatever a server asks; one that has no
    vector left does not come to another round.
    """
    step, data = str(config["step"]), config["data"]
    saved: dict[str, Any] = {"sent": 0, **state.get(_SECURE, {})}
    validate.one_of(_STEPS, step=step)
    remedy = "begin a new plan: this client has sent a vector for every round of this one"
    validate.check(step not in ("keys", "vector") or saved["sent"] < rounds, "rounds", rounds, remedy)
    if step == "keys":
        session, _ = read(data, Kind.INVITATION)
        if saved.get("session") == session:
            raise BadMessage("This client has answered the invitation before: every message is answered once")
        saved["session"] = session
        client = SecureClient(plan, int(config["index"]), noise)
        answer = client.keys(data)
    else:
        validate.check("client" in saved, "step", step, "invite the client first: it keeps nothing of this round")
        client = SecureClient.from_bytes(plan, saved["client"], noise)
        if step == "letters":
            answer = client.shares(data)
        elif step == "shares":
            answer = client.reveal(data)
        else:  # opened first: a server that repeats or alters a message must not cost a client any work
            client.open(data)
            saved["sent"] += 1
            answer = client.vector(vector())
    state[_SECURE] = flower().app.ConfigRecord({**saved, "client": client.to_bytes()})
    return answer
