"""What users train: frozen layers, adapters, tied weights, checkpointed blocks, layers of their own, experts."""

import copy
import importlib.util
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import engine_cases as cases
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from engine_cases import BATCH, C, Indexed, clipped, data, first, mlp, per_example, private, step, train
from mixing_cases import clipped_sum
from mixing_cases import private as private_alone
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from isthmus import InvalidInput, Kronecker, PrivacyEngine, datasets
from isthmus.gradients.layers import Layers


class Low(nn.Module):
    """A frozen layer with a low-rank update: of two linear layers, or of two bare parameters."""

    def __init__(self, inner: nn.Linear, bare: bool) -> None:
        super().__init__()
        self.inner, self.bare = inner.requires_grad_(False), bare
        down, up = nn.Linear(inner.in_features, 2, False), nn.Linear(2, inner.out_features, False)
        self.down, self.up = (each.to(inner.weight).weight if bare else each.to(inner.weight) for each in (down, up))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + (x @ self.down.T @ self.up.T if self.bare else self.up(self.down(x)))


def tied() -> nn.Module:
    """One weight at both ends."""
    module = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
    module[4].weight = module[0].weight
    return module


class Checkpointed(nn.Module):
    """Activations of a block are computed again in the backward pass."""

    def __init__(self, on: bool = True) -> None:
        super().__init__()
        self.on = on
        self.block = nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 5))
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = checkpoint(self.block, x, use_reentrant=False) if self.on else self.block(x)
        return self.head(hidden)


PARTS = {"frozen": "2.", "biases": "bias", "weights": "weight"}
"""What the names of parameters hold that are trained."""
MADE: dict[str, Any] = {
    "low-rank": lambda net: nn.Sequential(Low(net[0], False), nn.Tanh(), Low(net[2], False)),
    "bare": lambda net: nn.Sequential(Low(net[0], True), nn.Tanh(), Low(net[2], True)),
    "tied": lambda net: tied().double(),
    "checkpointed": lambda net: Checkpointed().double(),
}


def build(name: str) -> nn.Module:
    module = mlp()
    torch.manual_seed(9)
    if name in MADE:
        return MADE[name](module)
    for each, parameter in module.named_parameters():
        parameter.requires_grad_(PARTS[name] in each)
    return module


@pytest.mark.parametrize("sketched", [False, True])
@pytest.mark.parametrize("name", [*PARTS, *MADE])
@pytest.mark.filterwarnings("ignore:layer .* owns parameters:UserWarning")
def test_trained_parameters_move_as_in_the_plain_loop_and_others_stay(name: str, sketched: bool) -> None:
    """The plain loop knows no layers: it clips the norm over all trained parameters; the noise is next to nothing."""
    sketch = Kronecker(99, 99) if sketched else None  # full ranks: a rotation of every layer
    run = train(private(build(name), data(), noise_multiplier=1e-9, sketch=sketch), 2)
    plain = build(name)
    if isinstance(plain, Checkpointed):
        plain.on = False  # torch.func knows no checkpoints
    trained = {n: p for n, p in plain.named_parameters() if p.requires_grad}
    start = {n: p.detach().clone() for n, p in plain.named_parameters()}
    assert sum(map(len, run.batches)) > 0
    for index in run.batches:
        gradients = per_example(plain, data().x[index], data().y[index])
        total = clipped(torch.cat([gradients[n].flatten(1) for n in trained], 1), C).sum(0) / BATCH
        with torch.no_grad():
            for parameter, piece in zip(
                trained.values(), total.split([p.numel() for p in trained.values()]), strict=True
            ):
                parameter -= 0.5 * piece.view(parameter.shape)
    mine = dict(run.module.named_parameters())
    for n in start:
        if n in trained:
            torch.testing.assert_close(mine[n].detach(), trained[n].detach(), rtol=0, atol=1e-8)
            assert not torch.equal(mine[n], start[n])
        else:
            assert torch.equal(mine[n], start[n])


