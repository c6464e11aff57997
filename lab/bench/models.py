"""The networks of the step benchmarks, and batches of the right shape."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lab.reproduce.paper_004.training import network

BATCH = {"mlp": 256, "cnn": 250, "transformer": 64, "embedding": 256}
WORDS = 50_000


class Patches(nn.Module):
    """28 x 28 images as 64 tokens: padded to 32 x 32 and cut into 4 x 4 patches."""

    def forward(self, x: Tensor) -> Tensor:
        """(n, 28, 28) to (n, 64, 16)."""
        x = nn.functional.pad(x.reshape(-1, 28, 28), (2, 2, 2, 2))
        return x.unfold(1, 4, 4).unfold(2, 4, 4).reshape(len(x), 64, 16)


class MeanPool(nn.Module):
    """The mean over positions."""

    def forward(self, x: Tensor) -> Tensor:
        """(n, positions, width) to (n, width)."""
        return x.mean(1)


def mlp() -> nn.Module:
    """784-1024-1024-10."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
    )


def cnn() -> nn.Module:
    """Paper 004's network, d = 26,010."""
    return network()


def transformer(layers: int = 6, width: int = 128) -> nn.Module:
    """Encoder layers over 64 positions."""
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
    return nn.Sequential(
        Patches(),
        nn.Linear(16, width),
        nn.TransformerEncoder(layer, layers, enable_nested_tensor=False),
        MeanPool(),
        nn.Linear(width, 10),
    )


def embedding() -> nn.Module:
    """A table of words, mean pooling and a classifier."""
    return nn.Sequential(nn.Embedding(WORDS, 64), MeanPool(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": mlp,
    "cnn": cnn,
    "transformer": transformer,
    "embedding": embedding,
}


def batch(model: str, n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random inputs of the right shape and labels: time and memory do not depend on the values."""
    g = torch.Generator().manual_seed(seed)
    if model == "embedding":
        return torch.randint(0, WORDS, (n, 128), generator=g), torch.randint(0, 2, (n,), generator=g)
    return torch.rand(n, 28, 28, generator=g), torch.randint(0, 10, (n,), generator=g)


def wide(width: int, inputs: int = 1024) -> nn.Module:
    """An MLP of four hidden layers."""
    sizes = [inputs, *[width] * 4]
    hidden = [layer for a, b in zip(sizes, sizes[1:], strict=False) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(width, 10))


class Block(nn.Module):
    """Attention and a feed-forward layer, normalised before."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """One block."""
        n, t, width = x.shape
        shape = (n, t, 3, self.heads, width // self.heads)
        q, k, v = self.qkv(self.norm1(x)).view(shape).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(n, t, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    """Words and positions, blocks, a head over the words."""

    def __init__(self, words: int, width: int, layers: int, tokens: int) -> None:
        super().__init__()
        self.word, self.place = nn.Embedding(words, width), nn.Embedding(tokens, width)
        self.blocks = nn.ModuleList(Block(width, max(1, width // 64)) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, index: Tensor) -> Tensor:
        """Logits of the next words."""
        places = torch.arange(index.shape[1], device=index.device).expand_as(index).contiguous()
        x = self.word(index) + self.place(places)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))
