"""The planner: which algorithm to use for these public facts, how to fill it, and what it will cost.

`plan` reads no private data.  It fills every algorithm from the facts (`Choice`), refuses those that cannot run, and
ranks the rest by rules that are written down with what supports them (`RULES`, docs/planner.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from isthmus.base import validate
from isthmus.planner import blocks, chosen, descent, free, narrow
from isthmus.planner.choice import Choice, Plan
from isthmus.planner.constants import CONSTANTS
from isthmus.planner.facts import Facts
from isthmus.planner.fillings import Refusal
from isthmus.planner.notes import energy_of, notes_of
from isthmus.planner.public import PublicFacts, read_public
from isthmus.planner.rules import FREE_RULES, PRIVATE_RULES, RESEARCH, RULES, Rule, place_of, shortfall_of

Filling = Callable[[Facts], Choice | Refusal]
PRIVATE: dict[str, Filling] = {
    "dp_gd (plain)": descent.plain,
    "dp_gd (step bought)": descent.step_bought,
    "dp_gd (columns and step bought)": descent.columns_bought,
    "dp_gd (moments and step bought)": descent.moments_bought,
    "dp_gd (statistics bought)": descent.statistics_bought,
    "dp_sgd": descent.dp_sgd,
    "dp_svrg": descent.dp_svrg,
    "priv_sgd": narrow.priv_sgd,
    "dp_comp_minibatch": narrow.dp_comp_minibatch,
    "pdp_sgd": narrow.pdp_sgd,
    "rpdp_sgd": narrow.rpdp_sgd,
    "compressive_dp_sgd (gaussian)": chosen.compressive,
    "compressive_dp_sgd (selection)": chosen.selection,
    "dp_skgd": blocks.dp_skgd,
    "dp_cd": blocks.dp_cd,
    "dp_fw": chosen.dp_fw,
}
FREE: dict[str, Filling] = {
    "gd": free.gd,
    "sgd": free.sgd,
    "comp_sgd": free.comp_sgd,
    "comp_gd": free.comp_gd,
    "comp_minibatch": free.comp_minibatch,
    "comp_fw": free.comp_fw,
}
ALIASES = {"dp_comp_gd": "priv_sgd"}
UNASKED = {"dp_svrg": "for research only: planned where it is asked for by name"}
"""Fillings that a plan of all algorithms leaves out: their accounting takes a second of its own."""


def plan(
    *,
    n: int,
    d: int,
    epsilon: float,
    delta: float | None = None,
    loss: str = "logistic",
    classes: int = 2,
    public: Any = None,
    smoothness: Any = None,
    algorithms: Iterable[str] | None = None,
    **facts: Any,
) -> Plan:
    """Rank the algorithms for public facts; see `Facts` for all of them.

    n, d        records, and columns of x; rows are taken to have norm at most 1, targets to lie in [-1, 1]
    epsilon     the budget; math.inf plans a run that is not private
    public      public rows X or (X, y), or their `PublicFacts`; they give the energy curve that picks k
    smoothness  public component smoothness, one number for each column
    algorithms  names to plan; None: all

    >>> found = plan(n=25_000, d=10_000, epsilon=1.0, sparse=True)
    >>> found.best.name, found.best.rounds, round(found.best.noise_multiplier, 1)
    ('dp_gd (columns and step bought)', 100, 39.8)
    """
    known = Facts(
        n,
        d,
        epsilon,
        delta,
        loss,
        classes,
        public=read_public(public, loss, classes),
        smoothness=None if smoothness is None else _numbers(smoothness),
        **facts,
    )
    choices, refused = _filled(known, algorithms)
    rule, order = _first_rule(known, choices)
    ranked = sorted(choices, key=lambda choice: _rank(choice, order))
    told = tuple(replace(choice, why=_why(choice, ranked, rule, order)) for choice in ranked)
    return Plan(known, told, refused, notes_of(known, told, rule), energy_of(known, told))


def _filled(facts: Facts, algorithms: Iterable[str] | None) -> tuple[list[Choice], dict[str, str]]:
    """Every asked filling, as a choice or with the reason why not."""
    fillings, others = (PRIVATE, FREE) if facts.private else (FREE, PRIVATE)
    names = None if algorithms is None else [algorithms] if isinstance(algorithms, str) else list(algorithms)
    choices: list[Choice] = []
    refused: dict[str, str] = {}
    known = {key.split(" ")[0] for key in (*PRIVATE, *FREE)} | set(ALIASES) | set(PRIVATE) | {"comp_dist_sgd"}
    for name in names or ():
        validate.check(name in known, "algorithms", name, f"choose from {sorted(n for n in known if ' ' not in n)}")
        if name == "comp_dist_sgd":
            refused[name] = "it is for several holders of data: give their objectives to minimize(clients=...)"
        elif any(name in (key, key.split(" ")[0]) for key in others) or (name in ALIASES and not facts.private):
            refused[name] = f"epsilon={facts.epsilon:g}: " + (
                "it is not private" if facts.private else "it is private: give a finite epsilon"
            )
    for key, filling in fillings.items():
        aliases = [alias for alias, name in ALIASES.items() if name == key]
        asked = [name for name in names or () if name in (key, key.split(" ")[0], *aliases)]
        if names is None and key in UNASKED:
            refused[key] = UNASKED[key]
        if (names is None and key in UNASKED) or (names is not None and not asked):
            continue
        made = _within(facts, filling(facts))
        if isinstance(made, Refusal):
            refused[key] = made.reason
            continue
        made = replace(made, research=key in RESEARCH, shortfall=shortfall_of(made, facts))
        choices.append(replace(made, algorithm=asked[0]) if asked and asked[0] in ALIASES else made)
    return choices, refused


def _within(facts: Facts, made: Choice | Refusal) -> Choice | Refusal:
    """Refuse what sends more numbers, or looks more often, than is allowed."""
    if isinstance(made, Refusal):
        return made
    if facts.max_dims is not None and made.dims > facts.max_dims:
        return Refusal(f"{made.dims:,} numbers leave in a round, more than max_dims = {facts.max_dims:,}")
    if facts.max_passes is not None and made.passes > facts.max_passes * (1 + 1e-9):
        return Refusal(f"it takes {made.passes:.3g} passes, more than max_passes = {facts.max_passes:g}")
    return made


def _first_rule(facts: Facts, choices: list[Choice]) -> tuple[Rule, dict[str, int]]:
    """The first rule that holds and has something to prefer, with its order."""
    rules = PRIVATE_RULES if facts.private else FREE_RULES
    for rule in rules:
        if not rule.when(facts):
            continue
        order = {name: i for i, name in reversed(list(enumerate(rule.prefers(facts))))}
        if any(place_of(choice, order) is not None for choice in choices):
            return rule, order
    return rules[-1], {}


def _rank(choice: Choice, order: dict[str, int]) -> tuple[int, float, float]:
    place = place_of(choice, order)
    return len(order) if place is None else place, choice.shortfall, choice.margin_noise or 0.0


def _why(choice: Choice, ranked: list[Choice], rule: Rule, order: dict[str, int]) -> str:
    named = place_of(choice, order) is not None
    if choice is ranked[0] and named:
        return f"{rule.why} (rule: {rule.name})"
    place = "the same rule's next" if named else f"{100 * choice.shortfall:.1f} points behind the best where measured"
    return place if not choice.research else f"{place}; for research only"


def _numbers(values: Any) -> tuple[float, ...]:
    return tuple(validate.as_tensor("smoothness", values).double().reshape(-1).tolist())


__all__ = ["CONSTANTS", "Choice", "Facts", "Plan", "PublicFacts", "RULES", "Rule", "plan"]
