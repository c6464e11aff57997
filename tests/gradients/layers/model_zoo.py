"""Models people bring, tiny and with random weights: what to build, what to feed, and what is known of each."""

import copy
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils._pytree import tree_flatten

from isthmus.base.validate import InvalidInput
from isthmus.gradients import Stack
from isthmus.gradients.layers import Layers
from isthmus.gradients.layers.trial import look
from isthmus.gradients.rows import total

WORDS, LENGTH, N = 23, 7, 5
COMMON = {"vocab_size": WORDS, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
PICTURE = {"image_size": 8, "patch_size": 4, "num_channels": 3}


@dataclass(frozen=True)
class Verdict:
    """What became of a model: "exact", or "refused" (and the message)."""

    outcome: str
    message: str = ""
    worst: float = 0.0


def words(seed=0, length=LENGTH, n=N):
    draws = torch.Generator().manual_seed(seed)
    return {"input_ids": torch.randint(3, WORDS, (n, length), generator=draws)}


def masked_words():
    mask = torch.ones(N, LENGTH, dtype=torch.long)
    mask[1, 4:] = 0
    mask[3, 6:] = 0
    return {**words(), "attention_mask": mask}


def pictures():
    return {"pixel_values": torch.randn(N, 3, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)}


def judge(model: nn.Module, inputs: dict, tolerance: float = 1e-9) -> Verdict:
    """Per-example gradients of a model against one backward pass an example, in float64."""
    model = model.double()
    draws = torch.Generator().manual_seed(2)
    with torch.no_grad():  # weights that begin at zero would hide the gradients of others
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=draws, dtype=torch.float64))
    layers = Layers(copy.deepcopy(model))
    try:
        layers.attach()
        look(layers, (), inputs, N)
        rows = _captured(layers, inputs)
    except InvalidInput as error:
        return Verdict("refused", str(error))
    exact = _truth(layers, model, inputs)
    found = rows.dense()
    gap = 0.0
    for leaf in layers.space.leaves:
        mine, theirs = (x[:, leaf.start : leaf.start + leaf.size] for x in (found, exact))
        assert theirs.norm() > 0, leaf.name
        least = 1e-6 * exact.norm()  # softmax takes no notice of the bias of a key: its gradient is rounding
        gap = max(gap, float((mine - theirs).norm() / torch.maximum(theirs.norm(), least)))
    return Verdict("exact" if gap < tolerance else "wrong", "", float(gap))


def _captured(layers: Layers, inputs: dict) -> Stack:
    seen = {leaf.name: [] for leaf in layers.space.leaves}
    with layers.listening(lambda name, rows: seen[name].append(rows), N):
        _loss(layers.module(**inputs), range(N)).backward()
    return Stack([(name, total(pieces)) for name, pieces in seen.items()])


def _truth(layers: Layers, model: nn.Module, inputs: dict) -> torch.Tensor:
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    theirs = dict(layers.module.named_parameters())
    rows = []
    for i in range(N):
        options = {name: x[i : i + 1] for name, x in inputs.items()}
        loss = _loss(model(**options), [i])
        gradients = torch.autograd.grad(loss, list(named.values()), materialize_grads=True)
        table = {id(theirs[name]): g for name, g in zip(named, gradients, strict=True)}
        rows.append(torch.cat([binding.packed(table) for binding in layers.bindings.values()]))
    return torch.stack(rows)


def _loss(output, examples) -> torch.Tensor:
    """A sum over examples and outputs of sin(output) times numbers that differ everywhere."""
    outputs = [x for x in tree_flatten(output)[0] if isinstance(x, torch.Tensor) and x.requires_grad]
    total = 0.0
    for x in outputs:
        assert len(x) == len(examples), x.shape
        for row, i in zip(x, examples, strict=True):
            draws = torch.Generator().manual_seed(100 + i)
            total = total + (row.sin() * torch.randn(row.shape, generator=draws, dtype=torch.float64)).sum()
    return total
