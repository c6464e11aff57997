"""What server and clients agree on: public lengths of sums, one plan, and no more clients than it has."""

import math
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch

from isthmus import CountSketch, InvalidInput, Logistic, Pipeline, Release, Stage, algorithms
from isthmus.core.pipeline import Promise
from isthmus.core.wire import Message
from isthmus.distributed.flower import Federation, LocalGrid, LocalSteps, NobodyAnswered, SketchStrategy, client_app
from isthmus.distributed.flower.federation import RECORD, _narrowed, _reach_of, _room, _shortened, answer
from isthmus.privacy import Clip, Gaussian, Poisson
from isthmus.privacy.clips import ClippedSum
from isthmus.privacy.sampling import FullBatch

D, N = 4, 60


def pipe_of(rate: float = 0.5, bound: float = 1.0, noise: float = 1.0, m: int = 3) -> Pipeline:
    release = Release(encode=CountSketch(m), clip=Clip(bound), mechanism=Gaussian(noise))
    return Pipeline([Stage(Poisson(rate, 10.0), [release])], step=lambda t: 1.0, promise=Promise(500.0, 1e-5))


def plan_of(recipe: Any = None, **more: Any) -> Federation:
    options = {"rounds": 2, "clients": 3, "n": N, "linear": True, **more}
    return Federation(pipe_of() if recipe is None else recipe, D, **options)


