"""A Flower `Strategy`: `start` is the library's own loop over the nodes of a grid."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import torch

from isthmus.base import validate
from isthmus.core.minimize import minimize
from isthmus.core.result import Result
from isthmus.core.state import State
from isthmus.distributed.flower.federation import Federation
from isthmus.distributed.flower.packages import flower
from isthmus.distributed.flower.records import from_arrays, to_arrays
from isthmus.distributed.flower.server import LOG, FlowerClients
from isthmus.privacy.statement import PrivacyStatement


class SketchStrategy:
    """Trains over Flower clients that send sketches (`isthmus.distributed.flower.client_app`, or `sketch_mod`).

    plan      what server and clients share
    ledger    of a private run (`isthmus.privacy.Ledger`); by default one in memory
    seed      of the public randomness: clients rebuild the maps from it
    resume    the state of an earlier run of the same plan (`strategy.found.state`)
    timeout, wait, patience, noise_seed   as for `FlowerClients` and `minimize`

    It is a `flwr.serverapp.strategy.Strategy`.  After `start`:

    found      what `minimize` returned
    clients    the `FlowerClients`: `clients.traffic` has the bytes up and down, and what was lost
    outsiders  the privacy statement for everybody who sees the model, or models of all rounds
    insiders   the one for somebody who also knows whom each round asked: no amplification by sampling
    """

    def __init__(
        self,
        plan: Federation,
        *,
        ledger: Any = None,
        seed: int = 0,
        resume: State | None = None,
        wait: float = 60.0,
        patience: int = 3,
        noise_seed: int | None = None,
    ) -> None:
        flower().strategy.Strategy.register(type(self))
        self.plan, self.ledger, self.seed, self.resume = plan, ledger, seed, resume
        self.wait, self.patience, self.noise_seed = wait, patience, noise_seed
        self.found: Result | None = None
        self.clients: FlowerClients | None = None

    def start(
        self,
        grid: Any,
        initial_arrays: Any = None,
        num_rounds: int | None = None,
        timeout: float = 3600,
        train_config: Any = None,
        evaluate_config: Any = None,
        evaluate_fn: Callable[[int, Any], Any] | None = None,
    ) -> Any:
        """Run all rounds of the plan; the result is Flower's, with the arrays of the point that was found.

        initial_arrays  where to start; None: the point of the set nearest to 0
        num_rounds      None, or the rounds of the plan: its noise and its maps are planned for them
        timeout         seconds that a round waits for answers
        evaluate_fn     (round, arrays) -> MetricRecord at the server, before the first round and after each; what it
                        looks at must not be private records
        """
        plan, remedy = self.plan, f"give {self.plan.rounds}, the number of rounds of the plan, or another plan"
        validate.check(num_rounds in (None, plan.rounds), "num_rounds", num_rounds, remedy)
        extra = [config for config in (train_config, evaluate_config) if config]
        validate.check(not extra, "train_config, evaluate_config", extra, "leave them out: clients have the plan")
        result = flower().strategy.Result()
        self.clients = FlowerClients(grid, plan, timeout=timeout, wait=self.wait, patience=self.patience)
        self.summary()

        def look(record: dict[str, Any], state: State) -> None:
            self._note_metrics(result, state)
            if evaluate_fn is not None:
                self._evaluated(result, evaluate_fn, state)

        zero = torch.zeros(plan.whole.d, dtype=plan.dtype)
        start = None if initial_arrays is None else from_arrays(initial_arrays, plan.whole).to(plan.dtype)
        first = plan.constraint.project(zero) if start is None else start
        if evaluate_fn is not None and self.resume is None:
            self._evaluated(result, evaluate_fn, State(w=first))
        self.found = minimize(
            plan.problem, plan.pipe, plan.constraint, steps=plan.rounds, seed=self.seed, x0=first, resume=self.resume,
            clients=self.clients, ledger=self.ledger, noise_seed=self.noise_seed, record=1, callbacks=[look],
            progress=False,
        )  # fmt: skip
        if self.found.x is not None:
            result.arrays = to_arrays(self.found.x, plan.whole)
        return result

    def _note_metrics(self, result: Any, state: State) -> None:
        """What a round moved: public numbers only, so a private run does not say who answered."""
        figures: dict[str, int] = {"numbers-up": state.dims, "bytes-up": state.bytes}
        if not self.plan.private and self.clients is not None and self.clients.traffic.rounds:
            last = self.clients.traffic.rounds[-1]
            figures |= {name: last[name] for name in ("asked", "answered", "late", "failed")}
        result.train_metrics_clientapp[state.t] = flower().app.MetricRecord(figures)
        LOG.info("[ROUND %s/%s] %s", state.t, self.plan.rounds, figures)

    def _evaluated(self, result: Any, evaluate: Callable[[int, Any], Any], state: State) -> None:
        metrics = evaluate(state.t, to_arrays(state.w, self.plan.whole))
        if metrics is not None:
            result.evaluate_metrics_serverapp[state.t] = metrics

    @property
    def outsiders(self) -> PrivacyStatement | None:
        """The statement of the run; None before it has ended, and where it is not private."""
        return None if self.found is None else self.found.privacy

    @property
    def insiders(self) -> PrivacyStatement | None:
        """The statement for those who know whom each round asked."""
        return self.plan.insiders(seeded=self.noise_seed is not None) if self.plan.private else None

    def summary(self) -> None:
        """Log what is run."""
        plan = self.plan
        LOG.info("Isthmus: %s, d = %s, %s rounds, %s clients", plan.recipe, plan.whole.d, plan.rounds, plan.clients)
        if plan.private:
            LOG.info("for those who know whom each round asked: %s", self.insiders)

    # ------------------------------------------------------------ the hooks of other strategies' loops

    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> NoReturn:
        """Refused: a round may have several stages, and is charged before it is released; `start` is the loop."""
        _refuse("configure_train")

    def aggregate_train(self, server_round: int, replies: Iterable[Any]) -> NoReturn:
        """Refused, as `configure_train` is: wrappers that add noise of their own would add it to noise."""
        _refuse("aggregate_train")

    def configure_evaluate(self, server_round: int, arrays: Any, config: Any, grid: Any) -> list[Any]:
        """Nobody: figures of clients' records would be released without being paid for."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Any]) -> None:
        """Nothing was asked."""
        return None


def _refuse(name: str) -> NoReturn:
    validate.refuse("strategy", name, "call start(grid, ...): wrappers of strategies cannot drive this one")
