"""Private descent: clipped sums, noise in the narrow space, lifted back (DP-SGD; papers 001 and 000).

    y_i = Phi g_i,   Y = sum_i y_i min(1, C / ||y_i||) + N(0, (z C)^2 I_m),   lift Y / n

Clip after the sketch: one record moves the sum by at most C, whatever Phi is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch

from isthmus.algorithms.adaptive import COUNT_SHARE, Below
from isthmus.algorithms.budget import Budget, published_budget, rounds_of
from isthmus.algorithms.declare import algorithm
from isthmus.algorithms.dimension import WidthRule, bound_size
from isthmus.algorithms.first_order import OUTPUTS, Family, StepRule, step_rule
from isthmus.algorithms.prepared import prepared_gd
from isthmus.base import validate
from isthmus.geometry.lifts import ProjectAndLift, discard, pinv
from isthmus.geometry.sets import Whole
from isthmus.geometry.sketches import CountSketch, Encoder, GaussianSketch, Identity, PublicSubspace, Sketch
from isthmus.geometry.sketches.base import Size, resolve
from isthmus.papers import Rule
from isthmus.papers.published import comp_minibatch_sigma, privsgd_sigma
from isthmus.privacy import AdaptiveClip, Charge, Clip, FixedSize, Gaussian
from isthmus.privacy.adjacency import Adjacency
from isthmus.privacy.bounded import Bounded
from isthmus.round.minimize import Binding, Recipe
from isthmus.round.parts import Step
from isthmus.round.pipeline import Pipeline, Release, Stage, StepSize

Relation = Adjacency | str


@algorithm(
    direct=True,
    words="each round takes a random sample of the records, limits what one record can contribute, and adds noise",
)
def dp_sgd(
    *,
    epsilon: float,
    delta: float | None = None,
    clip: float | AdaptiveClip,
    step: StepRule | None = None,
    batch_size: int | None = 256,
    n: int | str | None = None,
    adjacency: Relation = "add-remove",
    momentum: float = 0.0,
    output: str = "last",
) -> Recipe:
    """DP-SGD: Poisson batches, per-record clip, Gaussian noise in R^d.

    epsilon, delta  the whole run's budget; delta defaults to min(1e-5, n^-1.1)
    clip            C: a public number, not one looked up in the data; or a `privacy.AdaptiveClip`, which starts at one
                    and follows a quantile of the norms for 5 % of the budget
    step            eta, or a rule t -> eta; by default, over a bounded set, that of Theorem 11 of paper 000:
                    ||C|| / sqrt(t (clip^2 + m sigma^2)), with sigma the noise on the mean and m the dimension it is in
    batch_size      the expected size of a Poisson batch; None looks at all records every round
    n               "exact" declares the number of records public; a number is a public estimate of it
    adjacency       "add-remove" or "replace-one"

    >>> dp_sgd(epsilon=1.0, clip=1.0, step=0.1, n="exact").name
    'dp_sgd'
    """
    filling = _Private(Budget(epsilon, delta, adjacency, n), clip, step, batch_size, output, momentum)
    return filling.recipe("dp_sgd")


@algorithm(direct=True, words="each round adds up all records, limits what one record can contribute, and adds noise")
def dp_gd(
    *,
    epsilon: float,
    delta: float | None = None,
    clip: float | AdaptiveClip,
    step: StepRule | str | None = None,
    n: int | str | None = None,
    adjacency: Relation = "add-remove",
    momentum: float = 0.0,
    output: str = "last",
    scale: str = "none",
    precondition: bool = False,
    tau: float | None = None,
) -> Recipe:
    """DP-GD: `dp_sgd` on all records every round.

    For linear models whose rows have norm at most 1 it can first buy, from the same budget, what it needs to know:

    scale         "moments" (dense): noisy column means and second moments, 10 % of the budget; columns are centred and
                  scaled, rows clipped to norm 1, a bias column added.  "columns" (CSR): second moments only, rows
                  renormalised.  `result.transform` maps new rows the same way.
    step          "auto": 2 % for lambda_max of X'X; the step is as long as it is stable and its accumulated noise,
                  about `tau` in the margin of a unit row (by default 10 / sqrt(d) for labels, 3 / sqrt(d) for numbers,
                  within limits), allows
    precondition  30 % for noisy sufficient statistics: start at their ridge solution, step with their inverse
    """
    if scale != "none" or precondition or isinstance(step, str):
        budget = Budget(epsilon, delta, adjacency, n)
        if isinstance(clip, AdaptiveClip):
            validate.refuse("clip", clip, "give a number: the step that is bought depends on it")
        validate.check(momentum == 0, "momentum", momentum, "leave it out: the step that is bought is for plain steps")
        return prepared_gd(
            budget, clip, "auto" if precondition or step is None else step, scale, precondition, tau, output
        )
    filling = _Private(Budget(epsilon, delta, adjacency, n), clip, step, None, output, momentum)
    return filling.recipe("dp_gd")


@algorithm(words="each round summarises a random sample in a few random numbers and adds noise to those")
def dp_comp_minibatch(
    *,
    epsilon: float,
    delta: float | None = None,
    m: Size | WidthRule,
    clip: float | AdaptiveClip,
    step: StepRule | None = None,
    batch_size: int | None = 256,
    n: int | str | None = None,
    adjacency: Relation = "add-remove",
    sketch: Family = CountSketch,
    tol: float = 1e-2,
    output: str = "average",
    as_published: bool = False,
) -> Recipe:
    """DP-CompMiniBatch (000): sketch, clip after, noise in R^m, project and lift onto the set.

    The published sensitivity of 2L/b is not proven and its noise can violate the claim; here the code of every
    record is clipped, and the noise is calibrated by the accountant.

    as_published  the paper's mechanism instead: batches without replacement, the rescaled sketch of their mean, the
                  printed noise (refused where its own condition fails).  The result promises nothing.

    >>> dp_comp_minibatch(epsilon=1.0, m=50, clip=1.0, step=0.1, n="exact").arguments["m"]
    50
    """
    budget = published_budget(epsilon, delta, n) if as_published else Budget(epsilon, delta, adjacency, n)
    family = GaussianSketch if as_published else sketch
    filling = _Private(budget, clip, step, batch_size, output, 0.0, m, family, tol, as_published)
    return filling.recipe("dp_comp_minibatch")


@algorithm(words="each round summarises all records in a few random numbers and adds noise to those")
def priv_sgd(
    *,
    epsilon: float,
    delta: float | None = None,
    m: Size | WidthRule,
    clip: float | AdaptiveClip,
    step: StepRule | None = None,
    n: int | str | None = None,
    adjacency: Relation = "add-remove",
    sketch: Family = CountSketch,
    tol: float = 1e-2,
    output: str = "average",
    as_published: bool = False,
) -> Recipe:
    """PrivSGD = DP-CompGD (001, App. C; 000, Alg. 4): all records every round, noise in R^m, project and lift.

    as_published  the paper's mechanism instead: the mean gradient is sketched, rescaled to its own length and noised
                  by the printed sigma for gradients of norm at most L = `clip`.  Its real sensitivity is up to 2L, not
                  2L/n: the result says so, and promises nothing.

    >>> priv_sgd(epsilon=1.0, m=50, clip=1.0, step=0.1, n="exact").name
    'priv_sgd'
    """
    budget = published_budget(epsilon, delta, n) if as_published else Budget(epsilon, delta, adjacency, n)
    filling = _Private(budget, clip, step, None, output, 0.0, m, GaussianSketch if as_published else sketch, tol)
    return replace(filling, published=as_published).recipe("priv_sgd")


@algorithm(
    private=True,
    like=priv_sgd,
    words="each round summarises all records in a few random numbers and adds noise to those",
)
def dp_comp_gd(**arguments: Any) -> Recipe:
    """DP-CompGD (000): another name of `priv_sgd`."""
    return replace(priv_sgd(**arguments), name="dp_comp_gd")


@dataclass(frozen=True)
class _Private:
    """One stage, one release: encode, clip after, Gaussian, lift, step on C."""

    budget: Budget
    clip: float | AdaptiveClip
    step: StepRule | None
    batch_size: int | None
    output: str
    momentum: float
    m: Size | WidthRule | None = None
    sketch: Family | None = None
    tol: float = 1e-2
    published: bool = False
    encoder: Encoder | None = None

    def __post_init__(self) -> None:
        fixed = not (self.published and isinstance(self.clip, AdaptiveClip))
        validate.check(fixed, "clip", self.clip, "give a number")
        self.clipping()
        if self.step is not None:
            step_rule(self.step, None)
        validate.one_of(OUTPUTS, output=self.output)
        validate.positive(tol=self.tol)

    def recipe(self, name: str, published: str | None = None) -> Recipe:
        """The recipe under its name; `published` is what a sound mechanism, run as printed, says of its guarantee."""
        shown = {"epsilon": self.budget.epsilon, "delta": self.budget.delta, "clip": self.clip, "m": self.m}
        shown |= {"batch_size": self.batch_size, "as_published": self.published or published is not None}
        if published is None:
            return Recipe(name, self.build, shown)

        def build(binding: Binding) -> Pipeline:
            pipe = self.build(binding)
            assert pipe.promise is not None
            return replace(pipe, promise=replace(pipe.promise, published=published))

        return Recipe(name, build, shown)

    def build(self, binding: Binding) -> Pipeline:
        """The pipeline for a constraint, a space and a public number of records and rounds."""
        budget, n = self.budget, self.budget.records(binding)
        sampler: Any = budget.sampler(binding, self.batch_size)
        if self.published and self.batch_size is not None:
            sampler = FixedSize(self.batch_size, binding.n)
        rounds = rounds_of(binding, sampler, n)
        plan = budget.plan(binding, self._charges(rounds, sampler))
        release = Release(clip=self.clipping(), mechanism=plan.mechanism("gradient"))
        release = replace(release, encode=self._encode(binding, sampler.rounds(n)), lift=self._lift(binding))
        promise, releases = budget.promise(plan, binding), [release]
        if self.published:
            release, promise = _as_published(release, self.clipping().init(), rounds, n, self.batch_size, promise)
            releases = [release]
        if isinstance(self.clip, AdaptiveClip):
            below = Below(release.encode, release.clip, "main/gradient")
            count = plan.mechanism(self.clip.release)
            releases.append(Release(self.clip.release, below, Clip(0.5), mechanism=count, lift=discard))
        return Pipeline(
            [Stage(sampler, releases)],
            self._step(binding, plan, sampler.divisor(n)),
            Step(binding.constraint, binding.penalty, self.momentum),
            OUTPUTS[self.output],
            output="last" if self.output == "last" else "average",
            rounds=rounds,
            promise=promise,
        )

    def _step(self, binding: Binding, plan: Any, divisor: float) -> StepSize:
        """The given step, or ||C|| / sqrt(t (L^2 + m sigma^2)): Theorem 11, paper 000."""
        if self.step is not None:
            return step_rule(self.step, None)
        bounded = binding.constraint.bounded and binding.constraint.can("diameter")
        validate.check(bounded, "step", None, "give a step: the default needs a bounded set, for its diameter")
        clip = self.clipping().init()
        m = binding.d if self.m is None else resolve(bound_size(self.m, binding, 1), binding.d)
        noise = plan.multiplier("gradient") * clip / divisor
        return Rule(binding.constraint.diameter(binding.d) / math.hypot(clip, math.sqrt(m) * noise), power=0.5)

    def clipping(self) -> Any:
        """The clip as its type."""
        before = isinstance(self.encoder, PublicSubspace) and self.encoder.clip == "before"
        if isinstance(self.clip, AdaptiveClip):
            return replace(self.clip, before=before)
        return Clip(self.clip, before=before)

    def _charges(self, rounds: int, sampler: Any) -> list[Charge]:
        if not isinstance(self.clip, AdaptiveClip):
            return [Charge("gradient", rounds=rounds, sampler=sampler)]
        shares = {"gradient": 1 - COUNT_SHARE, self.clip.release: COUNT_SHARE}
        return [Charge(k, rounds=rounds, share=v, sampler=sampler, stage="main") for k, v in shares.items()]

    def _encode(self, binding: Binding, per_epoch: int) -> Encoder:
        if self.encoder is not None:
            return self.encoder
        if self.sketch is None or self.m is None:
            return Identity()
        return self.sketch(bound_size(self.m, binding, per_epoch))

    def _lift(self, binding: Binding) -> Any:
        narrow = self.sketch is not None and not isinstance(binding.constraint, Whole)
        return ProjectAndLift(binding.constraint, tol=self.tol) if narrow else pinv


def _as_published(
    release: Release, lipschitz: float, rounds: int, n: int, batch: int | None, promise: Any
) -> tuple[Release, Any]:
    """Sketch the sum of clipped gradients, give it their length again, and add the printed noise."""
    told: dict[str, Any] = {"lipschitz": lipschitz, "n": n, "steps": rounds}
    told |= {"epsilon": promise.epsilon, "delta": promise.delta}
    claim = privsgd_sigma(**told) if batch is None else comp_minibatch_sigma(**told, batch_size=batch)
    printed = replace(
        release,
        clip=Clip(lipschitz, before=True),
        between=(_own_length,),
        mechanism=Gaussian(claim.sigma * (batch or n) / lipschitz),
    )
    words = (
        "none as claimed: the rescaled sketch of a mean moves by up to 2L when one record changes, not by 2L/n; with a "
        f"known sketch the printed noise hides that only for epsilon in the thousands (claimed: {promise.epsilon:g})"
    )
    return printed, replace(promise, published=words, sound=False)


def _own_length(bounded: Bounded, sketch: Sketch) -> Bounded:
    """g scaled so that its sketch has the length of g: h(g) = ||g|| Phi g / ||Phi g||."""
    seen = float(torch.linalg.vector_norm(sketch.forward(bounded.value)))
    length = float(torch.linalg.vector_norm(bounded.value))
    scale = length / seen if seen > 0 else 0.0
    # the stated bound is the paper's claim, not a fact: the statement of the run says so
    return replace(bounded, value=bounded.value * scale, bound=bounded.bound / sketch.gain(bounded.ord))


__all__ = ["dp_comp_gd", "dp_comp_minibatch", "dp_gd", "dp_sgd", "priv_sgd"]
