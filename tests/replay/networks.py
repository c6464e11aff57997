"""Doors for networks: the engine with its options and in users' loops, and `minimize` on modules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, TensorDataset

from isthmus import BatchMemoryManager, ModuleObjective, PrivacyEngine, algorithms, minimize
from isthmus.opacus_compat import PrivacyEngine as CompatEngine
from isthmus.opacus_compat.utils.batch_memory_manager import BatchMemoryManager as CompatManager
from replay.trials import ANYWHERE, ENDS, Rng, Trial, labels, numbers

N, BATCH, D, CLASSES, WORDS = 24, 8, 5, 3, 6
PLACES = (*ENDS, "middle")
Loss = Callable[[Tensor, Tensor], Tensor]


def _sum(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output, target, reduction="sum")


def _mlp(*between: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(D, 6), nn.ReLU(), *between, nn.Linear(6, CLASSES))


class Noisy(Dataset):
    """Random augmentation: every reading of a record adds other noise to it."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, k: int) -> tuple[Tensor, Tensor]:
        return self.x[k] + 0.1 * torch.randn(D), self.y[k]


@dataclass(frozen=True)
class Loop:
    """A user's training: a module, the options of the engine, and what the loop does with a batch."""

    make: Callable[[], nn.Module] = _mlp
    options: dict[str, Any] = field(default_factory=dict)
    step: Callable[[nn.Module, Tensor, Tensor], Tensor] = lambda module, x, y: _sum(module(x), y)
    engine: Callable[[], Any] = lambda: PrivacyEngine(ledger="training.ledger")
    dataset: Callable[[Tensor, Tensor], Dataset] = TensorDataset
    manager: Any = None
    epochs: int = 1
    budget: bool = False
    stop: bool = False
    """Whether the training is saved after an epoch and goes on from its file."""

    def __call__(self, data: tuple[Any, Any]) -> object:
        """Train; everything that is public of it."""
        x, y = torch.as_tensor(data[0], dtype=torch.float32), torch.as_tensor(data[1])
        run = self._begin(x, y)
        for epoch in range(self.epochs):
            if self.stop and epoch == 1:
                engine, module, optimizer, _ = run
                engine.save_checkpoint(path="training.checkpoint", module=module, optimizer=optimizer)
                engine.detach()
                run = self._begin(x, y, "other.ledger")
                run[0].load_checkpoint(path="training.checkpoint", module=run[1], optimizer=run[2])
            self._epoch(*run)
        engine, module, optimizer, loader = run
        torch.save(module.state_dict(), "module.pt")
        print(f"epsilon {engine.get_epsilon(1e-5)} after {sum(engine.ledger.rounds().values())} rounds")
        statement = engine.statement(1e-5)
        engine.detach()
        return module, optimizer.state_dict(), statement, len(loader), loader.sample_rate

    def _begin(self, x: Tensor, y: Tensor, ledger: str = "") -> tuple[Any, ...]:
        torch.manual_seed(0)
        engine, module = PrivacyEngine(ledger=ledger) if ledger else self.engine(), self.make()
        own: dict[str, Any] = {"target_epsilon": 2.0, "target_delta": 1e-5, "epochs": self.epochs}
        noise = own if self.budget else {"noise_multiplier": 1.0}
        make = engine.make_private_with_epsilon if self.budget else engine.make_private
        options = {"max_grad_norm": 1.0, "loss_reduction": "sum", **noise, **self.options}
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        loader = DataLoader(self.dataset(x, y), batch_size=BATCH)
        parts = make(module=module, optimizer=torch.optim.Adam(trained, lr=0.05), data_loader=loader, **options)
        return engine, *parts

    def _epoch(self, engine: Any, module: nn.Module, optimizer: Any, loader: Any) -> None:
        if self.manager is None:
            self._batches(module, optimizer, loader)
            return
        with self.manager(data_loader=loader, max_physical_batch_size=3, optimizer=optimizer) as cut:
            self._batches(module, optimizer, cut)

    def _batches(self, module: nn.Module, optimizer: Any, loader: Any) -> None:
        for x, y in loader:
            optimizer.zero_grad()
            self.step(module, x, y).backward()
            optimizer.step()


def _door(loop: Loop, places: tuple[str, ...] = (*PLACES, "replaced")) -> Callable[[Rng], Trial]:
    def trial(rng: Rng) -> Trial:
        X = numbers(rng, N, D)
        return Trial(loop, (X, labels(rng, X, CLASSES)), f"{loop.options}", places, counted=True)

    return trial


# ---------------------------------------------------------------- users' loops in which records meet


