"""The one-run audit of the engine's training in float32, with TF32 products and under bfloat16 autocast.

    python lab/measurements/audit_precision.py [--device cuda] [--canaries 2000] [--epsilon 2] [--steps 30]
        [--json lab/bench/results/audit.json] [--minutes 9]

A transformer of two blocks is trained by `PrivacyEngine` on ordinary texts and canaries, each of which is in with
probability 1/2.  A canary is a text of one word that is its own: where its word's embedding is, whatever is released
beyond noise comes from it.  The auditor knows everything but who is in: the weights of every step, so the gradient
that each canary would have had, clipped to C; its score is the product of the two, added over the steps.  From the
number of right guesses follows, at 95 % confidence, an epsilon that the training has at least (`audit.one_run`): a
sound one stays below what is stated.  The last row is a control that must fail: noise four times too small for what it
states.  More canaries show more: 2,000 take some minutes on a CPU, 20,000 on a GPU.

Rows go to the file as they come; a row of the same code and machine is not done again.  `python -m lab bench --pages`
writes the table of docs/privacy.md from it.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
import warnings
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import isthmus
from isthmus import privacy
from isthmus.audit import canaries as attack
from isthmus.audit.canaries import OneRun, one_run
from isthmus.base.atomic import atomic_write
from lab.bench.measure import machine
from lab.bench.results import library
from lab.reproduce.experiment import fingerprint
from lab.reproduce.sources import code_of_files

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from _text import Encoder, pooled

WORDS, LENGTH, DELTA = 200, 8, 1e-5


@dataclass(frozen=True)
class Audit:
    """One training, and how it is computed."""

    precision: str = "float32"
    sketch: Any = None
    canaries: int = 2000
    others: int = 1000
    steps: int = 30
    epsilon: float = 2.0
    understated: float = 1.0
    """Divides the noise: 1 but for the control."""
    device: str = "cpu"


class Words(nn.Module):
    """An encoder and a classifier.  Embeddings are short: the layer norm makes the gradients of words the longest."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = Encoder(2, size=64, heads=4, inner=128, vocabulary=vocabulary, places=LENGTH)
        self.head = nn.Linear(64, 2)
        for layer in self.encoder.embeddings.children():
            if isinstance(layer, nn.Embedding):
                nn.init.normal_(layer.weight, std=0.01).requires_grad_(layer.num_embeddings == vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits in float32."""
        return self.head(pooled(self.encoder(ids), ids != 0)).float()


def cast(audit: Audit) -> Any:
    """The context of a forward pass."""
    torch.backends.cuda.matmul.allow_tf32 = audit.precision != "float32"
    return torch.autocast(audit.device, torch.bfloat16) if audit.precision == "bfloat16" else nullcontext()


def classes(canaries: Tensor) -> Tensor:
    """Both in turn: were they all of one, that would be learned at once, and their gradients be short."""
    return canaries[:, 0] % 2


def own_gradients(module: nn.Module, canaries: Tensor, audit: Audit) -> Tensor:
    """(m, 64): of every canary, the gradient of its word's embedding under public weights, no longer than 1."""
    probe = copy.deepcopy(module)
    with cast(audit):
        logits = probe(canaries)
    F.cross_entropy(logits, classes(canaries), reduction="sum").backward()
    rows = probe.encoder.embeddings.word_embeddings.weight.grad[canaries[:, 0]]
    return rows / rows.norm(dim=1, keepdim=True).clamp_min(1.0)


def trained(audit: Audit, canaries: Tensor, included: Tensor, noise: float) -> tuple[Tensor, float]:
    """The score of every canary, and the epsilon that the engine states."""
    g = torch.Generator().manual_seed(1)
    ordinary = torch.randint(1, WORDS, (audit.others, LENGTH), generator=g)
    x = torch.cat([ordinary, included.cpu()])
    y = torch.cat([torch.randint(0, 2, (audit.others,), generator=g), classes(included.cpu())])
    module = Words(WORDS + audit.canaries).to(audit.device)
    embedding, lr, batch = module.encoder.embeddings.word_embeddings.weight, 0.5, len(x) // 4
    engine, parameters = isthmus.PrivacyEngine(), [p for p in module.parameters() if p.requires_grad]
    module, optimizer, loader = engine.make_private(
        module=module, optimizer=torch.optim.SGD(parameters, lr=lr / batch), noise_multiplier=noise,
        data_loader=DataLoader(TensorDataset(x, y), batch_size=batch), max_grad_norm=1.0, loss_reduction="sum",
        sketch=audit.sketch, normaliser=1.0,
    )  # fmt: skip
    scores, done = torch.zeros(audit.canaries, device=audit.device), 0
    while done < audit.steps:
        for ids, labels in loader:
            before, direction = embedding.detach().clone(), own_gradients(module, canaries, audit)
            with cast(audit):
                logits = module(ids.to(audit.device))
            F.cross_entropy(logits, labels.to(audit.device), reduction="sum").backward()
            optimizer.step()
            released = (before - embedding.detach())[canaries[:, 0]] * (batch / lr)
            scores += (released * direction).sum(1)
            done += 1
            if done == audit.steps:
                break
    return scores.cpu(), float(engine.get_epsilon(DELTA))


def audited(audit: Audit) -> tuple[OneRun, float]:
    """What one run gave away, and what it states."""
    first = WORDS + torch.arange(audit.canaries)
    canaries = first[:, None].repeat(1, LENGTH).to(audit.device)
    rate = (audit.others + audit.canaries // 2) // 4 / (audit.others + audit.canaries // 2)
    noise = float(privacy.noise_multiplier(epsilon=audit.epsilon, delta=DELTA, sampling_rate=rate, steps=audit.steps))
    stated: list[float] = []

    def train(included: Tensor) -> Tensor:
        scores, epsilon = trained(audit, canaries, included, noise / audit.understated)
        stated.append(epsilon)
        return scores

    report = one_run(train, canaries.cpu(), delta=DELTA)
    return report, audit.epsilon * 1.02 if audit.understated > 1 else stated[0]


def cases(given: Audit) -> dict[str, Audit]:
    """All trainings."""
    precisions = ["float32", "TF32", "bfloat16"] if given.device == "cuda" else ["float32", "bfloat16"]
    kronecker = isthmus.Kronecker(16, 16)
    table = {precision: replace(given, precision=precision) for precision in precisions}
    table |= {
        f"{precision}, Kronecker 16": replace(given, precision=precision, sketch=kronecker) for precision in precisions
    }
    return table | {"control: noise / 4": replace(given, understated=4.0)}


def stamp(audit: Audit) -> str:
    """What a row follows from: settings, code, machine."""
    own = code_of_files((Path(__file__), Path(attack.__file__)))
    return fingerprint({"audit": audit, "own": own, "library": library(), "machine": machine()})


def keep(path: Path, name: str, row: dict[str, Any]) -> None:
    """Put a row in the place of the one of the same name, or behind the others."""
    rows = {line["ours"]: line for line in read(path)} | {name: {"name": "audit-precision", "ours": name, **row}}
    with atomic_write(path) as file:
        file.write_text(json.dumps(list(rows.values()), indent=1, allow_nan=False) + "\n", encoding="utf-8")


def read(path: Path | None) -> list[dict[str, Any]]:
    """The rows of a file that may be there."""
    return json.loads(path.read_text(encoding="utf-8")) if path is not None and path.exists() else []


def main() -> None:
    """Print every row; fail where one gives away more than it states, or the control passes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    for name, value in (("canaries", 2000), ("others", 1000), ("steps", 30)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--epsilon", type=float, default=2.0)
    parser.add_argument("--json", type=Path, help="keep the rows there as they come, and do only what it does not have")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin nothing after so many")
    warnings.simplefilter("ignore", UserWarning)
    given = vars(parser.parse_args())
    file, end = given.pop("json"), time.monotonic() + 60 * given.pop("minutes")
    by_stamp, wrong = {line.get("stamp"): line for line in read(file)}, []
    for name, audit in cases(Audit(**given)).items():
        row = by_stamp.get(stamp(audit))
        if row is None:
            if time.monotonic() >= end:
                raise SystemExit(f"the time was up before {name!r}: another call goes on")
            report, stated = audited(audit)
            row = {"lower": report.lower, "stated": stated, "right": report.correct, "guesses": report.guesses}
            row |= {"passed": report.lower <= stated, "stamp": stamp(audit)}
            if file is not None:
                keep(file, name, row)
        print(json.dumps({"case": name} | row), flush=True)
        wrong += [name] * (row["passed"] == name.startswith("control"))
    raise SystemExit(f"not as it should be: {', '.join(wrong)}" if wrong else 0)


if __name__ == "__main__":
    main()
