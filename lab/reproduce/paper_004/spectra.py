"""Figures 1 and 2: where the gradients of a network lie during training, with and without noise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from isthmus.diagnostics import sorted_components, spectrum
from isthmus.engine import PrivacyEngine
from lab.reproduce import figures
from lab.reproduce.experiment import Cell, Experiment, Judgement, Observed, Results, RunSetting
from lab.reproduce.paper_004.training import BATCH, images, loader_of

FEW = 20
"""How many eigenvalues are "a few dominated ones": a label has about two."""
SIZES = {"n": 10_000, "epochs": 30, "batch": BATCH, "looked_at": 500}
LESS = {"n": 3_000, "epochs": 5, "batch": BATCH, "looked_at": 300}


def network() -> nn.Sequential:
    """Two hidden layers of 128 ReLUs: d = 118,282."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
    )


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """SGD, and DP-SGD at each noise."""
    return [{"sigma": sigma} for sigma in config["sigmas"]]


def run(cell: Cell, setting: RunSetting) -> Observed:
    """Train, and look at the gradients of images that are not trained on: at the start, and after the training."""
    config, noise = setting.config, float(cell["sigma"])
    parts = images("mnist", config["n"], config["looked_at"], 1000, setting)
    torch.manual_seed(setting.seed)
    module, engine = network().to(setting.device), PrivacyEngine(seed=setting.seed)
    optimizer: Any = torch.optim.SGD(module.parameters(), lr=0.1)
    loader: Any = loader_of(*parts["private"], config["batch"])
    private, optimizer, loader = engine.make_private(
        module=module, optimizer=optimizer, data_loader=loader, criterion=nn.functional.cross_entropy,
        noise_multiplier=noise, max_grad_norm=1.0 if noise else 1e6, public=parts["public"],
        noise_generator=torch.Generator().manual_seed(setting.seed),
    )  # fmt: skip
    curves: dict[str, tuple[list[float], list[float]]] = {}
    metrics = look(engine, "start", curves)
    for _ in range(config["epochs"]):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(private(x), y).backward()
            optimizer.step()
    return Observed(metrics | look(engine, "end", curves), curves)


def look(engine: Any, when: str, curves: dict[str, tuple[list[float], list[float]]]) -> dict[str, float]:
    """The spectrum of the second moment and the sorted components of the mean, with the share of the largest few."""
    rows = engine.public_rows()
    values = spectrum(rows).values.double()
    components = sorted_components(rows).values.square()
    curves[f"eigenvalues, {when}"] = thinned(values)
    curves[f"components, {when}"] = thinned(components.sqrt())
    return {
        f"top {FEW} share, {when}": float(values[:FEW].sum() / values.sum()),
        f"top 1 % of components, {when}": float(components[: len(components) // 100].sum() / components.sum()),
    }


def thinned(values: Tensor, points: int = 60) -> tuple[list[float], list[float]]:
    """Order and value at places that are even on a log scale; nothing below 1e-12."""
    places = torch.logspace(0, torch.log10(torch.tensor(float(len(values)))).item(), points).round().long().unique()
    places = places[places <= len(values)]
    return places.double().tolist(), values[places - 1].clamp_min(1e-12).tolist()


def plot(kind: str, y: str) -> Any:
    """Start dashed, end solid."""

    def draw(results: Results, figure: Any) -> None:
        axes = figure.subplots()
        for cell in results.cells:
            name = f"DP-SGD, σ = {cell['sigma']}" if cell["sigma"] else "SGD"
            figures.line(axes, results.curve(f"{kind}, end", **cell), f"{name}, after training")
        x, start, _ = results.curve(f"{kind}, start", **results.cells[0])
        axes.plot(x, start, "--", color="grey", label="before training")
        figures.finish(axes, "order", y, "xy")

    return draw


def judge(metric: str, few: str, enough: float) -> Any:
    """The few hold most of the whole, at the end of every training."""

    def verdict(results: Results) -> Judgement:
        shares = {cell["sigma"]: results.mean(f"{metric}, end", **cell) for cell in results.cells}
        start = results.mean(f"{metric}, start", **results.cells[0])
        good = [sigma for sigma, share in shares.items() if share >= enough]
        words = ", ".join(f"{share:.2f} ({f'σ = {s}' if s else 'SGD'})" for s, share in shares.items())
        kind: Any = "holds" if len(good) == len(shares) else "holds in part" if good else "fails"
        text = f"The {few} hold {start:.2f} of the whole before training and {words} after it"
        return Judgement(kind, f"{text}; at least {enough:g} counts as most.")

    return verdict


FIGURE_1 = Experiment(
    name="004-figure-1",
    item="Figure 1",
    title="the spectrum of gradients along training",
    claim="A few eigenvalues dominate the second moment of the gradients along the whole training, for SGD and for "
    "DP-SGD with σ = 1, 2: the gradients lie near a low-dimensional space.",
    cells=cells,
    run=run,
    verdict=judge(f"top {FEW} share", f"{FEW} largest of the eigenvalues", 0.5),
    plot=plot("eigenvalues", "eigenvalue"),
    small=LESS | {"sigmas": [0, 1, 2]},
    full=SIZES | {"sigmas": [0, 1, 2]},
    data=("mnist",),
    note="The second moment is that of images which are not trained on. The network has 118,282 parameters; the paper "
    "says roughly 130,000. The small scale trains on 3,000 images for 5 epochs.",
)
FIGURE_2 = Experiment(
    name="004-figure-2",
    item="Figure 2",
    title="the sorted components of the mean gradient along DP-SGD",
    claim="The components of the population gradient decay fast for σ = 1, 2 and 4, so that its γ₂ is a constant "
    "rather than √d.",
    cells=cells,
    run=run,
    verdict=judge("top 1 % of components", "largest 1 % of the components", 0.5),
    plot=plot("components", "|component| of the mean gradient"),
    small=LESS | {"sigmas": [1, 4]},
    full=SIZES | {"sigmas": [1, 2, 4]},
    data=("mnist",),
    note="The shares are of squares.",
)
