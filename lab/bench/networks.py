"""Networks of the benchmarks of a device, made private in the ways that are compared.

Ours are tried out before their first step, which takes longer than the measurement: a network that the next contest
asks for again is kept, if the device holds no more for it than when it was made.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from isthmus.core.driver import Ticket
from isthmus.sketches import Kronecker
from lab.bench.cases import need
from lab.bench.gauges import DEVICE
from lab.bench.steps import GHOST, NONE, PLAIN, our_parts

LAYERS, KRONECKER16, KRONECKER64 = "per-layer clipping", "Kronecker(16, 16)", "Kronecker(64, 64)"
OURS: dict[str, dict[str, Any]] = {
    NONE: {"sketch": None},
    LAYERS: {"sketch": None, "clipping": "per_layer"},
    KRONECKER16: {"sketch": Kronecker(16, 16)},
    KRONECKER64: {"sketch": Kronecker(64, 64, refresh=200)},
}
LEFT = 64 * 2**20
"""Bytes that a device may hold of what was measured before."""


@dataclass(frozen=True, eq=False)
class Network:
    """A module with its optimiser and loss.

    begin    hands out a ticket for a batch of so many
    replay   what records the steps of ours
    held     bytes that the device held when it was made
    """

    module: Any
    optimizer: Any
    loss: Any
    begin: Callable[[int], object] = field(default_factory=lambda: lambda batch: None)
    replay: Any = None
    held: int = 0

    @property
    def runs(self) -> Callable[[], int] | None:
        """What counts recorded steps; None where none is recorded."""
        return None if self.replay is None else lambda: self.replay.runs

    def rests(self) -> bool:
        """Forget the batches it was used for; whether it is as it was when it was made."""
        self.optimizer.zero_grad(set_to_none=True)
        self.replay.forget()
        return self.replay.on and _held() <= self.held * 1.02 + LEFT


_LAST: dict[tuple[str, str], Network] = {}
"""The last of ours, by way and shape: never more than one."""


def network(way: str, make: Callable[[], nn.Module], loss: nn.Module, batch: int) -> Network:
    """A network in one of the ways; ours may be one that was used with another batch size or precision."""
    key = way, str((make.func, make.args) if isinstance(make, partial) else make)
    if key in _LAST and _LAST[key].rests():
        return _LAST[key]
    _LAST.clear()
    left = _held()
    if left > LEFT:  # a fresh process is asked next
        raise MemoryError(f"{left / 2**20:.0f} MiB of what was measured before are still held")
    torch.manual_seed(0)
    with torch.device(DEVICE):
        module = make()
    data = TensorDataset(torch.zeros(64 * batch, 1), torch.zeros(64 * batch))
    loader = DataLoader(data, batch_size=batch)
    if way == PLAIN:
        return Network(module, torch.optim.SGD(module.parameters(), lr=0.01), loss)
    if way == GHOST:
        return _ghost(module, loss, loader)
    module, optimizer, _, engine = our_parts(module, loader, 0.01, **OURS[way])
    begin, replay = lambda size: engine.driver.begin(Ticket(size)), engine.driver.pending.replay
    made = _LAST[key] = Network(module, optimizer, loss, begin, replay, _held())
    return made


def _ghost(module: nn.Module, loss: nn.Module, loader: Any) -> Network:
    """Opacus' ghost clipping."""
    need("opacus", "the extra bench")
    import opacus

    made = opacus.PrivacyEngine().make_private(
        module=module, optimizer=torch.optim.SGD(module.parameters(), lr=0.01), criterion=loss, data_loader=loader,
        noise_multiplier=1.0, max_grad_norm=1.0, poisson_sampling=False, grad_sample_mode="ghost",
    )  # fmt: skip
    return Network(*made[:3])


def _held() -> int:
    """Bytes that this process holds on the device."""
    gc.collect()
    if DEVICE != "cuda":
        return 0
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated()
