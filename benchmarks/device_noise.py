"""Milliseconds of the noise of d numbers, beside the forward pass of a network with d weights.

    python benchmarks/device_noise.py [--sizes 100000000 1000000000] [--device cuda] [--batch 4096]

Rows: ChaCha20 in one pass (what `FastSource` does on a GPU with Triton), torch's generator under two keys a chunk (what
it does without), under one key (what it did before), float32 `torch.randn` with an add (no defence at all); the
forward pass of an MLP 1024-w-w-w-w-10 with about d weights in TF32 and in bfloat16.  Medians; peak memory beyond the
vector itself.  On the CPU: `FastSource` and the forward pass.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor, nn

from isthmus.privacy import FastSource
from isthmus.privacy import noise as sources


def one_key(out: Tensor) -> None:
    """Float64 normals under one key a chunk, as before."""
    for part in sources.pieces(out):
        part.copy_(sources._torch_normal(sources._keyed(part.device), len(part)).add_(part))


def plain(out: Tensor) -> None:
    """Float32 normals of torch's default generator."""
    out.add_(torch.randn_like(out))


def network(d: int, device: str) -> nn.Module:
    """An MLP with about d weights."""
    width = int((-1034 + math.sqrt(1034**2 + 12 * d)) / 6)
    sizes = [1024, *[width] * 4]
    hidden = [
        layer
        for a, b in zip(sizes, sizes[1:], strict=False)
        for layer in (nn.Linear(a, b, device=device), nn.ReLU(inplace=True))
    ]
    return nn.Sequential(*hidden, nn.Linear(width, 10, device=device))


def timed(call: Callable[[], object], device: str, times: int) -> tuple[float, float]:
    """(median milliseconds, peak mebibytes beyond what was there)."""
    call()
    taken, before = [], 0
    if device == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
    for _ in range(times):
        begin = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        taken.append(1000 * (time.perf_counter() - begin))
    peak = (torch.cuda.max_memory_allocated() - before) / 2**20 if device == "cuda" else float("nan")
    return median(taken), peak


def noises(out: Tensor, device: str, times: int) -> list[tuple[str, float, float]]:
    """What the noise of a vector costs, drawn in every way."""
    ways: dict[str, Callable[[Tensor], None]] = {"FastSource": lambda out: FastSource().add_normal(out, 1.0)}
    if device == "cuda":
        print("ChaCha20:", sources._generator_of(out.device) is not None)
        ways["two keys"] = lambda out: sources._add_there(out, 1.0, None)
        ways |= {"one key": one_key, "float32 randn": plain}
    return [(name, *timed(functools.partial(way, out), device, times)) for name, way in ways.items()]


@torch.no_grad()
def rows(d: int, device: str, batch: int, times: int) -> list[dict[str, object]]:
    """All rows of one size."""
    found = noises(torch.zeros(d, device=device), device, times)
    module, x = network(d, device), torch.randn(batch, 1024, device=device)
    found.append(("forward, TF32" if device == "cuda" else "forward", *timed(lambda: module(x), device, times)))
    if device == "cuda":
        with torch.autocast("cuda", torch.bfloat16):
            found.append(("forward, bfloat16", *timed(lambda: module(x), device, times)))
    return [{"d": d, "what": name, "ms": ms, "MiB": peak} for name, ms, peak in found]


def main() -> None:
    """Print every row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="*", default=[10**8, 10**9])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--times", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    for d in arguments.sizes:
        for row in rows(d, arguments.device, arguments.batch, arguments.times):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
