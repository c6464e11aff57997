"""A private step beside a plain one and Opacus' two modes, on the CPU: one run, each column in its own process.

Median and mean milliseconds a step (a mean holds the rounds in which a sketch is renewed), the peak resident memory of
the process, and, where ISTHMUS_DATA is set, test accuracy after a short private training (noise multiplier 1, clip 1)
at the same ranks: no speed without it.  Steps of the trainings were set once for each column, not tuned.

    python benchmarks/bench_engine.py [--models mlp cnn ...] [--columns plain ...] [--steps 25] [--no-accuracy]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
import warnings
from typing import Any

import numpy as np
import torch
from engine_models import BATCH, MODELS, batch, sketch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

COLUMNS = ("plain", "hooks", "ghost", "identity", "kronecker", "kronecker-public", "subspace")
OURS = COLUMNS[3:]
RATE = {"plain": 0.1, "identity": 0.3, "kronecker": 10.0, "kronecker-public": 0.5, "subspace": 0.5}
SCALE = {"embedding": 30.0}
"""Tables read at few places take larger steps."""
TRAIN_STEPS = {"mlp": 300, "cnn": 300, "transformer": 40, "embedding": 300}


def opacus_parts(name: str, module: nn.Module, loader: DataLoader) -> tuple[Any, Any, Any]:
    """Module, optimiser and loss through Opacus; layers it does not take are replaced as it recommends."""
    import opacus
    from opacus.validators import ModuleValidator

    warnings.simplefilter("ignore")
    module = ModuleValidator.fix(module)
    optimizer, loss = torch.optim.SGD(module.parameters(), lr=0.05), nn.CrossEntropyLoss()
    settings: dict[str, Any] = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "poisson_sampling": False}
    if name == "ghost":
        settings |= {"criterion": loss, "grad_sample_mode": "ghost"}
    made = opacus.PrivacyEngine().make_private(module=module, optimizer=optimizer, data_loader=loader, **settings)
    return made[0], made[1], made[2] if name == "ghost" else loss


def our_parts(name: str, module: nn.Module, loader: DataLoader, public: Any, rate: float) -> tuple[Any, Any, Any, Any]:
    import isthmus

    engine = isthmus.PrivacyEngine()
    parts = engine.make_private(
        module=module, optimizer=torch.optim.SGD(module.parameters(), lr=rate), data_loader=loader,
        criterion=nn.functional.cross_entropy, noise_multiplier=1.0, max_grad_norm=1.0, sketch=sketch(name, public),
    )  # fmt: skip
    return (*parts, engine)


def speed(name: str, model: str, steps: int) -> dict[str, float]:
    """One column's time and memory on one batch."""
    torch.manual_seed(0)
    size = BATCH[model]
    (x, y), module, loss = batch(model, size), MODELS[model](), nn.CrossEntropyLoss()
    loader = DataLoader(TensorDataset(torch.zeros(4 * size, 1), torch.zeros(4 * size)), batch_size=size)
    begin = None
    if name == "plain":
        optimizer: Any = torch.optim.SGD(module.parameters(), lr=0.05)
    elif name in ("hooks", "ghost"):
        module, optimizer, loss = opacus_parts(name, module, loader)
    else:
        from isthmus.round.torch_loop import Ticket

        module, optimizer, _, engine = our_parts(name, module, loader, batch(model, 100, 9), 0.05)
        begin = lambda: engine.driver.begin(Ticket(size))  # noqa: E731
    times = []
    for _ in range(steps + 2):
        start = time.perf_counter()
        if begin is not None:
            begin()
        optimizer.zero_grad()
        loss(module(x), y).backward()
        optimizer.step()
        times.append(1e3 * (time.perf_counter() - start))
    times = times[2:]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"median": statistics.median(times), "mean": statistics.mean(times), "peak": peak}


