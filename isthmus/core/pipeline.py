"""Read this first: the pipeline, its round and the only loop.

    where the data is                        over the wire     where the noise is
    [rows -> encode -> clip -> sum -> codec] -> added over ->  [noise -> lift -> update -> average]
     per-example      R^d -> R^m                batches,        R^m -> C in R^d
     gradients, factored, never materialised    ranks, clients

Every algorithm is one filling of these slots; the plain case is the general case with identities in them.
A `Pipeline` is a list of `Stage`s (each looks at one sample of the data), a stage a list of `Release`s
(each one encode, clip, mechanism and lift).  A step of the algorithm is a **round**:

    open_round   the step size and the round's context: public things only
    bind_stage   this round's maps and clip bounds
    contribute   sample, take per-example rows, `measure` them: where the data is
    (add)        messages are a monoid: physical batches, ranks and clients add up
    close_stage  charge the ledger, release, lift: where the noise is
    advance      update, average, adapt: post-processing of what was released

`step` strings them together and `run` repeats `step`; a user's own torch loop calls the same functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from isthmus.base import validate
from isthmus.base.space import Space
from isthmus.core.averages import Average, Last
from isthmus.core.samplers import Sampler
from isthmus.core.sound import check_sound
from isthmus.core.sources import RowSource, current
from isthmus.core.state import State
from isthmus.core.updates import Step, Update
from isthmus.core.wire import Wire
from isthmus.lifts import Lift, pinv
from isthmus.privacy.accounting import Adjacency, joint
from isthmus.privacy.clips import Clipping
from isthmus.privacy.event_json import DpEvent, dpa
from isthmus.privacy.mechanisms import Exact, Mechanism
from isthmus.privacy.plan import PrivacyPlan
from isthmus.sketches import Encoder, Identity

if TYPE_CHECKING:
    from isthmus.core.before import Prepared
    from isthmus.core.step import Round

StepSize = Callable[[int], float | Tensor]


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

    @property
    def private(self) -> bool:
        return any(release.mechanism.private for release in self.releases)

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


class Before(Protocol):
    """One look at the data before the loop, and what follows from what it released (see `isthmus.core.before`)."""

    @property
    def name(self) -> str:
        """Under which it is charged."""
        ...

    def check(self, objective: Any) -> None:
        """Refuse a problem that it cannot be released for, before anything is."""
        return

    def stage(self, objective: Any) -> tuple[Stage, Space] | None:
        """The look, and the space of what it releases; None where nothing is looked at."""
        return None

    def event(self, adjacency: Adjacency) -> DpEvent:
        """What the look costs: nothing, where there is none."""
        return dpa.NoOpDpEvent()

    def apply(self, prepared: Prepared, bought: Tensor | None) -> Prepared:
        """The `Prepared` problem with what follows from the released values."""
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
    before: Sequence[Before] = ()

    def __post_init__(self) -> None:
        for name in ("stages", "before"):  # what was checked stays as it was
            object.__setattr__(self, name, tuple(getattr(self, name)))
        check_sound(self)

    @property
    def private(self) -> bool:
        """Whether any release hides its data behind noise."""
        return any(stage.private for stage in self.stages)

    @cached_property
    def encoders(self) -> tuple[tuple[str, Encoder], ...]:
        """Every encoder, nested ones included, with the slot where its state is kept: the first that holds it."""
        return tuple(
            encoder
            for stage in self.stages
            for release in stage.releases
            for encoder in _nested(release.encode, f"{stage.name}/{release.name}")
        )


# ---------------------------------------------------------------- small helpers


def slots(stages: Sequence[Stage]) -> Iterator[tuple[Stage, Release, str]]:
    """Every release with its slot `stage/release`."""
    for stage in stages:
        for release in stage.releases:
            yield stage, release, f"{stage.name}/{release.name}"


def _nested(encoder: Encoder, path: str) -> Iterator[tuple[str, Encoder]]:
    """An encoder and the encoders among its fields."""
    yield path, encoder
    if is_dataclass(encoder):
        for item in fields(encoder):
            value = getattr(encoder, item.name)
            if isinstance(value, Encoder):
                yield from _nested(value, f"{path}.{item.name}")
