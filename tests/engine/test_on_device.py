"""A GPU computes, with recordings and without, the clipped sums that the CPU computes; skipped where there is none."""

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from attack.modules import CLASSES, ZOO, built, flat, inputs
from engine_cases import sums
from mixing_cases import private
from torch import Tensor, nn

from isthmus import Kronecker
from isthmus.core.driver import Ticket
from isthmus.privacy.clips import ClippedSum

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
N = 12
MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...] | None]] = {
    **{name: entry for name, entry in ZOO.items() if name not in ("linear", "idle")},
    "positions": (lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(), flat()), (4, 6)),
    "padded": (lambda: nn.Sequential(nn.Conv2d(1, 3, 3, 2, 1), nn.Tanh(), nn.AdaptiveAvgPool2d(2), flat()), (1, 6, 6)),
    "conv3d": (lambda: nn.Sequential(nn.Conv3d(1, 1, 2), flat()), (1, 3, 3, 3)),
    "instance norm": (lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.InstanceNorm2d(4, affine=True), flat()), (1, 5, 5)),
    "rms norm": (lambda: nn.Sequential(nn.Linear(6, 8), nn.RMSNorm(8), flat()), (6,)),
}


def summed(name: str, device: str, dtype: torch.dtype, options: dict[str, Any], keep: slice) -> dict[str, ClippedSum]:
    """The bounded sums of one batch, as they would be handed to the mechanisms."""
    module, g = built(*MODULES[name]).to(device, dtype), torch.Generator().manual_seed(1)
    x = inputs(N, MODULES[name][1], g)
    x, y = (3 * x.to(dtype) if x.is_floating_point() else x)[keep], torch.randint(0, CLASSES, (N,), generator=g)[keep]
    _, engine = private(module, 4, loss_reduction="mean", max_grad_norm=0.3, **options)
    return sums(engine, lambda: F.cross_entropy(module(x.to(device)), y.to(device)), len(x))


@pytest.mark.parametrize("options", [{}, {"clipping": "per_layer"}, {"sketch": Kronecker(2, 2)}], ids=str)
@pytest.mark.parametrize("name", MODULES)
def test_a_device_sums_what_the_cpu_sums(name: str, options: dict[str, Any]) -> None:
    here, there = (summed(name, device, torch.float64, options, slice(None)) for device in ("cpu", "cuda"))
    near = {"rtol": 1e-6, "atol": 1e-7} if "sketch" in options else {"rtol": 1e-9, "atol": 1e-10}
    for release, bounded in here.items():  # a device draws its maps in float32
        torch.testing.assert_close(there[release].value.cpu().double(), bounded.value.double(), **near)


@pytest.mark.parametrize("options", [{}, {"clipping": "per_layer"}], ids=str)
@pytest.mark.parametrize("name", MODULES)
def test_the_kernels_of_a_device_sum_what_the_cpu_sums(
    name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    here, there = (summed(name, device, torch.float32, options, slice(None)) for device in ("cpu", "cuda"))
    for release, bounded in here.items():
        assert there[release].bound == bounded.bound
        torch.testing.assert_close(there[release].value.cpu().double(), bounded.value.double(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize("name", MODULES)
def test_one_record_moves_a_sum_by_at_most_its_bound(name: str, tf32: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", tf32)
    with_it, without = (summed(name, "cuda", torch.float32, {}, keep) for keep in (slice(None), slice(1, None)))
    for release, bounded in with_it.items():
        moved = float((bounded.value.double() - without[release].value.double()).norm())
        assert 0 < moved <= bounded.bound


TEXTS, TOKENS, WORDS, STEPS = 8, 16, 40, 40


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
    x, y = (torch.randint(0, WORDS, (TEXTS, TOKENS), device="cuda") for _ in range(2))
    settings = {"noise_multiplier": 1e-9, "max_grad_norm": 0.3, "loss_reduction": "mean", **options}
    _, engine = private(module, TEXTS, 0.5, noise_generator=torch.Generator().manual_seed(3), **settings)
    sgd = engine.driver.optimizer
    engine.driver.pending.replay.on = engine.driver._writer.replay.on = recorded

    def step(number: int) -> None:  # what it computes is gone when it ends, and memory comes back to its places
        engine.driver.begin(Ticket(TEXTS))
        sgd.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=low):
            out = module(x)
        scale = torch.ones(TEXTS, 1, 1, device="cuda")
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
