"""Private steps and noise on a GPU beside plain training, Opacus' ghost clipping and torch's own normals.

Skipped where there is no CUDA device.  A call is several steps without waiting, as a training loop runs.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from isthmus.bench.cases import Contest, Goal, Work, need
from isthmus.bench.models import Gpt, wide
from isthmus.bench.steps import GHOST, NONE, PLAIN, our_parts
from isthmus.geometry.sketches import Kronecker
from isthmus.privacy import FastSource
from isthmus.round.torch_loop import Ticket

LAYERS, STEPS, WARM = "per-layer clipping", 10, 24
KRONECKER16, KRONECKER64 = "Kronecker(16, 16)", "Kronecker(64, 64)"


def _measured(step: Callable[[], None], quick: bool) -> Work:
    """Several steps without waiting; memory and a recorded step have come to rest before."""
    steps = 2 if quick else STEPS

    def call() -> None:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()

    for _ in range(3 if quick else WARM):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    return Work(call, lambda: {"peak GiB": torch.cuda.max_memory_allocated() / 2**30}, steps)


def _private(way: str, module: nn.Module, batch: int) -> tuple[Any, Callable[[], Any]]:
    """Our optimiser, and what hands out a ticket for a batch."""
    data = TensorDataset(torch.zeros(64 * batch, 1), torch.zeros(64 * batch))
    sketches = {KRONECKER16: Kronecker(16, 16), KRONECKER64: Kronecker(64, 64, refresh=200)}
    more: dict[str, Any] = {"clipping": "per_layer"} if way == LAYERS else {}
    loader = DataLoader(data, batch_size=batch)
    _, optimizer, _, engine = our_parts(module, loader, 0.01, sketches.get(way), **more)
    return optimizer, lambda: engine.driver.begin(Ticket(batch))


def _ghost(module: nn.Module, criterion: Any, batch: int) -> tuple[Any, Any, Any]:
    """Module, optimiser and criterion of Opacus' ghost clipping."""
    need("opacus", "the extra bench")
    import opacus

    data = TensorDataset(torch.zeros(64 * batch, 1), torch.zeros(64 * batch))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    module, optimizer, criterion, _ = opacus.PrivacyEngine().make_private(
        module=module, optimizer=optimizer, criterion=criterion, data_loader=DataLoader(data, batch_size=batch),
        noise_multiplier=1.0, max_grad_norm=1.0, poisson_sampling=False, grad_sample_mode="ghost",
    )  # fmt: skip
    return module, optimizer, criterion


def mlp(way: str, quick: bool) -> Work:
    """A step of the MLP with d = 210 million, TF32 products for everybody."""
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.manual_seed(0)
    width, batch = (256, 64) if quick else (8192, 4096)
    module, loss = wide(width).cuda(), nn.CrossEntropyLoss()
    x, y = torch.randn(batch, 1024, device="cuda"), torch.randint(0, 10, (batch,), device="cuda")
    optimizer: Any = torch.optim.SGD(module.parameters(), lr=0.01)
    begin: Callable[[], Any] = lambda: None  # noqa: E731
    if way == GHOST:
        module, optimizer, loss = _ghost(module, loss, batch)
    elif way != PLAIN:
        optimizer, begin = _private(way, module, batch)

    def step() -> None:
        begin()
        optimizer.zero_grad(set_to_none=True)
        loss(module(x), y).backward()
        optimizer.step()

    return _measured(step, quick)


