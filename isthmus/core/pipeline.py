"""Read this first: the pipeline, its round and the only loop.

    where the data is                        over the wire     where the noise is
    [rows -> encode -> clip -> sum -> codec] -> added over ->  [noise -> lift -> update -> average]
     per-example      R^d -> R^m                batches,        R^m -> C in R^d
     gradients, factored, never materialised    ranks, clients

Every algorithm is one filling of these slots; the plain case is the general case with identities in them.
A `Pipeline` is a list of `Stage`s (each looks at one sample of the data), a stage a list of `Release`s
(each one encode, clip, mechanism and lift).  A step of the algorithm is a **round**:

    Round        the step size, and what encoders may look at: public things only
    bind_stage   this round's maps and clip bounds
    contribute   where the data is: sample, take per-example rows, `measure` them
    (add)        messages are a monoid: physical batches, ranks and clients add up
    close_stage  where the noise is: charge the ledger, release, lift
    advance      update, average, adapt: post-processing of what was released

`step` strings them together and `run` repeats `step`; a user's own torch loop calls the same functions.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property, partial, reduce
from operator import add
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from isthmus.base import storage, validate
from isthmus.base.parallel import in_order
from isthmus.base.randomness import generator, key
from isthmus.base.secret import released as released_by
from isthmus.base.space import Space
from isthmus.core import parts
from isthmus.core.group import ALONE, Aggregator, Group
from isthmus.core.parts import Average, Delegate, Last, Records, RowSource, Step, Update, current, said
from isthmus.core.wire import Keys, Memo, Message, StageOutput, State, Wire
from isthmus.gradients import Rows
from isthmus.gradients.layers.forward_guard import private_records
from isthmus.gradients.rounding import exact_products
from isthmus.gradients.rows import regrouped
from isthmus.lifts import Lift, Lifted, pinv, unbiased
from isthmus.privacy import accounting, clips
from isthmus.privacy.accounting import Adjacency, joint
from isthmus.privacy.clips import ClippedSum, Clipping, GroupClip, PerLeafClip, Rounding
from isthmus.privacy.event_json import DpEvent, dpa
from isthmus.privacy.ledger import RunLedger
from isthmus.privacy.mechanisms import Exact, Mechanism, check_bounded
from isthmus.privacy.noise import Source
from isthmus.privacy.plan import PrivacyPlan
from isthmus.privacy.sampling import FixedSize, Sampler, rate_of
from isthmus.problems.queries import Answered, Query
from isthmus.sketches import Encoder, Identity, Sketch
from isthmus.sketches.base import leave_pinv

if TYPE_CHECKING:
    from isthmus.core.minimize import Purchased

StepSize = Callable[[int], float | Tensor]


def constant(eta: float) -> StepSize:
    """The same step in every round."""
    return lambda t: eta


Maps = dict[str, tuple[Hashable, Sketch]]
"""The maps a run holds between rounds, by slot: a convenience that any machine can rebuild, never part of the state."""


# ---------------------------------------------------------------- what fills the slots


@dataclass(frozen=True)
class Release:
    """One value that leaves the data: encode, clip, mechanism, lift."""

    name: str = "gradient"
    encode: Encoder = field(default_factory=Identity)
    clip: Clipping | None = None
    mechanism: Mechanism = field(default_factory=Exact)
    lift: Lift = pinv

    @property
    def clipped(self) -> Clipping:
        """The clip, of a release that has one, as every private one does."""
        if self.clip is None:
            validate.refuse("clip", None, f"give a clip: without one, release {self.name!r} has no bound")
        return self.clip


@dataclass(frozen=True)
class Stage:
    """Releases that look at ONE sample of the data, every `every` rounds.

    groups  micro-batches: every drawn record is put into one of so many groups, independently of every other and
            secretly, and the rows that are clipped are the means of groups (`GroupClip`)
    """

    sampler: Sampler
    releases: Sequence[Release] = (Release(),)
    name: str = "main"
    every: int = 1
    source: RowSource = current
    groups: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "releases", tuple(self.releases))  # what was checked stays as it was

    @cached_property
    def private(self) -> bool:
        """Whether any release hides its data behind noise."""
        return any(release.mechanism.private for release in self.releases)

    @cached_property
    def slots(self) -> tuple[tuple[Release, str], ...]:
        """Every release with its slot `stage/release`."""
        return tuple((release, f"{self.name}/{release.name}") for release in self.releases)

    def looks(self, rounds: int) -> int:
        """How many of the first so many rounds the stage takes part in."""
        return -(-rounds // self.every)

    def event(self, adjacency: Adjacency) -> DpEvent:
        """What one round of the stage releases, for the accountant: its releases together, seen through its sampler."""
        return self.sampler.event(joint([release.mechanism.event(adjacency) for release in self.releases]))


@dataclass(frozen=True)
class Promise:
    """What a private pipeline guarantees, and what must hold for it.

    epsilon    of the whole run; infinite where a budget is kept elsewhere, or where a mechanism gives none
    n          the number of records, where it was declared public
    plan       how the budget is split over what is released
    records    the number of records, or its public estimate
    """

    epsilon: float
    delta: float
    adjacency: Adjacency = Adjacency.ADD_REMOVE
    n: int | None = None
    assumptions: tuple[str, ...] = ()
    plan: PrivacyPlan | None = None
    records: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "adjacency", Adjacency.of(self.adjacency))


class Purchase(Protocol):
    """One purchase: a look at the data before the loop, and what follows from what it released (`core.minimize`)."""

    @property
    def name(self) -> str:
        """Under which it is charged."""
        ...

    def check(self, objective: object) -> None:
        """Refuse a problem that it cannot be released for, before anything is."""
        return

    def stage(self, objective: object) -> tuple[Stage, Space] | None:
        """The look, and the space of what it releases; None where nothing is looked at."""
        return None

    def event(self, adjacency: Adjacency) -> DpEvent:
        """What the look costs: nothing, where there is none."""
        return dpa.NoOpDpEvent()

    def apply(self, prepared: Purchased, bought: Tensor | None) -> Purchased:
        """The `Purchased` problem with what follows from the released values."""
        ...


@dataclass(frozen=True)
class Pipeline:
    """An algorithm: stages of releases, a step rule `t -> eta` (t from 0), an update and an average.

    `output` says what a run returns as its point, the "last" iterate or the "average"; `rounds` how many it
    takes where the algorithm says so itself; `promise` what a private one guarantees; `before` what is released
    before the loop.  Unsound fillings, and private ones that the accountant cannot account
    for, are refused when it is built; one that claims privacy may hold no look at the data without noise.
    """

    stages: Sequence[Stage]
    step: StepSize
    update: Update = field(default_factory=Step)
    average: Average = field(default_factory=Last)
    wire: Wire = field(default_factory=Wire)
    stop: Callable[[Round, State, State], bool] | None = None
    output: str = "last"
    rounds: int | None = None
    promise: Promise | None = None
    before: Sequence[Purchase] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "stages", tuple(self.stages))  # what was checked stays as it was
        object.__setattr__(self, "before", tuple(self.before))
        _check_sound(self)

    @cached_property
    def private(self) -> bool:
        """Whether any release hides its data behind noise."""
        return any(stage.private for stage in self.stages)

    @cached_property
    def encoders(self) -> tuple[tuple[str, Encoder], ...]:
        """Every encoder, nested ones included, with the slot where its state is kept: the first that holds it."""

        def nested(encoder: Encoder, slot: str) -> Iterator[tuple[str, Encoder]]:
            yield slot, encoder
            if is_dataclass(encoder):
                for item in fields(encoder):
                    inner = getattr(encoder, item.name)
                    if isinstance(inner, Encoder):
                        yield from nested(inner, f"{slot}.{item.name}")

        return tuple(found for _, release, slot in slots(self.stages) for found in nested(release.encode, slot))

    @cached_property
    def slot_of(self) -> dict[int, str]:
        """The slot of every encoder, by its id."""
        return {id(encoder): slot for slot, encoder in reversed(self.encoders)}


def slots(stages: Sequence[Stage]) -> list[tuple[Stage, Release, str]]:
    """Every release with its stage and its slot `stage/release`."""
    return [(stage, release, slot) for stage in stages for release, slot in stage.slots]


# ---------------------------------------------------------------- what a pipeline may not be


def _check_sound(pipe: Pipeline) -> None:
    """Refuse fillings that could break their own guarantee or cannot work."""
    validate.one_of(("last", "average"), output=pipe.output)
    _check_names("stages", "stage", [stage.name for stage in pipe.stages])
    for stage in pipe.stages:
        validate.positive_int(every=stage.every)
        _check_names("releases", "release", [release.name for release in stage.releases])
        for release in stage.releases:
            _check_release(pipe, stage, release)
    if pipe.promise is not None or pipe.private:
        _check_claim(pipe)
    gapless = isinstance(pipe.stop, parts.GapBelow) and not isinstance(pipe.update, parts.FrankWolfe)
    remedy = "use FirstOrderStationary: this one reads the gap of Frank-Wolfe steps"
    validate.check(not gapless, "stop", type(pipe.stop).__name__, remedy)
    remedy = "state epsilon, delta and adjacency: what is released before the loop is paid for"
    validate.check(not pipe.before or pipe.promise is not None, "promise", pipe.promise, remedy)


def _check_names(argument: str, kind: str, names: list[str]) -> None:
    validate.check(len(names) > 0, argument, names, f"give at least one {kind}")
    validate.check(len(set(names)) == len(names), argument, names, f"give each {kind} its own name")


def _check_release(pipe: Pipeline, stage: Stage, release: Release) -> None:
    where, wire, clip, mechanism = f"release {release.name!r}", pipe.wire, release.clip, release.mechanism
    names = [item.name for item in stage.releases]
    if clip is not None and clip.release is not None:
        remedy = f"name a release of the stage, for the clip of {where}: it has {names}"
        validate.check(clip.release in names, "clip.release", clip.release, remedy)
    remedy = f"leave it out: in {where} a memory of unclipped gradients has no bound: it is for runs without"
    validate.check(not wire.remembers or (clip is None and not mechanism.private), "feedback", True, remedy)
    if not mechanism.private:
        return
    if clip is None:
        validate.refuse("clip", None, f"give a clip: {where} adds noise, which means nothing without a bound")
    remedy = f"clip in one of the norms {mechanism.ords}, which the mechanism of {where} takes"
    validate.check(release.encode.settled_ord(clip.ord) in mechanism.ords, "ord", clip.ord, remedy)
    remedy = (
        f"run it as printed, with a mechanism that says so: in {where} the bound of {type(release.encode).__name__} is "
        "a paper's claim and no fact, so that no noise on it has a finite epsilon"
    )
    adjacency = Adjacency.ADD_REMOVE if pipe.promise is None else pipe.promise.adjacency
    bare = all(isinstance(part, dpa.NonPrivateDpEvent) for part in accounting.leaves_of(mechanism.event(adjacency)))
    validate.check(release.encode.proven or bare, "mechanism", mechanism, remedy)
    remedy = f"add the noise at the client: in {where} a codec before central noise lets a record move a whole sum"
    validate.check(not wire.codec, "codec", wire.codec, remedy)


def _check_claim(pipe: Pipeline) -> None:
    """A pipeline that claims privacy holds no unnoised look at the data, whichever slot it would stand in."""
    promise = pipe.promise
    private = [stage.name for stage in pipe.stages if stage.private]
    remedy = "give a private mechanism, or leave the promise out: nothing adds noise"
    validate.check(bool(private), "promise", promise, remedy)
    if promise is None:
        validate.refuse("promise", None, f"state epsilon, delta and adjacency: stage {private[0]!r} adds noise")
    bare = [slot for stage in pipe.stages for release, slot in stage.slots if not release.mechanism.private]
    remedy = "give each of them a mechanism: they are released without noise, and the pipeline claims to be private"
    validate.check(not bare, "mechanism", bare, remedy)
    for stage in pipe.stages:
        whole = promise.adjacency is Adjacency.REPLACE_ONE and rate_of(stage.sampler, 0.0) == 1
        for release in stage.releases:  # a record moves the mean of its micro-batch by 2C
            event, clip = release.mechanism.event(promise.adjacency), release.clip
            # one that runs as its paper prints it may have no finite cost: it says itself what it really gives
            looks = list(accounting.leaves_of(event))
            free = any(isinstance(part, dpa.NonPrivateDpEvent) or accounting.noiseless(part) for part in looks)
            honest = bool(looks) and (not free or bool(release.mechanism.guarantee))
            remedy = f"give one whose event costs something finite: this one accounts for itself as {event}"
            validate.check(honest, "mechanism", release.mechanism, remedy)
            remedy = f"give a GroupClip: stage {stage.name!r} clips means of micro-batches"
            validate.check(stage.groups is None or isinstance(clip, GroupClip), "clip", clip, remedy)
            remedy = "leave it out: a record counts C only where one is replaced and every round looks at all of them"
            validate.check(whole or not (isinstance(clip, GroupClip) and clip.replaced), "clip.replaced", True, remedy)
        event = stage.event(promise.adjacency)
        remedy = "give the event of one round: this sampler hides what its releases cost"
        validate.check(any(True for _ in accounting.leaves_of(event)), "sampler", stage.sampler, remedy)
        accounting.check(event, promise.adjacency)
    for slot, part in {"update": pipe.update, "average": pipe.average, "stop": pipe.stop, "step": pipe.step}.items():
        for name in ("loss", "gradient"):  # as line searches and certified stops hold them
            held, remedy = said(part, name), f"leave it out of a private run: in {type(part).__name__}"
            validate.check(held is None, f"{slot}.{name}", held, f"{remedy} it is a look at the data without noise")


OTHERS = {
    "sampler": "draws records as its event says",
    "source": "gives each record a vector that depends on this record alone",
    "encode": "maps each record by itself, and states a bound of its sums that holds",
    "clip": "keeps every record's share of the sum below its bound",
    "mechanism": "hides what it releases as its event says",
    **dict.fromkeys(("update", "average", "stop"), "reads released values only"),
}
"""What a guarantee takes from parts that this library did not write."""


def assumed(pipe: Pipeline, before: Sequence[Stage] = ()) -> list[str]:
    """What a private pipeline rests on that no check can see: parts of somebody else's, and public examples."""
    others = others_parts((*before, *pipe.stages))
    others += _foreign({"update": pipe.update, "average": pipe.average, "stop": pipe.stop})
    if any(said(release.encode, "data") is not None for stage in pipe.stages for release in stage.releases):
        others.append("the examples that a sketch learns from are public, and no private records")
    return others


