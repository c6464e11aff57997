"""Sketching a vector of 10^8 numbers: seconds, bytes/s and extra memory, beside a plain copy of the vector.

    python benchmarks/bench_countsketch.py [--d 100000000] [--m 100000] [--threads 2]

Every line is one child process.  Extra memory is the peak resident size above what was there before the call,
without the d-vector that an adjoint (or a copy) returns.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

from isthmus.geometry.sketches import SRHT, CountSketch

KINDS = {"CountSketch": CountSketch, "SRHT": SRHT}


def resident(field: str) -> int:
    """A memory figure of this process in bytes (VmRSS now, VmHWM at its peak)."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(field))


def timed(call: Callable[[], Tensor], repeats: int = 3) -> float:
    """The fastest of a few calls, in seconds."""
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best


def measure(kind: str, operation: str, dtype: torch.dtype, d: int, m: int) -> dict[str, float]:
    """Extra peak memory of the first call, then the fastest time."""
    vector = torch.ones(d, dtype=dtype)
    code = torch.ones(m, dtype=dtype)
    if kind == "clone":
        call: Callable[[], Tensor] = vector.clone
    else:
        sketch = KINDS[kind](m).draw(d, seed=1)
        call = {"forward": lambda: sketch.forward(vector), "adjoint": lambda: sketch.adjoint(code)}[operation]
    with open("/proc/self/clear_refs", "w") as clear:
        clear.write("5")
    before = resident("VmRSS")
    output = call()
    extra = resident("VmHWM") - before - (output.nbytes if output.numel() == d else 0)
    del output
    return {"seconds": timed(call), "extra": extra}


def child(kind: str, operation: str, dtype: str, arguments: argparse.Namespace) -> dict[str, float]:
    """One measurement in its own process."""
    sizes = ["--d", str(arguments.d), "--m", str(arguments.m), "--threads", str(arguments.threads)]
    command = [sys.executable, __file__, "--one", kind, operation, dtype, *sizes]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--d", type=int, default=10**8)
    parser.add_argument("--m", type=int, default=100_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.one:
        kind, operation, dtype = arguments.one
        print(json.dumps(measure(kind, operation, getattr(torch, dtype), arguments.d, arguments.m)))
        return
    print(f"d = {arguments.d:,}, m = {arguments.m:,}, {arguments.threads} threads")
    print(f"{'dtype':8} {'map':12} {'operation':10} {'seconds':>8} {'GB/s':>7} {'x clone':>8} {'extra MiB':>10}")
    for dtype in ("float32", "float64"):
        size = arguments.d * getattr(torch, dtype).itemsize
        copy = child("clone", "-", dtype, arguments)
        for kind, operation in [("clone", "-"), *((k, o) for k in KINDS for o in ("forward", "adjoint"))]:
            found = copy if kind == "clone" else child(kind, operation, dtype, arguments)
            seconds, ratio = found["seconds"], found["seconds"] / copy["seconds"]
            figures = f"{seconds:8.3f} {size / seconds / 1e9:7.2f} {ratio:8.1f} {found['extra'] / 2**20:10.0f}"
            print(f"{dtype:8} {kind:12} {operation:10} {figures}", flush=True)


if __name__ == "__main__":
    main()
