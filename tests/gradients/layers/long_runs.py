"""Long private runs of the families of docs/models.md: no size of a Poisson batch may end them.

python tests/gradients/layers/long_runs.py BERT T5 --batches 10000 --expected 2     (no names: every family)
"""

import argparse
from collections import Counter

import torch
from model_families import FAMILIES
from torch import nn
from torch.utils._pytree import tree_flatten
from torch.utils.data import DataLoader, Dataset

from isthmus import PrivacyEngine

RECORDS = 60


class Records(Dataset):
    """The examples of a family again and again."""

    def __init__(self, inputs: dict[str, torch.Tensor]) -> None:
        self.inputs = {name: x.float() if x.is_floating_point() else x for name, x in inputs.items()}

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {name: x[i % len(x)] for name, x in self.inputs.items()}


def long_run(module: nn.Module, inputs: dict[str, torch.Tensor], batches: int, expected: int) -> Counter[int]:
    """Train on so many batches of an expected size; the sizes that were drawn."""
    engine, sizes = PrivacyEngine(), Counter[int]()
    module, optimizer, loader = engine.make_private(
        module=module.float().train(),
        optimizer=torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=1e-3),
        data_loader=DataLoader(Records(inputs), batch_size=expected),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    assert engine.driver is not None
    while True:
        for batch in loader:
            ticket = engine.driver._ticket
            assert ticket is not None
            sizes[ticket.size * ticket.counts] += 1
            outputs = [x for x in tree_flatten(module(**batch))[0] if isinstance(x, torch.Tensor) and x.requires_grad]
            torch.stack([x.sin().flatten(1).sum(1).mean() for x in outputs]).sum().backward()
            optimizer.step()
            if sizes.total() == batches:
                return sizes


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("families", nargs="*", default=list(FAMILIES))
    parser.add_argument("--batches", type=int, default=10_000)
    parser.add_argument("--expected", type=int, default=4)
    given = parser.parse_args()
    for family in given.families:
        make, inputs, *_ = FAMILIES[family]
        print(family, dict(sorted(long_run(make(), inputs(), given.batches, given.expected).items())), flush=True)
