"""The whole state of a run, as plain tensors and numbers: replaceable, resumable, written without pickle."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from isthmus.base import storage, validate
from isthmus.lifts import Lifted

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
    update: dict[str, Any] = field(default_factory=dict)
    average: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, Any] = field(default_factory=dict)
    memory: dict[str, Any] = field(default_factory=dict)
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
        part = getattr(state, name)
        validate.check(isinstance(part, kind), f"path: {name}", type(part).__name__, remedy)
    return state
