"""Secure aggregation over Flower: the server sees noisy totals, whoever is lost, and the ledger is charged first."""

from typing import Any

import pytest
import torch

from isthmus import CountSketch, InvalidInput, L1Ball, Logistic, Pipeline, Release, Stage, minimize
from isthmus.core.pipeline import Promise
from isthmus.distributed.flower import Federation, FlowerClients, LocalGrid, NobodyAnswered, SketchStrategy, client_app
from isthmus.distributed.flower.client import _secure_step, cost
from isthmus.distributed.flower.federation import RECORD, _AtClients, flower
from isthmus.distributed.secagg import BadMessage, SecurePlan, SecureServer
from isthmus.privacy import BudgetExceeded, Clip, Gaussian, Ledger, Poisson, SecretSource
from isthmus.privacy.event_json import SkellamDpEvent
from isthmus.privacy.sampling import FullBatch

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


def grid_of(plan: Federation, parts: list[Logistic], between: Any = None, lost: Any = None) -> LocalGrid:
    """`lost(number, step)` says whether the reply of a client to a step never comes."""
    if lost is not None:
        between = lambda number, reply: None if lost(number, reply.metadata.group_id) else reply  # noqa: E731
    return LocalGrid(client_app(plan, lambda context: parts[context.node_config["partition-id"]]), M, between=between)


def run(plan: Federation, grid: LocalGrid, **more: Any) -> SketchStrategy:
    strategy = SketchStrategy(plan, wait=0.0, **more)
    strategy.start(grid)
    return strategy


@pytest.mark.parametrize("gone", [None, 4])
def test_with_little_noise_it_is_the_run_without_secure_aggregation(gone: int | None, draws: torch.Generator) -> None:
    """Also where one of six is lost when its vector is due: the total is that of five, over the public divisor."""
    parts, quiet = data(draws), pipe_of(1e-4, cost=1e9)
    plan, central = plan_of(quiet), plan_of(quiet, dropouts=None)
    lost = lambda number, step: number == gone and step not in ("keys", "letters")  # noqa: E731
    found, other = (run(each, grid_of(each, parts, lost=lost)).found.x for each in (plan, central))
    assert torch.allclose(found, other, atol=2e-3) and other.norm() > 0.05


@pytest.mark.parametrize("moment", ["keys", "letters"])
def test_a_run_that_too_few_clients_join_is_given_up_and_costs_nothing(moment: str, draws: torch.Generator) -> None:
    plan, ledger = plan_of(), Ledger(budget=(60.0, 1e-5))
    strategy = SketchStrategy(plan, wait=0.0, ledger=ledger, patience=2)
    with pytest.raises(NobodyAnswered, match="2 attempts in a row.*Only 4 of 6 .*nothing was charged.*dropouts=0.2"):
        strategy.start(grid_of(plan, data(draws), lost=lambda number, step: number < 2 and step == moment))
    assert ledger.rounds() == {} and ledger.spent() == 0 and strategy.found is None


def test_a_round_is_tried_again_with_those_who_are_there_then(draws: torch.Generator) -> None:
    """Two of six are away when the first keys are due, and are back: the run is made, and charged for its rounds."""
    plan, ledger, replies = plan_of(), Ledger(budget=(60.0, 1e-5)), []

    def lost(number: int, step: str) -> bool:
        replies.append(step)
        return number < 2 and len(replies) <= M

    strategy = run(plan, grid_of(plan, data(draws), lost=lost), ledger=ledger)
    assert ledger.rounds() == {"main": ROUNDS} and strategy.found.x.any()
    assert [each["answered"] for each in strategy.clients.traffic.rounds] == [0, 1, 1]
    assert replies.count("vector") == M * ROUNDS  # the first attempt has asked nobody for one


def test_rounds_that_too_few_vectors_come_in_are_paid_for_and_end_the_run(draws: torch.Generator) -> None:
    plan, ledger = plan_of(), Ledger(budget=(60.0, 1e-5))
    words = "Only 4 of 6 clients have sent their vectors.*charge for the round is kept"
    with pytest.raises(NobodyAnswered, match=words):
        run(plan, grid_of(plan, data(draws), lost=lambda number, step: number < 2 and step == "vector"), ledger=ledger)
    assert ledger.rounds() == {"main": ROUNDS}


