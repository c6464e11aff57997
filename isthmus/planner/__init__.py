"""The planner: which algorithm to use for these public facts, how to fill it, and what it will cost.

`plan` reads no private data.  It fills every algorithm from the facts (`Choice`), refuses those that cannot run, and
ranks the rest by rules that are written down with what supports them (`RULES`, docs/planner.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, replace
from difflib import get_close_matches
from typing import Any

import numpy as np
import torch

from isthmus.algorithms import KNOWN
from isthmus.algorithms.facts import CONSTANTS, Facts, PublicFacts
from isthmus.algorithms.filling import Algorithm, Choice, Refusal, Variant, algorithm_of
from isthmus.base import validate
from isthmus.base.matrix import Matrix, as_matrix, is_sparse, take, to_dense
from isthmus.core.minimize import Recipe
from isthmus.diagnostics import captured_energy
from isthmus.gradients import Glm, Outer, Rows
from isthmus.objectives.linear import Loss, loss_of
from isthmus.planner.choices import Plan, energy_of, notes_of
from isthmus.planner.rules import FREE_RULES, PRIVATE_RULES, RULES, Rule, place_of

__all__ = ["CONSTANTS", "Choice", "Facts", "Plan", "PublicFacts", "RULES", "Rule", "plan"]

Asked = str | Algorithm[Any] | Callable[..., Recipe]


def plan(
    *,
    n: int,
    d: int,
    epsilon: float,
    delta: float | None = None,
    loss: str | Loss = "logistic",
    classes: int = 2,
    public: Any = None,
    smoothness: Any = None,
    algorithms: Asked | Iterable[Asked] | None = None,
    **facts: Any,
) -> Plan:
    """Rank the algorithms for public facts; see `Facts` for all of them.

    n, d        records, and columns of x; rows are taken to have norm at most 1, targets to lie in [-1, 1]
    epsilon     the budget; math.inf plans a run that is not private
    public      public rows X or (X, y), or their `PublicFacts`; they give the energy curve that picks k
    smoothness  public component smoothness, one number for each column
    loss        a name, or a subclass of `LinearModel` that says what is public of it
    algorithms  which to plan, by name, as an `Algorithm` or as a recipe function; None: all of the library's

    >>> ranked = plan(n=25_000, d=10_000, epsilon=1.0, sparse=True)
    >>> ranked.best.name, ranked.best.rounds, round(ranked.best.noise_multiplier, 1)
    ('dp_gd (columns and step bought)', 100, 39.8)
    """
    _check_names(facts)
    if smoothness is not None:
        smoothness = tuple(validate.as_tensor("smoothness", smoothness).double().reshape(-1).tolist())
    problem = Facts(
        n, d, epsilon, delta, loss, classes, public=read_public(public, loss, classes), smoothness=smoothness, **facts
    )
    choices, refused = _filled(problem, algorithms)
    rule, order = _first_rule(problem, choices)
    ranked = sorted(choices, key=lambda choice: _rank(choice, order))
    explained = tuple(replace(choice, why=_why(choice, ranked, rule, order)) for choice in ranked)
    return Plan(problem, explained, refused, notes_of(problem, explained), energy_of(problem))


def _check_names(facts: Iterable[str]) -> None:
    """Refuse a fact that there is none of, by its name alone: its value may be private rows."""
    names = [member.name for member in fields(Facts)]
    for name in facts:
        if name not in names:
            nearest = get_close_matches(name, names, 1)
            meant = f"{nearest[0]!r} may be meant; " if nearest else ""
            raise TypeError(
                f"plan() got an unexpected keyword argument {name!r}: {meant}the facts that it takes are "
                f"{', '.join(names)}; it takes no private rows"
            )


def _filled(facts: Facts, algorithms: Asked | Iterable[Asked] | None) -> tuple[list[Choice], dict[str, str]]:
    """Every asked filling, as a choice or with the reason why not."""
    choices: list[Choice] = []
    refused: dict[str, str] = {}
    fillings = _everything(facts, refused) if algorithms is None else _requested(facts, algorithms, refused)
    for filling in dict.fromkeys(fillings):
        try:
            choices.append(_within(facts, filling(facts)))
        except Refusal as refusal:
            refused[filling.name] = refusal.reason
    return choices, refused


def _everything(facts: Facts, refused: dict[str, str]) -> Iterator[Variant]:
    """The fillings of all algorithms that are planned without being named."""
    for candidate in KNOWN.values():
        if candidate.private != facts.private or candidate.like is not None:
            continue
        if not candidate.left_out:
            yield from candidate.fillings
        elif candidate.fillings:
            refused[candidate.name] = candidate.left_out


def _requested(facts: Facts, algorithms: Asked | Iterable[Asked], refused: dict[str, str]) -> Iterator[Variant]:
    """The fillings that were asked for: by a name, by that of one filling, as an algorithm or as a recipe function."""
    single = isinstance(algorithms, (str, Algorithm)) or callable(algorithms)
    remedy = "give names of algorithms, algorithms or recipe functions, one or a list of them"
    validate.check(single or isinstance(algorithms, Iterable), "algorithms", algorithms, remedy)
    requests = [algorithms] if isinstance(algorithms, (str, Algorithm)) or callable(algorithms) else list(algorithms)
    for request in dict.fromkeys(requests):
        named, fillings = _named(request)
        if not fillings:
            refused[named.name] = named.left_out
        elif named.private != facts.private:
            asked_for = f"epsilon={facts.epsilon:g} was asked for"
            reason = "it is not private" if facts.private else "it needs a finite epsilon"
            refused[request if isinstance(request, str) else named.name] = f"{asked_for}, and {reason}"
        else:
            yield from fillings


def _named(request: Asked) -> tuple[Algorithm[Any], tuple[Variant, ...]]:
    """An algorithm, and those of its fillings that are meant."""
    if not isinstance(request, str):
        return algorithm_of(request), algorithm_of(request).fillings
    algorithm, remedy = KNOWN.get(request.split(" ")[0]), f"choose from {sorted(KNOWN)}, or give an algorithm"
    validate.check(algorithm is not None, "algorithms", request, remedy)
    assert algorithm is not None
    fillings = tuple(filling for filling in algorithm.fillings if request in (algorithm.name, filling.name))
    validate.check(bool(fillings) or request == algorithm.name, "algorithms", request, remedy)
    return algorithm, fillings


def _within(facts: Facts, choice: Choice) -> Choice:
    """Refuse what sends more numbers, or looks more often, than is allowed."""
    if facts.max_dims is not None and choice.dims > facts.max_dims:
        raise Refusal(f"it releases {choice.dims:,} numbers in a round, more than max_dims = {facts.max_dims:,}")
    if facts.max_passes is not None and choice.passes > facts.max_passes * (1 + 1e-9):
        raise Refusal(f"it takes {choice.passes:.3g} passes, more than max_passes = {facts.max_passes:g}")
    return choice


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
    behind = math.inf if choice.shortfall is None else choice.shortfall
    noise = round(choice.margin_noise or 0.0, 9)  # many are at tau, up to their rounding
    return len(order) if place is None else place, behind, noise


def _why(choice: Choice, ranked: list[Choice], rule: Rule, order: dict[str, int]) -> str:
    named = place_of(choice, order) is not None
    if choice is ranked[0] and named:
        return f"{rule.why} (rule: {rule.name})"
    behind = f"{100 * (choice.shortfall or 0):.1f} points behind the best where measured"
    place = "the same rule's next" if named else "it was not measured" if choice.shortfall is None else behind
    return place if not choice.research else f"{place}; for research only"


LEAST = 4
"""Fewer public rows cannot be split into a half that learns a subspace and a half that judges it."""


def read_public(public: Any, loss: str | Loss, classes: int) -> PublicFacts | None:
    """The facts of public rows X, or (X, y).

    At w = 0 the gradient of a record is slope times x; with one output all slopes have one size (classifiers), so the
    curve needs no labels.  For several outputs it does.

    >>> public = read_public(np.eye(8)[[0, 1] * 4], "logistic", 2)
    >>> public.rows, public.labelled, round(public.share(2), 6)
    (8, False, 1.0)
    """
    if public is None or isinstance(public, PublicFacts):
        return public
    labelled = isinstance(public, tuple)
    if labelled:
        validate.check(len(public) == 2, "public", f"{len(public)} parts", "give X, or (X, y)")
    X = as_matrix("public", public[0] if labelled else public)
    y = public[1] if labelled else None
    rows, columns = X.shape
    if y is not None:
        validate.check(len(y) == rows, "len(public[1])", len(y), f"give one target for each of the {rows} public rows")
    facts = PublicFacts(rows, columns, labelled, None, _moments(X))
    outputs = loss_of(loss).outputs(classes)
    if rows < LEAST or (outputs > 1 and y is None):
        return facts
    order = np.random.default_rng(0).permutation(rows)  # rows may be sorted by label
    halves = (order[: rows // 2], order[rows // 2 :])
    fit, rest = (_gradients(X, y, half, outputs) for half in halves)
    if not _alive(fit) or not _alive(rest):
        return facts
    return replace(facts, curve=captured_energy(fit, rest))


def _moments(X: Matrix) -> tuple[float, ...]:
    squares = X.multiply(X).mean(0) if is_sparse(X) else to_dense(X).double().square().mean(0)
    return tuple(np.asarray(squares, dtype=float).reshape(-1).tolist())


def _gradients(X: Matrix, y: Any, half: Any, classes: int) -> Rows:
    """Gradients at w = 0 up to a common factor."""
    part = take(X, torch.from_numpy(half))
    if classes > 1:
        codes = torch.from_numpy(np.unique(np.asarray(y), return_inverse=True)[1].reshape(-1)[half])
        validate.check(
            int(codes.max()) < classes, "classes", classes, "give at least as many as the public labels have"
        )
        slopes = torch.full((len(half), classes), 1 / classes, dtype=torch.float64)
        slopes[torch.arange(len(half)), codes] -= 1
        return Outer(part, slopes)
    return Glm(torch.ones(len(half), dtype=torch.float64), part)


def _alive(rows: Rows) -> bool:
    return bool(torch.as_tensor(rows.norms()).max() > 0)
