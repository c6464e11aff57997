"""Every choice is complete: its recipe runs, and costs what was said."""

import json
import math
import pickle
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from cells import FREE, OBJECTIVES, PRIVATE, objective, rows, targets

from isthmus import InvalidInput, L1Ball, L2Ball, Simplex, minimize, plan

N, D = 200, 9
X, PUBLIC = rows(N, D), rows(30, D, 7)


def run(choice: Any, loss: str, x: Any, constraint: Any = None) -> Any:
    """The recipe on a small problem."""
    problem = objective(loss, x, targets(X, loss))
    public = (PUBLIC, targets(PUBLIC, loss))
    recipe = choice.recipe(public=public, constraint=constraint)
    return minimize(problem, recipe, constraint, steps=choice.rounds, record=None, progress=False)


def planned(loss: str, epsilon: float = 2.0, **facts: Any) -> Any:
    """All algorithms, a few rounds each, in closed-form accounting."""
    public = (PUBLIC, targets(PUBLIC, loss))
    names = list(PRIVATE) if math.isfinite(epsilon) else list(FREE)
    common = {"n": N, "d": D, "epsilon": epsilon, "loss": loss, "classes": 3 if loss == "softmax" else 2}
    return plan(**common, public=public, algorithms=names, rounds=4, batch_size=N, **facts)


@pytest.mark.parametrize("loss", OBJECTIVES)
def test_every_private_choice_runs_for_every_loss(loss: str) -> None:
    ranked = planned(loss)
    names = {choice.algorithm for choice in ranked.choices}
    assert names == {key.split(" ")[0] for key in PRIVATE} - {"dp_fw"}
    for choice in ranked.choices:
        result = run(choice, loss, X)
        assert result.privacy.epsilon <= 2.0 and bool(np.isfinite(result.x.numpy()).all()), choice.name
        if choice.algorithm == "dp_skgd":  # blocks differ by one: the largest is announced
            assert choice.bytes - 8 * choice.rounds <= result.bytes <= choice.bytes
            continue
        if choice.algorithm != "dp_svrg":  # its anchors come on top
            assert result.dims == choice.dims * choice.rounds, choice.name
        assert result.bytes == choice.bytes, choice.name


@pytest.mark.parametrize("constraint", [L1Ball(3.0), Simplex(), L2Ball(2.0)])
def test_every_private_choice_runs_over_a_set(constraint: Any) -> None:
    ranked = planned("logistic", constraint=constraint)
    assert ("dp_fw" in {choice.algorithm for choice in ranked.choices}) is not isinstance(constraint, L2Ball)
    for choice in ranked.choices:
        assert constraint.contains(run(choice, "logistic", X, constraint).x, tol=1e-6), choice.name


@pytest.mark.parametrize("loss", ["logistic", "softmax"])
def test_every_private_choice_runs_on_csr_rows(loss: str) -> None:
    for choice in planned(loss, sparse=True).choices:
        assert run(choice, loss, sp.csr_matrix(X)).privacy.epsilon <= 2.0


@pytest.mark.parametrize("loss", OBJECTIVES)
@pytest.mark.parametrize("constraint", [None, L1Ball(3.0)])
def test_every_free_choice_runs(loss: str, constraint: Any) -> None:
    ranked = planned(loss, math.inf, constraint=constraint)
    assert {choice.algorithm for choice in ranked.choices} == set(FREE) - ({"comp_fw"} if constraint is None else set())
    for choice in ranked.choices:
        result = run(choice, loss, X, constraint)
        assert result.privacy is None and choice.noise_multiplier is None and choice.noise_norm is None


def test_one_column_is_enough_for_what_does_not_compress() -> None:
    ranked = plan(n=50, d=1, epsilon=1.0, rounds=2, batch_size=50)
    assert {"dp_gd", "dp_sgd", "dp_skgd", "dp_cd"} <= {choice.algorithm for choice in ranked.choices}
    assert "nothing to compress" in ranked.refused["compressive_dp_sgd (gaussian)"]
    x = np.linspace(-1, 1, 50)[:, None]
    for choice in ranked.choices:
        problem = objective("logistic", x, np.where(x[:, 0] > 0, 1, -1))
        minimize(problem, choice.recipe(), steps=2, record=None, progress=False)


