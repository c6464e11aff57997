"""The paper's network: in x 50, 50 x 50, 50 x classes, ReLU, every layer in an l1 ball."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from isthmus.objectives.module import ModuleObjective
from isthmus.sets import L1Ball, Product
from isthmus.sketches import CountSketch, PerLeaf
from lab.reproduce.paper_001.splits import Split

HIDDEN = 50


def tenth(m: object = None) -> PerLeaf:
    """A map of each layer's gradient to a tenth of its dimension."""
    return PerLeaf(CountSketch(0.1))


def network(inputs: int, classes: int, seed: int) -> nn.Sequential:
    """With weights drawn from the seed.

    >>> network(784, 10, seed=0)[4].out_features
    10
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = nn.Linear(inputs, HIDDEN), nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, classes)
    return nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])


def problem(train: Split, classes: int, seed: int) -> tuple[ModuleObjective, Product]:
    """The mean cross-entropy where the rows are, and a ball for each layer that has its start on the boundary."""
    module = network(train[0].shape[1], classes, seed).to(train[0].device)
    objective = ModuleObjective(module, nn.functional.cross_entropy, train)
    sizes = {
        name: sum(float(parameter.detach().abs().sum()) for parameter in layer.parameters())
        for name, layer in module.named_children()
    }
    return objective, Product([(L1Ball(sizes[leaf.name]), leaf.size) for leaf in objective.space.leaves])


class Accuracies:
    """A callback: the accuracy on each part at each record."""

    def __init__(self, objective: ModuleObjective, parts: dict[str, Split], by: str = "epoch") -> None:
        self.objective, self.parts, self.by = objective, parts, by
        self.at: list[float] = []
        self.accuracies: dict[str, list[float]] = {name: [] for name in parts}

    @torch.no_grad()
    def __call__(self, record: dict[str, Any], state: Any) -> None:
        """Measure at the state's point."""
        self.objective.layers.unpack(state.w)
        self.at.append(float(record[self.by]))
        for name, (x, y) in self.parts.items():
            hits = self.objective.layers.module(x).argmax(1) == y
            self.accuracies[name].append(float(hits.double().mean()))
