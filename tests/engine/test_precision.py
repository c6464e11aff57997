"""Rows as the device computes them: exact products, mean losses in bfloat16, records that overflow."""

import math
from dataclasses import dataclass
from typing import Any

import mixing_cases
import pytest
import torch
from engine_cases import C, sums
from engine_cases import private as made_private
from gradients.layers.layer_reference import Built
from grids import pairs
from test_sketches import public
from torch import Tensor, nn
from torch.nn import functional as F

import isthmus
from isthmus import GradientEmbedding, InvalidInput, Kronecker, PublicSubspace
from isthmus.base.space import Space
from isthmus.core.driver import Ticket, _BackwardAccumulator
from isthmus.core.pipeline import Release, measure
from isthmus.gradients import Computed, Dense, Stack
from isthmus.gradients.rounding import kappa
from isthmus.privacy import PerLeafClip
from isthmus.privacy.clips import Rounding
from isthmus.sketches.compose import IdentityMap

N, T, V, W = 4, 12, 30, 8


class Words(nn.Module):
    """A decoder of one layer; its head may be tied to its table."""

    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(V, W), nn.LayerNorm(W)
        self.up, self.down = nn.Linear(W, 5 * W), nn.Linear(5 * W, W)
        self.head = nn.Linear(W, V, bias=False)
        if tied:
            self.head.weight = self.table.weight

    def forward(self, index: Tensor) -> Tensor:
        x = self.table(index)
        return self.head(x + self.down(F.gelu(self.up(self.norm(x)))))


class Told(Words):
    """The same, returning its own loss in a dict."""

    def forward(self, index: Tensor, target: Tensor) -> dict[str, Tensor]:
        logits = super().forward(index)
        return {"loss": loss(logits, target), "logits": logits}


def loss(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output.flatten(0, 1), target.flatten())


def data(n: int = N) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(5)
    x, y = (torch.randint(0, V, (8, T), generator=draws) for _ in range(2))
    return x[:n], y[:n]


def private(module: nn.Module, **options):
    settings = {"noise_multiplier": 1e-7, "max_grad_norm": 0.5, "noise_generator": torch.Generator().manual_seed(1)}
    module, engine = mixing_cases.private(module, N, 0.5, **{"loss_reduction": "mean", **settings, **options})
    return engine, module, engine.driver.optimizer


def handed(module: nn.Module, **options):
    """The same with a first batch in hand."""
    engine, module, _ = private(module, **options)
    engine.driver.begin(Ticket(N))
    return engine, module, *data()


def trained(tied: bool = False, autocast: bool = False, steps: int = 2, tokens: int = T, **options) -> Tensor:
    """The parameters after some steps, of a mean loss unless a sum is asked for."""
    torch.manual_seed(0)
    engine, module, sgd = private(Words(tied), **options)
    x, y = (part[:, :tokens] for part in data())
    for _ in range(steps):
        engine.driver.begin(Ticket(N))
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            value = loss(module(x), y)
        (value * N if options.get("loss_reduction") == "sum" else value).backward()
        sgd.step()
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


CASES = {
    "flat": {},
    "per layer": {"clipping": "per_layer"},
    "tied": {"tied": True},
    "tied, per layer": {"tied": True, "clipping": "per_layer"},
    "adaptive": {"clipping": "adaptive"},
    "Kronecker": {"sketch": isthmus.Kronecker(4, 4)},
    "bfloat16": {"autocast": True},
    "bfloat16, per layer": {"autocast": True, "clipping": "per_layer"},
}


@pytest.mark.parametrize("case", CASES)
def test_training_is_that_of_exact_products(case):
    torch.manual_seed(0)
    module = Words(CASES[case].get("tied", False))
    start = torch.cat([parameter.detach().flatten() for parameter in module.parameters()])
    fast, exact = trained(**CASES[case]), trained(**CASES[case], precision="exact")
    moved = float((exact - start).norm())
    assert moved > 0.01
    assert float((fast - exact).norm()) <= (2e-2 if CASES[case].get("autocast") else 1e-4) * moved


@pytest.mark.parametrize("autocast", [False, True])
def test_a_mean_is_a_sum_whose_division_was_undone(autocast):
    mean, total = trained(autocast=autocast), trained(autocast=autocast, loss_reduction="sum")
    torch.testing.assert_close(mean, total, rtol=0, atol=1e-6)


def rows_of(module: nn.Module, n: int, run) -> Tensor:
    """The rows of the first two examples of a batch of n, under autocast, in the fast path."""
    engine, module, sgd = private(module)
    seen: dict[str, Tensor] = {}
    take = engine.driver._accumulator.take

    def watch(name, rows):
        seen[name] = (rows.dense() * engine.driver._scale()[0])[:2]
        take(name, rows)

    engine.driver.layers.now.listener = engine.driver._listener = watch
    x, y = data(n)
    engine.driver.begin(Ticket(n))
    with torch.autocast("cpu", torch.bfloat16):
        run(module, x, y).backward()
    return torch.cat([seen[name] for name in sorted(seen)], 1)


