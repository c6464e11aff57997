"""Runs over real Flower messages in one process: equal to clients without Flower, whatever is lost on the way."""

from typing import Any

import pytest
import torch
from refusals import refuses
from torch import Tensor

from isthmus import Clients, Coordinates, CountSketch, InvalidInput, L1Ball, Logistic, Whole, algorithms, minimize
from isthmus.distributed.flower import (
    Federation,
    FlowerClients,
    LocalGrid,
    LocalSteps,
    NobodyAnswered,
    SketchStrategy,
    client_app,
    sketch_mod,
    space_of,
    to_arrays,
)
from isthmus.distributed.flower.federation import RECORD, flower

D, CLIENTS, ROUNDS = 40, 3, 5
BALL = L1Ball(4.0)


def data(draws: torch.Generator) -> tuple[list[Logistic], Logistic]:
    x = torch.randn(60, D, generator=draws, dtype=torch.float64)
    y = (x[:, 0] + x[:, 1] > 0).long()
    parts = [slice(0, 15), slice(15, 35), slice(35, 60)]
    return [Logistic(x[part], y[part], classes=[0, 1]) for part in parts], Logistic(x, y, classes=[0, 1])


def plan_of(recipe: Any, **more: Any) -> Federation:
    facts = {"rounds": ROUNDS, "clients": CLIENTS, "n": 60, "constraint": BALL, "dtype": torch.float64, "linear": True}
    return Federation(recipe, D, **{**facts, **more})


def app_of(plan: Federation, parts: list[Logistic]) -> Any:
    return client_app(plan, lambda context: parts[context.node_config["partition-id"]])


def trained(plan: Federation, parts: list[Logistic], between: Any = None, **more: Any) -> SketchStrategy:
    strategy = SketchStrategy(plan, wait=0.0, **more)
    strategy.start(LocalGrid(app_of(plan, parts), CLIENTS, between=between))
    return strategy


RECIPES = {
    "sketch": {"m": 10, "step": 0.5},
    "batches": {"m": 10, "step": 0.5, "batch_size": 4},
    "codec": {"m": 10, "step": 0.5, "codec": "qsgd"},
    "memory": {"m": 10, "step": 0.5, "codec": "qsgd", "error_feedback": True},
    "some clients": {"m": 10, "step": 0.5, "clients_per_round": 2},
    "memory at the server": {"m": 20, "step": 0.5, "heavy": 4, "refresh": 3, "codec": "int8"},
    "leaves nothing out": {"m": D, "step": 0.5, "codec": "int8"},
}


@pytest.mark.parametrize("name", RECIPES)
def test_a_run_over_flower_is_the_run_in_one_process(name: str, draws: torch.Generator) -> None:
    parts, whole = data(draws)
    recipe = algorithms.comp_dist_sgd(**RECIPES[name])
    result = trained(plan_of(recipe), parts).found
    expected = minimize(whole, recipe, BALL, steps=ROUNDS, clients=parts, record=None)
    assert result is not None and torch.equal(result.x, expected.x) and result.dims == expected.dims


def test_changes_alone_may_be_sent_down(draws: torch.Generator) -> None:
    parts, _ = data(draws)
    recipe = algorithms.comp_dist_sgd(m=2, step=0.5, sketch=Coordinates)
    plain, short = (trained(plan_of(recipe, down=down, constraint=Whole()), parts) for down in ("w", "update"))
    assert torch.equal(plain.found.x, short.found.x)
    assert short.clients.traffic.down < plain.clients.traffic.down


