"""Private descent: clipped sums, noise in the narrow space, lifted back (DP-SGD; papers 001 and 000).

    y_i = Phi g_i,   Y = sum_i y_i min(1, C / ||y_i||) + N(0, (z C)^2 I_m),   lift Y / n

Clip after the sketch: one record moves the sum by at most C, whatever Phi is.  `Budget` is what every private recipe
takes.  A clip bound may follow a quantile of the norms, from a count that is paid for (Andrew et al. 2021).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Required, TypedDict, Unpack

from isthmus.algorithms import filling, purchases
from isthmus.algorithms.filling import CONSTANTS, NUMBER, Build, Choice, Facts, Refusal, Run, algorithm
from isthmus.algorithms.first_order import Descent, Family, StepRule, Stop, WidthRule, narrowed, step_rule
from isthmus.algorithms.purchases import SMALL, SumPurchase
from isthmus.base import validate
from isthmus.core.minimize import Binding
from isthmus.core.parts import Update
from isthmus.core.pipeline import Pipeline, Promise, Release, Stage, StepSize
from isthmus.lifts import discard, pinv, unbiased
from isthmus.objectives.linear import GRAM_LIMIT
from isthmus.parts import AgainstAnchor, Full, Mirror, Restart, Shuffle, Step, Tail
from isthmus.penalties import NoPenalty
from isthmus.privacy import AdaptiveClip, Charge, Clip, FixedSize, FullBatch, GroupClip, Poisson, PrivacyPlan
from isthmus.privacy.accounting import Adjacency
from isthmus.privacy.clips import COUNT_SHARE, ClipCountEncoder
from isthmus.privacy.plan import default_delta
from isthmus.sets import Simplex, Whole
from isthmus.sketches import CountSketch, Encoder, GaussianSketch
from isthmus.sketches.base import Size, resolve
from isthmus.theory import Rule, Schedule
from isthmus.theory.printed import Printed, own_length

__all__ = ["dp_comp_gd", "dp_comp_minibatch", "dp_gd", "dp_sgd", "priv_sgd"]

_ASSUMPTIONS = (
    "one record belongs to one person",
    "nothing about the data was published except what is stated here: step, clip, set, number of rounds and the sketch "
    "are public choices",
)


_Relation = Adjacency | str


class BudgetOptions(TypedDict, total=False):
    """What every private recipe takes: the arguments of `Budget`."""

    epsilon: Required[float]
    delta: float | None
    n: int | str | None
    adjacency: _Relation


@dataclass(frozen=True)
class Budget:
    """(epsilon, delta), the adjacency, and what is public about the number of records.

    n  "exact": the true number of records is declared public; a number: a public estimate of it, which fixes the
       divisors and the sampling rate while the true number stays private
    """

    epsilon: float
    delta: float | None = None
    adjacency: Adjacency | str = "add-remove"
    n: int | str | None = None

    def __post_init__(self) -> None:
        validate.positive(epsilon=self.epsilon)
        if self.delta is not None:
            validate.open_unit(delta=self.delta)
        Adjacency.of(self.adjacency)
        valid = self.n == "exact" or (isinstance(self.n, int) and not isinstance(self.n, bool) and self.n > 0)
        remedy = 'declare the number of records: n="exact" makes it public, a number estimates it'
        validate.check(valid, "n", self.n, remedy)

    @property
    def relation(self) -> Adjacency:
        """The adjacency as its type."""
        return Adjacency.of(self.adjacency)

    def records(self, binding: Binding) -> int:
        """The public number of records."""
        return binding.n if self.n == "exact" else int(self.n or 1)

    def sampler(self, binding: Binding, batch_size: int | None) -> FullBatch | Poisson:
        """All records, or Poisson batches of an expected size; the sum is divided by a public constant."""
        n = self.records(binding)
        if batch_size is None:
            return FullBatch() if self.n == "exact" else Poisson(1.0, float(n))
        validate.positive_int(batch_size=batch_size)
        validate.at_most(n, "the public number of records", batch_size=batch_size)
        return Poisson(batch_size / n, float(batch_size))

    def plan(self, binding: Binding, items: Sequence[Charge]) -> PrivacyPlan:
        """The split of the budget over what is released, what was charged before the recipe's own items among it."""
        remaining = 1 - sum(charge.share for charge in binding.before)
        items = [*binding.before, *(replace(item, share=item.share * remaining) for item in items)]
        delta = default_delta(self.records(binding)) if self.delta is None else self.delta
        return PrivacyPlan(self.epsilon, delta, self.relation, items=items)

    def promise(self, plan: PrivacyPlan, binding: Binding) -> Promise:
        """What the pipeline promises under a plan."""
        n = binding.n if self.n == "exact" else None
        delta = float(plan.delta or 0)
        return Promise(self.epsilon, delta, self.relation, n, _ASSUMPTIONS, plan, self.records(binding))

    def pipeline(
        self, binding: Binding, plan: PrivacyPlan, rounds: int, stages: Sequence[Stage], step: StepSize, **slots: Any
    ) -> Pipeline:
        """The stages in a loop of so many rounds under a plan, with projected steps unless the slots say otherwise."""
        slots.setdefault("update", Step(binding.constraint, binding.penalty))
        return Pipeline(stages, step, rounds=rounds, promise=self.promise(plan, binding), **slots)