def others_parts(stages: Sequence[Stage]) -> list[str]:
    """What the guarantee takes from parts of stages that somebody else wrote."""
    names: list[str] = []
    for stage in stages:
        names += _foreign({"sampler": stage.sampler})
        for release in stage.releases:
            names += _foreign({"encode": release.encode, "clip": release.clip, "mechanism": release.mechanism})
        if not said(stage.source, "own_records"):
            names.append(f"the source of stage {stage.name!r} {OTHERS['source']}")
    return list(dict.fromkeys(names))


def stopped(planned: int, done: int) -> list[str]:
    """What a statement says of a run that was stopped before its last round.

    >>> stopped(10, 10), len(stopped(10, 4))
    ([], 1)
    """
    if done >= planned:
        return []
    return [
        f"{done} of {planned} planned rounds were made, and all planned rounds are counted: earlier results may have "
        "decided when to stop"
    ]


def _foreign(parts: Mapping[str, object]) -> list[str]:
    """What is taken from those parts whose class somebody else wrote."""
    found, ours = [], __name__.split(".")[0]
    for kind, part in parts.items():
        if part is not None and type(part).__module__.split(".")[0] != ours:
            name = getattr(part, "__name__", type(part).__name__)
            found.append(f"{name}, which is not of this library, {OTHERS[kind]}")
    return found


