"""Projected (stochastic) gradient descent, and its compressed forms (papers 001 and 000; see `_Descent`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Unpack

from isthmus.algorithms import base
from isthmus.algorithms.base import SIMPLEX_ONLY, Family, StepRule, Stop, WidthRule
from isthmus.algorithms.suggest import Build, Choice, Facts, Run, _free_run, algorithm
from isthmus.base import validate
from isthmus.codecs import Codec, named
from isthmus.core.minimize import Binding
from isthmus.core.parts import Full, Shifted, Shuffle, Step, Uniform, WithoutReplacement
from isthmus.core.pipeline import Pipeline, Release, Stage
from isthmus.core.wire import Wire
from isthmus.lifts import HeavyHitters, Lift, pinv, unbiased
from isthmus.privacy.sampling import Sampler
from isthmus.sketches import CountSketch, Random, Size, SparseJL, resolve
from isthmus.theory import Schedule


@algorithm(direct=True)
def sgd(
    *,
    step: StepRule | None = None,
    batch_size: int = 32,
    momentum: float = 0.0,
    schedule: Schedule | None = None,
    output: str = "last",
    draw: str = "shuffle",
) -> Build:
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
    plain = _FreeDescent(step=step, momentum=momentum, schedule=schedule, output=output, sketch=None)
    return replace(plain, sampler=_sampler(draw, batch_size)).build


@algorithm(direct=True)
def gd(
    *, step: StepRule | None = None, momentum: float = 0.0, schedule: Schedule | None = None, output: str = "last"
) -> Build:
    """Projected gradient descent on all records; arguments as for `sgd`."""
    return _FreeDescent(step=step, momentum=momentum, schedule=schedule, output=output, sketch=None).build


class _FreeOptions(base._NarrowOptions, total=False):
    """What compressed descents share; see `comp_sgd`."""

    error_feedback: bool
    refresh: int


@algorithm
def comp_sgd(
    *,
    batch_size: int = 32,
    momentum: float = 0.0,
    draw: str = "shuffle",
    stop: Stop | None = None,
    **options: Unpack[_FreeOptions],
) -> Build:
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
    return _FreeDescent(sampler=_sampler(draw, batch_size), momentum=momentum, stop=stop, **options).build


@algorithm
def comp_gd(
    *, shifts: bool = False, momentum: float = 0.0, stop: Stop | None = None, **options: Unpack[_FreeOptions]
) -> Build:
    """CompGD (000): the full-batch form of `comp_sgd`.

    shifts  the sender learns a shift and sends what the gradient differs from it (DIANA): the sketch loses less and
            less, and the run converges to the minimiser itself, penalties included; steps up to about m / (6 d mu)
    """
    return _FreeDescent(shifts=shifts, momentum=momentum, stop=stop, **options).build


@algorithm
def comp_minibatch(
    *,
    batch_size: int | Callable[[int], int] | None = None,
    draw: str | None = None,
    stop: Stop | None = None,
    **options: Unpack[_FreeOptions],
) -> Build:
    """CompMinibatch (000, 001): a fresh batch each round, whose size may be a rule, or the schedule's.

    draw  "subset" (different records, paper 000) or "independent" (with repetition, paper 001, whose theorems may ask
          for more draws than there are records); None: independent where the schedule says how many, else a subset

    Other arguments as for `comp_sgd`.
    """
    schedule, usual = options.get("schedule"), "subset"
    if batch_size is None and schedule is not None:
        batch_size, usual = schedule.batch_size, "independent"
    if batch_size is None:
        validate.refuse("batch_size", None, "give the number of records of a batch, or a schedule that has one")
    sampler = _sampler(draw or usual, batch_size, "subset")
    return _FreeDescent(sampler=sampler, stop=stop, **options).build


@algorithm(left_out="it is for several holders of data: give their objectives to minimize(clients=...)")
def comp_dist_sgd(
    *,
    clients_per_round: int | Callable[[int], int] | None = None,
    batch_size: int | None = None,
    codec: Codec | str | None = None,
    shifts: bool = False,
    heavy: int | None = None,
    momentum: float = 0.0,
    **options: Unpack[_FreeOptions],
) -> Build:
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
    hitters, sampler = None, Full() if batch_size is None else Shuffle(batch_size)
    if heavy is None:
        validate.check(momentum == 0, "momentum", momentum, "leave it out, or give heavy=: only codes have a momentum")
    else:
        validate.positive_int(heavy=heavy)
        memory, refresh = options.get("error_feedback", False) or shifts, options.get("refresh", 1)
        validate.check(not memory, "error_feedback, shifts", True, "leave it out with heavy=: one memory is enough")
        validate.check(refresh > 1, "refresh", refresh, "give 2 or more: a memory of codes lasts as long as its map")
        options["sketch"] = options.get("sketch") or partial(SparseJL, s=5)
        hitters = HeavyHitters(heavy, momentum)
    schedule = options.get("schedule")
    if clients_per_round is None and schedule is not None:
        clients_per_round = schedule.batch_size
    wire = Wire(named(codec), False, clients_per_round)
    return _FreeDescent(sampler=sampler, wire=wire, shifts=shifts, heavy=hitters, **options).build


@algorithm(left_out=SIMPLEX_ONLY)
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
    rule, sampler = base._step_rule(step, schedule), Full() if batch_size is None else Shuffle(batch_size)
    descent = base._Descent(m=m, schedule=schedule, output=output, sketch=sketch, optional=True)

    def build(binding: Binding) -> Pipeline:
        release = Release(encode=descent.encode(binding, sampler.rounds(binding.n)), lift=unbiased)
        return descent.pipeline(binding, [Stage(sampler, [release])], rule, update=base._mirror_of(binding))

    return build


def _sampler(draw: str, size: int | Callable[[int], int], other: str = "shuffle") -> Sampler:
    """Independent draws, or the other way that a recipe offers."""
    validate.one_of((other, "independent"), draw=draw)
    if draw == "shuffle":
        return Shuffle(size)
    return Uniform(size) if draw == "independent" else WithoutReplacement(size)


@dataclass(frozen=True, kw_only=True)
class _FreeDescent(base._Descent):
    """Descent without a budget; what a map loses may be kept by senders, or codes be lifted otherwise."""

    sketch: Family | None = CountSketch
    sampler: Sampler = Full()
    refresh: int = 1
    error_feedback: bool = False
    wire: Wire = Wire()
    shifts: bool = False
    heavy: Lift | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        base._step_rule(self.step, self.schedule)
        validate.positive_int(refresh=self.refresh)
        nearest = self.pick == "nearest" or not (self.error_feedback or self.shifts)
        remedy = "leave it out: error feedback and shifts lift by the pseudo-inverse"
        validate.check(nearest, "pick", self.pick, remedy)
        wire = replace(self.wire, feedback=self.error_feedback)
        object.__setattr__(self, "wire", wire)
        if self.shifts:
            replace(wire, shift=1.0)  # refused here, not when it is bound

    def build(self, binding: Binding) -> Pipeline:
        """The pipeline for a constraint, a space and a number of records."""
        per_epoch = self.sampler.rounds(binding.n)
        size, encode, lift = self.size(binding, per_epoch), self.encode(binding, per_epoch), self.lift(binding)
        if isinstance(encode, Random) and self.refresh > 1:
            encode = replace(encode, refresh=self.refresh)
        if self.error_feedback:
            lift = pinv
        if self.shifts:
            lift = unbiased
        release, more = Release(encode=encode, lift=self.heavy or lift), dict[str, object](wire=self.wire)
        if self.shifts and size is not None:
            # an unbiased code of m numbers has E ||Q v||^2 = (1 + chi) d/m ||v||^2; rules grow: the first is narrowest
            m = resolve(size, binding.d)
            rate = m / binding.d
            if self.wire.codec is not None:
                rate = m / (binding.d * (1 + self.wire.codec.chi(m)))
            update = Shifted(Step(binding.constraint, binding.penalty, self.momentum), rate)
            more = {"wire": replace(self.wire, shift=rate), "update": update}
        stages, rule = [Stage(self.sampler, [release])], base._step_rule(self.step, self.schedule)
        return self.pipeline(binding, stages, rule, **more)


# ---------------------------------------------------------------- arguments by public facts


@sgd.suggest_arguments(
    evidence="measured (001-figure-1d): IMDB .874 over an l1 ball, 12 passes", shortfall=(0.001, 0.0)
)
def _suggest_sgd(facts: Facts) -> Choice:
    """Shuffled batches; averages where the loss has corners."""
    run, step = _free_run(facts, facts.parameters, sampled=True), facts.step or 1 / facts.smooth
    return run.choice({"step": step, "batch_size": run.batch_size, "output": _output_of(facts)})


@gd.suggest_arguments(evidence="the reference: O(1/T) for smooth convex losses", shortfall=(0.0, 0.0))
def _suggest_gd(facts: Facts) -> Choice:
    """All records."""
    run, step = _free_run(facts, facts.parameters, sampled=False), facts.step or 1 / facts.smooth
    return run.choice({"step": step, "momentum": 0.9, "output": "last"})


@comp_minibatch.suggest_arguments(evidence="Theorems 8, 9 (000); as comp_sgd", shortfall=(0.003, 0.002), research=True)
@comp_sgd.suggest_arguments(
    evidence="measured (001-figure-1d): .873 with a twentieth of the numbers, SGD .874, without memory .857",
    shortfall=(0.002, 0.001),
)
def _suggest_comp_sgd(facts: Facts) -> Choice:
    """m numbers of each gradient; the sender keeps what the sketch lost."""
    run = _free_run(facts, _narrow(facts), sampled=True)
    return _with_feedback(run, {"batch_size": run.batch_size, "output": _output_of(facts)})


@comp_gd.suggest_arguments(
    evidence="Theorem 4 (000); measured (000-table-1): faster than its rate at m = d/4 too", shortfall=(0.002, 0.01)
)
def _suggest_comp_gd(facts: Facts) -> Choice:
    """The same on all records."""
    return _with_feedback(_free_run(facts, _narrow(facts), sampled=False), {})


def _with_feedback(run: Run, more: dict[str, Any]) -> Choice:
    # a coordinate waits d / m rounds for its turn: steps that are stable without memory are too long with it
    step = run.facts.step or 0.25 / run.facts.smooth
    return run.choice({"m": run.dims, "step": step, "error_feedback": True, **more}, "error feedback")


def _narrow(facts: Facts) -> int:
    return min(facts.parameters, facts.max_dims or max(1, facts.parameters // 10))


def _output_of(facts: Facts) -> str:
    return "average" if facts.of_loss.curvature is None else "last"