def test_one_round_below_the_threshold_moves_nothing_and_is_paid_for(draws: torch.Generator) -> None:
    plan, ledger, steps, points = plan_of(), Ledger(budget=(60.0, 1e-5)), [], []

    def lost(number: int, step: str) -> bool:
        steps.append(step)
        return number < 2 and step == "vector" and steps.count("vector") <= M

    grid = grid_of(plan, data(draws), lost=lost)
    minimize(
        plan.problem, plan.pipe, plan.constraint, steps=ROUNDS, ledger=ledger, record=1, progress=False,
        clients=FlowerClients(grid, plan, wait=0.0), callbacks=[lambda _, state: points.append(float(state.w.norm()))],
    )  # fmt: skip
    assert ledger.rounds() == {"main": ROUNDS} and points[0] == 0 and points[1] > 0


def test_the_ledger_is_charged_before_a_vector_is_asked_for(draws: torch.Generator) -> None:
    plan, charged = plan_of(), {"keys": [], "letters": [], "vector": [], "shares": []}
    ledger = Ledger(budget=(60.0, 1e-5))

    def between(number: int, reply: Any) -> Any:
        charged[reply.metadata.group_id].append(ledger.rounds().get("main", 0))
        return reply

    run(plan, grid_of(plan, data(draws), between), ledger=ledger)
    assert charged["keys"] == charged["letters"] == [0] * M + [1] * M
    assert charged["vector"] == charged["shares"] == [1] * M + [2] * M
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
    ledger = Ledger(budget=(60.0, 1e-5))
    with pytest.raises(NobodyAnswered, match="begin a new plan"):
        run(plan, grid, ledger=ledger)
    assert ledger.rounds() == {}


@pytest.mark.parametrize("dropouts", [0.2, None])
def test_a_clients_own_ledger_holds_over_new_runs(
    dropouts: float | None, draws: torch.Generator, tmp_path: Any
) -> None:
    """A new run brings new contexts; the files of the clients remain, and they pay for their own plan and no more."""
    plan, parts = plan_of(dropouts=dropouts), data(draws)
    epsilon = plan.insiders().epsilon

    def own(context: Any) -> Ledger:
        return Ledger(tmp_path / f"{context.node_config['partition-id']}.ledger", budget=(epsilon * 1.001, 1e-5))

    app = client_app(plan, lambda context: parts[context.node_config["partition-id"]], ledger=own)
    run(plan, LocalGrid(app, M))
    assert all(Ledger(tmp_path / f"{k}.ledger").rounds() == {"main": ROUNDS} for k in range(M))
    ledger, again = Ledger(budget=(60.0, 1e-5)), LocalGrid(app, M)
    with pytest.raises(NobodyAnswered, match="Nothing was released"):
        run(plan, again, ledger=ledger)
    assert all(Ledger(tmp_path / f"{k}.ledger").rounds() == {"main": ROUNDS} for k in range(M))
    if dropouts is not None:
        assert ledger.rounds() == {}


def test_the_statement_says_that_other_runs_are_not_in_it() -> None:
    assert "only a ledger of its own (client_app(ledger=))" in plan_of().insiders().words()


def test_noise_of_clients_is_released_by_secure_aggregation_only(draws: torch.Generator) -> None:
    plan, part = plan_of(), data(draws)[0]
    assert isinstance(plan.pipe.stages[0].releases[0].mechanism, _AtClients)
    with pytest.raises(InvalidInput, match="secure aggregation only"):
        minimize(part, plan.pipe, L1Ball(1.0), steps=1, record=None)


def test_plans_that_secure_aggregation_cannot_hold_are_refused() -> None:
    with pytest.raises(InvalidInput, match="dropouts"):
        plan_of(dropouts=0.5)


# ---------------------------------------------------------------- a hostile server


class Site:
    """Three clients behind `_secure_step`, each with a state that lasts from message to message."""

    def __init__(self, rounds: int) -> None:
        self.plan, self.rounds = SecurePlan(clients=3, m=8, bound=1.0, noise_multiplier=1.0), rounds
        self.states = [flower().app.RecordDict() for _ in range(3)]
        self.made: list[int] = []

    def vector(self, place: int) -> torch.Tensor:
        self.made.append(place)
        return torch.zeros(8, dtype=torch.float64)

    def ask(self, place: int, step: str, data: bytes, index: int | None = None) -> bytes:
        config = {"step": step, "data": data, "index": place if index is None else index}
        vector = lambda: self.vector(place)  # noqa: E731
        return _secure_step(config, self.states[place], self.plan, self.rounds, vector, SecretSource())

    def invited(self) -> tuple[SecureServer, bytes]:
        server = SecureServer(self.plan, Ledger())
        invitation = server.invitation()
        for place in range(3):
            server.receive(self.ask(place, "keys", invitation))
        return server, invitation

    def until_vectors(self) -> tuple[SecureServer, dict[int, bytes]]:
        server, self.invitation = self.invited()
        roster = server.roster()
        for place in range(3):
            server.receive(self.ask(place, "letters", roster))
        return server, server.inboxes()


