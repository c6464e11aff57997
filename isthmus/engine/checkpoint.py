"""Checkpoints of a training: the module, the optimiser, what the pipeline remembers, and what was spent."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from isthmus.base import storage, validate
from isthmus.core.driver import TorchDriver
from isthmus.privacy import event_json
from isthmus.privacy.event_json import DpEvent
from isthmus.privacy.ledger import Ledger
from isthmus.privacy.sampling import Sampler

_RESTORED = "restored:"
FORMAT = storage.Format("isthmus-checkpoint-2", "save_checkpoint", unsealed=("isthmus-checkpoint-1",))


def terms(event: DpEvent, sampler: Sampler, sketch: object, **choices: object) -> dict[str, object]:
    """What training was begun with: it goes on with the same, or not at all."""
    plain = {name: value if isinstance(value, (int, float, str)) else repr(value) for name, value in choices.items()}
    return {"event": event_json.to_json(event), "sampler": sampler.describe(), "sketch": words(sketch), **plain}


def words(part: object) -> str:
    """A sketch by its kind and its numbers; data and functions are not compared.

    >>> from isthmus.sketches import Kronecker
    >>> words(Kronecker(3, 2, refresh=4))
    'Kronecker(refresh=4, rank_in=3, rank_out=2, ranks=None)'
    """
    if isinstance(part, (list, tuple)):
        return f"[{', '.join(words(item) for item in part)}]"
    if isinstance(part, (bool, int, float, str, slice, dict, type(None))):
        return repr(part)
    if not is_dataclass(part):
        return type(part).__name__
    members = [f for f in fields(part) if f.init and f.name not in ("data", "loss")]
    return f"{type(part).__name__}({', '.join(f'{f.name}={words(getattr(part, f.name))}' for f in members)})"


def save(
    path: str | Path, driver: TorchDriver, ledger: Ledger, optimizer: torch.optim.Optimizer | None, **more: object
) -> None:
    """Write one file, whole or not at all.

    more   the `terms` of the training, whether it is `seeded`: noise that can be subtracted is in what it holds; and
           what is `extra`
    """
    state = driver.state
    tree = {"module": driver.module.state_dict(), "optimizer": optimizer and optimizer.state_dict()}
    tree["driver"] = {"t": state.t, "parts": state.parts, "dims": state.dims, "bytes": state.bytes}
    FORMAT.write(path, {**tree, "spent": spent_by_run(ledger), **more})


def load(
    path: str | Path,
    driver: TorchDriver,
    ledger: Ledger,
    agreed: dict[str, object],
    optimizer: torch.optim.Optimizer | None,
) -> dict[str, Any]:
    """Restore, and charge again what the ledger does not show: rounds, and that their noise was seeded."""
    tree = FORMAT.read(path, dict)
    remedy = f"make the module private with the settings of this checkpoint: {tree['terms']}"
    validate.check(tree["terms"] == agreed, "path", str(path), remedy)
    if tree.get("seeded"):  # before anything is read in: it can never be forgotten again
        ledger.mark_seeded()
    charge_again(ledger, tree["spent"])
    driver.module.load_state_dict(tree["module"])
    if optimizer is not None:
        remedy = "leave it out: the checkpoint holds no optimiser"
        validate.check(tree["optimizer"] is not None, "optimizer", optimizer, remedy)
        state = tree["optimizer"]  # format 1 had the numbers of parameters as strings
        optimizer.load_state_dict({**state, "state": {int(key): value for key, value in state["state"].items()}})
    driver.forget()
    saved = tree["driver"]
    device = next(driver.layers.parameters()).device
    parts = tree_map_only(torch.Tensor, lambda x: x.to(device), saved["parts"])
    driver.state = driver.state.replace(**{**saved, "parts": parts})
    return tree["extra"]


def spent_by_run(ledger: Ledger) -> dict[str, dict[str, int]]:
    """The rounds charged to every run, by the text of their event; what was restored counts for its first run."""
    by_run: dict[str, Counter[str]] = {}
    for record in ledger.records():
        if record.get("kind") in ("charge", "refund"):
            name, rounds = str(record["what"]), record["rounds"]
            run = name.removeprefix(_RESTORED) if name.startswith(_RESTORED) else record["run"]
            sign = -1 if record["kind"] == "refund" else 1
            by_run.setdefault(run, Counter())[event_json.canonical(record["event"])] += sign * rounds
    return {run: dict(counts) for run, counts in by_run.items()}


def charge_again(ledger: Ledger, saved: dict[str, dict[str, int]]) -> None:
    """Pay for every round the checkpoint knows of and the ledger does not show."""
    spent = spent_by_run(ledger)
    for run, counts in saved.items():
        for event, rounds in counts.items():
            missing = rounds - spent.get(run, {}).get(event, 0)
            if missing > 0:
                ledger.pay(f"{_RESTORED}{run}", json.loads(event), missing)


def _went_on_unseen(ledger: Ledger) -> bool:
    """Whether the ledger learned of rounds from a checkpoint: others may have gone on from it, and it cannot know."""
    return any(_RESTORED in name for name in ledger.rounds())