def examples(model: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Real examples: MNIST, or IMDB reviews as the places of 128 of their words."""
    from isthmus import datasets

    if model != "embedding":
        data = datasets.load("mnist")
        arrays = (np.asarray(data.x_train, np.float32), data.y_train, np.asarray(data.x_test, np.float32), data.y_test)
        x, y, x_test, y_test = (torch.as_tensor(np.asarray(part)) for part in arrays)
        return x.reshape(-1, 28, 28), y.long(), x_test.reshape(-1, 28, 28), y_test.long()
    data = datasets.load("imdb")
    rng = np.random.default_rng(0)

    def words(rows: Any) -> Tensor:
        spans = zip(rows.indptr, rows.indptr[1:], strict=False)
        return torch.as_tensor(np.stack([rng.choice(rows.indices[a:b], 128) for a, b in spans]).astype(np.int64))

    labels = [torch.as_tensor((np.asarray(part) > 0).astype(np.int64)) for part in (data.y_train, data.y_test)]
    return words(data.x_train), labels[0], words(data.x_test), labels[1]


def accuracy(name: str, model: str) -> dict[str, float]:
    """Test accuracy after a short training of one column."""
    torch.manual_seed(0)
    x, y, x_test, y_test = examples(model)
    module, size, steps = MODELS[model](), BATCH[model], TRAIN_STEPS[model]
    public, x, y = (x[-100:], y[-100:]), x[:-100], y[:-100]
    loader = DataLoader(TensorDataset(x, y), batch_size=size, shuffle=True)
    rate = RATE[name] * SCALE.get(model, 1.0)
    if name == "plain":
        optimizer: Any = torch.optim.SGD(module.parameters(), lr=rate)
    else:
        module, optimizer, loader, _ = our_parts(name, module, loader, public, rate)
    done = 0
    while done < steps:
        for xb, yb in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(xb), yb).backward()
            optimizer.step()
            done += 1
            if done == steps:
                break
    module.eval()
    chosen = torch.linspace(0, len(y_test) - 1, 2000).long()  # spread out: a test set may be sorted
    with torch.no_grad():
        right = [(module(x_test[part]).argmax(1) == y_test[part]).float().mean() for part in chosen.split(500)]
    return {"accuracy": float(torch.stack(right).mean())}


def child(*arguments: str) -> dict[str, float]:
    done = subprocess.run([sys.executable, __file__, *arguments], capture_output=True, text=True, env=os.environ)
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1][:100]}  # type: ignore[dict-item]
    return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--columns", nargs="*", default=list(COLUMNS))
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--no-accuracy", action="store_true")
    parser.add_argument("--child", nargs=2)
    options = parser.parse_args()
    if options.child:
        (column,), (model,) = options.columns, options.models
        print(
            json.dumps(speed(column, model, options.steps) if options.child[0] == "speed" else accuracy(column, model))
        )
        return
    train = "ISTHMUS_DATA" in os.environ and not options.no_accuracy
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    for model in options.models:
        rows = {}
        for column in options.columns:
            same = ["--models", model, "--columns", column, "--steps", str(options.steps), "--child"]
            rows[column] = child(*same, "speed", "x")
            if train and (column == "plain" or column in OURS):
                rows[column] |= child(*same, "accuracy", "x")
        show(model, rows)


def show(model: str, rows: dict[str, dict[str, Any]]) -> None:
    plain = rows.get("plain", {}).get("median", float("nan"))
    print(f"\n{model}, batch {BATCH[model]}")
    print(f"{'column':18}{'median ms':>10}{'mean ms':>10}{'/ plain':>9}{'peak MB':>9}{'accuracy':>10}")
    for column, row in rows.items():
        if "median" not in row:
            print(f"{column:18}{row.get('error', '')}")
            continue
        score = f"{row['accuracy']:10.3f}" if "accuracy" in row else f"{row.get('error', '-'):>10}"
        ratio = row["median"] / plain
        print(f"{column:18}{row['median']:10.1f}{row['mean']:10.1f}{ratio:9.2f}{row['peak']:9.0f}{score}", flush=True)


if __name__ == "__main__":
    main()