@pytest.mark.parametrize("kind", ["mlp", "attention"])
def test_raw_gradients_never_reach_the_optimiser(kind: str) -> None:
    """Whether or not someone asks for the gradients of all parameters again: `.grad` holds released values only."""
    collected = []
    for again in (False, True):
        torch.manual_seed(6)
        block = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True).double()
        module = mlp() if kind == "mlp" else nn.Sequential(nn.Unflatten(1, (1, 6)), block, nn.Flatten())
        run = private(module, data())
        for _, x, y in run.loader:
            if again:
                module.requires_grad_(True)
            run.optimizer.zero_grad()
            F.cross_entropy(module(x), y).backward()
            assert not any(parameter.grad.any() for parameter in module.parameters() if parameter.grad is not None)
            run.optimizer.step()
        collected.append(module)
    for a, b in zip(collected[0].parameters(), collected[1].parameters(), strict=True):
        torch.testing.assert_close(a.detach(), b.detach(), rtol=0, atol=1e-12)


def test_raw_gradients_are_never_written() -> None:
    """A parameter in the loss, or one that came later: refused, and nothing is left in `.grad`."""
    module = mlp()
    run = private(module, data())
    x, y = first(run)
    weight = next(module.parameters()).requires_grad_(True)
    loss = F.cross_entropy(module(x), y)
    with pytest.raises(InvalidInput):
        (loss + (weight * x.sum()).sum()).backward()
    assert all(p.grad is None for p in module.parameters())
    module.register_parameter("late", nn.Parameter(torch.zeros(3)))
    with pytest.raises(InvalidInput, match="a gradient of their own"):
        module(x)


def test_dropout_and_training_mode_are_left_alone() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 50), nn.Dropout(0.5), nn.Linear(50, 3)).double()
    run = private(module, data())
    for _, x, y in run.loader:
        hidden = module[1](torch.ones(4, 50, dtype=torch.float64))
        assert 0 < int((hidden == 0).sum()) < 200
        step(run, x, y)
    assert len(run.rounds) == 4


# ---------------------------------------------------------------- the example runs as a user runs it

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mnist_example", ROOT / "examples" / "mnist.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with mnist.npz: the real one, or 8 x 8 digits made 28 x 28."""
    if datasets.available("mnist"):
        return str(datasets.folder())
    from sklearn.datasets import load_digits

    found = load_digits()
    images = torch.from_numpy(found.images).float()[:, None] * (255 / 16)
    large = torch.nn.functional.interpolate(images, (28, 28), mode="bilinear").squeeze(1).to(torch.uint8).numpy()
    folder = tmp_path_factory.mktemp("digits")
    first, last = slice(1500), slice(1500, None)
    parts = {"x_train": large[first], "x_test": large[last]}
    np.savez(folder / "mnist.npz", y_train=found.target[first], y_test=found.target[last], **parts)
    return str(folder)


def test_the_digits_example(
    script: ModuleType, digits: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    weights = tmp_path / "weights.pt"
    options = ["--data-root", digits, "--records", "1000", "-b", "50", "-n", "2", "--lr", "1.0", "--sigma", "0.5"]
    accuracies = script.main([*options, "--device", "cpu", "--save-model", str(weights)])
    assert accuracies[0] > 0.3  # 0.1 by chance
    printed = capsys.readouterr().out
    spent = [float(line.split("epsilon = ")[1].split(",")[0]) for line in printed.splitlines() if "epsilon" in line]
    assert 0 < spent[0] < spent[1] < 20
    state = torch.load(weights, weights_only=True)
    script.SampleConvNet().load_state_dict(state)  # the names of the plain module


def test_the_digits_example_without_privacy(
    script: ModuleType, digits: str, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    options = ["--data-root", digits, "--records", "1000", "-b", "20", "-n", "1", "--disable-dp", "--device", "cpu"]
    assert script.main([*options, "--lr", "0.1"])[0] > 0.25
    assert "epsilon" not in capsys.readouterr().out


def test_the_example_differs_from_an_opacus_script_in_its_import_alone() -> None:
    text = (ROOT / "examples" / "mnist.py").read_text()
    assert [line for line in text.splitlines() if "isthmus" in line.lower() and "ISTHMUS_DATA" not in line] == [
        "from isthmus import PrivacyEngine"
    ]


# ---------------------------------------------------------------- what a private pass leaves behind in a module


class Keeper(nn.Module):
    """Keeps something of its input, in the way that is asked for."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.inner = way, mlp()
        self.register_buffer("mu", torch.zeros(6, dtype=torch.float64))
        self.frozen = nn.Parameter(torch.zeros(6, dtype=torch.float64), requires_grad=False)
        self.plain, self.several, self.named = torch.zeros(6, dtype=torch.float64), [], {}

    def forward(self, x: Tensor) -> Tensor:
        keep = KEPT[self.way][1] if self.way in KEPT else HARMLESS[self.way]
        keep(self, x.detach().mean(0))
        return self.inner(x)


