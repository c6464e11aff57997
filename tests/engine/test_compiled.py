"""A compiled module, and one in eval mode, in a training loop: both are told before torch ends in words of its own."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from engine_cases import data, mlp, private
from torch._C._dynamo.eval_frame import get_eval_frame_callback

from isthmus import InvalidInput

EVALUATES = "a batch of the private loader was given to a module in eval mode, .* call module.train"


def test_a_module_that_was_compiled_is_refused_before_data_is_seen() -> None:
    whole, part = mlp(), mlp()
    part[0].compile(backend="eager")
    for module in (torch.compile(whole, backend="eager"), part):
        with pytest.raises(InvalidInput, match="module=.* is not allowed: torch.compile cannot trace the training"):
            private(module, data())


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")
def test_a_private_module_is_compiled_for_predictions_alone() -> None:
    trained = private(mlp(), data())
    compiled = torch.compile(trained.module, backend="eager")
    _, x, y = next(iter(trained.loader))
    with pytest.raises(InvalidInput, match="torch.compile cannot trace the training of a private module"):
        F.cross_entropy(compiled(x), y).backward()
    assert not callable(get_eval_frame_callback())
    trained.module.eval()
    with torch.no_grad():
        assert torch.allclose(compiled(x), trained.module(x))


def test_a_loop_in_eval_mode_is_told_what_to_call() -> None:
    trained = private(mlp().eval(), data())
    _, x, _ = next(iter(trained.loader))
    with pytest.warns(UserWarning, match=EVALUATES):
        trained.module(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with torch.no_grad():
            trained.module(x)  # an evaluation
        trained.module(torch.cat([x, x]))  # other data