# ---------------------------------------------------------------- a round: public things


def no_public(w: Tensor, data: object) -> NoReturn:
    """Refuse a sketch that asks for public examples where there are none."""
    validate.refuse("public", type(data).__name__, "give a sketch that needs no public examples: there are none here")


@dataclass(eq=False)
class Round:
    """Everything that is fixed while a round lasts, public things only: what an encoder may look at when it is bound.

    eta, read   the step size; the iterate, where it is not the state's: it is read at most once
    maps        what is held between rounds; `place` puts a new map where a driver holds memory for it
    held        what stages that do not run every round last released
    parts       what encoders, clips and lifts remember of earlier rounds, by slot; `changed` what this one adds
    memory      what senders keep of what a sketch lost, by client and slot (runs without noise only)
    sketches, bounds   this round's maps and clip bounds, by slot: public, given or paid for
    released, paid     what its stages released, by stage and release; which of them were charged
    """

    pipe: Pipeline
    state: State
    space: Space
    seed: int
    epoch: int = 0
    read: Callable[[], Tensor] | None = None
    public_rows: Callable[[Tensor, Any], Rows] = no_public
    eta: float | Tensor = None  # type: ignore[assignment]  # as the pipeline says
    maps: Maps = field(default_factory=dict)
    group: Group = ALONE
    device: torch.device | None = None
    place: Callable[[str, Sketch], Sketch] | None = None
    changed: Memo = field(default_factory=dict, init=False)
    sketches: dict[str, Sketch] = field(default_factory=dict, init=False)
    bounds: dict[str, float] = field(default_factory=dict, init=False)
    released: dict[str, dict[str, Tensor]] = field(default_factory=dict, init=False)
    paid: set[str] = field(default_factory=set, init=False)
    _bound: dict[str, Sketch] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        state = self.state
        self.t, self.parts, self.held, self.memory = state.t, state.parts, dict(state.held), dict(state.memory)
        if self.eta is None:
            self.eta = self.pipe.step(self.t)
        self.active = [stage for stage in self.pipe.stages if self.t % stage.every == 0]

    @cached_property
    def w(self) -> Tensor:
        """The iterate."""
        return self.state.w if self.read is None else self.read()

    def rows(self, data: object) -> Rows:
        """Per-example gradients at the iterate on public data."""
        return self.public_rows(self.w, data)

    def state_of(self, slot: str) -> Any:
        """What the encoder of a slot remembers after it was bound; None where it remembers nothing."""
        return self.changed.get(slot, self.parts.get(slot))

    def bind(self, encoder: Encoder) -> Sketch:
        """The map of this round: one for all slots that share an encoder, bound once however often it is asked for."""
        slot = self.pipe.slot_of.get(id(encoder), self.pipe.encoders[-1][0])
        if slot in self._bound:
            return self._bound[slot]
        token, (kept, sketch) = encoder.token(self), self.maps.get(slot, (None, None))
        if token is None or kept != token or sketch is None:
            before = self.parts.get(slot)
            if self.group.size > 1 and encoder.public:  # no two machines need learn the same bits: one does

                def learned(before: Any = before) -> Any:
                    following = encoder.bind(self, before)[1]
                    return None if following is before else following  # nothing was learned in this round

                learnt = self.group.on_leader(learned)
                before = before if learnt is None else learnt
            sketch, state = encoder.bind(self, before)
            if self.place is not None:
                sketch = self.place(slot, sketch)
            self.maps[slot] = (token, sketch)
            if state is not None:
                self.changed[slot] = state
        self._bound[slot] = sketch
        return sketch


