"""Sketches: linear maps R^d -> R^m drawn from a seed or learned from public data.

>>> import torch
>>> sketch = CountSketch(100).draw(1000, seed=0, t=3)
>>> code = sketch.forward(torch.ones(1000))
>>> code.shape, sketch.pinv(code).shape
(torch.Size([100]), torch.Size([1000]))
"""

from isthmus.sketches.base import Context, Encoder, Random, Size, Sketch, resolve
from isthmus.sketches.compose import Identity, PerLeaf, Progressive, Residual
from isthmus.sketches.dense import GaussianSketch, RademacherSketch
from isthmus.sketches.hashed import CountSketch, SparseJL, TensorSketch
from isthmus.sketches.kronecker import Kronecker
from isthmus.sketches.public import KroneckerSubspace, PublicSubspace
from isthmus.sketches.selection import SRHT, Blocks, Coordinates, Nice

__all__ = ["SRHT", "Blocks", "Context", "Coordinates", "CountSketch", "Encoder", "GaussianSketch", "Identity"]
__all__ += ["Kronecker", "KroneckerSubspace", "Nice", "PerLeaf", "Progressive", "PublicSubspace", "RademacherSketch"]
__all__ += ["Random", "Residual", "Size", "Sketch", "SparseJL", "TensorSketch", "resolve"]
