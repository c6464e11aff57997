"""What an algorithm is beside its recipe: what it needs, and which arguments public facts suggest.

    @algorithm                                        a recipe is declared where it is written,
    def my_sgd(*, epsilon, clip, step, ...): ...

    @my_sgd.suggest_arguments(evidence="measured: ...")
    def _suggest(facts): ...                          and what suggests its arguments beside it
        return run.choice({"clip": ..., "step": ...})

A suggestion draws the numbers of one `Run` together into a `Choice`, or refuses with a reason.  Planner, estimators,
reports and files ask the `Algorithm`; none of them has a list of their own.
"""

from __future__ import annotations

import inspect
import json
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial, update_wrapper
from typing import Any, Generic, ParamSpec, Required, get_args, get_origin, get_type_hints, overload

import numpy as np

from isthmus.algorithms.facts import CONSTANTS, FLOPS, NUMBER, Facts
from isthmus.base import validate
from isthmus.base.matrix import as_matrix
from isthmus.core.minimize import Binding, Recipe
from isthmus.core.pipeline import Pipeline
from isthmus.privacy import Charge, Poisson
from isthmus.sets import ConvexSet, Subspace


class Refusal(Exception):
    """Why an algorithm cannot run, or has nothing to offer, on these facts: a suggestion raises it, or returns it."""


def require(ok: bool, why: str) -> None:
    """Refuse the facts, and say why, unless they are `ok`."""
    if not ok:
        raise Refusal(why)


def _full_name(algorithm: str, variant: str) -> str:
    if variant:
        return f"{algorithm} ({variant})"
    return algorithm


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One algorithm with everything its recipe takes, what it costs, and what speaks for it.

    algorithm         the name of a recipe; `variant` tells several suggestions for one apart
    arguments         what the recipe takes beside the budget, n and the adjacency
    rounds            steps to run: `minimize(..., steps=choice.rounds)`
    noise_multiplier  of the gradient's release, relative to the clip; a selection's epsilon a round; None: not private
    noise_norm        l2 norm of the noise in one update of the mean gradient (a selection: noise in one score)
    margin_noise      accumulated noise s.d. in the margin of a row of norm 1, at most; None where none is added
    dims, bytes       numbers of a gradient that leave the data in a round; bytes in the whole run
    memory, seconds   estimates: bytes beside the data, seconds on one core
    evidence, why     the theorem or measurement, and the rule that placed it
    research          no case is known in which this is the best choice
    shortfall         points of accuracy lost against the best method where both were measured; None: never measured
    of                the algorithm itself
    """

    algorithm: str
    variant: str
    arguments: Mapping[str, Any]
    rounds: int
    noise_multiplier: float | None = None
    noise_norm: float | None = None
    margin_noise: float | None = None
    dims: int
    bytes: int
    memory: int
    seconds: float
    batch_size: int | None
    passes: float
    evidence: str = ""
    why: str = ""
    research: bool = False
    shortfall: float | None = None
    epsilon: float = math.inf
    delta: float | None = None
    adjacency: str = "add-remove"
    of: Algorithm | None = field(default=None, repr=False, compare=False)

    @property
    def name(self) -> str:
        """Algorithm and variant."""
        return _full_name(self.algorithm, self.variant)

    @property
    def private(self) -> bool:
        """Whether it runs under a budget."""
        return self.epsilon != math.inf

    @property
    def direct(self) -> bool:
        """Whether it takes gradients as they are (see `Algorithm`)."""
        return self.of is not None and self.of.direct

    def recipe(
        self, *, n: int | str = "exact", public: object = None, constraint: ConvexSet | None = None, **overrides: Any
    ) -> Recipe:
        """The recipe, ready for `minimize(objective, recipe, constraint, steps=choice.rounds)`.

        n           "exact", or a public estimate of the number of records
        public      public rows X or (X, y), where the algorithm learns directions from them
        constraint  the set, only to refuse early what cannot run over it
        overrides   arguments in place of the planned ones; None leaves the planned one
        """
        assert self.of is not None
        arguments = dict(self.arguments) | {key: value for key, value in overrides.items() if value is not None}
        if "data" in self.of.parameters:
            remedy = "give the public rows, X or (X, y): directions come from them"
            validate.check(public is not None, "public", None, remedy)
            if not isinstance(public, tuple):  # with one output any label gives the same directions
                X = as_matrix("public", public)
                public = X, np.ones(X.shape[0])
            arguments["data"] = public
        for operation in self.of.needs:
            able = constraint is None or constraint.can(operation)
            validate.check(able, "constraint", constraint, f"give a set with an {operation}: {self.algorithm} needs it")
        if self.private:
            budget = {"epsilon": self.epsilon, "delta": self.delta, "n": n, "adjacency": self.adjacency}
            arguments |= {name: value for name, value in budget.items() if self.of.takes(name)}
        return self.of(**arguments)

    def to_dict(self) -> dict[str, object]:
        """Plain values."""
        values = {name: value for name, value in vars(self).items() if name != "of"}
        if not self.private:
            values["epsilon"] = None
        arguments = json.loads(json.dumps(dict(self.arguments), default=np.ndarray.tolist))
        return {**values, "name": self.name, "arguments": arguments}


AVERAGED = {"last": 1.0, "tail": math.sqrt(2 / 3), "average": math.sqrt(1 / 3)}
"""s.d. of a random walk's last point, of the mean of its second half, and of its mean, relative to the last."""


