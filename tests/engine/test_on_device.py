"""A GPU computes the clipped sums that the CPU computes, for every kind of layer; skipped where there is none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from engine_cases import sums
from mixing_cases import private
from torch import Tensor, nn

from isthmus import Kronecker
from isthmus.modules import GRU, LSTM, RNN
from isthmus.privacy.clips import ClippedSum

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
N, CLASSES = 12, 3


class First(nn.Module):
    """A layer that returns more than its output, then a mean over positions."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)[0].mean(1)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x, x, x, need_weights=False)[0].mean(1)


class Words(nn.Module):
    """An embedding tied to the output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(CLASSES, 4), nn.Linear(4, CLASSES, bias=False)
        self.out.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.words(x)).mean(1))


class Bare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.randn(4, 6))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x @ self.a.T)


def head(width: int, *layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(width, CLASSES))


MODULES: dict[str, tuple[Any, tuple[int, ...] | None]] = {
    "linear": (lambda: head(5, nn.Linear(6, 5), nn.ReLU()), (6,)),
    "positions": (lambda: head(20, nn.Linear(6, 5), nn.ReLU()), (4, 6)),
    "conv1d": (lambda: head(12, nn.Conv1d(2, 3, 3)), (2, 6)),
    "conv2d": (
        lambda: head(12, nn.Conv2d(1, 3, 3, stride=2, padding=1), nn.Tanh(), nn.AdaptiveAvgPool2d(2)),
        (1, 6, 6),
    ),
    "conv3d": (lambda: head(8, nn.Conv3d(1, 1, 2)), (1, 3, 3, 3)),
    "groups": (lambda: head(36, nn.Conv2d(2, 4, 2, groups=2)), (2, 4, 4)),
    "layer norm": (lambda: head(8, nn.Linear(6, 8), nn.LayerNorm(8)), (6,)),
    "group norm": (lambda: head(36, nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4)), (1, 5, 5)),
    "instance norm": (lambda: head(36, nn.Conv2d(1, 4, 3), nn.InstanceNorm2d(4, affine=True)), (1, 5, 5)),
    "rms norm": (lambda: head(8, nn.Linear(6, 8), nn.RMSNorm(8)), (6,)),
    "embedding": (lambda: head(20, nn.Embedding(CLASSES, 4)), None),
    "tied": (Words, None),
    "attention": (lambda: head(4, Attention()), (5, 4)),
    "rnn": (lambda: head(4, First(RNN(3, 4, batch_first=True))), (5, 3)),
    "gru": (lambda: head(4, First(GRU(3, 4, batch_first=True))), (5, 3)),
    "lstm": (lambda: head(4, First(LSTM(3, 4, batch_first=True))), (5, 3)),
    "bare": (lambda: head(4, Bare()), (6,)),
}


def summed(name: str, device: str, dtype: torch.dtype, options: dict[str, Any], keep: slice) -> dict[str, ClippedSum]:
    """The bounded sums of one batch, as they would be handed to the mechanisms."""
    torch.manual_seed(0)
    build, shape = MODULES[name]
    module = build().to(device, dtype)
    g = torch.Generator().manual_seed(1)
    x = torch.randint(0, CLASSES, (N, 5), generator=g) if shape is None else torch.randn(N, *shape, generator=g) * 3
    x, y = (x if shape is None else x.to(dtype))[keep], torch.randint(0, CLASSES, (N,), generator=g)[keep]
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
def test_one_record_moves_a_sum_by_at_most_its_bound(name: str, tf32: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = tf32
    try:
        with_it, without = (summed(name, "cuda", torch.float32, {}, keep) for keep in (slice(None), slice(1, None)))
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False
    for release, bounded in with_it.items():
        moved = float((bounded.value.double() - without[release].value.double()).norm())
        assert 0 < moved <= bounded.bound