def test_a_replayed_step_gets_no_second_answer_from_a_client_that_is_a_new_process_each_time() -> None:
    site = Site(rounds=5)
    server, inboxes = site.until_vectors()
    for place in range(3):
        server.receive(site.ask(place, "vector", inboxes[place]))
    for step, data in (("keys", site.invitation), ("vector", inboxes[0])):
        with pytest.raises(BadMessage, match="answered once"):
            site.ask(0, step, data)
    assert site.made == [0, 1, 2]
    survivors = server.survivors()
    site.ask(0, "shares", survivors)
    for list_again in (survivors, survivors[:-1] + bytes([0b011])):
        with pytest.raises(BadMessage, match="answered once"):
            site.ask(0, "shares", list_again)


def test_steps_out_of_their_order_and_of_an_earlier_round_are_refused() -> None:
    site = Site(rounds=5)
    with pytest.raises(InvalidInput, match="invite the client first"):
        site.ask(0, "vector", b"")
    server, inboxes = site.until_vectors()
    with pytest.raises(BadMessage, match="SURVIVORS came where INBOX was due"):
        site.ask(0, "shares", b"")
    site.invited()  # a second invitation in the middle of a round: the first one is forgotten
    with pytest.raises(BadMessage, match="INBOX came where ROSTER was due"):
        site.ask(0, "vector", inboxes[0])
    assert site.made == []


def test_the_same_round_again_counts_and_the_last_vector_is_the_last() -> None:
    """The same round asked for twice is two rounds for the client: of a plan of two it then answers no third."""
    site = Site(rounds=2)
    for _ in range(2):
        server, inboxes = site.until_vectors()
        for place in range(3):
            server.receive(site.ask(place, "vector", inboxes[place]))
    with pytest.raises(InvalidInput, match="begin a new plan"):
        site.invited()
    assert len(site.made) == 6


def test_an_altered_message_makes_a_client_send_nothing() -> None:
    site = Site(rounds=1)
    server, inboxes = site.until_vectors()
    broken = inboxes[0][:-1] + bytes([inboxes[0][-1] ^ 1])
    with pytest.raises(BadMessage, match="The letter of client 2 is not what it sealed"):
        site.ask(0, "vector", broken)
    server.receive(site.ask(0, "vector", inboxes[0]))  # one damaged on the way is no loss


class Twice(LocalGrid):
    """A server's grid that delivers every message a second time."""

    again: list[Any]

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Any]:
        messages = list(messages)
        replies = super().send_and_receive(messages)
        self.again = [*getattr(self, "again", []), *(self._answered(message) for message in messages)]
        return replies


class Wider(Federation):
    """A server's plan of vectors that are one number longer than its clients'."""

    def secure(self, stage: Stage, m: int, bound: float) -> SecurePlan:
        return super().secure(stage, m + 1, bound)


def test_replays_and_vectors_of_another_size_cost_a_clients_ledger_nothing(draws: torch.Generator) -> None:
    plan, parts, own = plan_of(), data(draws), Ledger(budget=(1e3, 1e-5))
    app = client_app(plan, lambda context: parts[context.node_config["partition-id"]], ledger=lambda context: own)
    wider = Wider(pipe_of(), D, ROUNDS, M, unit="client", dtype=torch.float64, dropouts=0.2)
    with pytest.raises(NobodyAnswered, match="vector.shape"):
        run(wider, LocalGrid(app, M))
    assert wider.digest == plan.digest and own.rounds() == {}
    grid = Twice(app, M)
    assert run(plan, grid).found.x.any()
    assert own.rounds() == {"main": M * ROUNDS}
    assert len(grid.again) == 4 * M * ROUNDS and all(reply.has_error() for reply in grid.again)


def test_an_answer_costs_a_client_its_own_coin_and_never_the_servers() -> None:
    """A coin that the client has tossed hides it from the server; one that the server has tossed does not."""
    hidden, shown = plan_of(pipe_of(rate=0.5)), plan_of(pipe_of(rate=0.5), dropouts=None)
    assert cost(hidden, "main") == Poisson(0.5).event(SkellamDpEvent(1.0))
    assert cost(shown, "main") == Gaussian(1.0).event()