KEPT: dict[str, tuple[str, Any]] = {
    "in place": ("mu", lambda m, mean: m.mu.copy_(mean)),
    "assigned": ("mu", lambda m, mean: setattr(m, "mu", mean)),
    "assigned in part": ("mu", lambda m, mean: setattr(m, "mu", torch.cat([m.mu[:5], mean[5:]]))),
    "data": ("mu", lambda m, mean: setattr(m.mu, "data", mean)),
    "behind its back": ("mu", lambda m, mean: m.mu.data.copy_(mean)),
    "new buffer": ("fresh", lambda m, mean: m.register_buffer("fresh", mean)),
    "attribute": ("plain", lambda m, mean: setattr(m, "plain", mean)),
    "new attribute": ("another", lambda m, mean: setattr(m, "another", mean)),
    "list": (r"several\[0\]", lambda m, mean: m.several.append(mean)),
    "dict": (r"named\['mean'\]", lambda m, mean: m.named.update(mean=mean)),
    "frozen parameter": ("frozen", lambda m, mean: setattr(m, "frozen", nn.Parameter(mean, requires_grad=False))),
    "child": ("inner.0.seen", lambda m, mean: setattr(m.inner[0], "seen", mean)),
}
"""What a warning names, and how the mean of a batch is kept."""
HARMLESS = {
    "nothing": lambda m, mean: None,
    "recomputed": lambda m, mean: setattr(m, "plain", m.plain.clone()),  # the same numbers, of no data
}


@pytest.mark.parametrize("way", list(KEPT))
def test_what_is_kept_is_named_and_stated(way: str) -> None:
    run = private(Keeper(way), data(), noise_generator=None)
    x, _ = first(run)
    with pytest.warns(UserWarning, match=KEPT[way][0]):
        run.module(x)
    assert "NOT protected" in run.engine.statement(1e-5).words()


@pytest.mark.parametrize("way", list(HARMLESS))
def test_what_is_not_kept_is_not_named(way: str) -> None:
    run = train(private(Keeper(way), data(), noise_generator=None), 1)
    assert "NOT protected" not in run.engine.statement(1e-5).words()


def test_a_pass_without_gradients_keeps_nothing_unseen_either() -> None:
    run = private(Keeper("assigned"), data(), noise_generator=None)
    x, _ = first(run)
    with torch.no_grad(), pytest.warns(UserWarning, match="mu"):
        run.module(x)


# ---------------------------------------------------------------- raw gradients


def old_norm(**options: Any) -> nn.Module:
    module = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch has deprecated it
        nn.utils.weight_norm(module[0])
    return module


@pytest.mark.filterwarnings("ignore:.*weight_norm.*")
def test_an_old_weight_norm_is_refused_when_training_is_made_private() -> None:
    module = old_norm()
    with pytest.raises(InvalidInput, match="give the optimiser exactly the . parameters that the module trains"):
        private(module, data())
    module = old_norm()
    mine = [module[0].bias, *module[2].parameters()]
    with pytest.raises(InvalidInput, match="weight_g"):
        private(module, data(), optimizer=lambda _: torch.optim.SGD(mine, lr=0.1))
    assert all(p.grad is None for p in module.parameters())


@pytest.mark.filterwarnings("ignore:.*weight_norm.*")
def test_a_weight_norm_that_comes_later_is_refused_before_the_pass() -> None:
    run = private(mlp(), data())
    nn.utils.weight_norm(run.module[0])
    x, _ = first(run)
    with pytest.raises(InvalidInput, match=r"0.weight_g"):
        run.module(x)