def bind_stage(round: Round, stage: Stage) -> None:
    """Look up the clip bounds of a stage and bind its encoders, which may look at what earlier stages released."""
    for release, slot in stage.slots:
        if release.clip is not None:
            bound = round.parts.get(f"{slot}/clip")
            round.bounds[slot] = release.clip.init() if bound is None else bound
    for release, slot in stage.slots:
        round.sketches[slot] = round.bind(release.encode)


# ---------------------------------------------------------------- where the data is


_Rows = Rows | Query | None
_EXACT = Rounding()


@dataclass(frozen=True)
class Client:
    """One holder of records: its name, its problem, and how often it was asked in this round before.

    whole   how many records all holders have together; its own where it is the only one
    share   what it may use of the error that rounding may give the sum of all holders
    joint   finds what is no sum, together with the other holders: its value at one of them, 0 at the others
    """

    name: str
    problem: Records
    visit: int = 0
    whole: int | None = None
    share: float = 1.0
    joint: Callable[[Query], Tensor] | None = None

    @property
    def role(self) -> str:
        """What its draws are keyed by: a client asked twice draws twice."""
        return f"{self.name}/{self.visit}" if self.visit else self.name


def measure(
    release: Release, sketch: Sketch, bound: float, rows: _Rows, codes: Rows | None = None, rounding: Rounding = _EXACT
) -> ClippedSum:
    """The only code that reads per-example values: the clipped sum of codes, with its bound.

    With no clip, or a clip before the sketch, the sum is encoded and never the rows (the map is linear).  What is no
    sum over records is a `Query`, whose proven bound must be within that of the clip.
    """
    clip = release.clip
    if isinstance(rows, Query):
        if clip is None or clip.ord != 2 or rows.bound > clip.total(bound):
            remedy = f"give a clip in the norm 2 of at least {rows.bound}, by which one record can move it"
            validate.refuse("clip", clip, f"{remedy}: {type(rows).__name__} is released with its bound only")
        return ClippedSum(rows.value(), clip.ord, clip.total(bound))
    whole = codes if rows is None else rows
    assert whole is not None
    if clip is None:
        return ClippedSum(sketch.forward(whole.sum()), 2, math.inf)
    with exact_products(whole.device):  # a bound means nothing in reduced precision
        if not clip.before:
            whole = sketch.encode(whole) if codes is None else codes
        extra = 0.0
        if clip.before or not whole.exact:  # counts are exact, and what a map makes of their sum is not
            extra = rounding.kappa(whole, encoded=whole.d < sketch.d)
        total, each, error = clip.total(bound) * (1 + extra), clip.each(bound), extra * rounding.share
        if clip.before:
            weights, total = clip.weights(whole, bound), total * sketch.gain(clip.ord)
            value = clips.encoded_sum(sketch, whole, weights, each, error, clip.ord)
        elif isinstance(clip, PerLeafClip):
            value = clip.weighted_sum(whole, bound, error)
        else:
            value = clips.weighted_sum(whole, clip.weights(whole, bound), each, error, clip.ord)
        return ClippedSum(value, clip.ord, total, dtype=whole.dtype)


