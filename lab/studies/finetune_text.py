"""What of a pretrained encoder is worth training privately: LoRA, last blocks, all blocks, Kronecker, or a probe alone.

    python lab/studies/finetune_data.py --out folder
    python lab/studies/finetune_text.py --folder folder --device cuda --seconds 400 --shard 0/18 &  ... (a GPU: minutes)
    python lab/studies/finetune_text.py --folder folder          # the tables, once all is done; does what is missing
    python lab/studies/finetune_text.py --small                  # seconds: random texts, does it run?

MiniLM (6 blocks of 384) reads 20,000 IMDB reviews; words and places stay as they are.  For every method and epsilon the
rate and the number of epochs are chosen by the accuracy on 2,000 validation texts, one run each; then three more runs
with the choice, on the test.  The choice itself is not private: see docs/finetuning.md.  All training goes through
`PrivacyEngine.make_private` with Poisson batches of 2,000, clip 1, Adam.  Results are lines of JSON: a run that was
killed goes on, and `--shard i/k` does the i-th part of the work.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import finetune_data
import numpy as np
import torch
from _text import Block, Encoder, pooled
from finetune_data import Texts
from shards import Lines
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

import isthmus
from isthmus import privacy

HERE = Path(__file__).parent
DELTA, CLIP, NAME = 1e-5, 1.0, "finetune_text"
HEAD = {"head": (2, 385)}
"""The classifier is never sketched: its code is itself."""


@dataclass(frozen=True)
class Choice:
    """The numbers that are chosen on validation texts: epochs, the rates of the encoder and of the classifier."""

    epochs: int
    rate: float
    head_rate: float = 0.02


@dataclass(frozen=True)
class Method:
    """What is trained beside the classifier: so many blocks at the end, or LoRA of a rank in them; and the sketch."""

    blocks: int
    tries: tuple[Choice, ...]
    lora: int = 0
    sketch: Any = None
    scale: float = 20.0
    """Length of the vector that the classifier sees: how the clip is shared between it and the encoder."""
    physical: int = 512
    estimator: bool = False
    """Fit `PrivateClassifier` to the frozen vectors instead: it chooses its own algorithm, and nothing is tried."""


def _tries(*pairs: tuple[int, float]) -> tuple[Choice, ...]:
    return tuple(Choice(*pair) for pair in pairs)


_KRONECKER = isthmus.Kronecker(24, 24, ranks=HEAD)
_PROBES = tuple(Choice(epochs, 0.0, rate) for epochs in (3, 10, 30) for rate in (0.05, 0.1, 0.2))
METHODS = {
    "probe": Method(0, _PROBES, scale=2.0, physical=4000),
    "probe, PrivateClassifier": Method(0, _tries((0, 0.0)), estimator=True),
    "LoRA": Method(6, _tries((5, 1e-3), (5, 3e-3), (10, 1e-3)), lora=8, physical=1024),
    "last block": Method(1, _tries((5, 1e-5), (5, 3e-5))),
    "last block, Kronecker": Method(1, _tries((5, 3e-5), (5, 1e-4)), sketch=_KRONECKER),
    "all blocks": Method(6, _tries((5, 1e-5), (5, 3e-5))),
    "all blocks, Kronecker": Method(6, _tries((5, 1e-5), (5, 3e-5)), sketch=_KRONECKER),
}


@dataclass(frozen=True)
class Settings:
    """How large everything is, and where it runs."""

    epsilons: tuple[float, ...] = (1.0, 3.0, 8.0)
    batch: int = 2000
    seeds: int = 3
    device: str = "cpu"
    bfloat16: bool = False


class LoRA(nn.Module):
    """A frozen linear map and a trained one of low rank: W x + c + B A x, which begins at W x + c."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down, self.up = (
            nn.Linear(base.in_features, rank, bias=False),
            nn.Linear(rank, base.out_features, bias=False),
        )
        nn.init.normal_(self.down.weight, std=base.in_features**-0.5)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        """The two maps, added."""
        return self.base(x) + self.up(self.down(x))


class Classifier(nn.Module):
    """The last blocks of an encoder and a linear classifier of the mean vector, brought to one length.

    Its input is hidden states (n, T, size) with zeros at positions without a word; without blocks, the mean vector.
    """

    def __init__(self, blocks: list[Block], size: int, scale: float) -> None:
        super().__init__()
        self.blocks, self.head, self.scale = nn.ModuleList(blocks), nn.Linear(size, 2), scale
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Logits in float32."""
        mask = (x != 0).any(-1)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.scale * F.normalize(pooled(x, mask).float(), dim=1)).float()


def network(encoder: Encoder, method: Method) -> Classifier:
    """A copy of what is trained; of LoRA's blocks only the added maps are."""
    copied = copy.deepcopy(encoder.blocks[len(encoder.blocks) - method.blocks :])
    classifier = Classifier(copied, encoder.embeddings.LayerNorm.weight.numel(), method.scale)
    for block in copied if method.lora else []:
        block.requires_grad_(False)
        attention = block.attention["self"]
        attention.query, attention.value = LoRA(attention.query, method.lora), LoRA(attention.value, method.lora)
    return classifier


