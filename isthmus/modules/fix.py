"""What stands between a module and per-example gradients, and the copy of it that has none of that."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _LazyNormBase
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.modules.lazy import LazyModuleMixin

from isthmus.base.validate import InvalidInput, check, positive_int
from isthmus.gradients.layers.layers import rule_for
from isthmus.modules.recurrent import GRU, LSTM, RNN, _Recurrent

_MAX_GROUPS = 32
"""Groups of the norm that takes the place of a batch norm, at most."""
_MIN_FEATURES = 8
"""Features to a group, at least, where a layer may see no positions to take statistics over."""
_WRAPPERS = ("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule")
_BARE = (
    "give the bare module, and make_private(group=) for several processes: it adds clipped sums in the narrow space, "
    "where the wrapper would add raw gradients"
)
_SHARDED = (
    "give the bare module, and make_private(group=): a sharded module puts other parameters in the place of its own in "
    "every pass, which would get raw gradients and reduce them over the ranks before anything is clipped"
)
REPLACE = "call `engine.get_compatible_module(module)` before making the optimiser"


@dataclass(frozen=True)
class Problem:
    """What is wrong with a layer and what to do; `kind` is "error", or "warning" where training works but is slow."""

    layer: str
    why: str
    remedy: str
    kind: str = "error"

    def __str__(self) -> str:
        return f"{self.kind}: layer {self.layer!r} {self.why}: {self.remedy}"


def validate(module: nn.Module, strict: bool = False) -> list[Problem]:
    """Every reason why a module cannot have (or has at a price) the gradient of each example, at once.

    Guarantee: a module without an entry of kind "error" mixes no examples in the layers torch itself supplies and keeps
    no statistic of the data outside its trained parameters, in the modes (training or not) its layers have now.  Code
    between the layers cannot be read here: private training tries it out (`isthmus.gradients.layers.trial`).

    Args:
        module: any module; it is read, not run.
        strict: raise with all errors in one message rather than return them.

    >>> problems = validate(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.GRU(4, 2)))
    >>> [problem.layer for problem in problems]
    ['1', '1', '2']
    >>> print(problems[0])  # doctest: +ELLIPSIS
    error: layer '1' is a BatchNorm1d that mixes the examples of a batch: call `engine.get_compatible_module...
    """
    problems = [problem for name, layer in module.named_modules() for problem in _problems(name, layer)]
    if not any(parameter.requires_grad for parameter in module.parameters()):
        problems.append(Problem("", "has no trainable parameter", "set requires_grad on those to be trained"))
    errors = [str(problem) for problem in problems if problem.kind == "error"]
    if strict and errors:
        raise InvalidInput(f"module {type(module).__name__} has {len(errors)} problem(s):\n" + "\n".join(errors))
    return problems


def is_compatible(module: nn.Module) -> bool:
    """Whether nothing of kind "error" is wrong with a module.

    >>> is_compatible(nn.Linear(2, 2)), is_compatible(nn.BatchNorm2d(3))
    (True, False)
    """
    return all(problem.kind != "error" for problem in validate(module))


def get_compatible_module(module: nn.Module, *, num_groups: int | None = None) -> nn.Module:
    """A copy of a module whose layers keep examples apart; the module itself is not touched.

      * BatchNorm and SyncBatchNorm become GroupNorm with the same scale and shift, unless they are frozen and in eval
        mode: `num_groups` of them, which must divide the features of each, or as many as the largest divisor of the
        features up to 32 (for BatchNorm1d, which may see no positions to take statistics over, groups have at least
        8 features);
      * InstanceNorm stops keeping running statistics;
      * `nn.RNN`, `nn.LSTM` and `nn.GRU` become those of this package, with the same weights and the same numbers.

    Modes, devices, dtypes, `requires_grad`, shared layers and tied parameters stay.  Hooks of a replaced layer go.

    >>> fixed = get_compatible_module(nn.Sequential(nn.Conv2d(3, 48, 3), nn.BatchNorm2d(48)))
    >>> fixed[1].num_groups, fixed[1].num_channels
    (24, 48)
    """
    if num_groups is not None:
        positive_int(num_groups=num_groups)
    whole = copy.deepcopy(module)
    new = {id(layer): fit for layer in whole.modules() if (fit := _replacement(layer, num_groups)) is not None}
    for parent in list(whole.modules()):
        for name, child in list(parent._modules.items()):
            if id(child) in new:
                parent._modules[name] = new[id(child)]
    return new.get(id(whole), whole)


def _replacement(layer: Any, num_groups: int | None) -> nn.Module | None:
    """The layer in its place, on the same Parameter objects; None where it may stay."""
    fit: nn.Module | None = None
    if isinstance(layer, LazyModuleMixin):
        return None
    if _is_one_of(layer, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm):
        fit = _group_norm(layer, num_groups)
    elif _is_one_of(layer, nn.RNN, nn.LSTM, nn.GRU):
        kind: type[_Recurrent] = {"LSTM": LSTM, "GRU": GRU}.get(layer.mode, RNN)
        names = "input_size hidden_size num_layers bias batch_first dropout bidirectional proj_size".split()
        if kind is RNN:
            names.append("nonlinearity")
        fit = kind(**{name: vars(layer)[name] for name in names}, device="meta")
        for name, parameter in layer.named_parameters(remove_duplicate=False):
            weight, _, part = name.partition("_")
            setattr(fit._modules[part], weight, parameter)
    elif _is_one_of(layer, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d):
        layer.track_running_stats = False
        layer.running_mean = layer.running_var = layer.num_batches_tracked = None
    if fit is not None:
        fit.train(layer.training)
    return fit


def _is_one_of(layer: Any, *kinds: type[nn.Module]) -> bool:
    """Whether it is one of these, with a forward that is theirs: another one computes something else."""
    return isinstance(layer, kinds) and any(type(layer).forward is kind.forward for kind in kinds)


def _group_norm(layer: Any, num_groups: int | None) -> nn.Module | None:
    if not any(_batch_norm_problem("", layer, any(p.requires_grad for p in layer.parameters()))):
        return None
    groups, features = num_groups, layer.num_features
    if groups is None:
        most = features
        if isinstance(layer, nn.BatchNorm1d):  # a group of one number would be normalised to nothing
            most = max(1, most // _MIN_FEATURES)
        groups = max(g for g in range(1, min(_MAX_GROUPS, most) + 1) if features % g == 0)
    remedy = f"give a divisor of the features of every batch norm: one has {features}"
    check(features % groups == 0, "num_groups", num_groups, remedy)
    fit = nn.GroupNorm(groups, features, eps=layer.eps, affine=layer.affine, device="meta")
    if layer.affine:
        fit.weight, fit.bias = layer.weight, layer.bias
    return fit


def _problems(name: str, layer: nn.Module) -> Iterator[Problem]:
    """What is wrong with one layer."""
    wrapper = next((base.__name__ for base in type(layer).__mro__ if base.__name__ in _WRAPPERS), None)
    trained = any(parameter.requires_grad for parameter in layer.parameters(recurse=False))
    if wrapper is not None:
        yield Problem(name, f"is wrapped in {wrapper}", _SHARDED if "FSDP" in wrapper or "Fully" in wrapper else _BARE)
    elif type(layer).__module__.startswith(("torch.ao.", "torch.nn.quantized", "torch.nn.qat", "torch.nn.intrinsic")):
        kind = type(layer).__name__
        yield Problem(name, f"is quantised ({kind})", "quantise after training, with a module of floats")
    elif isinstance(layer, LazyModuleMixin) and (isinstance(layer, _LazyNormBase) or layer.has_uninitialized_params()):
        yield Problem(name, "has no parameters yet (lazy)", "run one batch through the module first")
    elif isinstance(layer, _BatchNorm):
        yield from _batch_norm_problem(name, layer, trained)
    elif isinstance(layer, _InstanceNorm) and layer.track_running_stats and (layer.training or trained):
        yield Problem(name, "keeps running statistics of the data (track_running_stats), unprotected", REPLACE)
    elif isinstance(layer, (nn.Embedding, nn.EmbeddingBag)) and layer.max_norm is not None:
        yield Problem(name, "rewrites the rows that the data name (max_norm), unprotected", "set max_norm=None")
    elif trained:
        try:
            rule_for(name, layer)
        except InvalidInput as error:
            why, _, remedy = str(error).partition(" is not allowed: ")
            yield Problem(name, f"({type(layer).__name__}) has no per-example gradient", remedy or why)


def _batch_norm_problem(name: str, layer: _BatchNorm, trained: bool) -> Iterator[Problem]:
    """A batch norm is fine only when nothing of it moves: frozen, in eval mode, with running statistics."""
    kind = type(layer).__name__
    if layer.training or layer.running_mean is None:
        yield Problem(name, f"is a {kind} that mixes the examples of a batch", REPLACE)
    elif trained:
        yield Problem(name, f"is a trainable {kind}", f"{REPLACE}, or freeze it and keep it in eval mode")
    if layer.training and layer.track_running_stats:
        yield Problem(name, "keeps running statistics of the data (track_running_stats), unprotected", REPLACE)
