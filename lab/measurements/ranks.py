"""Private data-parallel training beside plain DDP, on gloo ranks of this machine with different thread counts: one run.

An MLP 1024-2048-2048-2048-10 (d = 10.5 million), Kronecker codes of rank 32 x 32, the same records and batch for both.
Blocks of steps of the two alternate in the same processes.  Bytes are what a rank hands to the collectives (and what it
gets from them) in a step; at the end weights are compared bit by bit, and epsilon with one process'.

`--audit` trains a linear module on ranks with 300 orthogonal canaries among its records, each in or out by a coin, and
guesses from the weights who was in (`isthmus.audit.one_run`): epsilon is at least what guesses show.  The same with a
tenth of the noise that the ledger is told of must be found out.

    python lab/measurements/ranks.py [--ranks 2 4] [--threads 1 2] [--batch 128] [--steps 12] [--audit] [--json FILE]
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
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import isthmus
from isthmus.base import storage

N, WIDTHS, BLOCK = 4096, (1024, 2048, 2048, 2048, 10), 3


def mlp() -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for p, q in zip(WIDTHS[:-1], WIDTHS[1:], strict=True):
        layers += [nn.Linear(p, q), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def records() -> TensorDataset:
    draws = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(N, WIDTHS[0], generator=draws), torch.randint(0, 10, (N,), generator=draws))


class Plain:
    """DDP as it comes: its buckets hold every gradient once, in float32."""

    def __init__(self, batch: int, rank: int, size: int) -> None:
        self.module = nn.parallel.DistributedDataParallel(mlp())
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=0.05)
        self.data, self.share, self.draws = records(), batch // size, torch.Generator().manual_seed(rank)
        self.rank, self.size = rank, size
        self.bytes = sum(p.numel() * p.element_size() for p in self.module.parameters())

    def step(self) -> None:
        """One batch of the records of this rank."""
        index = self.rank + self.size * torch.randint(0, N // self.size, (self.share,), generator=self.draws)
        x, y = self.data[index]
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.module(x), y).backward()
        self.optimizer.step()


class Private:
    """The same model through `make_private(group=)`."""

    def __init__(self, batch: int, ranks: int, refresh: int, group: Any = True) -> None:
        self.engine, self.module = isthmus.PrivacyEngine(), mlp()
        self.module, self.optimizer, self.loader = self.engine.make_private(
            module=self.module,
            optimizer=torch.optim.SGD(self.module.parameters(), lr=0.05),
            data_loader=DataLoader(records(), batch_size=batch, collate_fn=stacked),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            sketch=isthmus.Kronecker(32, 32, refresh=refresh),
            group=group,
        )
        self.batches = self._forever()

    def _forever(self) -> Any:
        while True:
            yield from self.loader

    def step(self) -> None:
        """One round."""
        x, y = next(self.batches)
        nn.functional.cross_entropy(self.module(x), y).backward()
        self.optimizer.step()


def stacked(rows: list[Any]) -> Any:
    return torch.stack([x for x, _ in rows]), torch.stack([y for _, y in rows])


def timed(run: Any, steps: int) -> list[float]:
    collected = []
    for _ in range(steps):
        dist.barrier()
        began = time.perf_counter()
        run.step()
        collected.append(time.perf_counter() - began)
    return collected


def process(rank: int, size: int, folder: str, given: argparse.Namespace) -> None:
    torch.set_num_threads(given.threads[rank % len(given.threads)])
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    plain, private = Plain(given.batch, rank, size), Private(given.batch, size, given.refresh)
    for run in (plain, private):
        timed(run, 2)
    ranks = private.engine.driver.group
    ranks.sent.clear()
    times: dict[str, list[float]] = {"plain": [], "private": []}
    for _ in range(given.steps // BLOCK):
        times["plain"] += timed(plain, BLOCK)
        times["private"] += timed(private, BLOCK)
    count = len(times["plain"])
    facts = {
        "threads": torch.get_num_threads(),
        "seconds": {name: statistics.median(values) for name, values in times.items()},
        "ddp bytes": plain.bytes,
        "sent": {name: values / count for name, values in ranks.sent.items()},
        "checksum": [storage.checksum(p) for p in private.module.parameters()],
        "epsilon": private.engine.get_epsilon(1e-5),
        "rounds": private.engine.ledger.rounds(),
    }
    Path(folder, str(rank)).write_text(json.dumps(facts))
    dist.barrier()
    dist.destroy_process_group()


def alone(rounds: int, batch: int) -> float:
    """Epsilon of as many rounds of one process."""
    event = isthmus.privacy.Poisson(batch / N).event(isthmus.privacy.Gaussian(1.0).event())
    book = isthmus.privacy.Ledger()
    book.pay("main", event, rounds)
    return book.spent(1e-5)


def measured(size: int, given: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(process, args=(size, folder, given), nprocs=size, join=True)
        values = [json.loads(Path(folder, str(rank)).read_text()) for rank in range(size)]
    seconds = {name: max(value["seconds"][name] for value in values) for name in ("plain", "private")}
    return {
        "ranks": size,
        "threads": [value["threads"] for value in values],
        "parameters": sum(p.numel() for p in mlp().parameters()),
        "seconds a step": seconds,
        "ddp bytes": values[0]["ddp bytes"],
        "sent": max(sum(value["sent"].values()) for value in values),
        "by collective": [value["sent"] for value in values],
        "equal weights": all(value["checksum"] == values[0]["checksum"] for value in values),
        "epsilon": [value["epsilon"] for value in values],
        "epsilon alone": alone(sum(values[0]["rounds"].values()), given.batch),
    }


# ---------------------------------------------------------------- the audit


CANARIES, ROUNDS, RATE = 300, 20, 0.5


def trained(rank: int, size: int, folder: str, multiplier: float) -> None:
    """A linear module with the loss <w, x> of a record x: a canary that is in pulls the weights along itself."""
    torch.set_num_threads(1 + rank % 2)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    rows = torch.load(Path(folder, "rows"))
    engine, module = isthmus.PrivacyEngine(), nn.Linear(rows.shape[1], 1, bias=False)
    nn.init.zeros_(module.weight)
    module, optimizer, loader = engine.make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
        data_loader=DataLoader(TensorDataset(rows), batch_size=round(RATE * len(rows)), collate_fn=_only),
        noise_multiplier=multiplier,
        max_grad_norm=1.0,
        group=True,
    )
    done = 0
    while done < ROUNDS:
        for x in loader:
            module(x).mean().backward()
            optimizer.step()
            done += 1
            if done == ROUNDS:
                break
    if rank == 0:
        epsilon = engine.get_epsilon(1e-5)
        torch.save({"w": next(module.parameters()).detach()[0].double(), "epsilon": epsilon}, Path(folder, "found"))
    dist.barrier()
    dist.destroy_process_group()


def _only(rows: list[Any]) -> torch.Tensor:
    return torch.stack([x for (x,) in rows])


def audited(size: int, noise: float, claimed: float) -> dict[str, float]:
    """What the canaries show of a training with this noise, beside the epsilon of the noise that is claimed."""
    canaries = isthmus.audit.orthogonal_canaries(CANARIES, 400).float()
    by_name: dict[str, Any] = {}

    def train(included: torch.Tensor) -> torch.Tensor:
        with tempfile.TemporaryDirectory() as folder:
            torch.save(included, Path(folder, "rows"))
            mp.spawn(trained, args=(size, folder, noise), nprocs=size, join=True)
            by_name.update(torch.load(Path(folder, "found")))
        scores: torch.Tensor = canaries.double() @ -by_name["w"]
        return scores

    result = isthmus.audit.one_run(train, canaries, guesses=CANARIES // 3, delta=1e-5)
    event = isthmus.privacy.Poisson(RATE).event(isthmus.privacy.Gaussian(claimed).event())
    book = isthmus.privacy.Ledger()
    book.pay("main", event, ROUNDS)
    facts = {"lower": result.lower, "right": result.correct, "guesses": result.guesses}
    return {**facts, "claimed": book.spent(1e-5), "ledger": by_name["epsilon"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--refresh", type=int, default=20)
    parser.add_argument("--audit", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.audit:
        for size in arguments.ranks:
            print(json.dumps({"ranks": size, "as told": audited(size, 6.0, 6.0), "broken": audited(size, 0.6, 6.0)}))
        return
    values = [measured(size, arguments) for size in arguments.ranks]
    for value in values:
        print(json.dumps(value, indent=1))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(values, indent=1))


if __name__ == "__main__":
    main()
