"""Maps on another device: the `meta` device has no memory, so that a value read back or a tensor left behind shows."""

import pytest
import torch
from test_sketches_modules import LAYERED, SPACE, bound
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from isthmus.gradients import Outer, Stack

META = torch.device("meta")


class Watch(TorchDispatchMode):
    """Records operations that mix devices, and copies between them."""

    def __init__(self):
        super().__init__()
        self.mixed, self.copies = [], []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        xs = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor) and x.ndim]
        devices = {x.device.type for x in xs}
        distinct = {x.device.type for x in tree_leaves(out) if isinstance(x, torch.Tensor) and x.ndim}
        if len(devices) > 1:
            self.mixed.append(str(func))
        elif xs and devices != distinct and distinct:
            self.copies.append(str(func))
        return out


def factors(q, p, positions):
    middle = () if positions is None else (positions,)
    return Outer(torch.zeros(6, *middle, p - 1, device=META), torch.zeros(6, *middle, q, device=META), ones=True)


def use(sketch, positions):
    stack = Stack([("hidden", factors(4, 6, positions)), ("out", factors(3, 5, positions))])
    codes = sketch.join({name: sketch.leaf(name, piece) for name, piece in stack.leaves()})
    code = sketch.forward(stack.sum())
    lifted = torch.cat([sketch.pinv_leaf(leaf.name, code) for leaf in SPACE.leaves])
    return codes.sum(), sketch.rows(torch.zeros(2, 39, device=META)), lifted, sketch.adjoint(code)


@pytest.mark.parametrize("positions", [None, 1, 3])
@pytest.mark.parametrize("name", [name for name in LAYERED if not name.startswith("residual")])
def test_the_hot_path_stays_on_its_device(name, positions):
    stays(bound(name), positions)


def stays(sketch, positions):
    """Nothing of a round moves to another device, or meets a tensor of one."""
    use(sketch, positions)
    with Watch() as watch:
        results = use(sketch, positions)
    assert [tuple(x.shape) for x in results] == [(sketch.m,), (2, sketch.m), (39,), (39,)]
    assert all(x.device == META for x in results)
    assert watch.mixed == [] and watch.copies == []


def test_the_watch_sees_mixed_devices_and_copies():
    with Watch() as watch:
        torch.zeros(3, device=META)[torch.tensor([0, 1])]
        torch.zeros(3).to(META)
    assert len(watch.mixed) == 1 and len(watch.copies) == 1
