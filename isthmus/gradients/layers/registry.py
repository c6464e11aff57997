"""Which rule a layer has."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils.parametrize import ParametrizationList

from isthmus.base import validate
from isthmus.gradients.layers.attention import AttentionRule, OutputRule
from isthmus.gradients.layers.convolution import ConvolutionRule
from isthmus.gradients.layers.embedding import EmbeddingBagRule, EmbeddingRule
from isthmus.gradients.layers.normalisation import GroupNormRule, InstanceNormRule, LayerNormRule
from isthmus.gradients.layers.opened import OperationRule
from isthmus.gradients.layers.rules import LayerRule, LinearRule

RULES: list[type[LayerRule[Any, Any]]] = [OutputRule, LinearRule, AttentionRule]
RULES += [ConvolutionRule, LayerNormRule, GroupNormRule, InstanceNormRule, EmbeddingRule, EmbeddingBagRule]

REPLACE = "call `engine.get_compatible_module(module)` before making the optimiser, or freeze it"
REFUSED: list[tuple[tuple[type, ...], str]] = [
    ((LazyModuleMixin,), "has no parameters yet: run one batch through the module first"),
    ((_BatchNorm,), f"mixes the examples of a batch (put it in eval mode too if you freeze it): {REPLACE}"),
    ((nn.RNNBase,), f"computes all its steps in one call that shows no per-example gradient: {REPLACE}"),
    (
        (ParametrizationList,),
        "computes a weight from parameters without seeing examples: call "
        "`torch.nn.utils.parametrize.remove_parametrizations` first, or freeze it",
    ),
]
"""Kinds that have no per-example gradient, or whose gradient cannot be seen, and what to do about it."""


def rule_for(name: str, layer: nn.Module, batch_dim: int = 0) -> LayerRule[Any, Any]:
    """The rule of a layer that owns trainable parameters; a layer that cannot have one is refused with the remedy.

    A layer with an attribute `batch_dim` says itself where its examples are.

    >>> type(rule_for("fc", nn.Linear(2, 2))).__name__
    'LinearRule'
    >>> rule_for("norm", nn.BatchNorm1d(2))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    isthmus.base.validate.InvalidInput: module='BatchNorm1d' is not allowed: layer 'norm' mixes ...
    """
    for kinds, why in REFUSED:
        if isinstance(layer, kinds):
            validate.refuse("module", type(layer).__name__, f"layer {name!r} {why}")
    dim = getattr(layer, "batch_dim", batch_dim)
    for rule in RULES:
        for kind in rule.kinds:
            if isinstance(layer, kind) and type(layer).forward is kind.forward:
                return rule(dim)
    return OperationRule(dim)