@dataclass(frozen=True)
class Run:
    """The skeleton of a suggestion: how long, on what batches, with which noise on how many numbers."""

    facts: Facts
    rounds: int
    batch_size: int | None
    clip: float
    multiplier: float | None
    dims: int
    looks: int = 0

    @property
    def divisor(self) -> int:
        """What the noisy sum is divided by."""
        return self.batch_size or self.facts.n

    @property
    def sigma(self) -> float:
        """Noise s.d. in one number of the released mean."""
        return (self.multiplier or 0.0) * self.clip / self.divisor

    @property
    def passes(self) -> float:
        """Passes over the data, those before the loop among them."""
        return self.rounds * self.divisor / self.facts.n + self.looks

    def choice(
        self, arguments: Mapping[str, object], variant: str = "", held: int = 0, flops: float = 0.0, **more: Any
    ) -> Choice:
        """The choice, which `Variant` puts its name to; `more` overrides what the skeleton says.

        held, flops  numbers that are held and multiplications that are done beside those of every run
        """
        facts = self.facts
        if self.multiplier is not None:
            norm = self.sigma * math.sqrt(self.dims)
            more = {"noise_multiplier": self.multiplier, "noise_norm": norm, "delta": facts.delta, **more}
        choice = Choice(
            algorithm="",
            variant=variant,
            arguments=dict(arguments),
            rounds=self.rounds,
            dims=self.dims,
            bytes=NUMBER * self.dims * self.rounds,
            memory=facts.memory(self.batch_size, extra=NUMBER * held),
            seconds=facts.seconds(self.rounds, self.batch_size, self.dims, flops / FLOPS),
            batch_size=self.batch_size,
            passes=self.passes,
            epsilon=facts.epsilon,
            adjacency=facts.adjacency,
        )
        return replace(choice, **more)


def _full_rounds(facts: Facts, wanted: int, looks: int = 0) -> int:
    """Rounds on all records: the caller's, or as wanted, within the allowed passes."""
    most = facts.passes - looks
    if most < 1 and facts.rounds is None:
        raise Refusal(f"it takes more than max_passes = {facts.max_passes:g} passes over the data")
    return facts.rounds or int(min(wanted, most))


def _sampled_rounds(facts: Facts, batch_size: int, passes: float) -> int:
    """Rounds on batches: the caller's, or as wanted, within the allowed passes."""
    return facts.rounds or int(min(CONSTANTS.sampled_rounds, max(1, passes * facts.n / batch_size)))


