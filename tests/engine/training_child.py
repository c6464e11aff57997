"""A training that is killed and resumed, in a forked process or by `python training_child.py folder rounds every`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from isthmus import Kronecker, PrivacyEngine


def main(folder: Path, rounds: int, every: int, tell: Callable[[int], None] = print) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x, y = torch.randn(40, 6), torch.randint(0, 3, (40,))
    module = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    engine = PrivacyEngine(ledger=folder / "ledger", seed=3)
    module, optimizer, loader = engine.make_private(
        module=module,
        optimizer=torch.optim.Adam(module.parameters(), lr=0.01),
        data_loader=DataLoader(TensorDataset(x, y), batch_size=10),
        noise_multiplier=2.0,
        max_grad_norm=1.0,
        sketch=Kronecker(3, 2),
    )
    path = folder / "checkpoint"
    done = engine.load_checkpoint(path=path, module=module, optimizer=optimizer)["done"] if path.exists() else 0
    while done < rounds:
        for batch, target in loader:
            if done == rounds:
                break
            optimizer.zero_grad()
            F.cross_entropy(module(batch), target).backward()
            optimizer.step()
            done += 1
            if done % every == 0 or done == rounds:
                engine.save_checkpoint(path=path, module=module, optimizer=optimizer, checkpoint_dict={"done": done})
            tell(done)
    driver = engine.driver
    assert driver is not None
    finite = all(bool(torch.isfinite(p).all()) for p in module.parameters())
    result = {"epsilon": engine.get_epsilon(1e-5), "charged": engine.ledger.rounds()["main"], "t": driver.state.t}
    (folder / "result.json").write_text(json.dumps({**result, "finite": finite}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
