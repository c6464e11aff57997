"""Secure aggregation over Flower: the server sees noisy totals, whoever is lost, and the ledger is charged first."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from isthmus import CountSketch, InvalidInput, L1Ball, Logistic, Pipeline, Release, Stage, Whole, minimize
from isthmus.distributed.flower import Federation, LocalGrid, SketchStrategy, client_app
from isthmus.distributed.flower.records import RECORD
from isthmus.distributed.flower.secure import AtClients
from isthmus.distributed.secagg import BadMessage, SecureClient, SecurePlan, SecureServer
from isthmus.privacy import BudgetExceeded, Clip, Gaussian, Ledger, Poisson
from isthmus.privacy.sampling import FullBatch
from isthmus.round.pipeline import Promise

pytest.importorskip("cryptography", reason="secure aggregation needs cryptography: pip install -e '.[secagg]'")

D, M, ROUNDS = 30, 6, 2


def data(draws: torch.Generator) -> list[Logistic]:
    x = torch.randn(10 * M, D, generator=draws, dtype=torch.float64)
    y = (x[:, 0] > 0).long()
    return [Logistic(x[k::M], y[k::M], classes=[0, 1]) for k in range(M)]


def pipe_of(noise: float = 1.0, rate: float = 1.0, clip: Any = None, cost: float = 60.0) -> Pipeline:
    sampler = FullBatch(float(M)) if rate == 1 else Poisson(rate, rate * M)
    release = Release(encode=CountSketch(12), clip=clip or Clip(1.0), mechanism=Gaussian(noise))
    return Pipeline([Stage(sampler, [release])], lambda t: 0.5, promise=Promise(cost, 1e-5, n=M, records=M))


def plan_of(pipe: Pipeline | None = None, **more: Any) -> Federation:
    facts = {"rounds": ROUNDS, "clients": M, "unit": "client", "dtype": torch.float64, "dropouts": 0.2}
    return Federation(pipe or pipe_of(), D, **{**facts, **more})


def grid_of(plan: Federation, parts: list[Logistic], between: Any = None) -> LocalGrid:
    return LocalGrid(client_app(plan, lambda context: parts[context.node_config["partition-id"]]), M, between=between)


def run(plan: Federation, grid: LocalGrid, **more: Any) -> SketchStrategy:
    strategy = SketchStrategy(plan, wait=0.0, **more)
    strategy.start(grid)
    return strategy


def test_with_little_noise_it_is_the_run_without_secure_aggregation(draws: torch.Generator) -> None:
    parts = data(draws)
    quiet = pipe_of(1e-4, cost=1e9)
    hidden, shown = plan_of(quiet, constraint=Whole()), plan_of(quiet, dropouts=None)
    first, second = (run(plan, grid_of(plan, parts)).found.x for plan in (hidden, shown))
    assert torch.allclose(first, second, atol=2e-3) and second.norm() > 0.05


def test_lost_clients_up_to_the_plans_share_change_nothing_but_their_part(draws: torch.Generator) -> None:
    """One of six is lost when its vector is due: the total is that of five, over the public divisor."""
    parts, quiet = data(draws), pipe_of(1e-4, cost=1e9)
    plan, central = plan_of(quiet), plan_of(quiet, dropouts=None)

    def between(number: int, reply: Any) -> Any:
        return None if number == 4 and reply.metadata.group_id in ("vector", "shares") else reply

    found = run(plan, grid_of(plan, parts, between)).found.x
    other = run(central, grid_of(central, parts, lambda number, reply: None if number == 4 else reply)).found.x
    assert torch.allclose(found, other, atol=2e-3) and other.norm() > 0.05


def test_a_round_below_the_threshold_moves_nothing_and_is_paid_for(draws: torch.Generator) -> None:
    parts, ledger = data(draws), Ledger(budget=(60.0, 1e-5))
    plan = plan_of()
    strategy = run(plan, grid_of(plan, parts, lambda number, reply: None if number < 3 else reply), ledger=ledger)
    assert ledger.rounds() == {"main": ROUNDS} and not strategy.found.x.any()
    assert any("nothing is released" in why for why in strategy.clients.traffic.reasons)


def test_the_ledger_is_charged_before_anybody_is_asked(draws: torch.Generator) -> None:
    plan, asked = plan_of(), []
    ledger = Ledger(budget=(60.0, 1e-5))

    def between(number: int, reply: Any) -> Any:
        asked.append(ledger.rounds().get("main", 0))
        return reply

    run(plan, grid_of(plan, data(draws), between), ledger=ledger)
    assert asked[0] >= 1 and asked[-1] == ROUNDS
    grid = grid_of(plan, data(draws))
    with pytest.raises(BudgetExceeded):
        run(plan, grid, ledger=Ledger(budget=(0.1, 1e-5)))
    assert grid.down == 0


def test_what_the_server_receives_says_nothing_of_one_client(draws: torch.Generator) -> None:
    """The same client with other data sends vectors that differ in nearly all bits, as they do with the same data."""
    plan, seen = plan_of(), []

    def between(number: int, reply: Any) -> Any:
        if number == 0 and reply.metadata.group_id == "vector":
            seen.append(reply.content[RECORD]["answer"][-20:])
        return reply

    run(plan, grid_of(plan, data(draws), between))
    run(plan, grid_of(plan, data(draws), between))
    assert len(set(seen)) == 2 * ROUNDS


def test_coins_are_the_clients_and_everybody_answers(draws: torch.Generator) -> None:
    """Half of the clients on average: all send vectors of one length, and both statements are given."""
    plan = plan_of(pipe_of(rate=0.5))
    strategy = run(plan, grid_of(plan, data(draws)))
    assert [each["asked"] for each in strategy.clients.traffic.rounds] == [M, M]
    assert strategy.outsiders.epsilon < strategy.insiders.epsilon
    words = strategy.outsiders.words()
    assert "secure aggregation" in words and "the server is trusted" not in words
    assert "which every client draws" in words


def test_a_client_sends_no_more_vectors_than_the_run_has_rounds(draws: torch.Generator) -> None:
    """A server that runs the plan again without new consent gets refusals."""
    plan = plan_of()
    grid = grid_of(plan, data(draws))
    run(plan, grid)
    again = SketchStrategy(plan, wait=0.0)
    again.start(grid)
    assert not again.found.x.any() and any("begin a new plan" in why for why in again.clients.traffic.reasons)


def test_noise_of_clients_is_released_by_secure_aggregation_only(draws: torch.Generator) -> None:
    plan, part = plan_of(), data(draws)[0]
    assert isinstance(plan.pipe.stages[0].releases[0].mechanism, AtClients)
    with pytest.raises(InvalidInput, match="secure aggregation only"):
        minimize(part, plan.pipe, L1Ball(1.0), steps=1, record=None)


def test_plans_that_secure_aggregation_cannot_hold_are_refused() -> None:
    with pytest.raises(InvalidInput, match="dropouts"):
        plan_of(dropouts=0.5)
    with pytest.raises(InvalidInput, match="dropouts"):
        plan_of(unit="record", n=60)


def test_a_secure_client_goes_on_in_another_process(draws: torch.Generator) -> None:
    plan = SecurePlan(clients=3, m=8, bound=1.0, noise_multiplier=1e-3)
    server, clients = SecureServer(plan, Ledger()), {k: SecureClient(plan, k) for k in range(3)}
    vectors = torch.randn(3, 8, generator=draws, dtype=torch.float64)
    vectors /= 2 * vectors.norm(dim=1, keepdim=True)

    def moved() -> None:
        for k, client in clients.items():
            clients[k] = SecureClient.from_bytes(plan, client.to_bytes())

    invitation = server.invitation()
    for client in clients.values():
        server.receive(client.keys(invitation))
    moved()
    roster = server.roster()
    for client in clients.values():
        server.receive(client.shares(roster))
    moved()
    for k, inbox in server.inboxes().items():
        server.receive(clients[k].masked(inbox, vectors[k]))
    moved()
    with pytest.raises(BadMessage, match="answered once"):
        SecureClient.from_bytes(plan, clients[0].to_bytes()).shares(roster)
    survivors = server.survivors()
    for client in clients.values():
        server.receive(client.reveal(survivors))
    assert torch.allclose(torch.from_numpy(server.value()), vectors.sum(0), atol=0.05)
