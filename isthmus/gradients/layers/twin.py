"""A copy of a module to try things on, and the random generators put back as they were."""

from __future__ import annotations

import copy
import random
from collections.abc import Set
from types import FunctionType, MethodType
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn

from isthmus.base import validate

PLAIN = (nn.Module, dict, list, tuple, set, frozenset, str, bytes, int, float, complex, bool, type(None), type)


def _twin_of(module: nn.Module, trained: Set[str]) -> nn.Module:
    """A copy that shares the memory of the parameters and nothing else that a pass may change, free of our taps.

    The parameters named in `trained` ask for gradients, the others do not.  Objects that are neither tensors nor
    modules nor Python's containers (a tokenizer, a logger) are shared.

    >>> module = nn.Linear(2, 2)
    >>> twin = _twin_of(module, {"weight"})
    >>> twin.weight.data_ptr() == module.weight.data_ptr(), twin.weight.requires_grad, twin.bias.requires_grad
    (True, True, False)
    """
    memo: dict[int, object] = {}
    for name, parameter in module.named_parameters():
        memo[id(parameter)] = nn.Parameter(parameter.detach(), requires_grad=name in trained)
    for layer in module.modules():
        for value in vars(layer).values():
            if isinstance(value, Tensor):
                memo.setdefault(id(value), value.detach().clone())  # what a pass has left behind has a history
            elif isinstance(value, torch.Generator):
                memo[id(value)] = value.clone_state()
            elif not isinstance(value, PLAIN) and not _ours(value):
                memo[id(value)] = value
    try:
        twin = copy.deepcopy(module, memo)
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        raise validate.InvalidInput(
            f"module={type(module).__name__!r} is not allowed: keep out of it what copy.deepcopy cannot copy "
            f"({reason}); a copy of the module has to be tried out before it is trusted with private examples"
        ) from error
    for layer in twin.modules():
        if getattr(vars(layer).get("forward"), "tapped", False):
            del layer.forward
    return twin


def _generator_states(module: nn.Module) -> list[bytes]:
    """The states of the generators that a module's layers hold themselves."""
    attributes = [value for layer in module.modules() for value in vars(layer).values()]
    return [bytes(x.get_state().tolist()) for x in attributes if isinstance(x, torch.Generator)]


def _ours(value: object) -> bool:
    """Whether an attribute must be bound to the copy: a method of a module."""
    return isinstance(value, FunctionType) or (isinstance(value, MethodType) and isinstance(value.__self__, nn.Module))


class Dice:
    """The global random generators of torch, numpy and Python: `rewind` makes them draw the same again.

    >>> with Dice(torch.device("cpu")) as dice:
    ...     a = torch.rand(1)
    ...     dice.rewind()
    ...     bool(torch.rand(1) == a), dice.drew()
    (True, True)
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._backend = device, None if device.type == "cpu" else torch.get_device_module(device)
        self._states = torch.get_rng_state(), random.getstate(), np.random.get_state()
        self._own = torch.empty(0) if self._backend is None else self._backend.get_rng_state(device)
        self._drawn = _host_draws()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.rewind()

    def rewind(self) -> None:
        """As they were when this was made."""
        of_torch, of_python, of_numpy = self._states
        torch.set_rng_state(of_torch)
        random.setstate(of_python)
        np.random.set_state(of_numpy)
        if self._backend is not None:
            self._backend.set_rng_state(self._own, self._device)

    def drew(self) -> bool:
        """Whether anything was drawn since."""
        if self._backend is not None and not torch.equal(self._own, self._backend.get_rng_state(self._device)):
            return True
        return self._drawn != _host_draws()


def _host_draws() -> tuple[bytes, object, object]:
    """The states of the generators on the host, by which it is seen that something was drawn."""
    words = np.random.get_state(legacy=False)["state"]
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), (words["pos"], words["key"].tobytes())
