"""Private steps and noise on a GPU beside plain training, Opacus' ghost clipping and torch's own normals.

Skipped where there is no CUDA device; a quick run has small sizes, and takes whatever device there is.  A call is
several steps without waiting, as a training loop runs.  The most wanted come first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from isthmus.privacy import FastSource
from isthmus.privacy.noise import pieces, two_keys
from lab.bench.cases import Goal, PeerBenchmark, Work
from lab.bench.gauges import DEVICE, GIB, gauged
from lab.bench.models import Gpt, wide
from lab.bench.networks import KRONECKER16, KRONECKER64, LAYERS, Network, network
from lab.bench.steps import GHOST, NONE, PLAIN

FAST, TWO_KEYS, TORCH = "FastSource", "torch's generator, two keys", "torch.randn"
FORWARDS = {"forward pass, TF32": False, "forward pass, bfloat16": True}
SHAPES = {"": (16, 512), "-64": (64, 512), "-1": (1, 512), "-long": (4, 2048)}
"""Texts of a batch and their tokens, by the end of a contest's name."""
TOGETHER = {"": "gpt-16", "-64": "gpt-64-1", "-1": "gpt-64-1", "-long": "gpt-long"}
"""Which of them are measured with one network: to try it out takes longer than all else."""
PRECISIONS = {"tf32": "TF32", "bf16": "bfloat16 autocast"}


def _step(net: Network, run: Callable[[], Tensor], batch: int) -> Callable[[], None]:
    """A step of a network; `run` is the forward pass with its loss."""

    def step() -> None:
        net.begin(batch)
        net.optimizer.zero_grad(set_to_none=True)
        run().backward()
        net.optimizer.step()

    return step


