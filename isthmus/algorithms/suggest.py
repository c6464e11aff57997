"""What an algorithm is beside its recipe: what it needs, and which arguments the public facts of a problem suggest.

    @algorithm                                        a recipe is declared where it is written,
    def my_sgd(*, epsilon, clip, step, ...): ...

    @my_sgd.suggest_arguments(evidence="measured: ...")
    def _suggest(facts): ...                          and what suggests its arguments beside it
        return run.choice({"clip": ..., "step": ...})

`Facts` are all that planning looks at, with the noise, time and memory that follow from them.  A suggestion draws the
numbers of one `Run` together into a `Choice`, or refuses with a reason.  Planner, estimators, reports and files ask the
`Algorithm`; none of them has a list of their own.
"""

from __future__ import annotations

import inspect
import json
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, lru_cache, partial, update_wrapper
from typing import Any, Generic, ParamSpec, Required, get_args, get_origin, get_type_hints, overload

import numpy as np

from isthmus.base import validate
from isthmus.base.matrix import as_matrix
from isthmus.core.minimize import Binding, Recipe
from isthmus.core.pipeline import Pipeline
from isthmus.objectives.linear import Loss, known_losses, loss_of, name_of
from isthmus.privacy import Adjacency, Charge, Poisson, PrivacyPlan
from isthmus.privacy.plan import default_delta, mu_of
from isthmus.sets import ConvexSet, Subspace

Range = tuple[float, float]


@dataclass(frozen=True)
class Constants:
    """The table.  b is n mu: records times the Gaussian-DP parameter of the budget."""

    small: int = 300
    """Up to this many columns X'X is bought, and CSR columns are centred."""
    # ------------------------------------------------------------ tau: accumulated noise that a margin may get
    tau_labels: tuple[float, Range, Range] = (10.0, (1.0, 3.0), (0.3, 3.0))
    tau_numbers: tuple[float, Range, Range] = (3.0, (0.3, 1.0), (0.1, 1.0))
    """Over sqrt(d); within these, of dense and of CSR rows."""
    clip_b: float = 100.0
    """From b of so many times the parameters on the clip grows in proportion, up to where nothing is clipped."""
    # ------------------------------------------------------------ the prepared DP-GD
    statistics_b: float = 0.5
    """X'X is bought where b is at least this times d^2,"""
    several_b: float = 13.0
    """Columns of CSR rows with several outputs where b is at least this times sqrt(d),"""
    moments_b: float = 6.0
    """and column moments of dense rows where b is at least this times d."""
    shapes_b: Range = (8e3, 1e5)
    """Histograms of the columns where b^2 / (d + 1) is at least this (one output, several),"""
    shapes_levels: tuple[float, ...] = (4.6e4, 7e4, 1.1e5, 1.8e5)
    """on a finer grid from each of these on,"""
    shapes_statistics_b: Range = (0.5, 0.25)
    """X'X of smooth features where b is at least these times the squares of the numbers of columns and of features,"""
    copied: int = 2 << 30
    """Bytes that features, which are a copy of the rows, may take where nobody asked for them."""
    functions: int = 6
    features_b: float = 0.05
    """with at most so many functions of a column, and so many features in all over b."""
    ranges_b: Range = (10.0, 40.0)
    ranges_least_b: float = 115.0
    """Ranges of columns within declared ones are bought where b over d is between these and b is at least this:
    declared ones may be far wider than what is in them."""
    range_b: float = 30.0
    """Below this b the range of targets may not be found where it was not declared."""
    placed_b: float = 1000.0
    """Below this b targets are found in their range by counts of one number each; above it a histogram tells more."""
    # ------------------------------------------------------------ plain runs
    longest: float = 1.8
    """Steps over 1 / L: just stable."""
    sampled_rounds: int = 1000
    # ------------------------------------------------------------ few passes
    few_passes: int = 10
    few_passes_unscaled: int = 50
    # ------------------------------------------------------------ narrow spaces
    narrow: tuple[int, int] = (50, 500)
    """m is a twentieth of the parameters, within these."""
    small_records: int = 10_000
    """Up to this many records looking at all of them in 1000 rounds is cheap."""
    captured: float = 0.8
    """Share of hold-out energy, beyond that of random directions, from which public directions are preferred."""
    # ------------------------------------------------------------ blocks of coordinates
    uneven: float = 100.0
    """Component smoothness that differs by this factor asks for steps of its own."""
    block_b: float = 8.0
    block_dims: int = 500
    """Blocks by public frequencies are preferred from this b over d (dense, many records), so many numbers (CSR) on."""
    # ------------------------------------------------------------ sparse gradients and vertices
    sparse_b: Range = (2.0, 10.0)
    sparse_share: int = 20
    """Few coefficients are selected below this b over d: the second where at most a twentieth of them matter."""
    vertices: tuple[int, int] = (10, 100)
    tight: float = 5.0
    """A polytope is small where radius times |x_ij| is at most this."""
    # ------------------------------------------------------------ what to expect
    mean_b: float = 15.0
    """Below this b a regression is the mean of the targets, and a model of public rows stays what it is: noise would be
    larger than what private rows tell."""
    little_b: float = 50.0
    """Below this b, or d, perhaps nothing is learned: 163 of 258 small cells had nothing (docs/planner.md)."""
    sparse_columns: int = 100
    """Directions that rows of CSR are taken to have."""


