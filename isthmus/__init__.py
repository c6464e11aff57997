"""Isthmus: training with low-dimensional gradients.

Every gradient is carried from R^d through a narrow space R^m, clipped, noised or sent there, and lifted
back to R^d or onto a constraint set.  The names below are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0.dev0"

_HOMES = {
    "sets": (
        "Box ConvexSet ConvexHull Ellipsoid FromLMO FromProjection GroupBall L1Ball L2Ball LInfBall LowRank "
        "LpBall NuclearBall Product Simplex Subspace Whole"
    ),
    "sketches": (
        "Blocks Coordinates CountSketch Encoder GaussianSketch Identity Kronecker KroneckerSubspace Nice "
        "PerLeaf Progressive PublicSubspace RademacherSketch Residual SRHT Sketch SparseJL TensorSketch"
    ),
    "objectives": "Hinge Huber LeastSquares Logistic Poisson SmoothHinge Softmax TorchObjective",
    "objectives.module": "ModuleObjective",
    "lifts": "basis_pursuit cosamp project_and_lift",
    "core.minimize": "EarlyStop Recipe minimize",
    "core.pipeline": "AllReduce Clients Pipeline Release Stage",
    "core.driver": "TorchDriver",
    "engine": "BatchMemoryManager GradientEmbedding PrivacyEngine warm_start",
    "planner": "plan",
    "privacy.leaks": "PrivacyBudgetWarning PrivacyLeakWarning",
    "tables.encoder": "TableEncoder",
    "estimators": "PrivateClassifier PrivateRegressor PrivateSearch private_score private_summary",
    "privacy.mechanisms": "Mechanism",
    "base.validate": "InvalidInput",
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}
_MODULES = "algorithms audit codecs datasets diagnostics estimators modules planner privacy report theory".split()
__all__ = sorted([*_HOME_OF, *_MODULES])


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used (so that `import isthmus` does not import torch)."""
    if name in _HOME_OF:
        value = getattr(importlib.import_module(f"isthmus.{_HOME_OF[name]}"), name)
        globals()[name] = value
        return value
    try:
        return importlib.import_module(f"isthmus.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"isthmus.{name}":
            raise
    raise AttributeError(f"module 'isthmus' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