def mlp(way: str, quick: bool, width: int) -> Work:
    """A step of an MLP, TF32 products for everybody."""
    torch.backends.cuda.matmul.allow_tf32 = True
    width, batch = (width // 64, 64) if quick else (width, 4096)
    net = network(way, partial(wide, width), nn.CrossEntropyLoss(), batch)
    x, y = torch.randn(batch, 1024, device=DEVICE), torch.randint(0, 10, (batch,), device=DEVICE)
    return gauged(_step(net, lambda: net.loss(net.module(x), y), batch), quick, net.runs)


def gpt(way: str, quick: bool, precision: str, batch: int, tokens: int) -> Work:
    """A step of a GPT; the loss is the mean over examples of the mean over tokens."""
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    words, width, layers = (200, 64, 2) if quick else (50_257, 768, 12)
    batch, tokens = (min(batch, 8), tokens // 32) if quick else (batch, tokens)
    net = network(way, partial(Gpt, words, width, layers, tokens), nn.CrossEntropyLoss(), batch)
    x, y = (torch.randint(0, words, (batch, tokens), device=DEVICE) for _ in range(2))
    shape: dict[str, Any] = {"shape": (batch, tokens)} if way == GHOST else {}

    def run() -> Tensor:
        with torch.autocast(DEVICE, torch.bfloat16) if precision == "bf16" else nullcontext():
            value: Tensor = net.loss(net.module(x).flatten(0, 1), y.flatten(), **shape)
        return value

    return gauged(_step(net, run, batch), quick, net.runs)


@torch.no_grad()
def noise(way: str, quick: bool, size: int) -> Work:
    """Noise added to a vector; beside it the forward pass of an MLP with as many weights."""
    torch.backends.cuda.matmul.allow_tf32 = True
    size = 10**5 if quick else size
    call: Callable[[], object]
    if way in FORWARDS:
        width = int((-1034 + math.sqrt(1034**2 + 12 * size)) / 6)
        with torch.device(DEVICE):
            module, x = wide(width).requires_grad_(False), torch.randn(64 if quick else 4096, 1024)

        def call() -> None:
            with torch.autocast(DEVICE, torch.bfloat16, enabled=FORWARDS[way]):
                module(x)

    else:
        out, source = torch.zeros(size, device=DEVICE), FastSource()
        call = {
            FAST: lambda: source.add_normal(out, 1.0),
            TWO_KEYS: lambda: [part.copy_(two_keys(part).add_(part)) for part in pieces(out)],
            TORCH: lambda: out.add_(torch.randn_like(out)),
        }[way]
    return gauged(call, quick, beyond=True)


def _gpt_goals(plain: tuple[float, float, float]) -> tuple[Goal, ...]:
    """Against plain: no sketch, per-layer clipping, Kronecker; memory; and 1.5 times faster than ghost clipping."""
    causes = (
        "sums of clipped gradients are exact float32 products, which plain training does not pay for",
        "gradients of single examples are written once and read twice (for their norms and for their sum), and in "
        "bfloat16 a mean loss needs the outputs in float32, whose softmax takes twice as long",
        "plain products in this precision are so fast that the fixed work of a step shows",
    )
    beside = zip((NONE, LAYERS, KRONECKER16), plain, causes, strict=True)
    times = (Goal(PLAIN, most, way, cause) for way, most, cause in beside)
    return (*times, Goal(GHOST, 1 / 1.5), Goal(PLAIN, 1.3, fact=GIB))


def _mlp_goals(kronecker: float, cause: str) -> tuple[Goal, ...]:
    none = Goal(PLAIN, 1.5, NONE, "sums of clipped gradients are exact float32 products, plain ones are TF32")
    return none, Goal(PLAIN, kronecker, KRONECKER64, cause)


def _gpt(precision: str, end: str, goals: tuple[Goal, ...] = ()) -> PeerBenchmark:
    (batch, tokens), words = SHAPES[end], PRECISIONS[precision]
    return PeerBenchmark(
        f"device-gpt-{precision}{end}",
        f"a private step of a GPT (12 layers, 768 wide, 50,257 words, {tokens:,} tokens, batch {batch}), {words}",
        partial(gpt, precision=precision, batch=batch, tokens=tokens),
        (NONE, LAYERS, KRONECKER16),
        (PLAIN, GHOST),
        goals,
        device=True,
        shares=TOGETHER[end],
        threads=0,
        rounds=5,
        seconds=6,
    )


def _mlp(end: str, width: int, size: str, goals: tuple[Goal, ...]) -> PeerBenchmark:
    return PeerBenchmark(
        f"device-mlp{end}",
        f"a private step of an MLP 1024-{width}-{width}-{width}-{width}-10 (d = {size}), batch 4096, TF32",
        partial(mlp, width=width),
        (NONE, KRONECKER64),
        (PLAIN, GHOST),
        goals,
        device=True,
        threads=0,
        rounds=5,
        seconds=6,
    )


def _noise(end: str, size: int, words: str) -> PeerBenchmark:
    return PeerBenchmark(
        f"device-noise{end}",
        f"normal noise added to {words} float32 numbers; the forward pass of an MLP with as many weights, batch 4096",
        partial(noise, size=size),
        (FAST,),
        (*FORWARDS, TORCH, TWO_KEYS),
        device=True,
        threads=0,
        rounds=5,
        seconds=6,
    )


BENCHMARKS = (
    _gpt("tf32", "", _gpt_goals((1.5, 1.25, 0.9))),
    _gpt("bf16", "", _gpt_goals((1.7, 1.25, 1.05))),
    _mlp(
        "",
        8192,
        "210 million",
        _mlp_goals(
            0.6,
            "two of the three products of a plain step are needed too and take 8.7 ms, half of it; codes, norms "
            "and the way back take 1.4 ms; plain steps have become faster (18.4 ms when this was asked)",
        ),
    ),
    _noise("", 10**8, "10^8"),
    *(_gpt(precision, end) for end in ("-64", "-1") for precision in PRECISIONS),
    _mlp(
        "-billion",
        18_000,
        "10^9",
        _mlp_goals(0.58, "two of the three products of a plain step are needed too, and are half of it or more"),
    ),
    _noise("-billion", 10**9, "10^9"),
    *(_gpt(precision, "-long") for precision in PRECISIONS),
)
LABELS = {
    f"device-gpt-{precision}{end}": f"{words}, batch {batch}" + ("" if tokens == 512 else f", {tokens:,} tokens")
    for end, (batch, tokens) in SHAPES.items()
    for precision, words in PRECISIONS.items()
} | {"device-mlp": "d = 210 million", "device-mlp-billion": "d = 10^9"}
LABELS |= {"device-noise": "10^8", "device-noise-billion": "10^9"}
"""What a table of one family calls its rows."""
