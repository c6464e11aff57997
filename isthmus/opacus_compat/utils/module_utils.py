"""Small questions about modules, under Opacus' names."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn


def trainable_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters that are trained, with their names."""
    return ((name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad)


def trainable_modules(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The layers with parameters of their own that are trained, with their names."""
    return ((name, layer) for name, layer in module.named_modules() if has_trainable_params(layer))


def has_trainable_params(module: nn.Module) -> bool:
    """Whether a layer has a parameter of its own that is trained.

    >>> has_trainable_params(nn.Linear(1, 1)), has_trainable_params(nn.ReLU())
    (True, False)
    """
    return any(parameter.requires_grad for parameter in module.parameters(recurse=False))


def clone_module(module: nn.Module) -> nn.Module:
    """A copy, free of any engine."""
    return copy.deepcopy(module)


def are_state_dict_equal(one: Mapping[str, Tensor], two: Mapping[str, Tensor]) -> bool:
    """Whether two state dicts have the same names and numbers."""
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)