CONSTANTS = Constants()


def _usual_tau(d: int, labels: bool, sparse: bool) -> float:
    """The accumulated noise that a margin may get: few columns stand more of it each, labels more than numbers."""
    scale, *within = CONSTANTS.tau_numbers
    if labels:
        scale, *within = CONSTANTS.tau_labels
    low, high = within[int(sparse)]
    return min(max(scale / math.sqrt(d), low), high)


NUMBER = 8
"""Bytes of a number (float64)."""

_ENTRIES = {False: 4e8, True: 1.5e8}
"""Entries a second that one core reads in a product of dense, and of CSR rows."""

_COPIED = {False: NUMBER, True: 12}
"""Bytes of an entry of a copied row, dense and CSR."""

_NORMALS = 1.5e6
"""Secret normals a second."""

FLOPS = 4e9
"""Multiplications a second in dense products."""

_ROUND = 4e-4
"""Seconds that a round costs whatever its size."""

_LOOKS = 3
"""How often a round reads its rows: margins, norms, weighted sum."""


@dataclass(frozen=True)
class PublicFacts:
    """Rows that were declared public: their number, whether they have labels, what their subspaces capture.

    curve  a `diagnostics.EnergyCurve`: the share of the energy of one half's gradients (at w = 0) in the top-k subspace
           of the other half; None for too few rows, or for several outputs without labels
    moments  mean x_j^2 of every column
    """

    rows: int
    columns: int
    labelled: bool
    curve: Any = None
    moments: tuple[float, ...] | None = None

    def share(self, k: int) -> float:
        """Captured energy at k; 0 without a curve."""
        if self.curve is None:
            return 0.0
        return self.curve.shares[min(k, len(self.curve.shares)) - 1]

    def beyond(self, k: int, parameters: int) -> float:
        """Captured energy beyond that of k random directions: 1 is a subspace that holds everything."""
        if k >= parameters:
            return 1.0
        return max(0.0, (self.share(k) - k / parameters) / (1 - k / parameters))

    def directions(self, limit: int, parameters: int) -> int:
        """The k <= limit that captures most beyond what k random directions would: argmax of share - k / d."""
        if self.curve is None:
            return min(limit, self.rows)
        shares = np.array(self.curve.shares[:limit])
        return int((shares - np.arange(1, len(shares) + 1) / parameters).argmax()) + 1

    def to_dict(self) -> dict[str, object]:
        """Plain values, the curve as two columns."""
        energy = None
        if self.curve is not None:
            energy = {"k": list(self.curve.ks), "captured": list(self.curve.shares)}
        return {"rows": self.rows, "columns": self.columns, "labelled": self.labelled, "energy": energy}


