"""Codecs: unbiased contractions of a vector to bytes, by name everywhere a codec is taken.

>>> import torch
>>> from isthmus import codecs
>>> v = torch.linspace(-1, 1, 10_000)
>>> {name: len(codecs.named(name).encode(v, seed=0)) for name in ("qsgd", "terngrad", "random_k", "int8", "natural")}
{'qsgd': 3419, 'terngrad': 2008, 'random_k': 4013, 'int8': 10008, 'natural': 11254}
"""

from isthmus.codecs.base import Codec, check_contraction, from_json, named
from isthmus.codecs.bits import CodecError
from isthmus.codecs.kinds import QSGD, VQSGD, BFloat16, Float16, Int8, Natural, PackedBits, RandomK, TernGrad

__all__ = ["BFloat16", "Codec", "CodecError", "Float16", "Int8", "Natural", "PackedBits", "QSGD", "RandomK", "TernGrad"]
__all__ += ["VQSGD", "check_contraction", "from_json", "named"]
