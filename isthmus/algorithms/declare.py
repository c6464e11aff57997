"""What an algorithm is beside its recipe: whether it is private, what it needs, and how public facts fill it.

    @algorithm                                        a recipe is declared where it is written,
    def my_sgd(*, epsilon, clip, step, ...): ...

    @my_sgd.filling(evidence="measured: ...")         and each way of filling it beside it
    def _fill(facts): return run.choice({"clip": ..., "step": ...})

Planner, estimators, reports and files ask the `Algorithm`; none of them has a list of their own.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, update_wrapper
from typing import Any, Generic, ParamSpec, overload

from isthmus.algorithms.choice import Choice, Refusal
from isthmus.algorithms.facts import Facts
from isthmus.algorithms.filling import allowed_step, free_run, plain_run, sampled_run, walk
from isthmus.base import validate
from isthmus.core.minimize import Recipe

P = ParamSpec("P")
Fill = Callable[[Facts], Choice | Refusal]


@dataclass(frozen=True)
class Variant:
    """One way to fill an algorithm from public facts.

    make       the filling itself
    variant    tells several of one algorithm apart
    evidence   the theorem or measurement behind it
    shortfall  points of accuracy lost against the best method at epsilon 0.5 (`private_tables`), on few columns (a9a)
               and on long CSR rows (IMDB); None: never measured
    research   it was picked and best in no cell of the table of regret
    """

    of: Algorithm[Any]
    make: Fill
    variant: str = ""
    evidence: str = "not measured"
    shortfall: tuple[float, float] | None = None
    research: bool = False

    @property
    def name(self) -> str:
        """Algorithm and variant."""
        return f"{self.of.name} ({self.variant})" if self.variant else self.of.name

    def __call__(self, facts: Facts) -> Choice | Refusal:
        """The choice under its name, or why there is none."""
        choice = self.make(facts)
        if isinstance(choice, Refusal):
            return choice
        measured = None if self.shortfall is None else self.shortfall[int(facts.wide)]
        return replace(
            choice,
            of=self.of,
            algorithm=self.of.name,
            variant=choice.variant or self.variant,
            evidence=choice.evidence or self.evidence,
            shortfall=measured if choice.shortfall is None else choice.shortfall,
            research=self.research,
        )


@dataclass(eq=False)
class Algorithm(Generic[P]):
    """A recipe function, called as before, with what others ask of it.

    private   whether it runs under a budget; by default, whether it takes an `epsilon`
    direct    whether it takes gradients as they are: rows are then seen through their map, else a copy is mapped
    needs     what the constraint must offer, such as ("lmo",)
    words     what it does, for the reader of a report
    left_out  why a plan leaves it out unless it is asked for by name
    like      the algorithm that this is another name of: it is filled like that one
    """

    function: Callable[P, Recipe]
    private: bool
    direct: bool = False
    needs: tuple[str, ...] = ()
    words: str = ""
    left_out: str = ""
    like: Algorithm[Any] | None = None
    own: list[Variant] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        update_wrapper(self, self.function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Recipe:
        """The recipe for these arguments."""
        built = self.function(*args, **kwargs)
        validate.check(isinstance(built, Recipe), "algorithm", self.name, "return a Recipe")
        return built

    def __repr__(self) -> str:
        return f"<algorithm {self.address}>"

    @property
    def name(self) -> str:
        """The name of its function."""
        return self.function.__name__

    @cached_property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """What the recipe takes by name."""
        return inspect.signature(self.function).parameters

    def takes(self, name: str) -> bool:
        """Whether the recipe takes an argument, by name or among others."""
        return name in self.parameters or any(
            parameter.kind is parameter.VAR_KEYWORD for parameter in self.parameters.values()
        )

    # ------------------------------------------------------------ how it is filled

    @property
    def fillings(self) -> tuple[Variant, ...]:
        """The ways to fill it; without one of its own it is filled as DP-SGD is, by the names of its arguments."""
        if self.like is not None:
            return tuple(replace(filling, of=self) for filling in self.like.fillings)
        return tuple(self.own) if self.own or self.left_out else (Variant(self, self._by_signature),)

    def filling(self, variant: str = "", **said: Any) -> Callable[[Fill], Fill]:
        """Declare a function of the facts as a way to fill this algorithm; `said` is the rest of a `Variant`."""

        def declared(make: Fill) -> Fill:
            self.own.append(Variant(self, make, variant, **said))
            return make

        return declared

    def _by_signature(self, facts: Facts) -> Choice | Refusal:
        """clip, step, batch_size, m or k, and output, as far as the recipe takes them; the rest has its defaults."""
        sampled = "batch_size" in self.parameters
        dims = facts.narrow_size if {"m", "k"} & set(self.parameters) else facts.parameters
        if not facts.private:
            run: Any = free_run(facts, dims, sampled)
            step = facts.step or 1 / facts.smooth
        else:
            run = sampled_run(facts, facts.the_clip, dims) if sampled else plain_run(facts, dims)
            if isinstance(run, Refusal):
                return run
            step = allowed_step(run)
        values = {"clip": run.clip, "step": step, "batch_size": run.batch_size, "m": dims, "k": dims, "output": "last"}
        arguments = {name: value for name, value in values.items() if name in self.parameters}
        noise = walk(run, step) if facts.private and "step" in arguments else None
        return run.choice(arguments, margin_noise=noise, evidence="not measured: filled as DP-SGD is")

    # ------------------------------------------------------------ where it is known

    @property
    def address(self) -> str:
        """Where it was declared, as "module:name"."""
        return f"{self.function.__module__}:{self.function.__qualname__}"

    def __reduce__(self) -> Any:
        """By its name in its module; one that was made from a bare function, by that function."""
        registered = find(self.address)
        return self.function.__qualname__ if registered is self else (algorithm_of, (self.function,))

    def __deepcopy__(self, memo: Any) -> Algorithm[P]:
        return self


@overload
def algorithm(function: Callable[P, Recipe], /) -> Algorithm[P]: ...
@overload
def algorithm(
    *, fill: Fill | None = None, private: bool | None = None, **said: Any
) -> Callable[[Callable[P, Recipe]], Algorithm[P]]: ...
def algorithm(function: Any = None, /, *, fill: Fill | None = None, private: bool | None = None, **said: Any) -> Any:
    """Declare a recipe function as an algorithm, which planner and estimators then take like their own.

    fill     how public facts fill it (see `Algorithm.filling`); by default by the names of its arguments
    private  whether it runs under a budget; by default, whether it takes an `epsilon`
    said     the rest of an `Algorithm`

    A whole recipe, noisy gradient descent, which the planner then ranks among its own:

    >>> from isthmus import plan
    >>> from isthmus.algorithms import Budget, algorithm, rounds_of
    >>> from isthmus.privacy import Charge, Clip
    >>> from isthmus.parts import Step
    >>> from isthmus.core.pipeline import Pipeline, Release, Stage
    >>> @algorithm
    ... def my_gd(*, epsilon, delta=None, clip, step, n=None, adjacency="add-remove"):
    ...     budget = Budget(epsilon, delta, adjacency, n)
    ...     def build(binding):
    ...         sampler = budget.sampler(binding, None)
    ...         rounds = rounds_of(binding, sampler, budget.records(binding))
    ...         split = budget.plan(binding, [Charge("gradient", rounds=rounds, sampler=sampler)])
    ...         release = Release(clip=Clip(clip), mechanism=split.mechanism("gradient"))
    ...         update = Step(binding.constraint, binding.penalty)
    ...         promise = budget.promise(split, binding)
    ...         return Pipeline([Stage(sampler, [release])], lambda t: step, update, rounds=rounds, promise=promise)
    ...     return Recipe("my_gd", build)
    >>> ranked = plan(n=1000, d=5, epsilon=1.0, algorithms=["dp_sgd", my_gd])
    >>> [choice.name for choice in ranked.choices], dict(ranked.choice("my_gd").arguments)["clip"]
    (['dp_sgd', 'my_gd'], 0.5)
    """

    def declared(recipe: Any) -> Algorithm[Any]:
        named = "epsilon" in inspect.signature(recipe).parameters
        result = Algorithm(recipe, named if private is None else private, **said)
        if fill is not None:
            result.filling()(fill)
        return result

    return declared if function is None else declared(function)


def algorithm_of(recipe: Any) -> Algorithm[Any]:
    """A declared algorithm as it is; a bare recipe function as one."""
    if isinstance(recipe, Algorithm):
        return recipe
    remedy = "give a name of isthmus.algorithms, or a function that returns a Recipe"
    validate.check(inspect.isfunction(recipe), "algorithm", recipe, remedy)
    return algorithm(recipe)


def find(address: str) -> Algorithm[Any] | None:
    """The algorithm at "module:name" in a module that was imported already; None where there is none."""
    module, _, path = address.partition(":")
    source: Any = sys.modules.get(module)
    for part in path.split("."):
        source = getattr(source, "__dict__", {}).get(part)  # as it is: a module's own __getattr__ may import something
    return source if isinstance(source, Algorithm) else None
