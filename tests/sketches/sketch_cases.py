"""The one list of drawn sketches that every contract test runs over."""

import hashlib

import torch

from isthmus import sketches
from isthmus.base.space import Space

SIZES = [(997, 100), (1500, 37), (10, 10), (1, 1)]
FAMILIES = {
    "gaussian": lambda m: sketches.GaussianSketch(m),
    "gaussian-jl": lambda m: sketches.GaussianSketch(m, scaling="jl"),
    "rademacher": lambda m: sketches.RademacherSketch(m),
    "rademacher-jl": lambda m: sketches.RademacherSketch(m, scaling="jl"),
    "sparse": lambda m: sketches.SparseJL(m),
    "sparse-3": lambda m: sketches.SparseJL(m, s=min(3, m)),
    "sparse-theorem": lambda m: sketches.SparseJL(m, s="theorem", beta=0.9),
    "count": lambda m: sketches.CountSketch(m),
    "count-jl": lambda m: sketches.CountSketch(m, scaling="jl"),
    "srht": lambda m: sketches.SRHT(m),
    "tensor": lambda m: sketches.TensorSketch(m),
    "coordinates": lambda m: sketches.Coordinates(m),
    "nice": lambda m: sketches.Nice(m),
}
LAYERS = Space.of({"hidden": (7, 20), "bias": (9,), "out": (3, 8)})
CASES = {f"{name}-{d}-{m}": (make(m), d) for name, make in FAMILIES.items() for d, m in SIZES}
CASES |= {
    "gaussian-square": (sketches.GaussianSketch(120), 120),
    "gaussian-nearly-square": (sketches.GaussianSketch(299), 300),
    "identity": (sketches.Identity(), 37),
    "blocks": (sketches.Blocks(7), 100),
    "blocks-bounds": (sketches.Blocks([slice(0, 3), [9, 4, 5, 6], [3, 7, 8]], [0.5, 2.0, 3.0], [0.2, 0.3, 0.5]), 10),
    "blocks-leaves": (sketches.Blocks(["out", "hidden", "bias"], bounds=[1.0, 2.0, 3.0]), LAYERS),
    "nice-bounds": (sketches.Nice(4, bounds=[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), 6),
    "kronecker": (sketches.Kronecker(4, 2), LAYERS),
    "kronecker-ranks": (sketches.Kronecker(4, 2, ranks={"out": (3, 8)}), LAYERS),
    "srht-two-blocks": (sketches.SRHT(50), 1024 + 3),
    "tensor-layers": (sketches.TensorSketch(16), LAYERS),
    "tensor-shared-factor": (sketches.TensorSketch(20), LAYERS),
    "tensor-nearly-all": (sketches.TensorSketch(171), LAYERS),
    "tensor-square": (sketches.TensorSketch(173), LAYERS),
    "tensor-tall": (sketches.TensorSketch(30), Space.of({"tall": (61, 1), "wide": (1, 90), "vector": (50,)})),
    "blocks-groups": (sketches.Blocks([("hidden", "out"), ["bias"]], probs=[0.9, 0.1]), LAYERS),
    "per-leaf-tensor": (sketches.PerLeaf(sketches.TensorSketch(0.3)), LAYERS),
    "per-leaf-kronecker": (sketches.PerLeaf(sketches.Kronecker(2, 2)), LAYERS),
    "kronecker-long": (sketches.Kronecker(3, 2), Space.of({"long": (3, 1100), "tall": (1030, 2)})),
    "count-layers": (sketches.CountSketch(16), LAYERS),
    "per-leaf": (sketches.PerLeaf(sketches.CountSketch(0.3)), LAYERS),
    "per-leaf-gaussian": (sketches.PerLeaf(sketches.GaussianSketch(0.2)), LAYERS),
    "per-leaf-jl": (sketches.PerLeaf(sketches.SparseJL(0.5)), LAYERS),
}


def draw(name: str, seed: int = 3, t: int = 5):
    """The sketch of a case."""
    encoder, space = CASES[name]
    return encoder.draw(space, seed=seed, t=t)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Drawn numbers, the same in every dtype."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def fingerprint(phi: torch.Tensor) -> str:
    """A hash of a matrix to 9 digits."""
    rounded = (phi * 1e9).round().to(torch.int64).contiguous()
    return hashlib.sha256(rounded.numpy().tobytes()).hexdigest()
