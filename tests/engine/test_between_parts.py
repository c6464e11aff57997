"""A loop that calls the parts of a module by themselves: what it does between them is tried out as the module is."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from engine_cases import sums
from mixing_cases import private
from test_mixing import APART, MEETING
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from isthmus import InvalidInput, PrivacyEngine
from isthmus.core.driver import Ticket
from isthmus.gradients.layers import trial
from isthmus.gradients.layers.trial import _Followed

pytestmark = pytest.mark.filterwarnings("ignore:the layers .* took no part")
N = 24
Loop = Callable[[nn.Module, Tensor], Tensor]


class Parts(nn.Module):
    """A body and a head; its own forward keeps examples apart."""

    def __init__(self, body: nn.Module | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6)) if body is None else body
        self.head, self.other = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def records(n: int = N) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    return torch.randn(n, 6, generator=g), torch.randint(0, 3, (n,), generator=g)


def total(module: nn.Module, engine: Any, loop: Loop, x: Tensor, y: Tensor, loss: Any = F.cross_entropy) -> Tensor:
    """The clipped sum of a loop of one's own, just before the noise."""
    return sums(engine, lambda: loss(loop(module, x), y, reduction="sum"), len(x))["gradient"].value.double()


def refused(words: str, loop: Loop, n: int = N, module: nn.Module | None = None) -> PrivacyEngine:
    module, engine = private(module or Parts(), n)
    with pytest.raises(InvalidInput, match=words):
        total(module, engine, loop, *records(n))
    return engine


def between(case: str) -> Loop:
    """A loop with the code of a case between its two parts."""
    return lambda module, x: module.head((MEETING | APART)[case](module.body(x), module))


READ = ("branch above", "branch below", "divided by their number")
"""Code that Python decides by a number of the batch, or by its size."""


@pytest.mark.parametrize("case", [case for case in MEETING if case not in READ])
@pytest.mark.parametrize("n", [3, 40])
def test_examples_that_meet_between_two_parts_are_refused_before_their_gradients_are_used(case: str, n: int) -> None:
    engine = refused("examples meet in the module", between(case), n)
    assert engine.driver._sum is None and len(engine.accountant) == 0
    assert not engine.driver._accumulator.told and not engine.driver._between.steps


DETACHED: dict[str, Loop] = {
    "a mean that has no gradient": lambda m, x: m.head((h := m.body(x)) - h.detach().mean(0)),
    "a sign of the mean": lambda m, x: m.head((h := m.body(x)) * (h.mean(0) > 0)),
    "features without a gradient": lambda m, x: m.head((h := m.body(x).detach()) - h.mean(0)),
    "in place": lambda m, x: m.head(m.body(x).sub_(m.body(x).mean(0))),
    "written into": lambda m, x: m.head(written(m.body(x))),
    "by name": lambda m, x: m.head(input=(h := m.body(x)) - h.mean(0)),
    "beside other examples": lambda m, x: m.head(m.body(x) * torch.cat([m.body(x)[1:], x[:1]])),
}


def written(h: Tensor) -> Tensor:
    out = h * 1
    out[0] = h.mean(0)
    return out


@pytest.mark.parametrize("case", READ)
def test_numbers_that_python_reads_between_parts_are_assumed_to_be_the_loops_own(case: str) -> None:
    """What docs/privacy.md leaves to the loop: inside the module's own forward the same code is refused."""
    module, engine = private(Parts(), N)
    assert total(module, engine, between(case), *records()).isfinite().all()


@pytest.mark.parametrize("case", DETACHED)
def test_meetings_that_leave_no_trace_in_the_graph_are_found_too(case: str) -> None:
    refused("examples meet in the module", DETACHED[case])