def test_in_bfloat16_a_mean_gives_a_record_hardly_another_gradient_when_one_more_comes():
    """Rounding g / n to 8 bits would change every entry by up to 2^-8; undone first, few change, by one bit."""

    def run(module, x, y):
        return loss(module(x), y)

    torch.manual_seed(0)
    module = Words()
    small, large = (rows_of(copied(module), n, run) for n in (5, 6))
    changed = (small != large).double().mean()
    assert float(changed) < 0.02
    assert float((small - large).norm()) <= 1e-3 * float(small.norm())


def test_a_loss_that_the_module_computes_itself_is_undone_exactly():
    def run(module, x, y):
        return module(x, y)["loss"]

    torch.manual_seed(0)
    module = Told()
    small, large = (rows_of(copied(module), n, run) for n in (5, 7))
    torch.testing.assert_close(small, large, rtol=0, atol=float(small.abs().max()) * 2.0**-7)
    assert float((small != large).double().mean()) < 0.02


def copied(module: Words) -> nn.Module:
    made = type(module)()
    made.load_state_dict(module.state_dict())
    return made


def test_a_gradient_that_does_not_pass_the_output_is_refused_under_autocast():
    _, module, x, _ = handed(Words())
    collected = []
    module.norm.register_forward_hook(lambda layer, args, output: collected.append(output))
    with torch.autocast("cpu", torch.bfloat16):
        module(x)
    with pytest.raises(InvalidInput, match="without passing the module's own output"):
        collected[-1].float().square().mean().backward()


def test_bounds_far_below_one_take_exact_products():
    assert private(Words(), max_grad_norm=1e-3)[0].driver._accumulator.fast
    assert not private(Words(), max_grad_norm=1e-12)[0].driver._accumulator.fast
    assert not private(Words(), precision="exact")[0].driver._accumulator.fast
    with pytest.raises(InvalidInput, match="precision"):
        private(Words(), precision="half")


def test_every_leaf_has_its_turn_to_be_computed_twice_and_compared(monkeypatch):
    """A second pass that differs from the first is found in the round that watches its leaf."""
    watched = []
    joined = _BackwardAccumulator._joined

    def watch(self, name, *rest):
        made = joined(self, name, *rest)
        if isinstance(made, Computed) and made.watched:
            watched.append(name)
        return made

    monkeypatch.setattr(_BackwardAccumulator, "_joined", watch)
    trained(steps=5, tokens=2)
    assert {"up", "down", "head"} <= set(watched)


def test_layers_clipped_by_themselves_keep_one_bound_over_many_physical_batches():
    """Later batches are added in float64: what a release is bounded by depends on the rows, not on that."""
    torch.manual_seed(0)
    engine, module, sgd = private(Words(), clipping="per_layer")
    x, y = data()
    for k in range(50):
        engine.driver.begin(Ticket(N, last=k == 49))
        loss(module(x), y).backward()
        sgd.step()
    assert engine.driver.state.t == 1


def test_the_bound_of_a_layer_does_not_tell_how_many_records_there_are():
    release, rounding = Release(clip=PerLeafClip({"a": 1.0})), Rounding(64)
    collected = []
    for n in (64, 20_000):
        rows = Stack([("a", Dense(torch.ones(n, 3)))])
        whole = measure(release, IdentityMap(Space.of({"a": (1, 3)})), 1.0, rows, None, rounding)
        collected.append((whole.bound, whole.dtype))
    assert collected[0] == collected[1] == (1 + kappa(64, torch.float32, False), torch.float32)


@dataclass
class Answer:
    """What a module may return in place of a dict."""

    logits: Tensor
    name: str = "words"


class Answering(Words):
    def forward(self, index: Tensor) -> tuple[Tensor, Answer]:
        return super().forward(index[:, ::2]), Answer(super().forward(index))


def test_outputs_in_a_dataclass_are_undone_as_those_beside_it_are():
    """One left as it is would count 1 / n of what it should, and be rounded another way for every n."""

    def moved(reduction: str) -> Tensor:
        torch.manual_seed(0)
        engine, module, x, y = handed(Answering(), loss_reduction=reduction, max_grad_norm=1e3)
        with torch.autocast("cpu", torch.bfloat16):
            short, answer = module(x)
            value = loss(short, y[:, ::2]) + loss(answer.logits, y)
        (value * N if reduction == "sum" else value).backward()
        engine.driver.optimizer.step()
        return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])

    torch.testing.assert_close(moved("mean"), moved("sum"), rtol=0, atol=1e-5)


@pytest.mark.parametrize("first", [False, True])
def test_passes_of_one_batch_with_and_without_autocast_are_refused(first):
    _, module, x, _ = handed(Words())
    with torch.autocast("cpu", torch.bfloat16, enabled=first):
        module(x)
    with (
        torch.autocast("cpu", torch.bfloat16, enabled=not first),
        pytest.raises(InvalidInput, match="both with and without autocast"),
    ):
        module(x)


