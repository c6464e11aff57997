"""The rules: which one speaks where, and that what it picks does win there."""

import inspect
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cells import FILLINGS, OBJECTIVES, few_coefficients, objective, unbalanced, uneven_columns

from isthmus import L1Ball, L2Ball, Subspace, minimize
from isthmus.algorithms.frank_wolfe import ball_bound, vertex_bound
from isthmus.algorithms.suggest import Facts
from isthmus.objectives.linear import known_losses
from isthmus.planner import RULES, plan

INF = float("inf")
DOCS = Path(__file__).parents[2] / "docs" / "planner.md"
TOPICS = {"n": 8800, "d": 10_000, "sparse": True, "loss": "softmax", "classes": 46}
FREE = {"n": 8000, "d": 60, "epsilon": INF}
UNEVEN = {"n": 8000, "d": 60, "epsilon": 1.0, "smoothness": np.logspace(0, -4, 60)}


def ranked_words(n: int, d: int) -> dict[str, Any]:
    """A text whose columns are known by how often they occur."""
    return {"n": n, "d": d, "sparse": True, "smoothness": np.arange(d, 0, -1)}


PICKED = [
    # prepared descent, by n mu and the number of columns
    ({"n": 15_000, "d": 9, "epsilon": 0.5, "loss": "squared"}, "dp_gd (shapes and statistics bought)"),
    ({"n": 32_000, "d": 89, "epsilon": 0.1, "loss": "squared"}, "dp_gd (shapes and step bought)"),
    ({"n": 32_000, "d": 89, "epsilon": 0.5, "loss": "squared"}, "dp_gd (shapes and statistics bought)"),
    ({"n": 7300, "d": 106, "epsilon": 3.0, "loss": "squared"}, "dp_gd (shapes and step bought)"),
    ({"n": 32_000, "d": 89, "epsilon": 0.1, "loss": "squared", "ranged": False}, "dp_gd (moments and step bought)"),
    ({"n": 10_000, "d": 9, "epsilon": 0.1, "loss": "squared", "ranged": False}, "dp_gd (statistics bought)"),
    ({"n": 1500, "d": 89, "epsilon": 1.0, "loss": "squared"}, "dp_gd (step bought)"),
    ({"n": 10_000, "d": 785, "epsilon": 0.5, "loss": "softmax", "classes": 10}, "dp_gd (columns and step bought)"),
    ({"n": 10_000, "d": 785, "epsilon": 3.0}, "dp_gd (moments and step bought)"),
    ({"n": 32_000, "d": 124, "epsilon": 1.0, "sparse": True}, "dp_gd (columns and step bought)"),
    ({"n": 25_000, "d": 10_000, "epsilon": 1.0, "sparse": True}, "dp_gd (columns and step bought)"),
    ({"n": 25_000, "d": 100, "epsilon": 1.0, "loss": "hinge"}, "dp_gd (shapes and step bought)"),
    ({"n": 5000, "d": 9, "epsilon": 0.2, "features": "smooth"}, "dp_gd (shapes and statistics bought)"),
    ({"n": 20_000, "d": 9, "epsilon": 1.0, "classes": 5, "loss": "softmax"}, "dp_gd (shapes and step bought)"),
    # a set, a penalty or scale="none" leave columns alone
    ({"n": 30_000, "d": 20, "epsilon": 1.0, "constraint": L2Ball(5.0)}, "dp_gd (step bought)"),
    ({"n": 30_000, "d": 20, "epsilon": 1.0, "penalty": True}, "dp_gd (step bought)"),
    ({"n": 30_000, "d": 20, "epsilon": 1.0, "scale": "none"}, "dp_gd (step bought)"),
    ({"n": 30_000, "d": 200, "epsilon": 1.0, "scale": "columns"}, "dp_gd (columns and step bought)"),
    # few passes
    ({"n": 30_000, "d": 124, "epsilon": 0.1, "max_passes": 1}, "dp_sgd"),
    ({"n": 30_000, "d": 10_000, "epsilon": 1.0, "sparse": True, "max_passes": 20}, "dp_sgd"),
    ({"n": 30_000, "d": 20, "epsilon": 1.0, "max_passes": 5}, "dp_gd (shapes and statistics bought)"),
    ({"n": 30_000, "d": 20, "epsilon": 1.0, "max_passes": 2}, "dp_sgd"),
    # few numbers
    ({"n": 30_000, "d": 124, "epsilon": 1.0, "max_dims": 20}, "dp_comp_minibatch"),
    ({"n": 1500, "d": 124, "epsilon": 1.0, "max_dims": 20}, "priv_sgd"),
    ({"n": 1500, "d": 124, "epsilon": 1.0, "max_dims": 20, "max_passes": 10}, "dp_comp_minibatch"),
    ({"n": 1500, "d": 124, "epsilon": 1.0, "max_dims": 124}, "dp_gd (step bought)"),
    ({"n": 1500, "d": 30, "epsilon": 1.0, "max_dims": 9, "constraint": Subspace(np.eye(30)[:3])}, "priv_sgd"),
    (
        {**ranked_words(25_000, 2000), "epsilon": 0.5, "max_dims": 500},
        "dp_skgd (M by public smoothness, importance)",
    ),
    # several outputs of text: columns are bought where they stand out of the noise
    ({**TOPICS, "epsilon": 0.5}, "dp_gd (plain)"),
    ({**TOPICS, "epsilon": 1.0}, "dp_gd (columns and step bought)"),
    # with few numbers, or few records, a sketch is better than blocks by public frequencies
    ({**ranked_words(4000, 1000), "epsilon": 1.0, "max_dims": 50}, "priv_sgd"),
    ({**ranked_words(4000, 89), "epsilon": 1.0, "max_dims": 10, "sparse": False}, "priv_sgd"),
    # corners, few coefficients, uneven columns
    ({"n": 4000, "d": 1000, "epsilon": 1.0, "constraint": L1Ball(100.0), "bound": 1000**-0.5}, "dp_fw"),
    ({"n": 25_000, "d": 10_000, "epsilon": 0.5, "constraint": L1Ball(150.0), "bound": 0.1}, "dp_gd (step bought)"),
    ({"n": 500_000, "d": 100, "epsilon": 1.0, "constraint": L1Ball(30.0), "bound": 0.1}, "dp_gd (step bought)"),
    ({"n": 4000, "d": 3000, "epsilon": 1.0, "sparsity": 5}, "compressive_dp_sgd (selection)"),
    ({"n": 4000, "d": 500, "epsilon": 3.0, "sparsity": 5}, "compressive_dp_sgd (selection)"),
    ({"n": 4000, "d": 500, "epsilon": 3.0, "sparsity": 100, "sparse": True}, "dp_gd (columns and step bought)"),
    ({**UNEVEN, "penalty": True}, "dp_cd"),
    (UNEVEN, "dp_gd (shapes and statistics bought)"),
    # without a budget
    (FREE, "gd"),
    ({**FREE, "max_passes": 3}, "sgd"),
    ({**FREE, "max_dims": 6}, "comp_gd (error feedback)"),
    ({**FREE, "max_dims": 6, "max_passes": 3}, "comp_sgd (error feedback)"),
    ({**FREE, "constraint": L1Ball(2.0)}, "comp_fw (away steps)"),
]


