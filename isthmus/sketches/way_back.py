"""A way back that two ask for: in one process the sender and the receiver of a code lift the same numbers.

A sender with error feedback lifts its code to see what was lost of its gradient, a receiver to step along it.  The
sender leaves the vector with the map, and whoever lifts an equal code next takes it: what is found is the same to the
bit as if it was computed twice, as it is in two processes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from isthmus.sketches.base import Sketch

MOST = 1 << 23
"""Longer vectors are not left lying about: one that nobody takes stays until the map is dropped."""


def leave_pinv(sketch: Sketch, y: Tensor) -> Tensor:
    """Phi^+ y, left with the map for whoever lifts an equal code next: neither is to be written to.

    >>> from isthmus.sketches import CountSketch
    >>> sketch, y = CountSketch(2).draw(4), torch.tensor([1.0, 2.0])
    >>> left = leave_pinv(sketch, y)
    >>> take_pinv(sketch, y.clone()) is left, take_pinv(sketch, y) is left
    (True, False)
    """
    back = sketch.pinv(y)
    if y.device.type == "cpu" and sketch.d <= MOST:  # to compare codes on a device would be to wait for it
        sketch._recent["left"] = y, 0, back
    return back


def take_pinv(sketch: Sketch, y: Tensor) -> Tensor:
    """Phi^+ y: what was left, if it was left of an equal code, and computed otherwise."""
    code, _, back = sketch._recent.pop("left", (None, 0, y))
    if code is not None and code.dtype == y.dtype and code.device == y.device and torch.equal(code, y):
        return back
    return sketch.pinv(y)