def fragment(
    round: Round, stage: Stage, rows: _Rows, codes: Mapping[str, Rows] | None = None, rounding: Rounding = _EXACT
) -> Message:
    """The message of one physical batch; its divisor is set once for the whole stage."""
    values, codes = dict[str, ClippedSum](), codes or {}
    for release, slot in stage.slots:
        if round.pipe.wire.remembers:  # the sender's memory lives in R^d: encoded when it is sent
            assert isinstance(rows, Rows)
            values[release.name] = ClippedSum(rows.sum(), 2, math.inf)
        else:
            bound, own = round.bounds.get(slot, math.inf), codes.get(release.name)
            values[release.name] = measure(release, round.sketches[slot], bound, rows, own, rounding)
    return Message(values, 0.0)


def contribute(round: Round, stage: Stage, client: Client, keys: Keys, physical: int | None = None) -> Message:
    """Where the data is: sample, take the rows, measure them, send.  `physical` bounds the rows held at once.

    The rows of a physical batch are, of what is no sum over records, the query; of micro-batches, their means.
    """
    problem, sampler, role = client.problem, stage.sampler, client.role
    n, linear = problem.n, bool(said(problem, "linear"))  # a linear model draws nothing and keeps nothing
    index, times = sampler.draw(n, round.t, keys, role), None
    if index is not None and len(index) > n and all(release.clip is None for release in stage.releases):
        # more draws than records: how often each was drawn.  Copies that are clipped one by one stay apart
        times = torch.bincount(index, minlength=n)
        index = times.nonzero().reshape(-1)
    divisor, alone = sampler.divisor(n, round.t), client.whole in (None, n)
    expected = None if linear else sampler.divisor(client.whole or n, round.t)
    batches, apart = _batches(problem, stage, index, physical)

    def measured(number: int) -> Message:
        part = batches[number]
        rows = stage.source(problem, round.w, part, round.held)
        if isinstance(rows, Query):
            rows = _answered(rows, client, physical, alone)
        elif times is not None and isinstance(part, Tensor):
            rows = rows.mixed(torch.arange(len(part))[:, None], times[part][:, None])
        if stage.groups is not None:
            if physical is not None or not alone or not isinstance(rows, Rows):
                remedy = "leave out physical_batch_size, and let one process hold the records"
                validate.refuse("micro_batch", stage.groups, f"{remedy}: a micro-batch is clipped whole")
            if keys.noise is None:
                validate.refuse("noise", None, "give a SecretSource as keys.noise: micro-batches are drawn secretly")
            rows = regrouped(rows, keys.noise.integers(stage.groups, rows.n))  # a record's own is drawn for it alone
        share = clips.part_of_error(number + 1, number + 1 == len(batches)) * client.share
        return fragment(round, stage, rows, rounding=Rounding(expected, share))

    with nullcontext() if keys.noise is None or linear else private_records(not keys.noise.seeded, len(batches) > 1):
        several = in_order if apart and len(batches) > 1 else map  # batches that do not touch each other, at a time
        total = reduce(add, several(measured, range(len(batches))))
    fixed = said(sampler, "expected") is not None
    total = replace(total, divisor=divisor, fixed=fixed, records=0 if stage.private else n)
    return _sent(round, stage, total, client.name, role)