@torch.no_grad()
def frozen(encoder: Encoder, ids: Tensor, blocks: int) -> Tensor:
    """Hidden states after the first blocks, zero at padding, in half precision; after the last, the mean vector."""
    collected = []
    for part in ids.split(512):
        x, mask = encoder.embeddings(part), part != 0
        for block in encoder.blocks[:blocks]:
            x = block(x, mask)
        collected.append((pooled(x, mask)[:, None] if blocks == len(encoder.blocks) else x * mask[:, :, None]).half())
    return torch.cat(collected)


class Records(Dataset):
    """Records that are fetched a batch at a time."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return self.x[i], self.y[i]

    def __getitems__(self, index: list[int]) -> list[Any]:
        """One pair of tensors instead of pairs of numbers."""
        at = torch.tensor(index, dtype=torch.int64, device=self.x.device)
        return [(self.x[at], self.y[at])] if index else []


def stacked(batch: list[Any]) -> tuple[Tensor, Tensor]:
    """Of `Records`: a pair that is a batch already, or single records."""
    if batch[0][1].ndim:
        return batch[0]
    return torch.stack([x for x, _ in batch]), torch.stack([y for _, y in batch])


def optimizer_of(module: Classifier, choice: Choice) -> torch.optim.Optimizer:
    """Adam with a rate for the classifier and one for the encoder."""
    rest = [p for name, p in module.named_parameters() if p.requires_grad and not name.startswith("head.")]
    groups = [{"params": list(module.head.parameters()), "lr": choice.head_rate}]
    return torch.optim.Adam(groups + [{"params": rest, "lr": choice.rate}] * bool(rest))


def schedule(steps: int) -> Any:
    """Up over the first fifth, then down to nothing."""
    rise = max(1, steps // 5)
    return lambda t: min((t + 1) / rise, max(steps - t, 0) / (steps - rise + 1))


def train(module: Classifier, method: Method, choice: Choice, data: Records, noise: float, size: Settings) -> Any:
    """Train privately in the loop one always writes; the engine, which knows what was spent."""
    steps = choice.epochs * round(len(data) / size.batch)
    optimizer = optimizer_of(module, choice)
    engine = isthmus.PrivacyEngine()
    module, optimizer, loader = engine.make_private(
        module=module,
        optimizer=optimizer,
        data_loader=DataLoader(data, batch_size=size.batch, collate_fn=stacked),
        noise_multiplier=noise,
        max_grad_norm=CLIP,
        loss_reduction="sum",
        max_physical_batch_size=method.physical,
        sketch=method.sketch,
    )
    falling = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule(steps))
    optimizer.register_step_post_hook(lambda *_: falling.step())  # once a release, however many pieces a batch has
    for _ in range(choice.epochs):
        for x, y in loader:
            with torch.autocast(size.device, torch.bfloat16) if size.bfloat16 else nullcontext():
                logits = module(x.float())
            F.cross_entropy(logits, y, reduction="sum").backward()
            optimizer.step()
    return engine


@torch.no_grad()
def accuracy(module: nn.Module, data: Records) -> float:
    """On texts that nobody trained on."""
    right = [module(x.float()).argmax(1).eq(y) for x, y in zip(data.x.split(512), data.y.split(512), strict=True)]
    return float(torch.cat(right).double().mean())


# ------------------------------------------------------------ the work


@dataclass
class Bench:
    """An encoder, its texts, and the frozen part of it, computed once for each depth."""

    encoder: Encoder
    texts: Texts
    size: Settings
    vectors: Path | None = None
    """Where the mean vectors are kept, for a machine that would need an hour to compute them."""

    @functools.cached_property
    def _kept(self) -> dict[int, list[Records]]:
        return {}

    def records(self, method: Method) -> list[Records]:
        """Training, validation and test records as the trained part sees them."""
        depth = len(self.encoder.blocks) - method.blocks
        if depth not in self._kept:
            self._kept.clear()
            parts = self.texts.train, self.texts.validation, self.texts.test
            ids, y = (torch.cat([part[i] for part in parts]) for i in range(2))
            held = self._vectors(ids) if method.blocks == 0 else frozen(self.encoder, ids, depth)
            sizes = [len(part[1]) for part in parts]
            self._kept[depth] = [Records(*pair) for pair in zip(held.split(sizes), y.split(sizes), strict=True)]
        return self._kept[depth]

    def _vectors(self, ids: Tensor) -> Tensor:
        """Mean vectors of all texts, from the file where there is one."""
        if self.vectors is not None and self.vectors.exists():
            return torch.from_numpy(np.load(self.vectors)).to(ids.device)
        vectors = frozen(self.encoder, ids, len(self.encoder.blocks))
        if self.vectors is not None:
            np.save(self.vectors, vectors.cpu().numpy())
        return vectors

    def steps(self, choice: Choice) -> int:
        """How many releases."""
        return choice.epochs * round(len(self.texts.train[1]) / self.size.batch)

    def noise(self, lines: Lines, epsilon: float, choice: Choice) -> float:
        """The noise multiplier that the budget asks for; computing it takes seconds, so it is kept too."""
        steps, rate = self.steps(choice), self.size.batch / len(self.texts.train[1])
        this = f"noise | {epsilon:g} | {steps} steps at rate {rate:g}"
        if this not in lines:
            lines.add(this, privacy.noise_multiplier(epsilon=epsilon, delta=DELTA, sampling_rate=rate, steps=steps))
        return float(lines[this])

    def fitted(self, method: Method, epsilon: float, seed: int) -> dict[str, Any]:
        """The estimator on vectors of length 1, which is declared: it needs to know nothing else."""
        x, y = zip(*((F.normalize(records.x[:, 0].float(), dim=1).cpu().numpy(), records.y.cpu().numpy())
                     for records in self.records(method)), strict=True)  # fmt: skip
        begin = time.perf_counter()
        model = isthmus.PrivateClassifier(
            epsilon=epsilon, delta=DELTA, classes=[0, 1], data_norm=1.0, bounds=(-1.0, 1.0), random_state=seed
        ).fit(x[0], y[0])
        facts = {"validation": model.score(x[1], y[1]), "test": model.score(x[2], y[2]), "steps": int(model.n_iter_)}
        spent = {"epsilon": model.privacy_.epsilon, "weights": x[0].shape[1] + 1}
        return facts | spent | {"seconds": time.perf_counter() - begin, "algorithm": str(model.choice_.algorithm)}

    def run(self, method: Method, choice: Choice, noise: float, seed: int, final: bool) -> dict[str, Any]:
        """One private training: accuracy on validation texts, and on the test where nothing is chosen any more."""
        torch.manual_seed(seed)
        train_records, validation, test = self.records(method)
        module = network(self.encoder, method).to(self.size.device)
        begin = time.perf_counter()
        engine = train(module, method, choice, train_records, noise, self.size)
        module.eval()
        facts = {"validation": accuracy(module, validation), "seconds": time.perf_counter() - begin}
        if final:
            facts |= {"test": accuracy(module, test), "epsilon": engine.get_epsilon(DELTA)}
        facts |= {"weights": engine.driver.layers.space.d, "steps": self.steps(choice)}
        engine.detach()
        return facts


def key(name: str, epsilon: float, choice: Choice, seed: int, final: bool) -> str:
    """A name for one training."""
    rate = f"{choice.epochs} epochs, rate {choice.rate:g}, classifier {choice.head_rate:g}"
    return f"{name} | {epsilon:g} | {rate} | {'final' if final else 'try'} {seed}"


def best(lines: Lines, name: str, epsilon: float, tried: tuple[Choice, ...]) -> Choice | None:
    """The choice with the best validation accuracy, once all were tried."""
    scores = [lines.get(key(name, epsilon, choice, 0, False)) for choice in tried]
    if any(score is None for score in scores):
        return None
    return max(zip(tried, scores, strict=True), key=lambda pair: pair[1]["validation"])[0]  # type: ignore[index]


def work(bench: Bench, lines: Lines, methods: dict[str, Method], until: float) -> None:
    """Whatever of this process's share is not done yet, until the time is over."""
    for name, epsilon in lines.mine([(name, epsilon) for name in methods for epsilon in bench.size.epsilons]):
        for choice, seed, final in _runs(bench, lines, name, epsilon, methods[name].tries):
            if time.time() > until:
                return
            this = key(name, epsilon, choice, seed, final)
            if this not in lines:
                lines.add(this, _result(bench, lines, methods[name], choice, epsilon, seed, final))
                print(this, json.dumps(lines[this]), flush=True)


