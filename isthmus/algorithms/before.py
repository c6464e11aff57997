"""What a private recipe buys before its loop, from the same budget: each item one look at all records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from isthmus.algorithms.purchases import CAPACITY, Purchase, Terms
from isthmus.base import validate
from isthmus.base.matrix import is_lazy
from isthmus.base.space import Space
from isthmus.core.before import Prepared
from isthmus.core.minimize import Binding, Recipe
from isthmus.core.pipeline import Before, Pipeline, Release, Stage
from isthmus.lifts import discard
from isthmus.privacy import Charge, FullBatch, Mechanism, PrivacyPlan
from isthmus.privacy.adjacency import Adjacency
from isthmus.privacy.library import dpa


@dataclass(frozen=True)
class Bought:
    """A purchase with the mechanism that its share of the budget pays for: a `Before` of a pipeline."""

    item: Purchase
    mechanism: Mechanism
    terms: Terms

    @property
    def name(self) -> str:
        """Under which it is charged."""
        return self.item.name

    def check(self, objective: Any) -> None:
        """Refuse what it cannot be bought for."""
        validate.at_most(CAPACITY, "what these sums are proven for: use a part of the records", n=self.terms.n)
        self.item.check(objective)

    def stage(self, objective: Any) -> tuple[Stage, Space]:
        """One look at all records: their clipped sum, not divided by anything."""
        release = Release(self.name, clip=self.item.clip(objective), mechanism=self.mechanism, lift=discard)
        stage = Stage(FullBatch(1.0), [release], self.name, source=_Rows(self.item))
        return stage, Space.flat(self.item.numbers(objective))

    def event(self, adjacency: Adjacency) -> Any:
        """What it costs."""
        return self.mechanism.event(adjacency)

    def apply(self, prepared: Prepared, bought: Tensor | None) -> Prepared:
        """What follows."""
        assert bought is not None
        noise = self.mechanism.multiplier * self.item.bound(prepared.objective)  # type: ignore[attr-defined]
        return self.item.apply(prepared, bought, noise, self.terms)


@dataclass(frozen=True)
class _Rows:
    """The vectors that a purchase adds up."""

    item: Purchase

    @property
    def own_records(self) -> bool:
        """Whether its vectors are known to be of one record each: those of this library's purchases are."""
        return type(self.item).__module__.startswith("isthmus.")

    @property
    def whole(self) -> bool:
        """Whether it is no sum over records (see `isthmus.problems.queries`), or not known to be one."""
        return not self.own_records or not getattr(self.item, "adds_up", True)

    def __call__(self, problem: Any, w: Tensor, index: Tensor | slice | None, held: Any) -> Any:
        """Of all records, or of some."""
        return self.item.rows(problem if index is None else problem.part(index))


@dataclass(frozen=True)
class Copied:
    """Rows that are seen through maps, copied: sketches read them faster than through a map.  Nothing is bought."""

    name: str = "copy"

    def check(self, objective: Any) -> None:
        """Any problem."""

    def stage(self, objective: Any) -> None:
        """No look."""

    def event(self, adjacency: Adjacency) -> Any:
        """Nothing."""
        return dpa.NoOpDpEvent()

    def apply(self, prepared: Prepared, bought: Tensor | None) -> Prepared:
        """The problem with a copy of its rows."""
        X = prepared.objective.X
        return replace(prepared, objective=prepared.objective.with_inputs(X.plain())) if is_lazy(X) else prepared


def charges_of(items: Sequence[Purchase]) -> list[Charge]:
    """What the items take of a budget."""
    return [Charge(item.name, share=item.share) for item in items]


def bought(plan: PrivacyPlan, items: Sequence[Purchase], terms: Terms) -> list[Before]:
    """The items with the mechanisms of a plan."""
    return [Bought(item, plan.mechanism(item.name), terms) for item in items]


def buying(recipe: Recipe, items: Sequence[Purchase], copy: bool = False) -> Recipe:
    """A private recipe that first buys `items` from the same budget; its own purchases come after them.

    copy  whether the rows, once mapped, are copied: sketches read them faster than through a map

    >>> from isthmus import algorithms
    >>> from isthmus.algorithms.purchases import ClassCounts
    >>> buying(algorithms.dp_sgd(epsilon=1.0, clip=1.0, step=1.0, n="exact"), [ClassCounts()]).name
    'dp_sgd'
    """

    def build(binding: Binding) -> Pipeline:
        pipe = recipe.bind(replace(binding, before=(*charges_of(items), *binding.before)))
        plan = None if pipe.promise is None else pipe.promise.plan
        planned = set() if plan is None else {charge.name for charge in plan.items}
        remedy = (
            "declare what would be bought: only a private recipe that splits its budget by `algorithms.Budget.plan` "
            "can buy something first"
        )
        validate.check({item.name for item in items} <= planned, "recipe", recipe.name, remedy)
        assert pipe.promise is not None and plan is not None
        terms = Terms(pipe.promise.records, pipe.rounds or 1, 1.0, plan.mu)
        copies: list[Before] = [Copied()] if copy else []
        return replace(pipe, before=[*bought(plan, items, terms), *pipe.before, *copies])

    return Recipe(recipe.name, build if items else recipe.build, recipe.arguments)
