"""The one list of drawn sketches that every contract test runs over."""

from __future__ import annotations

import hashlib

import torch

from isthmus.base.space import Space
from isthmus.sketches import (
    SRHT,
    Blocks,
    Coordinates,
    CountSketch,
    GaussianSketch,
    Identity,
    Kronecker,
    Nice,
    PerLeaf,
    RademacherSketch,
    SparseJL,
    TensorSketch,
)

SIZES = [(997, 100), (1500, 37), (10, 10), (1, 1)]
FAMILIES = {
    "gaussian": lambda m: GaussianSketch(m),
    "gaussian-jl": lambda m: GaussianSketch(m, scaling="jl"),
    "rademacher": lambda m: RademacherSketch(m),
    "rademacher-jl": lambda m: RademacherSketch(m, scaling="jl"),
    "sparse": lambda m: SparseJL(m),
    "sparse-3": lambda m: SparseJL(m, s=min(3, m)),
    "sparse-theorem": lambda m: SparseJL(m, s="theorem", beta=0.9),
    "count": lambda m: CountSketch(m),
    "count-jl": lambda m: CountSketch(m, scaling="jl"),
    "srht": lambda m: SRHT(m),
    "tensor": lambda m: TensorSketch(m),
    "coordinates": lambda m: Coordinates(m),
    "nice": lambda m: Nice(m),
}
LAYERS = Space.of({"hidden": (7, 20), "bias": (9,), "out": (3, 8)})
CASES = {f"{name}-{d}-{m}": (make(m), d) for name, make in FAMILIES.items() for d, m in SIZES}
CASES |= {
    "gaussian-square": (GaussianSketch(120), 120),
    "gaussian-nearly-square": (GaussianSketch(299), 300),
    "identity": (Identity(), 37),
    "blocks": (Blocks(7), 100),
    "blocks-bounds": (Blocks([slice(0, 3), [9, 4, 5, 6], [3, 7, 8]], [0.5, 2.0, 3.0], [0.2, 0.3, 0.5]), 10),
    "blocks-leaves": (Blocks(["out", "hidden", "bias"], bounds=[1.0, 2.0, 3.0]), LAYERS),
    "nice-bounds": (Nice(4, bounds=[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), 6),
    "kronecker": (Kronecker(4, 2), LAYERS),
    "kronecker-ranks": (Kronecker(4, 2, ranks={"out": (3, 8)}), LAYERS),
    "srht-two-blocks": (SRHT(50), 1024 + 3),
    "tensor-layers": (TensorSketch(16), LAYERS),
    "tensor-shared-factor": (TensorSketch(20), LAYERS),
    "tensor-nearly-all": (TensorSketch(171), LAYERS),
    "tensor-square": (TensorSketch(173), LAYERS),
    "tensor-tall": (TensorSketch(30), Space.of({"tall": (61, 1), "wide": (1, 90), "vector": (50,)})),
    "blocks-groups": (Blocks([("hidden", "out"), ["bias"]], probs=[0.9, 0.1]), LAYERS),
    "per-leaf-tensor": (PerLeaf(TensorSketch(0.3)), LAYERS),
    "per-leaf-kronecker": (PerLeaf(Kronecker(2, 2)), LAYERS),
    "kronecker-long": (Kronecker(3, 2), Space.of({"long": (3, 1100), "tall": (1030, 2)})),
    "count-layers": (CountSketch(16), LAYERS),
    "per-leaf": (PerLeaf(CountSketch(0.3)), LAYERS),
    "per-leaf-gaussian": (PerLeaf(GaussianSketch(0.2)), LAYERS),
    "per-leaf-jl": (PerLeaf(SparseJL(0.5)), LAYERS),
}


def draw(name: str, seed: int = 3, t: int = 5):
    """The sketch of a case."""
    encoder, space = CASES[name]
    return encoder.draw(space, seed=seed, t=t)


def fingerprint(phi: torch.Tensor) -> str:
    """A hash of a matrix to 9 digits."""
    rounded = (phi * 1e9).round().to(torch.int64).contiguous()
    return hashlib.sha256(rounded.numpy().tobytes()).hexdigest()
