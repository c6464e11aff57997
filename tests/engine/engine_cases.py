"""Small private trainings, and the slow, plain loop they must equal: vmap(grad), clip, add, noise, lift, step."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils.data import DataLoader, Dataset

from isthmus import PrivacyEngine
from isthmus.core.driver import Ticket
from isthmus.gradients.rounding import KAPPA
from isthmus.privacy import GeneratorSource
from isthmus.sketches.selection import SelectionMap

N, BATCH, CLASSES, SEED = 40, 10, 3, 11
Z, C = 0.8, 0.3


class Indexed(Dataset):
    """Records that say which they are."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[int, Tensor, Tensor]:
        return i, self.x[i], self.y[i]


def numbered(x: Tensor) -> Indexed:
    """Records of three classes in turn."""
    return Indexed(x, torch.arange(len(x)) % 3)


def mlp(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, CLASSES)).to(dtype)


def cnn(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(2)
    layers = [nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(inplace=True), nn.GroupNorm(2, 4), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(16, CLASSES)).to(dtype)


MODELS = {"mlp": mlp, "cnn": cnn}


def data(kind: str = "mlp", n: int = N, seed: int = 5, dtype: torch.dtype = torch.float64) -> Indexed:
    g = torch.Generator().manual_seed(seed)
    shape = (n, 6) if kind == "mlp" else (n, 1, 6, 6)
    x = torch.randn(shape, generator=g, dtype=torch.float64).to(dtype)
    return Indexed(x, torch.randint(0, CLASSES, (n,), generator=g))


def loader(dataset: Dataset, batch: int = BATCH, **options: Any) -> DataLoader:
    return DataLoader(dataset, batch_size=batch, **options)


@dataclass
class Trained:
    """What a private loop did: the batches it saw and the rounds it closed."""

    engine: PrivacyEngine
    module: nn.Module
    optimizer: torch.optim.Optimizer
    loader: Any
    batches: list[list[int]] = field(default_factory=list)
    rounds: list[Any] = field(default_factory=list)
    maps: list[dict[str, Tensor]] = field(default_factory=list)


def private(module: nn.Module, dataset: Dataset, **options: Any) -> Trained:
    """A module made private, with the noise of a seed unless said otherwise."""
    seeded = {"noise_generator": torch.Generator().manual_seed(SEED), "criterion": F.cross_entropy}
    make = options.pop("optimizer", lambda p: torch.optim.SGD(p, lr=0.5))
    engine = options.pop("engine", None) or PrivacyEngine(seed=3)
    batches = loader(dataset, options.pop("batch", BATCH), **options.pop("loading", {}))
    arguments: dict[str, Any] = {"noise_multiplier": Z, "max_grad_norm": C} | seeded | options
    if "target_epsilon" in arguments:
        del arguments["noise_multiplier"]
    call = engine.make_private_with_epsilon if "target_epsilon" in arguments else engine.make_private
    optimizer = make([p for p in module.parameters() if p.requires_grad])
    trained = Trained(engine, *call(module=module, optimizer=optimizer, **{"data_loader": batches} | arguments))

    def observe(round: Any) -> None:
        trained.rounds.append(round)
        linear = {slot: x for slot, x in round.sketches.items() if not slot.endswith("below")}
        trained.maps.append({slot: x.dense() for slot, x in linear.items()})

    assert engine.driver is not None
    engine.driver.observers.append(observe)
    return trained


def train(run: Trained, epochs: int = 2, loss: Callable[..., Tensor] = F.cross_entropy) -> Trained:
    """The user's loop."""
    for _ in range(epochs):
        for i, x, y in run.loader:
            run.batches.append(i.tolist())
            run.optimizer.zero_grad()
            step(run, x, y, loss)
    return run


def step(run: Any, x: Tensor, y: Tensor, loss: Callable[..., Tensor] = F.cross_entropy) -> None:
    """One batch of the user's loop."""
    loss(run.module(x), y).backward()
    run.optimizer.step()


def first(run: Any) -> tuple[Tensor, Tensor]:
    """The first batch of an epoch."""
    _, x, y = next(iter(run.loader))
    return x, y


def sums(engine: PrivacyEngine, loss: Callable[[], Tensor], n: int, groups: Tensor | None = None) -> dict[str, Any]:
    """The bounded sums of one batch, as they would be handed to the mechanisms."""
    driver = engine.driver
    assert driver is not None
    driver.begin(Ticket(n, groups=groups))
    loss().backward()
    driver._finish_backward()
    assert driver._sum is not None
    found = {name: replace(bounded, value=bounded.value.clone()) for name, bounded in driver._sum.values.items()}
    driver.forget()
    return found


# ---------------------------------------------------------------- the reference


def per_example(module: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """The gradient of every example and parameter, by torch.func alone."""
    weights = {name: p.detach() for name, p in module.named_parameters()}
    plain = copy.deepcopy(module)
    for part in plain.modules():
        part.inplace = False  # torch.func takes no in-place activations

    def one(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(plain, weights, (x[None],)), y[None])

    if not len(x):
        return {name: p.new_zeros(0, *p.shape) for name, p in weights.items()}
    return vmap(grad(one), (None, 0, 0))(weights, x, y)


def flat(gradients: dict[str, Tensor], names: list[str]) -> list[Tensor]:
    """Per leaf [W | c], the rows of the examples, flat."""
    leaves = []
    for name in names:
        weight, bias = gradients[f"{name}.weight"], gradients[f"{name}.bias"]
        rows = weight.reshape(len(weight), weight.shape[1], -1)
        leaves.append(torch.cat([rows, bias[..., None]], 2).flatten(1))
    return leaves


def write(module: nn.Module, names: list[str], direction: Tensor) -> None:
    """A flat direction as the `.grad` of a module."""
    at, parameters = 0, dict(module.named_parameters())
    for name in names:
        weight, bias = parameters[f"{name}.weight"], parameters[f"{name}.bias"]
        q, p = weight.shape[0], weight[0].numel() + 1
        leaf = direction[at : at + q * p].view(q, p).to(weight.dtype)
        weight.grad, bias.grad, at = leaf[:, :-1].reshape(weight.shape).clone(), leaf[:, -1].clone(), at + q * p


def clipped(rows: Tensor, bound: float) -> Tensor:
    return rows * (bound / rows.norm(dim=1)).clamp(max=1)[:, None]


def lifted(sketch: Any, phi: Tensor, y: Tensor) -> Tensor:
    """Unbiased for chosen coordinates, else the pseudo-inverse, else the adjoint: with dense matrices."""
    if isinstance(sketch, SelectionMap):
        return torch.linalg.pinv(phi) @ y / sketch.coverage
    return torch.linalg.pinv(phi) @ y if sketch.tight else phi.T @ y


class Reference:
    """The plain loop over the same batches, maps and noise."""

    def __init__(self, run: Trained, module: nn.Module, dataset: Indexed, make: Any = None, batch: int = BATCH) -> None:
        self.run, self.module, self.data, self.batch = run, module, dataset, batch
        make = make or (lambda p: torch.optim.SGD(p, lr=0.5))
        self.optimizer = make([p for p in module.parameters() if p.requires_grad])
        self.source = GeneratorSource(torch.Generator().manual_seed(SEED))
        self.names = [leaf.name for leaf in run.engine.driver.layers.space.leaves]  # type: ignore[union-attr]

    def draw(self) -> Tensor:
        return self.source.mask(N, self.batch / N).nonzero().reshape(-1)

    def rows(self, index: Tensor) -> list[Tensor]:
        return [
            leaf.double() for leaf in flat(per_example(self.module, self.data.x[index], self.data.y[index]), self.names)
        ]

    def noise(self, size: int, scale: float) -> Tensor:
        return scale * (1 + KAPPA) * self.source.normal(size)  # scaled to what rounding may add too

    def loop(self, direction: Callable[[int, list[Tensor]], Tensor]) -> nn.Module:
        """direction(t, rows by leaf) -> the flat gradient."""
        for t, seen in enumerate(self.run.batches):
            index = self.draw()
            assert index.tolist() == seen
            write(self.module, self.names, direction(t, self.rows(index)))
            self.optimizer.step()
        return self.module

    def released(self, t: int, slot: str, codes: Tensor, bound: float, z: float) -> Tensor:
        """A noisy sum over the batch size."""
        return (codes.sum(0) + self.noise(codes.shape[1], z * bound)) / self.batch

    def up(self, t: int, slot: str, y: Tensor) -> Tensor:
        return lifted(self.run.rounds[t].sketches[slot], self.run.maps[t][slot], y)


def assert_same(ours: nn.Module, plain: nn.Module, tolerance: float = 1e-10) -> None:
    for (name, a), (_, b) in zip(ours.named_parameters(), plain.named_parameters(), strict=True):
        torch.testing.assert_close(a.detach(), b.detach(), rtol=0, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}")
