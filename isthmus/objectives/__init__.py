"""Objectives: f(w) = (1/n) sum_i l_i(w) + penalty(w), with factored per-example gradients.

| name | loss of the margin z | curvature | bounded slope |
|---|---|---|---|
| `Logistic` | log(1 + exp(-y z)) | 1/4 | 1 |
| `Softmax` | log sum_k exp(z_k) - z_y | 1/2 | sqrt 2 |
| `LeastSquares` | (z - y)^2 / 2 | 1 | - |
| `Hinge` | max(0, 1 - y z) | - | 1 |
| `SmoothHinge` | the same, rounded over a width gamma | 1/gamma | 1 |
| `OneVsRest` | hinges of all classes against the rest | 1/gamma | sqrt K |
| `Huber` | squared, linear beyond delta | 1 | delta |
| `Poisson` | exp(z) - y z + log(y!) | - | - |
| `TorchObjective` | any torch function of one example | - | - |

A linear loss brings what others ask of it as class attributes (see `LinearModel`): its `name`, how y is read, its clip.
"""

from isthmus.objectives.base import Objective, TorchObjective
from isthmus.objectives.linear import (
    Hinge,
    Huber,
    LeastSquares,
    LinearModel,
    Logistic,
    OneVsRest,
    Poisson,
    SmoothHinge,
    Softmax,
)

__all__ = ["LinearModel", "Objective", "TorchObjective"]
__all__ += ["Hinge", "Huber", "LeastSquares", "Logistic", "OneVsRest", "Poisson", "SmoothHinge", "Softmax"]
