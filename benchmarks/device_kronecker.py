"""A private Kronecker step beside a plain one and Opacus' ghost clipping on a GPU.

MLP 1024-8192-8192-8192-8192-10 (d = 210 million), batch 4096, float32 parameters with TF32 products for everybody.
Each column runs in its own process: the median milliseconds of a step after which the host waits, the median of three
loops in which it does not, and the peak of the allocator.

    python benchmarks/device_kronecker.py [--columns plain ghost kronecker ...] [--steps 50] [--width 8192]

It needs torch with CUDA, and for the column "ghost" opacus; folders of pure-Python wheels can be put on PYTHONPATH.
Accuracy at these ranks is not a matter of this synthetic batch: `accuracy` trains the same network, at the same ranks,
privately on MNIST (ISTHMUS_DATA) and prints its test accuracy beside plain SGD's.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys

import torch
from device_transformer import measured
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

COLUMNS = ("plain", "ghost", "identity", "kronecker")


def network(width: int, inputs: int = 1024) -> nn.Sequential:
    """Four hidden layers."""
    sizes = [inputs, *[width] * 4]
    hidden = [layer for a, b in zip(sizes, sizes[1:], strict=False) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(width, 10))


def column(name: str, width: int, batch: int, rank: int, steps: int) -> dict[str, float]:
    """One column's figures."""
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    module, loss = network(width).to(device), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    x, y = torch.randn(batch, 1024, device=device), torch.randint(0, 10, (batch,), device=device)
    loader = DataLoader(TensorDataset(torch.zeros(8 * batch, 1), torch.zeros(8 * batch)), batch_size=batch)
    begin = None
    if name == "ghost":
        import opacus

        module, optimizer, loss, _ = opacus.PrivacyEngine().make_private(
            module=module, optimizer=optimizer, criterion=loss, data_loader=loader, noise_multiplier=1.0,
            max_grad_norm=1.0, poisson_sampling=False, grad_sample_mode="ghost",
        )  # fmt: skip
    elif name != "plain":
        import isthmus
        from isthmus.round.torch_loop import Ticket

        engine = isthmus.PrivacyEngine()
        sketch = isthmus.Kronecker(rank, rank, refresh=200) if name == "kronecker" else None
        module, optimizer, _ = engine.make_private(
            module=module, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0,
            sketch=sketch,
        )  # fmt: skip
        begin = lambda: engine.driver.begin(Ticket(batch))  # noqa: E731

    def step() -> None:
        if begin is not None:
            begin()
        optimizer.zero_grad(set_to_none=True)
        loss(module(x), y).backward()
        optimizer.step()

    return measured(step, device, steps)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--columns", nargs="*", default=COLUMNS)
    parser.add_argument("--only", choices=COLUMNS)
    parser.add_argument("--width", type=int, default=8192)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--rank", type=int, default=64)
    parser.add_argument("--steps", type=int, default=50)
    options = parser.parse_args()
    if options.only:
        print(json.dumps(column(options.only, options.width, options.batch, options.rank, options.steps)))
        return
    by_name = {}
    for name in options.columns:
        same = [f"--{key}={getattr(options, key)}" for key in ("width", "batch", "rank", "steps")]
        process = subprocess.run(
            [sys.executable, __file__, "--only", name, *same], capture_output=True, text=True, env=os.environ
        )
        if os.environ.get("PROFILE"):
            print(process.stderr[-20000:])
        if process.returncode:
            print(f"{name}: {process.stderr.strip().splitlines()[-1:]}")
            continue
        by_name[name] = json.loads(process.stdout.strip().splitlines()[-1])
    plain = by_name.get("plain")
    print(f"{'column':10} {'median ms':>10} {'no wait ms':>11} {'/ plain':>8} {'peak GiB':>9}")
    for name, row in by_name.items():
        ratio = row["free_ms"] / plain["free_ms"] if plain else float("nan")
        peak = row.get("peak_gib", float("nan"))
        print(f"{name:10} {row['median_ms']:10.2f} {row['free_ms']:11.2f} {ratio:8.3f} {peak:9.2f}")


if __name__ == "__main__":
    main()
