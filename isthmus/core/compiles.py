"""torch.compile and private modules: a compiler cannot trace what tells the examples of a batch apart."""

from __future__ import annotations

import torch
from torch import nn

from isthmus.base import validate

REMEDY = (
    "torch.compile cannot trace the training of a private module, whose layers keep what each example did: make "
    "the module itself private, and give it the batches of the private loader; in eval mode it may be compiled"
)


def under_way() -> bool:
    """Whether torch.compile watches the frames that run now; `torch.compiler.is_compiling` tells only of those that it
    has traced, and ours are among those that it hands back to Python.
    """
    frames = getattr(torch._C._dynamo, "eval_frame", None)
    watching = getattr(frames, "get_eval_frame_callback", None)
    return watching is not None and callable(watching())


def check(module: nn.Module) -> None:
    """Refuse a module that was compiled, or has a part that was, before any data is seen."""
    for each in module.modules():
        compiled = hasattr(each, "_orig_mod") or getattr(each, "_compiled_call_impl", None) is not None
        validate.check(not compiled, "module", type(each).__name__, REMEDY)