def test_a_client_that_lost_its_iterate_is_sent_it_again(draws: torch.Generator) -> None:
    parts, _ = data(draws)
    plan = plan_of(algorithms.comp_dist_sgd(m=2, step=0.5, sketch=Coordinates), down="update", constraint=Whole())
    grid = LocalGrid(app_of(plan, parts), CLIENTS)

    def forgets(number: int, reply: Any) -> Any:
        if reply.metadata.group_id == "1" and number == 1:
            grid.contexts[1001].state = flower().app.RecordDict()
        return reply

    grid.between = forgets
    strategy = SketchStrategy(plan, wait=0.0)
    strategy.start(grid)
    assert [each["answered"] for each in strategy.clients.traffic.rounds] == [3, 3, 2, 3, 3]
    assert any("does not have that one" in why for why in strategy.clients.traffic.reasons)


def test_the_lost_the_late_and_the_corrupt_add_nothing(draws: torch.Generator) -> None:
    """Clients 1 and 2 spoil every answer: the run is that of client 0 alone."""
    parts, _ = data(draws)
    recipe = algorithms.comp_dist_sgd(m=10, step=0.5, codec="qsgd")

    def between(number: int, reply: Any) -> Any:
        if number == 2:
            return None
        if number == 1:
            told = bytearray(reply.content[RECORD]["answer"])
            told[-3] ^= 4
            reply.content[RECORD]["answer"] = bytes(told)
        return reply

    strategy = trained(plan_of(recipe), parts, between)
    alone = minimize(parts[0], recipe, BALL, steps=ROUNDS, clients=[parts[0]], record=None)
    assert torch.equal(strategy.found.x, alone.x)
    told = strategy.clients.traffic.rounds[-1]
    assert (told["asked"], told["answered"], told["late"], told["failed"]) == (3, 1, 1, 1)


def test_a_run_that_nobody_answers_is_given_up(draws: torch.Generator) -> None:
    parts, _ = data(draws)
    plan = plan_of(algorithms.comp_dist_sgd(m=10, step=0.5))

    def fails(context: Any) -> Any:
        raise OSError("the disk is gone")

    strategy = SketchStrategy(plan, wait=0.0, patience=2)
    with pytest.raises(NobodyAnswered, match="2 rounds in a row .*the disk is gone"):
        strategy.start(LocalGrid(client_app(plan, fails), CLIENTS))
    assert len(strategy.clients.traffic.rounds) == 2


def test_every_record_counts_the_same_or_every_client_does(draws: torch.Generator) -> None:
    parts, whole = data(draws)
    recipe = algorithms.comp_dist_sgd(m=10, step=0.5)
    result, same = trained(plan_of(recipe), parts).found, trained(plan_of(recipe, uniform=True), parts).found
    alone = minimize(whole, algorithms.comp_gd(m=10, step=0.5), BALL, steps=ROUNDS, record=None)
    means = minimize(whole, recipe, BALL, steps=ROUNDS, clients=Clients(parts, uniform=True), record=None)
    assert torch.allclose(result.x, alone.x, atol=1e-12)
    assert torch.equal(same.x, means.x) and not torch.allclose(same.x, alone.x, atol=1e-6)


def test_uniform_is_refused_where_it_would_change_nothing() -> None:
    with pytest.raises(InvalidInput, match="uniform=False.*a client is one term"):
        plan_of(algorithms.comp_dist_sgd(m=10, step=0.5), unit="client", uniform=False)
    recipe = algorithms.dp_gd(epsilon=2.0, delta=1e-5, clip=1.0, step=0.5, n="exact")
    with pytest.raises(InvalidInput, match="uniform=True.*a private run adds sums"):
        plan_of(recipe, uniform=True).pipe  # noqa: B018


def test_local_steps_at_rate_one_are_federated_averaging(draws: torch.Generator) -> None:
    parts, _ = data(draws)
    local = LocalSteps(3, 0.2)
    recipe = algorithms.comp_dist_sgd(m=1.0, step=1.0, sketch=lambda m: CountSketch(D))
    plan = plan_of(recipe, unit="client", n=None, local=local, rounds=2)
    result = trained(plan, parts).found

    def averaged(w: Tensor) -> Tensor:
        ends = []
        for part in parts:
            v = w
            for _ in range(3):
                v = v - 0.2 * part.gradient(v)
            ends.append(v)
        return BALL.project(torch.stack(ends).mean(0))

    assert torch.allclose(result.x, averaged(averaged(torch.zeros(D, dtype=torch.float64))), atol=1e-6)


