"""Private runs over Flower: one ledger at the server, public divisors, secret coins, and two statements."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from isthmus import (
    CountSketch,
    InvalidInput,
    L1Ball,
    Logistic,
    ModuleObjective,
    Pipeline,
    Release,
    Stage,
    Whole,
    algorithms,
    minimize,
)
from isthmus.core.parts import Step
from isthmus.core.pipeline import Promise
from isthmus.core.wire import Message
from isthmus.distributed.flower import Federation, LocalGrid, SketchStrategy, client_app
from isthmus.distributed.flower.federation import RECORD, answer
from isthmus.gradients.layers.forward_guard import MIXING, RANDOM, SHAPES
from isthmus.lifts import ProjectAndLift
from isthmus.privacy import AdaptiveClip, BudgetExceeded, Clip, Gaussian, Ledger, Poisson
from isthmus.privacy.clips import ClippedSum
from isthmus.privacy.noise import SeededSource

D, ROUNDS = 30, 4
BALL = L1Ball(4.0)
BUDGET = {"epsilon": 2.0, "delta": 1e-5, "clip": 1.0, "step": 0.5, "n": "exact"}


def data(
    draws: torch.Generator, clients: int = 3, dtype: torch.dtype = torch.float64
) -> tuple[list[Logistic], Logistic]:
    x = torch.randn(60, D, generator=draws, dtype=dtype)
    y = (x[:, 0] > 0).long()
    parts = [Logistic(x[k::clients], y[k::clients], classes=[0, 1]) for k in range(clients)]
    return parts, Logistic(x, y, classes=[0, 1])


def plan_of(recipe: Any, clients: int = 3, **more: Any) -> Federation:
    facts = {"rounds": ROUNDS, "n": 60, "constraint": BALL, "dtype": torch.float64, "linear": True}
    return Federation(recipe, D, clients=clients, **{**facts, **more})


def grid_of(plan: Federation, parts: list[Logistic], between: Any = None, **more: Any) -> LocalGrid:
    app = client_app(plan, lambda context: parts[context.node_config["partition-id"]], **more)
    return LocalGrid(app, len(parts), between=between)


def run(plan: Federation, grid: LocalGrid, **more: Any) -> SketchStrategy:
    strategy = SketchStrategy(plan, wait=0.0, **more)
    strategy.start(grid)
    return strategy


@pytest.mark.parametrize("m", [None, 12])
def test_records_the_run_is_that_of_one_process(m: int | None, draws: torch.Generator) -> None:
    """Full batches, so that no client draws coins of its own: equal with the noise, to the bit."""
    parts, whole = data(draws)
    recipe = algorithms.dp_gd(**BUDGET) if m is None else algorithms.priv_sgd(**BUDGET, m=m)
    strategy = run(plan_of(recipe), grid_of(plan_of(recipe), parts), noise_seed=5)
    alone = minimize(whole, recipe, BALL, steps=ROUNDS, clients=parts, record=None, noise_seed=5)
    assert torch.equal(strategy.found.x, alone.x) and strategy.found.bytes == alone.bytes
    assert strategy.outsiders.nominal == alone.privacy.nominal
    assert math.isinf(strategy.outsiders.epsilon) and math.isinf(strategy.insiders.epsilon)  # seeded: not private


STAGES = {
    "an anchor every second round": lambda: algorithms.dp_svrg(**BUDGET, inner=2, batch_size=60),
    "coordinates, then values": lambda: algorithms.compressive_dp_sgd(**BUDGET, p=10, kappa=3, variant="selection"),
    "a clip that moves": lambda: algorithms.dp_gd(**{**BUDGET, "clip": AdaptiveClip(1.0)}),
}


@pytest.mark.parametrize("name", STAGES)
def test_rounds_of_several_stages_travel(name: str, draws: torch.Generator) -> None:
    """Later stages look at what earlier ones released, at anchors and at clips that were paid for."""
    parts, whole = data(draws)
    recipe = STAGES[name]()
    strategy = run(plan_of(recipe), grid_of(plan_of(recipe), parts), noise_seed=5)
    alone = minimize(whole, recipe, BALL, steps=ROUNDS, clients=parts, record=None, noise_seed=5)
    assert torch.equal(strategy.found.x, alone.x) and strategy.found.x.norm() > 0


def test_float32_sums_are_sent_in_float32_with_the_bound_for_it(draws: torch.Generator) -> None:
    parts, _ = data(draws, dtype=torch.float32)
    plan = plan_of(algorithms.priv_sgd(**BUDGET, m=12), dtype=torch.float32)
    strategy = run(plan, grid_of(plan, parts))
    assert strategy.found.bytes == ROUNDS * 3 * 12 * 4
    assert strategy.clients.traffic.up == ROUNDS * 3 * (8 + 4 + 12 * 4)


def test_the_ledger_holds_every_round_whoever_answers(draws: torch.Generator) -> None:
    """One client is gone, one is corrupt in half of the rounds: as many charges as rounds, and the same noise."""
    parts, _ = data(draws)
    plan, ledger = plan_of(algorithms.dp_gd(**BUDGET)), Ledger(budget=(2.0, 1e-5))

    def between(number: int, reply: Any) -> Any:
        if number == 1 and int(reply.metadata.group_id) % 2:
            reply.content["isthmus"]["answer"] = b"nonsense"
        return None if number == 2 else reply

    strategy = run(plan, grid_of(plan, parts, between), ledger=ledger)
    assert ledger.rounds() == {"main": ROUNDS}
    assert [each["answered"] for each in strategy.clients.traffic.rounds] == [2, 1, 2, 1]
    assert strategy.outsiders.epsilon <= 2.0 and "does not depend on its records" in strategy.outsiders.words()


def test_the_divisor_is_public_whoever_answers(draws: torch.Generator) -> None:
    """With next to no noise the step of a run in which one client of three is lost is the sum of two over all n."""
    parts, _ = data(draws)
    recipe = algorithms.dp_gd(epsilon=1e7, delta=1e-5, clip=100.0, step=0.5, n="exact")
    plan = plan_of(recipe, rounds=1)
    result = run(plan, grid_of(plan, parts, lambda number, reply: None if number == 2 else reply)).found
    zero = torch.zeros(D, dtype=torch.float64)
    expected = BALL.project(-0.5 * sum(part.rows(zero).sum() for part in parts[:2]) / 60)
    assert torch.allclose(result.x, expected, atol=1e-2) and float(result.x.norm()) > 0.1


def test_a_budget_that_refuses_is_refused_before_anybody_is_asked(draws: torch.Generator) -> None:
    parts, _ = data(draws)
    plan = plan_of(algorithms.dp_gd(**BUDGET))
    grid = grid_of(plan, parts)
    with pytest.raises(BudgetExceeded):
        run(plan, grid, ledger=Ledger(budget=(1.0, 1e-5)))
    assert grid.down == 0


# ---------------------------------------------------------------- clients as terms


MANY = 20
"""Clients of three records each."""


def client_plan(recipe: Any, **more: Any) -> Federation:
    return plan_of(recipe, MANY, unit="client", n=None, linear=False, **more)


def sampled(expected: int = 5, m: int = 12, rounds_cost: float = 12.0) -> Pipeline:
    """Noise of 2 clients on q M = `expected` of them; its epsilon is below `rounds_cost` for all that is run here."""
    release = Release(encode=CountSketch(m), clip=Clip(1.0), mechanism=Gaussian(2.0), lift=ProjectAndLift(BALL))
    stage = Stage(Poisson(expected / MANY, float(expected)), [release])
    promise = Promise(rounds_cost, 1e-5, n=MANY, records=MANY)
    return Pipeline([stage], lambda t: 0.5, Step(BALL), promise=promise)


def replace_sampler(pipe: Pipeline, sampler: Any) -> Pipeline:
    return replace(pipe, stages=[replace(pipe.stages[0], sampler=sampler)])


def test_clients_are_drawn_by_secret_coins_and_empty_rounds_are_paid_for(draws: torch.Generator) -> None:
    parts, _ = data(draws, MANY)
    plan, ledger = client_plan(sampled(1), rounds=30), Ledger(budget=(12.0, 1e-5))
    strategy = run(plan, grid_of(plan, parts), ledger=ledger, noise_seed=1)
    values = [each["asked"] for each in strategy.clients.traffic.rounds]
    assert len(values) == 30 and 0 in values and len(set(values)) > 2 and sum(values) < 60  # 1 of 20 on average
    assert ledger.rounds() == {"main": 30}
    other = SketchStrategy(plan, wait=0.0, noise_seed=2)
    other.start(grid_of(plan, parts))
    assert [each["asked"] for each in other.clients.traffic.rounds] != values


def test_nothing_public_tells_how_many_clients_a_round_asked(draws: torch.Generator) -> None:
    parts, _ = data(draws, MANY)
    plan = client_plan(sampled())
    strategy = SketchStrategy(plan, wait=0.0)
    result = strategy.start(grid_of(plan, parts))
    for t, record in result.train_metrics_clientapp.items():
        assert dict(record) == {"numbers-up": t * 5 * 12, "bytes-up": t * 5 * 12 * 8}  # q M = 5 clients of 12 numbers
    assert strategy.found.bytes == ROUNDS * 5 * 12 * 8


def test_two_epsilons_are_stated(draws: torch.Generator) -> None:
    parts, _ = data(draws, MANY)
    strategy = run(client_plan(sampled()), grid_of(client_plan(sampled()), parts))
    outside, inside = strategy.outsiders, strategy.insiders
    assert inside.epsilon > 1.5 * outside.epsilon > 0
    everybody = client_plan(sampled(MANY))
    plain = run(everybody, grid_of(everybody, parts))
    assert plain.outsiders.epsilon == pytest.approx(inside.epsilon)  # all clients, every round: nothing is amplified
    for words in (outside.words(), inside.words()):
        assert "all that one client has" in words and "the server is trusted" in words
    assert "may know which clients" in inside.words()


def test_a_client_moves_the_sum_by_its_bound_whatever_it_sends(draws: torch.Generator) -> None:
    """A client that answers with 1,000 times its vector, under a right seal, is shortened at the server."""
    parts, _ = data(draws, MANY)
    plan = client_plan(algorithms.dp_gd(epsilon=1e7, delta=1e-5, clip=0.1, step=1.0, n="exact"), rounds=1)
    app = client_app(plan, lambda context: parts[context.node_config["partition-id"]])

    def lying(message: Any, context: Any) -> Any:
        reply = app(message, context)
        value = torch.frombuffer(bytearray(reply.content[RECORD]["answer"][12:]), dtype=torch.float64)
        forged = Message({"gradient": ClippedSum(1000 * value, 2, 1.0)}, 1.0)
        if context.node_config["partition-id"] == 0:
            reply.content[RECORD]["answer"] = answer(forged, message.content[RECORD]["order"], False)
        return reply

    honest, found = run(plan, grid_of(plan, parts)).found.x, run(plan, LocalGrid(lying, MANY)).found.x
    assert 1e-4 < float((honest - found).norm()) * MANY <= 2 * 0.1 * 1.01


def test_a_client_is_one_term_in_the_guarantee(draws: torch.Generator) -> None:
    """Runs that differ in one client, with the same coins and noise: the released sums differ by at most 2 C."""
    parts, _ = data(draws, MANY)
    _, far = data(draws, 1)
    recipe = algorithms.dp_gd(epsilon=2.0, delta=1e-5, clip=0.05, step=1.0, n="exact")
    plan, found = client_plan(recipe, rounds=1, constraint=Whole()), []
    for first in (parts[0], far):
        found.append(run(plan, grid_of(plan, [first, *parts[1:]]), noise_seed=3).found.x)
    moved = MANY * float((found[0] - found[1]).norm())
    assert 0.02 < moved <= 2 * 0.05 * 1.01  # replacing a client is removing one and adding another


def test_the_coins_of_records_are_the_clients_own(draws: torch.Generator) -> None:
    parts, _ = data(draws)
    plan = plan_of(replace_sampler(sampled(), Poisson(1 / 3, 20.0)))
    first, second = (run(plan, grid_of(plan, parts, noise=SeededSource(k)), noise_seed=1).found.x for k in (1, 2))
    assert not torch.equal(first, second)


def test_what_was_read_off_private_records_is_refused(draws: torch.Generator) -> None:
    x = torch.randn(60, D, generator=draws, dtype=torch.float64)
    undeclared = [Logistic(x[k::3], (x[k::3, 0] > 0).long()) for k in range(3)]
    plan = plan_of(algorithms.dp_gd(**BUDGET))
    strategy = SketchStrategy(plan, wait=0.0, patience=1)
    with pytest.raises(RuntimeError, match="read from private records"):
        strategy.start(grid_of(plan, undeclared))


def test_batches_of_clients_and_purchases_are_refused() -> None:
    with pytest.raises(InvalidInput, match="Poisson sampling of them"):
        client_plan(algorithms.comp_dist_sgd(m=12, step=0.1, batch_size=2)).pipe  # noqa: B018
    bought = algorithms.dp_gd(epsilon=1.0, delta=1e-5, clip=1.0, n="exact", scale="columns")
    with pytest.raises(InvalidInput, match="would buy something before its loop"):
        plan_of(bought, constraint=Whole()).pipe  # noqa: B018


def test_a_client_with_a_network_guards_its_private_passes() -> None:
    """Its masks follow no seed, what its passes keep is warned of, and the statements say what they rest on."""

    class Keeps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.layer, self.last, self.seen = nn.Linear(6, 40), nn.Linear(40, 2), torch.zeros(6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen = x.detach().mean(0)
            dropped = F.dropout(1 + self.layer(x))
            if len(x) == 40:  # and not a copy that is tried out
                masks.append(dropped == 0)
            return self.last(dropped)

    masks: list[torch.Tensor] = []
    for _ in range(2):
        problem = ModuleObjective(Keeps(), F.cross_entropy, (torch.randn(40, 6), torch.arange(40) % 2))
        facts = {"n": 40, "constraint": Whole(), "dtype": torch.float32, "linear": False, "rounds": 1}
        plan = replace(plan_of(algorithms.dp_gd(**BUDGET), 1), space=problem.space, **facts)
        torch.manual_seed(0)
        with pytest.warns(UserWarning, match="seen"):
            strategy = run(plan, grid_of(plan, [problem]))
        for statement in (strategy.outsiders, strategy.insiders):
            assert {MIXING, RANDOM, SHAPES} <= set(statement.assumptions)
    assert 0.4 < float((masks[0] == masks[-1]).double().mean()) < 0.6
