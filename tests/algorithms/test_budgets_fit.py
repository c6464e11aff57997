"""What a recipe charges fits into its own budget to the last digit, and uses it up where its noise is calibrated.

No data: a recipe is bound to public facts, and the ledger that a run would have is charged as a run charges it.
"""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from isthmus import InvalidInput, L1Ball, Simplex, Whole, algorithms
from isthmus.algorithms.purchases import ClassCounts, Ranges, buying
from isthmus.base.space import Space
from isthmus.core.minimize import Binding, PrivateSide, Recipe
from isthmus.penalties import NoPenalty
from isthmus.privacy import AdaptiveClip, Ledger
from isthmus.privacy.ledger import BudgetExceeded

N, D = 5000, 12
COMMON: dict[str, Any] = {"clip": 0.5, "n": "exact"}
STEP = {**COMMON, "step": 0.1}
CODES = {**STEP, "p": 3, "kappa": 1}
PUBLIC = (torch.ones(20, D, dtype=torch.float64), torch.ones(20, dtype=torch.float64))
Make = Callable[..., Recipe]

CALIBRATED: dict[str, Make] = {
    "dp_gd": lambda **b: algorithms.dp_gd(**STEP, **b),
    "adaptive": lambda **b: algorithms.dp_gd(**{**STEP, "clip": AdaptiveClip(0.5)}, **b),
    "replace-one": lambda **b: algorithms.dp_sgd(**STEP, **b, batch_size=None, adjacency="replace-one"),
    "estimated n": lambda **b: algorithms.dp_sgd(**{**STEP, "n": 4000}, **b, batch_size=None),
    "moments": lambda **b: algorithms.dp_gd(**COMMON, **b, step="auto", scale="moments"),
    "statistics": lambda **b: algorithms.dp_gd(**COMMON, **b, precondition=True),
    "priv_sgd": lambda **b: algorithms.priv_sgd(**STEP, **b, m=2),
    "dp_comp_gd": lambda **b: algorithms.dp_comp_gd(**STEP, **b, m=2),
    "compressive": lambda **b: algorithms.compressive_dp_sgd(**CODES, **b),
    "selection": lambda **b: algorithms.compressive_dp_sgd(**CODES, **b, variant="selection"),
    "dense": lambda **b: algorithms.compressive_dp_sgd(**STEP, **b, variant="dense"),
    "dp_subspace_gd": lambda **b: algorithms.dp_subspace_gd(**COMMON, **b, k=2),
    "dp_mirror_descent": lambda **b: algorithms.dp_mirror_descent(**STEP, **b),
    "dp_skgd": lambda **b: algorithms.dp_skgd(**COMMON, **b, smoothness=1.0, blocks=2),
    "dp_cd": lambda **b: algorithms.dp_cd(**COMMON, **b, smoothness=1.0),
    "dp_svrg": lambda **b: algorithms.dp_svrg(**STEP, **b, inner=7, batch_size=None),
    "dp_fw": lambda **b: algorithms.dp_fw(**COMMON, **b),
    "dp_fw, replace-one": lambda **b: algorithms.dp_fw(**COMMON, **b, adjacency="replace-one"),
    "purchases": lambda **b: buying(algorithms.dp_gd(**COMMON, **b, step="auto"), [Ranges(), ClassCounts()]),
}
SAMPLED: dict[str, Make] = {
    "dp_sgd": lambda **b: algorithms.dp_sgd(**STEP, **b, batch_size=100),
    "dp_comp_minibatch": lambda **b: algorithms.dp_comp_minibatch(**STEP, **b, m=2, batch_size=100),
    "dp_svrg": lambda **b: algorithms.dp_svrg(**STEP, **b, inner=7, batch_size=100),
    "pdp_sgd": lambda **b: algorithms.pdp_sgd(**STEP, **b, k=2, data=PUBLIC, batch_size=100),
    "rpdp_sgd": lambda **b: algorithms.rpdp_sgd(**STEP, **b, k=2, batch_size=100),
    "laplace": lambda **b: algorithms.compressive_dp_sgd(**CODES, **b, variant="laplace", batch_size=100),
    "purchases": lambda **b: buying(algorithms.dp_sgd(**STEP, **b, batch_size=100), [Ranges()]),
}
PRINTED: dict[str, Make] = {
    "compressive": lambda **b: algorithms.compressive_dp_sgd(**CODES, **b, as_published=True),
    "dense": lambda **b: algorithms.compressive_dp_sgd(**STEP, **b, variant="dense", as_published=True),
    "dp_skgd": lambda **b: algorithms.dp_skgd(**COMMON, **b, smoothness=1.0, blocks=2, as_published=True),
}
SETS = {"dp_mirror_descent": Simplex(), "dp_fw": L1Ball(1.0), "dp_fw, replace-one": L1Ball(1.0)}


