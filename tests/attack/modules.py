"""Attacks on `PrivacyEngine.make_private`: a zoo of modules, every clipping, sketches, micro and physical batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from attack.cases import Case, size
from attack.data import SERIES, Rng, Series, spoilt, table
from attack.probes import Arrays, noise_seed
from isthmus import GradientEmbedding, KroneckerSubspace, PrivacyEngine, PublicSubspace
from isthmus.modules import GRU, LSTM, RNN
from isthmus.privacy import event_json
from isthmus.sketches import SRHT, Coordinates, CountSketch, GaussianSketch, Kronecker, PerLeaf, TensorSketch

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}
CLASSES, WORDS, STEPS = 3, 5, 4
DEVICE = "cpu"
"""Where modules are trained; `python -m attack --device cuda` changes it."""


class Mean(nn.Module):
    """The mean over positions."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


class First(nn.Module):
    """A layer that returns more than its output."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)[0]


class Attention(nn.Module):
    """Self-attention, then a mean."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.inner(x, x, x, need_weights=False)[0].mean(1))


class Tied(nn.Module):
    """An embedding and an output layer of one table."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(WORDS, 4), nn.Linear(4, WORDS, bias=False)
        self.out.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.words(x)).mean(1))


class Bare(nn.Module):
    """Bare parameters: a layer without a rule."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(3, 6) / 3), nn.Parameter(torch.randn(CLASSES, 3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x @ self.a.T) @ self.b.T


