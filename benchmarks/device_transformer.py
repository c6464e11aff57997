"""A private step of a GPT beside a plain one and Opacus' ghost clipping, on a GPU (or, small, on a CPU).

12 layers, 768 wide, 50,257 words, 512 tokens, batch 16 (d = 162 million).  Each column runs in its own process, all in
the same precision: median milliseconds a step of a loop that waits after every step, the median of three loops that do
not, how many of their steps were recorded ones, the peak of the allocator, kernel launches and the CPU time of the host
a step.

    python benchmarks/device_transformer.py [--columns plain ghost none per_layer kronecker] [--precision tf32 bf16]
        [--batch 16] [--tokens 512] [--json FILE]

The loss is the mean over examples of the mean over tokens: `loss(model(x), y).backward()` as users write it.  The
column "ghost" needs opacus; folders of pure-Python wheels can be put on PYTHONPATH.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import subprocess
import sys
import time
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from isthmus.bench.models import Gpt

COLUMNS = ("plain", "ghost", "none", "per_layer", "kronecker", "exact")
LOOPS = 3


def loss_of(output: Tensor, target: Tensor) -> Tensor:
    """The mean over examples of the mean over tokens, which is one over all tokens."""
    return F.cross_entropy(output.flatten(0, 1), target.flatten())


def private(
    name: str, options: argparse.Namespace, module: nn.Module, optimizer: Any, loader: Any
) -> tuple[Any, Any, Any]:
    """The module's optimiser made private by us, what hands out tickets, and what counts recorded steps."""
    import isthmus
    from isthmus.round.torch_loop import Ticket

    engine = isthmus.PrivacyEngine()
    sketch = isthmus.Kronecker(options.rank, options.rank) if name == "kronecker" else None
    more: dict[str, Any] = {"precision": "exact"} if name == "exact" else {}
    more |= {"clipping": "per_layer"} if name == "per_layer" else {}
    _, optimizer, _ = engine.make_private(
        module=module, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0, sketch=sketch,
        **more,
    )  # fmt: skip
    return optimizer, lambda: engine.driver.begin(Ticket(options.batch)), lambda: engine.driver.arrivals.replay.runs


def column(name: str, precision: str, options: argparse.Namespace) -> dict[str, float]:
    """One column's figures."""
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    module = Gpt(options.words, options.width, options.layers, options.tokens).to(device)
    optimizer: Any = torch.optim.SGD(module.parameters(), lr=0.01)
    shape = (options.batch, options.tokens)
    x, y = (torch.randint(0, options.words, shape, device=device) for _ in range(2))
    data = TensorDataset(torch.zeros(64 * options.batch, 1), torch.zeros(64 * options.batch))
    loader = DataLoader(data, batch_size=options.batch)
    begin, runs, loss = (lambda: None), (lambda: 0), loss_of
    if name == "ghost":
        import opacus

        criterion = nn.CrossEntropyLoss(reduction="mean")
        module, optimizer, criterion, _ = opacus.PrivacyEngine().make_private(
            module=module, optimizer=optimizer, criterion=criterion, data_loader=loader, noise_multiplier=1.0,
            max_grad_norm=1.0, poisson_sampling=False, grad_sample_mode="ghost",
        )  # fmt: skip

        def loss(output: Tensor, target: Tensor) -> Any:
            return criterion(output.reshape(-1, options.words), target.reshape(-1), shape=shape)

    elif name != "plain":
        optimizer, begin, runs = private(name, options, module, optimizer, loader)

    def step() -> None:
        begin()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext():
            value = loss(module(x), y)
        value.backward()
        optimizer.step()

    return measured(step, device, options.steps, runs)


def measured(step: Any, device: torch.device, steps: int, runs: Any = lambda: 0, first: int = 24) -> dict[str, float]:
    """Milliseconds, memory, launches."""
    cuda = device.type == "cuda"
    sync = torch.cuda.synchronize if cuda else (lambda: None)
    for _ in range(first):  # memory comes to rest, and a private step is recorded
        step()
    sync()
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        step()
        sync()
        times.append(time.perf_counter() - start)
    free, before, host = [], runs(), 0.0
    for _ in range(LOOPS):  # as a training loop runs: the host does not wait after every step
        began, used = time.perf_counter(), time.process_time()
        for _ in range(steps):
            step()
        host += time.process_time() - used
        sync()
        free.append((time.perf_counter() - began) / steps)
    facts = {
        "median_ms": 1e3 * sorted(times)[len(times) // 2],
        "free_ms": 1e3 * sorted(free)[LOOPS // 2],
        "host_ms": 1e3 * host / (LOOPS * steps),
        "recorded": (runs() - before) / (LOOPS * steps),
    }
    return facts | ({"peak_gib": torch.cuda.max_memory_allocated() / 2**30} | launches(step) if cuda else {})


def launches(step: Any) -> dict[str, float]:
    """Kernel launches of a step and the GPU's own milliseconds."""
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as profile:
        step()
        torch.cuda.synchronize()
    found = profile.key_averages()
    count = sum(event.count for event in found if event.key.startswith(("cudaLaunchKernel", "cuLaunchKernel")))
    waits = sum(event.count for event in found if event.key in ("cudaStreamSynchronize", "cudaMemcpy"))
    busy = sum(event.self_device_time_total for event in found) / 1e3
    if os.environ.get("PROFILE"):
        print(found.table(sort_by="self_cuda_time_total", row_limit=40, max_name_column_width=60), file=sys.stderr)
    return {"launches": count, "waits": waits, "gpu_ms": busy}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--columns", nargs="*", default=COLUMNS[:-1])
    parser.add_argument("--only", choices=COLUMNS)
    parser.add_argument("--precision", nargs="*", default=["tf32", "bf16"])
    sizes = {"batch": 16, "tokens": 512, "words": 50257, "width": 768, "layers": 12, "rank": 16, "steps": 20}
    for key, value in sizes.items():
        parser.add_argument(f"--{key}", type=int, default=value)
    parser.add_argument("--json", help="append the figures to this file")
    options = parser.parse_args()
    if options.only:
        faulthandler.dump_traceback_later(100, exit=True)  # a column that hangs says where
        print(json.dumps(column(options.only, options.precision[0], options)))
        return
    for precision in options.precision:
        table(precision, options, {key: getattr(options, key) for key in sizes})


def table(precision: str, options: argparse.Namespace, sizes: dict[str, int]) -> None:
    """All columns in one precision."""
    by_name: dict[str, dict[str, float]] = {}
    print(f"{precision}, {sizes}")
    for name in options.columns:
        same = [f"--{key}={value}" for key, value in sizes.items()]
        command = [sys.executable, __file__, "--only", name, "--precision", precision, *same]
        process = subprocess.run(command, capture_output=True, text=True, env=os.environ)
        if os.environ.get("PROFILE"):
            print(process.stderr[-20000:])
        if process.returncode:
            print(f"{name}: " + "\n".join(process.stderr.strip().splitlines()[-12:]))
            continue
        by_name[name] = json.loads(process.stdout.strip().splitlines()[-1])
        base = by_name.get("plain", by_name[name])["free_ms"]
        shown = "  ".join(f"{key} {value:.2f}" for key, value in by_name[name].items())
        print(f"{name:10} {by_name[name]['free_ms'] / base:6.3f} x plain   {shown}", flush=True)
    if options.json:
        with open(options.json, "a") as file:
            file.write(json.dumps({"precision": precision, **sizes, "columns": by_name}) + "\n")


if __name__ == "__main__":
    main()