def _answered(query: Query, client: Client, physical: int | None, alone: bool) -> Query:
    """What is no sum over records, with its value where ranks find it together, an empty one too."""
    name = type(query).__name__
    remedy = f"leave it out: {name} is no sum, and one record more would shift every batch after it"
    validate.check(physical is None, "physical_batch_size", physical, remedy)
    if client.joint is None and alone:
        return query
    if client.joint is None or not query.adds_up:
        remedy = f"give what follows from it (step=), or use ranks: {name} is no sum of several holders'"
        validate.refuse("clients", client.name, remedy)
    return Answered(client.joint(query), query.bound)


def _batches(
    problem: Records, stage: Stage, index: Tensor | None, physical: int | None
) -> tuple[Sequence[Tensor | slice | None], bool]:
    """The records in batches of at most `physical`, or as many as the problem looks at together.

    Says besides whether batches of the problem can be measured at the same time.
    """
    spans_of, spans = said(problem, "spans"), None
    by_itself = said(stage.source, "own_records") and not said(stage.source, "whole")
    if spans_of is not None and by_itself and stage.groups is None:  # a micro-batch is clipped whole
        spans = spans_of()
    apart, count = spans_of is not None, problem.n if index is None else len(index)
    most = physical or count
    if spans:
        widest = max(hi - lo for lo, hi in spans)
        if index is None and most >= widest:
            return [slice(lo, hi) for lo, hi in spans], True
        most = min(most, widest)
    if count <= most:
        return [index], apart
    if index is None and spans:
        return [slice(lo, min(lo + most, count)) for lo in range(0, count, most)], apart
    if index is None:
        index = torch.arange(count)
    return index.split(most), apart


def _sent(round: Round, stage: Stage, message: Message, sender: str, role: str) -> Message:
    """What goes over the wire: with memory, coded, and counted."""
    wire = round.pipe.wire
    values, coded, dims, size = dict(message.values), dict[str, bytes](), 0, 0
    divisor, eta = message.divisor, round.eta
    for release, slot in stage.slots:
        sketch, bounded, name = round.sketches[slot], values[release.name], f"{sender}/{slot}"
        corrected = value = bounded.value
        memory = round.memory.get(name)
        if wire.remembers:
            if memory is not None:  # the error of earlier rounds is added, or the shift taken away
                corrected = value + (divisor / eta if wire.feedback else -divisor) * memory
            value = sketch.forward(corrected)
        dims += value.numel()
        if wire.codec is None:
            size += replace(bounded, value=value).size
        else:
            if wire.feedback:  # an unbiased codec is a contraction only after this shrink
                value = value / (1 + wire.codec.chi(value.numel()))
            data = wire.codec.encode(value, key(round.seed, round.t, "codec", role, slot))
            coded[release.name], size = data, size + len(data)
            value = wire.codec.decode(data, value)
        if wire.feedback:
            lost = corrected / divisor - leave_pinv(sketch, value / divisor)  # the receiver lifts the same
            round.memory[name] = eta * lost
        elif wire.shift is not None:
            moved = unbiased(sketch, value, None, eta).direction.mul(wire.shift / divisor)
            round.memory[name] = moved if memory is None else moved.add_(memory)
        values[release.name] = replace(bounded, value=value)
    return replace(message, values=values, dims=dims, bytes=size, coded=coded)


# ---------------------------------------------------------------- who holds the records


def check_samplers(samplers: Sequence[Sampler], argument: str) -> None:
    """Refuse samplers that draw from all records together where each holder draws its own."""
    remedy = "use Poisson sampling, or all records (dp_gd): a subset of a fixed size is one draw from all of them"
    for sampler in samplers:
        validate.check(not isinstance(sampler, FixedSize), argument, type(sampler).__name__, remedy)


class Local(Aggregator):
    """The records of this process; with others, their sums are added on rank 0, which alone pays and adds noise."""

    def __init__(self, problem: Any, group: Group = ALONE) -> None:
        self.problems, self.group = (problem,), group

    def check_private(self, n: int, samplers: Sequence[Sampler]) -> None:
        """Each rank draws its own records."""
        if self.group.size > 1:
            check_samplers(samplers, "group")

    def collect(self, round: Round, stage: Stage, context: RunContext) -> Message:
        """This rank's message plus everybody else's, on rank 0."""
        group, problem = self.group, self.problems[0]
        if group.size == 1:
            client = Client("0", problem, whole=context.whole)
            return contribute(round, stage, client, context.keys, context.physical)
        client = Client(str(group.rank), problem, 0, context.whole, 1 / group.size, group.answer)
        mine = partial(contribute, round, stage, client, context.keys, context.physical)
        return group.add(round, stage, mine, storage.checksum(round.w), problem.n, context.whole or problem.n)


class AllReduce(Local):
    """One process a rank, each with its own records.

    problem   the records of this rank; None: the objective that `minimize` is given is this rank's part
    group     a process group; None is the default one
    """

    def __init__(self, problem: Any = None, group: Group | dist.ProcessGroup | bool | None = None) -> None:
        super().__init__(problem, Group.of(True if group is None else group))


PerRound = int | Callable[[int], int] | None


