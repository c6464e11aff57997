"""The order of a round: what the holders of data are asked, as a small value that travels.

    where the noise is    order = Order(stage, t, seed, bounds, w, ...)       a few numbers and public tensors
    over the wire         order.to_bytes()                                    no pickle, no data, no code
    where the data is     message = order(client)                             `DataSite.answer`: bind, sample, measure

A `DataSite` is a place that holds data: it knows the pipeline (built by the same code, or from the same plan), and
rebuilds this round's maps from what the order says.  In one process the server's own site answers, with the maps that
it has bound already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from isthmus.base import storage, validate
from isthmus.base.space import Space
from isthmus.core.aggregators import Client
from isthmus.core.measuring import contribute
from isthmus.core.opened import Kept, Round, bind_stage, clip_slot, no_public, open_round
from isthmus.core.pipeline import Pipeline, Stage
from isthmus.core.state import Held, State
from isthmus.core.wire import Keys, Message
from isthmus.gradients import Rows
from isthmus.privacy.ledger import Chargeable


@dataclass(frozen=True, eq=False)
class Order:
    """One stage of one round: all that a holder of data has to be told, public things only.

    stage     the name of the stage
    t, epoch  which round this is
    seed      of the public randomness: maps are drawn from it and never sent
    eta       the step size
    bounds    the clip bounds of the stage's releases, by slot
    w         the iterate; None where its holders have it already, and compare `digest`
    digest    of the iterate (`digest_of`)
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
    parts: Mapping[str, Any] = field(default_factory=dict)
    anchors: Mapping[str, Tensor | None] = field(default_factory=dict)
    released: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)

    def __call__(self, client: Client) -> Message:
        """What a client answers."""
        validate.check(
            client.site is not None,
            "client.site",
            None,
            "give the client its site, the pipeline without which it cannot answer",
        )
        message: Message = client.site.answer(self, client)
        return message

    def short(self) -> Order:
        """The same order without the iterate, for holders that have it."""
        return self if self.w is None else replace(self, w=None, digest=digest_of(self.w))

    def to_bytes(self) -> bytes:
        """The order as bytes, without pickle (`isthmus.base.storage`)."""
        tree = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return storage.pack("order", {**tree, "digest": self.digest or digest_of(self.w)})

    @staticmethod
    def from_bytes(data: bytes) -> Order:
        """What `to_bytes` wrote; anything else is refused."""
        tree = storage.unpack(data, "order")
        try:
            order = Order(**tree)
            _check(order)
        except (TypeError, AttributeError, LookupError, ValueError) as error:
            validate.refuse("data", f"{len(data)} bytes", f"send an order of a round: this is not one ({error})")
        return order


def _check(order: Order) -> None:
    """What came over a wire has the kinds of things that it should."""
    validate.check(isinstance(order.stage, str), "stage", order.stage, "give a name")
    validate.non_negative_int(t=order.t, epoch=order.epoch, seed=order.seed)
    if not isinstance(order.eta, Tensor):
        validate.non_negative(eta=order.eta)
    for slot, bound in order.bounds.items():
        validate.positive(**{f"bounds[{slot!r}]": bound})
    flat = order.w is None or (order.w.ndim == 1 and order.w.is_floating_point())
    validate.check(flat, "w", type(order.w).__name__, "give a vector of real numbers")
    same = order.w is None or order.digest == digest_of(order.w)
    validate.check(same, "digest", order.digest, "send the digest of the iterate that is sent: this is another one's")
    tables = [order.parts, order.anchors, order.released]
    tables += list(order.released.values()) if isinstance(order.released, dict) else []
    valid = all(isinstance(table, dict) for table in tables)
    validate.check(valid, "order", type(order.parts).__name__, "give tables by name")
    tensors = [*order.anchors.values(), *(x for table in order.released.values() for x in table.values())]
    validate.check(all(x is None or isinstance(x, Tensor) for x in tensors), "order", "tensors", "give tensors")


def digest_of(w: Tensor | None) -> str:
    """A number that tells two vectors apart, the same in every order of additions: of their bits, in 64 bits.

    >>> digest_of(torch.tensor([1.0, 2.0])) == digest_of(torch.tensor([2.0, 1.0]))
    False
    """
    return "" if w is None else f"{storage.checksum(w):016x}"


