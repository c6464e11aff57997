"""Which rule a layer has."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils.parametrize import ParametrizationList

from isthmus import _validate
from isthmus.gradients.layers.attention import AttentionRule
from isthmus.gradients.layers.general import FunctionRule
from isthmus.gradients.layers.rules import LinearRule, Rule

RULES: list[type[Rule]] = [LinearRule]