def _result(
    bench: Bench, lines: Lines, method: Method, choice: Choice, epsilon: float, seed: int, final: bool
) -> dict[str, Any]:
    if method.estimator:
        return bench.fitted(method, epsilon, seed)
    return bench.run(method, choice, bench.noise(lines, epsilon, choice), seed, final)


def _runs(
    bench: Bench, lines: Lines, name: str, epsilon: float, tried: tuple[Choice, ...]
) -> Iterator[tuple[Choice, int, bool]]:
    """All tries, then the final runs with the best of them."""
    yield from ((choice, 0, False) for choice in tried)
    chosen = best(lines, name, epsilon, tried)
    assert chosen is not None
    yield from ((chosen, 1 + seed, True) for seed in range(bench.size.seeds))


def summary(lines: Lines, methods: dict[str, Method], size: Settings) -> list[dict[str, Any]]:
    """Mean and spread of the final runs, with what was chosen; what is not done yet is left out."""
    rows = []
    for name, method in methods.items():
        for epsilon in size.epsilons:
            chosen = best(lines, name, epsilon, method.tries)
            if chosen is None:
                continue
            values = [lines.get(key(name, epsilon, chosen, 1 + seed, True)) for seed in range(size.seeds)]
            done = [value for value in values if value is not None]
            if done:
                scores = np.array([line["test"] for line in done])
                rows.append({"method": name, "weights": done[0]["weights"], "epsilon": epsilon, "test": scores.mean(),
                             "spread": scores.std(ddof=1) if len(scores) > 1 else float("nan"), "runs": len(done),
                             "validation": float(np.mean([line["validation"] for line in done])),
                             "spent": max(line["epsilon"] for line in done), "epochs": chosen.epochs,
                             "rate": chosen.rate, "classifier": chosen.head_rate,
                             "seconds": float(np.median([line["seconds"] for line in done]))})  # fmt: skip
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """The summary in columns."""
    text = f"{'method':<24}{'weights':>11}{'epsilon':>9}{'test':>8}{'spread':>8}{'runs':>6}{'epochs':>8}{'rate':>9}"
    for row in rows:
        text += (
            f"\n{row['method']:<24}{row['weights']:>11,}{row['epsilon']:>9g}{row['test']:>8.4f}{row['spread']:>8.4f}"
            f"{row['runs']:>6}{row['epochs']:>8}{row['rate']:>9g}"
        )
    return text


