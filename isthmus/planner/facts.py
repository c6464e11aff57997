"""What the planner may know: public facts, checked and frozen.  No private row is ever among them."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from isthmus.base import validate
from isthmus.planner.constants import CONSTANTS, LossFacts
from isthmus.planner.public import PublicFacts
from isthmus.privacy.adjacency import Adjacency
from isthmus.privacy.budget import default_delta, mu_of

SCALES = ("auto", "none", "columns", "moments")


@dataclass(frozen=True)
class Facts:
    """The public facts of a problem.  Rows are taken to have norm at most 1, targets to lie in [-1, 1].

    n, d         records, columns of x; `parameters` is d times the outputs (softmax has one for each class)
    epsilon      the budget; math.inf plans a run that is not private
    constraint   the set that w must lie in, or None
    public       what public rows say (see `PublicFacts`), or None
    sparse       whether x is CSR; `density` is the public share of entries that are not 0
    max_passes   at most so many passes over the data
    max_dims     at most so many numbers of a gradient leave the data in a round
    scale        "auto" lets the planner buy column scales, "none" forbids it, others ask for one
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
    loss: str = "logistic"
    classes: int = 2
    constraint: Any = None
    public: PublicFacts | None = None
    sparse: bool = False
    density: float | None = None
    adjacency: str = "add-remove"
    max_passes: float | None = None
    max_dims: int | None = None
    scale: str = "auto"
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
        if self.epsilon != math.inf:
            validate.positive(epsilon=self.epsilon)
        delta = default_delta(self.n) if self.delta is None else self.delta
        validate.open_unit(delta=delta)
        object.__setattr__(self, "delta", delta)
        validate.one_of(CONSTANTS.losses, loss=self.loss)
        two = isinstance(self.classes, (int, np.integer)) and self.classes >= 2
        validate.check(two, "classes", self.classes, "give the number of classes, at least 2")
        one = self.classes == 2 or self.loss == "softmax" or not self.of_loss.classifier
        validate.check(one, "classes", self.classes, 'only loss="softmax" has more than two')
        if self.density is not None:
            validate.probability(density=self.density)
        validate.one_of([member.value for member in Adjacency], adjacency=self.adjacency)
        validate.one_of(SCALES, scale=self.scale)
        validate.check(0 <= self.before < 1, "before", self.before, "give a share of the budget: 0 <= before < 1")
        for name in ("max_passes", "bound", "clip", "step"):
            if getattr(self, name) is not None:
                validate.positive(**{name: getattr(self, name)})
        for name in ("max_dims", "rounds", "batch_size", "sparsity"):
            if getattr(self, name) is not None:
                validate.positive_int(**{name: getattr(self, name)})
        if self.batch_size is not None:
            validate.at_most(self.n, "n", batch_size=self.batch_size)
        validate.check(
            self.constraint is None or hasattr(self.constraint, "project"),
            "constraint",
            self.constraint,
            "give a set from isthmus.sets, or None",
        )
        if self.smoothness is not None:
            numbers = validate.as_tensor("smoothness", self.smoothness, ndim=1).double()
            validate.check(bool((numbers > 0).all()), "smoothness", self.smoothness, "give finite numbers > 0")
            right = len(numbers) in (self.d, self.parameters)
            validate.check(right, "len(smoothness)", len(numbers), f"give one number for each of {self.d} columns")
            object.__setattr__(self, "smoothness", tuple(numbers.tolist()))
        seen = self.public is None or self.public.columns == self.d
        validate.check(seen, "public", self.public, f"give public rows with d = {self.d} columns")

    # ------------------------------------------------------------ what follows from them

    @property
    def private(self) -> bool:
        """Whether there is a budget."""
        return self.epsilon != math.inf

    @property
    def of_loss(self) -> LossFacts:
        """What is public about the loss."""
        return CONSTANTS.losses[self.loss]

    @property
    def outputs(self) -> int:
        """Margins a record has."""
        return self.classes if self.loss == "softmax" else 1

    @property
    def parameters(self) -> int:
        """The dimension of a gradient."""
        return self.d * self.outputs

    @property
    def free(self) -> bool:
        """Whether columns may be scaled: a set or a penalty is about the coefficients as they are."""
        return self.constraint is None and not self.penalty

    @property
    def the_clip(self) -> float:
        """C, fixed by the caller or by the loss."""
        if self.clip is not None:
            return self.clip
        return math.sqrt(1 - 1 / self.classes) if self.loss == "softmax" else self.of_loss.clip

    @property
    def smooth(self) -> float:
        """L for rows of norm 1: the curvature of the loss, or 1."""
        return self.of_loss.curvature or 1.0

    @property
    def narrow(self) -> bool:
        """Whether fewer numbers may leave in a round than a gradient has."""
        return self.max_dims is not None and self.max_dims < self.parameters

    @property
    def entry(self) -> float:
        """A bound of |x_ij|: the caller's, or 1 / sqrt(entries of a row that are not 0) for rows of norm 1."""
        return self.bound if self.bound is not None else 1 / math.sqrt(max(1.0, self.filled))

    @property
    def filled(self) -> float:
        """Entries of a row that are not 0."""
        default = min(1.0, 100 / self.d) if self.sparse else 1.0
        return self.d * (self.density if self.density is not None else default)

    @cached_property
    def mu(self) -> float:
        """The Gaussian-DP parameter of the budget: full-batch noise is sqrt(T) / mu."""
        assert self.delta is not None
        return mu_of(self.epsilon, self.delta, Adjacency(self.adjacency))

    @property
    def b(self) -> float:
        """n mu: how many records stand above the noise."""
        return self.n * self.mu

    @property
    def tau(self) -> float:
        """The accumulated noise that a margin may get: few columns stand more of it each, labels more than numbers."""
        labels = self.of_loss.classifier
        within = CONSTANTS.tau_labels_within if labels else CONSTANTS.tau_numbers_within
        low, high = within[int(self.sparse)]
        scale = CONSTANTS.tau_labels if labels else CONSTANTS.tau_numbers
        return min(max(scale / math.sqrt(self.d), low), high)

    def to_dict(self) -> dict[str, Any]:
        """Plain values; the set by its words, long vectors by their range."""
        shown = {key: value for key, value in asdict(self).items() if key not in ("constraint", "public", "smoothness")}
        shown["epsilon"] = self.epsilon if self.private else None
        shown["constraint"] = None if self.constraint is None else repr(self.constraint)
        shown["public"] = None if self.public is None else self.public.to_dict()
        ends = None if self.smoothness is None else [min(self.smoothness), max(self.smoothness)]
        return {**shown, "smoothness": ends, "parameters": self.parameters}