def _sampled_run(facts: Facts, clip: float, dims: int) -> Run:
    """Poisson batches, of a hundredth of the records unless the caller says otherwise."""
    batch = facts.batch_size or max(1, facts.n // 100)
    rounds = _sampled_rounds(facts, batch, facts.passes)
    numbers = facts.split(Charge("gradient", rounds=rounds, sampler=Poisson(batch / facts.n)))
    return Run(facts, rounds, batch, clip, numbers["gradient"], dims)


def full_run(facts: Facts, clip: float, dims: int, wanted: int, share: float = 1.0, looks: int = 0) -> Run:
    """All records every round; the step's share of the budget where something else is bought, in so many looks."""
    rounds = _full_rounds(facts, wanted, looks)
    multiplier = math.sqrt(rounds / (share * (1 - facts.before))) / facts.mu  # exact for Gaussian releases
    return Run(facts, rounds, None, clip, multiplier, dims, looks)


def _free_run(facts: Facts, dims: int, sampled: bool) -> Run:
    """Without a budget: all records, or shuffled batches for some epochs."""
    batch, rounds, most = None, 300, facts.passes
    if sampled:
        batch = facts.batch_size or min(facts.n, 256)
        rounds = 20 * -(-facts.n // batch)  # epochs
        most *= facts.n / batch  # the last batch of an epoch may be small: count whole ones
    return Run(facts, facts.rounds or max(1, int(min(rounds, most))), batch, 0.0, None, dims)


def _plain_run(facts: Facts, dims: int) -> Run:
    """All records, one public step: step * T is what noise depends on, as long as the allowed noise lets it be."""
    rounds = math.ceil(facts.tau * facts.b / (facts.the_clip * (CONSTANTS.longest / facts.smooth)))
    return full_run(facts, facts.the_clip, dims, min(max(rounds, 100), 400))


def walk(run: Run, step: float, averaged: str = "last", gain: float = 1.0) -> float:
    """Accumulated noise in the margin of a unit row: step sqrt(T) sigma, times what a lift keeps of it."""
    return step * math.sqrt(run.rounds) * run.sigma * gain * AVERAGED[averaged]


def allowed_step(run: Run, gain: float = 1.0) -> float:
    """The caller's step; else the longest stable one, shortened where its accumulated noise would exceed tau."""
    facts = run.facts
    if facts.step is not None:
        return facts.step
    return min(CONSTANTS.longest / facts.smooth, facts.tau / (math.sqrt(run.rounds) * run.sigma * gain))


def _stepped(run: Run, arguments: Mapping[str, object], gain: float = 1.0, **estimates: Any) -> Choice:
    """Steps as long as allowed, with the noise that they leave in a margin; what a lift keeps of both is the gain."""
    step = allowed_step(run, gain)
    arguments = {"clip": run.facts.the_clip, "step": step, **arguments}
    if run.batch_size is not None:
        arguments["batch_size"] = run.batch_size
    return run.choice(arguments, margin_noise=walk(run, step, gain=gain), **estimates)


def _sketched(run: Run, name: str, **estimates: Any) -> Choice:
    """A tight random sketch: the pseudo-inverse shrinks signal and noise alike by m / d; a known subspace is kept.

    name  what the recipe calls m
    """
    facts, share = run.facts, 1.0
    if not isinstance(facts.constraint, Subspace):
        share = run.dims / facts.parameters
    norm = run.sigma * math.sqrt(facts.parameters) * share
    return _stepped(run, {"output": "last", name: run.dims}, share, noise_norm=norm, **estimates)


P = ParamSpec("P")
Build = Callable[[Binding], Pipeline]
"""What a recipe function returns: how a pipeline is built from public facts.  Its name and arguments follow."""

_Suggest = Callable[[Facts], Choice | Refusal]


@dataclass(frozen=True)
class Variant:
    """One way to choose the arguments of an algorithm from public facts.

    make       the function that suggests
    variant    tells several of one algorithm apart
    evidence   the theorem or measurement behind it
    shortfall  points of accuracy lost against the best method at epsilon 0.5 (`private_tables`), on few columns (a9a)
               and on long CSR rows (IMDB); None: never measured
    research   it was picked and best in no cell of the table of regret
    """

    of: Algorithm[...]
    make: _Suggest
    variant: str = ""
    evidence: str = "not measured"
    shortfall: tuple[float, float] | None = None
    research: bool = False

    @property
    def name(self) -> str:
        """Algorithm and variant."""
        return _full_name(self.of.name, self.variant)

    def __call__(self, facts: Facts) -> Choice:
        """The choice under its name; a `Refusal` says why there is none."""
        choice = self.make(facts)
        if isinstance(choice, Refusal):
            raise choice
        shortfall = choice.shortfall
        if shortfall is None and self.shortfall is not None:
            shortfall = self.shortfall[int(facts.wide)]
        return replace(
            choice,
            of=self.of,
            algorithm=self.of.name,
            variant=choice.variant or self.variant,
            evidence=choice.evidence or self.evidence,
            shortfall=shortfall,
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

    function: Callable[P, Recipe | Build]
    private: bool | None = None
    direct: bool = False
    needs: tuple[str, ...] = ()
    words: str = ""
    left_out: str = ""
    like: Algorithm[...] | None = None
    own: list[Variant] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        update_wrapper(self, self.function)
        if self.private is None:
            self.private = "epsilon" in self.parameters

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Recipe:
        """The recipe for these arguments."""
        given = self.__signature__.bind(*args, **kwargs)
        built = self.function(*args, **kwargs)
        if isinstance(built, Recipe):
            return built
        validate.check(callable(built), "algorithm", self.name, "return a Recipe, or what builds its pipeline")
        given.apply_defaults()
        return Recipe(self.name, built, {k: v for k, v in given.arguments.items() if v is not ...})

    def __repr__(self) -> str:
        return f"<algorithm {self.address}>"

    @property
    def name(self) -> str:
        """The name of its function."""
        return self.function.__name__

    @cached_property
    def __signature__(self) -> inspect.Signature:
        """That of its function, with the options of `**options: Unpack[...]` by name; `...` is their own default."""
        signature = inspect.signature(self.function)
        own, shared = list(signature.parameters.values()), list[inspect.Parameter]()
        if own and "Unpack[" in str(own[-1].annotation):
            (options,) = get_args(get_type_hints(self.function)[own.pop().name])
            for name, hint in get_type_hints(options, include_extras=True).items():
                taken = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=..., annotation=hint)
                if get_origin(hint) is Required:
                    taken = taken.replace(default=inspect.Parameter.empty)
                shared.append(taken)
        return signature.replace(parameters=[*shared, *own])

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """What the recipe takes by name."""
        return self.__signature__.parameters

    def takes(self, name: str) -> bool:
        """Whether the recipe takes an argument, by name or among others."""
        return name in self.parameters or any(taken.kind is taken.VAR_KEYWORD for taken in self.parameters.values())

    # ------------------------------------------------------------ how it is filled

    @property
    def suggestions(self) -> tuple[Variant, ...]:
        """The ways to fill it; without one of its own it is filled as DP-SGD is, by the names of its arguments."""
        if self.like is not None:
            return tuple(replace(suggestion, of=self) for suggestion in self.like.suggestions)
        if self.own or self.left_out:
            return tuple(self.own)
        return (Variant(self, self._by_signature),)

    def suggest_arguments(self, variant: str = "", **said: Any) -> Callable[[_Suggest], _Suggest]:
        """Declare a function of the facts as a way to fill this algorithm; `said` is the rest of a `Variant`."""

        def declared(make: _Suggest) -> _Suggest:
            self.own.append(Variant(self, make, variant, **said))
            return make

        return declared

    filling = suggest_arguments  # its former name, which parts of one's own may use

    def _by_signature(self, facts: Facts) -> Choice:
        """clip, step, batch_size, m or k, and output, as far as the recipe takes them; the rest has its defaults."""
        sampled, dims, noise = "batch_size" in self.parameters, facts.parameters, None
        if {"m", "k"} & set(self.parameters):
            dims = facts.narrow_size
        if facts.private:
            run = _sampled_run(facts, facts.the_clip, dims) if sampled else _plain_run(facts, dims)
            step = allowed_step(run)
        else:
            run = _free_run(facts, dims, sampled)
            step = facts.step or 1 / facts.smooth
        values = {"clip": run.clip, "step": step, "batch_size": run.batch_size, "m": dims, "k": dims, "output": "last"}
        arguments = {name: value for name, value in values.items() if name in self.parameters}
        if facts.private and "step" in arguments:
            noise = walk(run, step)
        return run.choice(arguments, margin_noise=noise, evidence="not measured: filled as DP-SGD is")

    # ------------------------------------------------------------ where it is known

    @property
    def address(self) -> str:
        """Where it was declared, as "module:name"."""
        return f"{self.function.__module__}:{self.function.__qualname__}"

    def __reduce__(self) -> str | tuple[object, ...]:
        """By its name in its module; one that was made from a bare function, by that function."""
        if find(self.address) is self:
            return self.function.__qualname__
        return algorithm_of, (self.function,)

    def __deepcopy__(self, memo: object) -> Algorithm[P]:
        return self


@overload
def algorithm(function: Callable[P, Recipe | Build], /) -> Algorithm[P]: ...
@overload
def algorithm(**said: Any) -> Callable[[Callable[P, Recipe | Build]], Algorithm[P]]: ...
def algorithm(function: Any = None, /, **said: Any) -> Any:
    """Declare a recipe function as an algorithm, which planner and estimators then take like their own.

    It returns a `Recipe`, or the function that builds one's pipeline: name and arguments are then its own.

    said  the fields of an `Algorithm`; what suggests its arguments stands beside it (`suggest_arguments`)

    A whole recipe, noisy gradient descent, which the planner then ranks among its own:

    >>> from isthmus import plan
    >>> from isthmus.algorithms import Budget, algorithm
    >>> from isthmus.privacy import Clip, Gaussian
    >>> from isthmus.core.pipeline import Release
    >>> @algorithm
    ... def my_gd(*, epsilon, delta=None, clip, step, n=None, adjacency="add-remove"):
    ...     release = Release(clip=Clip(clip), mechanism=Gaussian(1.0))
    ...     return Budget(epsilon, delta, adjacency, n).descent(release, lambda t: step)
    >>> ranked = plan(n=1000, d=5, epsilon=1.0, algorithms=["dp_sgd", my_gd])
    >>> [choice.name for choice in ranked.choices], dict(ranked.choice("my_gd").arguments)["clip"]
    (['dp_sgd', 'my_gd'], 0.5)
    """

    if function is None:
        return partial(algorithm, **said)
    return Algorithm(function, **said)


def algorithm_of(recipe: object) -> Algorithm[...]:
    """A declared algorithm as it is; a bare recipe function as one."""
    if isinstance(recipe, Algorithm):
        return recipe
    remedy = "give a name of isthmus.algorithms, or a function that returns a Recipe"
    if not inspect.isfunction(recipe):
        validate.refuse("algorithm", recipe, remedy)
    return Algorithm(recipe)


def find(address: str) -> Algorithm[...] | None:
    """The algorithm at "module:name" in a module that was imported already; None where there is none."""
    module, _, path = address.partition(":")
    source: object = sys.modules.get(module)
    for part in path.split("."):
        source = inspect.getattr_static(source, part, None)  # a module's own __getattr__ may import something
    if isinstance(source, Algorithm):
        return source
    return None