def published_budget(**terms: Unpack[BudgetOptions]) -> Budget:
    """The budget of a mechanism run as printed: replace-one, and its formulas use the true number of records."""
    n = terms.get("n")
    validate.check(n == "exact", "n", n, 'give n="exact": as published, the number of records is fixed and public')
    return replace(Budget(**terms), adjacency=Adjacency.REPLACE_ONE)


def rounds_of(binding: Binding, sampler: FullBatch | Poisson | FixedSize, n: int, scheduled: int | None = None) -> int:
    """How many rounds the run is planned for, as asked or as `scheduled`: it may stop earlier, never go on."""
    if binding.steps is not None:
        return binding.steps
    if binding.epochs is None:
        if scheduled is not None:
            return scheduled
        validate.refuse("steps, epochs", (None, None), "give one of the two: a private run is planned beforehand")
    return max(1, round(binding.epochs * sampler.rounds(n)))


_PrivateSampler = FullBatch | Poisson | FixedSize

_SCALES = ("none", "columns", "moments", "shapes")


class PrivateOptions(BudgetOptions, total=False):
    """What private descents share; see `dp_sgd`."""

    clip: Required[float | AdaptiveClip]
    step: StepRule | None
    output: str
    schedule: Schedule | None
    stop: Stop | None
    micro_batch: int


class NarrowPrivateOptions(PrivateOptions, total=False):
    """What those with maps share; see `dp_comp_minibatch`."""

    m: Size | WidthRule | None
    sketch: Family
    tol: float
    pick: str
    clipped: str
    as_published: bool


@algorithm(
    direct=True,
    words="each round takes a random sample of the records, limits what one record can contribute, and adds noise",
)
def dp_sgd(*, batch_size: int | None = 256, momentum: float = 0.0, **options: Unpack[PrivateOptions]) -> Build:
    """DP-SGD: Poisson batches, per-record clip, Gaussian noise in R^d.

    epsilon, delta  the whole run's budget; delta defaults to min(1e-5, n^-1.1)
    clip            C: a public number, not one looked up in the data; or a `privacy.AdaptiveClip`, which starts at one
                    and follows a quantile of the norms for 5 % of the budget
    step            eta, or a rule t -> eta; by default, over a bounded set, that of Theorem 11 of paper 000:
                    ||C|| / sqrt(t (clip^2 + m sigma^2)), with sigma the noise on the mean and m the dimension it is in
    batch_size      the expected size of a Poisson batch; None looks at all records every round
    n               "exact" declares the number of records public; a number is a public estimate of it
    adjacency       "add-remove" or "replace-one"
    output          as for `algorithms.sgd`
    schedule        a schedule of `isthmus.theory`: fills the step, the number of rounds, m where there is one, and the
                    stop rule, where they are not given
    stop            a stop rule, such as `FirstOrderStationary`; the run returns the point it fired at, or x = None (as
                    Corollary C.2 of paper 001).  It reads what was released and costs nothing, and the statement counts
                    all planned rounds
    micro_batch     clip means over about so many records in place of records, as some papers do to save time.  One
                    record moves one mean by up to 2C, and that is noised for: for add-remove twice the noise of C; for
                    replace-one the same noise on all records, and twice on samples of them

    >>> dp_sgd(epsilon=1.0, clip=1.0, step=0.1, n="exact").name
    'dp_sgd'
    """
    return PrivateDescent(batch_size=batch_size, momentum=momentum, **options).build


@algorithm(direct=True, words="each round adds up all records, limits what one record can contribute, and adds noise")
def dp_gd(
    *,
    clip: float | AdaptiveClip,
    step: StepRule | str | None = None,
    momentum: float = 0.0,
    output: str = "last",
    scale: str = "none",
    features: int | None = None,
    functions: int = 6,
    level: int = 6,
    targets: bool = False,
    precondition: bool = False,
    tau: float | None = None,
    schedule: Schedule | None = None,
    stop: Stop | None = None,
    **budget: Unpack[BudgetOptions],
) -> Build:
    """DP-GD: `dp_sgd` on all records every round.

    For linear models whose rows have norm at most 1 it can first buy, from the same budget, what it needs to know:

    scale         "moments" (dense): noisy column means and second moments, 10 % of the budget; columns are centred and
                  scaled, rows clipped to norm 1, a bias column added.  "columns" (CSR): second moments only, rows
                  renormalised.  "shapes" (dense): histograms of the columns, 25 %, and of the targets, 3 %; columns
                  become at most `functions` smooth functions each and `features` in all (see `problems.features`; 1 is
                  the linear one), targets are centred, logits start at the class shares; `level` is that of the grid.
                  `result.transform` maps new rows the same way.
    targets       3 % for the histogram of the targets with any other scale too
    step          "auto": 2 % for lambda_max of X'X; the step is as long as it is stable and its accumulated noise,
                  about `tau` in the margin of a unit row (by default 10 / sqrt(d) for labels, 3 / sqrt(d) for numbers,
                  within limits), allows
    precondition  30 % for noisy sufficient statistics: start at their ridge solution, step with their inverse
    """
    buys = _purchases_of(scale, step, precondition, tau, purchases.Shapes(features or 0, functions, level), targets)
    rule = None if isinstance(step, str) else step
    validate.check(rule is None or not precondition, "step", step, "leave it out: preconditioned steps have length 1")
    fixed = not (buys and isinstance(clip, AdaptiveClip))
    validate.check(fixed, "clip", clip, "give a number: the step that is bought depends on it")
    for name, value in {"momentum": momentum or None, "schedule": schedule, "stop": stop}.items():
        remedy = "leave it out: what is bought is for a planned number of plain steps"
        validate.check(value is None or not buys, name, value, remedy)
    loop = {"momentum": momentum, "output": output, "schedule": schedule, "stop": stop}
    return PrivateDescent(clip=clip, step=rule, buys=buys, **loop, **budget).build  # type: ignore[arg-type]


