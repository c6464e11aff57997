"""The order of a round: what holders of data elsewhere are asked, as a small value that travels.

    where the noise is    order = order_of(round, stage)       a few numbers and public tensors
    over the wire         order.to_bytes()                     no pickle, no data, no code
    where the data is     message = site.answer(order, client)       bind, sample, measure

A `DataSite` is a place that holds data: it knows the pipeline (built by the same code, or from the same plan), and
rebuilds this round's maps from what the order says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from isthmus.base import storage, validate
from isthmus.base.space import Space
from isthmus.core.pipeline import Client, Maps, Pipeline, Round, Stage, bind_stage, contribute, no_public
from isthmus.core.wire import Keys, Memo, Message, StageOutput, State
from isthmus.gradients import Rows


@dataclass(frozen=True, eq=False)
class Order:
    """One stage of one round: all that a holder of data has to be told, public things only.

    stage     the name of the stage
    t, epoch  which round this is
    seed      of the public randomness: maps are drawn from it and never sent
    eta       the step size
    bounds    the clip bounds of the stage's releases, by slot
    w         the iterate; None where its holders have it already, and compare `digest`
    digest    of the iterate (`_digest_of`)
    parts     what learned maps remember, by slot
    anchors   where stages that do not run every round last looked
    released  what earlier stages of this round released

    >>> import torch
    >>> order = Order("main", 3, 0, 7, 0.5, {"main/gradient": 1.0}, torch.zeros(2))
    >>> again = Order.from_bytes(order.to_bytes())
    >>> again.t, again.seed, again.bounds, again.w, len(order.to_bytes()) < 600
    (3, 7, {'main/gradient': 1.0}, tensor([0., 0.]), True)
    """

    stage: str
    t: int
    epoch: int
    seed: int
    eta: float | Tensor
    bounds: Mapping[str, float]
    w: Tensor | None
    digest: str = ""
    parts: Memo = field(default_factory=dict)
    anchors: Mapping[str, Tensor | None] = field(default_factory=dict)
    released: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)

    def short(self) -> Order:
        """The same order without the iterate, for holders that have it."""
        return replace(self, w=None, digest=self.digest or _digest_of(self.w))

    def to_bytes(self) -> bytes:
        """The order as bytes, without pickle (`isthmus.base.storage`)."""
        return storage.pack("order", {**storage.fields_of(self), "digest": self.digest or _digest_of(self.w)})

    @staticmethod
    def from_bytes(data: bytes) -> Order:
        """What `to_bytes` wrote; anything else is refused."""
        tree = storage.unpack(data, "order")
        with validate.reading("data", f"{len(data)} bytes", "send an order of a round: this is not one"):
            order = Order(**tree)
            validate.check(isinstance(order.stage, str), "stage", order.stage, "give a name")
            validate.non_negative_int(t=order.t, epoch=order.epoch, seed=order.seed)
            if not isinstance(order.eta, Tensor):
                validate.non_negative(eta=order.eta)
            validate.positive(**{f"bounds[{slot!r}]": bound for slot, bound in order.bounds.items()})
            if order.w is not None:
                flat = order.w.ndim == 1 and order.w.is_floating_point()
                validate.check(flat, "w", type(order.w).__name__, "give a vector of real numbers")
                remedy = "send the digest of the iterate that is sent: this is another one's"
                validate.check(order.digest == _digest_of(order.w), "digest", order.digest, remedy)
            tables = [order.anchors, *order.released.values()]  # what is no table fails here
            valid = all(isinstance(table, dict) for table in (order.parts, order.released, *tables))
            validate.check(valid, "order", type(order.parts).__name__, "give tables by name")
            valid = all(x is None or isinstance(x, Tensor) for table in tables for x in table.values())
            validate.check(valid, "order", "tensors", "give tensors")
        return order


def _digest_of(w: Tensor | None) -> str:
    """A number that tells two vectors apart, the same in every order of additions: of their bits, in 64 bits.

    >>> import torch
    >>> _digest_of(torch.tensor([1.0, 2.0])) == _digest_of(torch.tensor([2.0, 1.0]))
    False
    """
    if w is None:
        return ""
    return f"{storage.checksum(w):016x}"


def order_of(round: Round, stage: Stage) -> Order:
    """What the holders of data are asked in this stage of a round."""
    mine = {slot: round.state_of(slot) for slot, _ in round.pipe.encoders if slot.split("/")[0] == stage.name}
    return Order(
        stage.name,
        round.t,
        round.epoch,
        round.seed,
        round.eta,
        {slot: round.bounds[slot] for _, slot in stage.slots if slot in round.bounds},
        round.w,
        parts={slot: state for slot, state in mine.items() if state is not None},
        anchors={name: output.w for name, output in round.held.items() if output.w is not None},
        released={name: dict(table) for name, table in round.released.items()},
    )


def _stage_of(pipe: Pipeline, name: str) -> Stage:
    """The stage of a name."""
    for stage in pipe.stages:
        if stage.name == name:
            return stage
    remedy = f"name a stage of the pipeline, which has {[stage.name for stage in pipe.stages]}"
    validate.refuse("order.stage", name, remedy)


@dataclass
class DataSite:
    """A place that holds data, and answers orders: it knows the pipeline, and its records never leave it.

    keys      of this place: its secret source draws the batches of private stages here
    memory    what senders keep of what a sketch lost (error feedback), by client and slot
    physical  how many rows are held at once
    """

    pipe: Pipeline
    space: Space
    keys: Keys
    public_rows: Callable[[Tensor, Any], Rows] = no_public
    physical: int | None = None
    maps: Maps = field(default_factory=dict)
    memory: dict[str, Tensor] = field(default_factory=dict)

    def answer(self, order: Order, client: Client) -> Message:
        """Bind this round's maps, draw the sample, measure it, send."""
        stage, w = _stage_of(self.pipe, order.stage), order.w
        if w is None:
            validate.refuse("order.w", None, "send the iterate with the order: there is none here")
        validate.shape((self.space.d,), w=w)
        parts = {**order.parts, **{f"{slot}/clip": bound for slot, bound in order.bounds.items()}}
        held = {name: StageOutput(anchor, ()) for name, anchor in order.anchors.items()}
        state, public = State(w=w, t=order.t, parts=parts, memory=self.memory, held=held), self.public_rows
        round = Round(self.pipe, state, self.space, order.seed, order.epoch, None, public, order.eta, self.maps)
        round.released = {name: dict(table) for name, table in order.released.items()}
        bind_stage(round, stage)
        message = contribute(round, stage, client, self.keys, self.physical)
        self.memory = round.memory
        return message