def test_what_the_caller_fixed_is_kept() -> None:
    ranked = plan(n=500, d=5, epsilon=1.0, clip=0.2, step=0.7, rounds=6, batch_size=500)
    assert {choice.rounds for choice in ranked.choices} == {6}
    for choice in ranked.choices:
        assert choice.arguments.get("step") == 0.7, choice.name
    assert ranked.choice("dp_sgd").arguments["clip"] == 0.2
    assert "leave step out" in ranked.refused["dp_gd (statistics bought)"]


def test_overrides_replace_planned_arguments_and_none_does_not() -> None:
    choice = plan(n=500, d=5, epsilon=1.0, algorithms=["dp_gd (plain)"]).best
    assert choice.recipe(clip=0.125, step=None).arguments["clip"] == 0.125
    assert choice.recipe(clip=None).arguments["clip"] == 0.5


def test_public_directions_need_public_rows_and_any_label_gives_the_same() -> None:
    choice = plan(n=N, d=D, epsilon=1.0, public=PUBLIC, algorithms=["pdp_sgd"], rounds=2, batch_size=N).best
    with pytest.raises(InvalidInput, match="public=None"):
        choice.recipe()
    assert choice.recipe(public=PUBLIC).arguments["k"] == choice.dims
    bare = plan(n=N, d=D, epsilon=1.0, loss="softmax", classes=3, public=PUBLIC, algorithms=["pdp_sgd"])
    assert "need labels" in bare.refused["pdp_sgd"]


def test_limits_are_kept_or_the_choice_is_refused() -> None:
    ranked = plan(n=50_000, d=40, epsilon=1.0, max_passes=5, max_dims=12, exact=False)
    assert ranked.choices
    for choice in ranked.choices:
        assert choice.passes <= 5 and choice.dims <= 12, choice.name
    assert "max_dims = 12" in ranked.refused["dp_sgd"]
    few = plan(n=50_000, d=40, epsilon=1.0, max_passes=2, exact=False)
    assert "max_passes = 2" in few.refused["dp_gd (statistics bought)"]


def test_names() -> None:
    ranked = plan(n=500, d=5, epsilon=1.0, algorithms=["dp_comp_gd", "sgd", "comp_dist_sgd"], rounds=3)
    assert [choice.algorithm for choice in ranked.choices] == ["dp_comp_gd"]
    assert ranked.best.recipe().name == "dp_comp_gd"
    assert "not private" in ranked.refused["sgd"] and "clients" in ranked.refused["comp_dist_sgd"]
    with pytest.raises(InvalidInput, match="not private"):
        ranked.choice("sgd")
    free = plan(n=500, d=5, epsilon=math.inf, algorithms=["dp_gd"])
    assert "finite epsilon" in free.refused["dp_gd"]
    with pytest.raises(InvalidInput, match="none of these can run here"):
        _ = free.best
    assert "by name" in plan(n=500, d=5, epsilon=1.0, exact=False).refused["dp_svrg"]
    twice = plan(n=500, d=5, epsilon=1.0, algorithms=["dp_gd", "dp_gd (plain)", "dp_gd"], exact=False)
    assert sorted(choice.name for choice in twice.choices) == sorted({choice.name for choice in twice.choices})


def test_a_plan_survives_pickle_and_json() -> None:
    ranked = plan(n=N, d=D, epsilon=1.0, public=PUBLIC, smoothness=np.arange(1, D + 1), exact=False)
    copy = pickle.loads(pickle.dumps(ranked))
    assert copy.to_json() == ranked.to_json()
    data = json.loads(ranked.to_json())
    assert [choice["name"] for choice in data["choices"]] == [choice.name for choice in ranked.choices]
    assert data["energy"]["chosen"] == ranked.choice("pdp_sgd").dims and data["facts"]["public"]["rows"] == 30
    assert len(data["energy"]["k"]) == len(data["energy"]["captured"])
    assert json.loads(plan(n=10, d=2, epsilon=math.inf).to_json())["facts"]["epsilon"] is None