@algorithm(words="each round summarises a random sample in a few random numbers and adds noise to those")
def dp_comp_minibatch(*, batch_size: int | None = 256, **options: Unpack[NarrowPrivateOptions]) -> Build:
    """DP-CompMiniBatch (000): sketch, clip after, noise in R^m, project and lift onto the set.

    The published sensitivity of 2L/b is not proven and its noise can violate the claim; here the code of every
    record is clipped, and the noise is calibrated by the accountant.

    m, sketch, tol, pick  as for `algorithms.comp_sgd`; the rest as for `dp_sgd`
    clipped       codes "after" the map, or gradients "before" it, where a record counts C times the map's gain
    as_published  the paper's mechanism instead: batches without replacement, the rescaled sketch of their mean, the
                  printed noise (refused where its own condition fails).  The result promises nothing.

    >>> dp_comp_minibatch(epsilon=1.0, m=50, clip=1.0, step=0.1, n="exact").arguments["m"]
    50
    """
    return NarrowPrivateDescent(batch_size=batch_size, **options).build


@algorithm(words="each round summarises all records in a few random numbers and adds noise to those")
def priv_sgd(**options: Unpack[NarrowPrivateOptions]) -> Build:
    """PrivSGD = DP-CompGD (001, App. C; 000, Alg. 4): all records every round, noise in R^m, project and lift.

    m, sketch, tol, pick  as for `algorithms.comp_sgd`; the rest as for `dp_sgd`
    clipped       codes "after" the map, or gradients "before" it, where a record counts C times the map's gain
    as_published  the paper's mechanism instead: the mean gradient is sketched, rescaled to its own length and noised
                  by the printed sigma for gradients of norm at most L = `clip`.  Its real sensitivity is up to 2L, not
                  2L/n: the result says so, and promises nothing.

    >>> priv_sgd(epsilon=1.0, m=50, clip=1.0, step=0.1, n="exact").name
    'priv_sgd'
    """
    return NarrowPrivateDescent(**options).build


@algorithm(like=priv_sgd, words=priv_sgd.words)
def dp_comp_gd(**options: Unpack[NarrowPrivateOptions]) -> Build:
    """DP-CompGD (000): another name of `priv_sgd`."""
    return priv_sgd(**options).build


