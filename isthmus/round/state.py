"""The whole state of a run, as plain tensors and numbers: replaceable, resumable, written without pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from isthmus.base import validate
from isthmus.geometry.lifts import Lifted

FORMAT = "isthmus-state-1"


@dataclass(frozen=True)
class Held:
    """What a stage last released, lifted, and the point it looked at."""

    w: Tensor | None
    lifted: tuple[Lifted, ...]


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
    held: dict[str, Held] = field(default_factory=dict)
    dims: int = 0
    bytes: int = 0

    def save(self, path: str | Path) -> None:
        """Write the state to one file, whole or not at all."""
        tensors: dict[str, Tensor] = {}
        tree = {item.name: pack(getattr(self, item.name), item.name, tensors) for item in fields(self)}
        target = Path(path)
        partial = target.with_name(target.name + ".part")
        save_file(tensors, partial, metadata={"format": FORMAT, "tree": json.dumps(tree)})
        partial.replace(target)

    @staticmethod
    def load(path: str | Path) -> State:
        """Read a state; a file that is not one, or is cut short, is refused."""
        remedy = "give a file written by State.save; this one is missing, cut short or of another kind"
        try:
            with safe_open(path, framework="pt") as file:
                header = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}
            validate.check(header.get("format") == FORMAT, "path", str(path), remedy)
            tree = unpack(json.loads(header["tree"]), tensors)
        except (OSError, SafetensorError, KeyError, json.JSONDecodeError) as error:
            raise validate.InvalidInput(f"path={str(path)!r} is not allowed: {remedy} ({error})") from error
        return State(**tree)

    def replace(self, **changes: Any) -> State:
        """A copy with some fields changed."""
        return replace(self, **changes)


def pack(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """A JSON tree in which tensors are references."""
    if isinstance(value, Tensor):
        tensors[path] = value.detach().cpu().clone().contiguous()
        return {"@tensor": path}
    if isinstance(value, Held):
        lifted = [{"direction": x.direction, "point": x.point} for x in value.lifted]
        return {"@held": pack({"w": value.w, "lifted": lifted}, path, tensors)}
    if isinstance(value, Mapping):
        return {str(key): pack(item, f"{path}/{key}", tensors) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [pack(item, f"{path}/{number}", tensors) for number, item in enumerate(value)]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"the state of {path} is a {type(value).__name__}: keep tensors, numbers, strings, lists and dicts")


def unpack(tree: Any, tensors: Mapping[str, Tensor]) -> Any:
    """What `pack` made a tree of."""
    if isinstance(tree, list):
        return [unpack(item, tensors) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if "@tensor" in tree:
        return tensors[tree["@tensor"]]
    if "@held" in tree:
        held = unpack(tree["@held"], tensors)
        return Held(held["w"], tuple(Lifted(**item) for item in held["lifted"]))
    return {key: unpack(item, tensors) for key, item in tree.items()}