_NUMBERS: dict[str, Callable[..., None]] = {
    **dict.fromkeys(("max_passes", "bound", "clip", "step"), validate.positive),
    **dict.fromkeys(("n", "d", "max_dims", "rounds", "batch_size", "sparsity"), validate.positive_int),
    "density": validate.probability,
    "before": validate.non_negative,
}
"""What each number has to be, where it is given."""


@dataclass(frozen=True)
class Facts:
    """The public facts of a problem.  Rows are taken to have norm at most 1, targets to lie in [-1, 1].

    n, d         records, columns of x; `parameters` is d times the outputs (softmax has one for each class)
    loss         the name of a loss, or its class
    epsilon      the budget; math.inf plans a run that is not private
    constraint   the set that w must lie in, or None
    public       what public rows say (see `PublicFacts`), or None
    sparse       whether x is CSR; `density` is the public share of entries that are not 0
    max_passes   at most so many passes over the data
    max_dims     at most so many numbers of a gradient leave the data in a round
    scale        "auto" lets the planner buy column scales, "none" forbids it, others ask for one
    features     "linear" columns, "smooth" functions of them where a scale is bought that gives them, or "auto"
    ranged       whether columns are scaled by ranges of their own: else they are told apart on a fine grid only
    penalty      whether a penalty of w is part of the objective: then columns keep their scale
    smoothness   public component smoothness M_j: a number for each column
    bound        a public bound of |x_ij|
    sparsity     a public belief that so many coefficients matter and no more
    before       the share of the budget that something else is bought with first (ranges of columns, say)
    clip, step, rounds, batch_size   what the caller has fixed beforehand
    exact        False ranks by noise multipliers of the central limit theorem: some per cent off, and at once

    >>> Facts(n=30000, d=100, epsilon=1.0).delta
    1e-05
    """

    n: int
    d: int
    epsilon: float
    delta: float | None = None
    loss: str | Loss = "logistic"
    classes: int = 2
    constraint: ConvexSet | None = None
    public: PublicFacts | None = None
    sparse: bool = False
    density: float | None = None
    adjacency: str = "add-remove"
    max_passes: float | None = None
    max_dims: int | None = None
    scale: str = "auto"
    features: str = "auto"
    ranged: bool = True
    penalty: bool = False
    smoothness: tuple[float, ...] | None = None
    bound: float | None = None
    sparsity: int | None = None
    before: float = 0.0
    clip: float | None = None
    step: float | None = None
    rounds: int | None = None
    batch_size: int | None = None
    exact: bool = True

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and name in _NUMBERS:
                _NUMBERS[name](**{name: value})
            if name in ("sparse", "ranged", "penalty", "exact"):
                validate.check(isinstance(value, (bool, np.bool_)), name, value, "give True or False")
        if self.private:
            validate.positive(epsilon=self.epsilon)
        delta = default_delta(self.n) if self.delta is None else self.delta
        validate.open_unit(delta=delta)
        object.__setattr__(self, "delta", delta)
        if known_losses().get(self.loss_name) is self.of_loss:
            object.__setattr__(self, "loss", self.loss_name)
        several = isinstance(self.classes, (int, np.integer)) and self.classes >= 2
        validate.check(several, "classes", self.classes, "give the number of classes, at least 2")
        fits = self.classes == 2 or self.of_loss.outputs(2) > 1 or not self.of_loss.labelled()
        remedy = f'give 2, which is what {self.loss_name} has, or loss="softmax" for more'
        validate.check(fits, "classes", self.classes, remedy)
        validate.one_of([member.value for member in Adjacency], adjacency=self.adjacency)
        validate.one_of(("auto", "none", "columns", "moments", "shapes"), scale=self.scale)
        validate.one_of(("auto", "linear", "smooth"), features=self.features)
        validate.check(self.before < 1, "before", self.before, "give a share of the budget, at least 0 and below 1")
        validate.at_most(self.n, "n", batch_size=self.batch_size or 1)
        able = self.constraint is None or isinstance(self.constraint, ConvexSet)
        validate.check(able, "constraint", self.constraint, "give a set from isthmus.sets, or None")
        if self.smoothness is not None:
            numbers = validate.as_tensor("smoothness", self.smoothness, ndim=1).double()
            validate.check(bool((numbers > 0).all()), "smoothness", self.smoothness, "give finite numbers above 0")
            right = len(numbers) in (self.d, self.parameters)
            validate.check(right, "len(smoothness)", len(numbers), f"give one number for each of {self.d} columns")
            object.__setattr__(self, "smoothness", tuple(numbers.tolist()))
        matches = self.public is None or self.public.columns == self.d
        validate.check(matches, "public", self.public, f"give public rows with d = {self.d} columns")

    # ------------------------------------------------------------ what follows from them

    @cached_property
    def private(self) -> bool:
        """Whether there is a budget."""
        return self.epsilon != math.inf

    @cached_property
    def of_loss(self) -> Loss:
        """The class of the loss, which has its clip and its curvature."""
        return loss_of(self.loss)

    @property
    def loss_name(self) -> str:
        """What the loss is called."""
        return name_of(self.loss)

    @cached_property
    def outputs(self) -> int:
        """Margins a record has."""
        return self.of_loss.outputs(self.classes)

    @cached_property
    def parameters(self) -> int:
        """The dimension of a gradient."""
        return self.d * self.outputs

    @property
    def free(self) -> bool:
        """Whether columns may be scaled: a set or a penalty is about the coefficients as they are."""
        return self.constraint is None and not self.penalty

    @cached_property
    def the_clip(self) -> float:
        """C, fixed by the caller or by the loss; what clipping cuts off matters more the less noise there is."""
        usual = self.clip or self.of_loss.clip_for(self.classes)
        if self.clip is not None or not self.private or self.outputs > 1:
            return usual
        most = 2.0 if self.of_loss.equivariant else self.of_loss.slope_bound or usual
        return max(usual, min(most, usual * self.b / (CONSTANTS.clip_b * self.parameters)))

    @cached_property
    def smooth(self) -> float:
        """L for rows of norm 1: the curvature of the loss, or 1."""
        return self.of_loss.curvature or 1.0

    @property
    def passes(self) -> float:
        """How many passes over the data are allowed."""
        return self.max_passes or math.inf

    @property
    def narrow(self) -> bool:
        """Whether fewer numbers may leave in a round than a gradient has."""
        return self.max_dims is not None and self.max_dims < self.parameters

    @property
    def wide(self) -> bool:
        """Whether rows are long and CSR (text), the second regime in which algorithms were measured."""
        return self.sparse and self.d > CONSTANTS.small

    @cached_property
    def narrow_size(self) -> int:
        """m: what is allowed to leave in a round, else a twentieth of the parameters, between 50 and 500."""
        low, high = CONSTANTS.narrow
        return min(self.parameters, self.max_dims or min(max(self.parameters // 20, low), high))

    @property
    def public_size(self) -> int:
        """k from the public energy curve: the directions that capture most beyond what as many random ones would."""
        assert self.public is not None
        return self.public.directions(min(self.parameters, self.max_dims or self.parameters), self.parameters)

    @property
    def component_smoothness(self) -> np.ndarray | None:
        """Public component smoothness of every parameter: the caller's, or curvature times public second moments."""
        smoothness = self.smoothness
        if smoothness is None and self.public is not None and self.public.moments is not None:
            moments = np.array(self.public.moments)
            smoothness = self.smooth * np.maximum(moments, 0.01 * max(moments.max(), 1e-12))
        return None if smoothness is None else np.tile(smoothness, self.parameters // len(smoothness))

    @property
    def entry(self) -> float:
        """A bound of |x_ij|: the caller's, or 1 / sqrt(entries of a row that are not 0) for rows of norm 1."""
        return self.bound or 1 / math.sqrt(max(1.0, self.filled))

    @cached_property
    def filled(self) -> float:
        """Entries of a row that are not 0."""
        if self.sparse and self.density is None:
            return min(self.d, 100.0)
        return self.d * (self.density or 1.0)

    @cached_property
    def mu(self) -> float:
        """The Gaussian-DP parameter of the budget: full-batch noise is sqrt(T) / mu."""
        assert self.delta is not None
        return mu_of(self.epsilon, self.delta, Adjacency(self.adjacency))

    @cached_property
    def b(self) -> float:
        """n mu: how many records stand above the noise."""
        return self.n * self.mu

    @cached_property
    def tau(self) -> float:
        """The accumulated noise that a margin may get: few columns stand more of it each, labels more than numbers."""
        return _usual_tau(self.d, self.of_loss.labelled(), self.sparse)

    @cached_property
    def shapes(self) -> float:
        """b^2 / (d + 1): how far histograms of all columns stand above their noise."""
        return self.b**2 / (self.d + 1)

    @cached_property
    def smooth_features(self) -> int:
        """How many features the budget carries: one a column at least, and no more than X'X of them allows."""
        if self.features == "linear":
            return self.d
        count = CONSTANTS.features_b * self.b / math.sqrt(self.outputs)
        if self.outputs == 1:
            count = min(count, math.sqrt(self.b / CONSTANTS.shapes_statistics_b[1]))
        return max(self.d, min(int(count), CONSTANTS.functions * self.d))

    # ------------------------------------------------------------ noise, time and memory; the last two are estimates

    def split(self, *items: Charge) -> dict[str, float]:
        """The numbers of a plan with several items, beside what is bought before."""
        items = tuple(replace(item, share=item.share * (1 - self.before)) for item in items)
        if self.before:
            items = (Charge("before", share=self.before), *items)
        if self.exact:
            return _split(self.epsilon, self.delta or 0.0, self.adjacency, items)
        numbers = {item.name: item.number_at(1 / self.mu) for item in items}
        for item in items:  # by the central limit theorem a round at rate q spends q^2 (exp(1/z^2) - 1) of mu^2
            if not (item.mechanism.selects or item.sampler.rate == 1):
                numbers[item.name] = 1 / math.sqrt(math.log1p(numbers[item.name] ** -2))
        return numbers

    def seconds(self, rounds: int, batch_size: int | None, noised: int, extra: float = 0.0) -> float:
        """Rounds times (fixed cost + reading the batch + drawing noise), plus what a method adds of its own."""
        reading = _LOOKS * (batch_size or self.n) * self.filled * self.outputs / _ENTRIES[self.sparse]
        return rounds * (_ROUND + reading + self.private * noised / _NORMALS) + extra

    @property
    def gram_seconds(self) -> float:
        """X'X, or X X', whichever is smaller, and its eigenvalues."""
        least, most = sorted((self.n, self.d))
        return self.filled / self.d * least**2 * most / FLOPS + least**3 / FLOPS

    def memory(self, batch_size: int | None, extra: int = 0) -> int:
        """A few vectors of parameters, slopes of a batch, copied rows of a sampled batch."""
        copied = math.ceil((batch_size or 0) * self.filled) * _COPIED[self.sparse]
        return NUMBER * (6 * self.parameters + 4 * (batch_size or self.n) * self.outputs) + copied + extra

    def to_dict(self) -> dict[str, object]:
        """Plain values; the set by its words, long vectors by their range."""
        values = asdict(replace(self, constraint=None, public=None, smoothness=None))
        values |= {"loss": self.loss_name, "parameters": self.parameters}
        if not self.private:
            values["epsilon"] = None
        if self.constraint is not None:
            values["constraint"] = repr(self.constraint)
        if self.public is not None:
            values["public"] = self.public.to_dict()
        if self.smoothness is not None:
            values["smoothness"] = [min(self.smoothness), max(self.smoothness)]
        return values


@lru_cache(maxsize=256)
def _split(epsilon: float, delta: float, adjacency: str, items: tuple[Charge, ...]) -> dict[str, float]:
    plan = PrivacyPlan(epsilon, delta, Adjacency(adjacency), items=items)
    return {item.name: plan.multiplier(item.name) for item in items}


# ---------------------------------------------------------------- choices and runs


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
