"""Private descent: clipped sums, noise in R^d or in the narrow space of a map, lifted back (papers 001 and 000).

    y_i = Phi g_i,   Y = sum_i y_i min(1, C / ||y_i||) + N(0, (z C)^2 I_m),   lift Y / n

Clip after the sketch: one record moves the sum by at most C, whatever Phi is.  A clip bound may follow a quantile of
the norms, from a count that is paid for (Andrew et al. 2021).  `dp_gd` can buy before its loop what is in `purchases`;
which of it, and how long the descent is then, is said at the end of this file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Required, Unpack

from isthmus.algorithms import base, purchases, suggest
from isthmus.algorithms.base import SIMPLEX_ONLY, Budget, PrivateSampler, StepRule, Stop, rounds_of
from isthmus.algorithms.purchases import SMALL, Columns, Lambda, Moments, Shapes, Statistics, SumPurchase, TargetShape
from isthmus.algorithms.suggest import CONSTANTS, NUMBER, Build, Choice, Facts, algorithm, full_run, require, walk
from isthmus.base import validate
from isthmus.core.minimize import Binding
from isthmus.core.parts import Tail, Update
from isthmus.core.pipeline import Pipeline, Release, Stage, StepSize
from isthmus.lifts import discard
from isthmus.objectives.linear import GRAM_LIMIT
from isthmus.penalties import NoPenalty
from isthmus.privacy import AdaptiveClip, Adjacency, Charge, Clip, FixedSize, GroupClip
from isthmus.privacy.clips import COUNT_SHARE, ClipCountEncoder
from isthmus.sets import Whole
from isthmus.sketches import CountSketch, Encoder, GaussianSketch, resolve
from isthmus.theory import Rule, Schedule
from isthmus.theory.printed import Printed, own_length


class _PrivateOptions(base._BudgetOptions, base._DescentOptions, total=False):
    """What private descents share; see `dp_sgd`."""

    clip: Required[float | AdaptiveClip]
    stop: Stop | None
    micro_batch: int


class _NarrowPrivateOptions(_PrivateOptions, base._NarrowOptions, total=False):
    """What those through maps share; see `dp_comp_minibatch`."""

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
    return _through_maps(batch_size=batch_size, **options)


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
    return _through_maps(**options)


@algorithm(like=priv_sgd, words=priv_sgd.words)
def dp_comp_gd(**options: Unpack[_NarrowPrivateOptions]) -> Build:
    """DP-CompGD (000): another name of `priv_sgd`."""
    return priv_sgd(**options).build


def _through_maps(batch_size: int | None = None, **options: Unpack[_NarrowPrivateOptions]) -> Build:
    """A private descent through maps: as published, Gaussian ones."""
    options.setdefault("output", "average")
    options.setdefault("sketch", CountSketch)
    if options.get("as_published"):
        options["sketch"] = GaussianSketch
    return _PrivateDescent(batch_size=batch_size, **options).build


@algorithm(left_out=SIMPLEX_ONLY, words="each round adds noise to a sum and moves by factors, inside a simplex")
def dp_mirror_descent(*, batch_size: int | None = None, **options: Unpack[_PrivateOptions]) -> Build:
    """`mirror_descent` on clipped sums with Gaussian noise; arguments as for `dp_sgd`.

    >>> dp_mirror_descent(epsilon=1.0, clip=1.0, step=0.1, n="exact").name
    'dp_mirror_descent'
    """
    options.setdefault("output", "average")
    return _PrivateDescent(batch_size=batch_size, moves=base._mirror_of, **options).build


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
    **budget: Unpack[base._BudgetOptions],
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
    validate.one_of(("none", "columns", "moments", "shapes"), scale=scale)
    if tau is not None:
        validate.positive(tau=tau)
    rule = base._unless_bought(step)
    validate.check(rule is None or not precondition, "step", step, "leave it out: preconditioned steps have length 1")
    buys = _bought(scale, step, features or 0, functions, level, targets, precondition, tau)
    options: dict[str, Any] = {"momentum": momentum, "output": output, "schedule": schedule, "stop": stop}
    return _PrivateDescent(clip=clip, step=rule, buys=buys, **options, **budget).build


def _bought(
    scale: str,
    step: object = None,
    features: int = 0,
    functions: int = 6,
    level: int = 6,
    targets: bool = False,
    precondition: bool = False,
    tau: float | None = None,
) -> tuple[SumPurchase, ...]:
    """What `dp_gd` buys first, by its arguments."""
    items, smooth = list[SumPurchase](), scale == "shapes"
    if smooth:
        items.append(Shapes(features, functions, level))
    elif scale != "none":
        items.append(Columns() if scale == "columns" else Moments())
    if targets or smooth:
        items.append(TargetShape(clips=smooth))
    if precondition:
        items.append(purchases.ShrunkStatistics() if smooth else Statistics())
    elif step == "auto" or (step is None and scale != "none"):
        items.append(Lambda(tau=tau))
    return tuple(items)


@dataclass(frozen=True, kw_only=True)
class _PrivateDescent(base._Descent):
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
    budget: Budget = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        budget = Budget(self.epsilon, self.delta, self.adjacency, self.n)
        object.__setattr__(self, "budget", budget.as_published() if self.as_published else budget)
        validate.one_of(("after", "before"), clipped=self.clipped)
        validate.positive_int(micro_batch=self.micro_batch)
        moving = isinstance(self.clip, AdaptiveClip)
        whole = self.micro_batch == 1 or not (self.as_published or moving)
        remedy = "leave it out, or give a fixed clip and as_published=False, which micro-batches need"
        validate.check(whole, "micro_batch", self.micro_batch, remedy)
        remedy = "give a number: the clip of a published algorithm does not move"
        validate.check(not (self.as_published and moving), "clip", self.clip, remedy)
        self.clipping()  # checked here, not when it is bound
        if self.buys:
            validate.check(not moving, "clip", self.clip, "give a number: the step that is bought depends on it")
            validate.one_of(("last", "average"), output=self.output)
            for name, value in {"momentum": self.momentum, "schedule": self.schedule, "stop": self.stop}.items():
                remedy = "leave it out: what is bought is for a planned number of plain steps"
                validate.check(not value, name, value, remedy)

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
        gradient = Charge("gradient", rounds=rounds, share=1 - sum(item.share for item in self.buys), sampler=sampler)
        charges = [*(Charge(item.name, share=item.share) for item in self.buys), gradient]
        if isinstance(clip, AdaptiveClip):
            shares = {"gradient": 1 - COUNT_SHARE, clip.release: COUNT_SHARE}
            charges = [replace(gradient, name=name, share=share, stage="main") for name, share in shares.items()]
        plan = budget.plan(binding, charges)
        mechanism, encode = plan.mechanism("gradient"), self.encoder or self.encode(binding, sampler.rounds(n))
        if self.guarantee:
            mechanism = Printed(mechanism, self.guarantee)
        releases = [Release(encode=encode, clip=clip, mechanism=mechanism, lift=self.lift(binding))]
        step = self._step(binding, releases[0], sampler, rounds)
        more: dict[str, Any] = {"promise": budget.promise(plan, binding), "rounds": rounds}
        if self.as_published:
            more["promise"] = replace(more["promise"], epsilon=math.inf)
            claim = {"epsilon": budget.epsilon, "delta": plan.delta}
            releases = [own_length(releases[0], clip.init(), n=n, steps=rounds, **claim, batch=self.batch_size)]
        elif isinstance(clip, AdaptiveClip):  # the count that moves it
            below, paid = ClipCountEncoder(encode, clip, "main/gradient"), plan.mechanism(clip.release)
            releases.append(Release(clip.release, below, Clip(0.5), mechanism=paid, lift=discard))
        if self.moves is not None:
            more["update"] = self.moves(binding)
        if self.buys:
            more["average"] = Tail(start=rounds // 2)
            more["before"] = purchases._paid(plan, self.buys, purchases.Terms(n, rounds, clip.init(), plan.mu))
        return self.pipeline(binding, [Stage(sampler, releases, groups=groups)], step, **more)

    def _step(self, binding: Binding, release: Release, sampler: PrivateSampler, rounds: int) -> StepSize:
        """The given step, or ||C|| / sqrt(t (L^2 + m_T sigma^2)): Theorem 11, paper 000.  A bought one replaces it."""
        if self.step is not None or self.schedule is not None:
            return base._step_rule(self.step, self.schedule)
        if self.buys:
            return lambda t: 1.0
        n, clip, bound = self.budget.records(binding), release.clipped, release.clipped.init()
        size, m, gain = self.size(binding, sampler.rounds(n)), self.dims or binding.d, 1.0
        if size is not None:  # m_T, the largest of the run
            m = max(resolve(size, binding.d, t) for t in range(rounds if callable(size) else 1))
            if self.clipped == "before":
                gain = math.sqrt(binding.d / m)
        noise = release.mechanism.number * clip.total(bound) * gain / sampler.divisor(n)
        return Rule(base._diameter_of(binding) / math.hypot(bound, math.sqrt(m) * noise), power=0.5)

    def clipping(self, sampler: PrivateSampler | None = None) -> AdaptiveClip | Clip | GroupClip:
        """The clip as its type; that of micro-batches depends on what the sampler looks at."""
        before = self.clipped == "before" or (self.encoder is not None and self.encoder.clips_before)
        if isinstance(self.clip, AdaptiveClip):
            return replace(self.clip, before=before)
        if self.micro_batch == 1:
            return Clip(self.clip, before=before)
        whole = sampler is not None and sampler.rate == 1
        return GroupClip(self.clip, 2, before, whole and Adjacency.of(self.budget.adjacency) is Adjacency.REPLACE_ONE)


def _check_purchases(items: Sequence[SumPurchase], binding: Binding) -> None:
    """Refuse sets and penalties that mean something else after what is bought."""
    free = isinstance(binding.constraint, Whole)
    scaled = any(isinstance(item, (Columns, Moments, Shapes)) for item in items)
    remedy = "leave it out: scaled columns change what a set means"
    validate.check(free or not scaled, "constraint", binding.constraint, remedy)
    plain = free and isinstance(binding.penalty, NoPenalty)
    alone = "leave out the set and the penalty: preconditioned steps have no proximal map"
    preconditioned = any(isinstance(item, Statistics) for item in items)
    validate.check(plain or not preconditioned, "precondition", True, alone)


# ---------------------------------------------------------------- arguments by public facts


@dp_sgd.suggest_arguments(
    evidence="measured: a9a .840 in one pass, all records .764; .846 in 10 passes at epsilon 0.5 (private_tables)",
    shortfall=(0.004, 0.026),
)
def _suggest_batches(facts: Facts) -> Choice:
    """Poisson batches of n / 100."""
    return suggest._stepped(suggest._sampled_run(facts, facts.the_clip, facts.parameters), {})


@dp_comp_minibatch.suggest_arguments(
    evidence="Theorem 14 (000); measured on validation rows: a9a .835 with m = 20, DP-SGD .846; IMDB .800 with m = 500",
    shortfall=(0.011, 0.05),
    research=True,
)
def _sketched_batches(facts: Facts) -> Choice:
    """Poisson batches, a fresh count-sketch every round."""
    run = suggest._sampled_run(facts, facts.the_clip, facts.narrow_size)
    return suggest._sketched(run, "m")


@priv_sgd.suggest_arguments(
    evidence="Theorem 12 (000); measured: lending R2 .439 with 3000 rows and m = 20, on batches .436, in blocks .26",
    shortfall=(0.012, 0.06),
)
def _sketched_sums(facts: Facts) -> Choice:
    """All records, a fresh count-sketch every round."""
    run = full_run(facts, facts.the_clip, facts.narrow_size, CONSTANTS.sampled_rounds)
    return suggest._sketched(run, "m")


# ---------------------------------------------------------------- what `dp_gd` buys first, by public facts


@dp_gd.suggest_arguments(
    "plain",
    evidence="measured (private_tables): a9a .839, IMDB .811 at epsilon 0.5 with 100 rounds",
    shortfall=(0.011, 0.037),
)
def _plain(facts: Facts) -> Choice:
    """All records, one public step; nothing is bought."""
    return suggest._stepped(suggest._plain_run(facts, facts.parameters), {})


def _prepared(facts: Facts, scale: str, solved: bool) -> Choice:
    """A scale is bought, then the step or, where it is to be solved, X'X."""
    _check(facts, scale, solved)
    clip, smooth, columns, copied, gram = facts.the_clip, scale == "shapes", facts.d, 0, 0.0
    numbers = facts.of_loss.curvature is not None and not facts.of_loss.labelled()
    bought: dict[str, Any] = {"scale": scale}
    if smooth:
        columns, functions = facts.smooth_features, 1 if facts.features == "linear" else CONSTANTS.functions
        level = 2 + sum(facts.shapes >= enough for enough in CONSTANTS.shapes_levels)  # the finest that stands out
        bought |= {"features": columns, "functions": functions, "level": level}
        copied = NUMBER * facts.n * columns
    elif scale != "columns" and facts.of_loss.equivariant and not facts.sparse and facts.free:
        bought["targets"] = True  # the scale does not bring their distribution
    dims = (columns + (scale in ("moments", "shapes"))) * facts.outputs
    if solved:
        bought["precondition"] = True
    elif facts.step is None:
        bought |= {"step": "auto", "tau": facts.tau}
    else:
        bought["step"] = facts.step
    items = _bought(**bought)
    looks, left = len(items), 1 - math.fsum(item.share for item in items)
    if solved:
        run = full_run(facts, clip, dims, 100 if smooth else 50, left, looks)
        # standardised rows of norm 1 have X'X / n near I / (d + 1); the last half of the points is averaged,
        # but steps along smooth features average by themselves
        inverse = dims / (facts.of_loss.usual_curvature or facts.smooth)
        return run.choice(
            {"clip": clip, **bought, "output": "last" if smooth else "average"},
            margin_noise=inverse * run.sigma / math.sqrt(max(1, run.rounds - run.rounds // 2)),
            seconds=facts.seconds(run.rounds, None, dims, facts.gram_seconds),
            memory=facts.memory(None, extra=3 * NUMBER * columns**2 + copied),
        )
    if facts.step is None and min(facts.n, facts.d) <= GRAM_LIMIT:
        gram = facts.gram_seconds
        copied += NUMBER * min(facts.n, columns) ** 2
    elif facts.step is None:
        looks += 59  # of Lanczos, where the Gram matrix is too large
    rounds = 200
    if scale == "none" and (facts.public is None or facts.sparse):  # else rows were scaled by public moments
        rounds = 400
    elif scale != "none" and facts.wide:
        rounds = min(max(round(facts.tau * facts.b / (100 * clip)), 100), 400)
    run = full_run(facts, clip, dims, rounds, left, looks)
    if facts.step is not None:
        margin = walk(run, facts.step)
    else:
        # the longest stable step is d times 1.8 / h at most, as the spectrum allows; or what tau allows
        margin = min(walk(run, CONSTANTS.longest * dims / facts.smooth), facts.tau * math.sqrt(1 / left))
    output, noise = "last", suggest.AVERAGED["last"]
    if numbers and not facts.sparse and (scale != "none" or facts.public is not None):
        output, noise = "average", suggest.AVERAGED["tail"]
    return run.choice(
        {"clip": clip, **bought, "output": output},
        margin_noise=margin * noise,
        seconds=facts.seconds(run.rounds + looks, None, dims, gram),
        memory=facts.memory(None, extra=copied),
    )


def _check(facts: Facts, scale: str, solved: bool) -> None:
    """Refuse facts that this preparation is not for."""
    scaled, kept = scale != "none", facts.scale == "auto" or facts.constraint is not None
    meant = "a set or a penalty is about the coefficients as they are: columns are not rescaled"
    require(facts.free or not (scaled and kept), meant)
    require(facts.scale != "none" or not scaled or facts.public is None, "columns were scaled by public rows")
    require(facts.scale in ("auto", scale), f"scale={facts.scale!r} was asked for")
    require(scale != "shapes" or not facts.sparse, "smooth features are for dense rows")
    centred = scale == "moments" and facts.sparse and facts.d > SMALL
    require(not centred, f"CSR rows of more than {SMALL} columns are not centred")
    if solved:
        why = _unsolvable(facts, scale)
        require(not why, why)
        require(facts.step is None, "preconditioned steps have length 1: leave step out")


def _unsolvable(facts: Facts, scale: str) -> str:
    """Why X'X is not bought, where it is not."""
    columns, least = facts.d, CONSTANTS.statistics_b * facts.d**2
    if scale == "shapes":
        columns, (of_columns, of_features) = facts.smooth_features, CONSTANTS.shapes_statistics_b
        least = max(of_columns * facts.d**2, of_features * columns**2)  # words have little of X'X each
    if not facts.free:
        return "preconditioned steps have no proximal map: leave out the set and the penalty"
    if facts.of_loss.curvature is None or facts.outputs > 1:
        return "noisy X'X is for a smooth loss with one output"
    if columns + 1 > SMALL:
        return f"noisy X'X is for fewer than {SMALL} columns"
    if facts.b < least:
        return f"noise would drown X'X: n mu = {facts.b:.3g} is less than {least:.3g}"
    return ""


_MEASURED = {
    "step bought": "lending R2 .411 with 1500 rows at epsilon 1, moments .399; a9a .849 at epsilon 0.5",
    "columns and step bought": "IMDB .773 .851 .866 .880, a9a .846 .849 .850 .850 at epsilon .1 .5 1 3",
    "moments and step bought": "lending R2 .479 .522 .523 .526 at epsilon .1 .5 1 3 (plain: .42)",
    "statistics bought": "california R2 .601 .647 .649 .650 at epsilon .1 .5 1 3 (plain: .38)",
}
for _variant, _scale, _solved, _shortfall in (
    ("step bought", "none", False, (0.002, 0.023)),  # 2 % of the budget buys lambda_max, hence the longest step
    ("columns and step bought", "columns", False, (0.001, 0.0)),  # 10 % buys second moments of the columns too
    ("moments and step bought", "moments", False, (0.001, 0.03)),  # 10 % buys column means and second moments
    # moments, then 30 % for noisy X'X and X'y: start at their solution, step with their inverse
    ("statistics bought", "moments", True, (0.0, 0.0)),
    # histograms of columns and targets, smooth features; then X'X and X'y of these, or 2 % for the step
    ("shapes and statistics bought", "shapes", True, (0.0, 0.0)),
    ("shapes and step bought", "shapes", False, (0.0, 0.03)),
):
    _evidence = f"measured: {_MEASURED.get(_variant, 'docs/glm.md, tables kept apart')}"
    _make = partial(_prepared, scale=_scale, solved=_solved)
    dp_gd.suggest_arguments(_variant, evidence=_evidence, shortfall=_shortfall)(_make)


def preferred(facts: Facts) -> str:
    """Which preparation of DP-GD the facts ask for."""
    if facts.free and _shaped(facts):
        if facts.step is None and not _unsolvable(facts, "shapes"):
            return "shapes and statistics bought"
        return "shapes and step bought"
    if facts.scale == "none" or (facts.scale == "auto" and not facts.free):
        return "step bought"
    started = facts.public is not None and facts.public.labelled  # a start is better in columns that are scaled
    several = facts.sparse and facts.scale == "auto" and facts.outputs > 1 and not started
    if several and facts.b < CONSTANTS.several_b * math.sqrt(facts.d):
        return "plain"
    if facts.scale == "columns" or (facts.sparse and facts.scale == "auto"):
        return "columns and step bought"
    if not _unsolvable(facts, "moments"):
        return "statistics bought"
    if facts.scale == "moments" or facts.b >= CONSTANTS.moments_b * facts.d:
        return "moments and step bought"
    if facts.d <= CONSTANTS.small:
        return "step bought"
    return "columns and step bought"


def _shaped(facts: Facts) -> bool:
    """Whether histograms of the columns are worth their price: as asked, or where they stand out of their noise."""
    if facts.sparse or facts.scale not in ("auto", "shapes"):
        return False
    if facts.scale == "shapes" or facts.features == "smooth":
        return True
    wide = facts.d > SMALL or NUMBER * facts.n * facts.smooth_features > CONSTANTS.copied
    least = CONSTANTS.shapes_b[facts.outputs > 1]
    if not facts.ranged:
        least = max(least, CONSTANTS.shapes_levels[-1])
    return facts.shapes >= least and not (wide and facts.features == "auto")
