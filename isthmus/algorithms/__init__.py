"""Algorithms as recipes: each a short function that fills a pipeline; none has a loop of its own.

| recipe | paper | what it is |
|---|---|---|
| `sgd`, `gd` | - | projected (stochastic) gradient descent |
| `comp_sgd`, `comp_gd`, `comp_minibatch` | 001, 000 | the same with m numbers of each gradient |
| `comp_dist_sgd` | 001, App. D | clients send sketches, drawn from a shared seed |
| `comp_fw` | 001, App. E | Frank-Wolfe on compressed gradients |
"""

from isthmus.algorithms.dimension import WidthRule
from isthmus.algorithms.first_order import comp_dist_sgd, comp_gd, comp_minibatch, comp_sgd, gd, sgd
from isthmus.algorithms.frank_wolfe import comp_fw

__all__ = ["WidthRule", "comp_dist_sgd", "comp_fw", "comp_gd", "comp_minibatch", "comp_sgd", "gd", "sgd"]