def gpt(way: str, quick: bool, precision: str) -> Work:
    """A step of a GPT; the loss is the mean over examples of the mean over tokens."""
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.manual_seed(0)
    words, width, layers, tokens, batch = (500, 128, 2, 32, 4) if quick else (50_257, 768, 12, 512, 16)
    module: Any = Gpt(words, width, layers, tokens).cuda()
    x, y = (torch.randint(0, words, (batch, tokens), device="cuda") for _ in range(2))
    optimizer: Any = torch.optim.SGD(module.parameters(), lr=0.01)
    begin: Callable[[], Any] = lambda: None  # noqa: E731

    def loss(output: Tensor, target: Tensor) -> Any:
        return F.cross_entropy(output.flatten(0, 1), target.flatten())

    if way == GHOST:
        module, optimizer, criterion = _ghost(module, nn.CrossEntropyLoss(reduction="mean"), batch)

        def loss(output: Tensor, target: Tensor) -> Any:
            return criterion(output.reshape(-1, words), target.reshape(-1), shape=(batch, tokens))

    elif way != PLAIN:
        optimizer, begin = _private(way, module, batch)

    def step() -> None:
        begin()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16) if precision == "bf16" else nullcontext():
            value = loss(module(x), y)
        value.backward()
        optimizer.step()

    return _measured(step, quick)


@torch.no_grad()
def noise(way: str, quick: bool) -> Work:
    """Noise of 10^8 numbers, added to a vector; beside it the forward pass of a network with as many weights."""
    out = torch.zeros(10**5 if quick else 10**8, device="cuda")
    source, width = FastSource(), 64 if quick else 5600
    module, x = wide(width).cuda().requires_grad_(False), torch.randn(4096, 1024, device="cuda")
    torch.backends.cuda.matmul.allow_tf32 = True
    ways: dict[str, Callable[[], Any]] = {
        "FastSource": lambda: source.add_normal(out, 1.0),
        "torch.randn": lambda: out.add_(torch.randn_like(out)),
        "forward pass, batch 4096": lambda: module(x),
    }
    return _measured(ways[way], quick)


def _gpt_goals(plain: tuple[float, float, float]) -> tuple[Goal, ...]:
    """Against plain: no sketch, per-layer clipping, Kronecker; and all of them 1.5 times faster than ghost clipping."""
    causes = (
        "sums of clipped gradients are exact float32 products, which plain training does not pay for",
        "gradients of single examples are written once and read twice (for their norms and for their sum), and in "
        "bfloat16 a mean loss needs the outputs in float32, whose softmax takes twice as long",
        "plain products in this precision are so fast that the fixed work of a step shows",
    )
    beside = zip((NONE, LAYERS, KRONECKER16), plain, causes, strict=True)
    return (*(Goal(PLAIN, most, way, cause) for way, most, cause in beside), Goal(GHOST, 1 / 1.5))


BENCHMARKS = (
    Contest(
        "device-mlp",
        "a private step of an MLP 1024-8192-8192-8192-8192-10 (d = 210 million), batch 4096, TF32",
        mlp,
        (NONE, KRONECKER64),
        (PLAIN, GHOST),
        (
            Goal(PLAIN, 1.5, NONE, "sums of clipped gradients are exact float32 products, plain ones are TF32"),
            Goal(
                PLAIN,
                0.6,
                KRONECKER64,
                "two of the three products of a plain step are needed too and take 8.7 ms, half of it; codes, norms "
                "and the way back take 1.4 ms; plain steps have become faster (18.4 ms when this was asked)",
            ),
        ),
        apart=True,
        device=True,
    ),
    *(
        Contest(
            f"device-gpt-{precision}",
            f"a private step of a GPT (12 layers, 768 wide, 50,257 words, 512 tokens, batch 16), {words}",
            partial(gpt, precision=precision),
            (NONE, LAYERS, KRONECKER16),
            (PLAIN, GHOST),
            _gpt_goals(most),
            apart=True,
            device=True,
        )
        for precision, words, most in (
            ("tf32", "TF32", (1.5, 1.25, 0.9)),
            ("bf16", "bfloat16 autocast", (1.7, 1.25, 1.05)),
        )
    ),
    Contest(
        "device-noise",
        "normal noise added to 10^8 float32 numbers",
        noise,
        ("FastSource",),
        ("torch.randn", "forward pass, batch 4096"),
        device=True,
    ),
)
