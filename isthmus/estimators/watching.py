"""What a fit notes of its rounds while they are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isthmus.core.state import State
from isthmus.planner import Choice

SMALL_STATE = 20_000
"""A point of fewer numbers is checkpointed every round, a longer one a hundred times."""


@dataclass
class Watcher:
    """Notes what each round moved (it was released, so it is public), saves checkpoints, and ends a partial fit."""

    notes: list[dict[str, Any]]
    choice: Choice
    until: int
    rounds: int
    path: Any
    assumed: dict[str, Any]
    last: tuple[int, Tensor] | None = None

    def __call__(self, record: dict[str, Any], state: State) -> bool:
        note: dict[str, Any] = {"t": state.t}
        if self.last is not None and self.last[0] == state.t - 1:
            note["moved"] = float(torch.linalg.vector_norm(state.w - self.last[1]))
        straight = not self.choice.arguments.get("precondition")  # else noise goes through a matrix
        if self.choice.noise_norm is not None and "eta" in record and straight:
            note["noise"] = record["eta"] * self.choice.noise_norm
        if "loss" in record:
            note["loss"] = record["loss"]
        self.last = state.t, state.w
        self.notes.append(note)
        every = 1 if state.w.numel() < SMALL_STATE else max(1, self.rounds // 100)
        if self.path is not None and (state.t % every == 0 or state.t == self.rounds):
            state.replace(parts={**state.parts, **self.assumed}).save(self.path)
        return state.t >= self.until and state.t < self.rounds
