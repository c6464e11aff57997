"""`GradSampleModule`: what the module of private training answers to when Opacus' names are asked for."""

from __future__ import annotations

from typing import Any

from torch import nn

from isthmus.opacus_compat.refused import methods, refuse

RAW = (
    "call make_private, which clips and sums gradients from their factors, or engine.public_rows for public "
    "examples: those of single records are not kept and not shown"
)
END = "call engine.detach(): it gives module and optimiser back with what they have learned"


class GradSampleModule:
    """The class of a module while training is private, beside the module's own: nothing is wrapped.

    `_module` is the module itself, so that scripts which look inside a wrapper find it; `isinstance` holds.  There is
    no `grad_sample`: raw gradients of single records would be unprotected.
    """

    _plain: type[nn.Module]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        refuse("GradSampleModule", RAW)

    @property
    def _module(self) -> GradSampleModule:
        return self

    to_standard_module, remove_hooks = methods(END, "to_standard_module", "remove_hooks")
    (disable_hooks,) = methods("call module.eval() for passes of other data", "disable_hooks")

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copies and pickles are of the module's own class."""
        own, plain = type(self), self._plain
        reduced = plain.__reduce_ex__(self, 1)  # later protocols insist on the class it has now

        def named(part: Any) -> Any:
            return tuple(map(named, part)) if isinstance(part, tuple) else plain if part is own else part

        return tuple(map(named, reduced))


def put_on(module: nn.Module) -> nn.Module:
    """The same module, which answers to Opacus' names too.

    >>> module = put_on(nn.Linear(2, 2))
    >>> isinstance(module, GradSampleModule), isinstance(module, nn.Linear), module._module is module
    (True, True, True)
    >>> type(take_off(module)) is nn.Linear
    True
    """
    kind = type(module)
    names = {"_plain": kind, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    module.__class__ = type(kind.__name__, (GradSampleModule, kind), names)
    return module


def take_off(module: nn.Module) -> nn.Module:
    """The same module, of its own class again."""
    if isinstance(module, GradSampleModule):
        module.__class__ = module._plain  # type: ignore[assignment]
    return module
