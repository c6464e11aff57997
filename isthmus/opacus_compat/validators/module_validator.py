"""`ModuleValidator`: what stands between a module and per-example gradients, and a copy without that."""

from __future__ import annotations

from typing import Any

from torch import nn

from isthmus import modules
from isthmus.base import validate
from isthmus.opacus_compat.validators.errors import (
    IllegalModuleConfigurationError,
    ShouldReplaceModuleError,
    UnsupportedModuleError,
)


class ModuleValidator:
    """Validates and repairs modules.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    >>> ModuleValidator.is_valid(net), ModuleValidator.is_valid(ModuleValidator.fix(net))
    (False, True)
    """

    @classmethod
    def validate(cls, module: nn.Module, *, strict: bool = False) -> list[UnsupportedModuleError]:
        """Every error of a module; `strict` raises them in one message."""
        problems = [problem for problem in modules.validate(module) if problem.kind == "error"]
        if strict and problems:
            raise UnsupportedModuleError("\n".join(map(str, problems)))
        return [
            ShouldReplaceModuleError(str(problem))
            if "get_compatible_module" in problem.remedy
            else IllegalModuleConfigurationError(str(problem))
            for problem in problems
        ]

    @classmethod
    def is_valid(cls, module: nn.Module) -> bool:
        """Whether a module has no error."""
        return not cls.validate(module)

    @classmethod
    def fix(cls, module: nn.Module, *, num_groups: int | None = None, replace_bn_with_in: bool = False) -> nn.Module:
        """A copy with layers that keep examples apart: make the optimiser after it, from the copy's parameters.

        num_groups  of every group norm that takes the place of a batch norm
        """
        remedy = "put nn.InstanceNorm in the place of these layers yourself: here they become group norms"
        validate.check(not replace_bn_with_in, "replace_bn_with_in", replace_bn_with_in, remedy)
        return modules.get_compatible_module(module, num_groups=num_groups)

    @classmethod
    def fix_and_validate(cls, module: nn.Module, **kwargs: Any) -> nn.Module:
        """`fix`, and an error where something is left."""
        fixed = cls.fix(module, **kwargs)
        cls.validate(fixed, strict=True)
        return fixed