def _differentiated(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """A look at the slope of the output before the loss is."""
    x = x.clone().requires_grad_()
    output = module(x)
    torch.autograd.grad(output.sum(), x, retain_graph=True)
    return _sum(output, y)


def _adversarial(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Training on what a step along the slope of the loss makes of the records."""
    x = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(_sum(module(x), y), x)
    return _sum(module((x + 0.1 * slope.sign()).detach()), y)


def _centred(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The mean of the batch taken away between two parts of the module."""
    hidden = module[0](x)
    return _sum(module[2](torch.relu(hidden - hidden.mean(0))), y)


class Sentences(Dataset):
    """Words of sentences of different lengths, each with a label."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.rows = [(row[: 1 + int(k)], int(k) % CLASSES) for row, k in zip(x.long().abs() % WORDS, y, strict=True)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, k: int) -> tuple[Tensor, int]:
        return self.rows[k]


class Reader(nn.Module):
    """The mean of the words' vectors; or a guess for each word."""

    def __init__(self, each: bool = False) -> None:
        super().__init__()
        self.words, self.out, self.each = nn.Embedding(WORDS, 4), nn.Linear(4, CLASSES), each

    def forward(self, x: Tensor) -> Tensor:
        vectors = torch.tanh(self.words(x))
        return self.out(vectors if self.each else vectors.mean(1))


@dataclass(frozen=True)
class Padded(Loop):
    """Batches that are padded to their longest sentence."""

    def _begin(self, x: Tensor, y: Tensor, ledger: str = "") -> tuple[Any, ...]:
        torch.manual_seed(0)
        engine, module = self.engine(), self.make()
        loader = DataLoader(Sentences(x, y), batch_size=BATCH, collate_fn=_padded)
        parts = engine.make_private(
            module=module, optimizer=torch.optim.SGD(module.parameters(), lr=0.1), data_loader=loader,
            noise_multiplier=1.0, **{"max_grad_norm": 0.1, "loss_reduction": "sum", **self.options},
        )  # fmt: skip
        return engine, *parts


def _padded(rows: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    return pad_sequence([words for words, _ in rows], batch_first=True), torch.tensor([label for _, label in rows])


def _by_word(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The mean over the words that are no padding, of all sentences together."""
    right = torch.where(x > 0, y[:, None].expand(x.shape), -100)
    return F.cross_entropy(module(x).flatten(0, 1), right.flatten(), ignore_index=-100)


def _sentences(loop: Loop) -> Callable[[Rng], Trial]:
    """Short sentences, and one that is long."""

    def trial(rng: Rng) -> Trial:
        x = rng.integers(1, WORDS, (N, 12)).astype(float)
        lengths = rng.integers(0, 3, N)
        at = int(rng.integers(N))
        lengths[at] = 11
        return Trial(loop, (x, lengths), f"{loop.options}", pair=(at, None), counted=True)

    return trial


# ---------------------------------------------------------------- minimize


def _objective(make: Callable[[], nn.Module], counted: bool) -> Callable[[Rng], Trial]:
    """A network through a recipe."""

    def trial(rng: Rng) -> Trial:
        X = numbers(rng, N, D)
        kind, physical = str(rng.choice(["dp_gd", "dp_sgd", "dp_comp_gd"])), int(rng.choice([0, 5]))
        options: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-5, "clip": 1.0, "step": 0.5, "n": N}
        options |= {"batch_size": BATCH} if kind == "dp_sgd" else {"m": 7} if kind == "dp_comp_gd" else {}

        def run(data: tuple[Any, Any]) -> object:
            torch.manual_seed(0)
            x, y = torch.as_tensor(data[0], dtype=torch.float32), torch.as_tensor(data[1])
            problem = ModuleObjective(make(), F.cross_entropy, (x, y))
            recipe = getattr(algorithms, kind)(**options)
            result = minimize(problem, recipe, steps=3, progress=False, physical_batch_size=physical or None)
            return result, problem.layers.module

        return Trial(run, (X, labels(rng, X, CLASSES)), f"{kind}, physical={physical}", ANYWHERE)

    return trial


NETWORKS: dict[str, Callable[[Rng], Trial]] = {
    "loop plain": _door(Loop(epochs=2)),
    "loop mean": _door(Loop(options={"loss_reduction": "mean"}, step=lambda m, x, y: F.cross_entropy(m(x), y))),
    "loop dropout": _door(Loop(make=lambda: _mlp(nn.Dropout(0.5)), epochs=2), ("replaced",)),
    "loop augmented": _door(Loop(dataset=Noisy), ("replaced",)),
    "loop physical": _door(Loop(options={"max_physical_batch_size": 3}, epochs=2)),
    "loop memory manager": _door(Loop(manager=BatchMemoryManager, epochs=2)),
    "loop micro-batches": _door(Loop(options={"micro_batch_size": 2})),
    "loop per layer": _door(Loop(options={"clipping": "per_layer"})),
    "loop adaptive": _door(Loop(options={"clipping": "adaptive"}, epochs=2)),
    "loop budget": _door(Loop(budget=True)),
    "loop exact": _door(Loop(options={"precision": "exact"})),
    "loop secure mode": _door(Loop(engine=lambda: PrivacyEngine(secure_mode=True, accountant="rdp"))),
    "loop without replacement": _door(
        Loop(options={"poisson_sampling": False}, engine=lambda: PrivacyEngine(adjacency="replace-one")), ("replaced",)
    ),
    "loop resumed": _door(Loop(stop=True, epochs=2)),
    "loop compat": _door(Loop(engine=CompatEngine, manager=CompatManager)),
    "loop differentiated": _door(Loop(step=_differentiated)),
    "loop adversarial": _door(Loop(step=_adversarial)),
    "loop centred": _door(Loop(step=_centred)),
    "loop padded": _sentences(Padded(make=Reader)),
    "loop by word": _sentences(
        Padded(make=lambda: Reader(True), step=_by_word, options={"loss_reduction": "mean", "max_grad_norm": 1.5})
    ),
    "minimize network": _objective(_mlp, False),
    "minimize dropout": _objective(lambda: _mlp(nn.Dropout(0.5)), False),
}