def small(size: Settings) -> tuple[Bench, dict[str, Method]]:
    """Random texts and a random encoder of two narrow blocks: whether everything runs."""
    torch.manual_seed(0)
    ids = torch.randint(4, 50, (96, 12)) * (torch.arange(12) < torch.randint(6, 13, (96, 1)))
    y = (ids.sum(1) > ids.sum(1).median()).long()
    texts = Texts((ids[:64], y[:64]), (ids[64:80], y[64:80]), (ids[80:], y[80:]))
    encoder = Encoder(2, size=16, heads=2, inner=32, vocabulary=50, places=12)
    tiny = isthmus.Kronecker(3, 3, ranks={"head": (2, 17)})
    methods = {name: replace(method, blocks=min(method.blocks, 2), physical=10, lora=min(method.lora, 2),
                             tries=tuple(replace(choice, epochs=min(choice.epochs, 1)) for choice in method.tries[:1]),
                             sketch=method.sketch and tiny)
               for name, method in METHODS.items()}  # fmt: skip
    return Bench(encoder, texts, replace(size, batch=16, seeds=2, epsilons=(8.0,))), methods


def main() -> None:
    """Do what is missing, print and keep what is there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="what finetune_data.py wrote")
    parser.add_argument("--out", type=Path, default=HERE / "out")
    parser.add_argument("--shard", default="0/1")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--bfloat16", action="store_true", help="passes under autocast")
    parser.add_argument("--methods", nargs="*", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing after this time")
    parser.add_argument("--epsilons", nargs="*", type=float, default=[1.0, 3.0, 8.0])
    parser.add_argument("--plan", action="store_true", help="compute how much noise is needed, and train nothing")
    parser.add_argument("--small", action="store_true")
    arguments = parser.parse_args()
    until = time.time() + arguments.seconds
    size = Settings(tuple(arguments.epsilons), device=arguments.device, bfloat16=arguments.bfloat16)
    if not arguments.small and arguments.folder is None:
        parser.error("give --folder (finetune_data.py writes it), or --small")
    torch.set_float32_matmul_precision("high")
    methods = {name: METHODS[name] for name in arguments.methods}
    if arguments.small:
        bench, methods = small(size)
    else:
        texts, encoder = finetune_data.load(arguments.folder), finetune_data.encoder(arguments.folder)
        vectors = arguments.folder / "vectors.npy"
        bench = Bench(encoder.to(arguments.device), texts.to(arguments.device), size, vectors)
    lines = Lines(arguments.out, NAME, arguments.shard)
    if arguments.plan:
        for epsilon, choice in (
            (e, c) for e in size.epsilons for method in methods.values() for c in method.tries if c.epochs
        ):
            bench.noise(lines, epsilon, choice)
        return
    work(bench, lines, methods, until)
    rows = summary(lines, methods, bench.size)
    if rows:
        print(table(rows))
        (arguments.out / f"{NAME}.json").write_text(json.dumps({"rows": rows}, indent=1))


if __name__ == "__main__":
    main()