@dataclass
class DataSite:
    """A place that holds data, and answers orders: it knows the pipeline, and its records never leave it.

    keys      of this place: its secret source draws the batches of private stages here
    memory    what senders keep of what a sketch lost (error feedback), by client and slot
    physical  how many rows are held at once
    read      the iterate, where orders do not bring it
    round     the round that was opened here last
    whole     how many records all places have together; None where this is the only one
    purse     what pays for the stage that is asked, where the ledger is in this process
    """

    pipe: Pipeline
    space: Space
    keys: Keys
    public_rows: Callable[[Tensor, Any], Rows] = no_public
    physical: int | None = None
    maps: Kept = field(default_factory=dict)
    memory: dict[str, Tensor] = field(default_factory=dict)
    read: Callable[[], Tensor] | None = None
    round: Round | None = None
    whole: int | None = None
    purse: Chargeable | None = None

    def stage(self, order: Order) -> Stage:
        """What an order asks for."""
        return stage_of(self.pipe, order.stage)

    def answer(self, order: Order, client: Client) -> Message:
        """Bind this round's maps, draw the sample, measure it, send."""
        round = self.opened(order)
        return contribute(round, self.stage(order), client, self.keys, self.memory, self.physical)

    def opened(self, order: Order) -> Round:
        """The round that an order is of: the one that is open here, or one rebuilt from the order."""
        now, stage = self.round, self.stage(order)
        here = now is not None and now.t == order.t and now.seed == order.seed
        if now is None or not here or (order.w is not None and now.w is not order.w):
            now = self._rebuilt(order)
        self.round = now
        now.released.update({name: dict(table) for name, table in order.released.items() if name not in now.released})
        missing = [release for release in stage.releases if f"{stage.name}/{release.name}" not in now.sketches]
        if missing:
            parts = {**order.parts, **{clip_slot(slot): bound for slot, bound in order.bounds.items()}}
            bind_stage(now, stage, State(w=torch.empty(0), parts=parts))
        return now

    def _rebuilt(self, order: Order) -> Round:
        w = order.w
        if w is None:
            validate.check(
                self.read is not None, "order.w", None, "send the iterate with the order: there is none here"
            )
            assert self.read is not None
            w = self.read()
            validate.check(
                digest_of(w) == order.digest,
                "order.digest",
                order.digest,
                "send the iterate with the order: the iterate here is another one",
            )
        validate.shape((self.space.d,), w=w)
        anchored = {name: Held(anchor, ()) for name, anchor in order.anchors.items()}
        state = State(w=w, t=order.t, parts=dict(order.parts), held=anchored)
        return open_round(
            self.pipe,
            state,
            space=self.space,
            seed=order.seed,
            epoch=order.epoch,
            read=lambda: w,
            public_rows=self.public_rows,
            eta=order.eta,
            maps=self.maps,
        )


def order_of(round: Round, stage: Stage, state: State) -> Order:
    """What the holders of data are asked in this stage of a round."""
    mine = [slot for slot, _ in round.pipe.encoders if slot.split("/")[0] == stage.name]
    parts = {slot: round.context.state_of(slot) for slot in mine if round.context.state_of(slot) is not None}
    names = [f"{stage.name}/{release.name}" for release in stage.releases]
    return Order(
        stage.name,
        round.t,
        round.epoch,
        round.seed,
        round.eta,
        {slot: round.bounds[slot] for slot in names if slot in round.bounds},
        state.w,
        parts=parts,
        anchors={name: anchored.w for name, anchored in round.held.items() if anchored.w is not None},
        released={name: dict(table) for name, table in round.released.items()},
    )


def stage_of(pipe: Pipeline, name: str) -> Stage:
    """The stage of a name."""
    stages = [stage for stage in pipe.stages if stage.name == name]
    validate.check(
        bool(stages),
        "order.stage",
        name,
        f"name a stage of the pipeline, which has {[stage.name for stage in pipe.stages]}",
    )
    return stages[0]