class Idle(nn.Module):
    """A layer that takes no part, one that does for some batches, by a count that the data do not move."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.block, self.never = nn.Linear(6, 5), nn.Linear(5, 5), nn.Linear(5, 2)
        self.last, self.passes = nn.Linear(5, CLASSES), 0

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x))
        self.passes += self.training
        return self.last(h + self.block(h) if self.passes % 2 else h)


def flat() -> nn.Module:
    """The last layer, of any width."""
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(CLASSES))


# name -> (module, shape of an input; None for words)
ZOO: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...] | None]] = {
    "linear": (lambda: nn.Linear(3, 1, bias=False), (3,)),
    "mlp": (lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, CLASSES)), (6,)),
    "wide": (lambda: nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, CLASSES, bias=False)), (6,)),
    "sequence": (lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(), Mean(), nn.Linear(5, CLASSES)), (STEPS, 4)),
    "conv": (lambda: nn.Sequential(nn.Conv2d(1, 3, 3, stride=2), nn.ReLU(), flat()), (1, 6, 6)),
    "groups": (lambda: nn.Sequential(nn.Conv2d(2, 4, 2, groups=2, padding=1), nn.ReLU(), flat()), (2, 4, 4)),
    "conv1d": (lambda: nn.Sequential(nn.Conv1d(2, 3, 2, dilation=2), nn.ReLU(), flat()), (2, 6)),
    "norms": (lambda: nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, CLASSES)), (6,)),
    "group-norm": (lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), flat()), (1, 5, 5)),
    "embedding": (lambda: nn.Sequential(nn.Embedding(WORDS, 4), Mean(), nn.Linear(4, CLASSES)), None),
    "tied": (Tied, None),
    "attention": (Attention, (STEPS, 4)),
    "rnn": (lambda: nn.Sequential(First(RNN(3, 4, batch_first=True)), Mean(), nn.Linear(4, CLASSES)), (STEPS, 3)),
    "gru": (lambda: nn.Sequential(First(GRU(3, 4, batch_first=True)), Mean(), nn.Linear(4, CLASSES)), (STEPS, 3)),
    "lstm": (lambda: nn.Sequential(First(LSTM(3, 4, batch_first=True)), Mean(), nn.Linear(4, CLASSES)), (STEPS, 3)),
    "custom": (Bare, (6,)),
    "idle": (Idle, (6,)),
}
SKETCHES: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "kronecker": lambda: Kronecker(2, 2),
    "count": lambda: CountSketch(3),
    "gaussian": lambda: GaussianSketch(3),
    "srht": lambda: SRHT(3),
    "tensor": lambda: TensorSketch(3),
    "coordinates": lambda: Coordinates(3),
    "per-leaf": lambda: PerLeaf(CountSketch(0.5)),
    "public": lambda: PublicSubspace(2),
    "public-before": lambda: PublicSubspace(2, clip="before"),
    "kronecker-public": lambda: KroneckerSubspace(2, 2),
    "embedding": lambda: GradientEmbedding(PublicSubspace(2), clip_rest=0.1),
    "embedding-kronecker": lambda: GradientEmbedding(KroneckerSubspace(2, 2), clip_rest=0.1),
}


def draw(rng: Rng, most: int) -> Case:
    """A module, its data and the options of the engine."""
    name, dtype = str(rng.choice(list(ZOO))), str(rng.choice(list(DTYPES), p=[0.65, 0.25, 0.1]))
    kind = str(rng.choice(list(SERIES)))
    n = size(rng, min(most, 4096) if name in ("linear", "mlp") else 256, kind)
    n = min(n, 64) if rng.random() < 0.7 else n
    options = _options(rng, n)
    series = SERIES[kind](rng, n).times(options["max_grad_norm"] if rng.random() < 0.5 else 1.0)
    arrays = _data(rng, name, series)
    bad = ZOO[name][1] is not None and rng.random() < 0.3
    if bad:
        arrays["x"] = spoilt(rng, arrays["x"], series.at)
    reduction = str(rng.choice(["mean", "sum"]))
    weights = float(rng.choice([0.0, 1.0, 1.0, 1.0, 100.0]))
    sketch = str(rng.choice(list(SKETCHES))) if rng.random() < 0.5 else "none"
    rounds, fork = int(rng.integers(1, 3)), int(rng.integers(1 << 30))

    def train(given: Arrays) -> object:
        module = built(*ZOO[name], weights).to(DEVICE, DTYPES[dtype])
        return _loop(module, name, given, rounds, reduction, {**options, "sketch": SKETCHES[sketch]()}, min(n, 64))

    facts = {"n": n, "dtype": dtype, "data": kind, "spoilt": bad, "loss": reduction, "weights": weights}
    facts |= {"sketch": sketch, "rounds": rounds, **options}
    label = f"{name}: " + ", ".join(f"{k}={v}" for k, v in facts.items())
    free = () if ZOO[name][1] is None else ("x", "y") if name == "linear" else ("x",)
    share = float(rng.choice([1.0, 0.9]))
    other = None
    if reduction == "mean":  # divides by the size of the batch: with one size, see `shapes` for what it does else
        place = int(rng.integers(len(arrays["y"])))
        other = {key: values[place] if key == "y" else -values[series.at] for key, values in arrays.items()}
        other["x"] = other["x"] if free else arrays["x"][place]
    return Case(f"engine {name}", label, arrays, series.at, train, free, fork, share, other)


def _options(rng: Rng, n: int) -> dict[str, Any]:
    kind = rng.integers(6)
    bound = float(rng.choice([1.0, 1.0, 0.3, 1e-6, 1e4]))
    options: dict[str, Any] = {"max_grad_norm": bound, "noise_multiplier": 1.0}
    if kind == 0:
        options["clipping"] = "per_layer"
    elif kind == 1:
        options["clipping"] = "adaptive"
    elif kind == 2:
        options["micro_batch_size"] = int(rng.integers(2, 6))
    elif kind == 3:
        options["max_physical_batch_size"] = max(1, n // int(rng.integers(2, 5)))
    elif kind == 4:
        options["scale"] = float(rng.choice([2.0**-3, 3.0, 2.0**10]))  # of a GradScaler
    return options


def _data(rng: Rng, name: str, series: Series) -> dict[str, np.ndarray]:
    shape, n = ZOO[name][1], len(series.values)
    if shape is None:
        x: np.ndarray = rng.integers(0, WORDS, (n, STEPS * int(rng.choice([1, 8]))))
        return {"x": np.where(rng.random(n)[:, None] < 0.5, x, x[:, :1]), "y": rng.integers(0, CLASSES, n)}
    if name == "linear" and rng.random() < 0.7:
        return {"x": np.eye(3)[np.zeros(n, int)], "y": series.values / 2}
    x = table(rng, series, int(np.prod(shape))).reshape(n, *shape)
    if rng.random() < 0.4:
        x = rng.standard_normal(x.shape)
    y = series.values if name == "linear" else rng.integers(0, CLASSES, n)
    return {"x": x, "y": y}


def built(build: Callable[[], nn.Module], shape: tuple[int, ...] | None, weights: float = 1.0) -> nn.Module:
    """A module of the zoo, its weights times a factor."""
    torch.manual_seed(5)
    module = build()
    with torch.no_grad():  # lazy layers learn their sizes
        module(inputs(1, shape))
        for parameter in module.parameters():
            parameter *= weights
    return module


def inputs(n: int, shape: tuple[int, ...] | None, generator: torch.Generator | None = None) -> Tensor:
    """Drawn examples for a module of the zoo: words where it has no shape."""
    if shape is None:
        return torch.randint(0, WORDS, (n, STEPS), generator=generator)
    return torch.randn(n, *shape, generator=generator)


def _loop(
    module: nn.Module, name: str, given: Arrays, rounds: int, reduction: str, options: dict[str, Any], batch: int
) -> object:
    dtype = next(module.parameters()).dtype
    x, y = torch.from_numpy(given["x"]), torch.from_numpy(given["y"])
    x = x.to(dtype) if x.is_floating_point() else x
    regression = name == "linear"
    if regression:  # a mean's outputs are handed on in float32 at least, and torch wants targets of their kind
        y = y.to(torch.promote_types(dtype, torch.float32) if reduction == "mean" else dtype)[:, None]

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return (F.mse_loss if regression else F.cross_entropy)(output, target, reduction=reduction)

    generator = torch.Generator().manual_seed(1)
    real = x.is_floating_point()
    public = torch.randn(6, *x.shape[1:], generator=generator).to(dtype) if real else x.new_zeros(6, 2)
    target = torch.zeros(6, 1, dtype=dtype) if regression else torch.arange(6) % CLASSES
    engine, scale = PrivacyEngine(seed=3), options.pop("scale", None)
    scaler = torch.amp.GradScaler(DEVICE, init_scale=scale or 1.0, enabled=scale is not None)
    module, optimizer, loader = engine.make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
        data_loader=DataLoader(TensorDataset(x, y), batch_size=min(batch, len(x))),
        criterion=loss,
        loss_reduction=reduction,
        noise_generator=None if noise_seed() is None else torch.Generator().manual_seed(2),
        public=(public.to(DEVICE), target.to(DEVICE)),
        normaliser=10.0,
        grad_scaler=scaler,
        **options,
    )
    try:
        taken = 0
        while taken < rounds:
            for inputs, targets in loader:
                scaler.scale(loss(module(inputs.to(DEVICE)), targets.to(DEVICE))).backward()
                scaler.step(optimizer)
                taken += engine.driver.state.t > taken  # type: ignore[union-attr]
                if taken >= rounds:
                    break
        return module.state_dict(), optimizer.state_dict(), event_json.to_json(engine.ledger.event())
    finally:
        engine.detach()
