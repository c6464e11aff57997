"""The public facts of a problem, all that planning looks at, and what follows from them: noise, time and memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from isthmus.base import validate
from isthmus.objectives.linear import Loss, known_losses, loss_of, name_of
from isthmus.privacy import Adjacency, Charge, PrivacyPlan
from isthmus.privacy.plan import default_delta, mu_of
from isthmus.sets import ConvexSet

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
    mean_b: float = 40.0
    """Below this b a regression is the mean of the targets: noise would be larger than what columns tell."""
    nothing_b: Range = (50.0, 100.0)
    """Below the first of these b, or d, nothing is learned; below the second, or 3 d, little."""
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
    **dict.fromkeys(("max_dims", "rounds", "batch_size", "sparsity"), validate.positive_int),
    "density": validate.probability,
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
        validate.positive_int(n=self.n, d=self.d)
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
        validate.non_negative(before=self.before)
        validate.check(self.before < 1, "before", self.before, "give a share of the budget, at least 0 and below 1")
        for name, value in vars(self).items():
            if value is not None and name in _NUMBERS:
                _NUMBERS[name](**{name: value})
            if name in ("sparse", "ranged", "penalty", "exact"):
                validate.check(isinstance(value, (bool, np.bool_)), name, value, "give True or False")
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