@dataclass(frozen=True, kw_only=True)
class PrivateDescent(Descent):
    """One stage, one release: encode, clip after, Gaussian, lift, step on C; and what is bought before it.

    as_published sketch the whole sum as papers 001 and 000 print it
    guarantee    what a sound mechanism, run as printed, says of itself
    clipped      codes "after" the map, or gradients "before" it
    micro_batch  the expected size of micro-batches, whose means are clipped; 1: records are
    dims         of codes, where an encoder of its own makes them
    moves        the update, in place of a projected step
    """

    epsilon: float
    delta: float | None = None
    n: int | str | None = None
    adjacency: _Relation = "add-remove"
    clip: float | AdaptiveClip
    batch_size: int | None = None
    encoder: Encoder | None = None
    dims: int | None = None
    buys: tuple[SumPurchase, ...] = ()
    as_published: bool = False
    guarantee: str = ""
    clipped: str = "after"
    micro_batch: int = 1
    moves: Callable[[Binding], Update] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        Adjacency.of(self.budget.adjacency)  # the budget is checked here, not when it is bound
        validate.one_of(("after", "before"), clipped=self.clipped)
        validate.positive_int(micro_batch=self.micro_batch)
        moving = isinstance(self.clip, AdaptiveClip)
        whole = self.micro_batch == 1 or not (self.as_published or moving)
        remedy = "leave it out, or give a fixed clip and as_published=False, which micro-batches need"
        validate.check(whole, "micro_batch", self.micro_batch, remedy)
        remedy = "give a number: the clip of a published algorithm does not move"
        validate.check(not (self.as_published and moving), "clip", self.clip, remedy)
        self.clipping()
        if self.buys:
            validate.one_of(("last", "average"), output=self.output)

    @cached_property
    def budget(self) -> Budget:
        """Of the run; as published, replace-one, and the formulas use the true number of records."""
        make = published_budget if self.as_published else Budget
        return make(epsilon=self.epsilon, delta=self.delta, adjacency=self.adjacency, n=self.n)

    def build(self, binding: Binding) -> Pipeline:
        """The pipeline for a constraint, a space and a public number of records and rounds."""
        _check_purchases(self.buys, binding)
        budget, n, sampler = self.budget, self.budget.records(binding), self._sampler(binding)
        rounds = rounds_of(binding, sampler, n, None if self.schedule is None else self.schedule.rounds)
        plan = budget.plan(binding, self._charges(rounds, sampler))
        promise = budget.promise(plan, binding)
        more: dict[str, object] = {"promise": replace(promise, epsilon=math.inf) if self.as_published else promise}
        if self.moves is not None:
            more["update"] = self.moves(binding)
        if self.buys:
            more["average"] = Tail(start=rounds // 2)
            terms = purchases.Terms(n, rounds, self.clipping().init(), plan.mu)
            more["before"] = purchases.paid(plan, self.buys, terms)
        groups = None if self.micro_batch == 1 else round(sampler.divisor(n))
        stage = Stage(sampler, self._releases(binding, plan, sampler, rounds), groups=groups)
        return self.pipeline(binding, [stage], self._step(binding, plan, sampler, rounds), rounds=rounds, **more)

    def _sampler(self, binding: Binding) -> _PrivateSampler:
        if self.as_published and self.batch_size is not None:
            return FixedSize(self.batch_size, binding.n)
        sampler = self.budget.sampler(binding, self.batch_size)
        if self.micro_batch == 1:
            return sampler
        groups = max(1, round(sampler.divisor(self.budget.records(binding)) / self.micro_batch))
        return replace(sampler, expected=float(groups))  # the mean is over groups

    def _releases(self, binding: Binding, plan: PrivacyPlan, sampler: _PrivateSampler, rounds: int) -> list[Release]:
        """The gradient, and the count that moves an adaptive clip."""
        n, mechanism, clip = self.budget.records(binding), plan.mechanism("gradient"), self.clipping(sampler)
        encode = self.encoder or self.encode(binding, sampler.rounds(n))
        mechanism = Printed(mechanism, self.guarantee) if self.guarantee else mechanism
        release = Release(encode=encode, clip=clip, mechanism=mechanism, lift=self.lift(binding))
        if self.as_published:
            budget = {"epsilon": self.budget.epsilon, "delta": plan.delta or 0.0}
            return [own_length(release, clip.init(), n=n, steps=rounds, **budget, batch=self.batch_size)]
        if not isinstance(clip, AdaptiveClip):
            return [release]
        below = ClipCountEncoder(encode, clip, "main/gradient")
        return [release, Release(clip.release, below, Clip(0.5), mechanism=plan.mechanism(clip.release), lift=discard)]

    def _step(self, binding: Binding, plan: PrivacyPlan, sampler: _PrivateSampler, rounds: int) -> StepSize:
        """The given step, or ||C|| / sqrt(t (L^2 + m_T sigma^2)): Theorem 11, paper 000.  A bought one replaces it."""
        if self.step is not None or self.schedule is not None:
            return step_rule(self.step, self.schedule)
        if self.buys:
            return lambda t: 1.0
        diameter, n, clip = diameter_of(binding), self.budget.records(binding), self.clipping().init()
        size, m, gain = self.size(binding, sampler.rounds(n)), self.dims or binding.d, 1.0
        if size is not None:  # m_T, the largest of the run
            m = max(resolve(size, binding.d, t) for t in (range(rounds) if callable(size) else (0,)))
            gain = math.sqrt(binding.d / m) if self.clipped == "before" else 1.0
        noise = plan.multiplier("gradient") * self.clipping(sampler).total(clip) * gain / sampler.divisor(n)
        return Rule(diameter / math.hypot(clip, math.sqrt(m) * noise), power=0.5)

    def clipping(self, sampler: _PrivateSampler | None = None) -> AdaptiveClip | Clip | GroupClip:
        """The clip as its type; that of micro-batches depends on what the sampler looks at."""
        before = self.clipped == "before" or (self.encoder is not None and self.encoder.clips_before)
        if isinstance(self.clip, AdaptiveClip):
            return replace(self.clip, before=before)
        if self.micro_batch == 1:
            return Clip(self.clip, before=before)
        whole = sampler is not None and sampler.rate == 1
        return GroupClip(self.clip, 2, before, whole and self.budget.relation is Adjacency.REPLACE_ONE)

    def _charges(self, rounds: int, sampler: _PrivateSampler) -> list[Charge]:
        if isinstance(self.clip, AdaptiveClip):
            shares = {"gradient": 1 - COUNT_SHARE, self.clip.release: COUNT_SHARE}
            return [Charge(k, rounds=rounds, share=v, sampler=sampler, stage="main") for k, v in shares.items()]
        remaining = 1 - sum(item.share for item in self.buys)
        return [*purchases.charges_of(self.buys), Charge("gradient", rounds=rounds, share=remaining, sampler=sampler)]


@dataclass(frozen=True, kw_only=True)
class NarrowPrivateDescent(PrivateDescent):
    """Through maps: as published, Gaussian ones."""

    sketch: Family = CountSketch
    output: str = "average"

    def encode(self, binding: Binding, per_epoch: int) -> Encoder:
        """The map."""
        size = self.size(binding, per_epoch)
        assert size is not None
        return GaussianSketch(size) if self.as_published else self.sketch(size)


def diameter_of(binding: Binding) -> float:
    """||C||, of which default steps are made."""
    bounded = binding.constraint.bounded and binding.constraint.can("diameter")
    validate.check(bounded, "step", None, "give a step: the default needs a bounded set, for its diameter")
    return float(binding.constraint.diameter(binding.d))


def _purchases_of(
    scale: str,
    step: StepRule | str | None,
    precondition: bool,
    tau: float | None,
    shapes: purchases.Shapes,
    targets: bool,
) -> tuple[SumPurchase, ...]:
    """What `dp_gd(scale=..., step=..., precondition=...)` buys; a step that is not given is bought with the rest."""
    validate.one_of(_SCALES, scale=scale)
    if isinstance(step, str):
        validate.one_of(("auto",), step=step)
    if tau is not None:
        validate.positive(tau=tau)
    smooth, items = scale == "shapes", list[SumPurchase]()
    if scale != "none":
        items.append({"columns": purchases.Columns(), "moments": purchases.Moments(), "shapes": shapes}[scale])
    if targets or smooth:
        items.append(purchases.TargetShape(clips=smooth))
    if precondition:
        items.append(purchases.ShrunkStatistics() if smooth else purchases.Statistics())
    elif step == "auto" or (step is None and scale != "none"):
        items.append(purchases.Lambda(tau=tau))
    return tuple(items)


def _check_purchases(items: Sequence[SumPurchase], binding: Binding) -> None:
    """Refuse sets and penalties that mean something else after what is bought."""
    free = isinstance(binding.constraint, Whole)
    scaled = any(isinstance(item, (purchases.Columns, purchases.Moments, purchases.Shapes)) for item in items)
    remedy = "leave it out: scaled columns change what a set means"
    validate.check(free or not scaled, "constraint", binding.constraint, remedy)
    plain = free and isinstance(binding.penalty, NoPenalty)
    alone = "leave out the set and the penalty: preconditioned steps have no proximal map"
    preconditioned = any(isinstance(item, purchases.Statistics) for item in items)
    validate.check(plain or not preconditioned, "precondition", True, alone)


SHARES = {
    "none": 0.0,
    "columns": purchases.Columns().share,
    "moments": purchases.Moments().share,
    "shapes": purchases.Shapes(0).share + purchases.TargetShape().share,
}


def _centred(facts: Facts, scale: str) -> bool:
    """Whether the distribution of the targets is bought beside a scale that does not bring it."""
    return scale in ("none", "moments") and facts.of_loss.equivariant and not facts.sparse and facts.free


def _spent_on(facts: Facts, scale: str) -> float:
    """The share of the budget that a scale takes, with the targets' where they are bought."""
    return SHARES[scale] + (purchases.TargetShape().share if _centred(facts, scale) else 0.0)


@dp_gd.filling(
    "plain",
    evidence="measured (private_tables): a9a .839, IMDB .811 at epsilon 0.5 with 100 rounds",
    shortfall=(0.011, 0.037),
)
def plain(facts: Facts) -> Choice:
    """All records, one public step; nothing is bought."""
    return filling.stepped(filling.plain_run(facts, facts.parameters), {})


def _preconditioned(facts: Facts, scale: str) -> Choice:
    """A scale, then X'X."""
    _check_prepared(facts, scale)
    if not facts.free:
        raise Refusal("preconditioned steps have no proximal map: leave out the set and the penalty")
    if facts.of_loss.curvature is None or facts.outputs > 1:
        raise Refusal("noisy X'X is for a smooth loss with one output")
    columns = facts.smooth_features if scale == "shapes" else facts.d
    if columns + 1 > SMALL:
        raise Refusal(f"noisy X'X is for fewer than {SMALL} columns")
    least = facts.smooth_statistics if scale == "shapes" else CONSTANTS.statistics_b * columns**2
    if facts.b < least:
        raise Refusal(f"noise would drown X'X: n mu = {facts.b:.3g} is less than {least:.3g}")
    if facts.step is not None:
        raise Refusal("preconditioned steps have length 1: leave step out")
    share = 1 - _spent_on(facts, scale) - purchases.Statistics().share
    looks = 1 + _looks(facts, scale, automatic=False)
    rounds = CONSTANTS.shapes_rounds if scale == "shapes" else CONSTANTS.statistics_rounds
    run = filling.full_run(facts, facts.the_clip, columns + 1, rounds, share, looks)
    # standardised rows of norm 1 have X'X / n near I / (d + 1); the points of all rounds are averaged
    inverse = (columns + 1) / (facts.of_loss.usual_curvature or facts.of_loss.curvature)
    margin = inverse * run.sigma / math.sqrt(max(1, run.rounds - run.rounds // 2))
    # the last half of the points is averaged; steps along smooth features average by themselves
    output = "last" if scale == "shapes" else "average"
    return run.choice(
        {"clip": facts.the_clip, "scale": scale, "precondition": True, "output": output, **_shaped(facts, scale)},
        margin_noise=margin,
        seconds=facts.seconds(run.rounds, None, run.dims, facts.gram_seconds),
        memory=facts.memory(None, extra=3 * NUMBER * columns**2 + _copied(facts, scale)),
    )


def _shaped(facts: Facts, scale: str) -> dict[str, Any]:
    """What the recipe is told of smooth features."""
    if scale != "shapes":
        return {"targets": True} if _centred(facts, scale) else {}
    functions = 1 if facts.features == "linear" else CONSTANTS.functions
    return {"features": facts.smooth_features, "functions": functions, "level": facts.shapes_level}


def _copied(facts: Facts, scale: str) -> int:
    """Bytes of the features, which are a copy."""
    return NUMBER * facts.n * facts.smooth_features if scale == "shapes" else 0


@dp_sgd.filling(
    evidence="measured: a9a .840 in one pass, all records .764; .846 in 10 passes at epsilon 0.5 (private_tables)",
    shortfall=(0.004, 0.026),
)
def batches(facts: Facts) -> Choice:
    """Poisson batches of n / 100."""
    return filling.stepped(filling.sampled_run(facts, facts.the_clip, facts.parameters), {})


@dp_comp_minibatch.filling(
    evidence="Theorem 14 (000); measured on validation rows: a9a .835 with m = 20, DP-SGD .846; IMDB .800 with m = 500",
    shortfall=(0.011, 0.05),
    research=True,
)
def _sketched_batches(facts: Facts) -> Choice:
    """Poisson batches, a fresh count-sketch every round."""
    run = filling.sampled_run(facts, facts.the_clip, facts.narrow_size)
    return filling.sketched(run, {"m": run.dims})


@priv_sgd.filling(
    evidence="Theorem 12 (000); measured: lending R2 .439 with 3000 rows and m = 20, on batches .436, in blocks .26",
    shortfall=(0.012, 0.06),
)
def _sketched_sums(facts: Facts) -> Choice:
    """All records, a fresh count-sketch every round."""
    run = filling.full_run(facts, facts.the_clip, facts.narrow_size, CONSTANTS.sampled_rounds)
    return filling.sketched(run, {"m": run.dims})


def preferred(facts: Facts) -> str:
    """Which preparation of DP-GD the facts ask for."""
    solvable = facts.of_loss.curvature is not None and facts.outputs == 1
    if facts.free and shaped(facts):
        few = facts.smooth_features < SMALL and facts.b >= facts.smooth_statistics
        return "shapes and statistics bought" if solvable and few and facts.step is None else "shapes and step bought"
    if not facts.free and facts.scale in ("auto", "none"):
        return "step bought"
    if facts.scale == "none":
        return "step bought"
    started = facts.public is not None and facts.public.labelled  # a start is better in columns that are scaled
    several = facts.sparse and facts.scale == "auto" and facts.outputs > 1 and not started
    if several and facts.b < CONSTANTS.several_b * math.sqrt(facts.d):
        return "plain"
    if facts.scale == "columns" or (facts.sparse and facts.scale == "auto"):
        return "columns and step bought"
    if solvable and facts.free and facts.d < SMALL and facts.b >= CONSTANTS.statistics_b * facts.d**2:
        return "statistics bought"
    if facts.scale == "moments" or facts.b >= CONSTANTS.moments_b * facts.d:
        return "moments and step bought"
    return "step bought" if facts.d <= CONSTANTS.small else "columns and step bought"


def shaped(facts: Facts) -> bool:
    """Whether histograms of the columns are worth their price: as asked, or where they stand out of their noise."""
    if facts.sparse or facts.scale not in ("auto", "shapes"):
        return False
    wide = facts.d > SMALL or NUMBER * facts.n * facts.smooth_features > CONSTANTS.copied
    if wide and facts.scale == "auto" and facts.features == "auto":
        return False
    required = facts.scale == "shapes" or facts.features == "smooth"
    least = CONSTANTS.shapes_b[facts.outputs > 1]
    return required or facts.shapes >= (least if facts.ranged else max(least, CONSTANTS.shapes_levels[-1]))


def _check_prepared(facts: Facts, scale: str) -> None:
    """Refuse facts that this preparation is not for."""
    if scale != "none" and not facts.free and (facts.scale == "auto" or facts.constraint is not None):
        raise Refusal("a set or a penalty is about the coefficients as they are: columns are not rescaled")
    if facts.scale == "none" != scale and facts.public is not None:
        raise Refusal("columns were scaled by public rows")
    if facts.scale not in ("auto", scale):
        raise Refusal(f"scale={facts.scale!r} was asked for")
    if scale == "shapes" and facts.sparse:
        raise Refusal("smooth features are for dense rows")
    if scale == "moments" and facts.sparse and facts.d > SMALL:
        raise Refusal(f"CSR rows of more than {SMALL} columns are not centred")


def _looks(facts: Facts, scale: str, automatic: bool) -> int:
    """Passes over the data before the loop."""
    spectrum = 1 if min(facts.n, facts.d) <= GRAM_LIMIT else CONSTANTS.lanczos_passes
    targets = scale == "shapes" or _centred(facts, scale)
    return int(scale != "none") + int(targets) + (spectrum if automatic else 0)


def _rounds(facts: Facts, scale: str) -> int:
    """T of the bought step."""
    if scale == "none":
        scaled_by_public = facts.public is not None and not facts.sparse  # rows that were scaled by public moments
        return CONSTANTS.scaled_rounds if scaled_by_public else CONSTANTS.unscaled_rounds
    if facts.sparse and facts.d > CONSTANTS.small:
        low, high = CONSTANTS.text_rounds
        return min(max(round(facts.tau * facts.b / (CONSTANTS.text_unit * facts.the_clip)), low), high)
    return CONSTANTS.scaled_rounds


def _prepared(facts: Facts, scale: str) -> Choice:
    _check_prepared(facts, scale)
    automatic = facts.step is None
    spent = _spent_on(facts, scale) + (purchases.Lambda().share if automatic else 0)
    columns = facts.smooth_features if scale == "shapes" else facts.d
    dims = (columns + (scale in ("moments", "shapes"))) * facts.outputs
    looks = _looks(facts, scale, automatic)
    run = filling.full_run(facts, facts.the_clip, dims, _rounds(facts, scale), 1 - spent, looks)
    numbers = facts.of_loss.curvature is not None and not facts.of_loss.labelled()
    averaged = numbers and not facts.sparse and (scale != "none" or facts.public is not None)
    arguments: dict[str, Any] = {"clip": facts.the_clip, "scale": scale, "output": "average" if averaged else "last"}
    arguments |= _shaped(facts, scale)
    if facts.step is not None:
        margin = filling.walk(run, facts.step)
        arguments["step"] = facts.step
    else:
        # the longest stable step is d times 1.8 / h at most, as the spectrum allows; or what tau allows
        margin = min(filling.walk(run, CONSTANTS.longest * dims / facts.smooth), facts.tau * math.sqrt(1 / (1 - spent)))
        arguments |= {"step": "auto", "tau": facts.tau}
    large = automatic and looks < CONSTANTS.lanczos_passes
    return run.choice(
        arguments,
        margin_noise=margin * filling.AVERAGED["tail" if averaged else "last"],
        seconds=facts.seconds(run.rounds + looks, None, dims, facts.gram_seconds if large else 0.0),
        memory=facts.memory(None, extra=_copied(facts, scale) + (NUMBER * min(facts.n, columns) ** 2 if large else 0)),
    )


_EVIDENCE = {
    "step bought": "lending R2 .411 with 1500 rows at epsilon 1, moments .399; a9a .849 at epsilon 0.5",
    "columns and step bought": "IMDB .773 .851 .866 .880, a9a .846 .849 .850 .850 at epsilon .1 .5 1 3",
    "moments and step bought": "lending R2 .479 .522 .523 .526 at epsilon .1 .5 1 3 (plain: .42)",
    "statistics bought": "california R2 .601 .647 .649 .650 at epsilon .1 .5 1 3 (plain: .38)",
}
for _variant, _make, _scale, _shortfall in (
    ("step bought", _prepared, "none", (0.002, 0.023)),  # 2 % of the budget buys lambda_max, hence the longest step
    ("columns and step bought", _prepared, "columns", (0.001, 0.0)),  # 10 % buys second moments of the columns too
    ("moments and step bought", _prepared, "moments", (0.001, 0.03)),  # 10 % buys column means and second moments
    # moments, then 30 % for noisy X'X and X'y: start at their solution, step with their inverse
    ("statistics bought", _preconditioned, "moments", (0.0, 0.0)),
    # histograms of columns and targets, smooth features; then X'X and X'y of these, or 2 % for the step
    ("shapes and statistics bought", _preconditioned, "shapes", (0.0, 0.0)),
    ("shapes and step bought", _prepared, "shapes", (0.0, 0.03)),
):
    _evidence = f"measured: {_EVIDENCE.get(_variant, 'docs/glm.md, tables kept apart')}"
    dp_gd.filling(_variant, evidence=_evidence, shortfall=_shortfall)(partial(_make, scale=_scale))


@algorithm(
    left_out="for research only: planned where it is asked for by name",
    words="now and then a full look at the records, in between small corrections; both with noise",
)
def dp_svrg(
    *,
    clip: float,
    step: StepRule,
    inner: int,
    batch_size: int | None = 256,
    inner_clip: float | None = None,
    anchor_share: float = 0.5,
    **terms: Unpack[BudgetOptions],
) -> Build:
    """DP-SVRG: w+ = w - eta (anchor gradient + g(w) - g(anchor)), restarted at the mean of each inner loop.

    inner         K, the rounds of an inner loop, at least 2
    inner_clip    the bound of a record's difference; by default `clip`
    anchor_share  the anchor's share of the budget: its noise is used K times, so it must be small

    >>> dp_svrg(epsilon=1.0, clip=1.0, step=0.1, inner=20, n="exact").name
    'dp_svrg'
    """
    budget = Budget(**terms)
    rule, bounds = step_rule(step, None), (Clip(clip), Clip(clip if inner_clip is None else inner_clip))
    validate.positive_int(inner=inner)
    validate.check(inner > 1, "inner", inner, "give 2 or more: with an anchor in every round, use dp_gd")
    validate.open_unit(anchor_share=anchor_share)

    def build(binding: Binding) -> Pipeline:
        everything, sampler = budget.sampler(binding, None), budget.sampler(binding, batch_size)
        rounds = rounds_of(binding, sampler, budget.records(binding))
        looks = -(-rounds // inner)
        items = [
            Charge("anchor", rounds=looks, share=anchor_share),
            Charge("difference", rounds=rounds, share=1 - anchor_share, sampler=sampler),
        ]
        plan = budget.plan(binding, items)
        anchor = Release("anchor", clip=bounds[0], mechanism=plan.mechanism("anchor"))
        difference = Release("difference", clip=bounds[1], mechanism=plan.mechanism("difference"))
        stages = [
            Stage(everything, [anchor], "anchor", every=inner),
            Stage(sampler, [difference], "inner", source=AgainstAnchor("anchor")),
        ]
        return budget.pipeline(binding, plan, rounds, stages, rule, average=Restart(inner), output="average")

    return build


# ---------------------------------------------------------------- how it is filled from public facts


@dp_svrg.filling(
    evidence="measured (private_tables): a9a .840, IMDB .804 at epsilon 0.5; DP-SGD .846, .813",
    shortfall=(0.010, 0.044),
    research=True,
)
def _fill(facts: Facts) -> Choice:
    """A private anchor every 20 rounds, private differences in between."""
    clip, batch = facts.the_clip, filling.batch_of(facts)
    inner = CONSTANTS.svrg_inner
    passes = None if facts.max_passes is None else facts.max_passes / (1 + facts.n / (inner * batch))
    rounds = filling.sampled_rounds(facts, batch, passes)
    inner = max(2, min(inner, rounds))
    looks = -(-rounds // inner)
    items = (
        Charge("anchor", rounds=looks, share=0.5),
        Charge("difference", rounds=rounds, share=0.5, sampler=Poisson(batch / facts.n)),
    )
    numbers = facts.split(*items)
    run = Run(facts, rounds, batch, clip, numbers["difference"], facts.parameters)
    anchor = numbers["anchor"] * clip / facts.n  # the same noise in every step of an inner loop
    unit = math.hypot(filling.walk(run, 1.0, "average"), math.sqrt(looks) * inner / 2 * anchor)
    step = min(CONSTANTS.svrg_step / facts.smooth, facts.tau / unit) if facts.step is None else facts.step
    arguments = {"clip": clip, "inner": inner, "step": step, "batch_size": batch}
    return run.choice(
        arguments,
        noise_norm=math.hypot(run.sigma, anchor) * math.sqrt(facts.parameters),
        margin_noise=step * unit,
        passes=run.passes + looks,
        bytes=NUMBER * facts.parameters * (rounds + looks),
        seconds=facts.seconds(rounds, batch, run.dims, facts.seconds(looks, None, run.dims)),
    )


_ASKED = "for a simplex only: planned where it is asked for by name"


@algorithm(left_out=_ASKED)
def mirror_descent(
    *,
    step: StepRule | None = None,
    m: Size | WidthRule | None = None,
    batch_size: int | None = None,
    schedule: Schedule | None = None,
    output: str = "average",
    sketch: Family = CountSketch,
) -> Build:
    """Entropic mirror descent over `Simplex(radius)`, from its middle unless told otherwise.

    step        eta, or a rule t -> eta: sqrt(2 log d / T) over the largest entry of a gradient is the theorem's
    m           None takes gradients as they are; else m numbers of each, lifted without bias (times d / m)
    batch_size  None: all records
    output      as for `sgd`; the theorem is about the average

    >>> mirror_descent(step=0.1).name
    'mirror_descent'
    """
    rule, sampler = step_rule(step, schedule), Full() if batch_size is None else Shuffle(batch_size)
    descent = Descent(m=m, schedule=schedule, output=output, sketch=sketch if narrowed(m, schedule) else None)

    def build(binding: Binding) -> Pipeline:
        encode = descent.encode(binding, sampler.rounds(binding.n))
        stage = Stage(sampler, [Release(encode=encode, lift=pinv if descent.sketch is None else unbiased)])
        return descent.pipeline(binding, [stage], rule, update=_mirror_of(binding))

    return build


@algorithm(left_out=_ASKED, words="each round adds noise to a sum and moves by factors, inside a simplex")
def dp_mirror_descent(*, batch_size: int | None = None, **options: Unpack[PrivateOptions]) -> Build:
    """`mirror_descent` on clipped sums with Gaussian noise; arguments as for `dp_sgd`.

    >>> dp_mirror_descent(epsilon=1.0, clip=1.0, step=0.1, n="exact").name
    'dp_mirror_descent'
    """
    options.setdefault("output", "average")
    return PrivateDescent(batch_size=batch_size, moves=_mirror_of, **options).build


def _mirror_of(binding: Binding) -> Mirror:
    """The multiplicative step of a simplex."""
    constraint, bare = binding.constraint, isinstance(binding.penalty, NoPenalty)
    simplex = isinstance(constraint, Simplex)
    validate.check(simplex, "constraint", constraint, "give Simplex(radius), over which mirror descent runs")
    validate.check(bare, "penalty", binding.penalty, "leave it out: a multiplicative step has no proximal map")
    assert isinstance(constraint, Simplex)
    return Mirror(constraint.radius)
