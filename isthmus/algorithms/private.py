"""Private descent on batches and through maps: clipped sums, noise in the narrow space, lifted back (001 and 000).

    y_i = Phi g_i,   Y = sum_i y_i min(1, C / ||y_i||) + N(0, (z C)^2 I_m),   lift Y / n

Clip after the sketch: one record moves the sum by at most C, whatever Phi is.  A clip bound may follow a quantile of
the norms, from a count that is paid for (Andrew et al. 2021).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Required, Unpack

from isthmus.algorithms import purchases
from isthmus.algorithms.budget import Budget, PrivateSampler, _BudgetOptions, _diameter_of, _published_budget, rounds_of
from isthmus.algorithms.descent import Family, StepRule, Stop, WidthRule, _Descent, _step_rule
from isthmus.algorithms.facts import CONSTANTS, Facts
from isthmus.algorithms.filling import Build, Choice, _sampled_run, _sketched, _stepped, algorithm, full_run
from isthmus.algorithms.purchases import SumPurchase
from isthmus.base import validate
from isthmus.core.minimize import Binding
from isthmus.core.parts import Tail, Update
from isthmus.core.pipeline import Pipeline, Release, Stage, StepSize
from isthmus.lifts import discard
from isthmus.penalties import NoPenalty
from isthmus.privacy import AdaptiveClip, Adjacency, Charge, Clip, FixedSize, GroupClip, PrivacyPlan
from isthmus.privacy.clips import COUNT_SHARE, ClipCountEncoder
from isthmus.sets import Whole
from isthmus.sketches import CountSketch, Encoder, GaussianSketch, Size, resolve
from isthmus.theory import Rule, Schedule
from isthmus.theory.printed import Printed, own_length


class _PrivateOptions(_BudgetOptions, total=False):
    """What private descents share; see `dp_sgd`."""

    clip: Required[float | AdaptiveClip]
    step: StepRule | None
    output: str
    schedule: Schedule | None
    stop: Stop | None
    micro_batch: int


class _NarrowPrivateOptions(_PrivateOptions, total=False):
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
def dp_sgd(*, batch_size: int | None = 256, momentum: float = 0.0, **options: Unpack[_PrivateOptions]) -> Build:
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
    return _PrivateDescent(batch_size=batch_size, momentum=momentum, **options).build


@algorithm(words="each round summarises a random sample in a few random numbers and adds noise to those")
def dp_comp_minibatch(*, batch_size: int | None = 256, **options: Unpack[_NarrowPrivateOptions]) -> Build:
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
    return _NarrowPrivateDescent(batch_size=batch_size, **options).build


@algorithm(words="each round summarises all records in a few random numbers and adds noise to those")
def priv_sgd(**options: Unpack[_NarrowPrivateOptions]) -> Build:
    """PrivSGD = DP-CompGD (001, App. C; 000, Alg. 4): all records every round, noise in R^m, project and lift.

    m, sketch, tol, pick  as for `algorithms.comp_sgd`; the rest as for `dp_sgd`
    clipped       codes "after" the map, or gradients "before" it, where a record counts C times the map's gain
    as_published  the paper's mechanism instead: the mean gradient is sketched, rescaled to its own length and noised
                  by the printed sigma for gradients of norm at most L = `clip`.  Its real sensitivity is up to 2L, not
                  2L/n: the result says so, and promises nothing.

    >>> priv_sgd(epsilon=1.0, m=50, clip=1.0, step=0.1, n="exact").name
    'priv_sgd'
    """
    return _NarrowPrivateDescent(**options).build


@algorithm(like=priv_sgd, words=priv_sgd.words)
def dp_comp_gd(**options: Unpack[_NarrowPrivateOptions]) -> Build:
    """DP-CompGD (000): another name of `priv_sgd`."""
    return priv_sgd(**options).build


@dataclass(frozen=True, kw_only=True)
class _PrivateDescent(_Descent):
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
    adjacency: Adjacency | str = "add-remove"
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
        terms: _BudgetOptions = {"epsilon": self.epsilon, "delta": self.delta, "adjacency": self.adjacency, "n": self.n}
        return _published_budget(**terms) if self.as_published else Budget(**terms)

    def build(self, binding: Binding) -> Pipeline:
        """The pipeline for a constraint, a space and a public number of records and rounds."""
        _check_purchases(self.buys, binding)
        budget, n, groups = self.budget, self.budget.records(binding), None
        drawn = budget.sampler(binding, self.batch_size)
        sampler: PrivateSampler = drawn
        if self.as_published and self.batch_size is not None:
            sampler = FixedSize(self.batch_size, binding.n)
        elif self.micro_batch > 1:
            groups = max(1, round(drawn.divisor(n) / self.micro_batch))
            sampler = replace(drawn, expected=float(groups))  # the mean is over groups
        rounds, clip = rounds_of(binding, sampler, n, self.scheduled), self.clipping(sampler)
        if isinstance(clip, AdaptiveClip):
            shares = {"gradient": 1 - COUNT_SHARE, clip.release: COUNT_SHARE}
            charges = [Charge(k, rounds=rounds, share=v, sampler=sampler, stage="main") for k, v in shares.items()]
        else:
            left = 1 - sum(item.share for item in self.buys)
            gradient = Charge("gradient", rounds=rounds, share=left, sampler=sampler)
            charges = [*purchases._charges_of(self.buys), gradient]
        plan = budget.plan(binding, charges)
        mechanism, encode = plan.mechanism("gradient"), self.encoder or self.encode(binding, sampler.rounds(n))
        if self.guarantee:
            mechanism = Printed(mechanism, self.guarantee)
        release = Release(encode=encode, clip=clip, mechanism=mechanism, lift=self.lift(binding))
        more: dict[str, Any] = {"promise": budget.promise(plan, binding), "rounds": rounds}
        releases = [release]
        if self.as_published:
            more["promise"] = replace(budget.promise(plan, binding), epsilon=math.inf)
            claim = {"epsilon": budget.epsilon, "delta": plan.delta or 0.0}
            releases = [own_length(release, clip.init(), n=n, steps=rounds, **claim, batch=self.batch_size)]
        elif isinstance(clip, AdaptiveClip):  # the count that moves it
            below, paid = ClipCountEncoder(encode, clip, "main/gradient"), plan.mechanism(clip.release)
            releases.append(Release(clip.release, below, Clip(0.5), mechanism=paid, lift=discard))
        if self.moves is not None:
            more["update"] = self.moves(binding)
        if self.buys:
            more["average"] = Tail(start=rounds // 2)
            more["before"] = purchases._paid(plan, self.buys, purchases.Terms(n, rounds, clip.init(), plan.mu))
        step = self._step(binding, plan, sampler, rounds)
        return self.pipeline(binding, [Stage(sampler, releases, groups=groups)], step, **more)

    def _step(self, binding: Binding, plan: PrivacyPlan, sampler: PrivateSampler, rounds: int) -> StepSize:
        """The given step, or ||C|| / sqrt(t (L^2 + m_T sigma^2)): Theorem 11, paper 000.  A bought one replaces it."""
        if self.step is not None or self.schedule is not None:
            return _step_rule(self.step, self.schedule)
        if self.buys:
            return lambda t: 1.0
        diameter, n, clip = _diameter_of(binding), self.budget.records(binding), self.clipping().init()
        size, m, gain = self.size(binding, sampler.rounds(n)), self.dims or binding.d, 1.0
        if size is not None:  # m_T, the largest of the run
            m = max(resolve(size, binding.d, t) for t in range(rounds if callable(size) else 1))
            if self.clipped == "before":
                gain = math.sqrt(binding.d / m)
        noise = plan.multiplier("gradient") * self.clipping(sampler).total(clip) * gain / sampler.divisor(n)
        return Rule(diameter / math.hypot(clip, math.sqrt(m) * noise), power=0.5)

    def clipping(self, sampler: PrivateSampler | None = None) -> AdaptiveClip | Clip | GroupClip:
        """The clip as its type; that of micro-batches depends on what the sampler looks at."""
        before = self.clipped == "before" or (self.encoder is not None and self.encoder.clips_before)
        if isinstance(self.clip, AdaptiveClip):
            return replace(self.clip, before=before)
        if self.micro_batch == 1:
            return Clip(self.clip, before=before)
        whole = sampler is not None and sampler.rate == 1
        return GroupClip(self.clip, 2, before, whole and self.budget.relation is Adjacency.REPLACE_ONE)


@dataclass(frozen=True, kw_only=True)
class _NarrowPrivateDescent(_PrivateDescent):
    """Through maps: as published, Gaussian ones."""

    sketch: Family = CountSketch
    output: str = "average"

    def __post_init__(self) -> None:
        if self.as_published:
            object.__setattr__(self, "sketch", GaussianSketch)
        super().__post_init__()


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


# ---------------------------------------------------------------- how they are filled from public facts


@dp_sgd.filling(
    evidence="measured: a9a .840 in one pass, all records .764; .846 in 10 passes at epsilon 0.5 (private_tables)",
    shortfall=(0.004, 0.026),
)
def _fill_batches(facts: Facts) -> Choice:
    """Poisson batches of n / 100."""
    return _stepped(_sampled_run(facts, facts.the_clip, facts.parameters), {})


@dp_comp_minibatch.filling(
    evidence="Theorem 14 (000); measured on validation rows: a9a .835 with m = 20, DP-SGD .846; IMDB .800 with m = 500",
    shortfall=(0.011, 0.05),
    research=True,
)
def _sketched_batches(facts: Facts) -> Choice:
    """Poisson batches, a fresh count-sketch every round."""
    run = _sampled_run(facts, facts.the_clip, facts.narrow_size)
    return _sketched(run, "m")


@priv_sgd.filling(
    evidence="Theorem 12 (000); measured: lending R2 .439 with 3000 rows and m = 20, on batches .436, in blocks .26",
    shortfall=(0.012, 0.06),
)
def _sketched_sums(facts: Facts) -> Choice:
    """All records, a fresh count-sketch every round."""
    run = full_run(facts, facts.the_clip, facts.narrow_size, CONSTANTS.sampled_rounds)
    return _sketched(run, "m")
