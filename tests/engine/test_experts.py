"""What docs/models.md says of mixtures of experts, whose tokens are routed by their own numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import engine_cases as cases
import pytest
import torch
from engine_cases import Indexed, private
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from isthmus import InvalidInput, PrivacyEngine

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


def train(module: Mixture) -> PrivacyEngine:
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
            train(make())
    else:
        assert len(train(make()).accountant) == 4


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
    engine = train(Mixture("every"))
    assert any("the loss is a mean (or sum) over them" in line for line in engine.statement(1e-3).assumptions)