def charged(name: str, make: Make, epsilon: float, delta: float, steps: int) -> float:
    """The share of its budget that a run of so many steps charges to a ledger that allows no more than the budget."""
    binding = Binding(SETS.get(name, Whole()), NoPenalty(), Space.flat(D), N, steps, None)
    pipe = make(epsilon=epsilon, delta=delta).bind(binding)
    assert pipe.promise is not None
    assert (pipe.promise.epsilon, pipe.promise.delta) == (epsilon, delta)
    ledger = Ledger(budget=(epsilon, delta), adjacency=pipe.promise.adjacency)
    side = PrivateSide(pipe.promise, ledger)
    side.require(pipe, steps)
    for item in pipe.before:
        ledger.pay("before", item.event(pipe.promise.adjacency))
    with side.open(pipe, 0, steps) as run:
        for t in range(steps):
            for stage in pipe.stages:
                if t % stage.every == 0:
                    run.charge(stage.name, t)
    return ledger.spent() / epsilon


EPSILONS = st.floats(-3, 8).map(lambda power: 10.0**power)
DELTAS = st.floats(-12, -2).map(lambda power: 10.0**power)
STEPS = st.integers(1, 1000)
QUICK = settings(max_examples=6, deadline=None, derandomize=True, database=None)


@pytest.mark.parametrize("name", CALIBRATED)
@QUICK
@given(epsilon=EPSILONS, delta=DELTAS, steps=STEPS)
@example(epsilon=1e-3, delta=1e-5, steps=1000)
@example(epsilon=1e4, delta=1e-5, steps=7)
@example(epsilon=1e8, delta=1e-10, steps=97)
def test_calibrated_noise_uses_the_budget_and_no_more(name: str, epsilon: float, delta: float, steps: int) -> None:
    assert 1 - 1e-3 <= charged(name, CALIBRATED[name], epsilon, delta, steps) <= 1


@pytest.mark.parametrize("name", SAMPLED)
@pytest.mark.parametrize(("epsilon", "steps"), [(1e-2, 97), (7.0, 331)])
def test_sampled_rounds_use_the_budget_and_no_more(name: str, epsilon: float, steps: int) -> None:
    assert 1 - 1e-3 <= charged(name, SAMPLED[name], epsilon, 1e-5, steps) <= 1


@pytest.mark.parametrize("name", PRINTED)
@pytest.mark.parametrize(("epsilon", "steps"), [(1e-3, 7), (1.0, 331), (1e4, 7), (1e6, 100), (1e8, 3)])
def test_printed_noise_fits_or_is_refused_before_anything_is_looked_at(name: str, epsilon: float, steps: int) -> None:
    if name == "dp_skgd" and epsilon > 1e3:
        with pytest.raises(InvalidInput, match="as_published: the paper's noise gives epsilon"):
            charged(name, PRINTED[name], epsilon, 1e-5, steps)
        return
    assert 0 < charged(name, PRINTED[name], epsilon, 1e-5, steps) <= 1


def test_the_laplace_noise_of_a_paper_spends_all_of_a_large_budget() -> None:
    assert charged("compressive", PRINTED["compressive"], 1e4, 1e-5, 7) == pytest.approx(1, rel=1e-11)


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_a_ledger_that_was_asked_for_a_plan_holds_every_part_of_it(adjacency: str) -> None:
    """Bounds of fewer rounds are larger now and then, their grid being another one."""
    event = {"event": "Laplace", "noise_multiplier": 0.25}
    whole = Ledger(adjacency=adjacency)
    whole.pay("all", event, 1500)
    epsilon, plan = whole.spent(1e-5), {"event": "SelfComposed", "inner": event, "count": 1500}
    ledger = Ledger(budget=(epsilon, 1e-5), adjacency=adjacency)
    ledger.require(plan)
    with ledger.run({"main": event}) as run:
        for t in range(1500):
            run.charge("main", t)
    assert ledger.spent() == epsilon
    with pytest.raises(BudgetExceeded, match="Nothing was released"):
        Ledger(budget=(math.nextafter(epsilon, 0), 1e-5), adjacency=adjacency).require(plan)