class Sneaky(nn.Module):
    """Asks for raw gradients in the middle of a pass."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.inner, self.on = way, mlp(), False
        self.register_buffer("shift", torch.zeros(6, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        if self.on and self.way == "new parameter":
            self.scale = nn.Parameter(torch.ones(6, dtype=torch.float64))
            x = x * self.scale
        elif self.on and self.way == "buffer":
            x = x + self.shift.requires_grad_(True)
        elif self.on and self.way == "attribute":
            self.free = torch.ones(6, dtype=torch.float64, requires_grad=True)
            x = x * self.free
        return self.inner(x)


@pytest.mark.filterwarnings("ignore:the forward pass changed")
@pytest.mark.parametrize("way", ["new parameter", "buffer", "attribute"])
def test_a_pass_that_asks_for_raw_gradients_is_refused_when_it_ends(way: str) -> None:
    run = private(Sneaky(way), data())
    x, y = first(run)
    run.module.on = True
    with pytest.raises(InvalidInput, match="a gradient of their own"):
        F.cross_entropy(run.module(x), y).backward()
    assert all(p.grad is None for p in (*run.module.parameters(), run.module.shift))
    assert run.engine.ledger.rounds() == {}


def test_after_detach_gradients_are_torchs_own_again() -> None:
    run = train(private(mlp(), data()), 1)
    run.engine.detach()
    run.optimizer.zero_grad()
    F.cross_entropy(run.module(data().x), data().y).backward()
    assert all(p.grad is not None for p in run.module.parameters())
    run.module.extra = nn.Parameter(torch.ones(1))
    run.optimizer.add_param_group({"params": [run.module.extra]})


class ScaledLinear(nn.Module):
    """y = s (W x + b), or the same of a weight s W that was computed before."""

    def __init__(self, p: int, q: int, weight_first: bool = False) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(q, p) / p), nn.Parameter(torch.randn(q))
        self.scale, self.weight_first = nn.Parameter(torch.tensor(0.7)), weight_first

    def forward(self, x: Tensor) -> Tensor:
        if self.weight_first:
            return F.linear(x, self.scale * self.weight, self.scale * self.bias)
        return self.scale * F.linear(x, self.weight, self.bias)


class Largest(TorchDispatchMode):
    """How many numbers the largest tensor has that is computed meanwhile."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        self.numel = max([self.numel, *(x.numel() for x in tree_leaves(out) if isinstance(x, Tensor))])
        return out


LINEAR = {
    "linear": nn.Linear,
    "scaled": ScaledLinear,
    "weight first": lambda p, q: ScaledLinear(p, q, weight_first=True),
}


@pytest.mark.parametrize("places", [(), (3,)])
def test_a_scaled_linear_layer_keeps_factors_and_agrees_with_vmap(places: tuple[int, ...]) -> None:
    """No rule is needed; only a weight that is computed before it meets examples has rows as long as itself."""
    torch.manual_seed(0)
    n, p, q = 10, 400, 500  # smaller products at places are multiplied out for their norms, a chunk at a time
    x, y = torch.randn(n, *places, p, dtype=torch.float64), torch.randint(0, 3, (n,))
    largest = {}
    for name, kind in LINEAR.items():
        module = nn.Sequential(kind(p, q), nn.Tanh(), nn.Flatten(), nn.Linear(q * (3 if places else 1), 3)).double()
        plain = copy.deepcopy(module)
        module, engine = private_alone(module, n, max_grad_norm=0.5)
        clipped_sum(module, engine, x, y)  # the first batch is tried out too
        with Largest() as seen:
            found = clipped_sum(module, engine, x, y)
        largest[name] = seen.numel
        rows = per_example(plain, x, y)
        shares = (0.5 / torch.cat([row.view(n, -1) for row in rows.values()], 1).norm(dim=1)).clamp(max=1)
        assert float(shares.min()) < 1
        by_id = {id(w): torch.tensordot(shares, rows[own], 1) for own, w in plain.named_parameters()}
        exact = torch.cat([binding.packed(by_id) for binding in Layers(plain).bindings.values()])
        torch.testing.assert_close(found, exact, rtol=1e-9, atol=1e-9)
    assert max(largest["linear"], largest["scaled"]) < n * p * q <= largest["weight first"]


EXPERTS = 4


