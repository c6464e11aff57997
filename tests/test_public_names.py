"""Every public name exists, says what it is, and is listed."""

import importlib
import inspect
import pkgutil

import pytest

import isthmus

FRONT_DOORS = (
    "L1Ball L2Ball LInfBall Box LpBall Simplex ConvexHull Subspace NuclearBall LowRank GroupBall Ellipsoid Product "
    "Whole Identity GaussianSketch RademacherSketch SparseJL CountSketch SRHT Coordinates Blocks Nice Kronecker "
    "PublicSubspace KroneckerSubspace Logistic Softmax LeastSquares Hinge SmoothHinge Huber Poisson minimize "
    "project_and_lift algorithms"
).split()


@pytest.mark.parametrize("name", FRONT_DOORS)
def test_front_doors_open(name: str) -> None:
    assert name in isthmus.__all__
    assert getattr(isthmus, name) is not None


@pytest.mark.parametrize("name", isthmus.__all__)
def test_public_names_are_documented(name: str) -> None:
    assert (inspect.getdoc(getattr(isthmus, name)) or "").strip()


def test_unknown_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        isthmus.nonsense  # noqa: B018


def modules() -> list[str]:
    names = [m.name for m in pkgutil.walk_packages(isthmus.__path__, "isthmus.")]
    return [name for name in names if "._" not in name]


@pytest.mark.parametrize("module", modules())
def test_public_classes_and_functions_are_documented(module: str) -> None:
    """Own public classes, functions and methods have a docstring (inherited ones count)."""
    missing = []
    for name, value in vars(importlib.import_module(module)).items():
        if name.startswith("_") or getattr(value, "__module__", None) != module:
            continue
        if inspect.isfunction(value) and not inspect.getdoc(value):
            missing.append(name)
        if inspect.isclass(value):
            missing += [] if inspect.getdoc(value) else [name]
            protocol = getattr(value, "_is_protocol", False)
            methods = [] if protocol else [m for m in vars(value).items() if inspect.isfunction(m[1])]
            missing += [
                f"{name}.{m}" for m, _ in methods if not m.startswith("_") and not inspect.getdoc(getattr(value, m))
            ]
    assert not missing
