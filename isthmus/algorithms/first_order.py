"""Projected (stochastic) gradient descent, and its compressed forms (papers 001 and 000).

    theta_t = Pi_{Phi C}(Phi w_t - eta_t Phi g),   w_{t+1} in C with Phi w_{t+1} = theta_t

The two lines are one solve, `min over w in C of ||Phi w - (Phi w_t - eta_t Phi g)||^2`, started at w_t.  The narrow
dimension m_t may follow a `WidthRule`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from isthmus.algorithms.facts import CONSTANTS, Facts
from isthmus.algorithms.filling import Choice, Run, algorithm, free_run
from isthmus.base import validate
from isthmus.codecs import Codec, named
from isthmus.core.minimize import Binding, Recipe
from isthmus.core.parts import average_of
from isthmus.core.pipeline import Pipeline, Release, Stage, StepSize
from isthmus.core.wire import Wire
from isthmus.lifts import HeavyHitters, Lift, ProjectAndLift, pinv, unbiased
from isthmus.parts import FirstOrderStationary, Full, Shifted, Shuffle, Step, Uniform, WithoutReplacement
from isthmus.privacy.sampling import Sampler
from isthmus.sets import ConvexSet, Whole
from isthmus.sketches import CountSketch, Encoder, Identity, SparseJL
from isthmus.sketches.base import Random, Size, resolve
from isthmus.theory import Rule, Schedule, narrow_dimension

__all__ = ["comp_dist_sgd", "comp_gd", "comp_minibatch", "comp_sgd", "gd", "sgd", "step_rule"]


@dataclass(frozen=True)
class WidthRule:
    """m_t = min(d, c w^2 / beta_t^2), the theorems' rule; w is the Gaussian width of the constraint, taken to radius 1.

    Gordon's theorem speaks of directions, which have no length: what counts is w(C) / (||C|| / 2), the same for a ball
    of any radius, where the papers' sets have diameter 2.

    constant  c
    beta      the distortion of round t (from 0); by default 1/(t + 1)
    per       what t counts: every "step", or every "epoch" as in the experiments of paper 001
    width     w, where the constraint's own is not the right one (the cone at a sparse point is far narrower)

    >>> from isthmus.sets import L1Ball
    >>> WidthRule(width=2.0).rule(L1Ball(), d=1000, per_epoch=10)(2)
    36
    >>> [WidthRule().rule(L1Ball(radius), d=10_000, per_epoch=1)(1) for radius in (1.0, 150.0)]
    [65, 65]
    """

    constant: float = 1.0
    beta: Callable[[int], float] = field(default_factory=lambda: Rule(1.0, power=1.0))
    per: str = "step"
    width: float | None = None

    def __post_init__(self) -> None:
        validate.positive(constant=self.constant)
        validate.one_of(("step", "epoch"), per=self.per)
        if self.width is not None:
            validate.positive(width=self.width)

    def rule(self, constraint: ConvexSet, d: int, per_epoch: int) -> Callable[[int], int]:
        """t -> m_t for a set in R^d."""
        width = relative_width(constraint, d) if self.width is None else self.width
        every = 1 if self.per == "step" else per_epoch
        return lambda t: narrow_dimension(d, width, self.beta(t // every), self.constant)


def relative_width(constraint: ConvexSet, d: int) -> float:
    """w(C) over half the diameter of C: the width of a set of that shape and radius 1.

    >>> from isthmus.sets import L2Ball
    >>> abs(relative_width(L2Ball(7.0), 400) - 20) < 0.02
    True
    """
    size = constraint.diameter(d)
    validate.check(
        size > 0,
        "constraint",
        constraint,
        "give a set of more than one point: a width rule needs a set with directions",
    )
    return 2 * float(constraint.gaussian_width(d)) / size


def bound_size(m: Size | WidthRule, binding: Binding, per_epoch: int) -> Size:
    """A size, with a width rule turned into its numbers."""
    return m.rule(binding.constraint, binding.d, per_epoch) if isinstance(m, WidthRule) else m


def scheduled_size(m: Size | WidthRule | None, schedule: Schedule | None) -> Size | WidthRule | None:
    """The size that was given, else the width rule of a schedule that has a distortion."""
    if m is not None or schedule is None or schedule.beta is None:
        return m
    return WidthRule(beta=schedule.beta)


def largest_size(m: Size | WidthRule, binding: Binding, per_epoch: int, rounds: int) -> int:
    """m_T of the theorems, the largest dimension of a run of so many rounds."""
    size = bound_size(m, binding, per_epoch)
    return max(resolve(size, binding.d, t) for t in (range(rounds) if callable(size) else (0,)))


StepRule = float | Callable[[int], float]

Family = Callable[[Size], Encoder]


@algorithm(direct=True)
def sgd(
    *,
    step: StepRule | None = None,
    batch_size: int = 32,
    momentum: float = 0.0,
    schedule: Schedule | None = None,
    output: str = "last",
    draw: str = "shuffle",
) -> Recipe:
    """Projected SGD: w+ = P_C(w - eta g).

    step      eta, or a rule t -> eta (t from 0); or give a `schedule` of `isthmus.theory`
    momentum  beta of the heavy ball: v = beta v + g, w+ = P_C(w - eta v)
    output    "last", "average" (sum eta_t w_t / sum eta_t), "random" (one of w_1, ..., w_T, uniformly), or the mean of
              the last K points: "last 10"
    draw      "shuffle" (batches from a new permutation every pass) or "independent" (every record of every batch is
              drawn by itself and may come again: the oracle of the theorems)

    >>> sgd(step=0.1).name
    'sgd'
    """
    arguments = {"step": step, "batch_size": batch_size, "momentum": momentum, "output": output}
    return _Descent(_sampler(draw, batch_size), step, schedule, output, momentum).recipe("sgd", arguments)


@algorithm(direct=True)
def gd(
    *, step: StepRule | None = None, momentum: float = 0.0, schedule: Schedule | None = None, output: str = "last"
) -> Recipe:
    """Projected gradient descent on all records; arguments as for `sgd`."""
    arguments = {"step": step, "momentum": momentum, "output": output}
    return _Descent(Full(), step, schedule, output, momentum).recipe("gd", arguments)


@algorithm
def comp_sgd(
    *,
    m: Size | WidthRule | None = None,
    step: StepRule | None = None,
    batch_size: int = 32,
    error_feedback: bool = False,
    momentum: float = 0.0,
    schedule: Schedule | None = None,
    output: str = "last",
    draw: str = "shuffle",
    sketch: Family = CountSketch,
    refresh: int = 1,
    tol: float = 1e-2,
    pick: str = "nearest",
    stop: Any = None,
) -> Recipe:
    """CompSGD (001, 000): SGD that sees m numbers of each gradient.

    m               narrow dimension: a number, a fraction of d, a rule t -> m, or a `WidthRule`
    error_feedback  the sender keeps what the sketch lost and adds it next time; the server then lifts by the
                    pseudo-inverse and projects.  Without it every round is memoryless: project and lift.
    schedule        a schedule of `isthmus.theory`: fills the step, m (by the constraint's width), the number of
                    rounds and the alpha-FOSP stop rule where they are not given
    sketch          the family, as a function of m
    refresh         how many rounds one map serves; more saves time, but with error feedback a coordinate then waits
                    about refresh d/m rounds, and the largest stable step shrinks with it
    tol             accuracy of the project-and-lift solve
    pick            of all points of C with the right sketch the "nearest" to w_t, or the papers' "min_gauge", one of
                    least Minkowski functional (basis pursuit on an l1 ball), which forgets w_t
    stop            a stop rule; the run then returns the point it fired at, or x = None

    Other arguments as for `sgd`.  Algorithm 1 of paper 000, which draws each i_t by itself, is
    `draw="independent", batch_size=1`.

    >>> comp_sgd(m=0.1, step=0.1, error_feedback=True).arguments["m"]
    0.1
    """
    arguments = {"m": m, "step": step, "batch_size": batch_size, "error_feedback": error_feedback, "output": output}
    wire = Wire(feedback=error_feedback)
    sampler, narrow = _sampler(draw, batch_size), (m, sketch, refresh, tol, wire, pick)
    return _Descent(sampler, step, schedule, output, momentum, stop, *narrow).recipe("comp_sgd", arguments)


@algorithm
def comp_gd(
    *,
    m: Size | WidthRule | None = None,
    step: StepRule | None = None,
    error_feedback: bool = False,
    shifts: bool = False,
    momentum: float = 0.0,
    schedule: Schedule | None = None,
    output: str = "last",
    sketch: Family = CountSketch,
    refresh: int = 1,
    tol: float = 1e-2,
    pick: str = "nearest",
    stop: Any = None,
) -> Recipe:
    """CompGD (000): the full-batch form of `comp_sgd`.

    shifts  the sender learns a shift and sends what the gradient differs from it (DIANA): the sketch loses less and
            less, and the run converges to the minimiser itself, penalties included; steps up to about m / (6 d mu)
    """
    arguments = {"m": m, "step": step, "error_feedback": error_feedback, "output": output, "shifts": shifts}
    wire = Wire(feedback=error_feedback)
    filling = _Descent(Full(), step, schedule, output, momentum, stop, m, sketch, refresh, tol, wire, pick, shifts)
    return filling.recipe("comp_gd", arguments)


@algorithm
def comp_minibatch(
    *,
    m: Size | WidthRule | None = None,
    step: StepRule | None = None,
    batch_size: int | Callable[[int], int] | None = None,
    error_feedback: bool = False,
    schedule: Schedule | None = None,
    output: str = "last",
    draw: str | None = None,
    sketch: Family = CountSketch,
    refresh: int = 1,
    tol: float = 1e-2,
    pick: str = "nearest",
    stop: Any = None,
) -> Recipe:
    """CompMinibatch (000, 001): a fresh batch each round, whose size may be a rule, or the schedule's.

    draw  "subset" (different records, paper 000) or "independent" (with repetition, paper 001, whose theorems may ask
          for more draws than there are records); None: independent where the schedule says how many, else a subset

    Other arguments as for `comp_sgd`.
    """
    validate.check(
        batch_size is not None or schedule is not None,
        "batch_size",
        batch_size,
        "give the number of records of a batch, or a schedule that has one",
    )
    size = schedule.batch_size if batch_size is None and schedule is not None else batch_size
    arguments = {"m": m, "step": step, "batch_size": batch_size, "error_feedback": error_feedback, "output": output}
    how = draw or ("independent" if batch_size is None else "subset")
    sampler, wire = _sampler(how, size or 1, ("subset", "independent")), Wire(feedback=error_feedback)
    filling = _Descent(sampler, step, schedule, output, 0.0, stop, m, sketch, refresh, tol, wire, pick)
    return filling.recipe("comp_minibatch", arguments)


@algorithm(left_out="it is for several holders of data: give their objectives to minimize(clients=...)")
def comp_dist_sgd(
    *,
    m: Size | WidthRule | None = None,
    step: StepRule | None = None,
    clients_per_round: int | Callable[[int], int] | None = None,
    batch_size: int | None = None,
    codec: Codec | str | None = None,
    error_feedback: bool = False,
    shifts: bool = False,
    heavy: int | None = None,
    momentum: float = 0.0,
    schedule: Schedule | None = None,
    output: str = "last",
    sketch: Family | None = None,
    refresh: int = 1,
    tol: float = 1e-2,
    pick: str = "nearest",
) -> Recipe:
    """CompDistSGD (001, App. D): each round, some clients send a sketch of their gradient, drawn from a shared seed.

    clients_per_round  kappa, drawn with replacement: a number, or a rule t -> kappa; None asks as many as the schedule
                       says, and without one every client
    batch_size         records a client looks at; None: all of its own
    codec              an unbiased contraction of the code to bytes: one of `isthmus.codecs`, or its name
    shifts             every client learns a shift and sends what its gradient differs from it (DIANA): at the minimiser
                       nothing of the sketch and of the clients' differences is left; all answer every round
    error_feedback     clients keep what the sketch lost: d numbers each
    heavy              the server keeps it instead, as a code (FetchSGD): a round changes this many coordinates; the
                       memory lasts `refresh` rounds, as the map does; `momentum` is then that of the codes
    sketch             the family, as a function of m: `CountSketch`, with `heavy` `SparseJL` of 5 non-zeros a column

    Run it with `minimize(whole, recipe, clients=[objective_1, ..., objective_M])`.  It minimises the whole, as in the
    paper: f_i = (M / n) sum of client i's losses, so clients count by their records, however unequal.  With
    `clients=isthmus.Clients(objectives, uniform=True)` every client counts the same, and the minimiser is another one.

    >>> comp_dist_sgd(m=10, step=0.1, clients_per_round=4).arguments["clients_per_round"]
    4
    """
    if clients_per_round is not None and not callable(clients_per_round):
        validate.positive_int(clients_per_round=clients_per_round)
    contraction = named(codec)
    if heavy is not None:
        validate.positive_int(heavy=heavy)
        memory = error_feedback or shifts
        validate.check(not memory, "error_feedback, shifts", True, "leave it out with heavy=: one memory is enough")
        validate.check(refresh > 1, "refresh", refresh, "give 2 or more: a memory of codes lasts as long as its map")
    validate.check(
        heavy is not None or momentum == 0,
        "momentum",
        momentum,
        "leave it out, or give heavy=, which momentum of codes needs",
    )
    family = sketch or (CountSketch if heavy is None else _five)
    arguments = {"m": m, "step": step, "clients_per_round": clients_per_round, "batch_size": batch_size}
    sampler = Full() if batch_size is None else Shuffle(batch_size)
    planned = schedule.batch_size if clients_per_round is None and schedule is not None else clients_per_round
    wire = Wire(contraction, error_feedback, planned)
    lift = None if heavy is None else HeavyHitters(heavy, momentum)
    filling = _Descent(sampler, step, schedule, output, 0.0, None, m, family, refresh, tol, wire, pick, shifts, lift)
    settings = {"codec": contraction, "error_feedback": error_feedback, "heavy": heavy, "shifts": shifts}
    return filling.recipe("comp_dist_sgd", {**arguments, **settings})


def _five(m: Size) -> Encoder:
    return SparseJL(m, s=5)


SAMPLERS: dict[str, Callable[[Any], Sampler]] = {
    "shuffle": Shuffle,
    "independent": Uniform,
    "subset": WithoutReplacement,
}


def _sampler(
    draw: str, size: int | Callable[[int], int], draws: tuple[str, ...] = ("shuffle", "independent")
) -> Sampler:
    validate.one_of(draws, draw=draw)
    return SAMPLERS[draw](size)


def step_rule(step: StepRule | None, schedule: Schedule | None) -> StepSize:
    """A rule `t -> eta` from a number, a rule or a schedule."""
    rule = schedule.step if step is None and schedule is not None else step
    if rule is None:
        validate.refuse("step", step, "give a step, or a schedule that has one")
    if callable(rule):
        return rule
    validate.positive(step=rule)
    eta = float(rule)
    return lambda t: eta


def stop_of(stop: Any, schedule: Schedule | None, constraint: ConvexSet) -> Any:
    """The rule that was given, else that of the schedule: an alpha-FOSP, or none."""
    if stop is not None or schedule is None or schedule.threshold is None:
        return stop
    return FirstOrderStationary(schedule.threshold, constraint)


@dataclass(frozen=True)
class _Descent:
    """What all of these recipes are: one stage, one release, a step on C."""

    sampler: Sampler
    step: StepRule | None
    schedule: Schedule | None
    output: str
    momentum: float
    stop: Any = None
    m: Size | WidthRule | None = None
    sketch: Family | None = None
    refresh: int = 1
    tol: float = 1e-2
    wire: Wire = Wire()
    pick: str = "nearest"
    shifts: bool = False
    lift: Lift | None = None

    def __post_init__(self) -> None:
        step_rule(self.step, self.schedule)
        validate.positive(tol=self.tol)
        validate.positive_int(refresh=self.refresh)
        validate.one_of(("nearest", "min_gauge"), pick=self.pick)
        memory = self.wire.feedback or self.shifts
        remedy = "leave it out: error feedback and shifts lift by the pseudo-inverse"
        validate.check(self.pick == "nearest" or not memory, "pick", self.pick, remedy)
        if self.shifts:
            replace(self.wire, shift=1.0)  # refused here, not when it is bound
        average_of(self.output)
        sized = self.sketch is None or scheduled_size(self.m, self.schedule) is not None
        validate.check(sized, "m", self.m, "give the narrow dimension, or a schedule that has one")

    def recipe(self, name: str, arguments: dict[str, Any]) -> Recipe:
        """The recipe under its name."""
        return Recipe(name, self.build, {**arguments, "schedule": self.schedule})

    def build(self, binding: Binding) -> Pipeline:
        """The pipeline for a constraint, a space and a number of records."""
        update, rate = Step(binding.constraint, binding.penalty, self.momentum), self._rate(binding)
        return Pipeline(
            [Stage(self.sampler, [self._release(binding)])],
            step_rule(self.step, self.schedule),
            update if rate is None else Shifted(update, rate),
            average_of(self.output),
            self.wire if rate is None else replace(self.wire, shift=rate),
            stop_of(self.stop, self.schedule, binding.constraint),
            output="last" if self.output == "last" else "average",
            rounds=self.schedule.rounds if self.schedule is not None else None,
        )

    def _release(self, binding: Binding) -> Release:
        if self.sketch is None:
            return Release(encode=Identity())
        m = scheduled_size(self.m, self.schedule)
        assert m is not None
        encode = self._refreshed(self.sketch(bound_size(m, binding, self.sampler.rounds(binding.n))))
        if self.shifts:
            return Release(encode=encode, lift=unbiased)
        # without a set there is nothing to project onto: the nearest lift is the pseudo-inverse
        memoryless = not self.wire.feedback and not isinstance(binding.constraint, Whole)
        lift = ProjectAndLift(binding.constraint, self.pick, self.tol) if memoryless else pinv
        return Release(encode=encode, lift=self.lift or lift)

    def _rate(self, binding: Binding) -> float | None:
        """1 / (1 + omega) of the shifts: an unbiased code of m numbers has E ||Q v||^2 = (1 + chi) d/m ||v||^2."""
        size = scheduled_size(self.m, self.schedule)
        if not self.shifts or size is None:
            return None
        # rules grow: the first is the narrowest
        m = resolve(bound_size(size, binding, self.sampler.rounds(binding.n)), binding.d)
        chi = 0.0 if self.wire.codec is None else self.wire.codec.chi(m)
        return m / (binding.d * (1 + chi))

    def _refreshed(self, encode: Encoder) -> Encoder:
        """A map that serves `refresh` rounds, where the family can."""
        return replace(encode, refresh=self.refresh) if isinstance(encode, Random) and self.refresh > 1 else encode


# ---------------------------------------------------------------- how it is filled from public facts


@sgd.filling(evidence="measured (001-figure-1d): IMDB .874 over an l1 ball, 12 passes", shortfall=(0.001, 0.0))
def _fill_sgd(facts: Facts) -> Choice:
    """Shuffled batches; averages where the loss has corners."""
    run = free_run(facts, facts.parameters, sampled=True)
    step = facts.step or CONSTANTS.free_step / facts.smooth
    return run.choice({"step": step, "batch_size": run.batch_size, "output": _output_of(facts)})


@gd.filling(evidence="the reference: O(1/T) for smooth convex losses", shortfall=(0.0, 0.0))
def _fill_gd(facts: Facts) -> Choice:
    """All records."""
    run = free_run(facts, facts.parameters, sampled=False)
    step = facts.step or CONSTANTS.free_step / facts.smooth
    return run.choice({"step": step, "momentum": CONSTANTS.momentum, "output": "last"})


@comp_minibatch.filling(evidence="Theorems 8, 9 (000); as comp_sgd", shortfall=(0.003, 0.002), research=True)
@comp_sgd.filling(
    evidence="measured (001-figure-1d): .873 with a twentieth of the numbers, SGD .874, without memory .857",
    shortfall=(0.002, 0.001),
)
def _fill_comp_sgd(facts: Facts) -> Choice:
    """m numbers of each gradient; the sender keeps what the sketch lost."""
    run = free_run(facts, _narrow(facts), sampled=True)
    return _with_feedback(run, {"batch_size": run.batch_size, "output": _output_of(facts)})


@comp_gd.filling(
    evidence="Theorem 4 (000); measured (000-table-1): faster than its rate at m = d/4 too", shortfall=(0.002, 0.01)
)
def _fill_comp_gd(facts: Facts) -> Choice:
    """The same on all records."""
    return _with_feedback(free_run(facts, _narrow(facts), sampled=False), {})


def _with_feedback(run: Run, more: dict[str, Any]) -> Choice:
    # a coordinate waits d / m rounds for its turn: steps that are stable without memory are too long with it
    step = run.facts.step or CONSTANTS.feedback_step / run.facts.smooth
    return run.choice({"m": run.dims, "step": step, "error_feedback": True, **more}, "error feedback")


def _narrow(facts: Facts) -> int:
    tenth = max(1, facts.parameters // 10)
    return min(facts.parameters, tenth if facts.max_dims is None else facts.max_dims)


def _output_of(facts: Facts) -> str:
    return "last" if facts.of_loss.curvature is not None else "average"