@pytest.mark.parametrize(("facts", "picked"), PICKED)
def test_picks(facts: dict[str, Any], picked: str) -> None:
    ranked = plan(**facts, exact=False)
    assert ranked.best.name == picked
    assert "rule: " in ranked.best.why
    assert ranked.facts.narrow or not ranked.best.research  # where few numbers may leave, something narrow must run


def test_public_directions_are_picked_where_they_hold_the_energy() -> None:
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.standard_normal((300, 6)))[0]
    steep, flat = rng.standard_normal((100, 6)) @ basis.T, rng.standard_normal((100, 300))
    facts = {"n": 30_000, "d": 300, "epsilon": 0.2, "max_dims": 10, "exact": False}
    ranked = plan(**facts, public=steep)
    assert ranked.best.name == "pdp_sgd" and ranked.best.dims == 6
    assert plan(**facts, public=flat).best.name == "dp_comp_minibatch"


def test_the_best_comes_first_then_by_shortfall() -> None:
    ranked = plan(n=30_000, d=10_000, epsilon=1.0, sparse=True, exact=False)
    rest = [choice.shortfall for choice in ranked.choices if choice.algorithm != "dp_gd"]
    assert rest == sorted(rest)
    assert "behind" in ranked.choice("dp_sgd").why


def test_two_that_rank_alike_stand_in_the_order_in_which_they_are_known() -> None:
    ranked = plan(n=4000, d=60, epsilon=1.0, delta=1e-7, density=0.2, bound=0.3, exact=False)
    names = [choice.name for choice in ranked.choices]
    assert ranked.choice("dp_gd (plain)").margin_noise == pytest.approx(ranked.choice("dp_comp_minibatch").margin_noise)
    assert names.index("dp_gd (plain)") < names.index("dp_comp_minibatch")  # whatever the last digits of their noise


