"""A private step of a network beside a plain one and Opacus' two modes: one way in each process, for its memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from isthmus.core.driver import Ticket
from isthmus.engine import PrivacyEngine
from isthmus.sketches import CountSketch, Kronecker, KroneckerSubspace, PublicSubspace
from lab.bench.cases import Goal, Growth, PeerBenchmark, Work, need
from lab.bench.models import BATCH, MODELS, batch

PLAIN, HOOKS, GHOST = "plain torch", "Opacus hooks", "Opacus ghost"
NONE, KRONECKER, COUNT = "no sketch", "Kronecker(32, 32)", "CountSketch(1000)"
LEARNED, SUBSPACE = "KroneckerSubspace(32, 32)", "PublicSubspace(50)"
SKETCHES: dict[str, Callable[[Any], Any]] = {
    NONE: lambda public: None,
    KRONECKER: lambda public: Kronecker(32, 32, refresh=20),
    COUNT: lambda public: CountSketch(1000),
    LEARNED: lambda public: KroneckerSubspace(32, 32, public, refresh=20),
    SUBSPACE: lambda public: PublicSubspace(50, public, refresh=10),
}


def opacus_parts(way: str, module: nn.Module, loader: Any, rate: float) -> tuple[Any, Any, Any]:
    """Module, optimiser and loss through Opacus; layers it does not take are replaced as it recommends."""
    need("opacus", "the extra bench")
    import opacus
    from opacus.validators import ModuleValidator

    module = ModuleValidator.fix(module)
    optimizer, loss = torch.optim.SGD(module.parameters(), lr=rate), nn.CrossEntropyLoss()
    settings: dict[str, Any] = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "poisson_sampling": False}
    if way == GHOST:
        settings |= {"criterion": loss, "grad_sample_mode": "ghost"}
    private_parts = opacus.PrivacyEngine().make_private(
        module=module, optimizer=optimizer, data_loader=loader, **settings
    )
    return private_parts[0], private_parts[1], private_parts[2] if way == GHOST else loss


def our_parts(module: nn.Module, loader: Any, rate: float, sketch: Any, **more: Any) -> tuple[Any, Any, Any, Any]:
    """Module, optimiser, loader and engine."""
    engine = PrivacyEngine()
    parts = engine.make_private(
        module=module, optimizer=torch.optim.SGD(module.parameters(), lr=rate), data_loader=loader,
        noise_multiplier=1.0, max_grad_norm=1.0, sketch=sketch, **more,
    )  # fmt: skip
    return (*parts, engine)


def step(way: str, module: nn.Module, x: Any, y: Any, public: Any = None, rate: float = 0.05) -> Callable[[], None]:
    """One step on one batch."""
    size, loss = len(x), nn.CrossEntropyLoss()
    loader = DataLoader(TensorDataset(torch.zeros(4 * size, 1), torch.zeros(4 * size)), batch_size=size)
    begin: Callable[[], Any] = lambda: None  # noqa: E731
    optimizer: Any
    if way == PLAIN:
        optimizer = torch.optim.SGD(module.parameters(), lr=rate)
    elif way in (HOOKS, GHOST):
        module, optimizer, loss = opacus_parts(way, module, loader, rate)
    else:
        more = {} if public is None else {"criterion": nn.functional.cross_entropy}
        module, optimizer, _, engine = our_parts(module, loader, rate, SKETCHES[way](public), **more)
        begin = lambda: engine.driver.begin(Ticket(size))  # noqa: E731

    def call() -> None:
        begin()
        optimizer.zero_grad()
        loss(module(x), y).backward()
        optimizer.step()

    return call


def build(way: str, quick: bool, model: str) -> Work:
    """A way of one model."""
    torch.manual_seed(0)
    public = batch(model, 60 if quick else 100, seed=9) if way in (LEARNED, SUBSPACE) else None
    call = step(way, MODELS[model](), *batch(model, 16 if quick else BATCH[model]), public)
    for _ in range(1 if quick else 3):
        call()
    return Work(call)


def wide_step(d: int) -> Work:
    """A private step of an MLP with two equal layers and about d weights."""
    torch.manual_seed(0)
    width = max(2, round((d / 2) ** 0.5))
    module = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
    g = torch.Generator().manual_seed(0)
    return Work(step(NONE, module, torch.randn(32, width, generator=g), torch.randint(0, width, (32,), generator=g)))


def batch_step(size: int) -> Work:
    """A private step of the MLP with a batch of this size."""
    torch.manual_seed(0)
    return Work(step(NONE, MODELS["mlp"](), *batch("mlp", size)))


def _goals(model: str) -> tuple[Goal, ...]:
    """What was asked for on a CPU."""
    ghost = Goal(
        GHOST,
        1.0,
        NONE,
        "noise is drawn in float64 under secret keys, twice the work of Opacus' float32 noise, and sums of clipped "
        "gradients are added so that their rounding is certain; on layers this small the products do not hide it",
    )
    kronecker = Goal(
        PLAIN, 1.0, KRONECKER, "the products of the codes are short, and the rounds that renew a sketch are counted in"
    )
    return {"mlp": (ghost, kronecker), "embedding": ()}.get(model, (ghost,))


TITLES = {
    "mlp": "one private step of a 784-1024-1024-10 MLP, batch 256",
    "cnn": "one private step of paper 004's CNN (d = 26,010), batch 250",
    "transformer": "one private step of a transformer, 6 layers of width 128, 64 positions, batch 64",
    "embedding": "one private step of a table of 50,000 words with a classifier, 128 words a text, batch 256",
}
OURS = {
    "mlp": (NONE, KRONECKER, LEARNED, SUBSPACE, COUNT),
    "cnn": (NONE, KRONECKER, LEARNED, SUBSPACE, COUNT),
    "transformer": (NONE, KRONECKER, COUNT),
    "embedding": (NONE, KRONECKER),
}
BENCHMARKS = (
    *(
        PeerBenchmark(
            f"step-{model}",
            title,
            partial(build, model=model),
            OURS[model],
            (PLAIN, GHOST) if model == "embedding" else (PLAIN, HOOKS, GHOST),
            _goals(model),
            apart=True,
            threads=0,
            rounds=25,
            seconds=30,
        )
        for model, title in TITLES.items()
    ),
    Growth(
        "grows-step-d",
        "a private step of an MLP with two equal layers, batch 32, no sketch",
        "d",
        wide_step,
        (10**3, 10**4, 10**5, 10**6, 10**7, 10**8),
        (10**3, 10**4),
        threads=0,
    ),
    Growth(
        "grows-step-batch",
        "a private step of the 784-1024-1024-10 MLP, no sketch",
        "batch",
        batch_step,
        (16, 64, 256, 1024, 4096),
        (4, 16),
        threads=0,
    ),
)
