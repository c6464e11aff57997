"""What travels: the keys of a run's randomness, and the messages of a round."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isthmus.base import storage, validate
from isthmus.codecs import Codec, named
from isthmus.lifts import Lifted
from isthmus.privacy.clips import ClippedSum
from isthmus.privacy.noise import Source

Memo = dict[str, Any]
"""What a part of a pipeline remembers from round to round: tensors and plain values by name."""
Raw = bytes  # a message has a field of that name
_MAX_ROUNDING = 1 / 100
"""What float32 on the wire may add to the bound of one record, relative; where it would be more, float64."""


@dataclass(frozen=True)
class Keys:
    """The randomness of a run: a public seed, and a secret source of noise (operating-system entropy)."""

    seed: int = 0
    noise: Source | None = None

    def __post_init__(self) -> None:
        validate.non_negative_int(seed=self.seed)


@dataclass(frozen=True)
class Message:
    """What a holder of data sends in a round: bounded sums that add up, and their public divisor.

    A divisor that is `fixed` is one of all holders together (`expected` of a sampler): it is not added up.
    `records` says how many records the sender has, of which the sum may be that of a batch; 0 in a private stage, where
    nobody is told.
    `coded` has the bytes of values that a codec made, by name: they travel in place of the numbers.

    >>> import torch
    >>> sent = Message({"gradient": ClippedSum(torch.ones(3), 2, 1.0)}, 4.0, dims=3, bytes=12)
    >>> again = Message.from_bytes(sent.to_bytes())
    >>> again.values["gradient"].value.tolist(), again.values["gradient"].bound, again.divisor
    ([1.0, 1.0, 1.0], 1.0, 4.0)
    >>> Message.from_bytes(sent.to_bytes()[:-1])
    Traceback (most recent call last):
    isthmus.base.validate.InvalidInput: data=... give what was packed as a message: what does not fit is its length
    """

    values: Mapping[str, ClippedSum]
    divisor: float
    dims: int = 0
    bytes: int = 0
    coded: Mapping[str, Raw] = field(default_factory=dict)
    fixed: bool = False
    records: int = 0

    def __add__(self, other: Message) -> Message:
        same = self.fixed == other.fixed and (not self.fixed or self.divisor == other.divisor)
        validate.check(same, "divisor", other.divisor, f"give {self.divisor}: all holders divide by one public number")
        values = {name: value + other.values[name] for name, value in self.values.items()}
        divisor = self.divisor if self.fixed else self.divisor + other.divisor
        dims, size, records = self.dims + other.dims, self.bytes + other.bytes, self.records + other.records
        return Message(values, divisor, dims, size, fixed=self.fixed, records=records)

    def over(self, scale: float, divisor: float) -> Message:
        """Sums that are divided, with another divisor."""
        values = {k: replace(b, value=b.value / scale, bound=b.bound / scale) for k, b in self.values.items()}
        return replace(self, values=values, divisor=divisor, fixed=False)

    def for_wire(self, own: float, total: float, terms: int) -> Message:
        """Clipped sums in the dtype that they are sent and added in, with the bound that holds for their sum.

        own, total  what this sum, and all `terms` together, are shortened to, in bounds of one record: public numbers
        """
        values = {name: value.narrowed(own, total, terms, _MAX_ROUNDING) for name, value in self.values.items()}
        size = sum(value.value.numel() * value.value.element_size() for value in values.values())
        return replace(self, values=values, bytes=size)

    def fresh(self) -> Message:
        """The same in memory of its own."""
        values = {name: replace(b, value=b.value.clone()) for name, b in self.values.items()}
        return replace(self, values=values)

    def near(self, other: Message) -> bool:
        """Whether two messages say the same, up to the order in which numbers were added."""
        for name, mine in self.values.items():
            theirs = other.values[name]
            if mine.bound != theirs.bound or mine.dtype != theirs.dtype:
                return False
            if not (mine.value - theirs.value).norm() <= 1e-3 * mine.bound + 1e-5 * theirs.value.norm():
                return False
        return True

    def to_bytes(self) -> Raw:
        """The message as bytes, without pickle (`isthmus.base.storage`)."""
        values: dict[str, storage.Fields] = {}
        for name, bounded in self.values.items():
            sent: storage.Fields = {"value": bounded.value}
            if name in self.coded:
                coded = torch.frombuffer(bytearray(self.coded[name]), dtype=torch.uint8)
                sent = {"coded": coded, "size": bounded.value.numel(), "kind": _word(bounded.value.dtype)}
            bound = {"ord": float(bounded.ord), "bound": float(bounded.bound), "dtype": _word(bounded.dtype)}
            values[name] = bound | sent
        tree = {"values": values, "divisor": float(self.divisor), "dims": self.dims, "bytes": self.bytes}
        return storage.pack("message", tree | {"fixed": self.fixed, "records": self.records})

    @staticmethod
    def from_bytes(data: Raw, codec: Codec | None = None, sizes: Mapping[str, int] | None = None) -> Message:
        """What `to_bytes` wrote; anything else is refused.

        codec   of the pipeline, where it has one: it decodes its bytes
        sizes   how many numbers each value must have, by name: those of the round's maps; needed with a codec
        """
        tree = storage.unpack(data, "message")
        try:
            validate.positive(divisor=tree["divisor"])
            validate.non_negative_int(dims=tree["dims"], bytes=tree["bytes"], records=tree["records"])
            validate.one_of((False, True), fixed=tree["fixed"])
            values, coded = {}, {}
            for name, header in tree["values"].items():
                if "value" not in header:
                    coded[name] = header["coded"].numpy().tobytes()
                values[name] = _bounded(name, header, coded.get(name), codec, None if sizes is None else sizes[name])
            remedy = f"send {sorted(sizes or ())}"
            validate.check(sizes is None or values.keys() == sizes.keys(), "values", sorted(values), remedy)
            counts = tree["dims"], tree["bytes"]
            return Message(values, float(tree["divisor"]), *counts, coded, bool(tree["fixed"]), tree["records"])
        except validate.InvalidInput:
            raise
        except validate.UNREADABLE as error:
            validate.refuse("data", f"{len(data)} bytes", f"send a message of a round: this is not one ({error})")


def _bounded(
    name: str, header: storage.Fields, coded: Raw | None, codec: Codec | None, expected: int | None
) -> ClippedSum:
    """One value of a message, as its header says."""
    where = f"values[{name!r}]"
    if coded is None:
        value = header["value"]
    else:
        size = header["size"]
        remedy = f"send a message whose coded numbers are as many as the release has: this one says {size!r}"
        validate.check(type(size) is int and expected == size, "sizes", expected, remedy)
        if codec is None:
            validate.refuse("codec", None, "give the codec of the pipeline: this message is coded")
        value = codec.decode(coded, torch.empty(size, dtype=storage.DTYPES[header["kind"]]))
    flat = value.ndim == 1 and value.is_floating_point() and expected in (None, len(value))
    validate.check(flat, where, tuple(value.shape), f"send {expected or 'some'} real numbers")
    remedy = "send finite numbers, as a sum of clipped records is"
    validate.check(bool(value.isfinite().all()), where, "not finite", remedy)
    order, bound = float(header["ord"]), float(header["bound"])
    remedy = "send a bound above 0 and the order 1, 2 or infinity"
    validate.check(bound > 0 and order in (1, 2, math.inf), where, (order, bound), remedy)
    dtype = None if header["dtype"] is None else storage.DTYPES[header["dtype"]]
    return ClippedSum(value, order, bound, dtype=dtype)


def _word(dtype: torch.dtype | None) -> str | None:
    return None if dtype is None else str(dtype).removeprefix("torch.")


@dataclass(frozen=True)
class Wire:
    """What a sender does to its code: a codec, and a memory of what the sketch and the codec lost.

    codec      one of `isthmus.codecs`, or its name
    feedback   error feedback: what was lost is added to the next gradient
    shift      rate of a learned shift h (DIANA): sent is the code of g - h, and h moves by so much of what was sent.
               The receiver keeps the mean of all shifts (`parts.Shifted`)
    per_round  clients that are asked in a round, drawn with replacement: a number, or a rule t -> number; None asks all
    """

    codec: Codec | None = None
    feedback: bool = False
    per_round: int | Callable[[int], int] | None = None
    shift: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "codec", named(self.codec))
        if self.shift is None:
            return
        validate.probability(shift=self.shift)
        remedy = "leave it out with shifts: a sender keeps a shift or an error, not both"
        validate.check(not self.feedback, "feedback", self.feedback, remedy)
        remedy = "leave it out with shifts: every sender answers every round, as the receiver knows the mean of shifts"
        validate.check(self.per_round is None, "per_round", self.per_round, remedy)

    @cached_property
    def remembers(self) -> bool:
        """Whether senders keep a vector of R^d."""
        return self.feedback or self.shift is not None


# ---------------------------------------------------------------- what is kept of a run

FORMAT = storage.Format("isthmus-state-2", "State.save", unsealed=("isthmus-state-1",))


@dataclass(frozen=True)
class StageOutput:
    """What a stage last released, lifted, and the point it looked at."""

    w: Tensor | None
    lifted: tuple[Lifted, ...]


def _fields_of(held: StageOutput) -> tuple[None, storage.Fields]:
    lifted = [{"direction": x.direction, "point": x.point, "stretch": x.stretch} for x in held.lifted]
    return None, {"w": held.w, "lifted": lifted}


def _output_of(_: str | None, fields: storage.Fields) -> StageOutput:
    return StageOutput(fields["w"], tuple(Lifted(**item) for item in fields["lifted"]))


storage.register("held", StageOutput, _fields_of, _output_of)


@dataclass(frozen=True)
class State:
    """Everything that changes from round to round.

    `parts` holds the states of encoders and clips by slot, `memory` the senders' error feedback by client,
    `held` the last values of stages that do not run every round.

    >>> import tempfile, torch
    >>> state = State(w=torch.arange(3.0), t=7, memory={"0/main/gradient": torch.ones(3)})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     state.save(folder + "/run.state")
    ...     again = State.load(folder + "/run.state")
    >>> again.t, again.w.tolist(), again.memory["0/main/gradient"].tolist()
    (7, [0.0, 1.0, 2.0], [1.0, 1.0, 1.0])
    """

    w: Tensor
    t: int = 0
    update: Memo = field(default_factory=dict)
    average: Memo = field(default_factory=dict)
    parts: Memo = field(default_factory=dict)
    memory: dict[str, Tensor] = field(default_factory=dict)
    held: dict[str, StageOutput] = field(default_factory=dict)
    dims: int = 0
    bytes: int = 0

    def save(self, path: str | Path) -> None:
        """Write the state to one file, whole or not at all."""
        FORMAT.write(path, storage.fields_of(self))

    @staticmethod
    def load(path: str | Path) -> State:
        """Read a state; a file that is not one, or is damaged, is refused."""
        return FORMAT.read(path, _checked)

    def replace(self, **changes: Any) -> State:
        """A copy with some fields changed."""
        return replace(self, **changes)


def _checked(tree: storage.Fields) -> State:
    """The state of a tree whose parts are of the kinds that they should be."""
    state, remedy = State(**tree), "give a file as it was written: something else belongs here"
    validate.non_negative_int(t=state.t, dims=state.dims, bytes=state.bytes)
    kinds = {"w": Tensor} | dict.fromkeys(("update", "average", "parts", "memory", "held"), dict)
    for name, kind in kinds.items():
        part = vars(state)[name]
        validate.check(isinstance(part, kind), f"path: {name}", type(part).__name__, remedy)
    return state
