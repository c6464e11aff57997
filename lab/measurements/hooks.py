"""Gradients through `sketch_hook` beside plain DDP and PowerSGD at equal bytes: loss after equal steps, time of a step.

Two gloo ranks of this machine, Fashion-MNIST: an MLP 1024-2048-2048-2048-10 (d = 10.5 million, images in a frame of
zeros) and a transformer that reads the rows of an image (d = 0.6 million).  All runs of a model alternate, a block of
steps each, in the same processes: whatever else the machine does hits all of them.  PowerSGD, ours of the same rank,
and ours by halves of twice that rank send the same bytes.  PowerSGD has one bucket (with more of them it aborts on
gloo), the others those of DDP.

    ISTHMUS_DATA=... python lab/measurements/hooks.py [--model mlp transformer] [--steps 40] [--seeds 1] [--json FILE]
    ... --seeds 5 --runs "PowerSGD(1)" "WarmRank(1)"

With several seeds (of the weights, the batches and the maps) a loss is their mean, beside their standard deviation.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

from isthmus import datasets
from isthmus.base import storage
from isthmus.distributed.hooks import SketchState, WarmRank, sketch_hook
from isthmus.sketches import CountSketch

BLOCK, START, WIDTHS = 5, 2, (1024, 2048, 2048, 2048, 10)
RATES = {"mlp": (0.01, 0.9), "transformer": (0.02, 0.9)}
"""Step and momentum, the same for all runs of a model."""


class Rows(nn.Module):
    """Two blocks of attention over the rows of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(32, 160), nn.Linear(160, 10)
        self.place = nn.Parameter(torch.zeros(32, 160))
        layer = nn.TransformerEncoderLayer(160, 4, 640, 0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        """Classes of images."""
        return self.out(self.blocks(self.into(x.view(-1, 32, 32)) + self.place).mean(1))


def network(name: str, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    if name == "transformer":
        return Rows()
    layers: list[nn.Module] = []
    for p, q in zip(WIDTHS[:-1], WIDTHS[1:], strict=True):
        layers += [nn.Linear(p, q), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def images() -> tuple[Tensor, Tensor]:
    dataset = datasets.load("fashion_mnist")
    x = torch.as_tensor(dataset.x_train, dtype=torch.float32).reshape(-1, 28, 28)
    x = nn.functional.pad((x - x.mean()) / x.std(), (2, 2, 2, 2)).reshape(len(x), -1)
    return x, torch.as_tensor(dataset.y_train, dtype=torch.int64)


def runs(name: str) -> dict[str, Any]:
    """What is registered for each run: nothing, PowerSGD's rank, or a way of ours."""
    ours = {f"WarmRank({r})": WarmRank(r) for r in (1, 4, 32)}
    ours |= {f"WarmRank({2 * r}, halves=True)": WarmRank(2 * r, halves=True) for r in (1, 4)}
    share = {"mlp": 0.006, "transformer": 0.04}[name]  # the bytes of PowerSGD's rank 4
    drawn = {f"CountSketch({share})": CountSketch(share)}
    return {"plain": None, **{f"PowerSGD({r})": r for r in (1, 4, 32)}, **ours, **drawn}


def chosen_runs(name: str, labels: list[str] | None) -> dict[str, Any]:
    """Those runs whose labels were asked for: all of them, if none was."""
    table = runs(name)
    return table if labels is None else {label: table[label] for label in labels}


class Run:
    """One module under DDP with its hook."""

    def __init__(self, name: str, way: Any, seed: int) -> None:
        single = {"bucket_cap_mb": 1000} if isinstance(way, int) else {}
        self.module = nn.parallel.DistributedDataParallel(network(name, seed), **single)
        self.d = sum(p.numel() for p in self.module.parameters())
        self.state: Any = None
        if isinstance(way, int):
            self.state = PowerSGDState(None, matrix_approximation_rank=way, start_powerSGD_iter=START, random_seed=seed)
            self.module.register_comm_hook(self.state, powerSGD_hook)
        elif way is not None:
            self.state = SketchState(way, start=START, seed=seed)
            self.module.register_comm_hook(self.state, sketch_hook)
        step, momentum = RATES[name]
        self.optimizer = torch.optim.SGD(self.module.parameters(), step, momentum)
        self.losses: list[float] = []
        self.wall: list[float] = []
        self.cpu: list[float] = []

    def step(self, x: Tensor, y: Tensor) -> None:
        """One step on a batch of this rank."""
        dist.barrier()
        wall, cpu = time.perf_counter(), time.process_time()
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.module(x), y)
        loss.backward()
        self.optimizer.step()
        self.wall.append(time.perf_counter() - wall)
        self.cpu.append(time.process_time() - cpu)
        self.losses.append(loss.item())

    def bytes(self) -> float:
        """Bytes a step that a rank hands to the all-reduce, after the whole gradients of the start."""
        steps = len(self.losses) - START
        if isinstance(self.state, SketchState):
            return (self.state.sent - START * 4 * self.d) / steps
        if self.state is not None:
            return 4 * self.state.total_numel_after_compression / steps
        return 4.0 * self.d


def process(rank: int, size: int, folder: str, given: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    x, y = images()
    by_name: dict[str, Any] = {}
    for name, seed in itertools.product(given.model, range(given.seeds)):
        table = {label: Run(name, way, seed) for label, way in chosen_runs(name, given.runs).items()}
        for start in range(0, given.steps, BLOCK):
            for run in table.values():
                draws = torch.Generator().manual_seed(1_000_000 * seed + 1000 * start + rank)  # the same for all runs
                for _ in range(BLOCK):
                    chosen = rank + size * torch.randint(0, len(x) // size, (given.batch // size,), generator=draws)
                    run.step(x[chosen], y[chosen])
        held = torch.arange(0, len(x), 30)
        for label, run in table.items():
            run.module.eval()
            with torch.no_grad():
                loss = float(nn.functional.cross_entropy(run.module.module(x[held]), y[held]))
            by_name.setdefault(f"{name}: {label}", []).append(
                {
                    "bytes": run.bytes(),
                    "loss": loss,
                    "wall": statistics.median(run.wall[START + 1 :]),
                    "cpu": statistics.median(run.cpu[START + 1 :]),
                    "checksum": [storage.checksum(p) for p in run.module.parameters()],
                }
            )
        del table
    Path(folder, str(rank)).write_text(json.dumps(by_name))
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", nargs="+", default=["mlp", "transformer"], choices=["mlp", "transformer"])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--runs", nargs="+", help="labels of the table, such as 'PowerSGD(1)'")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(process, args=(2, folder, arguments), nprocs=2, join=True)
        values = [json.loads(Path(folder, str(rank)).read_text()) for rank in range(2)]
    print("| run | KB a step | loss | s a step | CPU s a step | ranks equal |\n|---|---|---|---|---|---|")
    for name, first in values[0].items():
        second = values[1][name]
        equal = "yes" if [run["checksum"] for run in first] == [run["checksum"] for run in second] else "no"
        wall, cpu = (statistics.median(run[what] for run in first + second) for what in ("wall", "cpu"))
        losses = [run["loss"] for run in first]
        loss = f"{statistics.mean(losses):.3f}"
        if len(losses) > 1:
            loss += f" +- {statistics.stdev(losses):.3f}"
        print(f"| {name} | {first[0]['bytes'] / 1e3:,.1f} | {loss} | {wall:.3f} | {cpu:.3f} | {equal} |")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(values, indent=1))


if __name__ == "__main__":
    main()