class Centred(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


def test_a_part_in_which_examples_meet_is_refused_although_the_module_itself_is_never_called() -> None:
    body = nn.Sequential(nn.Linear(6, 6), Centred())
    refused("examples meet in the module", lambda m, x: m.body(x)[:, :3], module=Parts(body))


@pytest.mark.parametrize("case", APART)
def test_loops_that_keep_examples_apart_pass_at_every_batch(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "AGAIN", 1)
    module, engine = private(Parts(), N)
    torch.seed()  # a loop that draws under a known seed is warned
    for n in (N, N - 1, N):
        total(module, engine, between(case), *records(n))


SAME: dict[str, tuple[Loop, Loop]] = {
    "one after the other": (lambda m, x: m.head(m.body(x)), lambda m, x: m(x)),
    "flattened": (lambda m, x: m.head(m.body(x).relu().view(len(x), -1)), lambda m, x: m.head(m.body(x).relu())),
    "two heads": (lambda m, x: m.head(h := m.body(x)) + m.other(F.normalize(h, dim=1)), None),
    "own linear algebra": (lambda m, x: m.head(torch.einsum("np,nq->nq", h := m.body(x), h)), None),
    "parts of examples": (lambda m, x: m.head(torch.stack([h := m.body(x), x], 1).mean(1)) + 0 * h[:, :3], None),
    "in place": (lambda m, x: m.head(m.body(x).relu_()), None),
}


@pytest.mark.parametrize("case", SAME)
def test_a_loop_of_parts_has_the_sum_of_a_module_that_does_the_same(case: str) -> None:
    loop, plain = SAME[case]

    class Whole(Parts):
        def forward(self, x: Tensor) -> Tensor:
            return (plain or loop)(self, x) if plain is not SAME["one after the other"][1] else super().forward(x)

    x, y = records()
    module, engine = private(Parts(), N)
    whole, other = private(Whole(), N)
    found = total(module, engine, loop, x, y)
    torch.testing.assert_close(found, total(whole, other, lambda m, x: m(x), x, y), rtol=1e-5, atol=1e-6)


def test_what_cannot_be_followed_is_refused() -> None:
    refused("cannot be followed", lambda m, x: m.head(torch.vmap(torch.tanh)(m.body(x))))
    refused("cannot be followed", lambda m, x: m.other(F.pad(m(x), (0, 3))))  # the module itself returns plain tensors


@pytest.mark.parametrize("mixes", [True, False])
def test_parts_under_activation_checkpointing_are_followed(mixes: bool) -> None:
    def loop(module: nn.Module, x: Tensor) -> Tensor:
        h = checkpoint(module.body, x, use_reentrant=False)
        return module.head(h - h.mean(0) if mixes else h.relu())

    if mixes:
        refused("examples meet", loop)
    else:
        module, engine = private(Parts(), N)
        assert total(module, engine, loop, *records()).isfinite().all()


def test_a_part_that_computes_inside_the_backward_pass_only_is_refused() -> None:
    def loop(module: nn.Module, x: Tensor) -> Tensor:
        return module.head(checkpoint(module.body, x.requires_grad_(), use_reentrant=True))

    refused("use_reentrant=False", loop)


def test_what_the_module_returns_may_go_into_a_part_as_it_is() -> None:
    class Wide(Parts):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(6, 6)

    module, engine = private(Wide(), N)
    assert total(module, engine, lambda m, x: m.other(m(x)), *records()).isfinite().all()


def test_examples_moved_by_their_own_gradient_between_parts() -> None:
    def loop(module: nn.Module, x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        (push,) = torch.autograd.grad(module.body(x).sum(), x)
        return module.head(module.body(x + 0.1 * push.sign()))

    module, engine = private(Parts(), N)
    assert total(module, engine, loop, *records()).isfinite().all()


def test_tensors_are_plain_again_once_their_batch_is_over() -> None:
    module, engine = private(Parts(), N)
    kept: list[Tensor] = []

    def loop(module: nn.Module, x: Tensor) -> Tensor:
        kept.append(module.body(x))
        return module.head(kept[-1])

    for _ in range(2):
        total(module, engine, loop, *records())
    assert type(kept[0]) is _Followed and type(kept[0] + 1) is Tensor
    assert kept[0].way.steps == [] and kept[0].way.given == {}


def test_a_loop_takes_part_only_with_the_batch_in_hand() -> None:
    """What holds for the module holds for its parts: batches that were read ahead, norms that were switched on."""
    norm = nn.BatchNorm1d(6, affine=False).eval()
    module, engine = private(Parts(nn.Sequential(nn.Linear(6, 6), norm)), N)
    with pytest.raises(InvalidInput, match="takes statistics from the batch"):
        module.train()
        total(module, engine, lambda m, x: m.head(m.body(x)), *records())
    module, engine = private(Parts(), N)
    engine.driver.begin(Ticket(N))
    with (
        pytest.warns(UserWarning, match="no step was taken"),
        pytest.raises(InvalidInput, match="before the one before it was used"),
    ):
        total(module, engine, lambda m, x: m.head(m.body(x)), *records())


def noisy(x: Tensor) -> Tensor:
    torch.manual_seed(0)
    return 3 * torch.randn(x.shape)


def assumed(loop: Loop, loss: Any = F.cross_entropy) -> float:
    """How far a record in front moves the sum, in bounds of one record, where an assumption is false."""
    x, y = records(200)
    x[0] = 1e3
    module, engine = private(Parts(), 200)
    first = total(module, engine, loop, x, y, loss)
    engine.driver.rest()
    return float((first - total(module, engine, loop, x[1:], y[1:], loss)).norm())


def test_draws_of_the_loop_itself_are_its_own_business() -> None:
    """Noise that a loop adds to the records by a known seed: it is assumed that there is none, and warned of."""
    with pytest.warns(UserWarning, match="drew random numbers for a private batch"):
        assert assumed(lambda m, x: m(noisy(x) + x)) > 3
    assert assumed(lambda m, x: m(x)) <= 1 + 1e-4


def test_what_a_loop_does_before_the_module_is_its_own_business() -> None:
    assert assumed(lambda m, x: m(x - x.mean(0))) > 1.5