class Mixture(nn.Module):
    """Tokens go to the best `top` of four experts.

    how      "every": each expert computes all tokens, and gates of 0 drop what was not chosen; "chosen": an expert is
             handed the tokens that chose it; "capacity": an expert takes so many tokens of a batch, first come first
    balance  what is computed of how evenly experts are used: "batch", over all examples; "example", for each
    """

    def __init__(self, how: str, top: int = 2, balance: str = "") -> None:
        super().__init__()
        self.how, self.top, self.balance = how, top, balance
        self.embed, self.gate, self.out = nn.Linear(6, 8), nn.Linear(8, EXPERTS), nn.Linear(8, 3)
        self.experts = nn.ModuleList([nn.Linear(8, 8) for _ in range(EXPERTS)])

    def mixed(self, tokens: Tensor, weights: Tensor) -> Tensor:
        if self.how == "every":
            return sum(weights[:, e : e + 1] * expert(tokens) for e, expert in enumerate(self.experts))
        total = torch.zeros_like(tokens)
        for e, expert in enumerate(self.experts):
            chosen = weights[:, e] > 0
            if self.how == "capacity":
                chosen &= chosen.cumsum(0) <= len(tokens) * self.top // EXPERTS
            rows = chosen.nonzero()[:, 0]
            total = total.index_add(0, rows, weights[rows, e : e + 1] * expert(tokens[rows]))
        return total

    def forward(self, x: Tensor) -> Any:
        tokens = self.embed(x)
        shares = self.gate(tokens).softmax(-1)
        best, where = shares.topk(self.top, -1)
        weights = torch.zeros_like(shares).scatter(-1, where, best)
        mixed = self.mixed(tokens.flatten(0, 1), weights.flatten(0, 1)).view(tokens.shape)
        logits = self.out(mixed + tokens).mean(1)
        over = {"batch": (0, 1), "example": (1,)}.get(self.balance)
        if over is None:
            return logits
        return logits, ((weights > 0).float().mean(over) * shares.mean(over)).sum(-1)


def train_experts(module: Mixture) -> PrivacyEngine:
    """Four steps; epsilon says that they were paid for."""
    draws = torch.Generator().manual_seed(0)
    records = Indexed(torch.randn(32, 5, 6, generator=draws), torch.randint(0, 3, (32,), generator=draws))

    def loss(output: Any, y: Tensor) -> Tensor:
        logits, even = output if module.balance else (output, torch.zeros(()))
        return cross_entropy(logits, y) + even.mean()

    return cases.train(private(module, records, batch=8, criterion=None, noise_generator=None), 1, loss).engine


@pytest.fixture(autouse=True)
def weights() -> None:
    torch.manual_seed(0)


def frozen(module: Mixture) -> Mixture:
    module.experts.requires_grad_(False)
    return module


MEET, COUNT = "examples meet", "examples meet|saw .* examples where the module was given"
CASES: dict[str, tuple[Callable[[], Mixture], str]] = {
    "every token, one expert": (lambda: Mixture("every", 1), ""),
    "every token, two experts": (lambda: Mixture("every", 2), ""),
    "handed to frozen ones": (lambda: frozen(Mixture("chosen")), ""),
    "balance of examples": (lambda: Mixture("every", balance="example"), ""),
    "handed to one": (lambda: Mixture("chosen", 1), COUNT),
    "handed to two": (lambda: Mixture("chosen", 2), COUNT),
    "capacity": (lambda: Mixture("capacity"), MEET),
    "capacity of frozen ones": (lambda: frozen(Mixture("capacity")), MEET),
    "balance of the batch": (lambda: Mixture("every", balance="batch"), MEET),
}
"""Mixtures that train, and those that are refused: whether a token finds room depends on the examples before it."""


@pytest.mark.parametrize("name", CASES)
def test_mixtures_train_where_their_examples_stay_apart(name: str) -> None:
    make, refused = CASES[name]
    if refused:
        with pytest.raises(InvalidInput, match=refused):
            train_experts(make())
    else:
        assert len(train_experts(make()).accountant) == 4


def test_a_balance_of_the_batch_in_the_loss_of_the_loop_is_not_seen() -> None:
    """The gate's scores leave the module one example at a time; the loop then multiplies means over the batch.  What
    this does is why the statement names the loss among its assumptions: another example moves the gradients of all.
    """
    module = Mixture("every").double()
    x = torch.randn(3, 5, 6, dtype=torch.float64)

    def pull(tokens: Tensor) -> Tensor:
        shares = module.gate(module.embed(tokens)).softmax(-1)
        used = (shares > shares.topk(2, -1).values[..., -1:] - 1e-12).double()
        even = len(tokens) * (used.mean((0, 1)) * shares.mean((0, 1))).sum()  # a sum over examples, were it no product
        return torch.autograd.grad(even, module.gate.weight)[0]

    alone = pull(x[:1]) + pull(x[1:2]) + pull(x[2:])
    assert (pull(x) - alone).norm() > 0.1 * alone.norm()
    engine = train_experts(Mixture("every"))
    assert any("the loss is a mean (or sum) over them" in line for line in engine.statement(1e-3).assumptions)