class Keeping(Words):
    """Keeps what a second term of the loss is made of."""

    def forward(self, index: Tensor) -> Tensor:
        self.kept = [self.up(self.norm(self.table(index)))]
        return super().forward(index)


@pytest.mark.filterwarnings("ignore:the forward pass changed")
def test_what_a_module_keeps_of_a_pass_is_refused_under_autocast():
    """Its gradient would not pass the outputs: a term of the loss 1 / n as large, rounded another way for every n."""
    engine, module, x, y = handed(Keeping())
    (loss(module(x), y) + module.kept[0].square().mean()).backward()
    engine.driver.begin(Ticket(N))
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(InvalidInput, match="the module keeps .'kept"):
        module(x)


MANY, GROUPS = 32, 7
RECORDS = {"nan": math.nan, "inf": math.inf, "3e38": 3e38, "1e38": 1e38, "1e20": 1e20}
WAYS: dict[str, dict[str, Any]] = {
    "micro": {"micro_batch_size": 4},
    "micro-kronecker": {"micro_batch_size": 4, "sketch": Kronecker(4, 2)},
    "micro-embedding": {"micro_batch_size": 4, "sketch": GradientEmbedding(PublicSubspace(3, refresh=1), 0.1)},
    "plain": {},
    "kronecker": {"sketch": Kronecker(4, 2)},
    "per-layer": {"clipping": "per_layer"},
    "adaptive": {"clipping": "adaptive"},
}
DTYPES = [torch.float32, torch.float64, torch.bfloat16]
BROKEN = [
    (way, kind) for way in WAYS for kind in ("dense", "tied", "conv") if kind == "dense" or "embedding" not in way
]


def net(kind: str) -> nn.Module:
    torch.manual_seed(0)
    if kind == "dense":
        return nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3))
    if kind == "tied":
        table = nn.Embedding(9, 4)
        head = nn.Linear(4, 9, bias=False)
        head.weight = table.weight
        loud = Built(lambda m, x: m.table(x[:, 1:].long()).mean(1) * x[:, :1], table=table)
        return nn.Sequential(loud, head)  # the first column is the factor of a record's embeddings
    return nn.Sequential(nn.Conv1d(2, 4, 2, groups=2), nn.Flatten(), nn.Linear(8, 3))


def records(kind: str, dtype: torch.dtype, value: float, at: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(3)
    if kind == "tied":
        x = torch.randint(0, 9, (MANY, 4), generator=g).to(dtype)
        x[:, 0], y = 1.0, torch.randint(0, 9, (MANY,), generator=g)
    else:
        shape = (MANY, 6) if kind == "dense" else (MANY, 2, 3)
        x, y = torch.randn(shape, generator=g).to(dtype), torch.randint(0, 3, (MANY,), generator=g)
    if dtype == torch.float64 and math.isfinite(value):
        value *= 1e260 if value > 1e30 else 1.0
    x[(at, 0) if kind == "tied" else (at,)] = value
    return x, y


@pytest.mark.parametrize("case, dtype, record, at", pairs(BROKEN, DTYPES, RECORDS, [0, MANY - 1]))
def test_a_record_that_overflows_moves_no_more_than_its_bound(
    case: tuple[str, str], dtype: torch.dtype, record: str, at: int
) -> None:
    way, kind = case
    options = dict(WAYS[way])
    if "embedding" in way:
        x, y = public("mlp")
        options["public"] = x.to(dtype), y
    reduction = "sum" if dtype == torch.bfloat16 else "mean"
    x, y = records(kind, dtype, RECORDS[record], at)
    dataset = torch.utils.data.TensorDataset(x, y)
    run = made_private(net(kind).to(dtype), dataset, batch=MANY, loss_reduction=reduction, **options)
    groups = torch.arange(MANY).sqrt().long() * 2 % GROUPS if "micro" in way else None  # some larger than others
    left = torch.arange(MANY) != at
    loss = lambda x, y: F.cross_entropy(run.module(x), y, reduction=reduction)  # noqa: E731
    whole = sums(run.engine, lambda: loss(x, y), MANY, groups)
    less = None if groups is None else groups[left]
    without = sums(run.engine, lambda: loss(x[left], y[left]), MANY - 1, less)
    for release, bounded in whole.items():
        assert bool(torch.isfinite(bounded.value).all())
        moved = float((bounded.value - without[release].value).double().norm())
        rounding = 1e-4 if dtype != torch.float64 else 1e-9  # of the sums, which others answer for
        assert moved <= bounded.bound * (1 + rounding) + rounding * C
        if release != "below" and "micro" not in way and record in ("nan", "inf"):
            assert moved <= 1e-5 * C  # exactly nothing, but for the size of the batch in a mean
