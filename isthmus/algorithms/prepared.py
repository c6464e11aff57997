"""DP-GD for linear models that first buys what it needs to know, and any recipe that buys something first.

At moderate budgets the scale of the columns and the step, not the noise, hold plain DP-GD back.  A small share of the
budget buys them (see `isthmus.algorithms.purchases`); what is bought is public.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from isthmus.algorithms.budget import Budget, rounds_of
from isthmus.algorithms.first_order import StepRule, step_rule
from isthmus.algorithms.purchases import Columns, Facts, Lambda, Moments, Purchase, Statistics
from isthmus.base import validate
from isthmus.base.matrix import is_lazy
from isthmus.geometry.sets import Whole
from isthmus.privacy import Charge, Clip, PrivacyPlan
from isthmus.privacy.bounded import Bounded
from isthmus.problems.penalties import NoPenalty
from isthmus.round.minimize import Binding, Recipe
from isthmus.round.parts import Step, Weighted
from isthmus.round.pipeline import Pipeline, Release, Stage
from isthmus.round.spending import Prepared, Spending

SCALES = ("none", "columns", "moments")


def prepared_gd(
    budget: Budget, clip: float, step: StepRule | str, scale: str, precondition: bool, tau: float | None, output: str
) -> Recipe:
    """The recipe behind `dp_gd(scale=..., step="auto", precondition=...)`."""
    Clip(clip)
    validate.one_of(SCALES, scale=scale)
    automatic = isinstance(step, str)
    if automatic:
        validate.one_of(("auto",), step=step)
    if tau is not None:
        validate.positive(tau=tau)
    validate.one_of(("last", "average"), output=output)
    items = _items(scale, automatic, precondition, tau)

    def build(binding: Binding) -> Pipeline:
        free = isinstance(binding.constraint, Whole)
        remedy = "leave it out: scaled columns change what a set means"
        validate.check(free or scale == "none", "constraint", binding.constraint, remedy)
        plain = free and isinstance(binding.penalty, NoPenalty)
        alone = "leave out the set and the penalty: preconditioned steps have no proximal map"
        validate.check(plain or not precondition, "precondition", precondition, alone)
        sampler = budget.sampler(binding, None)
        rounds = rounds_of(binding, sampler, budget.records(binding))
        spent = sum(item.share for item in items)
        charges = [Charge(item.name, share=item.share) for item in items]
        plan = budget.plan(binding, [*charges, Charge("steps", rounds=rounds, share=1 - spent)])
        release = Release(clip=Clip(clip), mechanism=plan.mechanism("steps"))
        return Pipeline(
            [Stage(sampler, [release])],
            (lambda t: 1.0) if isinstance(step, str) else step_rule(step, None),
            Step(binding.constraint, binding.penalty),
            Weighted(start=rounds // 2),
            output="last" if output == "last" else "average",
            rounds=rounds,
            promise=budget.promise(plan, binding),
            prepare=Purchases(plan, items, Facts(budget.records(binding), rounds, clip, mu_of(plan))),
        )

    shown = {"epsilon": budget.epsilon, "delta": budget.delta, "clip": clip, "scale": scale, "step": step}
    return Recipe("dp_gd", build, {**shown, "precondition": precondition})


def buying(recipe: Recipe, items: Sequence[Purchase], copy: bool = False) -> Recipe:
    """A private recipe that first buys `items` from the same budget; its own purchases come after them.

    copy  whether the rows, once mapped, are copied: sketches read them faster than through a map

    >>> from isthmus import algorithms
    >>> from isthmus.algorithms.purchases import ClassCounts
    >>> buying(algorithms.dp_sgd(epsilon=1.0, clip=1.0, step=1.0, n="exact"), [ClassCounts()]).name
    'dp_sgd'
    """

    def build(binding: Binding) -> Pipeline:
        charges = tuple(Charge(item.name, share=item.share) for item in items)
        pipe = recipe.bind(replace(binding, before=(*charges, *binding.before)))
        promise = pipe.promise
        sound = promise is not None and promise.sound and promise.published is None
        validate.check(sound, "recipe", recipe.name, "declare what is bought: only a private recipe has a budget")
        assert promise is not None
        own = pipe.prepare
        facts = Facts(promise.records, pipe.rounds or 1, 1.0, mu_of(promise.plan)) if own is None else own.facts
        every = [*items, *(() if own is None else own.items)]
        return replace(pipe, prepare=Purchases(promise.plan, every, facts, copy))

    return Recipe(recipe.name, build if items else recipe.build, recipe.arguments)


def mu_of(plan: PrivacyPlan) -> float:
    """The Gaussian-DP parameter of the whole budget."""
    return plan.mu


def _items(scale: str, automatic: bool, precondition: bool, tau: float | None) -> list[Purchase]:
    items: list[Purchase] = [] if scale == "none" else [Columns() if scale == "columns" else Moments()]
    if precondition:
        items.append(Statistics())
    elif automatic:
        items.append(Lambda(tau=tau))
    return items


@dataclass(frozen=True)
class Purchases:
    """What is bought before the loop, one after the other, and what follows from it."""

    plan: PrivacyPlan
    items: Sequence[Purchase]
    facts: Facts
    copy: bool = False

    def release(self, objective: Any, spending: Spending) -> tuple[dict[str, Tensor], Prepared]:
        """Charge and release everything that is bought (sums, not means), and what follows from it."""
        for item in self.items:
            item.check(objective)
        bought: dict[str, Tensor] = {}
        prepared = Prepared(objective)
        for item in self.items:
            bounded = Bounded(item.measure(prepared.objective), 2, item.bound(prepared.objective))
            bought[item.name] = spending.publish(item.name, bounded, self.plan.mechanism(item.name))
            prepared = self._followed(item, prepared, bought)
        return bought, self._copied(prepared)

    def apply(self, objective: Any, bought: Mapping[str, Tensor]) -> Prepared:
        """The transformed problem, its step and its start, from what was bought."""
        prepared = Prepared(objective)
        for item in self.items:
            prepared = self._followed(item, prepared, bought)
        return self._copied(prepared)

    def _copied(self, prepared: Prepared) -> Prepared:
        if not self.copy or not is_lazy(prepared.objective.X):
            return prepared
        return replace(prepared, objective=prepared.objective.with_inputs(prepared.objective.X.plain()))

    def events(self, bought: Mapping[str, Tensor]) -> list[Any]:
        """What those releases cost."""
        return [self.plan.mechanism(name).event(self.plan.adjacency) for name in bought]

    def _followed(self, item: Purchase, prepared: Prepared, bought: Mapping[str, Tensor]) -> Prepared:
        noise = self.plan.multiplier(item.name) * item.bound(prepared.objective)
        return item.apply(prepared, bought[item.name], noise, self.facts)