@dataclass(frozen=True)
class Clients(Aggregator):
    """`per_round` of the clients, drawn with replacement, each with its own records and memory; it may be a rule of t.

    Every record counts the same: the objective is that of all records together, f_i = (M / n) sum of client i's losses
    (paper 001).  A client's mean is weighed by the number of its records, and where clients are drawn the sum is
    divided by how many records so many clients have on average, which leaves it unbiased.  With `uniform=True` every
    client counts the same, whatever it has: the objective is then the mean of the clients' own mean losses.

    A private run asks every client once a round and adds sums: a client that is drawn twice would count its records
    twice, and a mean of a client with few records would let one of them move the sum further than the others.
    """

    problems: Sequence[Any]
    per_round: PerRound = None
    uniform: bool = False

    def __post_init__(self) -> None:
        validate.check(len(self.problems) > 0, "problems", list(self.problems), "give at least one client")
        if self.per_round is not None and not callable(self.per_round):
            validate.positive_int(per_round=self.per_round)

    def check_private(self, n: int, samplers: Sequence[Sampler]) -> None:
        """All clients, once, their sums added; no client twice, and records that add up to n."""
        remedy = "leave it out: in a private run a client that is asked twice a round would count its records twice"
        validate.check(self.per_round is None, "per_round", self.per_round, remedy)
        remedy = "leave it out: a private run adds sums over records, and divides them by a public number"
        validate.check(not self.uniform, "uniform", self.uniform, remedy)
        different, total = {id(problem) for problem in self.problems}, sum(problem.n for problem in self.problems)
        remedy = "give each of them once: a record belongs to one client"
        validate.check(len(different) == len(self.problems), "clients", f"{len(self.problems)} clients", remedy)
        remedy = f"give an objective of all the clients' records: this one has {n}"
        validate.check(total == n, "clients", f"{total} records", remedy)
        check_samplers(samplers, "clients")

    def collect(self, round: Round, stage: Stage, context: RunContext) -> Message:
        """The sum of the drawn clients' messages."""
        messages, count = [], len(self.problems)
        chosen = drawn_clients(self.per_round, round, count)
        whole = None if self.uniform else sum(problem.n for problem in self.problems)
        for number, visit in chosen:
            client = Client(str(number), self.problems[number], visit, whole, 1 / len(chosen))
            message = contribute(round, stage, client, context.keys, context.physical)
            messages.append(counted(message, whole, self.per_round, count))
        return reduce(add, messages)


def drawn_clients(per_round: PerRound, round: Round, clients: int) -> list[tuple[int, int]]:
    """Who is asked in a round, and how often each was before: all, or some by public randomness, perhaps twice."""
    if per_round is None:
        return [(number, 0) for number in range(clients)]
    if callable(per_round):
        per_round = per_round(round.t)
    validate.positive_int(**{f"per_round({round.t})": per_round})
    visits, drawn = Counter[int](), []
    for number in generator(round.seed, round.t, "clients").integers(0, clients, per_round).tolist():
        drawn.append((number, visits[number]))
        visits[number] += 1
    return drawn


def counted(message: Message, records: int | None, per_round: PerRound, clients: int) -> Message:
    """A client's message as it counts among `clients`, who have so many records together; None: all count the same."""
    if records is None:
        return message.over(message.divisor, 1.0)
    if not message.fixed and message.records not in (0, message.divisor):  # the sum of a batch as one of all records
        message = message.over(message.divisor / message.records, float(message.records))
    if per_round is None or message.fixed:
        return message
    return replace(message, divisor=records / clients)


# ---------------------------------------------------------------- where the noise is


def pay(round: Round, stage: Stage, ledger: RunLedger | None) -> None:
    """Charge a private stage of a round, once: at its release, or before where sums come with their noise."""
    if not stage.private or stage.name in round.paid:
        return
    if ledger is None:
        remedy = f"give a ledger: stage {stage.name!r} is private, and nothing is released without one"
        validate.refuse("ledger", None, remedy)
    ledger.charge(stage.name, round.t)
    round.paid.add(stage.name)


def close_stage(
    round: Round, stage: Stage, message: Message, keys: Keys, ledger: RunLedger | None = None
) -> dict[str, Tensor]:
    """Where the noise is, charge BEFORE the release; everywhere, lift what was released and hold it in the round."""
    make = partial(_release, round, stage, message, keys, ledger)
    if round.group.size == 1:
        released = make()
    else:
        released = round.group.on_leader(make, met=True)
        released = {name: value.to(message.values[name].value.device) for name, value in released.items()}
    lifted: list[Lifted] = []
    for release, slot in stage.slots:
        w = round.w if said(release.lift, "reads_w") else None  # lifts may be plain functions
        inputs = round.sketches[slot], released[release.name], w, round.eta
        remember = said(release.lift, "remember")
        if remember is None:
            result = release.lift(*inputs)
        else:  # a lift with a memory of codes: post-processing of what was released, kept with the state
            result, round.changed[f"{slot}/lift"] = remember(*inputs, round.state_of(f"{slot}/lift"))
        if result is not None:
            lifted.append(result)
    anchor = round.w if stage.every > 1 else None
    round.held[stage.name], round.released[stage.name] = StageOutput(anchor, tuple(lifted)), released
    return released