def test_a_mod_sends_the_sketch_of_what_an_app_of_ones_own_changes(draws: torch.Generator) -> None:
    """The app knows nothing of sketches: it takes arrays and a config, and answers with arrays."""
    app, made = flower().app, flower().clientapp
    first = app.ArrayRecord({"weight": app.Array(torch.zeros(2, 3).numpy()), "bias": app.Array(torch.zeros(2).numpy())})
    recipe = algorithms.comp_dist_sgd(m=8, step=1.0, sketch=lambda m: CountSketch(m))
    plan = Federation(recipe, space_of(first), rounds=2, clients=CLIENTS, unit="client")
    own = made.ClientApp(mods=[sketch_mod(plan)])

    @own.train()
    def train(message: Any, context: Any) -> Any:
        number = context.node_config["partition-id"]
        arrays = {name: app.Array(each.numpy() + number) for name, each in message.content["arrays"].items()}
        content = app.RecordDict({"arrays": app.ArrayRecord(arrays), "metrics": app.MetricRecord({"loss": 1.0})})
        return app.Message(content, reply_to=message)

    result = SketchStrategy(plan, wait=0.0).start(LocalGrid(own, CLIENTS), first)
    assert [array.shape for array in result.arrays.values()] == [(2, 3), (2,)]
    for array in result.arrays.values():
        assert torch.allclose(torch.from_numpy(array.numpy()), torch.tensor(2.0))  # the mean of 0, 1, 2, twice


def test_the_strategy_is_one_of_flowers(draws: torch.Generator) -> None:
    parts, _ = data(draws)
    strategy = SketchStrategy(plan_of(algorithms.comp_dist_sgd(m=10, step=0.5)), wait=0.0)
    assert isinstance(strategy, flower().strategy.Strategy)
    seen: list[int] = []

    def evaluate(number: int, arrays: Any) -> Any:
        seen.append(number)
        return flower().app.MetricRecord({"zeros": float((arrays["w"].numpy() == 0).mean())})

    grid = LocalGrid(app_of(strategy.plan, parts), CLIENTS)
    assert isinstance(grid, flower().serverapp.Grid)
    result = strategy.start(grid, to_arrays(torch.zeros(D).double(), strategy.plan.whole), evaluate_fn=evaluate)
    assert seen == [0, 1, 2, 3, 4, 5] and result.evaluate_metrics_serverapp[0]["zeros"] == 1.0
    assert result.train_metrics_clientapp[ROUNDS]["answered"] == CLIENTS
    with pytest.raises(InvalidInput, match="call start"):
        strategy.configure_train(1, None, None, grid)


test_plans_that_make_no_sense_are_refused = refuses(
    ({"unit": "person"}, "unit"),
    ({"n": None}, "give the number of records of all clients"),
    ({"local": LocalSteps(2, 0.1)}, 'give unit="client"'),
    ({"dropouts": 0.1}, "dropouts"),
    ({"down": "sideways"}, "down"),
    by=lambda change: plan_of(algorithms.comp_dist_sgd(m=10, step=0.5), **change),
)


def test_rounds_of_another_plan_and_records_at_the_server_are_refused(draws: torch.Generator) -> None:
    parts, whole = data(draws)
    plan = plan_of(algorithms.comp_dist_sgd(m=10, step=0.5))
    grid = LocalGrid(app_of(plan, parts), CLIENTS)
    with pytest.raises(InvalidInput, match="give 5, the number of rounds of the plan"):
        SketchStrategy(plan).start(grid, num_rounds=7)
    with pytest.raises(InvalidInput, match="give plan.problem as the objective"):
        minimize(whole, plan.pipe, BALL, steps=2, clients=FlowerClients(grid, plan))
    assert grid.down == 0
