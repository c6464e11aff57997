"""Isthmus: training with low-dimensional gradients.

Every gradient is carried from R^d through a narrow space R^m, clipped, noised or sent there, and lifted
back to R^d or onto a constraint set.  The names below are loaded when they are first used.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isthmus import algorithms as algorithms
    from isthmus import audit as audit
    from isthmus import codecs as codecs
    from isthmus import diagnostics as diagnostics
    from isthmus import estimators as estimators
    from isthmus import planner as planner
    from isthmus import privacy as privacy
    from isthmus import theory as theory
    from isthmus.app import datasets as datasets
    from isthmus.app import report as report
    from isthmus.engine import modules as modules


__version__ = "0.1.0.dev0"

_HOMES = {
    "geometry.sets": [
        "Box",
        "ConvexSet",
        "ConvexHull",
        "Ellipsoid",
        "FromLMO",
        "FromProjection",
        "GroupBall",
        "L1Ball",
        "L2Ball",
        "LInfBall",
        "LowRank",
        "LpBall",
        "NuclearBall",
        "Product",
        "Simplex",
        "Subspace",
        "Whole",
    ],
    "geometry.sketches": [
        "Blocks",
        "Coordinates",
        "CountSketch",
        "Encoder",
        "GaussianSketch",
        "Identity",
        "Kronecker",
        "KroneckerSubspace",
        "Nice",
        "PerLeaf",
        "Progressive",
        "PublicSubspace",
        "RademacherSketch",
        "Residual",
        "SRHT",
        "Sketch",
        "SparseJL",
        "TensorSketch",
    ],
    "problems.objectives": [
        "Hinge",
        "Huber",
        "LeastSquares",
        "Logistic",
        "Poisson",
        "SmoothHinge",
        "Softmax",
        "TorchObjective",
    ],
    "problems.objectives.module": ["ModuleObjective"],
    "geometry.lifts": ["basis_pursuit", "cosamp", "project_and_lift"],
    "round.minimize": ["EarlyStop", "Recipe", "minimize"],
    "round.pipeline": ["Pipeline", "Release", "Stage"],
    "round.aggregators": ["Clients"],
    "round.ranks": ["AllReduce"],
    "round.torch_loop": ["TorchDriver"],
    "engine": ["BatchMemoryManager", "GradientEmbedding", "PrivacyEngine", "warm_start"],
    "planner": ["plan"],
    "privacy.leaks": ["PrivacyBudgetWarning", "PrivacyLeakWarning"],
    "tables.encoder": ["TableEncoder"],
    "estimators": ["PrivateClassifier", "PrivateRegressor", "PrivateSearch", "private_score", "private_summary"],
    "privacy.mechanisms": ["Mechanism"],
    "base.validate": ["InvalidInput"],
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}
_MODULES = {
    "algorithms": "algorithms",
    "audit": "audit",
    "codecs": "codecs",
    "datasets": "app.datasets",
    "diagnostics": "diagnostics",
    "estimators": "estimators",
    "modules": "engine.modules",
    "planner": "planner",
    "privacy": "privacy",
    "report": "app.report",
    "theory": "theory",
}
_ALIASES = {
    **_MODULES,
    "cli": "app.cli",
    "demo": "app.demo",
    "driver": "round.torch_loop",
    "lifts": "geometry.lifts",
    "objectives": "problems.objectives",
    "parts": "round.parts",
    "penalties": "problems.penalties",
    "pipeline": "round.pipeline",
    "sets": "geometry.sets",
    "sketches": "geometry.sketches",
    "tensorboard": "diagnostics.tensorboard",
}
"""Modules under the names that users import: `isthmus.sets` is `isthmus.geometry.sets`, one and the same module."""

__all__ = sorted([*_HOME_OF, *_MODULES])


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used (so that `import isthmus` does not import torch)."""
    if name in _ALIASES:
        return importlib.import_module(f"isthmus.{_ALIASES[name]}")
    if name in _HOME_OF:
        value = getattr(importlib.import_module(f"isthmus.{_HOME_OF[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'isthmus' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


class _Aliases(MetaPathFinder):
    """Finds `isthmus.sets.balls` where it lives, in `isthmus.geometry.sets.balls`: one module under two names."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, rest = name.partition(".")
        first, _, inner = rest.partition(".")
        home = _ALIASES.get(first, first)
        if package != "isthmus" or home == first:
            return None
        real = importlib.util.find_spec(f"isthmus.{home}" + (f".{inner}" if inner else ""))
        return None if real is None else _alias_of(real, name)


def _alias_of(real: ModuleSpec, name: str) -> ModuleSpec:
    spec = ModuleSpec(name, _Alias(real.name), is_package=real.submodule_search_locations is not None)
    spec.submodule_search_locations = real.submodule_search_locations
    return spec


class _Alias(Loader):
    """Loads an alias: the module itself, not a copy."""

    def __init__(self, home: str) -> None:
        self.home = home

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self.home)
        self.spec = module.__spec__
        return module

    def get_code(self, name: str) -> CodeType | None:  # for `python -m isthmus.cli`
        real = importlib.util.find_spec(self.home)
        code: CodeType | None = real.loader.get_code(self.home)  # type: ignore[union-attr]
        return code

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec  # the import system has written the alias's into the module


# First: the finder of paths would load a second copy of `isthmus.sets.balls` from the folder of the package.
sys.meta_path.insert(0, _Aliases())