def _release(round: Round, stage: Stage, message: Message, keys: Keys, ledger: RunLedger | None) -> dict[str, Tensor]:
    """The noised values of a stage.

    What has no bound, or one in a norm that its mechanism does not take, is refused before anything is charged.
    """
    settled = {}
    for release, slot in stage.slots:
        settled[release.name] = message.values[release.name].settled(round.sketches[slot])
        if release.mechanism.private:
            check_bounded(release.mechanism, settled[release.name])
    pay(round, stage, ledger)
    released = {}
    for release, slot in stage.slots:
        bounded = settled.pop(release.name)
        value = _noised(release, f"{slot} of round {round.t}", bounded, keys.noise)
        fresh = bounded.spare or value is not bounded.value  # what a mechanism made may be divided in place
        # cast first, so that the precision of the output does not depend on the data
        value = value.to(bounded.dtype or value.dtype)
        released[release.name] = value.div_(message.divisor) if fresh else value / message.divisor
    return released


def _noised(release: Release, name: str, bounded: ClippedSum, noise: Source | None) -> Tensor:
    """What a mechanism makes of a bounded value: the only place where it is asked to."""
    return released_by(name, bounded, lambda: release.mechanism.release(bounded, noise))


def advance(round: Round, state: State, sent: Sequence[Message]) -> State:
    """Post-processing of what was released: update, average, the next clip bounds."""
    pipe, held = round.pipe, {}
    lifted: list[Lifted] = []
    for stage in pipe.stages:
        if stage.name in round.held:
            lifted += round.held[stage.name].lifted
            if stage.every > 1:
                held[stage.name] = round.held[stage.name]
    update, w = pipe.update.apply(state.update, state.w, lifted, round.eta)
    w = w.to(state.w.dtype)  # whatever a map of one's own computes in
    average, w = pipe.average.observe(state.average, w, round.eta, round.t)
    kept = {**state.parts, **round.changed}
    for stage in round.active:
        for release, slot in stage.slots:
            if release.clip is not None:
                kept[f"{slot}/clip"] = release.clip.next(round.bounds[slot], round.released[stage.name])
    dims, size = state.dims, state.bytes
    for message in sent:
        dims, size = dims + message.dims, size + message.bytes
    return State(w, round.t + 1, update, average, kept, round.memory, held, dims, size)


# ---------------------------------------------------------------- the loop


@dataclass(frozen=True)
class RunContext:
    """What a run needs beside its pipeline: where the data is, its space, and how long an epoch is."""

    aggregator: Aggregator
    space: Space
    keys: Keys
    public_rows: Callable[[Tensor, Any], Rows] = no_public
    per_epoch: int = 1
    physical: int | None = None
    ledger: RunLedger | None = None
    maps: Maps = field(default_factory=dict)
    whole: int | None = None
    """How many records all holders of data have together; None where this process has them all."""

    def open(self, pipe: Pipeline, state: State) -> Round:
        """The round that follows a state."""
        where, group = (self.space, self.keys.seed, state.t // self.per_epoch), self.aggregator.group
        return Round(pipe, state, *where, public_rows=self.public_rows, maps=self.maps, group=group)


def start(pipe: Pipeline, w: Tensor, seed: int = 0) -> State:
    """The state before the first round."""
    return State(w=w, update=pipe.update.init(w), average=pipe.average.init(w, seed))


def step(pipe: Pipeline, state: State, context: RunContext) -> tuple[Round, State]:
    """One round: of each stage its maps, everybody's contributions and its release; then what follows from them."""
    round, sent = context.open(pipe, state), []
    for stage in round.active:
        bind_stage(round, stage)
        message = context.aggregator.collect(round, stage, context)
        sent.append(message)
        with round.group.alike():
            close_stage(round, stage, message, context.keys, context.ledger)
    with round.group.alike():
        return round, advance(round, state, sent)


def look(stage: Stage, context: RunContext, promise: Promise | None = None) -> dict[str, Tensor]:
    """One look at the data outside the loop, as one round that moves nothing: what it released, by name."""
    pipe = Pipeline([stage], constant(1.0), Delegate(lambda lifted: None), promise=promise)
    round, _ = step(pipe, State(w=torch.empty(0)), context)
    return round.released[stage.name]


def run(
    pipe: Pipeline, state: State, steps: int, context: RunContext, observe: Callable[[State], bool] | None = None
) -> tuple[State, Tensor | None, str]:
    """The only loop: rounds until `state.t == steps`, a stop rule fires, or an observer asks to stop.

    Returns the final state, the point found and a status.  A pipeline with a stop rule that never fired
    found no point: None, never silently the last iterate.
    """
    status = "finished" if pipe.stop is None else "none found"
    while state.t < steps:
        round, new = step(pipe, state, context)
        if pipe.stop is not None and pipe.stop(round, state, new):
            return new, state.w, "stopped"  # the point before the step, but the round that told us was released
        state = new
        if observe is not None and observe(state):
            status = "interrupted"
            break
    if pipe.stop is not None:
        return state, None, status
    if pipe.output == "last":
        return state, state.w, status
    return state, pipe.average.output(state.average, state.w), status
