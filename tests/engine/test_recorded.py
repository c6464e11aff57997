"""A device that runs a recorded step gives what it gives without recordings; skipped where there is no GPU."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from mixing_cases import private
from torch import Tensor, nn

from isthmus import Kronecker
from isthmus.core.driver import Ticket

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
N, TOKENS, WORDS, STEPS = 8, 16, 40, 40


class Text(nn.Module):
    """Words, a block with a norm layer, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(WORDS, 32), nn.LayerNorm(32)
        self.up, self.down, self.head = nn.Linear(32, 300), nn.Linear(300, 32), nn.Linear(32, WORDS, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.words(x)
        return self.head(h + self.down(F.gelu(self.up(self.norm(h)))))


def trained(
    options: dict[str, Any], recorded: bool, spoilt: int | None = None, low: bool = False
) -> tuple[Any, Tensor]:
    """The engine and the weights after some steps of one batch, in step `spoilt` with a record of no finite loss."""
    gc.collect()  # what other tests left would be freed in the middle, and memory come to other places
    torch.cuda.empty_cache()
    torch.manual_seed(0)
    module = Text().cuda()
    x, y = (torch.randint(0, WORDS, (N, TOKENS), device="cuda") for _ in range(2))
    settings = {"noise_multiplier": 1e-9, "max_grad_norm": 0.3, "loss_reduction": "mean", **options}
    _, engine = private(module, N, 0.5, noise_generator=torch.Generator().manual_seed(3), **settings)
    sgd = engine.driver.optimizer
    engine.driver.pending.replay.on = engine.driver._writer.replay.on = recorded

    def step(number: int) -> None:  # what it computes is gone when it ends, and memory comes back to its places
        engine.driver.begin(Ticket(N))
        sgd.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=low):
            out = module(x)
        scale = torch.ones(N, 1, 1, device="cuda")
        scale[0] = torch.inf if number == spoilt else 1.0
        F.cross_entropy((out * scale).flatten(0, 1).float(), y.flatten()).backward()
        sgd.step()

    for number in range(STEPS):
        step(number)
    return engine, torch.cat([p.detach().flatten() for p in module.parameters()])


@pytest.mark.parametrize("low", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("spoilt", [None, STEPS - 2])
@pytest.mark.parametrize("options", [{}, {"clipping": "per_layer"}, {"sketch": Kronecker(4, 4)}], ids=str)
def test_recorded_steps_are_the_ordinary_ones(options: dict[str, Any], spoilt: int | None, low: bool) -> None:
    _, plain = trained(options, False, spoilt, low)
    engine, found = trained(options, True, spoilt, low)
    assert engine.driver.pending.replay.runs > 2, engine.driver.pending.replay.why
    if "sketch" in options:
        assert engine.driver._writer.replay.runs > 2, engine.driver._writer.replay.why
    assert bool(found.isfinite().all())
    torch.testing.assert_close(found, plain, rtol=1e-4, atol=1e-5)


def test_a_record_that_is_left_out_leaves_the_others() -> None:
    """With an infinite loss of one record a recorded sum is that of the others."""
    with_it = trained({}, True, STEPS - 1)[1]
    without = trained({}, True)[1]
    assert bool(with_it.isfinite().all()) and not torch.equal(with_it, without)
