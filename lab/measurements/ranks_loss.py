"""Private ranks beside PowerSGD at equal bytes: loss after equal steps, two gloo ranks, Fashion-MNIST, d = 10.5M.

`make_private(group=)` with codes of k x k a layer sends 4 k^2 numbers a step: k = 70, 122 and 306 are the bytes of
PowerSGD's ranks 1, 4 and 32 (k = 32 sends a fifth of rank 1).  "drawn" maps are random, "learned" ones come from 500
public images, on rank 0, every 20 rounds.  Ours is clipped and noised, PowerSGD's is not; noise 0: what
codes alone cost.  Rank 0 also sends what was released, and learned maps.

    ISTHMUS_DATA=... python lab/measurements/ranks_loss.py [--steps 20] [--ours drawn:32:1 learned:70:0 ...]
        [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from hooks import Run, images, network
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import isthmus

HELD = 30
"""Every so manieth record is held out."""
PUBLIC = 500
OURS = ["drawn:32:1", "drawn:70:1", "learned:32:1", "learned:70:1", "learned:122:1", "learned:306:1", "learned:32:0"]
"""Kind of the maps, k, noise multiplier."""


class Codes:
    """The network through `make_private(group=)`."""

    def __init__(self, data: TensorDataset, public: Any, ours: str, given: argparse.Namespace) -> None:
        kind, k, noise = ours.split(":")
        self.engine, module = isthmus.PrivacyEngine(), network("mlp")
        d = sum(p.numel() for p in module.parameters())
        drawn = isthmus.Kronecker(int(k), int(k), refresh=20)
        learned = isthmus.KroneckerSubspace(int(k), int(k), data=public, loss=nn.functional.cross_entropy)
        longer = (d / (4 * int(k) ** 2)) ** 0.5 if kind == "drawn" else 1.0  # what is lifted back is so much shorter
        self.module, self.optimizer, loader = self.engine.make_private(
            module=module,
            optimizer=torch.optim.SGD(module.parameters(), given.rate * longer, 0.9),
            data_loader=DataLoader(data, batch_size=given.batch, collate_fn=_stacked),
            noise_multiplier=float(noise),
            max_grad_norm=1.0,
            sketch=drawn if kind == "drawn" else learned,
            criterion=nn.functional.cross_entropy,
            group=True,
        )[:3]
        self.batches, self.wall = self._forever(loader), []
        self.ranks.sent.clear()  # the start that all ranks take from rank 0

    def _forever(self, loader: Any) -> Any:
        while True:
            yield from loader

    def step(self) -> None:
        """One round."""
        x, y = next(self.batches)
        dist.barrier()
        began = time.perf_counter()
        nn.functional.cross_entropy(self.module(x), y).backward()
        self.optimizer.step()
        self.wall.append(time.perf_counter() - began)

    def bytes(self) -> float:
        """What a rank sends in a step: rank 1, which has no more than its sums to say."""
        return sum(self.ranks.sent.values()) / len(self.wall)

    @property
    def ranks(self) -> Any:
        """The collectives of this rank."""
        return self.engine.driver.group


def _stacked(rows: list[Any]) -> Any:
    return torch.stack([x for x, _ in rows]), torch.stack([y for _, y in rows])


def process(rank: int, size: int, folder: str, given: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    x, y = images()
    held, first = torch.arange(len(x)) % HELD == 0, torch.arange(len(x)) < PUBLIC
    data, public, measured = TensorDataset(x[~(held | first)], y[~(held | first)]), (x[:PUBLIC], y[:PUBLIC]), {}

    def judged(name: str, run: Any, module: nn.Module) -> None:
        module.eval()
        with torch.no_grad():
            logits = module(x[held])
        loss = float(nn.functional.cross_entropy(logits, y[held]))
        right = float((logits.argmax(1) == y[held]).double().mean())
        wall = statistics.median(run.wall[2:])
        measured[name] = {"bytes": run.bytes(), "loss": loss, "accuracy": right, "wall": wall}

    for power in given.power:
        run = Run("mlp", power)
        draws = torch.Generator().manual_seed(rank)
        for _ in range(given.steps):
            chosen = rank + size * torch.randint(0, len(data) // size, (given.batch // size,), generator=draws)
            run.step(*data[chosen])
        judged(f"PowerSGD({power})", run, run.module.module)
        del run
    for ours in given.ours:
        codes = Codes(data, public, ours, given)
        for _ in range(given.steps):
            codes.step()
        judged(ours, codes, codes.module)
        measured[ours]["epsilon"] = codes.engine.get_epsilon(1e-5)
        del codes
    Path(folder, str(rank)).write_text(json.dumps(measured))
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rate", type=float, default=0.05)
    parser.add_argument("--ours", nargs="*", default=OURS)
    parser.add_argument("--power", type=int, nargs="*", default=[1, 4, 32])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(process, args=(2, folder, arguments), nprocs=2, join=True)
        values = [json.loads(Path(folder, str(rank)).read_text()) for rank in range(2)]
    print("| run | KB a step of rank 1 | of rank 0 | held-out loss | accuracy | s a step | epsilon |")
    print("|---|---|---|---|---|---|---|")
    for name, one in values[0].items():
        sent, wall = [value[name]["bytes"] / 1e3 for value in values], max(value[name]["wall"] for value in values)
        words = f"{sent[1]:,.1f} | {sent[0]:,.1f} | {one['loss']:.3f} | {one['accuracy']:.3f} | {wall:.2f}"
        print(f"| {name} | {words} | {one.get('epsilon', float('inf')):.3g} |")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(values, indent=1))


if __name__ == "__main__":
    main()