def test_the_bound_of_vertices_grows_with_the_logarithm_of_d_only() -> None:
    def facts(d: int) -> Facts:
        return Facts(n=4000, d=d, epsilon=1.0, constraint=L1Ball(4 * d**0.5), bound=d**-0.5)

    assert vertex_bound(facts(10_000), 50) < 1.3 * vertex_bound(facts(100), 50)
    assert ball_bound(facts(10_000)) == pytest.approx(100 * ball_bound(facts(100)))


# ---------------------------------------------------------------- tables and docs


@pytest.mark.parametrize(("rules", "epsilon"), list(zip(RULES, (1.0, INF), strict=True)))
def test_every_rule_names_what_it_prefers_and_why(rules: Any, epsilon: float) -> None:
    names = {filling.of.name for filling in FILLINGS if filling.shortfall is not None}
    assert names == {filling.of.name for filling in FILLINGS}  # every one of them was measured
    ball = L1Ball(0.1)
    few = {"max_dims": 3, "max_passes": 1, "sparsity": 1, "smoothness": (1e3, *[1.0] * 9), "constraint": ball}
    plain, many = Facts(n=1000, d=10, epsilon=epsilon), Facts(n=1000, d=10, epsilon=epsilon, bound=0.1, **few)
    assert list(rules(plain))[-1] == list(rules(plain))[0]  # the last one always speaks
    for rule in rules(many):
        assert rule.why and all(name.split(" ")[0] in names for name in rule.prefers)


def test_the_docs_have_every_rule_and_every_research_filling() -> None:
    text = DOCS.read_text()
    named = [re.findall(r'yield Rule\("([\w ]+)"', inspect.getsource(rules)) for rules in RULES]
    assert [len(names) for names in named] == [9, 4]
    for name in (*named[0], *named[1]):
        assert f"| {name} |" in text, name
    assert set(OBJECTIVES) <= set(known_losses())
    for name in (*(filling.name for filling in FILLINGS if filling.research), *OBJECTIVES):
        assert f"`{name}`" in text, name
    for section in ("low rank", "l1 ball", "sparse truth", "uneven columns", "few passes", "prepared descent"):
        assert f"### {section.capitalize()}" in text, section


# ---------------------------------------------------------------- the picks win


def score(found: Any, cell: Any, loss: str, constraint: Any = None, public: Any = None) -> float:
    """Score on other rows of the same law."""
    recipe = found.recipe(public=public)
    result = minimize(
        objective(loss, cell.x, cell.y), recipe, constraint, steps=found.rounds, record=None, progress=False
    )
    problem = objective(loss, cell.x_test, cell.y_test)
    if result.transform is not None:
        problem = problem.with_inputs(result.transform(problem.X))
    return problem.score(result.x)


def test_corners_win_over_noise_in_all_directions() -> None:
    cell, radius = few_coefficients(2000, 800)
    ball = L1Ball(radius)
    ranked = plan(**cell.facts, epsilon=1.0, constraint=ball, bound=800**-0.5, exact=False)
    assert ranked.best.algorithm == "dp_fw"
    plain = score(ranked.choice("dp_gd (step bought)"), cell, "logistic", ball)
    assert score(ranked.best, cell, "logistic", ball) > plain + 0.1


def test_a_known_sparsity_wins_over_noise_in_all_directions() -> None:
    cell, _ = few_coefficients(2000, 1200)
    ranked = plan(**cell.facts, epsilon=1.0, sparsity=5, bound=1200**-0.5, exact=False)
    assert ranked.best.name == "compressive_dp_sgd (selection)"
    plain = score(ranked.choice("dp_gd"), cell, "logistic")
    assert score(ranked.best, cell, "logistic") > plain + 0.1


def test_steps_of_their_own_win_on_uneven_columns() -> None:
    cell, moments = uneven_columns(4000)
    ranked = plan(**cell.facts, epsilon=1.0, loss="squared", penalty=True, smoothness=moments, exact=False)
    assert ranked.best.algorithm == "dp_cd"
    assert score(ranked.best, cell, "squared") > score(ranked.choice("dp_gd"), cell, "squared") + 0.1


def test_batches_win_in_one_pass() -> None:
    cell = unbalanced(8000)
    ranked = plan(**cell.facts, epsilon=0.5, max_passes=1, exact=False)
    assert ranked.best.algorithm == "dp_sgd"
    assert score(ranked.best, cell, "logistic") > score(ranked.choice("dp_gd (plain)"), cell, "logistic") + 0.03
