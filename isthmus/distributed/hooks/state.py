"""What a communication hook remembers between steps: where it is, what was not sent yet, and the shared bases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from isthmus.base import validate
from isthmus.base.randomness import key
from isthmus.base.space import Space
from isthmus.distributed.hooks.low_rank import WarmRank
from isthmus.distributed.hooks.ways import Drawn, Layout, Way
from isthmus.sketches import Random

Names = tuple[str, ...]
FORMAT = "isthmus-hook-1"
"""What `state_dict` says that it is."""


class SketchState:
    """The state of `sketch_hook`: `ddp.register_comm_hook(SketchState(WarmRank(4)), sketch_hook)`.

    way       `WarmRank(rank)`, or a tight random sketch of every bucket (`SRHT(0.01)`, `CountSketch(0.01)`, ...)
    feedback  keep what was not sent and add it to the next gradient; without it a random sketch is lifted unbiased
    seed      of all random maps: the same on every rank
    start     steps that send whole gradients first

    Memory belongs to parameters and not to buckets, because DDP makes its buckets anew after the first step.  `pickle`,
    `torch.save` and `state_dict` keep everything but the process group; each rank has errors of its own, so each rank
    saves its own state.  `sent` and `plain` count the bytes that this rank handed to the all-reduce, and what whole
    gradients would have been.

    >>> state = SketchState(WarmRank(2), seed=1)
    >>> state.t, state.sent
    (0, 0)
    """

    def __init__(
        self,
        way: WarmRank | Random | None = None,
        *,
        feedback: bool = True,
        seed: int = 0,
        start: int = 0,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        validate.non_negative_int(seed=seed, start=start)
        way = WarmRank() if way is None else way
        projects = isinstance(way, WarmRank)
        validate.check(
            feedback or not projects,
            "feedback",
            feedback,
            "give feedback=True: without it low rank loses for good what it leaves out",
        )
        self.way: Way = way if isinstance(way, WarmRank) else Drawn(way, feedback)
        self.feedback, self.seed, self.start, self.process_group = feedback, seed, start, process_group
        self.t = self.sent = self.plain = 0
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.first: dict[str, list[str]] = {}  # the buckets of the first step: numbers of parameters come from them
        self.bases: dict[str, Tensor] = {}
        self._errors: dict[Names, Tensor] = {}
        self._forget_module()

    def _forget_module(self) -> None:
        """Parameters and buckets of the module that comes next are met anew."""
        self._parameters: dict[int, tuple[str, Tensor]] = {}  # kept alive, so that no id comes twice
        self._compared: set[tuple[int, Names]] = set()

    # ------------------------------------------------------------ buckets

    def layout(self, bucket: dist.GradBucket) -> Layout:
        """The parameters of a bucket by number: that of their first appearance, which has one order on all ranks."""
        count = len(self._parameters)
        shapes = {self._name(parameter): tuple(parameter.shape) for parameter in bucket.parameters()}
        layout = Layout(bucket.index(), Space.of(shapes))
        if len(self._parameters) > count:
            first = self.first.setdefault(str(layout.index), list(layout.names))
            remedy = (
                f"use the same model and bucket_cap_mb: the bucket had {len(first)} parameters when this state was "
                "saved"
            )
            validate.check(first == list(layout.names), "parameters of a bucket", len(shapes), remedy)
        if (layout.index, layout.names) not in self._compared:
            self._compare(layout, bucket.buffer().device)
            self._compared.add((layout.index, layout.names))
        return layout

    def _name(self, parameter: Tensor) -> str:
        if id(parameter) in self._parameters:
            return self._parameters[id(parameter)][0]
        name, shape = str(len(self._parameters)), tuple(parameter.shape)
        expected = self.shapes.setdefault(name, shape)
        remedy = f"use the state with the same model: parameter {name} had the shape {expected} when it was saved"
        validate.check(shape == expected, "shape", shape, remedy)
        self._parameters[id(parameter)] = name, parameter
        return name

    def _compare(self, layout: Layout, device: torch.device) -> None:
        """Ranks that would send other numbers find out before they add them; once for a bucket."""
        what = f"{self.way} seed={self.seed} start={self.start} t={self.t}"
        mine = torch.tensor([key(what, layout) >> 1], device=device)
        both = torch.cat([mine, -mine])
        dist.all_reduce(both, dist.ReduceOp.MAX, group=self.process_group)
        remedy = (
            "make it the same on all ranks, and load states of the same step: the ranks differ in it or in their models"
        )
        validate.check(int(both[0]) == -int(both[1]), "SketchState", what, remedy)

    # ------------------------------------------------------------ what was not sent

    def error(self, layout: Layout) -> Tensor | None:
        """What earlier steps left of this bucket; None in the first step."""
        if layout.names not in self._errors and self._errors:
            self._relay(layout.names)
        return self._errors.get(layout.names)

    def keep(self, layout: Layout, error: Tensor) -> None:
        """What this step leaves."""
        self._errors[layout.names] = error

    def _relay(self, layout: Names) -> None:
        """Take apart the errors of buckets that are no more, and put those of one that is new together."""
        singles: dict[str, Tensor] = {}
        for names in [error for error in self._errors if set(error) & set(layout)]:
            singles |= self._singles(names)
            del self._errors[names]
        for name in singles.keys() - set(layout):
            self._errors[(name,)] = singles[name]
        if singles:
            like = next(iter(singles.values()))
            parts = (singles.get(name, like.new_zeros(torch.Size(self.shapes[name]).numel())) for name in layout)
            self._errors[layout] = torch.cat(list(parts))

    def _singles(self, names: Names) -> dict[str, Tensor]:
        """The error of one bucket by parameter."""
        space = Space.of({name: self.shapes[name] for name in names})
        return {name: self._errors[names][space.slice(name)] for name in names}

    # ------------------------------------------------------------ checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Tensors and numbers only, by parameter: `torch.save` it, on every rank."""
        errors: dict[str, Tensor] = {}
        for names in self._errors:
            errors |= self._singles(names)
        return {
            "format": FORMAT,
            "way": str(self.way),
            "seed": self.seed,
            "t": self.t,
            "sent": self.sent,
            "plain": self.plain,
            "shapes": {name: list(shape) for name, shape in self.shapes.items()},
            "first": dict(self.first),
            "kept": dict(self.bases),
            "errors": {name: error.clone() for name, error in errors.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken, with the same way and seed, and a new DDP module if need be."""
        validate.known_format("the state", state.get("format", FORMAT), [FORMAT])
        for name, own in (("way", str(self.way)), ("seed", self.seed)):
            remedy = f"make the state with {name}={state.get(name)}, as it was saved"
            validate.check(state.get(name) == own, name, own, remedy)
        self.t, self.sent, self.plain = int(state["t"]), int(state["sent"]), int(state["plain"])
        self.shapes = {name: tuple(shape) for name, shape in state["shapes"].items()}
        self.first = dict(state["first"])
        self.bases = {name: tensor.clone() for name, tensor in state["kept"].items()}
        self._errors = {(name,): tensor.clone() for name, tensor in state["errors"].items()}
        self._forget_module()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "process_group": None, "_parameters": {}, "_compared": set()}