def part_of(draws: torch.Generator) -> Logistic:
    x = torch.randn(N // 3, D, generator=draws)
    return Logistic(x, (x[:, 0] > 0).long(), classes=[0, 1])


# ---------------------------------------------------------------- lengths


def test_two_clients_cannot_round_the_sum_of_a_third_away(draws: torch.Generator) -> None:
    """They send +-2^60 under right seals: what the third adds is still in the sum, to the last noise."""
    part = part_of(draws)
    recipe = algorithms.dp_gd(epsilon=1e7, delta=1e-5, clip=10.0, step=1.0, n="exact")
    plan = plan_of(recipe, rounds=1)
    inner = client_app(plan, lambda context: part)

    def outer(message: Any, context: Any) -> Any:
        reply, number = inner(message, context), context.node_config["partition-id"]
        if number != 1:
            huge = torch.tensor([(-1) ** (number // 2) * 2.0**60, 0, 0, 0])
            forged = Message({"gradient": ClippedSum(huge, 2, 1.0)}, 1.0)
            reply.content[RECORD]["answer"] = answer(forged, message.content[RECORD]["order"], False)
        return reply

    strategy = SketchStrategy(plan, wait=0.0)
    strategy.start(LocalGrid(outer, 3))
    due = -part.rows(torch.zeros(D)).sum()
    assert strategy.clients.traffic.rounds[0]["answered"] == 3 and float(due.norm()) > 1
    assert torch.allclose(strategy.found.x * N, due.to(strategy.found.x.dtype), atol=0.1)


def test_lengths_follow_from_public_numbers_and_the_bound_has_room_for_them() -> None:
    """The cast of one client and the additions of all, at lengths that every client is shortened to."""
    plan, sampler = plan_of(), Poisson(0.5, 10.0)
    reach = _reach_of(plan, sampler)
    assert reach == (16 + N, 3 * (16 + N))
    sent = _narrowed(Message({"g": ClippedSum(torch.full((4,), 1e6), 2, 1.0, dtype=torch.float32)}, 1.0), plan, sampler)
    value, bound = sent.values["g"].value, sent.values["g"].bound
    assert value.dtype == torch.float32 and float(value.double().norm()) == pytest.approx(reach[0], rel=1e-6)
    assert 1 + 2 * reach[0] * 2.0**-24 < bound < 1.01
    long = _narrowed(
        Message({"g": ClippedSum(torch.ones(4), 2, 1.0, dtype=torch.float32)}, 1.0), plan_of(n=10**6), sampler
    )
    assert long.values["g"].value.dtype == torch.float64  # a cast would cost more than 1 %
    assert long.values["g"].bound == 1 / (1 - _room(long.values["g"], *_reach_of(plan_of(n=10**6), sampler), 3)) > 1
    one = _reach_of(plan_of(unit="client", n=None, linear=False), FullBatch())
    assert one == (1.0, 3.0)
    with pytest.raises(InvalidInput, match="lower rate"):
        _narrowed(Message({"g": ClippedSum(torch.ones(4), 2, 1.0)}, 1.0), plan_of(n=10**16), sampler)
    coarse = Message({"g": ClippedSum(torch.ones(4), 2, 1.0, dtype=torch.float32)}, 1.0)
    with pytest.raises(InvalidInput, match="give torch.float32, which this client"):
        _narrowed(coarse, plan_of(n=10**6, dtype=torch.float64), sampler)


@pytest.mark.parametrize("ord", [1, 2, math.inf])
def test_shortening_moves_no_two_sums_further_apart(ord: float, draws: torch.Generator) -> None:
    far = 20 * torch.randn(200, 6, generator=draws, dtype=torch.float64)
    near = far + torch.randn(200, 6, generator=draws, dtype=torch.float64)
    for x, y in zip(far, near, strict=True):
        a, b = (_shortened(ClippedSum(each, ord, 1.0), 16.0).value for each in (x, y))
        assert torch.linalg.vector_norm(a - b, ord) <= torch.linalg.vector_norm(x - y, ord) * (1 + 1e-12)
        assert float(a.abs().max()) <= 16 * (1 + 1e-12)


# ---------------------------------------------------------------- the plan


OTHERS = {
    "rate": lambda: plan_of(pipe_of(rate=1.0)),
    "clip": lambda: plan_of(pipe_of(bound=2.0)),
    "noise": lambda: plan_of(pipe_of(noise=2.0)),
    "m": lambda: plan_of(pipe_of(m=2)),
    "n": lambda: plan_of(n=N + 1),
    "linear": lambda: plan_of(linear=False),
    "rounds": lambda: plan_of(rounds=3),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_client_with_another_plan_refuses(name: str, draws: torch.Generator) -> None:
    part, looked = part_of(draws), []
    app = client_app(OTHERS[name](), lambda context: looked.append(1) or part)
    strategy = SketchStrategy(plan_of(), wait=0.0, patience=1)
    with pytest.raises(NobodyAnswered, match="another plan"):
        strategy.start(LocalGrid(app, 3))
    assert not looked
    ((reason, count),) = strategy.clients.traffic.reasons.items()
    assert "another plan" in reason and count == 3


def test_equal_plans_have_one_digest_in_every_process() -> None:
    local = plan_of(unit="client", n=None, local=LocalSteps(2, 0.1))
    assert plan_of().digest == plan_of().digest != local.digest
    assert local.digest != replace(local, local=LocalSteps(3, 0.1)).digest
    made = (
        "from isthmus import algorithms; from isthmus.distributed.flower import Federation; "
        "recipe = algorithms.comp_dist_sgd(m=10, step=0.1, codec='qsgd', error_feedback=True); "
        "plan = Federation(recipe, 100, rounds=5, clients=3, n=60); "
    )
    here: dict[str, Any] = {}
    exec(made, here)
    process = subprocess.run(
        [sys.executable, "-c", made + "print(plan.digest)"],
        capture_output=True, text=True, check=True, env={**os.environ, "PYTHONHASHSEED": "7"},
    )  # fmt: skip
    assert process.stdout.strip() == here["plan"].digest


def test_a_model_that_is_not_linear_is_refused_where_the_plan_says_so(draws: torch.Generator) -> None:
    class Network(Logistic):
        linear = False

    part = part_of(draws)
    part.__class__ = Network
    plan, strategy = plan_of(), SketchStrategy(plan_of(), wait=0.0, patience=1)
    with pytest.raises(NobodyAnswered, match="give linear=False"):
        strategy.start(LocalGrid(client_app(plan, lambda context: part), 3))


def test_a_private_run_asks_no_more_clients_than_its_plan_has(draws: torch.Generator) -> None:
    part = part_of(draws)
    grid = LocalGrid(client_app(plan_of(), lambda context: part), 4)
    with pytest.raises(InvalidInput, match="4 are connected"):
        SketchStrategy(plan_of(), wait=0.0).start(grid)
    assert grid.down == 0
